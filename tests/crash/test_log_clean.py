"""A crash at every file operation of a cleaner beside a live appender and cursor.

After each, every segment holds either its old or its new content, and nothing else changed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fastjournal.errors import NoSpace, SegmentError, WriteFailed
from fastjournal.log import Record, Stream
from fastjournal.log.care.check import verify
from fastjournal.log.segment import REWRITE_SUFFIX
from fastjournal.testing import Crash, Fault, ManualClock, MemoryFiles

HERE = Path("/journal")
SAMPLES = 40


@dataclass
class History:
    begun: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Payloads given to the appender, by the segment they went to."""
    safe: int = 0
    """How many of them, in order, were synced."""
    cleaned: bool = False
    """Whether the cleaner has begun."""
    done: bool = False
    """Whether the cleaner has returned."""

    @property
    def order(self) -> list[bytes]:
        return [payload for number in sorted(self.begun) for payload in self.begun[number]]


def is_odd(path: Path, record: Record) -> bool:
    return record.payload[0] % 2 == 1


def fill(files: MemoryFiles, history: History) -> None:
    """Four segments of four records, the fourth segment not synced; then a clean, then more."""
    stream = Stream(HERE, files=files, clock=ManualClock())
    stream.create()
    appender = stream.open_appender(segment_size=4096)
    appender.lock()

    def append(number: int, size: int = 1050) -> None:
        payload = bytes([number]) * size
        segment = appender.position
        target = segment.segment + (segment.offset >= 4096)
        history.begun[target].append(payload)
        appender.append(payload)
        if appender.position.segment != segment.segment:
            history.safe = len(history.order) - 1

    for number in (1, 3, 5, 7, 2, 4, 6, 8):  # the first segment goes as a whole
        append(number)
    appender.unlock()  # the mark of the next appender lies in a segment that is cleaned below
    history.safe = len(history.order)
    appender.lock()
    for number in (9, 10, 11, 12, 13, 14):
        append(number)
    cursor = stream.open_cursor()
    assert cursor.next() is not None
    with stream.open_cleaner() as cleaner:
        history.cleaned = True
        cleaner.clean(is_odd)
        history.done = True
        history.safe = len(history.order)  # the cleaner synced the segment behind the sealed ones
    assert cursor.next() is not None, "an open file stays readable when another takes its name"
    append(15)
    append(16, 10)
    with stream.open_cleaner() as cleaner:
        cleaner.clean(is_odd)
    appender.unlock()
    history.safe = len(history.order)
    cursor.close()


def read(files: MemoryFiles) -> dict[int, list[bytes]]:
    stream = Stream(HERE, files=files, clock=ManualClock())
    with stream.open_appender(segment_size=4096):
        pass
    assert stream.work_files(REWRITE_SUFFIX) == []
    assert not [fault for check in verify(stream) for fault in check.faults]
    found: dict[int, list[bytes]] = defaultdict(list)
    for record in stream.open_cursor():
        found[record.segment].append(record.payload)
    return found


def check(found: dict[int, list[bytes]], history: History, promised: int) -> None:
    order = history.order
    surely = order[:promised]
    newest = max(found, default=0)
    for number, old in history.begun.items():
        new = [payload for payload in old if payload[0] % 2 == 0]
        got = found.get(number, [])
        if history.cleaned and got == new and number < max(history.begun):
            continue
        assert got == old[: len(got)], number
        if number < newest:
            assert got == old, number
        assert set(got) >= set(old) & set(surely), number


def test_a_crash_while_cleaning_leaves_each_segment_old_or_new() -> None:
    """WQ-CLN-8, WQ-CLN-9, WQ-CLN-10, F15; the appender and a cursor are alive throughout."""
    number, finished = 0, False
    while not finished:
        number += 1
        files, history = MemoryFiles(crash_at=number), History()
        try:
            fill(files, history)
            finished = True
        except Crash:
            pass
        for image in files.images(samples=SAMPLES, seed=number):
            check(read(image), history, history.safe)
        check(read(files.killed()), history, len(history.order) - 1)
    final = [payload[0] for payloads in read(files.killed()).values() for payload in payloads]
    assert final == [2, 4, 6, 8, 10, 12, 13, 14, 15, 16], "the newest segment is left alone"
    assert history.done
    assert number > 40


FAULTS = {
    "eio": Fault(),
    "enospc": Fault(error=28),
    "short": Fault(short=5),
    "nothing written": Fault(short=0),
    "sync dropped": Fault(synced="drop"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_failing_operation_of_the_cleaner_reaches_the_caller_and_loses_nothing(
    fault: Fault,
) -> None:
    """CPT-CLN-1: an error at each of create, write, sync, rename, remove."""
    base = MemoryFiles()
    prepare(base)
    before = len(base.operations)
    clean(base)
    last = len(base.operations)
    assert last > before + 8
    reached = 0
    for number in range(before + 1, last + 1):
        files = MemoryFiles(faults={number: fault})
        prepare(files)
        try:
            clean(files)
        except (WriteFailed, NoSpace, SegmentError):
            reached += 1
        left = read(files.killed())
        for segment, old in OLD.items():
            assert left.get(segment, []) in (old, [p for p in old if p[0] % 2 == 0])
        clean(files)  # the next cycle finishes what this one left
        assert {n: p for n, p in read(files).items() if p} == NEW
        for image in files.images(samples=10, seed=number):
            assert {n: p for n, p in read(image).items() if p} == NEW
    assert reached >= 5 if fault.short != 5 else reached >= 3


OLD = {
    segment: [bytes([number]) * 1050 for number in numbers]
    for segment, numbers in {1: (1, 3, 5, 7), 2: (2, 4, 6, 8), 3: (9, 10, 11, 12), 4: (13,)}.items()
}
NEW = {
    2: OLD[2],
    3: [payload for payload in OLD[3] if payload[0] % 2 == 0],
    4: OLD[4],
}


def prepare(files: MemoryFiles) -> None:
    stream = Stream(HERE, files=files, clock=ManualClock())
    stream.create()
    with stream.open_appender(segment_size=4096) as appender:
        for payloads in OLD.values():
            for payload in payloads:
                appender.append(payload)


def clean(files: MemoryFiles) -> None:
    with Stream(HERE, files=files, clock=ManualClock()).open_cleaner() as cleaner:
        cleaner.clean(is_odd)
