"""A log of millions of records, written at the speed of the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import encode
from fastjournal.log.scan.encode_columns import encode_column
from fastjournal.log.segment import WORKQ, segment_name

__all__ = ["T0", "write_large_log"]

T0 = 1_700_000_000_000_000_000


def write_large_log(directory: Path, rows: int, *, live: float, segments: int) -> int:
    """Rows that are put, leased and, all but a share of them, purged; returns how many live.

    Every segment holds the puts of its own rows, and the ends of those of the one before it.
    """
    directory.mkdir(parents=True)
    row = bytes(range(16))
    templates = [
        encode(k.Put(row, b"mail", b"", 5, T0, T0, T0, 0, 1, b"x" * 60)),
        encode(k.Lease(row, T0, T0 + 1, 1, b"w")),
        encode(k.Purge(row, b"mail", b"", T0)),
    ]
    chance = np.random.default_rng(1)
    each = rows // segments
    time, gone, before = T0, 0, np.empty((0, 16), dtype=np.uint8)
    for number in range(1, segments + 2):
        fresh = chance.integers(
            0, 256, size=(each if number <= segments else 1, 16), dtype=np.uint8
        )
        ended = before[chance.random(len(before)) >= live]
        gone += len(ended)
        data = [WORKQ.encode()]
        for template, ids in zip(templates, (fresh, fresh, ended), strict=True):
            if len(ids):
                made = np.tile(np.frombuffer(template, dtype=np.uint8), (len(ids), 1))
                made[:, 1:17] = ids
                offsets = np.arange(0, made.size + 1, len(template), dtype=np.int32)
                buffers = [None, pa.py_buffer(offsets), pa.py_buffer(made)]
                column = pa.Array.from_buffers(pa.binary(), len(ids), buffers)
                data.append(encode_column(time, column))
                time += len(ids)
        (directory / segment_name(number)).write_bytes(b"".join(data))
        before = fresh
    return each * segments + 1 - gone
