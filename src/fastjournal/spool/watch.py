"""Being told that a spool has something new.

Rules:

1. inotify where there is one (and `asyncinotify` is installed); else a datagram socket in the spool
   to which producers send a byte after each put. Whoever loses such a byte loses nothing: the spool
   is looked at after `interval` anyway.
2. `fileno` is readable when there may be something new; `drain` makes it wait for the next.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from fastjournal.spool.spool_dir import mode_in
from fastjournal.spool.writer import WAKE

__all__ = ["InotifyWatch", "PingWatch", "Watch", "readable", "watch"]


class HasFileno(Protocol):
    """Anything that can be waited for."""

    def fileno(self) -> int:
        """Its descriptor."""


def readable(things: Iterable[HasFileno], seconds: float) -> set[int]:
    """Wait until one of these can be read, at most so long; the descriptors that can.

    `select` would end at the 1024th open file.
    """
    poll = select.poll()
    for thing in things:
        poll.register(thing.fileno(), select.POLLIN)
    return {fd for fd, _ in poll.poll(seconds * 1000)}


class Watch(Protocol):
    """Something to wait for."""

    interval: float
    """Seconds after which to look anyway."""

    def fileno(self) -> int:
        """Readable when there may be something new."""

    def drain(self) -> None:
        """What was told is known now."""

    def close(self) -> None:
        """Watch no more."""


class InotifyWatch:
    """The kernel tells of every write."""

    interval = 1.0

    def __init__(self, path: str) -> None:
        from asyncinotify import Inotify, Mask

        self._inotify = Inotify(sync_timeout=0)
        self._inotify.add_watch(Path(path), Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO)
        self._fd: int = self._inotify.fd
        os.set_blocking(self._fd, False)

    def fileno(self) -> int:
        """Readable when something was written."""
        return self._fd

    def drain(self) -> None:
        """Forget the events so far."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._fd, 65_536)) > 32_768:
                pass

    def close(self) -> None:
        """Watch no more."""
        self._inotify.close()


class PingWatch:
    """Producers tell of every put (FJ-M2-8); those that came before us, from the next file on."""

    interval = 0.05

    def __init__(self, path: str) -> None:
        self._path = os.path.join(path, WAKE)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._sock.bind(self._path)
        _open_up(self._path)

    def fileno(self) -> int:
        """Readable when a producer has sent its byte."""
        return self._sock.fileno()

    def drain(self) -> None:
        """Forget the bytes so far."""
        with contextlib.suppress(BlockingIOError):
            while self._sock.recv(16):
                pass

    def close(self) -> None:
        """Watch no more."""
        self._sock.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def _open_up(path: str) -> None:
    """Let whoever shares the directory send to a socket: producers may be other users."""
    mode = mode_in(os.path.dirname(path) or ".", 0o666)
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(path, mode, follow_symlinks=False)
        return
    # Another may have put a link in its place: what is changed is what was looked at.
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)


def watch(path: str, how: str = "auto") -> Watch:
    """The best there is for this directory; `how`: auto, inotify or ping."""
    if how != "ping":
        try:
            return InotifyWatch(path)
        except (ImportError, OSError):
            if how == "inotify":
                raise
    return PingWatch(path)
