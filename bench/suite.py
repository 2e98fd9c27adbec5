"""Every benchmark, one after another: one JSON file, one page with charts, the tables in the docs.

    python bench/suite.py --quick            rougher figures, three minutes; see LONG
    python bench/suite.py --only log,daemon  some of them
    python bench/suite.py --docs             also renew the figures in docs/ and in the README
    python bench/suite.py --redraw           run nothing: draw docs and README from kept figures

Rules:

1. Each program runs as a process of its own, alone; one that fails is named and makes the exit
   code 1, and the others run all the same.
2. What a program could not measure (a peer that is not installed) it says on standard error; the
   page repeats it.
3. `docs/benchmarks.json` keeps the figures that the docs show, of each program those of its last
   run with `--docs`; every table, the chart and the README's figures are drawn from it alone.
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
from page import chart, headline, html_page, markdown_table, put_between

HERE = Path(__file__).parent
ROOT = HERE.parent
PROGRAMS = (
    "log", "commitlog", "core", "journal", "growth", "archive", "entries", "spool", "daemon",
    "replica", "tasks", "imports", "spark", "spark_stream", "spark_lake",
)  # fmt: skip
"""In the order of the page: from the bytes to the cluster."""

LONG = ("replica", "tasks", "spark_stream", "spark_lake")
"""Take a minute or more each even with `--quick`: left to the full run, and to `--only`."""

KEPT = ROOT / "docs" / "benchmarks.json"


def main() -> int:
    """Run, write, tell; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="rougher figures, a few minutes")
    parser.add_argument("--only", default="", help="names of programs, comma separated")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="where to write")
    parser.add_argument("--docs", action="store_true", help="renew the table and chart in docs/")
    parser.add_argument("--repeats", type=int, help="of each measure, at least 3")
    parser.add_argument("--redraw", action="store_true", help="only write the docs anew")
    given = parser.parse_args()
    if given.redraw:
        renew_docs(json.loads(KEPT.read_text()))
        return 0
    there = [name for name in PROGRAMS if (HERE / f"{name}.py").is_file()]
    usual = [name for name in there if not (given.quick and name in LONG)]
    chosen = [name for name in given.only.split(",") if name] or usual
    unknown = sorted(set(chosen) - set(there))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(there)}")
    given.out.mkdir(parents=True, exist_ok=True)
    if left := [name for name in there if name not in chosen]:
        print(f"not run: {', '.join(left)}")
    results: list[dict[str, Any]] = []
    for number, name in enumerate(chosen, 1):
        print(f"\n[{number}/{len(chosen)}] bench/{name}.py", flush=True)
        results.append(run(name, given))
        keep(results, given)
    failed = [one["name"] for one in results if one["failed"]]
    total = sum(one["seconds"] for one in results)
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
        "name": name, "machine": machine(), "quick": given.quick,
        "taken": time.strftime("%Y-%m-%d", time.gmtime()), "seconds": seconds,
        "failed": code != 0 or not rows, "rows": rows, "left_out": left_out,
    }  # fmt: skip


def keep(results: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """Write what there is so far: an hour's figures are not lost with the last of them."""
    (given.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.out / "index.html").write_text(html_page(results))
    if given.docs:
        kept = {one["name"]: one for one in json.loads(KEPT.read_text())}
        kept |= {one["name"]: one for one in results if not one["failed"]}
        shown = [kept[name] for name in PROGRAMS if name in kept]
        KEPT.write_text(json.dumps(shown, indent=1) + "\n")
        renew_docs(shown)


def renew_docs(results: list[dict[str, Any]]) -> None:
    """Put tables, chart and headline where docs and README show them."""
    docs = ROOT / "docs"
    (docs / "images" / "benchmarks.svg").write_text(chart(results))
    page, readme = docs / "benchmarks.md", ROOT / "README.md"
    text = page.read_text()
    for program in results:
        text = put_between(text, program["name"], markdown_table(program))
    page.write_text(text)
    readme.write_text(put_between(readme.read_text(), "headline", headline(results)))


if __name__ == "__main__":
    raise SystemExit(main())
