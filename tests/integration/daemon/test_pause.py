"""A daemon that stood still: what had arrived by the end of a lease counts, though read late."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import fastjournal
from daemon_process import DaemonProcess
from fastjournal.client import leases
from fastjournal.testing import ManualClock, wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.replies import ReplyParser
from fjpeer import FjPeer

LOOPS = pytest.mark.parametrize("on_uvloop", [False, True], ids=["asyncio", "uvloop"])
LEASE = leases.lease(1, "q", None, None, 0, None, True, b"", False)
LEASE_WAIT = leases.lease(1, "q", None, None, 20, None, True, b"", False)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def daemon(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", uvloop=request.param, clock=clock) as running:
        yield running


class Stopped:
    """The loop does not turn; the threads beside it do."""

    def __init__(self, daemon: LocalDaemon) -> None:
        self._go_on = threading.Event()
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            self._go_on.wait(30)

        threading.Thread(target=daemon.call, args=(stop,), daemon=True).start()
        stopped.wait(30)

    def go_on(self) -> None:
        self._go_on.set()


def let_time_look(daemon: LocalDaemon) -> None:
    """The thread of the timers looks at the clock."""
    timer = daemon.server.default.engine.timer
    timer.set()
    wait_until(lambda: not timer.is_set())
    timer.set()
    wait_until(lambda: not timer.is_set())


def test_what_arrived_in_time_counts_though_it_is_read_after_the_lease_has_ended(
    daemon: LocalDaemon, clock: ManualClock
) -> None:
    with daemon.connect() as client:
        client.put_many([{"payload": b"%d" % n, "queue": "q"} for n in range(8)])
        peers = [FjPeer(daemon.port) for _ in range(9)]
        jobs = []
        for peer in peers:
            peer.hello()
        for _ in range(8):
            job = client.lease("q", lease=10)
            assert job is not None
            jobs.append(job)
        stopped = Stopped(daemon)
        peers[0].send(LEASE.data)  # read before what the others say
        for peer, job in zip(peers[1:], jobs, strict=True):
            peer.send(leases.complete(job.id, job.token, None).data)
        clock.advance(60)
        let_time_look(daemon)
        stopped.go_on()
        for peer in peers[1:]:
            reply = peer.read()
            assert reply is not None
            assert reply.error == ""
        none = peers[0].read()
        assert none is not None
        assert (none.error, none.pairs) == ("", ())
        for peer in peers:
            peer.close()
        assert client.queues() == []


def test_a_lease_that_nobody_spoke_for_is_lost_and_its_job_handed_on(
    daemon: LocalDaemon, clock: ManualClock
) -> None:
    with daemon.connect() as client, FjPeer(daemon.port) as peer, FjPeer(daemon.port) as waits:
        client.put(b"x", queue="q")
        first = client.lease("q", lease=10)
        assert first is not None
        for other in (peer, waits):
            other.hello()
        stopped = Stopped(daemon)
        peer.send(LEASE.data)
        clock.advance(60)
        let_time_look(daemon)
        stopped.go_on()
        reply = peer.read()
        assert reply is not None
        assert len(reply.pairs) == 1  # whoever asked meanwhile was told only when it was known
        waits.send(LEASE_WAIT.data)
        wait_until(lambda: daemon.call(lambda: len(daemon.server.default.engine.wakeups)))
        clock.advance(3600)
        let_time_look(daemon)
        assert waits.read() is not None


def test_a_peer_that_never_stops_talking_holds_no_lease_up_for_ever(
    daemon: LocalDaemon, clock: ManualClock
) -> None:
    over = threading.Event()
    with daemon.connect() as client, FjPeer(daemon.port, 60) as busy:
        client.put(b"x", queue="q")
        assert client.lease("q", lease=10) is not None
        busy.hello()
        ping = fastjournal.client.operator_calls.ping().data * 1000

        def talk() -> None:
            with contextlib.suppress(OSError):  # the door is shut in the end
                while not over.is_set():
                    busy.send(ping)

        def listen() -> None:
            parser = ReplyParser()
            with contextlib.suppress(OSError):
                while not over.is_set():
                    parser.feed(busy.sock.recv(1 << 20))

        threads = [threading.Thread(target=work, daemon=True) for work in (talk, listen)]
        for thread in threads:
            thread.start()
        clock.advance(60)
        assert client.lease("q", wait=30) is not None
        over.set()
        busy.sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def _without_uvloop(tmp_path: Path) -> dict[str, str]:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "uvloop.py").write_text("raise ImportError('hidden by a test')\n")
    return {"PYTHONPATH": str(hidden)}


@LOOPS
def test_a_stopped_daemon_takes_what_arrived_in_time_and_hands_nothing_out_twice(
    tmp_path: Path, on_uvloop: bool
) -> None:
    daemon = DaemonProcess(tmp_path / "d", env={} if on_uvloop else _without_uvloop(tmp_path))
    daemon.start()
    with ExitStack() as stack:
        stack.callback(daemon.kill)
        client = stack.enter_context(fastjournal.connect(daemon.url))
        client.put_many([{"payload": b"%d" % n, "queue": "q"} for n in range(8)])
        peers = [FjPeer(daemon.port, 30) for _ in range(9)]
        for peer in peers:
            peer.hello()
        jobs = [client.lease("q", lease=1.5) for _ in range(8)]
        ends = max(job.lease.until for job in jobs if job is not None)
        daemon.signal(signal.SIGSTOP)
        peers[0].send(LEASE_WAIT.data)
        for peer, job in zip(peers[1:], jobs, strict=True):
            assert job is not None
            peer.send(leases.complete(job.id, job.token, None).data)
        assert time.time_ns() < ends, "too slow a machine to send eight messages in time"
        wait_until(lambda: time.time_ns() > ends + 500_000_000)
        daemon.signal(signal.SIGCONT)
        for peer in peers[1:]:
            reply = peer.read()
            assert reply is not None
            assert reply.error == ""
        for peer in peers:
            peer.close()
        assert client.queues() == []
        assert daemon.stop() == 0
