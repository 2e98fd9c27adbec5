"""Listening sockets: peers come in one by one, and only as long as there is room.

Rules:

1. A peer counts from the moment it is accepted: a TLS handshake takes a place like any other
   connection, and has a time limit.
2. Whoever comes when there is no room is told so in one message, where the protocol has one, and
   closed. Nothing waits for it.
3. When the process or the system has no descriptor left, accepting pauses for a second: peers wait
   in the kernel's queue, and the loop does not spin.
4. The file of a Unix socket goes when the listener that made it closes, and only that file.
5. A process may raise its own soft limit of open files up to the hard one; a daemon does at its
   start. Connections get what the limit leaves when the log and the listeners have their share: a
   log that cannot open its next segment cannot go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastjournal.config import parse_address
from fastjournal.daemon.log_lines import Log
from fastjournal.errors import SettingError

__all__ = [
    "Listener",
    "allow_all",
    "bind",
    "bind_unix",
    "left_for_peers",
    "open_limit",
    "open_sockets",
]

_BACKLOG = 1024
_AT_ONCE = 100  # peers let in before the loop does something else
_PAUSE = 1.0  # seconds
_PROCESS = 64  # standard streams, event loop, listeners, threads, certificates being read
_JOURNAL = 64  # active and standby segment, locks, snapshot, cleaning, values read back
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Lets the peers of one socket in."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        factory: Callable[[], Any],
        *,
        has_room: Callable[[], bool],
        refusal: Callable[[], bytes],
        log: Log,
        tls: ssl.SSLContext | None = None,
        patience: Callable[[], float] = lambda: 5.0,
        made: bool = False,
        arriving: set[Any] | None = None,
    ) -> None:
        """Listen on `sock`; `open` lets the first one in.

        `refusal`: what a peer without room is told, and the place where it is counted. `patience`:
        seconds a TLS handshake may take. `made`: the file of a Unix socket is ours.
        `arriving`: where peers stand that were accepted and are no connections yet.
        """
        self._loop = loop
        self._sock = sock
        self._factory = factory
        self._has_room = has_room
        self._refusal = refusal
        self._log = log
        self._tls = tls
        self._patience = patience
        self.arriving: set[Any] = set() if arriving is None else arriving
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.address = address_of(sock)
        self._file = _file_of(sock) if made else None
        sock.setblocking(False)

    def open(self) -> None:
        """Begin to let peers in."""
        self._timer = None
        self._sock.listen(_BACKLOG)
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        """Let nobody in any more."""
        if self._sock.fileno() < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._sock.fileno())
        for task in self._tasks:
            task.cancel()
        self._sock.close()
        if self._file is not None:
            path, inode = self._file
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == inode:
                    path.unlink()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                peer, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NONE_LEFT:
                    raise
                self._log.error(
                    "no connection can be accepted",
                    error=str(error),
                    listener=self.address,
                    advice="raise the limit of open files, or lower limits.max_connections",
                )
                self._loop.remove_reader(self._sock.fileno())
                self._timer = self._loop.call_later(_PAUSE, self.open)
                return
            peer.setblocking(False)
            if peer.family != socket.AF_UNIX:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._has_room():
                self._send_away(peer)
                continue
            protocol = self._factory()
            self.arriving.add(protocol)
            task = self._loop.create_task(self._let_in(peer, protocol))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _send_away(self, peer: socket.socket) -> None:
        words = self._refusal()
        with contextlib.suppress(OSError), peer:
            if words and self._tls is None:
                peer.send(words)
                peer.recv(65_536)  # a close with something unread could overtake the words

    async def _let_in(self, peer: socket.socket, protocol: Any) -> None:
        limit = None if self._tls is None else self._patience()
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, peer, ssl=self._tls, ssl_handshake_timeout=limit
            )
        except (OSError, asyncio.CancelledError) as error:
            self._log.debug("did not come in", listener=self.address, error=str(error))
            peer.close()
        finally:
            self.arriving.discard(protocol)


async def open_sockets(address: str, mode: int, port: int = 0) -> list[socket.socket]:
    """The sockets of `host:port` or `unix:/path`; `mode`: the permissions of the latter's file."""
    if address.startswith("unix:"):
        return [bind_unix(address[5:], mode)]
    try:
        return await bind(*parse_address(address, port))
    except OSError as error:
        raise SettingError(f"cannot listen on {address}: {error}", name="listen") from error


async def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address of a host name."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
    )
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def bind_unix(path: str, mode: int) -> socket.socket:
    """A Unix socket with these permissions from its first moment on.

    The file that a dead daemon left is taken away; anything else in its place is not touched.
    """
    _remove_stale(Path(path))
    sock = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o777 & ~mode)  # of the whole process: nothing may wait until it is put back
    try:
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise SettingError(f"cannot listen on unix:{path}: {error}", name="listen") from error
    finally:
        os.umask(mask)
    return sock


def address_of(sock: socket.socket) -> str:
    """Where a socket listens: `host:port` or `unix:/path`."""
    name = sock.getsockname()
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return f"unix:{name}"


def _file_of(sock: socket.socket) -> tuple[Path, int] | None:
    if sock.family != socket.AF_UNIX:
        return None
    path = Path(sock.getsockname())
    return path, path.lstat().st_ino


def _remove_stale(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise SettingError(f"{path} is there and is no socket", name="listen")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise SettingError(f"cannot listen on unix:{path}: {error}", name="listen") from error
        else:
            raise SettingError(f"somebody listens on {path}", name="listen")


def open_limit() -> int:
    """How many files the process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_all(
    get: Callable[[int], tuple[int, int]] = resource.getrlimit,
    set_: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
) -> int:
    """Raise the soft limit to the hard one as far as the system lets us; returns the limit."""
    soft, hard = get(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            set_(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems say "unlimited" and mean less
            return soft
    return hard


def left_for_peers(limit: int, journals: int, visitors: int) -> int:
    """How many connections a limit of open files leaves room for.

    `visitors`: connections of metrics and dashboard, which have bounds of their own.
    """
    if limit < 0 or limit == resource.RLIM_INFINITY:
        return 1 << 30
    spare = _PROCESS + _JOURNAL * journals + visitors
    return max(limit - spare, limit // 4, 1)
