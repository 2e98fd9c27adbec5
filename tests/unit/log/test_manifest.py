"""The manifest of sealed segments: what it says, and what becomes of it when writes fail."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import pytest

from fastjournal.errors import JournalFault, SegmentError, VersionMismatch
from fastjournal.log import CAPTAIN, Stream
from fastjournal.log.manifest import (
    MANIFEST,
    Manifest,
    ManifestFile,
    Sealed,
    digest_of,
    faults,
    measure,
    read,
)
from fastjournal.log.record import encode
from fastjournal.log.segment import segment_name
from fastjournal.testing import Fault, ManualClock, MemoryFiles

HERE = Path("/journal")
HEADER = CAPTAIN.encode()


def content(*times: int) -> bytes:
    return HEADER + b"".join(encode(time, b"payload %d" % time) for time in times)


def sealed(number: int, *times: int, cleaned_to: int = 0) -> Sealed:
    data = content(*times)
    crc = google_crc32c.value(data)
    return Sealed(number, times[0], times[-1], len(data), crc, cleaned_to)


def a_stream(*segments: bytes) -> tuple[Stream, MemoryFiles]:
    files = MemoryFiles()
    stream = Stream(HERE, files=files, clock=ManualClock())
    stream.create()
    for number, data in enumerate(segments, 1):
        files.put(HERE / segment_name(number), data)
    return stream, files


def said(files: MemoryFiles) -> Manifest:
    manifest = read(files, HERE)
    assert manifest is not None
    return manifest


def test_a_directory_without_a_manifest_has_none() -> None:
    stream, files = a_stream(content(1, 2))
    assert read(files, HERE) is None
    ManifestFile(stream).take_in(0)
    assert said(files).sealed == {}, "nothing is sealed, and from then on that is known"


def test_a_segment_that_another_writer_named_and_removed_needs_no_line() -> None:
    """A snapshot that is quicker than the thread which names what rotation left."""
    stream, files = a_stream(content(1, 2), content(3, 4), content(5, 6))
    late = ManifestFile(stream)
    ManifestFile(stream).cover(3)
    for number in (1, 2):
        files.remove(HERE / segment_name(number))
    late.seal(2, 4)
    assert (list(said(files).sealed), said(files).floor) == ([], 3)
    late.seal(3, 6)
    assert said(files).sealed == {3: sealed(3, 5, 6)}
    with pytest.raises(SegmentError):
        late.seal(4, 7)


def test_segments_are_measured_when_they_are_taken_in() -> None:
    stream, files = a_stream(content(1, 2), HEADER, content(3, 5, 4))
    ManifestFile(stream).take_in(3)
    manifest = said(files)
    assert list(manifest.sealed) == [1, 2, 3]
    assert manifest.sealed[1] == sealed(1, 1, 2)
    assert manifest.sealed[2] == Sealed(2, 0, 0, 8, google_crc32c.value(HEADER))
    assert (manifest.sealed[3].first, manifest.sealed[3].last) == (3, 5)
    assert (manifest.used, manifest.floor, manifest.dropped_to) == (3, 0, 0)
    assert not list(faults(stream, manifest, stream.segments()))


def test_every_event_is_a_generation_and_costs_one_line() -> None:
    stream, files = a_stream(*(content(n * 10, n * 10 + 1) for n in range(1, 5)))
    file = ManifestFile(stream)
    file.seal(1, 11)
    before, first = said(files).generation, len(files.content(HERE / MANIFEST))
    file.seal(2, 21)
    line = len(files.content(HERE / MANIFEST)) - first
    assert said(files).generation == before + 1
    assert line < 100
    file.change(1, digest_of(content(11)), 11, 10)
    files.put(HERE / segment_name(1), content(11))
    file.settle()
    assert said(files).generation == before + 3
    assert said(files).dropped_to == 10
    file.settle()
    assert said(files).generation == before + 3, "nothing was left to settle"


def test_a_change_under_way_fits_both_files_until_it_is_settled() -> None:
    stream, files = a_stream(content(1, 2), content(3))
    file = ManifestFile(stream)
    file.take_in(2)
    file.change(1, digest_of(content(2)), 2, 1)
    assert not list(faults(stream, said(files), [1, 2]))
    files.put(HERE / segment_name(1), content(2))
    assert not list(faults(stream, said(files), [1, 2]))
    file.settle()
    assert not list(faults(stream, said(files), [1, 2]))
    files.put(HERE / segment_name(1), content(1, 2))
    assert [number for number, _ in faults(stream, said(files), [1, 2])] == [1]


def test_a_change_that_did_not_happen_is_taken_back() -> None:
    stream, files = a_stream(content(1, 2), content(3))
    file = ManifestFile(stream)
    file.take_in(2)
    file.change(1, None)
    assert said(files).dropped_to == 2
    ManifestFile(stream).settle()  # another process, after a crash
    assert list(said(files).sealed) == [1, 2]
    assert said(files).dropped_to == 0
    file.change(1, None)
    files.remove(HERE / segment_name(1))
    file.change(2, digest_of(content()), 0, 3)
    assert said(files).pending is not None
    assert list(said(files).sealed) == [2]
    assert said(files).dropped_to == 3
    file.settle()
    assert said(files).dropped_to == 2, "of what goes only this is gone"


def test_what_lies_below_a_snapshot_need_not_be_there() -> None:
    stream, files = a_stream(content(1), content(2), content(3))
    file = ManifestFile(stream)
    file.take_in(3)
    file.cover(3)
    manifest = said(files)
    assert (manifest.floor, list(manifest.sealed), manifest.dropped_to) == (3, [3], 2)
    assert not list(faults(stream, manifest, [1, 2, 3]))
    assert not list(faults(stream, manifest, [3]))
    assert [number for number, _ in faults(stream, manifest, [])] == [3]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (None, "missing"),
        (content(2, 3), "bytes"),
        (content(7, 3, 4), "TIME"),
    ],
)
def test_a_missing_or_swapped_segment_is_named(data: bytes | None, word: str) -> None:
    stream, files = a_stream(content(1), content(2, 3, 4), content(5))
    ManifestFile(stream).take_in(3)
    if data is None:
        files.remove(HERE / segment_name(2))
    else:
        files.put(HERE / segment_name(2), data)
    ((number, reason),) = faults(stream, said(files), stream.segments())
    assert number == 2
    assert word in reason


def test_a_segment_that_the_manifest_never_saw_is_a_stranger() -> None:
    stream, files = a_stream(content(1), content(2), content(3))
    files.remove(HERE / segment_name(2))
    file = ManifestFile(stream)
    file.take_in(3)
    files.put(HERE / segment_name(2), content(2))
    ((number, reason),) = faults(stream, said(files), stream.segments())
    assert number == 2
    assert "stranger" in reason
    with pytest.raises(SegmentError, match="stranger"):
        file.change(2, None)


def test_the_crc_tells_what_size_and_time_do_not() -> None:
    manifest = Manifest({1: sealed(1, 1, 2)}, used=1)
    one = manifest.sealed[1]
    assert manifest.fault(1, one.size, one.first) == ""
    assert manifest.fault(1, one.size, one.first, one.crc) == ""
    assert "CRC" in manifest.fault(1, one.size, one.first, one.crc ^ 1)


def test_every_cut_of_the_last_line_is_a_torn_event() -> None:
    stream, files = a_stream(content(1), content(2), content(3))
    file = ManifestFile(stream)
    file.seal(1, 1)
    before = files.content(HERE / MANIFEST)
    file.seal(2, 2)
    whole = files.content(HERE / MANIFEST)
    for end in range(len(before), len(whole)):
        files.put(HERE / MANIFEST, whole[:end])
        assert list(said(files).sealed) == [1], end
        ManifestFile(stream).take_in(2)
        assert said(files).sealed == {1: sealed(1, 1), 2: sealed(2, 2)}


def test_damage_before_a_whole_line_is_refused_by_name() -> None:
    stream, files = a_stream(content(1), content(2), content(3))
    file = ManifestFile(stream)
    for n in (1, 2, 3):
        file.seal(n, n)
    whole = files.content(HERE / MANIFEST)
    last = whole.rindex(b"\n", 0, -1)
    for at in range(last):
        files.put(HERE / MANIFEST, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((SegmentError, VersionMismatch), match="manifest"):
            read(files, HERE)
    files.put(HERE / MANIFEST, b"")
    with pytest.raises(SegmentError, match="line 1"):
        read(files, HERE)


def test_many_changes_do_not_make_it_grow() -> None:
    stream, files = a_stream(content(1), content(2, 3))
    file = ManifestFile(stream)
    file.take_in(2)
    for n in range(400):
        times = (2, 3, 4) if n % 2 else (2, 3)
        file.change(2, digest_of(content(*times)), times[-1], 1)
        files.put(HERE / segment_name(2), content(*times))
    assert len(files.content(HERE / MANIFEST)) < 20_000
    assert said(files).generation > 400
    assert not list(faults(stream, said(files), [1, 2]))


def test_two_writers_see_each_others_lines() -> None:
    stream, files = a_stream(*(content(n) for n in range(1, 7)))
    appender, cleaner = ManifestFile(stream), ManifestFile(stream)
    for n in (1, 3, 5):
        appender.seal(n, n)
        cleaner.take_in(n + 1)
    appender.seal(6, 6)
    assert list(said(files).sealed) == [1, 2, 3, 4, 5, 6]


def test_a_segment_that_could_not_be_named_is_named_with_the_next_one() -> None:
    operations = 0
    while True:
        stream, files = a_stream(*(content(n) for n in range(1, 4)))
        file = ManifestFile(stream)
        file.seal(1, 1)
        begun = len(files.operations)
        files.faults = {begun + operations + 1: Fault()}
        try:
            file.seal(2, 2)
        except JournalFault:
            pass
        else:
            assert len(files.operations) <= begun + operations, "every operation failed once"
            break
        finally:
            files.faults = {}
        assert read(files, HERE) is not None
        file.seal(3, 3)
        assert list(said(files).sealed) == [1, 2, 3]
        operations += 1
    assert operations >= 3


def test_a_manifest_that_is_removed_while_in_use_is_made_again_whole() -> None:
    stream, files = a_stream(*(content(n) for n in range(1, 4)))
    file = ManifestFile(stream)
    file.seal(1, 1)
    file.seal(2, 2)
    files.remove(HERE / MANIFEST)
    file.seal(3, 3)
    assert said(files).sealed == {n: sealed(n, n) for n in (1, 2, 3)}


def test_a_newer_manifest_is_refused() -> None:
    stream, files = a_stream(content(1))
    ManifestFile(stream).take_in(1)
    text = b"fastjournal manifest 2 1 0 0 0 0"
    files.put(HERE / MANIFEST, b"%08x %s\n" % (google_crc32c.value(text), text))
    with pytest.raises(VersionMismatch, match="version 2"):
        read(files, HERE)


def test_a_segment_of_nothing_but_a_header_can_be_measured() -> None:
    stream, _ = a_stream(HEADER, b"")
    assert measure(stream, 1).size == 8
    assert measure(stream, 2) == Sealed(2, 0, 0, 0, 0)
