"""A journal whose disk is full, fails or lies: typed errors, nothing half done, reads go on."""

from __future__ import annotations

import contextlib
import errno
import re
import threading
import time
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.errors import (
    JournalError,
    NoSpace,
    OutcomeUnknown,
    RotationFailed,
    SegmentError,
    Stopped,
)
from fastjournal.testing import Fault, ManualClock, MemoryFiles, check_replay
from lives import HOME, WHOLE, Life, check


def opened(files: MemoryFiles, clock: ManualClock, **options: Any) -> Journal:
    if not files.exists(HOME.parent):
        files.make_directory(HOME.parent)
    return Journal(
        HOME,
        files=files,
        clock=clock,
        **{"segment_size": 65_536, "sync": "always", "background": False, **options},
    )


def used(files: MemoryFiles) -> int:
    return sum(map(len, files.snapshot().values()))


WRITE = re.compile(r"write .*\.log$")


class Full:
    """A journal with some work in it on a disk without a free byte."""

    def __init__(self, sync: str = "always") -> None:
        self.files, self.clock = MemoryFiles(), ManualClock()
        self.journal = opened(self.files, self.clock, sync=sync)
        for number in range(20):
            self.journal.put(b"x" * 100, queue="q", key=str(number))
        self.held = [self.journal.lease("q") for _ in range(10)]
        self.files.capacity = used(self.files)
        while not self.journal.status().disk_full:  # the first one lives on the reserve
            self.journal.put(b"y" * 5000, queue="q")


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_full_disk_takes_nothing_in_but_lets_jobs_end(sync: str) -> None:
    """F02: put is refused with NoSpace and changes nothing; done, delete, touch, fail go on."""
    full = Full(sync)
    j = full.journal
    before = j.digest()
    for how in ({"queue": "q"}, {"key": "3", "queue": "q"}):
        with pytest.raises(NoSpace):
            j.put(b"more", **how)
    with pytest.raises(NoSpace):
        j.put_many([{"payload": b"more", "queue": "q"}] * 3)
    assert j.digest() == before
    first, second, third, fourth, *rest = full.held
    first.done()
    second.touch(100)
    third.fail(b"no")
    fourth.release()
    assert j.delete(rest[0].id)
    assert j.complete_many([(one.id, one.token, None) for one in rest[1:4]]) == [True] * 3
    assert len(j.lease_many(3, "q")) == 3
    full.clock.advance(200)
    assert j.tick() > 0  # lost leases are written off too
    assert j.status().disk_full
    check_replay(j)
    assert j.status().log.failure == ""
    j.close()


def test_an_addition_made_before_is_told_again_on_a_full_disk() -> None:
    """F02: whoever did not hear of it asks again; only a new one needs room."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock)
    asked = clock.now() // 10**9  # seconds
    assert j.entries.add("sum", 2, sender=b"s", timestamp=asked) == 2
    j.engine.reserve.give_up()
    files.capacity = used(files)
    assert j.entries.add("sum", 2, sender=b"s", timestamp=asked) == 2
    with pytest.raises(NoSpace):
        j.entries.add("sum", 2, sender=b"s", timestamp=asked + 1)
    assert j.entries["sum"] == 2
    files.capacity = None
    j.close()


def test_a_full_disk_is_left_by_itself_when_there_is_space_again() -> None:
    full = Full()
    j = full.journal
    full.files.capacity = None
    with pytest.raises(NoSpace):
        j.put(b"not looked at again yet", queue="q")
    full.clock.advance(1)
    j.put(b"there is space", queue="q")
    assert not j.status().disk_full
    check_replay(j)
    j.close()


def test_a_disk_full_to_the_last_byte_refuses_everything_and_stops_nothing() -> None:
    """Without a reserve left even ends are refused, by a typed error, and state follows the log."""
    full = Full()
    j = full.journal
    with contextlib.suppress(NoSpace):
        for _ in range(40):
            full.held[0].fail(b"x" * 60_000, delay=0)
            full.held[0] = j.lease("q")
    with contextlib.suppress(NoSpace):
        for _ in range(10_000):
            full.held[9].touch(100)
    before = j.digest()
    for attempt in (
        lambda: full.held[1].touch(100),
        lambda: full.held[1].done(),
        lambda: j.lease("q"),
        lambda: j.lease_many(5, "q"),
        lambda: j.complete_many([(full.held[2].id, full.held[2].token, None)]),
        lambda: j.delete(full.held[3].id),
    ):
        with pytest.raises(NoSpace):
            attempt()
    full.clock.advance(300)
    with pytest.raises(NoSpace):
        j.tick()
    assert j.digest() == before
    check_replay(j)
    assert j.status().log.failure == ""
    full.files.capacity = None
    full.clock.advance(1)
    assert j.tick() > 0
    full.journal.put(b"again", queue="q")
    check_replay(j)
    j.close()
    with opened(full.files, full.clock) as again:
        assert again.digest() == j.digest()


@pytest.mark.parametrize("batch", [False, True])
def test_a_write_cut_short_by_a_full_disk_counts_as_a_full_disk(batch: bool) -> None:
    """Linux writes what fits and says how much: the rest is undone, then the reserve helps."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock)
    j.put(b"one", queue="q")
    held = j.lease("q")
    assert held is not None
    files.faults[len(files.operations) + 1] = Fault(errno.ENOSPC, short=7)
    if batch:
        assert j.complete_many([(held.id, held.token, None)]) == [True]
    else:
        held.done()
    assert j.status().disk_full
    check_replay(j)
    j.close()


def test_a_full_disk_that_cuts_writes_short_lets_the_timers_wait_and_the_journal_close() -> None:
    """One try a second, not one after the other; and no error at the end."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock, background=True, sync="os")
    j.put(b"x" * 100, queue="q")
    j.lease("q", lease=1)
    j.engine.reserve.give_up()
    files.capacity = used(files) + 7
    tries: list[float] = []
    second = threading.Event()

    def watching(operation: str) -> None:
        if threading.current_thread().name == "fastjournal-timer" and WRITE.match(operation):
            tries.append(time.monotonic())
            if len(tries) == 2:
                second.set()

    files.failing = watching
    clock.advance(5)
    j.engine.timer.set()
    assert second.wait(20)
    assert tries[1] - tries[0] > 0.5
    assert j.status().log.failure == ""
    j.close()
    with opened(files.killed(), clock) as again:
        assert again.lease("q") is not None


def test_a_snapshot_on_a_full_disk_is_no_space_and_leaves_nothing() -> None:
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock)
    for number in range(50):
        j.put(b"x" * 1000, queue="q", key=str(number))
    files.capacity = used(files) + 3000
    with pytest.raises(NoSpace):
        j.snapshot()
    assert not [path for path in files.snapshot() if "snapshot" in path.name]
    files.capacity = None
    j.snapshot()
    check_replay(j)
    j.close()


def test_how_jobs_ended_is_never_cleaned_away_for_want_of_space() -> None:
    """F02: what tells of it has no room, so the records of their lives stay until there is some."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock, sync="os")  # no room is reserved ahead
    first = j.put(b"first", queue="q").id
    j.put_many([{"payload": b"x" * 100, "queue": "q"}] * 200)
    assert all(j.complete_many([(job.id, job.token, None) for job in j.lease_many(201, "q")]))
    j.rotate()
    j.put(b"y", queue="q")
    j.engine.reserve.give_up()
    files.capacity = used(files) + 1000  # enough to change the manifest
    with pytest.raises(NoSpace):
        j.clean()
    assert j.status().log.failure == ""
    with opened(files.killed(), clock) as again:
        assert again.result(first) == (True, b"")  # done, as its holder may ask again
    files.capacity = None
    assert j.clean()
    j.close()
    with opened(files, clock) as again:
        assert again.result(first) == (True, b"")


def test_descriptors_used_up_stop_nothing_and_segments_come_again_by_themselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """EMFILE at every file that is made or opened while jobs come and go."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock, segment_size=4096)
    j.put(b"x" * 4096, queue="q")
    files.failing = lambda operation: (
        Fault(errno.EMFILE) if operation.split()[0] in ("create", "sync_directory") else None
    )
    for number in range(30):
        j.put(b"x" * 1000, queue="q", key=str(number))
        j.put_many([{"payload": b"y" * 500, "queue": "r"}] * 5)
        held = j.lease("q")
        assert held is not None
        held.done()
    with pytest.raises(RotationFailed):
        j.rotate()
    with pytest.raises(JournalError):
        j.snapshot()
    assert j.status().log.failure == ""
    segments = len([path for path in files.snapshot() if path.suffix == ".log"])
    assert segments == 2
    files.failing = None
    for number in range(30):
        j.put(b"x" * 1000, queue="q", key=str(number))
    assert len([path for path in files.snapshot() if path.suffix == ".log"]) > segments
    check_replay(j)
    digest = j.digest()
    j.close()
    with opened(files.killed(), clock, segment_size=4096) as again:
        assert again.digest() == digest
    assert sum("cannot be made" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("fault", [Fault(errno.EIO), Fault(errno.EIO, synced="drop")])
def test_after_a_failed_write_or_sync_reading_goes_on_and_writing_does_not(fault: Fault) -> None:
    """D-07: Stopped, and nothing is acknowledged any more."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock)
    receipt = j.put(b"one", queue="q", key="k")
    held = j.lease("q")
    assert held is not None
    for number in range(1, 30):
        files.faults[len(files.operations) + number] = fault
    with pytest.raises(Stopped):
        j.put(b"two", queue="q")
    for attempt in (
        lambda: j.put(b"three", queue="q"),
        lambda: j.put_many([{"queue": "q"}]),
        held.done,
        held.touch,
        lambda: j.lease("q"),
        lambda: j.configure("q", lease=5),
        lambda: j.snapshot(),
        lambda: j.sync(),
    ):
        with pytest.raises(Stopped):
            attempt()
    assert j.job(receipt.id).value == b"one"
    assert j.job(key="k", queue="q").id == receipt.id
    assert "q" in str(j.queues())
    assert j.status().log.failure
    assert j.jobs()
    assert j.tick() == 0
    with pytest.raises(Stopped):
        j.close()


def test_a_segment_that_a_snapshot_stands_on_must_be_there() -> None:
    """Else new jobs would go below the snapshot, where no opening looks."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock)
    j.put(b"one", queue="q")
    j.snapshot()
    j.close()
    left = files.killed()
    for path in left.snapshot():
        if path.suffix == ".log" or path.name == "synced.pos":
            left.remove(path)
    with pytest.raises(SegmentError, match=r"000000002\.log: is missing"):
        opened(left, clock)


FAULTS = [Fault(errno.EIO), Fault(errno.EIO, short=5), Fault(errno.EIO, synced="half")]


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("fault", FAULTS, ids=["error", "short", "half"])
def test_a_fault_at_any_file_operation_loses_nothing_that_was_answered(
    fault: Fault, part: int
) -> None:
    """T-IO, T-FSYNC: every operation of a whole life fails once."""
    for number in range(1 + part, len(WHOLE["always"].files.operations), 4):
        life = Life("always", faults={number: fault})
        if hasattr(life, "journal"):
            life.journal.status()
            life.journal.jobs()
            assert life.digests == WHOLE["always"].digests[: len(life.digests)]
            with contextlib.suppress(JournalError):
                life.journal.close()
        check(life, life.files.killed(), life.safe, go_on=number % 8 == 0)
        for image in life.files.images(samples=2, seed=number):
            check(life, image, life.safe, go_on=False)


def live_bytes(j: Journal) -> int:
    jobs = j.jobs(limit=10_000)
    ends = 20 * len(j.engine.state.endings)  # remembered, so they are part of what lives
    return ends + sum(
        len(job.payload) + len(job.key_bytes) + len(job.queue_bytes) + 120 for job in jobs
    )


def disk_bytes(files: MemoryFiles) -> int:
    return sum(len(c) for p, c in files.snapshot().items() if p.name != "reserve")


SEGMENT = 16_384


def endless(kind: str, j: Journal, clock: ManualClock, number: int) -> None:
    """One step of something that never ends."""
    if kind == "cycle":
        j.put(b"x" * 100, queue="q", key=str(number % 7))
        j.put(b"y" * 100, queue="q", key=str(number % 7))
        if number % 2:
            job = j.lease("q")
            if job is not None:
                job.done()
    elif kind == "delay":
        job = j.lease("q")
        assert job is not None
        job.release(1)
        clock.advance(2)
    elif kind == "touch":
        job = j.lease("q", lease=1000)
        assert job is not None
        for _ in range(3):
            clock.advance(1)
            job.touch(1000)
        job.release()
    elif kind == "merge":
        j.put(b"z" * 100, queue="q", key="one", delay=5)
        clock.advance(0.1)
    else:
        clock.advance(61)
        assert j.lease("q", lease=1) is not None
        clock.advance(2)
        j.tick()


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("kind", ["cycle", "delay", "touch", "merge", "timeout"])
def test_endless_work_on_jobs_that_never_expire_keeps_the_disk_bounded(
    kind: str, snapshots: bool
) -> None:
    """F35: live bytes x 3 + 2 segments, through cleaning alone and with an old snapshot around."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock, segment_size=SEGMENT, sync="os")
    j.configure("q", max_timeouts=0, slow_from=256)
    for number in range(30):
        j.put(b"lives on" * 20, queue="idle", key=str(number))
    if kind != "cycle":
        j.put(b"a" * 100, queue="q", key="one")
    most = 0
    for number in range(1200):
        endless(kind, j, clock, number)
        if number % 60 == 59:
            if snapshots and number == 119:
                j.snapshot()
            j.clean()
            bound = 3 * live_bytes(j) + 2 * SEGMENT
            most = max(most, disk_bytes(files) - bound)
            if number == 599:
                check_replay(j)
                j.close()
                j = opened(files, clock, segment_size=SEGMENT, sync="os")
    check_replay(j)
    assert j.status().upkeep.segments_cleaned > 0
    assert most <= 0
    j.close()


@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("reserve", [False, True])
def test_a_journal_opens_on_a_full_disk_and_works_its_jobs_off(
    sync: str, orderly: bool, reserve: bool
) -> None:
    """F02: not a byte more than there was; what is there can be leased and ended."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock, sync=sync)
    for number in range(10):
        j.put(b"x" * 100, queue="q", key=str(number))
    held = j.lease("q", lease=1000)
    assert held is not None
    if not reserve:
        j.engine.reserve.give_up()
    if orderly:
        j.close()
    else:
        files = files.killed()
    files.capacity = used(files)
    with opened(files, clock, sync=sync) as again:
        assert again.jobs(limit=100)
        with pytest.raises(NoSpace):
            for _ in range(1000):
                again.put(b"y" * 5000, queue="q")
        if reserve:  # else there is no room for a single record
            again.complete(held.id, held.token)
            while (job := again.lease("q")) is not None:
                job.done()
            assert not again.jobs(queue="q", state="waiting")
        files.capacity = None
        clock.advance(2)
        again.put(b"there is space", queue="q")
        again.rotate()
        check_replay(again)
    if not orderly:
        j.close()


def test_a_torn_tail_on_a_full_disk_is_cut_with_the_help_of_the_reserve() -> None:
    """F02, F13: its copy needs room; the reserve has it."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock, sync="os")
    receipt = j.put(b"one", queue="q")
    left = files.killed()
    j.close()
    newest = max(path for path in left.snapshot() if path.name == "000000001.log")
    left.put(newest, left.content(newest) + b"\1half a record")
    left.capacity = used(left)
    with opened(left, clock, sync="os") as again:
        assert again.job(receipt.id).value == b"one"
    assert any("torn" in path.name for path in left.snapshot())


def test_a_journal_that_cannot_follow_a_step_of_the_clock_is_closed_all_the_same() -> None:
    """F03, F45: its leases cannot be renewed, since the log stops; the next opening takes over."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock)
    j.put(b"one", queue="q")
    assert j.lease("q", lease=60) is not None
    clock.step(3600)
    j.engine.clock.now()
    for number in range(1, 4):
        files.faults[len(files.operations) + number] = Fault(errno.EIO)
    with pytest.raises(Stopped):
        j.close()
    with opened(files, clock) as again:
        assert len(again.jobs()) == 1


def test_a_batch_of_which_a_part_is_in_the_log_is_not_told_as_undone() -> None:
    """F10: the second write fails, the first is there after the next opening."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock, sync="os")
    ids = [bytes([number]) * 16 for number in range(1, 21)]
    writes = 0

    def second(operation: str) -> Fault | None:
        nonlocal writes
        writes += bool(WRITE.match(operation))
        return Fault(errno.EIO) if writes == 2 else None

    files.failing = second
    with pytest.raises(OutcomeUnknown):
        j.put_many([{"payload": bytes(60_000), "queue": "q", "id": job_id} for job_id in ids])
    files.failing = None
    with contextlib.suppress(JournalError):
        j.close()
    with opened(files, clock) as again:
        assert 0 < len(again.jobs(limit=100)) < len(ids)
