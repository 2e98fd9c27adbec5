"""What all connections of a daemon share: settings, journals, who is there, what was counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastjournal.clock import Clock
from fastjournal.config import Settings
from fastjournal.daemon.auth import Grant, Tokens
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.daemon.log_lines import Log
from fastjournal.daemon.session import Session
from fastjournal.errors import Unauthorized
from fastjournal.journal.look.inspection import JournalStatus
from fastjournal.package import __version__
from fastjournal.package.compiled import describe_core
from fastjournal.wire.fj.requests import Limits

__all__ = ["PROMISES", "Context"]

PROMISES = {
    "always": "an answer means: on stable storage",
    "interval": "an answer means: written; stable storage follows within the sync interval",
    "os": "an answer means: written; the system decides when it reaches stable storage",
}


class Context:
    """The daemon as its connections know it."""

    def __init__(self, settings: Settings, clock: Clock, log: Log, tokens: Tokens | None) -> None:
        self.settings = settings
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.log = log
        self.tokens = tokens
        """Who may come in; None: no tokens are demanded."""
        self.wire_limits = wire_limits(settings)
        self.journals: dict[str, JournalLoop] = {}
        self.default: JournalLoop = None  # type: ignore[assignment]
        self.connections: set[Session] = set()
        self.arriving: set[Any] = set()
        """Peers that were accepted and are no connections yet."""
        self.emptied = asyncio.Event()
        """Set when the last connection has ended."""
        self.probes = 0
        """Connections of the HTTP listener."""
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
        self.replicas: dict[str, Callable[[], dict[str, Any]]] = {}
        """What this node says of itself for each journal that several nodes keep."""

    def admit(self, session: Session) -> bool:
        """Count a new connection in; False if the server is leaving."""
        self.arriving.discard(session)
        self.connections.add(session)
        self._count_peers()
        self.accepted[session.protocol] += 1
        if self.draining:
            self.turned_away += 1
            return False
        self.log.debug("connected", peer=session.peer, protocol=session.protocol)
        return True

    def dismiss(self, session: Session, error: Exception | None) -> None:
        """A connection has ended."""
        self.connections.discard(session)
        self._count_peers()
        if not self.connections:
            self.emptied.set()
        self.log.debug("disconnected", peer=session.peer, error=str(error or ""))

    def _count_peers(self) -> None:
        for journal_loop in self.journals.values():
            journal_loop.peers = len(self.connections)

    def note_cut(self, session: Session, reason: str, text: str) -> None:
        """A connection is being cut."""
        self.cuts[reason] += 1
        self.log.info("cut", peer=session.peer, reason=reason, text=text)

    def grant(self, token: str, journal: str, peer: str) -> Grant | None:
        """What a token allows; None where none is demanded. Why one is refused is not told."""
        if self.tokens is None:
            return None
        found = self.tokens.find(token)
        if found is None or not found.opens(journal):
            reason = "wrong token" if found is None else "wrong journal"
            self.log.warning("denied", peer=peer, reason=reason)
            raise Unauthorized("the token is missing, wrong, or not for this journal")
        return found

    def deny(self, session: Session, reason: str) -> None:
        """Somebody tried what it may not."""
        self.log.warning("denied", peer=session.peer, reason=reason)

    def count_error(self, code: str) -> None:
        """An error was answered."""
        self.errors[code] += 1

    def report(self, error: BaseException) -> None:
        """A bug of ours; told in full in the log, by class only to the peer."""
        self.errors["SERVER-ERROR"] += 1
        self.log.error("internal error", exc_info=error)

    def describe(self, journal: str, sync: str, roles: list[str]) -> dict[str, Any]:
        """What HELLO may ask: who we are and what we promise."""
        return {
            "server": "fastjournal",
            "version": __version__,
            "journal": journal,
            "sync": sync,
            "promise": PROMISES[sync],
            "roles": roles,
            "max_message": self.wire_limits.max_message,
            "max_payload": self.settings.limits.max_payload,
            "serves": ["lengths", "client-time", "kept", "accessed"],
        } | self._describe_replica(journal)

    def _describe_replica(self, journal: str) -> dict[str, Any]:
        report = self.report_replica(journal)
        if report is None:
            return {}
        words = ("node", "role", "primary", "epoch", "address")
        return {"replica": {word: report[word] for word in words}}

    def report_replica(self, journal: str) -> dict[str, Any] | None:
        """What this node says of itself as one of those that keep a journal; None: it is alone."""
        report = self.replicas.get(journal)
        return None if report is None else report()

    def status(self, journal_loop: JournalLoop) -> dict[str, Any]:
        """Figures of a journal and of the server."""
        return self.figures(journal_loop.journal.status(), journal_loop.name)

    def figures(self, figures: JournalStatus, journal: str) -> dict[str, Any]:
        """Figures of a journal, as it tells them, and of the server."""
        log = asdict(figures.log) | {
            "active": figures.log.active.name,
            "standby": figures.log.standby.name,
        }
        return (
            figures._asdict()
            | {
                "log": log,
                "upkeep": asdict(figures.upkeep),
                "archive": None if figures.archive is None else asdict(figures.archive),
                "journal": journal,
                "promise": PROMISES[figures.sync],
                "server": {
                    "version": __version__,
                    "core": describe_core(),
                    "started": self.started,
                    "now": self.clock.now(),
                    "connections": len(self.connections),
                    "waiting": sum(len(peer.waiters) for peer in self.connections),
                    "journals": sorted(self.journals),
                    "errors": dict(self.errors),
                },
            }
            | ({"replica": self.report_replica(journal)} if journal in self.replicas else {})
        )


def wire_limits(settings: Settings) -> Limits:
    """How large a message may be."""
    limits = settings.limits
    return Limits(
        max_value=min(limits.max_payload + 1 + 66_560, limits.max_message),
        max_message=limits.max_message,
    )
