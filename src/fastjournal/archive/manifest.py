"""What an archive holds: manifests, and the names of all objects.

    <epoch>/claim                            who ships in this epoch
    <epoch>/manifest/<sequence>              what there is, the highest one counts
    <epoch>/segments/<number>.log            sealed segments as they were on disk; `.log.zst` packed
    <epoch>/snapshots/<number>.snapshot      images of the state
    <epoch>/tail/<number>/<start>-<end>.part stretches of the segment that is still written

A manifest is a CRC-32C in eight hex digits, a line feed, and JSON.

Rules:

1. Each opening of a journal ships in an epoch of its own, taken by creating `claim`: so no two
   shippers ever write below one epoch. Segments of earlier epochs are named where they lie.
2. The manifest with the highest sequence of the highest epoch that has one says what the archive
   is; whatever it does not name does not count. It is written after all that it names, by create.
3. It names a stretch of history without a gap: segments in order, then the parts of the next one.
4. Its list of segments may stand in an earlier manifest of its epoch, its `base`: the tail grows
   every few seconds, and the list need not be written again for that.
5. `exact_from`: where records had been dropped before they were shipped, a segment tells the state
   from this TIME on; 0: it is as it was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import google_crc32c

from fastjournal.archive.store import Store
from fastjournal.errors import ArchiveError, NotFound, VersionMismatch
from fastjournal.log.segment import segment_name

__all__ = [
    "Manifest",
    "ShippedPart",
    "ShippedSegment",
    "ShippedSnapshot",
    "claim_name",
    "decode",
    "encode",
    "epochs",
    "find_newest",
    "is_pruned",
    "keep_since",
    "manifest_name",
    "read_manifest",
    "sequences",
]

_FORMAT = 1
_TRIES = 5  # a reader may find that what it has just listed was pruned


class ShippedSegment(NamedTuple):
    """A sealed segment."""

    epoch: int
    number: int
    first: int
    """TIME of the first record; 0 if it holds none."""
    last: int
    size: int
    crc: int
    exact_from: int = 0
    stored: int = 0
    """Bytes of the packed object; 0: it is not packed."""

    @property
    def name(self) -> str:
        """Where it lies."""
        packed = ".zst" if self.stored else ""
        return f"{self.epoch:06d}/segments/{segment_name(self.number)}{packed}"

    @property
    def bytes(self) -> int:
        """Size of the object."""
        return self.stored or self.size


class ShippedSnapshot(NamedTuple):
    """An image of the state, and the file that makes it count."""

    epoch: int
    number: int
    """The first segment that it does not cover."""
    as_of: int
    """The last TIME that it may hold."""
    size: int
    crc: int
    checkpoint: str
    """Content of the checkpoint, in hex."""

    @property
    def name(self) -> str:
        """Where it lies."""
        return f"{self.epoch:06d}/snapshots/{self.number:09d}.snapshot"


class ShippedPart(NamedTuple):
    """A stretch of a segment that is still written."""

    epoch: int
    segment: int
    start: int
    end: int
    crc: int
    first: int
    last: int

    @property
    def name(self) -> str:
        """Where it lies."""
        folder = f"{self.epoch:06d}/tail/{self.segment:09d}"
        return f"{folder}/{self.start:012d}-{self.end:012d}.part"

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds at one moment."""

    epoch: int
    sequence: int
    written: int
    """When, by the clock of the shipper."""
    segments: tuple[ShippedSegment, ...] = ()
    snapshots: tuple[ShippedSnapshot, ...] = ()
    parts: tuple[ShippedPart, ...] = ()
    base: int = 0
    """The sequence of the manifest that has the segments and snapshots; 0: this one."""
    floor: int = 0
    """Segments below this number are not there: a snapshot of it, or a later one, is needed."""

    @property
    def end(self) -> int:
        """The last TIME that can be restored; 0 if there is none."""
        last = max((one.last for one in self.segments), default=0)
        return max(last, max((one.last for one in self.parts), default=0))

    @property
    def begin(self) -> int:
        """The first TIME that can be restored; 0 if there is none."""
        if self.floor:
            return min((one.as_of for one in self.snapshots), default=0)
        exact_from = max((one.exact_from for one in self.segments), default=0)
        times = [*(one.first for one in self.segments), *(one.first for one in self.parts)]
        return exact_from or min((time for time in times if time), default=0)

    @property
    def name(self) -> str:
        """Where it lies."""
        return manifest_name(self.epoch, self.sequence)

    def objects(self) -> list[tuple[str, int]]:
        """Name and size of all that it names."""
        return [
            *((one.name, one.bytes) for one in self.segments),
            *((one.name, one.size) for one in self.snapshots),
            *((one.name, one.size) for one in self.parts),
        ]


def claim_name(epoch: int) -> str:
    """Where an epoch's claim lies."""
    return f"{epoch:06d}/claim"


def manifest_name(epoch: int, sequence: int) -> str:
    """Where a manifest lies."""
    return f"{epoch:06d}/manifest/{sequence:012d}"


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest."""
    content: dict[str, Any] = {
        "format": _FORMAT,
        "epoch": manifest.epoch,
        "sequence": manifest.sequence,
        "written": manifest.written,
        "parts": manifest.parts,
    }
    if manifest.base:
        content["base"] = manifest.base
    else:
        content["segments"] = manifest.segments
        content["snapshots"] = manifest.snapshots
        content["floor"] = manifest.floor
    data = json.dumps(content, separators=(",", ":")).encode("ascii")
    return b"%08x\n%s\n" % (google_crc32c.value(data), data)


def decode(data: bytes, name: str) -> Manifest:
    """Read a manifest; one with a base lacks what stands there."""
    crc, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    if crc != b"%08x" % google_crc32c.value(body):
        raise ArchiveError(f"{name}: is damaged")
    try:
        content = json.loads(body)
        if content["format"] != _FORMAT:
            raise VersionMismatch(f"{name}: format {content['format']}, expected {_FORMAT}")
        return Manifest(
            content["epoch"],
            content["sequence"],
            content["written"],
            tuple(ShippedSegment(*one) for one in content.get("segments", ())),
            tuple(ShippedSnapshot(*one) for one in content.get("snapshots", ())),
            tuple(ShippedPart(*one) for one in content["parts"]),
            content.get("base", 0),
            content.get("floor", 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArchiveError(f"{name}: makes no sense: {error}") from error


def keep_since(manifest: Manifest, horizon: int) -> Manifest:
    """What of it is needed to restore any instant from `horizon` on.

    That is the newest snapshot as of an earlier one, the later ones, and the segments that it does
    not cover.
    """
    early = [one for one in manifest.snapshots if one.as_of <= horizon]
    if not early:
        return manifest
    start = max(early, key=lambda one: one.as_of)
    return replace(
        manifest,
        segments=tuple(one for one in manifest.segments if one.number >= start.number),
        snapshots=tuple(one for one in manifest.snapshots if one.as_of >= start.as_of),
        floor=max(manifest.floor, start.number),
    )


def is_pruned(manifest: Manifest, last: Manifest) -> bool:
    """Whether this is the manifest behind `last`, and says the same without its oldest segments."""
    floor = manifest.floor
    return (
        (manifest.epoch, manifest.sequence) == (last.epoch, last.sequence + 1)
        and not manifest.base
        and floor >= last.floor
        and manifest.parts == last.parts
        and manifest.segments == tuple(one for one in last.segments if one.number >= floor)
        and set(manifest.snapshots) <= set(last.snapshots)
        and any(one.number == floor for one in manifest.snapshots)
    )


def epochs(store: Store) -> list[int]:
    """The epochs of an archive, the highest last."""
    return sorted(int(name) for name in store.folders("") if name.isdecimal())


def sequences(store: Store, epoch: int) -> list[int]:
    """The manifests of an epoch, the newest last."""
    return _numbers(one.name for one in store.find(f"{epoch:06d}/manifest"))


def _numbers(names: Iterable[str]) -> list[int]:
    ends = (name.rpartition("/")[2] for name in names)
    return sorted(int(end) for end in ends if end.isdecimal())


def read_manifest(store: Store, epoch: int, sequence: int) -> Manifest:
    """One manifest, whole."""
    name = manifest_name(epoch, sequence)
    found = decode(store.get(name), name)
    if found.base:
        whole_name = manifest_name(epoch, found.base)
        whole = decode(store.get(whole_name), whole_name)
        found = replace(
            found, segments=whole.segments, snapshots=whole.snapshots, floor=whole.floor
        )
    return found


def find_newest(store: Store) -> Manifest | None:
    """What the archive is (rule 2); None: nothing was ever shipped there."""
    for tries in range(_TRIES):
        try:
            for epoch in reversed(epochs(store)):
                if known := sequences(store, epoch):
                    return read_manifest(store, epoch, known[-1])
            return None
        except NotFound:  # pruned since it was listed: a newer one is there
            if tries == _TRIES - 1:
                raise
    raise AssertionError("unreachable")
