"""The daemon: opens journals, listens, drains, stops.

Rules:

1. Ports open after replay. Until then `/readyz` says loading; so does nobody else, for nobody is
   let in. A daemon started by socket activation keeps callers waiting in the kernel's queue.
2. A stop is graceful: no new connections, nothing more is read, what was asked is answered and
   sent, waiting consumers are told "nothing", then the journals are closed. What takes longer than
   `limits.drain` is cut.
3. A reload takes over tokens, certificates, limits and the log's level; a file that cannot be used
   leaves everything as it was. Whose token is gone or allows something else is cut.
4. A connection is never trusted to end by itself: one sweep a second looks at their limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastjournal import __version__
from fastjournal.clock import SYSTEM_CLOCK, Clock
from fastjournal.config import WEB_CONNECTIONS, WORKQ_PORT, Settings, parse_address
from fastjournal.daemon.connection import Connection
from fastjournal.daemon.descriptors import left_for_peers, open_limit
from fastjournal.daemon.fj import FjConnection
from fastjournal.daemon.hosting import Hosted
from fastjournal.daemon.journals import find_journals, open_journal
from fastjournal.daemon.lines import Lines, Log
from fastjournal.daemon.listener import Listener, bind, bind_unix
from fastjournal.daemon.notify import inherited, notify, watchdog_seconds
from fastjournal.daemon.pushes import Pushes
from fastjournal.daemon.security import check_exposure, server_context
from fastjournal.daemon.tokens import Tokens, read_tokens
from fastjournal.errors import JournalError, SettingError
from fastjournal.log.files import DISK, Files
from fastjournal.wire.fj.replies import encode_error
from fastjournal.wire.fj.requests import Limits

if TYPE_CHECKING:
    from fastjournal.web.serving import Dashboard

__all__ = ["Server"]

_SWEEP = 1.0  # seconds
_PROBES = 64  # connections of the HTTP listener at a time


class Server:
    """One daemon on the running loop: `start`, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        log: Log | None = None,
        files: Files = DISK,
        open_files: int = 0,
    ) -> None:
        """Serve as `settings` say; `open_files`: the limit of the process, 0: ask the system."""
        check_exposure(settings)
        self.settings = settings
        self.clock = clock
        self._files = files
        self.loop = asyncio.get_running_loop()
        self.log: Log = log or Lines(sys.stderr)
        self.tokens: Tokens | None = read_tokens(settings.tokens) if settings.tokens else None
        self.wire_limits = _wire_limits(settings)
        self.journals: dict[str, Hosted] = {}
        self.default: Hosted = None  # type: ignore[assignment]
        self.connections: set[Connection] = set()
        self.probes = 0
        """Connections of the HTTP listener."""
        self.max_connections = settings.limits.max_connections
        """What the settings allow, or what the limit of open files leaves, if that is less."""
        self.ready = False
        self.draining = False
        self.started = clock.now()
        self.accepted: Counter[str] = Counter()
        """Connections so far, by protocol."""
        self.turned_away = 0
        self.cuts: Counter[str] = Counter()
        """Connections that were cut, by reason."""
        self.errors: Counter[str] = Counter()
        """Error replies, by code."""
        self.addresses: dict[str, list[str]] = {p: [] for p in ("fj", "workq", "http", "web")}
        """Where it listens, by protocol."""
        self._pushes: dict[Hosted, Pushes] = {}
        self._open_files = open_files or open_limit()
        self._listeners: list[Listener] = []
        self._tls = server_context(settings.tls)
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._dashboard: Dashboard | None = None

    async def start(self) -> None:
        """Open the journals, then the ports."""
        sockets = inherited()
        if self.settings.http or any(name == "http" for name, _ in sockets):
            await self._listen_http([sock for name, sock in sockets if name == "http"])
        notify("STATUS=replaying")
        try:
            for name, path in find_journals(self.settings).items():
                await self._open(name, path)
            self.default = self.journals[self.settings.default_journal]
            self._bound_connections()
            await self._listen_all(sockets)
            if self.settings.web:
                await self._open_dashboard()
        except BaseException:
            await self.stop()
            raise
        self.ready = True
        self._spawn(self._sweep())
        if watchdog_seconds():
            self._spawn(self._watchdog(watchdog_seconds()))
        notify("READY=1\nSTATUS=serving")
        self.log.info(
            "ready",
            fj=self.addresses["fj"],
            workq=self.addresses["workq"],
            http=self.addresses["http"],
            web=self.addresses["web"],
            journals=sorted(self.journals),
            sync=self.settings.journal.sync,
            promise=PROMISES[self.settings.journal.sync],
            max_connections=self.max_connections,
            tokens=self.tokens is not None,
            tls=self._tls is not None,
        )

    async def stop(self) -> None:
        """Drain and close; see rule 2."""
        if self.draining:
            return
        self.draining, self.ready = True, False
        notify("STOPPING=1")
        if self._dashboard is not None:
            await self._dashboard.stop()
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            for waiter in list(connection.waiters):
                waiter.expire()
            connection.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.limits.drain):
                while self.connections:
                    self._empty.clear()
                    await self._empty.wait()
        for connection in list(self.connections):
            connection.cut("drain", "the daemon stops")
        for task in self._tasks:
            task.cancel()
        for host in self.journals.values():
            try:
                await asyncio.to_thread(host.close)
            except JournalError as error:
                self.log.error(
                    "journal did not close in order", journal=host.name, error=str(error)
                )
        self.log.info("stopped")

    def reload(self, settings: Settings) -> None:
        """Take over what can change while running; see rule 3."""
        notify("RELOADING=1")
        try:
            check_exposure(settings)
            tokens = read_tokens(settings.tokens) if settings.tokens else None
            if (tokens is None) != (self.tokens is None):
                raise SettingError("tokens cannot be turned on or off by a reload", name="tokens")
            if self._tls is not None:
                server_context(settings.tls)  # refused here, if at all
                self._tls.load_cert_chain(settings.tls.certificate, settings.tls.key or None)
        except (JournalError, OSError) as error:
            self.log.error("reload refused", error=str(error))
        else:
            self.tokens, self.settings = tokens, settings
            self.wire_limits = _wire_limits(settings)
            self._bound_connections()
            for connection in list(self.connections):
                connection.check_grant()
            self.log.info("reloaded")
        notify("READY=1")

    def has_room(self) -> bool:
        """Whether one more peer may come; those whose handshake is under way count."""
        return len(self.connections) + self._arriving() < self.max_connections

    def _has_room_for_probe(self) -> bool:
        return self.probes + self._arriving() < _PROBES

    def _arriving(self) -> int:
        return sum(len(listener.arriving) for listener in self._listeners)

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in; False if the server is leaving."""
        for listener in self._listeners:
            listener.arriving.discard(connection)
        self.connections.add(connection)
        self._count_peers()
        self.accepted[connection.protocol] += 1
        if self.draining:
            self.turned_away += 1
            return False
        self.log.debug("connected", peer=connection.peer, protocol=connection.protocol)
        return True

    def _bound_connections(self) -> None:
        """Leave descriptors for the log, and say so if that leaves fewer to peers than was set."""
        asked = self.settings.limits.max_connections
        visitors = (_PROBES if self.settings.http else 0) + (
            WEB_CONNECTIONS if self.settings.web else 0
        )
        room = left_for_peers(self._open_files, len(self.journals), visitors)
        self.max_connections = min(asked, room)
        if room < asked:
            self.log.warning(
                "the limit of open files bounds the connections",
                open_files=self._open_files,
                asked=asked,
                max_connections=room,
                advice="raise LimitNOFILE (ulimit -n), or lower limits.max_connections",
            )

    def _refuse_peer(self, protocol: str) -> bytes:
        self.turned_away += 1
        if protocol != "fj":
            return b""
        return encode_error(0, "FULL too many connections", self.clock.now())

    def dismiss(self, connection: Connection, error: Exception | None) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        self._count_peers()
        if not self.connections:
            self._empty.set()
        if isinstance(connection, FjConnection) and connection.listening:
            self.pushes(connection.host).leave(connection)
        self.log.debug("disconnected", peer=connection.peer, error=str(error or ""))

    def _count_peers(self) -> None:
        for host in self.journals.values():
            host.peers = len(self.connections)

    def note_cut(self, connection: Connection, reason: str, text: str) -> None:
        """A connection is being cut."""
        self.cuts[reason] += 1
        self.log.info("cut", peer=connection.peer, reason=reason, text=text)

    def denied(self, connection: Connection, reason: str) -> None:
        """Somebody tried what it may not."""
        self.log.warning("denied", peer=connection.peer, reason=reason)

    def count_error(self, code: str) -> None:
        """An error was answered."""
        self.errors[code] += 1

    def report(self, error: BaseException) -> None:
        """A bug of ours; told in full in the log, by class only to the peer."""
        self.errors["SERVER-ERROR"] += 1
        self.log.error("internal error", exc_info=error)

    def pushes(self, host: Hosted) -> Pushes:
        """The subscriptions to a journal."""
        found = self._pushes.get(host)
        if found is None:
            found = self._pushes[host] = Pushes(host, self.loop)
        return found

    def describe(self, host: Hosted, roles: list[str]) -> dict[str, Any]:
        """What HELLO may ask: who we are and what we promise."""
        sync = host.engine.log.options.sync
        return {
            "server": "fastjournal",
            "version": __version__,
            "journal": host.name,
            "sync": sync,
            "promise": PROMISES[sync],
            "roles": roles,
            "max_message": self.wire_limits.max_message,
            "max_payload": self.settings.limits.max_payload,
            "serves": ["lengths", "client-time"],
        }

    def status(self, host: Hosted) -> dict[str, Any]:
        """Figures of a journal and of the server."""
        figures = host.journal.status()
        log = asdict(figures.log) | {
            "active": figures.log.active.name,
            "standby": figures.log.standby.name,
        }
        return figures._asdict() | {
            "log": log,
            "upkeep": asdict(figures.upkeep),
            "journal": host.name,
            "promise": PROMISES[figures.sync],
            "server": {
                "version": __version__,
                "started": self.started,
                "now": self.clock.now(),
                "connections": len(self.connections),
                "waiting": sum(len(peer.waiters) for peer in self.connections),
                "journals": sorted(self.journals),
                "errors": dict(self.errors),
            },
        }

    async def _open(self, name: str, path: Path) -> None:
        self.log.info("replaying", journal=name, path=str(path))
        journal = await asyncio.to_thread(
            open_journal, path, self.settings, self._files, self.clock
        )
        self.journals[name] = Hosted(name, journal, self.loop)
        self.log.info(
            "replayed",
            journal=name,
            records=journal.replayed.records,
            seconds=round(journal.replay_seconds, 3),
            clean=journal.replayed.clean,
        )

    async def _listen_all(self, sockets: list[tuple[str, socket.socket]]) -> None:
        given = {name for name, _ in sockets}
        for name, sock in sockets:
            if name != "http":
                self._add(name, sock)
        if "fj" not in given:
            for address in self.settings.listen:
                await self._listen("fj", address)
        if "workq" not in given:
            for address in self.settings.workq:
                await self._listen("workq", address)

    def _factory(self, protocol: str) -> Callable[[], asyncio.Protocol]:
        if protocol == "fj":
            return lambda: FjConnection(self)
        if protocol == "http":
            from fastjournal.daemon.web import HttpConnection

            return lambda: HttpConnection(self)
        from fastjournal.daemon.workq import WorkqConnection, WorkqSide

        side = WorkqSide(self)
        return lambda: WorkqConnection(self, side)

    async def _listen(self, protocol: str, address: str) -> None:
        if address.startswith("unix:"):
            sock = bind_unix(address[5:], int(self.settings.socket_mode, 8))
            self._add(protocol, sock, made=True)
            return
        host, port = parse_address(address, WORKQ_PORT if protocol == "workq" else 0)
        try:
            sockets = await bind(host, port)
        except OSError as error:
            raise SettingError(f"cannot listen on {address}: {error}", name="listen") from error
        for sock in sockets:
            self._add(protocol, sock)

    def _add(self, protocol: str, sock: socket.socket, *, made: bool = False) -> None:
        """Let peers in that come to this socket."""
        tls = self._tls if protocol == "fj" and sock.family != socket.AF_UNIX else None
        listener = Listener(
            self.loop,
            sock,
            self._factory(protocol),
            has_room=self._has_room_for_probe if protocol == "http" else self.has_room,
            refusal=partial(self._refuse_peer, protocol),
            log=self.log,
            tls=tls,
            patience=lambda: self.settings.limits.hello_timeout,
            made=made,
        )
        self._listeners.append(listener)
        self.addresses[protocol].append(listener.address)
        listener.open()

    async def _listen_http(self, sockets: list[socket.socket]) -> None:
        for sock in sockets:
            self._add("http", sock)
        if not sockets:
            await self._listen("http", self.settings.http)

    async def _open_dashboard(self) -> None:
        from fastjournal.web.serving import Dashboard

        self._dashboard = Dashboard(self, self._tls)
        self.addresses["web"].append(await self._dashboard.start())

    def _spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def sweep(self, now: float) -> None:
        """Cut the connections whose limits have passed at this loop time; see rule 4."""
        for connection in list(self.connections):
            connection.check(now)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            self.sweep(self.loop.time())

    async def _watchdog(self, seconds: float) -> None:
        while True:
            notify("WATCHDOG=1")
            await asyncio.sleep(seconds)


PROMISES = {
    "always": "an answer means: on stable storage",
    "interval": "an answer means: written; stable storage follows within the sync interval",
    "os": "an answer means: written; the system decides when it reaches stable storage",
}


def _wire_limits(settings: Settings) -> Limits:
    limits = settings.limits
    return Limits(
        max_value=min(limits.max_payload + 1 + 66_560, limits.max_message),
        max_message=limits.max_message,
    )
