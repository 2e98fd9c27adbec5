"""The tables of an export as Delta tables, by the package `deltalake`. No Spark.

Rules:

1. `events` and `attempts` grow by transactions that name the Parquet files the tasks have written,
   with their statistics; `jobs` by a MERGE of the rows that changed.
2. The number of the step is the version of the transaction `fastjournal-export`: what a crash left
   out is added by the next call, what is there is not added twice.
3. Only the log of a table says what belongs to it: a file that no version names is removed by
   `compact`, once it is older than a week.
4. Credentials and endpoints are those that `deltalake` finds in the environment.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastjournal.errors import BadRequest, NotFound, Unavailable
from fastjournal.spark.lake.files import DataFile, Folder
from fastjournal.spark.lake.tables import TABLES, plain, schema_of

if TYPE_CHECKING:
    from fastjournal.spark.lake.step import Step

__all__ = ["APP", "bring_up", "compact", "files_of", "require_deltalake"]

APP = "fastjournal-export"
_WEEK_HOURS = 168


def require_deltalake() -> None:
    """Raise Unavailable, naming what to install, where the package is missing."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise Unavailable("Delta tables need: pip install 'fastjournal[delta]'") from error


def bring_up(folder: Folder, step: Step) -> None:
    """Bring a step into the tables that lack it."""
    require_deltalake()
    for table in step.tables:
        _add(folder, step, table)
    if not folder.remote:
        os.sync()  # the package syncs nothing; what it merged from is removed next


def _add(folder: Folder, step: Step, table: str) -> None:
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction

    address = f"{folder.address}/{table}"
    schema = Schema.from_arrow(plain(schema_of(table, values=step.values)))
    there = DeltaTable.create(address, schema, "ignore", partition_by=["day"], name=table)
    version = there.transaction_version(APP) or 0
    if version > step.number:
        raise BadRequest(f"{address}: has step {version}, the export has come to {step.number}")
    files = step.of(table)
    if version == step.number or not files:
        return
    properties = CommitProperties(
        app_transactions=[Transaction(APP, step.number)],
        custom_metadata={"journal": step.journal, "upto": str(step.upto)},
    )
    if all(one.day is None for one in files):
        _merge(there, folder, files, properties)
    else:
        there.create_write_transaction(
            [_action(one, folder) for one in files], "append", schema, partition_by=["day"],
            commit_properties=properties,
        )  # fmt: skip


def _merge(table: Any, folder: Folder, files: list[DataFile], properties: Any) -> None:
    """Rows that changed, in files with a column `gone`."""
    import pyarrow.dataset as ds

    paths = [folder.at(one.path) for one in files]
    source = ds.dataset(paths, filesystem=folder.files, format="parquet")
    merging = table.merge(
        source.scanner().to_reader(), "t.id = s.id", source_alias="s", target_alias="t",
        commit_properties=properties,
    )  # fmt: skip
    (
        merging.when_matched_delete("s.gone")
        .when_matched_update_all(except_cols=["gone"])
        .when_not_matched_insert_all("not s.gone", except_cols=["gone"])
        .execute()
    )


def _action(one: DataFile, folder: Folder) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        path=one.place.removeprefix(f"{one.table}/"),
        size=one.bytes,
        partition_values={"day": one.day},
        modification_time=folder.files.get_file_info(folder.at(one.path)).mtime_ns // 1_000_000,
        data_change=True,
        stats=json.dumps(one.stats),
    )


def files_of(folder: Folder, table: str) -> list[str]:
    """The files of the newest version of a table."""
    require_deltalake()
    from deltalake import DeltaTable

    return list(DeltaTable(f"{folder.address}/{table}").file_uris())


def compact(out: str | Path, *, hours: int = _WEEK_HOURS) -> dict[str, tuple[int, int]]:
    """Join small files, and remove those that no version of the last `hours` needs.

    For each table how many files were joined, and how many removed. May run beside an export.
    """
    require_deltalake()
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    folder = Folder(out)
    compacted = {}
    for name in TABLES:
        with suppress(TableNotFoundError):
            table = DeltaTable(f"{folder.address}/{name}")
            joined = int(table.optimize.compact()["numFilesRemoved"])
            gone = table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
            compacted[name] = (joined, len(gone))
    if not compacted:
        raise NotFound(f"no Delta table in {folder.address}")
    return compacted
