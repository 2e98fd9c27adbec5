"""What an import costs: every process of a customer pays it once, a producer's most of all.

Rules:

1. Wall time of a whole process, less that of a bare interpreter started right before it; so the
   bare start of the machine's Python is not counted. `--help` is told whole, as a person feels it.
2. Byte code is there already, as it is after an installation: it is written to a directory of its
   own, and a first run of each is not counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from harness import Bench

LIMITS = {"import fastjournal": 60, "the spool's writer": 30, "fastjournal --help": 250}
"""Milliseconds that we promise to stay below."""
_COMMAND = str(Path(sys.executable).with_name("fastjournal"))


def main() -> None:
    bench = Bench("imports", "start-up beyond a bare interpreter", repeats=15)
    with tempfile.TemporaryDirectory() as cache:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        env["PYTHONPYCACHEPREFIX"] = cache

        def seconds(*command: str) -> float:
            start = perf_counter()
            subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
            return perf_counter() - start

        def beyond(statement: str) -> Callable[[], float]:
            seconds(sys.executable, "-c", statement)

            def measure() -> float:
                bare = seconds(sys.executable, "-c", "pass")
                return 1000 * (seconds(sys.executable, "-c", statement) - bare)

            return measure

        seconds(_COMMAND, "--help")
        asyncio = beyond("import asyncio")
        sqlite = beyond("import sqlite3")
        rows = [
            bench.row(
                "import fastjournal", beyond("import fastjournal"),
                {"import asyncio": asyncio}, unit="ms",
            ),
            bench.row(
                "the spool's writer", beyond("from fastjournal import Spool"),
                {"import asyncio": asyncio, "import sqlite3": sqlite}, unit="ms",
            ),
            bench.row(
                "an embedded journal", beyond("from fastjournal import Journal"),
                {"import sqlite3": sqlite}, unit="ms",
            ),
            bench.row("a client", beyond("from fastjournal import connect"), unit="ms"),
            bench.row(
                "fastjournal --help", lambda: 1000 * seconds(_COMMAND, "--help"),
                {"python -m pip --help": lambda: 1000 * seconds(
                    sys.executable, "-m", "pip", "--help")}, unit="ms",
            ),
        ]  # fmt: skip
    bench.finish()
    late = [row.row for row in rows if row.ours > LIMITS.get(row.row, float("inf"))]
    for name in late:
        print(f"beyond its limit of {LIMITS[name]} ms: {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
