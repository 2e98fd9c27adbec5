"""Files of the operating system do what the log expects of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastjournal.errors import LockTimeout
from fastjournal.log.files import DISK


def test_writes_go_to_the_end_whoever_else_writes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    one = DISK.create(path)
    two = DISK.open(path)
    assert one.write(b"ab") == 2
    assert two.write(memoryview(b"cd")) == 2
    one.write(b"ef")
    assert path.read_bytes() == b"abcdef"
    assert (one.size(), one.read(0, 100), one.read(2, 2), one.read(6, 5)) == (
        6,
        b"abcdef",
        b"cd",
        b"",
    )
    one.truncate(3)
    two.write(b"!")
    assert path.read_bytes() == b"abc!"
    one.sync()
    one.close()
    one.close()
    two.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        one.write(b"x")


def test_an_existing_file_is_never_created_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    with pytest.raises(FileExistsError):
        DISK.create(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"kept"
    with pytest.raises(FileNotFoundError):
        DISK.open(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        DISK.open_read(tmp_path / "other")


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    handle = DISK.open_read(tmp_path / "file")
    with pytest.raises(OSError, match="Bad file descriptor"):
        handle.write(b"x")
    assert handle.read(1, 2) == b"ep"
    handle.sync()
    handle.close()


def test_a_side_file_is_written_in_place(tmp_path: Path) -> None:
    handle = DISK.open_in_place(tmp_path / "side")
    handle.write_at(b"12345678", 0)
    handle.write_at(b"ab", 3)
    handle.close()
    again = DISK.open_in_place(tmp_path / "side")
    assert again.read(0, 20) == b"123ab678"
    again.close()


def test_a_rename_takes_the_place_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    reader = DISK.open_read(tmp_path / "old")
    DISK.rename(tmp_path / "new", tmp_path / "old")
    DISK.sync_directory(tmp_path)
    assert DISK.names(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"new"
    assert reader.read(0, 9) == b"old", "an open file stays readable"
    reader.close()
    DISK.remove(tmp_path / "old")
    assert not DISK.exists(tmp_path / "old")


def test_files_are_told_from_directories_and_links(tmp_path: Path) -> None:
    DISK.make_directory(tmp_path / "dir")
    DISK.make_directory(tmp_path / "dir")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    assert DISK.exists(tmp_path / "dir")
    assert not DISK.is_file(tmp_path / "dir")
    assert DISK.exists(tmp_path / "dangling")
    assert not DISK.is_file(tmp_path / "dangling")


def test_a_pipe_is_opened_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    handle = DISK.open_read(tmp_path / "pipe")
    handle.close()


def test_locks_exclude_and_name_their_holder(tmp_path: Path) -> None:
    """F61, CPT-APP-6."""
    path = tmp_path / "append.lock"
    held = DISK.lock(path, exclusive=True, timeout=None)
    with pytest.raises(LockTimeout, match=f"held by process {os.getpid()}") as caught:
        DISK.lock(path, exclusive=True, timeout=0)
    assert (caught.value.path, caught.value.holder) == (path, str(os.getpid()))
    with pytest.raises(LockTimeout):
        DISK.lock(path, exclusive=False, timeout=0.01)
    held.release()
    held.release()
    DISK.lock(path, exclusive=True, timeout=0).release()
    assert path.exists()


def test_readers_share_and_are_not_taken_for_a_cleaner_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "read.lock"
    DISK.lock(path, exclusive=True, timeout=0).release()
    one = DISK.lock(path, exclusive=False, timeout=0)
    two = DISK.lock(path, exclusive=False, timeout=0)
    with pytest.raises(LockTimeout) as caught:
        DISK.lock(path, exclusive=True, timeout=0)
    assert caught.value.holder == ""
    one.release()
    two.release()
    DISK.lock(path, exclusive=True, timeout=0).release()


def test_the_run_of_the_system_has_a_name() -> None:
    assert DISK.boot_id() == DISK.boot_id()
    assert len(DISK.boot_id()) in (0, 16)
