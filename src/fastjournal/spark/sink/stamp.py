"""Staged rows become rows of the journal: they get their ids and instants of arrival.

Rules:

1. Only rows that meet no other. They have no aliases: behind the key one zero byte says so, and
   behind that stand the rank and the instants.
2. A row arrives a nanosecond after the one before it, and is due no earlier than that: the same
   values as `Puts.put` would give.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastjournal.spark.decode.fields import Fields

if TYPE_CHECKING:
    import pyarrow as pa

    from fastjournal.log.scan.scan import Chunk

__all__ = ["stamped"]

_BYTES = 8 << 20
"""Payload bytes handed out at once."""


def stamped(
    chunk: Chunk, skip: int, sender: bytes, first_mark: int, now: int
) -> Iterator[pa.Array]:
    """The payloads of a chunk behind its first `skip` rows, in columns of a few megabytes.

    `first_mark` is the mark of the chunk's first row, `now` the instant at which it arrives.
    """
    import numpy as np
    import pyarrow as pa

    from fastjournal.spark.sink.stamp_kernel import stamp

    rows = len(chunk)
    packed = chunk.payloads()
    data = np.array(np.frombuffer(packed.buffers()[2], dtype=np.uint8))
    offsets = np.frombuffer(packed.buffers()[1], dtype=np.int32)[: rows + 1]
    starts = offsets[:-1].astype(np.int64)
    keys, sizes, _ = Fields(chunk).slice_of("key")
    ranks = keys + sizes - chunk.starts + starts + 1
    stamp(data, starts, ranks, np.frombuffer(sender, dtype=np.uint8), first_mark, now)
    made = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(np.array(offsets)), pa.py_buffer(data)]
    )
    start = skip
    while start < rows:
        end = int(np.searchsorted(offsets, int(offsets[start]) + _BYTES, side="right")) - 1
        end = min(max(end, start + 1), rows)
        yield made.slice(start, end - start)
        start = end
