"""Records to commands: the members of each GROUP in its place, a chunk at a time. No Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastjournal.errors import CorruptRecord
from fastjournal.log.scan.scan import Chunk
from fastjournal.spark.kinds import GROUP

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["Commands", "commands_of"]


@dataclass(slots=True)
class Commands:
    """The commands of consecutive records."""

    chunk: Chunk
    """One entry a command; `times` and `offsets` are those of the records."""
    members: Array
    """Place in a GROUP; -1 for a whole record."""
    record: Array
    """Which record of the chunk given it belongs to."""


def commands_of(chunk: Chunk, path: Path | str, *, strict: bool = True) -> Commands:
    """The commands of these records, in order; raises CorruptRecord for a group that is none.

    If not `strict`, a group that is none holds no command.
    """
    import numpy as np

    from fastjournal.spark.decode import field_kernel as kernel

    if not (chunk.kinds == GROUP).any():
        return Commands(chunk, np.full(len(chunk), -1, dtype=np.int32), np.arange(len(chunk)))
    view = chunk.bytes_view()
    counts = np.zeros(len(chunk), dtype=np.int64)
    kernel.group_sizes(view, chunk.starts, chunk.sizes, chunk.kinds, counts)
    if not strict:
        counts = np.maximum(counts, 0)
    if (counts < 0).any():
        bad = int(np.flatnonzero(counts < 0)[0])
        raise CorruptRecord(path, int(chunk.offsets[bad]), "a group does not parse")
    total = int(counts.sum())
    record, starts, sizes = (np.empty(total, dtype=np.int64) for _ in range(3))
    members = np.empty(total, dtype=np.int32)
    kinds = np.empty(total, dtype=np.uint8)
    kernel.expand(
        view, chunk.starts, chunk.sizes, chunk.kinds, counts,
        record, members, starts, sizes, kinds,
    )  # fmt: skip
    wide = Chunk(chunk.data, chunk.times[record], chunk.offsets[record], starts, sizes, kinds)
    return Commands(wide, members, record)
