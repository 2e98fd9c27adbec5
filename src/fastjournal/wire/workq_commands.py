"""The commands of the Workq text protocol as values.

Rules:

1. An id must be of version 4 and of the RFC variant, except in `delete`, which does nothing for one
   that no job can have, and in `inspect job`, which does not find it.
2. Times are ns since 1970. Whether a scheduled job is already past its life is for the caller, who
   has a clock (`is_past`).
3. Priorities are Workq's: larger first. `rank` is ours: smaller first.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Add",
    "Command",
    "Complete",
    "Delete",
    "Fail",
    "InspectJob",
    "InspectJobs",
    "InspectQueue",
    "InspectQueues",
    "InspectServer",
    "Lease",
    "Result",
    "Run",
    "Schedule",
    "is_version_4",
]

_MILLISECOND = 1_000_000


def is_version_4(job_id: bytes) -> bool:
    """An id that a job can have."""
    return job_id[6] >> 4 == 4 and job_id[8] >> 6 == 2


@dataclass(frozen=True, slots=True)
class Add:
    """`add id name ttr ttl size`: a job for a queue."""

    id: bytes
    name: str
    ttr_ms: int
    ttl_ms: int
    payload: bytes
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0

    @property
    def rank(self) -> int:
        """The priority, smaller first."""
        return -self.priority


@dataclass(frozen=True, slots=True)
class Schedule:
    """`schedule id name ttr ttl time size`: a job that is due at an instant."""

    id: bytes
    name: str
    ttr_ms: int
    ttl_ms: int
    time: int
    payload: bytes
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0

    @property
    def rank(self) -> int:
        """The priority, smaller first."""
        return -self.priority

    def is_past(self, now: int) -> bool:
        """Its life is over at `now`: answer Invalid Time."""
        return self.time + self.ttl_ms * _MILLISECOND < now


@dataclass(frozen=True, slots=True)
class Run:
    """`run id name ttr wait-timeout size`: a job whose result is waited for."""

    id: bytes
    name: str
    ttr_ms: int
    wait_ms: int
    payload: bytes
    priority: int = 0

    @property
    def rank(self) -> int:
        """The priority, smaller first."""
        return -self.priority


@dataclass(frozen=True, slots=True)
class Lease:
    """`lease name... wait-timeout`: the next job of one of the queues."""

    names: tuple[str, ...]
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Complete:
    """`complete id size`: a job is done."""

    id: bytes
    result: bytes


@dataclass(frozen=True, slots=True)
class Fail:
    """`fail id size`: a job failed."""

    id: bytes
    result: bytes


@dataclass(frozen=True, slots=True)
class Result:
    """`result id wait-timeout`: the result of a job, when there is one."""

    id: bytes
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Delete:
    """`delete id`: remove a job, whatever its state."""

    id: bytes

    @property
    def is_possible(self) -> bool:
        """A job can have this id; if not, the answer is OK and nothing is done."""
        return is_version_4(self.id)


@dataclass(frozen=True, slots=True)
class InspectJob:
    """`inspect job id`."""

    id: bytes


@dataclass(frozen=True, slots=True)
class InspectJobs:
    """`inspect jobs name offset limit`, or `inspect scheduled-jobs ...`."""

    name: str
    offset: int
    limit: int
    scheduled: bool = False


@dataclass(frozen=True, slots=True)
class InspectQueue:
    """`inspect queue name`."""

    name: str


@dataclass(frozen=True, slots=True)
class InspectQueues:
    """`inspect queues offset limit`."""

    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class InspectServer:
    """`inspect server`."""


Command = (
    Add | Schedule | Run | Lease | Complete | Fail | Result | Delete
    | InspectJob | InspectJobs | InspectQueue | InspectQueues | InspectServer
)  # fmt: skip
