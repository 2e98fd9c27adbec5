"""Which segments are read, by which task, and where a journal ends."""

from __future__ import annotations

import gc
import os
import pickle
import resource
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.errors import LockTimeout, NotFound, SegmentError, VersionMismatch
from fastjournal.log.files import DISK
from fastjournal.log.record import encode
from fastjournal.log.segment import CAPTAIN, WORKQ, segment_name
from fastjournal.spark.options import Settings
from fastjournal.spark.storage import segments as plan_module
from fastjournal.spark.storage.mapped_file import map_file
from fastjournal.spark.storage.segments import (
    Piece,
    SegmentListing,
    at_one_moment,
    first_time,
    journal_segments,
    load,
    load_all,
    load_unless_gone,
    pack,
    plan,
    share_count,
)
from fastjournal.testing import ManualClock

T0 = 1_700_000_000_000_000_000


def write(directory: Path, segments: Sequence[int], first: int = T0) -> Path:
    """Segments with so many records each, 1 us apart over the whole journal."""
    directory.mkdir(exist_ok=True)
    time = first
    for number, count in enumerate(segments, 1):
        records = b"".join(encode(time + 1000 * n, b"\x05" + bytes(16)) for n in range(count))
        (directory / segment_name(number)).write_bytes(WORKQ.encode() + records)
        time += 1000 * count
    return directory


def test_only_segments_are_read_in_order_of_their_numbers(tmp_path: Path) -> None:
    write(tmp_path, [1, 1, 1])
    for name in ("000000002.log.rw", "1.log", "notes.txt", "append.lock", "000000003.log.torn-1"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "000000009.log").mkdir()
    assert [(p.number, p.newest) for p in journal_segments(tmp_path)] == [
        (1, False),
        (2, False),
        (3, True),
    ]


@pytest.mark.parametrize("standby", [b"", WORKQ.encode()[:3], WORKQ.encode(), bytes(4096)])
def test_a_segment_without_records_behind_the_last_one_stands_by_and_is_no_data(
    tmp_path: Path, standby: bytes
) -> None:
    write(tmp_path, [2, 2])
    (tmp_path / segment_name(3)).write_bytes(standby)
    assert [(p.number, p.newest) for p in journal_segments(tmp_path)] == [(1, False), (2, True)]


def test_a_missing_path_and_a_file_are_not_journals(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such journal"):
        journal_segments(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotFound, match="is a directory"):
        journal_segments(tmp_path / "file")


def test_an_empty_journal_gives_no_pieces(tmp_path: Path) -> None:
    assert plan(Settings((str(tmp_path),))) == []
    assert pack([], 1) == []


def test_a_foreign_header_is_refused_by_file_and_reason(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    path.write_bytes(b"ELF!\0\0\0\1" + bytes(100))
    with pytest.raises(SegmentError, match="magic b'ELF!'"):
        load(journal_segments(tmp_path)[0])
    path.write_bytes(b"wqwq\0\0\0\2" + bytes(100))
    with pytest.raises(VersionMismatch, match="version 2"):
        load(journal_segments(tmp_path)[0])
    path.write_bytes(CAPTAIN.encode() + encode(T0, b"plain log"))
    assert len(load(journal_segments(tmp_path)[0])) > 8


def test_a_sealed_segment_shorter_than_its_header_is_damage(tmp_path: Path) -> None:
    write(tmp_path, [1, 1])
    (tmp_path / segment_name(1)).write_bytes(b"wqwq")
    with pytest.raises(SegmentError, match="shorter than its header"):
        load_all(tmp_path)


def test_a_segment_removed_since_the_plan_holds_no_record(tmp_path: Path) -> None:
    pieces = journal_segments(write(tmp_path, [1, 1]))
    (tmp_path / segment_name(1)).unlink()
    assert load_unless_gone(pieces[0]) == b""


def test_the_plan_is_frozen_by_time_at_the_last_whole_record(tmp_path: Path) -> None:
    write(tmp_path, [3, 2])
    newest = tmp_path / segment_name(2)
    newest.write_bytes(newest.read_bytes() + encode(T0 + 9999, b"torn")[:-1])
    pieces = plan(Settings((str(tmp_path),)))
    assert [p.upto for p in pieces] == [T0 + 4000, T0 + 4000]


def test_bounds_on_time_leave_out_segments_that_cannot_hold_a_record_inside(tmp_path: Path) -> None:
    write(tmp_path, [10, 10, 10, 10])

    def numbers(**bounds: int) -> list[int]:
        return [p.number for p in plan(Settings((str(tmp_path),), **bounds))]  # type: ignore[arg-type]

    assert numbers() == [1, 2, 3, 4]
    assert numbers(since=T0 + 10_000) == [2, 3, 4]
    assert numbers(since=T0 + 10_001) == [2, 3, 4]
    assert numbers(until=T0 + 20_000) == [1, 2]
    assert numbers(until=T0 + 20_001) == [1, 2, 3]
    assert numbers(since=T0 + 15_000, until=T0 + 16_000) == [2]
    assert numbers(from_segment=2, to_segment=3) == [2, 3]


def test_packs_are_consecutive_even_and_within_the_limit() -> None:
    pieces = [Piece(f"/{n}", n, 64 << 20, newest=False) for n in range(16)]
    packs = pack(pieces, 256 << 20, cores=2)
    assert [p.number for one in packs for p in one] == list(range(16))
    assert [len(one) for one in packs] == [4, 4, 4, 4]
    assert len(pack(pieces[:4], 256 << 20, cores=2)) == 2
    assert len(pack(pieces[:1], 256 << 20, cores=2)) == 1


def test_where_nobody_knows_the_cluster_packs_are_small_and_a_wish_for_more_is_granted() -> None:
    pieces = [Piece(f"/{n}", n, 16 << 20, newest=False) for n in range(64)]
    assert [len(one) for one in pack(pieces, 256 << 20)] == [2] * 32
    assert len(pack(pieces, 256 << 20, cores=2)) == 4
    assert [len(one) for one in pack(pieces, 256 << 20, cores=2, least=16)] == [4] * 16
    for least in (63, 64, 1000):
        packs = pack(pieces, 256 << 20, cores=2, least=least)
        assert len(packs) == min(least, 64)
        assert [p.number for one in packs for p in one] == list(range(64))


@pytest.mark.parametrize(("size", "cores", "asked", "count"), [
    (1 << 40, 1000, 0, 24), (1 << 40, 3, 0, 3), (1 << 28, 3, 0, 3), (1 << 28, 0, 0, 2),
    (17 << 20, 1000, 0, 3), (3 << 30, 2, 0, 2), (5 << 28, 0, 0, 2), (0, 8, 0, 1),
    (1 << 40, 8, 100, 100),
])  # fmt: skip
def test_shares_follow_the_cluster_and_never_the_machine_that_plans(
    size: int, cores: int, asked: int, count: int
) -> None:
    assert share_count(size, cores, asked) == count


def test_a_share_never_tells_of_more_log_than_it_may() -> None:
    assert share_count(3 << 30, 2, most=64 << 20) == 48
    assert share_count(100 << 20, 8, most=64 << 20) == 8
    assert share_count(3 << 30, 2, 5, most=64 << 20) == 5


def test_more_segments_than_descriptors_are_mapped_as_of_one_moment(tmp_path: Path) -> None:
    write(tmp_path, [1] * 200)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 30, hard))
    try:
        opened = load_all(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    before = [bytes(data) for _, data in opened]
    for piece, _ in opened[:-1]:  # as a cleaner does: another file under the same name
        other = Path(piece.path + ".rw")
        other.write_bytes(WORKQ.encode())
        other.rename(piece.path)
    assert [bytes(data) for _, data in opened] == before
    assert len(set(before)) == 200


def test_a_mapping_is_given_back_with_the_last_slice_of_it(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"x" * 100_000)
    data = map_file(path)
    part = data[:3]
    del data
    gc.collect()
    assert bytes(part) == b"xxx" and str(path) in Path("/proc/self/maps").read_text()
    del part
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()
    (tmp_path / "empty").touch()
    assert bytes(map_file(tmp_path / "empty")) == b""
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "nothing")


def test_the_manifest_tells_where_segments_begin_without_opening_them(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", segment_size=4096, clock=ManualClock(T0)) as journal:
        for n in range(200):
            journal.put(b"x" * 100, queue="q", key=b"%d" % n)
    pieces = journal_segments(tmp_path / "j")
    assert len(pieces) > 4
    told = [piece.first for piece in pieces[:-1]]
    assert told == [first_time(replace(piece, first=None)) for piece in pieces[:-1]]
    gone = replace(pieces[0], path=str(tmp_path / "not there"))
    assert first_time(gone) == told[0]


def test_a_listing_that_is_kept_is_read_again_only_when_the_directory_has_changed(
    tmp_path: Path,
) -> None:
    write(tmp_path, [1, 1])
    standby = tmp_path / segment_name(3)
    standby.write_bytes(WORKQ.encode())
    listing = SegmentListing(tmp_path)

    def numbers() -> list[int]:
        return [p.number for p in journal_segments(tmp_path, whole=False, listing=listing)]

    def write_segment(name: str, number: int) -> Path:
        path = tmp_path / name
        path.write_bytes(WORKQ.encode() + encode(T0 + 5000 + number, b"\x05" + bytes(16)))
        return path

    aside = write_segment("aside", 5)
    assert numbers() == [1, 2]
    seen_at = tmp_path.stat().st_mtime_ns
    write_segment(segment_name(4), 4)  # in the same tick of the file system's clock as that look
    os.utime(tmp_path, ns=(seen_at, seen_at))
    assert numbers() == [1, 2, 3, 4]  # the last change was too young to be trusted
    os.utime(tmp_path, ns=(T0, T0))
    assert numbers() == [1, 2, 3, 4]
    aside.rename(tmp_path / segment_name(5))  # some file systems tell how many names there are
    os.utime(tmp_path, ns=(T0, T0))
    assert numbers() == [1, 2, 3, 4]
    (tmp_path / segment_name(1)).unlink()
    assert numbers() == [2, 3, 4, 5]
    for number in (4, 5):
        (tmp_path / segment_name(number)).unlink()
    assert numbers() == [2]
    os.utime(tmp_path, ns=(T0, T0))
    assert numbers() == [2]
    with standby.open("ab") as file:
        file.write(encode(T0 + 5000, b"\x05" + bytes(16)))
    assert numbers() == [2, 3]


def test_a_look_at_a_log_that_has_grown_asks_only_for_what_is_new(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", segment_size=4096, clock=ManualClock(T0)) as journal:
        for n in range(200):
            journal.put(b"x" * 100, queue="q", key=b"%d" % n)
        listing = SegmentListing(tmp_path / "j")
        before = journal_segments(tmp_path / "j", listing=listing)
        for _ in range(100):
            journal.put(b"x" * 100, queue="q")
    after = journal_segments(tmp_path / "j", listing=listing)
    named = [piece for piece in before if piece.first is not None]
    assert 4 < len(named) < len(after)
    assert all(old is new for old, new in zip(named, after, strict=False))
    told = [piece.first for piece in after[:-1]]
    assert told == [first_time(replace(piece, first=None)) for piece in after[:-1]]
    shipped = pickle.dumps(listing)
    numbers = [piece.number for piece in pickle.loads(shipped).pieces()]
    assert len(shipped) < 500 and numbers == [piece.number for piece in listing.pieces()]


def test_a_segment_larger_than_a_pack_stands_alone() -> None:
    sizes = [10, 500, 10, 10]
    pieces = [Piece(f"/{n}", n, size, newest=False) for n, size in enumerate(sizes)]
    assert [[p.number for p in one] for one in pack(pieces, 100, cores=1)] == [[0], [1], [2, 3]]


def test_ten_thousand_tiny_segments_make_one_task_per_core_at_most() -> None:
    pieces = [Piece(f"/{n}", n, 100, newest=False) for n in range(10_000)]
    packs = pack(pieces, 256 << 20, cores=2)
    assert len(packs) == 1
    assert all(a.number < b.number for a, b in pairwise(packs[0]))


def test_a_directory_without_a_lock_file_is_only_read(tmp_path: Path) -> None:
    write(tmp_path, [1, 1])
    before = sorted(tmp_path.iterdir())
    assert [piece.number for piece, _ in load_all(tmp_path)] == [1, 2]
    assert sorted(tmp_path.iterdir()) == before


def test_a_cleaner_that_begins_meanwhile_is_waited_for_and_all_is_opened_again(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "read.lock"
    tries = []

    def work() -> int:
        tries.append(lock.exists())
        lock.touch()
        return len(tries)

    assert at_one_moment(tmp_path, work) == 2
    assert tries == [False, True]


def test_a_cleaner_at_work_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [1, 1])
    monkeypatch.setattr(plan_module, "LOCK_SECONDS", 0)
    held = DISK.lock(tmp_path / "read.lock", exclusive=True, timeout=0)
    with pytest.raises(LockTimeout):
        load_all(tmp_path)
    held.release()
    assert len(load_all(tmp_path)) == 2


def test_mapped_bytes_stay_as_they_were_when_another_file_is_renamed_over_them(
    tmp_path: Path,
) -> None:
    write(tmp_path, [5, 1])
    (piece, data), _ = load_all(tmp_path)
    before = bytes(data)
    other = tmp_path / "other"
    other.write_bytes(WORKQ.encode())
    other.replace(piece.path)
    assert bytes(data) == before
