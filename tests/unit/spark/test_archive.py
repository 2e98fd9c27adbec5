"""Old history goes from an archive by age and by queue; a living journal is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fastjournal.errors import BadRequest
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, encode
from fastjournal.log.record import encode as record
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.spark.maintain.trim import trim_archive
from fastjournal.spark.tasks import Task

T0 = 1_700_000_000_000_000_000


def here(tasks: Sequence[Task]) -> list[Any]:
    return [answer for task in tasks for answer in task()]


def put(row: bytes, queue: bytes) -> k.Command:
    return k.Put(row * 16, queue, b"k", 5, T0, T0, T0, 0, 1, b"v")


def archive(path: Path, segments: Sequence[Sequence[k.Command]]) -> Path:
    time = T0
    for number, commands in enumerate(segments, 1):
        parts = [WORKQ.encode()]
        for command in commands:
            parts.append(record(time, encode(command)))
            time += 10
        (path / segment_name(number)).write_bytes(b"".join(parts))
    return path


def left(path: Path) -> list[tuple[int, k.Command]]:
    cursor = Stream(path, WORKQ).open_cursor()
    found = [(one.time - T0, decode(one.payload)) for one in cursor]
    cursor.close()
    return found


LIFE = [
    [put(b"a", b"red"), put(b"b", b"blue"), k.Lease(b"a" * 16, T0, T0, 1)],
    [k.Mark(T0, 1, 1), k.Complete(b"a" * 16, b""), k.Complete(b"b" * 16, b"")],
]


def test_records_older_than_an_instant_go_and_empty_files_with_them(tmp_path: Path) -> None:
    path = archive(tmp_path, LIFE)
    report = trim_archive(here, path, before=T0 + 40, queues=frozenset())
    assert [time for time, _ in left(path)] == [40, 50]
    assert not (path / segment_name(1)).exists()
    assert report.records_dropped == 4
    assert report.bytes_after == (path / segment_name(2)).stat().st_size


def test_only_the_rows_of_the_queues_named_go(tmp_path: Path) -> None:
    path = archive(tmp_path, LIFE)
    trim_archive(here, path, before=T0 + 1000, queues=frozenset({"red"}))
    assert [c for _, c in left(path)] == [put(b"b", b"blue"), LIFE[1][0], LIFE[1][2]]


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    path = archive(tmp_path, LIFE)
    before = left(path)
    report = trim_archive(here, path, before=T0 + 40, queues=frozenset(), dry_run=True)
    assert report.records_dropped == 4
    assert left(path) == before


@pytest.mark.parametrize("name", ["append.lock", "synced.pos"])
def test_a_directory_in_which_a_journal_lives_is_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path, LIFE)
    (path / name).touch()
    with pytest.raises(BadRequest, match="a journal lives here"):
        trim_archive(here, path, before=T0 + 40, queues=frozenset())
