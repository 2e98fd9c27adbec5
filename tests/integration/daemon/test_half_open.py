"""Peers that are gone without having said so: found by the limits of time and by TCP itself.

The limits are asked about a later moment of the loop's clock, so nothing here waits for them.
"""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.daemon.transport import Connection
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.fields import encode_integer
from fastjournal.wire.fj.functions import WORKED_ON, Function
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer, other_end, put_bytes


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d") as running:
        yield running


def later(daemon: LocalDaemon, seconds: float) -> None:
    """What the daemon does when it looks at its connections so much later."""
    daemon.call(lambda: daemon.server.sweep(daemon.server.loop.time() + seconds))


def only(daemon: LocalDaemon) -> Connection:
    (connection,) = daemon.call(lambda: list(daemon.server.connections))
    return connection


def known() -> int:
    """Connections that anybody still holds."""
    gc.collect()
    return sum(isinstance(held, Connection) for held in gc.get_objects())


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_peer_that_has_gone_silent_is_cut_after_the_idle_limit(daemon: LocalDaemon) -> None:
    limit = daemon.settings.limits.idle_timeout
    with FjPeer(daemon.port) as peer:
        peer.hello()
        later(daemon, limit - 30)
        assert not daemon.server.cuts
        later(daemon, limit + 1)
        wait_until(lambda: not daemon.server.connections, what="the peer is dismissed")
        assert dict(daemon.server.cuts) == {"idle": 1}
        assert peer.is_closed()


def test_a_peer_that_died_in_the_middle_of_a_message_is_cut(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        peer.hello()
        connection = only(daemon)
        peer.send(put_bytes()[:30])
        wait_until(lambda: daemon.call(lambda: bool(connection.partial_since)))
        later(daemon, daemon.settings.limits.message_timeout + 1)
        wait_until(lambda: not daemon.server.connections)
        assert dict(daemon.server.cuts) == {"partial": 1}


def test_what_a_cut_peer_held_is_given_up(daemon: LocalDaemon) -> None:
    """Its file descriptor, its memory, its waiting requests and subscriptions."""
    server = daemon.server
    wakeups = server.default.engine.wakeups
    files = open_files()
    with FjPeer(daemon.port) as peer:
        peer.ask(Function.LISTEN, flags=WORKED_ON, key=b"q")
        wait = encode_integer(3_600_000)
        peer.send(encode_request(Function.NEXT, 2, key=b"q", value_type=3, value=wait))
        wait_until(lambda: daemon.call(lambda: len(wakeups)) == 1)
        later(daemon, 10 * daemon.settings.limits.idle_timeout)
        assert not server.cuts  # who waits or listens may be silent
        assert known() == 1
        daemon.call(lambda: only_cut(server.connections))
        wait_until(lambda: not server.connections)
    assert daemon.call(lambda: len(wakeups)) == 0
    assert server.default.peers == 0
    assert not server.default.engine.subscriptions
    wait_until(lambda: not known(), what="the connection is forgotten")
    wait_until(lambda: open_files() <= files, what="the descriptor is closed")


def only_cut(connections: set[Connection]) -> None:
    for connection in list(connections):
        connection.cut("test", "as if TCP had found out")


def test_the_job_that_a_vanished_consumer_was_to_get_goes_to_the_next(daemon: LocalDaemon) -> None:
    wakeups = daemon.server.default.engine.wakeups
    with FjPeer(daemon.port) as gone, daemon.connect() as client:
        wait = encode_integer(3_600_000)
        gone.send(encode_request(Function.NEXT, 1, key=b"q", value_type=3, value=wait))
        wait_until(lambda: daemon.call(lambda: len(wakeups)) == 1)
        gone.sock.close()
        wait_until(lambda: daemon.call(lambda: len(wakeups)) == 0)
        client.put(b"x", queue="q")
        job = client.lease("q")
        assert job is not None
        assert job.token == 1  # it was never handed to the one who left


def test_tcp_looks_for_peers_that_have_vanished(daemon: LocalDaemon) -> None:
    """F50: the kernel asks after a minute of silence, and gives up after two without an answer."""
    with FjPeer(daemon.port) as peer:
        peer.hello()
        tcp = socket.IPPROTO_TCP
        with other_end(peer.sock) as sock:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            asked = [
                sock.getsockopt(tcp, getattr(socket, name))
                for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            ]
            assert asked == [60, 15, 4, 120_000]
            silent = _vanish(peer.sock)
            if silent:  # it left no FIN behind: only a probe can tell
                assert daemon.call(lambda: len(daemon.server.connections)) == 1
            sock.setsockopt(tcp, socket.TCP_KEEPIDLE, 1)
        wait_until(lambda: not daemon.server.connections, what="the probe finds nobody")


def _vanish(sock: socket.socket) -> bool:
    """Close without a word, where the system lets us (TCP_REPAIR); else in the ordinary way."""
    silent = False
    with contextlib.suppress(PermissionError):
        sock.setsockopt(socket.IPPROTO_TCP, 19, 1)
        silent = True
    sock.close()
    return silent
