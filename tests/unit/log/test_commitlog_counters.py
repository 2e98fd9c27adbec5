"""What a commit log counts, by what failed; and batches whose bad entries are left out."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from fastjournal.errors import BadRequest, JournalError, RequestError, TooLarge
from fastjournal.log import CommitLog
from fastjournal.log.stream import Stream
from fastjournal.testing import ManualClock, MemoryFiles
from fastjournal.testing.files import Fault

HERE = Path("/log")


def stream_on(files: MemoryFiles, **options: int) -> Stream:
    files.make_directory(HERE)
    return Stream(HERE, files=files, clock=ManualClock(), **options)  # type: ignore[arg-type]


def test_one_bad_entry_of_a_batch_is_lost_alone_where_the_caller_asks() -> None:
    """M3-Q-5: told with its place; without a list it refuses all, as ever."""
    stream = stream_on(MemoryFiles(), max_payload=100)
    with CommitLog(stream, sync="os") as log:
        batch: list[bytes] = [b"a", "text", b"b", bytes(101), b"c"]  # type: ignore[list-item]
        with pytest.raises(RequestError):
            log.write_batch(batch)
        refused: list[tuple[int, RequestError]] = []
        last = log.write_batch(batch, refused)
        assert [(place, type(error)) for place, error in refused] == [
            (1, BadRequest),
            (3, TooLarge),
        ]
        assert log.status().counters.skipped == 2
        none: list[tuple[int, RequestError]] = []
        assert log.write_batch([bytes(101)], none) is None
        assert len(none) == 1
    records = list(stream.open_cursor())
    assert [record.payload for record in records] == [b"a", b"b", b"c"]
    assert records[-1].time == last


@pytest.mark.parametrize(
    ("operation", "what", "deed"),
    [
        ("write", "write", lambda log: log.write(b"x")),
        ("sync", "sync", lambda log: log.sync()),
        ("create", "open", lambda log: (log.rotate(), log.rotate())),
        ("close", "close", lambda log: log.close()),
    ],
)
def test_faults_are_counted_by_what_failed(
    operation: str, what: str, deed: Callable[[CommitLog], object]
) -> None:
    """M3F-MET-1."""
    files = MemoryFiles()
    log = CommitLog(stream_on(files), sync="os", lock_timeout=0)
    log.write(b"before")
    assert not any(log.status().counters.faults.values())
    fault = Fault(error=errno.EIO)
    files.failing = lambda deed: fault if deed.startswith(f"{operation} 0") else None
    with pytest.raises(JournalError):
        deed(log)
    counted = log.status().counters
    assert counted.faults[what] >= 1
    assert sum(counted.faults.values()) == counted.faults[what]
    assert counted.errors >= 1
    files.failing = None
    if operation != "close":
        try:
            log.close()
        except JournalError:
            assert operation in ("write", "sync")


def test_rotations_are_timed_and_the_last_sync_can_be_read() -> None:
    """M3F-MET-1, M3-SYN-2."""
    stream = stream_on(MemoryFiles())
    clock = stream.clock
    assert isinstance(clock, ManualClock)
    with CommitLog(stream, sync="os") as log:
        assert log.last_sync == 0
        log.write(b"x")
        clock.advance(5)
        log.sync()
        assert log.last_sync == log.status().counters.last_sync == clock.now()
        assert log.status().counters.rotation_seconds.count == 0
        log.rotate()
        assert log.status().counters.rotation_seconds.count == 1
