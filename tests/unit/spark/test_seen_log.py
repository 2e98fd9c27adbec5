"""What the tasks of an audit look at: the log as it was at one moment, however it is dealt out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fastjournal import Journal
from fastjournal.journal.disk.snapshot import write_snapshot
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import encode
from fastjournal.journal.state.row import image
from fastjournal.log.record import encode as record
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.spark.audit.rules import (
    Finding,
    SeenLog,
    ShareLog,
    keyed_rows,
    share_findings,
    snapshot_findings,
)
from fastjournal.spark.replay.dealt import Deal, deal_here, places_of
from fastjournal.spark.replay.fold import Share, fold
from fastjournal.spark.storage.segments import Piece, journal_segments, load
from fastjournal.testing import ManualClock

T0 = 1_700_000_000_000_000_000


Dealt = tuple[ShareLog, list[Piece]]


def one_task(seen: SeenLog, number: int, shares: int, tasks: int = 2) -> Iterator[Dealt]:
    deal = Deal(shares, mode="DROPMALFORMED", tasks=tasks, task=Share(number, tasks))
    for share, mine in deal_here(seen.pieces, deal):
        yield ShareLog(seen, share, mine), mine


def test_tasks_that_look_one_after_the_other_see_the_log_of_one_moment(tmp_path: Path) -> None:
    """Else the old row of a key, seen by one, and the new one, seen by another, are two."""
    clock = ManualClock(T0)
    for shares in (2, 6):
        path = tmp_path / f"j{shares}"
        with Journal(path, clock=clock, background=False, sync="os") as journal:
            for n in range(20):
                journal.put(b"x", queue="a", key=f"k{n}")
            seen = SeenLog.look(str(path))
            rows = Counter[bytes]()
            for number in range(2):
                for log, _ in one_task(seen, number, shares):
                    assert share_findings(log) == []
                    rows.update(key for _, key, _, _ in keyed_rows(log))
                for _ in range(20):
                    clock.advance(1)
                    job = journal.lease("a")
                    assert job is not None
                    job.done()
                    journal.put(b"x", queue="a", key=job.key)
        assert rows == {f"k{n}".encode(): 1 for n in range(20)}


def test_findings_of_records_of_one_time_have_each_their_place(tmp_path: Path) -> None:
    """Twins in other shares, twins in the same one, and records that are the same byte by byte."""
    lone = [(1000 + n).to_bytes(16, "little") for n in range(8)]
    orphans = [record(T0 + 100, encode(k.Lease(row, T0, T0 + 5, 1, b"w"))) for row in lone]
    rest = [record(T0 + n, encode(k.Mark(T0, 1, 8, b""))) for n in range(9)]
    data = b"".join([*rest, *orphans, *orphans])
    (tmp_path / segment_name(1)).write_bytes(WORKQ.encode() + data)
    (tmp_path / segment_name(2)).write_bytes(WORKQ.encode() + rest[0])
    seen = SeenLog.look(str(tmp_path))
    expected = share_findings(ShareLog(seen, Share()))
    assert len(expected) == 2 * len(lone) and {one.rule for one in expected} == {"orphan"}
    found = []
    for number in range(2):
        for log, mine in one_task(seen, number, 6):
            some = share_findings(log)
            named = [(one.segment or 0, one.offset or 0) for one in some]
            places = places_of(named, mine, seen.pieces)
            pairs = zip(some, named, strict=True)
            found += [one._replace(offset=places[place]) for one, place in pairs]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_a_snapshot_beside_a_log_whose_first_segment_is_unreadable_is_not_held_against_it(
    tmp_path: Path,
) -> None:
    rows = [n.to_bytes(16, "little") for n in range(9)]
    for number in range(3):
        puts = [
            record(T0 + 10 * number + n, encode(k.Put(row, b"q", b"", 5, T0, T0, T0, 0, 1, b"v")))
            for n, row in enumerate(rows[3 * number : 3 * number + 3])
        ]
        (tmp_path / segment_name(number + 1)).write_bytes(WORKQ.encode() + b"".join(puts))
    state = fold([(piece, load(piece)) for piece in journal_segments(tmp_path)[:2]])
    images = [encode(one) for row in state.rows.values() for one in image(row)]
    write_snapshot(Stream(tmp_path, WORKQ), 3, [(T0 + 12, images)])
    sound = SeenLog.look(str(tmp_path))
    assert (sound.begins, sound.fault, sound.pieces[0].number) == (True, "", -3)
    assert snapshot_findings_of(sound) == []
    second = tmp_path / segment_name(2)
    whole = second.read_bytes()
    second.write_bytes(whole[: whole.index(rows[5]) - 13])
    assert len(snapshot_findings_of(SeenLog.look(str(tmp_path)))) == 1
    second.write_bytes(whole)
    first = tmp_path / segment_name(1)
    first.write_bytes(b"?" + first.read_bytes()[1:])
    unreadable = SeenLog.look(str(tmp_path))
    assert not unreadable.begins
    assert snapshot_findings_of(unreadable) == []


def test_a_snapshot_that_holds_what_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    """And the log is replayed without it, as every other audit of a damaged snapshot does."""
    row = bytes(15) + b"\x01"
    put = record(T0, encode(k.Put(row, b"q", b"k", 5, T0, T0, T0, 0, 1, b"v")))
    (tmp_path / segment_name(1)).write_bytes(WORKQ.encode() + put)
    (tmp_path / segment_name(2)).write_bytes(WORKQ.encode())
    write_snapshot(Stream(tmp_path, WORKQ), 2, [(T0, [b"\x20" + row + b"\xff"])])
    seen = SeenLog.look(str(tmp_path))
    assert seen.pieces[0].number == -2
    found, keys = [], []
    for number in range(2):
        for log, _ in one_task(seen, number, 2):
            found += share_findings(log) + snapshot_findings(log)
            keys += [key for _, key, _, _ in keyed_rows(log)]
    assert [(one.severity, one.rule) for one in found] == [("error", "snapshot")]
    assert keys == [b"k"]


def snapshot_findings_of(seen: SeenLog) -> list[Finding]:
    tasks = (one_task(seen, number, 5) for number in range(2))
    return [one for task in tasks for log, _ in task for one in snapshot_findings(log)]
