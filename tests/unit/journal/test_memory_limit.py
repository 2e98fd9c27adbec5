"""A journal larger than its memory: what is held, what is let go, and how it comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from sys import getrefcount
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.errors import CorruptRecord, MemoryFull, QueueFull, SettingError
from fastjournal.journal.disk.retention import Retention
from fastjournal.journal.language.commands import Add
from fastjournal.journal.look.read_only import JournalView
from fastjournal.journal.state.row import QueueRules, Row
from fastjournal.journal.state.values import Values
from fastjournal.log.care.cleaner import sealed_segments, segment_records
from fastjournal.log.files import FileHandle
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.log.write.log_writer import LogWriter
from fastjournal.testing import ManualClock, MemoryFiles, check_replay

HOME = Path("/jobs")
MIB = 1 << 20


class FilesHeldOpen(MemoryFiles):
    """Knows which files are open for reading."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[FileHandle] = []

    def open_read(self, path: Path) -> FileHandle:
        handle = super().open_read(path)
        if path.suffix in (".log", ".snapshot"):
            self.opened.append(handle)
        return handle

    def held_open(self) -> int:
        for handle in self.opened.copy():
            try:
                handle.size()
            except OSError:  # it is closed
                self.opened.remove(handle)
        return len(self.opened)


class Small:
    """A journal of little memory over files in memory."""

    def __init__(
        self, limit: int = 16_384, files: MemoryFiles | None = None, **options: Any
    ) -> None:
        self.files = files or MemoryFiles()
        self.files.make_directory(HOME.parent)
        self.clock = ManualClock()
        self.options = {"memory_limit": limit, "segment_size": 16_384, **options}
        self.open()

    def open(self) -> None:
        self.journal = Journal(
            HOME, files=self.files, clock=self.clock, background=False, **self.options
        )
        self.entries = self.journal.entries

    def restart(self) -> None:
        self.journal.close()
        self.open()

    @property
    def values(self) -> Values:
        return self.journal.engine.values

    def fill(self, count: int = 100, size: int = 2000) -> None:
        for number in range(count):
            self.entries[f"k{number}"] = value(number, size)

    def holds(self, key: str) -> bool:
        """The value is in memory."""
        return self.row(key).value is not None

    def row(self, key: str) -> Row:
        return next(self.journal.engine.state.keys.find(b"", key.encode()))

    def damage(self, row: Row) -> Path:
        """Turn a bit over in the middle of a value."""
        name = f"{row.segment:09d}.log" if row.segment > 0 else f"{-row.segment:09d}.snapshot"
        data = bytearray(self.files.content(HOME / name))
        data[row.offset + 500] ^= 1
        self.files.put(HOME / name, bytes(data))
        return HOME / name


def value(number: int, size: int = 2000) -> bytes:
    return (b"%d " % number * size)[:size]


@pytest.fixture
def small() -> Iterator[Small]:
    made = Small()
    yield made
    check_replay(made.journal)
    made.journal.close()


def test_ten_times_the_limit_is_kept_within_it_and_all_is_readable() -> None:
    """SNAP-IMM-5, FJ-KV-1, FJ-KV-2: 10 MiB of values, 1 MiB of memory, entries and jobs."""
    small = Small(MIB, segment_size=64 * MIB)
    values = small.values
    for number in range(512):
        small.entries[f"k{number}"] = value(number, 10_240)
        small.journal.put(value(number, 10_240), queue="q", key=f"j{number}")
        assert values.bytes <= MIB
    for _ in range(2):
        assert small.values.bytes <= MIB
        for number in range(0, 512, 3):
            assert small.entries[f"k{number}"] == value(number, 10_240)
            assert small.journal.job(key=f"j{number}", queue="q").value == value(number, 10_240)
        assert small.values.bytes <= MIB
        assert [e.data for e in small.entries.range()] == sorted(
            (value(number, 10_240) for number in range(512)), key=lambda v: b"k" + v.split()[0]
        )
        small.restart()
    in_rows = [row.value for row in small.journal.engine.state.rows.values()]
    assert sum(len(v) for v in in_rows if v is not None) == small.values.bytes <= MIB
    small.journal.close()


def test_the_value_touched_longest_ago_goes_first(small: Small) -> None:
    """FJ-KV-2: last accessed, not last written."""
    small.fill(8)
    assert all(small.holds(f"k{number}") for number in range(8))
    assert small.entries["k0"] == value(0)
    small.entries["new"] = value(100)
    assert [number for number in range(8) if not small.holds(f"k{number}")] == [1]
    assert small.entries["k1"] == value(1)
    assert not small.holds("k2")


def test_small_values_are_left_in_the_log_too_and_what_each_costs_is_counted(small: Small) -> None:
    for number in range(1000):
        small.entries[f"k{number}"] = b"%8d" % number
    held = [number for number in range(1000) if small.holds(f"k{number}")]
    assert held == list(range(1000 - len(held), 1000))  # the newest
    assert 16_384 // 64 < len(held) < 16_384 // 32
    assert [small.entries[f"k{number}"] for number in range(1000)] == [
        b"%8d" % number for number in range(1000)
    ]


def test_empty_values_need_no_place(small: Small) -> None:
    small.entries["empty"] = b""
    small.fill(20)
    assert small.holds("empty")
    small.restart()
    assert small.entries["empty"] == b""


def test_ended_jobs_leave_no_rows_behind_in_memory(small: Small) -> None:
    """What waits to be let go does not keep what has ended."""
    rows: list[Row] = []
    for number in range(2000):
        job = small.journal.put(b"%8d" % number, queue="q")
        rows.append(small.journal.engine.state.rows[job.id])
        held = small.journal.lease("q")
        assert held is not None
        held.done()
    assert small.values.count == 0
    rows.append(Row(bytes(16), QueueRules(b""), b"", b""))  # nobody else has it
    *references, ours = [getrefcount(row) for row in rows]
    assert sum(count > ours for count in references) < 300


def test_files_that_are_gone_are_not_held_open() -> None:
    """Cleaning and snapshots give the disk its space back."""
    files = FilesHeldOpen()
    small = Small(files=files)
    small.fill(60)
    assert small.entries["k1"] == value(1)
    assert files.held_open()
    for number in range(0, 60, 2):
        small.entries[f"k{number}"] = value(number + 100)
    assert small.journal.clean()
    assert not files.held_open()
    assert small.entries["k3"] == value(3)
    assert files.held_open()
    small.journal.snapshot()
    assert not files.held_open()
    assert small.entries["k3"] == value(3)
    small.journal.close()


def test_the_old_setting_for_small_values_is_accepted_and_means_nothing() -> None:
    small = Small(evict_from=4096)
    small.fill(20)
    assert not small.holds("k0")
    small.journal.close()


def test_a_probe_reads_nothing(small: Small) -> None:
    small.fill(20)
    assert "k0" in small.entries
    assert small.entries.entry("k0", data=False).data == b""
    assert list(small.entries) == sorted(b"k%d" % number for number in range(20))
    assert small.values.loads == 0


def test_one_value_may_be_larger_than_the_limit(small: Small) -> None:
    small.entries["large"] = bytes(100_000)
    assert small.entries["large"] == bytes(100_000)
    small.entries["other"] = value(1)
    assert not small.holds("large")
    assert small.entries["large"] == bytes(100_000)
    assert not small.holds("other")


def test_a_batch_larger_than_the_limit_is_let_go_once_it_is_written(small: Small) -> None:
    receipts = small.journal.put_many(
        [{"payload": value(number), "queue": "q"} for number in range(50)]
    )
    assert small.values.bytes <= 16_384
    assert small.values.evictions >= 42
    for number, receipt in enumerate(receipts):
        assert small.journal.job(receipt.id).value == value(number)
    assert lookup(small).searches == 0


def test_ended_and_replaced_values_leave_no_count_behind(small: Small) -> None:
    small.fill(30)
    for number in range(30):
        if number % 3 == 0:
            small.entries[f"k{number}"] = b"short"
        elif number % 3 == 1:
            del small.entries[f"k{number}"]
        else:
            small.entries.delete(f"k{number}", purge=True)
    assert (small.values.bytes, small.values.count) == (50, 10)


def test_changes_where_it_stands_need_the_value_back(small: Small) -> None:
    """truncate, flip, add, rename, alias, setdefault, pop on values that were let go."""
    small.fill(20)
    small.entries["text"] = "word" * 500
    small.fill(20)
    assert not small.holds("text")
    small.entries.truncate("text", 1500)
    assert small.entries["text"] == ("word" * 500)[:1500]
    small.fill(20)
    small.entries.rename("text", "renamed")
    small.entries.alias("renamed", "again")
    assert small.entries["again"] == ("word" * 500)[:1500]
    assert small.entries.setdefault("k3") == value(3)
    small.fill(20)
    assert small.entries.pop("again") == ("word" * 500)[:1500]


def test_leases_hand_out_the_payload_that_was_let_go(small: Small) -> None:
    for number in range(40):
        small.journal.put(value(number), queue="q")
    got = [job.payload for job in small.journal.lease_many(30, "q")]
    got += [job.payload for job in small.journal.lease_many(10, "q", take=True)]
    assert got == [value(number) for number in range(40)]
    assert small.values.bytes <= 16_384


def test_an_older_repeat_of_a_key_keeps_the_payload_that_was_let_go(small: Small) -> None:
    now = small.journal.engine.clock.now() / 1e9
    for number in range(20):
        small.journal.put(value(number), queue="q", key=str(number))
    small.journal.put(b"older", queue="q", key="0", timestamp=now - 60, priority=0)
    job = small.journal.job(key="0", queue="q")
    assert (job.value, job.priority) == (value(0), 100)


def test_a_job_of_workq_comes_back_too(small: Small) -> None:
    row_id = b"\1" * 6 + b"\x40\x00\x80" + bytes(7)
    with small.journal.engine.lock:
        small.journal.operations.add(Add(row_id, b"w", 1000, 60_000, 0, 0, 0, value(7), 0, 0))
    small.fill(20)
    assert small.journal.job(row_id).value == value(7)


@pytest.mark.parametrize("where", ["log", "snapshot"])
def test_a_damaged_value_is_a_typed_error_and_the_others_are_readable(where: str) -> None:
    """CRC checked on every reading; file and offset are named."""
    small = Small()
    small.fill(30)
    if where == "snapshot":
        small.journal.snapshot()
        assert small.row("k3").segment < 0
    row = small.row("k3")
    path = small.damage(row)
    for _ in range(2):
        with pytest.raises(CorruptRecord) as caught:
            small.entries["k3"]
        assert (caught.value.path, caught.value.offset) == (path, row.offset)
    for number in range(30):
        if number != 3:
            assert small.entries[f"k{number}"] == value(number)
    small.entries["k3"] = b"mended"
    assert small.entries["k3"] == b"mended"
    small.journal.close()


def test_a_damaged_job_does_not_stand_in_the_way_of_the_others() -> None:
    small = Small()
    ids = [small.journal.put(value(number), queue="q").id for number in range(20)]
    small.damage(small.journal.engine.state.rows[ids[1]])
    assert [job.payload for job in small.journal.lease_many(5, "q")] == [value(0)]
    with pytest.raises(CorruptRecord):
        small.journal.lease("q")
    got = [job.payload for job in small.journal.lease_many(50, "q")]
    assert got == [value(number) for number in range(2, 20)]
    assert small.journal.engine.state.rows[ids[1]].attempts == 1
    small.clock.advance(120)
    small.journal.tick()
    assert small.journal.job(ids[0]).timeouts == 1  # time went on for all of them
    assert small.journal.engine.state.rows[ids[1]].rare.timeouts == 1
    assert [job.payload for job in small.journal.lease_many(1, "q", take=True)] == [value(0)]
    with pytest.raises(CorruptRecord):
        small.journal.lease_many(1, "q", take=True)
    assert (
        small.journal.engine.state.rows[ids[1]].attempts == 2
    )  # not taken away: it may be repaired
    small.journal.delete(ids[1])
    small.journal.close()


def test_cleaning_moves_the_places_along(small: Small) -> None:
    small.fill(60)
    for number in range(0, 60, 2):
        small.entries[f"k{number}"] = value(number + 100)
    before = {key: small.row(key).offset for key in ("k1", "k31", "k49")}
    assert small.journal.clean()
    assert any(small.row(key).offset != offset for key, offset in before.items())
    for number in range(60):
        assert small.entries[f"k{number}"] == value(number + 100 * (number % 2 == 0))
    assert lookup(small).searches == 0


def test_what_another_process_cleans_is_found_by_its_time(small: Small) -> None:
    """As Spark does: segments are rewritten and renamed without a word to us."""
    small.fill(60)
    for number in range(0, 60, 2):
        small.entries[f"k{number}"] = value(number + 100)
    small.journal.sync()
    stream = Stream(HOME, WORKQ, files=small.files)
    sealed = sealed_segments(stream)
    retention = Retention(small.journal.engine.state)
    for number in sealed:
        retention.survey(number, ((r.time, r.payload) for r in segment_records(stream, number)))
    retention.begin(sealed, sealed)
    with stream.open_cleaner() as cleaner:
        assert cleaner.clean(retention.clean)
    for number in range(60):
        assert small.entries[f"k{number}"] == value(number + 100 * (number % 2 == 0))
    assert 0 < lookup(small).searches <= len(sealed)


def test_a_snapshot_takes_the_values_it_covers_with_it(small: Small) -> None:
    """The segments below it go, the next snapshot replaces this one, and restarts find it all."""
    small.fill(40)
    for turn in range(3):
        small.journal.snapshot()
        assert small.row("k1").segment == -small.journal.upkeep.snapshot[0].first  # type: ignore[index]
        small.entries["k2"] = value(200 + turn)
        for number in (0, 1, 3, 25, 39):
            assert small.entries[f"k{number}"] == value(number)
        assert small.entries["k2"] == value(200 + turn)
        small.restart()
        small.journal.clean()
        assert [small.entries[f"k{number}"] for number in (1, 39)] == [value(1), value(39)]


class RotatesBehind:
    """The lock of a log: once, whoever comes next after an append goes on in another segment."""

    def __init__(self, log: LogWriter) -> None:
        self.log, self.lock = log, log._io
        log._io = self

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()
        if self.log._io is self:
            self.log._io = self.lock
            self.log.rotate()


def test_a_segment_that_ends_while_a_record_is_noted_does_not_lose_its_value(small: Small) -> None:
    """The log goes on in another segment between a write and the look at where it stands."""
    log = small.journal.engine.log
    small.fill(3)
    RotatesBehind(log)
    small.entries["raced"] = value(50)
    assert small.row("raced").segment == log.position.segment - 1
    small.fill(20)
    assert small.entries["raced"] == value(50)
    RotatesBehind(log)
    small.entries["raced too"] = value(51)
    small.journal.snapshot()
    small.fill(20)
    assert small.entries["raced"] == value(50)
    assert small.entries["raced too"] == value(51)


def test_a_value_that_changes_while_a_snapshot_is_taken_stays_where_it_is(small: Small) -> None:
    """Its image is older: the place of the newer record counts."""
    small.fill(20)

    def change(path: Path) -> None:
        if path.suffix == ".snapshot":
            small.entries["k2"] = value(200)
            del small.entries["k3"]

    small.files.on_sync = change
    small.journal.snapshot()
    small.files.on_sync = None
    for number in range(4, 20):
        assert small.entries[f"k{number}"] == value(number)
    assert not small.holds("k2")
    assert small.entries["k2"] == value(200)
    assert "k3" not in small.entries


def test_what_is_not_written_yet_is_not_let_go(small: Small) -> None:
    """Inside a batch old values are read between new ones."""
    small.fill(20)
    engine, operations = small.journal.engine, small.entries.operations
    with engine.lock, engine.batch():
        for number in range(20, 30):
            operations.set(b"k%d" % number, 1, value(number))
            assert operations.get(b"k%d" % (number - 20)).data == value(number - 20)
        assert small.values.fresh
        for number in range(20, 30):
            assert operations.get(b"k%d" % number).data == value(number)
    assert small.values.bytes <= 16_384
    for number in range(30):
        assert small.entries[f"k{number}"] == value(number)


def test_a_row_of_many_records_is_stated_anew_without_its_value_in_memory(small: Small) -> None:
    """A job renewed for ever does not fill the disk because its payload is large."""
    small.journal.put(value(1), queue="q", key="k")
    held = small.journal.lease("q")
    assert held is not None
    row = small.journal.engine.state.rows[held.id]
    stated = row.at
    for number in range(300):
        small.journal.put(value(number), queue="other", key=str(number % 10))
        held.touch(60)
    assert row.value is None
    assert row.at > stated
    assert row.rare.chain < 150
    assert small.journal.job(held.id).value == value(1)
    held.done()


def test_memory_only_entries_beyond_the_limit_are_full(small: Small) -> None:
    """FJ-KV-2: persist = 0 rows cannot be evicted, SET is refused with FULL."""
    kept = 8
    for number in range(kept):
        small.entries.set(f"m{number}", value(number), persist=False)
    with pytest.raises(MemoryFull) as caught:
        small.entries.set("more", value(8), persist=False)
    assert caught.value.code == "FULL"
    assert isinstance(caught.value, QueueFull)
    assert small.values.unlogged <= 16_384
    assert len(small.entries) == kept
    small.entries.set("m0", b"shorter", persist=False)
    small.entries["on disk"] = value(1)  # what is logged is always taken
    small.fill(20)
    assert [small.entries[f"m{n}"] for n in range(1, kept)] == [value(n) for n in range(1, kept)]
    assert small.values.bytes + small.values.unlogged <= 16_384 + 2000
    for number in range(kept):
        del small.entries[f"m{number}"]
    assert small.values.unlogged == 0
    small.entries.set("again", value(5), persist=False)


def test_memory_only_entries_are_counted_through_all_changes(small: Small) -> None:
    small.entries.set("m", b"1234", persist=False)
    base = small.values.unlogged
    small.entries.truncate("m", 1004)
    assert small.values.unlogged == base + 1000
    with pytest.raises(MemoryFull):
        small.entries.truncate("m", 100_000)
    small.entries.alias("m", "longer name")
    small.entries.rename("m", "n")
    assert small.values.unlogged == base + 1000, "keys are no values"
    small.entries.set("n", value(1))  # from memory to the log
    assert small.values.unlogged == 0
    assert small.values.bytes == 2000
    small.entries.set("n", b"back", persist=False)
    assert small.values.bytes == 0
    assert small.values.unlogged == base
    small.entries.set("t", b"x", persist=False, ttl=1)
    small.clock.advance(5)
    small.journal.tick()
    assert small.values.unlogged == base
    small.entries.add("sum", 5, persist=False)
    small.entries.delete("sum", purge=True)
    assert small.values.unlogged == base


def test_the_status_tells_jobs_from_entries_and_the_memory_used(small: Small) -> None:
    small.fill(3)
    small.entries.set("m", b"1", persist=False)
    small.journal.put(b"", queue="q")
    del small.entries["k0"]
    status = small.journal.status()
    assert (status.jobs, status.entries, status.rows) == (1, 3, 5)
    assert (status.memory_limit, status.value_bytes) == (16_384, 4000)
    assert status.unlogged_bytes > 0
    plain = Journal(HOME.with_name("plain"), files=small.files, background=False)
    status = plain.status()
    assert (status.memory_limit, status.value_bytes, status.unlogged_bytes) == (8 * MIB, 0, 0)
    plain.close()


def test_a_view_of_a_large_journal_holds_little_and_finds_all(small: Small) -> None:
    """It follows its owner's writes and cleanings."""
    for number in range(60):
        small.journal.put(value(number), queue="q", key=str(number))
    small.journal.sync()
    view = JournalView(HOME, files=small.files, clock=small.clock, follow=True, memory_limit=8192)
    for number in range(0, 60, 2):
        small.journal.put(value(number + 100), queue="q", key=str(number))
    assert small.journal.clean()
    assert view.refresh() > 0
    shown = {job.key_bytes: job.payload for job in view.jobs("q")}
    assert shown == {b"%d" % n: value(n + 100 * (n % 2 == 0)) for n in range(60)}
    assert view.replayed.state.values.bytes <= 8192
    assert view.digest() == small.journal.digest()
    view.close()


def test_without_a_limit_8_mib_of_values_are_held() -> None:
    small = Small(None)  # type: ignore[arg-type]
    small.fill(100)
    assert all(small.holds(f"k{number}") for number in range(100))
    small.journal.close()


@pytest.mark.parametrize(
    "name",
    [
        "memory_limit",
        "evict_from",
        "segment_size",
        "snapshot_bytes",
        "max_payload",
        "sync_interval",
    ],
)
@pytest.mark.parametrize("wrong", ["x", 1.5, True, b"1", [4096]])
def test_a_size_that_is_no_whole_number_is_refused(name: str, wrong: object) -> None:
    files = MemoryFiles()
    with pytest.raises(SettingError) as caught:
        Journal("/j", files=files, background=False, **{name: wrong})  # type: ignore[arg-type]
    assert caught.value.name == name
    assert not files.exists(Path("/j"))


@pytest.mark.parametrize("wrong", [{"memory_limit": 64}, {"memory_limit": -1}, {"evict_from": 0}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingError) as caught:
        Small(**wrong)  # type: ignore[arg-type]
    assert caught.value.name in wrong


def test_a_memory_limit_is_the_size_of_the_cache_of_values_and_no_row_counts() -> None:
    small = Small(1 * MIB, segment_size=64 * MIB)
    assert small.journal.engine.log.options.segment_size == 64 * MIB
    small.journal.close()
    small = Small(1024, segment_size=64 * MIB)
    small.entries.set("k" * 5000, b"1", persist=False)
    assert small.values.unlogged < 1024, "keys and rows do not count"
    small.journal.close()


def lookup(small: Small) -> Any:
    return small.journal.engine.fetching.lookup
