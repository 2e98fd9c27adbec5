"""A whole file as bytes of memory, without a descriptor that stays open. No Spark.

Rules:

1. The mapping keeps the content that the file has now: a file renamed over its name, or a name that
   goes, changes nothing. So a log is read as of one moment by mapping all of it.
2. No descriptor is kept, unlike by the standard library's `mmap`: a log of 10,000 segments is
   mapped under the usual limit of 1,024 files. The system's limit on mappings is 65,530.
3. The memory is given back when nothing refers to it any more, slices and arrays over it included.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path

__all__ = ["map_file"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def map_file(path: str | Path) -> memoryview:
    """The bytes of a file, to be read only; raises OSError if it cannot be opened or mapped."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return memoryview(b"")
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
    held = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(held, _libc.munmap, address, size)
    return memoryview(held).cast("B").toreadonly()
