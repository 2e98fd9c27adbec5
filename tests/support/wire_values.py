"""Values of bulk messages as lists, read and written by what the client and the daemon use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fastjournal.buffers import BytesWriter
from fastjournal.put_request import PutRequest
from fastjournal.wire.fj.bulk import (
    REFUSED,
    PutOutcomeReader,
    PutOutcomes,
    Settle,
    SettleOutcome,
    SettleOutcomes,
    SettleReader,
)
from fastjournal.wire.fj.fields import put_u32
from fastjournal.wire.fj.job_codec import NO_ID, write_job, write_short

__all__ = [
    "PutOutcome",
    "decode_put_outcomes",
    "decode_settle",
    "encode_jobs",
    "encode_put_outcomes",
    "encode_settle_outcomes",
    "encode_short",
]


class PutOutcome(NamedTuple):
    """One outcome of PUTS."""

    outcome: int
    id: bytes = NO_ID
    error: str = ""


def encode_jobs(jobs: Iterable[PutRequest]) -> bytes:
    """The value of PUTS."""
    found = list(jobs)
    out = BytesWriter()
    put_u32(out, len(found))
    for job in found:
        write_job(out, job)
    return out.getvalue()


def encode_short(
    value: bytes,
    queue: bytes = b"",
    priority: int = 100,
    max_timeouts: int = 0,
    token: int = 0,
    due: int = 0,
    lease: int = 0,
) -> bytes:
    """A job of layout 1."""
    out = BytesWriter()
    write_short(out, value, queue, priority, max_timeouts, token, due, lease)
    return out.getvalue()


def encode_put_outcomes(outcomes: Iterable[PutOutcome]) -> bytes:
    """The value of the reply to PUTS."""
    found = PutOutcomes()
    for item in outcomes:
        if item.outcome == REFUSED:
            found.refuse(item.error)
        else:
            found.add(item.outcome, item.id)
    return found.value()


def decode_put_outcomes(value: bytes) -> list[PutOutcome]:
    """The outcomes of PUTS."""
    found = []
    reader = PutOutcomeReader(value)
    while reader.next():
        found.append(PutOutcome(int(reader.outcome), reader.id, reader.error))
    return found


def decode_settle(value: bytes) -> list[Settle]:
    """The leases of a SETTLE."""
    items = []
    reader = SettleReader(value, 0, len(value))
    while reader.next():
        argument = int(reader.argument) if reader.argument >= 0 else None
        items.append(
            Settle(
                int(reader.action), reader.id, int(reader.token), argument, reader.key,
                reader.result,
            )
        )  # fmt: skip
    return items


def encode_settle_outcomes(outcomes: Iterable[SettleOutcome]) -> bytes:
    """The value of the reply to SETTLE."""
    found = SettleOutcomes()
    for item in outcomes:
        if item.outcome == REFUSED:
            found.refuse(item.error)
        else:
            found.add(item.outcome, item.instant)
    return found.value()
