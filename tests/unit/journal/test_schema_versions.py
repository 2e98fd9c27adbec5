"""Versions of payloads: a queue declares one, rows keep theirs, a new one begins a generation."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.errors import BadRequest, OutOfRange, SettingError
from fastjournal.model import Where
from fastjournal.testing import ManualClock, MemoryFiles
from fastjournal.testing.daemon import LocalDaemon


@pytest.fixture
def j(tmp_path: Path, clock: ManualClock) -> Iterator[Journal]:
    with Journal(tmp_path, sync="os", background=False, clock=clock) as journal:
        yield journal


def versions(journal: Journal) -> dict[bytes, int]:
    return {job.value: job.schema for job in journal.jobs()}


def test_rows_keep_the_version_they_were_put_with(
    j: Journal, clock: ManualClock, tmp_path: Path
) -> None:
    """SNAP-SCH-1: over leases, failures, snapshots and restarts; the old format goes on."""
    j.put(b"none", queue="q")
    j.configure("q", schema=1)
    j.put(b"one", queue="q")
    j.configure("q", schema=15)
    j.put(b"last", queue="q")
    j.put(b"other", queue="r")
    told = {b"none": 0, b"one": 1, b"last": 15, b"other": 0}
    assert versions(j) == told
    clock.advance(1)
    for _ in range(3):
        job = j.lease("q")
        assert job is not None
        assert job.lease.job.schema == told[job.payload]
        job.fail(b"again")
    j.snapshot()
    j.clean()
    j.close()
    with Journal(tmp_path, sync="os", background=False, clock=clock) as again:
        assert versions(again) == told
        assert again.queue("q").settings.schema == 15


def test_a_repeat_has_the_version_of_its_new_payload(j: Journal) -> None:
    """SNAP-SCH-1."""
    j.put(b"old", queue="q", key="k")
    j.configure("q", schema=2)
    j.put(b"new", queue="q", key="k")
    assert versions(j) == {b"new": 2}


def test_a_new_version_begins_a_generation_and_the_old_one_drains(
    j: Journal, clock: ManualClock
) -> None:
    """SNAP-SCH-2: its segments empty together."""
    j.put(b"old", queue="q")
    j.tick()
    assert j.status().upkeep.generations == 0
    j.configure("q", schema=1)
    clock.advance(2)
    j.tick()
    assert j.status().upkeep.generations == 1
    j.put(b"new", queue="q")
    clock.advance(2)
    j.tick()
    assert j.status().upkeep.generations == 1
    for value in (b"old", b"new"):
        job = j.lease("q")
        assert job is not None
        assert job.payload == value
        job.done()


def test_consumers_of_a_daemon_see_the_version(tmp_path: Path) -> None:
    """SNAP-SCH-1: in what they lease and in what they look at."""
    settings = {"journal": {"sync": "os"}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon, daemon.connect() as client:
        client.configure("q", schema=3)
        put = client.put(b"x", queue="q")
        assert client.job(put.id).schema == 3
        first = client.lease("q")
        assert first is not None
        assert first.lease.job.schema == 3
        client.put(b"y", queue="q")
        (second,) = client.lease_many(5, "q")
        assert second.lease.job.schema == 3


@pytest.mark.parametrize("value", [-1, 16, 1.0, "1", True])
def test_a_version_is_a_small_number(j: Journal, value: object) -> None:
    with pytest.raises(SettingError, match="schema"):
        j.configure("q", schema=value)


def put_versions(j: Journal, queue: str, *puts: tuple[int, bytes, int]) -> None:
    """Put payloads of these versions with these priorities, in this order."""
    for version, payload, priority in puts:
        j.configure(queue, schema=version)
        j.put(payload, queue=queue, priority=priority)


def leased(j: Journal, *queue: str, **options: Any) -> list[bytes]:
    """All that a consumer gets, one after the other."""
    found = []
    while (job := j.lease(*queue, **options)) is not None:
        found.append(job.payload)
    return found


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize(
    "asked", [{"queue": "a"}, {"queues": ["a", "c"]}, {"prefix": "a"}, {}], ids=str
)
def test_a_consumer_that_asks_for_a_version_gets_its_jobs_in_order_and_no_other(
    j: Journal, asked: dict[str, Any], fair: bool
) -> None:
    """SNAP-SCH-1: whatever of other versions stands before them."""
    put_versions(j, "a", (1, b"1c", 9), (2, b"2c", 9), (2, b"2a", 1), (1, b"1a", 1), (0, b"0", 5))
    put_versions(j, "a", (2, b"2b", 5), (1, b"1b", 5))
    assert j.lease(schema=7, fair=fair, **asked) is None
    assert leased(j, schema=2, fair=fair, **asked) == [b"2a", b"2b", b"2c"]
    assert [one.payload for one in j.lease_many(9, schema=1, fair=fair, **asked)] == [
        b"1a", b"1b", b"1c",
    ]  # fmt: skip
    assert leased(j, fair=fair, **asked) == [b"0"]


def test_a_version_is_none_of_a_paused_or_full_queue_nor_before_it_is_due(
    j: Journal, clock: ManualClock
) -> None:
    put_versions(j, "q", (3, b"x", 1))
    j.put(b"later", queue="q", delay=60)
    j.put(b"gone", queue="q", expires=clock.now() // 10**9 + 30, priority=0)
    j.pause("q")
    assert j.lease("q", schema=3) is None
    j.resume("q")
    clock.advance(31)
    first = j.lease("q", schema=3)
    assert first is not None
    assert first.payload == b"x", "the other one has expired"
    assert j.lease("q", schema=3) is None
    first.release()
    assert leased(j, "q", schema=3) == [b"x"]
    clock.advance(30)
    assert leased(j, "q", schema=3, lease=1000) == [b"later"]


@pytest.mark.parametrize("schema", [-1, 16, "2", 1.0, True])
def test_what_can_be_no_version_is_refused(j: Journal, schema: Any) -> None:
    with pytest.raises((BadRequest, OutOfRange)):
        j.lease("q", schema=schema)


def test_a_ready_job_wakes_who_waits_for_its_version_and_nobody_who_cannot_take_it(
    j: Journal,
) -> None:
    """Who has waited longest is passed over for a version that it did not ask for."""
    woken: list[str] = []
    wakeups = j.engine.wakeups
    for name, schema in (("two", 2), ("two more", 2), ("one", 1), ("any", -1)):
        wakeups.wait_for_row(Where((b"q",), schema=schema), partial(woken.append, name))
    put_versions(j, "q", (1, b"1", 5))
    assert woken == ["one"]
    put_versions(j, "q", (0, b"0", 5))
    assert woken == ["one", "any"]
    put_versions(j, "q", (3, b"3", 1))
    assert woken == ["one", "any"]
    put_versions(j, "q", (2, b"2", 9))
    assert woken[:3] == ["one", "any", "two"]


def test_a_consumer_that_waits_for_a_version_gets_it_when_it_comes(tmp_path: Path) -> None:
    with Journal(tmp_path, sync="os") as j, ThreadPoolExecutor(2) as pool:
        put_versions(j, "q", (1, b"other", 1))
        waiting = pool.submit(j.lease, "q", schema=2, wait=30)
        put_versions(j, "q", (1, b"another", 1), (2, b"mine", 9))
        job = waiting.result(30)
        assert job is not None
        assert job.payload == b"mine"
        assert leased(j, "q", schema=1) == [b"other", b"another"]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_of_each_version_is_the_first_of_those_that_are_ready(seed: int) -> None:
    """Whatever came and went meanwhile; and what has left does not pile up."""
    chance, clock = Random(seed), ManualClock()
    with Journal("/j", files=MemoryFiles(), sync="os", background=False, clock=clock) as j:
        held: list[Any] = []
        for _ in range(1500):
            clock.advance(chance.random())
            deed = chance.randrange(6)
            if deed < 2:
                j.configure("q", schema=chance.randrange(4))
                key = str(chance.randrange(40)) if chance.random() < 0.5 else None
                j.put(b"x", queue="q", key=key, priority=chance.randrange(3))
            elif deed == 2 and held:
                held.pop(chance.randrange(len(held))).release()
            elif deed == 3 and held:
                held.pop().done()
            else:
                schema = chance.choice([None, 0, 1, 2, 3])
                job = j.lease("q", schema=schema, lease=1000)
                if job is not None:
                    held.append(job)
            queue = j.engine.state.queues.get(b"q")
            if queue is None:
                continue
            ready = sorted(queue.ready, key=lambda row: (row.rank, row.due, row.inserted, row.id))
            for version in range(4):
                of_it = [row for row in ready if row.policy.flags >> 4 & 15 == version]
                assert queue.head_of(version, clock.now()) is (of_it[0] if of_it else None)
            assert queue.versions is not None
            assert queue.versions.size <= 2 * queue.ready.count + 1001


def test_nobody_pays_for_versions_who_does_not_ask_for_one(j: Journal) -> None:
    put_versions(j, "q", (1, b"1", 5), (2, b"2", 5))
    queue = j.engine.state.queues[b"q"]
    assert j.lease("q") is not None
    assert queue.versions is None
    assert j.lease("q", schema=2) is not None
    assert queue.versions is not None
    for _ in range(1200):
        j.put(b"x", queue="q")
        job = j.lease("q")
        assert job is not None
        job.done()
    assert queue.versions is None, "dropped again"
