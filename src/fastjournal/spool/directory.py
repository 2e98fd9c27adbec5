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
3. After the machine was started anew no file from before is written to: its end may have been lost
   after it was forwarded, and places in it must not be given out twice.
"""

from __future__ import annotations

import os

from fastjournal.diskfull import short_write
from fastjournal.spool.frames import HEADER, hour_of

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
    "used",
]

IDENTITY = "spool.id"
BOOT = "spool.boot"
GOING = ".fjd"


def identity(path: str) -> bytes:
    """The 16 bytes that name this spool; drawn if there are none yet."""
    place = os.path.join(path, IDENTITY)
    while True:
        try:
            with open(place, "rb") as file:
                text = file.read(64)
        except FileNotFoundError:
            _link(place, os.urandom(16).hex().encode() + b"\n", sync=True)
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
        with open(os.path.join(path, BOOT), "rb") as file:
            return file.read(64) == boot
    except FileNotFoundError:
        return False


def begin_boot(path: str, boot: bytes) -> None:
    """The newest file was begun in this run of the machine."""
    place = os.path.join(path, BOOT)
    draft = f"{place}.{os.getpid()}.{os.urandom(4).hex()}.new"
    with open(draft, "wb") as file:
        file.write(boot)
    os.replace(draft, place)


def create_file(path: str, *, sync: bool = False) -> None:
    """Make a spool file with its header, unless there is one."""
    _link(path, HEADER, sync=sync)


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
                    total += entry.stat().st_size
                except FileNotFoundError:  # was forwarded and removed just now
                    continue
    return total


def _link(path: str, content: bytes, *, sync: bool) -> None:
    """Let a file appear with its content; if there is one it stays."""
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.new"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            if (written := os.write(fd, content)) != len(content):
                raise short_write(written, len(content))
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        if sync:
            _sync_directory(os.path.dirname(path))
    finally:
        os.unlink(draft)


def _sync_directory(path: str) -> None:
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
