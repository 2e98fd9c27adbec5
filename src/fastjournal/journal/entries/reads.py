"""Decisions about reading: one entry, a range, a pattern; and what reading changes.

Rules: those of `entry_ground`, and

1. Reading one entry with its data touches it: an entry with a touch length lives at least nine
   tenths of it from its last reading on (D-19). A probe, a range, a pattern touch only when told.
2. With `lease` a reader marks what it gets as worked on until an instant; its own mark is renewed,
   that of another is left alone and shown. `skip` leaves out what is being worked on (D-27).
3. A page holds at most so many entries and bytes, and costs at most so many keys besides; the
   rest follows by its cursor, which may come with an empty page.
4. Patterns are those of RE2: no back references, time linear in the key (D-25).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from fastjournal.clock import MILLISECOND
from fastjournal.entry import Entry
from fastjournal.errors import BadPattern, BadRequest, NotFound, OutOfRange
from fastjournal.journal.decide.ground import instant_after
from fastjournal.journal.entries.cursor import PATTERN, Scan
from fastjournal.journal.entries.ground import EntryGround, Plan, is_kept
from fastjournal.journal.language.commands import Command, Lease, Renew, Touch
from fastjournal.journal.state.row import Row
from fastjournal.model import MAX_INSTANT, State

__all__ = ["EntryReads", "Page", "Reading"]

MAX_PATTERN = 1024
PATTERN_PAGE = 1000
MOST = 65_535
PAGE_BYTES = 8 * 1024 * 1024
LOOKED_AT = 10_000  # keys a page may cost besides those it tells


class Reading(NamedTuple):
    """How to read."""

    data: bool = True
    """False: a probe, everything but the value."""
    touch: bool | None = None
    """Move the expiry of entries that have a touch length; None: if one is read with its data."""
    expires: int = 0
    """Let what is read live at least until then."""
    lease: int = 0
    """Mark what is read as worked on until then."""
    worker: bytes = b""
    skip: bool = False
    """Leave out what is being worked on."""


PLAIN = Reading()


class Page(NamedTuple):
    """Some entries and how to go on."""

    rows: list[tuple[bytes, Row]]
    cursor: bytes
    """Empty: this was all."""


class EntryReads(EntryGround):
    """get, page."""

    def get(self, key: bytes, now: int, reading: Reading = PLAIN) -> Row:
        """The row of a key that may be read so; what reading changes: `reading_changes`."""
        self.check_key(key)
        now = self._clock(now)
        row = self.needed(key, now)
        if reading.skip and _busy(row, now):
            raise NotFound(f"{key!r} is being worked on")
        return row

    def picture(self, row: Row, key: bytes, now: int, data: bool) -> Entry:
        """A row as it is shown, after what reading changed."""
        return self.entry(row, key, self._clock(now), data)

    def reading_changes(
        self, row: Row, now: int, reading: Reading, *, single: bool
    ) -> tuple[Command | None, bool]:
        """What reading a row changes in it, and whether that is to be logged."""
        if not (row.policy.ttl or reading.lease or reading.expires):
            return None, False
        now = self._clock(now)
        plan = Plan()
        kept = is_kept(row)
        touch = reading.touch
        if touch is None:
            touch = single and reading.data
        expires = self._touched(row, now, touch, reading.expires)
        if expires > row.expires:
            plan.add(self.restated(row, Touch(row.id, expires), now), kept)
        if reading.lease:
            lease = self._leased(row, now, reading)
            if lease is not None:
                plan.add(lease, kept)
        logged, remembered, *_ = plan.decided()
        return logged or remembered, logged is not None

    def _touched(self, row: Row, now: int, touch: bool, least: int) -> int:
        if not row.expires:
            return 0
        expires = max(row.expires, least)
        ttl = row.policy.ttl * MILLISECOND
        if touch and ttl:
            moved = instant_after(now, ttl)
            if moved - expires >= ttl // 10:
                expires = moved
        return expires

    def _leased(self, row: Row, now: int, reading: Reading) -> Command | None:
        if not now < reading.lease <= MAX_INSTANT:
            raise OutOfRange("a lease ends in the future, and before 2262")
        if not _busy(row, now):
            return Lease(row.id, now, reading.lease, row.attempts + 1, reading.worker)
        mine = row.rare.worker == reading.worker != b""
        return Renew(row.id, reading.lease, row.attempts) if mine else None

    def page(self, scan: Scan, now: int, reading: Reading = PLAIN) -> Page:
        """The entries of a range or pattern, as many as a page holds."""
        now = self._clock(now)
        if not 0 <= scan.limit <= MOST:
            raise BadRequest(f"limit must be 0..{MOST}, not {scan.limit}")
        most = scan.limit or MOST
        matches = None
        if scan.kind == PATTERN:
            matches = compiled(scan.also).search
            most = min(scan.limit or PATTERN_PAGE, PATTERN_PAGE)
        elif scan.also and scan.start > scan.also:
            return Page([], b"")
        upper = b"" if scan.kind == PATTERN else scan.also
        rows: list[tuple[bytes, Row]] = []
        size = looked = 0
        last = scan.start
        for key in self.state.entry_keys.walk(scan.start, after=scan.after):
            if upper and key > upper:
                break
            if len(rows) >= most or size > PAGE_BYTES or looked >= LOOKED_AT:
                return Page(rows, scan.cursor(last))
            last = key
            if matches is not None and matches(key) is None:
                looked += 1
                continue
            row = self.live(key, now)
            if row is None or (reading.skip and _busy(row, now)):
                looked += 1
                continue
            rows.append((key, row))
            size += len(key) + (row.size if reading.data else 0)
        return Page(rows, b"")


def _busy(row: Row, now: int) -> bool:
    return row.state is State.PROCESSING and row.lease_until > now


@lru_cache(maxsize=64)
def compiled(pattern: bytes) -> Any:
    """A pattern over bytes, ready to search."""
    if len(pattern) > MAX_PATTERN:
        raise BadPattern(f"a pattern has at most {MAX_PATTERN} bytes")
    try:
        import re2
    except ImportError:
        raise BadPattern("patterns need: pip install 'fastjournal[daemon]'") from None
    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        what = error.args[0] if error.args else ""
        text = what.decode("utf-8", "replace") if isinstance(what, bytes) else str(what)
        raise BadPattern(f"not a pattern: {text}") from None
