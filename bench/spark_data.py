"""Logs for `spark.py`: lives of jobs, any number of them, written at the speed of the disk.

One block of records is made by the journal's own encoder. Every further block is the same block
under other ids and later times, its CRCs made anew by the compiled kernel.
"""

# A compiled function has another signature than the one that is written: types say nothing true.
# mypy: disable-error-code="no-untyped-call, untyped-decorator"
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numba import njit

from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import encode
from fastjournal.log.record import encode_many
from fastjournal.log.scan.kernel import crc32c
from fastjournal.log.scan.scan import Chunk, Scan
from fastjournal.log.segment import WORKQ, segment_name

__all__ = ["T0", "write_log"]

T0 = 1_700_000_000_000_000_000
_BLOCK = 250_000  # records; some 60 MB, about one segment


def payloads(count: int, *, ending: bool) -> Iterator[bytes]:
    """Lives of jobs: a quarter are adds of about 790 bytes; 19 of 20 jobs end, or none does."""
    random = Random(5)
    pool = random.randbytes(1 << 22)
    young: list[tuple[bytes, int]] = []
    for n in range(count):
        roll = random.random()
        if roll < 0.26 or not young:
            row = random.randbytes(16)
            at = random.randrange(len(pool) - 700)
            young.append((row, 0))
            value = pool[at : at + 700]
            yield encode(
                k.Add(row, b"queue-%d" % (n % 20), 60_000, 86_400_000, 1, 0, 0, value, 0, T0 + n)
            )
            continue
        at = random.randrange(min(len(young), 5000))
        row, stage = young[at]
        if not ending:
            yield encode(k.Start(row) if stage == 0 else k.Timeout(row))
            young[at] = (row, 1 - stage)
            continue
        if stage == 0:
            yield encode(k.Start(row))
        elif stage == 1:
            yield encode(k.Complete(row, b""))
        else:
            yield encode(k.Delete(row))
            young[at] = young[-1]
            young.pop()
            continue
        young[at] = (row, stage + 1)


@njit(cache=True)  # type: ignore[misc]
def _stamp(buf: Any, offsets: Any, starts: Any, ends: Any, first: int, salt: Any) -> None:
    """Give every record the next nanosecond, another id and the CRC that goes with them."""
    for n in range(len(offsets)):
        at, nanos = offsets[n], first + n
        for place in range(4):
            buf[at + 9 + place] = (nanos >> (8 * (3 - place))) & 0xFF
        for place in range(16):
            buf[starts[n] + 1 + place] ^= salt[place]
        crc = crc32c(buf, at, ends[n])
        for place in range(4):
            buf[ends[n] + place] = (crc >> np.uint32(8 * (3 - place))) & np.uint32(0xFF)


def write_log(directory: Path, count: int, *, ending: bool = True) -> int:
    """A journal of so many records in segments of some 60 MB; returns its bytes."""
    directory.mkdir()
    blocks = -(-count // _BLOCK)
    rows = count // blocks
    first, _ = encode_many(T0, list(payloads(rows, ending=ending)))
    data = np.frombuffer(WORKQ.encode() + first, dtype=np.uint8).copy()
    chunks = [one for one in Scan(data.tobytes()) if isinstance(one, Chunk)]
    offsets = np.concatenate([one.offsets for one in chunks])
    starts = np.concatenate([one.starts for one in chunks])
    ends = starts + np.concatenate([one.sizes for one in chunks])
    random = Random(7)
    for number in range(blocks):
        if number:
            salt = np.frombuffer(random.randbytes(16), dtype=np.uint8)
            _stamp(data, offsets, starts, ends, number * rows, salt)
        (directory / segment_name(number + 1)).write_bytes(data.data)
    return blocks * len(data)
