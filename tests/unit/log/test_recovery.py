"""Torn is mended, damaged is refused: every flipped byte and every cut of a small log.

The log has three segments with records of several sizes. `closed` was closed cleanly, so that its
mark covers everything; `open_ended` was killed with its last three records not synced; `restarted`
is the same after a power loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.errors import CorruptRecord, JournalError, SegmentError, VersionMismatch
from fastjournal.log import Record, Stream
from fastjournal.log.care.check import Fault, verify
from fastjournal.log.care.recovery import recover
from fastjournal.log.record import TIME_SIZE, encode
from fastjournal.log.scan.resync import next_valid
from fastjournal.log.segment import HEADER_SIZE, segment_name
from fastjournal.log.synced_mark import SYNCED_MARK, SyncedMark
from fastjournal.testing import ManualClock, MemoryFiles

HERE = Path("/journal")
MARK = HERE / SYNCED_MARK
PATTERNS = {
    "xor 01": lambda byte: byte ^ 0x01,
    "xor ff": lambda byte: byte ^ 0xFF,
    "zero": lambda byte: 0,
}
SIZES = ((0, 1, 20), (130, 3), (40, 0, 128, 60, 7))  # of the payloads, by segment


def stream_on(files: MemoryFiles) -> Stream:
    return Stream(HERE, files=files, clock=ManualClock())


def write_log(*, close: bool) -> MemoryFiles:
    files = MemoryFiles()
    stream = stream_on(files)
    stream.create()
    appender = stream.open_appender()
    appender.lock()
    for segment, sizes in enumerate(SIZES, 1):
        if segment > 1:
            appender.rotate()
        for index, size in enumerate(sizes):
            appender.append(bytes([segment * 16 + index]) * size)
            if segment == 3 and index == 1:
                appender.sync()
    if close:
        appender.unlock()
        return files
    return files.killed()


def after_power_loss() -> MemoryFiles:
    """The machine started again; nothing happens to be lost."""
    *_, image = write_log(close=False).images(samples=1)
    source = write_log(close=False)
    for name in source.names(HERE):
        image.put(HERE / name, source.content(HERE / name))
    assert image.boot_id() != source.boot_id()
    return image


CLOSED = write_log(close=True)
RECORDS = list(stream_on(CLOSED).open_cursor())
NEWEST = HERE / segment_name(3)
WHOLE = CLOSED.content(NEWEST)
LAST_THREE = [record.offset for record in RECORDS[-3:]]


def records_of(segment: int) -> list[Record]:
    return [record for record in RECORDS if record.segment == segment]


def read(files: MemoryFiles) -> tuple[list[Record], JournalError | None]:
    """What a cursor returns, and the error that ends it; the error comes back when asked again."""
    cursor = stream_on(files).open_cursor()
    found = []
    try:
        while (record := cursor.next()) is not None:
            found.append(record)
    except JournalError as error:
        with pytest.raises(type(error)):
            cursor.next()
        return found, error
    return found, None


def flips() -> Iterator[tuple[int, int, bytes]]:
    """(segment, offset, changed content) for every byte and pattern that changes it."""
    for segment in (1, 2, 3):
        content = CLOSED.content(HERE / segment_name(segment))
        for at, byte in enumerate(content):
            for change in PATTERNS.values():
                if change(byte) != byte:
                    changed = bytearray(content)
                    changed[at] = change(byte)
                    yield segment, at, bytes(changed)


def start_of_record(segment: int, at: int) -> int:
    if at < HEADER_SIZE:
        return 0
    return max(record.offset for record in records_of(segment) if record.offset <= at)


def test_every_flipped_byte_is_found_by_the_cursor_and_by_verify_at_its_place() -> None:
    """F21, F22, P-DETECT, CPT-CUR-2: never a wrong record, never a missing one without an error."""
    count = 0
    for segment, at, changed in flips():
        count += 1
        files = CLOSED.killed()
        path = HERE / segment_name(segment)
        files.put(path, changed)
        start = start_of_record(segment, at)
        where = (segment, at, changed[at])

        found, error = read(files)
        assert found == [r for r in RECORDS if (r.segment, r.offset) < (segment, start)], where
        if at < HEADER_SIZE:
            assert isinstance(error, (SegmentError, VersionMismatch)), where
            assert str(path) in str(error)
        else:
            assert isinstance(error, CorruptRecord), where
            assert (error.path, error.offset) == (path, start), where

        checks = list(verify(stream_on(files)))
        faults = [fault for check in checks for fault in check.faults]
        assert [(fault.path, fault.offset, fault.torn) for fault in faults] == [
            (path, start, False)
        ], where
        lost = len(records_of(segment)) if at < HEADER_SIZE else 1
        assert sum(check.records for check in checks) == len(RECORDS) - lost, where
    assert count > 1500


def test_every_flipped_byte_of_the_newest_segment_stops_recovery_if_it_was_synced() -> None:
    """F23: a flip in the last synced record is damage, not a tear; nothing is changed on disk."""
    for segment, at, changed in flips():
        files = CLOSED.killed()
        files.put(HERE / segment_name(segment), changed)
        before = files.snapshot()
        if segment < 3 and at >= HEADER_SIZE + TIME_SIZE:
            assert recover(stream_on(files)).cut is None  # a replay finds it: see above
        elif segment < 3:  # what is looked at when a log is opened
            with contextlib.suppress(SegmentError):
                assert recover(stream_on(files)).cut is None
        else:
            with pytest.raises(JournalError) as caught:
                recover(stream_on(files))
            if at >= HEADER_SIZE:
                assert isinstance(caught.value, CorruptRecord)
                assert caught.value.path == NEWEST
                assert caught.value.offset == start_of_record(segment, at)
        assert files.snapshot() == before


def test_every_flipped_byte_behind_the_mark_is_damage_unless_it_looks_torn() -> None:
    """Without a restart only the last record can look torn: any other one has a valid successor."""
    for segment, at, changed in flips():
        if segment < 3 or at < LAST_THREE[0]:
            continue
        files = write_log(close=False)
        files.put(NEWEST, changed)
        start = start_of_record(segment, at)
        found, error = read(files)
        assert found == [r for r in RECORDS if (r.segment, r.offset) < (3, start)]
        if start == LAST_THREE[-1]:
            report = recover(stream_on(files))
            assert report.cut is not None
            assert report.cut.offset == start
            assert files.content(report.cut.copy) == changed[start:]
            assert read(files) == (RECORDS[:-1], None)
        else:
            assert isinstance(error, CorruptRecord)
            with pytest.raises(CorruptRecord) as caught:
                recover(stream_on(files))
            assert caught.value.offset == start
            assert caught.value.next_valid is not None


def test_after_a_restart_of_the_machine_a_hole_behind_the_mark_is_a_tear() -> None:
    """Rule 1 of recovery: unsynced writes may have been lost in any order."""
    for segment, at, changed in flips():
        if segment < 3:
            continue
        files = after_power_loss()
        files.put(NEWEST, changed)
        start = start_of_record(segment, at)
        if at < LAST_THREE[0]:
            with pytest.raises(JournalError):
                recover(stream_on(files))
        else:
            report = recover(stream_on(files))
            assert report.cut is not None
            assert (report.cut.offset, report.cut.length) == (start, len(WHOLE) - start)
            kept = [r for r in RECORDS if (r.segment, r.offset) < (3, start)]
            assert read(files) == (kept, None)
            assert recover(stream_on(files)).cut is None


def filled(cut: int, how: str) -> bytes:
    rest = len(WHOLE) - cut
    return (
        WHOLE[:cut]
        + {
            "cut": b"",
            "zeros": bytes(rest),
            "garbage": (b"\x01\x00\x00\x00\x0e\xff\x00garbage" * 40)[:rest],
            "ff": b"\xff" * rest,
        }[how]
    )


@pytest.mark.parametrize("how", ["cut", "zeros", "garbage", "ff"])
@pytest.mark.parametrize("power", ["kept", "lost"])
def test_every_cut_of_the_last_three_records_is_mended_to_a_record_border(
    how: str, power: str
) -> None:
    """CPT-APP-10, T-CUT, F13: plain cuts, and the rest of the file filled with zeros or garbage."""
    for at in range(LAST_THREE[0], len(WHOLE) + 1):
        content = filled(at, how)
        files = write_log(close=False) if power == "kept" else after_power_loss()
        files.put(NEWEST, content)
        start = max(offset for offset in [*LAST_THREE, len(WHOLE)] if offset <= at)
        if content[start : len(WHOLE)] == WHOLE[start:]:
            start = len(WHOLE)  # the bytes filled in are those that stood there
        kept = [r for r in RECORDS if (r.segment, r.offset) < (3, start)]

        assert read(files) == (kept, None), "a tear is the end for a cursor too"
        faults = [fault for check in verify(stream_on(files)) for fault in check.faults]
        assert faults == (
            [Fault(NEWEST, start, len(content) - start, faults[0].reason, torn=True)]
            if any(content[start:])  # zeros alone are room reserved ahead
            else []
        )

        with pytest.raises(CorruptRecord) if faults else nothing_raised():
            recover(stream_on(files), strict=True)
        report = recover(stream_on(files))
        assert (report.cut is not None) == bool(faults)
        if report.cut is not None:
            assert (report.cut.path, report.cut.offset) == (NEWEST, start)
            assert files.content(report.cut.copy) == content[start:]
            assert report.cut.copy.name.startswith(NEWEST.name + ".torn-")
        assert report.last_time == kept[-1].time
        assert read(files) == (kept, None)
        assert files.content(NEWEST) == WHOLE[:start]
        assert recover(stream_on(files)).cut is None


@pytest.mark.parametrize(
    "rest", [bytes(1), bytes(700), bytes(2 << 20), b"\xff" * 700, bytes(700) + b"\xff" + bytes(700)]
)
def test_cursor_verify_and_recovery_judge_a_tail_alike(rest: bytes) -> None:
    """Zeros to the very end are the end of the log for all three, anything else is a tear."""
    files = write_log(close=False)
    files.put(NEWEST, WHOLE + rest)
    assert read(files) == (RECORDS, None)
    faults = [fault for check in verify(stream_on(files)) for fault in check.faults]
    assert [(fault.offset, fault.torn) for fault in faults] == [(len(WHOLE), True)] * any(rest)
    cut = recover(stream_on(files)).cut
    assert files.content(NEWEST) == WHOLE, "and recovery trims the file"
    if any(rest):
        assert cut is not None
        assert (cut.offset, cut.length) == (len(WHOLE), len(rest))
    else:
        assert cut is None
        assert not [name for name in files.names(HERE) if "torn" in name]
    files = CLOSED.killed()
    with stream_on(files).open_appender() as appender:
        appender.rotate()
        appender.append(b"behind")
    files.put(NEWEST, WHOLE + rest)
    _, error = read(files)
    assert isinstance(error, CorruptRecord), "in a sealed segment they are damage"
    assert error.offset == len(WHOLE)


@pytest.mark.parametrize("how", ["cut", "zeros", "garbage", "ff"])
def test_a_cut_of_what_was_synced_is_refused(how: str) -> None:
    """F23, F25: the mark says that more was there."""
    for at in range(HEADER_SIZE, len(WHOLE)):
        content = filled(at, how)
        if content == WHOLE:
            continue
        files = CLOSED.killed()
        files.put(NEWEST, content)
        before = files.snapshot()
        with pytest.raises(SegmentError) as caught:
            recover(stream_on(files))
        assert caught.value.path == NEWEST
        assert files.snapshot() == before
        faults = [fault for check in verify(stream_on(files)) for fault in check.faults]
        assert faults
        assert not any(fault.torn for fault in faults)
        assert all(fault.path == NEWEST for fault in faults)


class nothing_raised:  # noqa: N801 - reads as a context
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def test_damage_in_a_segment_older_than_the_mark_is_never_cut() -> None:
    """A rotation syncs the old segment: even while the new one is empty, its tail is not a tear."""
    for at in range(LAST_THREE[-1], len(WHOLE)):
        files = CLOSED.killed()
        with stream_on(files).open_appender() as appender:
            appender.rotate()
        content = bytearray(WHOLE)
        content[at] ^= 0x40
        files.put(NEWEST, bytes(content))
        with pytest.raises(CorruptRecord) as caught:
            recover(stream_on(files))
        assert (caught.value.path, caught.value.offset) == (NEWEST, LAST_THREE[-1])


@pytest.mark.parametrize("left", [b"", b"cptn", bytes(8), bytes(500), CLOSED.content(NEWEST)[:8]])
def test_a_synced_segment_that_became_empty_is_refused(left: bytes) -> None:
    """F25: an empty file where records were synced is not an empty log."""
    for files in (CLOSED.killed(), only_segment()):
        newest = max(stream_on(files).segments())
        files.put(HERE / segment_name(newest), left)
        with pytest.raises(SegmentError) as caught:
            recover(stream_on(files))
        assert caught.value.path == HERE / segment_name(newest)
        assert any(check.faults for check in verify(stream_on(files)))


def only_segment() -> MemoryFiles:
    files = MemoryFiles()
    stream_on(files).create()
    with stream_on(files).open_appender() as appender:
        appender.append(b"alone")
    return files


def test_a_synced_segment_that_is_missing_is_refused() -> None:
    """F24."""
    for files in (CLOSED.killed(), only_segment()):
        newest = HERE / segment_name(max(stream_on(files).segments()))
        files.remove(newest)
        with pytest.raises(SegmentError, match="missing") as caught:
            recover(stream_on(files))
        assert caught.value.path == newest
        assert [fault.path for check in verify(stream_on(files)) for fault in check.faults] == [
            newest
        ]


@pytest.mark.parametrize("left", [b"", b"c", b"cptn\0\0\0", bytes(3), bytes(8), bytes(900)])
def test_a_newest_segment_without_its_header_is_an_empty_one(left: bytes) -> None:
    """WQ-FIL-3: created but not written before a crash; appending gives it its header."""
    files = CLOSED.killed()
    path = HERE / segment_name(4)
    files.put(path, left)
    assert read(files) == (RECORDS, None)
    with stream_on(files).open_appender() as appender:
        assert appender.position.segment == 4
        appender.append(b"new")
    assert files.content(path)[:HEADER_SIZE] == b"cptn\0\0\0\x01"
    found, error = read(files)
    assert error is None
    assert [record.payload for record in found] == [*(r.payload for r in RECORDS), b"new"]


@pytest.mark.parametrize("left", [b"", b"cptn", bytes(8)])
def test_an_older_segment_without_its_header_is_damage(left: bytes) -> None:
    """WQ-FIL-3."""
    files = CLOSED.killed()
    files.put(HERE / segment_name(2), left)
    found, error = read(files)
    assert found == records_of(1)
    assert isinstance(error, SegmentError)
    assert error.path == HERE / segment_name(2)
    faults = [fault for check in verify(stream_on(files)) for fault in check.faults]
    assert [(fault.path, fault.torn) for fault in faults] == [(error.path, False)]


def test_a_flipped_byte_of_the_mark_costs_no_record() -> None:
    """The side file is a help, not a truth: it has its own CRC and is ignored when damaged."""
    content = CLOSED.content(MARK)
    for at in range(len(content)):
        for change in PATTERNS.values():
            files = CLOSED.killed()
            changed = bytearray(content)
            changed[at] = change(changed[at])
            files.put(MARK, bytes(changed))
            assert recover(stream_on(files)).cut is None
            assert read(files) == (RECORDS, None)
    for cut in range(len(content)):
        files = CLOSED.killed()
        files.put(MARK, content[:cut])
        assert recover(stream_on(files)).last_time == RECORDS[-1].time
        assert read(files) == (RECORDS, None)


def test_the_mark_tells_how_far_the_log_is_safe() -> None:
    mark = SyncedMark.read(CLOSED, HERE)
    assert mark is not None
    assert (mark.segment, mark.offset, mark.last_time) == (3, len(WHOLE), RECORDS[-1].time)
    mark = SyncedMark.read(write_log(close=False), HERE)
    assert mark is not None
    assert (mark.segment, mark.offset) == (3, LAST_THREE[0])


def test_with_trust_in_the_mark_only_the_rest_is_read() -> None:
    """A replay checks every record itself, so recovery need not."""
    content = bytearray(WHOLE)
    content[HEADER_SIZE + 3] ^= 1
    files = write_log(close=False)
    files.put(NEWEST, bytes(content[:-2]))
    report = recover(stream_on(files), trust_mark=True)
    assert report.cut is not None
    assert report.cut.offset == LAST_THREE[-1]
    assert report.last_time == RECORDS[-2].time
    assert recover(stream_on(CLOSED.killed()), trust_mark=True).last_time == RECORDS[-1].time


def test_left_over_work_files_are_removed_and_reported() -> None:
    """WQ-CLN-8; foreign files that look alike stay (F26)."""
    files = CLOSED.killed()
    left = [HERE / "000000002.log.rw", HERE / "000000009.log.rw", HERE / "000000004.log.new"]
    foreign = [HERE / "2.log.rw", HERE / "notes.new", HERE / "000000003.log.torn-5"]
    for path in [*left, *foreign]:
        files.put(path, b"left")
    report = recover(stream_on(files))
    assert sorted(report.removed) == sorted(left)
    assert not any(files.exists(path) for path in left)
    assert all(files.exists(path) for path in foreign)
    assert recover(stream_on(files)).removed == ()


def test_the_rewrite_of_a_cleaner_at_work_is_left_alone() -> None:
    files = CLOSED.killed()
    work = HERE / "000000001.log.rw"
    with stream_on(files).open_cleaner():
        files.put(work, b"under way")
        assert recover(stream_on(files)).removed == ()
        assert files.content(work) == b"under way"


def test_the_last_time_is_found_even_if_the_tail_and_its_mark_are_lost() -> None:
    """Law 3: TIME never goes back, whatever a power loss took."""
    files = CLOSED.killed()
    files.remove(MARK)
    files.put(HERE / segment_name(4), b"cptn\0\0\0\x01" + b"\xff" * 30)
    report = recover(stream_on(files))
    assert report.cut is not None
    assert report.last_time == RECORDS[-1].time


def test_what_recovery_has_read_survives_the_next_power_loss() -> None:
    """Rule 3: a killed process leaves bytes in the system's memory; recovery makes them durable."""
    files = MemoryFiles()
    stream = stream_on(files)
    stream.create()
    appender = stream.open_appender()
    appender.lock()
    appender.append_many([b"written", b"not synced"])
    assert recover(stream).cut is None
    for image in files.images():
        recover(stream_on(image))
        assert [record.payload for record in read(image)[0]] == [b"written", b"not synced"]


def test_every_time_that_can_be_written_is_found_behind_a_fault() -> None:
    """The search knows how a record begins in the years 1678 to 2262."""
    for seconds in (-9_223_372_035, -9_000_000_000, -1, 0, 1_700_000_000, 9_223_372_035):
        record = encode(seconds * 1_000_000_000, b"x")
        assert next_valid(b"?" * 30 + record, 1) == 30
