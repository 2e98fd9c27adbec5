"""The way of a request: few interpreted calls around a compiled core, in few files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal.package.compiled import describe_core

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^(\w+ .*?) +(\d+) +(\d+) +(\d+) +(\d+)$", re.MULTILINE)


def figures() -> dict[str, tuple[int, int]]:
    """Calls and files by request, as `tools/hops` tells them."""
    done = subprocess.run(
        [sys.executable, "tools/hops"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    return {name: (int(calls), int(files)) for name, calls, _, files, _ in ROW.findall(done.stdout)}


@pytest.mark.skipif(describe_core() == "pure", reason="the core is not compiled here")
def test_a_request_passes_few_interpreted_functions() -> None:
    found = figures()
    assert len(found) == 7
    for verb in ("put", "lease", "complete"):
        for name, most in (("embedded", (20, 10)), ("over TCP", (20, 10))):
            calls, files = found[f"{verb} {name}"]
            assert calls <= most[0], verb
            assert files <= most[1], verb
    assert found["put into a spool"] <= (10, 3)
