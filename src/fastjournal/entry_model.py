"""Key/value entries as people see them: one at a moment, a page, a change, what is watched."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from fastjournal.arguments import Text, as_datetime, key_bytes
from fastjournal.entry_value import VOID, EntryValue, from_value
from fastjournal.errors import BadRequest

__all__ = ["Entry", "EntryChange", "EntryPage", "Watched", "watched"]


class Entry(NamedTuple):
    """A key/value entry at one moment. Times in ns since 1970, 0: not set."""

    key: bytes
    """The key it was asked for by."""
    kind: int
    data: bytes
    """Its value as bytes; empty if only a probe was asked for."""
    created: int
    modified: int
    """Time of the newest write, by its sender's clock."""
    expires: int
    ttl: int
    """Reading it moves `expires` at least so far ahead, ns."""
    persist: bool
    """On disk; else lost when the journal is closed."""
    lease_until: int = 0
    """Worked on by somebody until then."""
    worker: bytes = b""
    token: int = 0
    """How often it was handed out."""
    locked: bool = False
    keys: tuple[bytes, ...] = ()
    """All its keys, the first one first."""
    accessed: int = 0
    """When it was read last, before this; 0: not since the journal was opened, or long ago."""

    @property
    def value(self) -> EntryValue:
        """The value as Python's own type."""
        return from_value(self.kind, self.data)

    @property
    def expires_at(self) -> datetime | None:
        """When it will be gone; None: never."""
        return as_datetime(self.expires)


class EntryPage(NamedTuple):
    """Some entries, and the cursor to the others."""

    entries: list[Entry]
    cursor: bytes
    """Empty: these were the last. Valid over restarts."""


class EntryChange(NamedTuple):
    """A key whose entry was written, or is gone."""

    key: bytes
    """Empty: changes were lost, and everything may have changed."""
    kind: int = VOID
    """Type of its value now."""
    gone: bool = False
    """Deleted, renamed or expired."""
    at: int = 0
    """When it was told, by the clock of the daemon, ns since 1970."""

    @property
    def lost(self) -> bool:
        """Changes were lost: whatever was known of any key may be old."""
        return not self.key


class Watched(NamedTuple):
    """The keys somebody wants to be told of."""

    lower: bytes
    upper: bytes | None
    """None: `lower` is the only key. Empty: no upper end."""
    prefix: bytes = b""

    def holds(self, key: bytes) -> bool:
        """Whether this is one of them."""
        if self.upper is None:
            return key == self.lower
        if not key.startswith(self.prefix) or key < self.lower:
            return False
        return not self.upper or key <= self.upper


def watched(
    key: Text | None = None, prefix: Text = b"", lower: Text = b"", upper: Text = b""
) -> Watched:
    """A key, the keys that begin so, those of a range, or all."""
    if sum((key is not None, bool(prefix), bool(lower or upper))) > 1:
        raise BadRequest("give one of key, prefix, and lower with upper")
    if key is not None:
        return Watched(key_bytes(key), None)
    low, high, start = (key_bytes(bound) if bound else b"" for bound in (lower, upper, prefix))
    if not start:
        return Watched(low, high)
    head = start.rstrip(b"\xff")
    return Watched(start, head[:-1] + bytes((head[-1] + 1,)) if head else b"", start)
