"""docs/errors.md: every exception with its code, its family and its facts."""

from __future__ import annotations

import inspect
from pathlib import Path

from page_tables import fill, said, table

from fastjournal import errors
from fastjournal.errors import JournalError, JournalFault, ProtocolError, RequestError
from fastjournal.wire.fj.replies import CODES

__all__ = ["made"]


def rows(family: type[JournalError]) -> list[tuple[str, str, str, str]]:
    """Class, code, meaning and fields of every error of a family, the family itself first."""
    found = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        if not issubclass(kind, family):
            continue
        fields = ", ".join(f"`{field}`" for field in _fields(kind)) or "-"
        meaning = said((kind.__doc__ or "").partition("\n")[0], name)
        found.append((f"`{name}`", f"`{kind.code}`", meaning, fields))
    return sorted(found, key=lambda row: (row[0] != f"`{family.__name__}`", row[0]))


def _fields(kind: type[JournalError]) -> list[str]:
    """What an error says beside its text: the names its classes set on `self`."""
    names: list[str] = []
    for base in reversed(kind.__mro__):
        if base.__module__ != errors.__name__ or "__init__" not in vars(base):
            continue
        for line in inspect.getsource(base.__init__).splitlines():
            target = line.strip().partition(" = ")[0]
            if target.startswith("self.") and target[5:] not in names:
                names.append(target[5:])
    return names


def shared() -> str:
    """The codes of more than one class, and the class that comes back for each."""
    owners: dict[str, list[str]] = {}
    for name in errors.__all__:
        if code := getattr(getattr(errors, name), "code", ""):
            owners.setdefault(code, []).append(name)
    rows = [
        (f"`{code}`", ", ".join(f"`{name}`" for name in names), f"`{CODES[code].__name__}`")
        for code, names in sorted(owners.items())
        if len(names) > 1
    ]
    return table(("code", "is that of", "a client raises"), rows)


def made(docs: Path) -> dict[str, str]:
    """The page with its tables."""
    head = ("class", "code", "means", "fields")
    tables = {
        "shared": shared(),
        "requests": table(head, rows(RequestError)),
        "faults": table(head, rows(JournalFault)),
        "protocol": table(head, rows(ProtocolError)),
    }
    return {"errors.md": fill((docs / "errors.md").read_text(), tables)}
