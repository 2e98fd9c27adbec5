"""Sound and damaged messages and values from a seed, and what the wire makes of each: a line each.

Run as a program it prints these lines, so that two builds of the core can be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import wire_values
from fastjournal.errors import JournalError
from fastjournal.model import Job, Lease, State
from fastjournal.package.compiled import describe_core
from fastjournal.put_request import PutRequest
from fastjournal.wire.fj import bulk, entry_codec, job_codec
from fastjournal.wire.fj.functions import FUNCTIONS, Query
from fastjournal.wire.fj.replies import Pair, ReplyParser, encode_error, encode_ok, encode_reply
from fastjournal.wire.fj.requests import FRAME, MORE, FrameReader, Limits, encode_request

NOW = 1_700_000_000_000_000_000
LAST = 2**63 - 1
FUNCTION_NUMBERS = sorted(FUNCTIONS)


def request(draw: Random) -> bytes:
    """A request that is often what its function takes."""
    function = draw.choice(FUNCTION_NUMBERS) if draw.random() < 0.95 else draw.randrange(65_536)
    spec = FUNCTIONS.get(function)
    flags = sum(1 << bit for bit in range(16) if draw.random() < 0.12)
    if spec is not None and draw.random() < 0.8:
        flags &= spec.bits
    query = draw.choice(list(Query)) if spec is None or spec.bits & 0x180 else Query.KEY
    return encode_request(
        function,
        draw.choice((1, 500, 65_535)),
        flags=flags,
        timestamp=draw.choice((0, NOW, LAST)),
        timeout=draw.choice((None, None, 0, 5_000_000_000, LAST)),
        query=query,
        limit=draw.choice((0, 1, 65_535)),
        ttl=draw.choice((None, None, 0, 1, 2, 2**32 - 1)),
        key=draw.randbytes(draw.choice((0, 0, 1, 16, 16, 200, 300))),
        upper=draw.choice((b"", b"upper", b"u" * 260)) if query is Query.RANGE else b"",
        value_type=draw.choice((None, None, 0, 1, 2, 3, 4, 5, 6, 7, 255)),
        value=draw.randbytes(draw.choice((0, 1, 4, 8, 260, 2500))),
    )


def reply(draw: Random) -> bytes:
    """Any reply."""
    number, at = draw.randrange(65_536), draw.choice((0, NOW, LAST))
    kind = draw.random()
    if kind < 0.2:
        return encode_ok(number, at, draw.choice((0, 512)))
    if kind < 0.4:
        text = draw.choice(("", "X", "é" * draw.randrange(700), "NOT-FOUND no such job"))
        return encode_error(number, text, at, draw.randrange(65_536))
    pairs = [
        Pair(
            draw.randbytes(draw.choice((0, 3, 255, 256))),
            draw.randrange(256),
            draw.randbytes(draw.choice((0, 1, 254, 255, 66_000))),
            draw.choice((None, 0, NOW)),
        )
        for _ in range(draw.choice((0, 1, 1, 2, 5)))
    ]
    return encode_reply(
        number,
        at,
        flags=draw.randrange(65_536),
        timeout=draw.choice((None, 0, NOW)),
        pairs=pairs,
        several=draw.random() < 0.5,
        cursor=draw.choice((None, None, b"", b"c" * 300)),
    )


def job(draw: Random) -> PutRequest:
    """A job that may be or not."""
    return PutRequest(
        draw.choice((b"q", b"", b"q" * 255, b"q" * 300)),
        draw.randbytes(draw.choice((0, 10, 300))),
        draw.choice((b"", b"k", b"http://example.com/a", b"/no/domain")),
        draw.randrange(3),
        draw.choice((0, 100, 255, 256, -1, -LAST)),
        draw.choice((0, 5, NOW, LAST)),
        draw.choice((0, 7, NOW, LAST)),
        draw.choice((0, NOW)),
        draw.choice((0, 30)),
        draw.choice((0, 3, 2**31, 2**32 - 1)),
        draw.choice((0, 4)),
        draw.choice((0, 5)),
        draw.randrange(256),
        draw.choice((0, 90)),
        draw.choice((b"", draw.randbytes(16))),
    )


def leased(draw: Random) -> bytes:
    """A job handed out."""
    told = Job(
        draw.randbytes(16), b"queue", b"", draw.randbytes(20), draw.choice(list(State)), -7, NOW,
        NOW, NOW, 0, 2, 70_000, 1, 2, 9, 10, 11, 12, NOW, NOW, b"worker", b"", b"note", False,
        draw.random() < 0.5, draw.random() < 0.5, 13, (), 7,
    )  # fmt: skip
    lease = Lease(told, 70_000, NOW)
    short = draw.random() < 0.3
    return (job_codec.short_of if short else job_codec.encode_leased)(lease).value


def value(draw: Random) -> bytes:
    """The value of some message."""
    kind = draw.randrange(7)
    if kind == 0:
        return job_codec.encode_job(job(draw), draw.choice((0, 4, 8, 12)))
    if kind == 1:
        return wire_values.encode_jobs([job(draw) for _ in range(draw.randrange(4))])
    if kind == 2:
        jobs = [job_codec.encode_job(job(draw)) for _ in range(3)]
        return bulk.encode_forward([2, 9, 300], jobs)
    if kind == 3:
        return leased(draw)
    if kind == 4:
        return bulk.encode_settle(
            bulk.Settle(action, draw.randbytes(16), 7, None if action == 0 else 5, b"", b"why")
            for action in range(4)
        )
    if kind == 5:
        return bulk.encode_lease_request(
            bulk.LeaseRequest((b"a", b"b"), draw.randrange(1, 500), 10, 30, worker=b"w")
        )
    outcomes = [wire_values.PutOutcome(draw.randrange(4), draw.randbytes(16)) for _ in range(2)]
    return wire_values.encode_put_outcomes(
        [*outcomes, wire_values.PutOutcome(bulk.REFUSED, error="TOO-LARGE")]
    )


def damaged(draw: Random, data: bytes, first: int) -> bytes:
    """The same with some bytes changed, most of them among the first ones; or cut off."""
    changed = bytearray(data)
    if not changed or draw.random() < 0.3:
        return data
    for _ in range(draw.randrange(1, 4)):
        end = len(changed) if draw.random() < 0.3 else min(len(changed), first)
        changed[draw.randrange(end)] = draw.choice((0, 1, 255, draw.randrange(256)))
    if draw.random() < 0.2:
        del changed[draw.randrange(len(changed)) :]
    return bytes(changed)


def pieces(draw: Random, data: bytes) -> Iterator[bytes]:
    """The same, cut."""
    at = 0
    while at < len(data):
        size = draw.choice((1, 3, 19, 100, 1 << 20)) if len(data) < 4000 else 1 << 12
        yield data[at : at + size]
        at += size


def frames(draw: Random, data: bytes) -> Iterator[str]:
    """What a server makes of a stream."""
    limits = Limits(100, 2000, 2600) if draw.random() < 0.5 else Limits()
    reader = FrameReader(limits)
    for piece in pieces(draw, data):
        reader.feed(piece)
        while (found := reader.next()) != MORE:
            if found == FRAME:
                yield repr((
                    reader.function, reader.identifier, reader.flags, reader.timestamp,
                    reader.timeout, reader.ttl, reader.key, reader.kind, reader.value(),
                ))  # fmt: skip
            else:
                yield repr((found, reader.identifier, reader.code, reader.text))
        yield f"{reader.closed} {reader.pending}"


def replies(draw: Random, data: bytes) -> Iterator[str]:
    """What a client makes of a stream."""
    parser = ReplyParser(draw.choice((2000, 64 << 20)))
    for piece in pieces(draw, data):
        if parser.fault is not None:
            break
        yield repr(parser.feed(piece))
        yield f"{parser.fault!r} {parser.pending} {parser.busy}"


VALUES: tuple[Callable[[bytes], Any], ...] = (
    lambda data: job_codec.read_job(data, 0, len(data), b"", NOW, NOW),
    lambda data: job_codec.read_jobs(data, 0, len(data), NOW, NOW),
    lambda data: bulk.read_forward(data, 0, len(data), NOW, b"twelve bytes").jobs,
    lambda data: job_codec.decode_leased(Pair(b"k", 6, data)),
    wire_values.decode_settle,
    bulk.decode_lease_request,
    wire_values.decode_put_outcomes,
    bulk.decode_settle_outcomes,
    lambda data: entry_codec.decode_entry(b"k", 1, data),
    entry_codec.decode_who,
    bulk.decode_forwarded,
)


def values(data: bytes) -> Iterator[str]:
    """What is read of a value."""
    for read in VALUES:
        try:
            yield repr(read(data))
        except JournalError as error:
            yield repr(error)


def outcomes(seed: int, count: int) -> Iterator[str]:
    """All of it."""
    draw = Random(seed)
    for _ in range(count):
        stream = b"".join(damaged(draw, request(draw), 30) for _ in range(draw.randrange(1, 5)))
        yield from frames(draw, stream)
        stream = b"".join(damaged(draw, reply(draw), 40) for _ in range(draw.randrange(1, 5)))
        yield from replies(draw, stream)
        yield from values(damaged(draw, value(draw), 90))


if __name__ == "__main__":
    print(describe_core())
    for line in outcomes(int(sys.argv[1]), int(sys.argv[2])):
        print(line)
