"""The table of cases about key/value entries, and what they share."""

from __future__ import annotations

from collections.abc import Callable

from entry_driver import Driver

Case = Callable[[Driver], None]
TICK = 1000
"""ns: what the wire can tell apart."""
CASES: list[tuple[str, Case]] = []


def case(requirement: str) -> Callable[[Case], Case]:
    """Add a function to the table, by the requirement it shows."""

    def add(function: Case) -> Case:
        CASES.append((f"{requirement}-{function.__name__}", function))
        return function

    return add


def integer(number: int, size: int = 8) -> bytes:
    """An integer value."""
    return number.to_bytes(size, "big", signed=True)


def keys(page: object) -> list[bytes]:
    """The keys of a page."""
    return [entry.key for entry in page.entries]  # type: ignore[attr-defined]
