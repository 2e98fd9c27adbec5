"""Subscriptions of connections to the events of one journal.

Rules:

1. A queue that has something to give is pushed once until somebody leases from it (D-16); a job
   that died is pushed to administrators who listen to its queue, with the bit for "gone".
2. A key is pushed when a job or an entry of it is written, ends or goes; an entry under each of its
   keys. A range is told of every entry whose key lies in it, both ends included.
3. A push says what a key is when it is sent: changes that follow each other before that are one
   push. What a peer does not read in time is collapsed into one push that says so.
4. Of a replicated journal a push tells, as an answer does, only what as many nodes have as it
   promises: it is made when the change is logged, and waits.
5. Nothing is asked of the journal while nobody listens. A connection has so many subscriptions.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any

from fastjournal.daemon.session import KEY, QUEUE, RANGE, Session, Subject
from fastjournal.errors import QueueFull
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.engine.events import Subscription
from fastjournal.model import Event, State
from fastjournal.wire.fj.functions import Type
from fastjournal.wire.fj.replies import encode_push

__all__ = ["Subscriptions"]

_MOST = 10_000
"""Subscriptions of one connection."""
_MOST_RANGES = 100
"""Every change is compared with every range."""


class Subscriptions(Subscription):
    """Who listens to what on one journal."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(frozenset(), 0, lambda _: None)
        self._engine = engine
        self._state = engine.state
        self._loop = loop
        self._thread = threading.get_ident()
        self._waiting: deque[Event] = deque()
        self._listeners: dict[Subject, dict[Session, int]] = {}
        self._counts = [0, 0, 0]
        """Subjects that somebody listens to, by kind."""
        self._ranges: list[Subject] = []
        self._out: dict[Session, list[tuple[int, bytes]]] = {}
        self.gate: Any = None
        """As of `JournalLoop`."""
        self._unsafe: deque[tuple[int, dict[Session, list[tuple[int, bytes]]]]] = deque()
        """Pushes that wait until their newest record is safe (rule 4)."""

    def listen(self, session: Session, subject: Subject, identifier: int) -> None:
        """Subscribe; under the lock."""
        if subject not in session.listening:
            full = len(session.listening) >= _MOST
            if subject.kind == RANGE and not full:
                full = sum(known.kind == RANGE for known in session.listening) >= _MOST_RANGES
            if full:
                raise QueueFull(f"at most {_MOST} subscriptions, {_MOST_RANGES} of them ranges")
        session.listening[subject] = identifier
        if subject not in self._listeners:
            self._listeners[subject] = {}
            self._count(subject, 1)
        self._listeners[subject][session] = identifier
        if subject.kind == QUEUE:
            self._tell_ready(session, subject.name, identifier)

    def unlisten(self, session: Session, subject: Subject) -> None:
        """End a subscription; under the lock."""
        session.listening.pop(subject, None)
        listeners = self._listeners.get(subject)
        if listeners is None:
            return
        listeners.pop(session, None)
        if not listeners:
            del self._listeners[subject]
            self._count(subject, -1)

    def leave(self, session: Session) -> None:
        """The connection is gone."""
        with self._engine.lock:
            for subject in list(session.listening):
                self.unlisten(session, subject)

    def push(self, event: Event) -> None:
        """Called by the journal, under its lock, on any thread."""
        self._waiting.append(event)
        if len(self._waiting) == 1:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self._push_events)
            else:
                self._loop.call_soon_threadsafe(self._push_events)

    def end(self) -> None:
        """The journal closes; the connections end by themselves."""

    def _count(self, subject: Subject, more: int) -> None:
        """A subject has its first listener, or lost its last one."""
        self._counts[subject.kind] += more
        if subject.kind == RANGE:
            self._ranges = [subject for subject in self._listeners if subject.kind == RANGE]
        kinds = set()
        if self._counts[QUEUE]:
            kinds |= {"due", "dead"}
        if self._counts[KEY] or self._counts[RANGE]:
            kinds |= {"changed", "dead"}
        self.kinds = frozenset(kinds)
        subscriptions = self._engine.subscriptions
        if kinds and self not in subscriptions:
            subscriptions.append(self)
        elif not kinds and self in subscriptions:
            subscriptions.remove(self)

    def _tell_ready(self, session: Session, name: bytes, identifier: int) -> None:
        """What is due already is told at once, behind the answer."""
        engine, lanes = self._engine, self._state.queues
        now = self._state.promote(engine.clock.now())
        for lane in [lanes[name]] if name in lanes else [] if name else list(lanes.values()):
            if lane.name and lane.open:
                data = encode_push(identifier, now, lane.name, due=now)
                self._loop.call_soon(self._send, {session: [(identifier, data)]}, now)

    def _push_events(self) -> None:
        """Everything that has happened since the last time."""
        now = self._engine.clock.now()
        keys: dict[tuple[bool, bytes], Event] = {}
        while self._waiting:
            event = self._waiting.popleft()
            if event.kind in ("changed", "dead") and event.key:
                keys[event.queue != b"", event.key] = event
            if event.kind != "changed":
                self._tell_queue(event, now)
        for (is_job, key), event in keys.items():
            if is_job:
                gone = event.id not in self._state.rows
                self._add(Subject(KEY, key), key, int(Type.JOB), gone, now)
            else:
                row = self._state.rows.get(event.id)
                for name in (key,) if row is None else (key, *row.rare.aliases):
                    self._tell_entry(name, now)
        out, self._out = self._out, {}
        self._send(out, now)

    def _send(self, out: dict[Session, list[tuple[int, bytes]]], now: int) -> None:
        if self.gate is not None and out:
            with self._engine.lock:  # a batch is applied before it is logged
                time = int(self._engine.last_time)
            self._unsafe.append((time, out))
            self.release()
            return
        for session, pushes in out.items():
            session.push(pushes, now)

    def release(self) -> None:
        """Push what has become safe; on the loop."""
        if not self._unsafe:
            return
        safe, now = self.gate.safe_time(), self._engine.clock.now()
        while self._unsafe and self._unsafe[0][0] <= safe:
            _, out = self._unsafe.popleft()
            for session, pushes in out.items():
                if not session.gone:
                    session.push(pushes, now)

    def _tell_queue(self, event: Event, now: int) -> None:
        dead = event.kind == "dead"
        due = None if dead else event.at
        for name in (event.queue, b""):
            for session, identifier in self._find(Subject(QUEUE, name)):
                if not dead or session.is_admin:
                    data = encode_push(identifier, now, event.queue, gone=dead, due=due)
                    self._out.setdefault(session, []).append((identifier, data))

    def _tell_entry(self, key: bytes, now: int) -> None:
        row = next(self._state.keys.find(b"", key), None)
        gone = row is None or row.state is State.DELETED
        kind = Type.VOID if row is None else row.kind
        self._add(Subject(KEY, key), key, kind, gone, now)
        for subject in self._ranges:
            if subject.holds(key):
                self._add(subject, key, kind, gone, now)

    def _add(self, subject: Subject, key: bytes, kind: int, gone: bool, now: int) -> None:
        for session, identifier in self._find(subject):
            data = encode_push(identifier, now, key, value_type=kind, gone=gone)
            self._out.setdefault(session, []).append((identifier, data))

    def _find(self, subject: Subject) -> list[tuple[Session, int]]:
        found = self._listeners.get(subject)
        return list(found.items()) if found else []
