"""Markdown tables, and the marks between which a page keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["fill", "said", "table"]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def fill(page: str, tables: Mapping[str, str]) -> str:
    """The page with every table put between its marks."""
    for name, text in tables.items():
        start, end = f"<!-- table {name} -->\n", f"\n<!-- end {name} -->"
        before, begun, rest = page.partition(start)
        _, ended, after = rest.partition(end)
        if not begun or not ended:
            raise SystemExit(f"a page lacks the marks of the table {name}")
        page = before + start + text + end + after
    return page


def said(text: str | None, what: str) -> str:
    """A description on one line; stops if there is none."""
    if not text or not text.strip():
        raise SystemExit(f"{what} has no description")
    return " ".join(text.split())
