"""A node on an event loop: one journal's member, its peers over TCP, what it asks others.

Rules:

1. A message goes to the peer at once, on the way of whoever has caused it. A peer that does not
   read loses messages, not our time: at most so many bytes wait for it. `member` repeats what
   matters.
2. There is a connection to every node that keeps the journal, is to keep it, leads it, or has come
   for it; so of many nodes each speaks with few.
3. When the arbiter has taken the lead from us at our own wish, the others are told: a planned
   switchover need not wait until they look there by themselves.
4. A fault of the log, or one of ours, ends the node (`fault`), and whoever runs it ends the process
   and its lease with it: the next one checks every byte.
5. The archive is read on a thread of its own, one question at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fastjournal.clock import SECOND
from fastjournal.errors import JournalError, ReadOnly
from fastjournal.replica.arbiter import Question, Resign
from fastjournal.replica.archived import Archived, ArchivedPart
from fastjournal.replica.disk import ReplicaLog
from fastjournal.replica.host import Hearing, ReplicaHost
from fastjournal.replica.member import Ask, Member, Send
from fastjournal.replica.messages import Message, Resigned, encode

__all__ = ["ReplicaNode"]

_TICK = 0.02  # seconds
_WAITING = 16 << 20  # bytes for one peer
_AGAIN = 0.2  # seconds until a peer is tried again
_FAREWELL = 1.0  # seconds for what is asked of the arbiter at the end
_QUESTIONS = 2  # under way at a time
_log = logging.getLogger(__name__)


class ReplicaNode:
    """One journal's member on the running loop: `start`, then `stop`."""

    def __init__(
        self,
        host: ReplicaHost,
        journal: str,
        log: ReplicaLog,
        *,
        make_mark: Callable[[int, int, int], bytes],
        near: Collection[str] = (),
        archive: Archived | None = None,
        on_change: Callable[[], object] = int,
    ) -> None:
        """`near`: the nodes that keep it, until the arbiter has told.

        `on_change` is called, on the loop, after everything that has happened to the member.
        """
        self.host = host
        self.options = host.options
        self.journal = journal
        self._archive = archive
        self._archive_pool = ThreadPoolExecutor(1, "fastjournal-archived")
        self._on_change = on_change
        self._questions = 0
        self._near = frozenset(near)
        self._lines: dict[str, asyncio.Transport] = {}
        """To the peers that are there."""
        self._keepers: dict[str, asyncio.Task[Any]] = {}
        """Who looks after each."""
        self._tended: object = None
        self.hearing: set[Hearing] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asking: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self.fault: BaseException | None = None
        """What has ended this node."""
        self.member = Member(
            self.options.name,
            log,
            host.lease,
            clock=host.clock,
            session=secrets.randbits(48),
            make_mark=make_mark,
            timing=self.options.timing,
            rules=host.rules,
            catch_up=self.options.catch_up,
            archived=archive is not None,
        )

    def start(self) -> None:
        """Look who leads, follow or lead."""
        self.host.journals[self.journal] = self
        self._tend_lines()
        self._spawn(self._tick())
        self.do(self.member.start)

    async def stop(self) -> None:
        """Leave: a primary resigns first."""
        if self.member.is_serving:
            self.do(self.member.resign)
        if self._asking and not self._stopped:
            await asyncio.wait(self._asking, timeout=_FAREWELL)
        self._stopped = True
        self.host.journals.pop(self.journal, None)
        for transport in (*self._lines.values(), *(one.transport for one in self.hearing)):
            transport.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._archive_pool.shutdown(wait=False, cancel_futures=True)
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
            elif isinstance(one, Ask):
                self._asking.add(asking := self._spawn(self._ask(one.question)))
                asking.add_done_callback(self._asking.discard)
            else:
                self._spawn(self._fetch(one.wanted))
        if tells:
            self._on_change()

    def _say(self, name: str, data: bytes) -> None:
        """Send to a peer, if it is there and reads (rule 1)."""
        line = self._lines.get(name)
        if line is None or line.is_closing():  # it may be lost, and nobody was told yet
            return
        if line.get_write_buffer_size() <= _WAITING:
            line.write(data)

    def greet(self, sender: str) -> None:
        """A peer has come: we may have to answer it (rule 2)."""
        self._keep(sender)

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
            self._tend_lines()

    def _tend_lines(self) -> None:
        """A connection to each who has to do with the journal (rule 2)."""
        member = self.member
        heard = {one.sender for one in self.hearing}
        now = (member.members, member.learners, member.primary, heard)
        if now == self._tended:
            return
        self._tended = now
        nodes = member.members.nodes or self._near
        wanted = {*nodes, *member.learners, member.primary, *heard}
        for name in wanted:
            self._keep(name)
        for name in [name for name in self._keepers if name not in wanted]:
            self._keepers.pop(name).cancel()

    def _keep(self, name: str) -> None:
        if name in self.options.peers and name not in self._keepers and not self._stopped:
            self._keepers[name] = self._spawn(self._keep_line(name))

    async def _ask(self, question: Question) -> None:
        member, answer = self.member, None
        if self._questions < _QUESTIONS:
            self._questions += 1
            try:
                answer = await self.host.ask(self.journal, question)
            finally:
                self._questions -= 1
        self.do(lambda: member.answered(question, answer))
        if isinstance(question, Resign) and answer is True:
            for name in self._lines:
                self._say(name, encode(Resigned(question.epoch)))

    async def _fetch(self, wanted: ArchivedPart) -> None:
        """Ask the archive (rule 5)."""
        assert self._archive is not None
        checkpoint = bytes.fromhex(wanted.checkpoint)
        read = partial(self._archive.read_part, wanted.size, wanted.crc, checkpoint, wanted.at)
        try:
            loop = asyncio.get_running_loop()
            data = await loop.run_in_executor(self._archive_pool, read)
        except (JournalError, OSError, RuntimeError) as error:
            _log.warning("%s: the archive was not reached: %s", self.options.name, error)
            data = b""
        if wanted.at == 0:
            found = "fetched from the archive" if data else "not in the archive"
            _log.info("%s: a snapshot is %s", self.journal, found)
        self.do(lambda: self.member.fetched(wanted, data))

    async def _keep_line(self, name: str) -> None:
        """A connection to a peer, made again whenever it is lost."""
        loop, (host, port) = asyncio.get_running_loop(), self.options.peers[name]
        hello = {"node": self.options.name, "journal": self.journal}
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

    def command(self, said: Mapping[str, Any]) -> dict[str, Any]:
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
            text = f"neither {leaves} nor {name} keeps {self.journal}"
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
        return self.host.client_address(self.member.primary)

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
            "journal": self.journal,
            "role": member.role.value,
            "serving": member.is_serving,
            "epoch": member.epoch,
            "primary": member.primary,
            "listens": self.host.address_of(member.primary),
            "address": self.primary_address,
            "eligible": member.is_eligible,
            "last_time": member.log.last_time,
            "commit_time": max(member.commit_time, member.log.commit_time),
            "voters": list(member.members.voters),
            "joining": [*member.learners, *member.members.joining],
            "leaving": list(member.leaving),
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
