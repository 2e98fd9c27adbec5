"""All decisions about key/value entries, in one object.

Rules: those of `entry_ground`, `entry_writes`, `entry_changes`, `entry_reads` and `entry_locks`.
"""

from __future__ import annotations

from fastjournal.journal.entries.changes import EntryChanges
from fastjournal.journal.entries.ground import keys_of
from fastjournal.journal.entries.locks import Lock, Writer
from fastjournal.journal.entries.reads import EntryReads

__all__ = ["Entries"]


class Entries(EntryChanges, EntryReads):
    """Decides; `state.apply` does. Locks alone are kept here."""

    def lock(self, key: bytes, owner: bytes, now: int, until: int = 0) -> Lock:
        """Lock a key for an owner; there need not be an entry yet."""
        self.check_key(key)
        now = self._clock(now)
        return self.locks.lock(self._names(key, now), owner, now, until)

    def unlock(self, key: bytes, by: Writer, now: int) -> bool:
        """Free a lock; False if there is none any more."""
        self.check_key(key)
        now = self._clock(now)
        return self.locks.unlock(self._names(key, now), by, now)

    def _names(self, key: bytes, now: int) -> tuple[bytes, ...]:
        row = self.live(key, now)
        return (key,) if row is None else keys_of(row)
