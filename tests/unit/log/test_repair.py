"""Repair: copies first, every dropped stretch listed, locks held, nothing done by itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fastjournal.errors import (
    BadRequest,
    JournalFault,
    LockTimeout,
    NoSpace,
    SegmentError,
    WriteFailed,
)
from fastjournal.log import CAPTAIN, WORKQ, Position, Stream
from fastjournal.log.care.repair import SALVAGED, Dropped, cut, salvage
from fastjournal.log.record import encode
from fastjournal.log.segment import segment_name
from fastjournal.testing import Fault, ManualClock, MemoryFiles

HERE = Path("/journal")
HEADER = CAPTAIN.encode()
RECORDS = [encode(time, b"payload %d" % time) for time in range(1, 9)]
SIZE = len(RECORDS[0])
BAD = RECORDS[0][:-1] + bytes([RECORDS[0][-1] ^ 1])


def a_stream(*segments: bytes, files: MemoryFiles | None = None) -> Stream:
    files = files or MemoryFiles()
    stream = Stream(HERE, files=files, clock=ManualClock())
    stream.create()
    for number, content in enumerate(segments, 1):
        files.put(HERE / segment_name(number), content)
    return stream


def memory(stream: Stream) -> MemoryFiles:
    assert isinstance(stream.files, MemoryFiles)
    return stream.files


def numbers(stream: Stream) -> list[int]:
    return [record.time for record in stream.open_cursor()]


def brief(dropped: list[Dropped]) -> list[tuple[str, int, int, int]]:
    return [(item.path.name, item.offset, item.length, item.records) for item in dropped]


def test_salvage_keeps_every_whole_record() -> None:
    """F29."""
    stream = a_stream(
        HEADER + RECORDS[0] + BAD + RECORDS[1],
        HEADER + RECORDS[2],
        HEADER + BAD + RECORDS[3] + RECORDS[4][:-5],
    )
    before = memory(stream).snapshot()
    dropped = salvage(stream)
    assert brief(dropped) == [
        (segment_name(1), 8 + SIZE, SIZE, 0),
        (segment_name(3), 8, SIZE, 0),
        (segment_name(3), 8 + 2 * SIZE, SIZE - 5, 0),
    ]
    assert numbers(stream) == [1, 2, 3, 4]
    for item in dropped:
        assert item.copy is not None
        assert memory(stream).content(item.copy) == before[item.path]
        assert item.copy.name.startswith(item.path.name + ".damaged-")
    assert memory(stream).content(HERE / segment_name(2)) == before[HERE / segment_name(2)]
    lines = memory(stream).content(HERE / SALVAGED).decode().splitlines()
    assert len(lines) == 3
    assert "crc mismatch" in lines[0]
    assert salvage(stream) == [], "nothing is left to do"
    with stream.open_appender() as appender:
        appender.append(b"goes on")
    assert len(numbers(stream)) == 5


def test_salvage_of_a_clean_log_changes_nothing() -> None:
    stream = a_stream(HEADER + RECORDS[0])
    before = memory(stream).snapshot()
    assert salvage(stream) == []
    assert memory(stream).snapshot() == before


def test_salvage_moves_a_segment_with_another_header_aside() -> None:
    """Nothing says that its records belong to this log."""
    stream = a_stream(HEADER + RECORDS[0], WORKQ.encode() + RECORDS[1], HEADER + RECORDS[2])
    dropped = salvage(stream)
    assert [item.path.name for item in dropped] == [segment_name(2)]
    assert dropped[0].copy is not None
    assert memory(stream).content(dropped[0].copy) == WORKQ.encode() + RECORDS[1]
    assert stream.segments() == [1, 3]
    assert numbers(stream) == [1, 3]


def test_salvage_removes_a_segment_of_which_nothing_is_left() -> None:
    stream = a_stream(HEADER + BAD, HEADER + RECORDS[0])
    assert len(salvage(stream)) == 1
    assert stream.segments() == [2]


def test_salvage_accepts_the_loss_of_a_missing_segment() -> None:
    stream = a_stream()
    with stream.open_appender() as appender:
        appender.append(b"a")
        appender.rotate()
        appender.append(b"b")
    memory(stream).remove(HERE / segment_name(2))
    with pytest.raises(SegmentError, match="missing"):
        stream.open_appender().lock()
    dropped = salvage(stream)
    assert [(item.path.name, item.copy) for item in dropped] == [(segment_name(2), None)]
    with stream.open_appender() as appender:
        assert appender.position.segment == 3, "no number is used twice"
    assert memory(stream).exists(HERE / SALVAGED)


def test_salvage_does_not_touch_what_is_not_a_file() -> None:
    stream = a_stream(HEADER + BAD)
    memory(stream).make_directory(HERE / segment_name(2))
    with pytest.raises(SegmentError, match="not a regular file"):
        salvage(stream)
    assert memory(stream).exists(HERE / segment_name(2))


def test_cut_keeps_what_lies_before_a_point() -> None:
    stream = a_stream(
        HEADER + RECORDS[0] + RECORDS[1],
        HEADER + RECORDS[2] + RECORDS[3] + RECORDS[4],
        HEADER + RECORDS[5],
        HEADER + RECORDS[6] + BAD,
    )
    before = memory(stream).snapshot()
    dropped = cut(stream, Position(2, 8 + SIZE))
    assert brief(dropped) == [
        (segment_name(2), 8 + SIZE, 2 * SIZE, 2),
        (segment_name(3), 0, 8 + SIZE, 1),
        (segment_name(4), 0, 8 + 2 * SIZE, 1),
    ]
    for item in dropped:
        assert item.copy is not None
        assert memory(stream).content(item.copy) == before[item.path]
    assert numbers(stream) == [1, 2, 3]
    assert stream.segments() == [1, 2]
    with stream.open_appender() as appender:
        assert appender.position == Position(5, 8), "no number is used twice"
        appender.append(b"goes on")


def test_cut_at_the_very_end_drops_nothing() -> None:
    stream = a_stream(HEADER + RECORDS[0])
    assert cut(stream, Position(1, 8 + SIZE)) == []
    assert numbers(stream) == [1]
    assert not memory(stream).exists(HERE / SALVAGED)


def test_cut_of_synced_records_forgets_that_they_were_synced() -> None:
    stream = a_stream()
    with stream.open_appender(sync="always") as appender:
        appender.append(b"a")
        place = appender.position
        appender.append(b"b")
    cut(stream, place)
    with stream.open_appender() as appender:
        assert appender.position == Position(2, 8), "what was cut is sealed"
    assert len(numbers(stream)) == 1


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (Position(3, 8), "no segment 3"),
        (Position(1, 7), "offset must be 8"),
        (Position(1, 8 + 2 * SIZE + 1), "offset must be 8"),
        (Position(1, 8 + SIZE + 3), f"ends at {8 + SIZE}"),
        (Position(2, 8 + 2 * SIZE), f"ends at {8 + SIZE}"),
        (Position(1, 1 << 63), "offset must be 8"),
    ],
)
def test_cut_at_no_record_border_is_refused(place: Position, reason: str) -> None:
    stream = a_stream(HEADER + RECORDS[0] + RECORDS[1], HEADER + RECORDS[2] + BAD)
    before = memory(stream).snapshot()
    with pytest.raises(BadRequest, match=reason):
        cut(stream, place)
    assert memory(stream).snapshot() == before


@pytest.mark.parametrize("name", ["append", "read"])
def test_repair_needs_both_locks(name: str) -> None:
    stream = a_stream(HEADER + BAD)
    before = memory(stream).snapshot()
    held = stream.lock_appender() if name == "append" else stream.lock_readers(exclusive=False)
    for tool in (
        lambda: salvage(stream, lock_timeout=0),
        lambda: cut(stream, Position(1, 8), lock_timeout=0),
    ):
        with pytest.raises(LockTimeout):
            tool()
    assert memory(stream).snapshot() == before
    held.release()
    assert len(salvage(stream, lock_timeout=0)) == 1
    stream.lock_appender(timeout=0).release()


@pytest.mark.parametrize("fault", [Fault(), Fault(error=errno.ENOSPC), Fault(short=4)])
@pytest.mark.parametrize("tool", ["salvage", "cut"])
def test_a_failing_repair_is_a_typed_error_loses_nothing_and_can_be_run_again(
    tool: str, fault: Fault
) -> None:
    def make(**settings: object) -> Stream:
        files = MemoryFiles(**settings)  # type: ignore[arg-type]
        return a_stream(
            HEADER + RECORDS[0] + BAD + RECORDS[1], HEADER + RECORDS[2] + BAD, files=files
        )

    def run(stream: Stream) -> None:
        if tool == "salvage":
            salvage(stream)
        else:
            cut(stream, Position(1, 8 + SIZE))

    probe = make()
    start = len(memory(probe).operations)
    run(probe)
    expected = numbers(probe)
    end = len(memory(probe).operations)
    failed = 0
    for number in range(start + 1, end + 1):
        stream = make(faults={number: fault})
        try:
            run(stream)
        except (WriteFailed, NoSpace, JournalFault):
            failed += 1
            left = memory(stream).snapshot()
            for payload in RECORDS[: 3 if tool == "salvage" else 1]:
                assert any(payload in content for content in left.values())
            run(stream)
        assert numbers(stream) == expected
    assert failed >= (1 if fault.short is not None else 8)
