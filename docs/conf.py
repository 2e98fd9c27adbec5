"""How sphinx builds these pages: `make docs`.

Rules:

1. Pages are plain Markdown that also reads well where it is not built.
2. Nothing is fetched: no fonts, no inventories of other projects, no scripts from elsewhere.
3. A fenced block that the tests do not run says why: `python not-run="..."`. That is for those who
   work on the pages; readers see the block alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastjournal import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "fastjournal"
author = copyright = "the fastjournal authors"  # noqa: A001
version = release = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"fastjournal {__version__}"
html_static_path = ["_static"]
html_css_files = ["fastjournal.css"]
html_copy_source = False
html_show_sourcelink = False

_NOT_RUN = re.compile(r'^```(\w+) not-run="[^"]+"$', re.MULTILINE)


def drop_reasons(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Why a block is not run by the tests is of no use to readers."""
    source[0] = _NOT_RUN.sub(r"```\1", source[0])


def break_names(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """A long name of a test is broken between its words."""
    if "body" in context:
        context["body"] = re.sub(
            r'(?<=<span class="pre">)test_\w+', lambda name: name[0].replace("_", "_<wbr>"),
            context["body"],
        )  # fmt: skip


def write_map(_app: Sphinx) -> None:
    """The map of the source is as new as the source."""
    docs = Path(__file__).parent
    sys.path.insert(0, str(docs.parent / "tools" / "reference"))
    import page_map

    for name, text in page_map.made(docs).items():
        if not (docs / name).exists() or (docs / name).read_text() != text:
            (docs / name).write_text(text)


def setup(app: Sphinx) -> None:
    """Called by sphinx."""
    app.connect("builder-inited", write_map)
    app.connect("source-read", drop_reasons)
    app.connect("html-page-context", break_names)
