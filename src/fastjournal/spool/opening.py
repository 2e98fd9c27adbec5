"""Opening a name in a directory into which others may write.

Rules:

1. A name is never followed to another place: a link is refused, and so is whatever is no file. What
   may be opened is judged on the open descriptor, so nothing can be exchanged in between.
2. A file counts if it belongs to one who may write into the directory: to us, to root, to the
   directory's owner, to its group if the group may write there, to anybody if anybody may.
3. What is made is never open to more people than the directory, nor than the mode that was asked
   for. The umask is not asked: the directory says who shares it.
"""

from __future__ import annotations

import errno
import os
from stat import S_ISDIR, S_ISREG, S_IWGRP, S_IWOTH

from fastjournal.errors import SettingError

TYPE_CHECKING = False  # `typing` would be half of what a producer's import costs
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "PRIVATE",
    "SHARED",
    "ForeignFile",
    "checked_mode",
    "make_file",
    "mode_in",
    "open_file",
    "open_folder",
]

PRIVATE, SHARED = 0o600, 0o660
"""What a file with jobs may be opened by: its owner, or the directory's group too."""

_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # not blocking: a pipe is refused, not awaited
_NO_FILE = frozenset((errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR))


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
