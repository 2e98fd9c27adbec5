"""An archive as Spark reads it: the manifest instead of a listing, packed segments, the tail."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from archiving import work_a_while
from fastjournal import Journal
from fastjournal.archive.shipper import ArchiveOptions
from fastjournal.errors import BadRequest
from fastjournal.journal.disk.replay import replay
from fastjournal.log.record import decode_many
from fastjournal.log.segment import HEADER_SIZE, WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.locations import place
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.by_share import replay_share
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.storage.segments import first_time, journal_segments, load
from fastjournal.testing import ManualClock


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


@pytest.mark.parametrize("cleaned", [False, True])
def test_the_state_of_an_archive_is_that_of_the_journal(tmp_path: Path, cleaned: bool) -> None:
    archive = archive_of(tmp_path, cleaned=cleaned)
    settings = Settings.parse({"path": archive, "view": "jobs"})
    found: dict[bytes, int] = {}
    for index in range(3):
        state = replay_share(archive, Share(index, 3), None, settings)
        found |= {bytes(row_id): int(row.state) for row_id, row in state.rows.items()}
    whole = replay(Stream(tmp_path / "jobs", WORKQ)).state
    assert found == {bytes(row_id): int(row.state) for row_id, row in whole.rows.items()}
    assert (journal_segments(archive)[0].number > 1) == cleaned


def test_an_instant_that_an_archive_cannot_tell_is_refused(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, cleaned=True)
    settings = Settings.parse({"path": archive, "view": "jobs"})
    with pytest.raises(BadRequest, match="cannot tell"):
        replay_share(archive, Share(0, 1), 1_700_000_000_000_000_000, settings)
