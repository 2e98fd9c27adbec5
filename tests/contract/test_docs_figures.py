"""What docs and README say was measured is what the suite of benchmarks has kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))

from page import chart, headline, markdown_table, put_between  # noqa: E402
from suite import PROGRAMS  # noqa: E402

KEPT: list[dict[str, Any]] = json.loads((ROOT / "docs" / "benchmarks.json").read_text())


def test_every_program_has_figures() -> None:
    assert [program["name"] for program in KEPT] == list(PROGRAMS)
    assert all(program["rows"] for program in KEPT)


@pytest.mark.parametrize("program", KEPT, ids=lambda program: program["name"])
def test_table_is_drawn_from_kept_figures(program: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert put_between(text, program["name"], markdown_table(program)) == text


def test_readme_is_drawn_from_kept_figures() -> None:
    readme = (ROOT / "README.md").read_text()
    assert put_between(readme, "headline", headline(KEPT)) == readme
    assert (ROOT / "docs" / "images" / "benchmarks.svg").read_text() == chart(KEPT)
