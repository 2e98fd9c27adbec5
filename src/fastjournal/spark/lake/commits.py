"""The commits of an export: which files count, and up to which record. No Spark.

    OUT/_commits/000000007.json     one file a commit, written whole, never changed
    OUT/_staging/                   what tasks write; nothing here counts
    OUT/_carried/000000007/         rows as they stood at the end of the commit, for the next one
    OUT/events/day=.../queue=.../   the tables

Rules:

1. A commit happens when its file gets its name: before, nothing is visible; after, it is done.
   Renaming the files it names into place is finished by whoever comes next, if it was interrupted;
   `_commits/000000007.done` says that it was finished. Until then a file that the commit names and
   that is neither staged nor in place is an error.
2. A file is in a table directory only if a commit names it: who reads by glob sees no row twice and
   none of a crashed export. Who wants whole commits only asks `files_of`.
3. `jobs` is replaced as a whole: the old directory goes out, the new one comes in.
4. One exporter at a time, held by a lock on the directory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastjournal.errors import BadRequest, NotFound, SegmentError, SettingError
from fastjournal.log.files import DISK, FileLock
from fastjournal.spark.lake.parquet_files import DataFile

__all__ = ["STAGING", "Commit", "Commits", "carried_folder", "check_versions"]

FORMAT = 1
STAGING = "_staging"
REPLACED = frozenset({"jobs"})


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of an export."""

    number: int
    journal: str
    after: int
    """TIME of the last record of the commit before; 0 for the first one."""
    upto: int
    """TIME of the last record in this one."""
    last_segment: int
    events: int
    records: int
    log_bytes: int
    versions: Mapping[str, int]
    files: tuple[DataFile, ...]
    carried: tuple[str, ...]
    values: bool = True
    format: int = FORMAT
    missing_segments: int = 0
    """Numbers between this commit and the last one that had no segment any more."""
    tables: tuple[str, ...] = field(default=())

    def text(self) -> str:
        """As it is written."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def of(cls, text: str) -> Commit:
        """As it is read."""
        found: dict[str, Any] = json.loads(text)
        if found.get("format") != FORMAT:
            raise BadRequest(f"a commit of format {found.get('format')!r} cannot be read here")
        found["files"] = tuple(DataFile(**one) for one in found["files"])
        for name in ("carried", "tables"):
            found[name] = tuple(found[name])
        return cls(**found)


def carried_folder(number: int) -> str:
    """Where the tasks of a commit leave the rows for the next one, below the directory."""
    return f"_carried/{number:09d}"


class Commits:
    """The commits in one directory."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def lock(self, seconds: float = 0.0) -> FileLock:
        """Keep other exporters out."""
        self.root.mkdir(parents=True, exist_ok=True)
        return DISK.lock(self.root / "_lock", exclusive=True, timeout=seconds)

    def make_ready(self, number: int) -> None:
        """Make, on the driver, the directories that the tasks of a commit must find."""
        for folder in (STAGING, carried_folder(number)):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    def numbers(self) -> list[int]:
        """Every commit, oldest first."""
        folder = self.root / "_commits"
        return sorted(int(path.stem) for path in folder.glob("*.json"))

    def read(self, number: int) -> Commit:
        """One commit."""
        return Commit.of(self._path(number).read_text("utf-8"))

    def last(self) -> Commit | None:
        """The newest commit; None before the first one."""
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def files_of(self, table: str) -> list[str]:
        """The paths of the files of a table, whole commits only."""
        numbers = self.numbers()
        if not numbers:
            raise NotFound(f"no export in {self.root}")
        if table in REPLACED:
            numbers = numbers[-1:]
        found = []
        for number in numbers:
            for one in self.read(number).files:
                if one.table == table:
                    ready = self._ready(table, number) / Path(one.path).relative_to(table)
                    places = (self.root / one.path, self.root / one.staged, ready)
                    found.append(
                        next((str(path) for path in places if path.exists()), str(places[0]))
                    )
        return found

    def add(self, commit: Commit) -> None:
        """Make a commit count."""
        path = self._path(commit.number)
        path.parent.mkdir(exist_ok=True)
        draft = path.with_suffix(".tmp")
        with draft.open("w", encoding="utf-8") as file:
            file.write(commit.text())
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            raise BadRequest(f"commit {commit.number} of {self.root} was made by somebody else")
        draft.replace(path)
        DISK.sync_directory(path.parent)
        DISK.sync_directory(self.root)

    def finish(self) -> Commit | None:
        """Put the files of the newest commit into place and remove what counts for nothing."""
        last = self.last()
        if last is not None and not self._done(last.number).exists():
            self._publish(last)
            self._done(last.number).touch()
            DISK.sync_directory(self._done(last.number).parent)
            for path in (self.root / "_commits").glob("*.done"):
                if path != self._done(last.number):
                    path.unlink(missing_ok=True)
        shutil.rmtree(self.root / STAGING, ignore_errors=True)
        for path in (self.root / "_carried").glob("*"):
            if last is None or path.name != f"{last.number:09d}":
                shutil.rmtree(path, ignore_errors=True)
        return last

    def _publish(self, commit: Commit) -> None:
        waiting = [one for one in commit.files if (self.root / one.staged).is_file()]
        for one in commit.files:
            if one.table not in REPLACED:
                self._check(one, self.root / one.path)
        for table in REPLACED & set(commit.tables):
            self._replace(table, commit)
        folders = set()
        for one in waiting:
            if one.table in REPLACED:
                continue
            target = self.root / one.path
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.root / one.staged).replace(target)
            folders.add(target.parent)
        for folder in folders:
            DISK.sync_directory(folder)
        if waiting:
            DISK.sync_directory(self.root)

    def _replace(self, table: str, commit: Commit) -> None:
        """The whole table of a commit, made in the staging directory, takes the old one's place."""
        mark = self.root / table / "_commit"
        if mark.is_file() and mark.read_text() == str(commit.number):
            return
        ready = self._ready(table, commit.number)
        ready.mkdir(parents=True, exist_ok=True)
        for one in commit.files:
            if one.table != table:
                continue
            staged = self.root / one.staged
            target = ready / Path(one.path).relative_to(table)
            self._check(one, target)
            if staged.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                staged.replace(target)
        (ready / "_commit").write_text(str(commit.number))
        final = self.root / table
        old = self.root / STAGING / f"{table}-old-{commit.number:09d}"
        if final.exists():
            final.replace(old)
        if (old / "_delta_log").is_dir():
            (old / "_delta_log").replace(ready / "_delta_log")
        ready.replace(final)
        DISK.sync_directory(self.root)

    def _check(self, one: DataFile, target: Path) -> None:
        """A file of a commit is staged, or in its place; 0.1.0 did not look before it committed."""
        staged = self.root / one.staged
        if one.crc is None or target.is_file():
            return
        if not staged.is_file() or staged.stat().st_size != one.bytes:
            raise SegmentError(staged, f"{one.bytes} bytes of a commit are not there, nor {target}")

    def _done(self, number: int) -> Path:
        return self._path(number).with_suffix(".done")

    def _ready(self, table: str, number: int) -> Path:
        return self.root / STAGING / f"{table}-{number:09d}"

    def _path(self, number: int) -> Path:
        return self.root / "_commits" / f"{number:09d}.json"


def check_versions(last: Commit, versions: Mapping[str, int], values: bool) -> None:
    """Refuse to mix columns of two kinds in one table."""
    for table in last.tables:
        if last.versions.get(table) != versions.get(table):
            raise SettingError(
                f"{table} was exported with version {last.versions.get(table)} of its columns,"
                f" this is {versions.get(table)}: export to another directory",
                name="out",
            )
    if last.values != values:
        raise SettingError("values: an export goes on as it began", name="values")
