"""docs/reference-spark.md: options of reader, stream and sinks, columns, rules of the audit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from page_tables import fill, said, table

from fastjournal.spark.audit.rules import RULES
from fastjournal.spark.lake.tables import TABLES, VERSIONS, plain, schema_of
from fastjournal.spark.options import OPTIONS
from fastjournal.spark.schema import VIEW_COLUMNS, WRITTEN
from fastjournal.spark.sink.writer import SINK_OPTIONS
from fastjournal.spark.stream.reader import STREAM_OPTIONS

__all__ = ["made"]


def _columns(view: str) -> str:
    usual, asked = VIEW_COLUMNS[view]
    rows = [(f"`{name}`", kind, "") for name, kind in usual.items()]
    rows += [(f"`{name}`", kind, "on request") for name, kind in asked.items()]
    return table(("column", "type", ""), rows)


def _options(options: Mapping[str, str]) -> str:
    rows = [(f"`{name}`", said(about, name)) for name, about in options.items()]
    return table(("option", "meaning"), rows)


def _exported(name: str) -> str:
    rows = [(f"`{field.name}`", field.type) for field in plain(schema_of(name))]
    return f"### {name}, version {VERSIONS[name]}\n\n{table(('column', 'Arrow type'), rows)}"


def made(docs: Path) -> dict[str, str]:
    """The page with its tables."""
    tables = {
        "options": _options(OPTIONS),
        "stream": _options(STREAM_OPTIONS),
        "sink": _options(SINK_OPTIONS),
        "sink-columns": table(
            ("column", "may be"),
            [(f"`{name}`", ", ".join(kinds)) for name, kinds in WRITTEN.items()],
        ),
        "rules": table(
            ("rule", "severity and meaning"),
            [(f"`{rule}`", said(about, rule)) for rule, about in RULES.items()],
        ),
        "views": "\n\n".join(f"### {view}\n\n{_columns(view)}" for view in VIEW_COLUMNS),
        "exported": "\n\n".join(_exported(name) for name in TABLES),
    }
    return {"reference-spark.md": fill((docs / "reference-spark.md").read_text(), tables)}
