"""The five promises of a journal, as checks for anybody's tests.

    acknowledged survives     `Answers`: what was answered OK is there, what was done stays done
    one waiting row per key   `check_one_waiting_row`
    no key waits for ever     `check_max_wait`
    a stale token is inert    `check_stale_token`
    replay equals state       `check_replay`

Rules:

1. A check looks from outside, except for `check_stale_token`, which tries to do harm.
2. A broken promise is `PromiseBroken`, an `AssertionError` that names the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fastjournal.errors import LeaseLost, NotFound
from fastjournal.journal.disk.replay import replay
from fastjournal.journal.journal import Journal
from fastjournal.journal.language.commands import KEEP_VERSIONS
from fastjournal.model import Receipt, State

__all__ = [
    "Answers",
    "PromiseBroken",
    "check_max_wait",
    "check_one_waiting_row",
    "check_replay",
    "check_stale_token",
]


class PromiseBroken(AssertionError):
    """The journal did not keep its word."""


class Answers:
    """What clients were told. An end that was asked for and not answered may have happened."""

    def __init__(self) -> None:
        self.there: set[bytes] = set()
        self.ended: set[bytes] = set()
        self.unsure: set[bytes] = set()

    def put(self, receipt: Receipt) -> None:
        """A put was answered; its job may have ended by the time we hear of it."""
        if receipt.id not in self.ended:
            self.there.add(receipt.id)

    def ending(self, job_id: bytes) -> None:
        """Somebody asks for the end of a job."""
        self.unsure.add(job_id)

    def end(self, job_id: bytes) -> None:
        """That was answered."""
        self.unsure.discard(job_id)
        self.there.discard(job_id)
        self.ended.add(job_id)

    def check(self, journal: Journal) -> None:
        """What was put is there, what has ended is not handed out again."""
        for job_id in self.there - self.unsure:
            try:
                journal.job(job_id)
            except NotFound:
                raise PromiseBroken(f"job {job_id.hex()} was acknowledged and is lost") from None
        for job_id in self.ended:
            try:
                job = journal.job(job_id)
            except NotFound:
                continue
            if job.state in (State.WAITING, State.PROCESSING):
                raise PromiseBroken(f"job {job_id.hex()} had ended and is back")


def check_one_waiting_row(journal: Journal) -> None:
    """At most one row of a key waits and one is worked on, where versions are not kept."""
    with journal.engine.lock:
        seen: Counter[tuple[bytes, bytes, State]] = Counter()
        now = journal.engine.clock.now()
        for row in journal.engine.state.rows.values():
            live = row.state <= State.PROCESSING and not 0 < row.expires < now
            if row.key and live and not row.policy.flags & KEEP_VERSIONS:
                seen[row.queue.name, row.key, row.state] += 1
    for (queue, key, state), count in seen.items():
        if count > 1:
            raise PromiseBroken(f"{count} rows of key {key!r} in queue {queue!r} are {state.name}")


def check_max_wait(journal: Journal) -> None:
    """No repeat has pushed a row past its insertion and the `max_wait` of its queue.

    Rows put before that was set, and rows that were handed out and came back, are not meant.
    """
    with journal.engine.lock:
        for row in journal.engine.state.rows.values():
            lane = row.queue
            wait = lane.settings.max_wait
            if not wait or row.attempts or row.workq or row.inserted < lane.settings_at:
                continue
            if row.state is State.WAITING and row.due > row.inserted + wait:
                raise PromiseBroken(f"key {row.key!r} in queue {lane.name!r} waits too long")


def check_stale_token(journal: Journal, job_id: bytes, token: int) -> None:
    """Whatever is tried with this token of a lease that is over, nothing changes."""
    before = journal.digest()
    attempts: tuple[Callable[[], object], ...] = (
        lambda: journal.touch(job_id, token),
        lambda: journal.complete(job_id, token),
        lambda: journal.complete(job_id, token, b"stale"),
        lambda: journal.fail(job_id, token),
        lambda: journal.release(job_id, token),
    )
    for attempt in attempts:
        try:
            attempt()
        except (LeaseLost, NotFound):
            continue
        raise PromiseBroken(f"stale token {token} of job {job_id.hex()} was accepted")
    if journal.digest() != before:
        raise PromiseBroken(f"stale token {token} of job {job_id.hex()} changed something")


def check_replay(journal: Journal) -> None:
    """The files, replayed now, give the state."""
    with journal.engine.lock:
        live = journal.digest()
        again = replay(journal.engine.log.stream).state.digest()
    if live != again:
        raise PromiseBroken(f"the state is {live}, its log replays to {again}")
