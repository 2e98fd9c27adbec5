"""Ctrl-C at any line of a request: the journal has stopped, or it is as if nothing was asked.

The interrupt is raised by a trace function before the n-th line that runs in the journal and its
log, for every second n. CPython looks for signals at some of these lines only; here it is all but
those of `with` and `try` themselves, where it never does: nothing strikes between `__enter__` and
the block, or the block and `__exit__`.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Self

import pytest

import fastjournal
from fastjournal import Journal
from fastjournal.errors import JournalError, Stopped
from fastjournal.package.compiled import describe_core
from fastjournal.testing import ManualClock, MemoryFiles, check_replay

HOME = Path("/jobs")
ROOMS = tuple(str(Path(fastjournal.__file__).parent / room) for room in ("journal", "log"))
LIMIT = 20.0


def _is_bare(frame: FrameType) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.lstrip().startswith(("with ", "try:"))


class InterruptAt:
    """Raises KeyboardInterrupt before the n-th line of the journal or its log, on this thread."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __enter__(self) -> Self:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(ROOMS) or code.co_name == "__enter__":
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and not _is_bare(frame):
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                raise KeyboardInterrupt(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return self._line


def opened(files: MemoryFiles, clock: ManualClock) -> Journal:
    return Journal(
        HOME, files=files, clock=clock, background=False, sync="always", chance=Random(1)
    )


REQUESTS: dict[str, Callable[[Journal, list[Any]], object]] = {
    "put": lambda j, held: j.put(b"new", queue="q", key="k9"),
    "merge": lambda j, held: j.put(b"new", queue="q", key="k1"),
    "put many": lambda j, held: j.put_many([{"queue": "q", "key": f"m{n}"} for n in range(3)]),
    "put plain": lambda j, held: j.put_many([{"queue": "plain"} for _ in range(3)]),
    "lease": lambda j, held: j.lease("q"),
    "lease many": lambda j, held: j.lease_many(3, "q"),
    "done": lambda j, held: held[0].done(b"result"),
    "done many": lambda j, held: j.complete_many([(h.id, h.token, None) for h in held]),
    "fail": lambda j, held: held[0].fail(b"no"),
    "tick": lambda j, held: j.tick(),
    "set": lambda j, held: j.entries.set("entry", 1),
    "set in memory": lambda j, held: j.entries.set("entry", 1, persist=False),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_interrupt_at_any_line_stops_the_journal_or_changes_nothing(kind: str) -> None:
    """No record is logged and not applied, none applied and not logged, unless it has stopped."""
    number, struck, stopped = -1, True, 0
    while struck:
        number += 2
        files, clock = MemoryFiles(), ManualClock()
        files.make_directory(HOME.parent)
        j = opened(files, clock)
        for job in range(4):
            j.put(b"x", queue="q", key=f"k{job}")
        held = [j.lease("q", lease=5) for _ in range(2)]
        clock.advance(10 if kind == "tick" else 1)
        struck = False
        try:
            with InterruptAt(number):
                REQUESTS[kind](j, held)
        except KeyboardInterrupt:
            struck = True
        try:
            j.put(b"goes on", queue="r")
            check_replay(j)
        except Stopped:
            stopped += 1
        try:
            j.close()
        except JournalError:
            assert j.status().log.failure
        with opened(files.killed(), clock) as again:
            check_replay(again)
    assert stopped <= number // 2
    if describe_core() == "pure":  # a compiled line cannot be struck
        assert number > 30
        assert stopped


@pytest.mark.skipif(describe_core() == "compiled", reason="a compiled line cannot be struck")
def test_an_interrupted_wait_for_a_job_leaves_nobody_behind_and_wakes_the_next() -> None:
    """Woken or not: the job goes to whoever else waits."""
    for number in range(1, 16):
        files = MemoryFiles()
        files.make_directory(HOME.parent)
        j = opened(files, ManualClock())
        engine = j.engine
        got: list[Any] = []

        def consume(j: Journal = j, got: list[Any] = got) -> None:
            got.append(j.lease("q", wait=60))

        def first(j: Journal = j, number: int = number) -> None:
            waits = Waits(number, lambda: j.put(b"x", queue="q"))
            sys.settrace(waits.call)
            try:
                j.lease("q", wait=60)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)

        one = threading.Thread(target=first)
        one.start()
        one.join(LIMIT)
        assert not one.is_alive()
        assert not engine.wakeups.consumers
        if engine.log.failure is None:
            other = threading.Thread(target=consume)
            other.start()
            j.put(b"y", queue="q")
            other.join(LIMIT)
            assert not other.is_alive()
            assert got[0] is not None
            j.close()


class Waits:
    """Strikes a consumer `number` lines after it has begun to wait, and had a job put before."""

    def __init__(self, number: int, put: Callable[[], object]) -> None:
        self.left = number
        self.put = put

    def call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self.line if frame.f_code.co_filename.endswith("journal/journal.py") else None

    def line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "line" or not frame.f_locals.get("handle") or _is_bare(frame):
            return self.line
        if self.put is not None:
            sys.settrace(None)
            self.put()
            self.put = None  # type: ignore[assignment]
            sys.settrace(self.call)
        self.left -= 1
        if self.left <= 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self.line


@pytest.mark.skipif(describe_core() == "compiled", reason="a compiled line cannot be struck")
def test_an_interrupted_wait_for_a_result_leaves_nobody_behind() -> None:
    for number in range(1, 12):
        files = MemoryFiles()
        files.make_directory(HOME.parent)
        j = opened(files, ManualClock())
        receipt = j.put(b"x", queue="q")
        held = j.lease("q")
        assert held is not None
        waits = Waits(number, lambda held=held: held.done(b"r"))  # type: ignore[misc]
        sys.settrace(waits.call)
        try:
            j.result(receipt.id, wait=60)
        except (KeyboardInterrupt, JournalError):
            pass
        finally:
            sys.settrace(None)
        assert not len(j.engine.wakeups)
        j.close()
