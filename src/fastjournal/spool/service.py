"""Forwarders that run: one thread for each spool, trying again for ever.

Rules:

1. A forwarder that cannot go on (no daemon, no space there, no permission here) waits and tries
   again: 0.1 s, then twice as long each time up to a minute, half of it by chance. Where a daemon
   answers that it may not (a token, somebody else's sender, no such journal), it says so as an
   error: no time mends that. Nothing is lost meanwhile; it goes on when it may.
2. While batches are under way it sends what is new at once, and takes answers as they come.
3. `stop` ends it between two steps; what was not acknowledged is sent by the next one.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from fastjournal.clock import SYSTEM_CLOCK, Clock
from fastjournal.errors import JournalError, NotFound, Unauthorized
from fastjournal.spool.forwarder import Destination, Figures, ForwardedSpool, Forwarder, SpoolFiles
from fastjournal.spool.watch import Watch, readable, watch

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

__all__ = ["Runner", "Service", "SpoolCollector", "pause"]

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 60.0
_RETIRE_EVERY = 10.0  # seconds
_DENIED = (Unauthorized, NotFound)
_log = logging.getLogger(__name__)
_COUNTERS = (
    ("forwarded", "jobs", "Jobs acknowledged by the journal for the first time."),
    ("repeated", "jobs_repeated", "Jobs sent again that the journal had already."),
    ("merged", "jobs_merged", "Jobs merged into a waiting job of their key."),
    ("refused", "jobs_refused", "Jobs the journal refused, or frames that hold none."),
    ("damaged", "damaged", "Damaged places in spool files."),
    ("batches", "batches", "Batches acknowledged."),
    ("bytes", "bytes", "Bytes of spool files acknowledged."),
    ("failures", "failures", "Times a forwarder had to begin again."),
)


def pause(failures: int, chance: random.Random) -> float:
    """Seconds to wait after so many failures in a row."""
    longest = min(FIRST_PAUSE * (1 << min(failures - 1, 30)), LONGEST_PAUSE)
    return longest * (0.5 + chance.random() / 2)


class Runner:
    """One forwarder, kept going."""

    def __init__(
        self,
        path: str,
        connect: Callable[[], Destination],
        *,
        clock: Clock = SYSTEM_CLOCK,
        how: str = "auto",
        chance: random.Random | None = None,
        window: int = 8,
        batch_jobs: int = 1000,
        wait: Callable[[float], object] | None = None,
        files: SpoolFiles | None = None,
    ) -> None:
        self.path = path
        self.forwarder = Forwarder(
            ForwardedSpool(path, files), clock=clock, window=window, batch_jobs=batch_jobs
        )
        self._connect = connect
        self._clock = clock
        self._how = how
        self._chance = chance or random.Random()
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._destination: Destination | None = None
        self._failures = 0
        self._lock = threading.Lock()
        self._retired_at = 0.0

    def run(self) -> None:
        """Forward until `stop`; `LockTimeout` if the spool has a forwarder already."""
        self.forwarder.spool.lock()
        watcher = watch(self.path, self._how)
        try:
            while not self._stopping.is_set():
                self.turn(watcher)
        finally:
            watcher.close()
            with self._lock:
                self._drop()
                self.forwarder.close()

    def stop(self) -> None:
        """End `run` soon."""
        self._stopping.set()

    def turn(self, watcher: Watch) -> None:
        """One step: connect, send, take answers, or wait for any of these to be possible."""
        try:
            with self._lock:
                moved = self._move()
            if not moved:
                self._idle(watcher)
        except (JournalError, OSError) as error:
            with self._lock:
                smaller = self.forwarder.doubt(error)
                self._drop()
            self._failures = 0 if smaller else self._failures + 1
            figures = self.forwarder.figures
            figures.failures += 1
            figures.last_error = str(error)
            if smaller:
                return
            seconds = pause(self._failures, self._chance)
            if isinstance(error, _DENIED):
                figures.denied = str(error)
                _log.error(
                    "%s: the daemon refuses this forwarder: %s; nothing is forwarded until that is "
                    "set right; again in %.1f s", self.path, error, seconds,
                )  # fmt: skip
            else:
                _log.warning("%s: %s; again in %.1f s", self.path, error, seconds)
            self._wait(seconds)

    def _move(self) -> bool:
        """Whether anything could be done without waiting."""
        forwarder = self.forwarder
        if self._destination is None:
            self._destination = self._connect()
        moved = forwarder.send(self._destination) > 0
        if forwarder.in_flight and forwarder.receive(self._destination, 0.0):
            self._failures = 0
            forwarder.figures.denied = ""
            moved = True
        if not moved and not forwarder.in_flight:
            now = self._clock.monotonic() / 1e9
            if now - self._retired_at >= _RETIRE_EVERY or not self._retired_at:
                self._retired_at = now
                moved = forwarder.retire(self._destination) > 0
        return moved

    def _idle(self, watcher: Watch) -> None:
        """Wait for an answer or something new."""
        assert self._destination is not None
        waited: list[Destination | Watch] = [watcher]
        seconds = watcher.interval
        if self._destination.fileno() >= 0:
            waited.append(self._destination)
        ready = readable(waited, seconds)
        if watcher.fileno() in ready:
            watcher.drain()
        if self._destination.fileno() in ready and not self.forwarder.in_flight:
            with self._lock:  # the daemon says something unasked: it leaves
                self.forwarder.receive(self._destination, 0.0)

    def _drop(self) -> None:
        destination, self._destination = self._destination, None
        self.forwarder.reset()
        if destination is not None:
            destination.close()

    def figures(self) -> Figures:
        """The figures now; from any thread."""
        with self._lock:
            return self.forwarder.measure()


class Service:
    """Several spools at once."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self.runners = runners
        self._threads: list[threading.Thread] = []
        self.error: BaseException | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Start a thread for each."""
        for runner in self.runners:
            thread = threading.Thread(
                target=self._run, args=(runner,), name=f"forward {runner.path}"
            )
            self._threads.append(thread)
            thread.start()

    def _run(self, runner: Runner) -> None:
        try:
            runner.run()
        except BaseException as error:  # a bug, or another forwarder: whoever waits tells it
            _log.error("%s: %s", runner.path, error)
            self.error = error
        finally:
            self._ended.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until one ends; True if one has."""
        return self._ended.wait(seconds)

    def stop(self) -> None:
        """End all of them."""
        for runner in self.runners:
            runner.stop()
        for thread in self._threads:
            thread.join()


class SpoolCollector:
    """The figures of forwarders for Prometheus; it asks them when it is asked."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._runners = runners

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily]:
        """All metrics, one sample for each spool."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            InfoMetricFamily,
        )

        figures = [(runner.path, runner.figures()) for runner in self._runners]
        for field, name, about in _COUNTERS:
            counter = CounterMetricFamily(f"fastjournal_spool_{name}", about, labels=["spool"])
            for path, found in figures:
                counter.add_metric([path], getattr(found, field))
            yield counter
        backlog = GaugeMetricFamily(
            "fastjournal_spool_backlog_bytes", "Bytes not yet acknowledged.", labels=["spool"]
        )
        age = GaugeMetricFamily(
            "fastjournal_spool_oldest_age_seconds", "Age of the oldest job that waits.",
            labels=["spool"],
        )  # fmt: skip
        files = GaugeMetricFamily("fastjournal_spool_files", "Spool files.", labels=["spool"])
        foreign = GaugeMetricFamily(
            "fastjournal_spool_foreign_files", "Names of spool files that lead to no file of the "
            "spool, and are not opened.", labels=["spool"],
        )  # fmt: skip
        denied = GaugeMetricFamily(
            "fastjournal_spool_denied", "1 while the daemon refuses the forwarder, as for its "
            "token: nothing is forwarded.", labels=["spool"],
        )  # fmt: skip
        error = InfoMetricFamily(
            "fastjournal_spool_last_error", "Why it last had to begin again.", labels=["spool"]
        )
        now = SYSTEM_CLOCK.now()
        for path, found in figures:
            backlog.add_metric([path], found.backlog_bytes)
            age.add_metric([path], (now - found.oldest) / 1e9 if found.oldest else 0)
            files.add_metric([path], found.files)
            foreign.add_metric([path], found.foreign)
            denied.add_metric([path], int(bool(found.denied)))
            error.add_metric([path], {"error": found.last_error})
        yield from (backlog, age, files, foreign, denied, error)
