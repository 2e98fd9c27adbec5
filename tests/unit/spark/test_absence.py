"""A file that a task or the driver does not see is an error, never an empty one.

A node without the journal's disk is played here by moving the directory away while tasks run: what
is left is nothing, or the empty directory on which the disk would be mounted.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa

from fastjournal.errors import NotFound, SegmentError, SettingError
from fastjournal.journal.journal import Journal
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import encode
from fastjournal.log.files import DISK
from fastjournal.log.manifest import faults
from fastjournal.log.manifest import read as read_manifest
from fastjournal.log.record import encode as record
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.spark.audit.rules import SeenLog, ShareLog, directory_findings
from fastjournal.spark.errors import CodedError
from fastjournal.spark.lake.exporter import export
from fastjournal.spark.lake.steps import Steps
from fastjournal.spark.maintain.clean import clean_journal
from fastjournal.spark.maintain.trim import trim_archive
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.report.write import report
from fastjournal.spark.schema import struct
from fastjournal.spark.sink.batch import Batch, begin, discard
from fastjournal.spark.sink.encode import stage
from fastjournal.spark.sink.writer import JournalWriter, SinkSettings, private_folder
from fastjournal.spark.source.data_source import JournalReader
from fastjournal.spark.storage.segments import (
    Piece,
    at_one_moment,
    journal_segments,
    load,
    load_unless_gone,
)
from fastjournal.spark.stream.reader import JournalStreamReader, StreamSettings
from fastjournal.spark.tasks import Task

T0 = 1_700_000_000_000_000_000
NOW = T0 + 10**15


def here(tasks: Sequence[Task]) -> list[Any]:
    """Run tasks in this process."""
    return [answer for task in tasks for answer in task()]


def twice(tasks: Sequence[Task]) -> list[Any]:
    """Every task is tried twice, as speculation does; the first attempt is the one that counts."""
    answers = here(tasks)
    here(tasks)
    return answers


@contextmanager
def blind(directory: Path, *, empty: bool = True) -> Iterator[None]:
    """What a node sees that has another disk, or none, in the place of a directory."""
    aside = directory.with_name(directory.name + ".aside")
    directory.rename(aside)
    if empty:
        directory.mkdir()
    try:
        yield
    finally:
        if directory.exists():
            shutil.rmtree(directory)
        aside.rename(directory)


def blind_at(call: int, directory: Path, *, empty: bool) -> Callable[[Sequence[Task]], list[Any]]:
    """A runner whose nodes do not see the directory in its n-th job."""
    calls = 0

    def run(tasks: Sequence[Task]) -> list[Any]:
        nonlocal calls
        calls += 1
        if calls != call:
            return here(tasks)
        with blind(directory, empty=empty):
            return here(tasks)

    return run


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Some jobs that live and some that ended, over several segments."""
    random = Random(1)
    commands: list[k.Command] = []
    for n in range(300):
        row = random.randbytes(16)
        commands.append(k.Put(row, b"q", b"", 5, T0, T0, T0, 0, 1, b"value %d" % n))
        if n % 3:
            commands.append(k.Purge(row, b"q", b"", T0))
    directory = tmp_path / "journal"
    directory.mkdir()
    for number in range(1, 7):
        some = range((number - 1) * 90, min(number * 90, len(commands)))
        records = b"".join(record(T0 + n, encode(commands[n])) for n in some)
        (directory / segment_name(number)).write_bytes(WORKQ.encode() + records)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.log*"))}


@pytest.mark.parametrize("empty", [True, False], ids=["empty directory", "no directory"])
@pytest.mark.parametrize("view", ["records", "jobs", "segments"])
def test_a_task_that_does_not_see_the_journal_fails_instead_of_reading_nothing(
    journal: Path, view: str, empty: bool
) -> None:
    names = {"records": ["time_ns"], "jobs": ["id"], "segments": ["segment"]}[view]
    reader = JournalReader(
        struct(view, names), Settings.parse({"path": str(journal), "view": view})
    )
    parts = reader.partitions()
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) > 5
    with blind(journal, empty=empty):
        for part in parts:
            with pytest.raises(CodedError, match=r"NOT-FOUND.* on "):
                list(reader.read(part))


def test_a_segment_went_only_if_the_directory_shows_a_later_one(journal: Path) -> None:
    pieces = journal_segments(journal)
    Path(pieces[2].path).unlink()
    assert load_unless_gone(pieces[2]) == b""
    for piece in pieces[3:]:
        Path(piece.path).unlink()
    for piece in (pieces[2], pieces[5]):
        with pytest.raises(NotFound, match="nor that a cleaner took it"):
            load_unless_gone(piece)


def named(directory: Path) -> Path:
    """A journal of the same jobs whose segments stand in a manifest."""
    with Journal(directory, background=False, sync="os", segment_size=4096) as opened:
        for _ in range(100):
            opened.put(b"x" * 100, queue="q")
    return directory


@pytest.mark.parametrize("view", ["records", "jobs"])
def test_a_segment_that_the_manifest_names_is_missed_by_driver_and_tasks(
    tmp_path: Path, view: str
) -> None:
    directory = named(tmp_path / "named")
    names = {"records": ["time_ns"], "jobs": ["id"]}[view]
    options = {"path": str(directory), "view": view}
    reader = JournalReader(struct(view, names), Settings.parse(options))
    parts = reader.partitions()
    (directory / segment_name(2)).unlink()
    for part in parts:
        with pytest.raises(CodedError, match=r"000000002.log: is missing on .*the manifest names"):
            list(reader.read(part))
    with pytest.raises(CodedError, match="is missing on"):
        reader.partitions()
    lenient = JournalReader(
        struct(view, names), Settings.parse({**options, "mode": "DROPMALFORMED"})
    )
    assert lenient.partitions()


def test_an_audit_tells_what_the_manifest_misses(tmp_path: Path) -> None:
    directory = named(tmp_path / "named")
    assert directory_findings(str(directory)) == []
    (directory / segment_name(2)).unlink()
    found = directory_findings(str(directory))
    assert [(one.severity, one.rule, one.segment) for one in found] == [
        ("error", "manifest", 2),
        ("note", "gap", 3),
    ]


def test_cleaning_on_spark_keeps_the_manifest_true(tmp_path: Path) -> None:
    directory = named(tmp_path / "named")
    with Journal(directory, background=False, sync="os", segment_size=4096) as opened:
        for leased in opened.lease_many(60, "q"):
            leased.done()
        last = times(directory)[-1]
        opened.rotate()
        opened.put(b"stays", queue="other")
    report = clean_journal(here, Stream(directory, WORKQ), now=NOW)
    assert report.segments
    manifest = read_manifest(DISK, directory)
    assert manifest is not None and manifest.pending is None
    assert not list(faults(Stream(directory, WORKQ), manifest, Stream(directory, WORKQ).segments()))
    kept = set(times(directory))
    assert 0 < manifest.dropped_to <= last and manifest.dropped_to not in kept
    for one in manifest.sealed.values():
        assert one.last in kept or one.size == 8


def times(directory: Path) -> list[int]:
    with Stream(directory, WORKQ).open_cursor() as cursor:
        return [found.time for found in cursor]


def test_a_file_that_may_not_be_read_is_an_error_with_its_name(journal: Path) -> None:
    piece = journal_segments(journal)[0]
    Path(piece.path).unlink()
    Path(piece.path).mkdir()
    with pytest.raises(SegmentError, match=r"000000001\.log: cannot be read"):
        load_unless_gone(piece)


@pytest.mark.parametrize("empty", [True, False], ids=["empty directory", "no directory"])
@pytest.mark.parametrize("call", [1, 2, 3], ids=["replay", "survey", "rewrite"])
def test_cleaning_by_nodes_that_do_not_see_the_journal_changes_nothing(
    journal: Path, call: int, empty: bool
) -> None:
    before = contents(journal)
    with pytest.raises(NotFound):
        clean_journal(blind_at(call, journal, empty=empty), Stream(journal, WORKQ), now=NOW)
    assert contents(journal) == before
    report = clean_journal(here, Stream(journal, WORKQ), now=NOW)
    assert report.live_rows == 100 and report.records_dropped > 100


def test_trimming_by_nodes_that_do_not_see_the_archive_changes_nothing(journal: Path) -> None:
    before = contents(journal)
    for call in (1, 2):
        with pytest.raises(NotFound):
            trim_archive(
                blind_at(call, journal, empty=True), journal, before=NOW, queues=frozenset({"q"})
            )
        assert contents(journal) == before


@pytest.mark.parametrize("empty", [True, False], ids=["empty directory", "no directory"])
@pytest.mark.parametrize("which", ["journal", "lake"])
def test_an_export_by_nodes_that_do_not_see_a_directory_moves_its_position_nowhere(
    journal: Path, tmp_path: Path, which: str, empty: bool
) -> None:
    lake = tmp_path / "lake"
    export(here, journal, lake, until=T0 + 100)
    hidden = {"journal": journal, "lake": lake}[which]
    with pytest.raises((NotFound, FileNotFoundError)):
        export(blind_at(1, hidden, empty=empty), journal, lake)
    last = Steps(lake).last()
    assert last is not None and (last.number, last.upto) == (1, T0 + 99)
    done = export(here, journal, lake)
    assert done.records == 400


def test_a_report_by_nodes_that_do_not_see_the_journal_is_an_error(journal: Path) -> None:
    for call in (1, 2):
        with pytest.raises(NotFound):
            report(blind_at(call, journal, empty=True), journal)


def test_an_audit_of_what_is_not_to_be_seen_is_no_clean_bill(journal: Path) -> None:
    with blind(journal), pytest.raises(NotFound, match="neither segment 6 nor a later one"):
        SeenLog.look(str(journal), 6)


@pytest.mark.parametrize("sees", ["nothing", "less"])
def test_an_audit_by_a_node_that_does_not_see_what_was_seen_is_no_clean_bill(
    journal: Path, sees: str
) -> None:
    seen = SeenLog.look(str(journal))
    newest = max(journal.glob("*.log"))
    if sees == "nothing":
        newest.unlink()
    else:
        newest.write_bytes(newest.read_bytes()[:-40])
    with pytest.raises(NotFound, match=r"no such file on|bytes were there"):
        ShareLog(seen, Share())


def test_a_stream_whose_journal_is_not_there_any_more_stops_instead_of_waiting(
    journal: Path,
) -> None:
    settings = StreamSettings.parse({"path": str(journal)})
    query = JournalStreamReader(struct("records", ["time_ns"]), settings)
    limit = query.getDefaultReadLimit()
    start = query.latestOffset(query.initialOffset(), limit)
    assert start["segment"] == 6
    assert query.latestOffset(start, limit) == start
    with blind(journal), pytest.raises(CodedError, match="segment 6 was read"):
        query.latestOffset(start, limit)
    (journal / segment_name(6)).unlink()
    with pytest.raises(CodedError, match="segment 6 was read"):
        query.latestOffset(start, limit)


def test_attempts_of_one_task_write_files_of_their_own(journal: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(journal, tmp_path / "copy"))

    def counted(tasks: Sequence[Task]) -> list[Any]:
        answers = here(tasks)
        first = {path: path.read_bytes() for path in journal.glob("*.rw")}
        here(tasks)
        assert len(list(journal.glob("*.rw"))) == 2 * len(first)
        assert all(path.read_bytes() == data for path, data in first.items())
        return answers

    clean_journal(counted, Stream(journal, WORKQ), now=NOW)
    clean_journal(here, Stream(copy, WORKQ), now=NOW)
    assert contents(journal) == contents(copy)
    done = export(twice, copy, tmp_path / "lake", shares=2)
    again = export(here, copy, tmp_path / "other", shares=2)
    assert done.rows == again.rows and done.files == again.files
    files = list((tmp_path / "lake" / "events").rglob("*.parquet"))
    assert sorted(map(str, files)) == sorted(Steps(tmp_path / "lake").files_of("events"))


def spoilt(
    task_file: Callable[[], list[Path]], spoil: Callable[[Path], None]
) -> Callable[[Sequence[Task]], list[Any]]:
    """A runner behind whose back a file of a task is spoilt."""

    def run(tasks: Sequence[Task]) -> list[Any]:
        answers = here(tasks)
        for path in task_file()[:1]:
            spoil(path)
        return answers

    return run


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


SPOILS = pytest.mark.parametrize("spoil", [cut, flip, Path.unlink])


@SPOILS
def test_a_work_file_that_is_not_what_its_task_wrote_is_not_put_in_place(
    journal: Path, spoil: Callable[[Path], None]
) -> None:
    before = contents(journal)
    run = spoilt(lambda: sorted(journal.glob("*.rw")), spoil)
    with pytest.raises((NotFound, SegmentError)):
        clean_journal(run, Stream(journal, WORKQ), now=NOW)
    assert contents(journal) == before
    with pytest.raises((NotFound, SegmentError)):
        trim_archive(run, journal, before=T0 + 120, queues=frozenset())
    assert contents(journal) == before


def test_a_task_that_read_another_file_of_the_same_name_is_not_believed(
    journal: Path, tmp_path: Path
) -> None:
    """A node with an old copy of the journal where the others have the journal."""
    old = Path(shutil.copytree(journal, tmp_path / "old"))
    path = old / segment_name(2)
    path.write_bytes(path.read_bytes()[: 8 + 100])
    aside = tmp_path / "aside"

    def run(tasks: Sequence[Task]) -> list[Any]:
        journal.rename(aside)
        old.rename(journal)
        try:
            return here(tasks)
        finally:
            journal.rename(old)
            aside.rename(journal)

    path.write_bytes(WORKQ.encode())
    before = contents(journal)
    with pytest.raises((NotFound, SegmentError)):
        clean_journal(run, Stream(journal, WORKQ), now=NOW)
    assert contents(journal) == before


@SPOILS
@pytest.mark.parametrize("folder", ["_staging", "_rows"])
def test_a_file_of_an_export_that_is_not_what_its_task_wrote_is_not_committed(
    journal: Path, tmp_path: Path, folder: str, spoil: Callable[[Path], None]
) -> None:
    lake = tmp_path / "lake"
    run = spoilt(lambda: sorted((lake / folder).rglob("*.parquet")), spoil)
    with pytest.raises((NotFound, SegmentError)):
        export(run, journal, lake)
    assert Steps(lake).last() is None
    assert export(here, journal, lake).records == 500


def test_a_commit_whose_files_are_not_there_is_not_taken_for_published(
    journal: Path, tmp_path: Path
) -> None:
    class Dying(Steps):
        def add(self, commit: Any) -> None:
            super().add(commit)
            raise KeyboardInterrupt

    lake = tmp_path / "lake"
    with pytest.raises(KeyboardInterrupt):
        export(here, journal, Dying(lake))
    lost = min((lake / "_staging").rglob("events/**/*.parquet"))
    kept = lost.read_bytes()
    lost.unlink()
    with pytest.raises(SegmentError, match="of a step are not there"):
        export(here, journal, lake)
    lost.write_bytes(kept)
    assert export(here, journal, lake).commit == 1
    # What was published once may be taken away by whoever keeps the lake.
    for path in (lake / "events").rglob("*.parquet"):
        path.unlink()
    assert export(here, journal, lake).commit == 1


ROWS = pa.RecordBatch.from_pydict({"payload": [b"a", b"b", b"c"], "queue": ["q"] * 3})


def writer(directory: Path, **options: str) -> JournalWriter:
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    schema = StructType([StructField("payload", BinaryType()), StructField("queue", StringType())])
    return JournalWriter(schema, SinkSettings.parse({"path": str(directory), **options}), False)


def jobs(directory: Path) -> int:
    with Journal(directory, background=False) as opened:
        return sum(status.ready for status in opened.queues())


@SPOILS
@pytest.mark.parametrize("named", [True, False])
def test_a_staged_file_that_is_not_what_its_task_wrote_is_not_taken_in(
    tmp_path: Path, named: bool, spoil: Callable[[Path], None]
) -> None:
    options = {"txnAppId": "app", "txnVersion": "1"} if named else {}
    sink = writer(tmp_path / "target", **options)
    message = sink.write(iter([ROWS]))
    assert message.staged is not None
    spoil(Path(message.staged.path))
    with pytest.raises(CodedError, match=r"NOT-FOUND|SERVER-ERROR"):
        sink.commit([message])
    sink.abort([message])
    assert jobs(tmp_path / "target") == 0
    again = writer(tmp_path / "target", **options)
    again.commit([again.write(iter([ROWS]))])
    assert jobs(tmp_path / "target") == 3


def test_a_node_that_does_not_see_the_driver_s_directory_stages_nothing_and_makes_none(
    tmp_path: Path,
) -> None:
    target = tmp_path / "target"
    sink = writer(target)
    with blind(target, empty=False):
        with pytest.raises(CodedError, match="made by the driver, not to be seen on"):
            sink.write(iter([ROWS]))
        assert not target.exists()
    with blind(target):
        with pytest.raises(CodedError, match="made by the driver, not to be seen on"):
            sink.write(iter([ROWS]))
        assert list(target.iterdir()) == []


def test_a_second_attempt_stages_beside_the_first_and_only_one_is_taken_in(tmp_path: Path) -> None:
    sink = writer(tmp_path / "target")
    first, second = sink.write(iter([ROWS])), sink.write(iter([ROWS]))
    assert first.staged is not None and second.staged is not None
    assert first.staged.path != second.staged.path
    sink.commit([second])
    assert jobs(tmp_path / "target") == 3


def test_a_task_that_tells_nothing_fails_the_commit(tmp_path: Path) -> None:
    sink = writer(tmp_path / "target")
    with pytest.raises(CodedError, match="1 tasks did not tell"):
        sink.commit([sink.write(iter([ROWS])), None])
    assert jobs(tmp_path / "target") == 0


def test_a_daemons_sink_with_a_checkpoint_on_an_object_store_asks_for_a_shared_directory(
    tmp_path: Path,
) -> None:
    options = {"path": "fj://127.0.0.1/jobs", "checkpointLocation": "s3a://bucket/checkpoint"}
    with pytest.raises(SettingError, match="stagingLocation: name a directory that all nodes"):
        SinkSettings.parse(options)
    parsed = SinkSettings.parse({**options, "stagingLocation": str(tmp_path)})
    assert parsed.staging == str(tmp_path)


def test_relative_paths_mean_the_drivers_directory(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(journal.parent)
    reader = JournalReader(struct("records", ["time_ns"]), Settings.parse({"path": "journal"}))
    parts = reader.partitions()
    stream = StreamSettings.parse({"path": "journal"})
    sink = SinkSettings.parse({"path": "fj://127.0.0.1/j", "checkpointLocation": "checkpoint"})
    monkeypatch.chdir("/")
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 500
    assert stream.settings.paths == (str(journal),)
    assert sink.staging == str(journal.parent / "checkpoint" / "spark-staged")


def test_what_is_staged_without_a_place_is_for_this_user_alone(tmp_path: Path) -> None:
    for _ in range(2):
        found = private_folder(tmp_path)
        assert stat.S_IMODE(found.stat().st_mode) == 0o700
    found.chmod(0o755)
    with pytest.raises(SettingError, match="stagingLocation"):
        private_folder(tmp_path)
    found.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    found.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingError, match="stagingLocation"):
        private_folder(tmp_path)


def test_a_batch_staged_by_the_version_before_is_counted_instead(tmp_path: Path) -> None:
    """Its manifest tells neither size nor CRC."""
    batch = Batch("app", 1)
    folder = batch.folder(tmp_path)
    folder.mkdir(parents=True)
    begin(tmp_path, batch, [stage([ROWS], folder / "part.log")])
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    start = text.index(', "size"')
    manifest.write_text(text[:start] + text[text.index("}", start) :])
    (old,) = begin(tmp_path, batch, [])
    old.check()
    path = Path(old.path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SegmentError, match="records, not 3"):
        old.check()
    discard(tmp_path, batch, all_of_app=True)
    assert not tmp_path.exists()


def test_a_lock_that_cannot_be_taken_is_not_ignored(journal: Path) -> None:
    (journal / "read.lock").mkdir()
    with pytest.raises(SegmentError, match=r"read\.lock: cannot be locked"):
        at_one_moment(journal, lambda: 1)


def test_work_that_fails_while_a_cleaner_begins_is_done_again_under_the_lock(
    journal: Path,
) -> None:
    tries = 0

    def work() -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            DISK.lock(journal / "read.lock", exclusive=True, timeout=0).release()
            raise NotFound("gone")
        return tries

    assert at_one_moment(journal, work) == 2
    (journal / "read.lock").unlink()
    with pytest.raises(NotFound, match="no such file"):
        at_one_moment(journal, lambda: load(Piece(f"{journal}/000000077.log", 77, 0, newest=False)))
