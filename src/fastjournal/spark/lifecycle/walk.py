"""The lives of rows: what each command did to its row, and one line for every lease. No Spark.

Rules:

1. A command is a record, or one member of a GROUP record, in its place.
2. The state of a row follows from its own records (`journal.state`, rule 2): so the commands of a
   batch are sorted by row and each row is walked once, in order. What a row is at the end of a
   batch is carried into the next one; the walk gives the same states as the journal's `apply`.
3. A lease becomes an attempt when it ends. Its wait is counted from the later of its due time and
   the moment the row began to wait; its run from the record that handed it out.
4. A row restated in one GROUP (many changes since its last image) is no new work: the counters in
   the image tell what the GROUP stands for. A put in one GROUP with the mark of its sender is a
   put like any other.
5. A PURGE of a row being worked on is its completion: the log has no other word for it. So a job
   deleted by hand while it was worked on counts as done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastjournal.spark.lifecycle import walk_kernel as kernels
from fastjournal.spark.lifecycle.commands import ROWLESS, Part, parts_of
from fastjournal.spark.replay.fold import Share, route

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

__all__ = ["EFFECTS", "HELD_ROWS", "OUTCOMES", "STATES", "Fold", "Lives", "Part", "parts_of"]

EFFECTS = (
    "nothing", "new", "merged", "restated", "revived", "leased", "renewed", "done", "retried",
    "released", "timed_out", "dead", "expired", "deleted", "redriven", "changed", "noted",
    "superseded",
)  # fmt: skip
"""What a command did to its row, by number."""

OUTCOMES = {7: "done", 8: "failed", 9: "released", 10: "timed_out", 12: "expired", 13: "deleted"}
"""How an attempt ended, by the number of the effect that ended it."""

STATES = ("WAITING", "PROCESSING", "COMPLETED", "FAILED", "DELETED")

_ROW_FIELDS = (
    "state", "since", "due", "leased", "attempt", "timeouts", "fails", "max_attempts", "lease_ms",
    "renewals", "until", "queue", "worker", "puts", "born",
)  # fmt: skip
_NOTED = 16
HELD_ROWS = 131_072
"""Commands that pay for the rows carried along: a smaller batch waits for more."""
_HELD_BYTES = 48 << 20


@dataclass(slots=True)
class Lives:
    """What the commands of a batch did, one entry a command, and the attempts that ended."""

    parts: list[Part]
    before: Array
    """State of the row, -1 for none; `after` likewise."""
    after: Array
    effects: Array
    queues: Array
    """Number of the queue in `Fold.queues`; -1 for none."""
    ends: Array
    """Attempts: 15 rows of numbers, see `ended`."""
    _keys: pa.Array
    _sources: Array
    _lows: Array
    _highs: Array

    def keys(self, sources: Array | None = None) -> pa.Array:
        """The key of the row of each command, or of these sources, as bytes."""
        import pyarrow as pa

        wanted = self._sources if sources is None else sources
        return self._keys.take(pa.array(wanted, mask=wanted < 0))

    def sources(self, places: Array) -> Array:
        """Where the keys of these commands stand, for `keys`."""
        found: Array = self._sources[places]
        return found

    def ended(self, name: str) -> Array:
        """One column of the attempts."""
        column: Array = self.ends[_ENDED[name]]
        return column

    def times(self) -> Array:
        """TIME of each command."""
        import numpy as np

        return np.concatenate([part.chunk.times for part in self.parts])


_END_NAMES = (
    "command", "lease", "source", "attempt", "ready", "leased", "ended", "outcome", "dead",
    "renewals", "queue", "worker", "puts", "born", "reason",
)  # fmt: skip
_ENDED = {name: place for place, name in enumerate(_END_NAMES)}


class Fold:
    """Rows carried from batch to batch."""

    def __init__(self, share: Share, carried: pa.Table | None = None) -> None:
        import numpy as np
        import pyarrow as pa

        self.share = share
        self.queues: dict[bytes, int] = {}
        self.workers: dict[bytes, int] = {}
        self._ids = np.empty((0, 2), dtype=np.uint64)
        self._rows = np.empty((len(_ROW_FIELDS), 0), dtype=np.int64)
        self._keys: pa.Array = pa.array([], pa.binary())
        if carried is not None and carried.num_rows:
            self._take_over(carried)

    def __len__(self) -> int:
        return len(self._ids)

    def states(self) -> Array:
        """The state of every row that is there now."""
        column: Array = self._rows[0]
        return column

    def queue_numbers(self) -> Array:
        """The queue of every row that is there now, as a number; -1 for none."""
        column: Array = self._rows[_ROW_FIELDS.index("queue")]
        return column

    def batches(self, parts: Iterable[Part]) -> Iterator[Lives]:
        """The commands in batches large enough to pay for the rows carried along."""
        held: list[Part] = []
        rows = size = 0
        for part in parts:
            held.append(part)
            rows += len(part.chunk)
            size += int(part.sizes.sum())
            if rows >= max(HELD_ROWS, len(self) // 4) or size >= _HELD_BYTES:
                yield self.feed(held)
                held, rows, size = [], 0, 0
        if held:
            yield self.feed(held)

    def feed(self, parts: list[Part]) -> Lives:
        """What these commands do; they come behind all that were fed before."""
        import numpy as np
        import pyarrow as pa

        keys = [part.fields.text("key") for part in parts]
        queues = np.concatenate([_codes(part.fields.text("queue"), self.queues) for part in parts])
        workers = np.concatenate(
            [_codes(part.fields.text("worker"), self.workers) for part in parts]
        )
        kinds, times = (
            np.concatenate([getattr(part.chunk, name) for part in parts])
            for name in ("kinds", "times")
        )
        members = np.concatenate([np.where(part.forwarded, -1, part.members) for part in parts])
        named = np.concatenate([part.named for part in parts])
        numbers = np.concatenate([part.fields.numbers for part in parts], axis=1)
        ids = np.concatenate([part.chunk.ids().view(np.uint64) for part in parts])
        carried, count = len(self._ids), len(kinds)
        has_key = np.concatenate([np.asarray(one.is_valid()) for one in keys])
        effects = np.where(np.isin(kinds, ROWLESS), _NOTED, 0).astype(np.uint8)
        before, after = (np.full(count, -1, dtype=np.int8) for _ in range(2))
        out_queue, sources = (np.full(count, -1, dtype=np.int64) for _ in range(2))
        kept = np.empty((len(_ROW_FIELDS), carried + count), dtype=np.int64)
        row_keys, row_last = (np.empty(carried + count, dtype=np.int64) for _ in range(2))
        ends = np.empty((len(_END_NAMES), count + 1), dtype=np.int64)
        everything = np.concatenate([self._ids, ids])
        order, first = _by_row(everything, np.concatenate([np.ones(carried, bool), named]))
        alive, ended = kernels.live(
            order, first, carried, kinds, times, members, numbers, queues, workers, has_key,
            self._rows, kept, row_keys, row_last, before, after, effects, out_queue, sources, ends,
        )  # fmt: skip
        all_keys = pa.concat_arrays([self._keys, *keys])
        self._ids = everything[row_last[:alive]]
        self._rows = kept[:, :alive].copy()
        sources_kept = row_keys[:alive]
        self._keys = all_keys.take(pa.array(sources_kept, mask=sources_kept < 0))
        return Lives(
            parts, before, after, effects, out_queue, ends[:, :ended].copy(),
            all_keys, sources, everything[:, 0], everything[:, 1],
        )  # fmt: skip

    def ids_of(self, lives: Lives) -> pa.Array:
        """The row of each attempt, 16 bytes."""
        import numpy as np

        which = lives.ended("source")
        pairs = np.stack([lives._lows[which], lives._highs[which]], axis=1)
        return _binary16(pairs)

    def table(self) -> pa.Table:
        """The rows as they stand, to be carried on by another fold."""
        import pyarrow as pa

        columns: dict[str, pa.Array] = {"id": _binary16(self._ids), "key": self._keys}
        for place, name in enumerate(_ROW_FIELDS):
            if name in ("queue", "worker"):
                columns[name] = _words(self._rows[place], getattr(self, name + "s"))
            else:
                columns[name] = pa.array(self._rows[place])
        return pa.table(columns)

    def _take_over(self, carried: pa.Table) -> None:
        import numpy as np
        import pyarrow as pa

        ids = np.frombuffer(b"".join(carried["id"].to_pylist()), dtype=np.uint64).reshape(-1, 2)
        if self.share.count > 1:
            mine = route(ids[:, 0], ids[:, 1], self.share.count) == self.share.index
            carried, ids = carried.filter(pa.array(mine)), ids[mine]
        self._ids = ids.copy()
        self._rows = np.empty((len(_ROW_FIELDS), len(ids)), dtype=np.int64)
        self._keys = _one(carried["key"])
        for place, name in enumerate(_ROW_FIELDS):
            if name in ("queue", "worker"):
                self._rows[place] = _codes(_one(carried[name]), getattr(self, name + "s"))
            else:
                self._rows[place] = carried[name].to_numpy()


def _one(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _by_row(ids: Array, named: Array) -> tuple[Array, Array]:
    """Entries that name a row in the order of rows, then as given; and where a row begins."""
    import numpy as np

    which = np.flatnonzero(named)
    lows, highs = ids[which, 0], ids[which, 1]
    mixed = (lows ^ (highs * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xC2B2AE3D27D4EB4F)
    for keys in ((mixed,), (lows, highs)):
        order = np.argsort(keys[0], kind="stable") if len(keys) == 1 else np.lexsort(keys)
        sorted_lows, sorted_highs = lows[order], highs[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = (sorted_lows[1:] != sorted_lows[:-1]) | (sorted_highs[1:] != sorted_highs[:-1])
        if len(keys) == 2:
            break
        # Two rows of one mixed number may be interleaved: then sort by the whole id.
        tops = mixed[order]
        if not (first[1:] & (tops[1:] == tops[:-1])).any():
            break
    return which[order], first


def _codes(values: pa.Array, known: dict[bytes, int]) -> Array:
    import numpy as np

    found = values.dictionary_encode()
    words = found.dictionary.to_pylist()
    table = np.array([known.setdefault(word, len(known)) for word in words] or [0], dtype=np.int64)
    places = found.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    codes: Array = np.where(places < 0, -1, table[np.maximum(places, 0)])
    return codes


def _words(codes: Array, known: dict[bytes, int]) -> pa.Array:
    import pyarrow as pa

    return pa.array(list(known), pa.binary()).take(pa.array(codes, mask=codes < 0))


def _binary16(pairs: Array) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    values = np.ascontiguousarray(pairs)
    offsets = np.arange(0, 16 * len(values) + 1, 16, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    )
