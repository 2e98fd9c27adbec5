"""Verify: what it counts, what it calls torn, what it calls damage; it only reads.

The sweep over every byte is in test_recovery, which compares verify, cursor and recovery.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.log import CAPTAIN, WORKQ, Stream
from fastjournal.log.care.check import Fault, SegmentCheck, verify
from fastjournal.log.record import encode
from fastjournal.log.scan.resync import TRIES, next_valid
from fastjournal.log.segment import segment_name
from fastjournal.testing import ManualClock, MemoryFiles

HERE = Path("/journal")
HEADER = CAPTAIN.encode()
GARBAGE = b"\x01\x00\x00\x00garbage that is no record at all"


def a_stream(*segments: bytes) -> Stream:
    files = MemoryFiles()
    stream = Stream(HERE, files=files, clock=ManualClock())
    stream.create()
    for number, content in enumerate(segments, 1):
        files.put(HERE / segment_name(number), content)
    return stream


def faults(stream: Stream) -> list[tuple[str, int, int, bool]]:
    return [
        (fault.path.name, fault.offset, fault.length, fault.torn)
        for check in verify(stream)
        for fault in check.faults
    ]


def test_a_clean_log_is_counted() -> None:
    stream = a_stream(
        HEADER + encode(5, b"ab") + encode(9, b"cde"), HEADER, HEADER + encode(12, b"")
    )
    told: list[int] = []
    first, second, third = verify(stream, told.append)
    assert first == SegmentCheck(
        1, HERE / segment_name(1), 8 + 22 + 23, 2, 5, 5, 9, [], [(8, 8 + 22 + 23)]
    )
    assert (second.records, second.size, second.good) == (0, 8, [])
    assert (third.records, third.first_time, third.last_time) == (1, 12, 12)
    assert told == [53, 8, 28]
    assert list(verify(a_stream())) == []


def test_each_damaged_stretch_is_one_fault_and_the_rest_is_counted() -> None:
    good = [encode(time, b"payload %d" % time) for time in range(5)]
    bad = encode(7, b"x" * 30)[:-1] + b"?"
    first = HEADER + good[0] + bad + good[1] + GARBAGE + GARBAGE + good[2]
    stream = a_stream(first, HEADER + good[3] + bytes(50) + good[4])
    size = len(good[0])
    assert faults(stream) == [
        (segment_name(1), 8 + size, len(bad), False),
        (segment_name(1), 8 + 2 * size + len(bad), 2 * len(GARBAGE), False),
        (segment_name(2), 8 + size, 50, False),
    ]
    assert [check.records for check in verify(stream)] == [3, 2]


def test_only_the_tail_of_the_newest_segment_with_records_is_torn() -> None:
    record = encode(5, b"whole")
    for tail in (record[:-1], record[:3], bytes(40) + b"?", GARBAGE, record[:-1] + b"?"):
        at = 8 + len(record)
        torn = HEADER + record + tail
        whole = HEADER + record
        assert faults(a_stream(torn)) == [(segment_name(1), at, len(tail), True)]
        assert faults(a_stream(whole, torn)) == [(segment_name(2), at, len(tail), True)]
        assert faults(a_stream(torn, HEADER)) == [(segment_name(1), at, len(tail), True)]
        assert faults(a_stream(torn, b"")) == [(segment_name(1), at, len(tail), True)]
        assert faults(a_stream(torn, bytes(30))) == [(segment_name(1), at, len(tail), True)]
        assert faults(a_stream(torn, whole)) == [(segment_name(1), at, len(tail), False)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (WORKQ.encode(), "magic b'wqwq', expected b'cptn'"),
        (b"cptn\0\0\0\x09", "version 9, expected 1"),
        (b"short", "has no header"),
        (bytes(8) + b"x", "has no header"),
    ],
)
def test_a_bad_header_is_a_fault_of_its_segment(content: bytes, reason: str) -> None:
    stream = a_stream(HEADER + encode(5, b"a"), content)
    _, check = verify(stream)
    assert [(fault.offset, fault.torn) for fault in check.faults] == [(0, False)]
    assert reason in check.faults[0].reason


def test_a_directory_in_place_of_a_segment_is_a_fault() -> None:
    stream = a_stream(HEADER + encode(5, b"a"))
    assert isinstance(stream.files, MemoryFiles)
    stream.files.make_directory(HERE / segment_name(2))
    _, check = verify(stream)
    assert check.faults == [
        Fault(HERE / segment_name(2), 0, 8, "is not a regular file", torn=False)
    ]


def test_a_cleaned_segment_is_not_taken_for_a_cut_one() -> None:
    """The mark may be older than the cleaning of the segment that it names."""
    stream = a_stream()
    files = stream.files
    assert isinstance(files, MemoryFiles)
    with stream.open_appender() as appender:
        appender.append_many([b"a" * 100, b"b" * 100])
    mark = files.content(HERE / "synced.pos")
    with stream.open_appender() as appender:
        appender.rotate()
        appender.append(b"c")
    with stream.open_cleaner() as cleaner:
        cleaner.clean(lambda path, record: record.payload[:1] == b"a")
    files.put(HERE / "synced.pos", mark)
    assert faults(stream) == []
    with stream.open_appender():
        pass


def test_verify_changes_nothing() -> None:
    stream = a_stream(HEADER + encode(5, b"a") + GARBAGE, HEADER + encode(6, b"b")[:-2])
    assert isinstance(stream.files, MemoryFiles)
    before = stream.files.snapshot()
    assert len(faults(stream)) == 2
    assert (stream.files.snapshot(), stream.files.operations[1:]) == (before, [])


def test_a_valid_record_is_found_behind_a_broken_one_of_any_size() -> None:
    broken = bytearray(encode(5, bytes(4 << 20)))
    broken[-1] ^= 1
    data = bytes(broken) + encode(6, b"whole")
    assert next_valid(data, 1) == len(broken)


def test_a_hole_larger_than_any_record_does_not_hide_what_lies_behind_it() -> None:
    """CPT-CUR-6: one stretch is damaged, not all that follows it."""
    behind = encode(6, b"b")
    stream = a_stream(HEADER + encode(5, b"a") + bytes(3 << 20) + behind, HEADER + encode(7, b"c"))
    stream.max_payload = 1000
    (check, _) = verify(stream)
    assert (check.records, [fault.length for fault in check.faults]) == (2, [3 << 20])
    assert check.good[-1] == (check.size - len(behind), check.size)


def test_the_search_behind_a_fault_is_bounded() -> None:
    """Never a hang: a stretch full of false beginnings, and what lies behind it."""
    noise = b"\x01\0\0\0\x0e" * TRIES
    data = noise + encode(5, b"far")
    assert next_valid(data, 0, max_payload=100) is None
    assert next_valid(data, 5, max_payload=100) == len(noise)
    assert next_valid(data, len(data), max_payload=100) is None
    assert next_valid(b"", 0, max_payload=100) is None
