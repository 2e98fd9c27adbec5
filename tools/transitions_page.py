"""Print docs/transitions.md, which is made from the table of legal changes.

python tools/transitions_page.py          print it
python tools/transitions_page.py --write  write the page
"""

from __future__ import annotations

import sys
from pathlib import Path

from fastjournal.journal.commands import TYPE_NAMES
from fastjournal.journal.transitions import STEPS, TRANSITIONS, markdown
from fastjournal.model import State

PAGE = Path(__file__).parent.parent / "docs" / "transitions.md"

_INTRO = """# Every change of state

Made from `fastjournal.journal.transitions` by `tools/transitions_page.py`; do not edit.

A row is **W**aiting, **P**rocessing (leased), **C**ompleted, **F**ailed (dead), **D**eleted (a
tombstone that keeps older writes of its key away), or there is none.
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

| type | record | changes |
| --- | --- | --- |
"""


def diagram() -> str:
    """The states and what leads from one to the other, as a picture."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for line in TRANSITIONS:
        for before in line.before:
            after = (before,) if line.after == line.before else line.after
            for state in after:
                if before != state:
                    events = arrows.setdefault((_node(before), _node(state)), [])
                    if line.event not in events:
                        events.append(line.event)
    lines = [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def steps() -> str:
    """The table of record types."""
    rows = []
    for record, changes in STEPS.items():
        shown = sorted(f"{_letter(a)}→{_letter(b)}" for a, b in changes)
        rows.append(f"| {record} | {TYPE_NAMES[record]} | {', '.join(shown)} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRO, diagram()]) + _EVENTS + markdown() + _STEPS + steps()


def _node(state: State | None) -> str:
    return "[*]" if state is None else state.name


def _letter(state: State | None) -> str:
    return "-" if state is None else state.letter


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        print(page(), end="")
