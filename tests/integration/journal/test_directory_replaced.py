"""A directory that is replaced under a running journal, as a restore does it, stops the journal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.errors import AppenderPoisoned, JournalError, Stopped
from fastjournal.log import Stream


def replaced(directory: Path) -> None:
    """Put a copy in the place of the directory."""
    shutil.copytree(directory, directory.with_name("copy"))
    directory.rename(directory.with_name("broken"))
    directory.with_name("copy").rename(directory)


def emptied_and_filled(directory: Path) -> None:
    """Remove all files and put copies there: the directory itself stays."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    for path in directory.iterdir():
        path.unlink()
    for path in copy.iterdir():
        shutil.copy2(path, directory)


def unlocked(directory: Path) -> None:
    """Remove the lock file: another process could come in."""
    (directory / "append.lock").unlink()


def gone(directory: Path) -> None:
    """Remove everything."""
    shutil.rmtree(directory)


@pytest.mark.parametrize("how", [replaced, emptied_and_filled, unlocked, gone])
def test_nothing_is_acknowledged_under_always_once_the_directory_was_replaced(
    tmp_path: Path, how: Callable[[Path], None]
) -> None:
    home = tmp_path / "jobs"
    journal = Journal(home, sync="always", background=False)
    journal.put(b"before", queue="q")
    how(home)
    for n in range(180):
        with pytest.raises(Stopped, match="replaced"):
            journal.put(b"%d" % n, queue="q")
    before = sorted(path.name for path in home.iterdir()) if home.exists() else None
    with pytest.raises(JournalError):
        journal.close()
    after = sorted(path.name for path in home.iterdir()) if home.exists() else None
    assert after == before, "what lies there belongs to somebody else"
    with Journal(home, background=False) as again:
        left = [job.value for job in again.jobs()]
    # Without its lock the journal was still in its directory: the put that failed may be there.
    assert left[:1] == ([] if how is gone else [b"before"])
    assert left[1:] in ([], [b"0"] if how is unlocked else [])


def contents(directory: Path) -> dict[str, bytes]:
    """All files but the locks, which hold nothing."""
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.suffix != ".lock"}


@pytest.mark.parametrize("act", ["sync", "rotate", "clean", "snapshot", "close"])
def test_every_sync_and_rotation_notices_it_whatever_the_policy(tmp_path: Path, act: str) -> None:
    home = tmp_path / "jobs"
    with Journal(home, background=False, segment_size=4096) as journal:
        for n in range(100):
            journal.put(b"x" * 100, queue="q", key=str(n % 5))
    journal = Journal(home, sync="os", background=False)  # whose standby is there
    replaced(home)
    before = contents(home)
    with pytest.raises(JournalError, match="replaced"):
        getattr(journal, act)()
    if act != "close":
        with pytest.raises(Stopped, match="replaced"):
            journal.put(b"after", queue="q")
        with pytest.raises(JournalError):
            journal.close()
    assert contents(home) == before
    with Journal(home, background=False) as again:
        assert len(list(again.jobs())) == 5


def test_an_appender_notices_it_too(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "log")
    stream.create()
    appender = stream.open_appender(sync="always")
    appender.lock()
    appender.append(b"before")
    replaced(stream.path)
    with pytest.raises(AppenderPoisoned, match="replaced"):
        appender.append(b"after")
    with pytest.raises(AppenderPoisoned):
        appender.unlock()
    assert [record.payload for record in stream.open_cursor()] == [b"before"]
