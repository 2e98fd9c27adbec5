"""Requests of forwarders: the jobs of a spool, each of them taken in once.

Rules:

1. A sender numbers its jobs with marks that grow. A job whose mark is not above the sender's came
   before and is not looked at; so whoever is in doubt sends again.
2. Job and mark reach the log in one record, so no crash parts them. A new row of a sender whose
   name has 12 bytes and looks like the beginning of a UUID of version 8 gets name and mark as its
   id, in a PUT that is a record by itself; for all else a SENDER command stands in a GROUP with the
   job, or alone where the job changes nothing. An id in a GROUP tells no mark, whoever chose it.
3. At the end of a request the mark stands in a SENDER record too: ids go when their rows do.
4. The producer of a spooled job was told long ago that it is safe: a drain does not keep it out,
   and a sender's clock that is ahead counts as ours. A job refused for what it is stays refused.
   One that comes too late, because its key was written or deleted after it was put, is refused too:
   its forwarder keeps it and tells.
5. A sender is forgotten only when nothing of it will be sent again.
6. A sender belongs to whoever used it first, and goes on only for that one: with marks of somebody
   else its own jobs would count as repeated. A SENDER record with another name says whose it is, so
   the log has no new kind of record; who asks without an owner (an administrator) is let through
   and owns nothing.
"""

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple, final

from mypy_extensions import i64

from fastjournal.errors import AlreadyExists, BadRequest, JournalError, RequestError, Unauthorized
from fastjournal.journal.decide.put import MERGED, STALE
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.language.commands import Command, Group, Put, Sender
from fastjournal.journal.state.row import DELETED_ROW, Row
from fastjournal.put_request import PutRequest

__all__ = ["Forwarding", "Taken"]

_MET: Final = 1
"""The mark of a sender of whom nothing has come yet."""
MAX_MARK: Final = 2**63 - 1
_MAX_ID_MARK: Final = 2**32 - 1
"""The largest mark that an id can hold."""
_OWNED: Final = b"\0owned by\0"
"""Before a sender's name: the name under which its owner is remembered, as a mark."""
_REMEMBERED: Final = 1000
"""Refusals that are told again to whoever sends again."""


class Taken(NamedTuple):
    """What became of the jobs of one request."""

    mark: int
    outcomes: tuple[int, int, int, int]
    """How many are new, merged, twins, stale."""
    repeated: int
    refused: tuple[tuple[int, JournalError], ...]


@final
class Forwarding:
    """What forwarders ask for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._puts = engine.puts
        self._state = engine.state
        self._refusals: dict[tuple[bytes, int], JournalError] = {}
        """The latest refusals by sender and mark, in memory only: an answer may be lost on its
        way."""

    def put_from(
        self,
        sender: bytes,
        jobs: Iterable[tuple[int, PutRequest | RequestError]],
        now: i64 = 0,
        *,
        owner: bytes = b"",
    ) -> Taken:
        """Take in those jobs of a sender whose marks are new; a refused one does not stop the rest.

        `jobs` are (mark, job) with growing marks; a job whose id is the sender and its mark has its
        place for an id; one that was refused as it was read has its error in its place. `owner`:
        whose sender it must be, or will be if it is nobody's.
        """
        engine, state, puts = self._engine, self._state, self._puts
        claim = self._check_owner(sender, owner)
        if not now:
            now = engine.clock.now()
        named = len(sender) == 12 and sender[6] & 0xF0 == 0x80
        counts = [0, 0, 0, 0]
        refused: list[tuple[int, JournalError]] = []
        repeated = 0
        engine.check_room_to_grow()
        with engine.batch():
            if claim is not None:
                engine.commit(claim, now)
            if sender not in state.senders:
                engine.commit(Sender(sender, _MET), now)
            mark = before = state.mark_of(sender)
            for at, job in jobs:
                if not _MET < at <= MAX_MARK:
                    raise BadRequest(f"a mark cannot be {at}")
                if at <= mark:
                    refusal = self._refusals.get((sender, at))
                    if refusal is None:
                        repeated += 1
                    else:
                        refused.append((at, refusal))
                    continue
                engine.check_room_to_grow()
                mark = at
                own = b""
                try:
                    if isinstance(job, RequestError):
                        raise job
                    if named and at <= _MAX_ID_MARK:
                        own = self._give_id(job, sender, at)
                    if job.timestamp > now:
                        job.timestamp = 0
                    job.inserted = job.timestamp
                    job.persist = True  # which its producer was promised
                    command = puts.put(job, now, True)
                    outcome = puts.outcome
                    if outcome == STALE:
                        self._check_late(job, state.rows[puts.placed_id])
                except RequestError as error:
                    refused.append((at, error))
                    self._remember(sender, at, error)
                    engine.commit(Sender(sender, at), now)
                    continue
                counts[outcome] += 1
                if isinstance(command, Put) and puts.placed_id == own:
                    engine.commit(command, now)
                else:
                    engine.commit(_together(command, Sender(sender, at)), now)
            if mark > before and sender in state.unwritten_marks:
                engine.commit(Sender(sender, mark), now)
        counted = engine.counts
        counted.puts += sum(counts)
        counted.merges += counts[MERGED]
        counted.stale += counts[STALE]
        return Taken(mark, (counts[0], counts[1], counts[2], counts[3]), repeated, tuple(refused))

    def _give_id(self, job: PutRequest, sender: bytes, mark: int) -> bytes:
        """The id that tells sender and mark, if the job is to have it; else nothing."""
        given = job.id
        if given and given[:12] != sender:
            return b""
        own = sender + mark.to_bytes(4, "big")
        row = self._state.rows.get(own)
        if row is None:
            if not given:
                job.id = own
            return own
        if row.stage != DELETED_ROW:
            job.id = b""  # the row is of a file of the same name that went long ago
        return b""

    def _remember(self, sender: bytes, mark: int, error: JournalError) -> None:
        refusals = self._refusals
        refusals[(sender, mark)] = error
        if len(refusals) > _REMEMBERED:
            del refusals[next(iter(refusals))]

    def _check_late(self, job: PutRequest, row: Row) -> None:
        """Refuse a job that lost against a later write; one that is there already is no loss."""
        if row.stage == DELETED_ROW:
            self._engine.counts.stale += 1
            raise AlreadyExists("the job, or its key, was deleted after it was put")
        if row.id != job.id and row.modified != job.timestamp:
            self._engine.counts.stale += 1
            raise AlreadyExists("its key was written after it was put")

    def forget_sender(self, sender: bytes, owner: bytes = b"") -> None:
        """Nothing of this sender will come again."""
        self._check_owner(sender, owner)
        for name in (sender, _OWNED + sender):
            if name in self._state.senders:
                self._engine.commit(Sender(name, 0))

    def _check_owner(self, sender: bytes, owner: bytes) -> Sender | None:
        """Refuse the sender of somebody else; returns what makes one that is nobody's his."""
        if not 1 <= len(sender) <= 255 or sender.startswith(_OWNED):
            raise BadRequest("a sender's name has 1 to 255 bytes, and is not one of ours")
        if not owner:
            return None
        tag = int.from_bytes(hashlib.sha256(owner).digest()[:8], "big") >> 2 | 1
        known = self._state.mark_of(_OWNED + sender)
        if known and known != tag:
            raise Unauthorized("this sender belongs to another token")
        return None if known else Sender(_OWNED + sender, tag)

    def write_marks(self) -> None:
        """Write down the marks that stand in the ids of jobs only: the end of a log may be torn."""
        for sender in sorted(self._state.unwritten_marks):
            self._engine.commit(Sender(sender, self._state.mark_of(sender)))


def _together(command: Command | None, sender: Sender) -> Command:
    if command is None:
        return sender
    members = command.members if isinstance(command, Group) else (command,)
    return Group((*members, sender))
