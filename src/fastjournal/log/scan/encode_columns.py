"""A column of payloads to records in one pass: the way back from `scan`.

Two engines behind one function, tested equal: a compiled kernel when numba is installed,
`record.encode_many` otherwise.

Rules:

1. The bytes are those of `record.encode_many`: one nanosecond apart, CRC and all.
2. The column is an Arrow binary array without nulls; its buffers are read where they are.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fastjournal.errors import SettingError
from fastjournal.log.record import encode_many

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["encode_column", "warm_up"]


def encode_column(
    first_time: int, payloads: pa.Array, zone: int = 0, *, engine: str | None = None
) -> bytes:
    """Records one nanosecond apart, the first at `first_time`."""
    if payloads.null_count:
        raise SettingError("payloads: a column with nulls", name="payloads")
    kernel = _kernel(engine)
    if kernel is None:
        return encode_many(first_time, payloads.to_pylist(), zone)[0]
    import numpy as np

    rows = len(payloads)
    if not rows:
        return b""
    _, ends, values = payloads.buffers()
    at = payloads.offset
    offsets = np.frombuffer(ends, dtype=np.int32)[at : at + rows + 1]
    data = np.frombuffer(values, dtype=np.uint8) if values else np.zeros(0, dtype=np.uint8)
    # A record is at most 24 bytes longer than its payload: TIME 15, SIZE up to 5, CRC 4.
    made = np.empty(int(offsets[-1]) - int(offsets[0]) + 24 * rows, dtype=np.uint8)
    end: int = kernel(data, offsets, first_time, zone, made)
    return made[:end].tobytes()


def warm_up() -> None:
    """Load the engine, so that a process forked from this one has it at once."""
    if find_spec("pyarrow") is not None:
        import pyarrow as pa

        encode_column(0, pa.array([b""], pa.binary()))


@cache
def _kernel(engine: str | None) -> Any:
    found = find_spec("numba") is not None and find_spec("numpy") is not None
    if engine == "numba" and not found:
        raise SettingError("engine 'numba' is not installed", name="engine")
    if engine == "python" or not found:
        return None
    from fastjournal.log.scan.kernel import frame

    return frame
