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

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from fastjournal.errors import AlreadyExists, BadRequest, JournalError, RequestError, Unauthorized
from fastjournal.journal.language.commands import Command, Group, Put, Sender
from fastjournal.model import Mode, NewJob, Outcome, State

if TYPE_CHECKING:
    from fastjournal.journal.decide.jobs import Jobs
    from fastjournal.journal.engine.engine import Engine
    from fastjournal.journal.state.apply import JournalState
    from fastjournal.journal.state.row import Row

__all__ = ["Forwarding", "Taken"]

_MET = 1
"""The mark of a sender of whom nothing has come yet."""
MAX_MARK = 2**63 - 1
_OWNED = b"\0owned by\0"
"""Before a sender's name: the name under which its owner is remembered, as a mark."""
_REMEMBERED = 1000
"""Refusals that are told again to whoever sends again."""


class Taken(NamedTuple):
    """What became of the jobs of one request."""

    mark: int
    outcomes: tuple[int, int, int, int]
    """How many are new, merged, twins, stale."""
    repeated: int
    refused: tuple[tuple[int, JournalError], ...]


class Forwarding:
    """The part of `Operations` that forwarders use."""

    _engine: Engine
    _jobs: Jobs
    _state: JournalState
    _refusals: OrderedDict[tuple[bytes, int], JournalError]
    """The latest refusals by sender and mark, in memory only: an answer may be lost on its way."""

    def put_from(
        self,
        sender: bytes,
        jobs: Iterable[tuple[int, NewJob]],
        now: int = 0,
        *,
        decoded: bool = False,
        owner: bytes = b"",
    ) -> Taken:
        """Take in those jobs of a sender whose marks are new; a refused one does not stop the rest.

        `jobs` are (mark, job) with growing marks; a job whose id is the sender and its mark has its
        place for an id. `decoded`: the types of their fields and their instants are known to be
        right. `owner`: whose sender it must be, or will be if it is nobody's.
        """
        engine, state = self._engine, self._state
        claim = self._check_owner(sender, owner)
        if not engine.reserve.held:
            engine.reserve.check()
        now = now or engine.clock.now()
        put, commit, rows = engine.put, engine.commit, state.rows
        named = len(sender) == 12 and sender[6] & 0xF0 == 0x80
        most = self._jobs.limits.max_value
        counts = [0, 0, 0, 0]
        refused: list[tuple[int, JournalError]] = []
        repeated = 0
        with engine.batch():
            if claim is not None:
                commit(claim)
            if sender not in state.senders:
                commit(Sender(sender, _MET))
            mark = before = state.mark_of(sender)
            for at, job in jobs:
                if not _MET < at <= MAX_MARK:
                    raise BadRequest(f"a mark cannot be {at}")
                if at <= mark:
                    told = self._refusals.get((sender, at)) if self._refusals else None
                    if told is None:
                        repeated += 1
                    else:
                        refused.append((at, told))
                    continue
                (
                    queue, value, key, mode, priority, _, _, stamp, lease, attempts,
                    timeouts, fails, kind, ttl, given,
                ) = job  # fmt: skip
                own = b""
                if named and at < 2**32 and (not given or given[:12] == sender):
                    own = sender + at.to_bytes(4, "big")
                    if own in rows:
                        if rows[own].state is not State.DELETED:
                            # Of a file of the same name that went long ago.
                            job = _with_id(job, b"")
                        own = b""
                    elif not given:
                        job = _with_id(job, own)
                if stamp > now:
                    job = job._replace(timestamp=0)
                # The commonest kind of job: nothing is left to be checked.
                fine = (
                    decoded
                    and kind == 1
                    and not (lease or attempts or timeouts or fails or ttl)
                    and 0 < len(queue) <= 255
                    and len(value) <= most
                    and 0 <= priority <= 255
                    and mode is (Mode.MERGE if key else Mode.PLAIN)
                )
                mark = at
                try:
                    command, outcome, job_id = put(job, now, checked=fine, promised=True)
                    if outcome is Outcome.STALE:
                        self._check_late(job, rows[job_id])
                except RequestError as error:
                    refused.append((at, error))
                    self._refusals[sender, at] = error
                    if len(self._refusals) > _REMEMBERED:
                        self._refusals.popitem(last=False)
                    commit(Sender(sender, at))
                    continue
                counts[outcome] += 1
                if job_id == own and command.__class__ is Put:
                    commit(command)
                else:
                    commit(_together(command, Sender(sender, at)))
            if mark > before and sender in state.untold:
                commit(Sender(sender, mark))
        counted = engine.counts
        counted.puts += sum(counts)
        counted.merges += counts[Outcome.MERGED]
        counted.stale += counts[Outcome.STALE]
        return Taken(mark, (counts[0], counts[1], counts[2], counts[3]), repeated, tuple(refused))

    def _check_late(self, job: NewJob, row: Row) -> None:
        """Refuse a job that lost against a later write; one that is there already is no loss."""
        if row.state is State.DELETED:
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

    def tell_marks(self) -> None:
        """Write down the marks that stand in the ids of jobs only: the end of a log may be torn."""
        for sender in sorted(self._state.untold):
            self._engine.commit(Sender(sender, self._state.mark_of(sender)))


def _with_id(job: NewJob, job_id: bytes) -> NewJob:
    return tuple.__new__(NewJob, (*job[:14], job_id))


def _together(command: Command | None, sender: Sender) -> Command:
    if command is None:
        return sender
    members = command.members if isinstance(command, Group) else (command,)
    return Group((*members, sender))
