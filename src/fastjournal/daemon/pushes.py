"""Subscriptions of connections to the events of one journal.

Rules:

1. A queue that has something to give is pushed once until somebody leases from it (D-16); a job
   that died is pushed to administrators who listen to its queue, with the bit for "gone".
2. A key is pushed when a job of it is written, ends or goes.
3. Nothing is asked of the journal while nobody listens.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from fastjournal.daemon.hosting import Hosted
from fastjournal.journal.events import Subscription
from fastjournal.model import Event, State
from fastjournal.wire.fj import encode_push
from fastjournal.wire.functions import Type

if TYPE_CHECKING:
    import asyncio

    from fastjournal.daemon.fj import FjConnection

__all__ = ["Pushes"]


class Pushes(Subscription):
    """Who listens to what on one journal."""

    def __init__(self, host: Hosted, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(frozenset(), 0, lambda _: None)
        self._host = host
        self._loop = loop
        self._thread = threading.get_ident()
        self._waiting: deque[Event] = deque()
        self._listeners: dict[tuple[bool, bytes], dict[FjConnection, int]] = {}

    def listen(self, session: FjConnection, queue: bool, name: bytes, identifier: int) -> None:
        """Subscribe; under the lock."""
        session.listening[queue, name] = identifier
        self._listeners.setdefault((queue, name), {})[session] = identifier
        self._update()
        if queue:
            self._tell_ready(session, name, identifier)

    def unlisten(self, session: FjConnection, queue: bool, name: bytes) -> None:
        """End a subscription; under the lock."""
        session.listening.pop((queue, name), None)
        listeners = self._listeners.get((queue, name), {})
        listeners.pop(session, None)
        if not listeners:
            self._listeners.pop((queue, name), None)
        self._update()

    def leave(self, session: FjConnection) -> None:
        """The connection is gone."""
        with self._host.engine.lock:
            for queue, name in list(session.listening):
                self.unlisten(session, queue, name)

    def push(self, event: Event) -> None:
        """Called by the journal, under its lock, on any thread."""
        self._waiting.append(event)
        if len(self._waiting) == 1:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self._tell)
            else:
                self._loop.call_soon_threadsafe(self._tell)

    def end(self) -> None:
        """The journal closes; the connections end by themselves."""

    def _update(self) -> None:
        kinds = set()
        for queue, _ in self._listeners:
            kinds |= {"due", "dead"} if queue else {"changed", "dead"}
        self.kinds = frozenset(kinds)
        subscriptions = self._host.engine.subscriptions
        if kinds and self not in subscriptions:
            subscriptions.append(self)
        elif not kinds and self in subscriptions:
            subscriptions.remove(self)

    def _tell_ready(self, session: FjConnection, name: bytes, identifier: int) -> None:
        """What is due already is told at once, behind the answer."""
        engine, lanes = self._host.engine, self._host.state.lanes
        now = self._host.state.promote(engine.clock.now())
        for lane in [lanes[name]] if name in lanes else [] if name else list(lanes.values()):
            if lane.name and lane.open:
                data = encode_push(identifier, now, lane.name, due=now)
                self._loop.call_soon(session.push, identifier, data, now)

    def _tell(self) -> None:
        now = self._host.engine.clock.now()
        while self._waiting:
            event = self._waiting.popleft()
            if event.kind in ("changed", "dead") and event.key:
                self._tell_key(event, now)
            if event.kind == "changed":
                continue
            dead = event.kind == "dead"
            for name in (event.queue, b""):
                for session, identifier in self._find(True, name):
                    if not dead or session.is_admin:
                        due = None if dead else event.at
                        data = encode_push(identifier, now, event.queue, gone=dead, due=due)
                        session.push(identifier, data, now)

    def _tell_key(self, event: Event, now: int) -> None:
        """A job or an entry has changed; an entry under each of its keys."""
        row = self._host.state.rows.get(event.id)
        gone, kind = row is None, int(Type.JOB)
        keys: tuple[bytes, ...] = (event.key,)
        if not event.queue:
            gone = row is None or row.state is State.DELETED
            kind = Type.VOID if row is None else row.kind
            keys = keys if row is None else (event.key, *row.rare.aliases)
        for key in keys:
            for session, identifier in self._find(False, key):
                data = encode_push(identifier, now, key, value_type=kind, gone=gone)
                session.push(identifier, data, now)

    def _find(self, queue: bool, name: bytes) -> list[tuple[FjConnection, int]]:
        return list(self._listeners.get((queue, name), {}).items())
