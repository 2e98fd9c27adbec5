"""The cursor: order, end, positions, following a live tail, errors that stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.errors import BadRequest, CorruptRecord, JournalError, LockTimeout, SegmentError
from fastjournal.log import CAPTAIN, Position, Record, Stream
from fastjournal.log.read import cursor as cursor_module
from fastjournal.log.record import encode
from fastjournal.log.segment import segment_name
from fastjournal.log.write.appender import Appender
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


def fill(stream: Stream, *segments: tuple[bytes, ...]) -> list[Record]:
    with stream.open_appender() as appender:
        for index, payloads in enumerate(segments):
            if index:
                appender.rotate()
            appender.append_many(payloads)
    return list(stream.open_cursor())


def test_records_come_in_order_over_all_segments(stream: Stream) -> None:
    """CPT-GEN-1, CPT-CUR-1, CPT-CUR-3."""
    fill(stream, (b"a", b"b"), (b"c",), (), (b"d", b""))
    cursor = stream.open_cursor()
    found = []
    while (record := cursor.next()) is not None:
        found.append((record.segment, record.payload))
    assert found == [(1, b"a"), (1, b"b"), (2, b"c"), (4, b"d"), (4, b"")]
    assert cursor.next() is None
    assert [record.payload for record in stream.open_cursor()] == [b"a", b"b", b"c", b"d", b""]
    assert [len(batch) for batch in stream.open_cursor().batches()] == [2, 1, 2]


def test_times_lie_between_start_and_end(stream: Stream) -> None:
    clock = stream.clock
    assert isinstance(clock, ManualClock)
    start = clock.now()
    with stream.open_appender() as appender:
        for payload in (b"1", b"2", b"3"):
            appender.append(payload)
            clock.advance(1.5)
    times = [record.time for record in stream.open_cursor()]
    assert times == [start, start + 1_500_000_000, start + 3_000_000_000]


def test_an_empty_stream_ends_at_once(stream: Stream) -> None:
    assert stream.open_cursor().next() is None
    assert list(stream.open_cursor()) == []
    fill(stream, ())
    assert stream.open_cursor().next() is None


def test_reset_begins_again_with_the_segments_of_that_moment(stream: Stream) -> None:
    """CPT-CUR-7."""
    fill(stream, (b"a", b"b"))
    cursor = stream.open_cursor()
    assert cursor.position is None
    assert [record.payload for record in cursor] == [b"a", b"b"]
    fill(stream, (b"c",), (b"d",))
    cursor.reset()
    assert cursor.position is None
    assert [record.payload for record in cursor] == [b"a", b"b", b"c", b"d"]


def test_a_cursor_goes_on_from_every_position_it_reported(stream: Stream) -> None:
    """CPT-CUR-7."""
    records = fill(stream, (b"a", b"b" * 200), (b"c",), (b"", b"e"))
    cursor = stream.open_cursor()
    for index in range(len(records)):
        cursor.next()
        place = cursor.position
        assert place is not None
        again = stream.open_cursor(place)
        assert again.position == place
        assert list(again) == records[index + 1 :]
        again.reset()
        assert list(again) == records[index + 1 :]


@pytest.mark.parametrize("start", [Position(0, 0), Position(1, 0), Position(1, 8)])
def test_a_position_before_the_first_record_means_all(stream: Stream, start: Position) -> None:
    records = fill(stream, (b"a",), (b"b",))
    assert list(stream.open_cursor(start)) == records


def test_a_position_in_a_segment_that_is_gone_goes_on_with_the_next(
    stream: Stream, files: MemoryFiles
) -> None:
    records = fill(stream, (b"a",), (b"b",), (b"c",))
    files.remove(HERE / segment_name(2))
    assert list(stream.open_cursor(Position(2, 8))) == records[2:]
    assert list(stream.open_cursor(Position(9, 8))) == []


def test_a_cursor_starts_behind_every_time(stream: Stream) -> None:
    """Design law 3: TIME identifies a record and survives cleaning."""
    records = fill(stream, (b"a", b"b"), (b"c",), (b"d", b"e"))
    assert list(stream.open_cursor(after=0)) == records
    for index, record in enumerate(records):
        assert list(stream.open_cursor(after=record.time)) == records[index + 1 :]
        assert list(stream.open_cursor(after=record.time - 1)) == records[index:]
    with stream.open_cleaner() as cleaner:
        cleaner.clean(lambda path, record: record.payload in (b"a", b"c"))
    left = [record.payload for record in stream.open_cursor(after=records[0].time)]
    assert left == [b"b", b"d", b"e"]
    assert stream.segments() == [1, 3]


def test_a_place_and_a_time_exclude_each_other(stream: Stream) -> None:
    with pytest.raises(BadRequest):
        stream.open_cursor(Position(1, 8), after=5)


def test_records_larger_than_a_chunk_are_read(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's chunk is only a size: 1, 2 and 3 times it, and every size around it."""
    monkeypatch.setattr(cursor_module, "CHUNK", 64)
    payloads = [bytes([size % 251]) * size for size in [*range(30, 80), 127, 128, 129, 192, 500, 0]]
    records = fill(stream, tuple(payloads), (b"next",))
    assert [record.payload for record in records] == [*payloads, b"next"]
    for index, record in enumerate(records):
        assert next(iter(stream.open_cursor(after=record.time - 1))) == record
        assert list(stream.open_cursor(Position(record.segment, record.offset))) == records[index:]


# The live tail


def test_a_cursor_without_follow_sees_what_was_there_and_what_its_last_segment_gets(
    stream: Stream,
) -> None:
    """CPT-CUR-4: the list of segments is fixed at the first next."""
    with stream.open_appender() as appender:
        appender.append(b"a")
        cursor = stream.open_cursor()
        first = cursor.next()
        assert first is not None
        appender.append(b"b")
        second = cursor.next()
        assert second is not None
        assert second.payload == b"b"
        appender.rotate()
        appender.append(b"c")
        assert cursor.next() is None


def test_a_following_cursor_never_ends_for_good(stream: Stream) -> None:
    """CPT-CUR-6: over rotations too, from an empty directory on."""
    cursor = stream.open_cursor(follow=True)
    assert cursor.next() is None

    def take(appender: Appender) -> list[bytes]:
        found = []
        while (record := cursor.next()) is not None:
            found.append(record.payload)
        return found

    with stream.open_appender() as appender:
        assert take(appender) == []
        for number in range(6):
            appender.append(b"%d" % number)
            if number % 2:
                appender.rotate()
            assert take(appender) == [b"%d" % number]
            assert take(appender) == []
        appender.rotate()
        appender.rotate()
        assert take(appender) == []
        appender.append_many([b"x", b"y"])
        assert take(appender) == [b"x", b"y"]


def test_every_incomplete_end_of_the_newest_segment_is_the_end_until_it_is_whole(
    stream: Stream, files: MemoryFiles
) -> None:
    """CPT-CUR-6: what an appender has half written is no error."""
    path = HERE / segment_name(1)
    whole = HEADER + encode(1, b"first") + encode(2, b"second" * 30)
    start = len(HEADER + encode(1, b"first"))
    for cut in range(start, len(whole)):
        files.put(path, whole[:cut])
        cursor = stream.open_cursor(follow=True)
        first = cursor.next()
        assert first is not None
        assert cursor.next() is None
        assert cursor.next() is None
        handle = files.open(path)
        handle.write(whole[cut:])
        handle.close()
        second = cursor.next()
        assert second is not None
        assert second.payload == b"second" * 30


def test_a_standby_without_records_does_not_seal_the_segment_before_it(
    stream: Stream, files: MemoryFiles
) -> None:
    files.put(HERE / segment_name(1), HEADER + encode(1, b"a") + encode(2, b"b")[:-3])
    files.put(HERE / segment_name(2), HEADER)
    assert [record.payload for record in stream.open_cursor()] == [b"a"]
    files.put(HERE / segment_name(2), HEADER + encode(3, b"c"))
    with pytest.raises(CorruptRecord) as caught:
        list(stream.open_cursor())
    assert caught.value.path == HERE / segment_name(1)


def test_an_open_file_stays_readable_while_the_cleaner_replaces_it(stream: Stream) -> None:
    """CPT-CUR-4, rule 1."""
    fill(stream, (b"a", b"b"), (b"c", b"d"), (b"e",))
    cursor = stream.open_cursor()
    assert cursor.next() is not None
    with stream.open_cleaner() as cleaner:
        cleaner.clean(lambda path, record: record.payload in (b"a", b"b", b"c"))
    assert [record.payload for record in cursor] == [b"b", b"d", b"e"]


def test_a_segment_removed_by_the_cleaner_is_passed_over(stream: Stream) -> None:
    fill(stream, (b"a",), (b"b",), (b"c",), (b"d",))
    cursor = stream.open_cursor()
    assert cursor.next() is not None
    with stream.open_cleaner() as cleaner:
        cleaner.clean(lambda path, record: record.payload in (b"b", b"c"))
    assert [record.payload for record in cursor] == [b"d"]


def test_a_follower_finds_the_next_record_though_its_segments_were_cleaned_away(
    stream: Stream,
) -> None:
    with stream.open_appender() as appender:
        cursor = stream.open_cursor(follow=True)
        appender.rotate()
        assert cursor.next() is None
        appender.rotate()
        appender.append(b"x")
        with stream.open_cleaner() as cleaner:
            cleaner.clean(lambda path, record: True)
        assert stream.segments() == [3]
        record = cursor.next()
        assert record is not None
        assert record.payload == b"x"


# Locks


def test_a_cleaner_waits_for_locked_cursors_and_they_for_it(stream: Stream) -> None:
    """CPT-CUR-4, CPT-CUR-5."""
    fill(stream, (b"a",))
    with stream.open_cursor() as one, stream.open_cursor() as two:
        assert list(one) == list(two)
        with pytest.raises(LockTimeout):
            stream.open_cleaner().lock(timeout=0)
    with stream.open_cleaner(), pytest.raises(LockTimeout):
        stream.open_cursor().lock(timeout=0)
    with stream.open_cursor() as cursor:
        cursor.lock()  # twice is once
        cursor.unlock()
        stream.lock_readers(exclusive=True, timeout=0).release()


# Faults


def test_an_error_names_segment_and_offset_and_stays(stream: Stream, files: MemoryFiles) -> None:
    """CPT-CUR-2."""
    records = fill(stream, (b"a", b"b", b"c"), (b"d",))
    content = bytearray(files.content(HERE / segment_name(1)))
    content[records[1].offset + 17] ^= 1
    files.put(HERE / segment_name(1), bytes(content))
    cursor = stream.open_cursor()
    assert cursor.next() == records[0]
    errors = []
    for _ in range(3):
        with pytest.raises(CorruptRecord) as caught:
            cursor.next()
        errors.append(caught.value)
    assert errors[0] is errors[2]
    assert (errors[0].path, errors[0].offset, errors[0].fault) == (
        HERE / segment_name(1),
        records[1].offset,
        "crc mismatch",
    )
    with pytest.raises(CorruptRecord):
        list(cursor)
    with pytest.raises(CorruptRecord):
        list(cursor.batches())
    cursor.reset()
    assert cursor.next() == records[0]


def test_a_damaged_time_does_not_lead_past_the_records_sought(
    stream: Stream, files: MemoryFiles
) -> None:
    """Starting by TIME, a damaged first record is an error when it is reached, not a wrong turn."""
    records = fill(stream, (b"a",), (b"b", b"c"), (b"d",))
    for at in range(8, 8 + 15):
        for change in (0x01, 0xFF, 0x80):
            content = bytearray(files.content(HERE / segment_name(2)))
            content[at] ^= change
            damaged = files.killed()
            damaged.put(HERE / segment_name(2), bytes(content))
            view = Stream(HERE, files=damaged)
            cursor = view.open_cursor(after=records[0].time)
            with pytest.raises(CorruptRecord) as caught:
                list(cursor)
            assert caught.value.path == HERE / segment_name(2)
            with pytest.raises(CorruptRecord):
                cursor.next()


def test_an_unreadable_segment_is_an_error_that_stays(stream: Stream, files: MemoryFiles) -> None:
    fill(stream, (b"a",))
    files.make_directory(HERE / segment_name(2))
    cursor = stream.open_cursor()
    assert cursor.next() is not None
    for _ in range(2):
        with pytest.raises(JournalError):
            cursor.next()


def test_a_locked_cursor_reports_a_vanished_segment(stream: Stream, files: MemoryFiles) -> None:
    """While readers are locked no cleaner may remove a file: somebody else did."""
    fill(stream, (b"a",), (b"b",), (b"c",))
    with stream.open_cursor() as cursor:
        assert cursor.next() is not None
        files.remove(HERE / segment_name(2))
        with pytest.raises(SegmentError):
            list(cursor)


def test_both_zone_bytes_are_read(stream: Stream, files: MemoryFiles) -> None:
    """D-02."""
    files.put(HERE / segment_name(1), HEADER + encode(5, b"a", 0) + encode(6, b"b", 0xFFFF))
    assert [(record.time, record.payload) for record in stream.open_cursor()] == [
        (5, b"a"),
        (6, b"b"),
    ]
    workq = Stream(HERE, files=files, clock=ManualClock(), zone_bytes="ffff")
    with workq.open_appender() as appender:
        appender.append(b"c")
    assert files.content(HERE / segment_name(1))[-4 - 2 - 2 : -4 - 2] == b"\xff\xff"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_header_of_every_segment_is_checked_as_a_cursor_comes_to_it(
    stream: Stream, files: MemoryFiles, number: int
) -> None:
    """CPT-STR-2."""
    fill(stream, (b"1",), (b"2",), (b"3",))
    path = HERE / segment_name(number)
    files.put(path, b"else" + files.content(path)[4:])
    cursor = stream.open_cursor()
    for before in range(1, number):
        record = cursor.next()
        assert record is not None
        assert record.payload == b"%d" % before
    with pytest.raises(SegmentError, match=path.name):
        cursor.next()
