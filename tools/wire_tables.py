"""Print the tables of docs/fj-protocol.md that are made from the code.

python tools/wire_tables.py          print them
python tools/wire_tables.py --write  put them into the page, between their marks
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from fastjournal.wire.bulk import Action, Putting, Settling
from fastjournal.wire.errortext import CODES
from fastjournal.wire.functions import FUNCTIONS, Function, Key, Spec, Type
from fastjournal.wire.requests import BEFORE_HELLO, Limits

PAGE = Path(__file__).parent.parent / "docs" / "fj-protocol.md"


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _value(row: Spec) -> str:
    if row.types is not None and not row.types:
        return "-"
    return f"{row.value_is}{'' if row.value_needed else ', optional'}"


def _functions(keep: Callable[[int], bool]) -> str:
    head = ("fn", "name", "role", "key", "value", "bits (besides 0-2)", "what it does")
    return _table(
        head,
        [
            (
                number, row.function.name, row.role,
                "-" if row.key is Key.NONE else row.key_is,
                _value(row), row.bits_are or "-", row.does,
            )
            for number, row in FUNCTIONS.items()
            if keep(number)
        ],
    )  # fmt: skip


def tables() -> dict[str, str]:
    """Every table of the page, by the name of its mark."""
    limits = Limits()
    return {
        "functions": _functions(lambda number: number < 32),
        "extensions": _functions(lambda number: number >= 32),
        "types": _table(("type", "name"), [(int(t), t.name.lower()) for t in Type]),
        "codes": _table(
            ("code", "means"),
            [
                (f"`{code}`", (kind.__doc__ or "").partition("\n")[0])
                for code, kind in sorted(CODES.items())
            ],
        ),
        "limits": _table(
            ("limit", "default", "before HELLO"),
            [
                (name, getattr(limits, name), getattr(BEFORE_HELLO, name))
                for name in ("max_key", "max_value", "max_message")
            ],
        ),
        "putting": _table(("outcome", "of a put"), [(int(o), o.name.lower()) for o in Putting]),
        "settling": _table(("outcome", "of a lease"), [(int(o), o.name.lower()) for o in Settling]),
        "actions": _table(("action", "name"), [(int(a), a.name.lower()) for a in Action]),
    }  # fmt: skip


def fill(page: str) -> str:
    """The page with every table put between its marks."""
    for name, table in tables().items():
        start, end = f"<!-- table {name} -->\n", f"\n<!-- end {name} -->"
        before, _, rest = page.partition(start)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{PAGE}: no marks for the table {name}")
        page = before + start + table + end + after
    return page


if __name__ == "__main__":
    assert len(Function) == len(FUNCTIONS)
    if "--write" in sys.argv:
        PAGE.write_text(fill(PAGE.read_text()))
    else:
        for name, table in tables().items():
            print(f"{name}\n\n{table}\n")
