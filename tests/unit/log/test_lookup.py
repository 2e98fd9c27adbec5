"""One record by its place and TIME: where it stood, where it went, when it is gone or broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.errors import CorruptRecord, SegmentError
from fastjournal.log.read.by_time import Lookup
from fastjournal.log.record import Record, encode, record_size
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.testing import MemoryFiles

HOME = Path("/log")
NOW = 1_700_000_000 * 1_000_000_000


class Log:
    """Segments of ten records each, TIMEs one apart."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.make_directory(HOME)
        self.stream = Stream(HOME, WORKQ, files=self.files)
        self.lookup = Lookup(self.stream)
        self.records: list[Record] = []
        for segment in (1, 2, 3):
            payloads = [b"%d " % number * 100 for number in range(10)]
            self.write(segment, [(NOW + segment * 100 + n, p) for n, p in enumerate(payloads)])
            offset = 8
            for number, payload in enumerate(payloads):
                self.records.append(Record(NOW + segment * 100 + number, payload, segment, offset))
                offset += record_size(len(payload))

    def write(self, segment: int, records: list[tuple[int, bytes]]) -> None:
        data = WORKQ.encode() + b"".join(encode(time, payload) for time, payload in records)
        self.files.put(self.path(segment), data)

    def path(self, segment: int) -> Path:
        return self.stream.segment_path(segment)

    def damage(self, record: Record, at: int = 40) -> None:
        data = bytearray(self.files.content(self.path(record.segment)))
        data[record.offset + at] ^= 0xFF
        self.files.put(self.path(record.segment), bytes(data))

    def read(self, record: Record, segment: int | None = None, offset: int | None = None) -> Record:
        return self.lookup.read(
            record.time,
            record.segment if segment is None else segment,
            record.offset if offset is None else offset,
            len(record.payload),
        )


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.mark.parametrize("payload", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_the_size_of_a_record_is_known_before_it_is_made(payload: int) -> None:
    assert record_size(payload) == len(encode(NOW, bytes(payload)))


def test_records_are_read_where_they_stand(log: Log) -> None:
    assert [log.read(record) for record in log.records] == log.records
    assert log.lookup.searches == 0


def test_a_guess_that_is_too_small_reads_on(log: Log) -> None:
    log.write(4, [(NOW + 400, bytes(100_000))])
    assert log.lookup.read(NOW + 400, 4, 8, 10).payload == bytes(100_000)


def test_a_moved_record_is_found_by_its_time_and_its_neighbours_without_another_search(
    log: Log,
) -> None:
    """Cleaned by anybody: positions move, TIMEs stay."""
    kept = log.records[13:20]
    log.write(2, [(record.time, record.payload) for record in kept])
    for record in kept:
        found = log.read(record)
        assert (found.time, found.payload) == (record.time, record.payload)
        assert found.offset < record.offset
        assert log.read(found) == found
    assert log.lookup.searches == 1


def test_a_segment_that_was_cleaned_again_is_looked_through_again(log: Log) -> None:
    for start in (12, 15, 17):
        log.write(2, [(record.time, record.payload) for record in log.records[start:20]])
        assert log.read(log.records[19]).payload == log.records[19].payload
    assert log.lookup.searches == 3


def test_a_record_whose_segment_is_not_known_is_found_by_the_times_of_the_others(log: Log) -> None:
    record = log.records[25]
    assert log.read(record, segment=1, offset=0) == record
    assert log.read(record, segment=99, offset=0) == record


@pytest.mark.parametrize("at", [0, 5, 14, 15, 40])
def test_damage_names_file_and_offset_and_concerns_one_record_only(log: Log, at: int) -> None:
    """TIME, SIZE or payload: whatever is broken."""
    broken = log.records[14]
    log.damage(broken, at)
    with pytest.raises(CorruptRecord) as caught:
        log.read(broken)
    assert (caught.value.path, caught.value.offset) == (log.path(2), broken.offset)
    for record in log.records:
        if record is not broken:
            assert log.read(record) == record


def test_damage_in_a_segment_that_was_cleaned_does_not_hide_the_others(log: Log) -> None:
    log.write(2, [(record.time, record.payload) for record in log.records[13:20]])
    log.damage(log.read(log.records[15]))
    for record in (*log.records[13:15], *log.records[16:20]):
        assert log.read(record).payload == record.payload
    with pytest.raises(CorruptRecord):
        log.read(log.records[15])


def test_a_record_that_is_nowhere_is_a_typed_error(log: Log) -> None:
    log.write(2, [(record.time, record.payload) for record in log.records[15:20]])
    with pytest.raises(SegmentError, match="is not there") as caught:
        log.read(log.records[12])
    assert not isinstance(caught.value, CorruptRecord)
    log.files.remove(log.path(2))
    with pytest.raises(SegmentError, match="is not there"):
        log.read(log.records[15])


def test_only_large_records_are_remembered(log: Log) -> None:
    lookup = Lookup(log.stream, large=1000)
    log.write(2, [(NOW + 200, b"small"), (NOW + 201, bytes(2000)), (NOW + 202, b"small")])
    assert lookup.read(NOW + 201, 2, 0, 2000).payload == bytes(2000)
    for time in (NOW + 200, NOW + 202):
        with pytest.raises(SegmentError, match="is not there"):
            lookup.read(time, 2, 0, 5)
