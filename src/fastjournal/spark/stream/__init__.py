"""A live journal as an endless table.

tail           which TIME a growing log has reached, and what was lost before it was read
archive_tail   the same of an archive, by its manifest
reader         offsets, limits and batches for `spark.readStream`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.package.lazy_names import names_from

if TYPE_CHECKING:
    from fastjournal.spark.stream.reader import (
        STREAM_OPTIONS,
        JournalStreamReader,
        StreamSettings,
        split_options,
    )

__all__ = ["STREAM_OPTIONS", "JournalStreamReader", "StreamSettings", "split_options"]

__getattr__ = names_from(__name__, dict.fromkeys(__all__, "reader"))
