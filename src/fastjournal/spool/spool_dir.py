"""A spool's directory: what it holds, how files come into it whole, how names are opened in it.

    spool.id             32 hex digits: the identity of the spool, drawn once
    spool.boot           names the run of the machine in which the newest file was begun
    <YYYYMMDDTHH>.fjq    frames, one file per hour
    <YYYYMMDDTHH>.fjd    a file that is finished and about to go
    quarantine/          what could not be forwarded, and why

Rules:

1. A file appears whole: it is made under a name of its own and linked to its place. Who comes
   second uses the file of the first.
2. An identity never changes, and is never copied to another spool: the daemon tells repeats by it.
3. After the machine was started anew no file from before is written to: its end may have been lost
   after it was forwarded, and places in it must not be given out twice.
4. Others may write into the directory, so a name is never followed to another place: a link is
   refused, and so is whatever is no file. What may be opened is judged on the open descriptor, so
   nothing can be exchanged in between.
5. A file counts if it belongs to one who may write into the directory: to us, to root, to the
   directory's owner, to its group if the group may write there, to anybody if anybody may.
6. What is made is never open to more people than the directory, nor than the mode that was asked
   for: files with jobs are for their owner and the group, what names the spool for whoever may read
   the directory. The umask is not asked: the directory says who shares it.
"""

from __future__ import annotations

import errno
import os
from stat import S_ISDIR, S_ISREG, S_IWGRP, S_IWOTH

from fastjournal.errors import SettingError, short_write
from fastjournal.spool.frames import HEADER, hour_of

TYPE_CHECKING = False  # `typing` would be half of what a producer's import costs
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BOOT",
    "GOING",
    "IDENTITY",
    "PRIVATE",
    "SHARED",
    "ForeignFile",
    "begin_boot",
    "boot_id",
    "checked_mode",
    "create_file",
    "hours",
    "identity",
    "is_this_boot",
    "make_file",
    "mode_in",
    "newest",
    "open_file",
    "open_folder",
    "sync_directory",
    "used",
]

IDENTITY = "spool.id"
BOOT = "spool.boot"
GOING = ".fjd"
_NAMES = 0o664  # of the files that name the spool: they hold no jobs
PRIVATE, SHARED = 0o600, 0o660
"""What a file with jobs may be opened by: its owner, or the directory's group too."""

_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # not blocking: a pipe is refused, not awaited
_NO_FILE = frozenset((errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR))


def identity(path: str) -> bytes:
    """The 16 bytes that name this spool; drawn if there are none yet."""
    file = os.path.join(path, IDENTITY)
    while True:
        try:
            text = _content(file)
        except FileNotFoundError:
            _link(file, os.urandom(16).hex().encode() + b"\n", _NAMES, sync=True)
            continue
        try:
            found = bytes.fromhex(text.decode("ascii"))
        except ValueError:
            found = b""
        if len(found) != 16:
            raise OSError(f"{file} does not hold 32 hex digits")
        return found


def boot_id() -> bytes:
    """Names this run of the machine; empty if that cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(64)
    except OSError:
        return b""


def is_this_boot(path: str, boot: bytes) -> bool:
    """Whether the newest file was begun in this run of the machine."""
    try:
        return _content(os.path.join(path, BOOT)) == boot
    except FileNotFoundError:
        return False


def begin_boot(path: str, boot: bytes) -> None:
    """The newest file was begun in this run of the machine."""
    file = os.path.join(path, BOOT)
    os.replace(_draft(file, boot, _NAMES, sync=False), file)


def create_file(path: str, *, mode: int = SHARED, sync: bool = False) -> None:
    """Make a spool file with its header, unless there is one."""
    _link(path, HEADER, mode, sync=sync)


def hours(path: str) -> list[int]:
    """The hours of which there are files, oldest first."""
    found = [hour for name in os.listdir(path) if (hour := hour_of(name)) is not None]
    found.sort()
    return found


def newest(path: str) -> int:
    """The newest hour of which there is a file; 0 without any."""
    return max(hours(path), default=0)


def used(path: str) -> int:
    """Bytes in all spool files together."""
    total = 0
    with os.scandir(path) as files:
        for file in files:
            if hour_of(file.name) is not None:
                try:
                    total += file.stat(follow_symlinks=False).st_size
                except FileNotFoundError:  # was forwarded and removed just now
                    continue
    return total


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _content(path: str) -> bytes:
    fd = open_file(path, os.O_RDONLY)
    try:
        return os.read(fd, 64)
    finally:
        os.close(fd)


def _draft(path: str, content: bytes, mode: int, *, sync: bool) -> str:
    """Write a file under a name of its own; returns the name."""
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.new"
    fd = make_file(draft, mode_in(os.path.dirname(path) or ".", mode))
    try:
        if (written := os.write(fd, content)) != len(content):
            raise short_write(written, len(content))
        if sync:
            os.fsync(fd)
    except BaseException:
        os.unlink(draft)
        raise
    finally:
        os.close(fd)
    return draft


def _link(path: str, content: bytes, mode: int, *, sync: bool) -> None:
    """Let a file appear with its content; if there is one it stays."""
    draft = _draft(path, content, mode, sync=sync)
    try:
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        if sync:
            sync_directory(os.path.dirname(path))
    finally:
        os.unlink(draft)


class ForeignFile(OSError):
    """There is something of that name, but no file of this directory's people."""


def open_file(path: str, flags: int, directory: int | None = None) -> int:
    """A descriptor of a file that is there; `ForeignFile` if it is none of ours (rules 1 and 2).

    `path` counts from the open directory, if one is given.
    """
    return _open(path, flags, S_ISREG, "file", directory)


def open_folder(path: str) -> int:
    """A descriptor of a directory that is there, judged like a file."""
    return _open(path, os.O_RDONLY | os.O_DIRECTORY, S_ISDIR, "directory")


def make_file(path: str, mode: int, directory: int | None = None) -> int:
    """A descriptor of a new file, for writing; `path` counts from the open directory, if given."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | _SAFE
    fd = os.open(path, flags, mode, dir_fd=directory)
    try:
        os.fchmod(fd, mode)  # whatever the umask
    except BaseException:
        os.close(fd)
        raise
    return fd


def mode_in(directory: str | int, mode: int) -> int:
    """The mode of a new file in a directory, at most `mode`."""
    return mode & os.stat(directory).st_mode & 0o666


def checked_mode(mode: int) -> int:
    """0600 or 0660; anything else is refused."""
    if mode not in (PRIVATE, SHARED):
        raise SettingError(
            f"the mode of a spool's files is 0600 or 0660, not {mode:#o}", name="mode"
        )
    return mode


def _open(
    path: str,
    flags: int,
    is_wanted: Callable[[int], bool],
    what: str,
    directory: int | None = None,
) -> int:
    try:
        fd = os.open(path, flags | _SAFE, dir_fd=directory)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _foreign(path, f"is no {what}, or a link to one") from None
        raise
    try:
        found = os.fstat(fd)
        if not is_wanted(found.st_mode):
            raise _foreign(path, f"is no {what}")
        if not _is_ours(found, os.stat(directory or os.path.dirname(path) or ".")):
            raise _foreign(path, f"belongs to user {found.st_uid}, who may not write here")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _is_ours(file: os.stat_result, directory: os.stat_result) -> bool:
    if file.st_uid in (os.geteuid(), 0, directory.st_uid):
        return True
    shared = directory.st_mode
    return bool(shared & S_IWOTH or (shared & S_IWGRP and file.st_gid == directory.st_gid))


def _foreign(path: str, reason: str) -> ForeignFile:
    return ForeignFile(errno.EPERM, f"{os.path.basename(path)} {reason}: it is not opened", path)
