"""How lives become rows: tables `events` and `attempts`, in the columns of `schema`. No Spark.

Rules:

1. `events` has a row for every command, in the order of the log; `attempts` one for every lease
   that ended.
2. Times are UTC in microseconds; those with `_ns` are exact. Words are kept as numbers into a list
   of them, as Arrow and Parquet do.
3. The queue of a row stands beside the table, by number: files have it in their path.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fastjournal.journal.language import commands as language
from fastjournal.spark.decode.field_kernel import ATTEMPT, DUE, REASON, UNTIL
from fastjournal.spark.decode.record_columns import Columns, readable
from fastjournal.spark.lifecycle.walk import EFFECTS, OUTCOMES, STATES, Fold, Lives, Part
from fastjournal.spark.schema import VIEW_COLUMNS, arrow_schema
from fastjournal.spark.storage.segments import Piece

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

__all__ = ["attempts_of", "events_of", "life_schema"]

_WORDS = frozenset({"command", "effect", "before", "after", "reason", "outcome"})
_DEAD_REASONS = ("", "time-outs", "attempts", "failed")
_RETRY_REASONS = ("", "failed", "released", "timed out")
_REASONS = (*_DEAD_REASONS, *_RETRY_REASONS[2:])


@cache
def life_schema(table: str, *, values: bool = True) -> pa.Schema:
    """The columns of a table, without queue and ttl; without `values` also without payloads."""
    import pyarrow as pa

    left_out = ("queue", "ttl") if values else ("queue", "ttl", "payload", "result")
    names = [name for name in VIEW_COLUMNS[table][0] if name not in left_out]
    word = pa.dictionary(pa.int8(), pa.string())
    return pa.schema(
        [
            pa.field(field.name, word) if field.name in _WORDS else field
            for field in arrow_schema(table, names)
        ]
    )


def _words(places: Array, names: tuple[str, ...]) -> pa.Array:
    """Numbers as words; a negative one is null."""
    import pyarrow as pa

    indices = pa.array(places.astype("int8"), mask=places < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names))


def _moments(nanos: Array, missing: Array | None = None) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.floor_divide(nanos, 1000), mask=missing).cast(pa.timestamp("us", tz="UTC"))


class _PartColumns:
    """The columns of events that come from one part alone."""

    def __init__(self, part: Part) -> None:
        self._part = part
        piece = Piece("", part.segment, 0, newest=False)
        self._usual = Columns(part.chunk, piece, part.fields)

    def column(self, name: str) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        part, kinds = self._part, self._part.chunk.kinds
        numbers = part.fields.numbers
        match name:
            case "member":
                return pa.array(part.members, mask=part.members < 0)
            case "size":
                return pa.array(part.sizes.astype(np.int32))
            case "segment":
                return pa.repeat(pa.scalar(part.segment, pa.int64()), len(part.chunk))
            case "worker" | "note":
                return readable(part.fields.text(name))
            case "attempt":
                missing = (kinds != language.LEASE) & (kinds != language.RENEW)
                return pa.array(numbers[ATTEMPT].astype(np.int32), mask=missing)
            case "lease_until":
                until = numbers[UNTIL]
                return _moments(until, until == 0)
            case "reason":
                places = np.where(kinds == language.DEAD, numbers[REASON], -1)
                retry = np.array([-1, 3, 4, 5])[numbers[REASON] & 3]
                return _words(np.where(kinds == language.RETRY, retry, places), _REASONS)
            case "due":
                due = numbers[DUE]
                return _moments(due, due == 0)
        return self._usual.column(name)


@cache
def _kind_words() -> tuple[str, ...]:
    from fastjournal.spark.kinds import kind_name

    return tuple(kind_name(number) for number in range(128))


def events_of(lives: Lives, *, values: bool = True) -> pa.Table:
    """Table `events` of a batch: a row for every command, in the order of the log."""
    import numpy as np
    import pyarrow as pa

    schema = life_schema("events", values=values)
    parts = [_PartColumns(part) for part in lives.parts]
    whole = {
        "effect": lambda: _words(lives.effects, EFFECTS),
        "before": lambda: _words(lives.before, STATES),
        "after": lambda: _words(lives.after, STATES),
        "key": lambda: readable(lives.keys()),
        "command": lambda: _words(
            np.concatenate([part.chunk.kinds for part in lives.parts]).astype(np.int16) & 127,
            _kind_words(),
        ),
    }
    columns = []
    for field in schema:
        if field.name in whole:
            columns.append(pa.chunked_array([whole[field.name]()]))
        else:
            columns.append(pa.chunked_array([part.column(field.name) for part in parts]))
    return pa.Table.from_arrays(columns, schema=schema)


def attempts_of(fold: Fold, lives: Lives) -> pa.Table:
    """Table `attempts` of a batch: a row for every lease that ended in it."""
    import numpy as np
    import pyarrow as pa

    get = lives.ended
    names = tuple(OUTCOMES.get(number, "") for number in range(max(OUTCOMES) + 1))
    workers = pa.array(list(fold.workers), pa.binary())
    codes = get("worker")
    columns = {
        "id": fold.ids_of(lives),
        "key": readable(lives.keys(get("source"))),
        "attempt": pa.array(get("attempt").astype(np.int32)),
        "worker": readable(workers.take(pa.array(codes, mask=codes < 0))),
        "inserted": _moments(get("born")),
        "ready": _moments(np.minimum(get("ready"), get("leased"))),
        "leased": _moments(get("leased")),
        "ended": _moments(get("ended")),
        "wait_ms": pa.array(np.maximum(get("leased") - get("ready"), 0) / 1e6),
        "run_ms": pa.array((get("ended") - get("leased")) / 1e6),
        "outcome": _words(get("outcome"), names),
        "dead": pa.array(get("dead").astype(bool)),
        "renewals": pa.array(get("renewals").astype(np.int32)),
        "puts": pa.array(get("puts").astype(np.int32)),
        "ended_ns": pa.array(get("ended")),
    }
    schema = life_schema("attempts")
    return pa.Table.from_arrays([columns[field.name] for field in schema], schema=schema)
