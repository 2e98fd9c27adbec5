"""Segment files: their names, numbers and header. Pure.

    offset  size   field
    0       4      magic    given to the stream, `wqwq` for a journal, `cptn` for a plain log
    4       4      version  u32, big endian
    8       ..     records

Rules:

1. A name is the sequence number in nine digits, zero padded, and `.log`; a number past 999 999 999
   takes the digits it needs. Order is numeric. Any other name is foreign: never read, never
   deleted.
2. `<name>.rw` is a rewrite under way, `<name>.new` a segment being made; a left-over one is removed
   before anything is read.
3. `<name>.torn-<time>` and `<name>.damaged-<time>` are copies kept by recovery and repair.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from struct import Struct
from typing import Final

from fastjournal.errors import SegmentError, SettingError, VersionMismatch

__all__ = [
    "CAPTAIN",
    "HEADER_SIZE",
    "NEW_SUFFIX",
    "REWRITE_SUFFIX",
    "WORKQ",
    "Header",
    "Position",
    "parse_name",
    "segment_name",
]

HEADER_SIZE: Final = 8
NEW_SUFFIX = ".new"
REWRITE_SUFFIX = ".rw"

_NAME = re.compile(r"([0-9]{9}|[1-9][0-9]{9,18})\.log")
_HEADER = Struct(">4sI")


@dataclass(frozen=True, slots=True)
class Header:
    """Magic and version, written to every segment and verified on every open."""

    magic: bytes
    version: int = 1

    def __post_init__(self) -> None:
        if len(self.magic) != 4:
            raise SettingError(f"magic must be four bytes, not {self.magic!r}", name="magic")
        if not 0 <= self.version <= 0xFFFFFFFF:
            raise SettingError(f"version must fit 32 bits, not {self.version}", name="version")

    def encode(self) -> bytes:
        """The eight bytes."""
        return _HEADER.pack(self.magic, self.version)

    @classmethod
    def decode(cls, data: bytes) -> Header:
        """Read eight bytes."""
        magic, version = _HEADER.unpack(data[:HEADER_SIZE])
        return cls(magic, version)

    def check(self, data: bytes, path: object) -> None:
        """Refuse a segment that begins with another header."""
        found = Header.decode(data)
        if found.magic != self.magic:
            raise SegmentError(str(path), f"magic {found.magic!r}, expected {self.magic!r}")
        if found.version != self.version:
            raise VersionMismatch(f"{path}: version {found.version}, expected {self.version}")


CAPTAIN = Header(b"cptn")
WORKQ = Header(b"wqwq")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a stream: segment number and byte offset inside it."""

    segment: int
    offset: int


def segment_name(number: int) -> str:
    """The file name of segment `number`."""
    return f"{number:09d}.log"


def parse_name(name: str) -> int | None:
    """The number in a segment's file name; None for a foreign name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
