"""Looking after an archive: what it holds, whether that is sound, and what may go.

Rules:

1. The bytes of an object count only if they have the size and the CRC that the manifest says.
2. Pruning keeps the newest manifests and whatever they name. Beside that it spares all that a
   shipper at work may be about to name: what lies behind the newest manifest in its epoch; and all
   of it, while an epoch is claimed that has no manifest yet. To let instants go by age it writes a
   manifest that names less, before it looks for such epochs: whoever claims one later reads that.
3. The claim of the newest epoch stays for ever: so no number is used twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import google_crc32c

from fastjournal.archive.manifest import (
    Manifest,
    ShippedPart,
    ShippedSegment,
    ShippedSnapshot,
    claim_name,
    decode,
    encode,
    epochs,
    find_newest,
    keep_since,
    manifest_name,
    sequences,
)
from fastjournal.archive.store import Found, Store
from fastjournal.errors import ArchiveError, NotFound, SettingError

__all__ = [
    "ArchivedSegment",
    "Entry",
    "Pruned",
    "object_chunks",
    "open_segments",
    "prune",
    "unpack",
    "verify_archive",
]

_TRIES = 10  # a shipper may write meanwhile
Entry = ShippedSegment | ShippedSnapshot | ShippedPart


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went, or would go."""

    names: tuple[str, ...] = ()
    bytes: int = 0


def object_chunks(store: Store, listed: Entry) -> Iterator[bytes]:
    """The bytes of an object as they were on disk, checked (rule 1): the last step may raise."""
    chunks = store.stream(listed.name)
    if isinstance(listed, ShippedSegment) and listed.stored:
        chunks = unpack(chunks, listed.name)
    crc = size = 0
    for chunk in chunks:
        crc = google_crc32c.extend(crc, chunk)
        size += len(chunk)
        yield chunk
    if size != listed.size:
        raise ArchiveError(f"{listed.name}: has {size} bytes, the manifest says {listed.size}")
    if crc != listed.crc:
        raise ArchiveError(
            f"{listed.name}: has the CRC {crc:08x}, the manifest says {listed.crc:08x}"
        )


def unpack(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The bytes of a segment that was packed; `name` is for the error."""
    try:
        import zstandard
    except ImportError as error:
        raise SettingError(
            f"{name}: unpacking needs pip install 'fastjournal[archive]'", name="archive"
        ) from error
    opener: Any = zstandard.ZstdDecompressor().decompressobj()
    try:
        for chunk in chunks:
            if data := opener.decompress(chunk):
                yield data
    except zstandard.ZstdError as error:
        raise ArchiveError(f"{name}: {error}") from error


def verify_archive(
    store: Store, manifest: Manifest, *, quick: bool = False
) -> Iterator[tuple[str, str]]:
    """Name of each object that a manifest names, and what is wrong with it; empty if it is sound.

    `quick`: only whether it is there in its size.
    """
    sizes: dict[str, int] = {}
    if quick:
        for epoch in epochs(store):
            sizes.update({one.name: one.size for one in store.find(f"{epoch:06d}")})
    objects: list[Entry] = [*manifest.snapshots, *manifest.segments, *manifest.parts]
    for listed in objects:
        fault = ""
        try:
            if not quick:
                for _ in object_chunks(store, listed):
                    pass
            elif listed.name not in sizes:
                fault = "is missing"
            else:
                said = listed.bytes if isinstance(listed, ShippedSegment) else listed.size
                if sizes[listed.name] != said:
                    fault = f"has {sizes[listed.name]} bytes, the manifest says {said}"
        except NotFound:
            fault = "is missing"
        except ArchiveError as error:
            fault = str(error)
        yield listed.name, fault


def prune(
    store: Store, *, keep_versions: int, since: int | None = None, dry_run: bool = False
) -> Pruned:
    """Delete what no kept manifest names (rule 2).

    `since`: instants before this TIME need not be restorable any more.
    """
    newest = find_newest(store)
    if newest is None:
        return Pruned()
    shrunk = None
    if since is not None:
        shrunk = _shrink(store, since, dry_run=dry_run)
        newest = shrunk or find_newest(store) or newest
    taken = epochs(store)
    if taken[-1] > newest.epoch:
        return Pruned()
    versions = [(epoch, number) for epoch in taken for number in sequences(store, epoch)]
    if shrunk is not None and dry_run:
        versions.append((shrunk.epoch, shrunk.sequence))
    kept = set(versions[-max(keep_versions, 1) :])
    named = {claim_name(newest.epoch)}
    for epoch, number in sorted(kept):
        if shrunk is not None and (epoch, number) == (shrunk.epoch, shrunk.sequence):
            named.update(name for name, _ in shrunk.objects())
            continue
        manifest = _read(store, epoch, number)
        if manifest is None:
            continue
        if manifest.base and (epoch, manifest.base) not in kept:
            kept.add((epoch, manifest.base))
            whole = _read(store, epoch, manifest.base)
            if whole is not None:
                named.update(name for name, _ in whole.objects())
        named.update(name for name, _ in manifest.objects())
    named.update(manifest_name(epoch, number) for epoch, number in kept)
    found = [one for epoch in taken if epoch <= newest.epoch for one in store.find(f"{epoch:06d}")]
    gone = [one for one in found if one.name not in named and not _is_ahead(one, newest)]
    gone.sort(key=lambda one: "/manifest/" not in one.name)
    if not dry_run:
        # Manifests first: what is named must be there, whenever this is cut short.
        store.delete([one.name for one in gone if "/manifest/" in one.name])
        store.delete([one.name for one in gone if "/manifest/" not in one.name])
    return Pruned(tuple(one.name for one in gone), sum(one.size for one in gone))


def _shrink(store: Store, since: int, *, dry_run: bool) -> Manifest | None:
    """Write a manifest without what no instant from `since` on needs; None: all is needed."""
    for _ in range(_TRIES):
        newest = find_newest(store)
        if newest is None or epochs(store)[-1] > newest.epoch:
            return None
        kept = keep_since(newest, since)
        if kept.floor == newest.floor:
            return None
        kept = replace(kept, sequence=newest.sequence + 1, base=0)
        if dry_run or store.create(kept.name, encode(kept)):
            return kept
    raise ArchiveError("the archive grows faster than it can be pruned: try again")


def _read(store: Store, epoch: int, number: int) -> Manifest | None:
    name = manifest_name(epoch, number)
    try:
        return decode(store.get(name), name)
    except NotFound:  # pruned by another meanwhile
        return None


def _is_ahead(one: Found, newest: Manifest) -> bool:
    """Whether a shipper may be about to name it."""
    epoch, _, rest = one.name.partition("/")
    if int(epoch) != newest.epoch:
        return False
    kind, _, name = rest.partition("/")
    digits = "".join(takewhile(str.isdecimal, name))
    if kind == "claim" or not digits:
        return True
    number = int(digits)
    if kind == "manifest":
        return number > newest.sequence
    last = max((listed.number for listed in newest.segments), default=newest.floor - 1)
    if kind == "snapshots":
        return number > max((listed.number for listed in newest.snapshots), default=-1)
    return number > last


class ArchivedSegment:
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


def open_segments(store: Store, manifest: Manifest) -> Iterator[tuple[int, ArchivedSegment]]:
    """Number and content of each segment, the newest first; what was pruned is passed over."""
    pieces: list[tuple[int, Sequence[Entry]]] = [(one.number, [one]) for one in manifest.segments]
    if manifest.parts:
        pieces.append((manifest.parts[0].segment, manifest.parts))
    for number, listed in reversed(pieces):
        try:
            data = b"".join(chunk for one in listed for chunk in object_chunks(store, one))
        except NotFound:
            continue
        yield number, ArchivedSegment(data)
