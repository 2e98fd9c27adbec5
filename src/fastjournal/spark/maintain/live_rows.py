"""The rows that live, as one table small enough to ship to every task of a cleaning. No Spark.

Rules:

1. It holds what `journal.retention` asks of a state: for each living row the TIME of its newest
   whole record and its expiry; when queues and senders were last set; the newest MARK.
2. Retention's own `fate` judges what concerns no single row; for single rows the same rule is
   applied to whole columns, and the tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fastjournal.errors import CorruptCommand, CorruptRecord
from fastjournal.journal.language.codec import decode
from fastjournal.journal.language.commands import (
    Add,
    Command,
    Ends,
    Group,
    Mark,
    Put,
    Queue,
    Schedule,
    Sender,
    Tomb,
    Touch,
)
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row
from fastjournal.log.scan.scan import FAILFAST, Buffer, Chunk, verify
from fastjournal.model import QueueSettings
from fastjournal.spark.decode.fields import Fields
from fastjournal.spark.kinds import KINDS
from fastjournal.spark.replay.fold import Matter, SegmentReader, Settled, Share
from fastjournal.spark.storage.segments import Piece, tear_rule

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["Facts", "LivePart", "LiveRows", "live_part", "newest_time", "part_of"]


@dataclass(frozen=True, slots=True)
class Lane:
    """What retention asks of a queue that has settings of its own."""

    settings_at: int
    settings: QueueSettings


@dataclass(frozen=True, slots=True)
class Facts:
    """What concerns no single row; every share has the same."""

    queues: dict[bytes, Lane]
    senders: dict[bytes, tuple[int, int]]
    mark_at: int
    applied: int
    ends_at: int = 0
    snapshot_at: int = 0


@dataclass(frozen=True, slots=True)
class LivePart:
    """The living rows of one share: 16-byte ids, then 8-byte TIMEs and expiries, as raw bytes."""

    ids: bytes
    at: bytes
    expires: bytes
    facts: Facts


def part_of(state: JournalState, applied: int) -> LivePart:
    """The living rows of a replayed share; `applied` is the TIME of the newest record of all."""
    import numpy as np

    rows = list(state.rows.values())
    return LivePart(
        b"".join(row.id for row in rows),
        np.array([row.at for row in rows], dtype=np.int64).tobytes(),
        np.array([row.expires for row in rows], dtype=np.int64).tobytes(),
        Facts(
            {
                name: Lane(lane.settings_at, lane.settings)
                for name, lane in state.queues.items()
                if lane.settings_at
            },
            dict(state.senders),
            state.mark_at,
            applied,
            state.ends_at,
            state.snapshot_at,
        ),
    )


def newest_time(segments: Sequence[tuple[Piece, Buffer]]) -> int:
    """TIME of the newest record."""
    for piece, data in reversed(segments):
        if data and (last := verify(data, torn=tear_rule(piece)).last_time) is not None:
            return last
    return 0


def live_part(segments: Sequence[tuple[Piece, Buffer]], share: Share) -> LivePart:
    """The living rows of a share, read from the log without decoding most of it.

    What a cleaning asks of a row (is it there, since which image, until when) follows from few
    kinds of record: images, touches and tombstones. The tests hold it equal to a whole replay.
    """
    import numpy as np

    reader, settled = SegmentReader(share, FAILFAST), Settled(removals=False)
    stated: list[tuple[Array, Array, Array, Array]] = []
    touched: dict[bytes, int] = {}
    tombs: dict[bytes, int] = {}
    general: list[tuple[int, Command]] = []
    applied = 0
    for piece, data in reversed(segments):
        if not data:
            continue
        found = reader.matter(piece, data, None, settled)
        applied = max(applied, found.newest)
        whole = np.isin(found.kinds, _IMAGES)
        single = np.flatnonzero(whole & (found.members < 0))
        stated.append(_stated(piece, data, found, single))
        rest = np.isin(found.kinds, _READ) | (whole & (found.members >= 0))
        rest |= ~np.isin(found.kinds, _KNOWN)
        for n in np.flatnonzero(rest)[::-1].tolist():
            command = _command(piece, data, found, n)
            if isinstance(command, (Queue, Sender, Mark, Ends)):
                general.append((int(found.times[n]), command))
                continue
            row_id = command.id
            if isinstance(command, Touch):
                touched.setdefault(row_id, command.expires)
            elif isinstance(command, Tomb):
                touched.setdefault(row_id, 0)
                tombs[row_id] = int(found.times[n])
            else:
                assert isinstance(command, (Put, Add, Schedule))
                state = JournalState()
                state.apply(command, int(found.times[n]))
                stated.append(_of_row(state.rows[row_id]))
    lows, highs, at, expires = (np.concatenate(c) for c in zip(*stated, strict=True))
    known = LiveRows([_part(lows, highs, at, expires, Facts({}, {}, 0, 0))])
    fresh = [row_id for row_id in tombs if known.get(row_id) is None]
    for row_id, until in touched.items():
        pair = np.frombuffer(row_id, dtype=np.uint64)
        where = int(known.find(pair[:1], pair[1:])[0])
        if where >= 0:
            expires[where] = until
    ids = np.frombuffer(b"".join(fresh), dtype=np.uint64).reshape(-1, 2)
    state = JournalState()
    for time, command in reversed(general):
        state.apply(command, time)
    facts = part_of(state, applied).facts
    return _part(
        np.concatenate([lows, ids[:, 0]]),
        np.concatenate([highs, ids[:, 1]]),
        np.concatenate([at, np.array([tombs[one] for one in fresh], dtype=np.int64)]),
        np.concatenate([expires, np.array([touched[one] for one in fresh], dtype=np.int64)]),
        facts,
    )


_IMAGES = (1, 2, 32)
_READ = (36, 37, 45, 46, 49, 50)
_KNOWN = tuple(KINDS)


def _part(lows: Array, highs: Array, at: Array, expires: Array, facts: Facts) -> LivePart:
    import numpy as np

    return LivePart(
        np.column_stack([lows, highs]).tobytes(), at.tobytes(), expires.tobytes(), facts
    )


def _of_row(row: Row) -> tuple[Array, Array, Array, Array]:
    import numpy as np

    pair = np.frombuffer(row.id, dtype=np.uint64)
    at, expires = (np.array([value], dtype=np.int64) for value in (row.at, row.expires))
    return pair[:1], pair[1:], at, expires


def _stated(
    piece: Piece, data: Buffer, found: Matter, where: Array
) -> tuple[Array, Array, Array, Array]:
    """Ids, TIMEs and expiries of the images that stand alone in their records."""
    import numpy as np

    starts = found.starts[where]
    chunk = Chunk(
        data, found.times[where], found.offsets[where], starts, found.ends[where] - starts,
        found.kinds[where],
    )  # fmt: skip
    fields = Fields(chunk)
    for n in np.flatnonzero(fields.bad).tolist():
        _command(piece, data, found, int(where[n]))  # says what is wrong
    expires, missing = fields.number("expires")
    return found.lows[where], found.highs[where], chunk.times, np.where(missing, 0, expires)


def _command(piece: Piece, data: Buffer, found: Matter, n: int) -> Command:
    try:
        command = decode(bytes(data[found.starts[n] : found.ends[n]]))
    except CorruptCommand as fault:
        raise CorruptRecord(piece.path, int(found.offsets[n]), str(fault)) from fault
    if found.members[n] >= 0:
        assert isinstance(command, Group)
        return command.members[int(found.members[n])]
    return command


@dataclass(frozen=True, slots=True)
class _Row:
    at: int
    expires: int


class LiveRows:
    """All living rows; stands for a `JournalState` before `journal.retention`."""

    ended = 0

    def __init__(self, parts: Iterable[LivePart]) -> None:
        import numpy as np

        found = list(parts)
        ids = np.frombuffer(b"".join(p.ids for p in found), dtype=np.uint64).reshape(-1, 2)
        self._lows = np.ascontiguousarray(ids[:, 0])
        self._highs = np.ascontiguousarray(ids[:, 1])
        self.at = np.frombuffer(b"".join(p.at for p in found), dtype=np.int64)
        self.expires = np.frombuffer(b"".join(p.expires for p in found), dtype=np.int64)
        facts = [p.facts for p in found]
        self.queues = {name: lane for fact in facts for name, lane in fact.queues.items()}
        self.senders = {name: told for fact in facts for name, told in fact.senders.items()}
        self.mark_at = max((fact.mark_at for fact in facts), default=0)
        self.snapshot_at = max((fact.snapshot_at for fact in facts), default=0)
        self.ends_at = max((fact.ends_at for fact in facts), default=0)
        self.applied = max((fact.applied for fact in facts), default=0)
        self.rows = self
        self._table: Any = None

    def __len__(self) -> int:
        return len(self.at)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def get(self, row_id: bytes) -> _Row | None:
        """One row by its id, as `rows.get` of a state gives it."""
        import numpy as np

        if len(row_id) != 16:
            return None
        pair = np.frombuffer(row_id, dtype=np.uint64)
        at = int(self.find(pair[:1], pair[1:])[0])
        return None if at < 0 else _Row(int(self.at[at]), int(self.expires[at]))

    def find(self, lows: Array, highs: Array) -> Array:
        """For each id the number of its living row; -1 for none."""
        import numpy as np

        if find_spec("numba") is not None:
            from fastjournal.spark.replay.fold_kernel import build, lookup

            if self._table is None:
                size = 1 << max(4, (2 * len(self) + 1).bit_length())
                table = np.full(size, -1, dtype=np.int64)
                build(self._lows, self._highs, table)
                self._table = table
            return lookup(lows, highs, self._lows, self._highs, self._table)  # type: ignore[no-any-return]
        if self._table is None:
            pairs = zip(self._lows.tolist(), self._highs.tolist(), strict=True)
            self._table = {pair: n for n, pair in enumerate(pairs)}
        known = self._table
        pairs = zip(lows.tolist(), highs.tolist(), strict=True)
        return np.array([known.get(pair, -1) for pair in pairs], dtype=np.int64)
