"""FJ requests and replies: framing, limits, refusals, and the table of functions."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from fastjournal.errors import (
    BadRequest,
    JournalFault,
    LeaseLost,
    NotFound,
    OutOfRange,
    ProtocolError,
    QueueFull,
    TooLarge,
    Unavailable,
    VersionMismatch,
)
from fastjournal.wire.fj.client import Conversation
from fastjournal.wire.fj.fields import decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    DATA,
    FUNCTIONS,
    PERSIST,
    PERSIST_SET,
    STABLE,
    STALE,
    WORKED_ON,
    Function,
    Key,
    Query,
    Role,
    Type,
)
from fastjournal.wire.fj.hello import FOLLOWER, Hello, decode_hello, encode_hello
from fastjournal.wire.fj.replies import (
    CODES,
    Pair,
    ReplyParser,
    encode_error,
    encode_ok,
    encode_push,
    encode_reply,
    error_from,
    error_text,
)
from fastjournal.wire.fj.requests import (
    BEFORE_HELLO,
    FRAME,
    MORE,
    FrameReader,
    Limits,
    Refusal,
    Request,
    RequestParser,
    encode_request,
)

T = 1_700_000_000_000_000_000
ID = bytes(range(16))


def parse(data: bytes) -> Request | Refusal:
    (message,) = RequestParser().feed(data)
    return message


def head(function: int, flags: int, *, version: int = 1, identifier: int = 9) -> bytes:
    return struct.pack(">2sHHHHQ", b"FJ", version, function, identifier, flags, 0)


# Framing faults: answered, then the connection ends (D-32).


@pytest.mark.parametrize(
    "data", [b"X", b"FX", b"GET / HTTP/1.1\r\n", b"\0" * 40, b"JR\0\1" + b"\0" * 30]
)
def test_wrong_magic_is_refused_and_closes(data: bytes) -> None:
    """D-32."""
    parser = RequestParser()
    assert parser.feed(data) == [Refusal(0, "CLIENT-ERROR", "no FJ message", True)]
    assert parser.closed
    assert parser.feed(encode_request(Function.NOP, 1)) == []


def test_another_version_is_refused_with_its_identifier_and_closes() -> None:
    """D-32."""
    parser = RequestParser()
    (refusal,) = parser.feed(head(Function.NOP, 0, version=2) + b"\0")
    assert isinstance(refusal, Refusal)
    assert (refusal.identifier, refusal.code, refusal.close) == (9, "VERSION", True)


def test_a_version_is_told_as_soon_as_the_identifier_is_there() -> None:
    parser = RequestParser()
    assert parser.feed(head(0, 0, version=3)[:7]) == []
    assert len(parser.feed(head(0, 0, version=3)[7:8])) == 1


def test_a_value_of_size_zero_is_refused_and_closes() -> None:
    """4.1: V counts the type byte."""
    refusal = parse(head(Function.SET, 2) + b"\1a\0")
    assert refusal == Refusal(9, "CLIENT-ERROR", "value of size 0", True)


@pytest.mark.parametrize(
    ("limits", "data"),
    [
        (Limits(max_key=10), head(Function.SET, 3) + b"\0\x0b"),
        (Limits(max_key=10), head(Function.GET, 0x80) + b"\0\0\1a\x0b"),
        (Limits(max_value=100), head(Function.SET, 6) + b"\1a\0\0\0\x65"),
        (Limits(), head(Function.SET, 6) + b"\1a\xff\xff\xff\xff"),
        (Limits(), head(Function.PUTS, 6) + b"\0\xff\xff\xff\xff"),
        (Limits(max_message=1000), head(Function.PUTS, 6) + b"\0\0\0\x03\xe8"),
    ],
)
def test_a_size_beyond_its_limit_is_refused_before_the_bytes_come(
    limits: Limits, data: bytes
) -> None:
    """4.1, law 9."""
    parser = RequestParser(limits)
    (refusal,) = parser.feed(data)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.close) == ("TOO-LARGE", True)
    assert parser.pending == 0


def test_a_value_of_the_largest_size_is_taken() -> None:
    limits = Limits(max_value=1000)
    message = encode_request(Function.SET, 1, key=b"k", value_type=1, value=b"x" * 999)
    (request,) = RequestParser(limits).feed(message)
    assert isinstance(request, Request)
    assert len(request.value) == 999


def test_a_bulk_value_may_be_larger_than_a_plain_one() -> None:
    limits = Limits(max_value=1000)
    message = encode_request(Function.PUTS, 1, value_type=1, value=b"x" * 5000)
    (request,) = RequestParser(limits).feed(message)
    assert isinstance(request, Request)


def test_a_job_of_one_mebibyte_with_the_longest_names_fits_the_default_limits() -> None:
    value = b"x" * ((1 << 20) + 65_535 + 255 + 78)
    message = encode_request(Function.SET, 1, key=b"k" * 65_535, value_type=6, value=value)
    assert isinstance(parse(message), Request)


def test_a_declared_size_costs_no_memory() -> None:
    """Law 9: memory follows what came, not what was announced."""
    data = head(Function.PUTS, 6) + b"\0" + struct.pack(">I", (16 << 20) - 100)
    tracemalloc.start()
    parser = RequestParser()
    for n in range(0, len(data), 3):
        parser.feed(data[n : n + 3])
    parser.feed(b"x" * 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 1024
    assert parser.pending == len(data) + 1000


# Refusals that keep the connection (D-32).


@pytest.mark.parametrize("function", [20, 31, 39, 47, 255, 65_535])
def test_an_unknown_function_is_refused_and_skipped(function: int) -> None:
    """D-32: framing is generic, whatever the fields."""
    flags = 0x2000 | 0x80 | 8 | 4 | 1
    body = struct.pack(">QHIH3sH2sHB3s", 1, 2, 3, 3, b"key", 2, b"up", 4, 1, b"val")
    parser = RequestParser()
    refusal, request = parser.feed(head(function, flags) + body + encode_request(Function.NOP, 2))
    assert isinstance(refusal, Refusal)
    assert (refusal.identifier, refusal.code, refusal.close) == (9, "BAD-FUNCTION", False)
    assert isinstance(request, Request)


@pytest.mark.parametrize("row", FUNCTIONS.values(), ids=lambda row: row.function.name)
def test_every_bit_that_a_function_does_not_take_is_refused(row: object) -> None:
    """FJ-FLG-T, D-32, 4.4: bit by bit over all functions."""
    spec = FUNCTIONS[int(row.function)]  # type: ignore[attr-defined]
    key = b"" if spec.key is Key.NONE else ID
    value_type = None
    if spec.value_needed:
        value_type = Type.BUFFER if spec.types is None else min(spec.types, default=1)
    sound = encode_request(spec.function, 7, key=key, value_type=value_type)
    assert isinstance(parse(sound), Request), parse(sound)
    for bit in (4, 5, 6, 9, 10, 11, 12, 14, 15):
        flags = struct.unpack_from(">H", sound, 8)[0] | 1 << bit
        message = sound[:8] + struct.pack(">H", flags) + sound[10:]
        (answer,) = RequestParser().feed(message)
        if spec.bits >> bit & 1 and bit != 14:  # which needs bit 3
            assert isinstance(answer, Request), (bit, answer)
        else:
            assert isinstance(answer, Refusal)
            assert (answer.code, answer.close, answer.identifier) == ("BAD-FLAGS", False, 7)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("BAD-FLAGS", encode_request(Function.SET, 1, key=b"k")),
        ("BAD-FLAGS", encode_request(Function.NOP, 1, value_type=1, value=b"x")),
        ("BAD-FLAGS", encode_request(Function.NEXT, 1, ttl=1)),
        ("BAD-FLAGS", encode_request(Function.GET, 1, ttl=3, key=b"k")),
        ("BAD-FLAGS", encode_request(Function.LISTEN, 1, query=Query.PATTERN, key=b"k")),
        (
            "BAD-FLAGS",
            encode_request(Function.LISTEN, 1, flags=WORKED_ON, query=Query.RANGE, key=b"k"),
        ),
        ("BAD-FLAGS", encode_request(Function.LIST, 1, query=Query.RANGE, key=b"k")),
        ("BAD-FLAGS", encode_request(Function.DELETE, 1, flags=PERSIST_SET, key=b"k")),
        ("BAD-FLAGS", encode_request(Function.PING, 1, timeout=1)),
        ("BAD-FLAGS", encode_request(Function.NOT, 1, flags=PERSIST_SET, key=b"k")),
        ("BAD-FLAGS", encode_request(Function.NOT, 1, query=Query.PATTERN, key=b"k")),
        ("BAD-FLAGS", encode_request(Function.UNLOCK, 1, query=Query.CURSOR, key=b"k")),
        ("BAD-FLAGS", encode_request(Function.DELETE, 1, query=Query.RANGE, key=ID, ttl=0)),
        (
            "BAD-FLAGS",
            encode_request(Function.SET, 1, query=Query.RANGE, key=b"k", value_type=6, value=b"x"),
        ),
        ("CLIENT-ERROR", encode_request(Function.GET, 1)),
        ("CLIENT-ERROR", encode_request(Function.DELETE, 1)),
        ("CLIENT-ERROR", encode_request(Function.PING, 1, key=b"k")),
        ("CLIENT-ERROR", encode_request(Function.SET, 1, value_type=1)),
        ("CLIENT-ERROR", encode_request(Function.DONE, 1, key=b"short", ttl=1)),
        ("TYPE", encode_request(Function.ADD, 1, key=b"k", value_type=2, value=b"1")),
        ("TYPE", encode_request(Function.TRUNCATE, 1, key=b"k", value_type=1, value=b"1")),
        ("TYPE", encode_request(Function.NEXT, 1, value_type=2, value=b"1")),
        ("TYPE", encode_request(Function.DONE, 1, key=b"k", value_type=1, value=b"r")),
        ("TYPE", encode_request(Function.DONE, 1, key=ID, ttl=1, value_type=3, value=b"\1")),
        ("TYPE", encode_request(Function.QUEUE, 1, key=b"q", value_type=1, value=b"{}")),
    ],
)
def test_an_undefined_combination_is_refused_and_the_connection_goes_on(
    code: str, message: bytes
) -> None:
    """D-32, 4.4."""
    refusal, request = RequestParser().feed(message + encode_request(Function.NOP, 2))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.close, refusal.identifier) == (code, False, 1)
    assert isinstance(request, Request)


def test_identifier_zero_is_refused_and_the_connection_goes_on() -> None:
    """FJ-MSG-3."""
    refusal = parse(head(Function.NOP, 0, identifier=0) + b"\0")
    assert refusal == Refusal(0, "CLIENT-ERROR", "identifier 0 is the server's", False)


def test_an_instant_that_does_not_fit_is_refused() -> None:
    data = struct.pack(">2sHHHHQ", b"FJ", 1, Function.NOP, 3, 0, (1 << 64) - 1) + b"\0"
    refusal = parse(data)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.close) == ("RANGE", False)


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, 5, 6, 7, 200])
def test_set_takes_a_value_of_any_type(kind: int) -> None:
    """FJ-TYP-0..5: types are not enforced on SET."""
    request = parse(encode_request(Function.SET, 1, key=b"k", value_type=kind, value=b""))
    assert isinstance(request, Request)
    assert request.value_type == kind


def test_a_job_may_be_set_without_a_key() -> None:
    assert isinstance(parse(encode_request(Function.SET, 1, value_type=6, value=b"x")), Request)


@pytest.mark.parametrize(("flags", "persist"), [(0, False), (PERSIST, True), (PERSIST_SET, True)])
def test_either_persist_bit_of_set_counts(flags: int, persist: bool) -> None:
    """D-23."""
    request = parse(encode_request(Function.SET, 1, flags=flags, key=b"k", value_type=1))
    assert isinstance(request, Request)
    assert request.persist is persist


def test_the_token_is_the_ttl_field_by_id_and_the_integer_by_key() -> None:
    """D-29: the whole token travels both ways."""
    by_id = parse(encode_request(Function.FAIL, 1, key=ID, ttl=70_000, value_type=1, value=b"r"))
    by_key = parse(
        encode_request(Function.DONE, 1, key=b"k", value_type=3, value=encode_integer(1 << 31))
    )
    none = parse(encode_request(Function.DONE, 1, key=ID, ttl=0))
    assert isinstance(by_id, Request) and isinstance(by_key, Request) and isinstance(none, Request)
    assert (by_id.by_id, by_id.token) == (True, 70_000)
    assert (by_key.by_id, by_key.token) == (False, 1 << 31)
    assert (none.by_id, none.token) == (True, None)


# Large and slow.


def test_a_large_value_that_comes_byte_by_byte_is_read_once() -> None:
    message = encode_request(Function.SET, 1, key=b"k", value_type=1, value=b"x" * 200_000)
    parser = RequestParser()
    for n in range(len(message) - 1):
        assert parser.feed(message[n : n + 1]) == []
    (request,) = parser.feed(message[-1:])
    assert isinstance(request, Request)
    assert request.value == b"x" * 200_000


def test_a_reply_of_many_pairs_in_small_pieces_is_read_once() -> None:
    pairs = [Pair(b"%d" % n, 1, b"v" * (n % 50)) for n in range(20_000)]
    data = encode_reply(1, T, pairs=pairs)
    parser = ReplyParser()
    replies = []
    for n in range(0, len(data), 7):
        replies += parser.feed(data[n : n + 7])
    assert len(replies) == 1
    assert replies[0].pairs == tuple(pairs)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_is_taken_and_values_are_bytes(kind: type) -> None:
    data = encode_request(Function.SET, 1, key=b"k", value_type=1, value=b"v")
    (request,) = RequestParser().feed(kind(data))
    assert isinstance(request, Request)
    assert type(request.key) is bytes
    assert type(request.value) is bytes


# Before HELLO.


def test_a_guarded_parser_gives_one_message_until_it_is_opened() -> None:
    hello = encode_request(Function.HELLO, 1, key=b"me", value_type=1, value=encode_hello(Hello()))
    big = encode_request(Function.SET, 2, key=b"k", value_type=1, value=b"x" * 20_000)
    parser = RequestParser(guarded=True)
    (first,) = parser.feed(hello + big + big)
    assert isinstance(first, Request) and first.function == Function.HELLO
    parser.open()
    assert len(parser.feed(b"")) == 2


def test_a_reader_that_has_given_everything_holds_nothing_of_it() -> None:
    """An idle connection costs no more after a large message than before."""
    reader = FrameReader()
    for size in (100_000, 10):
        value = bytes(size)
        reader.feed(encode_request(Function.SET, 1, key=b"k", value_type=1, value=value))
        assert (reader.next(), reader.value()) == (FRAME, value)
        assert (reader.next(), reader.data, reader.pending) == (MORE, b"", 0)


def test_a_guarded_parser_reads_under_small_limits() -> None:
    parser = RequestParser(guarded=True)
    (refusal,) = parser.feed(head(Function.HELLO, 4) + b"\0\x20\x00")
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.close) == ("TOO-LARGE", True)
    assert BEFORE_HELLO.max_message <= 8192


def test_hello_round_trips_and_defaults_when_empty() -> None:
    hello = Hello("s3cret", "orders", 1)
    assert decode_hello(encode_hello(hello)) == hello
    told = Hello("s3cret", "orders", 1, 1_700_000_000_123_456_000)
    assert decode_hello(encode_hello(told) + b"later fields") == told
    looks = Hello("s3cret", "orders", FOLLOWER, 0, 5000)
    assert decode_hello(encode_hello(looks)) == looks
    assert decode_hello(encode_hello(looks)[:-4]).max_lag == 0
    assert decode_hello(b"") == Hello()


def test_a_token_never_appears_in_repr() -> None:
    hello = Hello("s3cret", "orders")
    message = encode_request(Function.HELLO, 1, key=b"me", value_type=1, value=encode_hello(hello))
    request = parse(message)
    assert "s3cret" not in repr(hello)
    assert "s3cret" not in repr(request)
    assert "s3cret" not in str(request)
    assert "orders" in repr(hello)


@pytest.mark.parametrize("cut", range(1, len(encode_hello(Hello("s3cret", "orders")))))
def test_a_hello_cut_short_is_refused_without_showing_the_token(cut: int) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_hello(encode_hello(Hello("s3cret", "orders"))[:cut])
    assert "s3c" not in str(caught.value)


def test_a_hello_that_is_not_text_is_refused_without_showing_its_bytes() -> None:
    value = encode_hello(Hello("s3cret", "x"))[:-1] + b"\xff"
    with pytest.raises(BadRequest) as caught:
        decode_hello(value)
    assert caught.value.__cause__ is None
    assert "s3" not in str(caught.value)


# Replies.


def test_reply_flags_read_as_properties() -> None:
    """4.3."""
    (reply,) = ReplyParser().feed(encode_ok(5, T, STABLE | STALE))
    assert (reply.stable, reply.stale, reply.is_push, reply.gone) == (True, True, False, False)
    assert reply.value is None


def test_a_pair_carries_its_expiry_when_asked() -> None:
    """4.2, bit 13."""
    pairs = [Pair(b"a", 1, b"x", T), Pair(b"b", 1, b"y", 0)]
    (reply,) = ReplyParser().feed(encode_reply(5, T, pairs=pairs))
    assert reply.pairs == tuple(pairs)
    assert reply.flags & 1 << 13


@pytest.mark.parametrize("size", [0, 1, 254, 255, 256, 65_534, 65_535, 70_000])
def test_the_size_class_follows_the_largest_value(size: int) -> None:
    pairs = [Pair(b"k", 1, b""), Pair(b"l", 1, b"x" * size)]
    (reply,) = ReplyParser().feed(encode_reply(5, T, pairs=pairs))
    assert reply.pairs == tuple(pairs)


@pytest.mark.parametrize("size", [255, 256, 65_535])
def test_keys_of_either_class_are_read(size: int) -> None:
    (reply,) = ReplyParser().feed(encode_reply(5, T, pairs=[Pair(b"k" * size, 1, b"v")]))
    assert reply.pairs[0].key == b"k" * size
    request = parse(encode_request(Function.DELETE, 1, key=b"k" * size))
    assert isinstance(request, Request) and request.key == b"k" * size


def test_no_pair_at_all_is_told_from_none_asked() -> None:
    (several,) = ReplyParser().feed(encode_reply(5, T, several=True))
    assert several.pairs == ()
    assert several.flags & 0x180 == 0x80


def test_a_push_names_its_subscription_and_due_time() -> None:
    """4.7."""
    (push,) = ReplyParser().feed(encode_push(12, T, b"queue", due=T + 1000, gone=True))
    assert (push.identifier, push.is_push, push.gone) == (12, True, True)
    assert (push.timeout, push.pairs) == (T + 1000, (Pair(b"queue", 0, b""),))


def test_an_error_text_is_cut_at_a_whole_character() -> None:
    (reply,) = ReplyParser().feed(encode_error(5, "CLIENT-ERROR " + "ä" * 2000, T))
    assert reply.error.startswith("CLIENT-ERROR ä")
    assert reply.error.endswith("ä")
    assert len(reply.error.encode()) <= 1000


@pytest.mark.parametrize(
    "data",
    [
        b"X",
        b"HTTP/1.1 400",
        struct.pack(">2sHHHQHB", b"JR", 1, 1, 0x100, 0, 1, 0),
        struct.pack(">2sHHHQHB", b"JR", 1, 1, 0x80, 0, 1, 0),
        struct.pack(">2sHHHQBBB", b"JR", 1, 1, 2, 0, 0, 0, 0),
        struct.pack(">2sHHHQBBI", b"JR", 1, 1, 6, 0, 0, 0, 0xFFFFFFFF),
    ],
)
def test_a_broken_server_is_told_and_stays_told(data: bytes) -> None:
    parser = ReplyParser()
    assert parser.feed(encode_ok(1, T) + data) != []
    assert isinstance(parser.fault, ProtocolError)
    with pytest.raises(ProtocolError):
        parser.feed(encode_ok(1, T))


def test_a_server_of_another_version_is_told() -> None:
    for pieces in ([b"JR\0\2"], [b"J", b"R", b"\0", b"\2"], [b"JR\0", b"\2\0\0"]):
        parser = ReplyParser()
        for piece in pieces:
            assert parser.feed(piece) == []
        assert isinstance(parser.fault, VersionMismatch)


def test_a_reply_beyond_the_limit_is_refused_before_it_is_kept() -> None:
    parser = ReplyParser(max_message=1000)
    pairs = [Pair(b"k", 1, b"v" * 100)] * 20
    assert parser.feed(encode_reply(1, T, pairs=pairs)) == []
    assert isinstance(parser.fault, ProtocolError)
    assert parser.pending == 0


# Writing.


@pytest.mark.parametrize("identifier", [0, -1, 65_536])
def test_a_request_needs_an_identifier(identifier: int) -> None:
    with pytest.raises(BadRequest):
        encode_request(Function.NOP, identifier)


def test_what_does_not_fit_is_not_written() -> None:
    with pytest.raises(TooLarge):
        encode_request(Function.DELETE, 1, key=b"k" * 65_536)
    with pytest.raises(OutOfRange):
        encode_request(Function.NOP, 1, timestamp=1 << 63)
    with pytest.raises(OutOfRange):
        encode_request(Function.NOP, 1, timestamp=-1)
    with pytest.raises(TooLarge):
        encode_reply(1, T, pairs=[Pair(b"k" * 65_536, 1)])
    with pytest.raises(TooLarge):
        encode_reply(1, T, pairs=[Pair(b"", 1)] * 65_536)


@pytest.mark.parametrize("number", [0, 1, -1, 127, 128, -128, -129, 1 << 31, (1 << 63) - 1])
def test_integers_are_shortest_twos_complement(number: int) -> None:
    """D-21."""
    value = encode_integer(number)
    assert decode_integer(value) == number
    assert len(value) in (1, 2, 4, 8)
    with pytest.raises(BadRequest):
        decode_integer(value + b"\0" * 8)


def test_an_integer_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(OutOfRange):
        encode_integer(1 << 63)


# Errors as words.


@pytest.mark.parametrize("code", sorted(set(CODES) - {"CLOSED"}))
def test_every_code_comes_back_as_its_class(code: str) -> None:
    """D-33."""
    back = error_from(error_text(CODES[code]("what happened")))
    assert type(back) is CODES[code]
    assert (back.code, str(back)) == (code, "what happened")


def test_a_daemon_that_closes_is_one_that_cannot_be_reached() -> None:
    """A client tries again, and the other nodes; `Closed` is what it closed itself."""
    told = error_from("CLOSED shutting down")
    assert type(told) is Unavailable
    assert str(told) == "shutting down"


def test_every_code_of_the_register_is_known() -> None:
    """D-33."""
    register = (
        "CLIENT-ERROR SERVER-ERROR NOT-FOUND EXISTS LOCKED LEASE-LOST TYPE RANGE CLOCK FULL "
        "NO-SPACE READ-ONLY LOADING TIMEOUT CURSOR REGEX TOO-LARGE BAD-FLAGS BAD-FUNCTION VERSION"
    )
    assert set(register.split()) <= set(CODES)


def test_a_foreign_exception_tells_its_class_only() -> None:
    assert error_text(ValueError("password=1234")) == "SERVER-ERROR ValueError"


def test_an_unknown_code_keeps_its_code() -> None:
    back = error_from("NEW-CODE of a later server")
    assert isinstance(back, JournalFault)
    assert (back.code, str(back)) == ("NEW-CODE", "of a later server")
    assert JournalFault.code == "SERVER-ERROR"


# The table.


def test_the_table_holds_every_function_once() -> None:
    assert set(FUNCTIONS) == {int(function) for function in Function}
    assert [int(f) for f in Function if f < 20] == list(range(20))
    assert all(row.does and isinstance(row.role, Role) for row in FUNCTIONS.values())


def test_strangers_may_only_say_who_they_are() -> None:
    anyone = {row.function.name for row in FUNCTIONS.values() if row.role is Role.ANYONE}
    assert anyone == {"NOP", "QUIT", "PING", "HELLO"}


# The client's side.


def test_answers_find_their_request_whatever_their_order() -> None:
    talk = Conversation()
    first = parse(talk.request("first", Function.PING))
    second = parse(talk.request("second", Function.PING))
    assert isinstance(first, Request) and isinstance(second, Request)
    answers = talk.receive(encode_ok(second.identifier, T) + encode_ok(first.identifier, T))
    assert [answer.note for answer in answers] == ["second", "first"]
    assert talk.outstanding == 0


def test_identifiers_are_not_reused_while_they_are_in_use() -> None:
    talk = Conversation()
    listen = parse(talk.request("sub", Function.LISTEN, listen=True, key=b"k"))
    assert isinstance(listen, Request)
    talk.receive(encode_ok(listen.identifier, T))
    seen = set()
    for _ in range(65_534):
        request = parse(talk.request(None, Function.PING))
        assert isinstance(request, Request)
        seen.add(request.identifier)
        talk.receive(encode_ok(request.identifier, T))
    assert listen.identifier not in seen
    assert len(seen) == 65_534


def test_pushes_reach_their_subscription_until_it_is_forgotten() -> None:
    talk = Conversation()
    note = object()
    listen = parse(talk.request(note, Function.LISTEN, listen=True, key=b"k"))
    assert isinstance(listen, Request)
    push = encode_push(listen.identifier, T, b"k")
    answers = talk.receive(encode_ok(listen.identifier, T) + push)
    assert [(a.note, a.reply.is_push) for a in answers] == [(note, False), (note, True)]
    talk.forget(note)
    assert talk.receive(push) == []


def test_too_many_unanswered_requests_are_refused() -> None:
    talk = Conversation(max_outstanding=2)
    talk.request(1, Function.PING)
    talk.request(2, Function.PING)
    with pytest.raises(QueueFull):
        talk.request(3, Function.PING)
    assert talk.abandon() == [1, 2]
    talk.request(3, Function.PING)


def test_a_reply_to_nobody_ends_the_conversation() -> None:
    with pytest.raises(ProtocolError):
        Conversation().receive(encode_ok(5, T))


def test_an_error_of_the_connection_is_raised() -> None:
    with pytest.raises(LeaseLost):
        Conversation().receive(encode_error(0, "LEASE-LOST x", T))
    with pytest.raises(NotFound):
        Conversation().receive(encode_error(0, "NOT-FOUND", T))


def test_a_refusal_is_answered_with_its_code() -> None:
    (reply,) = ReplyParser().feed(Refusal(7, "BAD-FUNCTION", "99", False).encode(T))
    assert (reply.identifier, reply.error, reply.timestamp) == (7, "BAD-FUNCTION 99", T)
    assert reply.flags & DATA == 0
