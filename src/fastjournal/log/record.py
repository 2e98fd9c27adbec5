"""One record of a log: bytes <-> values. Pure; knows nothing of files or jobs.

    offset  size   field
    0       15     TIME     version 1 | seconds u64 | nanoseconds u32 | zone u16
    15      1..5   SIZE     unsigned LEB128, shortest form: number of payload bytes
    ..      SIZE   PAYLOAD  opaque, may be empty
    ..      4      CRC      CRC-32C over TIME, SIZE and PAYLOAD

All integers are big endian. Seconds count from 0001-01-01T00:00:00Z.

Rules:

1. Zone bytes are written as 00 00; FF FF is read too (real Workq writes it); anything else is
   damage.
2. SIZE is checked against a limit before anything is allocated.
3. `decode` tells *torn* (the buffer ends inside the record) from *damaged* (the bytes are wrong).
   Whether a torn record is normal is not decided here: only recovery may say so.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, final

import google_crc32c
from mypy_extensions import i16, i32, i64, mypyc_attr, u8

from fastjournal.buffers import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)

__all__ = [
    "FFFF_ZONE",
    "MAX_PAYLOAD",
    "MIN_RECORD",
    "TIME_SIZE",
    "YEAR_1",
    "BrokenRecord",
    "Record",
    "Walk",
    "add_record",
    "decode",
    "decode_many",
    "decode_time",
    "encode",
    "encode_many",
    "encode_time",
    "record_size",
    "uvarint",
]

if google_crc32c.implementation != "c":  # pragma: no cover - depends on the installation
    raise ImportError("google-crc32c runs without its C extension: 600 times too slow for a log")

YEAR_1: Final = 62_135_596_800  # seconds from 0001-01-01 to 1970-01-01
TIME_SIZE: Final = 15
MIN_RECORD: Final = TIME_SIZE + 1 + 4
MAX_PAYLOAD: Final = 16 * 1024 * 1024
FFFF_ZONE: Final = 0xFFFF

_SECOND: Final = 1_000_000_000
# TIME must fit signed 64-bit nanoseconds since 1970 (years 1678 to 2262).
_MAX_SECONDS: Final = YEAR_1 + 9_223_372_036
_MIN_SECONDS: Final = YEAR_1 - 9_223_372_036

_crc32c: Final[Callable[[bytes], int]] = google_crc32c.value
_new: Final[Any] = tuple.__new__


class Record(NamedTuple):
    """What a cursor returns: when it was appended, what was appended, and where it stands."""

    time: int
    """Ns since 1970 UTC; strictly increasing along a stream, so it identifies the record."""
    payload: bytes
    segment: int
    offset: int


class BrokenRecord(Exception):
    """No whole record stands here; `torn` if the bytes merely end too early."""

    def __init__(self, reason: str, *, torn: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.torn = torn


def uvarint(value: int) -> bytes:
    """Encode an unsigned LEB128 integer in its shortest form."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record_size(payload: int) -> int:
    """Bytes of a record with a payload of so many bytes."""
    size = MIN_RECORD + payload
    while payload >= 0x80:
        payload >>= 7
        size += 1
    return size


def encode_time(time: int, zone: int = 0) -> bytes:
    """The 15 bytes of an instant given in ns since 1970."""
    out = BytesWriter()
    _put_time(out, time, zone)
    return out.getvalue()


def decode_time(data: bytes | memoryview, at: int = 0) -> int:
    """Read 15 bytes of TIME; raises `BrokenRecord` if they are not one."""
    time = bytes(data[at : at + TIME_SIZE])
    if len(time) < TIME_SIZE:
        raise BrokenRecord("record ends early", torn=True)
    return _get_time(time, 0)


def encode(time: int, payload: bytes | bytearray | memoryview, zone: int = 0) -> bytes:
    """One record as bytes."""
    out = BytesWriter()
    add_record(out, BytesWriter(), time, _as_bytes(payload), zone)
    return out.getvalue()


def encode_many(
    first_time: int, payloads: Iterable[bytes | bytearray | memoryview], zone: int = 0
) -> tuple[bytes, int]:
    """Records one nanosecond apart, as one buffer, and how many there are."""
    out = BytesWriter()
    scratch = BytesWriter()
    time: i64 = first_time
    zones: i64 = zone
    count = 0
    for payload in payloads:
        add_record(out, scratch, time, _as_bytes(payload), zones)
        time += 1
        count += 1
    return out.getvalue(), count


def add_record(
    out: BytesWriter, scratch: BytesWriter, time: i64, payload: bytes, zone: i64
) -> None:
    """Append one record to a batch; `scratch` is empty before and after."""
    _put_time(scratch, time, zone)
    size: i64 = len(payload)
    while size >= 0x80:
        scratch.append(u8(size & 0x7F | 0x80))
        size >>= 7
    scratch.append(u8(size))
    scratch.write(payload)
    body = scratch.getvalue()
    scratch.truncate(0)
    out.write(body)
    crc: i64 = _crc32c(body)
    write_i32_be(out, i32(crc - 0x1_0000_0000 if crc >= 0x8000_0000 else crc))


def decode(
    data: bytes, at: int, end: int, max_payload: int = MAX_PAYLOAD
) -> tuple[int, int, int, int]:
    """Check the record at `at`; returns (time, payload start, payload end, next record).

    Raises `BrokenRecord`. `end` bounds what may be read of `data`.
    """
    walk = Walk(data, at, end, max_payload)
    walk.step()
    return walk.time, walk.start, walk.stop, walk.at


def decode_many(
    data: bytes, at: int, end: int, segment: int, base: int, max_payload: int = MAX_PAYLOAD
) -> tuple[list[Record], int, BrokenRecord | None]:
    """All whole records from `at` on; returns (records, where it stopped, what stopped it).

    `base` is the file offset of `data[0]`. The stop is None at a clean end.
    """
    records: list[Record] = []
    walk = Walk(data, at, end, max_payload)
    while walk.at < walk.end:
        here: i64 = walk.at
        try:
            walk.step()
        except BrokenRecord as broken:
            return records, here, broken.with_traceback(None)  # it would hold `data` and all
        record: Record = _new(
            Record, (walk.time, data[walk.start : walk.stop], segment, base + here)
        )
        records.append(record)
    return records, walk.at, None


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Walk:
    """Goes from record to record over a buffer."""

    def __init__(self, data: bytes, at: i64, end: i64, max_payload: i64 = MAX_PAYLOAD) -> None:
        self.data = data
        self.at: i64 = at
        """Where the next record begins."""
        self.end: i64 = end
        self.max_payload: i64 = max_payload
        self.time: i64 = 0
        self.start: i64 = 0
        """Where the payload of the record just passed begins, and where it ends."""
        self.stop: i64 = 0

    def step(self) -> None:
        """Pass the next record; `BrokenRecord` if none stands here, and nothing has moved."""
        data = self.data
        at = self.at
        end = self.end
        if at + MIN_RECORD > end:
            if at < end and data[at] != 1:
                raise BrokenRecord(f"time version {data[at]}, expected 1")
            raise BrokenRecord("record ends early", torn=True)
        time = _get_time(data, at)
        start = at + TIME_SIZE + 1
        size: i64 = data[start - 1]
        if size >= 0x80:
            size &= 0x7F
            shift: i64 = 7
            while True:
                if start >= end:
                    raise BrokenRecord("record ends early", torn=True)
                byte: i64 = data[start]
                start += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 28:
                    raise BrokenRecord("size is longer than five bytes")
            if not byte:
                raise BrokenRecord("size is not in its shortest form")
        if size > self.max_payload:
            raise BrokenRecord(f"size {size} exceeds the limit of {self.max_payload}")
        stop = start + size
        if stop + 4 > end:
            raise BrokenRecord("record ends early", torn=True)
        crc: i64 = _crc32c(data[at:stop])
        if crc != i64(read_i32_be(data, stop)) & 0xFFFF_FFFF:
            raise BrokenRecord("crc mismatch")
        self.time = time
        self.start = start
        self.stop = stop
        self.at = stop + 4


def _as_bytes(payload: bytes | bytearray | memoryview) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, (bytearray, memoryview)):
        return bytes(payload)
    raise TypeError(f"a payload is bytes, not {type(payload).__name__}")


def _put_time(out: BytesWriter, time: i64, zone: i64) -> None:
    seconds = time // _SECOND
    out.append(1)
    write_i64_be(out, seconds + YEAR_1)
    write_i32_be(out, i32(time - seconds * _SECOND))
    write_i16_be(out, i16(zone - 0x1_0000 if zone >= 0x8000 else zone))


def _get_time(data: bytes, at: i64) -> i64:
    version: i64 = data[at]
    seconds = read_i64_be(data, at + 1)
    nanoseconds = i64(read_i32_be(data, at + 9)) & 0xFFFF_FFFF
    zone = i64(read_i16_be(data, at + 13)) & 0xFFFF
    if version != 1:
        raise BrokenRecord(f"time version {version}, expected 1")
    if nanoseconds >= _SECOND:
        raise BrokenRecord(f"{nanoseconds} nanoseconds in a time")
    if zone and zone != FFFF_ZONE:
        raise BrokenRecord(f"zone bytes {zone:04X}, expected 0000 or FFFF")
    if not _MIN_SECONDS < seconds < _MAX_SECONDS:
        raise BrokenRecord("time out of range")
    return (seconds - YEAR_1) * _SECOND + nanoseconds
