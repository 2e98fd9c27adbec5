"""The frames of a spool file as a forwarder handles them: found, their jobs taken out, marked done.

Rules:

1. A frame is sound as `frames` says. What is not sound ends a run of frames: the reader sees to it.
2. The job of a message is taken as it is if the message is as `wire.fj.put_message` makes it: with
   all that the job needs, its timestamp too, and nothing that counts from its arrival. Any other is
   read by itself.
"""

from collections.abc import Sequence
from typing import Any, Final, final

import google_crc32c
from mypy_extensions import i64, mypyc_attr

from fastjournal.buffers import BytesWriter, read_i32_be, write_i64_be
from fastjournal.spool.frames import DONE, HEAD_SIZE, MAX_FRAME, READY
from fastjournal.wire.fj.fields import get_u16, get_u32, get_u64
from fastjournal.wire.fj.functions import PERSIST, PERSIST_SET, VALUE_BITS
from fastjournal.wire.fj.job_codec import DELAY, PUT_SIZE

__all__ = ["Frame", "done_runs", "plain_job", "sound_frames", "take_plain"]

_READY: Final[i64] = 0x666A0000 | READY << 8
_DONE: Final[i64] = 0x666A0000 | DONE << 8
_DONE_STATE: Final = bytes((DONE,))
_LAST_MICROSECOND: Final = 9_223_372_036_854_775
_HEAD_SIZE: Final[i64] = HEAD_SIZE
_MAX_FRAME: Final[i64] = MAX_FRAME
_BEYOND: Final[i64] = 1 << 32
"""Offsets from here on have no mark."""
_SET: Final = b"FJ\0\1\0\2"
_OTHER_FLAGS: Final[i64] = ~(VALUE_BITS | PERSIST | PERSIST_SET)
_JOB: Final = 6
_LAYOUT: Final = 2
_crc: Final[Any] = google_crc32c.value


@final
@mypyc_attr(acyclic=True)
class Frame:
    """A frame as it lies in a file."""

    def __init__(self, offset: i64, end: i64, data: bytes) -> None:
        self.offset: i64 = offset
        self.end: i64 = end
        self.data = data
        """Head and message."""

    @property
    def done(self) -> bool:
        """It was forwarded."""
        return self.data[2] == DONE

    @property
    def timestamp(self) -> int:
        """When it was put, ns."""
        at = _HEAD_SIZE + 10
        return int.from_bytes(self.data[at : at + 8], "big") * 1000


def sound_frames(data: bytes, start: i64, most: i64) -> list[Frame]:
    """The sound frames at the beginning of what was read from `start` on, at most so many."""
    found: list[Frame] = []
    at: i64 = 0
    total: i64 = len(data)
    while at + _HEAD_SIZE <= total and len(found) < most:
        lead = i64(read_i32_be(data, at))
        length = get_u32(data, at + 4)
        begin = at + _HEAD_SIZE
        end = begin + length
        if (lead != _READY and lead != _DONE) or end > total or length > _MAX_FRAME:
            break
        checksum: i64 = _crc(data[begin:end])
        if checksum != get_u32(data, at + 8):
            break
        found.append(Frame(start + at, start + end, data[at:end]))
        at = end
    return found


def plain_job(frame: Frame) -> bytes:
    """The job of a frame as layout 2, if it can be taken as it is (rule 2); else nothing."""
    data = frame.data
    size: i64 = len(data)
    begin = _HEAD_SIZE
    if size < begin + 19 or data[begin : begin + 6] != _SET or data[begin + 18]:
        return b""
    flags = get_u16(data, begin + 8)
    width = (flags & VALUE_BITS) >> 1
    if not width or flags & _OTHER_FLAGS:
        return b""
    at = begin + 20 + (1 << width - 1)
    if (
        size < at + PUT_SIZE
        or data[at - 1] != _JOB
        or data[at] != _LAYOUT
        or data[at + 1] >= DELAY  # this flag, or one above it
    ):
        return b""
    if get_u16(data, at + 82) and not any(data[at + 44 : at + 52]):
        return b""  # merged by its timestamp, which stands in the message alone
    if any(data[at + 44 : at + 52]):
        return data[at:]
    micros = get_u64(data, begin + 10)  # how old it is, without a key too
    if micros > _LAST_MICROSECOND:
        return b""
    out = BytesWriter()
    out.write(data[at : at + 44])
    write_i64_be(out, micros * 1000)
    out.write(data[at + 52 :])
    return out.getvalue()


def take_plain(found: Sequence[Any], at: int, frames: list[Frame], jobs: list[bytes]) -> int:
    """Add frames and their jobs from `at` on; returns the place of the first that needs a look.

    Frames that are done are passed over.
    """
    count = len(found)
    while at < count:
        frame = found[at]
        if not isinstance(frame, Frame):
            break
        if not frame.done:
            if frame.end >= _BEYOND:
                break
            job = plain_job(frame)
            if not job:
                break
            frames.append(frame)
            jobs.append(job)
        at += 1
    return at


def done_runs(frames: Sequence[Frame]) -> list[tuple[int, bytes]]:
    """Where to write what so that these frames are done: frames side by side in one piece."""
    runs: list[tuple[int, bytes]] = []
    out = BytesWriter()
    start: i64 = -1
    end: i64 = -1
    for frame in frames:
        if frame.offset != end:
            if len(out):
                runs.append((int(start), out.getvalue()))
                out.truncate(0)
            start = frame.offset
        data = frame.data
        out.write(data[:2])
        out.write(_DONE_STATE)
        out.write(data[3:])
        end = frame.end
    if len(out):
        runs.append((int(start), out.getvalue()))
    return runs
