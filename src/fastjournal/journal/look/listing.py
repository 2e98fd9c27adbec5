"""Listing jobs a page at a time, without ever looking at all of them at once.

Rules:

1. Jobs are told in order of arrival. A page ends when it is full, when its values have reached so
   many bytes, or when so many rows have been looked at; so a page may be empty and not the last.
2. A cursor tells all that is needed to go on, so nobody has to remember it: a job is told once, and
   one that stood throughout is never missed, over restarts too. A damaged cursor is refused.
3. The order is made when somebody lists for the first time and then follows what came since. Rows
   that went stay in it until they are the larger part.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from operator import le
from typing import Any, NamedTuple, Protocol

import google_crc32c

from fastjournal.clock import Clock
from fastjournal.errors import BadCursor
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row, job_of
from fastjournal.model import Job, State

__all__ = ["MAX_LOOK", "Arrivals", "JobPage", "Lister", "Listing", "Readable"]

MAX_LOOK = 5000
"""Rows looked at for one page."""
_SLACK = 1000
_CRC = 4  # bytes
_FRAME = 500  # bytes of a job in an answer besides its texts


class Readable(Protocol):
    """What can be looked at: the engine of an open journal, or what a view has replayed."""

    @property
    def lock(self) -> Any:
        """To be held while looking."""

    @property
    def state(self) -> JournalState:
        """The rows."""

    @property
    def last_time(self) -> int:
        """TIME of the newest record that was written here; 0: none was."""

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes."""

    def value(self, row: Row) -> bytes:
        """A row's value, which is not kept if it was not there."""

    def settle_reading(self, time: int) -> None:
        """Wait until what was shown as of that TIME is safe."""


class Listing(NamedTuple):
    """What to list, and behind which job."""

    queue: bytes = b""
    """Empty: of all queues."""
    state: State | None = None
    prefix: bytes = b""
    """How their keys begin."""
    values: bool = True
    """With values and results."""
    offset: int = 0
    """Jobs still to be passed over."""
    inserted: int = 0
    last: bytes = b""
    """Arrival and id of the row that was looked at last."""

    def wants(self, row: Row, now: int) -> bool:
        """Whether a row is one of them."""
        lane = row.queue.name
        return (
            bool(lane)
            and (not self.queue or lane == self.queue)
            and row.state is not State.DELETED
            and (self.state is None or row.state is self.state)
            and not 0 < row.expires < now
            and (not self.prefix or row.key.startswith(self.prefix))
        )

    def cursor(self) -> bytes:
        """Where it goes on, as a string for others to keep."""
        body = json.dumps(
            [
                self.queue.hex(), -1 if self.state is None else int(self.state), self.prefix.hex(),
                int(self.values), self.offset, self.inserted, self.last.hex(),
            ],
            separators=(",", ":"),
        ).encode()  # fmt: skip
        return body + _crc(body)

    @classmethod
    def resume(cls, cursor: bytes) -> Listing:
        """The rest of a listing."""
        body, crc = cursor[:-_CRC], cursor[-_CRC:]
        if _crc(body) != crc:
            raise BadCursor
        try:
            queue, state, prefix, values, offset, inserted, last = json.loads(body)
            return cls(
                bytes.fromhex(queue), None if state < 0 else State(state), bytes.fromhex(prefix),
                bool(values), int(offset), int(inserted), bytes.fromhex(last),
            )  # fmt: skip
        except (TypeError, ValueError):
            raise BadCursor from None


def _crc(body: bytes) -> bytes:
    return int(google_crc32c.value(body)).to_bytes(_CRC, "big")


class JobPage(NamedTuple):
    """Some jobs, and how to go on behind them."""

    jobs: list[Job]
    sizes: list[int]
    """Bytes of their values, also where these are not told."""
    more: Listing | None
    """None: there are no others."""


class Arrivals:
    """The rows of a state in order of arrival; to be used under the journal's lock."""

    def __init__(self, state: JournalState) -> None:
        self.state = state
        self._times: list[int] = []
        self._ids: list[bytes] = []
        self._newest = -1
        self._restamped = 0

    def __len__(self) -> int:
        return len(self._ids)

    def behind(self, inserted: int, last: bytes) -> Iterator[tuple[int, bytes, Row | None]]:
        """What arrived after this row, from the oldest on: when, its id, and the row or None."""
        times, ids = self._times, self._ids
        at = bisect_left(times, inserted)
        if last:
            end = at
            while end < len(ids) and times[end] == inserted:
                end += 1
                if ids[end - 1] == last:
                    at = end
                    break
        rows = self.state.rows
        for number in range(at, len(ids)):
            time, row_id = times[number], ids[number]
            row = rows.get(row_id)
            yield time, row_id, row if row is not None and row.inserted == time else None

    def ids_before(self, end: int, count: int) -> list[bytes]:
        """Ids of the rows before this place, the newest first; some may be gone."""
        return self._ids[max(0, end - count) : end][::-1]

    def refresh(self) -> None:
        """Take in what came since; the first time that is everything."""
        state = self.state
        rows, newest = state.rows, self._newest
        gone = len(self._ids) > _SLACK + 2 * len(rows)
        if newest < 0 or gone or self._restamped != state.restamped:
            self._begin()
            return
        came: list[tuple[int, bytes]] = []
        for row in rows.newest():
            if row.state is State.DELETED:  # a tombstone may have its sender's time
                continue
            if row.inserted <= newest:
                break
            came.append((row.inserted, row.id))
        came.sort()
        self._times += [inserted for inserted, _ in came]
        self._ids += [row_id for _, row_id in came]
        self._newest = state.last_inserted

    def _begin(self) -> None:
        state = self.state
        times = [row.inserted for row in state.rows.values()]
        ids = list(state.rows)
        if not all(map(le, times, islice(times, 1, None))):  # they nearly always are in order
            alive = [
                (row.inserted, row.id)
                for row in state.rows.values()
                if row.state is not State.DELETED
            ]
            alive.sort()
            times, ids = [time for time, _ in alive], [row_id for _, row_id in alive]
        self._times, self._ids = times, ids
        self._newest, self._restamped = state.last_inserted, state.restamped


class Lister:
    """Gives pages of the jobs of one journal."""

    def __init__(self, source: Readable, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._arrivals = Arrivals(source.state)

    def page(self, asked: Listing, limit: int, size: int = 1 << 30) -> JobPage:
        """Some of the jobs that were asked for: up to `limit`, and up to about `size` bytes."""
        jobs: list[Job] = []
        sizes: list[int] = []
        looked = 0
        inserted, last, offset = asked.inserted, asked.last, asked.offset
        with self._source.lock:
            now = self._source.state.promote(self._clock.now())
            for time, row_id, row in self.arrivals().behind(inserted, last):
                if len(jobs) >= limit or size <= 0 or looked >= MAX_LOOK:
                    more = asked._replace(offset=offset, inserted=inserted, last=last)
                    return JobPage(jobs, sizes, more)
                looked += 1
                inserted, last = time, row_id
                if row is None or not asked.wants(row, now):
                    continue
                if offset:
                    offset -= 1
                    continue
                if asked.values:
                    self._source.load(row)
                job = job_of(row, values=asked.values)
                size -= (
                    len(job.payload) + len(job.result) + len(job.note) + len(job.key_bytes) + _FRAME
                )
                jobs.append(job)
                sizes.append(row.size)
        return JobPage(jobs, sizes, None)

    def arrivals(self) -> Arrivals:
        """All rows in order of arrival; to be called and used under the lock."""
        self._arrivals.refresh()
        return self._arrivals
