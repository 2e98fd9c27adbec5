"""The file that holds space (F02)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.errors import NoSpace
from fastjournal.journal.engine.reserve import RESERVE_SIZE, Reserve
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.testing import Fault, ManualClock, MemoryFiles

HOME = Path("/jobs")


def place(files: MemoryFiles | None = None) -> tuple[Stream, MemoryFiles, ManualClock]:
    memory, clock = files or MemoryFiles(), ManualClock()
    memory.make_directory(HOME)
    return Stream(HOME, WORKQ, files=memory, clock=clock), memory, clock


def test_the_reserve_is_made_once_and_synced() -> None:
    stream, files, _ = place()
    assert Reserve(stream).is_kept
    assert len(files.content(HOME / "reserve")) == RESERVE_SIZE
    syncs = files.syncs
    assert Reserve(stream).is_kept
    assert files.syncs == syncs


@pytest.mark.parametrize("size", [0, 100, RESERVE_SIZE + 1])
def test_a_reserve_of_another_size_is_made_anew(size: int) -> None:
    stream, files, _ = place()
    files.put(HOME / "reserve", bytes(size))
    assert Reserve(stream).is_kept
    assert len(files.content(HOME / "reserve")) == RESERVE_SIZE


def test_given_up_it_is_asked_for_again_once_a_second() -> None:
    stream, files, clock = place()
    reserve = Reserve(stream)
    reserve.check()
    assert reserve.give_up() is True
    assert reserve.give_up() is False
    assert not files.exists(HOME / "reserve")
    files.capacity = 1000
    for _ in range(3):
        with pytest.raises(NoSpace):
            reserve.check()
        clock.advance(1)
    files.capacity = None
    reserve.check()
    assert reserve.is_kept


@pytest.mark.parametrize("operation", range(1, 4))
def test_a_fault_while_it_is_made_leaves_no_part_of_it(operation: int) -> None:
    stream, files, _ = place(MemoryFiles(faults={operation: Fault()}))
    assert not Reserve(stream).is_kept
    assert not files.exists(HOME / "reserve")


def test_a_short_write_is_no_reserve() -> None:
    stream, files, _ = place(MemoryFiles(capacity=10))
    assert not Reserve(stream).is_kept
    assert not files.exists(HOME / "reserve")
