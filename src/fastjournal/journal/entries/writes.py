"""Decisions that make, replace, delete and rename entries.

Rules: those of `ground`, and

1. A write replaces the value; a lease on the entry goes on, its keys stay (transition 4).
2. Without `exact` the later expiry stays, "never" being the latest of all.
3. Deleting by any key deletes the entry under all of them. A tombstone is left for `gc_grace`, also
   for an unknown key: an older write may be on its way (D-20). A purge leaves nothing. Where it is
   to persist the tombstone is logged, even that of an entry which was not.
4. A renamed key leaves a tombstone under the old one.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from fastjournal.errors import AlreadyExists, BadRequest, OutOfRange, quoted
from fastjournal.journal.entries.ground import Decided, EntryGround, Plan, is_kept, is_live, keys_of
from fastjournal.journal.entries.locks import NOBODY, Writer
from fastjournal.journal.language.commands import PERSIST, Expire, Keys, Lease, Purge, Put, Tomb
from fastjournal.journal.state.row import DELETED_ROW, PROCESSING_ROW, Row, numbered_values

__all__ = ["EntryWrites"]

MAX_ALIASES: Final = 255


@final
@mypyc_attr(acyclic=True)
class _Naming:
    """An entry that is to get a key, what stands under that key, and when it is written."""

    def __init__(self, row: Row, target: Row | None, modified: i64) -> None:
        self.row = row
        self.target = target
        self.modified = modified


@final
class EntryWrites:
    """set, delete, rename, alias."""

    def __init__(self, ground: EntryGround) -> None:
        self._ground = ground

    def set(
        self,
        key: bytes,
        kind: int,
        data: bytes,
        now: i64,
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
        ground = self._ground
        ground.check_key(key)
        ground.check_value(kind, data)
        ground.check_instant(expires, "expires")
        ground.check_instant(ttl, "ttl")
        now = ground.base.time(now)
        row = ground.slot(key)
        there = row if row is not None and is_live(row, now) else None
        ground.may_change(there, key, now, by)
        inserted = ground.base.draw_stamp(now)
        modified = ground.when(timestamp, now, inserted, _modified(row))
        until: i64 = expires
        if 0 < until < now:
            raise OutOfRange("the entry has expired already")
        if there is not None:
            if not overwrite and not (timestamp and timestamp == there.modified):
                raise AlreadyExists(f"there is an entry {quoted(key)}")
            if not exact and until:
                until = max(until, there.expires) if there.expires else 0
        expired = row is not None and there is None and row.stage != DELETED_ROW
        if not expired and modified <= _modified(row):
            return Decided(stale=True)
        put = ground.new_put(b"", key, kind, data, inserted, modified, until, ttl, persist)
        plan = Plan()
        self.store(plan, row, put, now)
        return plan.decided(0 if there is None else 1, kind, data)

    def store(self, plan: Plan, row: Row | None, put: Put, now: i64) -> None:
        """Put a value where its key's row stands, or beside it; gives the put its id."""
        ground = self._ground
        persist = put.policy.flags & PERSIST != 0
        if row is not None and is_live(row, now):
            self._replace(plan, row, put, persist)
            return
        if row is None:
            put.id = ground.base.new_id()
        elif row.stage != DELETED_ROW:
            plan.add(Expire(row.id), is_kept(row))
            put.id = ground.base.new_id()
        elif row.rare.aliases or (is_kept(row) and not persist):
            ground.vacate(plan, row, put.key)
            put.id = ground.base.new_id()
        else:
            put.id = row.id
            put.attempts = row.attempts
        plan.add(put, persist)

    def _replace(self, plan: Plan, row: Row, put: Put, persist: bool) -> None:
        if is_kept(row) and not persist:
            plan.add(Purge(row.id, b"", row.key, row.modified), persist=True)
            put.id = self._ground.base.new_id()
        else:
            put.id = row.id
        put.key = row.key
        put.due = put.inserted = row.inserted
        put.attempts = row.attempts
        plan.add(put, persist)
        more = row.more
        if more is None:
            return
        put.aliases = more.aliases
        if more.operations is not None:
            for value in numbered_values(more.operations, put):
                plan.add(value, persist)
        if row.stage == PROCESSING_ROW:
            lease = Lease(put.id, more.start, row.when, row.attempts, more.worker)
            plan.add(lease, persist)

    def delete(
        self,
        key: bytes,
        now: i64,
        *,
        timestamp: int = 0,
        purge: bool = False,
        persist: bool | None = None,
        by: Writer = NOBODY,
    ) -> Decided:
        """Delete an entry under all its keys; `found` says whether there was one.

        `persist`: whether the tombstone must last; None: if the entry did, or is not known.
        """
        ground = self._ground
        ground.check_key(key)
        now = ground.base.time(now)
        row = ground.slot(key)
        there = row if row is not None and is_live(row, now) else None
        ground.may_change(there, key, now, by)
        modified = ground.when(timestamp, now, ground.base.draw_stamp(now), _modified(row))
        plan = Plan()
        if row is None:
            if not purge:
                ground.new_tomb(plan, key, modified, now, persist is not False)
            return plan.decided()
        if modified <= row.modified:
            return Decided(stale=True)
        if persist and not purge and not is_kept(row):  # a tombstone that outlives the entry
            for name in keys_of(row):
                ground.new_tomb(plan, name, modified, now, persist=True)
            purge = True
        if purge:
            plan.add(Purge(row.id, b"", row.key, modified), is_kept(row))
        else:
            plan.add(Tomb(row.id, b"", row.key, modified), is_kept(row))
        return plan.decided(0 if there is None else 1)

    def rename(
        self,
        key: bytes,
        new: bytes,
        now: i64,
        *,
        timestamp: int = 0,
        overwrite: bool = False,
        by: Writer = NOBODY,
    ) -> Decided:
        """Give an entry another key instead of this one."""
        ground = self._ground
        now = ground.base.time(now)
        naming = self._naming(key, new, now, timestamp, by)
        row, target, modified = naming.row, naming.target, naming.modified
        if modified <= row.modified:
            return Decided(stale=True)
        if key == new:
            return Decided(found=1)
        plan = Plan()
        if target is not row and not self._free(plan, target, new, modified, now, overwrite):
            return Decided(stale=True)
        names = [new if name == key else name for name in keys_of(row)]
        first, *others = dict.fromkeys(names)
        keys = Keys(row.id, first, tuple(others), modified)
        plan.add(ground.restated(row, keys, now), is_kept(row))
        ground.new_tomb(plan, key, modified, now, is_kept(row))
        return plan.decided(1)

    def alias(
        self,
        key: bytes,
        further: bytes,
        now: i64,
        *,
        timestamp: int = 0,
        by: Writer = NOBODY,
    ) -> Decided:
        """Give an entry one more key."""
        ground = self._ground
        now = ground.base.time(now)
        naming = self._naming(key, further, now, timestamp, by)
        row, target, modified = naming.row, naming.target, naming.modified
        if target is row:
            return Decided(found=1)
        if modified <= row.modified:
            return Decided(stale=True)
        aliases = row.rare.aliases
        if len(aliases) >= MAX_ALIASES:
            raise BadRequest(f"an entry has at most {MAX_ALIASES} further keys")
        plan = Plan()
        if not self._free(plan, target, further, modified, now, overwrite=False):
            return Decided(stale=True)
        keys = Keys(row.id, row.key, (*aliases, further), modified)
        plan.add(ground.restated(row, keys, now), is_kept(row))
        return plan.decided(1)

    def _naming(self, key: bytes, new: bytes, now: i64, timestamp: int, by: Writer) -> _Naming:
        """An entry that is there and may be changed is to get a new key."""
        ground = self._ground
        ground.check_key(key)
        ground.check_key(new)
        row = ground.needed(key, now)
        ground.may_change(row, key, now, by)
        target = ground.slot(new)
        newest = max(row.modified, _modified(target))
        stamp = ground.base.draw_stamp(now)
        return _Naming(row, target, ground.when(timestamp, now, stamp, newest))

    def _free(
        self, plan: Plan, row: Row | None, key: bytes, modified: i64, now: i64, overwrite: bool
    ) -> bool:
        """Make a key free for another entry; False if a newer write of it forbids that."""
        if row is None:
            return True
        if is_live(row, now):
            self._ground.may_change(row, key, now, NOBODY)
            if not overwrite:
                raise AlreadyExists(f"there is an entry {quoted(key)}")
        elif row.stage != DELETED_ROW:
            plan.add(Expire(row.id), is_kept(row))
            return True
        if modified <= row.modified:
            return False
        if row.stage == DELETED_ROW:
            self._ground.vacate(plan, row, key)
        else:
            plan.add(Purge(row.id, b"", row.key, modified), is_kept(row))
        return True


def _modified(row: Row | None) -> i64:
    """When a row was written last; 0: there is none."""
    return 0 if row is None else row.modified
