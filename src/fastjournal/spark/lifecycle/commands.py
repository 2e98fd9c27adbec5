"""The commands of a segment that belong to a share of the rows, with their fields. No Spark.

Rules: those of `attempts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastjournal.errors import CorruptRecord
from fastjournal.log.record import MIN_RECORD
from fastjournal.log.scan.scan import Buffer, Chunk, Scan, gaps_to_binary
from fastjournal.spark.decode.fields import Fields
from fastjournal.spark.kinds import KINDS
from fastjournal.spark.lifecycle import field_kernel as kernels
from fastjournal.spark.replay.fold import Share, route
from fastjournal.spark.storage.segments import Piece, tear_rule

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

__all__ = ["ROWLESS", "Part", "parts_of"]

ROWLESS = (45, 46, 49, 50)
_GROUP, _SENDER = 44, 49
_NAMES = {"queue": 0, "key": 1, "worker": 2, "note": 3}
_PLAIN_BYTES = MIN_RECORD - 1  # without SIZE


@dataclass(slots=True)
class Part:
    """Commands of consecutive records of one segment, with their fields."""

    chunk: Chunk
    """One entry a command; its `offsets` are those of the records."""
    members: Array
    """Place in a GROUP; -1 for a whole record."""
    forwarded: Array
    """Whether it stands in a GROUP with the mark of its sender."""
    sizes: Array
    """Payload bytes of the record; 0 for all members but the first."""
    named: Array
    """Whether the command names a row."""
    segment: int
    fields: Fields
    numbers: Array
    _slices: Array
    _lengths: Array

    def text(self, name: str) -> pa.Array:
        """Queue, key, worker or note as bytes; null where there is none or it is empty."""
        import numpy as np

        place = _NAMES[name]
        starts, sizes = self._slices[place], self._lengths[place]
        missing = sizes <= 0
        if name in ("queue", "key"):
            more_starts, more_sizes, more_missing = self.fields.slice_of(name)
            put = missing & ~more_missing
            starts = np.where(put, more_starts, starts)
            sizes = np.where(put, more_sizes, sizes)
            missing = sizes <= 0
        return gaps_to_binary(
            self.chunk.data,
            np.where(missing, self.chunk.starts, starts),
            np.where(missing, 0, sizes),
            missing,
        )

    def log_bytes(self) -> Array:
        """Bytes of whole records in the log; 0 for all members of a GROUP but the first."""
        import numpy as np

        sizes = self.sizes
        digits = 1 + (sizes >= 1 << 7) + (sizes >= 1 << 14) + (sizes >= 1 << 21)
        found: Array = np.where(self.members <= 0, sizes + digits + _PLAIN_BYTES, 0)
        return found

    def death(self, at: int) -> tuple[str, bytes]:
        """Why the command at this place gave its row up, and in which words."""
        kind = int(self.chunk.kinds[at])
        if kind == 4:
            starts, sizes, _ = self.fields.slice_of("result")
            start = int(starts[at])
            return "failed", bytes(self.chunk.data[start : start + int(sizes[at])])
        code = int(self.numbers[kernels.REASON, at]) if kind == 39 else 2
        return {1: "time-outs", 2: "attempts", 3: "failed"}.get(code, "unknown"), b""


def parts_of(
    piece: Piece, data: Buffer, share: Share, after: int | None = None, upto: int | None = None
) -> Iterator[Part]:
    """The commands of one segment that belong to a share; what names no row goes to share 0."""
    import numpy as np

    known = np.zeros(256, dtype=bool)
    known[[number for number in KINDS if number not in ROWLESS]] = True
    for found in Scan(data, path=piece.path, torn=tear_rule(piece), after=after, upto=upto):
        assert isinstance(found, Chunk)
        chunk, members, forwarded, sizes = _expanded(found, piece)
        ids = np.ascontiguousarray(chunk.ids()).view(np.uint64)
        named = known[chunk.kinds] & (chunk.sizes >= 17)
        if share.count > 1:
            mine = route(ids[:, 0], ids[:, 1], share.count) == share.index
            mine = np.where(named, mine, share.index == 0)
        else:
            mine = np.ones(len(chunk), dtype=bool)
        if not mine.all():
            chunk, members, forwarded, sizes, named = (
                chunk.select(mine),
                members[mine],
                forwarded[mine],
                sizes[mine],
                named[mine],
            )
        if len(chunk):
            yield _part(chunk, members, forwarded, sizes, named, piece.number)


def _expanded(chunk: Chunk, piece: Piece) -> tuple[Chunk, Array, Array, Array]:
    import numpy as np

    if not (chunk.kinds == _GROUP).any():
        alone = np.full(len(chunk), -1, dtype=np.int32)
        return chunk, alone, np.zeros(len(chunk), dtype=bool), chunk.sizes
    view = chunk.bytes_view()
    counts = np.zeros(len(chunk), dtype=np.int64)
    kernels.group_sizes(view, chunk.starts, chunk.sizes, chunk.kinds, counts)
    if (counts < 0).any():
        bad = int(np.flatnonzero(counts < 0)[0])
        raise CorruptRecord(piece.path, int(chunk.offsets[bad]), "a group does not parse")
    total = int(counts.sum())
    record, starts, sizes = (np.empty(total, dtype=np.int64) for _ in range(3))
    members = np.empty(total, dtype=np.int32)
    kinds = np.empty(total, dtype=np.uint8)
    kernels.expand(
        view, chunk.starts, chunk.sizes, chunk.kinds, counts,
        record, members, starts, sizes, kinds,
    )  # fmt: skip
    whole = np.where(members <= 0, chunk.sizes[record], 0)
    wide = Chunk(chunk.data, chunk.times[record], chunk.offsets[record], starts, sizes, kinds)
    told = np.zeros(len(chunk), dtype=bool)
    told[record[(kinds == _SENDER) & (members >= 0)]] = True
    return wide, members, told[record], whole


def _part(
    chunk: Chunk, members: Array, forwarded: Array, sizes: Array, named: Array, segment: int
) -> Part:
    import numpy as np

    rows = len(chunk)
    fields = Fields(chunk)
    starts, lengths, missing = fields.slice_of("value")
    tails = np.where((chunk.kinds == 32) & ~missing, starts + lengths, 0)
    numbers = np.zeros((9, rows), dtype=np.int64)
    slices = np.zeros((4, rows), dtype=np.int64)
    found = np.full((4, rows), -1, dtype=np.int64)
    kernels.more_fields(
        chunk.bytes_view(), chunk.starts, chunk.sizes, chunk.kinds, tails, numbers, slices, found
    )
    for place, name in ((kernels.DUE, "due"), (kernels.LEASE_MS, "lease_ms")):
        values, absent = fields.number(name)
        numbers[place] = np.where(absent, numbers[place], values)
    values, absent = fields.number("max_attempts")
    numbers[kernels.MAX_ATTEMPTS] = np.where(absent, numbers[kernels.MAX_ATTEMPTS], values)
    return Part(chunk, members, forwarded, sizes, named, segment, fields, numbers, slices, found)
