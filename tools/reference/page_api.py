"""docs/python.md: every public name with its methods, their arguments and what they say."""

from __future__ import annotations

import enum
import importlib
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from page_tables import said, table

__all__ = ["made"]

_INTRO = """# Python interface

Made from the code by `tools/reference`; do not edit. These names are public; anything else may move
in any release. A *Length* is a number of seconds, a `timedelta` or a text (`"5m"`); an *Instant* a
`datetime`, or a number of seconds since 1970; a *Text* is `str` or `bytes`. Errors: [their
page](errors.md). The clients of a daemon have the methods of `Journal`: see [clients](clients.md).

"""
_MODULES = {
    "fastjournal": "",
    "fastjournal.journal.entry_map": "What `journal.entries` is: see [entries](entries.md).",
    "fastjournal.client": "Entries of a daemon, kept in the client and right by pushes.",
    "fastjournal.client.worker": "What runs your functions: see [workers](worker.md).",
    "fastjournal.journal.look.read_only": "A look at a journal that another process has open.",
    "fastjournal.spark": "The log as a table: see [Spark over the log](spark.md).",
    "fastjournal.testing": "For tests that do not wait and disks that fail on purpose.",
    "fastjournal.testing.daemon": "A real daemon inside a test.",
}
_ONLY = {
    "fastjournal.journal.entry_map": {"EntryMap"},
    "fastjournal.client": {"AsyncCachedEntries", "CacheCounts", "CachedEntries"},
    "fastjournal.client.worker": {"Retry", "Worker", "WorkerCounts"},
}
"""Of these modules only some names are for users."""
_ELSEWHERE = {"JournalError", "JournalFault", "RequestError", "__version__"}


def made(_docs: Path) -> dict[str, str]:
    """The whole page, by a process of its own: compiled functions do not tell their annotations."""
    pure = os.environ | {"FASTJOURNAL_PURE": "1"}
    done = subprocess.run(
        [sys.executable, __file__], env=pure, stdout=subprocess.PIPE, text=True, check=True
    )
    return {"python.md": done.stdout}


def page() -> str:
    """The same in this process."""
    parts = []
    for module_name, about in _MODULES.items():
        module = importlib.import_module(module_name)
        parts.append(f"## {module_name}")
        if about:
            parts.append(about)
        parts += [
            described(module_name, name, getattr(module, name))
            for name in sorted(module.__all__, key=str.lower)
            if name not in _ELSEWHERE and name in _ONLY.get(module_name, {name})
        ]
    return _INTRO + "\n\n".join(parts) + "\n"


def described(module: str, name: str, thing: Any) -> str:
    """All about one name."""
    if inspect.isclass(thing):
        return _class(module, name, thing)
    if callable(thing):
        return f"### {name}\n\n{_function(name, thing)}"
    return f"### {name}\n\n`{name}` is `{thing!r}`." if _short(thing) else f"### {name}"


def _short(thing: Any) -> bool:
    return isinstance(thing, int | str | float | bytes)


def _class(module: str, name: str, kind: type) -> str:
    parts = [f"### {name}", _prose(kind, f"{module}.{name}")]
    if issubclass(kind, enum.Enum):
        rows = [(f"`{name}.{each.name}`", f"`{each.value}`") for each in kind]
        return "\n\n".join([*parts, table(("name", "value"), rows)])
    names = _fields(kind)
    if names:
        parts.append(f"Fields: {', '.join(f'`{each}`' for each in names)}.")
    if "__init__" in vars(kind) and not is_dataclass(kind):
        parts.append(_block(name, kind.__init__, method=True))
        parts += [_text(kind.__init__)] if kind.__init__.__doc__ else []
    for each, member in inspect.getmembers(kind):
        if each.startswith("_") or each in names or not _ours(member):
            continue
        if not inspect.getdoc(member) and module != "fastjournal":
            continue  # a method of a protocol, said there
        if isinstance(member, property):
            parts.append(f"**`{each}`**: {said(member.__doc__, f'{name}.{each}')}")
        elif callable(member) and not inspect.isclass(member):
            method = inspect.isfunction(inspect.getattr_static(kind, each))
            parts.append(_function(each, member, method=method, of=name))
    return "\n\n".join(parts)


def _ours(member: Any) -> bool:
    made_by = member.fget if isinstance(member, property) else member
    return (getattr(made_by, "__module__", "") or "").startswith("fastjournal")


def _fields(kind: type) -> list[str]:
    if is_dataclass(kind):
        return [field.name for field in fields(kind) if not field.name.startswith("_")]
    return list(getattr(kind, "_fields", ()))


def _function(name: str, thing: Any, *, method: bool = False, of: str = "") -> str:
    said(inspect.getdoc(thing), f"{of}.{name}")
    return f"{_block(name, thing, method=method)}\n\n{_text(thing)}"


def _prose(thing: Any, name: str) -> str:
    said(inspect.getdoc(thing), name)
    return _text(thing)


_PAGE = re.compile(r"`docs/([a-z-]+)\.md`")


def _text(thing: Any) -> str:
    """A docstring as paragraphs; what is indented stands as it is."""
    found = []
    for paragraph in (inspect.getdoc(thing) or "").split("\n\n"):
        if paragraph.startswith("    "):
            found.append(f"```text\n{inspect.cleandoc(paragraph)}\n```")
        else:
            found.append(paragraph)
    return _PAGE.sub(r"[\1](\1.md)", "\n\n".join(found))


def _block(name: str, thing: Any, *, method: bool = False) -> str:
    """The way it is called; one argument a line when it is long."""
    signature = inspect.signature(thing)
    given = list(signature.parameters.values())
    if method and given and given[0].name in ("self", "cls"):
        given = given[1:]
    shown, starred = [], False
    for each in given:
        if each.kind is each.KEYWORD_ONLY and not starred:
            shown, starred = [*shown, "*"], True
        starred = starred or each.kind is each.VAR_POSITIONAL
        shown.append(_argument(each))
    back = signature.return_annotation
    end = ")" if name[0].isupper() or back is signature.empty else f") -> {_annotation(back)}"
    text = f"{name}({', '.join(shown)}{end}"
    if len(text) > 100:
        text = "\n".join([f"{name}(", *(f"    {each}," for each in shown), end])
    return f"```text\n{text}\n```"


def _argument(each: inspect.Parameter) -> str:
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    kind = "" if each.annotation is each.empty else f": {_annotation(each.annotation)}"
    if each.default is each.empty:
        return f"{stars}{each.name}{kind}"
    plain = each.default is None or isinstance(each.default, int | float | str | bytes | tuple)
    return f"{each.name}{kind} = {repr(each.default) if plain else '...'}"


def _annotation(kind: Any) -> str:
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    return text.replace(" | Unchecked", "")  # nothing to a caller


if __name__ == "__main__":
    sys.stdout.write(page())
