"""docs/transitions.md and its picture, made from the table of legal changes."""

from __future__ import annotations

from pathlib import Path

from page_tables import table
from state_picture import picture

from fastjournal.journal.language.codec import TYPE_NAMES
from fastjournal.journal.language.transitions import STEPS, TRANSITIONS, markdown
from fastjournal.model import State

__all__ = ["arrows", "made"]

_INTRO = """# Every change of state

Made from `fastjournal.journal.language.transitions` by `tools/reference`; do not edit.

A row is **W**aiting, **P**rocessing (leased), **C**ompleted, **F**ailed (dead), **D**eleted (a
tombstone that keeps older writes of its key away), or there is none.

![The states of a row and what leads from one to the other](images/transitions.svg)

## From where to where

"""

_EVENTS = """
## What may happen, and why

`records` are the types of the log records that say so, in order; more than one stand in one group,
so that all or none of them are there after a crash. The types are named in the last table.

"""

_STEPS = """
## What each record type may do

From state to state, `-` for no row. A record that finds its row in another state changes nothing;
in a log written by fastjournal that does not happen, so an audit reports it.

"""


def arrows() -> dict[tuple[State | None, State | None], list[str]]:
    """What leads from each state to each other one."""
    found: dict[tuple[State | None, State | None], list[str]] = {}
    for line in TRANSITIONS:
        for before in line.before:
            for state in (before,) if line.after == line.before else line.after:
                if before is not state:
                    events = found.setdefault((before, state), [])
                    if line.event not in events:
                        events.append(line.event)
    return found


def page() -> str:
    """The whole page."""
    pairs = table(
        ("from", "to", "by"),
        [(_name(a), _name(b), ", ".join(events)) for (a, b), events in arrows().items()],
    )
    steps = table(
        ("type", "record", "changes"),
        [
            (
                record,
                TYPE_NAMES[record],
                ", ".join(sorted(f"{_letter(a)}→{_letter(b)}" for a, b in changes)),
            )
            for record, changes in STEPS.items()
        ],
    )
    return f"{_INTRO}{pairs}\n{_EVENTS}{markdown()}{_STEPS}{steps}\n"


def _name(state: State | None) -> str:
    return "none" if state is None else state.name


def _letter(state: State | None) -> str:
    return "-" if state is None else state.letter


def made(_docs: Path) -> dict[str, str]:
    """The page and its picture."""
    return {"transitions.md": page(), "images/transitions.svg": picture(arrows())}
