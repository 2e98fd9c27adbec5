"""What a forwarder does to the files of a spool, as an object: tests give it one in memory.

Rules:

1. Names are opened and made as `opening` says: never through a link, for nobody who may not use the
   directory.
2. What goes on inside `quarantine/` holds on to the open directory: nobody can put another one in
   its place meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from fastjournal.log.files import DiskFiles, DiskHandle, FileHandle, Files
from fastjournal.spool.directory import identity
from fastjournal.spool.opening import (
    SHARED,
    checked_mode,
    make_file,
    mode_in,
    open_file,
    open_folder,
)

__all__ = ["Folder", "SpoolDisk", "SpoolFiles", "SpooledHandle", "open_spooled"]


class SpooledHandle(FileHandle, Protocol):
    """An open spool file."""

    def mode(self) -> int:
        """Who may read and write it."""

    def seize(self) -> bool:
        """Keep producers out; False if one has the file open."""

    def give_back(self) -> None:
        """Let producers in again."""


class Folder(Protocol):
    """A directory inside the spool, held open; files are told by their names."""

    def exists(self, name: str) -> bool:
        """Whether there is anything of that name."""

    def create(self, name: str, mode: int) -> FileHandle:
        """Make a new file, for at most these people."""

    def append(self, name: str) -> FileHandle:
        """A file to append to, made if it is missing."""

    def rename(self, source: str, target: str) -> None:
        """Put `source` in the place of `target`."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def sync(self) -> None:
        """Make the names durable."""


class SpoolFiles(Files, Protocol):
    """The file operations of a forwarder."""

    def spool_identity(self, directory: Path) -> bytes:
        """The 16 bytes that name the spool."""

    def open_spooled(self, path: Path) -> SpooledHandle:
        """Open a spool file to read it and to mark its frames."""

    def folder(self, directory: Path) -> AbstractContextManager[Folder]:
        """A directory inside the spool, made if it is missing."""


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


class _DiskFolder:
    def __init__(self, fd: int, mode: int) -> None:
        self._fd = fd
        self._mode = mode

    def exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def create(self, name: str, mode: int) -> FileHandle:
        return DiskHandle(make_file(name, mode_in(self._fd, mode & self._mode), self._fd))

    def append(self, name: str) -> FileHandle:
        with contextlib.suppress(FileExistsError):
            return self.create(name, self._mode)
        return DiskHandle(open_file(name, os.O_RDWR | os.O_APPEND, self._fd))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        os.fsync(self._fd)


class SpoolDisk(DiskFiles):
    """Spools on the disks of the operating system."""

    def __init__(self, mode: int = SHARED) -> None:
        """`mode`: of the files that are made, 0660 or 0600."""
        self._mode = checked_mode(mode)

    def spool_identity(self, directory: Path) -> bytes:
        os.makedirs(directory, exist_ok=True)
        return identity(str(directory))

    def open_spooled(self, path: Path) -> SpooledHandle:
        return open_spooled(str(path), os.O_RDWR)

    @contextlib.contextmanager
    def folder(self, directory: Path) -> Iterator[Folder]:
        mode = mode_in(str(directory.parent), self._mode)
        entered = mode | (mode >> 2) & 0o111  # who may read may enter
        made = False
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, entered)
            made = True
        fd = open_folder(str(directory))
        try:
            if made:
                os.fchmod(fd, entered)  # whatever the umask
            yield _DiskFolder(fd, mode)
        finally:
            os.close(fd)
