"""docs/settings.md: every setting of the daemon, its default, its range."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from page_tables import fill, said, table

from fastjournal import config
from fastjournal.config import RELOADABLE, Settings

__all__ = ["descriptions", "made"]

_PATTERNS = {
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$": "letters, digits and `_.-`, at most 100",
    "^0?[0-7]{3}$": "three octal digits",
}
"""A new pattern needs its words here."""
_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def descriptions(kind: type) -> dict[str, str]:
    """What the string below each field of a class says."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[field.target.id] = str(below.value.value)
    return found


def shown_type(kind: Any) -> str:
    """A type as people say it, with its bounds."""
    if get_origin(kind) is Annotated:
        inner, *metas = get_args(kind)
        bounds = [bound for meta in metas for bound in _bounds(meta)]
        return ", ".join([shown_type(inner), *bounds])
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {shown_type(get_args(kind)[0])}"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(shown_type(part) for part in get_args(kind) if part is not type(None))
    return _TYPES[kind]


def _bounds(meta: Any) -> list[str]:
    found = []
    if meta.gt is not None:
        found.append(f"above {meta.gt:,}")
    if meta.ge is not None:
        found.append(f"from {meta.ge:,}")
    if meta.le is not None:
        found.append(f"up to {meta.le:,}")
    if meta.pattern is not None:
        found.append(_PATTERNS[meta.pattern])
    return found


def shown_default(value: Any) -> str:
    """A default as it is typed into the file."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(chr(34) + str(part) + chr(34) for part in value)}]`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def rows(kind: type, table_name: str = "") -> list[tuple[str, ...]]:
    """A row for each plain setting of a class."""
    told, hints = descriptions(kind), get_type_hints(kind, vars(config), include_extras=True)
    found = []
    for field in msgspec.structs.fields(kind):
        if isinstance(field.default, msgspec.Struct):
            continue
        meaning = said(told.get(field.name), f"setting {table_name}.{field.name}")
        if (table_name or field.name) in RELOADABLE:
            meaning += " *Reloaded.*"
        kinds = shown_type(hints[field.name])
        found.append((f"`{field.name}`", shown_default(field.default), kinds, meaning))
    return found


def made(docs: Path) -> dict[str, str]:
    """The page with a table for each table of the file."""
    head = ("setting", "default", "may be", "means")
    tables = {"top": table(head, rows(Settings))}
    for field in msgspec.structs.fields(Settings):
        if isinstance(field.default, msgspec.Struct):
            tables[field.name] = table(head, rows(type(field.default), field.name))
    return {"settings.md": fill((docs / "settings.md").read_text(), tables)}
