"""Pages hang together: links lead somewhere, every page is found, the whole builds clean."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from docblocks import ALL_BLOCKS, BUILT, PAGES, ROOT

DOCS = ROOT / "docs"
LINK = re.compile(r"!?\[[^\]]*\]\((?!https?:|mailto:)([^)\s]+)\)", re.DOTALL)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Where the links and pictures of a page lead, outside of its blocks."""
    return list(LINK.findall(FENCE.sub("", page.read_text())))


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def contents() -> list[Path]:
    """The pages of the table of contents."""
    text = (DOCS / "index.md").read_text()
    found: list[Path] = []
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line and not line.startswith(":"):
                found += DOCS.glob(f"{line}.md")
    return found


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    """WQ-CLN-11."""
    dead = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    left = [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            left += contents() if page == DOCS / "index.md" else []
            left += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    assert not [page.name for page in PAGES if page not in reached]


def test_every_page_stands_once_in_the_table_of_contents() -> None:
    pages = [page for page in PAGES if page.parent == DOCS and page.stem != "index"]
    assert sorted(page for page in contents() if page.name not in BUILT) == pages


def test_no_page_names_a_file_that_is_not_there() -> None:
    """Paths of the source in the text are those of this tree."""
    dead = []
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        text = FENCE.sub("", page.read_text())
        for name in re.findall(r"`((?:docs|tests|bench|deploy|examples|tools)/[\w./@-]+)`", text):
            if not (ROOT / name).exists():
                dead.append(f"{page.name}: {name}")
    assert not dead


def test_pages_are_linked_and_not_only_named() -> None:
    named = [
        f"{page.name}: {found}"
        for page in sorted(DOCS.glob("*.md"))
        for found in re.findall(r"(?<!\[)`(?:docs/)?[a-z-]+\.md`(?!\])", page.read_text())
    ]
    assert not named


def test_alerts_ask_for_figures_that_exist() -> None:
    told = (DOCS / "metrics.md").read_text() + (DOCS / "spool.md").read_text()
    known = set(re.findall(r"^\| `(fastjournal_\w+)` \|", told, re.MULTILINE))
    rules = [block.code for block in ALL_BLOCKS if block.page.name == "operations.md"]
    asked = {
        name.removesuffix("_bucket")
        for rule in rules
        for name in re.findall(r"\bfastjournal_\w+", rule)
    }
    assert len(asked) > 15
    assert asked <= known


def test_blocks_of_yaml_and_toml_can_be_read() -> None:
    read = {"yaml": yaml.safe_load, "toml": tomllib.loads}
    blocks = [block for block in ALL_BLOCKS if block.language in read]
    assert len(blocks) >= 5
    assert all(read[block.language](block.code) for block in blocks)


def test_every_picture_is_shown_somewhere() -> None:
    shown = {
        (page.parent / link).resolve()
        for page in PAGES
        for link in links(page)
        if "images/" in link
    }
    pictures = set((DOCS / "images").iterdir())
    assert not sorted(path.name for path in pictures - shown)


def test_every_example_program_is_shown() -> None:
    text = (DOCS / "examples.md").read_text()
    for program in (ROOT / "examples").glob("*.py"):
        assert f"| `examples/{program.name}` |" in text
        assert f"{{literalinclude}} ../examples/{program.name}" in text


def test_contributing_names_rooms_and_files_that_are_there() -> None:
    text = FENCE.sub("", (ROOT / "CONTRIBUTING.md").read_text())
    named = re.findall(r"`([\w./-]+(?:\.(?:py|md|txt|toml)|/))`", text)
    assert len(named) > 40
    source = ROOT / "src" / "fastjournal"
    assert not [name for name in named if not any((at / name).exists() for at in (ROOT, source))]
    rooms = {path.name for path in source.iterdir() if (path / "__init__.py").exists()}
    assert not [room for room in rooms if f"`{room}/`" not in text]


def test_the_documentation_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html",
         str(DOCS), str(tmp_path / "html")],
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "html").glob("*.html"))
    assert len(pages) > 40
    fetched = re.compile(r'(?:src|<link[^>]*href)="(?:https?:)?//[^"]*"')
    assert not [page.name for page in pages if fetched.search(page.read_text())]


def test_every_fault_found_names_a_test_that_exists() -> None:
    text = (DOCS / "faults.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`test_" in line]
    assert len(rows) >= 90
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"def (test_\w+)", tests))
    guards = re.findall(r"`(test_\w+)`", text)
    assert not [guard for guard in guards if guard not in known]
