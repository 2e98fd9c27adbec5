"""Many threads on one journal, on a real disk: waiting, waking, events, closing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.errors import Closed, LockTimeout, NotFound, Stopped, TimedOut
from fastjournal.model import State
from fastjournal.testing import Fault, MemoryFiles, check_replay

LONG = 30  # seconds; nobody waits for that


@pytest.fixture
def j(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "jobs", sync="os") as journal:
        yield journal


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as executor:
        yield executor


def waits(j: Journal, count: int) -> None:
    """Return once so many are registered as waiting; the condition is theirs, not a time."""
    done = threading.Event()
    while len(j.engine.wakeups) < count:
        done.wait(0.001)


def test_a_waiting_consumer_is_woken_by_a_put(j: Journal, pool: ThreadPoolExecutor) -> None:
    """SNAP-CUR-2."""
    leased = pool.submit(j.lease, "q", wait=LONG)
    waits(j, 1)
    j.put(b"now", queue="q")
    job = leased.result(LONG)
    assert job is not None
    assert job.payload == b"now"


def test_a_waiting_consumer_is_woken_when_a_job_falls_due(
    j: Journal, pool: ThreadPoolExecutor
) -> None:
    """FJ-M3-3: also when the one that was due later comes first."""
    j.put(b"later", queue="q", delay=20)
    leased = pool.submit(j.lease, prefix="q", wait=LONG)
    waits(j, 1)
    j.put(b"soon", queue="q", delay=0.05)
    job = leased.result(LONG)
    assert job is not None
    assert job.payload == b"soon"
    assert job.lease.job.due <= j.engine.clock.now()


def test_a_waiting_consumer_is_woken_when_a_lease_ends(
    j: Journal, pool: ThreadPoolExecutor
) -> None:
    j.put(b"x", queue="q")
    lost = j.lease("q", lease=0.05)
    assert lost is not None
    job = pool.submit(j.lease, "q", wait=LONG).result(LONG)
    assert job is not None
    assert (job.attempt, job.lease.job.timeouts) == (2, 1)


@pytest.mark.parametrize("how", ["done", "release", "fail", "resume", "redrive"])
def test_a_waiting_consumer_is_woken_by_what_frees_a_job(
    j: Journal, pool: ThreadPoolExecutor, how: str
) -> None:
    """A twin whose other half ends, a place under the limit, a resumed queue, a dead job."""
    j.configure("q", concurrency=1 if how == "done" else 0, max_fails=1 if how == "redrive" else 5)
    j.put(b"1", queue="q", key="k")
    held = j.lease("q")
    assert held is not None
    if how == "done":
        j.put(b"2", queue="q", key="k")  # held back behind its twin
    elif how == "resume":
        j.pause("q")
        j.put(b"2", queue="q", key="other")
    elif how == "redrive":
        assert held.fail(b"no") is State.FAILED
    leased = pool.submit(j.lease, "q", wait=LONG)
    waits(j, 1)
    act: dict[str, Callable[[], Any]] = {
        "done": held.done,
        "release": held.release,
        "fail": lambda: held.fail(b"again", delay=0),
        "resume": lambda: j.resume("q"),
        "redrive": lambda: j.redrive(queue="q"),
    }
    act[how]()
    job = leased.result(LONG)
    assert job is not None
    assert job.payload == (b"2" if how in ("done", "resume") else b"1")


def test_a_consumer_that_finds_something_else_passes_its_wake_up_on(
    j: Journal, pool: ThreadPoolExecutor
) -> None:
    """It was woken for a job of one queue and took a more urgent one of another."""
    for _ in range(20):
        both = pool.submit(j.lease, queues=["a", "b"], wait=LONG, fair=False)
        waits(j, 1)
        only_a = pool.submit(j.lease, "a", wait=LONG)
        waits(j, 2)
        with j.engine.lock:  # both are there before the first one can ask
            j.put(b"a", queue="a")
            j.put(b"b", queue="b", priority=0)
        first, second = both.result(LONG), only_a.result(LONG)
        assert first is not None
        assert second is not None
        first.done()
        second.done()


def test_nothing_within_the_wait_is_none(j: Journal) -> None:
    assert j.lease("q", wait=0.01) is None
    assert j.lease_many(3, "q", wait=0.01) == []
    assert len(j.engine.wakeups) == 0


@pytest.mark.parametrize("sync", ["os", "always"])
def test_each_job_goes_to_exactly_one_of_many_consumers(tmp_path: Path, sync: str) -> None:
    """SNAP-GEN-2, SNAP-CUR-1.

    8 producers, 8 consumers, singles and batches, over small segments that are cleaned.
    """
    count = 60
    seen: Counter[bytes] = Counter()
    guard = threading.Lock()
    with (
        Journal(tmp_path / "jobs", sync=sync, segment_size=16_384) as j,
        ThreadPoolExecutor(17) as pool,
    ):

        def produce(number: int) -> None:
            for n in range(count // 2):
                j.put(b"%d.%d" % (number, n), queue=f"q{number % 3}")
            j.put_many(
                [{"payload": b"%d.%d" % (number, n), "queue": "q0"} for n in range(30, count)]
            )

        def consume(number: int) -> None:
            while True:
                jobs = j.lease_many(1 + number % 3, wait=LONG, worker=str(number))
                with guard:
                    seen.update(job.payload for job in jobs)
                for job in jobs:
                    job.done()
                if any(job.payload == b"end" for job in jobs):
                    return

        consumers = [pool.submit(consume, n) for n in range(8)]
        producers = [pool.submit(produce, n) for n in range(8)]
        for producer in producers:
            producer.result(LONG)
            j.clean()
        for n in range(8 * 3):
            j.put(b"end", queue=f"end{n}", priority=255, delay=0.2)
        for consumer in consumers:
            consumer.result(LONG)
        ends = seen.pop(b"end")
        assert ends >= 8
        assert seen == Counter(b"%d.%d" % (n, m) for n in range(8) for m in range(count))
        check_replay(j)


def test_a_result_is_awaited(j: Journal, pool: ThreadPoolExecutor) -> None:
    receipt = j.put(b"x", queue="q")
    with pytest.raises(TimedOut):
        j.result(receipt.id)
    results = [pool.submit(j.result, receipt.id, wait=LONG) for _ in range(3)]
    waits(j, 3)
    job = j.lease("q")
    assert job is not None
    job.done(b"42")
    assert [result.result(LONG) for result in results] == [(True, b"42")] * 3
    assert j.result(receipt.id) == (True, b"42")


def test_waiting_for_a_result_ends_when_the_job_dies_or_goes(
    j: Journal, pool: ThreadPoolExecutor
) -> None:
    j.configure("q", max_timeouts=1)
    dying, going = j.put(b"1", queue="q"), j.put(b"2", queue="q")
    results = [pool.submit(j.result, r.id, wait=LONG) for r in (dying, going)]
    waits(j, 2)
    assert j.lease("q", lease=0.02) is not None  # nobody ends it
    j.delete(going.id)
    assert results[0].result(LONG) == (False, b"")
    with pytest.raises(NotFound):
        results[1].result(LONG)


def events_of(subscription: Any, count: int) -> list[tuple[str, bytes, bytes]]:
    events = [subscription.next(LONG) for _ in range(count)]
    return [(event.kind, event.queue, event.key) for event in events]


def test_subscribers_hear_what_is_due_dead_and_changed(j: Journal) -> None:
    """SNAP-LSN-1, D-16: one `due` for a queue until somebody leases from it."""
    j.configure("q", max_fails=1)
    with j.subscribe("due") as due, j.subscribe("dead") as dead, j.subscribe("changed") as changed:
        j.put(b"1", queue="q", key="a", delay=0.05)
        j.put(b"2", queue="q", key="b", delay=0.05)
        assert events_of(due, 1) == [("due", b"q", b"")]
        assert due.next(0) is None
        job = j.lease("q", wait=LONG)
        assert job is not None
        j.put(b"3", queue="q", key="c")
        assert events_of(due, 1) == [("due", b"q", b"")]
        job.fail(b"no")
        key = job.lease.job.key_bytes
        assert events_of(dead, 1) == [("dead", b"q", key)]
        j.delete(key="c", queue="q")
        heard = events_of(changed, 5)
        assert heard[:2] == [("changed", b"q", b"a"), ("changed", b"q", b"b")]
        assert heard[-1] == ("changed", b"q", b"c")  # named, though it is gone
        assert dead.next(0) is None


def test_a_job_that_dies_of_lost_leases_or_in_a_workq_queue_is_told_as_dead(j: Journal) -> None:
    from fastjournal.journal.language.commands import Add

    j.configure("q", max_timeouts=1)
    with j.subscribe("dead") as dead:
        j.put(b"1", queue="q", key="k")
        j.lease("q", lease=0.02)
        assert events_of(dead, 1) == [("dead", b"q", b"k")]
        row_id = bytes(6) + b"\x40\x00\x80" + bytes(7)
        with j.engine.lock:
            j.operations.add(Add(row_id, b"w", 20, 60_000, 0, 1, 0, b"", 0, 0))
        j.lease("w")
        assert events_of(dead, 1) == [("dead", b"w", b"")]


def test_a_new_subscriber_is_told_what_is_due_already(j: Journal) -> None:
    j.put(b"1", queue="q")
    j.put(b"1", queue="paused")
    j.pause("paused")
    with j.subscribe("due") as due:
        assert events_of(due, 1) == [("due", b"q", b"")]
        assert due.next(0) is None


def test_a_slow_subscriber_loses_events_and_is_told_so(j: Journal) -> None:
    with j.subscribe("changed", backlog=5) as changed:
        for number in range(20):
            j.put(b"x", queue="q", key=str(number))
        assert events_of(changed, 1)[0][0] == "lost"


def test_subscriptions_end_with_the_journal(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    j = Journal(tmp_path / "jobs")
    subscription = j.subscribe()
    heard = pool.submit(list, subscription)
    j.close()
    assert heard.result(LONG) == []


def test_closing_wakes_everybody_who_waits(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    j = Journal(tmp_path / "jobs")
    receipt = j.put(b"x", queue="other")
    waiting: list[Future[Any]] = [pool.submit(j.lease, "q", wait=LONG) for _ in range(4)]
    waiting.append(pool.submit(j.result, receipt.id, wait=LONG))
    waits(j, 5)
    j.close()
    for future in waiting:
        with pytest.raises(Closed):
            future.result(LONG)
    for attempt in (
        lambda: j.put(b"x", queue="q"),
        lambda: j.lease("q"),
        lambda: j.clean(),
        lambda: j.snapshot(),
        lambda: j.rotate(),
        lambda: j.sync(),
        lambda: j.tick(),
        lambda: j.subscribe(),
    ):
        with pytest.raises(Closed):
            attempt()
    j.close()  # twice is harmless


def test_a_log_that_stops_wakes_everybody_who_waits(pool: ThreadPoolExecutor) -> None:
    files = MemoryFiles()
    files.make_directory(Path("/"))
    j = Journal("/jobs", sync="interval", sync_interval=20, files=files)
    j.put(b"x", queue="other")
    waiting = [pool.submit(j.lease, "q", wait=LONG) for _ in range(2)]
    waits(j, 2)
    for number in range(1, 50):
        files.faults[len(files.operations) + number] = Fault()
    with pytest.raises(Stopped):
        j.put(b"y", queue="other")
    for future in waiting:
        with pytest.raises(Stopped):
            future.result(LONG)
    with pytest.raises(Stopped):
        j.close()


def test_a_second_process_is_told_who_holds_the_journal(tmp_path: Path) -> None:
    """F61: refused within seconds, naming the pid."""
    code = (
        "import sys; from fastjournal import Journal\n"
        "j = Journal(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "jobs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(LockTimeout, match=f"held by process {holder.pid}") as refused:
            Journal(tmp_path / "jobs")
        assert refused.value.holder == str(holder.pid)
        holder.communicate()
    Journal(tmp_path / "jobs").close()


def test_the_wall_clock_may_be_asked_by_many_threads_at_once(pool: ThreadPoolExecutor) -> None:
    """After a long pause no thread may see a mixture of old and new: an hour ahead."""
    from fastjournal.clock import SteadyClock

    class Ahead:
        """Both clocks leap by an hour at each reading: any mixture of two readings shows."""

        def __init__(self) -> None:
            self.hours = 0

        def now(self) -> int:
            self.hours += 1
            return self.hours * 3600_000_000_000

        def monotonic(self) -> int:
            return self.hours * 3600_000_000_000

    clock = Ahead()
    steady = SteadyClock(clock)
    for future in [pool.submit(steady.now) for _ in range(2000)]:
        future.result(LONG)
    assert steady.now() <= (clock.hours + 20) * 3600_000_000_000
