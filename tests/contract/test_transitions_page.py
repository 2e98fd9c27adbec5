"""docs/transitions.md is what the table of legal changes says."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_transitions_is_up_to_date() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "transitions_page.py"))
    assert (ROOT / "docs" / "transitions.md").read_text() == tool["page"](), (
        "run: python tools/transitions_page.py --write"
    )


def test_every_state_stands_in_the_picture() -> None:
    page = (ROOT / "docs" / "transitions.md").read_text()
    for state in ("WAITING", "PROCESSING", "COMPLETED", "FAILED", "DELETED"):
        assert f"--> {state}" in page
        assert f"{state} -->" in page
