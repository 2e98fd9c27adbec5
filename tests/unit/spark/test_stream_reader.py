"""The reader of a stream, called as Spark calls it but without Spark's JVM."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
)

from archiving import work_a_while
from fastjournal.archive.manifest import encode, find_newest
from fastjournal.archive.store import DirectoryStore
from fastjournal.errors import NotFound, SettingError
from fastjournal.journal.journal import Journal
from fastjournal.log.manifest import MANIFEST
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.spark.errors import CodedError
from fastjournal.spark.locations import place
from fastjournal.spark.schema import struct
from fastjournal.spark.storage.segments import journal_segments
from fastjournal.spark.stream.reader import JournalStreamReader, StreamSettings
from fastjournal.testing import ManualClock

ALL = ReadAllAvailable()


def reader(directory: Path, **options: str) -> JournalStreamReader:
    settings = StreamSettings.parse({"path": str(directory), **options})
    return JournalStreamReader(struct("records", ["time_ns", "type"]), settings)


def rows(query: JournalStreamReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    """The TIMEs of one batch."""
    return [
        time
        for partition in query.partitions(start, end)
        for batch in query.read(partition)
        for time in batch.column("time_ns").to_pylist()
    ]


def times(directory: Path) -> list[int]:
    with Stream(directory, WORKQ).open_cursor() as cursor:
        return [record.time for record in cursor]


def drain(query: JournalStreamReader, start: dict[str, int]) -> tuple[list[int], dict[str, int]]:
    """All batches up to the end of the log."""
    found: list[int] = []
    limit = query.getDefaultReadLimit()
    while (end := query.latestOffset(start, limit)) != start:
        found += rows(query, start, end)
        start = end
    return found, start


def writing(directory: Path) -> Journal:
    return Journal(directory, background=False, sync="os", segment_size=4096)


def fill(journal: Journal, count: int) -> None:
    for _ in range(count):
        journal.put(b"x" * 100, queue="q")


def work(journal: Journal) -> None:
    """Finish all jobs, so that cleaning has something to drop."""
    while lease := journal.lease("q"):
        journal.complete(lease.id, lease.token)


def test_a_reader_follows_a_live_journal_across_rotation(tmp_path: Path) -> None:
    with writing(tmp_path / "j") as journal:
        query = reader(tmp_path / "j")
        at = query.initialOffset()
        assert query.latestOffset(at, ALL) == at
        found: list[int] = []
        for _ in range(8):
            fill(journal, 15)
            batch, at = drain(query, at)
            assert batch
            found += batch
        assert found == times(tmp_path / "j")
        assert at["segment"] > 3
        assert query.reportLatestOffset() == at
    more, at = drain(query, at)
    assert found + more == times(tmp_path / "j")


@pytest.mark.parametrize("limit", [ReadMaxRows(7), ReadMaxBytes(1000), ReadMaxBytes(1)])
def test_limits_hold_over_segments_and_one_record_is_always_read(
    tmp_path: Path, limit: Any
) -> None:
    with writing(tmp_path / "j") as journal:
        fill(journal, 60)
    query = reader(tmp_path / "j")
    start = query.initialOffset()
    found: list[int] = []
    sizes = []
    while (end := query.latestOffset(start, limit)) != start:
        batch = rows(query, start, end)
        # Another process plans the same batch with the same rows.
        assert rows(reader(tmp_path / "j"), start, end) == batch
        assert reader(tmp_path / "j").latestOffset(start, limit) == end
        found += batch
        sizes.append(len(batch))
        start = end
    assert found == times(tmp_path / "j")
    assert max(sizes) == {7: 7, 1000: 6, 1: 1}[getattr(limit, "max_rows", 0) or limit.max_bytes]


def test_both_limits_of_the_options_hold(tmp_path: Path) -> None:
    with writing(tmp_path / "j") as journal:
        fill(journal, 30)
    query = reader(tmp_path / "j", maxRecordsPerTrigger="5", maxBytesPerTrigger="700")
    start = query.initialOffset()
    end = query.latestOffset(start, query.getDefaultReadLimit())
    assert len(rows(query, start, end)) == 3
    assert len(rows(query, start, query.latestOffset(start, ALL))) == len(times(tmp_path / "j"))


def test_a_stream_may_begin_behind_an_offset_or_at_an_instant(tmp_path: Path) -> None:
    with writing(tmp_path / "j") as journal:
        fill(journal, 10)
    known = times(tmp_path / "j")
    for starting, first in ((f'{{"time": {known[3]}}}', 4), (str(known[3]), 3), ("earliest", 0)):
        query = reader(tmp_path / "j", startingOffsets=starting)
        assert drain(query, query.initialOffset())[0] == known[first:]


def test_available_now_ends_at_what_was_there_when_it_began(tmp_path: Path) -> None:
    with writing(tmp_path / "j") as journal:
        fill(journal, 30)
        query = reader(tmp_path / "j", maxRecordsPerTrigger="20")
        query.prepareForTriggerAvailableNow()
        known = times(tmp_path / "j")
        fill(journal, 30)
        assert drain(query, query.initialOffset())[0] == known


def test_latest_is_decided_once_though_the_first_batch_dies(tmp_path: Path) -> None:
    with writing(tmp_path / "j") as journal:
        fill(journal, 10)
        query = reader(tmp_path / "j", startingOffsets="latest")
        start = query.initialOffset()
        fill(journal, 10)
        end = query.latestOffset(start, ALL)
        expected = times(tmp_path / "j")[-10:]
        assert rows(query, start, end) == expected
        fill(journal, 5)
        again = reader(tmp_path / "j", startingOffsets="latest")
        assert rows(again, again.initialOffset(), end) == expected
        assert len(drain(again, end)[0]) == 5


def test_an_unfinished_record_at_the_end_is_not_there_yet(tmp_path: Path) -> None:
    with writing(tmp_path / "j") as journal:
        fill(journal, 5)
        known = times(tmp_path / "j")
        newest = max((tmp_path / "j").glob("*.log"), key=lambda p: (p.stat().st_size > 8, p.name))
        query = reader(tmp_path / "j")
        whole = newest.read_bytes()
        fill(journal, 1)
        longer = newest.read_bytes()
        newest.write_bytes(longer[: len(whole) + 30])
        assert drain(query, query.initialOffset())[0] == known
        newest.write_bytes(longer)
        end = {"time": known[-1], "segment": 1}
        assert len(drain(query, end)[0]) == 1


def cleaned(tmp_path: Path) -> tuple[Path, dict[str, int], list[int]]:
    """A journal read up to its 10th record, then worked on and cleaned at once."""
    directory = tmp_path / "j"
    with writing(directory) as journal:
        fill(journal, 100)
        known = times(directory)
        query = reader(directory)
        at = query.latestOffset(query.initialOffset(), ReadMaxRows(10))
        work(journal)
        journal.put(b"stays", queue="other")
        journal.rotate()
        journal.put(b"stays too", queue="other")
        journal.clean()
    return directory, at, known


def test_records_cleaned_away_unread_fail_the_query_unless_told_otherwise(tmp_path: Path) -> None:
    directory, at, known = cleaned(tmp_path)
    left = times(directory)
    assert set(known[10:]) - set(left)
    query = reader(directory)
    with pytest.raises(CodedError, match=r"cleaned.*failOnDataLoss=false"):
        drain(query, at)
    lenient = reader(directory, failOnDataLoss="false")
    assert drain(lenient, at)[0] == [time for time in left if time > at["time"]]


def test_cleaning_behind_a_stream_that_has_read_all_is_no_loss(tmp_path: Path) -> None:
    with writing(tmp_path / "j") as journal:
        fill(journal, 100)
        query = reader(tmp_path / "j")
        _, at = drain(query, query.initialOffset())
        work(journal)
        _, at = drain(query, at)
        journal.rotate()
        fill(journal, 3)
        before = len(list((tmp_path / "j").glob("*.log")))
        journal.clean()
        assert len(list((tmp_path / "j").glob("*.log"))) < before
        fill(journal, 5)
        found, at = drain(query, at)
        assert found == [time for time in times(tmp_path / "j") if time in found]
        assert len(found) == 9  # eight puts, and what the cleaning noted of ends


def test_a_loss_is_noticed_whatever_times_the_files_have(tmp_path: Path) -> None:
    """A copy has the time of the copy, a restored journal that of the backup."""
    directory, at, known = cleaned(tmp_path)
    for piece in directory.glob("*.log"):
        os.utime(piece, ns=(known[0], known[0]))
    with pytest.raises(CodedError, match="records were cleaned away unread"):
        drain(reader(directory), at)


def test_a_segment_that_the_manifest_names_is_missed_by_a_stream(tmp_path: Path) -> None:
    with writing(tmp_path / "j") as journal:
        fill(journal, 100)
    query = reader(tmp_path / "j")
    at = query.latestOffset(query.initialOffset(), ReadMaxRows(10))
    (tmp_path / "j" / segment_name(at["segment"] + 1)).unlink()
    with pytest.raises(CodedError, match=r"segment 2 of .* is missing: the manifest names it"):
        drain(query, at)


def test_without_a_manifest_a_missing_segment_is_a_loss_by_its_number_alone(
    tmp_path: Path,
) -> None:
    with writing(tmp_path / "j") as journal:
        fill(journal, 100)
    (tmp_path / "j" / MANIFEST).unlink()
    query = reader(tmp_path / "j")
    at = query.latestOffset(query.initialOffset(), ReadMaxRows(10))
    (tmp_path / "j" / segment_name(at["segment"] + 1)).unlink()
    with pytest.raises(CodedError, match=r"segment 2 of .* was cleaned away unread"):
        drain(query, at)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "soon"}, "not an instant"),
        ({"startingOffsets": "{}"}, "not an offset"),
        ({"startingOffsets": '{"time": 1.5}'}, "not an offset"),
        ({"maxRecordsPerTrigger": "0"}, "above 0"),
        ({"maxBytesPerTrigger": "much"}, "not a size"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"since": "2026-01-01"}, "not for a stream"),
        ({"view": "jobs"}, "records, events or attempts"),
        ({"colour": "red"}, "unknown option"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        StreamSettings.parse({"path": "/x", **options})


def test_one_stream_follows_several_journals_each_by_an_offset_of_its_own(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for n, path in enumerate(paths[:2], 3):
        with writing(path) as journal:
            fill(journal, n * 20)
    query = reader(tmp_path / "[abc]", maxRecordsPerTrigger="25")
    found, end = drain(query, query.initialOffset())
    assert sorted(found) == sorted(times(paths[0]) + times(paths[1]))
    assert set(end["journals"]) == {str(path) for path in paths[:2]}  # type: ignore[attr-defined]
    with writing(paths[0]) as journal:
        fill(journal, 1)
    with writing(paths[2]) as journal:
        fill(journal, 5)
    again = reader(tmp_path / "[abc]")
    more, last = drain(again, end)
    assert sorted(more) == sorted(set(times(paths[0])) - set(found) | set(times(paths[2])))
    assert again.reportLatestOffset() == last
    alone, _ = drain(reader(paths[2]), last)
    assert alone == []


def test_a_checkpoint_of_one_journal_is_not_taken_for_one_of_several(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with writing(tmp_path / name) as journal:
            fill(journal, 1)
    _, end = drain(reader(tmp_path / "a"), {"time": 0, "segment": 0})
    with pytest.raises(CodedError, match="of one journal"):
        reader(tmp_path / "*").latestOffset(end, ALL)


def test_a_pattern_that_names_no_journal_is_told(tmp_path: Path) -> None:
    (tmp_path / "not a log").mkdir()
    with pytest.raises(NotFound, match="no journal is named by"):
        reader(tmp_path / "*")


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "7"}, {"maxBytesPerTrigger": "2k"}])
def test_a_stream_follows_a_journal_by_its_archive(tmp_path: Path, limit: dict[str, str]) -> None:
    """Segments come as parts of a tail first and whole later; each record is read once."""
    archive, clock, chance = tmp_path / "archive", ManualClock(), Random(4)
    found: list[int] = []
    offset: dict[str, int] | None = None
    with Journal(
        tmp_path / "jobs", sync="always", segment_size=4096, background=False, clock=clock,
        archive=archive,
    ) as journal:  # fmt: skip
        journal.ship()
        for _ in range(6):
            work_a_while(journal, clock, chance, 15)
            journal.ship()
            query = reader(archive, **limit)  # as after a restart
            offset = offset or query.initialOffset()
            more, offset = drain(query, offset)
            found += more
            assert found == times(tmp_path / "jobs")
    assert len(journal_segments(tmp_path / "jobs")) > 3
    assert offset is not None and offset["time"] == found[-1]


def test_what_retention_took_from_an_archive_unread_is_a_loss(tmp_path: Path) -> None:
    archive, clock, chance = tmp_path / "archive", ManualClock(), Random(4)
    with Journal(
        tmp_path / "jobs", sync="always", segment_size=4096, background=False, clock=clock,
        archive=archive,
    ) as journal:  # fmt: skip
        work_a_while(journal, clock, chance, 200)
        journal.ship()
    pieces = journal_segments(place(archive))
    assert len(pieces) > 4
    first = pieces[2].first
    assert first is not None
    late = {"time": first - 1, "segment": pieces[1].number}
    early = {"time": 1, "segment": 1}
    store = DirectoryStore(archive)
    newest = find_newest(store)
    assert newest is not None
    cut = replace(newest, sequence=newest.sequence + 1, segments=newest.segments[2:], base=0)
    store.put(cut.name, [encode(cut)])
    query = reader(archive)
    end = query.latestOffset(late, ALL)
    assert rows(query, late, end)
    with pytest.raises(CodedError, match="dropped unread"):
        query.partitions(early, end)
    assert rows(reader(archive, failOnDataLoss="false"), early, end)


def test_copies_of_segments_are_no_stream(tmp_path: Path) -> None:
    with writing(tmp_path / "jobs") as journal:
        fill(journal, 3)
    query = reader(f"fsspec+file://{tmp_path / 'jobs'}")  # type: ignore[arg-type]
    with pytest.raises(CodedError, match="no archive"):
        query.latestOffset(query.initialOffset(), ALL)


def test_a_batch_is_read_by_as_many_tasks_as_are_asked_for(tmp_path: Path) -> None:
    """Whatever part of a segment it is: each record once, by tasks of about one size."""
    with Journal(tmp_path, background=False, sync="os") as journal:
        query = reader(tmp_path, minPartitions="4")
        at, found = query.initialOffset(), list[int]()
        for _ in range(3):
            fill(journal, 400)
            journal.sync()
            end = query.latestOffset(at, ALL)
            parts = query.partitions(at, end)
            shares = [
                [time for batch in query.read(one) for time in batch.column(0).to_pylist()]
                for one in parts
            ]
            assert len(shares) == 4 and max(map(len, shares)) < 2 * min(map(len, shares))
            found += [time for share in shares for time in share]
            at = end
    assert found == times(tmp_path)[: len(found)] and len(found) >= 1200
