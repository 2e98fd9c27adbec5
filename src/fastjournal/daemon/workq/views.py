"""Rows as the Workq protocol shows them."""

from __future__ import annotations

from fastjournal.clock import MILLISECOND
from fastjournal.errors import NotFound
from fastjournal.journal.language import commands as k
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row, value_of
from fastjournal.model import State
from fastjournal.wire.workq import replies as answer

__all__ = ["living", "order", "view"]


def living(state: JournalState, job_id: bytes, now: int) -> Row:
    """The row of an id that is neither gone nor expired."""
    row = state.rows.get(job_id)
    if row is None or row.state is State.DELETED or 0 < row.expires < now:
        raise NotFound("no such job")
    return row


def order(row: Row) -> tuple[int, int, int, bytes]:
    """The order of a queue."""
    return row.rank, row.due, row.inserted, row.id


def view(row: Row) -> answer.JobView:
    """A row as Workq shows a job."""
    policy, more = row.policy, row.rare
    scheduled = bool(policy.flags & k.BY_SCHEDULE)
    start = row.due if scheduled else row.inserted
    states = {State.COMPLETED: 1, State.FAILED: 2, State.PROCESSING: 4}
    return answer.JobView(
        row.id,
        row.queue.name.decode("utf-8", "replace"),
        policy.lease or row.queue.settings.lease // MILLISECOND,
        max(0, row.expires - start) // MILLISECOND if row.expires else 0,
        value_of(row),
        policy.max_attempts,
        row.attempts,
        policy.max_fails,
        more.fails,
        -row.rank,
        states.get(row.state, 3 if row.attempts else 0),
        row.inserted,
        row.due if scheduled else None,
    )
