"""The cleaner: which segments it visits, what it leaves, what it does on errors."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from fastjournal.errors import (
    BadRequest,
    CorruptRecord,
    LockTimeout,
    NotLocked,
    SegmentError,
    SkipSegment,
)
from fastjournal.log import CAPTAIN, Record, Stream
from fastjournal.log.care.cleaner import DAY, STRETCH, Cleaned, older_than, sealed_segments
from fastjournal.log.files import FileHandle
from fastjournal.log.manifest import MANIFEST, ManifestFile
from fastjournal.log.record import encode
from fastjournal.log.segment import segment_name
from fastjournal.testing import ManualClock, MemoryFiles

HERE = Path("/journal")
HEADER = CAPTAIN.encode()


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def stream(files: MemoryFiles) -> Stream:
    stream = Stream(HERE, files=files, clock=ManualClock())
    stream.create()
    return stream


@pytest.fixture
def sixteen(stream: Stream) -> Stream:
    """Sixteen one-byte records in four segments of four."""
    with stream.open_appender() as appender:
        for number in range(1, 17):
            appender.append(bytes([number]))
            if number in (4, 8, 12):
                appender.rotate()
    return stream


def numbers(stream: Stream) -> list[int]:
    return [record.payload[0] for record in stream.open_cursor()]


def is_odd(path: Path, record: Record) -> bool:
    return record.payload[0] % 2 == 1


def drop_all(path: Path, record: Record) -> bool:
    return True


def keep_all(path: Path, record: Record) -> bool:
    return False


def test_odd_records_go_except_from_the_newest_segment(sixteen: Stream, files: MemoryFiles) -> None:
    """WQ-CLN-3, CPT-FEA-3, CPT-CLN-1, CPT-CLN-3, CPT-CLN-5."""
    before = {record.payload: record for record in sixteen.open_cursor()}
    newest = files.content(HERE / segment_name(4))
    with sixteen.open_cleaner() as cleaner:
        changed = cleaner.clean(is_odd)
    assert numbers(sixteen) == [2, 4, 6, 8, 10, 12, 13, 14, 15, 16]
    size = 15 + 1 + 1 + 4
    assert changed == [Cleaned(n, 4, 2, 8 + 4 * size, 8 + 2 * size) for n in (1, 2, 3)]
    assert files.content(HERE / segment_name(4)) == newest
    for record in sixteen.open_cursor():
        assert record.time == before[record.payload].time
    with sixteen.open_cleaner() as cleaner:
        assert cleaner.clean(is_odd) == [], "nothing is left to do"


def test_kept_records_are_copied_byte_for_byte(files: MemoryFiles, stream: Stream) -> None:
    """WQ-CLN-9: the same header and bytes, whatever the zone bytes and sizes."""
    records = [
        encode(5, b"keep", 0xFFFF), encode(6, b"drop"), encode(7, b""), encode(8, b"drop" * 70),
        encode(9, b"drop"), encode(10, b"keep" * 5000, 0xFFFF), encode(11, b"drop"),
    ]  # fmt: skip
    files.put(HERE / segment_name(1), HEADER + b"".join(records))
    files.put(HERE / segment_name(2), HEADER + encode(20, b"newest"))
    with stream.open_cleaner() as cleaner:
        cleaner.clean(lambda path, record: record.payload.startswith(b"drop"))
    kept = HEADER + records[0] + records[2] + records[5]
    assert files.content(HERE / segment_name(1)) == kept


def test_a_segment_of_any_size_is_cleaned_a_stretch_at_a_time(tmp_path: Path) -> None:
    """Records that end behind a stretch or are larger than one; memory does not grow with it."""
    sizes = [100, 70_000, 3 * STRETCH, 0, 600_000, STRETCH - 30] * 8
    records = [
        encode(n + 1, (b"keep" if n % 3 else b"drop") + bytes(size)) for n, size in enumerate(sizes)
    ]
    stream = Stream(tmp_path)
    stream.create()
    (tmp_path / segment_name(1)).write_bytes(HEADER + b"".join(records))
    (tmp_path / segment_name(2)).write_bytes(HEADER + encode(100, b"newest"))
    ManifestFile(stream).take_in(1)
    tracemalloc.start()
    try:
        with stream.open_cleaner() as cleaner:
            cleaner.clean(lambda path, record: record.payload.startswith(b"drop"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = [record for n, record in enumerate(records) if n % 3]
    assert (tmp_path / segment_name(1)).read_bytes() == HEADER + b"".join(kept)
    assert peak < 20 * STRETCH < sum(map(len, records)) / 1.5


class Fickle(MemoryFiles):
    """A disk that reads a segment otherwise once it was opened often enough."""

    opened = 0
    honest = 1 << 30

    def open_read(self, path: Path) -> FileHandle:
        handle = super().open_read(path)
        if path.name == segment_name(1):
            self.opened += 1
            if self.opened > self.honest:
                records = encode(5, b"keep") + encode(7, b"dr0p")
                content = bytearray(HEADER + records)
                handle.read = lambda at, size: bytes(content[at : at + size])  # type: ignore[method-assign]
        return handle


def test_a_segment_that_reads_otherwise_when_it_is_copied_stays_as_it_is() -> None:
    files = Fickle()
    stream = Stream(HERE, files=files)
    stream.create()
    content = HEADER + encode(5, b"keep") + encode(7, b"drop")
    files.put(HERE / segment_name(1), content)
    files.put(HERE / segment_name(2), HEADER + encode(20, b"newest"))
    ManifestFile(stream).take_in(1)
    files.opened, files.honest = 0, 1
    with stream.open_cleaner() as cleaner, pytest.raises(SegmentError, match="reads otherwise"):
        cleaner.clean(lambda path, record: record.payload == b"drop")
    assert files.content(HERE / segment_name(1)) == content
    assert not [name for name in files.names(HERE) if name.endswith(".rw")]


def test_if_all_is_removed_only_the_newest_segment_is_left(
    sixteen: Stream, files: MemoryFiles
) -> None:
    """WQ-CLN-4, WQ-CLN-10."""
    with sixteen.open_cleaner() as cleaner:
        changed = cleaner.clean(drop_all)
    assert sixteen.segments() == [4]
    assert [(c.segment, c.kept, c.bytes_after) for c in changed] == [
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 0),
    ]
    assert numbers(sixteen) == [13, 14, 15, 16]
    with sixteen.open_appender() as appender:
        assert appender.position.segment == 4
        appender.append(bytes([17]))
    assert numbers(sixteen) == [13, 14, 15, 16, 17]


def test_a_segment_of_which_all_is_kept_is_not_written(sixteen: Stream, files: MemoryFiles) -> None:
    before = len(files.operations)
    with sixteen.open_cleaner() as cleaner:
        assert cleaner.clean(keep_all) == []
    assert [op.split()[0] for op in files.operations[before:]] == ["sync"]


def test_a_sealed_segment_without_records_is_removed(stream: Stream) -> None:
    with stream.open_appender() as appender:
        appender.append(b"\x01")
        appender.rotate()
        appender.rotate()
        appender.append(b"\x02")
    assert stream.segments() == [1, 2, 3]
    with stream.open_cleaner() as cleaner:
        assert [c.segment for c in cleaner.clean(keep_all)] == [2]
    assert stream.segments() == [1, 3]


def test_only_segments_before_one_with_records_are_sealed(
    sixteen: Stream, files: MemoryFiles
) -> None:
    """CPT-CLN-3: neither the active segment nor the standby behind it is ever visited."""
    assert sealed_segments(sixteen) == [1, 2, 3]
    files.put(HERE / segment_name(5), HEADER)
    assert sealed_segments(sixteen) == [1, 2, 3]
    files.put(HERE / segment_name(6), b"")
    assert sealed_segments(sixteen) == [1, 2, 3]
    files.put(HERE / segment_name(6), HEADER + encode(1 << 60, b"x"))
    assert sealed_segments(sixteen) == [1, 2, 3, 4, 5]
    empty = Stream(HERE / "other", files=files)
    empty.create()
    assert sealed_segments(empty) == []
    files.put(HERE / "other" / segment_name(1), HEADER + encode(1, b"x"))
    assert sealed_segments(empty) == []


def test_skip_segment_leaves_it_as_it_is(sixteen: Stream, files: MemoryFiles) -> None:
    """CPT-CLN-1: also after some of its records were given up; the next one is visited."""
    seen: list[int] = []

    def clean(path: Path, record: Record) -> bool:
        seen.append(record.payload[0])
        if path.name == segment_name(2) and record.payload[0] == 7:
            raise SkipSegment
        return True

    before = files.content(HERE / segment_name(2))
    with sixteen.open_cleaner() as cleaner:
        assert [c.segment for c in cleaner.clean(clean)] == [1, 3]
    assert seen == [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12]
    assert files.content(HERE / segment_name(2)) == before
    assert sixteen.segments() == [2, 4]


def test_skipped_and_kept_segments_keep_their_file_and_its_dates(tmp_path: Path) -> None:
    """CPT-CLN-1: on a real disk neither the inode nor the time of change moves."""
    stream = Stream(tmp_path, clock=ManualClock())
    with stream.open_appender() as appender:
        for number in range(1, 17):
            appender.append(bytes([number]))
            if number in (4, 8, 12):
                appender.rotate()

    def look(number: int) -> tuple[int, int, bytes]:
        path = stream.segment_path(number)
        return path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()

    before = {number: look(number) for number in stream.segments()}

    def clean(path: Path, record: Record) -> bool:
        if path.name == segment_name(2):
            raise SkipSegment
        return path.name == segment_name(1) and is_odd(path, record)

    with stream.open_cleaner() as cleaner:
        assert [c.segment for c in cleaner.clean(clean)] == [1]
    after = {number: look(number) for number in stream.segments()}
    assert {n: after[n] for n in (2, 3, 4)} == {n: before[n] for n in (2, 3, 4)}
    assert after[1][0] != before[1][0], "a new file took the place of the old one"
    assert sorted(path.name for path in tmp_path.glob("*.log*")) == [
        segment_name(number) for number in (1, 2, 3, 4)
    ]


def test_an_error_of_the_clean_function_reaches_the_caller(
    sixteen: Stream, files: MemoryFiles
) -> None:
    """CPT-CLN-1, rule 5."""

    def clean(path: Path, record: Record) -> bool:
        if record.payload[0] == 6:
            raise RuntimeError("cannot say")
        return True

    before = files.snapshot()
    with sixteen.open_cleaner() as cleaner, pytest.raises(RuntimeError, match="cannot say"):
        cleaner.clean(clean)
    after = files.snapshot()
    del before[HERE / segment_name(1)], before[HERE / MANIFEST], after[HERE / MANIFEST]
    assert after == before, "the first segment is cleaned, the others are untouched"


def test_damage_ends_the_cycle_at_its_segment(sixteen: Stream, files: MemoryFiles) -> None:
    path = HERE / segment_name(2)
    content = bytearray(files.content(path))
    content[8 + 21 + 16] ^= 1
    files.put(path, bytes(content))
    before = files.snapshot()
    with sixteen.open_cleaner() as cleaner, pytest.raises(CorruptRecord) as caught:
        cleaner.clean(drop_all)
    assert (caught.value.path, caught.value.offset) == (path, 8 + 21)
    after = files.snapshot()
    del before[HERE / segment_name(1)], before[HERE / MANIFEST], after[HERE / MANIFEST]
    assert after == before


def test_a_stale_rewrite_does_no_harm(sixteen: Stream, files: MemoryFiles) -> None:
    """WQ-CLN-8."""
    for number in (1, 2, 3):
        files.put(HERE / (segment_name(number) + ".rw"), b"stale")
    with sixteen.open_cleaner() as cleaner:
        cleaner.clean(is_odd)
    assert numbers(sixteen)[:6] == [2, 4, 6, 8, 10, 12]
    assert not [name for name in files.names(HERE) if name.endswith(".rw")]


def test_records_older_than_24_hours_go() -> None:
    """CPT-CLN-4: at least 24 hours old."""
    clock = ManualClock()
    stream = Stream(HERE, files=MemoryFiles(), clock=clock)
    stream.create()
    with stream.open_appender() as appender:
        for name in (b"old", b"just", b"young"):
            appender.append(name)
            clock.advance(60)
        appender.rotate()
        appender.append(b"newest")
    clock.advance(24 * 3600 - 120)
    assert DAY == 24 * 3600 * 1_000_000_000
    with stream.open_cleaner() as cleaner:
        cleaner.clean(older_than(clock))
    assert [record.payload for record in stream.open_cursor()] == [b"young", b"newest"]
    with stream.open_cleaner() as cleaner:
        cleaner.clean(older_than(clock, age=1))
    assert [record.payload for record in stream.open_cursor()] == [b"newest"]


def test_cleaners_exclude_each_other_and_need_their_lock(sixteen: Stream) -> None:
    """CPT-CLN-2, WQ-CLN-7."""
    cleaner = sixteen.open_cleaner()
    with pytest.raises(NotLocked):
        cleaner.clean(drop_all)
    with cleaner:
        with pytest.raises(BadRequest):
            cleaner.lock()
        with pytest.raises(LockTimeout):
            sixteen.open_cleaner().lock(timeout=0)
    cleaner.unlock()
    with sixteen.open_cleaner():
        pass
    assert numbers(sixteen) == list(range(1, 17))


def test_appending_goes_on_while_segments_are_cleaned(sixteen: Stream) -> None:
    """WQ-CLN-7: the clean function itself sees the log grow."""
    with sixteen.open_appender() as appender:

        def clean(path: Path, record: Record) -> bool:
            appender.append(bytes([100 + record.payload[0]]))
            if record.payload[0] == 5:
                appender.rotate()
            return is_odd(path, record)

        with sixteen.open_cleaner() as cleaner:
            cleaner.clean(clean)
    assert numbers(sixteen) == [2, 4, 6, 8, 10, 12, *range(13, 17), *range(101, 113)]


def test_a_missing_directory_or_a_directory_as_segment_is_an_error(files: MemoryFiles) -> None:
    with pytest.raises(SegmentError, match="no such directory"):
        Stream(Path("/nowhere"), files=files).open_cleaner()
    stream = Stream(HERE, files=files)
    stream.create()
    files.make_directory(HERE / segment_name(1))
    files.put(HERE / segment_name(2), HEADER + encode(1, b"x"))
    with stream.open_cleaner() as cleaner, pytest.raises(SegmentError, match="regular file"):
        cleaner.clean(drop_all)
