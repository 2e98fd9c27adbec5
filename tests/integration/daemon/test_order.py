"""Requests of one connection are answered in their order, whatever holds them up."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fastjournal
from fastjournal.client import Client
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.functions import DATA, Function
from fastjournal.wire.fj.replies import Reply
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer

KEYS = 200
REQUESTS = 3000  # 3 MB of questions, 18 MB of answers


def key(number: int) -> bytes:
    return b"%04d" % (number % KEYS) * 250


def value(number: int) -> bytes:
    return b"%06d" % (number % KEYS) * 1000


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", uvloop=request.param) as running:
        with running.connect() as client:
            for number in range(KEYS):
                client.entries.set(key(number), value(number))
        yield running


class Held:
    """Keeps the daemon's loop from turning: what is sent meanwhile is read in one turn."""

    def __init__(self, daemon: LocalDaemon) -> None:
        self._go_on = threading.Event()
        held = threading.Event()

        def hold() -> None:
            held.set()
            self._go_on.wait(30)

        threading.Thread(target=daemon.call, args=(hold,), daemon=True).start()
        held.wait(30)

    def let_go(self) -> None:
        self._go_on.set()


def gets(numbers: range) -> list[bytes]:
    return [
        encode_request(Function.GET, number + 1, flags=DATA, key=key(number)) for number in numbers
    ]


def wrong(replies: Iterator[Reply | None], numbers: range) -> list[int]:
    """The requests that got another answer than theirs."""
    bad = []
    for number in numbers:
        reply = next(replies)
        assert reply is not None, f"no answer to request {number}"
        if (reply.identifier, reply.pairs[0].value) != (number + 1, value(number)):
            bad.append(number)
    return bad


@pytest.mark.parametrize("reader", ["slow", "quick"])
def test_many_reads_in_one_turn_with_long_answers_are_answered_in_order(
    daemon: LocalDaemon, reader: str
) -> None:
    with FjPeer(daemon.port) as one, FjPeer(daemon.port) as two:
        for peer in (one, two):
            peer.hello()
        if reader == "slow":
            one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
        absent = encode_request(Function.GET, 1, flags=DATA, key=bytes(60_000))
        for _ in range(20):  # the kernel learns that much comes here, and takes more at once
            one.send(absent * 30)
            for _ in range(30):
                one.read()
        held = Held(daemon)
        numbers = range(REQUESTS)
        messages = b"".join(gets(numbers))
        sender = threading.Thread(target=one.send, args=(messages,))
        sender.start()
        two.send(gets(range(1))[0])
        wait_until(lambda: not sender.is_alive() or _is_full(one.sock), what="all is sent")
        held.let_go()
        assert wrong(iter(one.read, object()), numbers) == []
        sender.join()
        reply = two.read()
        assert reply is not None
        assert reply.pairs[0].value == value(0)


def _is_full(sock: socket.socket) -> bool:
    """Nothing more can be sent before the peer reads."""
    return not select.select((), (sock,), (), 0)[1]


def test_every_answer_of_a_pipeline_is_that_of_its_request(daemon: LocalDaemon) -> None:
    with daemon.connect() as client, daemon.connect() as other, ThreadPoolExecutor(2) as threads:

        def ask(asker: Client) -> list[int]:
            bad = []
            for first in range(0, 3000, 1000):
                pipeline = asker.pipeline()
                for number in range(first, first + 1000):
                    pipeline.entries.get(key(number))
                answers = pipeline.execute()
                bad += [n for n, got in enumerate(answers, first) if got != value(n)]
            return bad

        assert list(threads.map(ask, (client, other))) == [[], []]


def test_every_answer_to_an_asyncio_client_is_that_of_its_request(daemon: LocalDaemon) -> None:
    async def ask(asker: fastjournal.AsyncClient) -> list[int]:
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(asker.entries.get(key(n)) for n in range(6000)))
        return [n for n, got in enumerate(answers) if got != value(n)]

    async def both() -> list[list[int]]:
        async with (
            await fastjournal.aconnect(daemon.url) as one,
            await fastjournal.aconnect(daemon.url) as two,
        ):
            return await asyncio.gather(ask(one), ask(two))

    assert asyncio.run(both()) == [[], []]
