"""What every benchmark shares: one way to repeat, to print and to record.

Rules:

1. Each measure is taken at least three times, ours and its peers in turn, so that a busy moment of
   the machine hits them alike; once where it takes minutes and is an average by itself. The figure
   is the median, the spread smallest and largest.
2. A table for people on standard output; with `--json FILE` one object per line in the file:
   bench, row, unit, better (lower or higher), ours, spread, peers.
3. A peer that cannot run here is left out and named on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

__all__ = ["Bench", "Row", "machine", "micros_per"]

Measure = Callable[[], float]


@dataclass
class Row:
    """One line of the table."""

    bench: str
    row: str
    unit: str
    better: str
    ours: float
    spread: tuple[float, float]
    peers: dict[str, float] = field(default_factory=dict)


class Bench:
    """One benchmark program: parses its arguments, measures, prints, records."""

    def __init__(
        self,
        name: str,
        about: str,
        repeats: int = 7,
        options: Callable[[argparse.ArgumentParser], object] | None = None,
    ) -> None:
        """`repeats`: of each measure, unless the command line says otherwise; 3 with `--quick`.

        `options` adds to the arguments, which stand in `given`.
        """
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("--quick", action="store_true", help="under a minute, rougher figures")
        parser.add_argument("--json", type=Path, metavar="FILE", help="append JSON lines here")
        parser.add_argument("--repeats", type=int, default=None, help="of each measure")
        if options is not None:
            options(parser)
        self.given = given = parser.parse_args()
        self.name = name
        self.quick: bool = given.quick
        self.repeats = max(1, given.repeats or (3 if given.quick else repeats))
        self.rows: list[Row] = []
        self._json: Path | None = given.json
        print(f"{name}: {about}\n{machine()}\n{self.repeats} repeats, median [smallest, largest]\n")

    def row(
        self,
        row: str,
        ours: Measure,
        peers: Mapping[str, Measure] | None = None,
        *,
        unit: str,
        better: str = "lower",
    ) -> Row:
        """Measure ours and the peers in turn; each callable returns its figure in `unit`."""
        measures = {"ours": ours, **(peers or {})}
        figures: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(self.repeats):
            for name, measure in measures.items():
                figures[name].append(measure())
        mine = figures.pop("ours")
        result = Row(
            self.name,
            row,
            unit,
            better,
            median(mine),
            (min(mine), max(mine)),
            {name: median(values) for name, values in figures.items()},
        )
        self.rows.append(result)
        self._print(result)
        return result

    def left_out(self, peer: str, why: str) -> None:
        """Say that a peer cannot be measured here."""
        print(f"left out: {peer}: {why}", file=sys.stderr)

    def finish(self) -> None:
        """Write the JSON lines, if they were asked for."""
        if self._json is None:
            return
        self._json.parent.mkdir(parents=True, exist_ok=True)
        with self._json.open("a") as file:
            for row in self.rows:
                file.write(json.dumps(asdict(row)) + "\n")

    def _print(self, row: Row) -> None:
        low, high = (_figure(value) for value in row.spread)
        print(f"{row.row:<34} {_figure(row.ours):>9} {row.unit:<10} [{low}, {high}]")
        for name, value in row.peers.items():
            ratio = row.ours / value if row.better == "lower" else value / row.ours
            words = f"{ratio:.2f}x of it" if ratio >= 1 else f"{1 / ratio:.1f}x better"
            print(f"    {name:<30} {_figure(value):>9} {row.unit:<10} ours {words}")
        sys.stdout.flush()


def micros_per(count: int, work: Callable[[], object]) -> float:
    """Microseconds for each of `count` things that `work` does."""
    start = perf_counter()
    work()
    return (perf_counter() - start) * 1e6 / count


def machine() -> str:
    """The machine in one line."""
    cores = os.cpu_count()
    python = platform.python_version()
    return f"{platform.machine()}, {cores} cores, {platform.system()}, Python {python}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
