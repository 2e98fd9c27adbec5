"""What a scan gives: consecutive records as columns, and bytes that are no record.

The columns of the compiled and the numpy engine are numpy arrays, those of the plain one arrays of
the standard library. `payloads`, `ids` and `bytes_view` need numpy, `payloads` pyarrow too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from mmap import mmap
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["Buffer", "Chunk", "Damage", "gaps_to_binary"]

Buffer: TypeAlias = bytes | mmap | memoryview


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are no record."""

    offset: int
    end: int
    reason: str


def gaps_to_binary(
    data: Any, starts: Any, sizes: Any, missing: Any = None, *, order: Any = None
) -> pa.Array:
    """Slices of a buffer as an Arrow binary array, without a loop in Python.

    The buffer itself is the value buffer of an array whose offsets are start0, end0, start1, end1
    and so on: its even entries are the slices, the odd ones the gaps between them. `starts` must
    ascend and the slices must not overlap. `missing` marks rows that become null. `order`: which of
    them are taken, and in which order.
    """
    import numpy as np
    import pyarrow as pa

    rows = len(starts)
    if rows == 0:
        return pa.array([], pa.binary())
    base = int(starts[0])
    limit = int(starts[-1]) + int(sizes[-1])
    offsets = np.empty(2 * rows, dtype=np.int32)
    offsets[0::2] = starts - base
    offsets[1::2] = starts + sizes - base
    values = pa.py_buffer(memoryview(data)[base:limit])
    gappy = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, [None, pa.py_buffer(offsets), values])
    even = np.arange(0, 2 * rows, 2, dtype=np.int32)
    pick = pa.array(even if order is None else even[order], mask=missing)
    return gappy.take(pick)


@dataclass(slots=True)
class Chunk:
    """Consecutive records of one segment as columns; the arrays are the chunk's own."""

    data: Buffer
    times: np.ndarray[Any, Any]
    """Ns since 1970, int64."""
    offsets: np.ndarray[Any, Any]
    """Where each record begins in the file, int64."""
    starts: np.ndarray[Any, Any]
    """Where each payload begins, int64."""
    sizes: np.ndarray[Any, Any]
    """Payload bytes, int64."""
    kinds: np.ndarray[Any, Any]
    """First payload byte, uint8; 0 for an empty payload."""

    def __len__(self) -> int:
        return len(self.times)

    def bytes_view(self) -> np.ndarray[Any, Any]:
        """The segment as an array of uint8."""
        import numpy as np

        return np.frombuffer(self.data, dtype=np.uint8)

    def payloads(self) -> pa.Array:
        """The payloads as Arrow binary."""
        import numpy as np

        return gaps_to_binary(self.data, np.asarray(self.starts), np.asarray(self.sizes))

    def ids(self) -> np.ndarray[Any, Any]:
        """Payload bytes 1 to 16 as an array of (rows, 16); zero where the payload is shorter."""
        import numpy as np

        short = np.asarray(self.sizes) < 17
        if len(self.data) < 16:
            return np.zeros((len(self), 16), dtype=np.uint8)
        first = np.where(short, 0, np.asarray(self.starts) + 1)
        # Sixteen bytes from every byte on, overlapping: one copy for each record that is picked.
        windows: np.ndarray[Any, Any] = np.ndarray(
            (len(self.data) - 15,), dtype="V16", buffer=self.data, strides=(1,)
        )
        found = windows[first].view(np.uint8).reshape(-1, 16)
        found[short] = 0
        return found

    def select(self, mask: Any) -> Chunk:
        """The records for which `mask` is true; a list of truths serves plain columns."""
        columns = (self.times, self.offsets, self.starts, self.sizes, self.kinds)
        if isinstance(mask, list):
            return Chunk(self.data, *(_compressed(column, mask) for column in columns))
        where = mask.nonzero()[0]
        return Chunk(self.data, *(column.take(where) for column in columns))


def _compressed(column: Any, mask: list[bool]) -> Any:
    return type(column)(column.typecode, compress(column, mask))
