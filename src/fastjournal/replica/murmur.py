"""MurmurHash3, 128 bits, for 64-bit machines: a spread of bytes that every language has. Pure.

Not for secrets: whoever chooses the bytes can choose the hash. Some 4 µs for a short key.
"""

from __future__ import annotations

from struct import Struct

__all__ = ["murmur128"]

_ALL = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_BLOCK = Struct("<QQ")
_DIGEST = Struct(">QQ")


def murmur128(data: bytes, seed: int = 0) -> bytes:
    """The 16 bytes of `MurmurHash3_x64_128`, both halves big endian."""
    h1 = h2 = seed
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        k1, k2 = _BLOCK.unpack_from(data, at)
        h1 ^= _first(k1)
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _ALL
        h2 ^= _second(k2)
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _ALL
    rest = data[whole:]
    h1 ^= _first(int.from_bytes(rest[:8], "little"))
    h2 ^= _second(int.from_bytes(rest[8:], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = h1 + h2 & _ALL
    h2 = h2 + h1 & _ALL
    h1, h2 = _mixed(h1), _mixed(h2)
    h1 = h1 + h2 & _ALL
    return _DIGEST.pack(h1, h2 + h1 & _ALL)


def _first(k: int) -> int:
    return _rotated(k * _C1 & _ALL, 31) * _C2 & _ALL


def _second(k: int) -> int:
    return _rotated(k * _C2 & _ALL, 33) * _C1 & _ALL


def _rotated(x: int, by: int) -> int:
    return (x << by | x >> 64 - by) & _ALL


def _mixed(k: int) -> int:
    k ^= k >> 33
    k = k * 0xFF51AFD7ED558CCD & _ALL
    k ^= k >> 33
    k = k * 0xC4CEB9FE1A85EC53 & _ALL
    return k ^ k >> 33
