"""The columns of the views, for Spark and for Arrow.

Rules:

1. A view's default columns never change with the data; those with a leading underscore, and
   others on request, are read only when asked for by name.
2. Times are `timestamp` in microseconds, as Spark has no finer; `time_ns` is the record's identity.
3. Text that is not UTF-8 is shown with its odd bytes as `\\xNN`; `key_bytes` holds a key exactly.
4. Batches must have exactly the Arrow types of the Spark schema: Spark refuses anything else.
5. What a job is put with has one name wherever it is read or written: `WRITTEN`. So what was read
   can be written as it is.
6. A name of before is still read and written, with a warning; `columns=old` reads a view as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastjournal.errors import SettingError
from fastjournal.spark.options import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "OLD_NAMES",
    "VIEW_COLUMNS",
    "WRITTEN",
    "arrow_schema",
    "current_name",
    "ddl",
    "made_columns",
    "names_of",
    "struct",
]

_TEXT = ("binary", "string")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
WRITTEN: Mapping[str, tuple[str, ...]] = {
    "payload": _TEXT,
    "key": _TEXT,
    "queue": _TEXT,
    "priority": _WHOLE,
    "due": ("timestamp",),
    "ttl": (*_WHOLE, "float", "double", "interval day to second"),
    "id": _TEXT,
}
"""What a job is put with, and the SQL types it may be written in; an id as text is 32 hex digits
or a UUID."""

OLD_NAMES: Mapping[str, str] = {"value": "payload", "rank": "priority"}
"""Names that columns had before (rule 6)."""
_OLD = "old"
_log = logging.getLogger(__name__)

_OF_A_PUT: Mapping[str, str] = {
    "id": "binary",
    "queue": "string",
    "key": "string",
    "priority": "bigint",
    "due": "timestamp",
    "inserted": "timestamp",
    "expires": "timestamp",
    "ttl": "double",
    "lease_ms": "bigint",
    "max_attempts": "int",
    "max_fails": "int",
}
"""What records and events alike tell of a job that was put."""

_RECORDS: Mapping[str, str] = {
    "time": "timestamp",
    "time_ns": "bigint",
    "command": "string",
    "type": "smallint",
    **_OF_A_PUT,
    "payload": "binary",
    "result": "binary",
    "size": "int",
}

_RECORDS_ON_REQUEST: Mapping[str, str] = {
    "record": "binary",
    "id_text": "string",
    "key_bytes": "binary",
    "_directory": "string",
    "_segment": "bigint",
    "_offset": "bigint",
    "_corrupt_record": "binary",
    "_error": "string",
}

_JOBS: Mapping[str, str] = {
    "id": "binary",
    "queue": "string",
    "key": "string",
    "state": "string",
    "priority": "bigint",
    "due": "timestamp",
    "inserted": "timestamp",
    "modified": "timestamp",
    "expires": "timestamp",
    "ttl": "double",
    "lease_start": "timestamp",
    "lease_until": "timestamp",
    "worker": "string",
    "attempts": "int",
    "timeouts": "int",
    "fails": "int",
    "max_attempts": "int",
    "max_timeouts": "int",
    "max_fails": "int",
    "payload": "binary",
    "result": "binary",
    "note": "string",
}

_JOBS_ON_REQUEST: Mapping[str, str] = {
    "rank": "bigint",
    "id_text": "string",
    "kind": "smallint",
    "key_bytes": "binary",
    "queue_bytes": "binary",
    "worker_bytes": "binary",
    "note_bytes": "binary",
    "due_ns": "bigint",
    "inserted_ns": "bigint",
    "modified_ns": "bigint",
    "expires_ns": "bigint",
    "lease_start_ns": "bigint",
    "lease_until_ns": "bigint",
    "lease_ns": "bigint",
    "ttl_ns": "bigint",
    "workq": "boolean",
    "scheduled": "boolean",
    "_directory": "string",
}

_EVENTS: Mapping[str, str] = {
    "time": "timestamp",
    "time_ns": "bigint",
    "member": "int",
    "command": "string",
    "type": "smallint",
    "effect": "string",
    "before": "string",
    "after": "string",
    **_OF_A_PUT,
    "attempt": "int",
    "worker": "string",
    "lease_until": "timestamp",
    "reason": "string",
    "payload": "binary",
    "result": "binary",
    "note": "string",
    "size": "int",
    "segment": "bigint",
}

_ATTEMPTS: Mapping[str, str] = {
    "id": "binary",
    "queue": "string",
    "key": "string",
    "attempt": "int",
    "worker": "string",
    "inserted": "timestamp",
    "ready": "timestamp",
    "leased": "timestamp",
    "ended": "timestamp",
    "wait_ms": "double",
    "run_ms": "double",
    "outcome": "string",
    "dead": "boolean",
    "renewals": "int",
    "puts": "int",
    "ended_ns": "bigint",
}

_LIVES_ON_REQUEST: Mapping[str, str] = {"id_text": "string", "_directory": "string"}

_SEGMENTS: Mapping[str, str] = {
    "directory": "string",
    "segment": "bigint",
    "path": "string",
    "bytes": "bigint",
    "records": "bigint",
    "first_time": "timestamp",
    "last_time": "timestamp",
    "first_time_ns": "bigint",
    "last_time_ns": "bigint",
    "damaged": "int",
    "damaged_bytes": "bigint",
    "torn_bytes": "bigint",
    "newest": "boolean",
}

_SPOOL: Mapping[str, str] = {
    "put": "timestamp",
    "state": "string",
    "id": "binary",
    "queue": "string",
    "key": "string",
    "mode": "string",
    "priority": "bigint",
    "due": "timestamp",
    "expires": "timestamp",
    "ttl": "double",
    "payload": "binary",
    "file": "string",
    "offset": "bigint",
    "size": "int",
    "reason": "string",
}

_SPOOL_ON_REQUEST: Mapping[str, str] = {
    "id_text": "string",
    "put_ns": "bigint",
    "key_bytes": "binary",
    "_directory": "string",
}

VIEW_COLUMNS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "records": (_RECORDS, _RECORDS_ON_REQUEST),
    "jobs": (_JOBS, _JOBS_ON_REQUEST),
    "events": (_EVENTS, _LIVES_ON_REQUEST),
    "attempts": (_ATTEMPTS, _LIVES_ON_REQUEST),
    "segments": (_SEGMENTS, {}),
    "spool": (_SPOOL, _SPOOL_ON_REQUEST),
}
"""For each view, the columns read by default and those read on request, with their SQL types."""


def names_of(settings: Settings) -> tuple[str, ...]:
    """The columns that the settings ask for, in order."""
    usual, known = VIEW_COLUMNS[settings.view][0], _types(settings.view)
    names = settings.columns
    if names == (_OLD,):
        old = {OLD_NAMES[name]: name for name in OLD_NAMES.keys() & known.keys()}
        names = tuple(old.get(name, name) for name in usual if name != "ttl")
    own = _own(settings.view)
    for name in names:
        if name not in known:
            raise SettingError(
                f"columns: {settings.view} has no {name!r}; it has {', '.join(own)}",
                name="columns",
            )
        if name not in own:
            current_name(name)
    if settings.view == "records" and settings.mode == "PERMISSIVE" and not settings.columns:
        return (*usual, "_corrupt_record", "_error")
    return names or tuple(usual)


def current_name(name: str) -> str:
    """The name that a column has now; a warning, if it is not the one given."""
    if name in OLD_NAMES:
        _log.warning("column %s: its name is %s now", name, OLD_NAMES[name])
    return OLD_NAMES.get(name, name)


def _own(view: str) -> Mapping[str, str]:
    usual, asked = VIEW_COLUMNS[view]
    return {**usual, **asked}


def _types(view: str) -> Mapping[str, str]:
    """Every column that a view has, names of before included, with its SQL type."""
    known = _own(view)
    # What a spool holds had always its priority under that name.
    before = {"value"} if view == "spool" else OLD_NAMES.keys()
    old = {name: known[OLD_NAMES[name]] for name in before if OLD_NAMES[name] in known}
    return {**old, **known}


def _sources(view: str) -> Mapping[str, tuple[str, ...]]:
    """Columns that are made of others, with those they are made of."""
    made = {
        "id_text": ("id",),
        "ttl": ("expires", "due", "put" if view == "spool" else "inserted"),
        **{old: (new,) for old, new in OLD_NAMES.items()},
    }
    if view == "jobs":  # a rank of its own: Workq's priorities count the other way round
        del made["rank"]
    return made


def made_columns(
    settings: Settings, read: Callable[[Settings], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """What `read` gives, with the columns that are made of others."""
    import pyarrow as pa

    made = {name: of for name, of in _sources(settings.view).items() if name in settings.columns}
    if not made:
        yield from read(settings)
        return
    # Each once, in the order asked for.
    names = tuple(
        dict.fromkeys(one for name in settings.columns for one in made.get(name, (name,)))
    )
    schema = arrow_schema(settings.view, settings.columns)
    for batch in read(replace(settings, columns=names)):
        columns = [
            _made(name, [batch.column(one) for one in made[name]])
            if name in made
            else batch.column(name)
            for name in settings.columns
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _made(name: str, of: Sequence[pa.Array]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if name == "id_text":
        return pa.array([None if one is None else one.hex() for one in of[0].to_pylist()])
    if name == "ttl":
        expires, due, inserted = (one.cast(pa.int64()) for one in of)
        length = pc.subtract(expires, pc.max_element_wise(due, inserted))
        # Nothing is put with a ttl of 0; what expires before it is due has the shortest one.
        return pc.divide(pc.max_element_wise(length, 1, skip_nulls=False).cast(pa.float64()), 1e6)
    return of[0]


def ddl(view: str, names: Sequence[str]) -> str:
    """The columns as Spark's own text, for example `time timestamp, size int`."""
    types = _types(view)
    return ", ".join(f"`{name}` {types[name]}" for name in names)


_ARROW = {
    "timestamp": lambda pa: pa.timestamp("us", tz="UTC"),
    "bigint": lambda pa: pa.int64(),
    "int": lambda pa: pa.int32(),
    "smallint": lambda pa: pa.int16(),
    "string": lambda pa: pa.string(),
    "binary": lambda pa: pa.binary(),
    "boolean": lambda pa: pa.bool_(),
    "double": lambda pa: pa.float64(),
}


def arrow_schema(view: str, names: Sequence[str]) -> pa.Schema:
    """The exact Arrow schema of the columns."""
    import pyarrow as pa

    types = _types(view)
    fields: list[Any] = [pa.field(name, _ARROW[types[name]](pa)) for name in names]
    return pa.schema(fields)


def struct(view: str, names: Sequence[str]) -> StructType:
    """The columns as a Spark schema."""
    from pyspark.sql.types import (
        BinaryType,
        BooleanType,
        DataType,
        DoubleType,
        IntegerType,
        LongType,
        ShortType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    made: Mapping[str, DataType] = {
        "timestamp": TimestampType(),
        "bigint": LongType(),
        "int": IntegerType(),
        "smallint": ShortType(),
        "string": StringType(),
        "binary": BinaryType(),
        "boolean": BooleanType(),
        "double": DoubleType(),
    }
    types = _types(view)
    return StructType([StructField(name, made[types[name]]) for name in names])
