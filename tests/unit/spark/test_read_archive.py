"""An archive as Spark reads it: the manifest instead of a listing, packed segments, the tail."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from archiving import work_a_while
from fastjournal import Journal
from fastjournal.archive.manifest import find_newest
from fastjournal.archive.shipper import ArchiveOptions
from fastjournal.archive.store import DirectoryStore
from fastjournal.errors import BadRequest
from fastjournal.journal.disk.replay import replay
from fastjournal.log.record import decode_many
from fastjournal.log.segment import HEADER_SIZE, WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.lake.history import History
from fastjournal.spark.lifecycle.seed import rows_before
from fastjournal.spark.locations import place
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.replay.jobs import shards
from fastjournal.spark.replay.snapshots import lives_base
from fastjournal.spark.schema import VIEW_COLUMNS, arrow_schema, made_columns
from fastjournal.spark.source.life_rows import life_batches
from fastjournal.spark.storage.segments import first_time, journal_segments, load, plan
from fastjournal.testing import ManualClock
from replayed_shares import replayed_states


def archive_of(tmp_path: Path, *, compress: bool = False, cleaned: bool = False) -> str:
    """A journal in `jobs` and its archive in `archive`; returns the archive's place."""
    clock, chance = ManualClock(), Random(2)
    jobs, archive = tmp_path / "jobs", tmp_path / "archive"
    if cleaned:
        with Journal(jobs, sync="always", background=False, clock=clock) as journal:
            work_a_while(journal, clock, chance, 100)
            journal.snapshot()
    with Journal(
        jobs, sync="always", segment_size=4096, background=False, clock=clock,
        archive=archive, archive_options=ArchiveOptions(compress=compress),
    ) as journal:  # fmt: skip
        for _ in range(4):
            work_a_while(journal, clock, chance, 60)
            journal.ship()
    with Journal(jobs, sync="always", background=False, clock=clock, archive=archive) as journal:
        journal.ship()  # the mark of the clean end, and the objects of two epochs
    return place(archive)


@pytest.mark.parametrize("compress", [False, True])
def test_the_records_of_an_archive_are_those_of_the_journal(tmp_path: Path, compress: bool) -> None:
    archive = archive_of(tmp_path, compress=compress)
    assert archive.startswith("file://")
    for piece, other in zip(
        journal_segments(archive), journal_segments(tmp_path / "jobs"), strict=True
    ):
        data, same = bytes(load(piece)), bytes(load(other))
        assert piece.number == other.number and piece.size == len(data)
        assert first_time(piece) == first_time(other)
        records = decode_many(data, HEADER_SIZE, len(data), 0, 0)[0]
        assert records == decode_many(same, HEADER_SIZE, len(data), 0, 0)[0]
        assert records


def test_where_segments_begin_is_taken_from_the_manifest_and_no_object_is_fetched(
    tmp_path: Path,
) -> None:
    archive = archive_of(tmp_path)
    pieces = journal_segments(archive)
    starts = [first_time(replace(piece, first=None)) for piece in pieces]
    for path in (tmp_path / "archive").rglob("*.log"):
        path.unlink()
    assert [first_time(piece) for piece in pieces] == starts
    middle = starts[len(starts) // 2]
    chosen = plan(Settings((archive,), since=middle))
    assert [piece.number for piece in chosen] == [p.number for p in pieces[len(starts) // 2 :]]


@pytest.mark.parametrize("cleaned", [False, True])
def test_the_state_of_an_archive_is_that_of_the_journal(tmp_path: Path, cleaned: bool) -> None:
    archive = archive_of(tmp_path, cleaned=cleaned)
    found: dict[bytes, int] = {}
    for index in range(3):
        for state in replayed_states(archive, Share(index, 3), parts=2):
            found |= {bytes(row_id): int(row.state) for row_id, row in state.rows.items()}
    whole = replay(Stream(tmp_path / "jobs", WORKQ)).state
    assert found == {bytes(row_id): int(row.state) for row_id, row in whole.rows.items()}
    assert (journal_segments(archive)[0].number > 1) == cleaned


def test_an_instant_that_an_archive_cannot_tell_is_refused(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, cleaned=True)
    with pytest.raises(BadRequest, match="cannot tell"):
        list(replayed_states(archive, upto=1_700_000_000_000_000_000))


def test_copies_that_0_1_0_made_are_part_of_the_history_of_an_archive(tmp_path: Path) -> None:
    old = Path(__file__).parents[2] / "golden" / "v0_1_0" / "archive"
    jobs, now = tmp_path / "jobs", json.loads((old / "means.json").read_text())["now"]
    shutil.copytree(old / "journal", jobs)
    copies = times(History(jobs, jobs / "archive"))
    assert len(times(History(jobs))) < len(copies), "some of it was cleaned"
    assert len(journal_segments(jobs / "archive")) > 1
    with pytest.warns(DeprecationWarning, match="archive="):
        journal = Journal(
            jobs, history="archive", background=False, clock=ManualClock(now), sync="always"
        )
    with journal:
        journal.put(b"new", queue="new")
        journal.ship()
        found = times(History(jobs, jobs / "archive"))
        assert found[: len(copies)] == copies and len(found) > len(copies)
        manifest = find_newest(DirectoryStore(jobs / "archive"))
        assert manifest is not None
        named = [piece.number for piece in journal_segments(place(jobs / "archive"))]
        assert named == [
            *(one.number for one in manifest.segments if one.size > HEADER_SIZE),
            *{one.segment for one in manifest.parts},
        ]
        (state,) = replayed_states(place(jobs / "archive"))
        assert set(state.rows) == set(journal.engine.state.rows)


def times(history: History) -> list[int]:
    """The TIMEs of all records of a history, which rise."""
    found = []
    for piece in history.pieces:
        data = bytes(load(piece))
        found += [r.time for r in decode_many(data, HEADER_SIZE, len(data), 0, 0)[0]]
    assert found == sorted(set(found))
    return found


def test_a_segment_that_is_still_shipped_does_not_hide_the_journals_own(tmp_path: Path) -> None:
    clock = ManualClock()
    with Journal(
        tmp_path / "jobs", sync="always", background=False, clock=clock, archive=tmp_path / "a"
    ) as journal:
        journal.put(b"1", queue="q")
        journal.ship()
        journal.put(b"2", queue="q")
        journal.rotate()
        journal.put(b"3", queue="q")
        assert len(times(History(tmp_path / "jobs", tmp_path / "a"))) == 3


def test_an_archive_without_its_beginning_is_exported_with_what_its_snapshot_tells(
    tmp_path: Path,
) -> None:
    clock, chance = ManualClock(), Random(2)
    with Journal(
        tmp_path / "jobs", sync="always", segment_size=4096, background=False, clock=clock,
        archive=tmp_path / "archive", archive_options=ArchiveOptions(keep_days=1),
    ) as journal:  # fmt: skip
        old = journal.put(b"old", queue="q", key="k").id
        journal.rotate()
        work_a_while(journal, clock, chance, 20)
        journal.snapshot()
        clock.advance(3 * 86_400)
        journal.snapshot()
        work_a_while(journal, clock, chance, 20)
        journal.ship()
        archive = place(tmp_path / "archive")
        pieces = History(archive).pieces
        assert pieces[0].number > 1
        base = lives_base(archive, pieces)
        assert base is not None
        before = rows_before([base, *pieces], Share(0, 1))
        assert before is not None
        assert old in {bytes(one) for one in before.column("id").to_pylist()}


@pytest.mark.parametrize("view", ["events", "attempts"])
def test_what_happened_is_told_by_an_archive_as_by_the_journal(tmp_path: Path, view: str) -> None:
    archive = archive_of(tmp_path)
    columns = tuple(VIEW_COLUMNS[view][0])

    def told(place: str) -> list[dict[str, object]]:
        settings = Settings((place,), view=view, shards=2, columns=columns)
        found = [
            one
            for shard in shards(settings)
            for one in made_columns(settings, partial(life_batches, shard))
        ]
        rows = pa.Table.from_batches(found, arrow_schema(view, columns)).to_pylist()
        return sorted(rows, key=lambda row: (row.get("time_ns") or row["ended_ns"], str(row)))

    shipped, kept = told(archive), told(str(tmp_path / "jobs"))
    assert len(shipped) > 20
    # The mark of a clean end is written behind all that was shipped; the next opening ships it.
    later = kept[len(shipped) :]
    assert [row["command"] for row in later] == ["mark"] * (view == "events")
    assert shipped == kept[: len(shipped)]
