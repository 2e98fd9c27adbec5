"""A log on an object store is read through `pyarrow.fs`; `file://` takes the same way as `s3://`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fastjournal.errors import BadRequest, CorruptRecord, NotFound, SegmentError
from fastjournal.log.segment import segment_name
from fastjournal.spark.decode.record_columns import batches
from fastjournal.spark.locations import absolute, is_remote, place
from fastjournal.spark.maintain.clean import clean
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.jobs import shards
from fastjournal.spark.storage.segments import (
    first_time,
    journal_segments,
    load,
    load_unless_gone,
    plan,
)
from replayed_shares import replayed_states

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "workq" / "multi-segment"
NAMES = ("time_ns", "_segment", "_offset", "_directory", "payload")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of a journal whose path has a space in it."""
    path = tmp_path / "a copy"
    path.mkdir()
    for segment in GOLDEN.glob("*.log"):
        shutil.copy(segment, path)
    return path


def uri(path: Path) -> str:
    return path.as_uri()


def rows(settings: Settings) -> list[dict[str, object]]:
    return [
        row
        for piece in plan(settings)
        if (data := load(piece))
        for batch in batches(piece, data, NAMES, settings)
        for row in batch.to_pylist()
    ]


def test_only_a_place_with_a_scheme_is_remote() -> None:
    assert is_remote("s3://bucket/jobs") and is_remote("fsspec+memory://x")
    assert not is_remote("/var/jobs") and not is_remote(Path("jobs"))
    assert place("gs://b/j") == "gs://b/j"
    assert place("jobs") == str(Path("jobs").absolute())


def test_the_records_of_a_store_are_those_of_the_directory(copy: Path) -> None:
    found = rows(Settings((uri(copy),)))
    here = rows(Settings((str(copy),)))
    assert len(here) == 63
    for row in found:
        assert row.pop("_directory") == uri(copy)
    for row in here:
        row.pop("_directory")
    assert found == here


def test_bounds_choose_segments_on_a_store_too(copy: Path) -> None:
    pieces = journal_segments(uri(copy))
    starts = [first_time(piece) for piece in pieces]
    assert starts == [first_time(piece) for piece in journal_segments(copy)]
    middle = starts[len(starts) // 2]
    assert middle is not None
    late = Settings((uri(copy),), since=middle)
    assert 1 < len(plan(late)) < len(pieces)
    assert {row["time_ns"] for row in rows(late)} == {
        row["time_ns"] for row in rows(Settings((str(copy),), since=middle))
    }


def test_the_state_of_a_whole_copy_is_that_of_the_journal(copy: Path) -> None:
    settings = Settings((uri(copy),), view="jobs")
    assert len(list(shards(replace(settings, cores=8)))) == 1
    (here,), (there,) = replayed_states(copy), replayed_states(uri(copy))
    assert set(there.rows.keys()) == set(here.rows.keys())
    assert len(there.rows) == 37


def test_a_copy_without_its_beginning_has_records_but_no_state(copy: Path) -> None:
    (copy / segment_name(1)).unlink()
    assert 0 < len(rows(Settings((uri(copy),)))) < 63
    with pytest.raises(BadRequest, match="its beginning is not there"):
        list(replayed_states(uri(copy)))


def test_a_copy_is_sealed_so_a_torn_tail_in_it_is_damage(copy: Path) -> None:
    last = max(copy.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-3])
    assert len(rows(Settings((str(copy),)))) == 62
    with pytest.raises(CorruptRecord, match="ends early"):
        rows(Settings((uri(copy),)))


def test_what_is_not_there_and_what_cannot_be_reached_are_named(copy: Path) -> None:
    with pytest.raises(NotFound, match="no such journal: file://"):
        journal_segments(uri(copy / "nowhere"))
    with pytest.raises(NotFound, match="nosuch://x/y"):
        journal_segments("nosuch://x/y")
    piece = journal_segments(uri(copy))[0]
    (copy / segment_name(1)).write_bytes(b"xx")
    with pytest.raises(SegmentError, match="shorter than its header"):
        load(piece)
    (copy / segment_name(1)).unlink()
    with pytest.raises(NotFound, match="no such file"):
        load(piece)
    assert load_unless_gone(piece) == b""
    assert first_time(piece) is None


def test_what_changes_or_follows_a_log_refuses_a_store_by_name() -> None:
    with pytest.raises(BadRequest, match="s3://bucket/jobs: an object store is only read"):
        absolute("s3://bucket/jobs")
    with pytest.raises(BadRequest, match="only read"):
        clean(None, "s3://bucket/jobs")  # type: ignore[arg-type]
