"""What a spool's directory holds, and how files come into it whole.

    spool.id             32 hex digits: the identity of the spool, drawn once
    spool.boot           names the run of the machine in which the newest file was begun
    <YYYYMMDDTHH>.fjq    frames, one file per hour
    <YYYYMMDDTHH>.fjd    a file that is finished and about to go
    quarantine/          what could not be forwarded, and why

Rules:

1. A file appears whole: it is made under a name of its own and linked to its place. Who comes
   second uses the file of the first.
2. An identity never changes, and is never copied to another spool: the daemon tells repeats by it.
3. Files with jobs are for their owner and the group, what names the spool for whoever may read the
   directory: see `opening` for how names are opened here.
4. After the machine was started anew no file from before is written to: its end may have been lost
   after it was forwarded, and places in it must not be given out twice.
"""

from __future__ import annotations

import os

from fastjournal.diskfull import short_write
from fastjournal.spool.frames import HEADER, hour_of
from fastjournal.spool.opening import SHARED, make_file, mode_in, open_file

__all__ = [
    "BOOT",
    "GOING",
    "IDENTITY",
    "begin_boot",
    "boot_id",
    "create_file",
    "hours",
    "identity",
    "is_this_boot",
    "newest",
    "sync_directory",
    "used",
]

IDENTITY = "spool.id"
BOOT = "spool.boot"
GOING = ".fjd"
_NAMES = 0o664  # of the files that name the spool: they hold no jobs


def identity(path: str) -> bytes:
    """The 16 bytes that name this spool; drawn if there are none yet."""
    place = os.path.join(path, IDENTITY)
    while True:
        try:
            text = _content(place)
        except FileNotFoundError:
            _link(place, os.urandom(16).hex().encode() + b"\n", _NAMES, sync=True)
            continue
        try:
            found = bytes.fromhex(text.decode("ascii"))
        except ValueError:
            found = b""
        if len(found) != 16:
            raise OSError(f"{place} does not hold 32 hex digits")
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
    place = os.path.join(path, BOOT)
    os.replace(_draft(place, boot, _NAMES, sync=False), place)


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
    with os.scandir(path) as entries:
        for entry in entries:
            if hour_of(entry.name) is not None:
                try:
                    total += entry.stat(follow_symlinks=False).st_size
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
