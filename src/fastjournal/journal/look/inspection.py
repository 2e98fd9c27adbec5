"""Looking at a journal without changing it; goes on after a fault of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fastjournal.arguments import id_bytes, key_bytes, queue_bytes
from fastjournal.clock import SteadyClock
from fastjournal.errors import BadRequest, NotFound, quoted
from fastjournal.journal.disk.upkeep import UpkeepStatus
from fastjournal.journal.language.commands import End
from fastjournal.journal.look.listing import Lister, Listing, Readable
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import (
    DEAD,
    DONE,
    FUTURE,
    HELD,
    IDLE,
    LEASED,
    PLACES,
    READY,
    Row,
    job_of,
)
from fastjournal.keys import domain
from fastjournal.log.write.counters import LogStatus
from fastjournal.model import Job, QueueStatus, State

if TYPE_CHECKING:
    from fastjournal.archive.shipper import ArchiveStatus

__all__ = ["Inspection", "JournalStatus", "result_of"]


class JournalStatus(NamedTuple):
    """A whole journal at one moment."""

    rows: int
    """All of them: jobs, entries, tombstones."""
    queues: int
    ready: int
    future: int
    held: int
    leased: int
    completed: int
    dead: int
    log: LogStatus
    sync: str
    upkeep: UpkeepStatus
    replayed_records: int
    replay_seconds: float
    clean_start: bool
    """Whether the journal had been closed in order before it was opened."""
    disk_full: bool
    jobs: int = 0
    """Rows in queues."""
    entries: int = 0
    """Key/value entries, each counted once whatever its keys."""
    memory_limit: int | None = None
    """Bytes of values that may be in memory; None: not known."""
    value_bytes: int = 0
    """Bytes of values in memory, those of rows in memory only not counted."""
    unlogged_bytes: int = 0
    """Bytes of entries that live in memory only; 0 without a limit."""
    archive: ArchiveStatus | None = None
    """How far the archive is; None: there is none."""
    memory_queues: tuple[str, ...] = ()
    """Queues whose jobs live in memory only, unless they ask to persist."""


def result_of(state: JournalState, job_id: bytes, now: int) -> tuple[bool, bytes] | None:
    """Whether a job was done, and its result; None: it is not finished.

    Done without a result is an empty one, as long as the end is remembered. `NotFound` if the job
    is gone otherwise.
    """
    row = state.rows.get(job_id)
    if row is None and state.endings.of_job(job_id) is End.DONE:
        return True, b""
    if row is None or row.state is State.DELETED or 0 < row.expires < now:
        raise NotFound(f"no job {job_id.hex()}")
    if row.state in (State.COMPLETED, State.FAILED):
        return row.state is State.COMPLETED, row.rare.result
    return None


class Inspection:
    """What a `Journal` and a `JournalView` show."""

    def __init__(self, source: Readable, clock: SteadyClock) -> None:
        self._source = source
        self._state = source.state
        self._clock = clock
        self.lister = Lister(source, clock)

    def job(self, job_id: object, key: object, queue: object) -> Job:
        """A job by its id or by its key; of a key the waiting job, else the one worked on."""
        wanted = None if job_id is None else id_bytes(job_id)
        found: Job | None = None
        with self._source.lock:
            now = self._clock.now()
            self._state.promote(now)
            time = self._source.last_time
            if wanted is not None:
                row = self._state.rows.get(wanted)
            else:
                name = key_bytes(key if key is not None else b"")
                where = queue_bytes(queue) if queue is not None else domain(name)
                same = [r for r in self._state.keys.find(where, name) if r.state < State.DELETED]
                row = min(same, key=lambda r: r.state, default=None)
            if row is not None and row.state is not State.DELETED and not 0 < row.expires < now:
                found = self._picture(row)
        self._source.settle_reading(time)
        if found is None:
            raise NotFound(f"no job {wanted.hex() if wanted else quoted(name)}")
        return found

    def jobs(
        self,
        queue: object,
        state: State | None,
        prefix: Any,
        offset: int,
        limit: int,
        values: bool,
    ) -> list[Job]:
        """Jobs of one queue or of all, in order of arrival."""
        if offset < 0 or limit < 0:
            raise BadRequest("offset and limit must not be negative")
        begins = prefix.encode() if isinstance(prefix, str) else bytes(prefix or b"")
        name = b"" if queue is None else queue_bytes(queue)
        found: list[Job] = []
        more: Listing | None = Listing(name, state, begins, values, offset)
        while more is not None and len(found) < limit:
            page = self.lister.page(more, limit - len(found))
            found += page.jobs
            more = page.more
        self._source.settle_reading(self._source.last_time)
        return found

    def queues(self) -> list[QueueStatus]:
        """All queues that hold rows or have settings, by name."""
        with self._source.lock:
            self._state.promote(self._clock.now())
            lanes = self._state.queues
            shown = [name for name, lane in lanes.items() if lane.shown]
            return [self._queue_status(name) for name in sorted(shown)]

    def queue(self, name: object) -> QueueStatus:
        """One queue."""
        data = queue_bytes(name)
        with self._source.lock:
            if data not in self._state.queues:
                raise NotFound(f"no queue {quoted(data)}")
            self._state.promote(self._clock.now())
            return self._queue_status(data)

    def row_counts(self) -> tuple[int, int, int, int, int, int, int, int]:
        """Rows, queues, and how many jobs stand where; to be asked under the lock."""
        self._state.promote(self._clock.now())
        counts = [0] * PLACES
        lanes = [lane for lane in self._state.queues.values() if lane.name]
        for lane in lanes:
            counts = [a + b for a, b in zip(counts, lane.counts, strict=True)]
        return (
            len(self._state.rows), len(lanes), counts[READY], counts[FUTURE], counts[HELD],
            counts[LEASED], counts[DONE], counts[DEAD],
        )  # fmt: skip

    def kinds(self) -> tuple[int, int]:
        """How many jobs, how many entries; under the lock too."""
        lanes = self._state.queues
        entries = lanes.get(b"")
        jobs = sum(lane.jobs for lane in lanes.values() if lane.name)
        return jobs, 0 if entries is None else entries.counts[IDLE] + entries.counts[LEASED]

    def digest(self) -> str:
        """A hash of everything that a replay of the log must give again."""
        with self._source.lock:
            return self._state.digest(self._source.value)

    def _picture(self, row: Row) -> Job:
        self._source.load(row)
        return job_of(row)

    def _queue_status(self, name: bytes) -> QueueStatus:
        lane = self._state.queues[name]
        counts = lane.counts
        return QueueStatus(
            name,
            counts[READY],
            counts[FUTURE],
            counts[HELD],
            counts[LEASED],
            counts[DONE],
            counts[DEAD],
            lane.next_wake(),
            lane.settings,
        )
