"""Spark on the directory of a node of a replicated journal: what may be cut off is not read."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fastjournal import Journal
from fastjournal.errors import BadRequest
from fastjournal.log.commit_mark import COMMIT_POS, REPLICA_META
from fastjournal.log.files import DISK
from fastjournal.log.record import encode
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.replica.disk import ReplicaLog, walk_records
from fastjournal.spark.audit.rules import SeenLog, ShareLog, share_findings, snapshot_findings
from fastjournal.spark.decode.record_columns import record_batches
from fastjournal.spark.lake.history import History
from fastjournal.spark.lifecycle.seed import rows_before
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.replay.jobs import shard_batches, shards
from fastjournal.spark.replay.snapshots import lives_base
from fastjournal.spark.storage.segments import journal_segments, newest_time, plan
from fastjournal.spark.stream.tail import Reached, Tail
from fastjournal.testing import ManualClock

T0 = 1_700_000_000_000_000_000
PAYLOAD = b"\x05" + bytes(16)


def read_times(home: Path) -> list[int]:
    """The TIMEs that a task reads."""
    settings = Settings.parse({"path": str(home), "columns": "time_ns"})
    batches = record_batches(plan(settings), settings)
    return [int(time) for one in batches for time in one.column("time_ns").to_pylist()]


def row_ids(home: Path, upto: int | None = None) -> set[bytes]:
    """The rows that a replay up to an instant leaves."""
    settings = Settings((str(home),), view="jobs", columns=("id",), shards=1, as_of=upto)
    return {
        row_id
        for shard in shards(settings)
        for batch in shard_batches(shard, settings)
        for row_id in batch.column("id").to_pylist()
    }


@pytest.fixture
def node(tmp_path: Path) -> ReplicaLog:
    """A follower's log of two segments; nothing of it is known to be on a majority."""
    log = ReplicaLog(Stream(tmp_path / "jobs", WORKQ))
    for n in range(10):
        log.append_raw(encode(T0 + n, PAYLOAD), [T0 + n], begins=n == 6)
    log.flush()
    log.write_meta(log.meta)
    return log


@pytest.mark.parametrize("commit", [T0 + 3, T0 + 5, T0 + 7, T0 + 9])
def test_spark_reads_a_node_up_to_what_a_majority_has(node: ReplicaLog, commit: int) -> None:
    """F58: a plan, a history and a stream end there, in whichever segment that is."""
    node.set_commit(commit)
    node.note_commit()
    home = node.stream.path
    assert read_times(home) == list(range(T0, commit + 1))
    assert History(home).last() == commit
    assert Tail(str(home)).newest() == Reached(commit, 2 if commit > T0 + 5 else 1)


def test_nothing_is_read_of_a_node_that_knows_of_no_majority(node: ReplicaLog) -> None:
    home = node.stream.path
    assert not DISK.exists(home / COMMIT_POS)
    assert read_times(home) == []
    assert Tail(str(home)).newest() is None


def test_a_stream_that_has_seen_a_tail_cut_off_reads_what_comes_in_its_place(
    node: ReplicaLog,
) -> None:
    """Other bytes stand where it has not told of any: the walk goes on from what stays."""
    node.set_commit(T0 + 7)
    node.note_commit()
    tail = Tail(str(node.stream.path))
    assert tail.newest() == Reached(T0 + 7, 2)
    node.take_history(node.meta.history, T0 + 7, 2)
    longer = PAYLOAD + b"longer"
    node.append_raw(encode(T0 + 20, longer), [T0 + 20])
    node.append_raw(encode(T0 + 21, PAYLOAD), [T0 + 21])
    node.flush()
    assert tail.newest() == Reached(T0 + 7, 2)
    node.set_commit(T0 + 21)
    node.note_commit()
    reached = tail.newest()
    assert reached is not None
    assert reached.time == T0 + 21
    assert read_times(node.stream.path) == [*range(T0, T0 + 8), T0 + 20, T0 + 21]


def test_a_log_that_is_nobodys_copy_is_read_to_its_end(tmp_path: Path) -> None:
    records = b"".join(encode(T0 + n, PAYLOAD) for n in range(3))
    (tmp_path / segment_name(1)).write_bytes(WORKQ.encode() + records)
    assert not (tmp_path / REPLICA_META).exists()
    assert newest_time(journal_segments(tmp_path)[-1]) == T0 + 2
    assert len(read_times(tmp_path)) == 3


def test_a_node_that_began_with_a_snapshot_has_no_history_before_it(tmp_path: Path) -> None:
    """F58: its log begins with segment 1 as a whole one does, and is none."""
    clock = ManualClock()
    with Journal(tmp_path / "first", background=False, clock=clock, chance=Random(3)) as journal:
        old = journal.put(b"old", queue="q").id
        clock.advance(60)
        later = journal.put(b"later", queue="q").id
        clock.advance(60)
        before = tmp_path / "first" / segment_name(1)
        content = before.read_bytes()
        journal.snapshot()
        clock.advance(60)
        new = journal.put(b"new", queue="q").id
    first = ReplicaLog(Stream(tmp_path / "first", WORKQ))
    second = ReplicaLog(Stream(tmp_path / "second", WORKQ))
    facts = first.snapshot()
    assert facts is not None
    second.take_part(0, first.read_snapshot(facts, 0))
    second.install(facts.base, facts.checkpoint)
    behind = first.read_after(facts.base).data
    times = walk_records(behind).times
    second.append_raw(behind, times)
    second.set_commit(times[-1])
    second.note_commit()
    second.close()

    home = second.stream.path
    pieces = journal_segments(home)
    assert pieces[0].number == 1
    log = ShareLog(SeenLog.look(str(home)), Share())
    assert share_findings(log) == snapshot_findings(log) == []
    assert row_ids(home) == {old, later, new}
    base = lives_base(home, pieces)
    assert base is not None
    known = rows_before([base, *pieces], Share())
    assert known is not None
    assert set(known.column("id").to_pylist()) == {old, later}
    with pytest.raises(BadRequest, match=r"the history before 000000001\.snapshot is gone"):
        row_ids(home, facts.base - 1)
    whole = tmp_path / "first"
    before.write_bytes(content)
    assert lives_base(whole, journal_segments(whole)) is None
    assert row_ids(whole, facts.base - 1) == {old}
