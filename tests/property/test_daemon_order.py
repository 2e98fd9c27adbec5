"""However reads, turns and slow readers interleave, every connection gets the answers that it would
get if it asked one question at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fastjournal.config import load
from fastjournal.daemon.fj.connection import FjConnection
from fastjournal.daemon.main import make_server
from fastjournal.daemon.server import Server
from fastjournal.testing.files import MemoryFiles
from fastjournal.wire.fj.fields import encode_integer
from fastjournal.wire.fj.functions import DATA, KEPT, OVERWRITE, Function, Type
from fastjournal.wire.fj.replies import ReplyParser
from fastjournal.wire.fj.requests import encode_request
from fjpeer import put_bytes

HIGH = 600_000  # bytes; the daemon's own limit is larger
LARGE = 300_000  # of these, four fill a turn
READ = 60_000


class Wire(asyncio.Transport):
    """The daemon's end of a connection: keeps what is written until the test reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: Any = None
        self.unsent = bytearray()
        self.unread: list[bytes] = []
        self.reads = True
        self.stuck = False
        self.ended = False

    def write(self, data: Any) -> None:
        self.unsent += data
        if len(self.unsent) > HIGH and not self.stuck:
            self.stuck = True
            self.connection.pause_writing()

    def drain(self, size: int) -> bytes:
        """The peer reads."""
        taken = bytes(self.unsent[:size])
        del self.unsent[:size]
        if self.stuck and len(self.unsent) <= HIGH // 4:
            self.stuck = False
            self.connection.resume_writing()
        return taken

    def arrive(self, data: bytes) -> None:
        self.unread.append(data)
        self.deliver()

    def deliver(self) -> None:
        while self.unread and self.reads:
            self.connection.data_received(self.unread.pop(0))

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    abort = close


class Peer:
    """A connection and what it has been told."""

    def __init__(self, server: Server) -> None:
        self.wire = Wire()
        self.wire.connection = FjConnection(server)
        self.wire.connection.connection_made(self.wire)
        self.parser = ReplyParser()
        self.told: list[object] = []

    def take(self, size: int) -> None:
        for reply in self.parser.feed(self.wire.drain(size)):
            pairs = [(pair.type, pair.value) for pair in reply.pairs]
            if reply.identifier % 3 == 0:  # a put: its id is drawn by chance
                pairs = [(kind, value[:1]) for kind, value in pairs]
            self.told.append((reply.identifier, reply.error.split(" ")[0], pairs))

    def close(self) -> None:
        self.wire.connection.connection_lost(None)


class Plan(NamedTuple):
    """What happens."""

    asked: list[list[tuple[str, int]]]
    """By connection: what, about which key."""
    cuts: list[list[int]]
    """By connection: the sizes of its first reads."""
    steps: list[tuple[str, int, int]]


WHAT = ("set", "large", "get", "get", "get", "add", "delete", "put")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    peers = draw(st.integers(1, 5))
    question = st.tuples(st.sampled_from(WHAT), st.sampled_from((0, 0, 1)))
    asked = [
        [("large", 0), *draw(st.lists(question, min_size=1, max_size=25))] for _ in range(peers)
    ]
    size = st.sampled_from((1, 20, 60, 700, 100_000, 10_000_000))
    cuts = [draw(st.lists(size, max_size=30)) for _ in range(peers)]
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(("read", "read", "read", "turn", "drain")),
                st.integers(0, peers - 1),
                st.sampled_from((1, 1000, 300_000, 2_000_000)),
            ),
            max_size=60,
        )
    )
    return Plan(asked, cuts, steps)


def message(what: str, prefix: bytes, number: int, identifier: int) -> bytes:
    key = prefix + b"%d" % number
    if what == "put":
        return put_bytes(identifier, queue=b"q")
    if what in ("set", "large"):
        value = b"%d" % identifier if what == "set" else b"%x" % (identifier % 16) * LARGE
        fields: dict[str, Any] = {"flags": KEPT | OVERWRITE, "value": value}
        return encode_request(Function.SET, identifier, key=key, value_type=Type.BUFFER, **fields)
    if what == "get":
        return encode_request(Function.GET, identifier, flags=DATA, key=key)
    if what == "add":
        fields = {"value_type": Type.INTEGER, "value": encode_integer(identifier)}
        return encode_request(Function.ADD, identifier, key=key + b"n", **fields)
    return encode_request(Function.DELETE, identifier, key=key, value_type=Type.STRING)


class House:
    """A daemon whose connections are all in the hands of the test."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sync: str) -> None:
        self.loop = loop
        self._examples = itertools.count()
        self.server: Server = loop.run_until_complete(self._start(sync))

    async def _start(self, sync: str) -> Server:
        given: dict[str, Any] = {
            "data": "/data", "listen": ["127.0.0.1:0"],
            "journal": {"sync": sync, "clean_interval": 0},
        }  # fmt: skip
        server = make_server(load(environment={}, overrides=given), files=MemoryFiles())
        await server.start()
        return server

    def messages(self, asked: list[list[tuple[str, int]]]) -> list[list[bytes]]:
        example = next(self._examples)
        out = []
        for peer, questions in enumerate(asked):
            prefix = b"%d-%d-" % (example, peer)
            numbers = itertools.count(1)
            out.append(
                [
                    message(what, prefix, n, 3 * next(numbers) - (what != "put"))
                    for what, n in questions
                ]
            )
        return out

    async def one_by_one(self, asked: list[list[tuple[str, int]]]) -> list[list[object]]:
        told = []
        for messages in self.messages(asked):
            peer = Peer(self.server)
            for number, data in enumerate(messages, 1):
                peer.wire.arrive(data)
                await self._until(lambda p=peer, n=number: self._told(p) >= n)  # type: ignore[misc]
            told.append(peer.told)
            peer.close()
        return told

    async def interleaved(self, plan: Plan) -> list[list[object]]:
        messages = self.messages(plan.asked)
        peers = [Peer(self.server) for _ in messages]
        reads = [
            _cut(b"".join(data), sizes) for data, sizes in zip(messages, plan.cuts, strict=True)
        ]
        for step, number, size in plan.steps:
            if step == "turn":
                await asyncio.sleep(0)
            elif step == "drain":
                peers[number].take(size)
            elif data := next(reads[number], b""):
                peers[number].wire.arrive(data)
        for peer, rest in zip(peers, reads, strict=True):
            for data in rest:
                peer.wire.arrive(data)
        wanted = [len(data) for data in messages]
        await self._until(
            lambda: all(self._told(p) >= n for p, n in zip(peers, wanted, strict=True))
        )
        for peer in peers:
            peer.close()
        return [peer.told for peer in peers]

    def _told(self, peer: Peer) -> int:
        peer.take(1 << 30)
        peer.wire.deliver()
        return len(peer.told)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - it waits for turns of the loop
                await asyncio.sleep(0)


def _cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in itertools.chain(sizes, itertools.repeat(READ)):
        if at >= len(data):
            return
        yield data[at : at + size]
        at += size


@pytest.fixture(
    scope="module",
    params=itertools.product((False, True), ("interval", "always")),
    ids=lambda given: f"{'uvloop' if given[0] else 'asyncio'}-{given[1]}",
)
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    on_uvloop, sync = request.param
    if on_uvloop:
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    else:
        loop = asyncio.new_event_loop()
    made = House(loop, sync)
    yield made
    loop.run_until_complete(made.server.stop())
    loop.close()


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(
    plan=Plan(
        [[("large", 0), *[("get", 0)] * 20], [("set", 0), ("get", 0)]],
        [[LARGE + 400, 70, 70], [1]],
        [("read", 0, 0)] * 3 + [("turn", 0, 0), ("drain", 0, 1 << 30)] * 3,
    )
)
@given(plan=plans())
def test_any_interleaving_gives_the_answers_of_one_question_at_a_time(
    house: House, plan: Plan
) -> None:
    expected = house.loop.run_until_complete(house.one_by_one(plan.asked))
    assert house.loop.run_until_complete(house.interleaved(plan)) == expected
