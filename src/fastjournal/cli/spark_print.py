"""A DataFrame on standard output: a table, JSON lines (`--json`) or Parquet (`--parquet`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastjournal.cli.output import json_line, preview, table
from fastjournal.cli.spark_session import end_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["print_frame"]

_CELL = 60


def print_frame(frame: DataFrame, as_json: bool, parquet: Path | None, limit: int) -> None:
    """Print or write a result; a table shows at most `limit` rows and says so."""
    if parquet is not None:
        frame.write.parquet(str(parquet))
        return
    if as_json:
        for row in frame.toLocalIterator():
            end_progress()
            json_line({name: _plain(value) for name, value in row.asDict(recursive=True).items()})
        return
    rows = frame.limit(limit + 1).collect()
    end_progress()
    numbers = [name for name, kind in frame.dtypes if kind in {"int", "bigint", "smallint"}]
    table(frame.columns, [[_cell(v) for v in row] for row in rows[:limit]], right=numbers)
    if len(rows) > limit:
        sys.stderr.write(f"only the first {limit} rows; --limit, --json or --parquet for more\n")


def _plain(value: Any) -> Any:
    return bytes(value).hex() if isinstance(value, (bytes, bytearray)) else value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (bytes, bytearray)):
        text = bytes(value)
        return text.hex() if len(text) == 16 else preview(text, _CELL)
    return str(value)
