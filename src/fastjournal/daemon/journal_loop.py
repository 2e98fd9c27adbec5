"""A journal on an event loop: requests in turns, replies after what the sync policy promises.

Rules:

1. A turn is one round of the event loop: everything that was read in it, from all connections, is
   decided under the journal's lock and logged with one write. Replies are sent after that write;
   where the policy is `always` or a request asked for it, after a sync that covers it. Under
   `always` the loop makes it itself, at the end of its turn, unless the disk is so slow that others
   should be served meanwhile. Where there is one connection only, nobody can add anything: the turn
   begins as soon as it has asked.
2. A connection is in a turn once, with the requests at the front of its queue. Its replies leave
   in the order of its requests; only those that wait (for a job, for a result, for upkeep) come
   later.
3. If a write or a sync fails while a turn is under way, every request of it is answered with that
   error: none of them may be told that it happened, nor, once a part of it is in the log, that it
   did not.
4. A lease is lost only when everything that had arrived by its end has been carried out: the loop
   may have stood still (a stopped process, a machine put to sleep) while the word of its holder
   waited in a socket. So time asks the loop for whole rounds (`read_until`), until each connection
   had one in which nothing came, at most `_PATIENCE`. Who asks for a job meanwhile and would get
   none is answered then.
5. Whoever wakes a waiter does so under the journal's lock, on any thread; it is served on the loop.
   A wake-up whose connection has gone is passed on to the next who waits.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from mypy_extensions import i64

from fastjournal.buffers import BytesWriter
from fastjournal.daemon.session import Session, Waiter
from fastjournal.daemon.subscriptions import Subscriptions
from fastjournal.errors import Closed, JournalError, ReadOnly
from fastjournal.journal.journal import Journal
from fastjournal.log.write.commit_queue import unknown
from fastjournal.log.write.counters import SIZES, Histogram

__all__ = ["JournalLoop"]

_PATIENCE: Final = 2.0  # seconds; who sends without a pause holds no lease up for longer


class _Unsynced:
    """Answers that wait for a sync."""

    def __init__(
        self, time: i64, session: Session, answered: list[int], data: bytes, refused: bool
    ) -> None:
        self.time = time
        """They tell of nothing newer than the record of this TIME."""
        self.session = session
        self.answered = answered
        """The requests they answer."""
        self.data = data
        self.refused = refused
        """They are errors: whatever becomes of the sync, they are true."""


class JournalLoop:
    """One journal, served on the running loop."""

    def __init__(self, name: str, journal: Journal, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.journal = journal
        self.engine = journal.engine
        self.operations = journal.operations
        self.state = journal.engine.state
        self.max_payload = journal.max_payload
        self.always = self.engine.log.options.sync == "always"
        self.turn_sizes: list[int] = [0] * (len(SIZES) + 1)
        """Turns by the number of connections served in them, as in a `Histogram` of `SIZES`."""
        self.turns_of_one: i64 = 0
        self.served: i64 = 0
        """Connections served in all turns together."""
        self.subscriptions = Subscriptions(journal.engine, loop)
        self.peers: i64 = 0
        """Connections of the whole server."""
        self._loop = loop
        self._call_soon: Any = loop.call_soon
        self._next_turn: Any = self._take_turn
        self._loop_thread = threading.get_ident()
        self._asking: list[Session] = []
        self._woken: deque[Waiter] = deque()
        self._scheduled = False
        self._unsynced: deque[_Unsynced] = deque()
        self._armed = False
        self._pool: ThreadPoolExecutor | None = None
        self._heard: set[Session] | None = None
        """Connections that were read from in this round of the loop; None: nobody wants to know."""
        self._late: list[Waiter] = []
        """Requests whose last answer waits until enough is read."""
        self._read_until = 0
        self._reading = False
        self.engine.read_until = self.read_until
        self.gate: Any = None
        """Of a replicated journal: `wrote()` ships what a turn has written, `synced()` counts this
        node too, and `safe_time()` says up to where may be answered; `release` is called when that
        has moved."""
        self.closed = False

    def submit(self, session: Session) -> None:
        """Decide the requests of a connection at the end of this turn of the loop."""
        session.asked = True
        self._asking.append(session)
        if not self._scheduled:
            self._scheduled = True
            if self.peers > 1:
                self._call_soon(self._next_turn)
            else:  # nobody else can have anything to add
                self._take_turn()

    def wake(self, waiter: Waiter) -> None:
        """Serve a waiter again soon; called under the journal's lock, on any thread."""
        self._woken.append(waiter)
        if self._scheduled:
            return
        if threading.get_ident() == self._loop_thread:
            self._scheduled = True
            self._call_soon(self._next_turn)
        else:
            self._loop.call_soon_threadsafe(self._next_turn)

    def begin_wait(self, waiter: Waiter, seconds: float) -> None:
        """Wake a waiter at the next chance, and when its time is over; under the lock."""
        waiter.session.waiters.add(waiter)
        self._register(waiter)
        self.limit_wait(waiter, seconds)

    def limit_wait(self, waiter: Waiter, seconds: float) -> None:
        """A waiter gives up after so long."""
        waiter.timer = self._loop.call_later(seconds, self.expire, waiter)

    def ask_again(self, waiter: Waiter, now: int) -> bool:
        """Answer a waiter that was woken, if there is an answer; under the lock."""
        if waiter.handle:
            self.engine.wakeups.forget(waiter.handle, waiter.row_id)
            waiter.handle = 0
        try:
            answered = waiter.retry(waiter, now)
        except JournalError:
            self.end_wait(waiter)
            raise
        if answered:
            self.end_wait(waiter)
        else:
            self._register(waiter)
            if waiter.expired:
                self._late.append(waiter)
        return answered

    def expire(self, waiter: Waiter) -> None:
        """Ask a waiter a last time."""
        waiter.expired = True
        _stop_timer(waiter)
        if not waiter.answered:
            self.wake(waiter)

    def end_wait(self, waiter: Waiter) -> None:
        """A waiter has its answer, or nobody wants it any more."""
        waiter.answered = True
        waiter.session.waiters.discard(waiter)
        _stop_timer(waiter)
        if waiter.handle:
            with self.engine.lock:
                self.engine.wakeups.forget(waiter.handle, waiter.row_id)
            waiter.handle = 0

    def _register(self, waiter: Waiter) -> None:
        wakeups, wake = self.engine.wakeups, partial(self.wake, waiter)
        if waiter.row_id is None:
            assert waiter.where is not None
            waiter.handle = wakeups.wait_for_row(waiter.where, wake)
        else:
            waiter.handle = wakeups.wait_for_end(waiter.row_id, wake)

    def in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Do what may take long (upkeep, a sync) beside the loop."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, f"fastjournal-{self.name}")
        return self._loop.run_in_executor(self._pool, work)

    def close(self) -> None:
        """Close the journal; blocks until it is on disk."""
        self.closed = True
        if self._pool is not None:
            self._pool.shutdown()
        self.journal.close()

    def hear(self, session: Session) -> None:
        """Something came from a connection, or the connection itself."""
        if self._heard is not None:
            self._heard.add(session)

    def read_until(self, now: int) -> int:
        """See `Engine.read_until`; called under the journal's lock, on any thread."""
        if self.closed:
            return now
        if self._read_until < now and not self._reading:
            self._reading = True
            self._loop.call_soon_threadsafe(self._read_all)
        return self._read_until

    def _read_all(self) -> None:
        """Let the loop read until all that has arrived by now is carried out."""
        began, give_up = self.engine.clock.now(), self._loop.time() + _PATIENCE
        self._heard = set()
        left: set[Session] | None = None

        def after_round() -> None:
            nonlocal left
            heard, self._heard = self._heard or set(), set()
            left = heard if left is None else left & heard
            if (left or self._asking) and self._loop.time() < give_up:
                self._loop.call_soon(after_round)
                return
            self._heard = None
            self._read_until, self._reading = began, False
            self.engine.timer.set()
            late, self._late = self._late, []
            for waiter in late:
                self.wake(waiter)

        # What is called soon may come before the reading of the next round: one more.
        self._loop.call_soon(self._loop.call_soon, after_round)

    def _take_turn(self) -> None:
        """One turn; what it leads to is for the next one, when others have been read too."""
        self._scheduled = True
        try:
            self._turn()
        finally:
            self._scheduled = False
            if self._asking or self._woken:
                self._scheduled = True
                self._call_soon(self._next_turn)

    def _turn(self) -> None:
        engine = self.engine
        log = engine.log
        asking, self._asking = self._asking, []
        turn: list[Session] = []
        at: i64 = 0
        now: i64 = engine.clock.now()
        stopped: JournalError | None = None
        lock = engine.lock
        lock.acquire()
        try:
            if engine.clock.stepped:
                engine.begin()
                now = engine.clock.now()
            if self.closed:
                raise Closed("the journal is closed")
            stopped = log.failure
            with engine.batch():
                while at < len(asking):
                    at += 1
                    self._serve(asking[at - 1], turn, now, None)
                if self._woken:
                    self._serve_woken(turn, now)
            self._count_turn(len(turn))
            failure = log.failure
            if stopped is None and failure is not None:
                raise unknown(failure)  # some of the turn may be there: each wrote for itself
        except JournalError as error:
            self._refuse(turn, asking[at:], error, now)
            return
        finally:
            lock.release()
        replicated = self.gate is not None
        if replicated:
            self.gate.wrote()  # the others sync while we do
        if self.always and stopped is None and not log.is_slow:
            self._sync()
        safe: i64 = self._safe_time() if replicated else log.synced_time
        for session in turn:
            session.in_turn = False
            out = session.out
            if not len(out):
                session.finish()
            elif session.behind or (
                (self.always or session.holds_for_sync or replicated)
                and engine.last_time > safe
                and stopped is None  # else only reading is answered
            ):
                self._hold_back(session, engine.last_time, False)
                if not self._armed:
                    self._arm(engine.last_time)
            else:
                session.answered.clear()
                session.send(_taken(out))
            session.holds_for_sync = False

    def _safe_time(self) -> i64:
        """Up to where may be answered right now, by what all nodes have synced?"""
        self.gate.synced()
        safe: i64 = self.gate.safe_time()
        return safe

    def release(self) -> None:
        """Answer what has become safe; on the loop."""
        if self._unsynced and not self.closed:
            self._release(None)
        self.subscriptions.release()

    def _sync(self) -> None:
        """Bring what was written to stable storage, on this thread."""
        engine = self.engine
        try:
            engine.log.wait_synced(engine.last_time)
        except JournalError:
            return  # those held back are told

    def _serve(
        self, session: Session, turn: list[Session], now: i64, refusal: JournalError | None
    ) -> None:
        """Carry out what a connection has asked."""
        session.asked = False
        if session.may_go_on():
            if not session.in_turn:
                session.in_turn = True
                turn.append(session)
            session.serve(now, refusal)

    def _serve_woken(self, turn: list[Session], now: i64) -> None:
        for waiter in self._take_woken():
            session = waiter.session
            if session.gone:
                self.engine.pass_on()
            elif not waiter.answered:
                if not session.in_turn:
                    session.in_turn = True
                    turn.append(session)
                session.serve_waiter(waiter, now)

    def _count_turn(self, size: i64) -> None:
        self.served += size
        if size == 1:
            self.turns_of_one += 1
        else:
            self.turn_sizes[bisect_left(SIZES, size)] += 1

    def turn_histogram(self) -> Histogram:
        """How many connections were served together."""
        counts = self.turn_sizes.copy()
        counts[0] += int(self.turns_of_one)
        return Histogram(SIZES, counts, int(self.served))

    def _refuse(
        self, turn: list[Session], asking: list[Session], error: JournalError, now: i64
    ) -> None:
        """The turn came to nothing, as far as anybody may be told."""
        fault = error if isinstance(error, (ReadOnly, Closed)) else ReadOnly(str(error))
        for session in turn:
            session.out.truncate(0)
            session.out.write(session.refusals(session.answered, fault, now))
        for session in asking:
            self._serve(session, turn, now, fault)
        for session in turn:
            session.in_turn = session.holds_for_sync = False
            if not len(session.out):
                session.finish()
            elif session.behind:  # in order: behind whatever still waits for a sync
                self._hold_back(session, 0, True)
            else:
                session.answered.clear()
                session.send(_taken(session.out))

    def _hold_back(self, session: Session, time: i64, refused: bool) -> None:
        """Send these replies once what they tell is on stable storage."""
        data = _taken(session.out)
        session.behind += 1
        session.unsynced += len(data)
        self._unsynced.append(_Unsynced(time, session, session.answered, data, refused))
        session.answered = []

    def _take_woken(self) -> list[Waiter]:
        taken = []
        while self._woken:
            taken.append(self._woken.popleft())
        taken.sort(key=lambda waiter: waiter.last)
        return taken

    def _arm(self, time: int) -> None:
        """Have `_release` called when the records up to `time` are on stable storage."""
        if self.gate is not None and (not self.always or time <= self.engine.log.synced_time):
            return  # `release` is called when the followers have them too
        self._armed = True
        if self.always:
            self.engine.log.when_synced(time, self._synced)
        else:
            self.in_thread(self.engine.log.sync).add_done_callback(self._forced)

    def _synced(self, _: int, error: JournalError | None) -> None:
        if threading.get_ident() == self._loop_thread:
            self._loop.call_soon(self._after_sync, error)
        else:
            self._loop.call_soon_threadsafe(self._after_sync, error)

    def _after_sync(self, error: JournalError | None) -> None:
        if self.gate is not None:
            self.gate.synced()
        self._release(error)

    def _forced(self, done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, JournalError):
            error = ReadOnly(str(error))
        self._release(error)

    def _release(self, error: JournalError | None) -> None:
        """Send the replies that are safe now; after a fault, say so instead."""
        self._armed = False
        waiting, synced = self._unsynced, self.engine.log.synced_time
        if self.gate is not None:
            synced = self.gate.safe_time()
        now = self.engine.clock.now()
        while waiting and (error is not None or waiting[0].time <= synced):
            answer = waiting.popleft()
            session = answer.session
            data = answer.data
            session.behind -= 1
            session.unsynced -= len(data)
            if answer.time > synced and not answer.refused:
                assert error is not None
                data = session.refusals(answer.answered, unknown(error), now)  # written: who knows
            if not session.gone:
                session.send(data)
        if waiting and not self._armed:
            self._arm(waiting[0].time or synced)


def _stop_timer(waiter: Waiter) -> None:
    if waiter.timer is not None:
        waiter.timer.cancel()
        waiter.timer = None


def _taken(out: BytesWriter) -> bytes:
    """The answers of a turn, to be sent."""
    data = out.getvalue()
    out.truncate(0)
    return data
