"""Many plain jobs put or completed in one go: no key, no limits of their own, queues as made.

Nearly all bulk work is of this kind. What `Puts.put`, `image.put_put` and `Changes._put`, and what
`Leasing.complete` and `Changes._remove` do for one job after another is done here for all of them,
in one loop each: half the time.

Rules:

1. The effect is that of the ordinary way, record by record; a test compares them and replays both.
   Whatever is not plain goes the ordinary way: nothing has been done then.
2. Plain jobs do not touch each other: all are decided, then all are encoded, then all are applied,
   still under the lock, inside a batch that logs them before anybody hears of them.
3. Arrival numbers and TIMEs both grow by one from job to job, and no arrival number lies behind its
   TIME: every row is ready at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from fastjournal.journal.image import plain_head, plain_image
from fastjournal.journal.kinds import DEFAULT_POLICY, End
from fastjournal.journal.lanes import SLACK
from fastjournal.journal.rows import IDLE, LEASED, READY, Row
from fastjournal.journal.state import JournalState
from fastjournal.journal.varint import T, blob
from fastjournal.model import DEFAULT_SETTINGS, Mode, NewJob, Outcome, Receipt, State

if TYPE_CHECKING:
    from fastjournal.journal.engine import Engine

__all__ = ["complete_plain", "plain_jobs", "put_plain"]

_new = tuple.__new__
_NEW, _WAITING, _PLAIN = Outcome.NEW, State.WAITING, Mode.PLAIN
_PROCESSING, _DONE = State.PROCESSING, int(End.DONE)
_REST = NewJob(b"")[5:14]
_PURGE, _instant = b"\x26", T.pack
_key_of, _id_of, _queue_of = itemgetter(2), itemgetter(14), itemgetter(0)


def plain_jobs(jobs: Sequence[NewJob], draw: Callable[[], bytes]) -> list[NewJob] | None:
    """Checked jobs, each with an id, if all of them are plain; None: they are not."""
    found = []
    for job in jobs:
        if job[3] is not _PLAIN or type(job[4]) is not int or job[5:14] != _REST:
            return None
        found.append(job if job[14] else _new(NewJob, (*job[:14], draw())))
    return found


def put_plain(engine: Engine, jobs: Sequence[NewJob], now: int) -> list[Receipt] | None:
    """Take in what `plain_jobs` or `decode_plain_jobs` gave; None: it takes a closer look."""
    batch, state = engine.batching, engine.state
    if batch is None or type(state) is not JournalState or engine.subscriptions:
        return None
    ids = list(map(_id_of, jobs))
    if any(map(_key_of, jobs)) or len(set(ids)) != len(ids):
        return None
    if not state.rows.keys().isdisjoint(ids):
        return None  # sent before
    if state.senders and any(job_id[6] & 0xF0 == 0x80 for job_id in ids):
        return None  # an id of a sender may tell how far it came
    heads: dict[bytes, bytes] = {}
    for queue in set(map(_queue_of, jobs)):
        lane = state.lanes.get(queue)
        if lane is not None and lane.settings is not DEFAULT_SETTINGS:
            return None
        heads[queue] = plain_head(queue)
    first = engine.jobs.next_stamp(now)
    stamps = range(first, first + len(jobs))
    payloads = [
        plain_image(job[14], heads[job[0]], job[4], stamp, job[1])
        for job, stamp in zip(jobs, stamps, strict=True)
    ]
    time = batch.extend(payloads, not_before=first)
    if not time:
        return None
    engine.jobs.drew(stamps[-1])
    _apply(state, jobs, first, time)
    batch.applied()
    return [_new(Receipt, (job_id, _NEW)) for job_id in ids]


def complete_plain(engine: Engine, ends: Sequence[tuple[bytes, int]]) -> bool:
    """Complete jobs (id, token) without a result; False: nothing was done, take a closer look."""
    batch, state = engine.batching, engine.state
    if batch is None or type(state) is not JournalState:
        return False
    if engine.subscriptions or engine.wakeups.callers:
        return False  # somebody wants to hear of them one by one
    rows = state.rows
    found: dict[bytes, Row] = {}
    heads: dict[bytes, bytes] = {}
    payloads = []
    for job_id, token in ends:
        row = rows.get(job_id)
        if (
            row is None
            or row.state is not _PROCESSING
            or row.attempts != token
            or row.key
            or row.expires
            or row.more is not None
            or row.policy is not DEFAULT_POLICY
            or row.lane.settings is not DEFAULT_SETTINGS
        ):
            return False
        found[job_id] = row
        queue = row.lane.name
        head = heads.get(queue)
        if head is None:
            head = heads[queue] = blob(queue) + b"\0"
        payloads.append(b"".join((_PURGE, job_id, head, _instant(row.modified))))
    time = batch.extend(payloads, not_before=0) if len(found) == len(payloads) else 0
    if not time:
        return False
    last = time + len(payloads) - 1
    if last > state.now:
        state.now = last
    for job_id, row in found.items():
        del rows[job_id]
        state.endings.went(job_id, row.attempts, _DONE)
        lane = row.lane
        lane.counts[LEASED] -= 1
        row.place = IDLE
        row.lease_until = 0
        row.holder = None
        state.leave(lane)
    state.ended += len(found)
    state.applied = last
    batch.applied()
    return True


def _apply(state: JournalState, jobs: Sequence[NewJob], stamp: int, time: int) -> None:
    """What `Changes._put` does with the images of these jobs."""
    rows, lanes, selection = state.rows, state.lanes, state.selection
    last = time + len(jobs) - 1
    if last > state.now:
        state.now = last
    queue = b""
    lane = counts = ready = None
    touched = set()
    for job in jobs:
        if lane is None or job[0] != queue:
            queue = job[0]
            lane = lanes.get(queue) or state.lane(queue)
            counts, ready = lane.counts, lane.ready
            touched.add(lane)
        assert counts is not None
        assert ready is not None
        row = Row()
        row_id = row.id = job[14]
        row.lane = lane
        row.key = b""
        rank = row.rank = job[4]
        row.due = row.inserted = row.modified = stamp
        row.expires = row.attempts = row.lease_until = 0
        row.kind = 1
        row.value = job[1]
        row.policy = DEFAULT_POLICY
        row.state = _WAITING
        row.place = READY
        row.at = time
        row.holder = row.more = None
        rows[row_id] = row
        lane.total += 1
        counts[READY] += 1
        ready.push((rank, stamp, stamp, row_id))
        if lane.listed != 1 or selection.heads:
            selection.pushed(lane, row)
        stamp += 1
        time += 1
    for lane in touched:
        if len(lane.ready) > 2 * lane.counts[READY] + SLACK:
            lane.rebuild()
        state.woken.add(lane.name)
    state.applied = last
    if stamp - 1 > state.last_inserted:
        state.last_inserted = stamp - 1
