"""The threads of an open journal: one for what time does to rows, one for upkeep.

Rules:

1. The timer thread sleeps until the next deadline, or until a request brings one nearer; it looks
   again at least once a second while there is a deadline, because the wall clock may jump. An
   error, as of a full disk, makes it wait a second; a stopped log ends it. What is no error of ours
   to expect is told with its traceback and stops the log: a state whose timers died must not go on.
2. Upkeep runs alone in its thread, so a long cleaning delays no lease.
3. An error in upkeep, whatever it is, is told, kept and shown, and tried again next time; it never
   stops the journal.
4. Nothing here touches a file once `stop` has returned.
"""

from __future__ import annotations

import logging
import threading

from fastjournal.clock import SECOND
from fastjournal.errors import Closed, JournalError, NoSpace
from fastjournal.journal.disk.upkeep import Upkeep
from fastjournal.journal.engine.engine import NEVER, Engine
from fastjournal.log.care.cleaner import Cleaned

__all__ = ["Background"]

_TICK_LIMIT = 1000
_LOOK_AGAIN = 1.0  # seconds
_SNAPSHOT_CHECK = 300.0  # seconds between two looks at the size of the log when nothing is cleaned
_log = logging.getLogger(__name__)


class Background:
    """Timers and upkeep of one journal."""

    def __init__(
        self, engine: Engine, upkeep: Upkeep, clean_interval: int, snapshot_bytes: int
    ) -> None:
        self._engine = engine
        self._upkeep = upkeep
        self._clean_interval = clean_interval / SECOND
        self._snapshot_bytes = snapshot_bytes
        self._one_at_a_time = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.last_error = ""
        """What upkeep stumbled over last; empty if its last run went well."""

    def start(self) -> None:
        """Start both threads."""
        self._run("fastjournal-timer", self._timer)
        if self._clean_interval or self._snapshot_bytes:
            self._run("fastjournal-upkeep", self._upkeep_cycles)

    def stop(self) -> None:
        """End both threads; waits for a cycle under way."""
        self._stopping.set()
        self._engine.timer.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        with self._one_at_a_time:  # one that somebody else had begun
            pass

    def clean(self) -> list[Cleaned]:
        """One cleaning cycle, on the caller's thread."""
        with self._one_at_a_time:
            self._check_running()
            return self._upkeep.clean()

    def snapshot(self) -> None:
        """One snapshot, on the caller's thread."""
        with self._one_at_a_time:
            self._check_running()
            self._upkeep.take_snapshot()

    def _check_running(self) -> None:
        if self._stopping.is_set():
            raise Closed("the journal is closed")

    def _run(self, name: str, target: object) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def _timer(self) -> None:
        engine = self._engine
        try:
            self._turns()
        except BaseException as error:
            _log.critical("%s: the timers failed", engine.log.stream.path, exc_info=True)
            engine.log.stop(error)
        if engine.log.failure is not None:
            with engine.lock:
                engine.fail_waiters()

    def _turns(self) -> None:
        engine = self._engine
        while True:
            engine.timer.clear()
            if self._stopping.is_set():  # asked behind the clearing: `stop` sets this one first
                return
            with engine.lock:
                busy = refused = False
                engine.begin()
                try:
                    busy = engine.tick(_TICK_LIMIT) == _TICK_LIMIT
                except NoSpace:  # which the reserve has told
                    refused = True
                except JournalError as error:
                    refused = True
                    if engine.log.failure is None:
                        _log.warning("timers wait: %s", error)
                if engine.log.failure is not None:  # nothing more to do here
                    return
                deadline = engine.timers.next_deadline()
                engine.timer_at = deadline or NEVER
            self._begin_generation()
            if busy:
                continue
            if refused:
                self._stopping.wait(_LOOK_AGAIN)
            elif deadline:
                left = max(0, deadline - engine.clock.now()) / SECOND
                waits = not left and engine.holds_back()
                engine.timer.wait(_LOOK_AGAIN if waits else min(left, _LOOK_AGAIN))
            else:
                engine.timer.wait(self._upkeep.until_generation())

    def _begin_generation(self) -> None:
        try:
            self._upkeep.begin_generation()
        except JournalError as error:
            _log.warning("no new segment for a new generation: %s", error)

    def _upkeep_cycles(self) -> None:
        while not self._stopping.wait(self._clean_interval or _SNAPSHOT_CHECK):
            self.cycle()

    def cycle(self) -> None:
        """Whatever upkeep is due now; an error is kept in `last_error`."""
        try:
            if self._clean_interval:
                self.clean()
            if self._snapshot_bytes and self._upkeep.log_bytes() > self._snapshot_bytes:
                self.snapshot()
            with self._one_at_a_time:
                self._check_running()
                self._upkeep.scrub()
            self.last_error = ""
        except Closed:
            pass
        except (JournalError, OSError) as error:
            self.last_error = str(error)
            _log.warning("upkeep failed, will try again: %s", error)
        except Exception as error:
            self.last_error = repr(error)
            _log.exception("upkeep failed, will try again")
