"""Staged rows become rows of the journal: id and instants of arrival, column by column.

Rules:

1. Only rows without a key: behind the queue's name two zero bytes stand for key and aliases, so the
   place of the instants follows from the length of the name and of the rank.
2. A row arrives a nanosecond after the one before it, and is due no earlier than that: the same
   values as `Puts.put` would give.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from fastjournal.log.scan.scan import Chunk

__all__ = ["stamped"]

_BYTES = 8 << 20
"""Payload bytes handed out at once."""
_QUEUE_AT = 18  # behind type, id and version of the image


def stamped(
    chunk: Chunk, skip: int, sender: bytes, first_mark: int, now: int
) -> Iterator[pa.Array]:
    """The payloads of a chunk behind its first `skip` rows, in columns of a few megabytes.

    `first_mark` is the mark of the chunk's first row, `now` the instant at which it arrives.
    """
    import numpy as np
    import pyarrow as pa

    rows = len(chunk)
    packed = chunk.payloads()
    data = np.array(np.frombuffer(packed.buffers()[2], dtype=np.uint8))
    offsets = np.frombuffer(packed.buffers()[1], dtype=np.int32)[: rows + 1]
    starts = offsets[:-1].astype(np.int64)
    numbers = np.arange(rows, dtype=np.int64)
    _set(data, starts + 1, np.tile(np.frombuffer(sender, dtype=np.uint8), (rows, 1)))
    _set(data, starts + 13, (numbers + first_mark).astype(">u4").view(np.uint8).reshape(rows, 4))
    at = _instants_at(data, starts)
    arrival = numbers + now
    arrived = arrival.astype(">u8").view(np.uint8).reshape(rows, 8)
    due = np.ascontiguousarray(_get(data, at, 8)).view(">u8").reshape(rows).astype(np.int64)
    _set(data, at, np.maximum(due, arrival).astype(">u8").view(np.uint8).reshape(rows, 8))
    _set(data, at + 8, arrived)
    _set(data, at + 16, arrived)
    made = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(np.array(offsets)), pa.py_buffer(data)]
    )
    start = skip
    while start < rows:
        end = int(np.searchsorted(offsets, int(offsets[start]) + _BYTES, side="right")) - 1
        end = min(max(end, start + 1), rows)
        yield made.slice(start, end - start)
        start = end


def _instants_at(data: Any, starts: Any) -> Any:
    """Where due, inserted, modified and expires of each row begin."""
    size = data[starts + _QUEUE_AT].astype("int64")
    long = size >= 0x80  # a name has at most 255 bytes, so its length at most two
    second = data[starts + _QUEUE_AT + 1].astype("int64")
    size = size * ~long + ((size & 0x7F) | (second << 7)) * long
    at = starts + _QUEUE_AT + 1 + long + size + 2
    return at + 1 + (data[at] >= 0x80)


def _set(data: Any, at: Any, values: Any) -> None:
    for n in range(values.shape[1]):
        data[at + n] = values[:, n]


def _get(data: Any, at: Any, width: int) -> Any:
    import numpy as np

    return data[at[:, None] + np.arange(width)]
