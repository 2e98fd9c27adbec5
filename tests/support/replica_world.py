"""A cluster in one process: seeded scheduler, clocks moved by hand, crashing disks, a bad network.

Everything random comes from one seed, and nothing waits: the same seed gives the same run. Every
node keeps its journals on `MemoryFiles`; a power loss takes one of the disks that a file system
could legally leave. Promises are looked at whenever something has happened:

1. What was acknowledged by a quorum is in the log of every primary of a later epoch, byte for byte.
2. An epoch has one primary, and one run of its process.
3. At no moment do two nodes hold the lease of a journal as serving primaries.
4. No completion is acknowledged twice; an answer to a question shows all that was acknowledged
   before it was asked, and what it shows does not vanish.
5. No record is acknowledged whose TIME lies more than a minute ahead of the true time.
6. What a follower may show to who looks at it holds all that was acknowledged until the moment as
   of which it calls itself fresh.
7. In the end, all healed, one primary serves, every node has the same bytes, and a replay of any
   of them, its snapshot first, gives the same state.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

import google_crc32c

from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.errors import JournalError, SegmentError
from fastjournal.log import record
from fastjournal.log.commit_mark import REPLICA_META, read_commit
from fastjournal.log.record import Walk
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.replica.arbiter import Look
from fastjournal.replica.archived import ArchivedPart
from fastjournal.replica.disk import ReplicaLog
from fastjournal.replica.lease import NodeLease, Timing
from fastjournal.replica.member import Ask, Fetch, Member, Role, Send
from fastjournal.replica.messages import Append, Decoder, Message, Part, Tail, encode
from fastjournal.replica.rules import AHEAD_OF_FOLLOWER, MemberSet, Rules
from fastjournal.testing import Crash, ManualClock, MemoryFiles
from memory_arbiter import MemoryArbiter

TIMING = Timing(
    ttl=2 * SECOND,
    margin=400 * MILLISECOND,
    renew=500 * MILLISECOND,
    request=400 * MILLISECOND,
    look=300 * MILLISECOND,
    beat=200 * MILLISECOND,
    rank=100 * MILLISECOND,
    candidacy=SECOND,
)
_TICK = 50 * MILLISECOND
PART = 256  # bytes of a snapshot in one message
_START = 1_700_000_000 * SECOND


class BrokenPromise(AssertionError):
    """The cluster did what it must never do."""


class Stall(AssertionError):
    """All is healed, and still nobody serves."""


@dataclass(frozen=True)
class Plan:
    """What kind of world it is."""

    nodes: int = 3
    spares: int = 0
    journals: int = 1
    sync: str = "always"
    seconds: float = 20.0
    """How long faults happen, in the world's own time."""
    faults: tuple[str, ...] = ("kill", "power", "pause", "cut-off", "one-way", "arbiter")
    each: float = 1.2
    """Seconds between two faults, on average."""
    loss: float = 0.05
    twice: float = 0.05
    late: float = 0.02
    """How often a message takes up to 4 seconds."""
    together: float = 0.15
    """How often a message is read together with the next one of its sender."""
    flips: float = 0.0
    """How often a bit of shipped records is turned over."""
    requests: float = 0.06
    """Seconds between two requests of clients to one journal, on average."""
    may_stall: bool = False
    """So much may be lost that only an operator can go on: then nobody serves in the end."""
    segment_size: int = 4096
    timing: Timing = TIMING
    looked_at: bool = False
    """Followers are looked at all the time."""


@dataclass
class _Request:
    kind: str
    ident: int
    time: int
    epoch: int
    raw: bytes


@dataclass
class _Question:
    round: int
    epoch: int
    seen: int
    """How many puts had been acknowledged when it was asked."""
    time: int
    """The newest record that its answer tells of."""
    shown: frozenset[int]


@dataclass
class Replica:
    """One journal on one node, and what a state machine would know of it."""

    journal: str
    member: Member
    state_epoch: int = 0
    puts: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    waiting: list[_Request] = field(default_factory=list)
    questions: list[_Question] = field(default_factory=list)
    fresh_at: int = 0
    """As of which moment what it may show was compared."""
    snapshot_due: bool = False
    """It waits until a majority has all; until then nothing more is written."""


class Node:
    """A machine: a disk, a clock, a process that may be down or stopped."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.files = MemoryFiles()
        self.clock = ManualClock(_START)
        self.random = random.Random(seed)
        self.replicas: dict[str, Replica] = {}
        self.lease: NodeLease | None = None
        self.life = 0
        """Rises when the process dies: what was meant for it is forgotten."""
        self.up = False
        self.paused_until = 0
        self.crashing = ""


class World:
    """The cluster, its clients, and what may go wrong."""

    archived = False
    """Whether there is an archive to fetch from; see `read_archive`."""

    def __init__(self, seed: int, plan: Plan | None = None, rules: Rules | None = None) -> None:
        self.plan = plan or Plan()
        self.rules = rules or Rules()
        self.random = random.Random(seed)
        self.now = 0
        self.arbiter = MemoryArbiter(self.plan.timing.ttl)
        self.arbiter_down: set[str] = set()
        self.restoring = False
        self.blocked: set[tuple[str, str]] = set()
        self.unread: dict[tuple[str, str, str, int], list[Message]] = {}
        self.noise = True
        words = (
            "acknowledged", "epochs", "faults", "answers", "cuts", "snapshots", "fetched", "looks",
        )  # fmt: skip
        self.counted = dict.fromkeys(words, 0)
        self.acknowledged: dict[str, dict[int, tuple[int, bytes]]] = {}
        """For each journal what was acknowledged: epoch and raw record, by the job; a completion
        by its number below zero."""
        self.acknowledged_at: dict[str, dict[int, int]] = {}
        """When that was."""
        self.completed: dict[str, set[int]] = {}
        self.shown: dict[str, dict[int, int]] = {}
        """Jobs that an answer has told of, and in which epoch first."""
        self.revive = True
        """Whether what goes down comes up again by itself."""
        self.led: dict[tuple[str, int], tuple[str, int]] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._idents = itertools.count(1)
        names = [f"n{number}" for number in range(self.plan.nodes + self.plan.spares)]
        self.nodes = {name: Node(name, self.random.getrandbits(32)) for name in names}
        self.wrong_clock = self.random.choice(names)
        self.homes = self.place(names)
        for journal, voters in self.homes.items():
            self.arbiter.create(journal, MemberSet(voters))
            self.acknowledged[journal] = {}
            self.acknowledged_at[journal] = {}
            self.completed[journal] = set()
            self.shown[journal] = {}
        for name in names:
            self.start(self.nodes[name])

    def place(self, names: list[str]) -> dict[str, tuple[str, ...]]:
        """Which nodes keep which journal."""
        return {f"j{n}": tuple(names[: self.plan.nodes]) for n in range(self.plan.journals)}

    # The scheduler.

    def at(self, delay: int, work: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), work))

    def run_for(self, seconds: float) -> None:
        until = self.now + round(seconds * SECOND)
        while self._events and self._events[0][0] <= until:
            self.now, _, work = heapq.heappop(self._events)
            self.arbiter.now = self.now
            work()
        self.now = max(self.now, until)

    def run(self) -> None:
        """Faults and requests for a while, then all is healed, and every promise is looked at."""
        for journal in self.homes:
            self._later(self.plan.requests, partial(self._request, journal))
        self._later(self.plan.each, self._fault)
        self.run_for(self.plan.seconds)
        self.noise = False
        self.heal()
        for _ in range(40):
            self.run_for(1.0)
            if all(self.is_settled(journal) for journal in self.homes):
                break
        else:
            if not self.plan.may_stall:
                raise Stall(self.describe())
        try:
            self._compare()
        except SegmentError as error:
            raise BrokenPromise(f"a log is damaged: {error}") from error

    def _later(self, mean: float, work: Callable[[], None]) -> None:
        self.at(round(self.random.expovariate(1 / mean) * SECOND), work)

    # Machines.

    def start(self, node: Node) -> None:
        node.life += 1
        node.up = True
        node.crashing = ""
        node.lease = NodeLease(self.plan.timing, self.rules)
        node.replicas = {}
        self._sync_clock(node)
        try:
            for journal, voters in self.homes.items():
                if node.name in voters or self.plan.spares:
                    self._open(node, journal)
        except Crash:
            self._died(node)
            return
        life = node.life
        self._alive(node, life)
        for journal in node.replicas:
            self.at(self.random.randrange(_TICK), partial(self._tick, node, life, journal))

    def _open(self, node: Node, journal: str) -> None:
        path = Path("/", node.name, journal)
        node.files.make_directory(path.parent)
        stream = Stream(path, WORKQ, files=node.files, clock=node.clock)
        log = ReplicaLog(
            stream, sync=self.plan.sync, segment_size=self.plan.segment_size, part_size=PART
        )
        assert node.lease is not None
        member = Member(
            node.name,
            log,
            node.lease,
            clock=node.clock,
            session=node.random.getrandbits(48),
            make_mark=lambda when, epoch, version: b"mark %d" % epoch,
            timing=self.plan.timing,
            rules=self.rules,
            archived=self.archived,
        )
        member.asks_commit = self.plan.looked_at
        node.replicas[journal] = Replica(journal, member)
        self.do(node, journal, member.start)

    def kill(self, node: Node) -> None:
        """kill -9: all that was written is there."""
        node.files = node.files.killed()
        self.end(node)

    def lose_power(self, node: Node) -> None:
        """What was not synced may be gone, in any legal way."""
        seed = self.random.getrandbits(16)
        images = list(itertools.islice(node.files.images(samples=6, seed=seed), 8))
        node.files = self.random.choice(images)
        self.end(node)

    def wipe(self, node: Node) -> None:
        """A new machine under the old name."""
        node.files = MemoryFiles()
        self.end(node)

    def end(self, node: Node) -> None:
        node.up = False
        node.life += 1
        node.replicas = {}
        if self.revive:
            self._later(1.5, lambda: None if node.up else self.start(node))

    def _died(self, node: Node) -> None:
        """The machine stopped in the middle of a file operation."""
        self.lose_power(node) if node.crashing == "power" else self.kill(node)

    def _sync_clock(self, node: Node) -> None:
        behind = self.now - node.clock.monotonic()
        if behind > 0:
            node.clock.advance(ns=behind)

    def do(self, node: Node, journal: str, work: Callable[[], Any]) -> None:
        """Let a member do something, carry off what it leaves, and look at the promises."""
        if not node.up:
            return
        if node.paused_until > self.now:
            life = node.life
            self.at(
                node.paused_until - self.now,
                lambda: self.do(node, journal, work) if node.life == life else None,
            )
            return
        self._sync_clock(node)
        replica = node.replicas[journal]
        member = replica.member
        try:
            work()
            self._watch(node, replica)
        except Crash:
            for one in member.outbox:  # what is shipped has left before it was synced here
                if isinstance(one, Send) and isinstance(one.message, Append):
                    self._send(node.name, one.to, journal, one.message)
            self._died(node)
            return
        except JournalError:  # a log that cannot be read any more: its daemon starts again
            self.kill(node)
            return
        outbox, member.outbox = member.outbox, []
        for one in outbox:
            if isinstance(one, Send):
                self._send(node.name, one.to, journal, one.message)
            elif isinstance(one, Ask):
                self._ask(node, journal, one)
            else:
                self._fetch(node, journal, one)

    def _tick(self, node: Node, life: int, journal: str) -> None:
        if node.life == life and node.up:
            self.at(_TICK, lambda: self._tick(node, life, journal))
            self.do(node, journal, node.replicas[journal].member.tick)

    # The network and the arbiter.

    def _send(self, sender: str, to: str, journal: str, message: Message) -> None:
        plan, luck = self.plan, self.random
        if to not in self.nodes or (self.noise and luck.random() < plan.loss):
            return
        data = encode(message)
        times = 2 if self.noise and luck.random() < plan.twice else 1
        for _ in range(times):
            delay = luck.randrange(1, 30) * MILLISECOND
            if self.noise and luck.random() < plan.late:
                delay *= 150
            self.at(delay, lambda: self._deliver(sender, to, journal, data))

    def _deliver(self, sender: str, to: str, journal: str, data: bytes) -> None:
        node = self.nodes[to]
        if (sender, to) in self.blocked or not node.up or journal not in node.replicas:
            return
        (message,) = Decoder().feed(data)
        flip = self.noise and self.random.random() < self.plan.flips
        if flip and isinstance(message, Append | Tail | Part) and message.data:
            bad = bytearray(message.data)
            bad[self.random.randrange(len(bad))] ^= 1 << self.random.randrange(8)
            message = message._replace(data=bytes(bad))
        member = node.replicas[journal].member
        arrived = self.unread.setdefault((sender, to, journal, node.life), [])
        arrived.append(message)
        if self.noise and self.random.random() < self.plan.together:
            return  # it is read with the next one
        messages = [*arrived]
        arrived.clear()
        before = member.log.base if isinstance(message, Part) else 0
        self.do(node, journal, lambda: member.receive(sender, *messages))
        if node.up and isinstance(message, Part) and member.log.base > before:  # type: ignore[redundant-expr]  # it may have died of it
            self.counted["fetched"] += 1

    def _reach_arbiter(self, node: Node, work: Callable[[], Any], answer: Any, lost: Any) -> None:
        """Ask, and be answered; both ways may fail."""
        life = node.life

        def ask() -> None:
            away = self.restoring or node.name in self.arbiter_down
            if away or (self.noise and self.random.random() < 0.02):
                self.at(self.plan.timing.request, lambda: back(lost))
                return
            found = work()
            if self.noise and self.random.random() < 0.02:
                self.at(self.plan.timing.request, lambda: back(lost))
            else:
                delay = self.random.randrange(1, 20) * MILLISECOND
                self.at(delay, lambda: back(lambda: answer(found)))

        def back(deed: Callable[[], Any]) -> None:
            if node.life == life and node.up:
                deed()

        self.at(self.random.randrange(1, 20) * MILLISECOND, ask)

    def _ask(self, node: Node, journal: str, ask: Ask) -> None:
        member = node.replicas[journal].member

        def told(answer: Any) -> None:
            self.do(node, journal, lambda: member.answered(ask.question, answer))

        self._reach_arbiter(
            node,
            lambda: self.arbiter.ask(journal, node.name, ask.question),
            told,
            lambda: told(None),
        )

    def _fetch(self, node: Node, journal: str, fetch: Fetch) -> None:
        life, member = node.life, node.replicas[journal].member

        def answer() -> None:
            if node.life == life and node.up:
                data = self.read_archive(fetch.wanted)
                self.do(node, journal, lambda: member.fetched(fetch.wanted, data))

        self.at(self.random.randrange(1, 100) * MILLISECOND, answer)

    def read_archive(self, wanted: ArchivedPart) -> bytes:
        """What the archive says; empty: it has no such bytes, or cannot be reached."""
        return b""

    def _alive(self, node: Node, life: int) -> None:
        """Keep the node's lease, or get one."""
        if node.life != life or not node.up:
            return
        if node.paused_until > self.now:
            self.at(node.paused_until - self.now, lambda: self._alive(node, life))
            return
        self._sync_clock(node)
        lease, sent = node.lease, node.clock.monotonic()
        assert lease is not None
        number = lease.number

        def renew() -> int:
            if number:
                return number if self.arbiter.keep_alive(number) else -1
            return self.arbiter.grant()

        def told(found: int) -> None:
            if found > 0:
                lease.renewed(found, sent)
            elif lease.number == number:
                lease.lost()

        self._reach_arbiter(node, renew, told, lambda: None)
        self.at(self.plan.timing.renew, lambda: self._alive(node, life))

    # Clients.

    def request(self, node: Node, kind: str, journal: str = "j0") -> None:
        """A client asks this node for something now."""
        replica, seen = node.replicas[journal], len(self.acknowledged[journal])
        self.do(node, journal, lambda: self._serve(replica, kind, seen))

    def hand(self, sender: str, node: Node, message: Message, journal: str = "j0") -> None:
        """A message arrives, whoever has kept it till now."""
        member = node.replicas[journal].member
        self.do(node, journal, lambda: member.receive(sender, message))

    def _request(self, journal: str) -> None:
        if not self.noise:
            return
        self._later(self.plan.requests, lambda: self._request(journal))
        serving = [
            node
            for node in self.nodes.values()
            if node.up and journal in node.replicas and node.replicas[journal].member.is_serving
        ]
        if not serving:
            return
        node = self.random.choice(serving)  # an old primary has its clients too
        self.request(node, self.random.choice(("put", "put", "done", "read")), journal)

    def _serve(self, replica: Replica, kind: str, seen: int) -> None:
        member = replica.member
        if not member.is_serving or replica.state_epoch != member.epoch:
            return
        if kind == "read":
            last, shown = member.log.last_time, frozenset(replica.puts)
            replica.questions.append(_Question(member.read_round, member.epoch, seen, last, shown))
            return
        if replica.snapshot_due:
            return
        if kind == "put":
            ident = next(self._idents)
        else:
            open_ones = sorted(replica.puts - replica.done)
            if not open_ones:
                return
            ident = self.random.choice(open_ones)
        # Large enough that segments are left now and then.
        payload = b"%s %d %s" % (kind.encode(), ident, b"x" * (ident % 7) * 40)
        try:
            time = member.append(payload)
        except JournalError:
            return
        (replica.puts if kind == "put" else replica.done).add(ident)
        raw = record.encode(time, payload)
        replica.waiting.append(_Request(kind, ident, time, member.epoch, raw))

    # Promises.

    def _watch(self, node: Node, replica: Replica) -> None:
        member, journal = replica.member, replica.journal
        if member.role is Role.PRIMARY:
            key = (journal, member.epoch)
            if self.led.setdefault(key, (node.name, member.session)) != (
                node.name, member.session,
            ):  # fmt: skip
                raise BrokenPromise(f"two primaries in epoch {member.epoch} of {journal}")
        if member.fresh_at > replica.fresh_at:
            self._look_at(node, replica)
        if member.is_serving and replica.state_epoch != member.epoch:
            self._begin(node, replica)
        if not member.is_serving:
            replica.waiting.clear()
            replica.questions.clear()
            replica.state_epoch = 0
            replica.snapshot_due = False
            return
        if member.holds_lease():
            self._check_alone(node, journal)
        self._answer(replica)
        if replica.snapshot_due and member.is_committed(member.log.last_time):
            replica.snapshot_due = False
            life = node.life
            self.at(0, lambda: self.snapshot(node, journal) if node.life == life else None)

    def _look_at(self, node: Node, replica: Replica) -> None:
        """A follower calls itself fresh (promise 6)."""
        log, journal = replica.member.log, replica.journal
        replica.fresh_at = replica.member.fresh_at
        self.counted["looks"] += 1
        records = _split(log.records())
        for ident, (_, raw) in self.acknowledged[journal].items():
            if self.acknowledged_at[journal][ident] > replica.fresh_at or _time(raw) <= log.base:
                continue
            if _time(raw) > log.commit_time or raw not in records:
                raise BrokenPromise(f"{node.name} would not show {ident}, acknowledged before")

    def _begin(self, node: Node, replica: Replica) -> None:
        """A new primary: its log must hold everything that was acknowledged (promise 1)."""
        member, journal = replica.member, replica.journal
        self.counted["epochs"] += 1
        records = _split(member.log.records())
        replica.puts, replica.done = state_of(member.log)
        base = member.log.base
        for ident, (epoch, kept) in self.acknowledged[journal].items():
            # An old primary may hear late that its MARK was on a majority.
            known = abs(ident) in (replica.puts if ident > 0 else replica.done)
            if epoch < member.epoch and (not known or (_time(kept) > base and kept not in records)):
                raise BrokenPromise(
                    f"{node.name} leads epoch {member.epoch} of {journal} without {kept[16:40]!r}"
                )
        replica.state_epoch = member.epoch
        for ident, epoch in self.shown[journal].items():
            if epoch < member.epoch and ident not in replica.puts:
                raise BrokenPromise(f"job {ident} was shown in epoch {epoch} and has vanished")

    def _check_alone(self, node: Node, journal: str) -> None:
        for other in self.nodes.values():
            if other is not node and other.up and journal in other.replicas:
                self._sync_clock(other)
                if other.replicas[journal].member.holds_lease():
                    raise BrokenPromise(f"{node.name} and {other.name} both serve {journal}")

    def _answer(self, replica: Replica) -> None:
        member, journal = replica.member, replica.journal
        safe = member.acknowledged_time("quorum")
        acknowledged = self.acknowledged[journal]
        waiting = []
        for one in replica.waiting:
            if one.epoch != member.epoch or one.time > safe:
                waiting.append(one)
                continue
            self.counted["acknowledged"] += 1
            if one.time > _START + self.now + AHEAD_OF_FOLLOWER + SECOND:
                raise BrokenPromise(f"a record of {one.time} was acknowledged at {self.now}")
            if one.kind == "done":
                if one.ident in self.completed[journal]:
                    raise BrokenPromise(f"job {one.ident} was completed twice")
                self.completed[journal].add(one.ident)
                acknowledged[-one.ident] = (one.epoch, one.raw)
            else:
                acknowledged[one.ident] = (one.epoch, one.raw)
            at = -one.ident if one.kind == "done" else one.ident
            self.acknowledged_at[journal][at] = self.now
        replica.waiting = waiting
        open_questions = []
        for question in replica.questions:
            unsafe = question.time > safe or not member.may_answer(question.round)
            if question.epoch != member.epoch or unsafe:
                open_questions.append(question)
                continue
            self.counted["answers"] += 1
            for ident in question.shown:
                self.shown[journal].setdefault(ident, member.epoch)
            for ident in list(acknowledged)[: question.seen]:
                if abs(ident) not in (replica.puts if ident > 0 else replica.done):
                    raise BrokenPromise(f"an answer did not show {ident}, acknowledged before")
        replica.questions = open_questions

    def is_settled(self, journal: str) -> bool:
        serving = [
            node.replicas[journal].member
            for node in self.nodes.values()
            if node.up and journal in node.replicas and node.replicas[journal].member.is_serving
        ]
        if len(serving) != 1:
            return False
        (primary,) = serving
        return all(
            self.nodes[name].up
            and self.nodes[name].replicas[journal].member.end == primary.end
            and self.nodes[name].replicas[journal].member.log.commit_time == primary.end.time
            for name in primary.members.voters
        )

    def _compare(self) -> None:
        """Committed beginnings are equal, byte for byte (promise 7)."""
        for journal in self.homes:
            logs: dict[str, tuple[ReplicaLog, int]] = {}
            for node in self.nodes.values():
                path = Path("/", node.name, journal)
                if node.up and journal in node.replicas and node.files.exists(path / REPLICA_META):
                    log = node.replicas[journal].member.log
                    log.note_commit()
                    logs[node.name] = log, read_commit(node.files, path)
            base = max(log.base for log, _ in logs.values())
            raws = {
                name: records_between(log, base, commit) for name, (log, commit) in logs.items()
            }
            longest = max(raws, key=lambda name: len(raws[name]))
            for name, raw in raws.items():
                if not raws[longest].startswith(raw):
                    raise BrokenPromise(f"what {name} has of {journal} is another history")
            if self.plan.may_stall:
                continue
            newest = max(logs, key=lambda name: logs[name][1])
            states = {name: state_of(log) for name, (log, _) in logs.items()}
            for name, (log, commit) in logs.items():
                alike = (log.last_time, commit) == (logs[newest][0].last_time, logs[newest][1])
                if alike and states[name] != states[newest]:
                    raise BrokenPromise(f"a replay of {name} gives another state")
            puts, done = states[newest]
            records = _split(logs[newest][0].records())
            lost = [
                ident
                for ident, (_, raw) in self.acknowledged[journal].items()
                if abs(ident) not in (puts if ident > 0 else done)
                or (_time(raw) > logs[newest][0].base and raw not in records)
            ]
            if lost:
                raise BrokenPromise(f"{len(lost)} acknowledged records are gone")
            for node in self.nodes.values():
                names = [path.name for path in node.files.snapshot()]
                self.counted["cuts"] += sum(".diverged-" in name for name in names)

    # What goes wrong.

    def heal(self) -> None:
        """Everything works again."""
        self.blocked.clear()
        self.arbiter_down.clear()
        for node in self.nodes.values():
            node.paused_until = 0
            node.files.crash_at = None
            self._sync_clock(node)
            node.clock.step((_START + self.now - node.clock.now()) / SECOND)
            if not node.up:
                self.start(node)

    def _fault(self) -> None:
        if not self.noise:
            return
        self._later(self.plan.each, self._fault)
        self.counted["faults"] += 1
        kind = self.random.choice((*self.plan.faults, "mend"))
        node = self.random.choice(list(self.nodes.values()))
        leaders = [
            node
            for node in self.nodes.values()
            if node.up and any(one.member.is_serving for one in node.replicas.values())
        ]
        if leaders and self.random.random() < 0.5:
            node = self.random.choice(leaders)
        getattr(self, "_" + kind.replace("-", "_"))(node)

    def _mend(self, node: Node) -> None:
        self.blocked.clear()
        self.arbiter_down.clear()

    def _kill(self, node: Node) -> None:
        self._crash(node, "kill")

    def _power(self, node: Node) -> None:
        self._crash(node, "power")

    def _power_everywhere(self, node: Node) -> None:
        for one in self.nodes.values():
            if one.up:
                self.lose_power(one)

    def _crash(self, node: Node, kind: str) -> None:
        if not node.up:
            return
        self._sync_clock(node)
        if self.random.random() < 0.5:  # in the middle of one of the next file operations
            node.crashing = kind
            node.files.crash_at = len(node.files.operations) + self.random.randrange(1, 12)
        elif kind == "kill":
            self.kill(node)
        else:
            self.lose_power(node)

    def _pause(self, node: Node) -> None:
        node.paused_until = self.now + self.random.randrange(1, 5 * SECOND)

    def _cut_off(self, node: Node) -> None:
        """From everybody, perhaps from the arbiter too."""
        for name in self.nodes:
            self.blocked |= {(node.name, name), (name, node.name)}
        if self.random.random() < 0.7:
            self.arbiter_down.add(node.name)

    def _one_way(self, node: Node) -> None:
        other = self.random.choice(list(self.nodes))
        self.blocked.add((node.name, other))

    def _arbiter(self, node: Node) -> None:
        if self.random.random() < 0.3:
            self.arbiter_down |= set(self.nodes)
        else:
            self.arbiter_down.add(node.name)

    def _old_backup(self, node: Node) -> None:
        """The arbiter is restored from an old backup, a lease's length later."""
        if self.restoring:
            return
        self.restoring = True

        def restore() -> None:
            for journal in self.homes:
                view = self.arbiter.ask(journal, "", Look())
                assert not isinstance(view, bool)
                self.arbiter.restore_epoch(journal, max(1, view.epoch - self.random.randrange(4)))
            self.restoring = False

        self.at(self.plan.timing.ttl, restore)

    def _wipe(self, node: Node) -> None:
        """One at a time, and only if all others are well: a majority must keep its memory."""
        if all(
            one.up and all(replica.member.is_eligible for replica in one.replicas.values())
            for one in self.nodes.values()
        ):
            self.wipe(node)

    def _flip(self, node: Node) -> None:
        """A bit turns over on the disk of a node, which is started again."""
        if not all(
            one.up and all(replica.member.is_eligible for replica in one.replicas.values())
            for one in self.nodes.values()
        ):
            return
        self.kill(node)
        for path, content in node.files.snapshot().items():
            if path.name.endswith(".log") and len(content) > 200:
                bad = bytearray(content)
                bad[self.random.randrange(len(bad) // 2)] ^= 16
                node.files.put(path, bytes(bad))
                break

    def _snapshot(self, node: Node) -> None:
        """A serving primary takes a snapshot once a majority has all, and drops the records."""
        for replica in node.replicas.values():
            replica.snapshot_due = True

    def snapshot(self, node: Node, journal: str = "j0") -> None:
        """Take one now, whoever has it or not."""
        log = node.replicas[journal].member.log

        def take() -> None:
            puts, done = state_of(log)
            content = json.dumps([sorted(puts), sorted(done)]).encode().ljust(3 * PART)
            log.take_part(0, content)
            log.install(log.last_time, make_checkpoint(content))
            self.counted["snapshots"] += 1

        self.do(node, journal, take)

    def _clock(self, node: Node) -> None:
        """Of one node only: where most clocks are wrong, they are right."""
        victim = self.nodes[self.wrong_clock]
        self._sync_clock(victim)
        victim.clock.step(self.random.choice((7200, -7200, 90, -90, 5)))

    def _members(self, node: Node) -> None:
        """A serving primary replaces one of its nodes by a spare one."""

        def swap(voters: list[str], spare: list[str]) -> None:
            if spare:
                voters[self.random.randrange(len(voters))] = self.random.choice(spare)

        self._change_voters(node, swap)

    def _resize(self, node: Node) -> None:
        """It takes in one more, lets one go, or gives up what it has begun."""

        def resize(voters: list[str], spare: list[str]) -> None:
            deed = self.random.choice(("add", "remove", "give up"))
            if deed == "add" and spare:
                voters.append(self.random.choice(spare))
            elif deed == "remove" and len(voters) > 2:
                voters.pop(self.random.randrange(len(voters)))

        self._change_voters(node, resize)

    def _change_voters(self, node: Node, choose: Callable[[list[str], list[str]], None]) -> None:
        for journal in self.homes:
            replica = node.replicas.get(journal)
            if not node.up or replica is None or not replica.member.is_serving:
                continue
            member, voters = replica.member, list(replica.member.members.voters)
            choose(voters, [name for name in self.nodes if name not in voters])

            def change(member: Member = member, voters: list[str] = voters) -> None:
                with contextlib.suppress(JournalError):
                    member.change_voters(voters)

            self.do(node, journal, change)

    def describe(self) -> str:
        """For people who look at a seed."""
        lines = []
        for node in self.nodes.values():
            for journal, replica in node.replicas.items():
                member = replica.member
                lines.append(
                    f"{node.name}/{journal} up={node.up} {member.role.value} epoch={member.epoch}"
                    f" end={member.end} eligible={member.is_eligible} lag={member.lag()}"
                    f" voters={member.members}"
                )
        return "\n".join(lines)


def make_checkpoint(snapshot: bytes) -> bytes:
    """What makes a snapshot count."""
    facts = Struct(">8xQQI").pack(1, len(snapshot), google_crc32c.value(snapshot))
    crc: int = google_crc32c.value(facts)
    return facts + crc.to_bytes(4, "big")


def state_of(log: ReplicaLog) -> tuple[set[int], set[int]]:
    """What a replay gives: the jobs that were put, and those that are done."""
    puts: set[int] = set()
    done: set[int] = set()
    facts = log.snapshot()
    if facts is not None:
        parts = [log.read_snapshot(facts, at) for at in range(0, facts.size, PART)]
        try:
            puts, done = map(set, json.loads(b"".join(parts)))
        except ValueError as error:
            raise BrokenPromise(f"a snapshot that counts is damaged: {error}") from error
    for payload in _split(log.records()).values():
        word, number, *_ = payload.split(b" ")
        if word == b"put":
            puts.add(int(number))
        elif word == b"done":
            done.add(int(number))
    return puts, done


def _time(raw: bytes) -> int:
    walk = Walk(raw, 0, len(raw))
    walk.step()
    return int(walk.time)


def records_between(log: ReplicaLog, base: int, commit: int) -> bytes:
    """The raw records behind a base, up to a TIME."""
    raw = log.records()
    return raw[_length_to(raw, base) : max(_length_to(raw, commit), _length_to(raw, base))]


def _split(raw: bytes) -> dict[bytes, bytes]:
    """Whole records, and the payload of each."""
    walk, records = Walk(raw, 0, len(raw)), {}
    while walk.at < walk.end:
        begin = walk.at
        walk.step()
        records[raw[begin : walk.at]] = raw[walk.start : walk.stop]
    return records


def _length_to(raw: bytes, time: int) -> int:
    walk = Walk(raw, 0, len(raw))
    while walk.at < walk.end:
        begin = walk.at
        walk.step()
        if walk.time > time:
            return begin
    return walk.at
