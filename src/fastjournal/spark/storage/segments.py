"""Which segments are read, by which task. Files are listed and opened here; no Spark.

Places with a scheme are left to `spark.stores`; everything else here is a directory.

Rules:

1. The plan is a frozen snapshot: what was appended after it is left out. The bound is a TIME, not a
   byte, because cleaning may move bytes and never changes a TIME.
2. A torn tail is normal in the newest segment that holds data. Segments behind it that hold only a
   header, or nothing, stand by for the writer and are no data.
3. Sealed segments are mapped; the newest is copied, because its writer may cut it while we read.
4. A file that is not there is an error. Only who reads without the readers' lock may find that a
   segment went since the plan: that is so if the directory, listed again, shows a later one.
5. The newest segment that holds data goes only after a later one has come. So a task that sees
   neither the newest one of the plan nor a later one does not see the journal: another disk is
   mounted there, or none.
6. A segment that the manifest names and the directory lacks is an error, for the driver and for
   every task. Only who looks at a log in trouble goes on without it.
7. Consecutive segments are packed into one task up to a size: a task costs 60 ms before its first
   byte. A segment larger than a task may read, or one of fewer than there should be tasks, is read
   by several. Each walks it and takes the records between two TIMEs: bytes may be moved by a
   cleaner between two tasks, so they bound nothing. Those TIMEs stand in records that are found
   near the bytes where the tasks would part; whatever TIME is found, each record is read once.
8. How many tasks run at a time is told by whoever knows the cluster, never by the machine on which
   the plan is made. Where nobody knows, packs are small, and shares few.
9. What the node of a replicated journal has behind `commit.pos` may be cut off: it is not read.
"""

from __future__ import annotations

import os
import stat
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from socket import gethostname
from typing import TypeVar

from fastjournal.errors import JournalFault, NotFound, SegmentError
from fastjournal.journal.disk.snapshot import SNAPSHOT
from fastjournal.log.care.recovery import Safe
from fastjournal.log.commit_mark import end_of_log
from fastjournal.log.files import DISK
from fastjournal.log.manifest import MANIFEST, FollowedManifest, Manifest
from fastjournal.log.pins import Pin
from fastjournal.log.record import BrokenRecord, decode_time
from fastjournal.log.scan.scan import Buffer, TearRule, next_valid, verify
from fastjournal.log.segment import CAPTAIN, HEADER_SIZE, WORKQ, Header, parse_name, segment_name
from fastjournal.log.segment_directory import has_records, read_growing
from fastjournal.log.stream import Stream
from fastjournal.spark.locations import is_remote
from fastjournal.spark.options import MAX_SHARDS, Settings
from fastjournal.spark.storage.mapped_file import map_file
from fastjournal.spark.storage.object_store import list_segments, read_head, read_whole

__all__ = [
    "LOCK_SECONDS",
    "SHARE_BYTES",
    "Piece",
    "SegmentListing",
    "at_one_moment",
    "check_gone",
    "first_time",
    "journal_segments",
    "load",
    "load_all",
    "load_unless_gone",
    "newest_time",
    "pack",
    "pieces_between",
    "plan",
    "safe_part",
    "share_count",
    "split_large",
    "tear_rule",
    "while_pinned",
]

T = TypeVar("T")

LOCK_SECONDS = 60.0
"""How long a cleaner at work is waited for where nothing else is said."""
_LEAST_PACK = 32 << 20
_LEAST_SPLIT = 4 << 10
_NEVER = 1 << 63
_LEAST_SHARE = 8 << 20  # a smaller share does not pay for its task
SHARE_BYTES = 64 << 20
"""Log that a task tells of where it is dealt out: it holds the rows of that."""
_FEW_SHARES = 2
_SETTLED = 1_000_000_000  # ns; file systems tell times of changes in ticks of up to some 10 ms
_LISTINGS = 20


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment to read, and the bounds on TIME that apply to it.

    With a number below zero a snapshot, see `replay.snapshots`.
    """

    path: str
    number: int
    size: int
    newest: bool
    after: int | None = None
    upto: int | None = None
    first: int | None = None
    """TIME of the first record, or less, as the manifest says; None: it does not say."""
    split: tuple[int | None, int | None] = (None, None)
    """The part that one of several tasks reads: behind the first TIME, up to the second."""
    held: tuple[str, int, int] | None = None
    """The file in which what concerns somebody of the segment is, and from where to where."""
    data: Buffer | None = field(default=None, compare=False, repr=False)
    """Its bytes, where this process has opened it already; never sent to another."""

    @property
    def directory(self) -> str:
        """The journal the segment belongs to."""
        return self.path.rpartition("/")[0] if is_remote(self.path) else str(Path(self.path).parent)


class SegmentListing:
    """What a directory and its manifest say, read again only when they have changed.

    For those who look at the same log again and again: a look costs as much as the log has grown,
    not as long as it is. Segments are numbered one by one, and one that goes is named by the
    manifest first: as long as that tells of none, only the next numbers are asked for. Without a
    manifest all names are read. A segment that stands by may be written without a change of the
    directory.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._pieces: list[Piece] = []
        self._names: set[str] = set()
        self._names_of: tuple[int, int, int] | None = None
        self._unnamed: int | None = None
        """How many more there are than the manifest names, up to the last that it does."""
        self._followed = FollowedManifest(DISK, self.root)
        self._manifest: Manifest | None = None
        self._manifest_of: tuple[int, int, int] | None = None

    def __reduce__(self) -> tuple[type[SegmentListing], tuple[Path]]:
        # Spark ships a stream's reader with every task: what was listed stays here.
        return SegmentListing, (self.root,)

    def pieces(self) -> list[Piece]:
        """Each segment in order, none of them as the newest; the size of one that grows is old."""
        state = _state_of(self.root)
        if state is None or state != self._names_of:
            began = time.time_ns()
            if not self._ask_for_next():
                self._list()
            # A change in the same tick of the file system's clock would not be seen.
            settled = state is not None and began - state[1] > _SETTLED
            self._names_of = state if settled else None
        return self._pieces

    def _ask_for_next(self) -> bool:
        """Take in the segments that follow; False if that does not tell all there is."""
        manifest = _manifest(self, whole=False)
        if manifest is None or self._unnamed is None:
            return False
        while self._pieces and self._pieces[-1].number > manifest.used:
            self._names.discard(segment_name(self._pieces.pop().number))  # one may stand by no more
        if not self._pieces:
            return False
        number = self._pieces[-1].number + 1
        while (piece := self._piece(segment_name(number), number)) is not None:
            self._pieces.append(piece)
            self._names.add(segment_name(number))
            number += 1
        manifest = _manifest(self, whole=False)
        return (
            manifest is not None
            and manifest.used < number
            and self._beside(manifest) == self._unnamed
        )

    def _beside(self, manifest: Manifest) -> int:
        there = bisect_right(self._pieces, manifest.used, key=attrgetter("number"))
        return there - len(manifest.sealed)

    def _list(self) -> None:
        manifest = _manifest(self, whole=False)
        names = set(os.listdir(self.root))  # noqa: PTH208 - names are enough, and there are many
        if not self._names <= names:
            self._names, self._pieces = set(), []
        fresh = []
        for name in names - self._names:
            number = parse_name(name)
            piece = None if number is None else self._piece(name, number)
            if piece is not None:
                fresh.append(piece)
                self._names.add(name)
        if fresh:
            self._pieces = sorted([*self._pieces, *fresh], key=attrgetter("number"))
        self._unnamed = None if manifest is None else self._beside(manifest)

    def _piece(self, name: str, number: int) -> Piece | None:
        path = f"{self.root}/{name}"
        try:
            found = os.stat(path)  # noqa: PTH116 - as above
        except FileNotFoundError:
            return None
        is_file = stat.S_ISREG(found.st_mode)
        return Piece(path, number, found.st_size, newest=False) if is_file else None

    def manifest(self) -> Manifest | None:
        """The manifest; None: there is none. Damage to it is a SegmentError."""
        state = _state_of(self.root / MANIFEST)
        if state is None or state != self._manifest_of:
            self._manifest = self._followed.read()
            self._manifest_of = state
        return self._manifest

    def tell_first(self, manifest: Manifest) -> None:
        """Note the TIMEs with which segments begin, newest first, as far as they are not known.

        Cleaning may take the first record while we look: what it leaves is later, and still before
        all of the next segment.
        """
        pieces = self._pieces
        for n in range(len(pieces) - 1, -1, -1):
            if pieces[n].first is not None:
                return
            sealed = manifest.sealed.get(pieces[n].number)
            if sealed is not None and sealed.size > HEADER_SIZE:
                pieces[n] = replace(pieces[n], first=sealed.first)


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def journal_segments(
    directory: str | Path,
    *,
    least: int = 0,
    whole: bool = True,
    listing: SegmentListing | None = None,
) -> list[Piece]:
    """The segments of a journal in order, without those that only stand by.

    `least`: the newest segment that somebody else saw there; see rule 5. `whole`: raise
    SegmentError when one is not there that the manifest names. `listing`: one that is kept between
    calls.
    """
    if is_remote(directory):
        found = [
            Piece(one.address, one.number, one.size, newest=False, first=one.first or None)
            for one in list_segments(str(directory))
        ]
        return _seen(directory, found, least)
    listing = listing or SegmentListing(directory)
    manifest = _manifest(listing, whole)
    found = _listed(listing, manifest)
    if whole and manifest is not None:
        missing = _named(manifest) - {piece.number for piece in found}
        # What the manifest named before and names still was not taken by a cleaner meanwhile.
        for number in sorted(missing & _named(_manifest(listing, whole))) if missing else ():
            path = Path(directory) / segment_name(number)
            raise SegmentError(path, f"is missing on {gethostname()}: the manifest names it")
    return _seen(directory, found, least)


def _seen(directory: str | Path, found: list[Piece], least: int) -> list[Piece]:
    if least and (not found or found[-1].number < least):
        raise NotFound(
            f"{directory}: neither segment {least} nor a later one is to be seen on"
            f" {gethostname()}; every node must have the journal's directory"
        )
    return found


def _manifest(listing: SegmentListing, whole: bool) -> Manifest | None:
    try:
        return listing.manifest()
    except JournalFault:
        if whole:
            raise
        return None


def _named(manifest: Manifest | None) -> set[int]:
    """The sealed segments that hold a record."""
    entries = manifest.sealed.values() if manifest is not None else ()
    return {one.number for one in entries if one.size > HEADER_SIZE}


def _listed(listing: SegmentListing, manifest: Manifest | None) -> list[Piece]:
    root = listing.root
    for _ in range(_LISTINGS):
        try:
            found = listing.pieces()
            if manifest is not None:
                listing.tell_first(manifest)
            end = len(found)
            while end and not _written(found[end - 1].path):
                end -= 1
            return [*found[: end - 1], replace(found[end - 1], newest=True)] if end else []
        except FileNotFoundError:
            # A file may go while the directory is being read; then it is read again.
            if not root.exists():
                raise NotFound(f"no such journal: {root} on {gethostname()}") from None
        except NotADirectoryError:
            raise NotFound(f"a journal is a directory: {root}") from None
    raise NotFound(f"{root}: files that are listed are not there on {gethostname()}")


def _written(path: str) -> bool:
    """Whether a file holds more than a header and reserved room, or is none of ours."""
    handle = DISK.open_read(Path(path))
    try:
        head = handle.read(0, HEADER_SIZE)
        foreign = any(head) and head not in (WORKQ.encode(), CAPTAIN.encode())
        return has_records(handle) or (foreign and handle.size() > HEADER_SIZE)
    finally:
        handle.close()


def tear_rule(piece: Piece) -> TearRule:
    """What is a torn tail of this segment and no damage; the rule of recovery."""
    if not piece.newest:
        return lambda at, following: False
    safe = safe_part(piece.directory)
    return lambda at, following: safe.is_torn(piece.number, at, following)


def safe_part(directory: str) -> Safe:
    """What of a log is known to have been synced; its manifest is read on, not anew."""
    return Safe.of(Stream(directory, WORKQ), _followed(directory))


@lru_cache(maxsize=16)
def _followed(directory: str) -> FollowedManifest:
    return FollowedManifest(DISK, Path(directory))


def load_unless_gone(piece: Piece) -> Buffer:
    """The bytes of a segment that may go while it is planned; empty when it went (rule 4)."""
    try:
        return load(piece)
    except NotFound:
        check_gone(piece)
        return b""


def check_gone(piece: Piece) -> None:
    """A segment was not there when it was opened: raise NotFound unless the cleaner took it."""
    numbers = [one.number for one in journal_segments(piece.directory)]
    if piece.number in numbers or max(numbers, default=0) < piece.number:
        raise NotFound(
            f"{piece.path}: not to be seen on {gethostname()}, nor that a cleaner took it;"
            " every node must have the journal's directory"
        )


def _held(path: str, name: str, begin: int, end: int) -> Buffer:
    data = map_file(name)[begin:end]
    if len(data) != end - begin:
        raise NotFound(f"{path}: {end} bytes were there, {gethostname()} sees {begin + len(data)}")
    return data


def load(piece: Piece) -> Buffer:
    """The bytes of a segment, its header checked; raises NotFound when the file is not there."""
    path = Path(piece.path)
    if piece.data is not None:
        return piece.data
    try:
        if piece.held is not None:
            return _held(piece.path, *piece.held)
        if is_remote(piece.path):
            data: Buffer = read_whole(piece.path)
        elif piece.newest:
            handle = DISK.open_read(path)
            try:
                data = read_growing(handle.read, 0, handle.size())
            finally:
                handle.close()
        else:
            data = map_file(path)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file on {gethostname()}") from None
    except OSError as error:
        raise SegmentError(path, f"cannot be read: {error}") from error
    if len(data) < HEADER_SIZE:
        if piece.newest:
            return b""
        raise SegmentError(path, f"{len(data)} bytes, shorter than its header")
    head = bytes(data[:HEADER_SIZE])
    if piece.number < 0:
        if len(data) != piece.size:
            raise SegmentError(path, f"has {len(data)} bytes, its checkpoint says {piece.size}")
        SNAPSHOT.check(head, path)
        return data
    header = Header.decode(head)
    if header.magic not in {WORKQ.magic, CAPTAIN.magic}:
        raise SegmentError(path, f"magic {header.magic!r} is not that of a journal")
    replace(WORKQ, magic=header.magic).check(head, path)
    return data


def load_all(directory: str | Path) -> list[tuple[Piece, Buffer]]:
    """Every segment of a journal as of one moment: no cleaning comes in between."""
    return at_one_moment(
        directory, lambda: [(piece, load(piece)) for piece in journal_segments(directory)]
    )


def while_pinned(directory: str | Path, work: Callable[[], T], seconds: float | None = None) -> T:
    """Do `work`, which may take long, here and in tasks, while no cleaner changes a file.

    No lock is held meanwhile (see `log.pins`); `seconds`: how long to wait for a cleaner at work.
    In a directory in which nothing may be written the readers' lock is held instead.
    """
    if is_remote(directory):
        return work()
    try:
        pin = Pin(Path(directory))
    except OSError:
        return at_one_moment(directory, work, seconds)
    with pin:
        at_one_moment(directory, lambda: None, seconds)
        return work()


def at_one_moment(directory: str | Path, work: Callable[[], T], seconds: float | None = None) -> T:
    """Do `work`, which opens files, while no cleaner changes them; leaves nothing behind.

    The cleaner takes `read.lock` for itself before it touches a file, and makes it if need be. So
    as long as there is none there is nothing to wait for, and a directory is only read. Whoever has
    opened all files keeps the bytes of that moment, whatever is renamed over them later.
    """
    path = Path(directory) / "read.lock"
    if is_remote(directory):
        return work()
    if not DISK.exists(path):
        try:
            done = work()
        except Exception:
            if not DISK.exists(path):  # else a cleaner may have taken what was being opened
                raise
        else:
            if not DISK.exists(path):
                return done
    try:
        waits = LOCK_SECONDS if seconds is None else seconds
        lock = DISK.lock(path, exclusive=False, timeout=waits)
    except OSError as error:
        raise SegmentError(path, f"cannot be locked: {error}") from error
    try:
        return work()
    finally:
        lock.release()


def first_time(piece: Piece) -> int | None:
    """TIME of the first record of a segment; None when it holds none, is damaged, or went."""
    if piece.first:
        return piece.first
    try:
        head = _head(piece.path)
    except (FileNotFoundError, NotFound):
        check_gone(piece)
        return None
    try:
        return decode_time(head) if len(head) == 15 else None
    except BrokenRecord:
        return None


def _head(path: str) -> bytes:
    if is_remote(path):
        return read_head(path, HEADER_SIZE + 15)[HEADER_SIZE:]
    handle = DISK.open_read(Path(path))
    try:
        return handle.read(HEADER_SIZE, 15)
    finally:
        handle.close()


def newest_time(piece: Piece) -> int | None:
    """TIME of the last whole record of the newest segment; None when it has none.

    Of a replicated journal not behind what is there to stay (rule 9).
    """
    last = verify(load_unless_gone(piece) or bytes(HEADER_SIZE), torn=tear_rule(piece)).last_time
    return _least(last, end_of_log(DISK, Path(piece.directory)))


def _least(*bounds: int | None) -> int | None:
    given = [bound for bound in bounds if bound is not None]
    return min(given) if given else None


def plan(settings: Settings) -> list[Piece]:
    """The pieces the settings ask for, over all directories, each frozen at this moment."""
    return [piece for path in settings.paths for piece in _plan_one(path, settings)]


def _plan_one(directory: str, settings: Settings) -> Iterator[Piece]:
    pieces = journal_segments(directory, whole=settings.whole)
    frozen = None
    if pieces and pieces[-1].newest:  # what lies on a store does not grow
        # Nothing sound in the newest segment yet: whatever is in the others is whole.
        frozen = newest_time(pieces[-1])
    upto = _least(settings.upto, frozen)
    bounded = settings.after is not None or settings.upto is not None
    starts = [first_time(piece) for piece in pieces] if bounded else []
    for n, piece in enumerate(pieces):
        if not settings.from_segment <= piece.number <= settings.to_segment:
            continue
        if bounded and _outside(starts, n, settings):
            continue
        yield replace(piece, after=settings.after, upto=upto)


def pieces_between(pieces: Sequence[Piece], after: int, upto: int) -> list[Piece]:
    """Those that may hold records with a TIME above `after` and not above `upto`."""
    found = []
    for piece in reversed(pieces):
        start = first_time(piece)
        if start is not None and start > upto:
            continue
        found.append(replace(piece, after=after, upto=upto))
        if start is not None and start <= after + 1:
            break  # TIME ascends along a journal
    return found[::-1]


def _outside(starts: Sequence[int | None], n: int, settings: Settings) -> bool:
    """TIME ascends along a journal, so the first TIME of a segment bounds its neighbours."""
    start = starts[n]
    if start is not None and settings.upto is not None and start > settings.upto:
        return True
    following = next((time for time in starts[n + 1 :] if time is not None), None)
    return following is not None and settings.since is not None and following <= settings.since


def split_large(pieces: Sequence[Piece], most: int, least: int = 0) -> list[Piece]:
    """The same pieces, those of more than `most` bytes in parts; so many that there are `least`.

    A segment on an object store is fetched whole, so it is not split.
    """
    total = sum(piece.size for piece in pieces)
    if least > len(pieces):
        most = min(most, max(total // least, _LEAST_SPLIT))
    found: list[Piece] = []
    for piece in pieces:
        times = [] if is_remote(piece.path) else _times_between(piece, -(-piece.size // most))
        bounds = [None, *times, None]
        size = piece.size // (len(bounds) - 1)
        found += [replace(piece, size=size, split=split) for split in pairwise(bounds)]
    return found


def _times_between(piece: Piece, parts: int) -> list[int]:
    """TIMEs that part what is read of a segment into so many parts of about one size, or fewer."""
    if parts < 2:
        return []
    data = load_unless_gone(piece)
    # Behind its records the newest one may hold room that is reserved.
    end = verify(data, torn=tear_rule(piece)).end if data and piece.newest else len(data)
    after, upto = piece.after or 0, piece.upto or _NEVER
    start = _byte_near(data, after, HEADER_SIZE, end) if piece.after else HEADER_SIZE
    end = _byte_near(data, upto, start, end) if piece.upto else end
    places = (start + (end - start) * n // parts for n in range(1, parts))
    found = {_time_at(data, at, end) for at in places}
    return sorted(time for time in found if time is not None and after < time < upto)


def _byte_near(data: Buffer, time: int, start: int, end: int) -> int:
    """A byte near the first record behind `time`: TIME ascends along a segment."""
    while end - start > _LEAST_SPLIT:
        middle = (start + end) // 2
        found = _time_at(data, middle, end)
        if found is None or found > time:
            end = middle
        else:
            start = middle
    return end


def _time_at(data: Buffer, at: int, end: int) -> int | None:
    """TIME of the first record at or behind a byte; None: there is none before `end`."""
    found = next_valid(data, at, end)
    return None if found is None else decode_time(bytes(data[found : found + 15]))


def pack(pieces: Sequence[Piece], most: int, cores: int = 0, least: int = 0) -> list[list[Piece]]:
    """Consecutive pieces in packs of at most `most` bytes, few and even enough for the cores.

    `cores`: tasks that run at a time; 0: not known. `least`: so many packs are made, if there are
    as many pieces; see `split_large`.
    """
    if not pieces:
        return []
    total = sum(piece.size for piece in pieces)
    small = min(_LEAST_PACK, most)
    rounds = -(-total // (most * cores)) if cores else 0
    target = min(most, max(-(-total // (rounds * cores)), small)) if rounds else small
    if least > 1:
        target = min(target, max(1, total // least))
    packs: list[list[Piece]] = [[]]
    held = 0
    for n, piece in enumerate(pieces):
        scarce = least - len(packs) >= len(pieces) - n  # each of the rest needs a pack of its own
        if packs[-1] and (held + piece.size > most or held >= target or scarce):
            packs.append([])
            held = 0
        packs[-1].append(piece)
        held += piece.size
    return packs


def share_count(size: int, cores: int, shares: int = 0, *, most: int = 0) -> int:
    """Into how many shares of its rows a log of this size is split; `shares`: what was asked for.

    As many as cores, or as many as it takes that none tells of more than `most` bytes of log,
    because a task holds its rows in memory. Without `most` every share is a walk of the whole log
    by a task that cuts it further by itself: then there are no more than `MAX_SHARDS`.
    """
    busy = min(cores or _FEW_SHARES, MAX_SHARDS, -(-size // _LEAST_SHARE))
    return shares or max(1, busy, -(-size // most) if most else 0)
