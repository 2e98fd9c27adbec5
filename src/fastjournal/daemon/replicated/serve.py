"""A daemon whose journals are kept by several nodes, put together.

Rules:

1. The journals are kept here whose set names this node (`sets`), and one that a primary brings to
   this node. It looks now and then at the arbiter, and when somebody wants one that it does not
   know. A journal whose set names this node no longer, and which nobody brings to it, is closed;
   its files stay. It may lead some and follow others.
2. They share the ports for clients (`front`), the port for nodes and the lease (`replica.host`),
   and the port of /metrics, /healthz and /readyz, which tells of all of them.
3. To systemd a node is ready, and alive, whether it leads or not.
4. A fault of one journal's log ends the daemon: the others resign first.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from fastjournal.archive.snapshot_reader import SnapshotReader
from fastjournal.archive.store import join_address, open_store
from fastjournal.clock import SYSTEM_CLOCK, Clock
from fastjournal.config import Settings, parse_address
from fastjournal.daemon.auth import check_exposure, read_tokens
from fastjournal.daemon.context import Context
from fastjournal.daemon.health_http import HttpConnection
from fastjournal.daemon.listener import bind
from fastjournal.daemon.log_lines import Log
from fastjournal.daemon.replicated.front import Front
from fastjournal.daemon.replicated.kept_journal import KeptJournal
from fastjournal.daemon.replicated.sets import (
    check_homes,
    check_settings,
    find_home,
    make_sets,
    node_options,
    open_replica,
)
from fastjournal.daemon.server import Server
from fastjournal.daemon.systemd import inherited, notify, watchdog_seconds
from fastjournal.errors import JournalError, NotFound, SettingError, Unavailable
from fastjournal.journal.language.codec import encode
from fastjournal.journal.language.commands import Mark
from fastjournal.replica.etcd import EtcdArbiter
from fastjournal.replica.host import ReplicaHost
from fastjournal.replica.node import ReplicaNode
from fastjournal.replica.rules import MemberSet

__all__ = ["serve_replicated"]

_RETRY = 1.0  # seconds until an arbiter that is away is tried again
_LOOK = 5.0  # seconds between two looks at what has been placed


async def serve_replicated(
    settings: Settings,
    make_server: Callable[..., Server],
    log: Log,
    stop: asyncio.Event,
    clock: Clock = SYSTEM_CLOCK,
    on_reload: Callable[[Callable[[Settings], None]], None] | None = None,
) -> None:
    """Follow, lead, and serve while leading, until told to stop.

    `on_reload` is told who takes settings that have changed.
    """
    check_exposure(settings)
    check_settings(settings)
    options = node_options(settings.replica, settings.listen)
    arbiter = EtcdArbiter(settings.replica.arbiter)
    sets = await _make_sets(arbiter, settings, log, stop)
    if sets is None:
        return
    check_homes(settings, sets)
    daemon = _Daemon(settings, arbiter, make_server, log, clock, stop)
    daemon.host = ReplicaHost(options, arbiter, clock=clock, on_wanted=daemon.open_later)
    if on_reload is not None:
        on_reload(daemon.reload)
    await daemon.run(sets)


async def _make_sets(
    arbiter: EtcdArbiter, settings: Settings, log: Log, stop: asyncio.Event
) -> dict[str, MemberSet] | None:
    """Who keeps what; None: told to stop before the arbiter was there."""
    while not stop.is_set():
        try:
            return await asyncio.to_thread(make_sets, arbiter, settings)
        except SettingError:
            raise
        except JournalError as error:
            log.warning("the arbiter is away", error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY):
                    await stop.wait()
    return None


class _Daemon:
    """What is there while it runs."""

    host: ReplicaHost

    def __init__(
        self,
        settings: Settings,
        arbiter: EtcdArbiter,
        make_server: Callable[..., Server],
        log: Log,
        clock: Clock,
        stop: asyncio.Event,
    ) -> None:
        tokens = read_tokens(settings.tokens) if settings.tokens else None
        self._context = Context(settings, clock, log, tokens)
        self._arbiter = arbiter
        self._sets: dict[str, MemberSet] = {}
        """What has been placed, as far as is known here."""
        self._make_server = make_server
        self._stop = stop
        self._over = asyncio.Event()
        self._kept: dict[str, KeptJournal] = {}
        self._runs: set[asyncio.Task[None]] = set()
        self._opening: set[str] = set()
        self._fault: BaseException | None = None
        self._sockets = inherited()
        self._front = Front(self._context, self._kept, self._find_primary)

    async def run(self, sets: dict[str, MemberSet]) -> None:
        """Keep what is to be kept here, until told to stop or until something has failed."""
        context, log = self._context, self._context.log
        await self.host.start()
        doors: list[asyncio.Server] = []
        ending = asyncio.ensure_future(self._stop.wait())
        ending.add_done_callback(lambda _: self._over.set())
        alive = asyncio.create_task(_watchdog(watchdog_seconds()))
        looking = asyncio.create_task(self._look_now_and_then())
        looking.add_done_callback(self._ended)
        try:
            await self._open_placed(sets)
            doors = await self._listen_http()
            log.info("replicating", node=self.host.options.name, port=self.host.port,
                     journals=sorted(self._kept))  # fmt: skip
            await self._front.open(self._given("fj"))
            notify("READY=1\nSTATUS=replicating")
            await self._over.wait()
        finally:
            notify("STOPPING=1")
            for task in (ending, alive, looking):
                task.cancel()
            context.draining = True
            self._over.set()
            self._front.close()
            await asyncio.gather(*self._runs, return_exceptions=True)
            for door in doors:
                door.close()
            await self.host.stop()
        if self._fault is not None:
            raise self._fault

    def reload(self, settings: Settings) -> None:
        """Take over what can change while running."""
        for kept in self._kept.values():
            kept.reload(settings)
        self._front.reload(settings)

    def open_later(self, name: str) -> None:
        """A primary has come for a journal that is not kept here yet (rule 1)."""
        self._runs.add(opening := asyncio.create_task(self._open_wanted(name)))
        opening.add_done_callback(self._ended)

    async def _open_wanted(self, name: str) -> None:
        with contextlib.suppress(Unavailable):  # the peer comes again
            if name not in self._sets:
                await self._look()
            if name in self._sets:
                await self._open(name, self._sets[name])

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            with contextlib.suppress(Unavailable):  # whoever needs the arbiter more says so
                await self._look()

    async def _look(self) -> None:
        """Keep what has been placed here since, and no longer what has left."""
        await self._open_placed(await asyncio.to_thread(self._arbiter.find_all))

    async def _open_placed(self, sets: dict[str, MemberSet]) -> None:
        self._sets = sets
        for name, members in sets.items():
            kept = self._kept.get(name)
            if self.host.options.name in members.nodes:
                await self._open(name, members)
            elif kept is not None and not kept.is_brought:
                kept.leave()

    async def _find_primary(self, name: str) -> str:
        """Where clients find who leads a journal that is not kept here; empty: not known now."""
        if name not in self._sets:
            try:
                await self._look()
            except Unavailable:
                return ""
        if name not in self._sets:
            raise NotFound(f"no journal {name!r}")
        return await self.host.find_primary(name)

    async def _open(self, name: str, members: MemberSet) -> None:
        if name in self._opening or name in self._kept or self._over.is_set():
            return
        settings = self._context.settings
        try:
            path = find_home(settings, name)
        except SettingError as error:  # whoever has placed it here is to move it
            self._context.log.error("a journal cannot be kept", journal=name, error=str(error))
            return
        self._opening.add(name)
        try:
            log = await asyncio.to_thread(open_replica, path, settings)
            node = ReplicaNode(
                self.host,
                name,
                log,
                make_mark=_mark(self.host.options.name),
                near=members.nodes,
                archive=_archive_of(settings, name),
                on_change=lambda: kept.changed(),
            )
            workq = [("workq", sock) for sock in self._given("workq")]
            sockets = workq if name == settings.default_journal else []
            kept = KeptJournal(name, path, node, self._context, self._make_server, sockets)
            self._kept[name] = kept
            self._context.replicas[name] = node.report
            node.start()
            run = asyncio.create_task(self._keep(kept))
            self._runs.add(run)
            run.add_done_callback(self._ended)
        except JournalError as error:
            self._fault = error
            self._over.set()
        finally:
            self._opening.discard(name)

    async def _keep(self, kept: KeptJournal) -> None:
        """Until the end, or until it is this node's no longer (rule 1)."""
        await kept.run(self._over)
        if not self._over.is_set():
            del self._kept[kept.name], self._context.replicas[kept.name]
            self._context.log.info("left", node=self.host.options.name, journal=kept.name)

    def _ended(self, run: asyncio.Task[None]) -> None:
        self._runs.discard(run)
        fault = None if run.cancelled() else run.exception()
        if fault is not None and self._fault is None:
            self._fault = fault
        if fault is not None:
            self._over.set()

    def _given(self, protocol: str) -> list[socket.socket]:
        """The sockets of systemd."""
        return [sock for name, sock in self._sockets if name == protocol]

    def _served_context(self) -> Context:
        """The daemon as /metrics and the others tell of it: all that is served at the moment."""
        context = self._context
        servers = [kept.server for kept in self._kept.values() if kept.server is not None]
        ready = [server for server in servers if server.ready]
        context.ready = bool(ready)
        context.journals = {
            name: host for server in ready for name, host in server.journals.items()
        }
        context.connections = {one for server in servers for one in server.connections}
        return context

    async def _listen_http(self) -> list[asyncio.Server]:
        """For whoever watches the node, whatever it leads (rule 2)."""
        loop, address = asyncio.get_running_loop(), self._context.settings.http
        given = self._given("http")

        def factory() -> Any:
            return HttpConnection(self._served_context())

        try:
            if given:
                return [await loop.create_server(factory, sock=sock) for sock in given]
            if not address:
                return []
            if address.startswith("unix:"):
                return [await loop.create_unix_server(factory, address[5:])]
            sockets = await bind(*parse_address(address, 0))
            return [await loop.create_server(factory, sock=sock) for sock in sockets]
        except OSError as error:
            raise SettingError(f"cannot listen on {address}: {error}", name="http") from error


async def _watchdog(seconds: float) -> None:
    while seconds:
        notify("WATCHDOG=1")
        await asyncio.sleep(seconds)


def _archive_of(settings: Settings, name: str) -> SnapshotReader | None:
    """Where a journal is archived, to fetch from; None: nowhere."""
    if not settings.journal.archive:
        return None
    address = join_address(settings.journal.archive, name)
    return SnapshotReader(lambda: open_store(address))


def _mark(node: str) -> Callable[[int, int, int], bytes]:
    def make(when: int, epoch: int, version: int) -> bytes:
        return encode(Mark(when, epoch, version, b"epoch " + node.encode()))

    return make
