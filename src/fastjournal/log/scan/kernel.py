"""The compiled engine of the scan and of the way back: numba kernels over the bytes of a segment.

Rules:

1. A kernel stops at the first byte it does not like and says where; `log.record` says what is
   wrong there. No kernel knows the words of a fault.
2. The CPU's own CRC-32C instruction is used only where the CPU is known to have it: on a target
   without it LLVM does not raise, it ends the process. Elsewhere a table of eight is used.
3. `gather` and `identify` copy without looking: what they are given must lie within the buffer, as
   all that `walk` and a reader of payloads have found does.
4. Kernels are compiled once and cached on disk (`NUMBA_CACHE_DIR`, else beside the source).

Imported only by this folder, and only when numba is installed.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

__all__ = ["HARDWARE_CRC", "crc32c", "frame", "gather", "identify", "walk"]

_EPOCH = 62_135_596_800
_MAX_UNIX = 9_223_372_035
_SECOND = 1_000_000_000


def _hardware() -> str:
    """'arm', 'x86' or '' for the table."""
    if os.environ.get("NUMBA_CPU_NAME") or os.environ.get("NUMBA_CPU_FEATURES"):
        return ""
    features = binding.get_host_cpu_features()
    machine = platform.machine().lower()
    if machine in {"aarch64", "arm64"} and features.get("crc"):
        return "arm"
    if machine in {"x86_64", "amd64"} and features.get("sse4.2"):
        return "x86"
    return ""


_CPU = _hardware()
HARDWARE_CRC = bool(_CPU)


def _tables() -> Any:
    table = np.zeros((8, 256), dtype=np.uint32)
    for n in range(256):
        c = n
        for _ in range(8):
            c = (c >> 1) ^ (0x82F63B78 if c & 1 else 0)
        table[0, n] = c
    for n in range(256):
        c = int(table[0, n])
        for k in range(1, 8):
            c = int(table[0, c & 255]) ^ (c >> 8)
            table[k, n] = c
    return table


_TABLE = _tables()


@intrinsic
def _load64(typingctx: Any, address: Any) -> Any:
    """Little-endian u64 at any address, aligned or not."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        loaded = builder.load(pointer)
        loaded.align = 1
        return loaded

    return types.uint64(types.uintp), codegen


@intrinsic
def _copy(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy bytes from one address to another; they must not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to, source = (builder.inttoptr(one, pointer) for one in args[:2])
        kinds = [pointer, pointer, ir.IntType(64)]
        copy = builder.module.declare_intrinsic("llvm.memcpy", kinds)
        builder.call(copy, [to, source, args[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.none(types.uintp, types.uintp, types.int64), codegen


def _declare(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    module = builder.module
    if name in module.globals:
        return module.globals[name]
    return ir.Function(module, ir.FunctionType(result, arguments), name)


@intrinsic
def _crc_word(typingctx: Any, crc: Any, word: Any) -> Any:
    """CRC-32C of eight bytes by CPU instruction."""
    i32, i64 = ir.IntType(32), ir.IntType(64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _CPU == "arm":
            step = _declare(builder, "llvm.aarch64.crc32cx", i32, [i32, i64])
            return builder.call(step, [args[0], args[1]])
        step = _declare(builder, "llvm.x86.sse42.crc32.64.64", i64, [i64, i64])
        wide = builder.call(step, [builder.zext(args[0], i64), args[1]])
        return builder.trunc(wide, i32)

    return types.uint32(types.uint32, types.uint64), codegen


@intrinsic
def _crc_byte(typingctx: Any, crc: Any, byte: Any) -> Any:
    """CRC-32C of one byte by CPU instruction."""
    i8, i32 = ir.IntType(8), ir.IntType(32)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _CPU == "arm":
            step = _declare(builder, "llvm.aarch64.crc32cb", i32, [i32, i32])
            return builder.call(step, [args[0], builder.zext(args[1], i32)])
        step = _declare(builder, "llvm.x86.sse42.crc32.32.8", i32, [i32, i8])
        return builder.call(step, [args[0], args[1]])

    return types.uint32(types.uint32, types.uint8), codegen


if HARDWARE_CRC:

    @njit(cache=True, nogil=True, inline="always")
    def _crc(buf, base, start, end):
        crc = np.uint32(0xFFFFFFFF)
        at = start
        while at + 8 <= end:
            crc = _crc_word(crc, _load64(np.uintp(base + at)))
            at += 8
        while at < end:
            crc = _crc_byte(crc, buf[at])
            at += 1
        return crc ^ np.uint32(0xFFFFFFFF)

else:

    @njit(cache=True, nogil=True)
    def _crc(buf, base, start, end):
        crc = np.uint32(0xFFFFFFFF)
        at = start
        mask = np.uint32(255)
        while at + 8 <= end:
            low = crc ^ (
                np.uint32(buf[at])
                | np.uint32(buf[at + 1]) << np.uint32(8)
                | np.uint32(buf[at + 2]) << np.uint32(16)
                | np.uint32(buf[at + 3]) << np.uint32(24)
            )
            crc = (
                _TABLE[7, low & mask]
                ^ _TABLE[6, (low >> np.uint32(8)) & mask]
                ^ _TABLE[5, (low >> np.uint32(16)) & mask]
                ^ _TABLE[4, low >> np.uint32(24)]
                ^ _TABLE[3, buf[at + 4]]
                ^ _TABLE[2, buf[at + 5]]
                ^ _TABLE[1, buf[at + 6]]
                ^ _TABLE[0, buf[at + 7]]
            )
            at += 8
        while at < end:
            crc = _TABLE[0, (crc ^ np.uint32(buf[at])) & mask] ^ (crc >> np.uint32(8))
            at += 1
        return crc ^ np.uint32(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def crc32c(buf, start, end):
    """CRC-32C of `buf[start:end]`."""
    return _crc(buf, buf.ctypes.data, start, end)


@njit(cache=True, nogil=True)
def walk(buf, at, stop, largest, rows, times, offsets, starts, sizes, kinds):
    """Fill the columns with up to `rows` whole, CRC-valid records from `at`.

    Returns (rows filled, position, sound): `sound` is False when the bytes at `position` are not
    a whole valid record ending at or before `stop`.
    """
    base = buf.ctypes.data
    n = 0
    while n < rows and at < stop:
        left = stop - at
        if left < 20 or buf[at] != 1:
            return n, at, False
        head = _load64(np.uintp(base + at + 1))
        seconds = np.int64(0)
        for k in range(8):
            seconds = (seconds << 8) | np.int64((head >> np.uint64(8 * k)) & np.uint64(255))
        seconds -= _EPOCH
        nanos = (
            np.int64(buf[at + 9]) << 24
            | np.int64(buf[at + 10]) << 16
            | np.int64(buf[at + 11]) << 8
            | np.int64(buf[at + 12])
        )
        zone = np.int64(buf[at + 13]) << 8 | np.int64(buf[at + 14])
        if nanos >= _SECOND or (zone != 0 and zone != 0xFFFF):
            return n, at, False
        if seconds > _MAX_UNIX or seconds < -_MAX_UNIX:
            return n, at, False
        size = np.int64(0)
        used = 0
        p = at + 15
        while True:
            if used == 5 or p >= stop:
                return n, at, False
            byte = np.int64(buf[p])
            size |= (byte & 0x7F) << (7 * used)
            p += 1
            used += 1
            if byte < 0x80:
                if byte == 0 and used > 1:
                    return n, at, False
                break
        if size > largest or p + size + 4 > stop:
            return n, at, False
        end = p + size
        stored = (
            np.uint32(buf[end]) << np.uint32(24)
            | np.uint32(buf[end + 1]) << np.uint32(16)
            | np.uint32(buf[end + 2]) << np.uint32(8)
            | np.uint32(buf[end + 3])
        )
        if _crc(buf, base, at, end) != stored:
            return n, at, False
        times[n] = seconds * _SECOND + nanos
        offsets[n] = at
        starts[n] = p
        sizes[n] = size
        kinds[n] = buf[p] if size else 0
        n += 1
        at = end + 4
    return n, at, True


@njit(cache=True, nogil=True)
def gather(buf, starts, sizes, missing, offsets, values):
    """Copy slices together, all but those that are missing; returns where they end."""
    base = buf.ctypes.data
    to = values.ctypes.data
    at = 0
    for n in range(len(starts)):
        offsets[n] = at
        if not missing[n]:
            _copy(np.uintp(to + at), np.uintp(base + starts[n]), sizes[n])
            at += sizes[n]
    offsets[len(starts)] = at
    return at


@njit(cache=True, nogil=True)
def identify(buf, starts, sizes, ids):
    """Payload bytes 1 to 16 of each record, as two words; zero where the payload is shorter."""
    base = buf.ctypes.data
    for n in range(len(starts)):
        ids[n, 0] = ids[n, 1] = 0
        if sizes[n] >= 17:
            at = np.uintp(base + starts[n] + 1)
            ids[n, 0] = _load64(at)
            ids[n, 1] = _load64(at + np.uintp(8))


@njit(cache=True, nogil=True)
def frame(values, offsets, first_time, zone, out):
    """Write one record for each payload; returns where they end."""
    at = 0
    seconds = first_time // _SECOND
    nanos = first_time - seconds * _SECOND
    for n in range(len(offsets) - 1):
        start = at
        out[at] = 1
        whole = np.uint64(seconds + _EPOCH)
        for k in range(8):
            out[at + 1 + k] = (whole >> np.uint64(56 - 8 * k)) & np.uint64(255)
        for k in range(4):
            out[at + 9 + k] = (nanos >> (24 - 8 * k)) & 255
        out[at + 13] = zone >> 8
        out[at + 14] = zone & 255
        at += 15
        size = offsets[n + 1] - offsets[n]
        left = size
        while left >= 0x80:
            out[at] = left & 0x7F | 0x80
            left >>= 7
            at += 1
        out[at] = left
        at += 1
        first = offsets[n]
        out[at : at + size] = values[first : first + size]
        at += size
        crc = crc32c(out, start, at)
        for k in range(4):
            out[at + k] = (crc >> np.uint32(24 - 8 * k)) & np.uint32(255)
        at += 4
        nanos += 1
        if nanos == _SECOND:
            nanos = 0
            seconds += 1
    return at
