"""What one export added, as it is written down; `steps` keeps them in order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fastjournal.errors import BadRequest, SettingError
from fastjournal.spark.lake.files import DataFile
from fastjournal.spark.lake.tables import VERSIONS

__all__ = ["FORMAT", "Step"]

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Step:
    """What one export added."""

    number: int
    journal: str
    delta: bool
    tables: tuple[str, ...]
    values: bool
    after: int
    """TIME of the last record of the step before; 0 for the first one."""
    upto: int
    """TIME of the last record in this one."""
    last_segment: int
    records: int
    log_bytes: int
    files: tuple[DataFile, ...]
    kept: tuple[tuple[DataFile, ...], ...]
    """The rows as they stand: a whole picture, then what changed, oldest first."""
    missing_segments: int = 0
    """Numbers between this step and the last one that had no segment any more."""
    versions: Mapping[str, int] = field(default_factory=lambda: dict(VERSIONS))
    format: int = FORMAT

    def of(self, table: str) -> list[DataFile]:
        """The files of a table."""
        return [one for one in self.files if one.table == table]

    def encode(self) -> bytes:
        """As it is written."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def decode(cls, text: bytes) -> Step:
        """As it is read."""
        found: dict[str, Any] = json.loads(text)
        if found.get("format") != FORMAT:
            raise BadRequest(f"a step of format {found.get('format')!r} cannot be read here")
        found["files"] = tuple(DataFile(**one) for one in found["files"])
        found["kept"] = tuple(tuple(DataFile(**one) for one in part) for part in found["kept"])
        found["tables"] = tuple(found["tables"])
        return cls(**found)

    def check_goes_on(self, tables: tuple[str, ...], values: bool, delta: bool) -> None:
        """Refuse to mix rows of two kinds in one table."""
        for table in self.tables:
            if self.versions.get(table) != VERSIONS.get(table):
                raise SettingError(
                    f"{table} was exported with version {self.versions.get(table)} of its columns,"
                    f" this is {VERSIONS.get(table)}: export to another directory",
                    name="out",
                )
        if self.values != values:
            raise SettingError("values: an export goes on as it began", name="values")
        if self.delta != delta:
            raise SettingError("delta: an export goes on as it began", name="delta")
        if set(self.tables) != set(tables):
            raise SettingError(f"tables: goes on with {', '.join(self.tables)}", name="tables")
