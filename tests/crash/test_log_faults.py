"""Every file operation of an appender fails in every way: nothing acknowledged is lost.

The sweeps are loops over the number of the operation and the kind of its fault.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fastjournal.errors import AppenderPoisoned, JournalError, NoSpace, SegmentError, WriteFailed
from fastjournal.log import Stream
from fastjournal.log.care.check import verify
from fastjournal.log.write.appender import Appender
from fastjournal.testing import Fault, ManualClock, ManualTicker, MemoryFiles

HERE = Path("/journal")
POLICIES = ("os", "interval", "always")
SCRIPT: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("append", (b"one",)),
    ("append", (b"two",)),
    ("many", (b"three", b"", b"five" * 8)),
    ("tick", ()),
    ("append", (b"six",)),
    ("rotate", ()),
    ("append", (b"seven",)),
    ("many", (b"eight", b"nine")),
    ("sync", ()),
    ("append", (b"ten",)),
    ("rotate", ()),
    ("append", (b"eleven",)),
    ("tick", ()),
    ("append", (b"twelve",)),
)


@dataclass
class Outcome:
    files: MemoryFiles
    acknowledged: list[bytes] = field(default_factory=list)
    perhaps: tuple[bytes, ...] = ()
    """Written by the call that poisoned the appender: there or not."""
    safe: int = 0
    """How many acknowledged ones the policy promised to survive a power loss."""
    errors: list[JournalError] = field(default_factory=list)
    poisoned_at: int | None = None
    """Number of file operations when the poison struck."""


def play(files: MemoryFiles, policy: str) -> Outcome:
    """Run the script, go on after every error, and check what the errors promise."""
    outcome = Outcome(files)
    ticker = ManualTicker()
    stream = Stream(HERE, files=files, clock=ManualClock())
    files.make_directory(HERE)
    appender = stream.open_appender(sync=policy, ticker=ticker)
    for _ in range(2):  # one fault: the second try succeeds
        try:
            appender.lock()
            break
        except (WriteFailed, NoSpace, SegmentError) as error:
            outcome.errors.append(error)
    for action, payloads in SCRIPT:
        end = None if outcome.poisoned_at else appender.position
        try:
            step(appender, ticker, action, payloads)
        except (WriteFailed, NoSpace) as error:
            outcome.errors.append(error)
            assert outcome.poisoned_at is None, "a poisoned appender says that it is poisoned"
            assert appender.position == end, "nothing of an undone write is left"
        except AppenderPoisoned as error:
            if outcome.poisoned_at is None:
                outcome.errors.append(error)
                outcome.poisoned_at = len(files.operations)
                outcome.perhaps = payloads
        else:
            assert action == "tick" or outcome.poisoned_at is None, "every later call says so"
            outcome.acknowledged += payloads
            settle(outcome, policy, action)
    operations = len(files.operations)
    try:
        appender.unlock()
        assert outcome.poisoned_at is None
        outcome.safe = len(outcome.acknowledged)
    except AppenderPoisoned as error:
        outcome.errors.append(error)
        outcome.poisoned_at = outcome.poisoned_at or operations
    return outcome


def step(
    appender: Appender, ticker: ManualTicker, action: str, payloads: tuple[bytes, ...]
) -> None:
    if action == "append":
        appender.append(payloads[0])
    elif action == "many":
        appender.append_many(payloads)
    elif action == "rotate":
        appender.rotate()
    elif action == "sync":
        appender.sync()
    else:
        ticker.fire()


def settle(outcome: Outcome, policy: str, action: str) -> None:
    ticked = action == "tick" and policy == "interval" and outcome.poisoned_at is None
    if ticked and failed_sync(outcome.files):
        return  # the ticker keeps its failure for the next call
    if policy == "always" or action in ("rotate", "sync") or ticked:
        outcome.safe = len(outcome.acknowledged)


def failed_sync(files: MemoryFiles) -> bool:
    """Whether the one planned fault has struck a sync."""
    return any(
        number <= len(files.operations) and files.operations[number - 1].startswith("sync ")
        for number in files.faults
    )


def check(outcome: Outcome) -> None:
    acknowledged, perhaps = outcome.acknowledged, list(outcome.perhaps)
    found = recovered(outcome.files.killed())
    assert found[: len(acknowledged)] == acknowledged, "all that was acknowledged survives a kill"
    assert found in (acknowledged, [*acknowledged, *perhaps]), "and nothing else is there"
    everything = [*acknowledged, *perhaps]
    for image in outcome.files.images(samples=4):
        found = recovered(image)
        assert found == everything[: len(found)]
        assert len(found) >= outcome.safe


def recovered(files: MemoryFiles) -> list[bytes]:
    stream = Stream(HERE, files=files, clock=ManualClock())
    with stream.open_appender():
        pass
    assert not [fault for check in verify(stream) for fault in check.faults]
    return [record.payload for record in stream.open_cursor()]


def operations(policy: str) -> list[str]:
    outcome = play(MemoryFiles(), policy)
    assert outcome.errors == []
    assert len(outcome.acknowledged) == sum(len(payloads) for _, payloads in SCRIPT)
    return outcome.files.operations


def faults(operation: str) -> Iterator[Fault]:
    yield Fault()
    yield Fault(error=errno.ENOSPC)
    if operation.startswith("sync "):
        yield Fault(synced="drop")
        yield Fault(synced="half")
    if operation == "write synced.pos":
        yield from (Fault(short=length) for length in (0, 1, 20, 43))
    elif operation.startswith("write "):
        # Every field of a record and its borders; until it is not short.
        yield from (Fault(short=length) for length in (*range(21), *range(21, 200, 6)))


@pytest.mark.parametrize("policy", POLICIES)
def test_no_fault_of_any_operation_loses_what_was_acknowledged(policy: str) -> None:
    """T-IO, F01, F02, F03, F04, F06, F08; P-STOP, CPT-APP-11."""
    runs = struck = poisoned = 0
    for number, operation in enumerate(operations(policy), 1):
        for fault in faults(operation):
            outcome = play(MemoryFiles(faults={number: fault}), policy)
            runs += 1
            struck += bool(outcome.errors)
            poisoned += outcome.poisoned_at is not None
            check(outcome)
            if fault.short is not None and not outcome.errors:
                break
            # Helps for recovery, written without a promise.
            mark = "synced.pos" in operation or "manifest" in operation
            if operation.startswith(("sync ", "close ")) and not mark:
                assert outcome.errors, (number, operation)
    assert runs > 350
    assert struck > 250
    assert poisoned >= 10


@pytest.mark.parametrize("policy", POLICIES)
def test_a_failed_sync_is_never_tried_again_on_the_same_file(policy: str) -> None:
    """F04: its second success would prove nothing."""
    for number, operation in enumerate(operations(policy), 1):
        if not operation.startswith("sync 0"):
            continue
        for kept in ("keep", "drop", "half"):
            outcome = play(MemoryFiles(faults={number: Fault(synced=kept)}), policy)
            later = outcome.files.operations[number:]
            if outcome.poisoned_at is None:  # the header of a new segment: made again from scratch
                assert operation.endswith(".new")
                if operation in later:
                    name = operation.removeprefix("sync ")
                    assert later.index(f"create {name}") < later.index(operation)
            else:
                assert not [name for name in later if name.startswith(("sync ", "write "))]


@pytest.mark.parametrize("policy", POLICIES)
def test_two_faults_in_a_row_poison_rather_than_lose(policy: str) -> None:
    """A short write whose undoing fails too: at every write, every way of failing behind it."""
    for number, operation in enumerate(operations(policy), 1):
        if not operation.startswith("write 0") or operation.endswith(".new"):
            continue
        for second in (Fault(), Fault(error=errno.ENOSPC), Fault(synced="drop")):
            for behind in (1, 2):  # the truncation, and the sync that makes it durable
                files = MemoryFiles(faults={number: Fault(short=7), number + behind: second})
                outcome = play(files, policy)
                assert outcome.poisoned_at is not None
                assert outcome.acknowledged == recovered(files.killed())
                check(outcome)
