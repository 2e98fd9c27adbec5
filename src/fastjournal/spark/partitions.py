"""What travels from the driver to a task, and the check of what a task is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from fastjournal.errors import SettingError
from fastjournal.spark.options import Settings
from fastjournal.spark.schema import names_of, struct
from fastjournal.spark.storage.segments import Piece

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Shard", "Span", "checked"]


@dataclass
class Span(InputPartition):
    """Consecutive segments read by one task."""

    pieces: list[Piece]


@dataclass
class Shard(InputPartition):
    """A part of the rows of one journal, told of by one task."""

    directory: str
    index: int
    count: int
    upto: int | None
    newest: int
    """The newest segment at the time of the plan; see rule 5 of `plan`."""


def checked(schema: StructType, settings: Settings) -> Settings:
    """Settings that read the columns of `schema`; its types must be the view's own."""
    names = tuple(schema.fieldNames())
    settings = replace(settings, columns=names)
    for given, own in zip(schema.fields, struct(settings.view, names_of(settings)), strict=True):
        if given.dataType != own.dataType:
            raise SettingError(
                f"schema: {own.name} is {own.dataType.simpleString()},"
                f" not {given.dataType.simpleString()}",
                name="schema",
            )
    return settings
