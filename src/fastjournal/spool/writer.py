"""The producer's side: a job is one append to a local file, and nothing else.

Rules:

1. `put` is one `write` to a file opened for appending: atomic among threads and processes on a
   local file system, without a lock. It waits for no network, daemon, forwarder or reader.
2. When `put` has returned, the job survives the death of the process; with `sync`, also that of the
   machine. When it raises, the job is not in the spool, or is there torn and will be passed over.
3. A file belongs to an hour UTC. A producer never goes back to an earlier hour, so its jobs lie in
   the order in which it put them, also when the clock is set back.
4. Who has a file open holds a shared `flock` on it from before its first write: a forwarder removes
   a file only under the exclusive one, so nothing is ever written into a removed file. Nobody waits
   for these locks: a producer that cannot have one takes the next file. So it does where what has
   the name is no file of this spool's people.
5. A file is closed when the last thread has let go of it, never while one may be writing.
6. The size of the spool is looked up after every so many bytes, never for each put.
7. Importing this module loads the standard library, crc and hash only, and little of the first.
"""

from __future__ import annotations

import fcntl
import os
import time
from stat import S_ISSOCK
from struct import error as struct_error

from fastjournal.errors import (
    BadRequest,
    Closed,
    NoSpace,
    OutOfRange,
    SpoolFull,
    TooLarge,
    write_failure,
)
from fastjournal.keys import MAX_KEY, MAX_QUEUE, domain
from fastjournal.spool.frames import HOUR, frame, name_of
from fastjournal.spool.spool_dir import (
    SHARED,
    ForeignFile,
    begin_boot,
    boot_id,
    checked_mode,
    create_file,
    hours,
    identity,
    is_this_boot,
    open_file,
    sync_directory,
    used,
)
from fastjournal.wire.fj.put_message import encode_put

TYPE_CHECKING = False  # `typing` would be half of what the import costs
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Self

    from fastjournal.arguments import Instant, Length, Text
    from fastjournal.clock import Clock
    from fastjournal.model import NewJob

__all__ = [
    "FILE_LIMIT",
    "GOING_AWAY",
    "LOOK_BYTES",
    "MAX_BYTES",
    "NOT_THERE",
    "WAKE",
    "Spool",
    "open_locked",
]

MAX_BYTES = 8 << 30
"""Size of all files of a spool together, unless told otherwise."""
MAX_WRITE = 64 << 20
"""Largest `put_many`, in bytes."""
WAKE = "wake.sock"
"""Where a forwarder without other means listens for producers."""

NOT_THERE, GOING_AWAY = -1, -2

FILE_LIMIT = 2 << 30
"""Bytes; then the file of the next hour is begun early. Half of what a mark can say."""
LOOK_BYTES = 16 << 20
"""Bytes written between two looks at the size of the spool, at most."""
_AHEAD = 30 * 24  # hours by which files of other producers may be ahead and still be joined
_MAX_VALUE = 1024 * 1024
_USUAL = {"payload", "key", "queue", "priority"}


class Spool:
    """A directory into which jobs are put; `put` as that of a journal, but it answers nothing."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: bool = False,
        max_bytes: int = MAX_BYTES,
        max_payload: int = _MAX_VALUE,
        mode: int = SHARED,
        clock: Clock | None = None,
        write: Callable[[int, bytes], int] = os.write,
        boot: Callable[[], bytes] = boot_id,
        sync_names: Callable[[str], None] = sync_directory,
    ) -> None:
        """Use a spool, made if its directory is missing.

        `sync`: every put waits for the disk. `max_bytes`: size of all files together, done or not,
        beyond which a put raises `SpoolFull`. `mode`: of the files it makes, 0660 or 0600; never
        wider than the directory.
        """
        self.path = os.fspath(path)
        self.sync = sync
        self.max_bytes = max_bytes
        self.max_payload = max_payload
        self.mode = checked_mode(mode)
        self._now = time.time_ns if clock is None else clock.now
        self._write = write
        self._boot = boot
        self._sync_names = sync_names
        self._last = 0
        self._file: OpenFile | None = None
        self._closed = False
        self._waker: Any = None
        try:
            os.makedirs(self.path, exist_ok=True)
            self.identity = identity(self.path)
        except OSError as error:
            raise write_failure(error, self.path) from error

    def put(
        self,
        payload: bytes = b"",
        *,
        key: Text | None = None,
        queue: Text | None = None,
        priority: int = 100,
        delay: Length | None = None,
        due: Instant | None = None,
        ttl: Length | None = None,
        expires: Instant | None = None,
        lease: Length | None = None,
        max_attempts: int = 0,
        max_timeouts: int = 0,
        max_fails: int = 0,
        mode: str | None = None,
        timestamp: Instant | None = None,
        id: bytes = b"",  # noqa: A002 - the name of the field
        sync: bool | None = None,
    ) -> None:
        """Put a job into the spool; the arguments are those of `Journal.put`.

        `delay` and `ttl` count from now, not from the arrival of the job. Of two puts of a key the
        newer one wins, also when it was put elsewhere and arrives first: `timestamp` is now unless
        told otherwise. `sync`: wait for the disk, or do not, whatever the spool says.
        """
        now = self._now()
        if now <= self._last:
            now = self._last + 1
        self._last = now
        if (
            delay is None
            and due is None
            and ttl is None
            and expires is None
            and lease is None
            and mode is None
            and timestamp is None
            and not (id or max_attempts or max_timeouts or max_fails)
        ):
            data = self._usual(now, payload, key, queue, priority)
        else:
            data = self._any(
                now,
                payload=payload, key=key, queue=queue, priority=priority, delay=delay, due=due,
                ttl=ttl, expires=expires, lease=lease, max_attempts=max_attempts,
                max_timeouts=max_timeouts, max_fails=max_fails, mode=mode, timestamp=timestamp,
                id=id,
            )  # fmt: skip
        self._append(data, now, sync)

    def put_many(
        self, jobs: Iterable[NewJob | Mapping[str, Any]], *, sync: bool | None = None
    ) -> None:
        """Put many jobs with one write; each is a `NewJob` or the arguments of `put`.

        If one is refused none is put. At most 64 MiB together.
        """
        parts = []
        now = self._now()
        for job in jobs:
            if now <= self._last:
                now = self._last + 1
            self._last = now
            if isinstance(job, dict) and job.keys() <= _USUAL:
                part = self._usual(
                    now, job.get("payload", b""), job.get("key"), job.get("queue"),
                    job.get("priority", 100),
                )  # fmt: skip
            elif isinstance(job, tuple):
                part = self._checked(job, now)
            else:
                part = self._any(now, **job)
            parts.append(part)
        data = b"".join(parts)
        if len(data) > MAX_WRITE:
            raise TooLarge(f"{len(data)} bytes in one write exceed the limit of {MAX_WRITE}")
        if data:
            self._append(data, now, sync)

    def close(self) -> None:
        """Let go of the file; a put raises `Closed` from now on."""
        self._closed = True
        self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _usual(
        self, now: int, payload: bytes, key: Text | None, queue: Text | None, priority: int
    ) -> bytes:
        """The frame of a job with nothing special about it."""
        if key is None:
            key_data, mode, stamp = b"", 2, 0
        else:
            key_data = key if key.__class__ is bytes else _text(key)
            mode, stamp = 0, now
        if queue is None:
            queue_data = domain(key_data) if key_data else b""
        else:
            queue_data = queue if queue.__class__ is bytes else _text(queue)
        if (
            payload.__class__ is not bytes
            or len(payload) > self.max_payload
            or not 0 < len(queue_data) <= MAX_QUEUE
            or len(key_data) > MAX_KEY
            or (not key_data and not mode)
            or priority.__class__ is not int
            or not 0 <= priority <= 255
        ):
            return self._any(now, payload=payload, key=key, queue=queue, priority=priority)
        return frame(encode_put(now, queue_data, payload, key_data, mode, priority, 0, 0, stamp))

    def _any(self, now: int, **given: Any) -> bytes:
        """The frame of any job; refuses what `Journal.put` refuses."""
        from fastjournal.arguments import put_request

        try:
            job = put_request(now, **{**given, "limit": self.max_payload}).new_job()
        except TypeError as error:
            raise BadRequest(str(error).replace("put_request()", "put")) from None
        return self._encode(job, now)

    def _checked(self, job: Any, now: int) -> bytes:
        """The frame of a `NewJob`."""
        from fastjournal.arguments import key_bytes, payload_bytes, queue_bytes

        payload_bytes(job.value, self.max_payload)
        queue_bytes(job.queue)
        if job.key:
            key_bytes(job.key)
        return self._encode(job, now)

    def _encode(self, job: NewJob, now: int) -> bytes:
        if job.key and not job.timestamp:
            job = job._replace(timestamp=now)
        try:
            return frame(encode_put(now, *job))
        except struct_error as error:
            raise OutOfRange(f"the job does not fit: {error}") from None

    def _append(self, data: bytes, now: int, sync: bool | None) -> None:
        file = self._file
        if file is None or now >= file.until:
            file = self._next_file(now)
        size = len(data)
        room = file.room - size
        if room < 0:
            file, room = self._look(file, size, now)
        file.room = room
        try:
            done = self._write(file.fd, data)
        except OSError as error:
            raise write_failure(error, self.path) from error
        if done != size:
            raise NoSpace(f"{self.path}: only {done} of {size} bytes could be written")
        if self.sync if sync is None else sync:
            try:
                os.fdatasync(file.fd)
                if not file.named:  # it may have been made by one who does not sync
                    self._sync_names(self.path)
                    file.named = True
            except OSError as error:
                self._file = None
                raise write_failure(error, self.path) from error
        if self._waker is not None:
            self._wake()

    def _look(self, file: OpenFile, size: int, now: int) -> tuple[OpenFile, int]:
        """Look up how much room there is; returns the file to write and what is left after it."""
        total = used(self.path)
        if total + size > self.max_bytes:
            raise SpoolFull(
                f"{self.path}: {total} bytes and {size} more exceed the limit of {self.max_bytes}"
            )
        if os.fstat(file.fd).st_size + size > FILE_LIMIT:
            file = self._next_file(now, file.hour + 1)
        # Others write too: near the limit everybody looks more often.
        return file, min(LOOK_BYTES, (self.max_bytes - total - size) // 16)

    def _next_file(self, now: int, least: int = 0) -> OpenFile:
        """Open the file of the hour, or a later one."""
        if self._closed:
            raise Closed("the spool is closed")
        old = self._file
        hour = max(now // HOUR, least, old.hour if old is not None else 0)
        try:
            boot = self._boot()
            there = hours(self.path)
            if is_this_boot(self.path, boot):
                hour = max([hour, *(h for h in there if h <= now // HOUR + _AHEAD)])
            else:
                while hour in there:
                    hour += 1
            fd = -1
            while fd < 0:
                path = os.path.join(self.path, name_of(hour))
                fd = open_locked(path)
                if fd == NOT_THERE:
                    create_file(path, mode=self.mode, sync=self.sync)
                elif fd == GOING_AWAY:
                    hour = max(hour + 1, self._now() // HOUR)
            if not is_this_boot(self.path, boot):
                begin_boot(self.path, boot)
        except OSError as error:
            raise write_failure(error, self.path) from error
        # A file ahead of the clock is left when the clock is past it.
        self._file = file = OpenFile(fd, hour, (hour + 1) * HOUR)
        self._find_waker()
        return file

    def _find_waker(self) -> None:
        path = os.path.join(self.path, WAKE)
        if self._waker is None and _is_socket(path):
            import _socket

            self._waker = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            self._waker.setblocking(False)

    def _wake(self) -> None:
        """Tell the forwarder; it would find out by itself."""
        try:
            self._waker.sendto(b"!", os.path.join(self.path, WAKE))
        except OSError:
            if not _is_socket(os.path.join(self.path, WAKE)):
                self._waker = None


def _is_socket(path: str) -> bool:
    try:
        return S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _text(value: object) -> bytes:
    """Text as bytes; empty if it is none, so that the general way says what is wrong."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            return b""
    return b""


class OpenFile:
    """A file that is being written; closed when the last thread has let go of it."""

    __slots__ = ("fd", "hour", "named", "room", "until")

    def __init__(self, fd: int, hour: int, until: int) -> None:
        self.fd = fd
        self.hour = hour
        self.named = False
        """Its name is on stable storage."""
        self.until = until
        """From this instant on another file is written."""
        self.room = 0
        """Bytes that may be written before the next look at the size of the spool."""

    def __del__(self) -> None:
        os.close(self.fd)


def open_locked(path: str) -> int:
    """A descriptor whose file cannot be removed while it is open; or `NOT_THERE`, `GOING_AWAY`."""
    try:
        fd = open_file(path, os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        return NOT_THERE
    except ForeignFile:
        return GOING_AWAY
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return GOING_AWAY
        try:
            same = os.path.samestat(os.lstat(path), os.fstat(fd))
        except FileNotFoundError:
            same = False
    except OSError:
        os.close(fd)
        raise
    if not same:  # it was removed between the two steps
        os.close(fd)
        return NOT_THERE
    return fd
