"""A log to the state of a share of its rows, by the journal's own `apply`. No Spark.

Rules:

1. Every record names one row by the 16 bytes after its type byte, and rows do not touch each other:
   so share k of K takes the records of its rows, and all shares together are the whole state.
   GROUP, MARK, QUEUE and SENDER go to every share; of a GROUP each takes its own members.
2. A record that states the whole row, or removes it, makes all earlier records of that row
   irrelevant. So segments are read newest first, and only what still matters is applied, in order.
   The answer is the same as that of applying everything.
3. A payload that is no command stops the fold, as it stops a start; in the other modes it is left
   out.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastjournal.errors import CorruptCommand, CorruptRecord
from fastjournal.journal.language import commands as language
from fastjournal.journal.language.codec import TYPE_OF, decode
from fastjournal.journal.language.commands import Command, Group
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.scan.scan import FAILFAST, Buffer, Chunk, Scan
from fastjournal.spark.kinds import GROUP, REMOVING, SINGLE, STATING
from fastjournal.spark.storage.segments import Piece, tear_rule

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = [
    "Matter",
    "SegmentReader",
    "Settled",
    "Share",
    "apply_entries",
    "fold",
    "no_collection",
    "route",
    "scan_mode",
]

CHANGES, STATES, REMOVES, ROWLESS = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Share:
    """Part `index` of `count` of all rows."""

    index: int = 0
    count: int = 1

    def has(self, row_id: bytes) -> bool:
        """Whether a row belongs to this share."""
        if self.count == 1:
            return True
        low = int.from_bytes(row_id[:8], "little")
        high = int.from_bytes(row_id[8:], "little")
        mixed = ((low ^ high) * 0x9E3779B97F4A7C15) & 0xFFFF_FFFF_FFFF_FFFF
        return (mixed >> 32) % self.count == self.index


def route(lows: Array, highs: Array, count: int) -> Array:
    """The share of each id; the twin of `Share.has` for columns."""
    import numpy as np

    mixed = (lows ^ highs) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(32)) % np.uint64(count)


def _classes() -> Array:
    import numpy as np

    table = np.full(256, ROWLESS, dtype=np.uint8)
    table[list(SINGLE)] = CHANGES
    table[list(STATING)] = STATES
    table[list(REMOVING)] = REMOVES
    return table


class Settled:
    """The rows of which nothing earlier matters any more."""

    def __init__(self, *, removals: bool) -> None:
        import numpy as np

        self._np = np
        self._removals = removals
        self._count = 0
        self._arrays = self._empty(1 << 12)

    def _empty(self, size: int) -> tuple[Array, Array, Array]:
        np = self._np
        return np.zeros(size, bool), np.empty(size, np.uint64), np.empty(size, np.uint64)

    def prune(self, lows: Array, highs: Array, classes: Array) -> Array:
        """Which of these entries still matter; they precede everything asked before."""
        keep = self._np.empty(len(lows), dtype=bool)
        from fastjournal.spark.replay.fold_kernel import prune, rehash

        room = len(self._arrays[0])
        while 2 * (self._count + len(lows)) > room:
            room *= 2
        if room != len(self._arrays[0]):
            larger = self._empty(room)
            rehash(*self._arrays, *larger)
            self._arrays = larger
        self._count += prune(lows, highs, classes, *self._arrays, keep, self._removals)
        return keep


@dataclass(slots=True)
class Matter:
    """Commands of one segment that still matter: a record, or one member of a GROUP record."""

    data: Buffer
    path: str
    times: Array
    offsets: Array
    starts: Array
    ends: Array
    members: Array
    """-1 for a whole record."""
    kinds: Array
    lows: Array
    highs: Array


def _members(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and id of each member of a GROUP; the id is empty where it names no row."""
    group = decode(payload)
    assert isinstance(group, Group)
    for member in group.members:
        kind = TYPE_OF[member.__class__]
        yield kind, member.id


class SegmentReader:
    """The entries of one segment for one share, before it is known which of them matter."""

    def __init__(self, share: Share, mode: str) -> None:
        import numpy as np

        self._np = np
        self._share = share
        self._mode = mode
        self._table = _classes()

    def matter(self, piece: Piece, data: Buffer, upto: int | None, settled: Settled) -> Matter:
        """What still matters of a segment, given all that was read of later ones."""
        np = self._np
        chunks = []
        scan = Scan(
            data, path=piece.path, torn=tear_rule(piece), mode=scan_mode(self._mode), upto=upto
        )
        for part in scan:
            assert isinstance(part, Chunk)
            chunks.append(self._shared(part))
        if not chunks:
            none = np.empty(0, np.int64)
            wide = np.empty(0, np.uint64)
            kinds = none.astype(np.uint8)
            return Matter(data, piece.path, none, none, none, none, none, kinds, wide, wide)
        times, offsets, starts, ends, lows, highs, kinds = (
            np.concatenate(column) for column in zip(*chunks, strict=True)
        )
        classes = self._table[kinds]
        # A removal carries an id and nothing else; anything longer must be seen to be refused.
        bare = (kinds == language.DELETE) | (kinds == language.EXPIRE)
        classes[bare & (ends - starts != 17)] = ROWLESS
        records = np.arange(len(times))
        members = np.full(len(times), -1)
        if (kinds == GROUP).any():
            records, members, lows, highs, classes, kinds = self._expand(
                piece, data, (offsets, starts, ends, kinds), (lows, highs, classes)
            )
        keep = settled.prune(lows, highs, classes)
        chosen = records[keep]
        return Matter(
            data,
            piece.path,
            times[chosen],
            offsets[chosen],
            starts[chosen],
            ends[chosen],
            members[keep],
            kinds[keep],
            lows[keep],
            highs[keep],
        )

    def _shared(self, chunk: Chunk) -> tuple[Array, ...]:
        """What is of the share, and what names no row: times, offsets, starts, ends, ids, kinds."""
        from fastjournal.spark.replay.fold_kernel import pick

        np = self._np
        lows, highs = (np.empty(len(chunk), dtype=np.uint64) for _ in range(2))
        columns = (chunk.times, chunk.offsets, chunk.starts, chunk.sizes, lows, highs, chunk.kinds)
        share, rowless = self._share, self._table == ROWLESS
        found = pick(chunk.bytes_view(), *columns, rowless, share.index, share.count)
        return tuple(column[:found] for column in columns)

    def _expand(
        self,
        piece: Piece,
        data: Buffer,
        columns: tuple[Array, Array, Array, Array],
        keyed: tuple[Array, Array, Array],
    ) -> tuple[Array, Array, Array, Array, Array, Array]:
        """Put the members of each GROUP in its place."""
        np = self._np
        offsets, starts, ends, kinds = columns
        lows, highs, classes = keyed
        groups = np.flatnonzero(kinds == GROUP)
        records: list[int] = []
        members: list[int] = []
        ids = bytearray()
        outcomes: list[int] = []
        named: list[int] = []
        for n in groups.tolist():
            try:
                found = list(_members(bytes(data[starts[n] : ends[n]])))
            except CorruptCommand as fault:
                if self._mode == FAILFAST:
                    raise CorruptRecord(piece.path, int(offsets[n]), str(fault)) from fault
                continue
            for m, (kind, row_id) in enumerate(found):
                if row_id and not self._share.has(row_id):
                    continue
                records.append(n)
                members.append(m)
                ids += row_id or bytes(16)
                outcomes.append(int(self._table[kind]))
                named.append(kind)
        single = np.flatnonzero(kinds != GROUP)
        pairs = np.frombuffer(bytes(ids), dtype=np.uint64).reshape(-1, 2)
        which = np.concatenate([single, np.array(records, dtype=np.int64)])
        order = np.argsort(which, kind="stable")
        return (
            which[order],
            np.concatenate([np.full(len(single), -1), np.array(members, dtype=np.int64)])[order],
            np.concatenate([lows[single], pairs[:, 0]])[order],
            np.concatenate([highs[single], pairs[:, 1]])[order],
            np.concatenate([classes[single], np.array(outcomes, dtype=np.uint8)])[order],
            np.concatenate([kinds[single], np.array(named, dtype=np.uint8)])[order],
        )


def scan_mode(mode: str) -> str:
    """How a segment is scanned: what is damaged stops the fold, or is left out."""
    return FAILFAST if mode == FAILFAST else "DROPMALFORMED"


def apply_entries(
    state: JournalState,
    entries: Iterable[Matter],
    mode: str = FAILFAST,
    overlap: int = 0,
    after: int | None = None,
) -> None:
    """Apply what still matters, oldest segment first; `after`: only what has a later TIME.

    Records up to TIME `overlap` may be in the state already: they change only rows that were
    stated before them.
    """
    plain_apply, rows_by_id = state.apply_part, state.rows

    def apply_over(command: Command, time: int) -> None:
        row = rows_by_id.get(getattr(command, "id", b""))
        if time > overlap or row is None or row.at <= time:
            plain_apply(command, time)

    apply = apply_over if overlap else plain_apply
    for one in entries:
        data, last = one.data, -1
        members: tuple[Command, ...] = ()
        columns = (one.times, one.offsets, one.starts, one.ends, one.members)
        later = slice(None) if after is None else one.times > after
        rows = zip(*(column[later].tolist() for column in columns), strict=True)
        for time, offset, start, end, member in rows:
            try:
                if member < 0:
                    apply(decode(bytes(data[start:end])), time)
                    continue
                if start != last:
                    last, members = start, _group(bytes(data[start:end]))
                apply(members[member], time)
            except CorruptCommand as fault:
                if mode == FAILFAST:
                    raise CorruptRecord(one.path, offset, str(fault)) from fault


def _group(payload: bytes) -> tuple[Command, ...]:
    group = decode(payload)
    assert isinstance(group, Group)
    return group.members


@contextmanager
def no_collection() -> Iterator[None]:
    """Rows and jobs hold no cycles; to look for some takes longer than to make them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def fold(
    segments: Sequence[tuple[Piece, Buffer]],
    *,
    share: Share = Share(),  # noqa: B008 - frozen
    upto: int | None = None,
    mode: str = FAILFAST,
    state: JournalState | None = None,
    overlap: int = 0,
) -> JournalState:
    """The rows of a share after every record with TIME up to `upto`.

    `state`, when given, holds the rows of the same share before the first of these segments;
    records up to TIME `overlap` may be in it already.
    """
    reader = SegmentReader(share, mode)
    # On an empty state a removal has nothing to remove.
    settled = Settled(removals=state is not None)
    kept = [reader.matter(piece, data, upto, settled) for piece, data in reversed(segments) if data]
    result = JournalState() if state is None else state
    with no_collection():
        apply_entries(result, reversed(kept), mode, overlap)
    return result
