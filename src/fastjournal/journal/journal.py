"""The embedded journal: a durable job queue in one process, over one directory.

Rules:

1. Every method may be called from any thread. Requests are decided, logged and applied one after
   the other; the answer comes when the sync policy's promise holds (see
   `docs/what-an-ack-means.md`).
2. Times and names are converted at this edge (`arguments`); inside there are bytes and nanoseconds.
3. A refused request changes nothing. After a fault of the log writing ends, reading goes on.
4. Background threads only do what time demands (`background=False`: call `tick` and `clean`
   yourself).
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self, final

from mypy_extensions import i64

from fastjournal.arguments import (
    MAX_VALUE,
    Instant,
    JobId,
    Length,
    Text,
    id_bytes,
    instant,
    key_bytes,
    length,
    put_arguments,
    put_request,
    put_request_of,
    queue_bytes,
    result_bytes,
    schema_number,
    token_number,
    worker_bytes,
)
from fastjournal.clock import SECOND, SYSTEM_CLOCK, Clock, SteadyClock
from fastjournal.errors import (
    AlreadyExists,
    BadRequest,
    Closed,
    JournalError,
    LeaseLost,
    NoSpace,
    NotFound,
    SettingError,
    TimedOut,
)
from fastjournal.handles import LeasedJob
from fastjournal.journal.decide.ground import Ground, Limits
from fastjournal.journal.disk.background import Background
from fastjournal.journal.disk.replay import CLEAN_NOTE, replay
from fastjournal.journal.disk.snapshot import first_uncovered, snapshot_path
from fastjournal.journal.disk.upkeep import Upkeep, UpkeepStatus
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.engine.events import Subscription
from fastjournal.journal.engine.forwarding import Taken
from fastjournal.journal.engine.operations import OUTCOMES, Operations, Receipt
from fastjournal.journal.engine.reserve import Reserve, free_reserve
from fastjournal.journal.engine.waiting import wait_at
from fastjournal.journal.entry_map import EntryMap
from fastjournal.journal.language.commands import Mark
from fastjournal.journal.look.inspection import Inspection, JournalStatus, result_of
from fastjournal.journal.look.listing import Lister
from fastjournal.journal.spill.fetching import Fetching
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Granted, Row
from fastjournal.journal.state.values import CACHE, Values
from fastjournal.log.care.cleaner import Cleaned
from fastjournal.log.files import DISK, Files
from fastjournal.log.segment import WORKQ
from fastjournal.log.segment_directory import DEFAULT_SEGMENT_SIZE
from fastjournal.log.stream import Stream
from fastjournal.log.write.log_writer import LogWriter
from fastjournal.model import (
    DEFAULT_PRIORITY,
    SETTING_LENGTHS,
    Job,
    NewJob,
    QueueSettings,
    QueueStatus,
    State,
    Unchecked,
    Where,
)
from fastjournal.put_request import PutRequest, checked_request, request_or_error

if TYPE_CHECKING:
    from fastjournal.archive.shipper import ArchiveOptions, ArchiveStatus, Shipper

__all__ = ["Journal", "Receipt", "Receiver"]

MIN_MEMORY: Final = 1024
"""The smallest memory limit: less is surely a mistake about its unit."""
_new: Final[Any] = tuple.__new__
_ALL: Final = Where()
_EVENTS: Final = frozenset(("due", "dead", "changed", "lost"))


@final
class Journal:
    """A durable job queue; close it, or use it as a context manager."""

    def __init__(
        self,
        path: str | Path | Unchecked,
        *,
        sync: str | Unchecked = "interval",
        sync_interval: int | Unchecked | None = None,
        segment_size: int | Unchecked = DEFAULT_SEGMENT_SIZE,
        clean_interval: Length = 300,
        snapshot_bytes: int | Unchecked = 4 * DEFAULT_SEGMENT_SIZE,
        history: str | Unchecked = "delete",
        archive: str | Path | None = None,
        archive_options: ArchiveOptions | None = None,
        max_payload: int | Unchecked = MAX_VALUE,
        memory_limit: int | Unchecked | None = None,
        evict_from: int | Unchecked | None = None,
        on_failure: str | Unchecked = "stop",
        background: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        files: Files = DISK,
        chance: Random | None = None,
        zone_bytes: str = "0000",
        accept: bool = False,
        wait_safe: Callable[[int], None] | None = None,
    ) -> None:
        """Open a journal, made if its directory is missing; recover and replay it.

        `sync`: `always`, `interval` (every `sync_interval` ms, 1000 unless told) or `os`.
        `clean_interval`: seconds between two cleanings, 0 for none. `snapshot_bytes`: size of the
        log after which a snapshot is taken, 0 for never. `archive`: where all history is shipped
        to, restorable to any instant: a directory, or `s3://bucket/jobs` and the like;
        `archive_options` say how (see `docs/archive.md`). `history="archive"` is deprecated: it is
        `archive=path/"archive"`, unless `archive` is given.
        `memory_limit`: bytes of values to hold in memory, None for 8 MiB; the others are read from
        the log when they are asked for. With a limit values that live in memory only count too.
        `evict_from` is deprecated and means nothing: values of all sizes are left in the log.
        `accept`: take jobs out of a foreign log whose fields cannot be; else they are damage, told
        with their place. `wait_safe`: of whoever replicates the journal, see `Upkeep`.
        """
        if history not in ("delete", "archive"):
            raise SettingError(f"history is delete or archive, not {history!r}", name="history")
        given: Any = path
        if history == "archive":
            warnings.warn(
                'history="archive" is deprecated: say archive="..." instead',
                DeprecationWarning,
                stacklevel=2,
            )
            archive = archive or Path(given) / "archive"
        size = _whole(segment_size, "segment_size")
        largest = _whole(max_payload, "max_payload")
        between = _whole(snapshot_bytes, "snapshot_bytes")
        every = None if sync_interval is None else _whole(sync_interval, "sync_interval")
        memory = CACHE
        if memory_limit is not None:
            memory = _whole(memory_limit, "memory_limit")
        if not 1 <= largest <= 8 * 1024 * 1024:
            raise SettingError("max_payload must be 1 byte to 8 MiB", name="max_payload")
        if between < 0:
            raise SettingError("snapshot_bytes must not be negative", name="snapshot_bytes")
        if memory < MIN_MEMORY:
            raise SettingError(
                f"memory_limit must be {MIN_MEMORY} bytes or more", name="memory_limit"
            )
        if evict_from is not None and _whole(evict_from, "evict_from") < 1:
            raise SettingError("evict_from must be 1 byte or more", name="evict_from")
        interval = length(clean_interval, "clean_interval")
        self.path = Path(given)
        self.max_payload: i64 = largest
        """Bytes of the largest value."""
        self._closed = False
        self._clock = SteadyClock(clock, hold_steps=True)
        stream = Stream(self.path, WORKQ, files=files, clock=self._clock, zone_bytes=zone_bytes)
        stream.create()
        stream.check_restored()
        open_log: Callable[[], LogWriter] = partial(
            LogWriter,
            stream,
            segment_size=size,
            sync=_word(sync, "sync"),
            sync_interval=every,
            preallocate=self._may_reserve,
            on_failure=_word(on_failure, "on_failure"),
            trust_mark=True,
            floor=lambda: first_uncovered(stream),
        )
        try:
            self._log = open_log()
        except NoSpace:
            if not free_reserve(stream):
                raise
            self._log = open_log()
        try:
            started = self._clock.monotonic()
            values = Values(memory, logged=True, counts_unlogged=memory_limit is not None)
            self.replayed = replay(stream, state=JournalState(values), accept=accept)
            self.replay_seconds = (self._clock.monotonic() - started) / SECOND
            state = self.replayed.state
            self._clock.go_on_from(state.now)
            ground = Ground(state, None, chance, Limits(largest))
            fetching = Fetching(stream, values, snapshot_path)
            self._engine = Engine(ground, self._log, self._clock, Reserve(stream), fetching)
            self._engine.own = self.replayed.own
            self.shipper: Shipper | None = None
            """Ships to the archive, if there is one."""
            hold = self._archived_below if archive else None
            self.upkeep = Upkeep(self._engine, stream, self.replayed, hold, wait_safe)
            """Cleans and snapshots, when `background` or a caller says so."""
            if archive:
                from fastjournal.journal.disk.archived import make_shipper

                self.shipper = make_shipper(
                    stream, self._log, self.upkeep, str(archive), archive_options, self._clock
                )
            self._state = state
            self._operations = Operations(self._engine)
            self._entries = EntryMap(self._engine, self._check_open)
            self._look = Inspection(self._engine, self._clock)
            if state.unwritten_marks:
                with contextlib.suppress(NoSpace):  # then the next request of the sender tells it
                    self._operations.forwarding.write_marks()
            self.background = Background(self._engine, self.upkeep, interval, between)
            if background:
                self.background.start()
                if self.shipper is not None:
                    self.shipper.start()
        except BaseException:
            with contextlib.suppress(JournalError):  # what is under way tells more
                self._give_up()
            raise

    def _may_reserve(self) -> bool:
        """Whether the log may have zeros at its end: the Workq server does not read over them."""
        return self._engine.own

    def _give_up(self) -> None:
        """Whatever came of opening it: leave no thread and no lock behind."""
        threads = getattr(self, "background", None)
        shipper = getattr(self, "shipper", None)
        try:
            if threads is not None:
                threads.stop()
        finally:
            if shipper is not None:
                shipper.stop()
            self._log.close()
            engine = getattr(self, "_engine", None)
            if engine is not None:
                engine.fetching.close_files()

    def _archived_below(self) -> int:
        return 0 if self.shipper is None else self.shipper.hold

    @property
    def engine(self) -> Engine:
        """State, log and lock, for whoever serves the journal to others (the daemon)."""
        return self._engine

    @property
    def operations(self) -> Operations:
        """The requests themselves, to be called under `engine.lock`."""
        return self._operations

    def _check_open(self) -> None:
        """First of all in a request, under the lock."""
        if self._closed:
            raise Closed("the journal is closed")
        self._engine.begin()

    def put(
        self,
        payload: bytes | Unchecked = b"",
        *,
        key: Text | None = None,
        queue: Text | None = None,
        priority: int | Unchecked = DEFAULT_PRIORITY,
        delay: Length | None = None,
        due: Instant | None = None,
        ttl: Length | None = None,
        expires: Instant | None = None,
        lease: Length | None = None,
        max_attempts: int | Unchecked = 0,
        max_timeouts: int | Unchecked = 0,
        max_fails: int | Unchecked = 0,
        mode: str | Unchecked | None = None,
        timestamp: Instant | None = None,
        id: bytes | Unchecked = b"",  # noqa: A002 - the name of the field
        persist: bool | Unchecked = False,
    ) -> Receipt:
        """Take a job in.

        A `key` that waits already takes the repeat in (`mode="merge"`), refuses it (`"unique"`).
        Without a `queue` the domain of the key is it. `delay`, `ttl` and `lease` are lengths,
        `due` and `expires` instants. Limits of 0 mean what the queue says. `timestamp` is the
        sender's clock: of two writes of a key the newest wins. `id`: 16 bytes of your choice; a put
        with an id that is there already changes nothing, so it may be sent again. `persist`: return
        when it is on stable storage, whatever the sync policy and though its queue lives in memory.
        """
        engine = self._engine
        now = self._clock.now()
        job = put_request(
            now, payload, key, queue, priority, delay, due, ttl, expires, lease,
            max_attempts, max_timeouts, max_fails, mode, timestamp, self.max_payload, id,
        )  # fmt: skip
        if timestamp is not None:
            job.timestamp = engine.stamp_of(job.timestamp)
        job.persist = persist is True
        with engine.lock:
            self._check_open()
            outcome = self._operations.put(job, now)
            job_id = self._operations.placed_id
            time = engine.last_time
        engine.settle(time)
        if persist:
            self._log.sync()
        receipt: Receipt = _new(Receipt, (job_id, OUTCOMES[outcome]))
        return receipt

    def put_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> list[Receipt]:
        """Take many jobs in with few writes and one sync; each is a `NewJob` or `put`'s arguments.

        If one is refused none is taken in. Only a disk that fills up meanwhile leaves those before
        in.
        """
        now = self._clock.now()
        engine = self._engine
        batch = [self._request(job, now) for job in jobs]
        with engine.lock:
            self._check_open()
            receipts = self._operations.put_many(batch, now)
            time = engine.last_time
        engine.settle(time)
        return receipts

    def _request(self, job: Any, now: i64) -> PutRequest:
        if isinstance(job, NewJob):
            request = checked_request(job)
        else:
            request = put_request_of(now, put_arguments(job), self.max_payload)
        if request.timestamp:
            request.timestamp = self._engine.stamp_of(request.timestamp)
        return request

    @property
    def entries(self) -> EntryMap:
        """The journal's key/value entries: a mapping with more to it."""
        return self._entries

    def lease(
        self,
        queue: Text | None = None,
        *,
        queues: Sequence[Text] | Unchecked | None = None,
        prefix: Text | None = None,
        wait: Length = 0,
        lease: Length | None = None,
        fair: bool | Unchecked = True,
        worker: Text = b"",
        take: bool | Unchecked = False,
        schema: int | Unchecked | None = None,
    ) -> LeasedJob | None:
        """The next job, or None if there is none within `wait`.

        Asks one `queue`, some `queues`, those with a `prefix`, or all. `fair`: queues take turns;
        else the most urgent job of all comes first. `take`: the job goes at once instead of being
        leased. `schema`: only a job with a payload of this version; others wait for who can work
        on them.
        """
        where = where_of(queue, queues, prefix, schema)
        leased = self._lease(where, 1, wait, lease, bool(fair), worker, bool(take))
        return leased[0] if leased else None

    def lease_many(
        self,
        count: int | Unchecked,
        queue: Text | None = None,
        *,
        queues: Sequence[Text] | Unchecked | None = None,
        prefix: Text | None = None,
        wait: Length = 0,
        lease: Length | None = None,
        fair: bool | Unchecked = True,
        worker: Text = b"",
        take: bool | Unchecked = False,
        schema: int | Unchecked | None = None,
    ) -> list[LeasedJob]:
        """Up to `count` jobs; waits only for the first one."""
        if type(count) is not int or count < 1:
            raise BadRequest(f"count must be a number of at least 1, not {count!r}")
        where = where_of(queue, queues, prefix, schema)
        return self._lease(where, count, wait, lease, bool(fair), worker, bool(take))

    def _lease(
        self,
        where: Where,
        count: i64,
        wait: object,
        lease: object,
        fair: bool,
        worker: object,
        take: bool,
    ) -> list[LeasedJob]:
        lasts = 0 if lease is None else length(lease, "lease")
        consumer = worker_bytes(worker) if worker else b""
        give_up = 0
        if wait:
            give_up = self._clock.monotonic() + length(wait, "wait")
        engine, operations = self._engine, self._operations
        leased: list[LeasedJob] = []
        time: i64 = 0
        handle = 0
        waits = True
        try:
            while waits:
                with engine.lock:
                    if handle:
                        engine.wakeups.forget(handle)
                    self._check_open()
                    if count == 1:
                        rows = operations.lease(where, 1, consumer, lasts, fair, take)
                    else:
                        with engine.batch():
                            rows = operations.lease(where, count, consumer, lasts, fair, take)
                    leased = [self._in_hand(row) for row in rows]
                    time = engine.last_time
                    left = give_up - self._clock.monotonic() if give_up and not leased else 0
                    waits = left > 0
                    if waits:
                        gate = threading.Lock()
                        gate.acquire()
                        handle = engine.wakeups.wait_for_row(where, gate.release)
                        due = operations.next_due
                if waits:
                    if due:
                        left = min(left, max(0, due - self._clock.now()))
                    wait_at(gate, left / SECOND)
        except BaseException:
            if handle:  # what it was woken for, if it was, is another's to take
                with engine.lock:
                    engine.wakeups.forget(handle)
                    engine.pass_on()
            raise
        if leased:
            engine.settle(time)
        return leased

    def _in_hand(self, row: Row) -> LeasedJob:
        """A row that was just handed out, as it is now."""
        value = self._engine.value(row)
        return LeasedJob(self, Granted(row, value), row.id, row.attempts, value)

    def touch(self, job_id: JobId, token: int | Unchecked, extend: Length | None = None) -> int:
        """Keep a lease for `extend` from now on, or its usual length; returns its end in ns."""
        row_id = id_bytes(job_id)
        lasts = 0 if extend is None else length(extend, "extend")
        engine = self._engine
        with engine.lock:
            self._check_open()
            until = self._operations.touch(row_id, token_number(token), lasts)
            time = engine.last_time
        engine.settle(time)
        return until

    def touch_many(
        self, held: Iterable[tuple[JobId, int | Unchecked]], extend: Length | None = None
    ) -> list[bool]:
        """Keep many leases (id, token) with one write; False where the lease was lost."""
        leases = [(id_bytes(job_id), token_number(token)) for job_id, token in held]
        lasts = 0 if extend is None else length(extend, "extend")
        engine = self._engine
        with engine.lock:
            self._check_open()
            with engine.batch():
                outcomes = [self._is_kept(job_id, token, lasts) for job_id, token in leases]
            time = engine.last_time
        engine.settle(time)
        return outcomes

    def _is_kept(self, job_id: bytes, token: int | None, lasts: int) -> bool:
        try:
            self._operations.touch(job_id, token, lasts)
        except (NotFound, LeaseLost, AlreadyExists):
            return False
        return True

    def complete(
        self,
        job_id: JobId,
        token: int | Unchecked | None,
        result: bytes | Unchecked | None = None,
    ) -> None:
        """The work is done; a result is kept until the job expires."""
        row_id = id_bytes(job_id)
        number = token_number(token)
        data = None if result is None else result_bytes(result)
        engine = self._engine
        with engine.lock:
            self._check_open()
            self._operations.complete(row_id, number, data)
            time = engine.last_time
        engine.settle(time)

    def complete_many(
        self, finished: Iterable[tuple[JobId, int | Unchecked | None, bytes | Unchecked | None]]
    ) -> list[bool]:
        """Complete many (id, token, result) with one write; False where the lease was lost."""
        ends = [
            (
                id_bytes(job_id),
                token_number(token),
                None if result is None else result_bytes(result),
            )
            for job_id, token, result in finished
        ]
        engine = self._engine
        with engine.lock:
            self._check_open()
            with engine.batch():
                outcomes = self._operations.complete_many(ends)
            time = engine.last_time
        engine.settle(time)
        return outcomes

    def fail(
        self,
        job_id: JobId,
        token: int | Unchecked | None,
        reason: bytes | Unchecked = b"",
        delay: Length | None = None,
    ) -> State:
        """The work failed; returns WAITING if it will be tried again, FAILED if the job is dead.

        DELETED if newer work of the same key waits, which makes this one needless. `delay`
        overrules the back-off of the queue.
        """
        row_id = id_bytes(job_id)
        wait = None if delay is None else length(delay, "delay")
        engine = self._engine
        with engine.lock:
            self._check_open()
            state = self._operations.fail(row_id, token_number(token), result_bytes(reason), wait)
            time = engine.last_time
        engine.settle(time)
        return state

    def release(self, job_id: JobId, token: int | Unchecked, delay: Length | None = None) -> None:
        """Give a job back unworked, to be handed out again after `delay`."""
        row_id = id_bytes(job_id)
        wait = 0 if delay is None else length(delay, "delay")
        engine = self._engine
        with engine.lock:
            self._check_open()
            self._operations.release(row_id, token_number(token), wait)
            time = engine.last_time
        engine.settle(time)

    def result(self, job_id: JobId, wait: Length = 0) -> tuple[bool, bytes]:
        """A finished job's result: (done?, result); `TimedOut` if it is not finished in time.

        A job that was done without a result has an empty one, as long as its end is remembered.
        `NotFound` once the job is gone otherwise: deleted, or expired.
        """
        row_id = id_bytes(job_id)
        give_up = self._clock.monotonic() + length(wait, "wait")
        engine = self._engine
        found: tuple[bool, bytes] | None = None
        missing: NotFound | None = None
        time: i64 = 0
        while found is None and missing is None:
            with engine.lock:
                self._check_open()
                time = engine.last_time
                try:
                    found = result_of(self._state, row_id, self._clock.now())
                except NotFound as error:
                    missing = error
                waits = found is None and missing is None
                if waits:
                    left = give_up - self._clock.monotonic()
                    if left <= 0:
                        raise TimedOut("the job is not finished")
                    gate = threading.Lock()
                    gate.acquire()
                    handle = engine.wakeups.wait_for_end(row_id, gate.release)
            if waits:
                try:
                    wait_at(gate, left / SECOND)
                finally:
                    with engine.lock:
                        engine.wakeups.forget(handle, row_id)
        engine.settle_reading(time)
        if missing is not None:
            raise missing
        assert found is not None
        return found

    def delete(
        self,
        job_id: JobId | None = None,
        *,
        key: Text | None = None,
        queue: Text | None = None,
        timestamp: Instant | None = None,
    ) -> bool:
        """Remove a job by its id, or all jobs of a key; False if there was none, or a newer one.

        Without a queue the jobs of the key go in all queues. A tombstone keeps older puts of the
        key, or the put of that id, away for a while.
        """
        if (job_id is None) == (key is None):
            raise BadRequest("give an id or a key")
        row_id = None if job_id is None else id_bytes(job_id)
        engine = self._engine
        stamp = 0 if timestamp is None else engine.stamp_of(instant(timestamp, "timestamp"))
        with engine.lock:
            self._check_open()
            if row_id is not None:
                deleted = self._operations.delete(row_id, stamp)
            else:
                name = key_bytes(key or b"")
                if queue is None:
                    deleted = self._operations.delete_everywhere(name, stamp)
                else:
                    deleted = self._operations.delete_key(queue_bytes(queue), name, stamp)
            time = engine.last_time
        if deleted.command is not None:
            engine.settle(time)
        return deleted.found > 0

    def redrive(self, job_id: JobId | None = None, *, queue: Text | None = None) -> int:
        """Let a dead job, or all dead jobs of a queue, wait again; returns how many do."""
        if (job_id is None) == (queue is None):
            raise BadRequest("give an id or a queue")
        row_id = None if job_id is None else id_bytes(job_id)
        engine = self._engine
        with engine.lock:
            self._check_open()
            if row_id is not None:
                self._operations.redrive(row_id)
                count = 1
            else:
                with engine.batch():
                    count = self._operations.redrive_queue(queue_bytes(queue or b""))
            time = engine.last_time
        engine.settle(time)
        return count

    def configure(self, queue: Text, **settings: Any) -> QueueSettings:
        """Change settings of a queue and return all of them; lengths in seconds or `timedelta`."""
        name = queue_bytes(queue)
        changes = {
            setting: length(value, setting) if setting in SETTING_LENGTHS else value
            for setting, value in settings.items()
        }
        engine = self._engine
        with engine.lock:
            self._check_open()
            current = self._operations.configure(name, changes)
            time = engine.last_time
        engine.settle(time)
        return current

    def pause(self, queue: Text) -> None:
        """Hand nothing out of this queue until it is resumed."""
        self.configure(queue, paused=True)

    def drain(self, queue: Text) -> None:
        """Take nothing into this queue until it is resumed."""
        self.configure(queue, draining=True)

    def resume(self, queue: Text) -> None:
        """End a pause and a draining."""
        self.configure(queue, paused=False, draining=False)

    def subscribe(self, *kinds: str, backlog: int = 1000) -> Subscription:
        """Events of these kinds, all unless told: `due`, `dead`, `changed`; see `Event`.

        Queues that have something to hand out are told as `due` at once.
        """
        if backlog < 1:
            raise BadRequest(f"backlog must be at least 1, not {backlog}")
        unknown = set(kinds) - _EVENTS
        if unknown:
            raise BadRequest(f"unknown kinds of events: {', '.join(sorted(unknown))}")
        engine = self._engine
        subscription = Subscription(frozenset(kinds) or _EVENTS, backlog, engine.forget)
        with engine.lock:
            self._check_open()
            engine.subscribe(subscription)
        return subscription

    def tick(self) -> int:
        """Let time do its work now: due jobs, lost leases, expiry; returns how many changed."""
        with self._engine.lock:
            self._check_open()
            count = self._engine.tick()
        if self._log.failure is None:
            self.upkeep.begin_generation()
        return count

    def clean(self) -> list[Cleaned]:
        """Run one cleaning cycle now."""
        self._ship_first()
        return self.background.clean()

    def snapshot(self) -> None:
        """Take a snapshot now, so that the next opening is quick and the log below it can go."""
        self._ship_first()
        self.background.snapshot()

    def _ship_first(self) -> None:
        """What is not archived is not dropped: without a thread that ships, it is done here."""
        if self.shipper is not None and not self.shipper.is_started and not self._closed:
            self.shipper.ship()

    def rotate(self) -> None:
        """Go on in a new segment."""
        with self._engine.lock:
            self._check_open()
        self._log.rotate()

    def ship(self) -> ArchiveStatus:
        """Ship to the archive now what it lacks and is synced; raises what went wrong."""
        with self._engine.lock:
            self._check_open()
        if self.shipper is None:
            raise BadRequest("the journal has no archive")
        self.shipper.ship_once()
        return self.shipper.status()

    def sync(self) -> None:
        """Bring everything to stable storage now, whatever the policy."""
        with self._engine.lock:
            self._check_open()
        self._log.sync()

    def job(
        self,
        job_id: JobId | None = None,
        *,
        key: Text | None = None,
        queue: Text | None = None,
    ) -> Job:
        """A job by its id or by its key; of a key the waiting job, else the one worked on."""
        return self._look.job(job_id, key, queue)

    def jobs(
        self,
        queue: Text | None = None,
        *,
        state: State | None = None,
        prefix: Text | None = None,
        offset: int = 0,
        limit: int = 100,
        values: bool = True,
    ) -> list[Job]:
        """Jobs of one queue or of all, in order of arrival.

        `prefix`: how their keys begin. Without `values` they come without values and results.
        """
        return self._look.jobs(queue, state, prefix, offset, limit, values)

    @property
    def lister(self) -> Lister:
        """Pages of jobs, for whoever serves the journal to others."""
        return self._look.lister

    def queues(self) -> list[QueueStatus]:
        """All queues that hold rows or have settings, by name."""
        return self._look.queues()

    def queue(self, name: Text) -> QueueStatus:
        """One queue."""
        return self._look.queue(name)

    def digest(self) -> str:
        """A hash of everything that a replay of the log must give again."""
        return self._look.digest()

    def status(self) -> JournalStatus:
        """The whole journal."""
        with self._engine.lock:
            values = self._engine.values
            return JournalStatus(
                *self._look.row_counts(),
                self._log.status(),
                self._log.options.sync,
                self.upkeep.status,
                self.replayed.records,
                self.replay_seconds,
                self.replayed.clean,
                not self._engine.reserve.is_kept,
                *self._look.kinds(),
                values.limit,
                values.bytes,
                values.unlogged,
                self.archive_status(),
                self._memory_queues(),
            )

    def archive_status(self) -> ArchiveStatus | None:
        """How far the archive is; None: there is none."""
        return None if self.shipper is None else self.shipper.status()

    @property
    def upkeep_status(self) -> UpkeepStatus:
        """What upkeep has done since the journal was opened."""
        return self.upkeep.status

    def _memory_queues(self) -> tuple[str, ...]:
        """Queues whose jobs live in memory; under the lock."""
        lanes = self._state.queues.values()
        names = [lane.name for lane in lanes if lane.settings_at and not lane.settings.persist]
        return tuple(sorted(name.decode("utf-8", "backslashreplace") for name in names))

    def close(self) -> None:
        """Stop the background threads, mark a clean end, sync, close; who waits gets `Closed`."""
        engine = self._engine
        with engine.lock:
            closed, self._closed = self._closed, True
            if closed:
                return
        try:
            try:
                with engine.lock:
                    engine.begin()
                    engine.fail_waiters()
            finally:
                self.background.stop()
        finally:  # neither a fault nor an interrupt of the waiting must leave the lock held
            with engine.lock:
                try:
                    # The Workq server refuses a MARK: where all else is its own, none is written.
                    if self._log.failure is None and engine.own:
                        at = self._log.position
                        mark = Mark(self._clock.now(), at.segment, at.offset, CLEAN_NOTE)
                        with contextlib.suppress(NoSpace):  # then the end was not clean, no more
                            engine.commit(mark)
                finally:
                    self._log.close()
                    engine.fetching.close_files()
            if self.shipper is not None:
                self.shipper.stop()

    def __repr__(self) -> str:
        return f"<Journal {str(self.path)!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except JournalError:
            if error is None:  # else the error under way tells more
                raise


@final
class Receiver:
    """Takes in the jobs of senders, each of them once."""

    def __init__(self, journal: Journal) -> None:
        self._engine = journal.engine
        self._operations = journal.operations

    def put_from(self, sender: bytes, jobs: Iterable[tuple[int, NewJob]]) -> Taken:
        """Take in those (mark, job) of a sender whose marks are new, however often they are sent.

        Marks grow and begin above 1. A refused job does not stop the rest, see `Taken.refused`.
        """
        engine = self._engine
        with engine.lock:
            pairs = [(mark, request_or_error(job)) for mark, job in jobs]
            taken = self._operations.forwarding.put_from(sender, pairs)
            time = engine.last_time
        engine.settle(time)
        return taken

    def mark_of(self, sender: bytes) -> int:
        """How far a sender has come; 0 for one that is not known."""
        with self._engine.lock:
            return self._engine.state.mark_of(sender)

    def forget_sender(self, sender: bytes) -> None:
        """Nothing of this sender will come again."""
        with self._engine.lock:
            self._operations.forwarding.forget_sender(sender)


def where_of(
    queue: object,
    queues: Sequence[Text] | Unchecked | None,
    prefix: object,
    schema: object = None,
) -> Where:
    """Which queues are meant: one, some, those with a prefix, or all; and which version."""
    version = -1 if schema is None else schema_number(schema)
    if queues is None and prefix is None:
        if queue is None:
            return _ALL if version < 0 else Where(schema=version)
        one: Where = _new(Where, ((queue_bytes(queue),), b"", version))
        return one
    if sum(given is not None for given in (queue, queues, prefix)) > 1:
        raise BadRequest("give one of queue, queues and prefix")
    if queues is not None:
        if isinstance(queues, (str, bytes)) or not queues:
            raise BadRequest("queues must be a list of names")
        names: Any = queues
        return Where(tuple([queue_bytes(name) for name in names]), schema=version)
    return Where(prefix=worker_bytes(prefix), schema=version)


def _whole(value: object, name: str) -> int:
    """A setting that is a number."""
    if type(value) is not int:
        raise SettingError(f"{name} is a whole number, not {value!r}", name=name)
    return value


def _word(value: object, name: str) -> str:
    """A setting that is one of some words."""
    if not isinstance(value, str):
        raise SettingError(f"{name} is a word, not {value!r}", name=name)
    return value
