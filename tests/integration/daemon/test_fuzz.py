"""Random bytes, mutated messages and every cut, on both protocols: an answer or an end, never harm.

After all of it the daemon is alive, has kept its memory, and holds only what was well formed.
"""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import entry_calls
from fastjournal.journal.entries.key_query import KeyQuery
from fastjournal.model import Mode
from fastjournal.put_request import PutRequest
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.bulk import (
    LeaseRequest,
    Settle,
    encode_lease_request,
    encode_settle,
)
from fastjournal.wire.fj.entry_codec import encode_who
from fastjournal.wire.fj.fields import encode_integer
from fastjournal.wire.fj.functions import (
    BY_ID,
    LISTEN,
    OVERWRITE,
    WORKED_ON,
    Function,
    Query,
    Type,
)
from fastjournal.wire.fj.hello import Hello, encode_hello
from fastjournal.wire.fj.replies import ReplyParser
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer, put_bytes
from wire_values import encode_jobs, encode_short

ID = b"6ba7b810-9dad-41d1-80b4-00c04fd430c4"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDaemon]:
    path: Path = tmp_path_factory.mktemp("fuzz")
    limits = {"message_timeout": 1.0, "max_message": 1 << 20}
    with LocalDaemon(path / "d", settings={"limits": limits}) as running:
        yield running


def corpus() -> list[bytes]:
    """One good message of each function."""
    r = encode_request
    buffer, string, integer = Type.BUFFER, Type.STRING, Type.INTEGER
    by_id = {"flags": BY_ID, "key": bytes(range(16)), "ttl": 1}
    return [
        put_bytes(1), put_bytes(2, bytes(300)),
        r(Function.SET, 3, key=b"k", value_type=Type.JOB, value=encode_short(b"v", queue=b"q")),
        r(Function.NOP, 4), r(Function.PING, 5), r(Function.GET, 6, key=b"k"),
        r(Function.DELETE, 7, key=b"k"), r(Function.NEXT, 8, key=b"q"),
        r(Function.NEXT, 9, key=b"nix", value_type=integer, value=encode_integer(5)),
        r(Function.DONE, 10, **by_id), r(Function.FAIL, 11, value_type=buffer, value=b"x", **by_id),
        r(Function.TOUCH, 12, **by_id), r(Function.RELEASE, 13, **by_id),
        r(Function.RESULT, 14, **by_id), r(Function.LISTEN, 15, flags=WORKED_ON, key=b"q"),
        r(Function.UNLISTEN, 16, flags=WORKED_ON, key=b"q"), r(Function.STATUS, 17),
        r(Function.HELLO, 18, value_type=buffer, value=encode_hello(Hello("t", ""))),
        r(Function.PUTS, 19, value_type=buffer,
          value=encode_jobs([PutRequest(b"q", b"x", mode=Mode.PLAIN)] * 3)),
        r(Function.LEASE, 20, value_type=buffer,
          value=encode_lease_request(LeaseRequest((b"q", b"r"), 5))),
        r(Function.SETTLE, 21, value_type=buffer, value=encode_settle([Settle(0, b"i" * 16, 1)])),
        r(Function.QUEUE, 22, key=b"q", value_type=string, value=b'{"lease":1000000000}'),
        r(Function.INSPECT, 23, key=b"q", value_type=string, value=b"queue"),
        r(Function.LIST, 24, key=b"q", value_type=string, value=b'{"limit":3}'),
        r(Function.REDRIVE, 25, key=b"q"), r(Function.PAUSE, 26, key=b"z"),
        r(Function.RESUME, 27, key=b"z"),
        r(Function.MAINTAIN, 28, value_type=string, value=b"sync"),
        *entry_corpus(),
    ]  # fmt: skip


def entry_corpus() -> list[bytes]:
    """The functions on entries, plain and with everything that may be said."""
    r = encode_request
    who = {"query": Query.RANGE, "upper": encode_who(0, b"me")}
    return [
        entry_calls.set_entry(0, "k", b"x" * 300).data, entry_calls.get("k").data,
        entry_calls.add("n", 1, b"me", 0).data,
        entry_calls.add("n", 1, b"me", time.time_ns()).data, entry_calls.page("a", "z").data,
        entry_calls.page(match="k+").data, entry_calls.entry(0, "k", worker="me").data,
        entry_calls.flip("b", b"me", 0).data, entry_calls.truncate("k", 2).data,
        entry_calls.rename("k", "k2", overwrite=True).data, entry_calls.alias("k2", "k3").data,
        entry_calls.delete("k2", fence=3).data, entry_calls.listen(b"a", b"z").data,
        entry_calls.listen(b"k", None).data, entry_calls.count().data,
        entry_calls.unlock(b"k", 7).data,
        r(Function.LOCK, 1, key=b"locked", **who), r(Function.UNLISTEN, 1, key=b"k"),
        r(Function.SET, 1, flags=OVERWRITE | LISTEN, key=b"k", value_type=2, value=b"", ttl=9),
        r(Function.GET, 1, query=Query.CURSOR, key=KeyQuery(1, b"", b"z", 3).cursor(b"k")),
    ]  # fmt: skip


def workq_corpus() -> list[bytes]:
    return [
        b"add %b q 1000 60000 4\r\nping\r\n" % ID,
        b"schedule %b q 1000 60000 2030-01-01T00:00:00Z 1 -priority=2\r\nx\r\n" % ID,
        b"run %b q 1000 1 1\r\nx\r\n" % ID,
        b"lease q r 1\r\n", b"complete %b 1\r\nx\r\n" % ID, b"fail %b 1\r\nx\r\n" % ID,
        b"result %b 1\r\n" % ID, b"delete %b\r\n" % ID, b"inspect job %b\r\n" % ID,
        b"inspect jobs q 0 10\r\n", b"inspect queues 0 10\r\n", b"inspect server\r\n",
    ]  # fmt: skip


def throw(port: int, data: bytes) -> bytes:
    """Send bytes, end our side, read all that comes back."""
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        got = b""
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while part := sock.recv(65_536):
                got += part
        return got


def mutate(chance: random.Random, data: bytes) -> bytes:
    """Flip, cut, repeat or insert."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        kind = chance.random()
        at = chance.randrange(len(out)) if out else 0
        if kind < 0.5 and out:
            out[at] = chance.randrange(256)
        elif kind < 0.7:
            del out[at : at + chance.randint(1, 8)]
        elif kind < 0.85:
            out[at:at] = chance.randbytes(chance.randint(1, 8))
        else:
            out[at:at] = out[at : at + 16]
    return bytes(out)


def alive(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        assert peer.ask(Function.PING).error == ""
    assert throw(daemon.workq_port, b"inspect server\r\n").startswith(b"+OK 1\r\n")
    assert daemon.call(lambda: daemon.server.errors["SERVER-ERROR"]) == 0


def test_fj_mutations(daemon: LocalDaemon) -> None:
    chance = random.Random(20)
    good = corpus()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(600):
        data = b"".join(
            mutate(chance, m) if chance.random() < 0.5 else m
            for m in chance.sample(good, chance.randint(1, 6))
        )
        parser = ReplyParser()
        parser.feed(throw(daemon.port, data))
        assert parser.fault is None  # whatever was asked, the answers are well formed
    alive(daemon)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_fj_random_bytes(daemon: LocalDaemon) -> None:
    chance = random.Random(21)
    for _ in range(200):
        data = chance.randbytes(chance.randint(1, 2000))
        if chance.random() < 0.7:
            data = b"FJ\0\1" + data
        throw(daemon.port, data)
    alive(daemon)


def test_fj_every_cut_gives_the_same_answers(daemon: LocalDaemon) -> None:
    stream = b"".join(m for m in corpus() if m[4:6] in (b"\0\0", b"\0\x0e", b"\0\x02", b"\0\x20"))
    count = None
    with FjPeer(daemon.port) as peer:
        for at in range(1, len(stream), 3):
            for part in (stream[:at], stream[at:]):
                peer.send(part)
            got = 0
            for _ in range(6):
                reply = peer.read()
                assert reply is not None
                assert reply.error == ""
                got += 1
            assert count in (None, got)
            count = got
    alive(daemon)


def test_announced_sizes_cost_nothing(daemon: LocalDaemon) -> None:
    """F38: a size beyond the limit is refused before anything of that size is kept."""
    for function in (2, 32, 34):
        head = b"FJ\0\1" + function.to_bytes(2, "big") + b"\0\1\0\6" + bytes(8) + b"\0"
        got = throw(daemon.port, head + b"\x7f\xff\xff\xff")
        assert b"TOO-LARGE" in got
    # A count that promises more than the bytes hold.
    for function, value in ((32, b"\xff\xff\xff\xff"), (34, b"\0\0\xff\xff"), (33, b"\1\0")):
        data = encode_request(function, 1, value_type=Type.BUFFER, value=value)
        assert b"CLIENT-ERROR" in throw(daemon.port, data)
    alive(daemon)


def test_workq_mutations(daemon: LocalDaemon) -> None:
    chance = random.Random(22)
    good = workq_corpus()
    for _ in range(400):
        data = b"".join(
            mutate(chance, m) if chance.random() < 0.5 else m
            for m in chance.sample(good, chance.randint(1, 5))
        )
        got = throw(daemon.workq_port, data)
        assert got == b"" or got[:1] in b"+-"
    alive(daemon)


def test_workq_random_bytes(daemon: LocalDaemon) -> None:
    chance = random.Random(23)
    for _ in range(200):
        throw(daemon.workq_port, chance.randbytes(chance.randint(1, 500)) + b"\r\n")
    alive(daemon)


def test_workq_every_cut_gives_the_same_answers(daemon: LocalDaemon) -> None:
    stream = (
        b"add %b cut 1000 60000 4\r\nping\r\nadd %b cut 1 1 1\r\nx\r\ndelete %b\r\nlease cut 0\r\n"
        % (ID, ID, ID)
    )
    expected = b"+OK\r\n-CLIENT-ERROR Duplicate job\r\n+OK\r\n-TIMEOUT\r\n"
    with socket.create_connection(("127.0.0.1", daemon.workq_port), 10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(1, len(stream)):
            sock.sendall(stream[:at])
            sock.sendall(stream[at:])
            got = b""
            while len(got) < len(expected):
                got += sock.recv(1000)
            assert got == expected
    alive(daemon)


def test_http_nonsense(daemon: LocalDaemon) -> None:
    chance = random.Random(24)
    for _ in range(50):
        throw(daemon.http_port, chance.randbytes(200) + b"\r\n\r\n")
    assert throw(daemon.http_port, b"POST /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405")
    assert throw(daemon.http_port, b"GET /nix HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404")
    assert throw(daemon.http_port, b"x" * 20_000) == b""
    alive(daemon)
