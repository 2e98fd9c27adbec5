"""Replay on Spark equals the journal's own state, row for row and field for field (promise 5)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

from fastjournal.clock import SystemClock
from fastjournal.errors import AlreadyExists, BadRequest, LeaseLost, NotFound
from fastjournal.journal.journal import Journal
from fastjournal.journal.language.codec import decode
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import job_of
from fastjournal.log.record import decode_many
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.model import Job
from fastjournal.spark import JournalTable
from fastjournal.spark.audit.rules import (
    SeenLog,
    ShareLog,
    directory_findings,
    segment_findings,
    share_findings,
    snapshot_findings,
)
from fastjournal.spark.maintain.clean import clean_journal
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.storage.segments import journal_segments
from fastjournal.spark.tasks import Task
from replayed_shares import replayed_states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent.parent / "golden" / "workq"
INSTANTS = ("due", "inserted", "modified", "expires", "lease_start", "lease_until")
EXACT = [
    "id",
    "queue_bytes",
    "key_bytes",
    "payload",
    "state",
    "rank",
    *(f"{name}_ns" for name in INSTANTS),
    "kind",
    "attempts",
    "timeouts",
    "fails",
    "max_attempts",
    "max_timeouts",
    "max_fails",
    "lease_ns",
    "worker_bytes",
    "result",
    "note_bytes",
    "workq",
    "scheduled",
    "ttl_ns",
]


def exact(job: Job) -> tuple[Any, ...]:
    """Every field that the table has, as it has it."""
    values = job._asdict() | {"state": job.state.name, "lease_ns": job.lease, "ttl_ns": job.ttl}
    values["value"] = job.payload
    return tuple(
        values[name] if name in values else values[name.removesuffix("_ns").removesuffix("_bytes")]
        for name in EXACT
    )


def of_state(state: JournalState) -> dict[bytes, tuple[Any, ...]]:
    return {row_id: exact(job_of(row)) for row_id, row in state.rows.items()}


def of_frame(frame: DataFrame) -> dict[bytes, tuple[Any, ...]]:
    found = {}
    for row in frame.collect():
        values = tuple(bytes(v) if isinstance(v, bytearray) else v for v in row)
        assert values[0] not in found
        found[values[0]] = values
    return found


def plain(path: Path, upto: int | None = None) -> dict[bytes, tuple[Any, ...]]:
    state = JournalState()
    cursor = Stream(path, WORKQ).open_cursor()
    for record in cursor:
        if upto is None or record.time <= upto:
            state.apply(decode(record.payload), record.time)
    cursor.close()
    return of_state(state)


def test_the_logs_of_the_real_server_replay_to_one_state(spark: SparkSession, golden: Path) -> None:
    table = JournalTable.for_path(spark, golden)
    assert of_frame(table.jobs(columns=EXACT, shards=2)) == plain(golden)


class Later(SystemClock):
    """The clock of a day long after the journals here were written."""

    @staticmethod
    def now() -> int:
        return 1_700_000_000_000_000_000 + 10**18


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time = 1_700_000_000_000_000_000

    def now(self) -> int:
        self.time += 1000
        return self.time

    def monotonic(self) -> int:
        return self.time


def entry_change(journal: Journal, random: Random) -> None:
    """Change a key/value entry in one way or another."""
    entries, key = journal.entries, f"entry{random.randrange(12)}"
    with suppress(BadRequest, NotFound, AlreadyExists):
        match random.randrange(7):
            case 0 | 1:
                entries.set(key, random.randbytes(9), ttl=random.choice([None, 60]))
            case 2:
                entries.add(f"count{random.randrange(3)}", random.randrange(9))
            case 3:
                entries.delete(key, purge=random.random() < 0.5)
            case 4:
                entries.rename(key, f"entry{random.randrange(12)}", overwrite=True)
            case 5:
                entries.alias(key, f"alias{random.randrange(5)}")
            case _:
                entries.set(key, 5, touch=30)
                entries.get(key)


def live(journal: Journal, clock: Hand, random: Random, steps: int, *, upkeep: bool = True) -> None:
    """Work on a journal: entries, puts with repeated keys, leases and their ends, time passing."""
    held: list[Any] = []
    for n in range(steps):
        roll = random.random()
        if roll < 0.15:
            entry_change(journal, random)
        elif roll < 0.45:
            journal.put(
                random.randbytes(20),
                key=random.choice([None, f"key{random.randrange(30)}"]),
                queue=f"q{random.randrange(3)}",
                priority=random.randrange(256),
                delay=random.choice([0, 0, 5]),
            )
        elif roll < 0.7:
            lease = journal.lease(f"q{random.randrange(3)}", worker="w")
            if lease is not None:
                held.append(lease)
        elif held:
            lease = held.pop(random.randrange(len(held)))
            end = random.choice(["complete", "result", "fail", "release", "touch"])
            with suppress(LeaseLost, NotFound):  # it may have been lost meanwhile
                if end == "result":
                    journal.complete(lease.id, lease.token, b"done")
                else:
                    getattr(journal, end)(lease.id, lease.token)
        if n % 40 == 39:
            clock.time += random.choice([10**9, 70 * 10**9])
            journal.tick()
        if upkeep and random.random() < 0.01:
            random.choice([journal.rotate, journal.clean, journal.snapshot])()


def lived(path: Path, seed: int, steps: int = 600) -> dict[bytes, tuple[Any, ...]]:
    """A journal after a random life, closed; returns its rows."""
    clock, random = Hand(), Random(seed)
    journal = Journal(
        path,
        sync="os",
        segment_size=4096,
        snapshot_bytes=0,
        background=False,
        clock=clock,
        chance=Random(seed),
    )
    try:
        live(journal, clock, random, steps)
        return of_state(journal.engine.state)
    finally:
        journal.close()


def replayed(
    path: Path, shares: int, upto: int | None = None, parts: int = 0
) -> dict[bytes, tuple[Any, ...]]:
    """What the tasks of a replay give, without a session."""
    found: dict[bytes, tuple[Any, ...]] = {}
    for n in range(shares):
        for state in replayed_states(path, Share(n, shares), upto, parts=parts):
            found |= of_state(state)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_every_share_of_a_lived_in_journal_is_replayed_from_snapshot_and_log(
    tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "j"
    state = lived(path, seed)
    assert len(state) > 10
    assert replayed(path, 1) == state
    assert replayed(path, 3) == state
    assert replayed(path, 2, parts=3) == state


@pytest.mark.parametrize("seed", [100, 101])
def test_spark_gives_the_rows_of_the_journal(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "j"
    state = lived(path, seed)
    table = JournalTable.for_path(spark, path)
    assert of_frame(table.jobs(columns=EXACT, shards=2)) == state


def test_as_of_every_tenth_record_gives_the_state_of_that_moment(tmp_path: Path) -> None:
    path = tmp_path / "j"
    clock = Hand()
    journal = Journal(path, sync="os", background=False, clock=clock, chance=Random(1))
    random, states = Random(2), {}
    for _ in range(25):
        live(journal, clock, random, 10, upkeep=False)
        states[journal.engine.last_time] = of_state(journal.engine.state)
    journal.close()
    for upto, state in states.items():
        assert replayed(path, 2, upto) == state
        assert replayed(path, 1, upto, parts=2) == state


def test_as_of_an_instant_in_spark_leaves_out_what_came_later(
    spark: SparkSession,
) -> None:
    golden = GOLDEN / "multi-segment"
    table = JournalTable.for_path(spark, golden)
    times = [row["time_ns"] for row in table.records(columns=["time_ns"]).collect()]
    for upto in sorted(times)[9::20]:
        assert of_frame(table.jobs(as_of=upto, columns=EXACT)) == plain(golden, upto)


def test_as_of_every_tenth_record_of_a_history_in_spark_gives_the_state_of_that_moment(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One Spark job over a reading for each instant; the oracle applies every record in order."""
    from pyspark.sql import functions as F  # noqa: N812

    path, clock = tmp_path / "j", Hand()
    journal = Journal(
        path, sync="os", segment_size=4096, background=False, clock=clock, chance=Random(3)
    )
    live(journal, clock, Random(4), 150, upkeep=False)
    journal.close()
    cursor = Stream(path, WORKQ).open_cursor()
    times = [record.time for record in cursor][9::10]
    cursor.close()
    assert len(times) >= 8
    table = JournalTable.for_path(spark, path)
    frames = [
        table.jobs(as_of=upto, columns=EXACT, shards=1).withColumn("upto", F.lit(upto))
        for upto in times
    ]
    found: dict[int, dict[bytes, tuple[Any, ...]]] = {upto: {} for upto in times}
    for row in reduce(DataFrame.unionByName, frames).collect():
        *values, upto = (bytes(v) if isinstance(v, bytearray) else v for v in row)
        found[upto][values[0]] = tuple(values)
    assert found == {upto: plain(path, upto) for upto in times}


def test_more_shares_than_walks_pay_for_are_folded_behind_a_shuffle(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "j"
    clock = Hand()
    journal = Journal(
        path, sync="os", segment_size=4096, background=False, clock=clock, chance=Random(1)
    )
    for n in range(200):
        journal.put(b"v", key=f"k{n % 50}", queue="q", delay=n % 3)
    for _ in range(20):
        journal.lease("q", worker="w")
    clock.time += 3600 * 10**9
    journal.tick()
    state = of_state(journal.engine.state)
    journal.close()
    table = JournalTable.for_path(spark, path)
    assert of_frame(table.jobs(columns=EXACT, shards=25)) == state


def test_history_below_a_snapshot_is_refused_and_not_half_answered(tmp_path: Path) -> None:
    path = tmp_path / "j"
    clock = Hand()
    journal = Journal(path, sync="os", background=False, clock=clock, chance=Random(1))
    journal.put(b"v", key="k", queue="q")
    early = clock.time
    journal.snapshot()
    journal.put(b"w", key="l", queue="q")
    state = of_state(journal.engine.state)
    journal.close()
    assert replayed(path, 2) == state
    with pytest.raises(BadRequest, match="is gone"):
        replayed(path, 1, early - 1)


@pytest.mark.parametrize("seed", range(20, 28))
def test_a_lived_in_journal_cleaned_by_tasks_replays_to_the_same_rows_and_opens_again(
    tmp_path: Path, seed: int
) -> None:
    """Law 6, also where a snapshot holds the beginning."""
    path = tmp_path / "j"
    state = lived(path, seed)

    def here(tasks: Sequence[Task]) -> list[Any]:
        return [answer for task in tasks for answer in task()]

    clean_journal(here, Stream(path, WORKQ), now=Hand().time + 10**18)
    assert replayed(path, 2) == state
    with Journal(path, background=False, clock=Later()) as journal:
        value = journal.engine.value
        rows = journal.engine.state.rows.values()
        found = {row.id: (row.queue.name, row.key, value(row)) for row in rows}
        assert found == {row_id: job[1:4] for row_id, job in state.items()}


def test_an_audit_of_a_lived_in_journal_finds_no_error(tmp_path: Path) -> None:
    for seed in range(30, 36):
        path = tmp_path / f"j{seed}"
        lived(path, seed)
        found = directory_findings(str(path)) + segment_findings(journal_segments(path))
        for n in range(2):
            log = ShareLog(SeenLog.look(str(path)), Share(n, 2))
            found += share_findings(log) + snapshot_findings(log)
        assert [one for one in found if one.severity == "error"] == []


def test_a_snapshot_that_says_something_else_than_the_log_is_found(tmp_path: Path) -> None:
    path = tmp_path / "j"
    clock = Hand()
    journal = Journal(path, sync="os", background=False, clock=clock, chance=Random(1))
    journal.put(b"v", key="k", queue="q")
    journal.put(b"w", key="l", queue="q")
    kept = {p.name: p.read_bytes() for p in path.glob("*.log")}
    journal.snapshot()
    journal.close()
    for name, data in kept.items():
        (path / name).write_bytes(data)
    assert snapshot_findings(ShareLog(SeenLog.look(str(path)), Share())) == []
    first = path / "000000001.log"
    data = first.read_bytes()
    records, _, _ = decode_many(data, 8, len(data), 1, 0)
    first.write_bytes(data[: records[1].offset])
    found = snapshot_findings(ShareLog(SeenLog.look(str(path)), Share()))
    assert [(one.rule, one.text) for one in found] == [
        ("snapshot", "the row is only in the snapshot")
    ]
