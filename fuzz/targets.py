"""What is fuzzed: any bytes give a value or our error, nothing else, and never a wrong record.

Each target takes bytes and raises AssertionError when the invariant breaks. Any other exception
that escapes is a finding too.
"""

from __future__ import annotations

from collections.abc import Callable

from fastjournal.errors import JournalError
from fastjournal.log.record import BrokenRecord, decode, decode_many, encode
from fastjournal.log.scan.scan import DROPMALFORMED, Chunk, Scan, verify
from fastjournal.log.segment import HEADER_SIZE, Header, parse_name, segment_name

LIMIT = 1 << 20  # payload limit while fuzzing: sizes above it must be refused, not allocated


def record(data: bytes) -> None:
    """One record: what decodes encodes back to the same bytes."""
    try:
        time, start, stop, after = decode(data, 0, len(data), LIMIT)
    except BrokenRecord as broken:
        assert broken.reason
        return
    assert 0 < start <= stop < after <= len(data)
    zone = int.from_bytes(data[13:15], "big")
    assert encode(time, data[start:stop], zone) == data[:after]


def records(data: bytes) -> None:
    """Many records: the fast loop agrees with the slow one, in what it reads and where it stops."""
    found, stopped, broken = decode_many(data, 0, len(data), 1, 0, LIMIT)
    at = 0
    for got in found:
        time, start, stop, after = decode(data, at, len(data), LIMIT)
        assert got == (time, data[start:stop], 1, at)
        at = after
    assert at == stopped
    assert (broken is None) == (at == len(data))
    if broken is not None:
        try:
            decode(data, at, len(data), LIMIT)
        except BrokenRecord as slow:
            assert (slow.reason, slow.torn) == (broken.reason, broken.torn)
        else:
            raise AssertionError(f"only the fast loop refuses the record at {at}")


def segment(data: bytes) -> None:
    """A whole segment: every engine of the scan finds the same records and faults."""
    if len(data) >= HEADER_SIZE:
        header = Header.decode(data)
        assert header.encode() == data[:HEADER_SIZE]
        header.check(data, "fuzz")
        try:
            Header(b"cptn").check(data, "fuzz")
        except JournalError:
            assert data[:HEADER_SIZE] != b"cptn\0\0\0\1"
    body = data[:HEADER_SIZE].ljust(HEADER_SIZE, b"\0") + data[HEADER_SIZE:]
    for newest in (False, True):
        verdict = verify(body, newest=newest, max_payload=LIMIT)
        scan = Scan(body, newest=newest, mode=DROPMALFORMED, engine="numpy", max_payload=LIMIT)
        times = [int(t) for chunk in scan if isinstance(chunk, Chunk) for t in chunk.times]
        assert verdict.records == len(times) == scan.records
        assert (verdict.end, verdict.torn) == (scan.end, scan.torn)
        assert list(verdict.damage) == scan.damage
        covered = sum(damage.end - damage.offset for damage in verdict.damage)
        assert HEADER_SIZE + covered <= verdict.end or not verdict.damage


def name(data: bytes) -> None:
    """A file name: a segment's number or foreign; a number names the file it came from."""
    text = data.decode("utf-8", "replace")
    number = parse_name(text)
    assert number is None or segment_name(number) == text


TARGETS: dict[str, Callable[[bytes], None]] = {
    "record": record,
    "records": records,
    "segment": segment,
    "name": name,
}


def seeds() -> list[bytes]:
    """Bytes worth starting from: sound records and segments, short, long and empty."""
    time = 1_700_000_000_123_456_789
    one = encode(time, b"hello")
    many = b"".join(encode(time + n, bytes(n % 251 for n in range(n * 7))) for n in range(40))
    long = encode(time, b"x" * 20_000)
    workq = encode(time, b"y" * 200, 0xFFFF)
    head = Header(b"cptn").encode()
    return [
        b"",
        one,
        many,
        long,
        workq,
        head,
        head + one,
        head + many,
        head + one + bytes(40) + one,
        Header(b"wqwq").encode() + workq + long,
        b"000000001.log",
        b"1234567890.log",
    ]
