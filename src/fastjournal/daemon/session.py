"""What others know of a connection: the turn of its journal, the functions of its protocol.

Rules:

1. A session belongs to one journal. It is served under the journal's lock only, on the loop.
2. Requests of a session are carried out in the order in which they came, and answered so, except
   those that wait. The answers of a turn stand in `out` until the turn lets them go.
3. A waiter is answered once. Its time limit is a timer of the loop; when it rings the waiter is
   asked a last time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from mypy_extensions import i64

from fastjournal.buffers import BytesWriter
from fastjournal.errors import JournalError
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.engine.entry_operations import EntryOperations
from fastjournal.journal.engine.operations import Operations
from fastjournal.journal.entries.locks import Writer
from fastjournal.journal.journal import Journal
from fastjournal.journal.language.commands import PERSIST
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row
from fastjournal.model import MAX_INSTANT, Where

__all__ = ["KEY", "QUEUE", "RANGE", "Session", "Subject", "Waiter"]

KEY: Final = 0
QUEUE: Final = 1
RANGE: Final = 2


class Subject(NamedTuple):
    """What a connection listens to."""

    kind: int
    name: bytes
    """A key, a queue (empty: all of them), or the lower end of a range."""
    upper: bytes = b""
    """Of a range; empty: no end."""

    def holds(self, key: bytes) -> bool:
        """Whether a key lies in this range."""
        return self.name <= key and (not self.upper or key <= self.upper)


class Waiter:
    """A request that waits: for a job, or for the end of one."""

    def __init__(
        self,
        session: Session,
        identifier: int,
        retry: Callable[[Waiter, int], bool],
        where: Where | None,
        row_id: bytes | None,
        request: object = None,
    ) -> None:
        self.session = session
        self.identifier = identifier
        """Of the request."""
        self.retry = retry
        """Asks again, and writes the answer if there is one; whether it did."""
        self.where = where
        self.row_id = row_id
        self.request = request
        """What its protocol wants to remember."""
        self.wants_sync = session.wants_sync
        """Its answer is to wait for stable storage, whatever the policy is."""
        self.handle = 0
        """Of the journal's wake-ups; 0: not registered."""
        self.timer: Any = None
        self.expired = False
        """Its time is over: answer with what there is."""
        self.answered = False
        """It has its answer, or nobody wants it any more."""
        self.last = False
        """Its answer takes the job away: others who wait for the same are served first."""


class Session:
    """One connection; those that speak a protocol do what is left open here."""

    def __init__(self, protocol: str, journal: Journal) -> None:
        self.protocol = protocol
        self.peer = "?"
        self.name = b""
        """What the client calls itself; the worker of its leases unless it names another."""
        self.own_name = b""
        """Stands for it where it has no name; no other connection ever has the same."""
        self.ahead: i64 = 0
        """The journal's clock minus the client's, ns, where they differ by more than they may."""
        self.is_admin = False
        self.may_take = False
        """It may lease jobs, and so take them away."""
        self.owner = b""
        """Whose senders it may use: those of its token; empty: anybody's."""
        self.out = BytesWriter()
        """The answers of the turn under way."""
        self.answered: list[int] = []
        """The identifiers of the requests that they answer."""
        self.placed_id = b""
        """The row that the newest put came to."""
        self.settled: i64 = 0
        """What became of a lease that was settled before."""
        self.settled_until: i64 = 0
        """The instant of the newest settling: when the job is due, or the lease ends."""
        self._promise: i64 = 0
        """Bit 9 if all that the request under way does is in the log."""
        self._memory_effects: i64 = 0
        """Of the journal when it began."""
        self.wants_sync = False
        """The request under way asked for stable storage."""
        self.holds_for_sync = False
        """A request of the turn under way did."""
        self.asked = False
        """It has requests for the next turn."""
        self.in_turn = False
        """The turn under way has something of it."""
        self.behind: i64 = 0
        """Turns whose answers to it wait for a sync."""
        self.unsynced: i64 = 0
        """Bytes of these answers."""
        self.gone = True
        """The peer has left, or is not here yet."""
        self.leaving = False
        """Nothing more is read; the connection ends once all is sent."""
        self.waiters: set[Waiter] = set()
        self.listening: dict[Subject, int] = {}
        """What it wants to be told of, and the identifier of the request that said so."""
        self.use(journal)

    def use(self, journal: Journal) -> None:
        """Work on this journal."""
        self.journal = journal
        self.engine: Engine = journal.engine
        self.operations: Operations = journal.operations
        self.entries: EntryOperations = journal.entries.operations
        self.state: JournalState = journal.engine.state

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes."""
        self.engine.load(row)

    def count_entries(self) -> int:
        """How many entries there are."""
        return self.entries.count()

    def writer(self) -> Writer:
        """Who asks, to those who hold locks."""
        return Writer(self.name or self.own_name)

    def stamp(self, timestamp: i64) -> i64:
        """A timestamp of the client, ns, by the journal's clock; 0 stays 0.

        Where the two clocks differ by more than they may, what counts is how long ago it was by the
        client's own, which it told with HELLO.
        """
        if not timestamp or not self.ahead:
            return timestamp
        if self.ahead > 0 and timestamp > MAX_INSTANT - self.ahead:
            return MAX_INSTANT
        return max(i64(1), timestamp + self.ahead)

    def promise(self, bit: i64) -> None:
        """A request begins; `bit` is bit 9 if what it logs is synced before it is answered."""
        self._promise = bit
        self._memory_effects = self.engine.memory_effects

    @property
    def stable(self) -> i64:
        """Bit 9 for the reply of the request under way, unless some of its effect is in memory."""
        if self.engine.memory_effects == self._memory_effects:
            return self._promise
        return 0

    def stable_for(self, row: Row) -> i64:
        """The same for an answer about a row, whether that was changed or not."""
        if row.policy.flags & PERSIST:
            return self.stable
        return 0

    def may_go_on(self) -> bool:
        """Whether the next requests may be carried out."""
        raise NotImplementedError

    def serve(self, now: i64, refusal: JournalError | None) -> None:
        """Carry out the requests of the queue, under the lock, and write the answers to `out`.

        With a `refusal` nothing is done: each is answered with it.
        """
        raise NotImplementedError

    def serve_waiter(self, waiter: Waiter, now: i64) -> None:
        """Ask once more about a request that waits; under the lock."""
        raise NotImplementedError

    def refusals(self, answered: Sequence[int], error: JournalError, now: i64) -> bytes:
        """The answers to requests that came to nothing."""
        raise NotImplementedError

    def send(self, data: bytes) -> None:
        """Send replies."""
        raise NotImplementedError

    def finish(self) -> None:
        """Nothing to send: the peer may leave if it wants to."""
        raise NotImplementedError

    def end(self) -> None:
        """Read no more; close when everything has been answered and sent."""
        raise NotImplementedError

    def cut(self, reason: str, text: str) -> None:
        """End at once."""
        raise NotImplementedError

    def check(self, now: float) -> None:
        """Cut the peer if a limit of time has passed at this loop time."""
        raise NotImplementedError

    def check_grant(self) -> None:
        """Tokens were read anew: cut the peer if its own is not among them as it was."""
        raise NotImplementedError

    def push(self, pushes: Sequence[tuple[int, bytes]], now: int) -> None:
        """Tell the peer what it did not just ask: the identifiers of its subscriptions, pushes."""
        raise NotImplementedError

    def quit(self) -> None:
        """The client has said goodbye: what waits is answered with what there is."""
        raise NotImplementedError

    def wait(self, waiter: Waiter, seconds: float) -> None:
        """Let a request wait for so long."""
        raise NotImplementedError

    def expire(self, waiter: Waiter) -> None:
        """Ask a waiter a last time."""
        raise NotImplementedError

    def do_later(
        self, identifier: int, work: Callable[[], Any], reply: Callable[[Any, int], bytes]
    ) -> None:
        """Do something beside the loop and answer when it is done."""
        raise NotImplementedError

    def listen(self, subject: Subject, identifier: int) -> None:
        """Be told of something from now on."""
        raise NotImplementedError

    def unlisten(self, subject: Subject) -> None:
        """Be told of it no more."""
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        """Figures of the journal and of the server."""
        raise NotImplementedError

    def max_message(self) -> int:
        """Most bytes of a message."""
        raise NotImplementedError

    def deny(self, reason: str) -> None:
        """Somebody tried what it may not: say so in the log."""
        raise NotImplementedError
