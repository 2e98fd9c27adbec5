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

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import NamedTuple

import google_crc32c

__all__ = [
    "FFFF_ZONE",
    "MAX_PAYLOAD",
    "MIN_RECORD",
    "TIME_SIZE",
    "YEAR_1",
    "BrokenRecord",
    "Record",
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

YEAR_1 = 62_135_596_800  # seconds from 0001-01-01 to 1970-01-01
TIME_SIZE = 15
MIN_RECORD = TIME_SIZE + 1 + 4
MAX_PAYLOAD = 16 * 1024 * 1024
FFFF_ZONE = 0xFFFF

_TIME = Struct(">BQIH")
_CRC = Struct(">I")
_HEAD = Struct(">9sIHBB")  # version and seconds, nanoseconds, zone, two bytes of SIZE or payload
_CRC_AND_HEAD = Struct(">I9sIHBB")
_SECOND = 1_000_000_000
# TIME must fit signed 64-bit nanoseconds since 1970 (years 1678 to 2262).
_MAX_SECONDS = YEAR_1 + 9_223_372_036
_MIN_SECONDS = YEAR_1 - 9_223_372_036

_crc32c: Callable[[bytes], int] = google_crc32c.value


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
    seconds, nanoseconds = divmod(time, _SECOND)
    return _TIME.pack(1, seconds + YEAR_1, nanoseconds, zone)


def decode_time(data: bytes | memoryview, at: int = 0) -> int:
    """Read 15 bytes of TIME; raises `BrokenRecord` if they are not one."""
    version, seconds, nanoseconds, zone = _TIME.unpack_from(data, at)
    if version != 1 or nanoseconds >= _SECOND or (zone and zone != FFFF_ZONE):
        raise BrokenRecord(_time_fault(version, nanoseconds, zone))
    if not _MIN_SECONDS < seconds < _MAX_SECONDS:
        raise BrokenRecord("time out of range")
    return int((seconds - YEAR_1) * _SECOND + nanoseconds)


def encode(time: int, payload: bytes, zone: int = 0) -> bytes:
    """One record as bytes."""
    seconds, nanoseconds = divmod(time, _SECOND)
    if type(payload) is not bytes:
        payload = bytes(payload)
    pack, zone_and_size = _shape(len(payload), zone)
    body = pack(_version_and_seconds(seconds), nanoseconds, zone_and_size, payload)
    return body + _crc32c(body).to_bytes(4, "big")


def encode_many(first_time: int, payloads: Iterable[bytes], zone: int = 0) -> tuple[bytes, int]:
    """Records one nanosecond apart, as one buffer, and how many there are."""
    batch = payloads if isinstance(payloads, list) else list(payloads)
    if set(map(type, batch)) - {bytes}:
        batch = list(map(bytes, batch))
    count = len(batch)
    seconds, nanoseconds = divmod(first_time, _SECOND)
    room = _SECOND - nanoseconds
    if count > room:
        head, _ = encode_many(first_time, batch[:room], zone)
        tail, _ = encode_many(first_time + room, batch[room:], zone)
        return head + tail, count
    head = _version_and_seconds(seconds)
    instants = range(nanoseconds, nanoseconds + count)
    sizes = set(map(len, batch))
    if len(sizes) == 1:  # no step of this is run by the interpreter: a fifth faster
        pack, zone_and_size = _shape(sizes.pop(), zone)
        bodies = list(map(pack, repeat(head), instants, repeat(zone_and_size), batch))
    else:
        shapes = map(_shape, map(len, batch), repeat(zone))
        bodies = [
            pack(head, at, zone_and_size, payload)
            for at, (pack, zone_and_size), payload in zip(instants, shapes, batch, strict=False)
        ]
    parts = [b""] * (2 * count)
    parts[::2] = bodies
    parts[1::2] = map(_CRC.pack, map(_crc32c, bodies))
    return b"".join(parts), count


def decode(
    data: bytes, at: int, end: int, max_payload: int = MAX_PAYLOAD
) -> tuple[int, int, int, int]:
    """Check the record at `at`; returns (time, payload start, payload end, next record).

    Raises `BrokenRecord`. `end` bounds what may be read of `data`.
    """
    if at + MIN_RECORD > end:
        if at < end and data[at] != 1:
            raise BrokenRecord(f"time version {data[at]}, expected 1")
        raise BrokenRecord("record ends early", torn=True)
    version, seconds, nanoseconds, zone = _TIME.unpack_from(data, at)
    if version != 1 or nanoseconds >= _SECOND or (zone and zone != FFFF_ZONE):
        raise BrokenRecord(_time_fault(version, nanoseconds, zone))
    if not _MIN_SECONDS < seconds < _MAX_SECONDS:
        raise BrokenRecord("time out of range")
    size = data[at + TIME_SIZE]
    start = at + TIME_SIZE + 1
    if size >= 0x80:
        size, start = _long_size(data, start, end, size)
    if size > max_payload:
        raise BrokenRecord(f"size {size} exceeds the limit of {max_payload}")
    stop = start + size
    after = stop + 4
    if after > end:
        raise BrokenRecord("record ends early", torn=True)
    if _crc32c(data[at:stop]) != _CRC.unpack_from(data, stop)[0]:
        raise BrokenRecord("crc mismatch")
    return (seconds - YEAR_1) * _SECOND + nanoseconds, start, stop, after


def decode_many(
    data: bytes, at: int, end: int, segment: int, base: int, max_payload: int = MAX_PAYLOAD
) -> tuple[list[Record], int, BrokenRecord | None]:
    """All whole records from `at` on; returns (records, where it stopped, what stopped it).

    `base` is the file offset of `data[0]`. The stop is None at a clean end.
    """
    records: list[Record] = []
    while True:
        at = _decode_common(data, at, end, segment, base, max_payload, records.append)
        if at == end:
            return records, at, None
        # The last record, and anything else that is not common: `decode` names the fault.
        try:
            time, start, stop, after = decode(data, at, end, max_payload)
        except BrokenRecord as broken:
            return records, at, broken.with_traceback(None)  # it would hold `data` and all
        records.append(Record(time, data[start:stop], segment, base + at))
        at = after


def _decode_common(
    data: bytes,
    at: int,
    end: int,
    segment: int,
    base: int,
    max_payload: int,
    add: Callable[[Record], None],
) -> int:
    """Give whole records to `add` as long as they are common; returns where that ends.

    Common is a payload below 16 KiB and room for the head of another record behind it: so one
    unpacking takes the CRC of a record and the head of the next, and the check of the seconds is
    done once for all records of a second. A third less time than `decode` in a loop.
    """
    if end - at < _HEAD.size:
        return at
    new, unpack, crc = tuple.__new__, _CRC_AND_HEAD.unpack_from, _crc32c
    last = end - _CRC_AND_HEAD.size
    known = b""  # version and seconds of the record before
    second = 0
    head, nanoseconds, zone, size, more = _HEAD.unpack_from(data, at)
    while True:
        if head != known:
            known, seconds = head, int.from_bytes(head[1:])
            if head[0] != 1 or not _MIN_SECONDS < seconds < _MAX_SECONDS:
                return at
            second = (seconds - YEAR_1) * _SECOND
        if size < 0x80:
            start = at + TIME_SIZE + 1
        elif 0 < more < 0x80:
            size = size & 0x7F | more << 7
            start = at + TIME_SIZE + 2
        else:
            return at
        stop = start + size
        if stop > last or size > max_payload or nanoseconds >= _SECOND:
            return at
        if zone and zone != FFFF_ZONE:
            return at
        time = second + nanoseconds
        expected, head, nanoseconds, zone, size, more = unpack(data, stop)
        if crc(data[at:stop]) != expected:
            return at
        add(new(Record, (time, data[start:stop], segment, base + at)))
        at = stop + 4


@lru_cache(maxsize=4096)
def _shape(size: int, zone: int) -> tuple[Callable[..., bytes], bytes]:
    """A record but its CRC, packed in one call, and the zone and SIZE to give it.

    One pack of few parts takes half the time of joining them.
    """
    size_bytes = uvarint(size)
    pack = Struct(f">9sI{2 + len(size_bytes)}s{size}s").pack
    return pack, zone.to_bytes(2, "big") + size_bytes


@lru_cache(maxsize=16)
def _version_and_seconds(seconds: int) -> bytes:
    return b"\x01" + (seconds + YEAR_1).to_bytes(8, "big")


def _long_size(data: bytes, at: int, end: int, first: int) -> tuple[int, int]:
    size, shift = first & 0x7F, 7
    while True:
        if at >= end:
            raise BrokenRecord("record ends early", torn=True)
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte:
                raise BrokenRecord("size is not in its shortest form")
            return size, at
        shift += 7
        if shift > 28:
            raise BrokenRecord("size is longer than five bytes")


def _time_fault(version: int, nanoseconds: int, zone: int) -> str:
    if version != 1:
        return f"time version {version}, expected 1"
    if nanoseconds >= _SECOND:
        return f"{nanoseconds} nanoseconds in a time"
    return f"zone bytes {zone:04X}, expected 0000 or FFFF"
