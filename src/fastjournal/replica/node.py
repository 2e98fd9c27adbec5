"""A node on an event loop: one member, its peers over TCP, its lease at the arbiter.

    every peer: one connection to it for what we say; what it says comes by a connection of its own
    first line of a connection   {"node": "a", "journal": "jobs", "secret": "...",
                                 "clients": "host:port"}: where its clients find it
    then                         messages, as `messages` lays them out
    an operator's first line     {"command": "status", "journal": "jobs", "secret": "..."}; the
                                 answer is one line of JSON. Others: `report`, which also tells how
                                 far others are behind; `switchover`, `promote`; `add`, `remove`
                                 and `swap` with the name of a node in `member`, and of the one
                                 that makes room for it in `leaves`

Rules:

1. A message goes to the peer at once, on the way of whoever has caused it. A peer that does not
   read loses messages, not our time: at most so many bytes wait for it. `member` repeats what
   matters.
2. The arbiter is asked on threads of its own, few questions at a time. A question that fails, or
   finds too many before it, is answered with None.
3. When the arbiter has taken the lead from us at our own wish, the others are told: a planned
   switchover need not wait until they look there by themselves.
4. A fault of the log, or one of ours, ends the node (`fault`), its lease with it: whoever runs it
   starts it again, which checks every byte.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from fastjournal.clock import SECOND, Clock
from fastjournal.errors import JournalError, ProtocolError, ReadOnly
from fastjournal.replica.arbiter import Question, Resign, View
from fastjournal.replica.disk import ReplicaLog
from fastjournal.replica.lease import NodeLease, Timing
from fastjournal.replica.member import CATCH_UP, Member, Send
from fastjournal.replica.messages import Decoder, Message, Resigned, encode
from fastjournal.replica.rules import Rules

__all__ = ["Arbiter", "NodeOptions", "ReplicaNode"]

_TICK = 0.02  # seconds
_WAITING = 16 << 20  # bytes for one peer
_LINE = 1 << 16  # bytes of a first line, at most
_PATIENCE = 5.0  # seconds until it must be there
_AGAIN = 0.2  # seconds until a peer is tried again
_FAREWELL = 1.0  # seconds for what is asked of the arbiter at the end
_QUESTIONS = 3  # under way at a time; one of them renews the lease
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
    journal: str
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


class ReplicaNode:
    """One journal's member on the running loop: `start`, then `stop`."""

    def __init__(
        self,
        options: NodeOptions,
        log: ReplicaLog,
        arbiter: Arbiter,
        *,
        clock: Clock,
        make_mark: Callable[[int, int, int], bytes],
        on_change: Callable[[], object] = int,
    ) -> None:
        """`on_change` is called, on the loop, after everything that has happened to the member."""
        self.options = options
        self.port = 0
        self._arbiter = arbiter
        self._clock = clock
        self._on_change = on_change
        rules = Rules()
        self._lease = NodeLease(options.timing, rules)
        self._pool = ThreadPoolExecutor(_QUESTIONS, "fastjournal-arbiter")
        self._questions = 0
        self._lines: dict[str, asyncio.Transport] = {}
        """To the peers that are there."""
        self.hearing: set[_Hearing] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._door: asyncio.Server | None = None
        self._asking: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self._clients: dict[str, str] = {options.name: options.clients}
        """Where clients find each node, as it has told."""
        self.fault: BaseException | None = None
        """What has ended this node."""
        self.member = Member(
            options.name,
            log,
            self._lease,
            clock=clock,
            session=secrets.randbits(48),
            make_mark=make_mark,
            timing=options.timing,
            rules=rules,
            catch_up=options.catch_up,
        )

    async def start(self) -> None:
        """Listen, look who leads, follow or lead."""
        loop = asyncio.get_running_loop()
        self._door = await loop.create_server(
            lambda: _Hearing(self), self.options.host, self.options.port
        )
        self.port = self._door.sockets[0].getsockname()[1]
        for name in self.options.peers:
            self._spawn(self._keep_line(name))
        self._spawn(self._keep_lease())
        self._spawn(self._tick())
        self.do(self.member.start)

    async def stop(self) -> None:
        """Leave: a primary resigns first."""
        if self.member.is_serving:
            self.do(self.member.resign)
        if self._asking and not self._stopped:
            await asyncio.wait(self._asking, timeout=_FAREWELL)
        self._stopped = True
        if self._door is not None:
            self._door.close()
        for transport in (*self._lines.values(), *(one.transport for one in self.hearing)):
            transport.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.member.log.close()

    def do(self, work: Callable[[], object], *, tells: bool = True) -> None:
        """Let the member do something, and carry off what it leaves.

        `tells`: somebody may want to know what has become of it.
        """
        if self._stopped:
            return
        try:
            work()
        except JournalError as error:
            self._end(error)
            return
        outbox, self.member.outbox = self.member.outbox, []
        said, data = None, b""
        for one in outbox:
            if isinstance(one, Send):
                if one.message != said:  # most go to all
                    said, data = one.message, encode(one.message)
                self._say(one.to, data)
            else:
                self._asking.add(asking := self._spawn(self._ask(one.question)))
                asking.add_done_callback(self._asking.discard)
        if tells:
            self._on_change()

    def _say(self, name: str, data: bytes) -> None:
        """Send to a peer, if it is there and reads (rule 1)."""
        line = self._lines.get(name)
        if line is None or line.is_closing():  # it may be lost, and nobody was told yet
            return
        if line.get_write_buffer_size() <= _WAITING:
            line.write(data)

    def heard(self, sender: str, messages: Sequence[Message]) -> None:
        """A peer has said something."""
        self.do(partial(self.member.receive, sender, *messages))

    def _end(self, fault: BaseException) -> None:
        """Nothing more is done here (rule 4)."""
        if self.fault is None and not self._stopped:
            _log.critical("%s: this node has ended: %r", self.options.name, fault)
            self.fault = fault
            self._stopped = True
            for task in self._tasks:
                task.cancel()
            self._on_change()

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._end(fault)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self.do(self.member.tick)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        """What the arbiter says; None: it could not be reached (rule 2)."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except (JournalError, OSError, RuntimeError) as error:
            _log.warning("%s: the arbiter was not reached: %s", self.options.name, error)
            return None

    async def _ask(self, question: Question) -> None:
        options, member = self.options, self.member
        answer = None
        if self._questions < _QUESTIONS - 1:
            self._questions += 1
            ask = partial(self._arbiter.ask, options.journal, options.name, question)
            answer = await self._in_thread(ask)
            self._questions -= 1
        self.do(lambda: member.answered(question, answer))
        if isinstance(question, Resign) and answer is True:
            for name in self._lines:
                self._say(name, encode(Resigned(question.epoch)))

    async def _keep_lease(self) -> None:
        timing = self.options.timing
        while True:
            sent, number = self._clock.monotonic(), self._lease.number
            if number:
                alive = await self._in_thread(partial(self._arbiter.keep_alive, number))
                if alive:
                    self._lease.renewed(number, sent)
                elif alive is False:
                    self._lease.lost()
                    continue
            else:
                granted = await self._in_thread(partial(self._arbiter.grant, timing.ttl))
                if granted:
                    self._lease.renewed(granted, sent)
            await asyncio.sleep(timing.renew / 1e9)

    async def _keep_line(self, name: str) -> None:
        """A connection to a peer, made again whenever it is lost."""
        loop, (host, port) = asyncio.get_running_loop(), self.options.peers[name]
        hello = {"node": self.options.name, "journal": self.options.journal}
        hello["clients"] = self.options.clients
        first = json.dumps(hello | {"secret": self.options.secret}).encode() + b"\n"
        while True:
            try:
                line, speaking = await loop.create_connection(_Speaking, host, port)
                self._lines[name] = line
                try:
                    line.write(first)
                    await speaking.lost
                finally:
                    del self._lines[name]
                    line.close()
            except OSError:
                pass
            await asyncio.sleep(_AGAIN)

    def greet(self, line: bytes) -> tuple[str, dict[str, Any]]:
        """Somebody's first line: the name of a peer, or the answer to an operator."""
        hello = self._check(line)
        if "command" in hello:
            return "", self._command(hello)
        return self._admit(hello), {}

    def _check(self, line: bytes) -> dict[str, Any]:
        try:
            hello: dict[str, Any] = json.loads(line)
            secret, journal = str(hello["secret"]).encode(), hello["journal"]
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError("not a node") from error
        if not hmac.compare_digest(secret, self.options.secret.encode()):
            raise ProtocolError("another secret")
        if journal != self.options.journal:
            raise ProtocolError(f"nobody keeps {journal} here")
        return hello

    def _admit(self, hello: dict[str, Any]) -> str:
        sender = str(hello.get("node"))
        if sender not in self.options.peers:
            raise ProtocolError(f"{sender} is no peer")
        self._clients[sender] = str(hello.get("clients", ""))
        return sender

    def _command(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """What an operator has asked."""
        word = str(said["command"])
        if word in ("add", "remove", "swap"):
            name, leaves = str(said.get("member", "")), str(said.get("leaves", ""))
            return self._change_members(word, name, leaves)
        if word == "report":
            return self.report()
        if word == "switchover" and self.member.is_serving:
            self.do(self.member.resign)
        elif word == "promote":
            self.do(self.member.trust_log)
        elif word != "status":
            return {"error": f"{word} is not for this node: it is {self.member.role.value}"}
        return self.status()

    def _change_members(self, word: str, name: str, leaves: str) -> dict[str, Any]:
        old = self.member.members.voters
        voters = [one for one in old if one not in (name, leaves)]
        if word != "remove":
            voters.append(name)
        if name not in {*self.options.peers, self.options.name}:
            text = f"{name} is not among the peers of {self.options.name}"
            return {"error": text, "final": True}
        if word == "swap" and leaves not in old and name not in old:
            text = f"neither {leaves} nor {name} keeps {self.options.journal}"
            return {"error": text, "final": True}
        if not self.member.is_serving:
            return {"error": f"only the primary changes members: {self.member.primary or 'nobody'}"}
        refused: list[ReadOnly] = []

        def change() -> None:
            try:
                self.member.change_voters(voters)
            except ReadOnly as error:
                refused.append(error)

        self.do(change)
        return {"error": str(refused[0])} if refused else self.status()

    @property
    def primary_address(self) -> str:
        """Where clients find the primary, `host:port`; empty: not known."""
        name = self.member.primary
        host, mark, port = self._clients.get(name, "").rpartition(":")
        if host in _EVERYWHERE:
            host = self.options.host if name == self.options.name else self.options.peers[name][0]
            host = f"[{host}]" if ":" in host else host
        return f"{host}:{port}" if mark else ""

    def _address_of(self, name: str) -> str:
        """Where a node listens for the others and for operators; empty: not known."""
        if name == self.options.name:
            host, port = self.options.host, self.port
        else:
            host, port = self.options.peers.get(name, ("", 0))
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}" if host else ""

    def report(self) -> dict[str, Any]:
        """The status, and how far the others are behind a primary; that reads in the log."""
        member = self.member
        lags = {}
        for name, stored in member.lag().items():
            records, size = member.log.distance(stored)
            seconds = max(0, member.log.written_time - stored) / SECOND if records else 0.0
            lags[name] = {"records": records, "bytes": size, "seconds": seconds}
        return self.status() | {"lag": lags}

    def status(self) -> dict[str, Any]:
        """For people."""
        member = self.member
        return {
            "node": self.options.name,
            "journal": self.options.journal,
            "role": member.role.value,
            "serving": member.is_serving,
            "epoch": member.epoch,
            "primary": member.primary,
            "listens": self._address_of(member.primary),
            "address": self.primary_address,
            "eligible": member.is_eligible,
            "last_time": member.log.last_time,
            "commit_time": max(member.commit_time, member.log.commit_time),
            "voters": list(member.members.voters),
            "joining": [*member.learners, *member.members.joining],
            "stored": member.lag(),
            "lease": member.holds_lease(),
            "damage": member.log.damage,
            "snapshot_time": member.log.base,
            "quorum": member.has_quorum,
        }


class _Speaking(asyncio.Protocol):
    """A connection to a peer, for what we say; nothing comes back."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class _Hearing(asyncio.Protocol):
    """A connection of a peer, or of an operator: a first line, then messages."""

    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self._line = bytearray()
        self._sender = ""
        self._decoder = Decoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by name
        self._node.hearing.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_PATIENCE, self._cut, "it said nothing")

    def connection_lost(self, _: Exception | None) -> None:
        self._timer.cancel()
        self._node.hearing.discard(self)

    def data_received(self, data: bytes) -> None:
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
        self._sender, answer = self._node.greet(line)
        if self._sender:
            self._hear(rest)
        else:
            self.transport.write(json.dumps(answer).encode() + b"\n")
            self.transport.close()

    def _hear(self, data: bytes) -> None:
        """All that has arrived by now, at once: it is synced once."""
        messages = self._decoder.feed(data)
        if messages:
            self._node.heard(self._sender, messages)

    def _cut(self, reason: str) -> None:
        _log.warning("%s: a peer was cut: %s", self._node.options.name, reason)
        self.transport.close()
