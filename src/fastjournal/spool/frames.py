"""The bytes of a spool: names of files, frames in them, positions. Pure.

    <YYYYMMDDTHH>.fjq            one file per hour UTC
    header  46 4A 51 31          "FJQ1"
            u32                  version = 1
    frame   66 6A                "fj"
            u8                   state: 52 "R" ready, 44 "D" done
            u8                   0
            u32                  length of the message
            u32                  CRC-32C of the message
            message              a complete FJ request: SET of type 6, see `wire.fj.requests`

Rules:

1. All integers are big endian. Only the state byte of a frame ever changes.
2. A frame counts only if its CRC fits. What does not is skipped to the next place where a frame
   begins whose CRC fits: first where the bad one claims to end, then byte by byte.
3. The place of a frame is its identity: 8 bytes that name the spool, the hour of the file, the
   offset in it. Together they are 16 bytes that look like a UUID of version 8, and become the id of
   the job. The first 12 name the sender, one for each file; the last 4 are the mark.
4. A file is shorter than 4 GiB, so that an offset has 4 bytes; hours are counted since 1970.
"""

from __future__ import annotations

from struct import Struct

import google_crc32c

TYPE_CHECKING = False  # `typing` would be half of what a producer's import costs
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DONE",
    "HEADER",
    "HEADER_SIZE",
    "HEAD_SIZE",
    "HOUR",
    "MAX_FRAME",
    "READY",
    "SUFFIX",
    "UNPACK",
    "check",
    "crc",
    "frame",
    "hour_of",
    "name_of",
    "next_frame",
    "sender_name",
    "spool_tag",
]

HOUR = 3600 * 1_000_000_000
"""Ns."""
SUFFIX = ".fjq"
HEADER = b"FJQ1\0\0\0\1"
HEADER_SIZE = len(HEADER)
READY, DONE = 0x52, 0x44
MAX_FRAME = 16 * 1024 * 1024
"""Largest message; a longer one is damage."""

_PACK = Struct(">4sII").pack
HEAD_SIZE = 12
UNPACK = Struct(">2sBBII").unpack_from
"""Magic, state, 0, length and checksum."""
_START = b"fj"

crc: Callable[[bytes], int] = google_crc32c.value


def frame(message: bytes) -> bytes:
    """A message as a ready frame."""
    return _PACK(b"fjR\0", len(message), crc(message)) + message


def check(data: bytes, at: int) -> int:
    """Where the frame at `at` ends; 0 if more bytes are needed, -1 if there is no frame."""
    have = len(data) - at
    if have < HEAD_SIZE:
        begun = data[at : at + 3]
        return 0 if b"fjR".startswith(begun) or b"fjD".startswith(begun) else -1
    magic, state, zero, length, checksum = UNPACK(data, at)
    if magic != _START or zero or (state != READY and state != DONE) or length > MAX_FRAME:
        return -1
    start = at + HEAD_SIZE
    end = start + length
    if end > len(data):
        return 0
    return end if crc(data[start:end]) == checksum else -1


def next_frame(data: bytes, bad: int) -> int:
    """Where the next sound frame after the bad one at `bad` begins; -1 if there is none."""
    if len(data) - bad >= HEAD_SIZE and data[bad : bad + 2] == _START:
        claimed = bad + HEAD_SIZE + int.from_bytes(data[bad + 4 : bad + 8], "big")
        if claimed < len(data) and check(data, claimed) > 0:
            return claimed
    at = data.find(_START, bad + 1)
    while at >= 0:
        if check(data, at) > 0:
            return at
        at = data.find(_START, at + 1)
    return -1


def name_of(hour: int) -> str:
    """The file of an hour."""
    days, of_day = divmod(hour, 24)
    year, month, day = _civil(days)
    return f"{year:04}{month:02}{day:02}T{of_day:02}{SUFFIX}"


def hour_of(name: str) -> int | None:
    """The hour of a file; None if the name is not one of ours."""
    if len(name) != 15 or name[11:] != SUFFIX or name[8] != "T":
        return None
    digits = name[:8] + name[9:11]
    if not (digits.isascii() and digits.isdigit()):
        return None
    year, month, day, of_day = (
        int(digits[:4]), int(digits[4:6]), int(digits[6:8]), int(digits[8:]),
    )  # fmt: skip
    hour = _days(year, month, day) * 24 + of_day
    return hour if hour >= 0 and of_day < 24 and name_of(hour) == name else None


def spool_tag(identity: bytes) -> bytes:
    """The 8 bytes by which positions name a spool, from the 16 of its identity."""
    return identity[:6] + bytes((identity[6] & 0x0F | 0x80, identity[7]))


def sender_name(tag: bytes, hour: int) -> bytes:
    """The sender that stands for one file of a spool; with a mark of 4 bytes it is a job's id."""
    return tag + b"\x80" + hour.to_bytes(3, "big")


# `datetime` would do these two, and would double what importing the writer costs.


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of a count of days since 1970, in the proleptic Gregorian calendar."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    turned = (5 * of_year + 2) // 153
    month = turned + 3 if turned < 10 else turned - 9
    return year + era * 400 + (month <= 2), month, of_year - (153 * turned + 2) // 5 + 1


def _days(year: int, month: int, day: int) -> int:
    """The count of days since 1970 of a date."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
