"""Versions of payloads: a queue declares one, rows keep theirs, a new one begins a generation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.errors import SettingError
from fastjournal.testing import ManualClock
from fastjournal.testing.daemon import LocalDaemon


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


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
