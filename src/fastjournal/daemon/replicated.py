"""A daemon whose journal is kept by several nodes: it serves while it is the primary.

Rules:

1. The ports of `listen` are open on every node. Who does not lead says who does, and lets those
   look who take what is a little old (`standby`); nothing else is open on it but the port of
   /metrics, /healthz and /readyz. To systemd a node is ready, and alive, whether it leads or not.
2. A reign begins when the epoch's MARK is on a majority: then the journal is opened on the log that
   the member lends, and replayed. It ends with the member's word, and nothing more is answered:
   connections are cut, the journal is closed, and the log goes back.
3. Answers wait for `safe_time`: what `journal.sync` promises on this node, and as many nodes as
   `replica.ack` says. Without the lease nothing is answered but by a majority asked since.
4. The journal cleans nothing: the nodes hold the same records, up to where a snapshot stands for
   them. A snapshot counts when a majority has all that it tells, and those who are there have had a
   chance to get it too: they need not fetch the snapshot then. What only lives in memory
   (`persist=0`) ends with a reign.
5. A reload counts for whoever waits and for the next reign as for this one.
6. The journal of a reign is archived as any other, but only as far as it is committed; see
   `archive.shipping` for how the next reign goes on there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from fastjournal.archive.source import Reign
from fastjournal.clock import SECOND, SYSTEM_CLOCK, Clock
from fastjournal.config import ReplicaSettings, Settings, parse_address
from fastjournal.daemon.auth import check_exposure, read_tokens, server_context
from fastjournal.daemon.context import Context
from fastjournal.daemon.fj.standby import Progress, Standby, StandbyConnection
from fastjournal.daemon.health_http import HttpConnection
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.daemon.listener import Listener, bind, bind_unix
from fastjournal.daemon.log_lines import Log
from fastjournal.daemon.server import Server, find_journals, reload_context
from fastjournal.daemon.systemd import notify, watchdog_seconds
from fastjournal.errors import JournalError, ReadOnly, SettingError
from fastjournal.journal.language.codec import encode
from fastjournal.journal.language.commands import Mark
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.replica.disk import ReplicaLog
from fastjournal.replica.etcd import EtcdArbiter
from fastjournal.replica.lease import Timing
from fastjournal.replica.node import NodeOptions, ReplicaNode
from fastjournal.replica.rules import MemberSet
from fastjournal.tables import Tables
from fastjournal.wire.fj.replies import encode_error

__all__ = ["Gate", "serve_replicated"]

_RETRY = 1.0  # seconds until an arbiter that is away is tried again
_SAFE = 30.0  # seconds that a snapshot waits for a majority; then the next one tries it
_ALL = 5.0  # seconds more that it waits for the others


class Gate:
    """What a journal's loop asks before it answers (rule 3)."""

    def __init__(self, node: ReplicaNode, level: str) -> None:
        self._node = node
        self._level = level
        self._journal_loop: JournalLoop | None = None
        self._writer: JournalLoop | None = None
        """Whose log it is, though it answers no more: others still ask how far it is."""
        self._round = 0
        self._closed = False
        self._moved = threading.Condition()
        self._waiting = 0  # threads, for that

    def open(self, journal_loop: JournalLoop) -> None:
        """The journal is open: its answers go through here."""
        self._journal_loop = self._writer = journal_loop
        journal_loop.gate = journal_loop.subscriptions.gate = self

    def close(self) -> None:
        """Nothing is answered any more."""
        self._journal_loop = None
        self.end_waits()

    def end_waits(self) -> None:
        """The journal is about to close: no snapshot waits any more."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting:  # who comes later looks first
            with self._moved:
                self._moved.notify_all()

    def wait_safe(self, time: int) -> None:
        """Return when a snapshot that tells of records up to a TIME may count (rule 4).

        On a thread of the journal.
        """
        member = self._node.member
        with self._moved:
            self._waiting += 1
            try:
                committed = self._moved.wait_for(
                    lambda: self._closed or member.is_committed(time), _SAFE
                )
                if self._closed or not committed:
                    raise ReadOnly("a majority does not have what the snapshot tells")
                self._moved.wait_for(lambda: self._closed or member.is_everywhere(time), _ALL)
            finally:
                self._waiting -= 1

    def stored_time(self) -> int:
        """TIME of the newest record that is as safe as the sync policy says."""
        assert self._writer is not None
        log = self._writer.engine.log
        return log.synced_time if self._writer.always else log.written_time

    def written_time(self) -> int:
        """TIME of the newest record in the log."""
        assert self._writer is not None
        return self._writer.engine.log.written_time

    def tell_writes(self, told: Callable[[int, bytes, int, bool], object]) -> None:
        """Tell every write of the journal."""
        assert self._writer is not None
        self._writer.engine.log.tell_writes(told)

    def wrote(self) -> None:
        """A turn has ended: ship what it wrote."""
        self._round = self._node.member.read_round
        if self._journal_loop is not None:
            self._node.do(self._node.member.wrote, tells=False)

    def synced(self) -> None:
        """What was written is as safe here as the sync policy says."""
        if self._journal_loop is not None:
            self._node.member.synced()

    def safe_time(self) -> int:
        """Up to where may be answered at this moment; -1: nothing may."""
        if self._journal_loop is None:
            return -1
        member = self._node.member
        if not member.may_answer(self._round):
            return -1
        return min(self.stored_time(), member.acknowledged_time(self._level))

    def changed(self) -> None:
        """Something has happened to the member."""
        self._wake()
        if self._journal_loop is not None:
            self._journal_loop.release()


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
    node_changed = asyncio.Event()
    gates: list[Gate] = []

    seen: list[object] = []

    def changed() -> None:
        assert node is not None
        now = [node.member.is_serving, node.member.epoch, node.fault]
        if now != seen:  # else it is but a message, and there are thousands a second
            seen[:] = now
            node_changed.set()
        for gate in gates:
            gate.changed()

    node = await _make_node(settings, log, changed, stop, clock)
    if node is None:
        return
    await node.start()
    tokens = read_tokens(settings.tokens) if settings.tokens else None
    waiting = Context(settings, clock, log, tokens)
    waiting.replica = node.report
    contexts = [waiting]
    front = _Front(waiting, node)

    def reload(changed: Settings) -> None:
        for context in contexts[1:]:
            assert isinstance(context, Server)
            context.reload(_as_primary(changed))
        front.reload(changed)

    if on_reload is not None:
        on_reload(reload)
    doors = await _listen_http(settings.http, lambda: HttpConnection(contexts[-1]))
    log.info("replicating", node=node.options.name, port=node.port)
    alive = asyncio.create_task(_watchdog(watchdog_seconds()))
    try:
        await front.open()
        notify("READY=1\nSTATUS=replicating")
        while not stop.is_set() and node.fault is None:
            if node.member.is_serving:
                gate = Gate(node, settings.replica.ack)
                gates[:] = [gate]
                server = make_server(_as_primary(waiting.settings), log=log, clock=clock)
                server.replica = node.report
                server.notify = lambda state: None
                contexts.append(server)
                await _reign(server, log, node, gate, front, node_changed, stop)
                contexts.pop()
                if not stop.is_set():
                    await front.open()
            else:
                await _either(node_changed, stop)
    finally:
        notify("STOPPING=1")
        alive.cancel()
        gates.clear()
        front.close()
        for door in doors:
            door.close()
        await node.stop()
    if node.fault is not None:
        raise node.fault


async def _watchdog(seconds: float) -> None:
    while seconds:
        notify("WATCHDOG=1")
        await asyncio.sleep(seconds)


class _Front:
    """The ports for clients while this node does not lead (rule 1)."""

    def __init__(self, context: Context, node: ReplicaNode) -> None:
        self._context = context
        self._tls = server_context(context.settings.tls)
        self._doors: list[Listener] = []
        member = node.member

        def progress() -> Progress:
            lag = context.clock.monotonic() - member.fresh_at
            return Progress(member.log.rewritten, member.log.commit_time, lag)

        def watch(wanted: bool) -> None:
            member.asks_commit = wanted

        self._standby = Standby(
            context,
            member.log.stream.path,
            primary_address=lambda: "" if member.is_serving else node.primary_address,
            progress=progress,
            watch=watch,
        )

    async def open(self) -> None:
        """Open them; one that somebody else has stays closed until this node leads."""
        if self._doors:
            return
        settings, log = self._context.settings, self._context.log
        for address in settings.listen:
            try:
                if address.startswith("unix:"):
                    sockets = [bind_unix(address[5:], int(settings.socket_mode, 8))]
                else:
                    sockets = await bind(*parse_address(address))
            except (OSError, SettingError) as error:
                log.warning("clients are not told who leads", listen=address, error=str(error))
                continue
            for sock in sockets:
                self._doors.append(self._door(sock, made=address.startswith("unix:")))
        for door in self._doors:
            door.open()

    def close(self) -> None:
        """This node is about to lead, or to end."""
        for door in self._doors:
            door.close()
        self._doors.clear()
        self._standby.close()

    def reload(self, settings: Settings) -> None:
        """Take over what can change while running; who looks here comes in again by it."""
        if reload_context(self._context, settings, self._tls):
            if self._context.tokens is not None:  # theirs may be gone: they say HELLO again
                for connection in list(self._standby.connections):
                    connection.cut()
            self._context.log.info("reloaded", node=settings.replica.name)

    def _door(self, sock: socket.socket, *, made: bool = False) -> Listener:
        context, standby = self._context, self._standby
        is_local = sock.family == socket.AF_UNIX
        return Listener(
            context.loop,
            sock,
            lambda: StandbyConnection(standby),
            has_room=lambda: len(standby.connections) < context.settings.limits.max_connections,
            refusal=lambda: encode_error(0, "FULL too many connections", context.clock.now()),
            log=context.log,
            tls=None if is_local else self._tls,
            patience=lambda: context.settings.limits.hello_timeout,
            made=made,
        )


async def _listen_http(address: str, factory: Callable[[], HttpConnection]) -> list[asyncio.Server]:
    """For whoever watches the node, whatever it is at the moment (rule 1)."""
    if not address:
        return []
    loop = asyncio.get_running_loop()
    try:
        if address.startswith("unix:"):
            return [await loop.create_unix_server(factory, address[5:])]
        sockets = await bind(*parse_address(address, 0))
        return [await loop.create_server(factory, sock=sock) for sock in sockets]
    except OSError as error:
        raise SettingError(f"cannot listen on {address}: {error}", name="http") from error


async def _reign(
    server: Server,
    log: Log,
    node: ReplicaNode,
    gate: Gate,
    front: _Front,
    node_changed: asyncio.Event,
    stop: asyncio.Event,
) -> None:
    """Serve until another epoch begins (rule 2)."""
    member, epoch = node.member, node.member.epoch
    member.log.lend()
    log.info("leading", node=node.options.name, epoch=epoch)
    try:
        server.wait_safe = gate.wait_safe
        server.reign = Reign(epoch, member.is_committed)
        server.before_listening = lambda: _open_gate(server, gate, front, member.log)
        await server.start()
        while member.is_serving and member.epoch == epoch and node.fault is None:
            if stop.is_set():
                break
            await _either(node_changed, stop)
    except JournalError as error:
        log.error("the journal cannot be served", error=str(error))
        node.do(member.resign)
    finally:
        gate.end_waits()
        if not stop.is_set():
            gate.close()
            for connection in list(server.connections):
                connection.cut("replica", "not the primary any more")
        await server.stop()
        gate.close()
        log.info("led", node=node.options.name, epoch=epoch)
        if member.is_serving:
            node.do(member.resign)
        if node.fault is None:
            await asyncio.to_thread(member.log.take_back)


def _open_gate(server: Server, gate: Gate, front: _Front, log: ReplicaLog) -> None:
    front.close()
    gate.open(server.default)
    log.lend_to(gate)


def _as_primary(settings: Settings) -> Settings:
    """The settings of a reign: its HTTP port is open already (rule 1)."""
    return msgspec.structs.replace(settings, http="")


async def _either(changed: asyncio.Event, stop: asyncio.Event) -> None:
    """Wait until something has changed, or for the end."""
    changed.clear()
    waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(stop.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()


async def _make_node(
    settings: Settings,
    log: Log,
    changed: Callable[[], None],
    stop: asyncio.Event,
    clock: Clock,
) -> ReplicaNode | None:
    told = settings.replica
    name = settings.default_journal
    homes = find_journals(settings, Tables({}, {}))
    if set(homes) != {name} or settings.tables or settings.journals:
        raise SettingError("a replicated daemon keeps its default journal alone", name="replica")
    if settings.journal.history == "archive":
        raise SettingError(
            "a replicated journal is archived at one place for all nodes: say archive",
            name="history",
        )
    options = node_options(told, name, settings.listen)
    arbiter = EtcdArbiter(told.arbiter)
    members = MemberSet(tuple(sorted((options.name, *options.peers))))
    while True:
        try:
            await asyncio.to_thread(arbiter.create, name, members)
            break
        except JournalError as error:
            log.warning("the arbiter is away", error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY):
                    await stop.wait()
            if stop.is_set():
                return None
    replica = await asyncio.to_thread(open_replica, homes[name], settings)
    return ReplicaNode(
        options, replica, arbiter, clock=clock, make_mark=_mark(options.name),
        on_change=changed,
    )  # fmt: skip


def open_replica(path: Path, settings: Settings) -> ReplicaLog:
    """The log of a node."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = Stream(path, WORKQ, zone_bytes=settings.journal.zone_bytes)
    sync = settings.journal.sync
    return ReplicaLog(stream, sync=sync, segment_size=settings.journal.segment_size)


def node_options(told: ReplicaSettings, journal: str, listen: Sequence[str] = ()) -> NodeOptions:
    """The settings of a node, checked."""
    peers: dict[str, tuple[str, int]] = {}
    for peer in told.peers:
        name, mark, address = peer.partition("=")
        if not mark or not name:
            raise SettingError(f"a peer is a node, name=host:port, not {peer!r}", name="peers")
        if name != told.name:  # so that the same list is good for all of them
            peers[name] = parse_address(address, 17996)
    host, port = parse_address(told.listen, 17996)
    secret = ""
    if told.secret_file:
        try:
            secret = Path(told.secret_file).read_text("utf-8").strip()
        except OSError as error:
            raise SettingError(f"secret_file: {error.strerror}", name="secret_file") from None
    elif not all(where.startswith("127.") for where, _ in [(host, 0), *peers.values()]):
        raise SettingError("nodes on several machines need a secret_file", name="secret_file")
    ttl = round(told.ttl * SECOND)
    timing = Timing(ttl=ttl, margin=ttl // 5, renew=ttl * 3 // 10, candidacy=ttl // 2)
    found = [one for one in (told.clients, *listen) if one and not one.startswith("unix:")]
    clients = ""
    if found:
        where, number = parse_address(found[0])
        clients = f"[{where}]:{number}" if ":" in where else f"{where}:{number}"
    return NodeOptions(
        told.name, journal, host, port, peers, secret, timing, told.catch_up, clients
    )


def _mark(node: str) -> Callable[[int, int, int], bytes]:
    def make(when: int, epoch: int, version: int) -> bytes:
        return encode(Mark(when, epoch, version, b"epoch " + node.encode()))

    return make
