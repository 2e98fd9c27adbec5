"""Whether the keys of a batch are new to a journal: then its rows meet no other.

Rules:

1. A row meets what has its own key. A key that stands in the batch once, and under which nothing in
   the snapshot or in the log was ever put or deleted, alone or inside a GROUP, is new.
2. A TOMB that names neither queue nor key may be that of a key in every queue: its id is a hash. So
   no key is known to be new then.
3. Queues are not told apart, and what has ended counts. So the answer may be no where nothing would
   be met; the journal decides then, one by one.
4. The caller holds the appender's lock: nothing is added meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.journal.language.commands import GROUP, KEYS, PUT, TOMB
from fastjournal.log.scan.scan import Chunk, Scan
from fastjournal.spark.decode.fields import Fields
from fastjournal.spark.decode.groups import commands_of
from fastjournal.spark.replay.snapshots import open_snapshot
from fastjournal.spark.sink.glance import loaded_segments
from fastjournal.spark.storage.segments import tear_rule

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["all_new"]

_KEYED = {PUT, TOMB, KEYS, GROUP}
"""The kinds that bring something under a key, or hold what does."""


def all_new(directory: str, keys: pa.ChunkedArray) -> bool:
    """Whether these keys are all different, and no row of the journal has or had one of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.count_distinct(keys).as_py() < len(keys):
        return False
    seen: list[pa.Array] = []

    def meet() -> bool:
        found = pc.is_in(pa.chunked_array(seen, pa.binary()), value_set=keys)
        seen.clear()
        return bool(pc.any(found).as_py())

    for chunk in _keyed(directory):
        fields = Fields(chunk, every=True)
        named = fields.text("key")
        of_tombs = pc.coalesce(named, fields.text("queue")).filter(chunk.kinds == TOMB)
        if of_tombs.null_count or fields.bad.any():  # the journal has the last word on bad ones
            return False
        seen.append(named.drop_null())
        # Each question has `keys` hashed anew: it is not worth asking for fewer than they are.
        if sum(map(len, seen)) >= len(keys) and meet():
            return False
    return not meet()


def _keyed(directory: str) -> Iterator[Chunk]:
    """All commands that bring something under a key."""
    opened = open_snapshot(directory)
    if opened is not None:
        snapshot, image = opened
        yield from _commands(Scan(image, path=snapshot.path, kinds=_KEYED), snapshot.path)
    for piece, data in loaded_segments(directory):
        if data:
            scan = Scan(data, path=piece.path, torn=tear_rule(piece), kinds=_KEYED)
            yield from _commands(scan, piece.path)


def _commands(scan: Scan, path: Path | str) -> Iterator[Chunk]:
    for chunk in scan:
        assert isinstance(chunk, Chunk)
        yield commands_of(chunk, path).chunk
