"""What an export keeps of every row between two steps, so that the next one begins there. No Spark.

Rules:

1. Of each row: where its life stands (`lifecycle.walk`), and with table `jobs` its image, the very
   commands by which a snapshot states it.
2. A step writes the rows it touched, and the ids of those that went. The newest word on a row
   counts. When the changes outweigh the picture they belong to, a step writes a whole one.
3. What a task loads is its share of the rows that the new records touch, and no other.
4. The image of a row before, and the new records of it, give its image after: by the journal's own
   `apply`, which looks at nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.language.commands import Command, Group
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row, image
from fastjournal.log.scan.scan import FAILFAST
from fastjournal.spark.lake.files import DataFile, Folder
from fastjournal.spark.lifecycle.commands import Part
from fastjournal.spark.lifecycle.walk import Fold
from fastjournal.spark.replay.fold import (
    SegmentReader,
    Settled,
    Share,
    apply_entries,
    no_collection,
    route,
)
from fastjournal.spark.storage.segments import Piece, load

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

__all__ = [
    "among",
    "carry_on",
    "image_of",
    "kept_table",
    "load_kept",
    "of_share",
    "outweighed",
    "touched_by",
]

_MANY_PARTS = 16


def outweighed(kept: Sequence[Sequence[DataFile]]) -> bool:
    """Whether the next step should write a whole picture (rule 2)."""
    rows = [sum(one.rows for one in part) for part in kept]
    return not rows or len(rows) > _MANY_PARTS or sum(rows[1:]) > rows[0]


def touched_by(parts: Iterable[Part]) -> pa.Array:
    """The ids of the rows that these commands name, each once."""
    import numpy as np
    import pyarrow as pa

    found = [
        np.ascontiguousarray(part.chunk.ids()[part.named]).view("V16").ravel() for part in parts
    ]
    ids = np.unique(np.concatenate(found)) if found else np.empty(0, "V16")
    return pa.array([one.tobytes() for one in ids], pa.binary())


def among(rows: pa.Table, ids: pa.Array) -> pa.Array:
    """Which rows have one of these ids."""
    import pyarrow.compute as pc

    return pc.is_in(rows["id"], value_set=ids)


def of_share(rows: pa.Table, share: Share) -> pa.Table:
    """The rows of a share."""
    import numpy as np
    import pyarrow as pa

    if share.count == 1 or not rows.num_rows:
        return rows
    ids = np.frombuffer(b"".join(rows["id"].to_pylist()), dtype=np.uint64).reshape(-1, 2)
    return rows.filter(pa.array(route(ids[:, 0], ids[:, 1], share.count) == share.index))


def load_kept(
    folder: Folder, kept: Sequence[Sequence[DataFile]], share: Share, ids: pa.Array | None
) -> pa.Table:
    """The rows of a share as they stood, of these ids or all."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    found = [kept_table(Fold(share).table(), {}, ())]
    for part in kept:
        for one in filter(lambda one: one.concerns(share), part):
            rows = folder.read([one.path])
            if ids is not None:
                rows = rows.filter(among(rows, ids))
            found.append(of_share(rows, share))
    rows = pa.concat_tables(found)
    order = rows.select(["id"]).append_column("n", pa.array(np.arange(rows.num_rows)))
    newest = order.group_by("id").aggregate([("n", "max")])["n_max"]
    rows = rows.take(newest)
    return rows.filter(pc.invert(rows["gone"])).drop_columns(["gone"])


def image_of(row: Row, values: bool) -> bytes:
    """The commands that state a row, as one payload."""
    commands = image(row, None if values else b"")
    return encode(commands[0] if len(commands) == 1 else Group(tuple(commands)))


def carry_on(
    images: Iterable[bytes], pieces: Sequence[Piece], share: Share, after: int, upto: int
) -> JournalState:
    """Rows by their images, and what the records behind `after` made of them (rule 4)."""
    state = JournalState()
    reader, settled = SegmentReader(share, FAILFAST), Settled(removals=True)
    found = [reader.matter(piece, load(piece), upto, settled) for piece in reversed(pieces)]
    with no_collection():
        for payload in images:
            for command in _members(payload):
                state.apply_part(command, after)
        apply_entries(state, reversed(found), after=after)
    return state


def _members(payload: bytes) -> Sequence[Command]:
    command = decode(payload)
    return command.members if isinstance(command, Group) else (command,)


def kept_table(lives: pa.Table, images: Mapping[bytes, bytes], gone: Sequence[bytes]) -> pa.Table:
    """What a step writes: where lives stand, images, and the ids of the rows that went."""
    import pyarrow as pa

    ids = lives["id"].to_pylist()
    shown = lives.append_column("image", pa.array([images.get(one) for one in ids], pa.binary()))
    shown = shown.append_column("gone", pa.repeat(pa.scalar(False), len(ids)))
    if not gone:
        return shown
    went = pa.table(
        {"id": pa.array(gone, pa.binary()), "gone": pa.repeat(pa.scalar(True), len(gone))}
    )
    return pa.concat_tables([shown, went], promote_options="default")
