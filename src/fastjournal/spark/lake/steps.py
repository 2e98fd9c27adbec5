"""The steps of an export: which files each one added, and up to which record it came. No Spark.

    OUT/_export/000000007.json      one step: an object that is made once and never changed
    OUT/_export/000000007.done      all of it is in the tables
    OUT/_staging/                   what tasks write; nothing here counts
    OUT/_rows/000000007/            rows as they stood at the end of a step, see `kept_rows`
    OUT/events/day=.../             the tables

Rules:

1. A step happens when its object is made: before, nothing of it counts; after, it is carried on to
   its end by whoever comes next. Of two who make the same step one is refused, on every store.
2. The files of a step come into plain Parquet tables by a move, into Delta tables by a transaction
   whose version is the number of the step (`delta`). Either may be done again and changes nothing.
3. In plain Parquet a file is in the folder of a table only if a step names it: who reads by glob
   sees no row twice. `jobs` is replaced: the old files go before the new ones come.
4. On a disk one exporter works at a time, by a lock; on a store two would only waste their work.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from fastjournal.archive.store import open_store
from fastjournal.errors import BadRequest, NotFound, SegmentError, SettingError
from fastjournal.log.files import DISK
from fastjournal.spark.lake.files import STAGING, Folder
from fastjournal.spark.lake.step import Step

__all__ = ["ROWS", "Steps"]

ROWS = "_rows"
REPLACED = "jobs"


class Steps:
    """The steps of one export."""

    def __init__(self, out: str | Path) -> None:
        self.folder = Folder(out)
        self._store = open_store(f"{self.folder.address}/_export")

    def lock(self, seconds: float = 0.0) -> AbstractContextManager[Any]:
        """Keep other exporters out, where that can be done (rule 4)."""
        if self.folder.remote:
            return nullcontext()
        root = Path(self.folder.address)
        if (root / "_commits").is_dir():
            raise SettingError(
                f"out: {root} is an export of 0.1.0, by day and queue; it can still be read:"
                " export to another directory",
                name="out",
            )
        root.mkdir(parents=True, exist_ok=True)
        return _Locked(root / "_lock", seconds)

    def numbers(self) -> list[int]:
        """Every step, oldest first."""
        return sorted(int(one.name[:9]) for one in self._found() if one.name.endswith(".json"))

    def _found(self) -> list[Any]:
        try:
            return list(self._store.find(""))
        except NotFound:
            return []

    def read(self, number: int) -> Step:
        """One step."""
        return Step.decode(self._store.get(f"{number:09d}.json"))

    def last(self) -> Step | None:
        """The newest step; None before the first one."""
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def add(self, step: Step) -> None:
        """Make a step count."""
        if not self._store.create(f"{step.number:09d}.json", step.encode()):
            raise BadRequest(f"step {step.number} of {self.folder.address} was made by another")

    def finish(self) -> Step | None:
        """Bring the newest step into the tables and remove what counts for nothing."""
        last = self.last()
        if last is not None:
            self.publish(last)
        self.folder.delete_below(STAGING)
        pictures = [Path(part[0].path).parts[1] for part in last.kept if part] if last else []
        self.folder.delete_below(ROWS, pictures)
        return last

    def publish(self, step: Step) -> None:
        """Bring a step into the tables, once."""
        done = f"{step.number:09d}.done"
        if any(one.name == done for one in self._found()):
            return  # what was published may be taken away by whoever keeps the lake
        if step.delta:
            from fastjournal.spark.lake.delta import bring_up

            bring_up(self.folder, step)
        else:
            self._move(step)
        self._store.put(done, [b""])

    def _move(self, step: Step) -> None:
        for one in step.files:
            if not self.folder.has(one.path) and not self.folder.has(one.place):
                raise SegmentError(
                    self.folder.at(one.path), f"{one.bytes} bytes of a step are not there"
                )
        if step.number > 1 and REPLACED in step.tables:
            self.folder.delete(one.place for one in self.read(step.number - 1).of(REPLACED))
        self.folder.move((one.path, one.place) for one in step.files if self.folder.has(one.path))

    def files_of(self, table: str) -> list[str]:
        """The paths of the files of a table, whole steps only."""
        numbers = self.numbers()
        if not numbers:
            raise NotFound(f"no export in {self.folder.address}")
        last = self.read(numbers[-1])
        if last.delta:
            from fastjournal.spark.lake.delta import files_of

            return files_of(self.folder, table)
        found = []
        for number in numbers[-1:] if table == REPLACED else numbers:
            for one in self.read(number).of(table):
                name = one.path if self.folder.has(one.path) else one.place
                found.append(f"{self.folder.address}/{name}")
        return found


class _Locked:
    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds

    def __enter__(self) -> None:
        self._lock = DISK.lock(self._path, exclusive=True, timeout=self._seconds)

    def __exit__(self, *_: object) -> None:
        self._lock.release()
