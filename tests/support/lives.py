"""A short life of a journal that touches everything, and what must hold of the disk it leaves."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from random import Random
from typing import Any

from fastjournal import Journal
from fastjournal.errors import JournalError
from fastjournal.testing import (
    Answers,
    Crash,
    Fault,
    ManualClock,
    MemoryFiles,
    check_max_wait,
    check_one_waiting_row,
    check_replay,
)

HOME = Path("/journal")


def journal(
    files: MemoryFiles, sync: str, clock: ManualClock | None = None, **options: Any
) -> Journal:
    return Journal(
        HOME,
        sync=sync,
        segment_size=4096,
        background=False,
        clock=clock or ManualClock(1_700_009_000 * 1_000_000_000),
        files=files,
        chance=Random(1),
        **options,
    )


def settle() -> None:
    """Wait until no standby is being made: so operations have the same numbers in every run."""
    for thread in threading.enumerate():
        if thread.name == "fastjournal-standby":
            thread.join(20)
            assert not thread.is_alive()


def no_standby(operation: str) -> Fault | None:
    """Whatever the thread that makes the next segment creates fails."""
    making = threading.current_thread().name == "fastjournal-standby"
    return Fault(errno.ENOSPC) if making and operation.startswith("create") else None


class Life:
    """A short life of a journal that touches everything; remembers what it was answered."""

    def __init__(
        self,
        sync: str,
        crash_at: int | None = None,
        faults: dict[int, Fault] | None = None,
        settings: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        standby: bool = True,
    ) -> None:
        """`standby=False`: the segment to come can never be made ahead of time."""
        self.sync = sync
        self.options = options or {}
        self.settings = settings or {}
        self.files = MemoryFiles(crash_at=crash_at, faults=faults)
        if not standby:
            self.files.failing = no_standby
        self.files.make_directory(HOME.parent)
        self.clock = ManualClock()
        self.answers = Answers()
        self.digests: list[str] = []
        self.safe = 0
        """How many of the digests a power loss may not take back."""
        try:
            self.run()
            self.finished = True
        except (Crash, JournalError):
            self.finished = False

    def run(self) -> None:
        self.journal = j = journal(self.files, self.sync, self.clock, **self.options)
        self.seen(safe=True)
        if self.settings:
            j.configure("plain", **self.settings)
            self.seen()
        for _ in range(2):
            for number in range(4):
                self.put(b"%d" % number * 400, queue="plain")
                self.put(b"v", key=f"http://host/{number % 3}")
            self.finish(j.lease("plain"))
            lost = j.lease("host", lease=5)
            self.seen()
            j.rotate()
            self.seen(safe=True)
            self.clock.advance(10)
            j.tick()
            j.sync()  # what time did was no answer to anybody
            self.seen(safe=True)
            failing = j.lease("host")
            self.seen()
            if failing is not None:
                failing.fail(b"no")
                self.seen()
            j.clean()
            j.sync()
            self.seen(safe=True)
            self.finish(j.lease("plain"))
            j.snapshot()
            self.seen(safe=True)
            self.put(b"after", queue="plain")
            assert lost is None or lost.attempt == 1
        j.close()
        self.seen(safe=True)

    def put(self, payload: bytes, **how: Any) -> None:
        receipt = self.journal.put(payload, **how)
        self.answers.put(receipt)
        self.seen()

    def finish(self, leased: Any) -> None:
        self.seen()
        if leased is not None:
            self.answers.ending(leased.id)
            leased.done()
            self.answers.end(leased.id)
            self.seen()

    def seen(self, safe: bool = False) -> None:
        self.digests.append(self.journal.digest())
        if safe or self.sync == "always":
            self.safe = len(self.digests)


def check(
    life: Life, files: MemoryFiles, least: int, *, go_on: bool = True, whole: Life | None = None
) -> None:
    """Reopen and look: nothing answered is lost, and the state is one that was."""
    with journal(files, life.sync, **life.options) as j:
        check_replay(j)
        check_one_waiting_row(j)
        check_max_wait(j)
        digest = j.digest()
        if least == len(life.digests):
            life.answers.check(j)
        # The request under way may have happened: then it is the next state of the whole life.
        states = (whole or WHOLE[life.sync]).digests
        assert digest in states[max(0, least - 1) : len(life.digests) + 1]
        if not go_on:
            return
        j.put(b"goes on", queue="plain")
        digest = j.digest()
    with journal(files, life.sync, **life.options) as j:
        check_replay(j)
        assert j.digest() == digest
        j.snapshot()
        j.clean()
    with journal(files, life.sync, **life.options) as j:
        check_replay(j)
        assert j.digest() == digest


WHOLE = {sync: Life(sync) for sync in ("always", "os")}
