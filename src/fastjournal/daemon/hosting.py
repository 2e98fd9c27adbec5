"""A journal on an event loop: requests in groups, replies after what the sync policy promises.

Rules:

1. Everything that was read in one turn of the loop, from all connections, is decided under the
   journal's lock and logged with one write. Replies are sent after that write; where the policy is
   `always` or a request asked for it, after a sync that covers it: the loop makes it itself, at the
   end of its turn, unless the disk is so slow that others should be served meanwhile.
2. A connection is in a group once, with the requests at the front of its queue. Its replies leave
   in the order of its requests; only those that wait (for a job, for a result, for upkeep) come
   later.
3. If a write or a sync fails while a group is under way, every request of it is answered with that
   error: none of them may be told that it happened.
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
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from fastjournal.daemon.waiters import Waiter
from fastjournal.errors import Closed, JournalError, ReadOnly
from fastjournal.journal.journal import Journal
from fastjournal.log.write.commit_queue import unknown
from fastjournal.log.write.counters import SIZES, Histogram

__all__ = ["Hosted", "Speaker", "Work"]


_PATIENCE = 2.0  # seconds; a connection that sends without a pause holds no lease up for longer


class Speaker(Protocol):
    """A connection as a journal sees it."""

    asked: bool
    """It has requests for the next group."""
    behind: int
    """Replies of it that wait for a sync."""
    wants_sync: bool
    """A request of the group under way asked for stable storage."""

    @property
    def gone(self) -> bool:
        """The peer has left."""

    def is_single(self, items: Sequence[Any]) -> bool:
        """Whether they are one request that makes one command at most."""

    def take(self) -> list[Any]:
        """The requests that may be carried out, in their order."""

    def serve(self, items: list[Any], now: int) -> bytes:
        """Carry out requests under the lock; returns the replies.

        Leaves in `items` those that are answered; what it did not come to it puts back.
        """

    def refuse(self, items: Sequence[Any], error: JournalError, now: int) -> bytes:
        """The replies to requests that came to nothing."""

    def send(self, data: bytes) -> None:
        """Send replies."""

    def finish(self) -> None:
        """Nothing to send: the peer may leave if it wants to."""


class _Unsynced(NamedTuple):
    time: int
    """The replies tell of nothing newer than the record of this TIME."""
    speaker: Speaker
    items: Sequence[Any]
    data: bytes
    refused: bool = False
    """The replies are errors: whatever becomes of the sync, they are true."""


Work = list[tuple[Speaker, list[Any]]]
"""The requests of a group, by connection."""


class Hosted:
    """One journal, served on the running loop."""

    def __init__(self, name: str, journal: Journal, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.journal = journal
        self.engine = journal.engine
        self.operations = journal.operations
        self.state = journal.engine.state
        self.max_payload = journal.max_payload
        self.always = self.engine.log.options.sync == "always"
        self.group_size = Histogram(SIZES)
        """Reads decided together; those alone are counted in `singles`."""
        self.singles = 0
        self.peers = 0
        """Connections of the whole server."""
        self._loop = loop
        self._thread = threading.get_ident()
        self._asking: list[Speaker] = []
        self._woken: deque[Waiter] = deque()
        self._scheduled = False
        self._unsynced: deque[_Unsynced] = deque()
        self._armed = False
        self._pool: ThreadPoolExecutor | None = None
        self._heard: set[Speaker] | None = None
        """Connections that were read from in this round of the loop; None: nobody wants to know."""
        self.late: list[Waiter] = []
        """Requests whose last answer waits until enough is read."""
        self._read_until = 0
        self._reading = False
        self.engine.read_until = self.read_until
        self.closed = False

    def submit(self, speaker: Speaker) -> None:
        """Decide the requests of a connection at the end of this turn of the loop."""
        speaker.asked = True
        self._asking.append(speaker)
        if not self._scheduled:
            self._scheduled = True
            if self.peers > 1:
                self._loop.call_soon(self._decide)
            else:  # nobody else can have anything to add
                self._decide()

    def wake(self, waiter: Waiter) -> None:
        """Serve a waiter again soon; called under the journal's lock, on any thread."""
        self._woken.append(waiter)
        if self._scheduled:
            return
        if threading.get_ident() == self._thread:
            self._scheduled = True
            self._loop.call_soon(self._decide)
        else:
            self._loop.call_soon_threadsafe(self._decide)

    def forget(self, waiter: Waiter) -> None:
        """A waiter waits no more."""
        with self.engine.lock:
            self.engine.wakeups.forget(waiter.handle, waiter.row_id)

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

    def hear(self, speaker: Speaker) -> None:
        """Something came from a connection, or the connection itself."""
        if self._heard is not None:
            self._heard.add(speaker)

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
        left: set[Speaker] | None = None

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
            late, self.late = self.late, []
            for waiter in late:
                self.wake(waiter)

        # What is called soon may come before the reading of the next round: one more.
        self._loop.call_soon(self._loop.call_soon, after_round)

    def _decide(self) -> None:
        """One group; what it leads to is for the next turn, when others have been read too."""
        self._scheduled = True
        try:
            self._group()
        finally:
            self._scheduled = False
            if self._asking or self._woken:
                self._scheduled = True
                self._loop.call_soon(self._decide)

    def _group(self) -> None:
        engine = self.engine
        work: Work = []
        asking, self._asking = self._asking, []
        for speaker in asking:
            speaker.asked = False
            if items := speaker.take():
                work.append((speaker, items))
        now = engine.clock.now()
        out = []
        lock = engine.lock
        lock.acquire()
        try:
            if engine.clock.stepped:
                engine.begin()
                now = engine.clock.now()
            stopped = engine.log.failure
            if self._woken:
                self._add_woken(work)
            if self.closed:
                raise Closed("the journal is closed")
            if len(work) == 1 and work[0][0].is_single(work[0][1]):
                # One command alone is logged with less ado than a batch of one.
                speaker, items = work[0]
                out.append(speaker.serve(items, now))
                self.singles += 1
            else:
                with engine.batch():
                    for speaker, items in work:
                        out.append(speaker.serve(items, now))
                self.group_size.observe(len(work))
            failure = engine.log.failure
            if stopped is None and failure is not None:
                raise failure
        except JournalError as error:
            self._refuse(work, error, now)
            return
        finally:
            lock.release()
        if self.always and stopped is None and not engine.log.is_slow:
            with contextlib.suppress(JournalError):  # `_hold_back` has it told
                engine.log.wait_synced(engine.last_time)
        for number, (speaker, items) in enumerate(work):
            data = out[number]
            if not data:
                speaker.finish()
            elif speaker.behind or (
                (self.always or speaker.wants_sync)
                and engine.last_time > engine.log.synced_time
                and stopped is None  # else only reading is answered
            ):
                self._hold_back(speaker, items, data)
            else:
                speaker.send(data)
            speaker.wants_sync = False

    def _refuse(self, work: Work, error: JournalError, now: int) -> None:
        """Nothing of the group was logged."""
        fault = error if isinstance(error, (ReadOnly, Closed)) else ReadOnly(str(error))
        for speaker, items in work:
            speaker.wants_sync = False
            if items:
                self._reply(speaker, speaker.refuse(items, fault, now))
            else:
                speaker.finish()

    def _hold_back(self, speaker: Speaker, items: Sequence[Any], data: bytes) -> None:
        """Send these replies once what they tell is on stable storage."""
        time = self.engine.last_time
        speaker.behind += 1
        self._unsynced.append(_Unsynced(time, speaker, items, data))
        if not self._armed:
            self._arm(time)

    def _add_woken(self, work: Work) -> None:
        for waiter in self._take_woken():
            if waiter.speaker.gone:
                self.engine.pass_on()
            elif not waiter.answered:
                work.append((waiter.speaker, [waiter]))

    def _take_woken(self) -> list[Waiter]:
        taken = []
        while self._woken:
            taken.append(self._woken.popleft())
        taken.sort(key=lambda waiter: waiter.last)
        return taken

    def _reply(self, speaker: Speaker, data: bytes) -> None:
        """Send in order: behind whatever still waits for a sync."""
        if speaker.behind:
            speaker.behind += 1
            self._unsynced.append(_Unsynced(0, speaker, (), data, refused=True))
        else:
            speaker.send(data)

    def _arm(self, time: int) -> None:
        """Have `_release` called when the records up to `time` are on stable storage."""
        self._armed = True
        if self.always:
            self.engine.log.when_synced(time, self._synced)
        else:
            self.in_thread(self.engine.log.sync).add_done_callback(self._forced)

    def _synced(self, _: int, error: JournalError | None) -> None:
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._release, error)
        else:
            self._loop.call_soon_threadsafe(self._release, error)

    def _forced(self, done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, JournalError):
            error = ReadOnly(str(error))
        self._release(error)

    def _release(self, error: JournalError | None) -> None:
        """Send the replies that are safe now; after a fault, say so instead."""
        self._armed = False
        waiting, synced = self._unsynced, self.engine.log.synced_time
        now = self.engine.clock.now()
        while waiting and (error is not None or waiting[0].time <= synced):
            time, speaker, items, data, refused = waiting.popleft()
            speaker.behind -= 1
            if time > synced and not refused:
                assert error is not None
                data = speaker.refuse(items, unknown(error), now)  # it was written: who knows
            if not speaker.gone:
                speaker.send(data)
        if waiting and not self._armed:
            self._arm(waiting[0].time or synced)
