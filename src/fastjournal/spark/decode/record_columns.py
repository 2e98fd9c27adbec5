"""Records to Arrow batches of exactly the columns asked for. No Spark.

Rules:

1. A column that is not asked for costs nothing.
2. Broadcast kinds name no row: their `id` is null.
3. Damage is a row of its own, in its place: only its origin, bytes and reason are filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from fastjournal.log.scan.scan import Buffer, Chunk, Damage, Scan, slices_to_binary
from fastjournal.spark.decode.fields import NUMBERS, SLICES, Fields
from fastjournal.spark.kinds import BROADCAST, among, kind_name
from fastjournal.spark.options import Settings
from fastjournal.spark.schema import arrow_schema
from fastjournal.spark.storage.segments import Piece, load_unless_gone, tear_rule

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columns", "batches", "coalesced", "readable", "record_batches"]

_FIELD_COLUMNS = frozenset({*NUMBERS, *SLICES, "key_bytes", "_error"})
_TIMES = frozenset({"due", "inserted", "expires"})
_LARGEST_SHOWN = 1 << 20
_SMALL_BATCH = 8_192
_HELD_BYTES = 16 << 20


def readable(values: pa.Array) -> pa.Array:
    """Bytes as text; where they are not UTF-8 the odd ones are written as `\\xNN`."""
    import pyarrow as pa

    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [
            None if value is None else value.decode("utf-8", "backslashreplace")
            for value in values.to_pylist()
        ]
        return pa.array(texts, pa.string())


@cache
def _kind_names() -> pa.Array:
    import pyarrow as pa

    return pa.array([kind_name(number) for number in range(256)], pa.string())


def _micros(nanos: Any) -> Any:
    """Ns to us as Spark's own cast does: towards the past."""
    import numpy as np

    return np.floor_divide(nanos, 1000)


class Columns:
    """The columns of one chunk, each made when it is asked for."""

    def __init__(self, chunk: Chunk, piece: Piece, fields: Fields | None) -> None:
        import pyarrow as pa

        self._pa = pa
        self._chunk = chunk
        self._piece = piece
        self._fields = fields

    def column(self, name: str) -> pa.Array:
        """One column by its name in the schema."""
        pa, chunk = self._pa, self._chunk
        match name:
            case "time":
                return pa.array(_micros(chunk.times)).cast(pa.timestamp("us", tz="UTC"))
            case "time_ns":
                return pa.array(chunk.times)
            case "type":
                return pa.array(chunk.kinds.astype("int16"))
            case "command":
                return _kind_names().take(pa.array(chunk.kinds))
            case "id":
                return self._ids()
            case "size":
                return pa.array(chunk.sizes.astype("int32"))
            case "record":
                return chunk.payloads()
            case "_segment":
                return pa.repeat(pa.scalar(self._piece.number, pa.int64()), len(chunk))
            case "_offset":
                return pa.array(chunk.offsets)
            case "_directory":
                return pa.repeat(pa.scalar(self._piece.directory), len(chunk))
            case "_corrupt_record":
                return pa.nulls(len(chunk), pa.binary())
        return self._field(name)

    def _ids(self) -> pa.Array:
        import numpy as np

        pa, chunk = self._pa, self._chunk
        rows = len(chunk)
        missing = (chunk.sizes < 17) | among(BROADCAST)[chunk.kinds]
        offsets = np.arange(0, 16 * rows + 1, 16, dtype=np.int32)
        bits = None
        if missing.any():
            bits = pa.py_buffer(np.packbits(~missing, bitorder="little"))
        values = chunk.ids()
        return pa.Array.from_buffers(
            pa.binary(), rows, [bits, pa.py_buffer(offsets), pa.py_buffer(values)]
        )

    def _field(self, name: str) -> pa.Array:
        pa, fields = self._pa, self._fields
        assert fields is not None
        if name == "_error":
            texts = pa.array(["fields do not parse"] * len(self._chunk), mask=~fields.bad)
            return texts.cast(pa.string())
        if name in SLICES or name == "key_bytes":
            found = slices_to_binary(
                self._chunk.data, *fields.slice_of(name.removesuffix("_bytes"))
            )
            return readable(found) if name in {"queue", "key"} else found
        values, missing = fields.number(name)
        if name in _TIMES:
            stamps = pa.array(_micros(values), mask=missing)
            return stamps.cast(pa.timestamp("us", tz="UTC"))
        if name in {"max_attempts", "max_fails"}:
            values = values.astype("int32")
        return pa.array(values, mask=missing)


def _queue_mask(chunk: Chunk, fields: Fields, queues: frozenset[str]) -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    names = readable(slices_to_binary(chunk.data, *fields.slice_of("queue")))
    found = pc.is_in(names, value_set=pa.array(sorted(queues)))
    return np.asarray(found.fill_null(False))


def _damage_batch(
    damage: Damage, data: Buffer, piece: Piece, names: Sequence[str], schema: pa.Schema
) -> pa.RecordBatch:
    import pyarrow as pa

    known: dict[str, object] = {
        "_segment": piece.number,
        "_offset": damage.offset,
        "_directory": piece.directory,
        "_corrupt_record": data[damage.offset : min(damage.end, damage.offset + _LARGEST_SHOWN)],
        "_error": damage.reason,
    }
    return pa.RecordBatch.from_pydict({name: [known.get(name)] for name in names}, schema=schema)


def batches(
    piece: Piece, data: Buffer, names: Sequence[str], settings: Settings
) -> Iterator[pa.RecordBatch]:
    """The records of one segment as batches of the columns `names`."""
    import pyarrow as pa

    schema = arrow_schema("records", names)
    want_fields = bool(_FIELD_COLUMNS.intersection(names)) or settings.queues is not None
    scan = Scan(
        data,
        path=piece.path,
        torn=tear_rule(piece),
        mode=settings.mode,
        after=piece.after,
        upto=piece.upto,
        kinds=settings.commands,
    )
    last: int | None = None
    behind, upto = piece.split
    for part in scan:
        if isinstance(part, Damage):
            # It has no TIME of its own: it goes with the record before it.
            if _within(last, behind, upto):
                yield _damage_batch(part, data, piece, names, schema)
            continue
        last, chunk = int(part.times[-1]), part
        if behind is not None or upto is not None:
            chunk = _between(part, behind, upto)
            if not len(chunk):
                continue
        fields = Fields(chunk) if want_fields else None
        if fields is not None and settings.queues is not None:
            chunk = chunk.select(_queue_mask(chunk, fields, settings.queues))
            if not len(chunk):
                continue
            fields = Fields(chunk)
        batch = Columns(chunk, piece, fields)
        yield pa.RecordBatch.from_arrays([batch.column(name) for name in names], schema=schema)


def _within(time: int | None, behind: int | None, upto: int | None) -> bool:
    if time is None:
        return behind is None
    return (behind is None or time > behind) and (upto is None or time <= upto)


def _between(chunk: Chunk, behind: int | None, upto: int | None) -> Chunk:
    import numpy as np

    mask = np.ones(len(chunk), dtype=bool)
    if behind is not None:
        mask &= chunk.times > behind
    if upto is not None:
        mask &= chunk.times <= upto
    return chunk.select(mask)


def record_batches(pieces: Iterable[Piece], settings: Settings) -> Iterator[pa.RecordBatch]:
    """The records of the segments of one task."""
    yield from coalesced(
        batch
        for piece in pieces
        if (data := load_unless_gone(piece))
        for batch in batches(piece, data, settings.columns, settings)
    )


def coalesced(found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows with small batches put together: each costs the JVM half a millisecond."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in found:
        if batch.num_rows >= _SMALL_BATCH and not held:
            yield batch
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _SMALL_BATCH or size >= _HELD_BYTES:
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)
