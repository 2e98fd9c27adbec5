"""Real processes on a real disk: locks, kill -9, a live tail, a cleaner beside an appender.

A child tells what it has done on its standard output; the parent waits for lines, never for time.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.clock import SECOND, SYSTEM_CLOCK
from fastjournal.errors import LockTimeout
from fastjournal.log import Record, Stream
from fastjournal.log.care.check import verify
from fastjournal.log.pins import LEASE
from fastjournal.testing import ManualClock

SETUP = """
import sys
from pathlib import Path
from fastjournal.log import Stream
stream = Stream(Path(sys.argv[1]))
def say(*words):
    print(*words, flush=True)
def wait():
    return sys.stdin.readline()
"""

APPEND = """
import itertools
appender = stream.open_appender(segment_size=4096, sync=sys.argv[2])
appender.lock()
say("locked")
for number in itertools.count():
    if number % 5 == 4:
        appender.append_many([b"%d.%d" % (number, part) * 20 for part in range(3)])
    else:
        appender.append(b"%d" % number * 40)
    say(number)
"""

HOLD = """
appender = stream.open_appender()
say("waiting")
appender.lock()
appender.append(sys.argv[2].encode())
say("locked")
wait()
appender.append(sys.argv[2].encode() + b" again")
appender.unlock()
say("unlocked")
"""


class Child:
    """A Python process that runs a script with the stream of a directory at hand."""

    def __init__(self, script: str, directory: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SETUP + script, str(directory), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def line(self) -> str:
        return self.stdout.readline().strip()

    def go_on(self) -> None:
        self.stdin.write("\n")
        self.stdin.flush()

    def kill(self) -> list[str]:
        """SIGKILL; returns what the child had said and nobody had read."""
        self.process.send_signal(signal.SIGKILL)
        rest = self.stdout.read().splitlines()
        self.process.wait(20)
        return rest

    def finish(self) -> list[str]:
        rest = self.stdout.read().splitlines()
        assert self.process.wait(20) == 0
        return rest


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.process.kill()
        child.process.wait(20)
        child.stdin.close()
        child.stdout.close()


def payloads_of(number: int) -> list[bytes]:
    """What the appending child writes in its step `number`."""
    if number % 5 == 4:
        return [b"%d.%d" % (number, part) * 20 for part in range(3)]
    return [b"%d" % number * 40]


def test_two_processes_fight_for_the_appender_and_the_second_waits(
    tmp_path: Path, children: list[Child]
) -> None:
    """CPT-APP-5, CPT-APP-6, CPT-APP-7, F61."""
    first = Child(HOLD, tmp_path, "first")
    children.append(first)
    assert [first.line(), first.line()] == ["waiting", "locked"]
    second = Child(HOLD, tmp_path, "second")
    children.append(second)
    assert second.line() == "waiting"

    with pytest.raises(LockTimeout, match=f"held by process {first.process.pid}") as caught:
        Stream(tmp_path).open_appender().lock(timeout=0.05)
    assert caught.value.holder == str(first.process.pid)
    assert second.process.poll() is None

    first.go_on()
    assert first.line() == "unlocked"
    assert second.line() == "locked"
    second.go_on()
    assert second.line() == "unlocked"
    found = [record.payload for record in Stream(tmp_path).open_cursor()]
    assert found == [b"first", b"first again", b"second", b"second again"]


@pytest.mark.kill
def test_the_lock_of_a_killed_process_is_free(tmp_path: Path, children: list[Child]) -> None:
    """CPT-APP-6: the kernel gives it back."""
    first = Child(HOLD, tmp_path, "first")
    children.append(first)
    assert [first.line(), first.line()] == ["waiting", "locked"]
    second = Child(HOLD, tmp_path, "second")
    children.append(second)
    assert second.line() == "waiting"
    first.kill()
    assert second.line() == "locked"
    second.go_on()
    assert second.line() == "unlocked"
    with Stream(tmp_path).open_appender() as appender:
        appender.append(b"parent")
    found = [record.payload for record in Stream(tmp_path).open_cursor()]
    assert found == [b"first", b"second", b"second again", b"parent"]


@pytest.mark.kill
@pytest.mark.parametrize("policy", ["os", "interval", "always"])
def test_a_process_killed_while_appending_loses_nothing_it_acknowledged(
    tmp_path: Path, children: list[Child], policy: str
) -> None:
    """F11: several rounds on one log; what was printed as acknowledged is there."""
    draw = random.Random(policy)
    expected: list[bytes] = []
    for _ in range(4):
        child = Child(APPEND, tmp_path, policy)
        children.append(child)
        assert child.line() == "locked"
        said = [child.line() for _ in range(draw.randrange(1, 60))]
        said += child.kill()
        done = len([line for line in said if line.isdigit()])
        stream = Stream(tmp_path)
        with stream.open_appender(segment_size=4096):
            pass
        found = [record.payload for record in stream.open_cursor()]
        assert found[: len(expected)] == expected, "earlier rounds stay"
        fresh = found[len(expected) :]
        acknowledged = [payload for number in range(done) for payload in payloads_of(number)]
        assert fresh[: len(acknowledged)] == acknowledged
        # One more step may have been written and not said, or said and not printed whole.
        more = [p for number in range(done, done + 2) for p in payloads_of(number)]
        assert fresh[len(acknowledged) :] == more[: len(fresh) - len(acknowledged)]
        assert not [fault for check in verify(stream) for fault in check.faults]
        times = [record.time for record in stream.open_cursor()]
        assert times == sorted(set(times))
        expected = found
    assert len(Stream(tmp_path).segments()) > 1


def test_a_cursor_follows_an_appender_in_another_process(
    tmp_path: Path, children: list[Child]
) -> None:
    """CPT-CUR-6: over rotations, with no error and no gap, while the file grows under it."""
    child = Child(APPEND, tmp_path, "os")
    children.append(child)
    assert child.line() == "locked"
    cursor = Stream(tmp_path).open_cursor(follow=True)
    found: list[Record] = []
    told = -1
    while not found or found[-1].segment < 12:
        told = int(child.line())
        while (record := cursor.next()) is not None:
            found.append(record)
        seen = [record.payload for record in found]
        assert payloads_of(told)[-1] in seen, "what was acknowledged is seen at once"
    child.kill()
    while (record := cursor.next()) is not None:
        found.append(record)
    everything = itertools.chain.from_iterable(map(payloads_of, itertools.count()))
    assert [record.payload for record in found] == list(itertools.islice(everything, len(found)))
    cursor.close()


APPEND_LARGE = """
import os
size = 1 << 20
with stream.open_appender(segment_size=1 << 22, sync=sys.argv[2]) as appender:
    say("locked")
    for number in range(40):
        appender.append(bytes([number]) * (size + number))
say("done")
"""


@pytest.mark.parametrize("policy", ["os", "always"])
def test_a_half_written_record_is_never_an_error_to_a_follower(
    tmp_path: Path, children: list[Child], policy: str
) -> None:
    """CPT-CUR-6: large records are seen while they are being written, in spite of the mark."""
    child = Child(APPEND_LARGE, tmp_path, policy)
    children.append(child)
    assert child.line() == "locked"
    cursor = Stream(tmp_path).open_cursor(follow=True)
    found: list[tuple[int, int]] = []
    while len(found) < 40:
        record = cursor.next()
        if record is not None:
            assert set(record.payload) == {record.payload[0]}
            found.append((record.payload[0], len(record.payload)))
    assert found == [(number, (1 << 20) + number) for number in range(40)]
    assert child.finish() == ["done"]
    cursor.close()


def test_a_cleaner_beside_an_appender_in_another_process(
    tmp_path: Path, children: list[Child]
) -> None:
    """WQ-CLN-7: cycle after cycle on the live log; the newest segment is never touched."""
    child = Child(APPEND, tmp_path, "os")
    children.append(child)
    assert child.line() == "locked"
    stream = Stream(tmp_path)
    cycles = changed = told = 0
    while changed < 4 or cycles < 8:
        told = int(child.line())
        with stream.open_cleaner() as cleaner:
            changed += len(cleaner.clean(lambda path, record: b"." in record.payload))
        cycles += 1
    child.kill()
    with stream.open_appender(segment_size=4096):
        pass
    with stream.open_cleaner() as cleaner:
        cleaner.clean(lambda path, record: b"." in record.payload)
    records = list(stream.open_cursor())
    newest = records[-1].segment
    plain = [record.payload for record in records if b"." not in record.payload]
    numbers = (number for number in itertools.count() if number % 5 != 4)
    assert plain == [b"%d" % number * 40 for number in itertools.islice(numbers, len(plain))]
    assert len(plain) >= told * 4 // 5
    assert {record.segment for record in records if b"." in record.payload} <= {newest}
    assert not [fault for check in verify(stream) for fault in check.faults]


CLEAN = """
say("ready")
while wait():
    with stream.open_cleaner() as cleaner:
        cleaner.clean(lambda path, record: record.time % 2 == 0)
    say("cleaned")
"""

CLEAN_ALOUD = """
def clean(path, record):
    say(record.time)
    return record.time % 2 == 0
with stream.open_cleaner() as cleaner:
    cleaner.clean(clean)
"""


@pytest.mark.kill
def test_a_cleaner_killed_at_work_leaves_a_whole_log(tmp_path: Path, children: list[Child]) -> None:
    """F15: old or new content, the lock is free, and left-overs are gone at the next opening."""
    stream = Stream(tmp_path)
    draw = random.Random(7)
    for _ in range(4):
        with stream.open_appender(segment_size=4096) as appender:
            for _ in range(12):
                appender.append_many([draw.randbytes(100) for _ in range(8)])
        before = list(stream.open_cursor())
        child = Child(CLEAN_ALOUD, tmp_path)
        children.append(child)
        for _ in range(draw.randrange(5, 45)):
            assert child.line().isdigit()
        child.kill()
        with stream.open_appender(segment_size=4096):
            pass
        after = {record.time: record.payload for record in stream.open_cursor()}
        assert list(after) == sorted(after)
        for record in before:
            if record.time % 2 or record.time in after:
                assert after[record.time] == record.payload
        assert not [fault for check in verify(stream) for fault in check.faults]
        with stream.open_cleaner() as cleaner:
            cleaner.clean(lambda path, record: record.time % 2 == 0)
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".rw", ".new")]


def test_a_locked_cursor_keeps_a_cleaner_of_another_process_waiting(
    tmp_path: Path, children: list[Child]
) -> None:
    """CPT-CUR-5."""
    stream = Stream(tmp_path)
    with stream.open_appender(segment_size=4096) as appender:
        for _ in range(20):
            appender.append_many([b"x" * 100] * 8)
    child = Child(CLEAN, tmp_path)
    children.append(child)
    assert child.line() == "ready"
    with stream.open_cursor() as cursor:
        child.go_on()
        assert sum(1 for _ in cursor) == 160
    assert child.line() == "cleaned"
    assert sum(1 for _ in stream.open_cursor()) < 160
    child.stdin.close()
    assert child.finish() == []


PIN = """
from fastjournal.log.pins import Pin
pin = Pin(stream.path)
say("pinned")
wait()
"""


@pytest.mark.kill
def test_the_pin_of_a_killed_reader_ends_by_the_clock(
    tmp_path: Path, children: list[Child]
) -> None:
    """WQ-CLN-5: nobody else knows that the reader is gone; its lease says until when to wait."""
    clock = ManualClock(SYSTEM_CLOCK.now())
    with Stream(tmp_path).open_appender(segment_size=4096) as appender:
        for number in range(200):
            appender.append(b"%d" % number * 20)
    reader = Child(PIN, tmp_path)
    children.append(reader)
    assert reader.line() == "pinned"
    reader.kill()
    cleaner = Stream(tmp_path, clock=clock).open_cleaner()
    with pytest.raises(LockTimeout, match="pinned by a reader until"):
        cleaner.lock(timeout=0)
    clock.advance(LEASE / SECOND + 60)
    with cleaner:
        assert cleaner.clean(lambda path, record: True)
    assert not list(tmp_path.glob("pin-*"))
