"""Make the parts of the documentation that are made from the code.

python tools/reference          say which are out of date; exit code 1 if any is
python tools/reference --write  write them

Rules:

1. Each module here makes files of docs/ from a table of the code: `made(docs)` gives them whole.
2. A page of people's words keeps made tables between marks: `<!-- table NAME -->` and
   `<!-- end NAME -->`. Everything outside the marks is left as it is.
3. What lacks a description stops the program: nothing is documented by an empty cell.
"""

from __future__ import annotations

import sys
from pathlib import Path

import page_api
import page_cli
import page_errors
import page_log
import page_metrics
import page_settings
import page_spark
import page_transitions
import page_wire

DOCS = Path(__file__).resolve().parents[2] / "docs"
MODULES = (
    page_api, page_cli, page_errors, page_log, page_metrics, page_settings, page_spark,
    page_transitions, page_wire,
)  # fmt: skip


def made(docs: Path = DOCS) -> dict[str, str]:
    """Every made file by its name below docs/, as it should be."""
    files: dict[str, str] = {}
    for module in MODULES:
        files |= module.made(docs)
    return files


def stale(files: dict[str, str], docs: Path = DOCS) -> dict[str, str]:
    """Those of the made files that docs/ does not hold as they should be."""
    return {
        name: text
        for name, text in files.items()
        if not (docs / name).exists() or (docs / name).read_text() != text
    }


if __name__ == "__main__":
    found = stale(made())
    for name, text in found.items():
        if "--write" in sys.argv:
            (DOCS / name).write_text(text)
            print(f"wrote docs/{name}")
        else:
            print(f"docs/{name} is out of date: make reference")
    sys.exit(1 if found and "--write" not in sys.argv else 0)
