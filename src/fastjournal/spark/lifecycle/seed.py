"""The rows of a journal whose beginning is gone: what its snapshot says of them. No Spark.

Rules:

1. Only rows stated before the first record that is left: the others state themselves in the log.
2. What happened to a row before is not known: its waiting is counted from its last image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastjournal.spark.lifecycle.walk import Fold
from fastjournal.spark.locations import is_remote
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.replay.snapshots import base_of, first_base
from fastjournal.spark.storage.segments import Piece, first_time, load

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["rows_before"]


def rows_before(directory: str, pieces: Sequence[Piece], share: Share) -> pa.Table | None:
    """The rows to begin with; None where the log is whole, or nothing is known."""
    import pyarrow as pa

    if not pieces or pieces[0].number <= 1:
        return None
    first = first_time(pieces[0])
    if is_remote(directory):
        base = first_base(directory, pieces, share)
    else:
        base = base_of(directory, [(piece, load(piece)) for piece in pieces[:1]], share, None)
    if base.state is None or first is None:
        return None
    rows = [row for row in base.state.rows.values() if row.at < first]
    if not rows:
        return None
    schema = Fold(share).table().schema
    columns = {
        "id": [row.id for row in rows],
        "key": [row.key or None for row in rows],
        "state": [int(row.state) for row in rows],
        "since": [row.at for row in rows],
        "due": [row.due for row in rows],
        "leased": [row.rare.start if row.lease_until else 0 for row in rows],
        "attempt": [row.attempts for row in rows],
        "timeouts": [row.rare.timeouts for row in rows],
        "fails": [row.rare.fails for row in rows],
        "max_attempts": [row.policy.max_attempts for row in rows],
        "lease_ms": [row.policy.lease for row in rows],
        "renewals": [0] * len(rows),
        "until": [row.lease_until for row in rows],
        "queue": [row.queue.name or None for row in rows],
        "worker": [(row.rare.worker or None) if row.lease_until else None for row in rows],
        "puts": [1] * len(rows),
        "born": [row.inserted for row in rows],
    }
    return pa.table(columns, schema=schema)
