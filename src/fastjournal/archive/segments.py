"""The segments of an archive, one at a time in memory, for people who look things up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastjournal.archive.care import Entry, object_chunks
from fastjournal.archive.manifest import Manifest
from fastjournal.archive.store import Store
from fastjournal.errors import NotFound

__all__ = ["HeldSegment", "open_segments"]


class HeldSegment:
    """A segment in memory, as `log.read.search` reads it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`."""
        return self._data[offset : offset + size]

    def size(self) -> int:
        """Its bytes."""
        return len(self._data)

    def close(self) -> None:
        """Let go of it."""
        self._data = b""


def open_segments(store: Store, manifest: Manifest) -> Iterator[tuple[int, HeldSegment]]:
    """Number and content of each segment, the newest first; what was pruned is passed over."""
    pieces: list[tuple[int, Sequence[Entry]]] = [(one.number, [one]) for one in manifest.segments]
    if manifest.parts:
        pieces.append((manifest.parts[0].segment, manifest.parts))
    for number, entries in reversed(pieces):
        try:
            data = b"".join(chunk for one in entries for chunk in object_chunks(store, one))
        except NotFound:
            continue
        yield number, HeldSegment(data)
