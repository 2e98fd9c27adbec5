"""docs/reference-spark.md: options of the data source, columns of its views, rules of the audit."""

from __future__ import annotations

from pathlib import Path

from page_tables import fill, said, table

from fastjournal.spark.findings import RULES
from fastjournal.spark.schema import VIEW_COLUMNS
from fastjournal.spark.settings import OPTIONS

__all__ = ["made"]


def _columns(view: str) -> str:
    usual, asked = VIEW_COLUMNS[view]
    rows = [(f"`{name}`", kind, "") for name, kind in usual.items()]
    rows += [(f"`{name}`", kind, "on request") for name, kind in asked.items()]
    return table(("column", "type", ""), rows)


def made(docs: Path) -> dict[str, str]:
    """The page with its tables."""
    tables = {
        "options": table(
            ("option", "meaning"),
            [(f"`{name}`", said(about, name)) for name, about in OPTIONS.items()],
        ),
        "rules": table(
            ("rule", "severity and meaning"),
            [(f"`{rule}`", said(about, rule)) for rule, about in RULES.items()],
        ),
    }
    views = "\n\n".join(f"### {view}\n\n{_columns(view)}" for view in VIEW_COLUMNS)
    tables["views"] = views
    return {"reference-spark.md": fill((docs / "reference-spark.md").read_text(), tables)}
