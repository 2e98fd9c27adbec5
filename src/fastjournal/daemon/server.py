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
5. A data directory that is itself a journal (it was used embedded) is the default journal.
   Otherwise every subdirectory that holds a journal is one, by its name, and those named in the
   settings are made.
6. What is spoken at a door is said by `main`: the server knows names of protocols only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fastjournal.archive.shipper import ArchiveOptions
from fastjournal.archive.source import Reign
from fastjournal.archive.store import join_address
from fastjournal.clock import SYSTEM_CLOCK, Clock
from fastjournal.config import (
    WEB_CONNECTIONS,
    WORKQ_PORT,
    JournalSettings,
    Settings,
    journal_settings,
)
from fastjournal.daemon.auth import check_exposure, read_tokens, server_context
from fastjournal.daemon.context import PROMISES, Context, wire_limits
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.daemon.listener import Listener, left_for_peers, open_limit, open_sockets
from fastjournal.daemon.log_lines import Lines, Log
from fastjournal.daemon.systemd import inherited, notify, watchdog_seconds
from fastjournal.errors import JournalError, SettingError
from fastjournal.journal.journal import Journal
from fastjournal.log.care.probe import WEAK, file_system_of, probe
from fastjournal.log.files import DISK, Files
from fastjournal.tables import Tables, apply_tables, read_tables
from fastjournal.wire.fj.replies import encode_error

__all__ = ["Protocols", "Server"]

_SWEEP = 1.0  # seconds
_PROBES = 64  # connections of the HTTP listener at a time
_log = logging.getLogger(__name__)


class Page(Protocol):
    """The dashboard as the server knows it."""

    async def start(self) -> str:
        """Open it; returns where."""

    async def stop(self) -> None:
        """Close it."""


Protocols = Mapping[str, Callable[[Context], Callable[[], Any]]]
"""By name (fj, workq, http): what makes the maker of its connections."""


class Server(Context):
    """One daemon on the running loop: `start`, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        protocols: Protocols,
        dashboard: Callable[[Server, ssl.SSLContext | None], Page],
        *,
        clock: Clock = SYSTEM_CLOCK,
        log: Log | None = None,
        files: Files = DISK,
        open_files: int = 0,
        homes: Mapping[str, Path] | None = None,
    ) -> None:
        """Serve as `settings` say; `open_files`: the limit of the process, 0: ask the system.

        `homes`: the journals and their directories; None: those that the settings tell of.
        """
        check_exposure(settings)
        tokens = read_tokens(settings.tokens) if settings.tokens else None
        super().__init__(settings, clock, log or Lines(sys.stderr), tokens)
        self.max_connections = settings.limits.max_connections
        """What the settings allow, or what the limit of open files leaves, if that is less."""
        self.addresses: dict[str, list[str]] = {p: [] for p in ("fj", "workq", "http", "web")}
        """Where it listens, by protocol."""
        self._protocols = protocols
        self._make_dashboard = dashboard
        self._files = files
        self._open_files = open_files or open_limit()
        self._homes = homes
        self._listeners: list[Listener] = []
        self._closed_doors: list[Listener] = []
        self._tls = server_context(settings.tls)
        self._tables = declared_tables(settings)
        self._tasks: set[asyncio.Task[None]] = set()
        self.dashboard: Page | None = None
        """The page, where there is one, once it serves."""
        self.before_listening: Callable[[], None] = lambda: None
        """Called when the journals are open and nobody was let in yet."""
        self.wait_safe: Callable[[int], None] | None = None
        """Of a replicated journal: returns when other nodes have the records up to a TIME."""
        self.reign: Reign | None = None
        """Of a replicated journal: as whom it is archived."""
        self.notify = notify
        """Tells systemd how it is."""
        self.take_sockets = inherited
        """Gives the sockets that systemd has opened."""

    def meet(self) -> Any:
        """Who speaks FJ with one more client, wherever that came in."""
        return self._protocols["fj"](self)()

    async def start(self) -> None:
        """Open the journals, then the ports."""
        sockets = self.take_sockets()
        if self.settings.http or any(name == "http" for name, _ in sockets):
            await self._listen_http([sock for name, sock in sockets if name == "http"])
        self.notify("STATUS=replaying")
        try:
            homes = self._homes
            if homes is None:
                homes = find_journals(self.settings, self._tables)
            for name, path in homes.items():
                await self._open(name, path)
            self.default = self.journals[self.settings.default_journal]
            self._bound_connections()
            self.before_listening()
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
        self.notify("READY=1\nSTATUS=serving")
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
        self.notify("STOPPING=1")
        if self.dashboard is not None:
            await self.dashboard.stop()
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            for waiter in list(connection.waiters):
                connection.expire(waiter)
            connection.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.limits.drain):
                while self.connections:
                    self.emptied.clear()
                    await self.emptied.wait()
        for connection in list(self.connections):
            connection.cut("drain", "the daemon stops")
        for task in self._tasks:
            task.cancel()
        for served in self.journals.values():
            try:
                await asyncio.to_thread(served.close)
            except JournalError as error:
                self.log.error(
                    "journal did not close in order", journal=served.name, error=str(error)
                )
        self.log.info("stopped")

    def reload(self, settings: Settings) -> None:
        """Take over what can change while running; see rule 3."""
        self.notify("RELOADING=1")
        if reload_context(self, settings, self._tls):
            self._bound_connections()
            for connection in list(self.connections):
                connection.check_grant()
            self.log.info("reloaded")
        self.notify("READY=1")

    def has_room(self) -> bool:
        """Whether one more peer may come; those whose handshake is under way count."""
        return len(self.connections) + len(self.arriving) < self.max_connections

    def _has_room_for_probe(self) -> bool:
        return self.probes + len(self.arriving) < _PROBES

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

    async def _open(self, name: str, path: Path) -> None:
        self.log.info("replaying", journal=name, path=str(path))
        kind = file_system_of(path.parent) if self._files is DISK else ""
        if kind in WEAK:
            self.log.warning(
                "this file system weakens what is promised",
                journal=name, file_system=kind, why=WEAK[kind],
            )  # fmt: skip
        settings = self.settings
        declared = self._tables.journals.get(name)
        if declared is not None:
            settings = journal_settings(settings, name, declared.settings)
        journal = await asyncio.to_thread(
            open_journal, path, settings, self._files, self.clock, name, self.wait_safe,
            self.reign,
        )  # fmt: skip
        self.journals[name] = JournalLoop(name, journal, self.loop)
        queues = {} if declared is None else declared.queues
        if name == self.settings.default_journal:
            queues = self._tables.queues | queues
        for change in apply_tables(journal, queues):
            self.log.info(
                "declared",
                journal=name,
                queue=change.queue,
                setting=change.setting,
                was=change.was,
                becomes=change.becomes,
            )
        self.log.info(
            "replayed",
            journal=name,
            sync=settings.journal.sync,
            records=journal.replayed.records,
            seconds=round(journal.replay_seconds, 3),
            clean=journal.replayed.clean,
            accepted=journal.replayed.accepted,
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
        self._let_in()  # all at once: whoever is answered at one door finds the others open

    async def _listen(self, protocol: str, address: str) -> None:
        mode = int(self.settings.socket_mode, 8)
        for sock in await open_sockets(address, mode, WORKQ_PORT if protocol == "workq" else 0):
            self._add(protocol, sock, made=True)

    def _add(self, protocol: str, sock: socket.socket, *, made: bool = False) -> None:
        """Make the door of a socket; `_let_in` opens it."""
        tls = self._tls if protocol == "fj" and sock.family != socket.AF_UNIX else None
        listener = Listener(
            self.loop,
            sock,
            self._protocols[protocol](self),
            has_room=self._has_room_for_probe if protocol == "http" else self.has_room,
            refusal=partial(self._refuse_peer, protocol),
            log=self.log,
            tls=tls,
            patience=lambda: self.settings.limits.hello_timeout,
            made=made,
            arriving=self.arriving,
        )
        self._listeners.append(listener)
        self.addresses[protocol].append(listener.address)
        self._closed_doors.append(listener)

    def _let_in(self) -> None:
        for listener in self._closed_doors:
            listener.open()
        self._closed_doors.clear()

    async def _listen_http(self, sockets: list[socket.socket]) -> None:
        for sock in sockets:
            self._add("http", sock)
        if not sockets:
            await self._listen("http", self.settings.http)
        self._let_in()  # readiness is asked for while journals are read

    async def _open_dashboard(self) -> None:
        self.dashboard = self._make_dashboard(self, self._tls)
        self.addresses["web"].append(await self.dashboard.start())

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
            self.notify("WATCHDOG=1")
            await asyncio.sleep(seconds)


def reload_context(context: Context, settings: Settings, tls: ssl.SSLContext | None) -> bool:
    """Give a context what can change while it serves, all or nothing; whether it was taken."""
    try:
        check_exposure(settings)
        tokens = read_tokens(settings.tokens) if settings.tokens else None
        if (tokens is None) != (context.tokens is None):
            raise SettingError("tokens cannot be turned on or off by a reload", name="tokens")
        if tls is not None:
            server_context(settings.tls)  # refused here, if at all
            tls.load_cert_chain(settings.tls.certificate, settings.tls.key or None)
    except (JournalError, OSError) as error:
        context.log.error("reload refused", error=str(error))
        return False
    context.tokens, context.settings = tokens, settings
    context.wire_limits = wire_limits(settings)
    return True


def declared_tables(settings: Settings) -> Tables:
    """What is declared, checked as a whole before anything is opened."""
    tables = read_tables(settings.tables or {})
    for name, declared in tables.journals.items():
        journal_settings(settings, name, declared.settings)
    return tables


def find_journals(settings: Settings, tables: Tables) -> dict[str, Path]:
    """Names and directories of the journals to serve."""
    data = Path(settings.data)
    if is_journal(data):
        others = sorted(set(tables.journals) - {settings.default_journal})
        if others:
            raise SettingError(f"{data} is one journal: {others[0]} has no place", name="tables")
        return {settings.default_journal: data}
    found = {settings.default_journal: data / settings.default_journal}
    if data.is_dir():
        for path in sorted(data.iterdir()):
            if path.is_dir() and is_journal(path):
                found[path.name] = path
    for name in (*settings.journals, *tables.journals):
        found[name] = data / name
    return found


def open_journal(
    path: Path,
    settings: Settings,
    files: Files = DISK,
    clock: Clock = SYSTEM_CLOCK,
    name: str = "default",
    wait_safe: Callable[[int], None] | None = None,
    reign: Reign | None = None,
) -> Journal:
    """Open one journal: recover and replay it."""
    try:
        files.make_directory(path.parent)
    except FileNotFoundError:
        raise SettingError(
            f"{path.parent.parent} is not there: was {settings.data} mistyped?", name="data"
        ) from None
    files.make_directory(path)
    faults = probe(files, path)
    if faults:
        raise SettingError(f"{path} cannot hold a journal: {'; '.join(faults)}", name="data")
    options = settings.journal
    return Journal(
        path,
        sync=options.sync,
        sync_interval=options.sync_interval if options.sync == "interval" else None,
        segment_size=options.segment_size,
        clean_interval=options.clean_interval,
        snapshot_bytes=options.snapshot_bytes,
        memory_limit=options.memory_limit or None,
        archive=_archive_of(options, path, name),
        archive_options=_archive_options(options, reign),
        max_payload=settings.limits.max_payload,
        on_failure=options.on_failure,
        zone_bytes=options.zone_bytes,
        accept=options.accept,
        wait_safe=wait_safe,
        files=files,
        clock=clock,
    )


def _archive_of(options: JournalSettings, path: Path, name: str) -> str | None:
    """Where a journal is shipped to; None: nowhere."""
    if options.archive:
        return join_address(options.archive, name)
    if options.history == "archive":
        _log.warning("the setting history is deprecated: say where to ship to by archive")
        return str(path / "archive")
    return None


def _archive_options(options: JournalSettings, reign: Reign | None) -> ArchiveOptions:
    return ArchiveOptions(
        interval=options.archive_interval,
        max_lag=options.archive_max_lag,
        behind=options.archive_behind,
        keep_days=options.archive_keep_days,
        keep_versions=options.archive_keep_versions,
        compress=options.archive_compress,
        reign=reign,
    )


def is_journal(path: Path) -> bool:
    """Whether a directory is that of one journal."""
    return (path / "append.lock").exists() or any(path.glob("[0-9]*.log"))
