"""What the journals of a daemon share as nodes: one listener, one lease, the way to the arbiter.

    every peer: for each journal that both keep one connection to it for what we say; what it says
    comes by a connection of its own
    first line of a connection   {"node": "a", "journal": "jobs", "secret": "...",
                                 "clients": "host:port"}: where its clients find it
    then                         messages, as `messages` lays them out
    an operator's first line     {"command": "status", "journal": "jobs", "secret": "..."}; the
                                 answer is one line of JSON. Others: `report`, which also tells how
                                 far others are behind; `switchover`, `promote`; `add`, `remove`
                                 and `swap` with the name of a node in `member`, and of the one
                                 that makes room for it in `leaves`

Rules:

1. The first line says for which journal somebody has come. A peer that comes for one that is not
   kept here yet (`on_wanted` is told) is sent away, and comes again.
2. The arbiter is asked on threads; of each journal few questions are under way at a time, and the
   lease has a thread of its own. A question that fails, or finds too many before it, is answered
   with None.
3. The leader keys of all journals hang on one lease: who loses it leads nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from fastjournal.clock import Clock
from fastjournal.errors import JournalError, ProtocolError
from fastjournal.replica.arbiter import Look, Question, View
from fastjournal.replica.lease import NodeLease, Timing
from fastjournal.replica.member import CATCH_UP
from fastjournal.replica.messages import Decoder, Message
from fastjournal.replica.rules import Rules

__all__ = ["Arbiter", "Hearing", "NodeOptions", "ReplicaHost"]

_LINE = 1 << 16  # bytes of a first line, at most
_PATIENCE = 5.0  # seconds until it must be there
_ELSEWHERE = 1.0  # seconds to ask the primary of a journal that is not kept here
_THREADS = 4  # for questions to the arbiter
_EVERYWHERE = ("0.0.0.0", "[::]", "::")  # noqa: S104 - where a node listens, not where it is
_log = logging.getLogger(__name__)


class Arbiter(Protocol):
    """Who decides; each call may block, and raise."""

    def grant(self, ttl: int) -> int:
        """A new lease of so many ns."""

    def keep_alive(self, lease: int) -> bool:
        """Renew a lease; False: it has ended."""

    def ask(self, journal: str, node: str, question: Question) -> View | bool:
        """Answer one question, in one step."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Who this node is, and where the others are."""

    name: str
    host: str
    port: int
    peers: Mapping[str, tuple[str, int]]
    """The other nodes, by name."""
    secret: str = field(default="", repr=False)
    """Everybody who shows it is believed."""
    timing: Timing = field(default_factory=Timing)
    catch_up: int = CATCH_UP
    """Bytes a second for nodes that are behind."""
    clients: str = ""
    """Where clients find this node, `host:port`; empty: nowhere."""


class Hosted(Protocol):
    """A journal that is kept here, as those see it who come for it."""

    hearing: set[Hearing]

    def greet(self, sender: str) -> None:
        """A peer has come."""

    def heard(self, sender: str, messages: Sequence[Message]) -> None:
        """It has said something."""

    def command(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """An operator has asked something."""


class ReplicaHost:
    """On the running loop: `start`, then `stop`."""

    def __init__(
        self,
        options: NodeOptions,
        arbiter: Arbiter,
        *,
        clock: Clock,
        on_wanted: Callable[[str], object] = len,
    ) -> None:
        """`on_wanted` is called with the name of a journal that a peer has come for in vain."""
        self.options = options
        self.arbiter = arbiter
        self.clock = clock
        self.rules = Rules()
        self.lease = NodeLease(options.timing, self.rules)
        self.port = 0
        self.journals: dict[str, Hosted] = {}
        """Those that are kept here."""
        self.clients: dict[str, str] = {options.name: options.clients}
        """Where clients find each node, as it has told."""
        self._on_wanted = on_wanted
        self._pool = ThreadPoolExecutor(_THREADS, "fastjournal-arbiter")
        self._lease_pool = ThreadPoolExecutor(1, "fastjournal-lease")
        self._door: asyncio.Server | None = None
        self._arriving: set[Hearing] = set()
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, and get a lease."""
        loop = asyncio.get_running_loop()
        self._door = await loop.create_server(
            lambda: Hearing(self), self.options.host, self.options.port
        )
        self.port = self._door.sockets[0].getsockname()[1]
        self._keeping = loop.create_task(self._keep_lease())

    async def stop(self) -> None:
        """Leave; the journals have been stopped."""
        if self._door is not None:
            self._door.close()
        for one in list(self._arriving):
            one.transport.close()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        for pool in (self._pool, self._lease_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def ask(self, journal: str, question: Question) -> Any:
        """What the arbiter says; None: it could not be reached (rule 2)."""
        ask = partial(self.arbiter.ask, journal, self.options.name, question)
        return await self._in_thread(self._pool, ask)

    async def _in_thread(self, pool: ThreadPoolExecutor, work: Callable[[], Any]) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except (JournalError, OSError, RuntimeError) as error:
            _log.warning("%s: the arbiter was not reached: %s", self.options.name, error)
            return None

    async def _keep_lease(self) -> None:
        timing, lease = self.options.timing, self.lease
        while True:
            sent, number = self.clock.monotonic(), lease.number
            if number:
                renew = partial(self.arbiter.keep_alive, number)
                alive = await self._in_thread(self._lease_pool, renew)
                if alive:
                    lease.renewed(number, sent)
                elif alive is False:
                    lease.lost()
                    continue
            else:
                grant = partial(self.arbiter.grant, timing.ttl)
                granted = await self._in_thread(self._lease_pool, grant)
                if granted:
                    lease.renewed(granted, sent)
            await asyncio.sleep(timing.renew / 1e9)

    def greet(self, line: bytes) -> tuple[Hosted | None, str, dict[str, Any]]:
        """Somebody's first line: the journal and which peer it is, or the answer to an operator."""
        try:
            hello: dict[str, Any] = json.loads(line)
            secret, journal = str(hello["secret"]).encode(), str(hello["journal"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError("not a node") from error
        if not hmac.compare_digest(secret, self.options.secret.encode()):
            raise ProtocolError("another secret")
        hosted = self.journals.get(journal)
        if "command" in hello:
            if hosted is None:
                return None, "", {"error": f"nobody keeps {journal} here", "final": True}
            return None, "", hosted.command(hello)
        sender = str(hello.get("node"))
        if sender not in self.options.peers:
            raise ProtocolError(f"{sender} is no peer")
        self.clients[sender] = str(hello.get("clients", ""))
        if hosted is None:
            self._on_wanted(journal)
            raise ProtocolError(f"nobody keeps {journal} here")
        hosted.greet(sender)
        return hosted, sender, {}

    async def find_primary(self, journal: str) -> str:
        """Where clients find the primary of a journal that is kept elsewhere; empty: not known."""
        view = await self.ask(journal, Look())
        where = self.options.peers.get(view.leader) if isinstance(view, View) else None
        if where is None:
            return ""
        line = {"command": "status", "journal": journal, "secret": self.options.secret}
        try:
            async with asyncio.timeout(_ELSEWHERE):
                reader, writer = await asyncio.open_connection(*where)
                try:
                    writer.write(json.dumps(line).encode() + b"\n")
                    answer = json.loads(await reader.readline() or b"{}")
                finally:
                    writer.close()
        except (OSError, ValueError) as error:
            _log.info("%s: who leads %s does not answer: %s", self.options.name, journal, error)
            return ""
        return str(answer.get("address", ""))

    def client_address(self, name: str) -> str:
        """Where clients find a node, `host:port`; empty: not known."""
        host, mark, port = self.clients.get(name, "").rpartition(":")
        if host in _EVERYWHERE:
            host = self.options.host if name == self.options.name else self.options.peers[name][0]
            host = f"[{host}]" if ":" in host else host
        return f"{host}:{port}" if mark else ""

    def address_of(self, name: str) -> str:
        """Where a node listens for the others and for operators; empty: not known."""
        if name == self.options.name:
            host, port = self.options.host, self.port
        else:
            host, port = self.options.peers.get(name, ("", 0))
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}" if host else ""

    def arrived(self, one: Hearing) -> None:
        """Somebody has connected and not said yet who it is."""
        self._arriving.add(one)

    def gone(self, one: Hearing) -> None:
        """It has, or it has left."""
        self._arriving.discard(one)


class Hearing(asyncio.Protocol):
    """A connection of a peer, or of an operator: a first line, then messages."""

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host
        self._journal: Hosted | None = None
        self._line = bytearray()
        self._sender = ""
        self._decoder = Decoder()

    @property
    def sender(self) -> str:
        """Which peer it is."""
        return self._sender

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is here."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by name
        self._host.arrived(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_PATIENCE, self._cut, "it said nothing")

    def connection_lost(self, _: Exception | None) -> None:
        """It has gone."""
        self._timer.cancel()
        self._host.gone(self)
        if self._journal is not None:
            self._journal.hearing.discard(self)

    def data_received(self, data: bytes) -> None:
        """A first line, then messages."""
        try:
            if self._sender:
                self._hear(data)
            else:
                self._greet(data)
        except (ValueError, ProtocolError) as error:
            self._cut(str(error))

    def _greet(self, data: bytes) -> None:
        self._line += data
        line, end, rest = bytes(self._line).partition(b"\n")
        if not end:
            if len(line) > _LINE:
                raise ProtocolError("a first line without an end")
            return
        self._timer.cancel()
        journal, self._sender, answer = self._host.greet(line)
        if journal is not None:
            self._journal = journal
            self._host.gone(self)
            journal.hearing.add(self)
            self._hear(rest)
        else:
            self.transport.write(json.dumps(answer).encode() + b"\n")
            self.transport.close()

    def _hear(self, data: bytes) -> None:
        """All that has arrived by now, at once: it is synced once."""
        messages = self._decoder.feed(data)
        if messages and self._journal is not None:
            self._journal.heard(self._sender, messages)

    def _cut(self, reason: str) -> None:
        _log.warning("%s: a peer was cut: %s", self._host.options.name, reason)
        self.transport.close()
