"""A log dealt out by row: each share gets what concerns it, in order, and nothing is read twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from fastjournal.errors import SegmentError
from fastjournal.journal.disk.snapshot import write_snapshot
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import encode
from fastjournal.journal.state.row import image
from fastjournal.log.record import encode as record
from fastjournal.log.segment import HEADER_SIZE, WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.model import QueueSettings
from fastjournal.spark.lifecycle.commands import parts_of
from fastjournal.spark.replay import snapshots
from fastjournal.spark.replay.dealt import (
    Deal,
    blocks_of,
    deal_here,
    held_shares,
    places_of,
    walkers,
)
from fastjournal.spark.replay.fold import Share, fold
from fastjournal.spark.replay.jobs import replay_share
from fastjournal.spark.replay.snapshots import replay_base, scan_snapshot
from fastjournal.spark.storage.segments import Piece, journal_segments, load

T0 = 1_700_000_000_000_000_000
ROWS = [n.to_bytes(16, "little") for n in range(40)]


def put(row: bytes, key: bytes = b"") -> k.Command:
    return k.Put(row, b"q", key, 5, T0, T0, T0, 0, 1, b"v" * (row[0] % 7))


def write_log(directory: Path, seed: int) -> list[Piece]:
    """Segments of lives, groups over several rows among them, and what names no row."""
    random = Random(seed)
    time = T0
    for number in range(1, 7):
        data = [WORKQ.encode()]
        for _ in range(60):
            row = random.choice(ROWS)
            command = random.choice(
                [
                    put(row),
                    k.Lease(row, time, time + 5, 3, b"w"),
                    k.Retry(row, 1, time, 1, 1, b"n"),
                    k.Purge(row, b"q", b"", time),
                    k.Group((put(row, b"k"), k.Tomb(random.choice(ROWS), b"q", b"", time))),
                    k.Group((put(random.choice(ROWS)), k.Sender(b"s", time))),
                    k.Queue(b"q", QueueSettings(max_attempts=random.randrange(1, 9))),
                    k.Sender(b"s", time),
                    k.Mark(time, 1, 2, b""),
                ]
            )
            data.append(record(time, encode(command)))
            time += 1
        (directory / segment_name(number)).write_bytes(b"".join(data))
    return journal_segments(directory)


def dealt_out(packs: Sequence[Sequence[Piece]], deal: Deal) -> Iterator[tuple[Share, list[Piece]]]:
    """What Spark's shuffle does, in one table."""
    batches = [batch for pack in packs for batch in blocks_of(pack, deal)]
    every = pa.RecordBatch.from_pydict(
        {
            "share": pa.array(range(deal.shares), pa.int32()),
            "_segment": pa.array([0] * deal.shares, pa.int64()),
            "_offset": pa.array([0] * deal.shares, pa.int64()),
            "records": pa.array([b""] * deal.shares, pa.binary()),
        }
    )
    blocks = pa.Table.from_batches([*batches, every]).sort_by(
        [(name, "ascending") for name in ("share", "_segment", "_offset")]
    )
    pieces = [piece for pack in packs for piece in pack]
    return held_shares(blocks.combine_chunks().to_batches(max_chunksize=3), deal.shares, pieces)


def in_packs(pieces: list[Piece], most: int = 2) -> list[list[Piece]]:
    return [pieces[n : n + most] for n in range(0, len(pieces), most)]


def told(pieces: Sequence[Piece], share: Share) -> list[Any]:
    return [
        (part.segment, time, kind, member, bytes(row))
        for piece in pieces
        for part in parts_of(piece, load(piece), share)
        for time, kind, member, row in zip(
            part.chunk.times.tolist(), part.chunk.kinds.tolist(), part.members.tolist(),
            part.chunk.ids(), strict=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("shares", [1, 3, 17])
def test_every_share_finds_the_commands_that_a_walk_of_the_log_finds_for_it(
    tmp_path: Path, shares: int
) -> None:
    pieces = write_log(tmp_path, shares)
    seen = []
    for share, mine in dealt_out(in_packs(pieces), Deal(shares)):
        assert told(mine, share) == told(pieces, share)
        seen.append(share.index)
    assert seen == list(range(shares))


@pytest.mark.parametrize("state_only", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_the_shares_of_a_dealt_log_are_the_whole_state(
    tmp_path: Path, seed: int, state_only: bool
) -> None:
    pieces = write_log(tmp_path, seed)
    upto = T0 + 300
    whole = fold([(piece, load(piece)) for piece in pieces], upto=upto)
    deal = Deal(5, upto=upto, state_only=state_only)
    found: dict[bytes, list[bytes]] = {}
    for share, mine in dealt_out(in_packs(pieces), deal):
        state = fold([(piece, load(piece)) for piece in mine], share=share)
        assert not found.keys() & state.rows.keys()
        found |= {row.id: [encode(c) for c in image(row)] for row in state.rows.values()}
    assert found == {row.id: [encode(c) for c in image(row)] for row in whole.rows.values()}


def test_a_record_of_one_row_is_sent_once_and_byte_for_byte(tmp_path: Path) -> None:
    data = [record(T0 + n, encode(k.Delete(ROWS[n % 40]))) for n in range(500)]
    path = tmp_path / segment_name(1)
    path.write_bytes(WORKQ.encode() + b"".join(data))
    pieces = journal_segments(tmp_path)
    blocks = pa.Table.from_batches(blocks_of(pieces, Deal(7)))
    sent = b"".join(blocks["records"].to_pylist())
    assert len(sent) == path.stat().st_size - HEADER_SIZE
    size = len(data[0])
    assert sorted(sent[n : n + size] for n in range(0, len(sent), size)) == data


def test_a_share_without_a_record_is_a_share(tmp_path: Path) -> None:
    data = record(T0, encode(put(ROWS[1])))
    (tmp_path / segment_name(1)).write_bytes(WORKQ.encode() + data)
    found = {share.index: mine for share, mine in dealt_out([journal_segments(tmp_path)], Deal(3))}
    assert sorted(map(len, found.values())) == [0, 0, 1]


def test_what_a_later_record_outweighs_stays_behind_where_only_the_state_is_asked_for(
    tmp_path: Path,
) -> None:
    for number in (1, 2, 3):
        data = [record(T0 + 100 * number + n, encode(put(ROWS[n]))) for n in range(40)]
        (tmp_path / segment_name(number)).write_bytes(WORKQ.encode() + b"".join(data))
    pieces = journal_segments(tmp_path)
    blocks = pa.Table.from_batches(blocks_of(pieces, Deal(4, state_only=True)))
    assert set(blocks["_segment"].to_pylist()) == {3}


@pytest.mark.parametrize("state_only", [False, True])
@pytest.mark.parametrize(("shares", "tasks"), [(3, 1), (6, 2), (15, 5), (7, 2), (11, 5), (2, 2)])
def test_tasks_that_deal_out_to_themselves_tell_of_the_whole_state_together(
    tmp_path: Path, shares: int, tasks: int, state_only: bool
) -> None:
    pieces = write_log(tmp_path, tasks)
    whole = fold([(piece, load(piece)) for piece in pieces])
    found: dict[bytes, list[bytes]] = {}
    seen = []
    for n in range(tasks):
        deal = Deal(shares, state_only=state_only, task=Share(n, tasks))
        for share, mine in deal_here(pieces, deal):
            seen.append(share.index)
            if not state_only:
                assert told(mine, share) == told(pieces, share)
            state = fold([(piece, load(piece)) for piece in mine], share=share)
            assert not found.keys() & state.rows.keys()
            found |= {row.id: [encode(c) for c in image(row)] for row in state.rows.values()}
    assert sorted(seen) == list(range(shares))
    assert found == {row.id: [encode(c) for c in image(row)] for row in whole.rows.values()}


def write_images(directory: Path, pieces: Sequence[Piece], first: int) -> None:
    """A snapshot of what is before a segment, each part as of some records later."""
    start = T0 + 60 * (first - 1)
    parts = []
    for part in range(4):
        upto = start + 7 * part - 1
        some = pieces if part else pieces[: first - 1]
        state = fold([(piece, load(piece)) for piece in some], upto=upto)
        rows = [row for row in state.rows.values() if row.id[0] % 4 == part]
        parts.append((upto, [encode(c) for row in rows for c in image(row)]))
    write_snapshot(Stream(directory, WORKQ), first, parts)


@pytest.mark.parametrize("state_only", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_is_dealt_out_with_the_log_behind_it(
    tmp_path: Path, seed: int, state_only: bool
) -> None:
    """And is no longer than what all shares together get of it, but for its MARKs."""
    pieces = write_log(tmp_path, seed)
    whole = fold([(piece, load(piece)) for piece in pieces])
    write_images(tmp_path, pieces, 4)
    base = replay_base(str(tmp_path), pieces, None)
    assert base is not None and base.number == -4
    log = [base, *pieces[3:]]
    deal = Deal(5, state_only=state_only)
    found: dict[bytes, list[bytes]] = {}
    size = 0
    for share, mine in dealt_out(in_packs(log), deal):
        assert [piece.number for piece in mine] == sorted(piece.number for piece in mine)
        size += sum(len(load(piece)) for piece in mine if piece.number < 0)
        state = replay_share(mine, share)
        assert not found.keys() & state.rows.keys()
        found |= {row.id: [encode(c) for c in image(row)] for row in state.rows.values()}
        alone = replay_share(log, share)
        assert {*alone.rows} == {*state.rows}
    assert found == {row.id: [encode(c) for c in image(row)] for row in whole.rows.values()}
    assert size < base.size + 5 * 4 * 80


def test_a_snapshot_on_a_store_is_fetched_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the parts: what one cuts off begins the next."""
    pieces = write_log(tmp_path, 1)
    write_images(tmp_path, pieces, 4)
    base = replay_base(str(tmp_path), pieces, None)
    assert base is not None
    there = replace(base, path=f"file://{base.path}")
    (here,) = [chunk for chunk, _ in scan_snapshot(base)]
    for window in (30, 200, 1 << 20):
        monkeypatch.setattr(snapshots, "_WINDOW", window)
        found = [(chunk, at) for chunk, at in scan_snapshot(there)]
        offsets = [at + n for chunk, at in found for n in chunk.offsets.tolist()]
        assert offsets == here.offsets.tolist()
    Path(base.path).write_bytes(bytes(load(base))[:-1])
    with pytest.raises(SegmentError, match="is shorter"):
        list(scan_snapshot(there))


@pytest.mark.parametrize("shares", [1, 2, 8])
def test_a_task_with_one_share_of_a_log_on_a_disk_finds_it_as_it_is(
    tmp_path: Path, shares: int
) -> None:
    pieces = write_log(tmp_path, shares)
    for n in range(shares):
        ((share, mine),) = deal_here(pieces, Deal(shares, task=Share(n, shares)))
        assert (share, mine) == (Share(n, shares), pieces)


def test_a_place_in_a_log_that_is_there_as_it_is_is_the_place_in_the_log(tmp_path: Path) -> None:
    pieces = write_log(tmp_path, 3)
    named = [(2, HEADER_SIZE), (3, 10**9)]  # the second is no record: nobody looks
    assert places_of(named, pieces, pieces) == {place: place[1] for place in named}


def test_few_tasks_walk_a_log_on_a_disk_and_many_have_it_shuffled() -> None:
    here, there = Piece("/j/x", 1, 9, newest=False), Piece("s3://j/x", 1, 9, newest=False)
    assert [walkers(500, [here], tasks) for tasks in (1, 2, 8, 9)] == [1, 2, 8, 0]
    assert [walkers(shares, [here], 0) for shares in (1, 8, 9)] == [1, 8, 0]
    assert [walkers(shares, [here], 16) for shares in (1, 3, 16)] == [1, 3, 0]
    assert [walkers(shares, [there], 2) for shares in (1, 2, 9)] == [1, 0, 0]
