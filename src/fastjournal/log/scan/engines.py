"""The engines of the scan: bytes to columns, each in its own way, all with one answer.

    numba   compiled kernels; the fastest, and a second to load
    numpy   `record.decode_many`, its columns as numpy arrays
    plain   `record.decode_many`, its columns as arrays of the standard library; always there

Rules:

1. A walk fills columns with whole, CRC-valid records and stops at the first byte it does not like.
   It returns (columns, position, sound): `sound` is False when no record stands at `position`.
2. Nothing is loaded before it is used: a small log is walked without numpy and numba.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias

from fastjournal.errors import SettingError
from fastjournal.log.record import decode_many
from fastjournal.log.scan.columns import Buffer

__all__ = ["PLAIN", "Walk", "engines", "fitting", "walker"]

NUMBA, NUMPY, PLAIN = "numba", "numpy", "plain"

Columns: TypeAlias = tuple[Any, Any, Any, Any, Any]
"""Times, offsets, payload starts, payload sizes, kinds."""
Walk: TypeAlias = Callable[[Buffer, int, int, int, int], tuple[Columns, int, bool]]
"""Of a buffer from a position to a stop: payloads up to a size, at most so many records."""

# Bytes that take the plain engine as long as loading the compiled one from its cache.
_WORTH_LOADING = 128 << 20
_WINDOW = 1 << 20  # bytes whose payloads the plain engine holds a second time
_HEAD = 64  # more than a record has besides its payload


@cache
def engines() -> tuple[str, ...]:
    """The engines that can run here, fastest first."""
    if find_spec("numpy") is None:
        return (PLAIN,)
    return (NUMPY, PLAIN) if find_spec("numba") is None else (NUMBA, NUMPY, PLAIN)


def fitting(size: int) -> str:
    """The quickest engine for so many bytes, loading included, where no numpy array is needed."""
    if "fastjournal.log.scan.kernel" in sys.modules:
        return NUMBA
    return engines()[0] if size >= _WORTH_LOADING and NUMBA in engines() else PLAIN


@cache
def walker(engine: str | None = None) -> tuple[str, Walk]:
    """An engine by its name, or the fastest, and its walk."""
    known = engines()
    name = engine or known[0]
    if name not in known:
        raise SettingError(f"engine {name!r} is none of {', '.join(known)}", name="engine")
    return name, {NUMBA: _numba, NUMPY: _numpy, PLAIN: _plain}[name]


def _numba(data: Buffer, at: int, stop: int, largest: int, rows: int) -> tuple[Columns, int, bool]:
    import numpy as np

    from fastjournal.log.scan.kernel import walk

    times, offsets, starts, sizes = (np.empty(rows, dtype=np.int64) for _ in range(4))
    kinds = np.empty(rows, dtype=np.uint8)
    view = np.frombuffer(data, dtype=np.uint8)
    found, at, sound = walk(view, at, stop, largest, rows, times, offsets, starts, sizes, kinds)
    columns = (times[:found], offsets[:found], starts[:found], sizes[:found], kinds[:found])
    return columns, at, sound


def _numpy(data: Buffer, at: int, stop: int, largest: int, rows: int) -> tuple[Columns, int, bool]:
    import numpy as np

    columns, at, sound = _plain(data, at, stop, largest, rows)
    times, offsets, starts, sizes = (np.array(column, dtype=np.int64) for column in columns[:4])
    return (times, offsets, starts, sizes, np.array(columns[4], dtype=np.uint8)), at, sound


def _plain(data: Buffer, at: int, stop: int, largest: int, rows: int) -> tuple[Columns, int, bool]:
    window = min(stop, at + _WINDOW)
    records, end, broken = decode_many(bytes(data[at:window]), 0, window - at, 0, at, largest)
    if not records and broken is not None and window < stop:  # perhaps longer than the window
        window = min(stop, at + largest + _HEAD)
        records, end, broken = decode_many(bytes(data[at:window]), 0, window - at, 0, at, largest)
    end += at
    if len(records) > rows:
        end, broken = records[rows].offset, None
        del records[rows:]
    sound = broken is None or (broken.torn and window < stop and bool(records))
    if not records:
        return (array("q"), array("q"), array("q"), array("q"), array("B")), end, sound
    # Lists made one by one: a `zip` of all records takes twice the time.
    times = array("q", [record[0] for record in records])
    payloads = [record[1] for record in records]
    offsets = array("q", [record[3] for record in records])
    sizes = array("q", list(map(len, payloads)))
    ends = [*offsets[1:], end]  # a payload ends four bytes of CRC before the next record begins
    starts = array("q", [after - size - 4 for after, size in zip(ends, sizes, strict=True)])
    kinds = array("B", [payload[0] if payload else 0 for payload in payloads])
    return (times, offsets, starts, sizes, kinds), end, sound
