"""The stream: its directory, settings and locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.errors import (
    CorruptRecord,
    LockTimeout,
    SegmentError,
    SettingError,
    VersionMismatch,
)
from fastjournal.log import CAPTAIN, WORKQ, Header, Stream
from fastjournal.log.care.check import verify
from fastjournal.log.record import encode, encode_time
from fastjournal.testing import Fault, ManualClock, MemoryFiles

HERE = Path("/journal")


def test_a_stream_makes_its_directory_if_only_the_last_part_is_missing(tmp_path: Path) -> None:
    """WQ-CFG-1."""
    stream = Stream(tmp_path / "log")
    stream.create()
    stream.create()
    assert (tmp_path / "log").is_dir()
    with pytest.raises(SegmentError, match="cannot be created"):
        Stream(tmp_path / "no" / "log").create()
    assert not (tmp_path / "no").exists()


def test_a_directory_that_cannot_be_made_durable_is_an_error() -> None:
    with pytest.raises(SegmentError, match="cannot be created"):
        Stream(HERE, files=MemoryFiles(faults={1: Fault()})).create()


def test_opening_a_stream_touches_nothing(tmp_path: Path) -> None:
    """Rule 1: a stream holds no open file and no state."""
    stream = Stream(tmp_path / "log")
    stream.open_appender()
    stream.open_cursor()
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("limit", [0, -1, 1 << 32, 1 << 63])
def test_a_payload_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(SettingError) as caught:
        Stream(HERE, max_payload=limit)
    assert caught.value.name == "max_payload"


@pytest.mark.parametrize("limit", [1, (1 << 32) - 1])
def test_a_payload_limit_at_its_limits_is_taken(limit: int) -> None:
    assert Stream(HERE, max_payload=limit).max_payload == limit


def test_only_the_two_known_zone_bytes_can_be_chosen() -> None:
    assert Stream(HERE).zone == 0
    assert Stream(HERE, zone_bytes="ffff").zone == 0xFFFF
    with pytest.raises(SettingError) as caught:
        Stream(HERE, zone_bytes="0001")
    assert caught.value.name == "zone_bytes"


def test_magic_and_version_are_the_streams_own() -> None:
    """CPT-STR-1."""
    files = MemoryFiles()
    for header in (WORKQ, Header(b"mine", 3)):
        stream = Stream(HERE / header.magic.decode(), header, files=files, clock=ManualClock())
        stream.create()
        with stream.open_appender() as appender:
            appender.append(b"x")
        assert files.content(stream.segment_path(1))[:8] == header.encode()
        assert len(list(stream.open_cursor())) == 1


def test_segments_come_in_numeric_order() -> None:
    files = MemoryFiles()
    for number in (10, 2, 1_000_000_000, 0, 999_999_999):
        stream = Stream(HERE, files=files)
        files.put(stream.segment_path(number), b"")
    assert stream.segments() == [0, 2, 10, 999_999_999, 1_000_000_000]


def test_a_file_in_place_of_the_directory_is_an_error_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"precious")
    stream = Stream(path)
    stream.create()
    for call in (
        stream.segments,
        stream.open_appender().lock,
        stream.open_cursor().next,
        stream.open_cleaner,
        lambda: stream.lock_readers(exclusive=False),
    ):
        with pytest.raises(SegmentError, match="cannot be listed"):
            call()
    assert path.read_bytes() == b"precious"


def test_a_lock_file_that_is_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "append.lock").mkdir()
    with pytest.raises(SegmentError, match="cannot be locked"):
        Stream(tmp_path).open_appender().lock()


@pytest.mark.parametrize("name", ["synced.pos", "000000001.log", "000000001.log.new"])
def test_a_directory_in_the_way_is_a_typed_error_and_nothing_else_appears(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(SegmentError):
        Stream(tmp_path).open_appender().lock()
    assert {path.name for path in tmp_path.iterdir()} <= {name, "append.lock"}


def test_a_pipe_in_place_of_a_segment_does_not_hang(tmp_path: Path) -> None:
    import os

    stream = Stream(tmp_path)
    with stream.open_appender() as appender:
        appender.append(b"x")
    os.mkfifo(tmp_path / "000000002.log")
    cursor = stream.open_cursor()
    assert cursor.next() is not None
    with pytest.raises(SegmentError, match="regular file"):
        list(stream.open_cursor(after=0))
    with pytest.raises(SegmentError, match="regular file"):
        stream.open_appender().lock()


def test_readers_share_their_lock_and_cleaners_do_not() -> None:
    stream = Stream(HERE, files=MemoryFiles())
    stream.create()
    one = stream.lock_readers(exclusive=False)
    two = stream.lock_readers(exclusive=False)
    with pytest.raises(LockTimeout):
        stream.lock_readers(exclusive=True, timeout=0)
    one.release()
    one.release()
    with pytest.raises(LockTimeout):
        stream.lock_readers(exclusive=True, timeout=0)
    two.release()
    stream.lock_readers(exclusive=True, timeout=0).release()


HUGE = encode_time(5) + b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"  # a SIZE of 2**63
BAD = {
    "wrong magic": (WORKQ.encode() + encode(5, b"x"), SegmentError),
    "newer version": (b"cptn\0\0\0\x02" + encode(5, b"x"), VersionMismatch),
    "no log at all": (b"#!/bin/sh\necho hello\n", SegmentError),
    "a size of 2**63": (CAPTAIN.encode() + HUGE + bytes(64) + encode(6, b"x"), CorruptRecord),
    "a size above the limit": (
        CAPTAIN.encode() + encode_time(5) + b"\xff\xff\xff\xff\x0f" + bytes(64) + encode(6, b"x"),
        CorruptRecord,
    ),
}


@pytest.mark.parametrize(("content", "error"), BAD.values(), ids=BAD.keys())
def test_bad_segments_are_typed_errors_and_nothing_changes_on_disk(
    tmp_path: Path, content: bytes, error: type[Exception]
) -> None:
    """F22, F27, F38: for the appender, the cursor, the cleaner and verify alike."""
    for name in ("000000001.log", "000000002.log"):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "notes.txt").write_bytes(b"foreign")

    def tree() -> dict[str, tuple[bytes, int]]:
        return {
            path.name: (path.read_bytes(), path.stat().st_mtime_ns)
            for path in tmp_path.iterdir()
            if path.suffix != ".lock"
        }

    before = tree()
    stream = Stream(tmp_path)
    with pytest.raises(error):
        stream.open_appender().lock()
    with pytest.raises(error):
        list(stream.open_cursor())
    with stream.open_cleaner() as cleaner, pytest.raises(error):
        cleaner.clean(lambda path, record: True)
    assert all(check.faults for check in verify(stream))
    assert tree() == before
