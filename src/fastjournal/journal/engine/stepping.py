"""The wall clock was stepped forward: leases keep their length.

Rules:

1. Every lease that runs is renewed by the length of the step, each with a record of its own: so its
   end is an instant in the log as ever, and a restart moves it by nothing. Locks, which live in
   memory, are moved there.
2. Only then does the journal's clock take the step. Due dates and expiries are instants of the wall
   clock: they come nearer by it.
3. Without space for the records the step waits: time goes on evenly meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.errors import NoSpace
from fastjournal.journal.decide.ground import instant_after
from fastjournal.journal.language.commands import PERSIST, Renew
from fastjournal.journal.state.row import LEASED, Row

if TYPE_CHECKING:
    from fastjournal.journal.engine.engine import Engine

__all__ = ["follow_step"]


def follow_step(engine: Engine) -> None:
    """Take the step that the clock holds back; under the lock, outside of any batch."""
    clock = engine.clock
    step = clock.step()
    if not step:
        return
    if engine.log.failure is None:
        try:
            with engine.batch():
                for row in _leased(engine):
                    renew = Renew(row.id, instant_after(row.lease_until, step), row.attempts)
                    if row.policy.flags & PERSIST:
                        engine.commit(renew)
                    else:
                        engine.remember(renew)
        except NoSpace:
            return
    for move in engine.moved_by_steps:
        move(step)
    clock.take_step(step)


def _leased(engine: Engine) -> list[Row]:
    """Looks through all rows, which is quick enough for something so rare."""
    state = engine.state
    if not any(lane.counts[LEASED] for lane in state.queues.values()):
        return []
    return [row for row in state.rows.values() if row.place == LEASED]
