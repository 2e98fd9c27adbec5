"""The walk over the lives of rows: the states, tokens and ends that the journal itself gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fastjournal.errors import LeaseLost, NotFound
from fastjournal.journal.journal import Journal, Receiver
from fastjournal.model import NewJob
from fastjournal.spark.lifecycle import walk as attempts
from fastjournal.spark.lifecycle.walk import Fold, parts_of
from fastjournal.spark.replay.fold import Share, fold
from fastjournal.spark.storage.segments import journal_segments, load, load_all
from fastjournal.testing import ManualClock
from spark_traffic import NOON, Told, traffic


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told]:
    """Three hours of traffic."""
    path = tmp_path_factory.mktemp("traffic") / "jobs"
    return path, traffic(path, puts=1500)


def test_the_walk_gives_the_states_of_the_journal(day: tuple[Path, Told]) -> None:
    """Design law 1: the same bytes, the same state; in any number of shares."""
    path, _ = day
    own = {row.id: (int(row.state), row.attempts) for row in fold(load_all(path)).rows.values()}
    for count in (1, 3):
        found = {}
        for index in range(count):
            share = Share(index, count)
            rows = Fold(share)
            pieces = journal_segments(path)
            for _ in rows.batches(p for one in pieces for p in parts_of(one, load(one), share)):
                pass
            told = rows.table().to_pydict()
            found.update(
                zip(told["id"], zip(told["state"], told["attempt"], strict=True), strict=True)
            )
        assert found == own


@pytest.mark.parametrize("seed", range(4))
def test_the_walk_follows_restated_rows_twins_tombs_and_redrives(tmp_path: Path, seed: int) -> None:
    """Every kind of record, in any order: states, attempts and tokens are those of `apply`."""
    random, clock = Random(seed), ManualClock(NOON)
    path = tmp_path / "j"
    leases = 0
    with Journal(path, clock=clock, background=False, sync="os", chance=random) as journal:
        journal.configure("q", lease=30, max_timeouts=3, max_fails=2)
        held: list[Any] = []
        for _ in range(900):
            clock.advance(random.choice((0, 1, 20)))
            match random.randrange(12):
                case 0 | 1 | 2:
                    journal.put(b"x" * 20, queue="q", key=f"k{random.randrange(8)}")
                case 3 | 4:
                    job = journal.lease("q", worker="w")
                    if job is not None:
                        leases += 1
                        held.append(job)
                case 5 if held:
                    job = held[-1]
                    for _ in range(30):  # until the row is restated
                        _try(job.touch)
                case 6 if held:
                    _try(held.pop(random.randrange(len(held))).done, b"r")
                case 7 if held:
                    _try(held.pop().fail, b"why")
                case 8 if held:
                    _try(held.pop().release)
                case 9:
                    journal.tick()
                case 10:
                    journal.redrive(queue="q")
                case 11:
                    journal.delete(key=f"k{random.randrange(8)}", queue="q")
    rows = Fold(Share())
    effects: Counter[str] = Counter()
    ended = 0
    for lives in rows.batches(
        p for one in journal_segments(path) for p in parts_of(one, load(one), Share())
    ):
        effects.update(attempts.EFFECTS[n] for n in lives.effects.tolist())
        ended += lives.ends.shape[1]
        assert (lives.ended("ended") >= lives.ended("leased")).all()
    own = {row.id: (int(row.state), row.attempts) for row in fold(load_all(path)).rows.values()}
    told = rows.table().to_pydict()
    assert own == dict(
        zip(told["id"], zip(told["state"], told["attempt"], strict=True), strict=True)
    )
    assert effects["leased"] == leases
    assert ended == leases - sum(state == 1 for state in told["state"])


@pytest.mark.parametrize("bulk", [1, 20])
def test_repeats_that_a_forwarder_brought_count_as_merged(tmp_path: Path, bulk: int) -> None:
    """A merge and the mark of its sender are one GROUP: it is a put all the same."""
    path = tmp_path / "j"
    jobs = [(n, NewJob(b"q", b"%d" % n, b"k%d" % (n % 2))) for n in range(2, 42)]
    with Journal(path, clock=ManualClock(NOON)) as journal:
        for start in range(0, len(jobs), bulk):
            Receiver(journal).put_from(b"a sender", jobs[start : start + bulk])
    effects: Counter[str] = Counter()
    for lives in Fold(Share()).batches(
        part for one in journal_segments(path) for part in parts_of(one, load(one), Share())
    ):
        effects.update(attempts.EFFECTS[number] for number in lives.effects)
    assert (effects["new"], effects["merged"], effects["restated"]) == (2, 38, 0)


def _try(what: Callable[..., Any], *arguments: Any) -> None:
    with suppress(LeaseLost, NotFound):
        what(*arguments)
