"""Many jobs changed at once, chosen by a question in SQL.

    dead = spark.sql("select id from jobs where state = 'FAILED' and queue = 'mail'")
    apply_frame("fj://host/jobs", dead, "redrive")

Rules:

1. The rows of the frame come to the driver; the journal is asked job by job (to put: in bulk), so
   what changed meanwhile is refused there and counted here, not undone.
2. Redrive and delete need a column `id`, 16 bytes or as text. Put takes the columns of the sink
   (`schema.WRITTEN`) and those named like the other arguments of `put`; null means: as usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fastjournal.arguments import id_bytes
from fastjournal.errors import BadRequest, RequestError, SettingError
from fastjournal.spark.consume.loop import opened
from fastjournal.spark.schema import OLD_NAMES, WRITTEN, current_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["ACTIONS", "Applied", "Editable", "apply_frame"]

ACTIONS = ("redrive", "delete", "put")
_PUT = frozenset(WRITTEN) | {
    "delay", "expires", "lease", "max_attempts", "max_timeouts", "max_fails", "mode", "timestamp"
}  # fmt: skip


class Editable(Protocol):
    """What is needed of a journal."""

    def redrive(self, job_id: bytes | None = None) -> int:
        """Let a dead job wait again."""

    def delete(self, job_id: bytes | None = None) -> bool:
        """Remove a job."""

    def put_many(self, jobs: Any) -> Any:
        """Take many jobs in."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of it."""

    changed: int
    refused: int
    """Jobs that were gone, or in another state by then."""


def apply_frame(journal: Editable | str, frame: DataFrame, action: str = "redrive") -> Applied:
    """Redrive, delete or put the jobs a DataFrame names."""
    if action not in ACTIONS:
        raise SettingError(f"action is one of {', '.join(ACTIONS)}, not {action!r}", name="action")
    names = set(frame.columns)
    if action != "put" and "id" not in names:
        raise BadRequest(f"{action} needs a column 'id'; there are {', '.join(frame.columns)}")
    if action == "put" and (unknown := {current_name(one) for one in names} - _PUT):
        raise BadRequest(
            f"put has no argument {', '.join(sorted(unknown))}; it has {', '.join(sorted(_PUT))}"
        )
    target, ours = opened(journal)
    changed = refused = 0
    try:
        for batch in _batches(frame if action == "put" else frame.select("id")):
            if action == "put":
                changed += len(target.put_many(_jobs(batch)))
                continue
            for job_id in batch.column(0).to_pylist():
                try:
                    done = getattr(target, action)(id_bytes(job_id))
                except RequestError:
                    done = 0
                changed += int(done)
                refused += not done
    finally:
        if ours:
            target.close()
    return Applied(changed, refused)


def _batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    yield from frame.toArrow().to_batches(max_chunksize=10_000)


def _jobs(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [
        {OLD_NAMES.get(name, name): value for name, value in row.items() if value is not None}
        for row in batch.to_pylist()
    ]
