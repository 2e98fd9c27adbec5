"""Reading a spool: whole frames in order, from where one was, past whatever is damaged.

Rules:

1. Files are read oldest first, and only up to sizes that were looked up newest first: so what a
   producer put before, into an older file, is always read before what it put after.
2. A frame at the end that is not whole may still be on its way. It is waited for: `settle` ns, then
   a sound frame behind it proves that it was torn, and it is passed over. Meanwhile no newer file
   is read.
3. Damaged bytes are told once, as `Damage`, and passed over.
4. Nothing here changes a file.
5. A name that leads elsewhere, or to no file of this spool's people, is told as damage, not read.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from fastjournal.clock import SECOND
from fastjournal.errors import JournalError
from fastjournal.log.files import DiskHandle, FileHandle
from fastjournal.model import NewJob
from fastjournal.put_request import PutRequest
from fastjournal.spool.frames import (
    HEAD_SIZE,
    HEADER,
    HEADER_SIZE,
    HOUR,
    MAX_FRAME,
    check,
    name_of,
    next_frame,
)
from fastjournal.spool.sound_frames import Frame, plain_job, sound_frames
from fastjournal.spool.spool_dir import ForeignFile, hours, open_file
from fastjournal.wire.fj.functions import Function, Type
from fastjournal.wire.fj.job_codec import encode_job, read_job
from fastjournal.wire.fj.requests import Limits, Request, RequestParser

__all__ = [
    "Damage",
    "Frame",
    "SpoolFile",
    "SpooledHandle",
    "SpooledJob",
    "job_bytes",
    "job_of",
    "open_spooled",
    "open_to_read",
    "read_spool",
]

READ = 1 << 20
SETTLE = SECOND
_LIMITS = Limits(max_value=MAX_FRAME, max_message=MAX_FRAME)
_WINDOW = 4 * MAX_FRAME


class Damage(NamedTuple):
    """Bytes that are no frame."""

    offset: int
    end: int
    data: bytes
    reason: str

    @property
    def sound(self) -> bool:
        """There is a frame in it after all."""
        return check(self.data, 0) > 0 or next_frame(self.data, 0) >= 0


class SpooledHandle(FileHandle, Protocol):
    """An open spool file."""

    def mode(self) -> int:
        """Who may read and write it."""

    def seize(self) -> bool:
        """Keep producers out; False if one has the file open."""

    def give_back(self) -> None:
        """Let producers in again."""


class _SpooledHandle(DiskHandle):
    __slots__ = ()

    def mode(self) -> int:
        return os.fstat(self._fd).st_mode & 0o666

    def seize(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def give_back(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)


def open_spooled(path: str, flags: int) -> SpooledHandle:
    """Open a spool file that is there; `ForeignFile` if it is none of ours."""
    return _SpooledHandle(open_file(path, flags))


class SpoolFile:
    """One file, read from the beginning to its end, which moves."""

    def __init__(self, path: str, hour: int, handle: SpooledHandle) -> None:
        self.path = os.path.join(path, name_of(hour))
        self.hour = hour
        self.handle = handle
        # A file whose header was lost with the power is read all the same.
        self.headless = handle.read(0, HEADER_SIZE) != HEADER
        self.offset = 0 if self.headless else HEADER_SIZE
        """Everything before it was given out."""
        self.limit = 0
        """Where to read to, as last looked up."""
        self.waiting_since = -1
        """Monotonic ns since which the frame at `offset` is not whole; -1: it is, or none there."""
        self.owed = False
        """Something in it could not be copied to quarantine: the file has to be read again."""
        self._stuck_size = -1  # of the file when the frame at `offset` was last found not whole

    def look(self) -> int:
        """Look up how long the file is."""
        self.limit = self.handle.size()
        return self.limit

    def read(
        self, now: int, *, most_bytes: int = READ, most: int = 1 << 20, settle: int = SETTLE
    ) -> list[Frame | Damage]:
        """What comes next, up to the limit; empty if nothing does. `now` is monotonic.

        At most so many frames; so many bytes unless a single frame is larger.
        """
        size = min(self.limit - self.offset, most_bytes)
        if size <= 0:
            return []
        data = self.handle.read(self.offset, size)
        found: list[Frame | Damage] = [*sound_frames(data, self.offset, most)]
        if not found:  # what stands here is longer than what was read, or not sound
            data = self.handle.read(self.offset, min(self.limit - self.offset, _WINDOW))
            found.extend(sound_frames(data, self.offset, most))
            if not found:
                self._stuck(data, now, settle, found)
        if found:
            self.offset = found[-1].end
            self.waiting_since = -1
        return found

    def _stuck(self, data: bytes, now: int, settle: int, found: list[Frame | Damage]) -> None:
        """There is no sound frame at the offset: wait for it, or pass over it."""
        torn = check(data, 0) == 0
        self._stuck_size = self.limit
        if self.waiting_since < 0:
            self.waiting_since = now
        if torn and now - self.waiting_since < settle:
            return
        after = next_frame(data, 0)
        if after < 0:
            if len(data) < _WINDOW:
                return
            after = _WINDOW - MAX_FRAME
        reason = "a torn frame" if torn else "no frame, or its checksum is wrong"
        found.append(Damage(self.offset, self.offset + after, data[:after], reason))

    def waits(self, now: int, settle: int = SETTLE) -> bool:
        """What stands next may still be on its way; see rule 2."""
        return self.waiting_since >= 0 and now - self.waiting_since < settle

    def is_torn(self, now: int, settle: int = SETTLE) -> bool:
        """All that is left is a frame that nobody goes on with; see rule 2."""
        return (
            self.waiting_since >= 0
            and now - self.waiting_since >= settle
            and self._stuck_size == self.look()
        )

    def rewind(self) -> None:
        """Read it from the beginning again."""
        self.offset = 0 if self.headless else HEADER_SIZE
        self.waiting_since = -1

    def rest(self) -> Damage | None:
        """What is left between the last frame and the end, when nobody writes any more."""
        size = self.look() - self.offset
        if size <= 0:
            return None
        data = self.handle.read(self.offset, size)
        return Damage(self.offset, self.offset + len(data), data, "a torn frame at the end")

    def peek(self) -> Frame | None:
        """The head of the frame that comes next, not checked; None if there is none."""
        data = self.handle.read(self.offset, HEAD_SIZE + 18)
        return Frame(self.offset, 0, data) if len(data) == HEAD_SIZE + 18 else None

    @property
    def at_end(self) -> bool:
        """Everything up to the limit was given out."""
        return self.offset >= self.limit

    def close(self) -> None:
        """Release the file."""
        self.handle.close()


def open_to_read(path: str, hour: int) -> SpoolFile:
    """The file of an hour, only to look at."""
    handle = open_spooled(os.path.join(path, name_of(hour)), os.O_RDONLY)
    return SpoolFile(path, hour, handle)


def job_bytes(frame: Frame) -> bytes:
    """The job of a frame as layout 2 with its key inside; `JournalError` if there is none."""
    return plain_job(frame) or encode_job(job_of(frame))


def job_of(frame: Frame) -> PutRequest:
    """The job of a frame, its lengths counted from when it was put.

    `JournalError` if its message is not a put, or of a job that cannot be.
    """
    messages = RequestParser(_LIMITS).feed(frame.data[HEAD_SIZE:])
    request = messages[0] if len(messages) == 1 else None
    if not isinstance(request, Request):
        text = "no request" if request is None else f"{request.code} {request.text}"
        raise JournalError(f"the frame holds no request: {text}")
    if request.function != Function.SET or request.value_type != Type.JOB:
        raise JournalError("the frame holds a request that puts no job")
    value, put_at = request.value, request.timestamp
    job = read_job(value, 0, len(value), request.key, put_at, put_at)
    if request.timeout is not None and not job.expires:
        job.expires = request.timeout
    return job


class SpooledJob(NamedTuple):
    """One frame of a spool for people and for Spark; a damaged place has a reason and no job."""

    hour: int
    """Since 1970."""
    offset: int
    size: int
    state: str
    """`ready`, `done` or `damaged`."""
    put_at: int
    """Ns."""
    job: NewJob | None
    reason: str = ""
    data: bytes = b""

    @property
    def file(self) -> str:
        """The name of its file."""
        return name_of(self.hour)


def read_spool(
    path: str | os.PathLike[str], keep: Callable[[int], bool] | None = None
) -> Iterator[SpooledJob]:
    """All jobs of a spool in order, done ones too; `keep` chooses files by their hour.

    May be called while others write; what is torn at the end of a file is told as damaged.
    """
    folder = os.fspath(path)
    for hour in hours(folder):
        if keep is not None and not keep(hour):
            continue
        try:
            file = open_to_read(folder, hour)
        except FileNotFoundError:  # forwarded and removed just now
            continue
        except ForeignFile as error:
            yield SpooledJob(hour, 0, 0, "damaged", hour * HOUR, None, str(error.strerror))
            continue
        try:
            file.look()
            while found := file.read(0, settle=0):
                for item in found:
                    yield _spooled_job(hour, item)
            rest = file.rest()
            if rest is not None:
                yield _spooled_job(hour, rest)
        finally:
            file.close()


def _spooled_job(hour: int, item: Frame | Damage) -> SpooledJob:
    size = item.end - item.offset
    if isinstance(item, Damage):
        return SpooledJob(
            hour, item.offset, size, "damaged", hour * HOUR, None, item.reason, item.data
        )
    state = "done" if item.done else "ready"
    try:
        job, reason = job_of(item).new_job(), ""
    except JournalError as error:
        job, reason = None, str(error)
    return SpooledJob(hour, item.offset, size, state, item.timestamp, job, reason, item.data)
