"""Sets of rows larger than a machine's memory: sorted files that tasks write and map. No Spark.

Rules:

1. A fact about a row has 40 bytes (`fact_kernel.FACT`). Facts about one row in the order of the log
   fold into one, and such folded ones again: so tasks fold what they read into runs, and other
   tasks fold the runs, each for its part of the rows.
2. A run is sorted by a number mixed from the id. A part of the rows is a range of that number: it
   is found in every run by a binary search, and parts are even, whatever ids look like.
3. A task holds at most some `most` rows: it writes a run when it has so many, and there are as many
   parts as that takes. The files are mapped, not read; the driver knows their names only.
4. The files lie in a folder that the driver makes where all nodes see it, and removes. They are
   never taken for more than they are: a name that is not there or has another size is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from socket import gethostname
from typing import TYPE_CHECKING, Any

from fastjournal.errors import NotFound, SegmentError
from fastjournal.log.files import DISK, write_whole
from fastjournal.spark.storage.mapped_file import map_file
from fastjournal.spark.storage.written_files import attempt_word, make_below

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["MOST_ROWS", "Facts", "RowSet", "Run", "Shelf", "facts_array", "fold_part", "part_count"]

MOST_ROWS = 1 << 20
_FEW_ROWS = 1 << 17  # a part with fewer does not pay for its task
_ROOM = 1 << 12
_FOLDER = ".rows-"


@dataclass(frozen=True, slots=True)
class Run:
    """A file of sorted facts."""

    path: str
    count: int

    def open(self) -> Array:
        """The facts, mapped."""
        import numpy as np

        from fastjournal.spark.maintain.fact_kernel import FACT

        try:
            data = map_file(self.path)
        except FileNotFoundError:
            raise NotFound(
                f"{self.path}: written by a task, not to be seen on {gethostname()}; name a"
                " directory that all nodes share"
            ) from None
        if len(data) != self.count * FACT.itemsize:
            raise SegmentError(self.path, f"has {len(data)} bytes, not {self.count} rows")
        return np.frombuffer(data, dtype=FACT)


@dataclass(frozen=True, slots=True)
class Shelf:
    """The folder of the files of one job, and how many rows a task may hold."""

    path: str
    most: int = MOST_ROWS

    @classmethod
    @contextmanager
    def below(cls, directory: str | Path, most: int = MOST_ROWS) -> Iterator[Shelf]:
        """A folder that is there as long as the job."""
        path = Path(directory) / f"{_FOLDER}{attempt_word()}"
        path.mkdir()
        try:
            yield cls(str(path), most)
        finally:
            rmtree(path, ignore_errors=True)

    @staticmethod
    def sweep(directory: str | Path) -> None:
        """Remove what drivers that died have left; nobody else may be at work there."""
        for left in Path(directory).glob(f"{_FOLDER}*"):
            rmtree(left, ignore_errors=True)

    def write(self, facts: Array, *, in_order: bool = False) -> Run:
        """Write facts sorted, each row's in the order given; or all of them in that order."""
        import numpy as np

        from fastjournal.spark.maintain.fact_kernel import mixed

        if not in_order:
            facts = facts[np.argsort(mixed(facts["low"], facts["high"]), kind="stable")]
        root = Path(self.path)
        make_below(root, root)
        path = root / attempt_word()
        handle = DISK.create(path)
        try:
            write_whole(handle, facts.tobytes())
        finally:
            handle.close()
        return Run(str(path), len(facts))


def facts_array(lows: Array, highs: Array, at: Array, expires: Array, what: Array | int) -> Array:
    """Facts from columns."""
    import numpy as np

    from fastjournal.spark.maintain.fact_kernel import FACT

    facts = np.empty(len(lows), dtype=FACT)
    for name, column in zip(FACT.names or (), (lows, highs, at, expires, what), strict=True):
        facts[name] = column
    return facts


class Facts:
    """Facts being folded; what a task has read so far of its part of the log."""

    def __init__(self, overlap: int = 0) -> None:
        self._overlap = overlap
        self._used, self._table = self._empty(_ROOM)
        self.count = 0

    def _empty(self, room: int) -> tuple[Array, Array]:
        import numpy as np

        from fastjournal.spark.maintain.fact_kernel import FACT

        return np.zeros(room, dtype=bool), np.empty(room, dtype=FACT)

    def add(self, facts: Array) -> None:
        """Fold facts that come behind all that were added before."""
        from fastjournal.spark.maintain.fact_kernel import fold, move

        room = len(self._used)
        while 2 * (self.count + len(facts)) > room:
            room *= 2
        if room != len(self._used):
            larger = self._empty(room)
            move(self._used, self._table, *larger)
            self._used, self._table = larger
        facts.flags.writeable = False  # mapped ones are not either: one kernel serves both
        self.count += fold(facts, self._used, self._table, self._overlap)

    def rows(self) -> Array:
        """One fact a row."""
        found: Array = self._table[self._used]
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._used[:] = False
        self.count = 0


def part_count(runs: Iterable[Run], shelf: Shelf, cores: int = 0) -> int:
    """Into how many parts the rows of these runs are cut."""
    total = sum(run.count for run in runs)
    return max(1, -(-total // shelf.most), min(cores, total // _FEW_ROWS))


def fold_part(runs: Sequence[Run], part: int, parts: int, shelf: Shelf, overlap: int = 0) -> Run:
    """The rows of one part that are there at the end of all runs, which come in order."""
    import numpy as np

    from fastjournal.spark.maintain.fact_kernel import FOUND, STATED, place

    # A bound is the number itself, not its upper half: `RowSet` parts by the same.
    bounds = [np.uint64(-(-(n << 64) // parts)) if n < parts else None for n in (part, part + 1)]
    facts = Facts(overlap)
    for run in runs:
        found = run.open()
        first, last = (len(found) if b is None else place(found, b) for b in bounds)
        for start in range(first, last, shelf.most):
            facts.add(found[start : min(start + shelf.most, last)])
    rows = facts.rows()
    return shelf.write(rows[(rows["what"] == STATED) | (rows["what"] == FOUND)])


class RowSet:
    """Rows in files, one for each part; the files are mapped when they are first asked."""

    def __init__(self, parts: Sequence[Run]) -> None:
        self._parts = list(parts)
        self._opened: list[Array | None] = [None] * len(self._parts)

    def __len__(self) -> int:
        return sum(run.count for run in self._parts)

    def __getstate__(self) -> list[Run]:
        return self._parts

    def __setstate__(self, parts: list[Run]) -> None:
        self.__init__(parts)  # type: ignore[misc]

    def find(self, lows: Array, highs: Array) -> tuple[Array, Array, Array]:
        """For each id whether its row is there, its TIME and its expiry; 0 where it is not."""
        import numpy as np

        from fastjournal.spark.maintain.fact_kernel import mixed, search

        known = np.zeros(len(lows), dtype=bool)
        at, expires = (np.zeros(len(lows), dtype=np.int64) for _ in range(2))
        if not len(self) or not len(lows):
            return known, at, expires
        parts = len(self._parts)
        bounds = np.array([-(-(n << 64) // parts) for n in range(1, parts)], dtype=np.uint64)
        numbers = mixed(lows, highs)
        order = np.argsort(numbers)
        ends = np.concatenate([[0], np.searchsorted(numbers[order], bounds), [len(lows)]])
        for part in np.flatnonzero(np.diff(ends)).tolist():
            facts = self._opened[part]
            if facts is None:
                facts = self._opened[part] = self._parts[part].open()
            which = order[ends[part] : ends[part + 1]]
            search(lows, highs, which, facts, known, at, expires)
        return known, at, expires
