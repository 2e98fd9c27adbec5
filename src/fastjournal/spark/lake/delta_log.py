"""A Delta log over the files of an export: the same bytes, read as Delta tables.

Rules:

1. No row is written again: a Delta commit names the Parquet files that the export committed.
2. The number of the export's commit is the version of a Delta transaction (`fastjournal-export`):
   what a crash left out is added by the next call, what is there is not added twice.
3. `jobs` is overwritten by its newest commit; the commits in between are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastjournal.errors import Unavailable
from fastjournal.spark.lake.commits import REPLACED, Commit, Commits
from fastjournal.spark.lake.parquet_files import DataFile
from fastjournal.spark.lake.tables import schema_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["APP", "bring_up", "require_deltalake"]

APP = "fastjournal-export"


def require_deltalake() -> None:
    """Raise Unavailable, naming what to install, where the package is missing."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise Unavailable("Delta tables need: pip install 'fastjournal[delta]'") from error


def bring_up(commits: Commits, tables: Sequence[str]) -> None:
    """Give every table a Delta log up to the newest commit."""
    require_deltalake()
    numbers = commits.numbers()
    for table in tables:
        _table(commits, table, numbers)


def _table(commits: Commits, table: str, numbers: list[int]) -> None:
    from deltalake import DeltaTable

    root = commits.root / table
    done = 0
    if (root / "_delta_log").is_dir():
        done = DeltaTable(root).transaction_version(APP) or 0
    todo = [number for number in numbers if number > done]
    if table in REPLACED:
        todo = todo[-1:]
    for number in todo:
        _add(root, table, commits.read(number))


def _add(root: Any, table: str, commit: Commit) -> None:
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.transaction import create_table_with_add_actions

    actions = [_action(one, root) for one in commit.files if one.table == table]
    schema = _schema(table, commit.values)
    properties = CommitProperties(
        app_transactions=[Transaction(APP, commit.number)],
        custom_metadata={"journal": commit.journal, "upto": str(commit.upto)},
    )
    if not (root / "_delta_log").is_dir():
        root.mkdir(exist_ok=True)
        create_table_with_add_actions(
            str(root), schema, actions, mode="append", partition_by=["day", "queue"],
            name=table, commit_properties=properties,
        )  # fmt: skip
        return
    mode = "overwrite" if table in REPLACED else "append"
    DeltaTable(root).create_write_transaction(
        actions, mode, schema, partition_by=["day", "queue"], commit_properties=properties
    )


def _action(one: DataFile, root: Any) -> Any:
    from deltalake.transaction import AddAction

    path = one.path.removeprefix(one.table + "/")
    return AddAction(
        path=path,
        size=one.bytes,
        partition_values={"day": one.day, "queue": one.queue},
        modification_time=int((root / path).stat().st_mtime * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": one.rows}),
    )


def _schema(table: str, values: bool) -> Any:
    import pyarrow as pa
    from deltalake import Schema

    fields = [
        pa.field(one.name, one.type.value_type if pa.types.is_dictionary(one.type) else one.type)
        for one in schema_of(table, values=values)
    ]
    whole: pa.Schema = pa.schema(
        [*fields, pa.field("day", pa.date32()), pa.field("queue", pa.string())]
    )
    return Schema.from_arrow(whole)
