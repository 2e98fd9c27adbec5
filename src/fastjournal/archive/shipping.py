"""What is shipped next: a machine that is shown views and answers, and does nothing itself.

A round is a generator: it yields a request, is sent the answer, and ends when the archive holds
what the view showed. Whoever drives it may stop anywhere; the next round goes on from what is
known to have happened.

Rules:

1. First an epoch is claimed, then the newest manifest is read: what stays of it in ours is said by
   `reconcile`. A claim has a word of its own in it, so that one whose answer was lost is known
   again.
2. An object is named only after its upload was answered. A manifest whose answer was lost is sent
   again, the same bytes; another one under its name means that somebody else ships here.
3. Oldest first, a manifest behind each sealed segment; the last TIME that can be restored never
   goes back, except when the journal itself was put back.
4. The tail is shipped in stretches; small ones are shipped again as one, so that there are few:
   about twenty and one for each 4 MiB, whatever trickles in.
5. A segment is shipped as it was sealed: the cleaner waits for that (`hold`). If it could not wait,
   or had been at work before there was an archive, segments of before and after do not fit
   together: an end may be gone whose beginning is archived. Then the archive begins anew with what
   the journal holds at one moment: all of it is shipped, and named only if nothing changed.
6. Once a higher epoch is there, it is over for good.
7. Only `prune` may write a manifest in our epoch: the last one without its oldest segments. Then we
   go on behind it, without them too.
8. Of a replicated journal the primary ships, and its claim says in which epoch of the journal it
   reigns. Who claims has read the claim before its own, and stops if that is of a later reign: so
   along the epochs of an archive reigns never fall, and a primary that was deposed while it stood
   still can not take the archive back. What was archived is committed, so the next primary has it
   too, and goes on behind it (`join`); if it does not fit, nothing is shipped, and that is told.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

from fastjournal.archive.manifest import (
    Manifest,
    ShippedPart,
    ShippedSegment,
    ShippedSnapshot,
    claim_name,
    decode,
    encode,
    is_pruned,
    keep_since,
)
from fastjournal.archive.source import LocalSnapshot, Tail, View
from fastjournal.clock import SECOND
from fastjournal.errors import ArchiveError, JournalError
from fastjournal.log.manifest import Sealed

__all__ = [
    "TAIL_BYTES",
    "CopyPart",
    "CopySegment",
    "CopySnapshot",
    "Create",
    "Get",
    "Joined",
    "Lineage",
    "ListEpochs",
    "Look",
    "ReadNewest",
    "RememberLineage",
    "Renumber",
    "Shipping",
    "Superseded",
    "join",
    "reconcile",
]

TAIL_BYTES = 4 * 1024 * 1024
"""Bytes of the tail that are worth an object of their own."""
_LOOK_FOR_EPOCHS = 60 * SECOND
_DAY = 24 * 3600 * SECOND
_log = logging.getLogger(__name__)


class Superseded(ArchiveError):
    """Somebody else ships to this archive: this shipper has stopped for good."""


class Lineage(NamedTuple):
    """What the journal's own directory remembers of its archive."""

    epoch: int
    """The epoch claimed last."""
    word: str
    after: int
    """The epoch of the manifest that was found then, if that was ours too; 0: none was."""
    repaired: int = 0
    """Bytes that repairs of the log had told of by then."""


@dataclass(frozen=True, slots=True)
class ListEpochs:
    """Which epochs are there? Answer: list[int]."""


@dataclass(frozen=True, slots=True)
class Look:
    """What does the journal hold? Answer: View."""


@dataclass(frozen=True, slots=True)
class Renumber:
    """Add this to the numbers of the journal's segments from now on. Answer: View."""

    shift: int


@dataclass(frozen=True, slots=True)
class ReadNewest:
    """What is the archive? Answer: Manifest or None."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make this object. Answer: whether it was made."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Answer: the bytes of this object; None: there is none."""

    name: str


@dataclass(frozen=True, slots=True)
class RememberLineage:
    """Keep this beside the log, durably."""

    lineage: Lineage


@dataclass(frozen=True, slots=True)
class CopySegment:
    """Ship a sealed segment. Answer: how it is listed, packed or not; None: it changed."""

    sealed: Sealed
    listed: ShippedSegment


@dataclass(frozen=True, slots=True)
class CopySnapshot:
    """Ship a snapshot. Answer: whether it was still there."""

    snapshot: LocalSnapshot
    listed: ShippedSnapshot


@dataclass(frozen=True, slots=True)
class CopyPart:
    """Ship a stretch of the tail. Answer: how it is listed, CRC and TIMEs too; None: it changed."""

    listed: ShippedPart
    fresh: int
    """Up to there it was shipped before."""


Request = (
    ListEpochs
    | Look
    | Renumber
    | ReadNewest
    | Create
    | Get
    | RememberLineage
    | CopySegment
    | CopySnapshot
    | CopyPart
)
Round = Generator[Request, Any, None]


class Shipping:
    """What one shipper knows of its archive."""

    def __init__(
        self,
        word: str,
        lineage: Lineage | None = None,
        keep_days: float = 0,
        reign: int = 0,
    ) -> None:
        """`word`: drawn for this shipper alone. `lineage`: what the directory remembers.

        `reign`: the epoch of a replicated journal (rule 8); 0: it is not replicated.
        """
        self._word = word
        self._lineage = lineage
        self._reign = reign
        self._begin = 0  # segments below this number are archived by another node's splits
        self._shift = 0
        self._keep = int(keep_days * _DAY)
        self.epoch = 0
        """The epoch claimed; 0: none yet."""
        self.written: Manifest | None = None
        """The manifest written last."""
        self.superseded = False
        self._segments: dict[int, ShippedSegment] = {}
        self._snapshots: tuple[ShippedSnapshot, ...] = ()
        self._parts: list[ShippedPart] = []
        self._floor = 0
        self._gathering = False  # the archive begins anew (rule 5)
        self._epoch_used = False  # whether anything was shipped in it
        self._least_end = 0
        self._listed = True  # whether the list of segments is that of `_base`
        self._base = 0
        self._pending: Manifest | None = None
        self._looked = 0
        self.hold = 0
        """Segments below this number are archived: they may change or go."""

    def round(self, view: View, now: int) -> Round:
        """Ship what the view shows and the archive lacks."""
        if self.superseded:
            raise Superseded
        if self._pending is not None:
            yield from self._send_again(self._pending)
        if not self.epoch:
            if not view.complete or (self._reign and not view.last):  # nothing is committed yet
                return
            view = yield from self._claim(view, now)
        if self._is_broken(view):
            if self._epoch_used:  # nothing that was named is ever written again
                yield from self._take_epoch(now)
            if self._shift:
                view = yield from self._renumber(0)
            self._begin_anew(view)
        for sealed in sorted(view.sealed):
            if self._lacks(sealed):
                if not (yield from self._ship_segment(sealed)):
                    return  # it changed: the next view shows what it is
                if not self._gathering:
                    yield from self._write(now)
                    self._move_hold(view)
        yield from self._ship_snapshot(view)
        if self._gathering and not (yield from self._gather(view)):
            return
        if view.tail is not None and view.tail.segment not in self._segments:
            yield from self._ship_tail(view.tail)
        yield from self._write(now)
        self._move_hold(view)

    def behind(self, view: View) -> int:
        """Bytes that the archive lacks."""
        lacking = sum(one.size for one in view.sealed if self._lacks(one))
        tail = view.tail
        if tail is not None and tail.segment not in self._segments:
            lacking += max(0, tail.end - self._shipped_to(tail.segment))
        return lacking

    def _lacks(self, sealed: Sealed) -> bool:
        number = sealed.number
        return number not in self._segments and number >= max(self._floor, self._begin)

    def _shipped_to(self, segment: int) -> int:
        return max((one.end for one in self._parts if one.segment == segment), default=0)

    def _move_hold(self, view: View) -> None:
        if self._pending is None and self._listed and self.written is not None:
            lacking = [one.number for one in view.sealed if self._lacks(one)]
            self.hold = min(lacking, default=view.used + 1)

    def _is_broken(self, view: View) -> bool:
        """Whether records are gone that were not archived (rule 5)."""
        if self._gathering:
            return False
        archived = max((one.last for one in self._segments.values()), default=0)
        # What lies below the floor is told by its snapshot.
        covered = [one.as_of for one in self._snapshots if one.number == self._floor]
        archived = max(archived, *covered, 0)
        return view.dropped_to > archived or any(
            one.cleaned_to and self._lacks(one) for one in view.sealed
        )

    def _begin_anew(self, view: View) -> None:
        if self._segments:
            _log.error(
                "records were dropped before they were archived, up to TIME %d: the archive begins"
                " anew; instants before this can be restored from older manifests only",
                view.dropped_to,
            )
        self._segments, self._snapshots, self._parts = {}, (), []
        self._begin = 0
        self._floor, self._gathering, self._listed = view.floor, True, False

    def _gather(self, view: View) -> Generator[Request, Any, bool]:
        """Whether what was shipped is what the journal held at one moment."""
        fresh: View = yield Look()
        there = {one.number: (one.size, one.crc) for one in fresh.sealed}
        stale = [
            number
            for number, one in self._segments.items()
            if there.get(number) != (one.size, one.crc)
        ]
        covered = not fresh.floor or any(one.number >= fresh.floor for one in self._snapshots)
        if stale or not covered or fresh.floor != self._floor:
            for number in stale:
                del self._segments[number]
            self._floor = fresh.floor
            self._snapshots = tuple(one for one in self._snapshots if one.number >= fresh.floor)
            return False
        exact_from = fresh.last if view.dropped_to else 0
        self._segments = {
            number: one._replace(exact_from=exact_from) for number, one in self._segments.items()
        }
        self._gathering, self._least_end = False, 0
        return True

    def _claim(self, view: View, now: int) -> Generator[Request, Any, View]:
        epoch = yield from self._take_epoch(now)
        old: Manifest | None = yield ReadNewest()
        after = 0 if old is None else old.epoch
        if after > epoch or (after == epoch and self._reign):
            self._stop(after)
        known = self._lineage
        ours = known is not None and after in (known.epoch, known.after)
        self._lineage = Lineage(epoch, self._word, after if ours else 0)
        yield RememberLineage(self._lineage)
        if old is not None and self._reign:
            joined = join(old, view)
            self._segments = {one.number: one for one in joined.kept.segments}
            self._snapshots, self._floor = joined.kept.snapshots, joined.kept.floor
            self._begin = joined.begin
            if joined.begin:
                self._least_end = old.end
            else:
                _log.error(
                    "what lies between the end of the archive, TIME %d, and %d was dropped: it"
                    " begins anew",
                    old.end,
                    view.dropped_to,
                )
            if joined.shift:
                view = yield from self._renumber(joined.shift)
        elif old is not None:
            kept = reconcile(old, view, ours=ours)
            self._segments = {one.number: one for one in kept.segments}
            self._snapshots, self._floor = kept.snapshots, kept.floor
            if len(kept.segments) < len(old.segments) or view.last < old.end:
                _log.warning(
                    "the archive's history behind TIME %d is not this journal's: left to epoch %d",
                    kept.end,
                    old.epoch,
                )
            else:
                self._least_end = old.end
        self._looked = now
        self.epoch = epoch
        return view

    def _renumber(self, shift: int) -> Generator[Request, Any, View]:
        self._shift, self.hold = shift, 0
        view: View = yield Renumber(shift)
        return view

    def _take_epoch(self, now: int) -> Generator[Request, Any, int]:
        """Claim the next epoch that is free."""
        taken = yield ListEpochs()
        if self.epoch and max(taken, default=0) > self.epoch:
            self._stop(max(taken))
        epoch = max(taken, default=0)
        fields: dict[str, Any] = {"word": self._word, "at": now}
        if self._reign:
            fields["reign"] = self._reign
        claim = json.dumps(fields).encode()
        if epoch != self.epoch and epoch and (yield from self._is_mine(epoch)):
            epoch -= 1  # claimed before, and the answer was lost
        while True:
            epoch += 1
            if (yield Create(claim_name(epoch), claim)) or (yield from self._is_mine(epoch)):
                break
        if self.epoch:
            self.epoch = epoch
        self._listed = self._epoch_used = False
        return epoch

    def _is_mine(self, epoch: int) -> Generator[Request, Any, bool]:
        """Whether a claim has the word of this shipper in it; ends it if that of a later reign."""
        found = yield Get(claim_name(epoch))
        if found is None:  # a folder whose claim is just being made: it is free until then
            return bool(self._reign)
        claim = json.loads(found)
        if claim.get("reign", 0) > self._reign:
            self._stop(epoch, f", which reigns in epoch {claim['reign']} of the journal")
        return bool(claim.get("word") == self._word)

    def _stop(self, epoch: int, who: str = "") -> NoReturn:
        self.superseded = True
        raise Superseded(f"epoch {epoch} was begun by another shipper{who}")

    def _ship_segment(self, sealed: Sealed) -> Generator[Request, Any, bool]:
        number, first, last, size, crc, _ = sealed
        listed = ShippedSegment(self.epoch, number, first, last, size, crc)
        self._epoch_used = True
        done: ShippedSegment | None = yield CopySegment(sealed, listed)
        if done is None:
            return False
        self._segments[number] = done
        self._parts = [one for one in self._parts if one.segment > number]
        self._listed = False
        return True

    def _ship_snapshot(self, view: View) -> Round:
        local = view.snapshot
        if local is None or any(one.number == local.number for one in self._snapshots):
            return
        if local.as_of > view.last:  # it may hold what is not synced yet
            return
        number, as_of, size, crc, _, checkpoint = local
        listed = ShippedSnapshot(self.epoch, number, as_of, size, crc, checkpoint.hex())
        self._epoch_used = True
        if (yield CopySnapshot(local, listed)):
            self._snapshots = (*self._snapshots, listed)
            self._listed = False

    def _ship_tail(self, tail: Tail) -> Round:
        parts = [one for one in self._parts if one.segment == tail.segment]
        start = fresh = parts[-1].end if parts else 0
        if tail.end <= start:
            return
        while parts and parts[-1].size <= tail.end - start:
            if tail.end - parts[-1].start > TAIL_BYTES:
                break
            start = parts.pop().start
        listed = ShippedPart(self.epoch, tail.segment, start, tail.end, 0, 0, 0)
        self._epoch_used = True
        done: ShippedPart | None = yield CopyPart(listed, fresh)
        if done is not None:
            self._parts = [*parts, done]

    def _write(self, now: int) -> Round:
        """A manifest of what there is, if it says anything new."""
        last = self.written
        parts = tuple(self._parts)
        if self._listed and last is not None and last.parts == parts:
            return
        self._drop_old(now)
        next_segment = max(self._segments, default=-1)
        manifest = Manifest(
            self.epoch,
            1 if last is None else last.sequence + 1,
            now,
            tuple(self._segments[number] for number in sorted(self._segments)),
            self._snapshots,
            tuple(one for one in parts if one.segment > next_segment),
            self._base if self._listed else 0,
            self._floor,
        )
        if manifest.end < self._least_end or not (manifest.segments or manifest.parts):
            return
        if not self._listed or now - self._looked >= _LOOK_FOR_EPOCHS:
            taken = yield ListEpochs()
            self._looked = now
            if max(taken, default=0) > self.epoch:
                self._stop(max(taken))
        self._pending = manifest
        yield from self._send_manifest(manifest)
        if self.written is not manifest:  # it was pruned meanwhile
            yield from self._write(now)

    def _send_again(self, manifest: Manifest) -> Round:
        """It may have been made, pruned behind, and be gone: then it must not come back."""
        newest: Manifest | None = yield ReadNewest()
        there = (0, 0) if newest is None else (newest.epoch, newest.sequence)
        if there[0] == self.epoch and there[1] > manifest.sequence:
            self._note_written(manifest)
        else:
            yield from self._send_manifest(manifest)

    def _send_manifest(self, manifest: Manifest) -> Round:
        data = encode(manifest)
        if not (yield Create(manifest.name, data)):
            found: bytes | None = yield Get(manifest.name)
            if found != data:
                self._make_way(manifest, found)
                return
        self._note_written(manifest)

    def _note_written(self, manifest: Manifest) -> None:
        self._pending = None
        self.written = manifest
        self._least_end = manifest.end
        if not manifest.base:
            self._base = manifest.sequence
            named = {one.number for one in manifest.segments}
            self._listed = named == set(self._segments) and manifest.snapshots == self._snapshots

    def _make_way(self, manifest: Manifest, found: bytes | None) -> None:
        """Under our next name lies what somebody else has written (rule 7)."""
        last, theirs = self.written, None
        with contextlib.suppress(JournalError):
            theirs = None if found is None else decode(found, manifest.name)
        if theirs is None or last is None or not is_pruned(theirs, last):
            self._stop(self.epoch)
        self._take_over(theirs)
        self._pending = None
        self.written = theirs
        self._listed = False

    def _drop_old(self, now: int) -> None:
        if self._keep and not self._listed:
            segments = tuple(self._segments[number] for number in sorted(self._segments))
            every = Manifest(self.epoch, 0, now, segments, self._snapshots, floor=self._floor)
            self._take_over(keep_since(every, now - self._keep))

    def _take_over(self, kept: Manifest) -> None:
        """Go on with what of ours another manifest names."""
        floor = kept.floor
        self._segments = {n: one for n, one in self._segments.items() if n >= floor}
        named = set(kept.snapshots)
        newer = max((one.number for one in kept.snapshots), default=-1)
        self._snapshots = tuple(
            one for one in self._snapshots if one in named or one.number > newer
        )
        self._floor = floor


def reconcile(old: Manifest, view: View, *, ours: bool) -> Manifest:
    """What an archive's manifest and a journal have in common.

    `ours`: the journal remembers that it wrote the manifest itself. Then a segment that was cleaned
    since is the one in the archive. Otherwise only equal bytes are proof, and what lies before
    equal bytes: a restored copy, or another journal, may go on where this archive was.
    """
    local = {one.number: one for one in view.sealed}
    parted = max((one.number for one in old.segments), default=0) + 1
    equal = -1
    for one in old.segments:
        mine = local.get(one.number)
        same = mine is not None and (mine.size, mine.crc) == (one.size, one.crc)
        if same:
            equal = one.number
            continue
        stranger = one.number > view.used
        differs = mine is not None and not (ours and mine.cleaned_to)
        if stranger or differs:
            parted = one.number
            break
    upto = parted if ours else min(parted, equal + 1)
    segments = tuple(one for one in old.segments if one.number < upto)
    proven = ours or equal >= 0
    whole = proven and len(segments) == len(old.segments) and view.last >= old.end
    last = max((one.last for one in segments), default=0)
    snapshots = tuple(
        one for one in old.snapshots if whole or (one.as_of <= last and one.number <= upto)
    )
    if old.floor and not any(one.number >= old.floor for one in snapshots):
        return replace(old, segments=(), snapshots=(), parts=(), base=0, floor=0)
    return replace(old, segments=segments, snapshots=snapshots, parts=(), base=0)


class Joined(NamedTuple):
    """Where a primary goes on in the archive of its journal."""

    kept: Manifest
    begin: int
    """The number in the archive of the first segment that is ours to ship; 0: nothing is kept."""
    shift: int
    """What to add to the numbers of our segments for those of the archive."""


class _Boundary(NamedTuple):
    """A place between two segments, as both sides see it; a TIME of 0 is not known."""

    before: int
    after: int
    number: int
    """Of the segment behind it."""

    def is_same(self, other: _Boundary) -> bool:
        return 0 < self.before == other.before or 0 < self.after == other.after


def join(old: Manifest, view: View) -> Joined:
    """Where a primary goes on in the archive that the one before it has left (rule 8).

    Both tell one history, so where each of them begins a segment with the same record, or behind
    the same one, what lies before is the same. Numbers may differ, and so may, after a divergent
    tail was cut off, the splits: we go on from the last place that both have.
    """
    if old.end > view.last:
        raise ArchiveError(
            f"the archive goes on to TIME {old.end}, and a majority has this journal up to"
            f" {view.last}: it is another history, ship to another address"
        )
    local = {(one.first, one.last): one for one in view.sealed if one.first}
    for one in old.segments:
        mine = local.get((one.first, one.last))
        if mine is not None and (mine.size, mine.crc) != (one.size, one.crc):
            raise ArchiveError(f"{one.name} is another one than segment {mine.number} here")
    archived = [(one.number, one.first, one.last) for one in old.segments]
    theirs = _boundaries(archived, 0)
    if old.parts:  # they are shipped anew, so nothing is gone on from behind them
        theirs[-1] = theirs[-1]._replace(after=old.parts[0].first, number=old.parts[0].segment)
    pieces = [(one.number, one.first, one.last) for one in sorted(view.sealed)]
    ours = _boundaries(pieces, view.dropped_to if view.floor else 0)
    if view.tail is not None:
        ours[-1] = ours[-1]._replace(after=view.tail.first, number=view.tail.segment)
    for there in reversed(theirs):
        for here in reversed(ours):
            if there.is_same(here):
                kept = _kept_below(old, there.number, view.last)
                return Joined(kept, there.number, there.number - here.number)
    if view.dropped_to > old.end:  # what lies between them is gone: it begins anew (rule 5)
        return Joined(replace(old, segments=(), snapshots=(), parts=(), base=0, floor=0), 0, 0)
    raise ArchiveError("the archive has nothing in common with this journal: ship elsewhere")


def _boundaries(pieces: list[tuple[int, int, int]], before: int) -> list[_Boundary]:
    """Those before and behind (number, first TIME, last TIME) of segments in order."""
    found = []
    for number, first, last in pieces:
        found.append(_Boundary(before, first, number))
        before = max(before, last)
    behind = pieces[-1][0] + 1 if pieces else 0
    return [*found, _Boundary(before, 0, behind)]


def _kept_below(old: Manifest, number: int, last: int) -> Manifest:
    """What a manifest tells below a segment."""
    return replace(
        old,
        segments=tuple(one for one in old.segments if one.number < number),
        snapshots=tuple(one for one in old.snapshots if one.number <= number and one.as_of <= last),
        parts=(),
        base=0,
    )
