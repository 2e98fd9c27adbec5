"""Shipping and restoring: what is archived, when, and what comes back."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from archiving import TroubledStore, check_sound, restored_rows, rows, work_a_while
from fastjournal import Journal
from fastjournal.archive.care import prune, verify_archive
from fastjournal.archive.manifest import Manifest, find_newest, keep_since
from fastjournal.archive.restore import plan_restore, restore
from fastjournal.archive.shipper import ArchiveOptions, Shipper
from fastjournal.archive.store import DirectoryStore, Found, MemoryStore, Store, open_store
from fastjournal.clock import SECOND
from fastjournal.errors import (
    ArchiveError,
    BadRequest,
    JournalError,
    ReadOnly,
    SegmentError,
    SettingError,
)
from fastjournal.journal.disk.archived import back_up
from fastjournal.journal.disk.replay import replay
from fastjournal.journal.look.read_only import JournalView
from fastjournal.log.care.repair import salvage
from fastjournal.log.files import FileHandle
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.testing import Crash, ManualClock, MemoryFiles, wait_until

SMALL = 4096


def open_journal(
    path: Path,
    clock: ManualClock,
    store: Store | None,
    *,
    options: ArchiveOptions | None = None,
    sync: str = "always",
    files: MemoryFiles | None = None,
) -> Journal:
    """A journal whose archive is this store; nothing happens by itself."""
    given = {} if files is None else {"files": files}
    journal = Journal(
        path, sync=sync, segment_size=SMALL, background=False, clock=clock, chance=Random(1),
        archive=None if store is None else "memory:unused", archive_options=options, **given,
    )  # fmt: skip
    if store is not None:
        shipper(journal).open_store = lambda: store
    return journal


def shipper(journal: Journal) -> Shipper:
    found = journal.shipper
    assert found is not None
    return found


def newest(store: Store) -> Manifest:
    found = find_newest(store)
    assert found is not None
    return found


def test_a_restored_journal_is_the_one_that_was_archived(
    tmp_path: Path, clock: ManualClock, store: Store
) -> None:
    with open_journal(tmp_path / "jobs", clock, store) as journal:
        work_a_while(journal, clock, Random(3), 300)
        status = journal.ship()
        live = rows(journal)
        assert status.lag_bytes == 0 and status.state == "shipping"
        assert status.archived_to == journal.status().log.synced_time
        assert len(newest(store).segments) > 3
        for one in newest(store).segments:
            assert store.get(one.name) == (tmp_path / "jobs" / f"{one.number:09d}.log").read_bytes()
    check_sound(store)
    assert restored_rows(store, tmp_path / "again") == live


def test_any_instant_can_be_restored_though_the_log_was_cleaned_and_covered_since(
    tmp_path: Path, clock: ManualClock, store: Store
) -> None:
    chance = Random(7)
    instants: list[tuple[int, list[bytes]]] = []
    with open_journal(tmp_path / "jobs", clock, store) as journal:
        for n in range(20):
            work_a_while(journal, clock, chance, chance.randrange(5, 40))
            instants.append((journal.status().log.written_time, rows(journal)))
            if n % 3 == 0:
                journal.ship()
            if n % 5 == 2:
                journal.clean()
            if n % 8 == 5:
                journal.snapshot()
        journal.ship()
        journal.clean()
    manifest = check_sound(store)
    assert manifest is not None and len(manifest.snapshots) == 2
    for n, (time, live) in enumerate(instants):
        assert restored_rows(store, tmp_path / f"at{n}", time) == live
        later = restored_rows(store, tmp_path / f"later{n}", time + 1) if n == 10 else live
        assert later == live
    used = plan_restore(manifest, instants[-1][0]).snapshot
    assert used == manifest.snapshots[-1]


def test_a_restored_journal_works_on_and_ships_on_into_the_same_archive(
    tmp_path: Path, clock: ManualClock, store: Store
) -> None:
    with open_journal(tmp_path / "jobs", clock, store) as journal:
        work_a_while(journal, clock, Random(3), 100)
        journal.ship()
        middle, then = journal.status().log.written_time, rows(journal)
        work_a_while(journal, clock, Random(4), 100)
        journal.ship()
        end, last = journal.status().log.written_time, rows(journal)
    restore(store, plan_restore(newest(store), middle), tmp_path / "back")
    first = newest(store)
    with open_journal(tmp_path / "back", clock, store) as journal:
        assert rows(journal) == then
        clock.advance(1)
        journal.put(b"other", queue="q0", key="a branch")
        journal.ship()
        other = rows(journal)
        assert newest(store).epoch == first.epoch + 1
        common = {one.epoch for one in newest(store).segments}
        assert common == {first.epoch, first.epoch + 1}  # what is equal was not shipped again
    check_sound(store)
    assert restored_rows(store, tmp_path / "c") == other != last
    assert restored_rows(store, tmp_path / "d", middle) == then
    assert restored_rows(store, tmp_path / "e", end) == then  # the branch has nothing up to there


def test_nothing_that_is_not_synced_is_shipped(tmp_path: Path, clock: ManualClock) -> None:
    store = MemoryStore()
    with open_journal(tmp_path / "jobs", clock, store, sync="interval") as journal:
        journal.put(b"1", queue="q", key="a")
        journal.sync()
        synced = rows(journal)
        journal.put(b"2", queue="q", key="b")
        journal.ship()
        assert restored_rows(store, tmp_path / "back") == synced
        journal.sync()
        journal.ship()
        assert restored_rows(store, tmp_path / "again") == rows(journal)


def test_under_os_shipping_syncs_what_it_ships(tmp_path: Path, clock: ManualClock) -> None:
    store = MemoryStore()
    with open_journal(tmp_path / "jobs", clock, store, sync="os") as journal:
        journal.put(b"1", queue="q", key="a")
        journal.ship()
        assert restored_rows(store, tmp_path / "back") == rows(journal)
        assert journal.status().log.synced_time == journal.status().log.written_time


def test_a_trickle_makes_few_parts_and_few_bytes(tmp_path: Path, clock: ManualClock) -> None:
    store = TroubledStore(MemoryStore())
    journal = Journal(
        tmp_path / "jobs", sync="always", background=False, clock=clock, archive="memory:unused"
    )
    shipper(journal).open_store = lambda: store
    with journal:
        for n in range(300):
            clock.advance(5)
            journal.put(b"x", queue="q", key=f"{n}")
            journal.ship()
        manifest = newest(store)
        assert len(manifest.parts) <= 12
        assert manifest.base  # the list of segments is not written again for the tail
        written = journal.status().log.counters.bytes
        shipped = sum(end - start for start, end in _stretches(store.requests))
        assert shipped < 12 * written
        assert restored_rows(store, tmp_path / "back") == rows(journal)


def test_an_hour_costs_the_requests_that_the_page_says(tmp_path: Path, clock: ManualClock) -> None:
    """As long as something is written all the time; see `What it costs` in docs/archive.md."""
    store = CountingStore()
    journal = Journal(
        tmp_path / "jobs", sync="always", background=False, clock=clock, archive="memory:unused"
    )
    shipper(journal).open_store = lambda: store
    with journal:
        journal.put(b"x", queue="q")
        journal.ship()
        store.counts.clear()
        for n in range(720):
            clock.advance(5)
            journal.put(b"x", queue="q", key=f"{n}")
            journal.ship()
        assert store.counts["put"] + store.counts["create"] == 2 * 720
        assert store.counts["folders"] + store.counts["find"] <= 60 + 10
        assert store.counts["get"] <= 110
        assert store.counts["delete"] <= 2
        store.counts.clear()
        journal.ship()
        assert not store.counts, "nothing is sent while nothing is written"


class CountingStore(MemoryStore):
    """Counts requests by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def create(self, name: str, data: bytes) -> bool:
        self.counts["create"] += 1
        return super().create(name, data)

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        self.counts["put"] += 1
        super().put(name, chunks)

    def get(self, name: str) -> bytes:
        self.counts["get"] += 1
        return super().get(name)

    def find(self, prefix: str) -> list[Found]:
        self.counts["find"] += 1
        return super().find(prefix)

    def folders(self, prefix: str) -> list[str]:
        self.counts["folders"] += 1
        head = f"{prefix.rstrip('/')}/" if prefix else ""
        names = (one[len(head) :] for one in self.objects if one.startswith(head))
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    def delete(self, names: Sequence[str]) -> None:
        self.counts["delete"] += 1
        super().delete(names)


def _stretches(names: list[str]) -> list[tuple[int, int]]:
    ends = [name.rpartition("/")[2].removesuffix(".part") for name in names if ".part" in name]
    return [(int(end.split("-")[0]), int(end.split("-")[1])) for end in ends]


def test_a_restart_ships_no_sealed_segment_again(tmp_path: Path, clock: ManualClock) -> None:
    store = TroubledStore(MemoryStore())
    for _ in range(3):
        with open_journal(tmp_path / "jobs", clock, store) as journal:
            work_a_while(journal, clock, Random(3), 100)
            journal.ship()
            journal.clean()
    segments = [name.rpartition("/")[2] for name in store.requests if "/segments/" in name]
    assert len(segments) == len(set(segments)) > 5
    assert newest(store).epoch == 3


def test_segments_can_be_packed(tmp_path: Path, clock: ManualClock) -> None:
    pytest.importorskip("zstandard")
    store = MemoryStore()
    options = ArchiveOptions(compress=True)
    with open_journal(tmp_path / "jobs", clock, store, options=options) as journal:
        work_a_while(journal, clock, Random(3), 200)
        journal.ship()
        live = rows(journal)
    manifest = newest(store)
    assert all(one.name.endswith(".log.zst") for one in manifest.segments)
    assert sum(one.bytes for one in manifest.segments) < sum(o.size for o in manifest.segments) / 2
    check_sound(store)
    assert restored_rows(store, tmp_path / "back") == live


def test_an_archive_of_a_journal_that_was_cleaned_before_begins_with_what_it_holds(
    tmp_path: Path, clock: ManualClock
) -> None:
    with open_journal(tmp_path / "jobs", clock, None) as journal:
        work_a_while(journal, clock, Random(3), 150)
        early = journal.status().log.written_time
        journal.snapshot()
        work_a_while(journal, clock, Random(4), 150)
        late = journal.status().log.written_time
        _put_and_complete(journal, clock)
        assert journal.clean()
    store = MemoryStore()
    with open_journal(tmp_path / "jobs", clock, store) as journal:
        journal.ship()
        live = rows(journal)
        assert newest(store).floor > 1
    assert restored_rows(store, tmp_path / "back") == live
    for instant in (early - 1, late):
        with pytest.raises(BadRequest, match="cannot tell"):
            plan_restore(newest(store), instant)


def test_the_cleaner_waits_for_what_is_not_archived_up_to_a_limit(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    down = TroubledStore(MemoryStore(), lambda n, name: "fail")
    options = ArchiveOptions(max_lag=3600)
    with open_journal(tmp_path / "jobs", clock, down, options=options) as journal:
        _put_and_complete(journal, clock)
        assert not shipper(journal).ship()
        journal.clean()
        journal.snapshot()
        assert len(list((tmp_path / "jobs").glob("*.log"))) > 3
        status = journal.status().archive
        assert status is not None and status.state == "failing" and status.lag_bytes > 3 * SMALL
        clock.advance(3601)
        with caplog.at_level(logging.CRITICAL):
            assert not shipper(journal).ship()
        assert "longer than archive_max_lag" in caplog.text
        assert shipper(journal).status().state == "behind"
        journal.clean()
        assert len(list((tmp_path / "jobs").glob("*.log"))) <= 3
        down.trouble = None
        assert shipper(journal).ship()
        assert restored_rows(down, tmp_path / "back") == rows(journal)


@pytest.mark.parametrize("how", ["clean", "snapshot"])
def test_the_archive_begins_anew_after_records_were_dropped_without_it(
    tmp_path: Path, clock: ManualClock, how: str
) -> None:
    store = TroubledStore(MemoryStore())
    options = ArchiveOptions(max_lag=3600)
    with open_journal(tmp_path / "jobs", clock, store, options=options) as journal:
        journal.put(b"", queue="q", key="ends later")
        journal.rotate()
        journal.put(b"", queue="q", key="stays")
        journal.ship()
        early = newest(store)
        store.trouble = lambda n, name: "fail"
        job = journal.lease("q", take=True)
        assert job is not None and job.key == "ends later"
        _put_and_complete(journal, clock)
        shipper(journal).ship()
        assert {one.segment for one in journal.clean()} == {1}  # which is archived
        clock.advance(3601)
        shipper(journal).ship()
        if how == "snapshot":
            journal.snapshot()
        else:
            assert journal.clean()
        store.trouble = None
        journal.ship()
        live = rows(journal)
    manifest = check_sound(store)
    assert manifest is not None and manifest.epoch == early.epoch + 1
    assert restored_rows(store, tmp_path / "back") == live
    assert not any(b"ends later" in row for row in live)


def test_behind_stop_ends_writing(tmp_path: Path, clock: ManualClock) -> None:
    down = TroubledStore(MemoryStore(), lambda n, name: "fail")
    options = ArchiveOptions(max_lag=60, behind="stop")
    journal = open_journal(tmp_path / "jobs", clock, down, options=options)
    journal.put(b"", queue="q")
    shipper(journal).ship()
    clock.advance(61)
    shipper(journal).ship()
    with pytest.raises(ReadOnly):
        journal.put(b"", queue="q")
    with pytest.raises(JournalError):
        journal.close()


def _put_and_complete(journal: Journal, clock: ManualClock) -> None:
    for n in range(150):
        clock.advance(0.01)
        journal.put(bytes(100), queue="q", key=f"{n}")
    while journal.lease("q", take=True) is not None:
        clock.advance(0.01)
    clock.advance(1)
    journal.put(b"", queue="q", key="end")


Trouble = Callable[[int, str], str]


def sweep(how: str, at: int) -> Trouble:
    return lambda n, name: how if n == at else ""


@pytest.mark.parametrize("how", ["die", "died"])
def test_a_shipper_killed_at_any_request_leaves_a_sound_archive(tmp_path: Path, how: str) -> None:
    at = 0
    while True:
        at += 1
        clock, files, inner = ManualClock(), MemoryFiles(), MemoryStore()
        files.make_directory(Path("/d"))
        store = TroubledStore(inner, sweep(how, at))
        pictures: dict[int, list[bytes]] = {}
        chance = Random(5)
        journal = open_journal(Path("/d/jobs"), clock, store, files=files)
        died = False
        for _ in range(4):
            work_a_while(journal, clock, chance, 25)
            pictures[journal.status().log.written_time] = rows(journal)
            try:
                journal.ship()
                journal.clean()
                if chance.random() < 0.5:
                    journal.snapshot()
            except Crash:
                died = True
                break
        manifest = check_sound(inner)
        if manifest is not None and manifest.end in pictures:
            back = restored_rows(inner, Path("/d/back"), files=files)
            assert back == pictures[manifest.end]
        if died:  # the process is gone; another one opens the directory
            journal.engine.log.close()
            journal = open_journal(Path("/d/jobs"), clock, inner, files=files)
            work_a_while(journal, clock, chance, 25)
            journal.ship()
            pictures[journal.status().log.written_time] = rows(journal)
        journal.close()
        check_sound(inner)
        for n, (time, live) in enumerate(pictures.items()):
            assert restored_rows(inner, Path(f"/d/back{n}"), time, files=files) == live
        if not died:
            break
    assert at > 15


@pytest.mark.parametrize("how", ["fail", "lose", "twice"])
def test_a_store_in_trouble_at_any_request_is_tried_again(how: str) -> None:
    at = 0
    while True:
        at += 1
        clock, files, inner = ManualClock(), MemoryFiles(), MemoryStore()
        files.make_directory(Path("/d"))
        store = TroubledStore(inner, sweep(how, at))
        with open_journal(Path("/d/jobs"), clock, store, files=files) as journal:
            chance = Random(5)
            for _ in range(3):
                work_a_while(journal, clock, chance, 25)
                shipper(journal).ship()
                check_sound(inner)
            assert shipper(journal).ship()
            live = rows(journal)
            assert shipper(journal).status().epoch == 1
        assert restored_rows(inner, Path("/d/back"), files=files) == live
        if len(store.requests) < at:
            break
    assert at > 10


def test_a_power_loss_of_the_shipping_machine_takes_nothing_from_the_archive() -> None:
    """The archive never has what the machine itself has lost: it is never past what is synced."""
    total = 0
    for at in (*range(20, 400, 9),):
        clock, inner = ManualClock(), MemoryStore()
        files = MemoryFiles(crash_at=at)
        try:
            files.make_directory(Path("/d"))
            files.sync_directory(Path("/"))
            journal = open_journal(Path("/d/jobs"), clock, inner, files=files)
            chance = Random(at)
            while True:
                work_a_while(journal, clock, chance, 10)
                journal.ship()
                journal.clean()
        except Crash:
            pass
        manifest = check_sound(inner)
        if manifest is None:
            continue
        for number, image in enumerate(files.images()):
            if number == 4:
                break
            with open_journal(Path("/d/jobs"), clock, None, files=image) as journal:
                assert journal.status().log.written_time >= manifest.end
            total += 1
    assert total > 20


def test_of_two_shippers_the_first_stops_for_good_and_nothing_is_mixed(
    tmp_path: Path, clock: ManualClock, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_journal(tmp_path / "one", clock, store)
    second = open_journal(tmp_path / "two", clock, store)
    with first, second:
        first.put(b"1", queue="one", key="a")
        first.ship()
        second.put(b"2", queue="two", key="b")
        second.ship()
        mine = rows(second)
        clock.advance(61)
        first.put(b"3", queue="one", key="c")
        shipper(first).ship()
        assert shipper(first).status().state == "superseded"
        assert "another shipper has taken over" in caplog.text
        assert restored_rows(store, tmp_path / "back") == mine
        sent = len(store.find("000001"))
        first.put(b"4", queue="one", key="d")
        shipper(first).ship()
        assert len(store.find("000001")) == sent
        second.put(b"5", queue="two", key="e")
        second.ship()
        assert restored_rows(store, tmp_path / "again") == rows(second)
    check_sound(store)


def test_what_was_found_of_another_journal_is_not_ours_after_a_restart(clock: ManualClock) -> None:
    """One whose place was taken claims an epoch, and is killed before it has written there."""
    files, inner = MemoryFiles(), MemoryStore()
    files.make_directory(Path("/d"))
    with open_journal(Path("/d/one"), clock, inner, files=files) as journal:
        _put_and_complete(journal, clock)
        journal.ship()
        assert journal.clean()
    with open_journal(Path("/d/two"), clock, inner, files=files) as journal:
        work_a_while(journal, clock, Random(1), 40)
        journal.ship()
        assert newest(inner).segments

    def no_manifest(n: int, name: str) -> str:
        return "fail" if "/manifest/" in name else ""

    store = TroubledStore(inner, no_manifest)
    with open_journal(Path("/d/one"), clock, store, files=files) as journal:
        assert not shipper(journal).ship()
    with open_journal(Path("/d/one"), clock, inner, files=files) as journal:
        journal.ship()
        live = rows(journal)
    assert restored_rows(inner, Path("/d/back"), files=files) == live


def test_shippers_that_take_turns_at_every_request_never_mix(tmp_path: Path) -> None:
    """A second shipper starts and ships while the first is inside its n-th request."""
    for at in range(1, 12):
        clock, inner = ManualClock(), MemoryStore()
        files = MemoryFiles()
        files.make_directory(Path("/d"))
        second = open_journal(Path("/d/two"), clock, inner, files=files)
        second.put(b"2", queue="two", key="b")

        def interrupt(n: int, name: str, at: int = at, second: Journal = second) -> str:
            if n == at:
                second.ship()
            return ""

        store = TroubledStore(inner, interrupt)
        first = open_journal(Path("/d/one"), clock, store, files=files)
        work_a_while(first, clock, Random(1), 40)
        shipper(first).ship()
        theirs = [rows(first), rows(second)]
        check_sound(inner)
        if any(store.requests[at - 1 : at]):
            back = restored_rows(inner, Path("/d/back"), files=files)
            assert back in theirs
            assert newest(inner).end in (
                first.status().log.written_time, second.status().log.written_time
            )  # fmt: skip
        first.close()
        second.close()


def test_pruning_deletes_what_no_kept_manifest_names_and_nothing_else(
    tmp_path: Path, clock: ManualClock, store: Store
) -> None:
    for _ in range(3):
        with open_journal(tmp_path / "jobs", clock, store) as journal:
            for n in range(6):
                work_a_while(journal, clock, Random(n), 20)
                journal.ship()
            live = rows(journal)
    before = len(store.find(""))
    told = prune(store, keep_versions=2, dry_run=True)
    assert len(store.find("")) == before
    done = prune(store, keep_versions=2)
    assert done == told and len(done.names) > 10
    assert len(store.find("")) == before - len(done.names)
    check_sound(store)
    assert restored_rows(store, tmp_path / "back") == live
    assert prune(store, keep_versions=2).names == ()
    with open_journal(tmp_path / "jobs", clock, store) as journal:
        journal.ship()
        assert newest(store).epoch == 4


def test_pruning_spares_what_a_shipper_is_about_to_name(tmp_path: Path) -> None:
    at = 0
    while True:
        at += 1
        clock, inner = ManualClock(), MemoryStore()
        files = MemoryFiles()
        files.make_directory(Path("/d"))

        def interrupt(n: int, name: str, at: int = at, inner: MemoryStore = inner) -> str:
            if n == at:
                prune(inner, keep_versions=2)
            return ""

        store = TroubledStore(inner, interrupt)
        for _ in range(2):
            with open_journal(Path("/d/jobs"), clock, store, files=files) as journal:
                for n in range(3):
                    work_a_while(journal, clock, Random(n), 20)
                    journal.ship()
                    check_sound(inner)
        if len(store.requests) < at:
            break
    assert at > 20


def test_pruning_cut_short_leaves_a_sound_archive(tmp_path: Path) -> None:
    for at in (1, 2):
        for how in ("die", "died"):
            clock, inner, files = ManualClock(), MemoryStore(), MemoryFiles()
            files.make_directory(Path("/d"))
            with open_journal(Path("/d/jobs"), clock, inner, files=files) as journal:
                for n in range(6):
                    work_a_while(journal, clock, Random(n), 20)
                    journal.ship()
            with pytest.raises(Crash):
                prune(TroubledStore(inner, sweep(how, at)), keep_versions=2)
            check_sound(inner)
            prune(inner, keep_versions=2)
            check_sound(inner)


def test_old_instants_go_by_age_and_the_kept_ones_stay_restorable(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = MemoryStore()
    options = ArchiveOptions(keep_days=3)
    kept: list[tuple[int, list[bytes]]] = []
    with open_journal(tmp_path / "jobs", clock, store, options=options) as journal:
        for _ in range(6):
            work_a_while(journal, clock, Random(1), 60)
            kept.append((journal.status().log.written_time, rows(journal)))
            journal.snapshot()
            journal.ship()
            clock.advance(86_400)
        work_a_while(journal, clock, Random(1), 60)
        journal.ship()
        now = clock.now()
    prune(store, keep_versions=2)
    manifest = check_sound(store)
    assert manifest is not None and manifest.floor > 1
    young = [(time, live) for time, live in kept if time >= now - 3 * 86_400 * SECOND]
    assert len(young) == 2
    for n, (time, live) in enumerate(young):
        assert restored_rows(store, tmp_path / f"back{n}", time) == live
    with pytest.raises(BadRequest):
        plan_restore(manifest, kept[0][0])


def test_pruning_by_hand_lets_instants_go_by_the_shippers_rule(
    tmp_path: Path, clock: ManualClock, store: Store
) -> None:
    """Beside a shipper, which goes on behind it; a journal opened later does too."""
    kept: list[tuple[int, list[bytes]]] = []
    with open_journal(tmp_path / "jobs", clock, store) as journal:
        for _ in range(6):
            work_a_while(journal, clock, Random(1), 60)
            kept.append((journal.status().log.written_time, rows(journal)))
            journal.snapshot()
            journal.ship()
            clock.advance(86_400)
        before = newest(store)
        since = clock.now() - 3 * 86_400 * SECOND
        told = prune(store, keep_versions=1, since=since, dry_run=True)
        assert newest(store) == before
        done = prune(store, keep_versions=1, since=since)
        assert done == told and any("/segments/" in name for name in done.names)
        assert newest(store) == replace(
            keep_since(before, since), sequence=before.sequence + 1, base=0
        )
        work_a_while(journal, clock, Random(1), 60)
        status = journal.ship()
        assert status.state == "shipping" and status.lag_bytes == 0
        assert newest(store).end == status.archived_to and newest(store).floor > before.floor
        check_sound(store)
    with open_journal(tmp_path / "jobs", clock, store) as journal:
        work_a_while(journal, clock, Random(2), 60)
        journal.ship()
        live = rows(journal)
    manifest = check_sound(store)
    assert manifest is not None and manifest.floor > before.floor
    assert restored_rows(store, tmp_path / "back") == live
    young = [(time, then) for time, then in kept if time >= since]
    assert len(young) == 2
    for n, (time, then) in enumerate(young):
        assert restored_rows(store, tmp_path / f"back{n}", time) == then
    with pytest.raises(BadRequest):
        plan_restore(manifest, kept[0][0])


def test_a_manifest_that_was_pruned_does_not_come_back(clock: ManualClock) -> None:
    """Its answer was lost, and before it is sent again it has served its time."""
    files, inner = MemoryFiles(), MemoryStore()
    files.make_directory(Path("/d"))
    lost: list[str] = []

    def lose(n: int, name: str) -> str:
        if "/manifest/" in name and newest(inner).snapshots and not lost:
            lost.append(name)
            return "lose"
        return ""

    store = TroubledStore(inner)
    with open_journal(Path("/d/jobs"), clock, store, files=files) as journal:
        work_a_while(journal, clock, Random(1), 60)
        journal.ship()
        journal.snapshot()
        journal.ship()
        store.trouble = lose
        work_a_while(journal, clock, Random(1), 10)
        assert not shipper(journal).ship()
        store.trouble = None
        prune(inner, keep_versions=1, since=clock.now())
        assert lost[0] not in inner.objects
        work_a_while(journal, clock, Random(1), 10)
        journal.ship()
        assert lost[0] not in inner.objects
        live = rows(journal)
    check_sound(inner)
    assert restored_rows(inner, Path("/d/back"), files=files) == live


def test_pruning_by_age_while_a_shipper_starts_deletes_nothing(clock: ManualClock) -> None:
    """One that has claimed an epoch may have read the manifest that is about to be shortened."""
    files, inner = MemoryFiles(), MemoryStore()
    files.make_directory(Path("/d"))
    with open_journal(Path("/d/jobs"), clock, inner, files=files) as journal:
        for _ in range(3):
            work_a_while(journal, clock, Random(1), 60)
            journal.snapshot()
            journal.ship()
            clock.advance(86_400)
    second = open_journal(Path("/d/jobs"), clock, None, files=files)
    second.close()

    def claim(n: int, name: str) -> str:
        if "/manifest/" in name:  # that of the pruning: at this moment another one claims
            inner.create("000002/claim", b"{}")
        return ""

    old = newest(inner)
    done = prune(TroubledStore(inner, claim), keep_versions=1, since=clock.now())
    assert done.names == ()
    assert not [fault for _, fault in verify_archive(inner, old) if fault]


def test_a_power_loss_with_the_archive_on_the_same_disk_leaves_what_it_names() -> None:
    """Journal and archive die together, at every operation of the disk."""
    sound = whole = 0
    for at in range(10, 420, 17):
        clock, files = ManualClock(), MemoryFiles(crash_at=at)
        pictures: dict[int, list[bytes]] = {}
        with contextlib.suppress(Crash):
            files.make_directory(Path("/d"))
            files.sync_directory(Path("/"))
            store = DirectoryStore("/d/archive", files)
            journal = open_journal(Path("/d/jobs"), clock, store, files=files)
            chance = Random(at)
            while True:
                work_a_while(journal, clock, chance, 10)
                pictures[journal.status().log.written_time] = rows(journal)
                journal.ship()
                journal.clean()
        for number, image in enumerate(files.images(samples=6, seed=at)):
            if number == 3:
                break
            again = DirectoryStore("/d/archive", image)
            manifest = check_sound(again)
            if manifest is None:
                continue
            sound += 1
            back = restored_rows(again, Path("/d/back"), files=image)
            if manifest.end in pictures:
                whole += 1
                assert back == pictures[manifest.end]
            with open_journal(Path("/d/jobs"), clock, again, files=image) as journal:
                journal.ship()
                live = rows(journal)
            check_sound(again)
            assert restored_rows(again, Path("/d/more"), files=image) == live
    assert sound > 20 and whole > 10


def test_an_unfinished_restore_is_refused_and_can_be_done_again(clock: ManualClock) -> None:
    store, files = MemoryStore(), MemoryFiles()
    files.make_directory(Path("/d"))
    with open_journal(Path("/d/jobs"), clock, store, files=files) as journal:
        work_a_while(journal, clock, Random(1), 100)
        journal.snapshot()
        work_a_while(journal, clock, Random(2), 100)
        journal.ship()
        live = rows(journal)
    plan = plan_restore(newest(store))
    restore(store, plan, Path("/d/back"), files=files)
    before = len(files.operations)
    refused = 0
    for at in range(1, before):
        disk = MemoryFiles()
        disk.make_directory(Path("/d"))
        disk.sync_directory(Path("/"))
        disk.crash_at = len(disk.operations) + at
        try:
            restore(store, plan, Path("/d/back"), files=disk)
        except Crash:
            pass
        else:
            break
        for number, image in enumerate(disk.images()):
            if number == 3:
                break
            if not image.exists(Path("/d/back")) or not image.names(Path("/d/back")):
                continue
            if image.exists(Path("/d/back/restoring")):
                refused += 1
                stream = Stream(Path("/d/back"), WORKQ, files=image)
                for work in (
                    lambda image=image: open_journal(Path("/d/back"), clock, None, files=image),
                    lambda image=image: JournalView(Path("/d/back"), files=image, clock=clock),
                    lambda stream=stream: salvage(stream),
                    lambda stream=stream: back_up(stream, "memory:never"),
                ):
                    with pytest.raises(SegmentError, match="a restore was not finished"):
                        work()
                restore(store, plan, Path("/d/back"), files=image)
            with open_journal(Path("/d/back"), clock, None, files=image) as journal:
                assert rows(journal) == live
    assert refused > 5


def test_damage_in_the_archive_stops_a_restore(tmp_path: Path, clock: ManualClock) -> None:
    store = MemoryStore()
    with open_journal(tmp_path / "jobs", clock, store) as journal:
        work_a_while(journal, clock, Random(1), 100)
        journal.ship()
    name = newest(store).segments[1].name
    data = bytearray(store.objects[name])
    data[100] ^= 1
    store.objects[name] = bytes(data)
    with pytest.raises(ArchiveError, match="CRC"):
        restore(store, plan_restore(newest(store)), tmp_path / "back")
    with pytest.raises(SegmentError):
        open_journal(tmp_path / "back", clock, None)
    del store.objects[name]
    with pytest.raises(JournalError):
        restore(store, plan_restore(newest(store)), tmp_path / "back")


def test_a_directory_that_is_not_empty_is_not_restored_into(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = MemoryStore()
    with open_journal(tmp_path / "jobs", clock, store) as journal:
        journal.put(b"", queue="q")
        journal.ship()
        with pytest.raises(BadRequest, match="not empty"):
            restore(store, plan_restore(newest(store)), tmp_path / "jobs")


def test_a_journal_ships_by_itself_and_ships_the_rest_when_it_closes(tmp_path: Path) -> None:
    options = ArchiveOptions(interval=0.02)
    with Journal(
        tmp_path / "jobs", sync="always", archive=tmp_path / "archive", archive_options=options
    ) as journal:
        journal.put(b"1", queue="q", key="a")

        def is_shipped() -> bool:
            status = journal.archive_status()
            return status is not None and status.archived_to > 0

        wait_until(is_shipped, what="it is archived")
        journal.put(b"2", queue="q", key="b")
        live = rows(journal)
    store = DirectoryStore(tmp_path / "archive")
    assert restored_rows(store, tmp_path / "back") == live


def test_a_journal_without_an_archive_says_so(tmp_path: Path, clock: ManualClock) -> None:
    with open_journal(tmp_path / "jobs", clock, None) as journal:
        assert journal.archive_status() is None and journal.status().archive is None
        with pytest.raises(BadRequest, match="no archive"):
            journal.ship()


@pytest.mark.parametrize(
    "wrong", [{"behind": "wait"}, {"keep_versions": 1}, {"interval": 0}, {"interval": -1}]
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        ArchiveOptions(**wrong)


def test_a_replay_up_to_an_instant_uses_a_snapshot_that_lies_before_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    with open_journal(tmp_path / "jobs", clock, None) as journal:
        work_a_while(journal, clock, Random(1), 100)
        early = journal.status().log.written_time
        clock.advance(1)
        work_a_while(journal, clock, Random(1), 10)
        journal.snapshot()  # and what it covers is gone
        work_a_while(journal, clock, Random(2), 20)
        middle, then = journal.status().log.written_time, set(journal.engine.state.rows)
        work_a_while(journal, clock, Random(3), 60)
        assert set(journal.engine.state.rows) != then
        found = replay(Stream(tmp_path / "jobs", WORKQ), until=middle)
        assert found.snapshot is not None
        assert set(found.state.rows) == then
        with pytest.raises(JournalError, match="gone"):
            replay(Stream(tmp_path / "jobs", WORKQ), until=early)


class Meanwhile(MemoryFiles):
    """A disk on which something happens when a snapshot's checkpoint is read."""

    deed: Callable[[], object] | None = None

    def open_read(self, path: Path) -> FileHandle:
        if path.suffix == ".checkpoint" and self.deed is not None:
            deed, self.deed = self.deed, None
            deed()
        return super().open_read(path)


def test_a_snapshot_that_is_taken_during_a_backup_leaves_the_older_one_to_it(
    clock: ManualClock,
) -> None:
    files, home, target = Meanwhile(), Path("/d/jobs"), Path("/d/backup")
    files.make_directory(home.parent)
    with open_journal(home, clock, None, files=files) as journal:
        work_a_while(journal, clock, Random(1), 100)
        journal.snapshot()
        journal.upkeep.lock_wait = 0  # a backup locks the cleaner out
        files.deed = journal.snapshot
        status = back_up(Stream(home, WORKQ, files=files), str(target))
        assert files.deed is None and status.archived_to
        live = rows(journal)
    assert restored_rows(open_store(str(target), files=files), Path("/d/back"), files=files) == live
