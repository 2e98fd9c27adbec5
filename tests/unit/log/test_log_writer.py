"""The one writer of a stream: who syncs for whom when many wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastjournal.errors import OutcomeUnknown
from fastjournal.log import Stream
from fastjournal.log.write import log_writer
from fastjournal.log.write.commit_queue import Waiter
from fastjournal.log.write.log_writer import LogWriter
from fastjournal.testing import ManualClock, MemoryFiles

HERE = Path("/log")
LONG = 10  # seconds; only a fault waits so long


class Meanwhile(Waiter):
    """One to whom something happens between being chosen to lead and waking."""

    __slots__ = ()
    log: LogWriter
    fault: BaseException | None = None

    def wait(self) -> bool:
        super().wait()
        if self.leads:
            if self.fault is None:
                self.log.sync()
            else:
                self.log.stop(self.fault)
        return self.told


def chosen_after(log: LogWriter, files: MemoryFiles, pool: ThreadPoolExecutor) -> object:
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
    go_on.set()
    leader.result(LONG)
    return chosen.exception(LONG)


@pytest.mark.parametrize("fault", [None, OSError("gone")])
def test_who_was_chosen_to_lead_leads_though_another_sync_comes_before_it_wakes(
    monkeypatch: pytest.MonkeyPatch, fault: OSError | None
) -> None:
    monkeypatch.setattr(log_writer, "Waiter", Meanwhile)
    files = MemoryFiles()
    files.make_directory(HERE)
    with ThreadPoolExecutor(3) as pool:
        log = LogWriter(Stream(HERE, files=files, clock=ManualClock()), sync="always")
        Meanwhile.log, Meanwhile.fault = log, fault
        try:
            error = chosen_after(log, files, pool)
            later = None if fault else pool.submit(log.wait_synced, log.append_one(b"later"))
            if later is None:
                assert isinstance(error, OutcomeUnknown)
            else:
                assert error is None
                later.result(LONG)
        finally:
            log.stop(RuntimeError("nobody may wait for ever"))
