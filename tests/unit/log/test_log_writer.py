"""The one writer of a stream: who syncs for whom when many wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fastjournal.errors import OutcomeUnknown
from fastjournal.log import Stream
from fastjournal.log.write.log_writer import LogWriter
from fastjournal.testing import ManualClock, MemoryFiles

HERE = Path("/log")
LONG = 10  # seconds; only a fault waits so long


class Meanwhile:
    """The lock of a waiter to whom something happens between being chosen to lead and waking."""

    def __init__(self, gate: Any, pool: ThreadPoolExecutor, happen: Callable[[], object]) -> None:
        self.gate, self.pool, self.happen = gate, pool, happen

    def release(self) -> None:
        self.pool.submit(self._happen)

    def _happen(self) -> None:
        self.happen()
        self.gate.release()


def chosen_after(
    log: LogWriter, files: MemoryFiles, pool: ThreadPoolExecutor, happen: Callable[[], object]
) -> object:
    """What becomes of a waiter who was chosen to lead: one led before it, with an older record."""
    syncing, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        syncing.set()
        assert go_on.wait(LONG)

    files.on_sync = hold
    leader = pool.submit(log.wait_synced, log.append_one(b"leader"))
    assert syncing.wait(LONG)
    files.on_sync = None
    chosen = pool.submit(log.wait_synced, log.append_one(b"chosen"))
    while not log._waiting:
        pass
    waiter = log._waiting[0][1]
    waiter._gate = Meanwhile(waiter._gate, pool, happen)
    go_on.set()
    leader.result(LONG)
    return chosen.exception(LONG)


@pytest.mark.parametrize("fault", [None, OSError("gone")])
def test_who_was_chosen_to_lead_leads_though_another_sync_comes_before_it_wakes(
    fault: OSError | None,
) -> None:
    files = MemoryFiles()
    files.make_directory(HERE)
    with ThreadPoolExecutor(3) as pool:
        log = LogWriter(Stream(HERE, files=files, clock=ManualClock()), sync="always")
        happen = log.sync if fault is None else partial(log.stop, fault)
        try:
            error = chosen_after(log, files, pool, happen)
            later = None if fault else pool.submit(log.wait_synced, log.append_one(b"later"))
            if later is None:
                assert isinstance(error, OutcomeUnknown)
            else:
                assert error is None
                later.result(LONG)
        finally:
            log.stop(RuntimeError("nobody may wait for ever"))


class AppendsWhenLeft:
    """A lock; whoever leaves it first is at once followed by somebody who appends."""

    def __init__(self, lock: Any, append: Callable[[], object]) -> None:
        self._lock = lock
        self._append: Callable[[], object] | None = append

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        append, self._append = self._append, None
        if append is not None:
            append()


def test_what_is_appended_right_behind_a_rotation_does_not_count_as_synced() -> None:
    files = MemoryFiles()
    files.make_directory(HERE)
    with LogWriter(Stream(HERE, files=files, clock=ManualClock()), sync="always") as log:
        before = log.append_one(b"before")
        log._io = AppendsWhenLeft(log._io, lambda: log.append_one(b"behind"))
        log.rotate()
        assert log.synced_time == before < log.written_time
