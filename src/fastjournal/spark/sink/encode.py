"""Rows of a DataFrame to staged segments: whole files of PUT records, written by the tasks.

    column    type                      meaning; a column or a value that is missing
    --------  ------------------------  ----------------------------------------------------
    payload   binary, string            what the worker gets; empty
    key       string, binary            a repeat merges into the waiting job; no key
    queue     string, binary            its queue; the option `queue`, else the key's domain
    priority  tinyint to bigint         0..255, smaller first; 100
    due       timestamp                 not before this instant; at once
    ttl       number of seconds,        lives so long after it is due; for ever
              interval day to second
    id        binary, 16 bytes; string  the job's id, chosen by you; chosen by the batch

Rules:

1. A staged file is a segment with header, TIMEs and CRCs, synced before the task ends. Nothing of
   it is in the journal: only the single writer takes it in (`adopting`), and only if it is whole.
2. Its records lack what only that writer knows: id (unless given), instant of arrival.
3. A column that is not in the table above, or of another type, is refused before any task runs; a
   value out of range fails its task, with the value named.
4. Batches are encoded column by column; nothing loops over rows in Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastjournal.arguments import MAX_VALUE, id_bytes
from fastjournal.clock import SECOND, SYSTEM_CLOCK, Clock
from fastjournal.errors import BadRequest, OutOfRange, SegmentError, SettingError, TooLarge
from fastjournal.journal.language.varint import sv, uv
from fastjournal.keys import MAX_KEY, MAX_QUEUE, domain
from fastjournal.log.scan.encode_columns import encode_column
from fastjournal.log.scan.scan import verify
from fastjournal.log.segment import WORKQ
from fastjournal.model import DEFAULT_PRIORITY, MAX_INSTANT
from fastjournal.spark.schema import OLD_NAMES, WRITTEN, current_name
from fastjournal.spark.storage.segments import Piece, load
from fastjournal.spark.storage.written_files import Writing, Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["Staged", "check_schema", "payloads", "stage"]

_ROWS = 20_000
_BYTES = 16 << 20
"""Rows, or bytes of rows, encoded at once: their records are held in memory."""
_PLAIN_TAIL = b"\x01\0\0\0\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Staged:
    """A file that a task has left for the writer."""

    path: str
    rows: int
    plain: bool
    """No row has a key or an id of its own: nothing needs to be looked up."""
    own_ids: bool
    """Some row has an id of its own."""
    queues: tuple[bytes, ...]
    size: int
    """Below 0 when it was staged by 0.1.0, which did not tell; then the records are counted."""
    crc: int

    def check(self) -> None:
        """Raise unless the file is here, and is what the task wrote."""
        if self.size < 0:
            found = verify(load(Piece(self.path, 0, 0, newest=False)))
            if found.damage or found.records != self.rows:
                raise SegmentError(self.path, f"has {found.records} records, not {self.rows}")
        else:
            Written(self.path, self.size, self.crc).check()


def check_schema(schema: StructType, queue: bytes = b"") -> None:
    """Refuse columns that mean nothing to a journal, and rows that could name no queue."""
    for field in schema.fields:
        allowed = WRITTEN.get(current_name(field.name))
        if allowed is None:
            raise SettingError(
                f"schema: a job has no column {field.name!r}; it has {', '.join(WRITTEN)}",
                name="schema",
            )
        found = field.dataType.simpleString()
        if found not in allowed:
            raise SettingError(
                f"schema: {field.name} is {found}, not {' or '.join(allowed)}", name="schema"
            )
    names = [OLD_NAMES.get(name, name) for name in schema.fieldNames()]
    if len(set(names)) != len(names):
        raise SettingError("schema: a column is there twice", name="schema")
    if not queue and not {"queue", "key"} & set(names):
        raise SettingError(
            "schema: name a queue: column queue or key, or option queue", name="schema"
        )


def stage(
    batches: Iterable[pa.RecordBatch],
    path: Path,
    *,
    queue: bytes = b"",
    clock: Clock = SYSTEM_CLOCK,
) -> Staged:
    """Write the rows as one staged segment."""
    now = clock.now()
    rows = 0
    keyed = own_ids = False
    queues: set[bytes] = set()
    writing = Writing(path)
    try:
        writing.write(WORKQ.encode())
        for whole in batches:
            step = max(1, min(_ROWS, whole.num_rows * _BYTES // max(whole.nbytes, 1)))
            for start in range(0, whole.num_rows, step):
                batch = whole.slice(start, step)
                encoded, names, has_keys, has_ids = payloads(batch, now, queue)
                writing.write(encode_column(now + rows, encoded))
                rows += len(encoded)
                queues |= names
                keyed, own_ids = keyed or has_keys, own_ids or has_ids
        made = writing.finish()
    finally:
        writing.close()
    plain = not (keyed or own_ids)
    return Staged(made.path, rows, plain, own_ids, tuple(sorted(queues)), made.size, made.crc)


def payloads(
    batch: pa.RecordBatch, now: int, queue: bytes
) -> tuple[pa.Array, set[bytes], bool, bool]:
    """The PUT commands of a batch, the queues they name, whether some have keys, or own ids."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = batch.num_rows
    columns = {OLD_NAMES.get(name, name): batch.column(name) for name in batch.schema.names}
    values = _bytes(columns.get("payload"), rows, "payload", 0, MAX_VALUE)
    keys = _bytes(columns.get("key"), rows, "key", 0, MAX_KEY)
    keyed = (pc.sum(pc.binary_length(keys)).as_py() or 0) > 0
    queues = _queues(columns.get("queue"), keys, rows, queue)
    ids, own_ids = _ids(columns.get("id"), rows)
    ranks = _ranks(columns.get("priority"), rows)
    middle = _instants(columns.get("due"), columns.get("ttl"), rows, now)
    parts: tuple[Any, ...] = (
        b"\x20", ids, b"\x01", _lengths(queues), queues, _lengths(keys), keys, b"\0", ranks,
        middle, b"\0\x01", _lengths(values), values, _PLAIN_TAIL,
    )  # fmt: skip
    made = pc.binary_join_element_wise(
        *(pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts),
        pa.scalar(b"", pa.binary()),
    )
    return made, set(pc.unique(queues).to_pylist()), keyed, own_ids


def _constant(value: bytes, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, pa.binary()), rows)


def _bytes(column: pa.Array | None, rows: int, name: str, least: int, most: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column is None:
        return _constant(b"", rows)
    values = column.cast(pa.binary()).fill_null(b"")
    if rows:
        bounds = pc.min_max(pc.binary_length(values)).as_py()
        if bounds["max"] > most:
            raise TooLarge(f"{name}: {bounds['max']} bytes exceed the limit of {most}")
        if bounds["min"] < least:
            raise BadRequest(f"{name}: must not be empty")
    return values


def _queues(column: pa.Array | None, keys: pa.Array, rows: int, queue: bytes) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column is None and queue:
        return _constant(queue, rows)
    given = pa.nulls(rows, pa.binary()) if column is None else column.cast(pa.binary())
    if queue:
        given = given.fill_null(queue)
    elif given.null_count:
        distinct = pc.unique(keys.filter(given.is_null())).to_pylist()
        if b"" in distinct:
            raise BadRequest("queue: a row has neither a queue nor a key that has a domain")
        found = pa.array([domain(key) for key in distinct], pa.binary())
        where = pc.index_in(keys, value_set=pa.array(distinct, pa.binary()))
        given = pc.coalesce(given, found.take(where))
    return _bytes(given, rows, "queue", 1, MAX_QUEUE)


def _ids(column: pa.Array | None, rows: int) -> tuple[pa.Array, bool]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column is None or column.null_count == rows:
        return _constant(bytes(16), rows), False
    if pa.types.is_string(column.type):
        texts = column.to_pylist()
        column = pa.array([None if one is None else id_bytes(one) for one in texts], pa.binary())
    sizes = pc.min_max(pc.binary_length(column)).as_py()
    if (sizes["min"], sizes["max"]) != (16, 16):
        raise BadRequest(
            f"id: 16 bytes, not {sizes['min'] if sizes['min'] != 16 else sizes['max']}"
        )
    if pc.any(pc.equal(column, pa.scalar(bytes(16), pa.binary()))).as_py():
        raise BadRequest("id: not all of its bytes may be 0")
    return column.cast(pa.binary()).fill_null(bytes(16)), True


def _ranks(column: pa.Array | None, rows: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column is None or not rows:
        return _constant(sv(DEFAULT_PRIORITY), rows)
    values = column.cast(pa.int64()).fill_null(DEFAULT_PRIORITY)
    bounds = pc.min_max(values).as_py()
    if bounds["min"] < 0 or bounds["max"] > 255:
        worst = bounds["min"] if bounds["min"] < 0 else bounds["max"]
        raise OutOfRange(f"priority: {worst} is not in 0..255")
    return pa.array([sv(priority) for priority in range(256)], pa.binary()).take(values)


def _lengths(values: pa.Array) -> pa.Array:
    """Each length as a varint; there are few different ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = pc.dictionary_encode(pc.binary_length(values))
    return pa.array([uv(n) for n in coded.dictionary.to_pylist()], pa.binary()).take(coded.indices)


def _instants(due: pa.Array | None, ttl: pa.Array | None, rows: int, now: int) -> pa.Array:
    """Due, inserted, modified and expires, eight bytes each; arrival is not known yet."""
    import numpy as np
    import pyarrow as pa

    numbers = np.zeros((rows, 4), dtype=">u8")
    at = np.zeros(rows, dtype=np.int64)
    if due is not None:
        micros = due.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).fill_null(0).to_numpy()
        if rows and int(micros.max()) > MAX_INSTANT // 1000:
            raise OutOfRange("due: past the year 2262")
        at = np.maximum(micros, 0) * 1000
        numbers[:, 0] = at
    if ttl is not None and rows:
        lengths, missing = _nanoseconds(ttl)
        expires = np.maximum(at, now).astype(np.float64) + lengths
        if not np.all(np.isfinite(lengths) & (expires < MAX_INSTANT)):
            raise OutOfRange("ttl: reaches beyond the year 2262")
        if np.any((lengths <= 0) & ~missing):
            raise BadRequest("ttl: must be longer than nothing")
        numbers[:, 3] = np.where(missing, 0, np.maximum(at, now) + lengths.astype(np.int64))
    offsets = np.arange(0, 32 * rows + 1, 32, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(numbers.tobytes())]
    )


def _nanoseconds(ttl: pa.Array) -> tuple[Any, Any]:
    """Lengths in ns as floats, and where there is none."""
    import numpy as np
    import pyarrow as pa

    missing = np.asarray(ttl.is_null())
    if pa.types.is_duration(ttl.type):
        whole = ttl.cast(pa.duration("us")).cast(pa.int64()).fill_null(0).to_numpy()
        return whole.astype(np.float64) * 1000, missing
    seconds = ttl.cast(pa.float64()).fill_null(0.0).to_numpy()
    with np.errstate(over="ignore"):  # infinite is refused as too long
        return seconds * SECOND, missing
