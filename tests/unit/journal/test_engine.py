"""Decide, log, apply: batches, their limits, and what happens when the log refuses."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.clock import SECOND
from fastjournal.errors import NoSpace, NotFound, OutOfRange, Stopped
from fastjournal.journal.engine.engine import NEVER, Engine
from fastjournal.journal.engine.events import Event, Subscription
from fastjournal.journal.language import commands as k
from fastjournal.journal.state.row import Row
from fastjournal.journal.state.rows import Rows
from fastjournal.log.read.cursor import Cursor
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.model import MAX_INSTANT, State, Where
from fastjournal.package.compiled import describe_core
from fastjournal.put_request import PLAIN, PutRequest
from fastjournal.testing import Fault, ManualClock, MemoryFiles, check_replay

HOME = Path("/jobs")


@pytest.fixture
def files() -> MemoryFiles:
    memory = MemoryFiles()
    memory.make_directory(HOME.parent)
    return memory


@pytest.fixture
def j(files: MemoryFiles, clock: ManualClock) -> Iterator[Journal]:
    journal = Journal(
        HOME, files=files, clock=clock, background=False, sync="os", max_payload=4 * 2**20
    )
    yield journal
    journal.close()


@pytest.fixture
def engine(j: Journal) -> Engine:
    return j.engine


def writes(files: MemoryFiles) -> int:
    return sum(operation.startswith("write 0") for operation in files.operations)


def times(files: MemoryFiles) -> list[int]:
    cursor: Cursor = Stream(HOME, WORKQ, files=files).open_cursor()
    try:
        return [record.time for batch in cursor.batches() for record in batch]
    finally:
        cursor.close()


def test_a_batch_is_one_write_and_its_records_have_the_times_that_were_applied(
    j: Journal, engine: Engine, files: MemoryFiles
) -> None:
    before = writes(files)
    with engine.lock, engine.batch():
        for _ in range(5):
            j.operations.put(k_job())
        applied = engine.state.applied
    assert writes(files) == before + 1
    assert times(files)[-1] == applied == engine.last_time
    assert len(times(files)) == 5
    check_replay(j)


def k_job(size: int = 3) -> PutRequest:
    return PutRequest(b"q", bytes(size), mode=PLAIN)


@pytest.mark.parametrize("length", [-1, MAX_INSTANT + 1])
def test_absurd_lengths_are_refused(j: Journal, length: int) -> None:
    j.put(b"x", queue="q")
    job = j.lease("q")
    assert job is not None
    before = j.digest()
    with j.engine.lock:
        with pytest.raises(OutOfRange):
            j.operations.lease(Where(), 1, b"", length)
        with pytest.raises(OutOfRange):
            j.operations.touch(job.id, job.token, length)
        with pytest.raises(OutOfRange):
            j.operations.release(job.id, job.token, length)
        with pytest.raises(OutOfRange):
            j.operations.fail(job.id, job.token, b"", length)
    assert j.digest() == before


def test_a_batch_inside_a_batch_is_part_of_it(
    j: Journal, engine: Engine, clock: ManualClock, files: MemoryFiles
) -> None:
    """Time does its work inside a request of a batch: the records stay in the order of applying."""
    j.put(b"x", queue="q")
    j.lease("q", lease=1)
    clock.advance(2)
    before = writes(files)
    with engine.lock, engine.batch():
        j.operations.put(k_job())
        assert engine.tick() == 1  # the lost lease
        j.operations.put(k_job())
        applied = engine.state.applied
    assert writes(files) == before + 1
    assert engine.last_time == applied
    assert times(files) == sorted(set(times(files)))
    check_replay(j)


def test_an_error_inside_a_batch_loses_nothing_of_it(j: Journal, engine: Engine) -> None:
    def half() -> None:
        with engine.lock, engine.batch():
            j.operations.put(k_job())
            j.operations.complete(bytes(16), 1)

    with pytest.raises(NotFound):
        half()
    assert j.status().ready == 1
    check_replay(j)


def test_a_batch_never_holds_more_than_half_of_the_reserve(
    j: Journal, engine: Engine, files: MemoryFiles
) -> None:
    before = writes(files)
    with engine.lock, engine.batch():
        for _ in range(30):
            j.operations.put(k_job(100_000))
    assert writes(files) - before >= 6
    check_replay(j)


def test_a_record_too_large_for_a_batch_is_logged_before_it_is_applied(
    j: Journal, engine: Engine, files: MemoryFiles
) -> None:
    """A result of a megabyte on a full disk is refused; nothing stops."""
    j.put(b"x", queue="q")
    job = j.lease("q")
    assert job is not None
    files.capacity = sum(map(len, files.snapshot().values()))
    before = j.digest()
    with pytest.raises(NoSpace):
        j.complete_many([(job.id, job.token, bytes(2 * 2**20))])
    assert j.digest() == before
    assert engine.log.failure is None
    assert j.complete_many([(job.id, job.token, b"small")]) == [True]
    check_replay(j)


def test_a_batch_that_cannot_be_logged_stops_the_journal(
    j: Journal, engine: Engine, files: MemoryFiles
) -> None:
    """The state is ahead and cannot be taken back: nothing is acknowledged any more."""
    j.put(b"x", queue="q")
    for number in range(1, 10):
        files.faults[len(files.operations) + number] = Fault(errno.EIO)
    with pytest.raises(Stopped):
        j.lease_many(5, "q")
    assert engine.log.failure is not None
    with pytest.raises(Stopped):
        j.put(b"y", queue="q")
    files.faults.clear()
    with pytest.raises(Stopped):
        j.close()


def test_a_refused_command_changes_nothing(j: Journal, files: MemoryFiles) -> None:
    """WQ-GEN-2: also where it was the disk that refused it."""
    j.put(b"x", queue="q")
    before = j.digest()
    used = sum(map(len, files.snapshot().values()))
    j.engine.reserve.give_up()
    files.capacity = used - 2**20
    with pytest.raises(NoSpace):
        j.lease("q")
    assert j.digest() == before
    files.capacity = None


def test_an_interrupt_between_log_and_state_stops_the_journal(j: Journal, engine: Engine) -> None:
    """What was logged and not applied would be another state after the next start."""

    class Interrupted(Subscription):
        def push(self, event: Event) -> None:
            raise KeyboardInterrupt

    engine.subscribe(Interrupted(frozenset({"changed"}), 1, lambda _: None))
    with engine.lock, pytest.raises(KeyboardInterrupt):
        engine.commit(k.Purge(bytes(16), b"q", b"", 0))
    engine.subscriptions.clear()
    assert engine.log.failure is not None
    with pytest.raises(Stopped):
        j.close()


@pytest.mark.parametrize(
    ("act", "first"),
    [
        (lambda j: j.put(b"", queue="q"), NEVER),
        (lambda j: j.put(b"", queue="q", delay=7), 7),
        (lambda j: j.put(b"", queue="q", ttl=9), 9),
        (lambda j: (j.put(b"", queue="q"), j.lease("q", lease=5)), 5),
        (lambda j: (j.put(b"", queue="q"), j.lease("q", lease=5).touch(3)), 3),
        (lambda j: (j.put(b"", queue="q"), j.lease("q", lease=50).release(4)), 4),
        (lambda j: (j.put(b"", queue="q"), j.lease("q", lease=50).done(b"r")), 50),
    ],
)
def test_the_timer_is_told_of_the_nearest_deadline(
    j: Journal, engine: Engine, clock: ManualClock, act: object, first: int
) -> None:
    """SNAP-EXP-1."""
    act(j)  # type: ignore[operator]
    if first == NEVER:
        assert engine.timer_at == NEVER
    else:
        assert 0 <= engine.timer_at - clock.now() - first * SECOND < 1000
    assert engine.timer.is_set() is (first != NEVER)


def test_a_tombstone_wakes_the_timer_too(j: Journal, engine: Engine, clock: ManualClock) -> None:
    """Its end is nobody's due time, lease or expiry."""
    with engine.lock:
        engine.commit(k.Tomb(b"t" * 16, b"q", b"k", clock.now()))
    assert engine.timer.is_set()
    clock.advance(3601)
    assert j.tick() == 1
    assert engine.timer_at == NEVER


def test_the_nearest_deadline_is_known_after_a_restart(
    j: Journal, files: MemoryFiles, clock: ManualClock
) -> None:
    j.put(b"x", queue="q")
    j.lease("q", lease=30)
    with Journal(HOME, files=files.killed(), clock=clock, background=False) as again:
        assert 0 <= again.engine.timer_at - clock.now() - 30 * SECOND < 1000
        clock.advance(31)
        assert again.lease("q") is not None


@pytest.mark.skipif(describe_core() == "compiled", reason="a compiled class cannot be watched")
def test_a_row_is_whole_before_anybody_can_find_it(j: Journal, engine: Engine) -> None:
    """Upkeep looks at rows without the lock."""

    class Watched(Rows):  # type: ignore[misc]
        def add(self, row: Row) -> None:
            whole.append((row.id, row.at > 0, row.expires >= 0, row.state, row.policy is not None))
            super().add(row)

    whole: list[object] = []
    rows, engine.state.rows = engine.state.rows, Watched()
    found = j.put(b"x", queue="q", key="k")
    rows.seek(found.id)
    rows.add(engine.state.rows[found.id])
    engine.state.rows = rows
    assert whole == [(found.id, True, True, State.WAITING, True)]


def test_no_lease_is_lost_before_all_that_had_arrived_by_its_end_is_read(
    j: Journal, engine: Engine, clock: ManualClock
) -> None:
    j.put(b"one", queue="q")
    j.put(b"two", queue="q")
    j.put(b"short", queue="other", ttl=30)
    for length in (10, 20):
        assert j.lease("q", lease=length) is not None
    start = clock.now()
    read_until = start
    asked: list[int] = []

    def ask(now: int) -> int:
        asked.append(now)
        return read_until

    engine.read_until = ask
    assert (j.tick(), asked) == (0, [])  # nothing has ended: nobody asks
    clock.advance(60)
    assert j.tick() == 1  # what expires needs nobody's word
    assert j.lease("q") is None
    assert engine.holds_back()
    assert set(asked) == {clock.now()}
    read_until = start + 15 * SECOND
    assert j.tick() == 1
    assert engine.holds_back()
    read_until = clock.now()
    assert j.tick() == 1
    assert not engine.holds_back()
    assert len(j.lease_many(3, "q")) == 2
