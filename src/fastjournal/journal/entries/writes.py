"""Decisions that make, replace, delete and rename entries.

Rules: those of `entry_ground`, and

1. A write replaces the value; a lease on the entry goes on, its keys stay (transition 4).
2. Without `exact` the later expiry stays, "never" being the latest of all.
3. Deleting by any key deletes the entry under all of them. A tombstone is left for `gc_grace`, also
   for an unknown key: an older write may be on its way (D-20). A purge leaves nothing. Where it is
   to persist the tombstone is logged, even that of an entry which was not.
4. A renamed key leaves a tombstone at its old place.
"""

from __future__ import annotations

from fastjournal.errors import AlreadyExists, BadRequest, OutOfRange
from fastjournal.journal.entries.ground import NOTHING, Decided, EntryGround, Plan, is_kept, keys_of
from fastjournal.journal.entries.locks import NOBODY, Writer
from fastjournal.journal.language.commands import (
    PERSIST,
    Command,
    Expire,
    Keys,
    Lease,
    Purge,
    Put,
    Tomb,
    policy_of,
)
from fastjournal.journal.state.row import Row, numbered_values
from fastjournal.model import State

__all__ = ["EntryWrites"]

_STALE = NOTHING._replace(stale=True)
_KEPT = policy_of(PERSIST, 0, 0, 0, 0, 0)
MAX_ALIASES = 255


class EntryWrites(EntryGround):
    """set, delete, rename, alias."""

    def set(
        self,
        key: bytes,
        kind: int,
        data: bytes,
        now: int,
        *,
        timestamp: int = 0,
        expires: int = 0,
        ttl: int = 0,
        exact: bool = True,
        overwrite: bool = True,
        persist: bool = True,
        by: Writer = NOBODY,
    ) -> Decided:
        """Store a value under a key; without `overwrite` only where there is none."""
        self.check_key(key)
        self.check_value(kind, data)
        self.check_instant(expires, "expires")
        self.check_instant(ttl, "ttl")
        now = self._clock(now)
        row = self.slot(key)
        if not (timestamp or expires or ttl) and overwrite and persist:
            plain = self._plain_set(row, key, kind, data, now, by)
            if plain is not None:
                return plain
        live = row is not None and self.is_live(row, now)
        self.may_change(row if live else None, key, now, by)
        inserted = self._draw_stamp(now)
        modified = self.when(timestamp, now, inserted, row)
        if 0 < expires < now:
            raise OutOfRange("the entry has expired already")
        if row is not None and (live or row.state is State.DELETED):
            if live and not overwrite and not (timestamp and timestamp == row.modified):
                raise AlreadyExists(f"there is an entry {key!r}")
            if modified <= row.modified:
                return _STALE
        if row is not None and live and not exact and expires:
            expires = max(expires, row.expires) if row.expires else 0
        plan = Plan()
        put = self.new_put(b"", key, kind, data, inserted, modified, expires, ttl, persist)
        self._store(plan, row, live, put, persist)
        return plan.decided(int(live), kind, data)

    def _plain_set(
        self, row: Row | None, key: bytes, kind: int, data: bytes, now: int, by: Writer
    ) -> Decided | None:
        """The commonest write, decided without a plan: a new entry, or one like it replaced."""
        if row is None:
            self.may_change(None, key, now, by)
            stamp = modified = inserted = self._draw_stamp(now)
            row_id, attempts = self._ids(), 0
        elif row.state is State.WAITING and not row.expires and not row.more and is_kept(row):
            self.may_change(row, key, now, by)
            stamp, inserted = self._draw_stamp(now), row.inserted
            modified = stamp if stamp > row.modified else row.modified + 1
            row_id, key, attempts = row.id, row.key, row.attempts
        else:
            return None
        put = Put(row_id, b"", key, 0, inserted, inserted, modified, 0, kind, data, _KEPT, attempts)
        return tuple.__new__(Decided, (put, None, False, int(row is not None), kind, data))

    def _store(self, plan: Plan, row: Row | None, live: bool, put: Put, persist: bool) -> bytes:
        """Put a value where its key's row stands, or beside it; returns the row's id."""
        if row is None:
            put.id = self._ids()
        elif live:
            return self._replace(plan, row, put, persist)
        elif row.state is not State.DELETED:
            plan.add(Expire(row.id), is_kept(row))
            put.id = self._ids()
        elif row.rare.aliases or (is_kept(row) and not persist):
            self.vacate(plan, row, put.key)
            put.id = self._ids()
        else:
            put.id, put.attempts = row.id, row.attempts
        plan.add(put, persist)
        return put.id

    def _replace(self, plan: Plan, row: Row, put: Put, persist: bool) -> bytes:
        row_id = row.id
        if is_kept(row) and not persist:
            plan.add(Purge(row.id, b"", row.key, row.modified), persist=True)
            row_id = self._ids()
        put.id = row_id
        put.key = row.key
        put.due = put.inserted = row.inserted
        put.attempts = row.attempts
        put.aliases = row.rare.aliases
        plan.add(put, persist)
        for value in numbered_values(row.rare.operations, put) if row.rare.operations else ():
            plan.add(value, persist)
        if row.state is State.PROCESSING:
            more = row.rare
            lease = Lease(row_id, more.start, row.lease_until, row.attempts, more.worker)
            plan.add(lease, persist)
        return row_id

    def delete(
        self,
        key: bytes,
        now: int,
        *,
        timestamp: int = 0,
        purge: bool = False,
        persist: bool | None = None,
        by: Writer = NOBODY,
    ) -> Decided:
        """Delete an entry under all its keys; `found` says whether there was one.

        `persist`: whether the tombstone must last; None: if the entry did, or is not known.
        """
        self.check_key(key)
        now = self._clock(now)
        row = self.slot(key)
        live = row is not None and self.is_live(row, now)
        self.may_change(row if live else None, key, now, by)
        modified = self.when(timestamp, now, self._draw_stamp(now), row)
        plan = Plan()
        if row is None:
            if not purge:
                self.new_tomb(plan, key, modified, now, persist is not False)
            return plan.decided()
        if modified <= row.modified:
            return _STALE
        end = Purge if purge else Tomb
        if persist and not purge and not is_kept(row):  # a tombstone that outlives the entry
            for name in keys_of(row):
                self.new_tomb(plan, name, modified, now, persist=True)
            end = Purge
        plan.add(end(row.id, b"", row.key, modified), is_kept(row))
        return plan.decided(int(live))

    def rename(
        self,
        key: bytes,
        new: bytes,
        now: int,
        *,
        timestamp: int = 0,
        overwrite: bool = False,
        by: Writer = NOBODY,
    ) -> Decided:
        """Give an entry another key instead of this one."""
        self.check_key(key)
        self.check_key(new)
        now = self._clock(now)
        row = self.needed(key, now)
        self.may_change(row, key, now, by)
        target = self.slot(new)
        modified = self.when(timestamp, now, self._draw_stamp(now), row, target)
        if modified <= row.modified:
            return _STALE
        if key == new:
            return NOTHING._replace(found=1)
        plan = Plan()
        if target is not row and not self._free(plan, target, new, modified, now, overwrite):
            return _STALE
        names = list(keys_of(row))
        names[names.index(key)] = new
        first, *others = dict.fromkeys(names)
        self._name(plan, row, Keys(row.id, first, tuple(others), modified), now)
        self.new_tomb(plan, key, modified, now, is_kept(row))
        return plan.decided(1)

    def alias(
        self,
        key: bytes,
        further: bytes,
        now: int,
        *,
        timestamp: int = 0,
        by: Writer = NOBODY,
    ) -> Decided:
        """Give an entry one more key."""
        self.check_key(key)
        self.check_key(further)
        now = self._clock(now)
        row = self.needed(key, now)
        self.may_change(row, key, now, by)
        target = self.slot(further)
        modified = self.when(timestamp, now, self._draw_stamp(now), row, target)
        if target is row:
            return NOTHING._replace(found=1)
        if modified <= row.modified:
            return _STALE
        if len(row.rare.aliases) >= MAX_ALIASES:
            raise BadRequest(f"an entry has at most {MAX_ALIASES} further keys")
        plan = Plan()
        if not self._free(plan, target, further, modified, now, overwrite=False):
            return _STALE
        keys = Keys(row.id, row.key, (*row.rare.aliases, further), modified)
        self._name(plan, row, keys, now)
        return plan.decided(1)

    def _name(self, plan: Plan, row: Row, keys: Keys, now: int) -> None:
        plan.add(self.restated(row, keys, now), is_kept(row))

    def _free(
        self, plan: Plan, row: Row | None, key: bytes, modified: int, now: int, overwrite: bool
    ) -> bool:
        """Make a key free for another entry; False if a newer write of it forbids that."""
        if row is None:
            return True
        if self.is_live(row, now):
            self.may_change(row, key, now)
            if not overwrite:
                raise AlreadyExists(f"there is an entry {key!r}")
        elif row.state is not State.DELETED:
            plan.add(Expire(row.id), is_kept(row))
            return True
        if modified <= row.modified:
            return False
        if row.state is State.DELETED:
            self.vacate(plan, row, key)
        else:
            end: Command = Purge(row.id, b"", row.key, modified)
            plan.add(end, is_kept(row))
        return True
