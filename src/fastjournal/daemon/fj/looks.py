"""Requests that only look, on a view of the log: what a node answers that does not lead.

Rules:

1. What would change something, or wait for something, is for the primary: `NotPrimary`. So is
   reading an entry that lives longer by being read.
2. Locks, and when an entry was read last, are known to the primary alone: none are told here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastjournal.buffers import BytesWriter
from fastjournal.daemon.fj import admin
from fastjournal.daemon.fj.entries import picture_of
from fastjournal.errors import NotPrimary
from fastjournal.journal.decide.ground import Ground
from fastjournal.journal.entries.ground import EntryGround, is_busy, touch_length
from fastjournal.journal.entries.key_query import PATTERN, RANGE, KeyQuery
from fastjournal.journal.entries.reads import EntryReads, Reading
from fastjournal.journal.look.read_only import JournalView
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import IDLE, LEASED, Row
from fastjournal.wire.fj.entry_codec import ALL, ALL_READ
from fastjournal.wire.fj.functions import DATA, EXACT, LISTEN, WORKED_ON, Function, Query
from fastjournal.wire.fj.replies import Pair, encode_ok, write_reply
from fastjournal.wire.fj.requests import Request

__all__ = ["SeenJournal", "carry_out_look"]


class SeenJournal:
    """A view as the functions of FJ want to see it."""

    def __init__(
        self, view: JournalView, figures: Callable[[JournalView], dict[str, Any]], max_message: int
    ) -> None:
        """`figures`: those of the journal and of the server."""
        self.journal = view
        self.reads = EntryReads(EntryGround(Ground(view.state)))
        self._figures = figures
        self._max_message = max_message

    @property
    def state(self) -> JournalState:
        """The rows."""
        return self.journal.state

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes."""
        self.journal.load(row)

    def count_entries(self) -> int:
        """How many entries there are."""
        lane = self.state.queues.get(b"")
        return 0 if lane is None else lane.counts[IDLE] + lane.counts[LEASED]

    def status(self) -> dict[str, Any]:
        """Figures of the journal and of the server."""
        return self._figures(self.journal)

    def max_message(self) -> int:
        """Most bytes of a message."""
        return self._max_message


def carry_out_look(seen: SeenJournal, request: Request, now: int) -> bytes:
    """The answer to a request; `NotPrimary` if it is not for a node that does not lead."""
    match request.function:
        case Function.NOP | Function.PING:
            return encode_ok(request.identifier, now)
        case Function.STATUS:
            return admin.status(seen, request, now)
        case Function.INSPECT:
            return admin.inspect(seen, request, now)
        case Function.LIST:
            return admin.list_jobs(seen, request, now)
        case Function.GET:
            return _get(seen, request, now)
        case _:
            raise NotPrimary


def _get(seen: SeenJournal, request: Request, now: int) -> bytes:
    """Read one entry, or several."""
    if request.timeout is not None or request.flags & (EXACT | LISTEN):
        raise NotPrimary
    skip = bool(request.flags & WORKED_ON)
    reading = Reading(bool(request.flags & DATA), False, 0, 0, request.value, skip)
    out = BytesWriter()
    flags = request.flags & DATA
    if request.query is Query.KEY:
        row = seen.reads.get(request.key, now, reading)
        if reading.data and touch_length(row):
            raise NotPrimary
        if is_busy(row, now) and row.rare.worker != request.value:
            flags |= WORKED_ON
        pair = _pair(seen, request, row, b"", now)
        write_reply(
            out, request.identifier, row.modified, flags, (pair,), timeout=row.expires or -1
        )
        return out.getvalue()
    if request.query is Query.CURSOR:
        wanted = KeyQuery.resume(request.key)
    elif request.query is Query.PATTERN:
        wanted = KeyQuery(PATTERN, b"", request.key)
    else:
        wanted = KeyQuery(RANGE, request.key, request.upper or b"", request.limit or 0)
    page = seen.reads.page(wanted, now, reading)
    pairs = [_pair(seen, request, row, key, now) for key, row in page.rows]
    write_reply(out, request.identifier, now, flags, pairs, True, page.cursor or None)
    return out.getvalue()


def _pair(seen: SeenJournal, request: Request, row: Row, key: bytes, now: int) -> Pair:
    value = seen.journal.value(row) if request.flags & DATA else b""
    if request.ttl not in (ALL, ALL_READ):
        return Pair(key, row.kind, value, None if request.ttl is None else row.expires)
    accessed = 0 if request.ttl == ALL_READ else -1
    return Pair(key, row.kind, picture_of(row, value, False, now, accessed))
