"""Key/value entries over real sockets: every function, the worked examples, races, pushes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fastjournal.client import entry_calls
from fastjournal.daemon.fj.connection import FjConnection
from fastjournal.journal.entries.key_query import KeyQuery
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.fields import decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    DATA,
    EXACT,
    GONE,
    LISTEN,
    LOCKED,
    OVERWRITE,
    PERSIST,
    STABLE,
    STALE,
    TTL,
    WORKED_ON,
    Function,
    Query,
    Type,
)
from fastjournal.wire.fj.hello import Hello, encode_hello
from fastjournal.wire.fj.replies import Reply
from fjpeer import FjPeer, put_bytes

S = 1_000_000_000
EXAMPLES = {
    example["name"]: bytes.fromhex(example["bytes"])
    for example in json.loads(
        (Path(__file__).parents[2] / "golden" / "wire" / "fj-worked-examples.json").read_text()
    )
}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", settings={"journal": {"sync": "os"}}) as running:
        yield running


@pytest.fixture
def peer(daemon: LocalDaemon) -> Iterator[FjPeer]:
    with FjPeer(daemon.port) as connected:
        yield connected


def now() -> int:
    return time.time_ns() // 1000 * 1000


def put(peer: FjPeer, key: bytes, value: bytes = b"", kind: int = Type.STRING, **how: int) -> Reply:
    flags = how.pop("flags", OVERWRITE | PERSIST)
    return peer.ask(Function.SET, key=key, value_type=kind, value=value, flags=flags, **how)


def get(peer: FjPeer, key: bytes, flags: int = DATA, **how: int) -> Reply:
    return peer.ask(Function.GET, key=key, flags=flags, **how)


def named(port: int, name: bytes) -> FjPeer:
    peer = FjPeer(port)
    value = encode_hello(Hello("", ""))
    peer.ask(Function.HELLO, key=name, value_type=Type.BUFFER, value=value)
    return peer


def raw(peer: FjPeer, data: bytes, size: int) -> bytes:
    """The bytes of an answer of this size, without its timestamp."""
    peer.send(data)
    got = b""
    while len(got) < size:
        got += peer.sock.recv(size - len(got))
    return got[:8] + got[16:]


def test_the_worked_examples_are_answered_byte_for_byte(peer: FjPeer) -> None:
    """FJ-CMD-2, FJ-MSG-1.

    Section 4.8 of the protocol; timestamps are the server's, the cursor is our own.
    """
    for asked, answered in (
        ("SET a = string hi, overwrite, persist", "SET answered, on stable storage"),
        ("GET a with data", "GET answered"),
        ("GET zz", "GET answered NOT-FOUND"),
    ):
        want = EXAMPLES[answered]
        assert raw(peer, EXAMPLES[asked], len(want)) == want[:8] + want[16:]
    put(peer, b"b", b"\1", Type.BOOLEAN)
    put(peer, b"c", b"more")
    cursor = KeyQuery(1, b"a", b"c", 2).cursor(b"b")
    want = EXAMPLES["GET range answered: 2 pairs and a cursor"]
    want = want[:19] + bytes((len(cursor),)) + cursor + want[22:]
    asked_range = EXAMPLES["GET range a..c, count 2"]
    assert raw(peer, asked_range, len(want)) == want[:8] + want[16:]


def test_a_get_tells_type_time_and_expiry(peer: FjPeer) -> None:
    """FJ-CMD-3, FJ-GET-7."""
    at, until = now() - S, now() + 60 * S
    put(peer, b"k", b"v", timestamp=at, timeout=until, ttl=30, flags=OVERWRITE | EXACT | TTL)
    reply = get(peer, b"k")
    assert (reply.timestamp, reply.timeout, reply.value) == (at, until, b"v")
    probe = get(peer, b"k", 0)
    assert (probe.pairs[0].type, probe.value, probe.flags & DATA) == (Type.STRING, b"", 0)


def test_the_newest_timestamp_wins_between_clients(daemon: LocalDaemon) -> None:
    """FJ-TS-1."""
    at = now()
    with FjPeer(daemon.port) as one, FjPeer(daemon.port) as two:
        assert not put(one, b"k", b"new", timestamp=at).stale
        assert put(two, b"k", b"old", timestamp=at - 1000).flags & STALE
        assert get(two, b"k").value == b"new"
        deleted = one.ask(Function.DELETE, key=b"k", timestamp=at + 1000)
        assert decode_integer(deleted.pairs[0].value) == 1
        assert put(two, b"k", b"old", timestamp=at).stale
        assert get(two, b"k").error == "NOT-FOUND k"
        assert put(one, b"k", b"n", flags=0).error == ""
        assert put(one, b"k", b"n", flags=0).error.startswith("EXISTS")


def test_ranges_patterns_and_cursors(peer: FjPeer) -> None:
    """FJ-GET-2..4, FJ-RPL-2."""
    for number in range(1200):
        put(peer, b"k%04d" % number, b"x", flags=OVERWRITE)
    reply = peer.ask(
        Function.GET, key=b"k0100", upper=b"k0103", query=Query.RANGE, flags=DATA | TTL, ttl=0
    )
    assert [pair.key for pair in reply.pairs] == [b"k%04d" % n for n in range(100, 104)]
    assert reply.cursor is None
    reply = peer.ask(Function.GET, key=b"^k", query=Query.PATTERN)
    assert len(reply.pairs) == 1000
    assert reply.cursor is not None
    rest = peer.ask(Function.GET, key=reply.cursor, query=Query.CURSOR)
    assert [pair.key for pair in rest.pairs] == [b"k%04d" % n for n in range(1000, 1200)]
    assert peer.ask(Function.GET, key=b"(", query=Query.PATTERN).error.startswith("REGEX")
    damaged = reply.cursor[:-1] + b"?"
    assert peer.ask(Function.GET, key=damaged, query=Query.CURSOR).error.startswith("CURSOR")
    empty = peer.ask(Function.GET, key=b"x", upper=b"y", query=Query.RANGE)
    assert (empty.error, empty.pairs, empty.cursor) == ("", (), None)


def test_numbers_booleans_and_sizes(peer: FjPeer) -> None:
    """FJ-NTH-1..3."""
    one = {"value_type": Type.INTEGER, "value": b"\0\5"}
    assert peer.ask(Function.ADD, key=b"n", **one).value == b"\0\5"
    assert decode_integer(peer.ask(Function.ADD, key=b"n", **one).value or b"") == 10
    put(peer, b"t", b"\1", Type.BOOLEAN)
    assert peer.ask(Function.NOT, key=b"t", flags=PERSIST).value == b"\0"
    assert peer.ask(Function.NOT, key=b"n").error.startswith("TYPE")
    put(peer, b"s", b"hello")
    size = {"value_type": Type.INTEGER, "value": encode_integer(2)}
    assert peer.ask(Function.TRUNCATE, key=b"s", **size).error == ""
    assert get(peer, b"s").value == b"he"


def test_rename_and_alias(peer: FjPeer) -> None:
    """FJ-NTH-6, FJ-KV-6."""
    put(peer, b"a", b"1")
    new = {"value_type": Type.BUFFER, "value": b"b"}
    assert peer.ask(Function.RENAME, key=b"a", **new).error == ""
    assert get(peer, b"a").error == "NOT-FOUND a"
    further = {"value_type": Type.BUFFER, "value": b"c"}
    assert peer.ask(Function.ALIAS, key=b"b", **further).error == ""
    assert get(peer, b"c").value == b"1"
    assert peer.ask(Function.ALIAS, key=b"x", **further).error.startswith("NOT-FOUND")


def test_locks_belong_to_a_client(daemon: LocalDaemon) -> None:
    """FJ-NTH-4, FJ-NTH-5, D-22."""
    with FjPeer(daemon.port) as one, FjPeer(daemon.port) as two:
        put(one, b"k", b"1")
        held = one.ask(Function.LOCK, key=b"k", timeout=now() + 30 * S)
        assert held.timeout is not None and held.value is not None
        assert two.ask(Function.LOCK, key=b"k").error.startswith("LOCKED")
        assert put(two, b"k", b"2").error.startswith("LOCKED")
        assert get(two, b"k").flags & LOCKED
        assert put(one, b"k", b"3").error == ""
        assert two.ask(Function.UNLOCK, key=b"k").error.startswith("LOCKED")
        assert one.ask(Function.UNLOCK, key=b"k").error == ""
        again = two.ask(Function.LOCK, key=b"k")
        assert decode_integer(again.value or b"") > decode_integer(held.value)


def test_a_lease_is_shown_to_others(daemon: LocalDaemon) -> None:
    """FJ-GET-6, D-27."""
    until = now() + 30 * S
    with FjPeer(daemon.port) as one, FjPeer(daemon.port) as two:
        put(one, b"k", b"1")
        mine = get(one, b"k", timeout=until)
        assert (mine.timeout, mine.flags & WORKED_ON) == (until, 0)
        assert get(two, b"k").flags & WORKED_ON
        assert get(two, b"k", DATA | WORKED_ON).error.startswith("NOT-FOUND")
        assert get(one, b"k", timeout=until + S).timeout == until + S


def test_eight_clients_add_up_exactly_though_each_sends_everything_twice(
    daemon: LocalDaemon,
) -> None:
    """D-21: with HELLO and a timestamp an addition is made once."""
    start = now()

    def work(name: bytes) -> None:
        for _ in range(2):
            with named(daemon.port, name) as peer:
                for number in range(50):
                    reply = peer.ask(
                        Function.ADD, key=b"sum", value_type=Type.INTEGER, value=encode_integer(1)
                        .rjust(8, b"\0"), timestamp=start + number * 1000, flags=PERSIST,
                    )  # fmt: skip
                    assert reply.error == ""

    threads = [threading.Thread(target=work, args=(b"c%d" % n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with FjPeer(daemon.port) as peer:
        assert decode_integer(get(peer, b"sum").value or b"") == 400


def test_a_listener_is_told_of_changes_with_the_type(daemon: LocalDaemon) -> None:
    """FJ-SET-3, 4.7."""
    with FjPeer(daemon.port) as one, FjPeer(daemon.port) as two:
        put(one, b"k", b"1", flags=OVERWRITE | LISTEN)
        put(two, b"k", b"2")
        push = one.read()
        while push is not None and push.pairs[0].type != Type.STRING:
            push = one.read()
        assert push is not None and push.is_push
        assert (push.pairs[0].key, push.gone) == (b"k", False)
        two.ask(Function.DELETE, key=b"k")
        pushes = []
        while not pushes or not pushes[-1].flags & GONE:
            told = one.read()
            assert told is not None
            pushes.append(told)
        assert pushes[-1].pairs[0].key == b"k"


def test_entries_and_jobs_of_one_key(peer: FjPeer) -> None:
    peer.send(put_bytes(3))
    assert peer.read() is not None
    put(peer, b"k", b"entry")
    assert get(peer, b"k").pairs[0].type == Type.STRING
    assert peer.ask(Function.NEXT, key=b"q").pairs[0].type == Type.JOB
    assert peer.ask(Function.NEXT).pairs == ()


def test_what_persists_survives_a_restart_what_does_not_is_gone(tmp_path: Path) -> None:
    """FJ-IMP-1, FJ-SET-4."""
    with LocalDaemon(tmp_path / "d") as daemon, FjPeer(daemon.port) as peer:
        assert put(peer, b"kept", b"1").flags & STABLE
        assert not put(peer, b"lost", b"1", flags=0).flags & STABLE
    with LocalDaemon(tmp_path / "d") as daemon, FjPeer(daemon.port) as peer:
        assert get(peer, b"kept").value == b"1"
        assert get(peer, b"lost").error == "NOT-FOUND lost"


def test_a_large_value_and_a_long_key(peer: FjPeer) -> None:
    key, value = b"k" * 65_535, bytes(1 << 20)
    assert put(peer, key, value, Type.BUFFER).error == ""
    assert get(peer, key).value == value
    assert put(peer, b"k", value + b"!", Type.BUFFER).error.startswith("TOO-LARGE")


def test_the_short_way_and_the_long_way_are_one(daemon: LocalDaemon) -> None:
    """One message alone in a read takes the short way; cut in two it takes the long one."""
    at = now()

    def adding(number: int, fence: int = 0) -> bytes:
        return entry_calls.add(f"n{number}", 5, b"me", at, fence=fence).data

    def asked() -> list[bytes]:
        return [
            entry_calls.set_entry(0, "a", b"1").data,
            entry_calls.set_entry(0, "a", "x" * 300).data,
            *[entry_calls.get(key).data for key in ("a", "none", "locked", "expiring", "job")],
            entry_calls.set_entry(0, "locked", 1).data,
            adding(1), adding(1), adding(2, fence=7),
            entry_calls.add("a", 1, b"me", at).data,
            entry_calls.set_entry(0, "large", bytes(2000)).data, entry_calls.get("large").data,
            entry_calls.get("touched").data,
        ]  # fmt: skip

    with FjPeer(daemon.port) as peer, daemon.connect() as client:
        client.put(b"x", key="job", queue="q")
        answers: list[list[tuple[object, ...]]] = []
        for cut in (False, True):
            for key in (*client.entries, b"n1", b"n2"):
                client.entries.delete(key, purge=True)
            client.entries["locked"] = 1
            lock = client.entries.lock("locked", 60, owner="somebody")
            until = datetime.now(UTC) + timedelta(hours=1)
            client.entries.set("expiring", 1, expires=until)
            client.entries.set("touched", 1, touch=60, expires=until)
            got: list[tuple[object, ...]] = []
            for data in asked():
                if cut:
                    peer.send(data[:10])
                    wait_until(lambda: daemon.call(lambda: partly_read(daemon)), what="a part")
                    peer.send(data[10:])
                else:
                    peer.send(data)
                reply = peer.read()
                assert reply is not None
                timed = reply.timeout is not None
                got.append((reply.flags, reply.error, timed, reply.pairs, reply.identifier))
            answers.append(got)
            lock.free()
        assert answers[0] == answers[1]
        assert {error.split()[0] for _, error, *_ in answers[0] if error} == {  # type: ignore[attr-defined]
            "NOT-FOUND", "LOCKED", "LEASE-LOST", "TYPE",
        }  # fmt: skip


def partly_read(daemon: LocalDaemon) -> bool:
    return any(isinstance(c, FjConnection) and c.frames.pending for c in daemon.server.connections)
