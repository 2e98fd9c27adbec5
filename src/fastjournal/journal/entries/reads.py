"""Decisions about reading: one entry, a range, a pattern; and what reading changes.

Rules: those of `ground`, and

1. Reading one entry with its data touches it: an entry with a touch length lives at least nine
   tenths of it from its last reading on (D-19). A probe, a range, a pattern touch only when told.
2. With `lease` a reader leases what it gets until an instant; its own lease is renewed, that of
   another is left alone and shown. `skip` leaves out what is being worked on (D-27).
3. A page holds at most so many entries and bytes, and costs at most so many keys besides; the
   rest follows by its cursor, which may come with an empty page.
"""

from typing import Any, Final, final

from mypy_extensions import i64, mypyc_attr

from fastjournal.errors import BadRequest, NotFound, OutOfRange, quoted
from fastjournal.journal.decide.ground import instant_after
from fastjournal.journal.entries.ground import (
    Decided,
    EntryGround,
    Plan,
    is_busy,
    is_kept,
    is_live,
    touch_length,
)
from fastjournal.journal.entries.key_query import PATTERN, KeyQuery, compiled_pattern
from fastjournal.journal.language.commands import Command, Lease, Renew, Touch
from fastjournal.journal.state.row import Row

__all__ = ["EntryReads", "Page", "Reading"]

PATTERN_PAGE: Final = 1000
MOST: Final = 65_535
PAGE_BYTES: Final = 8 * 1024 * 1024
LOOKED_AT: Final = 10_000  # keys a page may cost besides those it tells
_LAST_INSTANT: Final = 9_223_372_036_854_775_807


@final
@mypyc_attr(acyclic=True)
class Reading:
    """How to read."""

    def __init__(
        self,
        data: bool = True,
        touch: bool | None = None,
        expires: int = 0,
        lease: int = 0,
        worker: bytes = b"",
        skip: bool = False,
    ) -> None:
        self.data = data
        """False: a probe, everything but the value."""
        self.touch = touch
        """Move the expiry of entries that have a touch length; None: if one is read with its
        data."""
        self.expires = expires
        """Let what is read live at least until then."""
        self.lease = lease
        """Mark what is read as worked on until then."""
        self.worker = worker
        self.skip = skip
        """Leave out what is being worked on."""


@final
class Page:
    """Some entries and how to go on."""

    def __init__(self, rows: list[tuple[bytes, Row]], cursor: bytes = b"") -> None:
        self.rows = rows
        """Each with the key it was found by."""
        self.cursor = cursor
        """Empty: this was all."""


@final
class EntryReads:
    """get, page."""

    def __init__(self, ground: EntryGround) -> None:
        self._ground = ground

    def get(self, key: bytes, now: i64, reading: Reading) -> Row:
        """The row of a key that may be read so; what reading changes: `reading_changes`."""
        ground = self._ground
        ground.check_key(key)
        now = ground.base.time(now)
        row = ground.needed(key, now)
        if reading.skip and is_busy(row, now):
            raise NotFound(f"{quoted(key)} is being worked on")
        return row

    def reading_changes(
        self, row: Row, now: i64, reading: Reading, *, single: bool
    ) -> Decided | None:
        """What reading a row changes in it."""
        if not (row.policy.ttl or reading.lease or reading.expires):
            return None
        ground = self._ground
        now = ground.base.time(now)
        plan = Plan()
        kept = is_kept(row)
        touch = reading.touch
        if touch is None:
            touch = single and reading.data
        expires = _touched(row, now, touch, reading.expires)
        if expires > row.expires:
            plan.add(ground.restated(row, Touch(row.id, expires), now), kept)
        if reading.lease:
            lease = _leased(row, now, reading)
            if lease is not None:
                plan.add(lease, kept)
        return plan.decided()

    def page(self, query: KeyQuery, now: i64, reading: Reading) -> Page:
        """The entries of a range or pattern, as many as a page holds."""
        ground = self._ground
        now = ground.base.time(now)
        if not 0 <= query.limit <= MOST:
            raise BadRequest(f"limit must be 0..{MOST}, not {query.limit}")
        most = query.limit or MOST
        upper = query.also
        matches: Any = None
        if query.kind == PATTERN:
            matches = compiled_pattern(query.also).search
            most = min(query.limit or PATTERN_PAGE, PATTERN_PAGE)
            upper = b""
        rows: list[tuple[bytes, Row]] = []
        if upper and query.start > upper:
            return Page(rows)
        size: i64 = 0
        looked: i64 = 0
        last = query.start
        walk = ground.state.entry_keys.walk(last, after=query.after)
        cursor = b""
        while True:
            row = walk.step()
            if row is None:
                break
            key = walk.key
            if upper and key > upper:
                break
            if len(rows) >= most or size > PAGE_BYTES or looked >= LOOKED_AT:
                cursor = query.cursor(last)
                break
            last = key
            if (
                (matches is not None and matches(key) is None)
                or not is_live(row, now)
                or (reading.skip and is_busy(row, now))
            ):
                looked += 1
                continue
            rows.append((key, row))
            size += len(key)
            if reading.data:
                size += i64(row.size)
        walk.end()
        return Page(rows, cursor)


def _touched(row: Row, now: i64, touch: bool, least: int) -> i64:
    """Until when a row lives that is read now."""
    if not row.expires:
        return 0
    expires: i64 = min(least, _LAST_INSTANT)
    expires = max(row.expires, expires)
    ttl = touch_length(row)
    if touch and ttl:
        moved = instant_after(now, ttl)
        if moved - expires >= ttl // 10:
            expires = moved
    return expires


def _leased(row: Row, now: i64, reading: Reading) -> Command | None:
    if reading.lease > _LAST_INSTANT or reading.lease <= now:
        raise OutOfRange("a lease ends in the future, and before 2262")
    if not is_busy(row, now):
        return Lease(row.id, now, reading.lease, row.attempts + 1, reading.worker)
    if reading.worker and row.rare.worker == reading.worker:
        return Renew(row.id, reading.lease, row.attempts)
    return None
