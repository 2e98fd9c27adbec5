"""One journal that this node keeps: it follows, and serves while it leads.

Rules:

1. A reign begins when the epoch's MARK is on a majority: then the journal is opened on the log that
   the member lends, and replayed. It ends with the member's word, and nothing more is answered:
   connections are cut, the journal is closed, and the log goes back.
2. The journal cleans nothing: the nodes hold the same records, up to where a snapshot stands for
   them. What only lives in memory (`persist=0`) ends with a reign.
3. It is archived as any other, but only as far as it is committed; see `archive.shipping` for how
   the next reign goes on there.
4. The ports of Workq and of the dashboard are the default journal's, and open while it is led.
5. A reload counts for whoever waits and for the next reign as for this one.
6. Somebody leads it here, or sends what is to be appended several times a second; else nobody
   brings it to this node.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fastjournal.archive.source import Reign
from fastjournal.clock import SECOND, Clock
from fastjournal.config import Settings
from fastjournal.daemon.context import Context
from fastjournal.daemon.fj.standby import Progress, Standby, StandbyConnection
from fastjournal.daemon.log_lines import Log
from fastjournal.daemon.replicated.gate import Gate
from fastjournal.daemon.server import Server
from fastjournal.errors import JournalError
from fastjournal.replica.node import ReplicaNode

__all__ = ["KeptJournal"]

_SILENCE = 10 * SECOND  # after so long nobody brings it any more


class KeptJournal:
    """On the running loop: `run` until it is told to stop or to leave, or its node has ended."""

    def __init__(
        self,
        name: str,
        path: Path,
        node: ReplicaNode,
        context: Context,
        make_server: Callable[..., Server],
        sockets: list[tuple[str, socket.socket]],
    ) -> None:
        """`context`: that of the daemon. `sockets`: those of systemd for this journal alone."""
        self.name = name
        self.node = node
        self.server: Server | None = None
        """While it is led; it lets clients in once it is `ready`."""
        self._path = path
        self._context = context
        self._make_server = make_server
        self._sockets = sockets
        self._changed = asyncio.Event()
        self._begun = context.clock.monotonic()
        self._left = False
        self._gate: Gate | None = None
        self._seen: list[object] = []
        member = node.member

        def progress() -> Progress:
            lag = context.clock.monotonic() - member.fresh_at
            return Progress(member.log.rewritten, member.log.commit_time, lag)

        def watch(wanted: bool) -> None:
            member.asks_commit = wanted

        self._standby = Standby(
            context,
            name,
            path,
            primary_address=lambda: "" if member.is_serving else node.primary_address,
            progress=progress,
            watch=watch,
        )

    def changed(self) -> None:
        """Something has happened to the member."""
        member = self.node.member
        now: list[object] = [member.is_serving, member.epoch, self.node.fault]
        if now != self._seen:  # else it is but a message, and there are thousands a second
            self._seen = now
            self._changed.set()
        if self._gate is not None:
            self._gate.changed()

    def meet(self) -> Any:
        """Who speaks FJ with one more client of it."""
        if self.server is not None and self.server.ready:
            return self.server.meet()
        return StandbyConnection(self._standby)

    def cut_lookers(self) -> None:
        """Let those go who look at what is followed."""
        for connection in list(self._standby.connections):
            connection.cut()

    @property
    def connections(self) -> int:
        """How many clients it has."""
        served = 0 if self.server is None else len(self.server.connections)
        return served + len(self._standby.connections)

    @property
    def is_brought(self) -> bool:
        """Whether somebody brings it to this node (rule 6)."""
        member = self.node.member
        silence = self._context.clock.monotonic() - max(self._begun, member.heard_at)
        return member.is_serving or silence < _SILENCE

    def leave(self) -> None:
        """Let `run` end, unless it leads: this node keeps the journal no longer."""
        self._left = True
        self._changed.set()

    def reload(self, settings: Settings) -> None:
        """Take over what can change while it is served (rule 5)."""
        if self.server is not None:
            self.server.reload(self._of_reign(settings))

    async def run(self, stop: asyncio.Event) -> None:
        """Follow, lead, and serve while leading."""
        member = self.node.member
        try:
            while not stop.is_set() and self.node.fault is None:
                if member.is_serving:
                    await self._reign(stop)
                elif self._left:
                    return
                else:
                    await self._either(stop)
        finally:
            self._standby.close()
            await self.node.stop()
        if self.node.fault is not None:
            raise self.node.fault

    async def _reign(self, stop: asyncio.Event) -> None:
        """Serve until another epoch begins (rule 1)."""
        context, member = self._context, self.node.member
        log, clock = context.log, context.clock
        epoch, node = member.epoch, self.node.options.name
        self._gate = gate = Gate(self.node, context.settings.replica.ack)
        server = self._make_reign_server(log, clock, gate, epoch)
        member.log.lend()
        log.info("leading", node=node, epoch=epoch, journal=self.name)
        self.server = server
        try:
            await server.start()
            while member.is_serving and member.epoch == epoch and self.node.fault is None:
                if stop.is_set():
                    break
                await self._either(stop)
        except JournalError as error:
            log.error("the journal cannot be served", journal=self.name, error=str(error))
            self.node.do(member.resign)
        finally:
            gate.end_waits()
            if not stop.is_set():
                gate.close()
                for connection in list(server.connections):
                    connection.cut("replica", "not the primary any more")
            await server.stop()
            gate.close()
            self.server = self._gate = None
            log.info("led", node=node, epoch=epoch, journal=self.name)
            if member.is_serving:
                self.node.do(member.resign)
            if self.node.fault is None:
                await asyncio.to_thread(member.log.take_back)

    def _make_reign_server(self, log: Log, clock: Clock, gate: Gate, epoch: int) -> Server:
        context, member = self._context, self.node.member
        settings = self._of_reign(context.settings)
        homes = {self.name: self._path}
        server = self._make_server(settings, log=log, clock=clock, homes=homes)
        server.replicas = {self.name: self.node.report}
        server.notify = lambda state: None
        server.take_sockets = lambda: [(word, sock.dup()) for word, sock in self._sockets]
        # They are counted for the daemon, whoever led when it happened.
        server.accepted, server.errors, server.cuts = (
            context.accepted, context.errors, context.cuts,
        )  # fmt: skip
        server.started = context.started
        server.wait_safe = gate.wait_safe
        server.reign = Reign(epoch, member.is_committed)

        def open_gate() -> None:
            self._standby.close()
            gate.open(server.default)
            member.log.lend_to(gate)

        server.before_listening = open_gate
        return server

    def _of_reign(self, settings: Settings) -> Settings:
        """The settings of a reign: its clients come in at the daemon's ports (rule 4)."""
        is_default = self.name == settings.default_journal
        return msgspec.structs.replace(
            settings,
            listen=(),
            http="",
            journals=(),
            default_journal=self.name,
            workq=settings.workq if is_default else (),
            web=settings.web if is_default else "",
        )

    async def _either(self, stop: asyncio.Event) -> None:
        """Wait until something has changed, or for the end."""
        self._changed.clear()
        waits = [asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(stop.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
