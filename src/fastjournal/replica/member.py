"""One node's part in one journal: follower, candidate or primary.

A machine without I/O of its own but the node's own log: it is told what arrived (`receive`), what
the arbiter said (`answered`) and that time has passed (`tick`), and leaves in `outbox` what is to
be sent and asked. Nothing here waits, and messages may be lost, repeated and reordered.

    FOLLOWER ──► CANDIDATE ──► PRIMARY        by the arbiter's word, then by promises
        ▲            │            │
        └────────────┴────────────┘           by a higher promise, a lost leader key, or a fault

Rules (what is safe is said by `rules`, and only there):

1. An election: the best (epoch, TIME) tries first, the others wait. One step at the arbiter gives
   the leader key and the next epoch. Then the others promise; only then are their ends compared,
   the missing tail is fetched from the highest, and the epoch's MARK is written. It serves once the
   MARK is on a majority.
2. A follower is aligned anew in every epoch and every time it starts: it cuts off what is not in
   the primary's history. What the primary holds is decided by its history, which is fixed when its
   MARK is written; so an old message can do no harm.
3. A process never goes on with an epoch that another process began: it may have lost its tail.
4. A node that may have lost what it acknowledged, or whose log was damaged, neither votes nor leads
   until it has caught up with a primary. One that remembers nothing first asks the arbiter for the
   epoch, and promises that.
5. A follower applies nothing: readers of its log stop at `commit.pos`. How old that is they learn
   from the primary's answers to its questions, which it asks while somebody reads: no clock of
   another node is believed for it.
6. While a journal is open on the log, this node has led, and takes no part in what comes next.
7. The primary takes snapshots, of what a majority has, and drops the records below; the others
   fetch them and do the same. Whoever is behind what a primary still holds begins with its
   snapshot. What a majority has already is shipped at a bounded rate, so that nobody who catches up
   slows down the others. Where the journal is archived, whoever is behind fetches that snapshot
   from there, as long as the archive has those bytes: the primary has others to serve.
8. Bytes are shipped as soon as they are written, several messages ahead of their acknowledgements,
   so all nodes sync at the same time. Nobody counts, the primary included, for more than it has
   synced: a follower says how far it is only behind its sync, once for all that arrived together.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, TypeAlias

from fastjournal.clock import SECOND, Clock
from fastjournal.errors import JournalError, NoSpace, ReadOnly, SegmentError
from fastjournal.log.manifest import Sealed
from fastjournal.replica.arbiter import ChangeSet, Look, Question, Raise, Resign, Take, View
from fastjournal.replica.archived import ArchivedPart
from fastjournal.replica.disk import ReplicaLog, walk_records
from fastjournal.replica.lease import NodeLease, Timing
from fastjournal.replica.messages import (
    Ack,
    Align,
    Append,
    AskCommit,
    AskStatus,
    Committed,
    Compare,
    Fence,
    Message,
    Offer,
    Part,
    Promised,
    Pull,
    PullPart,
    Resigned,
    Status,
    Tail,
)
from fastjournal.replica.recent import Chunk
from fastjournal.replica.rules import NO_MEMBERS, OPEN_END, LogEnd, MemberSet, Promise, Rules

__all__ = ["CATCH_UP", "NEVER", "Ask", "Fetch", "Member", "Outgoing", "Role", "Send"]

CATCH_UP = 64 << 20
"""Bytes a second that are shipped of what a majority has already."""
_FLYING = 16  # messages to one node that are not acknowledged yet
NEVER = -(1 << 62)
"""A moment before all others."""
_log = logging.getLogger(__name__)


class Role(Enum):
    """What a node is to a journal."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    PRIMARY = "primary"


class Send(NamedTuple):
    """A message for another node."""

    to: str
    message: Message


class Ask(NamedTuple):
    """A question to the arbiter; `answered` is told what became of it."""

    question: Question


class Fetch(NamedTuple):
    """A question to the archive; `fetched` is told what became of it."""

    wanted: ArchivedPart


Outgoing: TypeAlias = Send | Ask | Fetch


@dataclass(slots=True)
class _Peer:
    """What a primary knows of another node."""

    session: int = -1
    """The run of its process that was met; -1: none yet."""
    aligned: bool = False
    stored: int = 0
    sent: int = 0
    """Up to which TIME was sent; falls back to `stored` when something was lost on the way."""
    flying: deque[int] = field(default_factory=deque)
    """The last TIMEs of the messages between `stored` and `sent`."""
    beaten: int = -1
    """What it had stored at the last sign of life."""
    gap: int = -1
    """What it had stored when something was missing behind that, and was sent again."""
    round: int = 0
    behind_clock: bool = False
    """It refuses our TIMEs: they lie too far ahead of its clock."""
    base: int = 0
    """Up to which TIME a snapshot stands for its log."""
    compared: int = -1
    """The newest of our segments that it was told the CRC of."""

    def send_again(self) -> None:
        """All that it has not acknowledged."""
        self.sent = self.stored
        self.flying.clear()


class _Taken(NamedTuple):
    """What a follower took and has not acknowledged yet."""

    sender: str
    epoch: int
    round: int
    refused: str
    commit: int


@dataclass(slots=True)
class _Election:
    """How far a candidate has come."""

    since: int
    """When it came to the step where it is."""
    ends: dict[str, LogEnd]
    """Who has told how far it is, of those who may vote."""
    wait: int = 0
    """How long it waits for those ahead of it, once statuses are collected."""
    asked: Take | None = None
    """The question to the arbiter that is under way, and the members it is about."""
    members: MemberSet = NO_MEMBERS
    epoch: int = 0
    """Taken at the arbiter; 0: not yet."""
    promised: dict[str, Promised] = field(default_factory=dict)
    donor: str = ""
    goal: int = 0


class Member:
    """One node's part in one journal."""

    def __init__(
        self,
        name: str,
        log: ReplicaLog,
        lease: NodeLease,
        *,
        clock: Clock,
        session: int,
        make_mark: Callable[[int, int, int], bytes],
        timing: Timing | None = None,
        rules: Rules | None = None,
        catch_up: int = CATCH_UP,
        archived: bool = False,
    ) -> None:
        """`session`: a number that no other run of this process ever had, drawn by the caller.

        `make_mark(when, epoch, set version)`: the payload of an epoch's first record. `catch_up`:
        bytes a second (rule 7). `archived`: there is an archive to fetch from.
        """
        self.name = name
        self.log = log
        self.session = session
        self.role = Role.FOLLOWER
        self.outbox: list[Outgoing] = []
        self.view: View | None = None
        self.commit_time = 0
        """Up to which TIME a majority has the log, as a primary knows; 0: unknown yet."""
        self.read_round = 0
        """The newest round of signs of life; see `may_answer`."""
        self.asks_commit = False
        """Somebody reads this follower's log: the primary is asked how far a majority is."""
        self.fresh_at = NEVER
        """When, on the monotonic clock: all that a majority had then is below our commit TIME."""
        self._lease = lease
        self._clock = clock
        self._make_mark = make_mark
        self._timing = timing or Timing()
        self._rules = rules or Rules()
        self._members = NO_MEMBERS
        self._peers: dict[str, _Peer] = {}
        self._learners: tuple[str, ...] = ()
        self._next_voters: tuple[str, ...] = ()
        self._election: _Election | None = None
        self._mark = 0  # TIME of our MARK, as a primary
        self._epoch = 0  # that we lead
        self._taken_under = 0  # the lease that our leader key hangs on
        self._resigned = 0  # the highest epoch that was given up: it is never led
        self._confirmed = 0
        self._aligned_in = 0  # the epoch in which this process was aligned, as a follower
        self._goal = 0
        self._fetching: Offer | None = None  # as a follower: the snapshot that is fetched
        self._offered_by = ""
        self._archived = archived
        self._wanted: ArchivedPart | None = None  # of the archive, and not answered yet
        self._unarchived = (0, 0)  # base and CRC of a snapshot that the archive does not have
        self._unacknowledged: _Taken | None = None  # as a follower: what is to be acknowledged
        self._comparing: list[tuple[Compare, Sealed]] = []  # one after the other, in pieces
        self._compared = (0, 0)  # how far the first of them was read, and the CRC up to there
        self._allowance = round(catch_up * self._timing.beat / SECOND)  # for a beat (rule 7)
        self._left = self._allowance
        self._next_look = self._next_beat = self._next_question = 0
        self._heard_at = NEVER  # of the primary, as a follower
        self._not_before = 0  # it stands in no election
        meta = log.meta
        lost = self._rules.may_have_lost(log.sync, meta.boot, log.boot_id())
        self._eligible = log.known and meta.sound and not lost

    # What others may ask.

    @property
    def epoch(self) -> int:
        """The epoch this node leads, or has promised."""
        return self._epoch or self.log.meta.promise.epoch

    @property
    def members(self) -> MemberSet:
        """The nodes of the journal, as far as this one knows."""
        return self._members

    @property
    def learners(self) -> tuple[str, ...]:
        """Who is being caught up to become a member."""
        return self._learners

    @property
    def leaving(self) -> tuple[str, ...]:
        """Who is a member no longer once the change is over that is asked for or under way."""
        members = self._members
        staying = self._next_voters or members.joining or members.voters
        return tuple(name for name in members.voters if name not in staying)

    @property
    def is_eligible(self) -> bool:
        """Whether this node may vote and lead (rule 4)."""
        return self._eligible

    @property
    def is_serving(self) -> bool:
        """Whether this is a primary whose MARK is on a majority."""
        return self.role is Role.PRIMARY and self.commit_time >= self._mark > 0

    @property
    def heard_at(self) -> int:
        """When, on the monotonic clock, a primary has last sent something to be appended."""
        return self._heard_at

    @property
    def primary(self) -> str:
        """Who leads, as far as this node knows; empty: nobody."""
        if self.role is Role.PRIMARY:
            return self.name
        return self.view.leader if self.view else ""

    @property
    def end(self) -> LogEnd:
        """The newest record of our log."""
        return self._rules.log_end(self.log.meta.history, self.log.last_time)

    def holds_lease(self) -> bool:
        """Whether this is the serving primary by the arbiter's word, at this very moment."""
        lease = self._lease
        return (
            self.is_serving
            and lease.is_held(self._clock.monotonic())
            and self._rules.is_same_lease(self._taken_under, lease.number)
        )

    def may_answer(self, asked_in: int) -> bool:
        """Whether a question that came when `read_round` was `asked_in` may be answered."""
        return self.is_serving and (
            self.holds_lease() or self._rules.is_fresh(asked_in + 1, self._confirmed)
        )

    def acknowledged_time(self, level: str) -> int:
        """Up to which TIME a primary may answer writes at `one`, `quorum` or `all`."""
        if not self.is_serving or (level == "one" and not self.holds_lease()):
            return 0
        stored = {} if level == "quorum" else self._stored()
        return self._rules.acknowledged_time(
            level, self._members, stored, self.name, self.commit_time
        )

    def is_committed(self, time: int) -> bool:
        """Whether a snapshot of what was written up to that TIME may count (rule 7)."""
        return self.is_serving and time <= self.commit_time

    @property
    def has_quorum(self) -> bool:
        """Whether a majority has answered lately, as a primary knows."""
        return self.is_serving and self._is_recent(self._confirmed)

    def _is_recent(self, number: int) -> bool:
        """Whether a round of signs of life is one of the last."""
        return number + 3 >= self.read_round

    def is_everywhere(self, time: int) -> bool:
        """Whether every node that was met has the records up to that TIME."""
        return all(peer.stored >= time for peer in self._peers.values() if peer.aligned)

    def lag(self) -> dict[str, int]:
        """For each other node, the TIME up to which it has the log; for people."""
        return {name: peer.stored for name, peer in self._peers.items()}

    # What happens.

    def start(self) -> None:
        """Begin: find out who leads."""
        if self._eligible:
            self._remember_sound()
        self._look()

    def append(self, payload: bytes) -> int:
        """As the serving primary, add a record; returns its TIME. `acknowledged_time` says when."""
        if not self.is_serving:
            raise ReadOnly(f"{self.name} is not the primary")
        time = self.log.append(payload, self._clock.now())
        self.wrote()
        self.log.flush()
        self.synced()
        return time

    def wrote(self) -> None:
        """As the primary, ship what was added to the log: others sync it while we do."""
        if self.role is Role.PRIMARY:
            for name, peer in self._peers.items():
                self._ship(name, peer)

    def synced(self) -> None:
        """As the primary, count this node too, as far as its log is safe by now."""
        if self.role is Role.PRIMARY:
            self._count()

    def change_voters(self, voters: Sequence[str]) -> None:
        """As the serving primary, begin to bring the journal to these nodes, one at a time.

        A change that is under way may be asked for again. The same nodes as are there already: give
        up a change that has not begun to count.
        """
        old, new = set(self._members.voters), set(voters)
        if new and new in (set(self._next_voters), set(self._members.joining)):
            return
        if self._next_voters and new == old and not self._members.joining:
            self._learners = self._next_voters = ()  # given up before it has begun
            self._peers = {name: peer for name, peer in self._peers.items() if name in old}
            return
        if not self.is_serving or self._members.joining or self._next_voters:
            raise ReadOnly("members change one at a time, by a serving primary")
        if len(new - old) > 1 or len(old - new) > 1 or not new:
            raise ReadOnly("members change one at a time")
        if new == old:
            return
        self._next_voters = tuple(voters)
        self._learners = tuple(new - old)
        for name in self._learners:
            self._peers[name] = _Peer()
        self._beat()

    def trust_log(self) -> None:
        """By an operator's word: what this node lacks is given up for lost."""
        if not self._eligible and self.log.known:
            _log.warning("%s: told to accept the loss", self.log.stream.path)
            self._eligible = True
            self._remember_sound()

    def resign(self) -> None:
        """Give the journal to somebody else."""
        if self._epoch:
            self._ask_resign(self._epoch)
        self._step_down("told to")
        self._stand_back()

    def tick(self) -> None:
        """Let what is due happen."""
        now = self._clock.monotonic()
        self.log.note_commit()
        if self._comparing:
            self._go_on_comparing()
        if now >= self._next_look:
            self._look()
        if self.role is Role.PRIMARY:
            if now >= self._next_beat:
                self._beat()
        elif self._election is not None:
            self._advance(self._election, now)
        elif self.asks_commit and now >= self._next_question and self.primary:
            self._next_question = now + self._timing.beat
            question = AskCommit(self.log.meta.promise.epoch, self.session, now)
            self._send(self.primary, question)

    def receive(self, sender: str, *messages: Message) -> None:
        """Messages of another node have arrived, in this order.

        Appended bytes that arrived together are synced and acknowledged together (rule 8).
        """
        for message in messages:
            if not isinstance(message, Append):
                self._settle()
                self._receive(sender, message)
            else:
                self._take(sender, message)
        self._settle()

    def _receive(self, sender: str, message: Message) -> None:
        match message:
            case Ack():
                self._acknowledged(sender, message)
            case AskStatus():
                leads = self._epoch if self.is_serving else 0
                self._send(sender, Status(self.end, self._eligible, leads))
            case Status():
                if self._election is not None and self._rules.may_vote(message.eligible):
                    self._election.ends[sender] = message.end
            case Fence(epoch):
                self._promise(sender, epoch)
            case Promised():
                self._promised(sender, message)
            case Align():
                self._align(sender, message)
            case Pull(epoch, after):
                if self._rules.may_append(self.log.meta.promise, epoch, sender):
                    chunk = self._read_after(after)
                    if chunk is not None:
                        self._send(sender, Tail(epoch, after, chunk.begins, chunk.data))
            case Tail():
                self._take_tail(sender, message)
            case Offer():
                self._offered(sender, message)
            case PullPart():
                self._send_part(sender, message)
            case Part():
                self._take_part(sender, message)
            case Compare():
                self._compare(sender, message)
            case AskCommit(epoch, session, asked):
                if epoch == self._epoch and self._rules.may_vouch(self.holds_lease()):
                    self._send(sender, Committed(epoch, session, asked, self.commit_time))
            case Committed():
                self._committed(sender, message)
            case Resigned():
                self._look()

    def answered(self, question: Question, answer: View | bool | None) -> None:
        """The arbiter has answered; None: it could not be reached, or not in time."""
        match question:
            case Look():
                if isinstance(answer, View):
                    self._looked(answer)
            case Take(epoch, _, _):
                if self._election is None or self._election.asked != question:
                    return  # the next look shows that we lead, and what for is forgotten
                if answer is True and epoch + 1 > self._resigned:
                    self._taken(self._election, question)
                else:
                    self._election = None
                    self._look()
            case ChangeSet(epoch, members):
                if epoch != self._epoch or self.role is not Role.PRIMARY:
                    return
                if answer is True:
                    self._set_changed(members)
                elif answer is False and members.version > self._members.version:
                    self._step_down("the set of members was changed by somebody else")
            case Raise() | Resign():
                self._look()

    # Looking at the arbiter.

    def _look(self) -> None:
        now, timing = self._clock.monotonic(), self._timing
        silent = now - self._heard_at
        suspicious = self.role is Role.FOLLOWER and 3 * timing.beat < silent < 3 * timing.ttl
        self._next_look = now + (timing.suspicion if suspicious else timing.look)
        self._ask(Look())

    def _looked(self, view: View) -> None:
        self.view = view
        if not self.log.known:
            self._first_start(view)
        if self.role is Role.PRIMARY:
            # A view from before our own taking says nothing.
            if (view.leader, view.leads) == (self.name, self._epoch):
                self._set_changed(view.members)
            elif view.epoch >= self._epoch:
                self._step_down(f"{view.leader or 'nobody'} leads")
            return
        if self.role is Role.CANDIDATE:
            return
        self._members = view.members
        election = self._election
        if view.leader == self.name:
            # By another run of this process, or by an answer that was lost.
            if election is None or election.asked is None:
                self._ask_resign(view.leads)
        elif view.leader:
            self._election = None
        elif election is None and self._may_lead():
            self._election = _Election(self._clock.monotonic(), {self.name: self.end})
            for name in self._others():
                self._send(name, AskStatus())

    def _first_start(self, view: View) -> None:
        """A node that remembers nothing (rule 4)."""
        promise = self._rules.first_promise(view.epoch)
        fresh = view.epoch == 0 and not self.log.damage
        self._eligible = fresh
        boot = self.log.boot_id()
        self.log.write_meta(replace(self.log.meta, promise=promise, boot=boot, sound=fresh))

    def _may_lead(self) -> bool:
        return (
            self.log.known
            and not self.log.is_lent
            and self.name in (self._members.joining or self._members.voters)
            and self._rules.may_vote(self._eligible)
            and self._rules.time_fits(self.log.last_time, self._clock.now())
            and self._clock.monotonic() >= self._not_before
            and self._lease.is_held(self._clock.monotonic())
        )

    # Elections (rule 1).

    def _advance(self, election: _Election, now: int) -> None:
        timing, passed = self._timing, now - election.since
        if election.epoch:
            if passed > timing.candidacy:
                self._give_up("no majority in time")
            else:
                self._canvass(election)
        elif election.asked is not None:
            if passed > timing.request:  # the question was lost, or its answer: look again
                self._election = None
        elif not election.wait:
            # Who is best among a majority need not wait for those who may be dead.
            known = self._rules.has_majority(self._members, list(election.ends))
            if known or passed >= timing.rank:
                self._queue_up(election, now)
        elif passed >= election.wait:
            if self.view is None or self.view.leader or not self._may_lead():
                self._election = None
                return
            election.since = now
            election.members = self.view.members
            version = self.view.members.version
            election.asked = Take(self.view.epoch, version, self._lease.number)
            self._ask(election.asked)

    def _queue_up(self, election: _Election, now: int) -> None:
        """Statuses are collected: wait for those ahead; without a majority there is no point."""
        if not self._rules.has_majority(self._members, list(election.ends)):
            self._election = None
            return
        own = (self.end, self.name)
        ahead = sum((end, name) > own for name, end in election.ends.items())
        election.since, election.wait = now, ahead * self._timing.rank + 1

    def _taken(self, election: _Election, question: Take) -> None:
        election.epoch = question.epoch + 1
        election.since = self._clock.monotonic()
        self._members = election.members
        self._taken_under = question.lease
        self.role = Role.CANDIDATE
        given, asked = self.log.meta.promise, Promise(election.epoch, self.name)
        if not self._rules.may_begin(given, election.epoch):
            self._outbid(given.epoch)
            return
        self.log.write_meta(replace(self.log.meta, promise=asked))
        election.promised[self.name] = self._answer_fence(election.epoch, kept=True)
        self._canvass(election)

    def _canvass(self, election: _Election) -> None:
        """Ask those for a promise, or the donor for its tail, who have not given it yet."""
        if election.donor:
            self._send(election.donor, Pull(election.epoch, self.log.last_time))
            return
        for name in self._others():
            if name not in election.promised:
                self._send(name, Fence(election.epoch))
        self._elect(election)

    def _elect(self, election: _Election) -> None:
        promised = election.promised
        # An end from too far ahead, left by a wrong clock, is not gone on from: what was
        # acknowledged is in every majority without it too.
        voting = [
            name
            for name, one in promised.items()
            if self._rules.may_vote(one.eligible)
            and self._rules.time_fits(one.end.time, self._clock.now())
        ]
        if election.donor or not self._rules.is_fenced(self._members, voting, self.name):
            return
        clocks = [promised[name].clock for name in voting if name != self.name]
        if not self._rules.clock_fits(self._clock.now(), clocks):
            self._give_up("this clock is ahead of the others")
            self._stand_back()
            return
        ends = {name: promised[name].end for name in voting}
        best = self._rules.best_end(ends, self.name)
        if best == self.name:
            self._lead(election)
            return
        donor = promised[best]
        keep = self._rules.common_time(
            self.log.meta.history, self.log.last_time, donor.history, donor.end.time
        )
        if not self._rules.may_keep_snapshot(self.log.base, keep):
            self._begin_anew("its snapshot tells of records that were given up")
            self._give_up("nothing is left here")
            return
        if not self._rules.may_ship(donor.dropped_to, donor.base, keep):
            self._give_up(f"{best} has dropped what is missing here: let it lead")
            self._stand_back()
            return
        self.log.take_history(donor.history, keep, election.epoch)
        election.donor, election.goal = best, donor.end.time
        self._fetched(election)

    def _take_tail(self, sender: str, tail: Tail) -> None:
        election = self._election
        if election is None or tail.epoch != election.epoch or sender != election.donor:
            return
        if not self._rules.follows(self.log.last_time, tail.after) or not tail.data:
            return
        found = walk_records(tail.data, self.log.stream.max_payload)
        if self._rules.is_whole(found.times, self.log.last_time, found.broken):
            self.log.append_raw(tail.data, found.times, tail.begins)
            self.log.flush()
            self._fetched(election)

    def _fetched(self, election: _Election) -> None:
        if self.log.last_time >= election.goal:
            self._lead(election)
        else:
            self._send(election.donor, Pull(election.epoch, self.log.last_time))

    def _lead(self, election: _Election) -> None:
        """Everything that may have been answered is here: begin the epoch."""
        promised = election.promised
        self._election = None
        now = self._clock.now()
        payload = self._make_mark(now, election.epoch, self._members.version)
        self._mark = self.log.begin_epoch(election.epoch, payload, now)
        self._epoch = election.epoch
        self.role = Role.PRIMARY
        self.commit_time = self._confirmed = 0
        self._peers = {name: _Peer() for name in self._others()}
        _log.info("%s: %s leads epoch %d", self.log.stream.path, self.name, self._epoch)
        for name, one in promised.items():
            if name in self._peers:
                self._meet(name, one.session)
        self._beat()
        self._count()

    def _give_up(self, reason: str) -> None:
        election, self._election = self._election, None
        if election is not None and election.epoch:
            self._ask_resign(election.epoch)
        self._step_down(reason)

    def _outbid(self, epoch: int) -> None:
        """Somebody has promised a higher epoch than the arbiter gives: it forgot (rule 2 there)."""
        if self.role is Role.PRIMARY:
            self.resign()
        else:
            self._give_up(f"epoch {epoch} was promised before")
        self._ask(Raise(epoch))

    def _step_down(self, reason: str) -> None:
        if self.role is not Role.FOLLOWER:
            _log.warning("%s: %s steps down: %s", self.log.stream.path, self.name, reason)
        self.role = Role.FOLLOWER
        self._election = None
        self._epoch = self._mark = self.commit_time = self._confirmed = 0
        self._peers = {}
        self._learners = self._next_voters = ()
        # Not at once: whoever is better placed goes first.
        self._next_look = self._clock.monotonic() + self._timing.look

    # Promises.

    def _promise(self, sender: str, epoch: int) -> None:
        if not self.log.known:
            return  # what it promised before is not known yet
        given, asked = self.log.meta.promise, Promise(epoch, sender)
        kept = self._rules.may_promise(given, asked)
        if kept and asked != given:
            if self.role is not Role.FOLLOWER:
                self._step_down(f"{sender} has epoch {epoch}")
            self.log.write_meta(replace(self.log.meta, promise=asked))
        if kept and self._election is not None and not self._election.epoch:
            self._election = None  # somebody has come further
        self._send(sender, self._answer_fence(epoch, kept=kept))

    def _answer_fence(self, epoch: int, *, kept: bool) -> Promised:
        return Promised(
            epoch,
            self.log.meta.promise.epoch,
            kept,
            self.log.meta.history,
            self.end,
            self._eligible,
            self._clock.now(),
            self.session,
            self.log.dropped_to,
            self.log.base,
        )

    def _promised(self, sender: str, answer: Promised) -> None:
        election = self._election
        if election is not None and answer.epoch == election.epoch and election.epoch:
            if not answer.kept:
                self._outbid(answer.promised)
            elif sender not in election.promised:
                election.promised[sender] = answer
                self._elect(election)
        elif self.role is Role.PRIMARY and answer.epoch == self._epoch:
            if not answer.kept:
                self._outbid(answer.promised)
            elif sender in self._peers:
                self._meet(sender, answer.session)

    # The primary's side.

    def _meet(self, name: str, session: int) -> None:
        """A node has promised our epoch: bring its log to where it is the beginning of ours."""
        peer = self._peers[name]
        if peer.session != session:
            self._peers[name] = peer = _Peer(session)
        if not peer.aligned:
            history, goal = self.log.meta.history, self.log.last_time
            self._send(name, Align(self._epoch, session, history, goal, False))

    def _acknowledged(self, sender: str, ack: Ack) -> None:
        peer = self._peers.get(sender)
        if self.role is not Role.PRIMARY or peer is None or ack.epoch != self._epoch:
            return
        if ack.session != peer.session or ack.refused == "align":
            if ack.session != peer.session:
                peer.aligned = False
            self._send(sender, Fence(self._epoch))
            return
        if ack.refused == "clock":
            peer.behind_clock = True
            self._judge_clock()
            return
        peer.behind_clock = False
        counts = ack.time > self.commit_time or not peer.aligned
        peer.aligned = True
        if ack.round > peer.round:
            peer.round = ack.round
            self._count_rounds()
        peer.base = ack.base
        peer.stored = max(peer.stored, ack.time)
        peer.sent = max(peer.sent, peer.stored)
        while peer.flying and peer.flying[0] <= peer.stored:
            peer.flying.popleft()
        if ack.refused == "gap" and peer.gap != peer.stored:  # once: all that flies behind it fails
            peer.gap = peer.stored
            peer.send_again()
        if counts:
            self._count()
        self._ship(sender, peer)

    def _judge_clock(self) -> None:
        """A majority refuses our TIMEs: nobody can have them, so they do not stay here either.

        Else the next primary might go on from them, and be refused too until that time has come.
        """
        refusing = [name for name, peer in self._peers.items() if peer.behind_clock]
        if self._rules.has_majority(self._members, refusing):
            epoch, stored = self._epoch, max(peer.stored for peer in self._peers.values())
            self._ask_resign(epoch)
            self._step_down("this clock is ahead of the others")
            self._stand_back()
            if not self.log.is_lent:
                self.log.take_history(self.log.meta.history, stored, epoch)

    def _stand_back(self) -> None:
        """Let the others go first for a while."""
        self._not_before = self._clock.monotonic() + 2 * self._timing.candidacy

    def _ship(self, name: str, peer: _Peer) -> bool:
        """Send what comes next, as much as may be under way; returns whether there was anything."""
        shipped = False
        if not peer.aligned:
            return False
        written = self.log.written_time
        while peer.sent < written and self._has_room(peer):
            chunk = self._read_after(peer.sent)
            if chunk is None:
                self._bring_back(name, peer)
                break
            if not chunk.data:
                break
            if peer.sent < self.commit_time:
                self._left -= len(chunk.data)
            data, commit, number = chunk.data, self.commit_time, self.read_round
            self._send(name, Append(self._epoch, peer.sent, commit, number, chunk.begins, data))
            peer.sent = chunk.last
            peer.flying.append(chunk.last)
            shipped = True
        return shipped

    def _has_room(self, peer: _Peer) -> bool:
        """What a majority has already goes one message at a time, at a bounded rate (rule 7)."""
        if peer.sent < self.commit_time:
            return not peer.flying and self._left > 0
        return len(peer.flying) < _FLYING

    def _read_after(self, after: int) -> Chunk | None:
        """What comes behind a TIME; None: it was dropped."""
        fault: SegmentError | None = None
        chunk = self.log.read_recent(after)
        if chunk is not None:
            return chunk
        try:
            chunk = self.log.read_after(after)
        except SegmentError as error:  # perhaps a segment was dropped in this moment
            fault = error
        if not self._rules.may_ship(self.log.dropped_to, self.log.base, after):
            return None
        if fault is not None:
            raise fault
        return chunk

    def _bring_back(self, name: str, peer: _Peer) -> None:
        """A node is behind all that is here: it begins with the snapshot, or with nothing."""
        if self.log.snapshot() is not None:
            self._offer(name, peer, needed=True)
        elif peer.stored:
            history, goal = self.log.meta.history, self.log.last_time
            self._send(name, Align(self._epoch, peer.session, history, goal, True))

    def _offer(self, name: str, peer: _Peer, *, needed: bool = False) -> None:
        facts = self.log.snapshot()
        if facts is not None and facts.base > peer.base:
            checkpoint = facts.checkpoint.hex()
            self._send(
                name,
                Offer(
                    self._epoch, peer.session, facts.base, facts.size, facts.crc, checkpoint, needed
                ),
            )

    def _send_part(self, sender: str, pull: PullPart) -> None:
        """A part of our snapshot, if the rate allows it (rule 7)."""
        facts = self.log.snapshot()
        if self.role is not Role.PRIMARY or pull.epoch != self._epoch or self._left <= 0:
            return
        if facts is None or facts.base != pull.base or not 0 <= pull.at < facts.size:
            return
        try:
            data = self.log.read_snapshot(facts, pull.at)
        except SegmentError:
            if self.log.snapshot() == facts:
                raise
            return  # there is a newer one
        self._left -= len(data)
        self._send(sender, Part(self._epoch, facts.base, pull.at, data))

    def _tell_crc(self, name: str, peer: _Peer) -> None:
        """One segment at a time that the other one should have whole."""
        for one in self.log.sealed():
            if peer.compared < one.number and one.last <= peer.stored:
                peer.compared = one.number
                self._send(name, Compare(self._epoch, one.first, one.last, one.size, one.crc))
                return

    def _beat(self) -> None:
        """Signs of life to all; what was not acknowledged is sent again."""
        self._next_beat = self._clock.monotonic() + self._timing.beat
        self.read_round += 1
        self._left = self._allowance
        for name, peer in self._peers.items():
            if not peer.aligned:
                self._send(name, Fence(self._epoch))
                continue
            if peer.stored == peer.beaten:  # nothing of what was sent has arrived since
                peer.gap = -1
                peer.send_again()
            peer.beaten = peer.stored
            if not self._ship(name, peer):
                commit, number = self.commit_time, self.read_round
                self._send(name, Append(self._epoch, peer.sent, commit, number, False, b""))
            self._offer(name, peer)
            self._tell_crc(name, peer)
        self._count_rounds()  # nobody else answers where this is the only node
        self._move_members()

    def _stored(self) -> dict[str, int]:
        stored = {name: peer.stored for name, peer in self._peers.items() if peer.aligned}
        stored[self.name] = self.log.last_time
        return stored

    def _count(self) -> None:
        """How far a majority is."""
        commit = self._rules.commit_time(self._members, self._stored(), self._mark)
        if commit > self.commit_time:
            self.commit_time = commit
            self.log.set_commit(commit)

    def _count_rounds(self) -> None:
        """Which round a majority has answered."""
        rounds = {name: peer.round for name, peer in self._peers.items()}
        rounds[self.name] = self.read_round
        confirmed = self._rules.commit_time(self._members, rounds, 0)
        self._confirmed = max(self._confirmed, confirmed)

    # Members.

    def _move_members(self) -> None:
        """learner, most are caught up, both majorities, then the new set alone.

        A change to both sets that another primary has begun is brought to its end too.
        """
        if not self.is_serving:
            return
        members, stored = self._members, self._stored()
        version = members.version + 1
        if members.joining:
            if self._rules.may_leave(members, stored, self._mark, self.commit_time):
                self._ask(ChangeSet(self._epoch, MemberSet(members.joining, version)))
            return
        # Else those who stay could not go on without us, and who has no vote yet never gets one.
        heard = [name for name, peer in self._peers.items() if self._is_recent(peer.round)]
        there = (self.name, *heard)
        caught_up = [name for name in there if stored.get(name, 0) >= self.commit_time]
        ready = self._rules.has_majority(MemberSet(self._next_voters), caught_up)
        if ready and set(self._learners) <= set(caught_up):
            both = MemberSet(members.voters, version, self._next_voters)
            self._ask(ChangeSet(self._epoch, both))

    def _set_changed(self, members: MemberSet) -> None:
        """The arbiter says that these are the members in our epoch; only we can have asked for it.

        By its answer to that, or by a look if the answer was lost.
        """
        if members.version <= self._members.version:
            return
        self._members = members
        self.log.write_meta(replace(self.log.meta, version=members.version))
        self._learners = self._next_voters = ()
        if members.joining:
            for name in self._others():
                self._peers.setdefault(name, _Peer())
        else:
            for name in [name for name in self._peers if name not in members.nodes]:
                del self._peers[name]
            if self.name not in members.nodes:
                self.resign()

    # The follower's side (rule 2).

    def _align(self, sender: str, align: Align) -> None:
        if not self._rules.may_append(self.log.meta.promise, align.epoch, sender):
            return
        if not self._rules.is_for_us(align.session, self.session):
            return
        if self.role is not Role.FOLLOWER or self.log.is_lent:
            return
        if self._aligned_in != align.epoch or align.restart:
            keep = self._rules.common_time(
                self.log.meta.history, self.log.last_time, align.history, OPEN_END
            )
            if align.restart or not self._rules.may_keep_snapshot(self.log.base, keep):
                keep = 0
                self._begin_anew("it is not the beginning of the primary's log")
            self.log.take_history(align.history, keep, align.epoch)
            self.fresh_at = NEVER
            self._aligned_in = align.epoch
            self._goal = align.goal
        self._catch_up()
        self._acknowledge(sender, align.epoch, 0)

    def _lose(self) -> None:
        """From now on this node lacks what it once acknowledged, until it has caught up.

        To the primary it is another one: what it acknowledged before counts no more.
        """
        self.session += 1
        self._eligible = False
        self.log.write_meta(replace(self.log.meta, sound=False))

    def _begin_anew(self, reason: str) -> None:
        """Nothing of this log is worth keeping: everything is fetched again."""
        self._lose()
        self.fresh_at = NEVER
        self._aligned_in = 0
        self._comparing, self._compared = [], (0, 0)
        self.log.begin_anew(reason)

    def _offered(self, sender: str, offer: Offer) -> None:
        """The primary has a snapshot that may stand for some of our records (rule 7)."""
        if not self._rules.is_for_us(offer.session, self.session):
            return
        if not self._follows(sender, offer.epoch) or offer.base <= self.log.base:
            return
        if not offer.needed and self.log.last_time < offer.base:
            return  # its records are on their way
        if not self.log.has_boundary(offer.base):
            if offer.needed:
                self._begin_anew("the primary has dropped what is missing here")
            return
        if offer != self._fetching:
            self._fetching, self._offered_by = offer, sender
            self._wanted = None
            self.log.drop_parts()
        self._fetch_next(offer)

    def _fetch_next(self, offer: Offer) -> None:
        """Ask for what comes next of a snapshot: the archive, if we are behind, or the primary."""
        at, known = self.log.fetched[0], (offer.base, offer.crc)
        if not (self._archived and offer.needed) or self._unarchived == known:
            self._send(self._offered_by, PullPart(offer.epoch, offer.base, at))
            return
        epoch, _, base, size, crc, checkpoint, _ = offer
        wanted = ArchivedPart(epoch, base, size, crc, checkpoint, at)
        if wanted != self._wanted:
            self._wanted = wanted
            self.outbox.append(Fetch(wanted))

    def fetched(self, wanted: ArchivedPart, data: bytes) -> None:
        """The archive has answered; empty: it has no such bytes, or could not be reached."""
        offer = self._fetching
        if wanted != self._wanted or offer is None:
            return
        self._wanted = None
        if data:
            part = Part(wanted.epoch, wanted.base, wanted.at, data)
            self._take_part(self._offered_by, part)
        elif self._follows(self._offered_by, offer.epoch):
            self._unarchived = offer.base, offer.crc
            self._fetch_next(offer)

    def _take_part(self, sender: str, part: Part) -> None:
        offer = self._fetching
        if offer is None or not self._follows(sender, part.epoch):
            return
        if (part.epoch, part.base, part.at) != (offer.epoch, offer.base, self.log.fetched[0]):
            return
        try:
            self.log.take_part(part.at, part.data)
            size, crc = self.log.fetched
            if size < offer.size:
                self._fetch_next(offer)
                return
            self._fetching = None
            whole = self._rules.is_whole_snapshot(offer.size, offer.crc, size, crc)
            if whole and self.log.has_boundary(offer.base):
                self.log.install(offer.base, bytes.fromhex(offer.checkpoint))
            else:
                self._unarchived = offer.base, offer.crc  # if it came from there
                self.log.drop_parts()
        except NoSpace as error:
            _log.error("%s: no room for a snapshot: %s", self.log.stream.path, error)
            self._fetching = None
            return
        self._catch_up()
        self._acknowledge(sender, offer.epoch, 0)

    def _compare(self, sender: str, theirs: Compare) -> None:
        """The same TIMEs are the same bytes; else they are fetched again."""
        if not self._follows(sender, theirs.epoch):
            return
        for one in self.log.sealed():
            if (one.first, one.last) == (theirs.first, theirs.last):
                self._comparing.append((theirs, one))
                if len(self._comparing) == 1:
                    self._go_on_comparing()
                return

    def _go_on_comparing(self) -> None:
        """A piece of a segment at a time: whoever waits for this node does not wait for that."""
        theirs, one = self._comparing[0]
        if self._aligned_in == theirs.epoch and not self.log.is_lent and one in self.log.sealed():
            at, crc = self.log.extend_crc(one, *self._compared)
            if self._compared[0] < at < one.size:
                self._compared = at, crc
                return
            if (one.size, crc) != (theirs.size, theirs.crc):
                path = self.log.stream.segment_path(one.number)
                self._begin_anew(f"{path.name} is not what the primary has")
                return
        self._comparing.pop(0)
        self._compared = (0, 0)

    def _committed(self, sender: str, theirs: Committed) -> None:
        """How far a majority was when we asked, or later (rule 5)."""
        ours = self._rules.is_for_us(theirs.session, self.session)
        if ours and self._follows(sender, theirs.epoch):
            self.log.set_commit(min(theirs.commit, self.log.last_time))
            if self.log.last_time >= theirs.commit:
                self.fresh_at = max(self.fresh_at, theirs.asked)

    def _follows(self, sender: str, epoch: int) -> bool:
        """Whether this node follows the sender, and is aligned to it."""
        return (
            self._rules.may_append(self.log.meta.promise, epoch, sender)
            and self._aligned_in == epoch
            and self.role is Role.FOLLOWER
            and not self.log.is_lent
        )

    def _take(self, sender: str, chunk: Append) -> None:
        if not self._rules.may_append(self.log.meta.promise, chunk.epoch, sender):
            self._settle()
            if chunk.epoch > self.log.meta.promise.epoch:
                self._acknowledge(sender, chunk.epoch, 0, "align")
            elif chunk.epoch < self.log.meta.promise.epoch:
                self._send(sender, self._answer_fence(chunk.epoch, kept=False))
            return
        if self._aligned_in != chunk.epoch:
            self._settle()
            self._acknowledge(sender, chunk.epoch, 0, "align")
            return
        self._heard_at = self._clock.monotonic()
        refused = self._append_chunk(chunk)
        before = self._unacknowledged
        if before is not None:
            refused = before.refused or refused  # what follows a gap is one too
        self._unacknowledged = _Taken(sender, chunk.epoch, chunk.round, refused, chunk.commit)

    def _settle(self) -> None:
        """What was appended is made safe, then acknowledged (rule 8)."""
        taken, self._unacknowledged = self._unacknowledged, None
        if taken is None:
            return
        self.log.flush()
        self.log.set_commit(min(taken.commit, self.log.last_time))
        self._catch_up()
        self._acknowledge(taken.sender, taken.epoch, taken.round, taken.refused)

    def _append_chunk(self, chunk: Append) -> str:
        """Append raw bytes; returns why not."""
        last = self.log.last_time
        if chunk.after < last:
            return ""  # it was sent twice
        if not self._rules.follows(last, chunk.after):
            return "gap"
        if not chunk.data:
            return ""
        found = walk_records(chunk.data, self.log.stream.max_payload)
        if not self._rules.is_whole(found.times, last, found.broken):
            return "broken"
        if not self._rules.time_fits(found.times[-1], self._clock.now()):
            return "clock"
        try:
            self.log.append_raw(chunk.data, found.times, chunk.begins)
        except JournalError as error:
            _log.error("%s: cannot follow: %s", self.log.stream.path, error)
            return "broken"
        return ""

    def _catch_up(self) -> None:
        """What may have been lost is there again, once all is that the primary had at our start."""
        if not self._eligible and self._aligned_in and self.log.last_time >= self._goal:
            self._eligible = True
            self._remember_sound()

    def _remember_sound(self) -> None:
        boot = self.log.boot_id()
        if self.log.meta.boot != boot or not self.log.meta.sound:
            self.log.write_meta(replace(self.log.meta, boot=boot, sound=True))

    def _acknowledge(self, sender: str, epoch: int, number: int, refused: str = "") -> None:
        log = self.log
        self._send(sender, Ack(epoch, self.session, log.last_time, number, refused, log.base))

    def _others(self) -> list[str]:
        nodes = dict.fromkeys((*self._members.nodes, *self._learners))
        return [name for name in nodes if name != self.name]

    def _send(self, to: str, message: Message) -> None:
        self.outbox.append(Send(to, message))

    def _ask_resign(self, epoch: int) -> None:
        self._resigned = max(self._resigned, epoch)
        self._ask(Resign(epoch))

    def _ask(self, question: Question) -> None:
        self.outbox.append(Ask(question))
