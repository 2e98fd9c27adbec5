"""The archive of a replicated journal: only what a majority has, and reigns that never fall."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from archiving import TroubledStore, check_sound, restored_rows, rows
from fastjournal import Journal
from fastjournal.archive.manifest import (
    Manifest,
    ShippedPart,
    ShippedSegment,
    ShippedSnapshot,
    epochs,
)
from fastjournal.archive.shipper import ArchiveOptions, Shipper
from fastjournal.archive.shipping import join
from fastjournal.archive.source import Reign, Tail, View
from fastjournal.archive.store import MemoryStore, Store
from fastjournal.errors import ArchiveError, ReadOnly
from fastjournal.log.manifest import Sealed
from fastjournal.testing import ManualClock, MemoryFiles

HOME = Path("/d/jobs")


class Primary:
    """A node that leads: its journal, and what a majority has of it."""

    def __init__(
        self, store: Store, epoch: int = 1, files: MemoryFiles | None = None, **more: Any
    ) -> None:
        if files is None:
            files = MemoryFiles()
            files.make_directory(Path("/d"))
            files.sync_directory(Path("/"))
        self.files = files
        self.committed = 1 << 62
        self.clock = ManualClock()
        reign = Reign(epoch, lambda time: time <= self.committed)
        self.journal = Journal(
            HOME, sync="always", segment_size=4096, background=False, clock=self.clock,
            files=files, chance=Random(1), archive="memory:unused",
            archive_options=ArchiveOptions(reign=reign, **more), wait_safe=self.wait_safe,
        )  # fmt: skip
        assert self.journal.shipper is not None
        self.shipper: Shipper = self.journal.shipper
        self.shipper.open_store = lambda: store

    def wait_safe(self, time: int) -> None:
        self.shipper.ship()  # there is no thread that would

    def put(self, *keys: str) -> int:
        """Jobs of a size that fills segments; returns the last TIME."""
        for key in keys:
            self.clock.advance(ns=1_000_000)
            self.journal.put(bytes(900), key=key, queue="q")
        return int(self.journal.status().log.written_time)

    def ship(self) -> int:
        return self.journal.ship().archived_to

    def fail_over(self, store: Store, epoch: int, **more: Any) -> Primary:
        """The next primary: another node, with the same bytes."""
        return Primary(store, epoch, self.files.killed(), **more)


def keys(count: int, begin: int = 0) -> list[str]:
    return [f"k{number}" for number in range(begin, begin + count)]


def test_nothing_is_shipped_that_a_majority_does_not_have(tmp_path: Path) -> None:
    """F58: neither a tail, nor a sealed segment, nor a snapshot that tells of it."""
    store = MemoryStore()
    primary = Primary(store)
    primary.committed = primary.put(*keys(6))
    assert primary.ship() == primary.committed
    pictures = {primary.committed: rows(primary.journal)}
    primary.put(*keys(9, 6))  # two segments more
    assert primary.ship() == primary.committed
    manifest = check_sound(store)
    assert manifest is not None and manifest.end == primary.committed
    assert restored_rows(store, tmp_path / "again") == pictures[primary.committed]
    assert primary.shipper.hold <= 2, "what is not archived must stay"
    primary.committed = 1 << 62
    assert primary.ship() == primary.journal.status().log.written_time


def test_a_mark_in_a_segment_that_was_left_since_is_shipped_up_to_there() -> None:
    store = MemoryStore()
    primary = Primary(store)
    primary.ship()
    middle = primary.put(*keys(2))
    primary.committed = middle
    primary.ship()
    primary.put(*keys(6, 2))
    assert primary.ship() == middle
    assert primary.journal.status().log.written_time > middle


def test_the_next_primary_goes_on_where_the_archive_stands(tmp_path: Path) -> None:
    """F58: what is equal is not shipped again, whoever shipped it."""
    inner = MemoryStore()
    first = Primary(inner, 3)
    first.put(*keys(12))
    first.ship()
    store = TroubledStore(inner)
    second = first.fail_over(store, 4)
    second.put(*keys(2, 12))
    second.ship()
    assert not [name for name in store.requests if "/segments/" in name]
    assert restored_rows(inner, tmp_path / "again") == rows(second.journal)
    manifest = check_sound(inner)
    assert manifest is not None
    assert {one.epoch for one in manifest.segments} == {1} and manifest.epoch == 2


def test_a_deposed_primary_that_wakes_up_cannot_take_the_archive_back() -> None:
    """F48, F58: it had not claimed its epoch when it was stopped."""
    store = MemoryStore()
    first = Primary(store, 5)
    first.put(*keys(3))
    second = first.fail_over(store, 6)
    second.put("new")
    second.ship()
    before = dict(store.objects)
    assert first.shipper.ship()
    assert first.shipper.status().state == "superseded"
    assert "reigns in epoch 6" in first.shipper.status().last_error
    assert store.objects == before
    second.put("newer")
    second.ship()
    assert second.shipper.status().state == "shipping"


@pytest.mark.parametrize("folder_first", [False, True])
def test_of_two_who_claim_at_once_the_later_reign_wins(folder_first: bool) -> None:
    """F58: whoever creates the claim first; `folder_first`: a folder is seen before its claim."""
    inner = MemoryStore()
    second = Primary(inner, 6)

    class Racing(TroubledStore):
        def folders(self, prefix: str) -> list[str]:
            return super().folders(prefix) or ["000001"] * folder_first

    def race(number: int, name: str) -> str:
        if number == 1:  # it is about to claim
            second.put("new")
            second.ship()
        return ""

    first = Primary(Racing(inner, race), 5)
    first.put(*keys(3))
    first.shipper.ship()
    assert first.shipper.status().state == "superseded"
    assert epochs(inner) == [1] and second.ship()


def test_an_archive_that_goes_further_than_the_journal_is_left_alone() -> None:
    """F58: a loss was accepted, or what is not committed was archived: it is told."""
    store = MemoryStore()
    first = Primary(store, 1)
    first.put(*keys(3))
    kept = first.files.killed()
    first.put(*keys(6, 3))
    first.ship()
    before = {name: data for name, data in store.objects.items() if "/claim" not in name}
    second = Primary(store, 2, kept)
    assert not second.shipper.ship()
    assert "another history" in second.shipper.status().last_error
    after = {name: data for name, data in store.objects.items() if "/claim" not in name}
    assert after == before


def test_another_journal_does_not_ship_there() -> None:
    store = MemoryStore()
    first = Primary(store, 1)
    first.put(*keys(5))
    first.ship()
    other = Primary(store, 2)
    other.clock.advance(3600)
    other.put(*keys(5))
    assert not other.shipper.ship()
    assert "nothing in common" in other.shipper.status().last_error


def test_a_snapshot_lets_go_only_what_is_archived(tmp_path: Path) -> None:
    """F58: the other nodes drop the same, so the archive would have a gap after a failover."""
    inner = MemoryStore()
    store = TroubledStore(inner)
    primary = Primary(store)
    primary.put(*keys(12))
    primary.ship()
    primary.put(*keys(8, 12))
    primary.journal.snapshot()
    assert not [name for name in primary.files.names(HOME) if name == "000000001.log"]
    second = primary.fail_over(store, 2)
    second.put("more")
    second.ship()
    assert restored_rows(inner, tmp_path / "again") == rows(second.journal)
    first_part = plan_begin(inner)
    assert first_part and first_part < primary.clock.now()


def plan_begin(store: Store) -> int:
    manifest = check_sound(store)
    assert manifest is not None and not manifest.floor
    return manifest.begin


def test_without_the_archive_a_snapshot_of_a_replicated_journal_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournal.journal.disk.upkeep.ARCHIVE_WAIT", 0.1)
    store = TroubledStore(MemoryStore(), lambda number, name: "fail")
    primary = Primary(store)
    primary.put(*keys(12))
    with pytest.raises(ReadOnly, match="archive lacks"):
        primary.journal.snapshot()
    assert primary.files.exists(HOME / "000000001.log")
    assert not [name for name in primary.files.names(HOME) if name.endswith("checkpoint")]


def test_a_snapshot_and_a_tail_alone_are_an_archive_that_is_whole() -> None:
    """It must not begin anew with every round."""
    store = MemoryStore()
    primary = Primary(MemoryStore())
    primary.put(*keys(12))
    primary.journal.snapshot()
    later = primary.fail_over(store, 2)
    later.put("more")
    for _ in range(3):
        later.put("again")
        later.ship()
    assert len(epochs(store)) <= 2


# What is decided, without a store and without a disk.


def segment(number: int, first: int, last: int, crc: int = 7) -> ShippedSegment:
    return ShippedSegment(1, number, first, last, 100, crc)


def sealed(number: int, first: int, last: int, crc: int = 7) -> Sealed:
    return Sealed(number, first, last, 100, crc)


OLD = Manifest(
    1, 5, 0, (segment(4, 10, 19), segment(5, 20, 29)), (ShippedSnapshot(1, 4, 9, 50, 9, "00"),),
    (ShippedPart(1, 6, 0, 50, 1, 30, 34),), floor=4,
)  # fmt: skip


def view(*segments: Sealed, tail: Tail, **more: Any) -> View:
    used = max((one.number for one in segments), default=-1)
    return View(segments, used, tail, None, tail.last, **more)


def test_nodes_count_on_their_own_and_join_by_time() -> None:
    """F58: their numbers differ, their records do not."""
    here = view(sealed(1, 10, 19), sealed(2, 20, 29), tail=Tail(3, 60, 40, 30))
    joined = join(OLD, here)
    assert (joined.begin, joined.shift) == (6, 3)
    assert joined.kept.segments == OLD.segments and joined.kept.snapshots == OLD.snapshots
    assert not joined.kept.parts


def test_what_was_only_shipped_in_parts_is_shipped_as_it_was_sealed() -> None:
    here = view(sealed(2, 20, 29), sealed(3, 30, 34), tail=Tail(4, 60, 40, 35))
    assert (join(OLD, here).begin, join(OLD, here).shift) == (6, 3)


def test_behind_a_snapshot_the_boundary_is_the_last_record_that_it_stands_for() -> None:
    here = view(tail=Tail(2, 60, 50, 31), floor=2, dropped_to=29)
    assert (join(OLD, here).begin, join(OLD, here).shift) == (6, 4)


def test_other_splits_are_joined_at_the_last_place_that_both_have() -> None:
    """A tail that was cut off has left a shorter segment."""
    here = view(sealed(1, 10, 19), sealed(2, 20, 24), tail=Tail(3, 60, 40, 25))
    joined = join(OLD, here)
    assert (joined.begin, joined.shift) == (5, 3)
    assert joined.kept.segments == OLD.segments[:1]


def test_a_gap_begins_anew_and_a_difference_is_refused() -> None:
    gap = view(tail=Tail(2, 60, 90, 81), floor=2, dropped_to=80)
    assert join(OLD, gap) == (replace(OLD, segments=(), snapshots=(), parts=(), floor=0), 0, 0)
    with pytest.raises(ArchiveError, match="another one"):
        join(OLD, view(sealed(1, 10, 19, crc=8), tail=Tail(2, 60, 40, 20)))
    with pytest.raises(ArchiveError, match="another history"):
        join(OLD, view(sealed(1, 10, 19), tail=Tail(2, 60, 33, 20)))
    with pytest.raises(ArchiveError, match="nothing in common"):
        join(OLD, view(sealed(1, 11, 18), tail=Tail(2, 60, 40, 21)))
