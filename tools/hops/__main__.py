"""How far a request goes: the calls of our own functions on its way, and the files they stand in.

    FASTJOURNAL_PURE=1 python tools/hops            a table: put, lease and complete, three ways
    FASTJOURNAL_PURE=1 python tools/hops put        each call of one of them, in order, indented
    python tools/hops                               only what is interpreted beside a compiled core

Rules:

1. Counted are calls of Python's own, in every thread that serves the request. Compiled functions
   tell nobody when they are called, so the whole way is seen with the interpreted core only. What
   the standard library calls of its own is not ours.
2. A request is made some times first; told is the one with the fewest calls: the usual way, without
   a new segment or a timer in between.
3. A property, a generator that goes on and a comprehension are calls too, as Python counts them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import fastjournal
from fastjournal.package.compiled import describe_core
from fastjournal.testing.daemon import LocalDaemon

SOURCE = str(Path(fastjournal.__file__).parent)
WARM, MEASURED = 20, 30
SETTLE = 0.02  # seconds in which a daemon finishes what it does after its answer


class Call(NamedTuple):
    """One function of ours that was entered."""

    thread: str
    depth: int
    file: str
    function: str


class Way:
    """Writes down every call while it is open."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._open = False
        self._depths: dict[int, int] = {}

    def watch(self, frame: FrameType, event: str, _: object) -> None:
        """The function that `sys.setprofile` calls."""
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(SOURCE):
            return
        thread = threading.get_ident()
        depth = self._depths.get(thread, 0) + (1 if event == "call" else -1)
        self._depths[thread] = max(0, depth)
        if self._open and event == "call":
            code = frame.f_code
            file = code.co_filename[len(SOURCE) + 1 :]
            self.calls.append(Call(threading.current_thread().name, depth, file, code.co_qualname))

    def measure(self, request: Callable[[], object], settle: float) -> list[Call]:
        """The calls of one request."""
        self.calls = []
        self._open = True
        request()
        if settle:
            time.sleep(settle)
        self._open = False
        return self.calls


@contextmanager
def ways_of_use(folder: Path) -> Iterator[dict[str, tuple[Any, float]]]:
    """A journal of this process, a client over TCP, and a spool, by name; each is closed."""
    with (
        fastjournal.Journal(folder / "embedded", background=False) as journal,
        LocalDaemon(folder / "daemon") as daemon,
        fastjournal.connect(daemon.url) as client,
        fastjournal.Spool(folder / "spool") as spool,
    ):
        yield {
            "embedded": (journal, 0.0),
            "over TCP": (client, SETTLE),
            "into a spool": (spool, 0.0),
        }


def shortest(way: Way, request: Callable[[], object], settle: float) -> list[Call]:
    """The usual way of a request: of many the one with the fewest calls."""
    for _ in range(WARM):
        request()
    found = [way.measure(request, settle) for _ in range(MEASURED)]
    return min(found, key=len)


def requests_of(target: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is asked, in an order in which each can be."""
    yield "put", lambda: target.put(b"x", queue="q", key=os.urandom(8).hex())
    if not hasattr(target, "lease"):
        return
    for _ in range(2 * (WARM + MEASURED)):
        target.put(b"x", queue="q")
    held = [target.lease("q") for _ in range(WARM + MEASURED)]
    yield "lease", lambda: target.lease("q")
    yield "complete", lambda: held.pop().done()


def main() -> None:
    """Measure, and print a table, or the calls of one request."""
    shown = sys.argv[1:]
    way = Way()
    threading.setprofile(way.watch)
    sys.setprofile(way.watch)
    rows: list[tuple[str, list[Call]]] = []
    with tempfile.TemporaryDirectory() as folder, ways_of_use(Path(folder)) as ways:
        for name, (target, settle) in ways.items():
            for verb, request in requests_of(target):
                rows.append((f"{verb} {name}", shortest(way, request, settle)))
        sys.setprofile(None)
        threading.setprofile(None)
    print(f"the core is {describe_core()}")
    print(f"{'request':24}{'calls':>7}{'functions':>11}{'files':>7}{'depth':>7}")
    for name, calls in rows:
        functions, files = {c[2:] for c in calls}, {c.file for c in calls}
        depth = max((c.depth for c in calls), default=0)
        print(f"{name:24}{len(calls):>7}{len(functions):>11}{len(files):>7}{depth:>7}")
    for name, calls in rows:
        if name.partition(" ")[0] in shown:
            print(f"\n{name}")
            for call in calls:
                print(f"  {call.thread:12.12} {'  ' * (call.depth - 1)}{call.file} {call.function}")


if __name__ == "__main__":
    main()
