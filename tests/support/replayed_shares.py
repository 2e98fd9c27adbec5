"""What the tasks of a replay give, without a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fastjournal.journal.state.apply import JournalState
from fastjournal.spark.options import Settings
from fastjournal.spark.partitions import Shard
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.replay.jobs import replay_share, shares_of

__all__ = ["replayed_states"]


def replayed_states(
    path: str | Path,
    task: Share = Share(),  # noqa: B008 - frozen
    upto: int | None = None,
    *,
    parts: int = 0,
) -> Iterator[JournalState]:
    """The rows that one task tells of, share by share; `parts`: so many."""
    shard = Shard(str(path), task.index, task.count, upto, 0)
    settings = Settings((str(path),), view="jobs")
    for share, pieces in shares_of(shard, settings, state_only=True, parts=parts):
        yield replay_share(pieces, share, upto=upto)
