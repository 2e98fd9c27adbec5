"""The tables of docs/fj-protocol.md: functions, types, codes, limits, outcomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from page_tables import fill, table

from fastjournal.wire.fj.bulk import Action, Putting, Settling
from fastjournal.wire.fj.functions import FUNCTIONS, Function, Key, Spec, Type
from fastjournal.wire.fj.replies import CODES
from fastjournal.wire.fj.requests import BEFORE_HELLO, Limits

__all__ = ["made"]


def _value(row: Spec) -> str:
    if row.types is not None and not row.types:
        return "-"
    return f"{row.value_is}{'' if row.value_needed else ', optional'}"


def _functions(keep: Callable[[int], bool]) -> str:
    head = ("fn", "name", "role", "key", "value", "bits (besides 0-2)", "what it does")
    return table(
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
        "types": table(("type", "name"), [(int(t), t.name.lower()) for t in Type]),
        "codes": table(
            ("code", "means"),
            [
                (f"`{code}`", (kind.__doc__ or "").partition("\n")[0])
                for code, kind in sorted(CODES.items())
            ],
        ),
        "limits": table(
            ("limit", "default", "before HELLO"),
            [
                (name, getattr(limits, name), getattr(BEFORE_HELLO, name))
                for name in ("max_key", "max_value", "max_message")
            ],
        ),
        "putting": table(("outcome", "of a put"), [(int(o), o.name.lower()) for o in Putting]),
        "settling": table(("outcome", "of a lease"), [(int(o), o.name.lower()) for o in Settling]),
        "actions": table(("action", "name"), [(int(a), a.name.lower()) for a in Action]),
    }  # fmt: skip


def made(docs: Path) -> dict[str, str]:
    """The page with its tables."""
    assert len(Function) == len(FUNCTIONS)
    return {"fj-protocol.md": fill((docs / "fj-protocol.md").read_text(), tables())}
