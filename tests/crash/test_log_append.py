"""A power loss or kill -9 at every file operation of an appender: the promises hold.

The sweeps are loops over the number of the operation before which the machine stops. For each, all
disks that the file system may legally leave are recovered and read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fastjournal.log import Stream
from fastjournal.log.care.check import verify
from fastjournal.log.care.recovery import recover
from fastjournal.log.write.appender import Appender
from fastjournal.testing import Crash, ManualClock, ManualTicker, MemoryFiles

HERE = Path("/journal")
SAMPLES = 40  # disks per crash point, all of them where there are fewer
POLICIES = ("os", "interval", "always")


@dataclass
class History:
    """What a scenario did up to the crash."""

    begun: list[bytes] = field(default_factory=list)
    """Payloads given to the appender, in order."""
    written: int = 0
    """How many of them were acknowledged as written: they survive kill -9."""
    safe: int = 0
    """How many of them the policy has promised to survive a power loss."""


class Run:
    """An appender that keeps its own history."""

    def __init__(self, files: MemoryFiles, policy: str, history: History) -> None:
        self.history = history
        self.ticker = ManualTicker()
        self.stream = Stream(HERE, files=files, clock=ManualClock())
        self.stream.create()
        self.policy = policy
        self.appender: Appender = self.stream.open_appender(
            segment_size=4096, sync=policy, ticker=self.ticker
        )
        self.appender.lock()
        self.segment = self.appender.position.segment

    def append(self, *payloads: bytes) -> None:
        before = len(self.history.begun)
        self.history.begun += payloads
        if len(payloads) == 1:
            self.appender.append(payloads[0])
        else:
            self.appender.append_many(payloads)
        self._settle(before)

    def rotate(self) -> None:
        self.appender.rotate()
        self._settle(len(self.history.begun))

    def tick(self) -> None:
        self.ticker.fire()
        if self.policy == "interval":
            self.history.safe = len(self.history.begun)

    def close(self) -> None:
        self.appender.unlock()
        self.history.safe = len(self.history.begun)

    def _settle(self, before: int) -> None:
        self.history.written = len(self.history.begun)
        segment = self.appender.position.segment
        if segment != self.segment:  # what went before stands in a segment that was synced
            self.history.safe = max(self.history.safe, before)
            self.segment = segment
        if self.policy == "always":
            self.history.safe = len(self.history.begun)


def single(run: Run) -> None:
    for number in range(7):
        run.append(b"%d" % number + b"a" * 900)
        if number % 3 == 2:
            run.tick()
    run.append(b"")
    run.close()


def batches(run: Run) -> None:
    run.append(b"one", b"two" * 300, b"")
    run.append(b"alone")
    run.append(*[b"%d" % number * 700 for number in range(5)])
    run.tick()
    run.append(b"x", b"y")
    run.append(b"z" * 1200)
    run.close()


def rotations(run: Run) -> None:
    run.append(b"first")
    run.rotate()
    run.append(b"second" * 100)
    run.append(b"third")
    run.rotate()
    run.rotate()
    run.append(b"fourth", b"fifth")
    run.close()


def reopened(run: Run) -> None:
    run.append(b"a" * 800)
    run.close()
    for letter in (b"b", b"c"):
        again = Run(run.stream.files, run.policy, run.history)  # type: ignore[arg-type]
        again.append(letter * 2000)
        again.append(letter * 900, letter)
        again.close()


def oversize(run: Run) -> None:
    """One record larger than the segment, over several sectors and pages."""
    run.append(b"small")
    run.append(bytes(range(256)) * 24)
    run.append(b"after")
    run.tick()
    run.append(b"end" * 200)
    run.close()


CASES = [
    *((scenario, policy) for scenario in (single, batches, oversize) for policy in POLICIES),
    # In these the ticker never ticks, so `interval` is `os`.
    *((scenario, policy) for scenario in (rotations, reopened) for policy in ("os", "always")),
]


def recovered(files: MemoryFiles) -> list[bytes]:
    """Open the disk as the next process would; also run recovery once more and append behind it."""
    stream = Stream(HERE, files=files, clock=ManualClock())
    stream.create()
    appender = stream.open_appender(segment_size=4096, sync="always")
    appender.lock()
    found = [record.payload for record in stream.open_cursor()]
    assert recover(stream).cut is None, "running recovery twice equals running it once"
    last_time = appender.last_time
    assert appender.append(b"behind") > last_time
    appender.unlock()
    assert not [fault for check in verify(stream) for fault in check.faults]
    records = list(stream.open_cursor())
    times = [record.time for record in records]
    assert times == sorted(set(times)), "TIME strictly increases"
    assert [record.payload for record in records] == [*found, b"behind"]
    return found


def check(files: MemoryFiles, history: History, promised: int, where: object) -> None:
    found = recovered(files)
    assert found == history.begun[: len(found)], ("not a prefix", where)
    assert len(found) >= promised, ("promised records are lost", where)


@pytest.mark.parametrize(
    ("scenario", "policy"), CASES, ids=[f"{one.__name__}-{policy}" for one, policy in CASES]
)
def test_a_crash_at_any_operation_leaves_a_prefix_with_all_that_was_promised(
    scenario: Callable[[Run], None], policy: str
) -> None:
    """P-PREFIX, F11, F12, F14; WQ-CFG-3, WQ-CFG-4, WQ-CFG-5."""
    number, finished = 0, False
    while not finished:
        number += 1
        files, history = MemoryFiles(crash_at=number), History()
        try:
            scenario(Run(files, policy, history))
            finished = True
        except Crash:
            pass
        where = (number, files.operations[-1])
        for image in files.images(samples=SAMPLES, seed=number):
            check(image, history, history.safe, where)
        check(files.killed(), history, history.written, where)
    assert history.written == history.safe == len(history.begun)
    assert number > 20


@pytest.mark.parametrize("policy", POLICIES)
def test_a_crash_after_an_undone_write_brings_nothing_of_it_back(policy: str) -> None:
    """CPT-APP-11: the cut of a short write is durable before anything is written in its place."""
    from fastjournal.errors import NoSpace
    from fastjournal.testing import Fault

    batch = [b"undone %d" % number * 60 for number in range(4)]

    def scenario(files: MemoryFiles, history: History) -> None:
        run = Run(files, policy, history)
        run.append(b"kept")
        files.faults[len(files.operations) + 1] = Fault(short=1500)
        with pytest.raises(NoSpace):
            run.appender.append_many(batch)
        run.append(b"next %d" % 0 * 60)  # as long as the first of the batch
        run.append(b"last")
        run.close()

    number, finished = 0, False
    while not finished:
        number += 1
        files, history = MemoryFiles(crash_at=number), History()
        try:
            scenario(files, history)
            finished = True
        except Crash:
            pass
        for image in files.images(samples=SAMPLES, seed=number):
            found = recovered(image)
            # Undone, but perhaps only after the crash: as if the call had never returned.
            begun = history.begun if len(history.begun) > 1 else [*history.begun, *batch]
            assert found == begun[: len(found)], (number, files.operations[-1])
            assert len(found) >= history.safe
