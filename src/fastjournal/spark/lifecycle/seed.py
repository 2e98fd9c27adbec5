"""The rows of a journal whose beginning is gone: what its snapshot says of them. No Spark.

Rules:

1. Only rows stated before the first record that is left, which is the bound of the snapshot
   (`replay.snapshots.lives_base`): the others state themselves in the log.
2. What happened to a row before is not known: its waiting is counted from its last image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastjournal.spark.lifecycle.walk import Fold
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.replay.snapshots import base_of
from fastjournal.spark.storage.segments import Piece

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["rows_before"]


def rows_before(pieces: Sequence[Piece], share: Share) -> pa.Table | None:
    """The rows to begin with; None where no snapshot comes before the segments, or it has none."""
    import pyarrow as pa

    base = base_of(pieces, share)
    if base.state is None:
        return None
    upto = pieces[0].upto
    rows = [row for row in base.state.rows.values() if upto is None or row.at <= upto]
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
