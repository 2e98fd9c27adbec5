"""What a spool's directory holds, and how files come into it whole.

    spool.id             32 hex digits: the identity of the spool, drawn once
    <YYYYMMDDTHH>.fjq    frames, one file per hour
    <YYYYMMDDTHH>.fjd    a file that is finished and about to go
    quarantine/          what could not be forwarded, and why

Rules:

1. A file appears whole: it is made under a name of its own and linked to its place. Who comes
   second uses the file of the first.
2. An identity never changes, and is never copied to another spool: the daemon tells repeats by it.
"""

from __future__ import annotations

import os

from fastjournal.spool.frames import HEADER, hour_of

__all__ = ["GOING", "IDENTITY", "create_file", "hours", "identity", "newest", "used"]

IDENTITY = "spool.id"
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
            if os.write(fd, content) != len(content):
                raise OSError(28, "No space left on device")
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


