"""Faults that are provoked on purpose, one by one: bugs, memory, files, damage at rest, probes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import invoke
from fastjournal import Journal, State
from fastjournal.errors import JournalError, SettingError
from fastjournal.log.care.probe import file_system_of, probe
from fastjournal.log.disktest import check, write
from fastjournal.log.files import FileHandle
from fastjournal.log.stream import Stream
from fastjournal.log.write.log_writer import LogWriter
from fastjournal.testing import ManualClock, MemoryFiles
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.testing.files import Fault

HERE = Path("/log")


class Buggy(MemoryFiles):
    """Whose writes to segments raise what no disk raises, once told so."""

    def __init__(self) -> None:
        super().__init__()
        self.bug: BaseException | None = None
        self.make_directory(HERE)
        self.failing = self._fail

    def _fail(self, deed: str) -> None:
        if self.bug is not None and deed.startswith("write 0"):
            raise self.bug


@pytest.mark.parametrize("bug", [RuntimeError("a bug"), MemoryError(), AssertionError("never")])
def test_a_bug_or_lack_of_memory_in_the_writer_dies_before_anybody_is_told(
    bug: BaseException,
) -> None:
    """F09, F41: under `die`; exit code 4, and no acknowledgement afterwards."""
    files, died = Buggy(), []
    log = LogWriter(
        Stream(HERE, files=files, clock=ManualClock()), sync="always", on_failure="die",
        die=died.append,
    )  # fmt: skip
    time = log.append([b"before"])
    log.wait_synced(time)
    told: list[object] = []
    files.bug = bug
    with pytest.raises(JournalError):
        told.append(log.append([b"never told"]))
    assert died == [4]
    assert told == []
    files.bug = None
    with pytest.raises(JournalError):
        log.append([b"after"])
    with pytest.raises(JournalError):
        log.close()


@pytest.mark.parametrize("bug", [RuntimeError("a bug"), MemoryError()])
def test_a_bug_or_lack_of_memory_stops_a_journal_and_what_was_acknowledged_is_there(
    bug: BaseException,
) -> None:
    """F09, F41: under `stop`; reading goes on."""
    files = Buggy()
    clock = ManualClock()
    journal = Journal(HERE, files=files, clock=clock, sync="always", background=False)
    kept = journal.put(b"kept", queue="q")
    files.bug = bug
    with pytest.raises((JournalError, type(bug))):
        journal.put(b"lost", queue="q")
    files.bug = None
    with pytest.raises(JournalError):
        journal.put(b"later", queue="q")
    assert journal.job(kept.id).value == b"kept"
    with pytest.raises(JournalError):
        journal.close()
    with Journal(HERE, files=files, clock=clock, background=False) as again:
        assert b"kept" in [job.value for job in again.jobs()]
        assert b"later" not in [job.value for job in again.jobs()]


def lived_in(path: Path) -> None:
    """A directory with sealed segments, a snapshot, a manifest."""
    with Journal(path, sync="always", background=False, clock=ManualClock()) as journal:
        for number in range(4):
            journal.put(b"%d" % number * 100, queue="q", key=f"k{number}")
            journal.rotate()
        journal.snapshot()
        for number in range(4, 8):
            journal.put(b"%d" % number * 100, queue="q", key=f"k{number}")
            journal.rotate()
        journal.put(b"last", queue="q")


def values(path: Path) -> list[bytes]:
    with Journal(path, sync="os", background=False, clock=ManualClock()) as journal:
        return sorted(job.value for job in journal.jobs())


def outcome(path: Path) -> tuple[list[bytes], str]:
    """The jobs, or what is said instead."""
    try:
        return values(path), ""
    except JournalError as error:
        return [], str(error)


def _swap(path: Path, others: list[Path]) -> None:
    other = next(one for one in others if one != path)
    mine, its = path.read_bytes(), other.read_bytes()
    path.write_bytes(its)
    other.write_bytes(mine)


DEEDS: dict[str, Callable[[Path, list[Path]], object]] = {
    "deleted": lambda path, _: path.unlink(),
    "emptied": lambda path, _: path.write_bytes(b""),
    "cut": lambda path, _: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeroed": lambda path, _: path.write_bytes(bytes(path.stat().st_size)),
    "swapped": _swap,
    "another's": lambda path, others: path.write_bytes(
        next(one for one in others if one != path).read_bytes()
    ),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_every_file_that_is_missing_swapped_or_rolled_back_is_named_or_does_not_matter(
    tmp_path: Path, deed: str
) -> None:
    """F24, T-FILES: never a wrong state, never fewer jobs without a word."""
    whole = tmp_path / "whole"
    lived_in(whole)
    expected = values(whole)
    names = sorted(one.name for one in whole.iterdir() if one.is_file())
    refused = []
    for number, name in enumerate(names):
        place = tmp_path / f"{deed}-{number}"
        place.mkdir()
        for one in whole.iterdir():
            (place / one.name).write_bytes(one.read_bytes())
        same = [one for one in sorted(place.iterdir()) if one.suffix == Path(name).suffix]
        if deed in ("swapped", "another's") and len(same) < 2:
            continue
        DEEDS[deed](place / name, same)
        found, told = outcome(place)
        if told:
            refused.append(name)
        assert str(place) in told or found == expected, f"{name}: wrong without a word"
    sealed = [name for name in names if name.endswith(".log")][:-2]
    assert set(sealed) - set(refused) == set() or deed == "swapped", "a sealed segment is missed"
    assert refused


def test_a_scrub_finds_damage_at_rest_and_tells_its_last_pass(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F28: at low priority, in upkeep; once for each segment, and nothing is changed."""
    files, clock = MemoryFiles(), ManualClock()
    files.make_directory(HERE)
    journal = Journal(HERE, files=files, clock=clock, sync="os", background=False)
    for number in range(3):
        journal.put(b"x" * 100, queue="q", key=str(number))
        journal.rotate()
    journal.put(b"newest", queue="q")
    upkeep = journal.background
    assert journal.upkeep_status.scrubbed_at == 0
    upkeep.cycle()
    assert (upkeep.last_error, journal.upkeep_status.scrub_passes) == ("", 1)
    assert journal.upkeep_status.scrubbed_at == clock.now()
    assert journal.upkeep_status.scrub_faults == 0
    clock.advance(60)
    path = HERE / "000000002.log"
    handle = files.open_in_place(path)
    handle.write_at(b"\xff", 60)
    for _ in range(2):
        journal.upkeep.scrub()
    assert journal.upkeep_status.scrub_faults == 1
    assert journal.upkeep_status.scrubbed_at == clock.now()
    assert sum("000000002.log" in one.message for one in caplog.records) == 1
    assert journal.put(b"goes on", queue="q").id


def test_a_scrub_reads_a_bounded_amount_at_a_time() -> None:
    """F28: so a pass may take many upkeeps, and none of them long."""
    from fastjournal.journal.disk.scrub import Scrub

    files, clock = MemoryFiles(), ManualClock()
    files.make_directory(HERE)
    with Journal(HERE, files=files, clock=clock, sync="os", background=False) as journal:
        for number in range(4):
            journal.put(b"x" * 100, queue="q", key=str(number))
            journal.rotate()
        journal.put(b"newest", queue="q")
        scrub = Scrub(journal.engine.log.stream, most=1)
        for _ in range(3):
            scrub.go_on()
            assert scrub.passes == 0
        scrub.go_on()
        assert scrub.passes == 1


class Read(MemoryFiles):
    """Remembers which segments were opened to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open_read(self, path: Path) -> FileHandle:
        if path.suffix == ".log":
            self.opened.append(path.name)
        return super().open_read(path)


def test_cleaning_for_a_long_time_neither_starves_nor_spins() -> None:
    """F34: no segment twice in a cycle, nothing in idle cycles, and the log stays small."""
    files, clock = Read(), ManualClock()
    files.make_directory(HERE)
    with Journal(
        HERE, files=files, clock=clock, sync="os", segment_size=4096, background=False
    ) as journal:
        largest = 0
        for _ in range(120):
            for number in range(20):
                journal.put(b"x" * 100, queue="q", key=str(number), ttl=600)
            clock.advance(1)
            for leased in journal.lease_many(15, "q"):
                leased.done()
            clock.advance(300)
            journal.tick()
            before = len(files.operations)
            cleaned = journal.clean()
            assert all(one.bytes_after < one.bytes_before for one in cleaned), "for nothing"
            renamed = [
                deed
                for deed in files.operations[before:]
                if deed.startswith("rename") and ".log" in deed
            ]
            assert len(renamed) == len(set(renamed)), "a segment was rewritten twice in a cycle"
            largest = max(
                largest,
                sum(
                    len(files.open_read(HERE / name).read(0, 1 << 20))
                    for name in files.names(HERE)
                    if name.endswith(".log")
                ),
            )
        assert largest < 40 * 4096
        journal.clean()
        before = len(files.operations)
        files.opened.clear()
        for _ in range(5):
            journal.clean()
        idle = [
            deed
            for deed in files.operations[before:]
            if deed.startswith(("rename", "create", "remove"))
        ]
        assert idle == []
        sealed = sorted(name for name in files.names(HERE) if name.endswith(".log"))[:-2]
        assert sealed
        assert not set(sealed) & set(files.opened), "read again, though nothing has changed"


def test_a_clock_that_jumps_at_any_step_moves_no_lease() -> None:
    """F45: an hour forward, and an hour back, before each step of a job's life."""
    for jump in (3600, -3600):
        for step in range(5):
            files, clock = MemoryFiles(), ManualClock()
            files.make_directory(HERE)
            with Journal(HERE, files=files, clock=clock, sync="os", background=False) as journal:
                at = iter(range(5))

                def passing(
                    at: object = at, step: int = step, jump: int = jump, clock: ManualClock = clock
                ) -> None:
                    if next(at) == step:  # type: ignore[call-overload]
                        clock.step(jump)

                passing()
                journal.put(b"x", queue="q")
                passing()
                clock.advance(1)
                job = journal.lease("q", lease=100)
                assert job is not None
                passing()
                clock.advance(90)
                journal.tick()
                assert journal.lease("q") is None, (jump, step)
                job.touch(100)
                passing()
                clock.advance(90)
                journal.tick()
                passing()
                job.done()
                assert journal.jobs("q", state=State.FAILED) == []
                assert journal.jobs("q") == []


def test_a_file_system_that_keeps_its_word_passes_and_one_that_does_not_is_named(
    tmp_path: Path,
) -> None:
    """F62: rename, sync of file and directory, lock; nothing is left behind."""
    files = MemoryFiles()
    files.make_directory(HERE)
    assert probe(files, HERE) == []
    assert files.names(HERE) == []
    for operation, word in (
        ("create", "written"), ("sync ", "written"), ("rename", "in the place"),
        ("sync_directory", "directory"),
    ):  # fmt: skip
        files.failing = lambda deed, operation=operation: (  # type: ignore[misc]
            Fault(errno.EIO) if deed.startswith(operation) else None
        )
        assert any(word in fault for fault in probe(files, HERE)), operation
    files.failing = None
    assert files.names(HERE) == []
    from fastjournal.log.files import DISK

    assert probe(DISK, tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert file_system_of(Path("/proc")) == "proc"


class Careless(MemoryFiles):
    """Gives a lock to everybody."""

    def lock(self, path: Path, *, exclusive: bool, timeout: float | None) -> object:  # type: ignore[override]
        return super().lock(path, exclusive=False, timeout=timeout)


def test_a_daemon_does_not_serve_where_locks_keep_nobody_out() -> None:
    """F62: refused before anything is opened, with the reason."""
    with pytest.raises(SettingError, match="a lock keeps nobody out"):
        LocalDaemon("/data", files=Careless(), settings={"journal": {"sync": "os"}}).start()


def test_a_daemon_does_not_start_where_it_cannot_write() -> None:
    """WQ-CFG-1: tried before anything is opened; a directory of another user, for example."""
    files = MemoryFiles()
    files.make_directory(Path("/data"))
    files.failing = lambda deed: Fault(errno.EACCES) if deed.startswith("create") else None
    with pytest.raises(SettingError, match="cannot be written"):
        LocalDaemon("/data", files=files, settings={"journal": {"sync": "os"}}).start()


def test_the_disk_test_finds_every_number_that_was_told_and_misses_none(tmp_path: Path) -> None:
    """F07: numbers are told once they are synced; a disk that loses what it synced is found out."""
    files = MemoryFiles()
    files.make_directory(HERE)
    numbers = write(HERE, files)
    told = [next(numbers) for _ in range(10)]
    assert told == list(range(1, 11))
    assert all(check(HERE, left) >= 10 for left in files.images(samples=20))
    numbers.close()  # type: ignore[attr-defined]
    place = str(tmp_path / "disk")
    done = invoke(["log", "disktest", place, "--count", "5"])
    assert (done.exit_code, done.stdout.split()) == (0, ["1", "2", "3", "4", "5"])
    done = invoke(["log", "disktest", place, "--count", "7"])
    assert done.stdout.split() == ["6", "7"]
    assert invoke(["log", "disktest", place, "--seen", "7"]).exit_code == 0
    (segment,) = Path(place).glob("000000001.log")
    segment.write_bytes(segment.read_bytes()[:-28])  # the disk has lost the last one
    (Path(place) / "synced.pos").unlink()
    assert invoke(["log", "disktest", place, "--seen", "7"]).exit_code == 1
