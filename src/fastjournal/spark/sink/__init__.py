"""Rows of a DataFrame become jobs, each once.

encode         tasks write whole segments of PUT records
batch          which batch it is, and where its files wait
glance, stamp  what the single writer must know, and the ids and instants it gives
commit         it takes the files in
writer         the entry for `df.write` and `writeStream`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.package.lazy_names import names_from

if TYPE_CHECKING:
    from fastjournal.spark.sink.writer import (
        SINK_OPTIONS,
        JournalStreamWriter,
        JournalWriter,
        SinkSettings,
        StagedMessage,
    )

__all__ = ["SINK_OPTIONS", "JournalStreamWriter", "JournalWriter", "SinkSettings", "StagedMessage"]

__getattr__ = names_from(__name__, dict.fromkeys(__all__, "writer"))
