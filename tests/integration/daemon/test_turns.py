"""A turn of the daemon: what came in one round of its loop is decided, written and answered
together, on one path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.daemon.fj.connection import FjConnection
from fastjournal.package.compiled import describe_core
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.functions import Function
from fastjournal.wire.fj.json_values import load
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer, put_bytes


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", uvloop=request.param) as running:
        yield running


def turns(daemon: LocalDaemon) -> tuple[int, float]:
    """How many turns there were, and connections served in them."""
    histogram = daemon.call(daemon.server.default.turn_histogram)
    return histogram.count, histogram.total


def arrive(daemon: LocalDaemon, data: bytes) -> None:
    """The same bytes come from every peer, in one round of the loop."""
    for connection in daemon.server.connections:
        assert isinstance(connection, FjConnection)
        connection.data_received(data)


def test_what_comes_in_one_round_of_the_loop_is_one_turn(daemon: LocalDaemon) -> None:
    """SNAP-COM-1."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(FjPeer(daemon.port)) for _ in range(4)]
        for peer in peers:
            peer.ask(Function.PING)
        count, total = turns(daemon)
        daemon.call(lambda: arrive(daemon, put_bytes(7) + put_bytes(8)))
        answered = [[peer.read(), peer.read()] for peer in peers]
        assert [[reply and reply.identifier for reply in two] for two in answered] == [[7, 8]] * 4
        assert turns(daemon) == (count + 1, total + 4)
    assert daemon.server.default.state.queues[b"q"].total == 8


def test_a_connection_alone_is_served_as_soon_as_it_asks(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        peer.ask(Function.PING)

        def ask_and_look() -> int:
            arrive(daemon, put_bytes(7))
            return int(daemon.server.default.state.queues[b"q"].total)

        assert daemon.call(ask_and_look) == 1
        reply = peer.read()
        assert reply is not None
        assert reply.identifier == 7


def test_a_lost_framing_is_told_behind_the_answers_before_it(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        peer.send(put_bytes(7) + b"GET / HTTP/1.1\r\n\r\n" + put_bytes(8))
        first, second = peer.read(), peer.read()
        assert first is not None
        assert second is not None
        assert (first.identifier, first.error) == (7, "")
        assert second.error.startswith("CLIENT-ERROR")
        assert peer.is_closed()


def test_a_first_message_that_is_no_hello_is_carried_out(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        data = put_bytes(7)
        peer.send(data[:10])
        peer.send(data[10:] + encode_request(Function.PING, 8))
        first, second = peer.read(), peer.read()
        assert first is not None
        assert second is not None
        assert (first.identifier, second.identifier) == (7, 8)


def test_status_tells_which_core_runs(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        status = load(peer.ask(Function.STATUS).pairs[0].value)
        assert isinstance(status, dict)
        assert status["server"]["core"] == describe_core()
