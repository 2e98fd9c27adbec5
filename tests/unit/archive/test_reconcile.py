"""What a shipper decides, without a store and without a disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import google_crc32c
import pytest

from fastjournal.archive.manifest import (
    Manifest,
    ShippedPart,
    ShippedSegment,
    ShippedSnapshot,
    decode,
    encode,
    keep_since,
)
from fastjournal.archive.restore import plan_restore
from fastjournal.archive.shipping import (
    CopyPart,
    CopySegment,
    Create,
    Get,
    ListEpochs,
    ReadNewest,
    RememberLineage,
    Shipping,
    Superseded,
    reconcile,
)
from fastjournal.archive.source import Tail, View
from fastjournal.errors import ArchiveError, BadRequest, VersionMismatch
from fastjournal.log.manifest import Sealed


def segment(number: int, crc: int = 7, **more: Any) -> ShippedSegment:
    return ShippedSegment(1, number, number * 10, number * 10 + 9, 100, crc, **more)


def sealed(number: int, crc: int = 7, cleaned_to: int = 0) -> Sealed:
    return Sealed(number, number * 10, number * 10 + 9, 100, crc, cleaned_to)


def snapshot(number: int, as_of: int) -> ShippedSnapshot:
    return ShippedSnapshot(1, number, as_of, 50, 9, "00")


def view(*segments: Sealed, tail: Tail | None = None) -> View:
    last = max([one.last for one in segments] + ([tail.last] if tail else []), default=0)
    return View(segments, max((one.number for one in segments), default=0), tail, None, last)


OLD = Manifest(
    1, 5, 0, (segment(1), segment(2), segment(3)), (snapshot(2, 15), snapshot(3, 35)),
    (ShippedPart(1, 4, 0, 50, 1, 40, 44),),
)  # fmt: skip


def test_equal_bytes_are_the_same_history() -> None:
    kept = reconcile(OLD, view(sealed(1), sealed(2), sealed(3), tail=Tail(4, 60, 45)), ours=False)
    assert kept.segments == OLD.segments and kept.snapshots == OLD.snapshots and not kept.parts


def test_a_branch_keeps_what_lies_before_it_and_no_later_snapshot() -> None:
    kept = reconcile(OLD, view(sealed(1), sealed(2), sealed(3, crc=8)), ours=True)
    assert [one.number for one in kept.segments] == [1, 2]
    assert kept.snapshots == (snapshot(2, 15),)


def test_a_segment_cleaned_since_is_known_again_only_by_who_shipped_it() -> None:
    now = view(sealed(1, crc=8, cleaned_to=12), sealed(2), sealed(3), tail=Tail(4, 60, 45))
    assert reconcile(OLD, now, ours=True).segments == OLD.segments
    assert reconcile(OLD, now, ours=False).segments == ()


def test_another_journal_has_nothing_in_common() -> None:
    other = view(sealed(1, crc=1), sealed(2, crc=1))
    for ours in (False, True):
        assert reconcile(OLD, other, ours=ours).segments == ()
    assert reconcile(OLD, view(), ours=False).segments == ()


def test_what_the_journal_has_not_sealed_is_not_its_own() -> None:
    kept = reconcile(OLD, view(sealed(1), sealed(2), tail=Tail(3, 60, 35)), ours=True)
    assert [one.number for one in kept.segments] == [1, 2]


def drive(shipping: Shipping, seen: View, now: int, answers: dict[type, Any]) -> list[Any]:
    """Run a round; the answers by kind of request. Returns the requests."""
    asked: list[Any] = []
    round_ = shipping.round(seen, now)
    answer: Any = None
    try:
        while True:
            request = round_.send(answer)
            asked.append(request)
            given = answers.get(type(request))
            answer = given(request) if callable(given) else given
    except StopIteration:
        return asked


ANSWERS: dict[type, Any] = {
    ListEpochs: lambda _: [],
    ReadNewest: None,
    Create: True,
    RememberLineage: None,
    CopySegment: lambda request: request.listed,
    CopyPart: lambda request: request.listed._replace(crc=1, first=40, last=44),
}


def test_a_round_ships_oldest_first_and_names_only_what_was_shipped() -> None:
    shipping = Shipping("word")
    assert shipping.hold == 0
    seen = view(sealed(1), sealed(2), tail=Tail(3, 60, 35))
    asked = drive(shipping, seen, 1, ANSWERS)
    manifests = [decode(o.data, o.name) for o in asked if isinstance(o, Create) and "man" in o.name]
    named = [[one.number for one in manifest.segments] for manifest in manifests]
    assert named == [[1], [1, 2], []]  # the last one has a base
    assert [manifest.base for manifest in manifests] == [0, 0, 2]
    assert shipping.hold == 3
    assert not drive(shipping, seen, 2, ANSWERS)


def test_a_manifest_whose_name_is_taken_by_other_bytes_ends_it() -> None:
    shipping = Shipping("word")
    answers = ANSWERS | {Create: lambda one: "manifest" not in one.name, Get: b"something else"}
    with pytest.raises(Superseded):
        drive(shipping, view(sealed(1)), 1, answers)
    with pytest.raises(Superseded):
        drive(shipping, view(sealed(1)), 2, ANSWERS)
    assert shipping.hold == 0


def test_a_higher_epoch_ends_it() -> None:
    shipping = Shipping("word")
    drive(shipping, view(sealed(1)), 1, ANSWERS)
    with pytest.raises(Superseded):
        drive(shipping, view(sealed(1), sealed(2)), 2, ANSWERS | {ListEpochs: lambda _: [1, 2]})
    assert shipping.superseded


def test_keeping_by_age_needs_a_snapshot_as_of_before() -> None:
    entries, images = OLD.segments, OLD.snapshots
    assert keep_since(OLD, 14) == OLD
    assert keep_since(OLD, 34) == replace(OLD, segments=entries[1:], floor=2)
    assert keep_since(OLD, 99) == replace(OLD, segments=entries[2:], snapshots=images[1:], floor=3)


def test_a_manifest_comes_back_as_it_was_and_damage_is_seen() -> None:
    data = encode(OLD)
    assert decode(data, "x") == OLD
    for at in (0, 9, len(data) // 2):
        with pytest.raises(ArchiveError):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "x")
    with pytest.raises(ArchiveError):
        decode(data[:-20], "x")
    later = encode(OLD)[9:-1].replace(b'"format":1', b'"format":2')
    with pytest.raises(VersionMismatch):
        decode(b"%08x\n%s\n" % (google_crc32c.value(later), later), "x")


def test_a_plan_takes_the_snapshot_before_the_instant_and_what_follows() -> None:
    plan = plan_restore(OLD, 25)
    assert plan.snapshot == snapshot(2, 15)
    assert [one.number for one in plan.segments] == [2] and not plan.parts
    latest = plan_restore(OLD)
    assert latest.snapshot == snapshot(3, 35) and latest.parts == OLD.parts
    assert latest.bytes == 50 + 100 + 50
    assert [one.number for one in plan_restore(OLD, 14).segments] == [1]
    with pytest.raises(BadRequest):
        plan_restore(OLD, 9)


def test_of_an_archive_that_is_a_snapshot_and_a_tail_another_journal_keeps_nothing() -> None:
    """No segment is there that could prove anything."""
    pruned = replace(OLD, segments=(), snapshots=OLD.snapshots[-1:], floor=3)
    mine = view(sealed(1, crc=8), tail=Tail(2, 50, 99))
    kept = reconcile(pruned, mine, ours=False)
    assert (kept.segments, kept.snapshots, kept.floor) == ((), (), 0)
    assert reconcile(pruned, view(tail=Tail(4, 50, 99)), ours=True).snapshots == pruned.snapshots


def test_a_snapshot_of_an_empty_journal_is_not_kept_beside_another_history() -> None:
    empty = replace(OLD, snapshots=(snapshot(2, 0),))
    assert reconcile(empty, view(sealed(1, crc=8)), ours=False).snapshots == ()
