"""Jobs by their keys: GET that leases or prolongs, locks, what is refused; and identifiers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.errors import Locked, WrongType
from fastjournal.put_request import PutRequest
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.bulk import decode_forwarded, encode_forward
from fastjournal.wire.fj.entry_codec import ALL, ALL_READ, decode_entry
from fastjournal.wire.fj.fields import decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    DATA,
    EXACT,
    LENGTH,
    LOCKED,
    OVERWRITE,
    WORKED_ON,
    Function,
    Query,
    Type,
)
from fastjournal.wire.fj.hello import Hello, encode_hello
from fastjournal.wire.fj.job_codec import encode_job
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer
from wire_values import encode_short

HOUR = 3600 * 10**9


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalDaemon]:
    settings = {"journal": {"sync": "os"}}
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=request.param) as running:
        yield running


@pytest.fixture
def peer(daemon: LocalDaemon) -> Iterator[FjPeer]:
    with FjPeer(daemon.port) as connected:
        hello(connected, b"me")
        yield connected


@pytest.fixture
def other(daemon: LocalDaemon) -> Iterator[FjPeer]:
    with FjPeer(daemon.port) as connected:
        hello(connected, b"you")
        yield connected


def hello(peer: FjPeer, name: bytes) -> None:
    value = encode_hello(Hello())
    assert peer.ask(Function.HELLO, key=name, value_type=Type.BUFFER, value=value).error == ""


def set_job(peer: FjPeer, key: bytes = b"k", **fields: Any) -> Any:
    value = encode_short(b"data", queue=b"q", due=fields.pop("due", 0))
    return peer.ask(Function.SET, key=key, value_type=Type.JOB, value=value, **fields)


def lease(peer: FjPeer, key: bytes = b"k", flags: int = 0, **more: Any) -> Any:
    return peer.ask(Function.GET, key=key, flags=flags | DATA | LENGTH, timeout=HOUR, **more)


def near(instant: int | None, ns: int) -> bool:
    return instant is not None and abs(instant - time.time_ns() - ns) < 60 * 10**9


def test_a_get_with_a_timeout_leases_a_job_and_renews_its_own(peer: FjPeer, other: FjPeer) -> None:
    """FJ-GET-6, D-27: another's lease is told and left alone; the token is good for DONE."""
    set_job(peer)
    got = lease(peer)
    assert got.error == ""
    assert near(got.timeout, HOUR)
    assert not got.flags & WORKED_ON
    assert got.pairs[0].type == Type.JOB
    assert got.pairs[0].value[3] == 1, "the token"
    assert peer.ask(Function.NEXT).pairs == ()
    theirs = lease(other)
    assert theirs.flags & WORKED_ON
    assert theirs.timeout == got.timeout
    longer = peer.ask(Function.GET, key=b"k", flags=DATA | LENGTH, timeout=2 * HOUR)
    assert near(longer.timeout, 2 * HOUR)
    assert longer.pairs[0].value[3] == 1
    assert other.ask(Function.GET, key=b"k", flags=WORKED_ON).error.startswith("NOT-FOUND")
    done = peer.ask(Function.DONE, key=b"k", value_type=Type.INTEGER, value=encode_integer(1))
    assert done.error == ""
    assert peer.ask(Function.GET, key=b"k").error.startswith("NOT-FOUND")


def test_a_job_that_is_not_due_is_leased_by_its_key_but_no_twin_is(peer: FjPeer) -> None:
    """FJ-GET-6, 5.3 row 10."""
    set_job(peer, due=time.time_ns() + HOUR)
    assert peer.ask(Function.NEXT).pairs == ()
    assert lease(peer).error == ""
    set_job(peer)  # the twin waits behind it
    again = lease(peer)
    assert (again.error, again.pairs[0].value[3]) == ("", 1)
    peer.ask(Function.DONE, key=b"k")
    assert lease(peer).pairs[0].value[3] == 1
    past = peer.ask(Function.GET, key=b"k", flags=DATA, timeout=time.time_ns() - HOUR)
    assert past.error.startswith("RANGE")


def test_a_paused_queue_hands_nothing_out_by_key_either(daemon: LocalDaemon, peer: FjPeer) -> None:
    set_job(peer)
    with daemon.connect() as client:
        client.pause("q")
        assert lease(peer).error.startswith("PAUSED")
        client.resume("q")
        client.configure("q", concurrency=1)
        set_job(peer, b"l")
        assert lease(peer).error == ""
        assert lease(peer, b"l").error.startswith("PAUSED")


def test_bits_3_and_4_let_a_job_live_longer_and_never_shorter(peer: FjPeer) -> None:
    """FJ-GET-5, D-27."""
    soon = time.time_ns() // 1000 * 1000 + 60 * 10**9
    set_job(peer, timeout=soon)
    read = peer.ask(Function.GET, key=b"k", flags=DATA)
    assert read.timeout == soon
    longer = peer.ask(Function.GET, key=b"k", flags=EXACT, timeout=soon + HOUR)
    assert longer.timeout == soon + HOUR
    assert not longer.flags & WORKED_ON
    shorter = peer.ask(Function.GET, key=b"k", flags=EXACT, timeout=soon)
    assert shorter.timeout == soon + HOUR
    assert len(peer.ask(Function.NEXT).pairs) == 1, "no lease was taken"
    set_job(peer, b"ever")
    assert peer.ask(Function.GET, key=b"ever", flags=EXACT, timeout=soon).timeout is None


def test_a_range_with_a_lease_tells_the_deadline_and_marks_what_it_gives(
    peer: FjPeer, other: FjPeer
) -> None:
    """FJ-GET-6: of several entries too."""
    for key in (b"a", b"b", b"c"):
        peer.ask(Function.SET, key=key, value_type=Type.STRING, value=b"x")
    whole = {"query": Query.RANGE, "key": b"a", "upper": b"c", "flags": DATA}
    assert peer.ask(Function.GET, **whole).timeout is None
    until = time.time_ns() // 1000 * 1000 + HOUR
    got = peer.ask(Function.GET, timeout=until, **{**whole, "upper": b"b"})
    assert (got.timeout, len(got.pairs)) == (until, 2)
    skipped = other.ask(Function.GET, **{**whole, "flags": DATA | WORKED_ON})
    assert [pair.key for pair in skipped.pairs] == [b"c"]
    told = other.ask(Function.GET, timeout=until + HOUR, **whole)
    assert told.flags & WORKED_ON
    pattern = {"query": Query.PATTERN, "key": b"^[ab]$", "flags": DATA | WORKED_ON}
    assert other.ask(Function.GET, **pattern).pairs == ()


def test_a_lock_protects_the_jobs_of_its_key(peer: FjPeer, other: FjPeer) -> None:
    """FJ-NTH-4: from putting, merging, deleting and leasing by key; GET tells it."""
    set_job(peer)
    job_id = peer.ask(Function.LIST).value
    assert job_id is not None
    assert peer.ask(Function.LOCK, key=b"k").error == ""
    assert other.ask(Function.GET, key=b"k").flags & LOCKED
    assert set_job(other).error.startswith("LOCKED")
    for fields in ({}, {"value_type": Type.STRING, "value": b"q"}, {"flags": OVERWRITE}):
        refused = other.ask(Function.DELETE, key=b"k", **fields)  # type: ignore[arg-type]
        assert refused.error.startswith("LOCKED")
    assert lease(other).error.startswith("LOCKED")
    longer = other.ask(Function.GET, key=b"k", flags=EXACT | LENGTH, timeout=HOUR)
    assert longer.error.startswith("LOCKED")
    assert set_job(peer).error == ""
    assert lease(peer).error == ""
    assert set_job(other, b"free").error == ""
    peer.ask(Function.UNLOCK, key=b"k")
    assert set_job(other).error == ""
    assert decode_integer(other.ask(Function.DELETE, key=b"k").value or b"") == 2


def test_a_lock_protects_jobs_of_an_embedded_journal(tmp_path: Path) -> None:
    """FJ-NTH-4."""
    with Journal(tmp_path, sync="os", background=False) as j:
        put = j.put(b"x", queue="q", key="k")
        with j.entries.lock("k"):
            with pytest.raises(Locked):
                j.put(b"y", queue="q", key="k")
            with pytest.raises(Locked):
                j.put_many([{"payload": b"y", "queue": "q", "key": "k"}])
            with pytest.raises(Locked):
                j.delete(key="k", queue="q")
            with pytest.raises(Locked):
                j.delete(put.id)
            job = j.lease("q")
            assert job is not None
            job.done()
        assert j.put(b"y", queue="q", key="k").id != put.id


def test_a_lock_on_a_key_holds_up_no_work_on_its_jobs(peer: FjPeer, other: FjPeer) -> None:
    """FJ-NTH-4: who leases by queue, ends its lease, or forwards what was spooled, names no key."""
    set_job(peer)
    assert peer.ask(Function.LOCK, key=b"k").error == ""
    leased = other.ask(Function.NEXT, key=b"q")
    assert [pair.key for pair in leased.pairs] == [b"k"]
    assert other.ask(Function.TOUCH, key=b"k").error == ""
    assert other.ask(Function.DONE, key=b"k").error == ""
    job = PutRequest(b"q", b"spooled", key=b"k")
    sent = encode_forward([20], [encode_job(job)])
    told = other.ask(Function.FORWARD, key=b"sender", value_type=Type.BUFFER, value=sent)
    assert told.error == ""
    assert decode_forwarded(told.value or b"").mark == 20
    assert other.ask(Function.GET, key=b"k").flags & LOCKED
    assert set_job(other).error.startswith("LOCKED")


def test_what_changes_values_is_refused_for_a_job_by_its_type(peer: FjPeer) -> None:
    """FJ-NTH-2, FJ-NTH-3, FJ-NTH-6, FJ-KV-6: a job is no boolean, has no length, keeps its key."""
    set_job(peer)
    four: dict[str, Any] = {"value_type": Type.INTEGER, "value": b"\4"}
    name: dict[str, Any] = {"value_type": Type.BUFFER, "value": b"new"}
    assert peer.ask(Function.NOT, key=b"k").error.startswith("TYPE")
    assert peer.ask(Function.TRUNCATE, key=b"k", **four).error.startswith("TYPE")
    assert peer.ask(Function.RENAME, key=b"k", **name).error.startswith("TYPE")
    assert peer.ask(Function.ALIAS, key=b"k", **name).error.startswith("TYPE")
    assert peer.ask(Function.NOT, key=b"none").error.startswith("NOT-FOUND")
    assert peer.ask(Function.GET, key=b"k", flags=DATA).pairs[0].type == Type.JOB


def test_an_entry_tells_when_it_was_read_last(daemon: LocalDaemon, peer: FjPeer) -> None:
    """FJ-KV-3: before this reading; a probe and a scan do not count."""
    with daemon.connect() as client:
        client.entries["e"] = 1
        assert client.entries.entry("e").accessed == 0
        first = client.entries.entry("e").accessed
        assert near(first, 0)
        assert client.entries.entry("e", data=False).accessed >= first
        list(client.entries.range())
        second = client.entries.entry("e").accessed
        assert client.entries.page().entries[0].accessed >= second
    told = peer.ask(Function.GET, key=b"e", flags=DATA, ttl=ALL)
    assert decode_entry(b"e", 3, told.value or b"").accessed == 0
    told = peer.ask(Function.GET, key=b"e", flags=DATA, ttl=ALL_READ)
    assert decode_entry(b"e", 3, told.value or b"").accessed >= second


def test_an_identifier_that_awaits_its_answer_is_not_taken_again(peer: FjPeer) -> None:
    """FJ-MSG-3."""
    waiting = {"value_type": Type.INTEGER, "value": encode_integer(60_000)}
    peer.send(encode_request(Function.NEXT, 7, key=b"q", **waiting))
    refused = peer.ask(Function.PING, 7)
    assert refused.error.startswith("CLIENT-ERROR")
    assert peer.ask(Function.PING, 8).error == ""
    set_job(peer)
    told = peer.read()
    assert told is not None
    assert told.identifier == 7
    assert peer.ask(Function.PING, 7).error == "", "answered: it is free again"


def test_bytes_that_are_no_value_of_their_type_are_refused_by_every_door(
    peer: FjPeer, tmp_path: Path
) -> None:
    """FJ-TYP-0..5."""
    wrong = ((Type.INTEGER, b"abc"), (Type.FLOAT, b"1"), (Type.BOOLEAN, b"\2"), (Type.VOID, b"x"))
    for kind, data in wrong:
        told = peer.ask(Function.SET, key=b"k", value_type=kind, value=data)
        assert told.error.startswith("TYPE"), kind.name
    assert peer.ask(Function.GET, key=b"k").error.startswith("NOT-FOUND")
    with Journal(tmp_path / "j", sync="os", background=False) as journal:
        for kind, data in wrong:
            with pytest.raises(WrongType):
                journal.entries.operations.set(b"k", int(kind), data)


def test_nop_does_nothing_and_is_answered(peer: FjPeer) -> None:
    """FJ-CMD-0: with an empty success, in its turn."""
    told = peer.ask(Function.NOP, 9)
    assert (told.identifier, told.error, told.pairs) == (9, "", ())
