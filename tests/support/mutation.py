"""Mutants: one promise each, broken on purpose, and the tests that must notice it.

`mutants.toml` holds them. Rules:

1. A mutant replaces one text that occurs exactly once in one file of `src`.
2. Every test it names must fail on it, and pass without it. Of a test with parameters one case that
   fails is enough; `[...]` names a single case.
3. `id` is a fault of `requirements.toml`, or the name of another rule; `group` tells which.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "mutants.toml"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One promise, broken."""

    id: str
    group: str
    promise: str
    """What does not hold any more once it is applied."""
    file: str
    """Relative to `src`."""
    text: str
    replacement: str
    tests: tuple[str, ...]
    """As pytest names them, relative to `tests`."""

    def occurrences(self, src: Path = ROOT / "src") -> int:
        """How often its text stands in its file: 1, or it does not apply."""
        path = src / self.file
        return path.read_text().count(self.text) if path.is_file() else 0


def mutants() -> list[Mutant]:
    """All of them, as they stand in the table."""
    return [
        Mutant(**(one | {"tests": tuple(one["tests"])}))
        for one in tomllib.loads(TABLE.read_text())["mutant"]
    ]
