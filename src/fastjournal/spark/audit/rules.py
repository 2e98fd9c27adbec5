"""What is wrong with a journal, found piece by piece. No Spark.

Rules:

1. A finding names severity, rule, segment, offset, row and says in words what it is. `error`: the
   log is not what a sound journal writes. `warning`: a sound journal may hold it, but look at it.
   `note`: normal, worth knowing.
2. Segments are judged each for itself (bytes), shares of rows each for itself (meaning): so both
   can run in any number of tasks.
3. Legal changes are those of `journal.transitions`. A row whose records fit that table whatever
   they did is sound (`spark.sift`); of every other row each record is applied by the journal's own
   `apply`, nothing is skipped.
4. A task tells at most `LIMIT` findings of a rule, then how many more there were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from fastjournal.errors import CorruptCommand, JournalFault, SegmentError, VersionMismatch
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import TYPE_OF, decode, encode, row_ids
from fastjournal.journal.language.transitions import STEPS
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row, image
from fastjournal.log import manifest
from fastjournal.log.files import DISK
from fastjournal.log.scan.scan import Buffer, Chunk, Damage, Scan
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.log.synced_mark import SyncedMark
from fastjournal.model import State
from fastjournal.spark.audit.prefilter import Sift
from fastjournal.spark.kinds import BROADCAST, GROUP, SINGLE, among, kind_name
from fastjournal.spark.replay.fold import Share, fold, no_collection, route
from fastjournal.spark.replay.snapshots import Base, base_of, log_of, replay_base
from fastjournal.spark.storage.segments import (
    Piece,
    journal_segments,
    load,
    load_unless_gone,
    newest_time,
    tear_rule,
)

__all__ = [
    "FINDING_COLUMNS",
    "LIMIT",
    "RULES",
    "Finding",
    "SeenLog",
    "ShareLog",
    "directory_findings",
    "keyed_rows",
    "segment_findings",
    "share_findings",
    "snapshot_findings",
]

LIMIT = 1000

_ENDS = frozenset({5, 6, 38})

RULES = {
    "header": "error: a segment cannot be opened",
    "damage": "error: bytes that are no record",
    "torn": "note: an unfinished write at the end of the log",
    "order": "error: TIME does not ascend",
    "gap": "note: segment numbers are missing; cleaning removes empty segments",
    "manifest": "error: a segment is missing, strange or not what the manifest says",
    "synced": "error: the log is shorter than what was once synced",
    "command": "error: a payload is no command",
    "orphan": "warning (of an end: note): a record of a row that does not exist",
    "transition": "error: a record does not fit the state of its row",
    "token": "error: a lease with a token that is not the next, or a touch with a stale one",
    "max-wait": "error: a job due later than its queue's max_wait allows",
    "one-waiting": "error: a key with more than one waiting row, or more than one being worked on",
    "snapshot": "error: snapshot and rest of the log give another row than the whole log",
    "second-opinion": "error: an independent fold in SQL gives another row",
}
"""Every rule with its severity and meaning; the documentation is made from it."""

FINDING_COLUMNS = (
    "severity string, rule string, directory string, segment bigint, offset bigint,"
    " row_id binary, text string"
)


class Finding(NamedTuple):
    """One thing that is wrong, or worth knowing."""

    severity: str
    rule: str
    directory: str
    segment: int | None
    offset: int | None
    row_id: bytes | None
    text: str


@dataclass(slots=True)
class _Notes:
    """Findings of one task, each rule up to its limit."""

    directory: str
    found: list[Finding] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(
        self,
        severity: str,
        rule: str,
        text: str,
        segment: int | None = None,
        offset: int | None = None,
        row_id: bytes | None = None,
    ) -> None:
        self.counts[severity, rule] += 1
        if self.counts[severity, rule] <= LIMIT:
            self.found.append(
                Finding(severity, rule, self.directory, segment, offset, row_id, text)
            )

    def all(self) -> Iterator[Finding]:
        yield from self.found
        for (severity, rule), count in self.counts.items():
            if count > LIMIT:
                text = f"and {count - LIMIT} more of this kind"
                yield Finding(severity, rule, self.directory, None, None, None, text)


def directory_findings(directory: str) -> list[Finding]:
    """What the list of files says: gaps, and a log shorter than what was synced."""
    notes = _Notes(directory)
    pieces = journal_segments(directory, whole=False)
    _manifest(notes, directory)
    for before, after in pairwise(pieces):
        missing = after.number - before.number - 1
        if missing:
            numbers = f"{before.number + 1}..{after.number - 1}"
            notes.add("note", "gap", f"{missing} missing: {numbers}", after.number)
    synced = SyncedMark.read(DISK, Path(directory))
    if synced is not None:
        newest = max((piece.number for piece in pieces), default=0)
        held = {piece.number: piece.size for piece in pieces}
        if synced.segment > newest and synced.offset > 8:
            notes.add("error", "synced", "a synced segment is missing", synced.segment, 0)
        elif synced.segment == newest and held[newest] < synced.offset:
            lost = synced.offset - held[newest]
            notes.add("error", "synced", f"{lost} synced bytes are missing", newest, held[newest])
    return list(notes.all())


def _manifest(notes: _Notes, directory: str) -> None:
    stream = Stream(directory, WORKQ)
    try:
        known = manifest.read(DISK, stream.path)
        if known is not None:
            for number, reason in manifest.faults(stream, known, stream.segments()):
                notes.add("error", "manifest", reason, number)
    except JournalFault as error:
        notes.add("error", "manifest", str(error))


def segment_findings(pieces: Sequence[Piece], before: Sequence[Piece] = ()) -> list[Finding]:
    """What the bytes say: headers, framing, CRC, the order of TIME in consecutive segments.

    `before`: those that come before them.
    """
    notes = _Notes(pieces[0].directory if pieces else "")
    last = next(filter(None, map(_last_time, reversed(before))), None)
    for piece in pieces:
        try:
            data = load_unless_gone(piece)
        except (SegmentError, VersionMismatch) as error:
            notes.add("error", "header", str(error), piece.number, 0)
            continue
        if not data:
            continue
        scan = Scan(data, path=piece.path, torn=tear_rule(piece), mode="PERMISSIVE")
        for part in scan:
            if isinstance(part, Damage):
                length = part.end - part.offset
                notes.add(
                    "error", "damage", f"{part.reason}, {length} bytes", piece.number, part.offset
                )
                continue
            last = _order(notes, piece, part, last)
        if scan.torn:
            notes.add("note", "torn", f"{len(data) - scan.end} bytes", piece.number, scan.end)
    return list(notes.all())


def _last_time(piece: Piece) -> int | None:
    try:
        return newest_time(piece)
    except (SegmentError, VersionMismatch):
        return None


def _order(notes: _Notes, piece: Piece, chunk: Chunk, last: int | None) -> int:
    import numpy as np

    times = chunk.times
    if last is not None and int(times[0]) <= last:
        _add_disorder(notes, piece, int(chunk.offsets[0]), last, int(times[0]))
    for n in np.flatnonzero(np.diff(times) <= 0).tolist():
        _add_disorder(notes, piece, int(chunk.offsets[n + 1]), int(times[n]), int(times[n + 1]))
    return int(times[-1])


def _add_disorder(notes: _Notes, piece: Piece, offset: int, before: int, after: int) -> None:
    text = f"TIME {after} follows {before}" if after != before else f"TIME {after} twice"
    notes.add("error", "order", text, piece.number, offset)


@dataclass(frozen=True, slots=True)
class SeenLog:
    """A log as it is at one moment, whatever is written later: all tasks look at the same bytes."""

    directory: str
    pieces: list[Piece]
    """A snapshot, where one serves, and every segment."""
    begins: bool
    """Whether it begins with the first segment, and that can be read."""
    fault: str
    """Why no snapshot can be read."""

    @classmethod
    def look(cls, directory: str, least: int = 0) -> SeenLog:
        """What is there now; raises NotFound if no segment from `least` on is to be seen."""
        base, fault = None, ""
        try:
            # What a snapshot stands for is in the segments that are listed after it.
            base = replay_base(directory, (), None)
        except JournalFault as error:
            fault = str(error)
        pieces = journal_segments(directory, least=least, whole=False)
        begins = bool(pieces) and pieces[0].number == 1 and _readable(pieces[0]) is not None
        if pieces:
            pieces[-1] = _as_far_as_it_goes(pieces[-1])
        return cls(directory, pieces if base is None else [base, *pieces], begins, fault)


def _readable(piece: Piece) -> Buffer | None:
    """The bytes of a segment; None where it cannot be read, which `segment_findings` tells."""
    try:
        return load(piece)
    except (SegmentError, VersionMismatch):
        return None


def _as_far_as_it_goes(newest: Piece) -> Piece:
    """The newest segment without what is written to it later, and without a torn tail."""
    data = _readable(newest)
    if not data:
        return newest
    scan = Scan(data, path=newest.path, torn=tear_rule(newest), mode="DROPMALFORMED")
    for _ in scan:
        pass
    return replace(newest, size=scan.end, newest=False, held=(newest.path, 0, scan.end))


class ShareLog:
    """What there is of a log for a share of its rows; `mine`: what was dealt out for it."""

    def __init__(self, seen: SeenLog, share: Share, mine: Sequence[Piece] | None = None) -> None:
        self.directory, self.share = seen.directory, share
        self.fault = seen.fault if share.index == 0 else ""
        self._mine = seen.pieces if mine is None else mine
        opened = ((piece, _readable(piece)) for piece in log_of(self._mine))
        self.segments = [(piece, data) for piece, data in opened if data]
        first = -self._mine[0].number if self._mine else 0
        self.behind = [(piece, data) for piece, data in self.segments if piece.number >= first]
        """The segments that a snapshot does not stand for."""
        self.is_told_twice = seen.begins and first > 1
        """Whether all that a snapshot says is in segments too: a node may begin with a snapshot."""

    def base(self) -> Base:
        """The rows of the snapshot, made anew: whoever replays changes them.

        Where it holds what cannot be read, the log is replayed without it.
        """
        try:
            return base_of(self._mine, self.share)
        except JournalFault as error:
            self.fault = str(error)
            self._mine = log_of(self._mine)
            self.behind, self.is_told_twice = self.segments, False
            return base_of(self._mine, self.share)


def share_findings(log: ShareLog, *, sift: bool = True) -> list[Finding]:
    """What the commands say: orphans, illegal changes, stale tokens, waits that are too long.

    `sift=False` applies every record of every row, whether there is doubt about it or not.
    """
    notes, share, base = _Notes(log.directory), log.share, log.base()
    if log.fault:
        notes.add("error", "snapshot", log.fault)
    check = _Check(notes, base.state or JournalState(), base.overlap)
    wanted = log.behind
    doubt = Sift()
    sifting = sift and base.state is None
    if sifting:
        for _, _, chunk in _chunks(wanted, share):
            doubt.feed(chunk)
            doubt.doubt(_grouped(chunk, share))
    with no_collection():
        for piece, data, chunk in _chunks(wanted, share):
            check.chunk(piece, data, doubt.closely(chunk) if sifting else chunk, share)
        if not sifting:
            check.waits(check.state.rows.values())
        elif any(lane.settings.max_wait for lane in check.state.queues.values()):
            whole = fold(wanted, share=share, mode="DROPMALFORMED")
            check.waits(whole.rows.values())
    return list(notes.all())


def _chunks(
    segments: Sequence[tuple[Piece, Buffer]], share: Share
) -> Iterator[tuple[Piece, Buffer, Chunk]]:
    """The records of a share, and those that name no single row."""
    import numpy as np

    single = among(SINGLE)
    for piece, data in segments:
        for chunk in Scan(data, path=piece.path, torn=tear_rule(piece), mode="DROPMALFORMED"):
            assert isinstance(chunk, Chunk)
            if share.count > 1:
                ids = chunk.ids().view(np.uint64)
                mine = route(ids[:, 0], ids[:, 1], share.count) == share.index
                chunk = chunk.select(mine | ~single[chunk.kinds])
            if len(chunk):
                yield piece, data, chunk


def _grouped(chunk: Chunk, share: Share) -> Iterator[bytes]:
    """The rows of this share that groups speak of."""
    for n in (chunk.kinds == GROUP).nonzero()[0].tolist():
        start = int(chunk.starts[n])
        with suppress(CorruptCommand):
            ids = row_ids(bytes(chunk.data[start : start + int(chunk.sizes[n])]))
            yield from (row_id for row_id in ids if share.has(row_id))


class _Check:
    """Applies every record and says what does not fit."""

    def __init__(self, notes: _Notes, state: JournalState, overlap: int) -> None:
        self._notes = notes
        self.state = state
        self._overlap = overlap
        self._before = {kind: frozenset(b for b, _ in steps) for kind, steps in STEPS.items()}

    def chunk(self, piece: Piece, data: Buffer, chunk: Chunk, share: Share) -> None:
        """Apply these records in order."""
        rows = zip(
            chunk.times.tolist(),
            chunk.offsets.tolist(),
            chunk.starts.tolist(),
            (chunk.starts + chunk.sizes).tolist(),
            strict=True,
        )
        for time, offset, start, end in rows:
            try:
                command = decode(bytes(data[start:end]))
            except CorruptCommand as fault:
                # What belongs to no share is told by the first alone.
                if share.index == 0 or (end - start >= 17 and data[start] in STEPS):
                    self._notes.add("error", "command", str(fault), piece.number, offset)
                continue
            members = command.members if isinstance(command, k.Group) else (command,)
            for member in members:
                kind = TYPE_OF[member.__class__]
                if kind in BROADCAST:
                    self.state.apply_part(member, time)
                elif share.has(member.id):
                    self._one(piece, offset, time, kind, member)

    def _one(self, piece: Piece, offset: int, time: int, kind: int, command: k.Command) -> None:
        row_id = command.id
        state = self.state
        row = state.rows.get(row_id)
        if time <= self._overlap and row is not None and row.at > time:
            return
        before = None if row is None else row.state
        if row is not None:
            self._token(piece, offset, row, command)
        if before not in self._before[kind]:
            if before is None:
                # Cleaning may drop a beginning before its end, never the other way round.
                severity, rule = ("note" if kind in _ENDS else "warning"), "orphan"
                text = f"{kind_name(kind)} of an unknown row"
            else:
                severity, rule = "error", "transition"
                text = f"{kind_name(kind)} of a row that is {before.name}"
            self._notes.add(severity, rule, text, piece.number, offset, row_id)
        state.apply_part(command, time)

    def _token(self, piece: Piece, offset: int, row: Row, command: k.Command) -> None:
        """Promise: tokens never come back, and a stale one changes nothing."""
        held = row.attempts
        if isinstance(command, k.Renew):
            wrong, what = command.attempt != held, "touch"
        elif isinstance(command, k.Lease):
            # A row restated while it is handed out carries the token it had: PUT, then LEASE.
            again = row.state is State.PROCESSING
            wrong, what = command.attempt < held + again, "lease"
        elif isinstance(command, k.Put):
            wrong, what = command.attempts < held, "image"
        else:
            return
        if wrong:
            token = command.attempts if isinstance(command, k.Put) else command.attempt
            text = f"{what} with token {token} on a row whose token is {held}"
            self._notes.add("error", "token", text, piece.number, offset, row.id)

    def waits(self, rows: Iterable[Row]) -> None:
        """Promise: no key waits past insertion + max_wait by repeats alone."""
        for row in rows:
            most = row.queue.settings.max_wait
            fresh = row.more is None and not row.attempts
            if most and fresh and row.state is State.WAITING and row.due > row.inserted + most:
                text = f"due {row.due - row.inserted - most} ns later than max_wait allows"
                self._notes.add("error", "max-wait", text, row_id=row.id)


def keyed_rows(log: ShareLog) -> Iterator[tuple[bytes, bytes, str, bytes]]:
    """Queue, key, state and id of the rows of which there may be one only."""
    for row in _replayed(log).rows.values():
        single = row.key and row.queue.name and not row.policy.flags & k.KEEP_VERSIONS
        if single and row.state in (State.WAITING, State.PROCESSING):
            yield row.queue.name, row.key, row.state.name, row.id


def _replayed(log: ShareLog) -> JournalState:
    base = log.base()
    return fold(
        log.behind, share=log.share, mode="DROPMALFORMED", state=base.state, overlap=base.overlap
    )


def snapshot_findings(log: ShareLog) -> list[Finding]:
    """Replay with the snapshot against replay of the whole log, where all of it is still there."""
    notes = _Notes(log.directory)
    if not log.is_told_twice:
        return []
    short = _replayed(log).rows
    whole = fold(log.segments, share=log.share, mode="DROPMALFORMED").rows
    for row_id in sorted({*short, *whole}):
        mine, other = short.get(row_id), whole.get(row_id)
        if mine is None or other is None:
            where = "the whole log" if mine is None else "the snapshot"
            notes.add("error", "snapshot", f"the row is only in {where}", row_id=row_id)
        elif [encode(c) for c in image(mine)] != [encode(c) for c in image(other)]:
            notes.add("error", "snapshot", "the row differs", row_id=row_id)
    return list(notes.all())
