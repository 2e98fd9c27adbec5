"""The only place that opens, writes, syncs, renames and locks files.

Rules:

1. Everything above takes a `Files` object; tests give it `fastjournal.testing.MemoryFiles`.
2. Nothing here decides anything: no retry, no repair, no interpretation of bytes.
3. `write` may be short, as `os.write` may; the caller checks the count.
4. A lock is an advisory `flock` on a file of its own: the kernel releases it when the process dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol, TypeAlias, final

from mypy_extensions import mypyc_attr

from fastjournal.errors import LockTimeout, short_write
from fastjournal.log.segment import NEW_SUFFIX

__all__ = [
    "DISK",
    "DiskFiles",
    "DiskHandle",
    "FileHandle",
    "FileLock",
    "Files",
    "Identity",
    "file_size",
    "make_file",
    "read_file",
    "replace_file",
    "write_whole",
]

_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW  # a link in the place of a file is refused, not followed

Identity: TypeAlias = "tuple[int, int] | None"
"""What tells a file from every other one at the same time: its device and inode."""

_LOCK_POLL = 0.005  # seconds between two tries of a lock with a time limit

# Called for every record: not looked up in their module each time.
_write: Final[Callable[[int, bytes | memoryview], int]] = os.write
_write_at: Final[Callable[[int, bytes, int], int]] = os.pwrite


class FileHandle(Protocol):
    """An open file. Writes go to its end, unless room was reserved behind that."""

    def write(self, data: bytes | memoryview) -> int:
        """Append; returns how many bytes were taken."""

    def write_at(self, data: bytes, offset: int) -> int:
        """Overwrite in place; only for handles of `open_in_place`, and behind a `reserve`."""

    def reserve(self, offset: int, size: int) -> None:
        """Take room on the disk for `size` bytes at `offset`; the file grows by zeros.

        A later sync of what `write_at` puts there has no size to bring to the disk. From now on
        `write` is not for this handle.
        """

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""

    def size(self) -> int:
        """Length of the file in bytes."""

    def current_name(self) -> str:
        """Where this file stands; another text once it has lost its name. Empty: not to be told.

        Not by a `stat`: on Linux that makes the next write and sync of the file dearer by half.
        """

    def identity(self) -> Identity:
        """Which file this is, whatever its name is."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Return once the file's data and size are on stable storage."""

    def close(self) -> None:
        """Release the handle; closing twice is harmless."""


class FileLock(Protocol):
    """A lock that is held."""

    def is_named(self) -> bool:
        """Whether the file that is locked still has its name; True if that cannot be told."""

    def release(self) -> None:
        """Give the lock back."""


class Files(Protocol):
    """The file operations that a log needs."""

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, in no order."""

    def exists(self, path: Path) -> bool:
        """Whether there is anything at `path`."""

    def is_file(self, path: Path) -> bool:
        """Whether `path` is a regular file."""

    def identity(self, path: Path) -> Identity:
        """Which file has this name; None if there is none, or if that cannot be told."""

    def changed_at(self, path: Path) -> int:
        """When the content of a file was last changed, ns since 1970; 0: there is none."""

    def make_directory(self, directory: Path) -> None:
        """Create a directory unless it exists; its parent must exist."""

    def create(self, path: Path) -> FileHandle:
        """Make a new empty file for appending; fails if it exists."""

    def open(self, path: Path) -> FileHandle:
        """Open an existing file for reading and appending."""

    def open_in_place(self, path: Path) -> FileHandle:
        """Open (or create) a small side file that is overwritten in place."""

    def open_read(self, path: Path) -> FileHandle:
        """Open an existing file for reading."""

    def rename(self, source: Path, target: Path) -> None:
        """Put `source` in the place of `target` in one step."""

    def remove(self, path: Path) -> None:
        """Remove a file."""

    def sync_directory(self, directory: Path) -> None:
        """Make creations, renames and removals in the directory durable."""

    def boot_id(self) -> bytes:
        """Names this run of the operating system; empty if that cannot be told."""

    def lock(self, path: Path, *, exclusive: bool, timeout: float | None) -> FileLock:
        """Take a lock; wait at most `timeout` seconds (None: without limit), else LockTimeout."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DiskHandle:
    """An open file of the operating system."""

    __slots__ = ("_fd", "_link")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._link = f"/proc/self/fd/{fd}"

    def write(self, data: bytes | memoryview) -> int:
        return _write(self._fd, data)

    def write_at(self, data: bytes, offset: int) -> int:
        # Linux appends on pwrite to a descriptor in append mode, hence Files.open_in_place.
        return _write_at(self._fd, data, offset)

    def reserve(self, offset: int, size: int) -> None:
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_APPEND)
        os.posix_fallocate(self._fd, offset, size)

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts, got = [data], len(data)
        while got < size:
            data = os.pread(self._fd, size - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def current_name(self) -> str:
        try:
            return os.readlink(self._link)
        except OSError:
            return ""

    def identity(self) -> Identity:
        return _identity(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@final
class _DiskLock:
    __slots__ = ("_fd", "_identity", "_name")

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._identity = _identity(fd)

    def is_named(self) -> bool:
        return self._identity is None or _identity(self._name) == self._identity

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)  # closing the only descriptor releases the flock


@mypyc_attr(allow_interpreted_subclasses=True)
class DiskFiles:
    """Files of the operating system."""

    def names(self, directory: Path) -> list[str]:
        return os.listdir(directory)

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def is_file(self, path: Path) -> bool:
        return os.path.isfile(path)

    def identity(self, path: Path) -> Identity:
        return _identity(path)

    def changed_at(self, path: Path) -> int:
        try:
            return os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return 0

    def make_directory(self, directory: Path) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)

    def create(self, path: Path) -> FileHandle:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | _SAFE
        return DiskHandle(os.open(path, flags, 0o666))

    def open(self, path: Path) -> FileHandle:
        return DiskHandle(os.open(path, os.O_RDWR | os.O_APPEND | _SAFE))

    def open_in_place(self, path: Path) -> FileHandle:
        return DiskHandle(os.open(path, os.O_RDWR | os.O_CREAT | _SAFE, 0o666))

    def open_read(self, path: Path) -> FileHandle:
        # Not blocking: a pipe in the place of a file is refused, not waited for.
        return DiskHandle(os.open(path, os.O_RDONLY | _SAFE | os.O_NONBLOCK))

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def boot_id(self) -> bytes:
        try:
            with open("/proc/sys/kernel/random/boot_id", "rb") as file:
                return bytes.fromhex(file.read().decode().replace("-", ""))[:16]
        except (OSError, ValueError):
            return b""

    def lock(self, path: Path, *, exclusive: bool, timeout: float | None) -> FileLock:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | _SAFE, 0o666)
        except OSError as error:
            if exclusive or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            fd = os.open(path, os.O_RDONLY | _SAFE)  # enough to share a lock that is there
        try:
            self._flock(fd, path, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, timeout)
            # The holder's pid is for people and error messages only: a full disk may lose it.
            # Readers share their lock: they only wipe out the pid of one who held it alone.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                if exclusive:
                    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            os.close(fd)
            raise
        return _DiskLock(fd, os.path.abspath(path))

    @staticmethod
    def _flock(fd: int, path: Path, kind: int, timeout: float | None) -> None:
        if timeout is None:
            fcntl.flock(fd, kind)
            return
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
            if time.monotonic() >= deadline:
                holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
                owner = f" (held by process {holder})" if holder else ""
                raise LockTimeout(f"{path} is locked{owner}", path=path, holder=holder)
            time.sleep(_LOCK_POLL)


def write_whole(handle: FileHandle, data: bytes) -> None:
    """Write all of `data`, in several calls if the system takes it so (at most 2 GiB at once)."""
    view = memoryview(data)
    while view:
        written = handle.write(view)
        if not written:
            raise short_write(0, len(view))
        view = view[written:]


def read_file(files: Files, path: Path) -> bytes:
    """All of a file."""
    with contextlib.closing(files.open_read(path)) as handle:
        return handle.read(0, handle.size())


def file_size(files: Files, path: Path) -> int:
    """Length of a file in bytes."""
    with contextlib.closing(files.open_read(path)) as handle:
        return handle.size()


def make_file(files: Files, path: Path, content: Iterable[bytes]) -> None:
    """A new file whose content is on stable storage; its name is not, yet."""
    with contextlib.closing(files.create(path)) as handle:
        for part in content:
            write_whole(handle, part)
        handle.sync()


def replace_file(files: Files, path: Path, content: Iterable[bytes]) -> None:
    """Put a file with this content in the place of another, or of none, in one durable step."""
    work = path.with_name(path.name + NEW_SUFFIX)
    if files.exists(work):
        files.remove(work)
    try:
        make_file(files, work, content)
        files.rename(work, path)
    except OSError:
        with contextlib.suppress(OSError):  # half of it is worth nothing and may fill the disk
            files.remove(work)
        raise
    files.sync_directory(path.parent)


def _identity(file: int | str | Path) -> Identity:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


DISK = DiskFiles()
