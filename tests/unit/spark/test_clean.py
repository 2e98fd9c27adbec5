"""Cleaning by tasks: the bytes of the local cleaner, and never another state (law 6, D-04)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from fastjournal.errors import (
    CorruptRecord,
    LockTimeout,
    SegmentError,
    Unavailable,
    WriteFailed,
)
from fastjournal.journal.disk.generations import Disposal, settings_of
from fastjournal.journal.disk.retention import Report, Retention
from fastjournal.journal.disk.snapshot import write_snapshot
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import image
from fastjournal.log.care.check import verify
from fastjournal.log.care.cleaner import Cleaner, sealed_segments, segment_records
from fastjournal.log.files import DISK, DiskFiles, FileLock
from fastjournal.log.manifest import MANIFEST
from fastjournal.log.record import encode as record
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.model import DEFAULT_SETTINGS
from fastjournal.spark.maintain.clean import clean_journal, find_live_rows, fold_rows
from fastjournal.spark.maintain.live_rows import LiveRows, Rowless, read_log
from fastjournal.spark.maintain.retention_columns import survey
from fastjournal.spark.maintain.row_files import Shelf
from fastjournal.spark.replay.fold import Share, fold
from fastjournal.spark.replay.snapshots import base_of, replay_base
from fastjournal.spark.storage.segments import journal_segments, load_all
from fastjournal.spark.tasks import Task

T0 = 1_700_000_000_000_000_000
NOW = T0 + 10**15


def here(tasks: Sequence[Task]) -> list[Any]:
    """Run tasks in this process."""
    return [answer for task in tasks for answer in task()]


def lives(random: Random, count: int) -> list[k.Command]:
    """Histories of jobs, most of them ended, with groups, settings, senders and marks between."""
    commands: list[k.Command] = []
    open_rows: list[bytes] = []
    for n in range(count):
        t = T0 + n
        roll = random.random()
        if roll < 0.35 or not open_rows:
            row = random.randbytes(16)
            open_rows.append(row)
            expires = random.choice([0, T0 + random.randrange(10**16)])
            put = k.Put(row, b"q%d" % (n % 3), b"key", 5, t, t, t, expires, 1, random.randbytes(30))
            commands.append(random.choice([put, k.Add(row, b"q", 9, 99, 1, 0, 0, b"x", 0, t)]))
            continue
        at = random.randrange(len(open_rows))
        row = open_rows[at]
        if roll < 0.5:
            commands.append(k.Lease(row, t, t + 10, 1, b"w"))
        elif roll < 0.75:
            commands.append(
                random.choice([k.Delete(row), k.Expire(row), k.Purge(row, b"q", b"key", t)])
            )
            open_rows.pop(at)
        elif roll < 0.85:
            other = random.choice(open_rows)
            commands.append(k.Group((k.Timeout(row), k.Purge(other, b"q", b"key", t))))
        elif roll < 0.9:
            commands.append(k.Put(row, b"q", b"key", 5, t, t, t, 0, 1, b"restated"))
        elif roll < 0.93:
            settings = random.choice([DEFAULT_SETTINGS, DEFAULT_SETTINGS.changed({"max_fails": 9})])
            commands.append(k.Queue(b"q%d" % (n % 2), settings))
        elif roll < 0.96:
            commands.append(k.Sender(b"s%d" % (n % 2), t))
        else:
            commands.append(k.Mark(t, 1, 1, b""))
    return commands


def write(directory: Path, commands: list[k.Command], random: Random) -> Path:
    directory.mkdir()
    number = n = 0
    while n < len(commands):
        until = n + random.randrange(5, 60)
        number += 1
        records = [record(T0 + j, encode(commands[j])) for j in range(n, min(until, len(commands)))]
        (directory / segment_name(number)).write_bytes(WORKQ.encode() + b"".join(records))
        n = until
    return directory


def state_of(directory: Path) -> JournalState:
    state = JournalState()
    cursor = Stream(directory, WORKQ).open_cursor()
    for found in cursor:
        state.apply(decode(found.payload), found.time)
    cursor.close()
    return state


def rows_of(directory: Path) -> dict[bytes, list[bytes]]:
    state = state_of(directory)
    return {row_id: [encode(c) for c in image(row)] for row_id, row in state.rows.items()}


def clean_locally(directory: Path) -> None:
    stream = Stream(directory, WORKQ)
    state = state_of(directory)
    retention = Retention(state)
    disposal = Disposal(stream, settings_of(state))
    with Cleaner(stream, disposal=disposal) as cleaner:
        sealed = sealed_segments(stream)
        for number in sealed:
            records = segment_records(stream, number)
            retention.survey(number, ((r.time, r.payload) for r in records))
        if retention.plan(sealed, NOW):
            cleaner.clean(retention.clean)
        retention.finish()


def live_rows(directory: Path, shelf: Shelf, packs: int = 1) -> LiveRows:
    """The rows that live, read by so many tasks."""
    pieces = journal_segments(directory)
    told, runs = Rowless(), []
    for n in range(packs):
        found = read_log(pieces[len(pieces) * n // packs : len(pieces) * (n + 1) // packs], shelf)
        told.follow(found.rowless)
        runs += found.runs
    return LiveRows(fold_rows(here, runs, shelf, 0), told)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.log*"))}


@pytest.mark.parametrize("seed", range(12))
def test_tasks_write_the_bytes_of_the_local_cleaner(tmp_path: Path, seed: int) -> None:
    """However few rows a task may hold."""
    random = Random(seed)
    source = write(tmp_path / "a", lives(random, 700), random)
    copy = Path(shutil.copytree(source, tmp_path / "b"))
    before, newest = rows_of(source), max(source.glob("*.log")).name
    untouched = (source / newest).read_bytes()

    most = random.choice([3, 40, 1 << 20])
    report = clean_journal(here, Stream(source, WORKQ), now=NOW, most_rows=most)
    clean_locally(copy)

    assert contents(source) == contents(copy)
    assert not [path for path in source.iterdir() if path.is_dir()]
    assert rows_of(source) == before
    assert (source / newest).read_bytes() == untouched
    assert report.live_rows == len(before)
    assert report.segments and report.records_dropped > 100
    assert report.bytes_before - report.bytes_after == sum(
        one.bytes_before - one.bytes_after for one in report.segments
    )
    assert report.bytes_after == sum(len(data) for data in contents(source).values())


def test_a_survey_of_columns_reports_what_retention_reports(tmp_path: Path) -> None:
    random = Random(99)
    directory = write(tmp_path / "a", lives(random, 600), random)
    state = state_of(directory)
    told: list[tuple[Report, Report]] = []
    with Shelf.below(tmp_path) as shelf:
        rows = live_rows(directory, shelf)
        pieces = journal_segments(directory)
        for piece, ours in zip(pieces, survey(pieces, rows, shelf).reports, strict=True):
            records = segment_records(Stream(directory, WORKQ), piece.number)
            theirs = Retention(state).survey(piece.number, ((r.time, r.payload) for r in records))
            theirs.ended, theirs.pins = 0, set()  # those are in files
            told.append((ours, theirs))
    assert len(told) > 10
    assert all(ours == theirs for ours, theirs in told)


def any_commands(random: Random, count: int) -> list[k.Command]:
    """Any command on few rows, fitting or not, alone and in groups."""

    def some() -> k.Command:
        row = random.randrange(8).to_bytes(16, "big")
        t = random.randrange(1, 1 << 50)
        return random.choice(
            [
                k.Put(row, b"q", b"k", 5, t, t, t, random.choice([0, t]), 1, b"v"),
                k.Add(row, b"q", 9, random.choice([0, 7]), 1, 0, 0, b"x", 0, t),
                k.Schedule(row, b"q", 9, 9, 1, 0, 0, b"x", t, t),
                k.Touch(row, random.choice([0, t])),
                k.Tomb(row, b"q", b"k", t),
                k.Lease(row, t, t, 1),
                k.Complete(row, b"r"),
                k.Purge(row, b"q", b"k", t),
                k.Delete(row),
                k.Sender(b"s", t),
                k.Mark(t, 1, 1),
                k.Queue(b"q", DEFAULT_SETTINGS.changed({"max_fails": 1 + t % 3})),
            ]
        )

    return [
        k.Group(tuple(some() for _ in range(random.randrange(1, 4))))
        if random.random() < 0.2
        else some()
        for _ in range(count)
    ]


def same_rows(rows: LiveRows, state: JournalState) -> None:
    """What a cleaning asks of these rows is what the state says."""
    assert len(rows.rows) == len(state.rows)
    every = (*state.rows, b"?" * 16)
    ids = np.frombuffer(b"".join(every), dtype=np.uint64).reshape(-1, 2)
    known, at, expires = rows.rows.find(ids[:, 0].copy(), ids[:, 1].copy())
    assert known.tolist() == [True] * len(state.rows) + [False]
    wanted = [(row.at, row.expires) for row in state.rows.values()]
    assert list(zip(at.tolist(), expires.tolist(), strict=True))[:-1] == wanted
    assert (rows.applied, rows.mark_at) == (state.applied, state.mark_at)
    assert {n: at for n, (_, at) in rows.senders.items()} == {
        n: at for n, (_, at) in state.senders.items()
    }
    told = {name: lane.settings_at for name, lane in rows.queues.items()}
    assert told == {n: lane.settings_at for n, lane in state.queues.items() if lane.settings_at}


@pytest.mark.parametrize("seed", range(20))
def test_the_living_rows_read_from_columns_are_those_of_a_replay(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    directory = write(tmp_path / "a", any_commands(random, 150), random)
    state = state_of(directory)
    for packs, most in ((1, 1 << 20), (3, 2)):
        with Shelf.below(tmp_path, most) as shelf:
            same_rows(live_rows(directory, shelf, packs), state)


@pytest.mark.parametrize("seed", range(20))
def test_where_a_snapshot_overlaps_with_the_log_the_living_rows_are_those_of_a_replay(
    tmp_path: Path, seed: int
) -> None:
    """The parts of a snapshot are as of later and later, while the log goes on."""
    random = Random(seed)
    commands = any_commands(random, 150)
    directory = write(tmp_path / "a", commands, random)
    stream = Stream(directory, WORKQ)
    first = stream.segments()[1]
    start = sum(len(list(segment_records(stream, n))) for n in stream.segments() if n < first)
    parts = []
    for part in range(4):
        upto = start + part * 7
        state = JournalState()
        for n, command in enumerate(commands[:upto]):
            state.apply(command, T0 + n)
        rows = [row for row in state.rows.values() if row.id[15] % 4 == part]
        parts.append((T0 + upto - 1, [encode(c) for row in rows for c in image(row)]))
    write_snapshot(stream, first, parts)

    segments = load_all(directory)
    found = replay_base(directory, [piece for piece, _ in segments], None)
    assert found is not None
    base = base_of([found], Share())
    wanted = [one for one in segments if one[0].number >= base.first]
    replayed = fold(wanted, state=base.state, overlap=base.overlap)
    assert base.overlap == T0 + start + 20
    for most in (1 << 20, 2):
        with Shelf.below(tmp_path, most) as shelf:
            same_rows(find_live_rows(here, str(directory), 0, shelf), replayed)


@pytest.mark.parametrize(
    "settings", [{"secure": True}, {"period": "day", "file_management": "keep"}]
)
def test_what_queues_ask_for_old_files_is_done_as_locally(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    random = Random(21)
    queue = k.Queue(b"asks", DEFAULT_SETTINGS.changed(settings))
    source = write(tmp_path / "a", [queue, *lives(random, 500)], random)
    copy = Path(shutil.copytree(source, tmp_path / "b"))
    clean_journal(here, Stream(source, WORKQ), now=NOW)
    clean_locally(copy)
    assert contents(source) == contents(copy)
    emptied = [name for name, data in contents(source).items() if len(data) == 8]
    assert bool(emptied) == ("period" in settings)


class StoppingFiles(DiskFiles):
    """The disk until the n-th change of a name, then nothing works any more."""

    def __init__(self, allowed: int) -> None:
        self.left = allowed

    def _spend(self) -> None:
        if self.left == 0:
            raise OSError("the machine has stopped")
        self.left -= 1

    def rename(self, source: Path, target: Path) -> None:
        self._spend()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._spend()
        super().remove(path)

    def sync_directory(self, directory: Path) -> None:
        self._spend()
        super().sync_directory(directory)


def test_a_driver_that_stops_at_any_step_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    random = Random(3)
    source = write(tmp_path / "source", lives(random, 400), random)
    with Stream(source, WORKQ).open_appender():
        assert (source / MANIFEST).exists()
    before = rows_of(source)
    steps = 0
    while True:
        copy = Path(shutil.copytree(source, tmp_path / f"copy{steps}"))
        try:
            clean_journal(here, Stream(copy, WORKQ, files=StoppingFiles(steps)), now=NOW)
            break
        except WriteFailed:
            assert rows_of(copy) == before, f"stopped after {steps} steps"
            with Stream(copy, WORKQ).open_appender():  # compares with the manifest
                assert rows_of(copy) == before
        steps += 1
    assert steps > 10
    assert rows_of(copy) == before
    assert not [fault for check in verify(Stream(copy, WORKQ)) for fault in check.faults]


def test_a_missing_segment_stops_the_cleaning_before_anything_changes(tmp_path: Path) -> None:
    random = Random(8)
    directory = write(tmp_path / "a", lives(random, 400), random)
    with Stream(directory, WORKQ).open_appender():
        pass
    (directory / segment_name(3)).unlink()
    before = contents(directory)
    with pytest.raises(SegmentError, match=segment_name(3)):
        clean_journal(here, Stream(directory, WORKQ), now=NOW)
    assert contents(directory) == before


def test_a_task_that_dies_leaves_segments_alone_and_its_work_files_are_swept(
    tmp_path: Path,
) -> None:
    random = Random(4)
    directory = write(tmp_path / "a", lives(random, 400), random)
    before = contents(directory)

    def dying(tasks: Sequence[Task]) -> list[Any]:
        answers = here(tasks)
        if list(directory.glob("*.rw")):
            raise RuntimeError("executor lost")
        return answers

    with pytest.raises(RuntimeError, match="executor lost"):
        clean_journal(dying, Stream(directory, WORKQ), now=NOW)
    assert contents(directory) == before
    assert not [path for path in directory.iterdir() if path.is_dir()]


def test_a_dry_run_reports_and_changes_nothing(tmp_path: Path) -> None:
    random = Random(5)
    directory = write(tmp_path / "a", lives(random, 400), random)
    before = contents(directory)
    told = clean_journal(here, Stream(directory, WORKQ), now=NOW, dry_run=True)
    assert contents(directory) == before
    assert clean_journal(here, Stream(directory, WORKQ), now=NOW) == told


def test_damage_in_a_sealed_segment_stops_the_cleaning_before_anything_changes(
    tmp_path: Path,
) -> None:
    random = Random(6)
    directory = write(tmp_path / "a", lives(random, 400), random)
    path = directory / segment_name(2)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(bytes(data))
    before = contents(directory)
    with pytest.raises(CorruptRecord):
        clean_journal(here, Stream(directory, WORKQ), now=NOW)
    assert contents(directory) == before


def test_a_reader_holds_the_cleaning_off_and_the_lock_is_given_back(tmp_path: Path) -> None:
    random = Random(7)
    directory = write(tmp_path / "a", lives(random, 100), random)
    lock = DISK.lock(directory / "read.lock", exclusive=False, timeout=0)
    with pytest.raises(LockTimeout):
        clean_journal(here, Stream(directory, WORKQ), now=NOW, lock_seconds=0)
    lock.release()
    clean_journal(here, Stream(directory, WORKQ), now=NOW, lock_seconds=0)
    DISK.lock(directory / "read.lock", exclusive=True, timeout=0).release()


def test_readers_come_and_go_while_a_cleaning_reads_and_writes(tmp_path: Path) -> None:
    random = Random(7)
    directory = write(tmp_path / "a", lives(random, 400), random)

    def beside_readers(tasks: Sequence[Task]) -> list[Any]:
        DISK.lock(directory / "read.lock", exclusive=False, timeout=0).release()
        with pytest.raises(LockTimeout):
            Cleaner(Stream(directory, WORKQ)).lock(timeout=0)
        return here(tasks)

    assert clean_journal(beside_readers, Stream(directory, WORKQ), now=NOW, lock_seconds=0).segments


def test_a_cleaner_that_came_first_is_not_overwritten(tmp_path: Path) -> None:
    random = Random(7)
    directory = write(tmp_path / "a", lives(random, 400), random)
    found: dict[str, bytes] = {}

    class OvertakenFiles(DiskFiles):
        def lock(self, path: Path, *, exclusive: bool, timeout: float | None = None) -> FileLock:
            if exclusive and not found:
                clean_locally(directory)
                found.update({n: d for n, d in contents(directory).items() if n.endswith(".log")})
            return super().lock(path, exclusive=exclusive, timeout=timeout)

    with pytest.raises(Unavailable, match="another cleaner came first"):
        clean_journal(here, Stream(directory, WORKQ, files=OvertakenFiles()), now=NOW)
    assert found and contents(directory) == found
    assert not list(directory.glob("*.rw"))


def test_one_segment_is_never_cleaned(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    directory.mkdir()
    row = bytes(range(16))
    data = WORKQ.encode() + record(T0, encode(k.Delete(row)))
    (directory / segment_name(1)).write_bytes(data)
    (directory / segment_name(2)).write_bytes(WORKQ.encode())
    report = clean_journal(here, Stream(directory, WORKQ), now=NOW)
    assert report.segments == ()
    assert contents(directory)[segment_name(1)] == data
