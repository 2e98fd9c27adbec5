"""The log to the state as of an instant, by the journal's own `apply`, split by row.

snapshots           where a replay may begin
fold, fold_kernel   the records of a share of the rows to their state
by_share            every task walks the log for its share
dealt, by_row       the log dealt out by row, each byte of it read once
job_rows            rows of the state as batches of view `jobs`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.package.lazy_names import names_from

if TYPE_CHECKING:
    from fastjournal.spark.replay.by_share import replay_share, shard_batches, shards

__all__ = ["replay_share", "shard_batches", "shards"]

__getattr__ = names_from(__name__, dict.fromkeys(__all__, "by_share"))
