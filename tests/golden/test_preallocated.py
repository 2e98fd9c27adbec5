"""Directories of a journal under `always` that was killed: room is reserved behind its records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.journal.look.read_only import JournalView
from fastjournal.log import WORKQ, Stream
from fastjournal.log.care.check import verify
from fastjournal.spark.storage.segments import journal_segments, newest_time
from fastjournal.testing import ManualClock

HERE = Path(__file__).parent / "preallocated"
NOW = 1_700_000_010 * 10**9
ROWS = [(b"a", "COMPLETED"), (b"b", "WAITING"), (b"c", "WAITING"), (b"d", "WAITING")]


@pytest.fixture
def home(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / name, tmp_path / name))


@pytest.mark.parametrize("name", ["killed", "torn", "empty"])
def test_a_killed_journal_opens_with_every_row_and_its_room_is_trimmed(
    home: Path, name: str
) -> None:
    segment = home / "000000001.log"
    assert segment.stat().st_size > 65_536
    written = len(segment.read_bytes().rstrip(b"\0"))
    stream = Stream(home, WORKQ)
    faults = [fault for check in verify(stream) for fault in check.faults]
    assert [fault.torn for fault in faults] == [True] * (name == "torn")
    with JournalView(home, clock=ManualClock(NOW)) as view:
        assert [(job.key_bytes, job.state.name) for job in view.jobs("q")] == ROWS
    pieces = journal_segments(home)
    assert [(piece.number, piece.newest) for piece in pieces] == [(1, True)]
    last = [record.time for record in stream.open_cursor()][-1]
    assert newest_time(pieces[0]) == last
    with Journal(home, background=False, clock=ManualClock(NOW)) as journal:
        assert [(job.key_bytes, job.state.name) for job in journal.jobs("q")] == ROWS
        torn = [path.name for path in home.iterdir() if "torn" in path.name]
        assert len(torn) == (name == "torn")
        assert segment.stat().st_size <= written
        journal.put(b"more", queue="q", key="e")
    assert not [fault for check in verify(stream) for fault in check.faults]
    with Journal(home, background=False, clock=ManualClock(NOW)) as journal:
        assert [job.key_bytes for job in journal.jobs("q")] == [b"a", b"b", b"c", b"d", b"e"]
