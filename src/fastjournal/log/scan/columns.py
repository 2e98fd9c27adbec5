"""What a scan gives: consecutive records as columns, and bytes that are no record.

The columns of the compiled and the numpy engine are numpy arrays, those of the plain one arrays of
the standard library. `bytes_view` needs numpy, `ids` numba too, `payloads` pyarrow as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from mmap import mmap
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["Buffer", "Chunk", "Damage", "slices_to_binary"]

Buffer: TypeAlias = bytes | mmap | memoryview


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are no record."""

    offset: int
    end: int
    reason: str


def slices_to_binary(data: Buffer, starts: Any, sizes: Any, missing: Any = None) -> pa.Array:
    """Slices of a buffer as an Arrow binary array; `missing` marks rows that become null.

    All of them must lie within the buffer, and together stay below 2 GiB: nobody looks again.
    """
    import numpy as np
    import pyarrow as pa

    from fastjournal.log.scan.kernel import gather

    rows = len(starts)
    nulls = np.zeros(rows, dtype=bool) if missing is None else missing
    offsets = np.empty(rows + 1, dtype=np.int32)
    values = np.empty(int(sizes.sum()), dtype=np.uint8)  # pages that nothing fills cost nothing
    view = np.frombuffer(data, dtype=np.uint8)
    end = gather(view, starts, sizes, nulls, offsets, values)
    bits = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(values[:end])]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


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

        return slices_to_binary(self.data, np.asarray(self.starts), np.asarray(self.sizes))

    def ids(self) -> np.ndarray[Any, Any]:
        """Payload bytes 1 to 16 as an array of (rows, 16); zero where the payload is shorter."""
        import numpy as np

        from fastjournal.log.scan.kernel import identify

        found = np.empty((len(self), 2), dtype=np.uint64)
        identify(self.bytes_view(), np.asarray(self.starts), np.asarray(self.sizes), found)
        return found.view(np.uint8)

    def select(self, mask: Any) -> Chunk:
        """The records for which `mask` is true; a list of truths serves plain columns."""
        columns = (self.times, self.offsets, self.starts, self.sizes, self.kinds)
        if isinstance(mask, list):
            return Chunk(self.data, *(_compressed(column, mask) for column in columns))
        where = mask.nonzero()[0]
        return Chunk(self.data, *(column.take(where) for column in columns))


def _compressed(column: Any, mask: list[bool]) -> Any:
    return type(column)(column.typecode, compress(column, mask))
