"""Streams of both protocols: round trips, any cut gives the same messages, any bytes are safe."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastjournal import model
from fastjournal.errors import ProtocolError, RequestError, VersionMismatch
from fastjournal.model import MAX_INSTANT, Job, Mode, State
from fastjournal.put_request import PutRequest
from fastjournal.wire.fj.bulk import (
    ForwardRequest,
    LeaseRequest,
    Settle,
    SettleOutcome,
    decode_lease_request,
    decode_settle_outcomes,
    encode_lease_request,
    encode_settle,
    read_forward,
)
from fastjournal.wire.fj.functions import (
    DATA,
    GONE,
    LOCKED,
    PUSH,
    STABLE,
    STALE,
    WORKED_ON,
    Function,
    Query,
)
from fastjournal.wire.fj.hello import Hello, decode_hello, encode_hello
from fastjournal.wire.fj.job_codec import (
    DELAY,
    LIFETIME,
    decode_leased,
    encode_job,
    encode_leased,
    read_job,
    read_jobs,
)
from fastjournal.wire.fj.replies import Pair, Reply, ReplyParser, encode_error, encode_reply
from fastjournal.wire.fj.requests import (
    Limits,
    Refusal,
    Request,
    RequestParser,
    encode_request,
)
from fastjournal.wire.workq.requests import (
    Add,
    Command,
    Complete,
    Delete,
    Fail,
    InspectJobs,
    InspectServer,
    Lease,
    Refused,
    Result,
    Run,
    Schedule,
    WorkqParser,
)
from wire_values import (
    PutOutcome,
    decode_put_outcomes,
    decode_settle,
    encode_jobs,
    encode_put_outcomes,
    encode_settle_outcomes,
)
from workq_bytes import encode

# Building the table of characters for text() once is all that is slow here.
run = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SMALL = Limits(max_key=300, max_value=2000, max_message=4000)

instants = st.integers(0, MAX_INSTANT // 1000).map(lambda us: us * 1000)
moments = st.integers(0, MAX_INSTANT)
u16, u32 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32))
keys = st.binary(max_size=300)
blobs = st.binary(max_size=600)
ids = st.binary(min_size=16, max_size=16)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Request, bytes]:
    """A sound GET, SET, NEXT or unknown function, with its bytes."""
    function = draw(st.sampled_from([Function.SET, Function.GET, Function.NOP, Function.DELETE]))
    fields: dict[str, object] = {"timestamp": draw(instants)}
    if function is Function.SET:
        fields |= {
            "key": draw(st.binary(min_size=1, max_size=300)),
            "value_type": draw(st.integers(0, 255)),
            "value": draw(blobs),
            "timeout": draw(st.none() | instants),
            "ttl": draw(st.none() | u32),
            "flags": draw(st.sampled_from([0, 1 << 4, 1 << 5, 1 << 9, 1 << 11, 1 << 12])),
        }
    elif function is Function.GET:
        query = draw(st.sampled_from(Query))
        fields |= {"query": query, "key": draw(st.binary(min_size=1, max_size=300))}
        fields |= {"timeout": draw(st.none() | instants), "ttl": draw(st.none() | st.just(0))}
        if query is Query.RANGE:
            fields |= {"limit": draw(u16), "upper": draw(keys)}
    elif function is Function.DELETE:
        fields |= {"key": draw(st.binary(min_size=1, max_size=300))}
    identifier = draw(st.integers(1, 0xFFFF))
    data = encode_request(function, identifier, **fields)  # type: ignore[arg-type]
    flags = int.from_bytes(data[8:10], "big")
    fields.pop("flags", None), fields.pop("query", None)
    return Request(function, identifier, flags, **fields), data  # type: ignore[arg-type]


@st.composite
def replies(draw: st.DrawFn) -> tuple[Reply, bytes]:
    """Any reply that the encoder writes, with its bytes."""
    identifier, timestamp = draw(u16), draw(instants)
    if draw(st.booleans()):
        error = draw(st.text(min_size=1, max_size=200))
        error = error.encode("utf-8", "replace").decode()
        data = encode_error(identifier, error, timestamp)
        return Reply(identifier, data[7] & 1, timestamp, error=error), data
    expiring = draw(st.booleans())
    pairs = draw(
        st.lists(
            st.builds(Pair, keys, st.integers(0, 255), blobs, instants if expiring else st.none()),
            max_size=5,
        )
    )
    flags = draw(st.sampled_from([0, STALE, LOCKED, WORKED_ON, STABLE, DATA, PUSH | GONE]))
    cursor = draw(st.none() | keys)
    timeout = draw(st.none() | instants)
    several = draw(st.booleans())
    data = encode_reply(
        identifier, timestamp, flags=flags, timeout=timeout, pairs=pairs, cursor=cursor,
        several=several,
    )  # fmt: skip
    bits = int.from_bytes(data[6:8], "big")
    return Reply(identifier, bits, timestamp, timeout, "", tuple(pairs), cursor), data


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data in pieces, empty ones too."""
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in pairwise([0, *at, len(data)])]


@run
@given(st.lists(requests(), max_size=6), st.data())
def test_any_cut_of_requests_gives_the_same_requests(
    sent: list[tuple[Request, bytes]], data: st.DataObject
) -> None:
    """FJ-MSG-2: round trip, whole and in pieces."""
    stream = b"".join(raw for _, raw in sent)
    parser = RequestParser()
    got = [message for piece in data.draw(cuts(stream)) for message in parser.feed(piece)]
    assert got == [request for request, _ in sent]
    assert parser.pending == 0


@run
@given(st.lists(replies(), max_size=6), st.data())
def test_any_cut_of_replies_gives_the_same_replies(
    sent: list[tuple[Reply, bytes]], data: st.DataObject
) -> None:
    """FJ-RPL-1: round trip, whole and in pieces."""
    stream = b"".join(raw for _, raw in sent)
    parser = ReplyParser()
    got = [reply for piece in data.draw(cuts(stream)) for reply in parser.feed(piece)]
    assert got == [reply for reply, _ in sent]
    assert parser.pending == 0
    assert parser.fault is None


def read_all(pieces: list[bytes]) -> tuple[list[Request | Refusal], bool]:
    parser = RequestParser(SMALL)
    got = []
    for piece in pieces:
        got += parser.feed(piece)
        assert parser.pending <= SMALL.max_message + 32
    return got, parser.closed


@st.composite
def damaged(draw: st.DrawFn, source: st.SearchStrategy[bytes]) -> bytes:
    """Sound messages with a few bytes changed, or bytes of no meaning."""
    stream = bytearray(draw(source))
    for _ in range(draw(st.integers(0, 4))):
        if stream:
            stream[draw(st.integers(0, len(stream) - 1))] = draw(st.integers(0, 255))
    return bytes(stream) + draw(st.binary(max_size=60))


def joined(
    parts: st.SearchStrategy[tuple[Request, bytes]] | st.SearchStrategy[tuple[Reply, bytes]],
) -> st.SearchStrategy[bytes]:
    return st.lists(parts, max_size=4).map(lambda found: b"".join(raw for _, raw in found))


@run
@given(damaged(joined(requests())), st.data())
def test_damaged_requests_read_the_same_in_every_cut(stream: bytes, data: st.DataObject) -> None:
    """D-32: a message, or a refusal; never an exception, never more memory than the limit."""
    whole = read_all([stream])
    assert read_all(data.draw(cuts(stream))) == whole
    assert read_all([stream[n : n + 1] for n in range(len(stream))]) == whole


def read_replies(pieces: list[bytes]) -> tuple[list[Reply], type | None]:
    parser = ReplyParser(4000)
    got = []
    for piece in pieces:
        got += parser.feed(piece)
        if parser.fault is not None:
            assert isinstance(parser.fault, ProtocolError | VersionMismatch)
            assert parser.pending == 0
            return got, type(parser.fault)
    return got, None


@run
@given(damaged(joined(replies())), st.data())
def test_damaged_replies_read_the_same_in_every_cut(stream: bytes, data: st.DataObject) -> None:
    """A broken server gives replies, then one typed fault."""
    whole = read_replies([stream])
    assert read_replies(data.draw(cuts(stream))) == whole
    assert read_replies([stream[n : n + 1] for n in range(len(stream))]) == whole


# Values.

priorities64 = st.integers(-(1 << 63), (1 << 63) - 1)
tries = st.integers(0, (1 << 31) - 1)
puts = st.builds(
    PutRequest, st.binary(min_size=1, max_size=255), blobs, st.binary(min_size=1, max_size=300),
    st.sampled_from([Mode.MERGE, Mode.UNIQUE]), st.integers(0, 255), moments, moments,
    st.integers(1, MAX_INSTANT), moments, tries, tries, tries, st.integers(0, 255), moments,
    ids.filter(any),
)  # fmt: skip


@st.composite
def leases(draw: st.DrawFn) -> model.Lease:
    """A lease as a reply tells it: without result and aliases."""
    until = draw(moments)
    numbers = [draw(u32) for _ in range(6)]
    instants = [draw(moments) for _ in range(4)]
    job = Job(
        draw(ids), draw(keys), draw(keys), draw(blobs), draw(st.sampled_from(State)),
        draw(priorities64), *instants, draw(st.integers(0, 255)), *numbers, draw(moments),
        draw(moments), until, draw(keys), b"", draw(keys), False, draw(st.booleans()),
        draw(st.booleans()), draw(moments), (), draw(priorities64),
    )  # fmt: skip
    return model.Lease(job, draw(u32), until)


settles = st.builds(
    Settle,
    st.just(0),
    ids.filter(any),
    u32,
    st.none(),
    keys,
    st.none() | blobs,
) | st.builds(
    Settle, st.integers(1, 3), ids.filter(any), u32, st.none() | moments, keys, st.none() | blobs
)
texts = st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace").decode())


@run
@given(puts, leases())
def test_jobs_round_trip(put: PutRequest, leased: model.Lease) -> None:
    data = encode_job(put)
    assert read_job(data, 0, len(data), put.key).new_job() == put.new_job()
    for flags in (int(DELAY), int(LIFETIME), int(DELAY | LIFETIME)):  # from 1970 on
        data = encode_job(put, flags)
        assert read_job(data, 0, len(data)).new_job() == put.new_job()
    assert decode_leased(encode_leased(leased)) == leased


@run
@given(st.lists(puts, max_size=4), st.lists(settles, max_size=4))
def test_bulk_values_round_trip(jobs: list[PutRequest], items: list[Settle]) -> None:
    data = encode_jobs(jobs)
    read = [job for job in read_jobs(data, 0, len(data)) if isinstance(job, PutRequest)]
    assert [job.new_job() for job in read] == [job.new_job() for job in jobs]
    assert decode_settle(encode_settle(items)) == items


@run
@given(
    st.lists(
        st.builds(PutOutcome, st.integers(0, 254), ids, st.just(""))
        | st.builds(PutOutcome, st.just(255), st.just(bytes(16)), texts),
        max_size=6,
    ),
    st.lists(
        st.builds(SettleOutcome, st.integers(0, 254), moments, st.just(""))
        | st.builds(SettleOutcome, st.just(255), st.just(0), texts),
        max_size=6,
    ),
)
def test_outcomes_round_trip(puts: list[PutOutcome], settled: list[SettleOutcome]) -> None:
    assert decode_put_outcomes(encode_put_outcomes(puts)) == puts
    assert decode_settle_outcomes(encode_settle_outcomes(settled)) == settled


@run
@given(
    st.builds(
        LeaseRequest, st.lists(keys, max_size=4).map(tuple), st.integers(1, 0xFFFF), u32, moments,
        st.just(False), st.booleans(), st.booleans(), u32, keys,
    ),
    st.builds(Hello, texts, texts, u16),
)  # fmt: skip
def test_lease_requests_and_hellos_round_trip(wanted: LeaseRequest, hello: Hello) -> None:
    assert decode_lease_request(encode_lease_request(wanted)) == wanted
    assert decode_hello(encode_hello(hello)) == hello


DECODERS = (
    lambda value: read_job(value, 0, len(value)), lambda value: read_jobs(value, 0, len(value)),
    lambda value: read_forward(value, 0, len(value), 0), decode_settle, decode_lease_request,
    decode_put_outcomes,
    decode_settle_outcomes, decode_hello, lambda value: decode_leased(Pair(b"", 6, value)),
)  # fmt: skip


@run
@given(damaged(st.one_of(
    puts.map(encode_job), st.lists(puts, max_size=2).map(encode_jobs),
    st.lists(settles, max_size=2).map(encode_settle),
    leases().map(lambda lease: encode_leased(lease).value),
)))  # fmt: skip
def test_damaged_values_give_a_value_or_our_error(value: bytes) -> None:
    for decoder in DECODERS:
        found = None
        with suppress(RequestError):
            found = decoder(value)
        assert found is None or isinstance(
            found, tuple | list | Hello | PutRequest | ForwardRequest | LeaseRequest
        )


# Workq.

names = st.text("abcXYZ019_.-", min_size=1, max_size=30)
versions4 = ids.map(lambda i: i[:6] + bytes([i[6] & 15 | 64, i[7], i[8] & 63 | 128]) + i[9:])
waits = st.integers(0, 86_400_000)
ttrs, ttls = st.integers(1, 86_400_000), st.integers(1, 2_592_000_000)
priorities = st.integers(-(1 << 31), (1 << 31) - 1)
u8 = st.integers(0, 255)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(Add, versions4, names, ttrs, ttls, blobs, priorities, u8, u8),
    st.builds(
        Schedule, versions4, names, ttrs, ttls, st.integers(0, 1 << 62), blobs, priorities, u8, u8
    ),
    st.builds(Run, versions4, names, ttrs, waits, blobs, priorities),
    st.builds(Lease, st.lists(names, min_size=1, max_size=4).map(tuple), waits),
    st.builds(Complete, versions4, blobs),
    st.builds(Fail, versions4, blobs),
    st.builds(Result, versions4, waits),
    st.builds(Delete, ids),
    st.builds(InspectJobs, names, u32, st.integers(1, 100), st.booleans()),
    st.just(InspectServer()),
)


@run
@given(st.lists(commands, max_size=6), st.data())
def test_any_cut_of_workq_commands_gives_the_same_commands(
    sent: list[Command], data: st.DataObject
) -> None:
    """F.4: round trip, whole and in pieces."""
    stream = b"".join(map(encode, sent))
    parser = WorkqParser()
    got = [command for piece in data.draw(cuts(stream)) for command in parser.feed(piece)]
    assert got == sent
    assert not parser.closed


def read_workq(pieces: list[bytes]) -> tuple[list[Command | Refused], bool]:
    parser = WorkqParser(max_request=3000)
    got = []
    for piece in pieces:
        got += parser.feed(piece)
        assert parser.pending <= 3000 + len(piece)
    return got + parser.finish(), parser.closed


@run
@given(
    damaged(st.lists(commands, max_size=4).map(lambda found: b"".join(map(encode, found))))
    | st.text("add run-=19 \r\n{}", max_size=200).map(str.encode),
    st.data(),
)
def test_damaged_workq_streams_read_the_same_in_every_cut(
    stream: bytes, data: st.DataObject
) -> None:
    """A command, a refusal or a close; never an exception (H.2 8)."""
    whole = read_workq([stream])
    assert read_workq(data.draw(cuts(stream))) == whole
    assert read_workq([stream[n : n + 1] for n in range(len(stream))]) == whole
