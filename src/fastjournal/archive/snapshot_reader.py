"""A snapshot of an archive, read piece by piece by who knows its size, CRC and checkpoint.

The pieces are not checked here: whoever knows the CRC of the whole does that at its end.
"""

from __future__ import annotations

from collections.abc import Callable

from fastjournal.archive.manifest import ShippedSnapshot, find_newest
from fastjournal.archive.store import Store

__all__ = ["SnapshotReader"]

_PIECE = 4 << 20  # bytes


class SnapshotReader:
    """Used by one thread at a time."""

    def __init__(self, open_store: Callable[[], Store], piece: int = _PIECE) -> None:
        """`open_store`: called when it is first needed. `piece`: bytes that are read at once."""
        self._open_store = open_store
        self._piece = piece
        self._store: Store | None = None
        self._found: ShippedSnapshot | None = None

    def read_part(self, size: int, crc: int, checkpoint: bytes, at: int) -> bytes:
        """Bytes of the snapshot of which this is said, from an offset on; empty: it is not here."""
        wanted = (size, crc, checkpoint.hex())
        if self._store is None:
            self._store = self._open_store()
        if self._found is None or _facts(self._found) != wanted:
            manifest = find_newest(self._store)
            snapshots = () if manifest is None else manifest.snapshots
            self._found = next((one for one in snapshots if _facts(one) == wanted), None)
        if self._found is None:
            return b""
        return self._store.get_range(self._found.name, at, min(self._piece, size - at))


def _facts(one: ShippedSnapshot) -> tuple[int, int, str]:
    return one.size, one.crc, one.checkpoint
