"""The README's and the docs' Python examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples() -> list[tuple[str, str]]:
    """All blocks marked as python, each with the page and line it stands on."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, block.start()) + 2
            found.append((f"{page.relative_to(ROOT)}:{line}", block[1]))
    return found


EXAMPLES = examples()


def test_the_readme_has_examples() -> None:
    assert any(place.startswith("README.md") for place, _ in EXAMPLES)


@pytest.mark.parametrize(("place", "code"), EXAMPLES, ids=[place for place, _ in EXAMPLES])
def test_the_example_runs(place: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, f"{place}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    dead = [link for link in links if not (page.parent / link).exists()]
    assert not dead


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached or not page.exists():
            continue
        reached.add(page)
        links = re.findall(r"\]\((?!https?:|#)([^)#]+\.md)", page.read_text())
        left += [(page.parent / link).resolve() for link in links]
    assert not [page.name for page in PAGES if page not in reached]
