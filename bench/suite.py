"""Every benchmark, one after another: one JSON file, one page with charts, the table in the docs.

    python bench/suite.py --quick            rougher figures, three minutes; see LONG
    python bench/suite.py --only log,daemon  some of them
    python bench/suite.py --docs             also renew the table and the chart in docs/

Rules:

1. Each program runs as a process of its own, alone; one that fails is named and makes the exit
   code 1, and the others run all the same.
2. What a program could not measure (a peer that is not installed) it says on standard error; the
   page repeats it.
3. `results.json` holds everything that the page shows: the page can be drawn again from it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import machine
from page import chart, html_page, markdown_table

HERE = Path(__file__).parent
ROOT = HERE.parent
PROGRAMS = (
    "log", "commitlog", "core", "journal", "growth", "archive", "entries", "spool", "daemon",
    "replica", "tasks", "imports", "spark", "spark_stream", "spark_lake",
)  # fmt: skip
"""In the order of the page: from the bytes to the cluster."""

LONG = ("replica", "tasks", "spark_stream", "spark_lake")
"""Take a minute or more each even with `--quick`: left to the full run, and to `--only`."""

BEGIN, END = "<!-- suite: begin -->", "<!-- suite: end -->"


def main() -> int:
    """Run, write, tell; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="rougher figures, a few minutes")
    parser.add_argument("--only", default="", help="names of programs, comma separated")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="where to write")
    parser.add_argument("--docs", action="store_true", help="renew the table and chart in docs/")
    parser.add_argument("--repeats", type=int, help="of each measure, at least 3")
    given = parser.parse_args()
    there = [name for name in PROGRAMS if (HERE / f"{name}.py").is_file()]
    usual = [name for name in there if not (given.quick and name in LONG)]
    chosen = [name for name in given.only.split(",") if name] or usual
    unknown = sorted(set(chosen) - set(there))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(there)}")
    given.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "machine": machine(), "taken": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "quick": given.quick, "programs": [],
    }  # fmt: skip
    if left := [name for name in there if name not in chosen]:
        print(f"not run: {', '.join(left)}")
    for number, name in enumerate(chosen, 1):
        print(f"\n[{number}/{len(chosen)}] bench/{name}.py", flush=True)
        results["programs"].append(run(name, given))
    (given.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.out / "index.html").write_text(html_page(results))
    if given.docs:
        renew_docs(results)
    failed = [one["name"] for one in results["programs"] if one["failed"]]
    total = sum(one["seconds"] for one in results["programs"])
    print(f"\n{total:.0f} s in all; {given.out / 'index.html'}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def run(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """One program: its rows, what it left out, how long it took."""
    lines = given.out / f"{name}.jsonl"
    lines.unlink(missing_ok=True)
    words = [sys.executable, str(HERE / f"{name}.py"), "--json", str(lines)]
    words += ["--quick"] if given.quick else []
    words += ["--repeats", str(given.repeats)] if given.repeats else []
    start = time.perf_counter()
    child = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    left_out = []
    for line in child.stderr:
        sys.stderr.write(line)
        if line.startswith("left out: "):
            left_out.append(line.removeprefix("left out: ").strip())
    code = child.wait()
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    lines.unlink(missing_ok=True)
    seconds = round(time.perf_counter() - start, 1)
    print(f"{seconds} s", flush=True)
    return {
        "name": name, "seconds": seconds, "failed": code != 0 or not rows, "rows": rows,
        "left_out": left_out,
    }  # fmt: skip


def renew_docs(results: dict[str, Any]) -> None:
    """Put the table and the chart where the docs show them."""
    docs = ROOT / "docs"
    (docs / "images").mkdir(exist_ok=True)
    (docs / "images" / "benchmarks.svg").write_text(chart(results))
    page = docs / "benchmarks.md"
    text = page.read_text()
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise SystemExit(f"{page}: the marks {BEGIN} and {END} are missing")
    page.write_text(f"{before}{BEGIN}\n{markdown_table(results)}{END}{after}")


if __name__ == "__main__":
    raise SystemExit(main())
