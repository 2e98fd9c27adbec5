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
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

from fastjournal.arguments import (
    MAX_VALUE,
    PUT_ARGUMENTS,
    Instant,
    Length,
    Text,
    length,
    put_request,
)
from fastjournal.clock import SECOND, SYSTEM_CLOCK, Clock, SteadyClock
from fastjournal.errors import BadRequest, JournalError, NoSpace, SettingError
from fastjournal.journal.administration import Administration
from fastjournal.journal.consuming import Consuming
from fastjournal.journal.decide.ground import Ground, Limits
from fastjournal.journal.decide.jobs import Jobs
from fastjournal.journal.disk.background import Background
from fastjournal.journal.disk.replay import CLEAN_NOTE, replay
from fastjournal.journal.disk.snapshot import first_uncovered, remove_snapshots, snapshot_path
from fastjournal.journal.disk.upkeep import Upkeep
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.engine.operations import OUTCOMES, Operations, Receipt
from fastjournal.journal.engine.reserve import Reserve
from fastjournal.journal.entry_map import EntryMap
from fastjournal.journal.language.commands import Mark
from fastjournal.journal.look.inspection import Inspection
from fastjournal.journal.spill.fetching import Fetching
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.values import CACHE, Values
from fastjournal.log.files import DISK, Files
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import DEFAULT_SEGMENT_SIZE, MIN_SEGMENT_SIZE, Stream
from fastjournal.log.write.log_writer import LogWriter
from fastjournal.model import DEFAULT_PRIORITY, NewJob
from fastjournal.put_request import PutRequest, checked_request

__all__ = ["Journal", "Receipt"]

MIN_MEMORY = 1024
"""The smallest memory limit: less is surely a mistake about its unit."""
_new: Any = tuple.__new__


class Journal(Consuming, Administration, Inspection):
    """A durable job queue; close it, or use it as a context manager."""

    def __init__(
        self,
        path: str | Path,
        *,
        sync: str = "interval",
        sync_interval: int | None = None,
        segment_size: int = DEFAULT_SEGMENT_SIZE,
        clean_interval: Length = 300,
        snapshot_bytes: int = 4 * DEFAULT_SEGMENT_SIZE,
        history: str = "delete",
        archive: str | Path | None = None,
        max_payload: int = MAX_VALUE,
        memory_limit: int | None = None,
        evict_from: int | None = None,
        on_failure: str = "stop",
        background: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        files: Files = DISK,
        chance: Random | None = None,
        zone_bytes: str = "0000",
    ) -> None:
        """Open a journal, made if its directory is missing; recover and replay it.

        `sync`: `always`, `interval` (every `sync_interval` ms, 1000 unless told) or `os`.
        `clean_interval`: seconds between two cleanings, 0 for none. `snapshot_bytes`: size of the
        log after which a snapshot is taken, 0 for never. `history`: `delete`, or `archive` to copy
        sealed segments to the directory `archive` (or `path/archive`) before they are cleaned.
        `memory_limit`: bytes of values to hold in memory, None for 16 MiB; the others are read from
        the log when they are asked for. With a limit segments are no larger than a sixteenth of it,
        for cleaning holds one in memory, and what lives in memory only counts too. `evict_from` is
        deprecated and means nothing: values of all sizes are left in the log.
        """
        if history not in ("delete", "archive"):
            raise SettingError(f"history is delete or archive, not {history!r}", name="history")
        if not 1 <= max_payload <= 8 * 1024 * 1024:
            raise SettingError("max_payload must be 1 byte to 8 MiB", name="max_payload")
        if snapshot_bytes < 0:
            raise SettingError("snapshot_bytes must not be negative", name="snapshot_bytes")
        if memory_limit is not None:
            if memory_limit < MIN_MEMORY:
                raise SettingError(
                    f"memory_limit must be {MIN_MEMORY} bytes or more", name="memory_limit"
                )
            segment_size = min(segment_size, max(MIN_SEGMENT_SIZE, memory_limit // 16))
        if evict_from is not None and evict_from < 1:
            raise SettingError("evict_from must be 1 byte or more", name="evict_from")
        interval = length(clean_interval, "clean_interval")
        self.path = Path(path)
        self.max_payload = max_payload
        self._clock = SteadyClock(clock, hold_steps=True)
        stream = Stream(self.path, WORKQ, files=files, clock=self._clock, zone_bytes=zone_bytes)
        stream.create()
        self._log = LogWriter(
            stream,
            segment_size=segment_size,
            sync=sync,
            sync_interval=sync_interval,
            preallocate=lambda: self._engine.own,  # the Workq server does not read over zeros
            on_failure=on_failure,
            trust_mark=True,
            floor=lambda: first_uncovered(stream),
        )
        try:
            started = self._clock.monotonic()
            values = Values(
                CACHE if memory_limit is None else memory_limit,
                logged=True,
                counts_unlogged=memory_limit is not None,
            )
            self.replayed = replay(stream, state=JournalState(values))
            self.replay_seconds = (self._clock.monotonic() - started) / SECOND
            remove_snapshots(stream, keep=self.replayed.snapshot)
            state = self.replayed.state
            self._clock.go_on_from(state.now)
            jobs = Jobs(Ground(state, None, chance, Limits(max_payload)))
            fetching = Fetching(stream, values, snapshot_path)
            self._engine = Engine(state, jobs, self._log, self._clock, Reserve(stream), fetching)
            self._engine.own = self.replayed.own
            folder = Path(archive) if archive else self.path / "archive"
            self._upkeep = Upkeep(
                self._engine,
                stream,
                self.replayed,
                folder if history == "archive" else None,
            )
            self._state = state
            self._operations = Operations(self._engine)
            self._entries = EntryMap(self._engine, self._check_open)
            self._closed = False
            if state.untold:
                with contextlib.suppress(NoSpace):  # then the next request of the sender tells it
                    self._operations.forwarding.tell_marks()
            self._background = Background(self._engine, self._upkeep, interval, snapshot_bytes)
            if background:
                self._background.start()
        except BaseException:
            with contextlib.suppress(JournalError):  # what is under way tells more
                self._give_up()
            raise

    def _give_up(self) -> None:
        """Whatever came of opening it: leave no thread and no lock behind."""
        threads = getattr(self, "_background", None)
        try:
            if threads is not None:
                threads.stop()
        finally:
            self._log.close()
            engine = getattr(self, "_engine", None)
            if engine is not None:
                engine.fetching.close_files()

    def put(
        self,
        payload: bytes = b"",
        *,
        key: Text | None = None,
        queue: Text | None = None,
        priority: int = DEFAULT_PRIORITY,
        delay: Length | None = None,
        due: Instant | None = None,
        ttl: Length | None = None,
        expires: Instant | None = None,
        lease: Length | None = None,
        max_attempts: int = 0,
        max_timeouts: int = 0,
        max_fails: int = 0,
        mode: str | None = None,
        timestamp: Instant | None = None,
        id: bytes = b"",  # noqa: A002 - the name of the field
    ) -> Receipt:
        """Take a job in.

        A `key` that waits already takes the repeat in (`mode="merge"`), refuses it (`"unique"`).
        Without a `queue` the domain of the key is it. `delay`, `ttl` and `lease` are lengths,
        `due` and `expires` instants. Limits of 0 mean what the queue says. `timestamp` is the
        sender's clock: of two writes of a key the newest wins. `id`: 16 bytes of your choice; a put
        with an id that is there already changes nothing, so it may be sent again.
        """
        engine = self._engine
        now = self._clock.now()
        job = put_request(
            now, payload, key, queue, priority, delay, due, ttl, expires, lease,
            max_attempts, max_timeouts, max_fails, mode, timestamp, self.max_payload, id,
        )  # fmt: skip
        if timestamp is not None:
            job.timestamp = engine.stamp_of(job.timestamp)
        with engine.lock:
            self._check_open()
            outcome = self._operations.put(job, now)
            job_id = self._operations.placed_id
            time = engine.last_time
        engine.settle(time)
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

    def _request(self, job: NewJob | Mapping[str, Any], now: int) -> PutRequest:
        if isinstance(job, NewJob):
            request = checked_request(job)
        elif isinstance(job, Mapping):
            unknown = set(map(str, job)) - PUT_ARGUMENTS
            if unknown:
                words = ", ".join(map(repr, sorted(unknown)))
                raise BadRequest(f"put has no argument {words}")
            get = job.get
            request = put_request(
                now, get("payload", b""), get("key"), get("queue"),
                get("priority", DEFAULT_PRIORITY), get("delay"), get("due"), get("ttl"),
                get("expires"), get("lease"), get("max_attempts", 0), get("max_timeouts", 0),
                get("max_fails", 0), get("mode"), get("timestamp"), self.max_payload,
                get("id", b""),
            )  # fmt: skip
        else:
            raise BadRequest(f"a job is a NewJob or a mapping, not {type(job).__name__}")
        if request.timestamp:
            request.timestamp = self._engine.stamp_of(request.timestamp)
        return request

    @property
    def entries(self) -> EntryMap:
        """The journal's key/value entries: a mapping with more to it."""
        return self._entries

    def close(self) -> None:
        """Stop the background threads, mark a clean end, sync, close; who waits gets `Closed`."""
        engine = self._engine
        with engine.lock:
            closed, self._closed = self._closed, True
            if closed:
                return
            engine.begin()
            engine.fail_waiters()
        try:
            self._background.stop()
        finally:  # an interrupt of the waiting must not leave the lock held
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except JournalError:
            if error is None:  # else the error under way tells more
                raise
