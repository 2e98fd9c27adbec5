"""The forwarder's hands on a spool's directory: everything it changes there.

Rules:

1. A frame is marked done in place, by its state byte. Frames that lie together are written with one
   call: the other bytes stay what they are, and nobody else writes there.
2. A finished file goes in three steps, each of which may be the last before a crash: renamed under
   an exclusive lock, so that no producer has it open or can open it; forgotten by the daemon;
   removed. Each is on stable storage before the next begins: a file that came back after the daemon
   has forgotten it would be sent a second time.
3. What cannot be forwarded is copied to `quarantine/` before it is passed over: the bytes in a file
   of their own, a line of JSON in `report.jsonl`, both on stable storage. Who may not read the file
   may not read the copy. Doing it again changes nothing.
4. One forwarder at a time: it holds `forwarder.lock`.
5. Others may write into the directory: names are opened and made as `spool_dir` says. What goes on
   inside `quarantine/` holds on to the open directory, so nobody can put another one in its place.
6. File operations are those of an object: tests give it one in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from fastjournal.errors import short_write
from fastjournal.log.files import DiskFiles, DiskHandle, FileHandle, FileLock, Files
from fastjournal.spool.frames import SUFFIX, hour_of, name_of, spool_tag
from fastjournal.spool.reader import Damage, Frame, SpooledHandle, SpoolFile, open_spooled
from fastjournal.spool.sound_frames import done_runs
from fastjournal.spool.spool_dir import (
    GOING,
    SHARED,
    checked_mode,
    identity,
    make_file,
    mode_in,
    open_file,
    open_folder,
)

__all__ = ["LOCK", "QUARANTINE", "Folder", "ForwardedSpool", "SpoolDisk", "SpoolFiles"]

QUARANTINE = "quarantine"
LOCK = "forwarder.lock"
_REPORT = "report.jsonl"


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


class ForwardedSpool:
    """A spool's directory, for the one forwarder that serves it."""

    def __init__(self, path: str | os.PathLike[str], files: SpoolFiles | None = None) -> None:
        self.path = os.fspath(path)
        self._folder = Path(self.path)
        self._files = files if files is not None else SpoolDisk()
        self.tag = spool_tag(self._files.spool_identity(self._folder))
        self._lock: FileLock | None = None

    def lock(self) -> None:
        """Be the only forwarder; `LockTimeout` if there is another."""
        if self._lock is None:
            self._lock = self._files.lock(self._folder / LOCK, exclusive=True, timeout=0)

    def close(self) -> None:
        """Let another forwarder have it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def hours(self) -> list[int]:
        """The hours of which there are files, oldest first."""
        return self._hours("")

    def open(self, hour: int) -> SpoolFile | None:
        """The file of an hour; None if it is gone, `ForeignFile` if it is none of the spool's."""
        try:
            handle = self._files.open_spooled(self._folder / name_of(hour))
        except FileNotFoundError:
            return None
        return SpoolFile(self.path, hour, handle)

    def set_done(self, file: SpoolFile, frames: Sequence[Frame]) -> None:
        """These frames are done."""
        for start, data in done_runs(frames):
            file.handle.write_at(data, start)

    def quarantine(self, file: SpoolFile, item: Frame | Damage, reason: str) -> bool:
        """Copy what cannot be forwarded aside; False if it is there already."""
        name = f"{name_of(file.hour).removesuffix(SUFFIX)}-{item.offset:010}.bad"
        place = self._folder / QUARANTINE
        known = self._files.exists(place)
        with self._files.folder(place) as folder:
            if not known:
                self._files.sync_directory(self._folder)
            if folder.exists(name):
                return False
            line = json.dumps(
                {"file": name_of(file.hour), "offset": item.offset,
                 "size": item.end - item.offset, "copy": name, "reason": reason}
            )  # fmt: skip
            draft = f"{name}.{os.urandom(4).hex()}.new"
            try:
                _write(folder.create(draft, file.handle.mode()), item.data)
                _write(folder.append(_REPORT), line.encode() + b"\n", line=True)
            except OSError:
                with contextlib.suppress(FileNotFoundError):
                    folder.remove(draft)
                raise
            folder.sync()  # a copy that stands under its name was reported
            folder.rename(draft, name)
            folder.sync()
        return True

    def seize(self, file: SpoolFile) -> bool:
        """Keep producers out of a file; False if one has it open."""
        return file.handle.seize()

    def give_back(self, file: SpoolFile) -> None:
        """Let producers in again."""
        file.handle.give_back()

    def set_aside(self, file: SpoolFile) -> None:
        """Take a file that was seized away from producers for good; on stable storage."""
        file.handle.sync()
        self._files.rename(self._folder / name_of(file.hour), self._going(file.hour))
        self._files.sync_directory(self._folder)

    def going(self) -> list[int]:
        """Hours of the files that are set aside."""
        return self._hours(GOING)

    def remove(self, hour: int) -> None:
        """Remove a file that was set aside; on stable storage."""
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._going(hour))
        self._files.sync_directory(self._folder)

    def _hours(self, suffix: str) -> list[int]:
        names = self._files.names(self._folder)
        if suffix:
            names = [n.removesuffix(suffix) + SUFFIX for n in names if n.endswith(suffix)]
        return sorted(hour for name in names if (hour := hour_of(name)) is not None)

    def _going(self, hour: int) -> Path:
        return self._folder / (name_of(hour).removesuffix(SUFFIX) + GOING)


def _write(handle: FileHandle, data: bytes, *, line: bool = False) -> None:
    """Append all of it to stable storage, or nothing; a line begins a line, whatever is before."""
    before = handle.size()
    if line and before and handle.read(before - 1, 1) != b"\n":
        data = b"\n" + data
    try:
        try:
            if (written := handle.write(data)) != len(data):
                raise short_write(written, len(data))
        except OSError:
            handle.truncate(before)
            raise
        handle.sync()
    finally:
        handle.close()
