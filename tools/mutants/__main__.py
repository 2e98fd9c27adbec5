"""Break one promise at a time in a copy of the sources, and see that its tests notice.

Needs the interpreted core only. First the named tests run without a mutant: they must pass. Then
each mutant of `tests/mutants.toml` is applied to the copy and its tests run: every one must fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from mutation import Mutant, mutants  # noqa: E402

EXAMPLES = """\
examples:
  make mutants                          every mutant
  make mutants ARGS="--only F12"        those of one fault
  python tools/mutants --only F12,F13 --show
                                        and what their tests said
  python tools/mutants --group fault --list
                                        which there are, nothing runs

ends with 1 unless every mutant was caught
"""
SECONDS = 600  # for the tests of one mutant
WHERE = "import fastjournal, sys; sys.stdout.write(fastjournal.__file__)"


class Copy:
    """The sources in a directory of their own, and the tests run on them."""

    def __init__(self, folder: Path) -> None:
        self.src = folder / "src"
        self._report = folder / "report.xml"
        self._environment = os.environ | {
            "FASTJOURNAL_PURE": "1",
            "PYTHONPATH": str(self.src),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        }
        shutil.copytree(ROOT / "src", self.src, ignore=shutil.ignore_patterns("__pycache__"))
        found = subprocess.run(
            [sys.executable, "-c", WHERE],
            cwd=ROOT, env=self._environment, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        if not Path(found).is_relative_to(self.src):
            sys.exit(f"the tests would not run on the copy: fastjournal is {found}")

    def run(self, tests: Iterable[str], limit: float | None) -> tuple[dict[str, str], str]:
        """What became of each test (passed, failed, error, skipped), and what was printed.

        `limit`: seconds for all of them; each has its own besides.
        """
        self._report.unlink(missing_ok=True)
        said = ""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
                 "-o", "junit_family=xunit1", f"--junitxml={self._report}",
                 *(f"tests/{test}" for test in tests)],
                cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=limit,
                check=False,
            )  # fmt: skip
            said = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            said = f"did not end within {limit} s"
        if not self._report.exists():
            return {}, said
        outcomes = {}
        for case in ET.parse(self._report).iter("testcase"):
            file = (case.get("file") or "").removeprefix("tests/")
            outcomes[f"{file}::{case.get('name')}"] = (
                "failed" if case.find("failure") is not None
                else "error" if case.find("error") is not None
                else "skipped" if case.find("skipped") is not None
                else "passed"
            )  # fmt: skip
        return outcomes, said


def outcome_of(test: str, outcomes: dict[str, str]) -> str:
    """What became of one named test, all its cases together."""
    cases = {
        outcome for name, outcome in outcomes.items() if name == test or name.startswith(f"{test}[")
    }
    return next(
        (one for one in ("failed", "error", "passed", "skipped") if one in cases), "did not run"
    )


def judge(copy: Copy, mutant: Mutant) -> tuple[str, str]:
    """`caught`, `SURVIVED` or `does not apply`, with the tests to blame; and what was printed."""
    if mutant.occurrences(copy.src) != 1:
        return f"does not apply: {mutant.occurrences(copy.src)} occurrences in {mutant.file}", ""
    path = copy.src / mutant.file
    sound = path.read_text()
    path.write_text(sound.replace(mutant.text, mutant.replacement))
    try:
        outcomes, said = copy.run(mutant.tests, SECONDS)
    finally:
        path.write_text(sound)
    blamed = [
        f"{test} {outcome}"
        for test in mutant.tests
        if (outcome := outcome_of(test, outcomes)) != "failed"
    ]
    return ("SURVIVED: " + ", ".join(blamed) if blamed else "caught"), said


def chosen_by(arguments: argparse.Namespace) -> list[Mutant]:
    only = set(filter(None, arguments.only.split(",")))
    chosen = [
        one
        for one in mutants()
        if (not only or one.id in only) and arguments.group in ("", one.group)
    ]
    if not chosen or only - {one.id for one in chosen}:
        sys.exit(f"no mutant of {', '.join(only - {one.id for one in chosen}) or arguments.group}")
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/mutants",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="IDS", help="these alone, as F12 or F12,F13")
    parser.add_argument("--group", default="", help="those of one group alone, as fault")
    parser.add_argument("--list", action="store_true", help="list them and run nothing")
    parser.add_argument("--show", action="store_true", help="print what the tests printed")
    arguments = parser.parse_args()
    chosen = chosen_by(arguments)
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.id}: {mutant.promise} ({mutant.file})", *mutant.tests, sep="\n    ")
        return 0
    with tempfile.TemporaryDirectory(prefix="fastjournal-mutants-") as folder:
        copy = Copy(Path(folder))
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        print(f"{len(tests)} tests without a mutant ...", flush=True)
        outcomes, said = copy.run(tests, None)
        unsound = [test for test in tests if outcome_of(test, outcomes) != "passed"]
        if unsound:
            print(said, "these must pass on the sources as they are:", *unsound, sep="\n    ")
            return 1
        caught = 0
        for number, mutant in enumerate(chosen, 1):
            began = time.monotonic()
            verdict, said = judge(copy, mutant)
            caught += verdict == "caught"
            print(
                f"{number}/{len(chosen)} {mutant.id} {mutant.promise}:"
                f" {verdict} ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
            if arguments.show or verdict != "caught":
                print(said)
    print(f"{caught} of {len(chosen)} mutants caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
