"""Makes the blocking client from the asyncio one: `python tools/unasync [--check]`.

Every module of `client/_async` has a twin in `client/_sync`: the same text, in which the words of
`WORDS` are replaced. `--check` changes nothing and fails if a twin is not what would be made.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "fastjournal"
WRITTEN = PACKAGE / "client" / "_async"
MADE = PACKAGE / "client" / "_sync"

ELSEWHERE = {"handles.py": PACKAGE / "handles.py"}
"""Twins that an embedded journal uses too: they stand outside of the client."""

WORDS = (
    (r"async (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\ban async context manager", "a context manager"),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"fastjournal\.client\._async\.handles\b", "fastjournal.handles"),
    (r"\bclient\._async\b", "client._sync"),
    (r"\basyncio_transport\b", "blocking_transport"),
    (r"\bAsyncMapping\b", "BlockingMapping"),
    (r"\bAsyncLookup\b", "BlockingLookup"),
    (r"\bAsyncEntries\b", "ClientEntries"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
)
"""What is replaced by what, in this order."""

NOTE = "# Made from {source} by tools/unasync; do not edit.\n"


def blocking(text: str, source: str) -> str:
    """The blocking twin of a module's text."""
    for word, twin in WORDS:
        text = re.sub(word, twin, text)
    return tidied(NOTE.format(source=source) + text)


def tidied(text: str) -> str:
    """As the formatter wants it: without `await` other lines fit, in another order."""
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    name = ["--stdin-filename", str(MADE / "made.py"), "-"]
    for step in (["check", "--fix-only", "--quiet", "--select", "I,RUF022"], ["format", "--quiet"]):
        done = subprocess.run(
            [ruff, *step, *name], input=text, capture_output=True, text=True, check=True, cwd=ROOT
        )
        text = done.stdout
    return text


def twins() -> dict[Path, str]:
    """Every file that is made, and what stands in it."""
    return {
        ELSEWHERE.get(file.name, MADE / file.name): blocking(
            file.read_text("utf-8"), str(file.relative_to(ROOT))
        )
        for file in sorted(WRITTEN.glob("*.py"))
    }


def main(arguments: list[str]) -> int:
    """Make the twins, or say which are stale."""
    made = twins()
    left_over = [file for file in MADE.glob("*.py") if file not in made]
    stale = [
        file for file, text in made.items() if not file.exists() or file.read_text("utf-8") != text
    ]
    if "--check" in arguments:
        for file in (*stale, *left_over):
            print(f"{file.relative_to(ROOT)} is stale: run python tools/unasync")
        return 1 if stale or left_over else 0
    for file in stale:
        file.write_text(made[file], "utf-8")
    for file in left_over:
        file.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
