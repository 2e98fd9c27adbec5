"""docs/map.md: every module with the first sentence of its own head.

Written when the pages are built, and not kept: a new module makes nothing out of date.
"""

from __future__ import annotations

import ast
from pathlib import Path

from page_tables import said, table

__all__ = ["made"]

_INTRO = """# Map of the source

Made from the heads of the modules when these pages are built. Each head goes on with the
module's rules, and for bytes with their layout. How the rooms hang together:
[contributing](contributing.md).
"""


def sentence(path: Path) -> str:
    """The first line of a module's docstring."""
    head = ast.get_docstring(ast.parse(path.read_text())) or ""
    return said(head.partition("\n\n")[0], str(path))


def made(docs: Path) -> dict[str, str]:
    """The whole page."""
    source = docs.parent / "src"
    rooms: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source).parent.as_posix()
        rooms.setdefault(room, []).append((f"`{path.name}`", sentence(path)))
    parts = [_INTRO]
    for room, modules in rooms.items():
        parts.append(f"\n## {room}\n\n{table(('module', 'what it is'), modules)}\n")
    return {"map.md": "".join(parts)}
