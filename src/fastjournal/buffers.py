"""Growing byte strings, numbers in them and arrays of numbers: librt's, or plain Python's.

librt is a C extension that the compiler of the core also knows by itself: compiled modules use it
without a call. Where it is not installed these stand-ins serve the interpreted core.

Rules:

1. Numbers are big endian and signed; whoever needs unsigned ones folds them.
2. A number that does not fit, or that would be read past the end, is an error.
"""

try:
    from librt.strings import (
        BytesWriter,
        read_i16_be,
        read_i32_be,
        read_i64_be,
        write_i16_be,
        write_i32_be,
        write_i64_be,
    )
    from librt.vecs import vec
except ImportError:  # pragma: no cover - depends on the installation; tested by itself
    from fastjournal.package.plain_buffers import (  # type: ignore[assignment]
        BytesWriter,
        read_i16_be,
        read_i32_be,
        read_i64_be,
        vec,
        write_i16_be,
        write_i32_be,
        write_i64_be,
    )

__all__ = [
    "BytesWriter",
    "read_i16_be",
    "read_i32_be",
    "read_i64_be",
    "vec",
    "write_i16_be",
    "write_i32_be",
    "write_i64_be",
]
