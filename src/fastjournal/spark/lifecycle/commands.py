"""The commands of a segment that belong to a share of the rows, with their fields. No Spark.

Rules: those of `walk`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastjournal.journal.language import commands as language
from fastjournal.log.record import MIN_RECORD
from fastjournal.log.scan.scan import Buffer, Chunk, Scan
from fastjournal.spark.decode.field_kernel import REASON
from fastjournal.spark.decode.fields import Fields
from fastjournal.spark.decode.groups import commands_of
from fastjournal.spark.kinds import BROADCAST, GROUP, SINGLE, among
from fastjournal.spark.replay.fold import Share, route
from fastjournal.spark.storage.segments import Piece, tear_rule

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["ROWLESS", "Part", "parts_of"]

ROWLESS = tuple(BROADCAST - {GROUP})
_PLAIN_BYTES = MIN_RECORD - 1  # without SIZE


@dataclass(slots=True)
class Part:
    """Commands of consecutive records of one segment, with their fields."""

    chunk: Chunk
    """One entry a command; its `offsets` are those of the records."""
    members: Array
    """Place in a GROUP; -1 for a whole record."""
    forwarded: Array
    """Whether it stands in a GROUP with the mark of its sender."""
    sizes: Array
    """Payload bytes of the record; 0 for all members but the first."""
    named: Array
    """Whether the command names a row."""
    segment: int
    fields: Fields

    def log_bytes(self) -> Array:
        """Bytes of whole records in the log; 0 for all members of a GROUP but the first."""
        import numpy as np

        sizes = self.sizes
        digits = 1 + (sizes >= 1 << 7) + (sizes >= 1 << 14) + (sizes >= 1 << 21)
        found: Array = np.where(self.members <= 0, sizes + digits + _PLAIN_BYTES, 0)
        return found

    def death(self, at: int) -> tuple[str, bytes]:
        """Why the command at this place gave its row up, and in which words."""
        kind = int(self.chunk.kinds[at])
        if kind == language.FAIL:
            starts, sizes, _ = self.fields.slice_of("result")
            start = int(starts[at])
            return "failed", bytes(self.chunk.data[start : start + int(sizes[at])])
        code = int(self.fields.numbers[REASON, at]) if kind == language.DEAD else 2
        return {1: "time-outs", 2: "attempts", 3: "failed"}.get(code, "unknown"), b""


def parts_of(
    piece: Piece, data: Buffer, share: Share, after: int | None = None, upto: int | None = None
) -> Iterator[Part]:
    """The commands of one segment that belong to a share; what names no row goes to share 0."""
    import numpy as np

    for found in Scan(data, path=piece.path, torn=tear_rule(piece), after=after, upto=upto):
        assert isinstance(found, Chunk)
        commands = commands_of(found, piece.path)
        chunk, members, record = commands.chunk, commands.members, commands.record
        sizes = np.where(members <= 0, found.sizes[record], 0)
        has_sender = np.zeros(len(found), dtype=bool)
        has_sender[record[(chunk.kinds == language.SENDER) & (members >= 0)]] = True
        forwarded = has_sender[record]
        named = among(SINGLE)[chunk.kinds] & (chunk.sizes >= 17)
        if share.count > 1:
            ids = chunk.ids().view(np.uint64)
            mine = route(ids[:, 0], ids[:, 1], share.count) == share.index
            mine = np.where(named, mine, share.index == 0)
            chunk = chunk.select(mine)
            members, forwarded, sizes, named = (
                column[mine] for column in (members, forwarded, sizes, named)
            )
        if len(chunk):
            yield Part(
                chunk, members, forwarded, sizes, named, piece.number, Fields(chunk, every=True)
            )
