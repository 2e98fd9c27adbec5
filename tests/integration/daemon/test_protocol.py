"""The FJ protocol over real sockets: order, durability, waiting, pushes, limits, slow peers."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastjournal.client import leases, puts
from fastjournal.daemon.fj.connection import FjConnection
from fastjournal.journal.journal import Journal
from fastjournal.model import Mode, State
from fastjournal.put_request import PutRequest
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.bulk import (
    Action,
    LeaseRequest,
    Putting,
    Settle,
    Settling,
    decode_forwarded,
    decode_settle_outcomes,
    encode_forward,
    encode_lease_request,
    encode_settle,
)
from fastjournal.wire.fj.fields import decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    BY_ID,
    DATA,
    EXTENDED,
    LISTEN,
    OVERWRITE,
    PERSIST,
    WORKED_ON,
    Function,
    Query,
    Type,
)
from fastjournal.wire.fj.job_codec import decode_leased, encode_job
from fastjournal.wire.fj.json_values import load
from fastjournal.wire.fj.replies import Reply
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer, put_bytes
from wire_values import decode_put_outcomes, encode_jobs, encode_short

T0 = 1_700_000_000_000_000_000


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", settings={"journal": {"sync": "os"}}) as running:
        yield running


@pytest.fixture
def peer(daemon: LocalDaemon) -> Iterator[FjPeer]:
    with FjPeer(daemon.port) as connected:
        yield connected


def set_job(peer: FjPeer, key: bytes = b"k", **fields: object) -> bytes:
    value = encode_short(b"data", queue=b"q", **fields)  # type: ignore[arg-type]
    reply = peer.ask(Function.SET, key=key, value_type=Type.JOB, value=value)
    assert reply.error == ""
    return key


def test_replies_come_in_the_order_of_the_requests(peer: FjPeer) -> None:
    peer.send(b"".join(put_bytes(n) for n in range(1, 1001)))
    identifiers = [peer.read().identifier for _ in range(1000)]  # type: ignore[union-attr]
    assert identifiers == list(range(1, 1001))


def test_a_waiting_request_holds_nobody_up(peer: FjPeer) -> None:
    wait = encode_integer(10_000)
    peer.send(encode_request(Function.NEXT, 7, key=b"q", value_type=Type.INTEGER, value=wait))
    assert peer.ask(Function.PING, 8).identifier == 8
    peer.send(put_bytes(9))
    got = {reply.identifier: reply for reply in (peer.read(), peer.read()) if reply}
    assert set(got) == {7, 9}
    assert got[7].pairs[0].type == Type.JOB


def test_set_of_a_short_job_next_and_done_by_key(peer: FjPeer) -> None:
    """FJ-M3-1."""
    set_job(peer, b"http://a/1", priority=3)
    reply = peer.ask(Function.NEXT, key=b"q")
    lease = decode_leased(reply.pairs[0], reply.timeout or 0)
    assert (lease.job.key, lease.job.payload, lease.token) == ("http://a/1", b"data", 1)
    assert lease.job.priority == 3
    assert reply.timeout is not None
    wrong = peer.ask(
        Function.DONE, key=b"http://a/1", value_type=Type.INTEGER, value=encode_integer(2)
    )
    assert wrong.error.startswith("LEASE-LOST")
    done = peer.ask(
        Function.DONE, key=b"http://a/1", value_type=Type.INTEGER, value=encode_integer(1)
    )
    assert done.error == ""
    gone = peer.ask(Function.DONE, key=b"http://a/1")
    assert gone.error.startswith("NOT-FOUND")


def test_next_says_job_later_or_nothing(peer: FjPeer) -> None:
    """FJ-NTH-7, FJ-M3-3: three answers, none of them an error."""
    nothing = peer.ask(Function.NEXT, key=b"q")
    assert (nothing.error, nothing.pairs, nothing.timeout) == ("", (), None)
    due = time.time_ns() + 3600 * 10**9
    set_job(peer, due=due)
    later = peer.ask(Function.NEXT)
    assert (later.error, later.pairs, later.timeout) == ("", (), due // 1000 * 1000)
    set_job(peer, b"now")
    job = peer.ask(Function.NEXT)
    assert (job.error, [pair.key for pair in job.pairs]) == ("", [b"now"])
    assert job.timeout is not None, "the end of its lease"


def test_next_with_a_deadline_take_and_layout_3(peer: FjPeer, daemon: LocalDaemon) -> None:
    until = (time.time_ns() + 100 * 10**9) // 1000 * 1000
    set_job(peer)
    reply = peer.ask(Function.NEXT, timeout=until)
    assert abs((reply.timeout or 0) - until) < 10**7
    past = peer.ask(Function.NEXT, timeout=T0)
    assert past.error.startswith("RANGE")
    set_job(peer, b"other")
    lease = decode_leased(peer.ask(Function.NEXT, flags=EXTENDED, ttl=0).pairs[0])
    assert len(lease.job.id) == 16
    set_job(peer, b"third")
    taken = peer.ask(Function.NEXT, flags=OVERWRITE)
    assert taken.pairs[0].key == b"third"
    rows = daemon.call(lambda: [row.key for row in daemon.server.default.state.rows.values()])
    assert sorted(rows) == [b"k", b"other"]


def test_get_and_delete_of_a_job_by_key(peer: FjPeer) -> None:
    set_job(peer)
    found = peer.ask(Function.GET, flags=DATA, key=b"k")
    assert decode_leased(found.pairs[0]).job.value == b"data"
    assert not found.flags & WORKED_ON
    peer.ask(Function.NEXT)
    assert peer.ask(Function.GET, flags=DATA, key=b"k").flags & WORKED_ON
    assert peer.ask(Function.GET, flags=WORKED_ON, key=b"k").error.startswith("NOT-FOUND")
    assert peer.ask(Function.GET, key=b"k").value == b""
    assert decode_integer(peer.ask(Function.DELETE, key=b"k").value or b"") == 1
    assert decode_integer(peer.ask(Function.DELETE, key=b"k").value or b"") == 0
    assert peer.ask(Function.GET, key=b"k").error.startswith("NOT-FOUND")


def test_an_older_timestamp_is_stale(peer: FjPeer) -> None:
    """D-09: the newest write of a key wins; an equal one is the same message again."""
    value = encode_short(b"new", queue=b"q")
    fields = {"key": b"k", "value_type": Type.JOB, "value": value}
    assert not peer.ask(Function.SET, timestamp=T0 + 5000, **fields).stale
    assert peer.ask(Function.SET, timestamp=T0 + 5000, **fields).stale
    assert peer.ask(Function.SET, timestamp=T0, **fields).stale
    ahead = time.time_ns() + 3600 * 10**9
    assert peer.ask(Function.SET, timestamp=ahead, **fields).error.startswith("CLOCK")


def test_fail_touch_release_by_id(peer: FjPeer) -> None:
    reply = peer.ask(Function.PING)
    peer.send(put_bytes())
    reply = peer.read()  # type: ignore[assignment]
    job_id = decode_put_outcomes(reply.value or b"")[0].id

    def lease() -> int:
        got = peer.ask(Function.NEXT, flags=EXTENDED, ttl=0)
        return decode_leased(got.pairs[0]).token

    by_id = {"flags": BY_ID, "key": job_id}
    token = lease()
    touched = peer.ask(
        Function.TOUCH, ttl=token, value_type=Type.INTEGER, value=encode_integer(90_000), **by_id
    )
    assert abs((touched.timeout or 0) - time.time_ns() - 90 * 10**9) < 5 * 10**9
    assert peer.ask(Function.TOUCH, ttl=token + 1, **by_id).error.startswith("LEASE-LOST")
    assert peer.ask(Function.RELEASE, ttl=token, **by_id).error == ""
    token = lease()
    failed = peer.ask(Function.FAIL, ttl=token, value_type=Type.BUFFER, value=b"why", **by_id)
    outcome = decode_settle_outcomes(failed.value or b"")[0]
    assert outcome.outcome == Settling.WAITING
    assert outcome.instant > time.time_ns()
    shown = peer.ask(Function.INSPECT, ttl=0, value_type=Type.STRING, value=b"job", **by_id)
    assert load(shown.value or b"")["note"] == "why"


def test_a_job_whose_key_has_no_domain_is_refused_by_itself(peer: FjPeer) -> None:
    jobs = [PutRequest(b"q", b"first", b"a"), PutRequest(b"", b"", b"/no/domain"),
            PutRequest(b"q", b"last", b"z")]  # fmt: skip
    put = peer.ask(Function.PUTS, value_type=Type.BUFFER, value=encode_jobs(jobs))
    outcomes = decode_put_outcomes(put.value or b"")
    assert [o.outcome for o in outcomes] == [0, Putting.REFUSED, 0]
    assert outcomes[1].error.startswith("CLIENT-ERROR the key has no domain")
    value = encode_forward([2, 3, 4], [encode_job(job) for job in jobs])
    for _ in range(2):  # the second time all of them have come before
        sent = peer.ask(Function.FORWARD, key=b"sender", value_type=Type.BUFFER, value=value)
        assert sent.error == ""
        told = decode_forwarded(sent.value or b"")
        assert (told.mark, told.refused, [mark for mark, _ in told.errors]) == (4, 1, [3])
        assert told.errors[0][1].startswith("CLIENT-ERROR the key has no domain")
    assert told.repeated == 2


def test_bulk_functions_have_one_outcome_per_item(peer: FjPeer) -> None:
    jobs = [PutRequest(b"q", b"%d" % n, mode=Mode.PLAIN) for n in range(5)]
    jobs[2].priority = 300
    put = peer.ask(Function.PUTS, value_type=Type.BUFFER, value=encode_jobs(jobs))
    outcomes = decode_put_outcomes(put.value or b"")
    assert [o.outcome for o in outcomes] == [0, 0, Putting.REFUSED, 0, 0]
    assert outcomes[2].error.startswith("RANGE")
    wanted = LeaseRequest((b"q",), limit=10)
    leased = peer.ask(Function.LEASE, value_type=Type.BUFFER, value=encode_lease_request(wanted))
    leases = [decode_leased(pair) for pair in leased.pairs]
    assert [lease.job.value for lease in leases] == [b"0", b"1", b"3", b"4"]
    items = [
        Settle(Action.COMPLETE, leases[0].job.id, leases[0].token),
        Settle(Action.COMPLETE, leases[0].job.id, leases[0].token),
        Settle(Action.FAIL, leases[1].job.id, leases[1].token, 0, b"", b"x"),
        Settle(Action.RELEASE, leases[2].job.id, leases[2].token, 10**9),
        Settle(Action.TOUCH, leases[3].job.id, leases[3].token, 10**9),
    ]
    settled = peer.ask(Function.SETTLE, value_type=Type.BUFFER, value=encode_settle(items))
    assert [o.outcome for o in decode_settle_outcomes(settled.value or b"")] == [
        Settling.DONE, Settling.REFUSED, Settling.WAITING, Settling.WAITING, Settling.EXTENDED,
    ]  # fmt: skip


def test_a_lease_reply_is_bounded_in_bytes(peer: FjPeer) -> None:
    jobs = [PutRequest(b"q", bytes(500_000), mode=Mode.PLAIN) for _ in range(30)]
    for start in range(0, 30, 10):
        part = encode_jobs(jobs[start : start + 10])
        assert peer.ask(Function.PUTS, value_type=Type.BUFFER, value=part).error == ""
    wanted = LeaseRequest(limit=1000, max_bytes=1_000_000)
    reply = peer.ask(Function.LEASE, value_type=Type.BUFFER, value=encode_lease_request(wanted))
    assert len(reply.pairs) == 16


def test_bit_9_says_whether_the_effect_is_on_stable_storage(tmp_path: Path) -> None:
    for sync in ("os", "interval", "always"):
        settings = {"journal": {"sync": sync}}
        with LocalDaemon(tmp_path / sync, settings=settings) as daemon, FjPeer(daemon.port) as peer:
            peer.send(put_bytes())
            first = peer.read()
            assert first is not None
            assert first.stable is (sync == "always")
            value = encode_short(b"", queue=b"q")
            reply = peer.ask(Function.SET, flags=PERSIST, key=b"k", value_type=6, value=value)
            assert reply.stable
            log = daemon.server.default.engine.log
            assert log.synced_time == log.written_time


def test_replies_under_always_leave_after_their_sync_and_in_order(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "d", settings={"journal": {"sync": "always"}}) as daemon:
        log = daemon.server.default.engine.log
        with FjPeer(daemon.port) as peer:
            for start in range(1, 2001, 100):
                peer.send(b"".join(put_bytes(n) for n in range(start, start + 100)))
            for n in range(1, 2001):
                reply = peer.read()
                assert reply is not None
                assert (reply.identifier, reply.stable) == (n, True)
                assert log.synced_time >= reply.timestamp // 1000 * 1000
        assert log.counters.syncs < 2000


def test_a_log_that_stopped_refuses_and_lets_read(daemon: LocalDaemon, peer: FjPeer) -> None:
    set_job(peer)
    daemon.call(lambda: daemon.server.default.engine.log.stop(OSError("pulled out")))
    peer.send(put_bytes(1) + put_bytes(2))
    for n in (1, 2):
        reply = peer.read()
        assert reply is not None
        assert (reply.identifier, reply.error.split()[0]) == (n, "READ-ONLY")
    assert peer.ask(Function.NEXT).error.startswith("READ-ONLY")
    assert peer.ask(Function.GET, key=b"k", flags=DATA).error == ""
    assert load(peer.ask(Function.STATUS).value or b"")["log"]["failure"]
    with socket.create_connection(("127.0.0.1", daemon.http_port)) as http:
        http.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert http.recv(100).startswith(b"HTTP/1.1 503 ")


def test_listening_to_a_queue(daemon: LocalDaemon, peer: FjPeer) -> None:
    """D-16: one push until somebody leases."""
    assert peer.ask(Function.LISTEN, 5, flags=WORKED_ON, key=b"q").error == ""
    with FjPeer(daemon.port) as other:
        for n in range(1, 4):
            other.send(put_bytes(n))
            other.read()
        push = peer.read()
        assert push is not None
        assert (push.is_push, push.identifier, push.pairs[0].key) == (True, 5, b"q")
        assert push.timeout
        assert peer.ask(Function.PING, 6).identifier == 6  # no further push came before it
        other.ask(Function.NEXT)
        other.send(put_bytes(9))
        other.read()
        again = peer.read()
        assert again is not None
        assert again.is_push
        assert peer.ask(Function.UNLISTEN, 7, flags=WORKED_ON, key=b"q").error == ""
        other.ask(Function.NEXT)
        other.send(put_bytes(9))
        other.read()
        assert peer.ask(Function.PING, 8).identifier == 8


def test_a_listener_is_told_what_is_due_already_and_what_died(daemon: LocalDaemon) -> None:
    with daemon.connect() as client, daemon.connect() as listener:
        client.put(queue="q", max_fails=1)
        with listener.subscribe() as events:
            first = events.next(10)
            assert first is not None
            assert (first.kind, first.queue) == ("due", b"q")
            job = client.lease("q")
            assert job is not None
            assert job.fail() is State.FAILED
            dead = events.next(10)
            assert dead is not None
            assert (dead.kind, dead.queue) == ("dead", b"q")
            assert events.next(0.01) is None


def test_listening_to_a_key(daemon: LocalDaemon, peer: FjPeer) -> None:
    value = encode_short(b"", queue=b"q")
    peer.ask(Function.SET, 3, flags=LISTEN, key=b"k", value_type=Type.JOB, value=value)
    with FjPeer(daemon.port) as other:
        other.ask(Function.SET, key=b"k", value_type=Type.JOB, value=encode_short(b"2", queue=b"q"))
        changed = peer.read()
        assert changed is not None
        assert (changed.identifier, changed.pairs[0].key, changed.gone) == (3, b"k", False)
        other.ask(Function.DELETE, key=b"k")
        gone = peer.read()
        assert gone is not None
        assert (gone.pairs[0].key, gone.gone) == (b"k", True)


def test_a_listener_that_falls_behind_is_told_that_pushes_were_lost(tmp_path: Path) -> None:
    settings = {"limits": {"push_backlog": 10, "high_water": 1024}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", daemon.port))
        slow.sendall(encode_request(Function.LISTEN, 5, flags=WORKED_ON))
        with daemon.connect() as client:
            behind = False
            for round_ in range(400):
                names = [f"{'q' * 200}{round_}.{n}" for n in range(50)]
                client.put_many([{"queue": name} for name in names])
                session = next(
                    c for c in daemon.server.connections if getattr(c, "listening", None)
                )
                if behind:  # more pushes than are kept have come since
                    break
                behind = bool(session.stuck_since)
            assert behind
            assert daemon.call(lambda: len(session._pushes)) <= 10
        parser = FjPeer.__new__(FjPeer)
        from fastjournal.wire.fj.replies import ReplyParser

        parser.parser = ReplyParser()
        keys: list[bytes] = []
        slow.settimeout(5)
        while b"" not in keys:
            keys += [r.pairs[0].key for r in parser.parser.feed(slow.recv(65_536)) if r.is_push]
        slow.close()


def test_unknown_functions_are_answered_and_the_connection_goes_on(peer: FjPeer) -> None:
    assert peer.ask(999).error.startswith("BAD-FUNCTION")
    assert peer.ask(Function.NOP, 0xFFFF).identifier == 0xFFFF


def test_quit_answers_everything_before_it_and_closes(peer: FjPeer) -> None:
    wait = encode_integer(60_000)
    peer.send(
        encode_request(Function.NEXT, 1, value_type=Type.INTEGER, value=wait, key=b"nix")
        + put_bytes(2)
        + encode_request(Function.QUIT, 3)
    )
    got = {reply.identifier for reply in (peer.read(), peer.read(), peer.read()) if reply}
    assert got == {1, 2, 3}
    assert peer.read() is None


def test_a_peer_that_ends_its_side_gets_its_answers(peer: FjPeer) -> None:
    peer.send(b"".join(put_bytes(n) for n in range(1, 101)))
    peer.sock.shutdown(socket.SHUT_WR)
    assert [peer.read().identifier for _ in range(100)] == list(range(1, 101))  # type: ignore[union-attr]
    assert peer.read() is None


def test_lost_framing_is_told_and_ends_the_connection(daemon: LocalDaemon) -> None:
    for nonsense, code in (
        (b"GET / HTTP/1.1\r\n\r\n", "CLIENT-ERROR"),
        (b"FJ\0\2" + bytes(30), "VERSION"),
        (b"FJ\0\1\0\2\0\1\0\6" + bytes(8) + b"\0" + struct.pack(">I", 1 << 30), "TOO-LARGE"),
    ):
        with FjPeer(daemon.port) as peer:
            peer.send(put_bytes(9) + nonsense)
            first, second = peer.read(), peer.read()
            assert first is not None and second is not None
            assert (first.identifier, first.error) == (9, "")
            assert second.error.startswith(code)
            assert peer.is_closed()


def test_values_up_to_the_limit_pass_and_larger_ones_do_not(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        peer.send(put_bytes(1, bytes(1 << 20)))
        reply = peer.read()
        assert reply is not None
        assert reply.error == ""
        peer.send(put_bytes(2, bytes((1 << 20) + 1)))
        reply = peer.read()
        assert reply is not None
        assert reply.error.startswith("TOO-LARGE")
        assert peer.ask(Function.PING).error == ""


def test_the_requests_of_a_peer_that_does_not_read_wait_on_its_own_side(tmp_path: Path) -> None:
    """F37: forty MiB of them, while an answer is not taken."""
    settings = {"limits": {"high_water": 65_536, "write_timeout": 60}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        with daemon.connect() as client:
            receipt = client.put(bytes(1 << 20), queue="q")
        ask = encode_request(
            Function.INSPECT, 1, flags=BY_ID, ttl=0, key=receipt.id, value_type=2, value=b"job"
        )
        many = ask * ((1 << 20) // len(ask))
        with socket.create_connection(("127.0.0.1", daemon.port)) as slow:
            slow.settimeout(1)
            with contextlib.suppress(TimeoutError):
                for _ in range(40):
                    slow.sendall(many)
            (connection,) = daemon.call(lambda: list(daemon.server.connections))
            waiting = daemon.call(lambda: connection.frames.pending)
            assert 0 < waiting < 4 << 20


def test_a_peer_that_does_not_read_is_not_read_from_and_then_cut(tmp_path: Path) -> None:
    settings = {"limits": {"high_water": 65_536, "write_timeout": 0.3}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        with daemon.connect() as client:
            receipt = client.put(bytes(1 << 20), queue="q")
        slow = socket.create_connection(("127.0.0.1", daemon.port))
        ask = encode_request(
            Function.INSPECT, 1, flags=BY_ID, ttl=0, key=receipt.id, value_type=2, value=b"job"
        )
        slow.setblocking(False)
        sent = 0
        try:
            for _ in range(100_000):
                sent += slow.send(ask * 10)
        except (BlockingIOError, ConnectionError):
            pass
        connection = next(iter(daemon.server.connections), None)
        most = 0
        while daemon.call(lambda: bool(daemon.server.connections)):
            if connection is not None and not connection.gone:
                size = daemon.call(connection._transport.get_write_buffer_size)
                most = max(most, size)
        assert most < 80 << 20
        assert daemon.call(lambda: daemon.server.cuts["slow"]) == 1
        slow.close()
        with daemon.connect() as client:
            assert client.ping()


def test_incomplete_messages_and_idle_peers_are_cut_and_waiting_ones_are_not(
    tmp_path: Path,
) -> None:
    settings = {"limits": {"message_timeout": 0.3, "idle_timeout": 0.5}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        loris, idle = FjPeer(daemon.port), FjPeer(daemon.port)
        waiting, listening = FjPeer(daemon.port), FjPeer(daemon.port)
        listening.ask(Function.LISTEN, flags=WORKED_ON, key=b"q")
        wait = encode_integer(60_000)
        waiting.send(encode_request(Function.NEXT, 1, key=b"q", value_type=3, value=wait))
        idle.ask(Function.PING)
        message = put_bytes()
        loris.sock.settimeout(0.02)
        for byte in message[:-1]:  # a byte now and then, until it is cut
            try:
                loris.send(bytes([byte]))
                if not loris.sock.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("a message was never finished, and nobody minded")
        assert daemon.call(lambda: daemon.server.cuts["partial"]) == 1
        assert idle.is_closed()
        with daemon.connect() as client:
            client.put(b"x", queue="q")
        reply = waiting.read()
        assert reply is not None
        assert reply.pairs
        assert listening.read() is not None
        cuts = daemon.call(lambda: dict(daemon.server.cuts))
        assert cuts["partial"] == 1
        assert cuts["idle"] >= 1
        for peer in (loris, idle, waiting, listening):
            peer.close()


def test_connections_beyond_the_limit_are_turned_away(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "d", settings={"limits": {"max_connections": 3}}) as daemon:
        peers = [FjPeer(daemon.port) for _ in range(3)]
        for peer in peers:
            assert peer.ask(Function.PING).error == ""
        with FjPeer(daemon.port) as fourth:
            reply = fourth.read()
            assert reply is not None
            assert reply.error.startswith("FULL")
            assert fourth.is_closed()
        peers.pop().close()
        while daemon.call(lambda: len(daemon.server.connections)) > 2:
            pass
        with FjPeer(daemon.port) as again:
            assert again.ask(Function.PING).error == ""
        for peer in peers:
            peer.close()


@pytest.mark.parametrize("uvloop", [False, True])
def test_two_thousand_idle_connections_cost_the_others_nothing(
    tmp_path: Path, uvloop: bool
) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    with LocalDaemon(tmp_path / "d", uvloop=uvloop) as daemon:
        idle = [socket.create_connection(("127.0.0.1", daemon.port)) for _ in range(2000)]
        with daemon.connect() as client:
            while daemon.call(lambda: len(daemon.server.connections)) < 2001:
                pass
            client.put_many([{"queue": "q"}] * 1000)
            assert len(client.lease_many(1000, "q")) == 1000
        idle[77].sendall(encode_request(Function.PING, 1))
        assert idle[77].recv(100).startswith(b"JR")
        for sock in idle:
            sock.close()


def test_several_journals_are_kept_apart(tmp_path: Path) -> None:
    with (
        LocalDaemon(tmp_path / "d", settings={"journals": ["a", "b"]}) as daemon,
        daemon.connect(journal="a") as a,
        daemon.connect(journal="b") as b,
    ):
        a.put(b"for a", queue="q")
        assert b.lease("q") is None
        assert a.lease("q") is not None
        assert (a.about["journal"], b.about["journal"]) == ("a", "b")
    assert (tmp_path / "d" / "a" / "append.lock").exists()
    with LocalDaemon(tmp_path / "d") as daemon:  # found again without being named
        assert sorted(daemon.server.journals) == ["a", "b", "default"]


def test_what_came_and_went_over_the_network_is_reclaimed_at_the_old_end_of_the_log(
    tmp_path: Path,
) -> None:
    """FJ-GEN-1: a ring of segments."""
    settings = {"journal": {"sync": "os", "segment_size": 4096, "clean_interval": 0}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon, daemon.connect() as client:
        journal = daemon.server.default.journal
        stream = journal.engine.log.stream
        for _ in range(4):
            for number in range(60):
                client.put(b"%d" % number * 100, queue="q")
            for _ in range(60):
                job = client.lease("q")
                assert job is not None
                job.done()
            for _ in range(3):  # that a job is gone goes a cycle after the job
                journal.clean()
            numbers = stream.segments()
            assert numbers[0] > 1, "the old end"
            assert len(numbers) < 8, "as after the first round"
        assert numbers[-1] > 20


def test_a_directory_that_was_used_embedded_can_be_served(tmp_path: Path) -> None:
    """FJ-GEN-1."""
    with Journal(tmp_path / "jobs") as journal:
        journal.put(b"embedded", queue="q")
    with LocalDaemon(tmp_path / "jobs") as daemon, daemon.connect() as client:
        job = client.lease("q")
        assert job is not None
        assert job.payload == b"embedded"
        client.put(b"served", queue="q")
    with Journal(tmp_path / "jobs") as journal:
        again = journal.lease("q")
        assert again is not None
        assert again.payload == b"served"


def test_the_short_way_and_the_long_way_are_one(daemon: LocalDaemon) -> None:
    """One message alone in a read takes the short way; cut in two it takes the long one."""
    ids = iter([bytes([n]) * 16 for n in range(1, 100)])

    def put(key: str | None, queue: str, payload: bytes) -> bytes:
        call = puts.put(payload, key, queue, 7)
        job_id = next(ids)
        at = 25 if call.data[9] == 2 else 26  # behind the header, the size and four bytes of job
        return call.data[:at] + job_id + call.data[at + 16 :]

    def lease(queue: str) -> bytes:
        return leases.lease(1, queue, None, None, 0, None, True, b"w", False).data

    with FjPeer(daemon.port) as peer, daemon.connect() as client:
        client.drain("closed")

        def partly_read() -> bool:
            return any(
                isinstance(c, FjConnection) and c.frames.pending for c in daemon.server.connections
            )

        def answer(data: bytes, cut: bool) -> tuple[object, ...]:
            if cut:
                peer.send(data[:10])
                wait_until(lambda: daemon.call(partly_read), what="the first part is read")
                peer.send(data[10:])
            else:
                peer.send(data)
            reply = peer.read()
            assert reply is not None
            value = reply.pairs[0].value if reply.pairs else b""
            outcome = (value[4:5], len(value)) if len(value) == 21 else b""
            shown = reply.pairs and reply.pairs[0].type == Type.JOB
            job = decode_leased(reply.pairs[0]).job if shown else None
            what = (
                (job.queue_bytes, job.key_bytes, job.payload, job.attempts, job.worker)
                if job
                else None
            )
            return reply.flags, reply.error.split()[:1], len(reply.pairs), outcome, what

        for cut in (False, True):
            name = "long" if cut else "short"
            first = put(None, name, b"x")
            keyed = put("k", name, b"y")
            big = put(None, name, b"z" * 1000)
            got = [
                answer(data, cut)
                for data in (
                    first, first, keyed, put("k", name, b"y2"), big, put(None, "closed", b""),
                    lease(name), lease(name), lease(name), lease(name),
                    leases.complete(first[25:41], 1, None).data,
                    leases.complete(bytes(range(16)), 1, None).data,
                )
            ]  # fmt: skip
            if not cut:
                short = got
        replaced = [(f, e, n, o, w and (b"", *w[1:])) for f, e, n, o, w in got]
        assert replaced == [(f, e, n, o, w and (b"", *w[1:])) for f, e, n, o, w in short]
        assert [e for _, e, _, _, _ in short if e] == [["PAUSED"], ["NOT-FOUND"]]
        assert sum(w is not None for *_, w in short) == 3


def test_puts_that_come_together_are_answered_one_by_one_and_in_order(daemon: LocalDaemon) -> None:
    """Plain ones are put together; what stands between them, or is not plain, is not mixed up."""

    def put(identifier: int, key: str | None = None, queue: str = "q") -> bytes:
        call = puts.put(b"%d" % identifier, key, queue)
        return call.data[:6] + identifier.to_bytes(2, "big") + call.data[8:]

    messages = [put(number) for number in range(1, 1300)]
    messages[700] = encode_request(Function.PING, 701)
    messages[800] = put(801, key="k")
    messages[900] = put(901, queue="closed")
    messages[1000] = messages[999]  # the same put again
    with daemon.connect() as client, FjPeer(daemon.port) as peer:
        client.drain("closed")
        peer.send(b"".join(messages))
        replies = [peer.read() for _ in messages]
        assert all(reply is not None for reply in replies)
        answered = [reply.identifier for reply in replies if reply is not None]
        expected = list(range(1, 1300))
        expected[1000] = 1000
        assert answered == expected
        refused = {reply.identifier: reply.error for reply in replies if reply and reply.error}
        assert list(refused) == [901]
        stale = [at for at, reply in enumerate(replies) if reply and reply.stale]
        assert stale == [1000]
        jobs = client.jobs("q", limit=2000)
        assert [int(job.value) for job in jobs] == [
            number for number in range(1, 1300) if number not in (701, 901, 1001)
        ]


@pytest.mark.parametrize("sync", ["os", "always"])
def test_puts_of_many_connections_at_once_are_each_taken_and_answered(
    tmp_path: Path, sync: str
) -> None:
    """They are put together, and whoever sends something else in between loses nothing."""
    settings = {"journal": {"sync": sync}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(FjPeer(daemon.port)) for _ in range(8)]
        client = stack.enter_context(daemon.connect())
        for peer in peers:
            peer.hello()
        for turn in range(30):
            entry = encode_request(Function.SET, 1, key=b"%d" % turn, value_type=1, value=b"e")
            calls = [*plain_puts(turn), encode_request(Function.PING, 1), entry]
            for peer, data in zip(peers, calls, strict=True):
                peer.send(data)
            for peer in peers:
                reply = peer.read()
                assert reply is not None
                assert not reply.error
        assert client.queue("q").ready == 180
        values = {job.value for job in client.jobs("q", limit=1000)}
        assert values == {b"%d of %d" % (at, turn) for at in range(6) for turn in range(30)}


def plain_puts(turn: int) -> list[bytes]:
    return [puts.put(b"%d of %d" % (at, turn), None, "q").data for at in range(6)]


@pytest.mark.parametrize("uvloop", [False, True])
def test_a_list_is_bounded_whoever_asks(tmp_path: Path, uvloop: bool) -> None:
    with (
        LocalDaemon(tmp_path / "d", uvloop=uvloop) as daemon,
        daemon.connect() as client,
        FjPeer(daemon.port) as peer,
    ):
        client.put_many([{"payload": bytes(100), "queue": "small"}] * 12_000)
        for _ in range(12):
            client.put(bytes(1 << 20), queue="large")

        def ask(asked: dict[str, Any], **more: Any) -> Reply:
            value = json.dumps(asked).encode()
            return peer.ask(Function.LIST, value_type=Type.STRING, value=value, **more)

        first = ask({"limit": 1000, "values": True}, key=b"large")
        jobs: list[Any] = []
        pages = 0
        reply = first
        while reply.cursor:
            assert len(reply.pairs[0].value) < 8 << 20
            jobs += json.loads(reply.pairs[0].value)
            pages += 1
            reply = ask({"limit": 1000}, key=reply.cursor, query=Query.CURSOR)
        jobs += json.loads(reply.pairs[0].value)
        assert pages >= 4  # 12,000 small ones were looked at, and 12 MiB of large ones told
        assert json.loads(first.pairs[0].value) == []
        assert [job["size"] for job in jobs] == [1 << 20] * 12
        assert all(len(job["value"]) > 1 << 20 for job in jobs)
        told = json.loads(ask({}).pairs[0].value)
        assert len(told) == 100
        assert [(job["size"], "value" in job) for job in told] == [(100, False)] * 100


@pytest.mark.parametrize(
    "asked",
    [
        {"limits": 5}, {"cursor": "x"}, {"state": "nowhere"}, {"state": 3}, {"limit": 0},
        {"limit": 1001}, {"limit": "5"}, {"limit": True}, {"offset": -1}, {"offset": 1.5},
        {"offset": 1 << 63}, {"prefix": 5}, {"values": 1}, {"values": "no"}, [], "x",
        {"prefix": "x" * 20_000},
    ],
)  # fmt: skip
def test_a_list_refuses_what_it_does_not_know(peer: FjPeer, asked: Any) -> None:
    value = json.dumps(asked).encode()
    assert peer.ask(Function.LIST, value_type=Type.STRING, value=value).error
    assert peer.ask(Function.LIST).error == ""


def test_a_cursor_of_a_list_is_not_trusted(peer: FjPeer) -> None:
    peer.send(put_bytes(1) + put_bytes(2))
    assert peer.read()
    assert peer.read()
    one = json.dumps({"limit": 1}).encode()
    reply = peer.ask(Function.LIST, value_type=Type.STRING, value=one)
    assert reply.cursor
    for cursor in (b"x", reply.cursor[:-1], reply.cursor + b"x"):
        answer = peer.ask(Function.LIST, key=cursor, query=Query.CURSOR)
        assert answer.error.startswith("CURSOR")
    both = json.dumps({"state": "waiting"}).encode()
    answer = peer.ask(
        Function.LIST, key=reply.cursor, query=Query.CURSOR, value_type=Type.STRING, value=both
    )
    assert answer.error.startswith("CLIENT-ERROR")
