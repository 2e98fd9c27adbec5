"""What the fields of a Workq job may be, whether it comes over the wire or out of a log.

The texts are those of the Workq server. A ttl may be longer than its 30 days.
"""

from typing import Final

from fastjournal.clock import MILLISECOND
from fastjournal.journal.language.commands import Schedule, WorkqJob

__all__ = ["fault_of"]

_LAST_INSTANT: Final = 9_223_372_036_854_775_807
_END_OF_TIME: Final = 9_223_372_036 * 1_000_000_000
_NAME: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def fault_of(job: WorkqJob) -> str:
    """What is wrong with a job, empty if nothing is; its payload is not looked at."""
    row_id = job.id
    if len(row_id) != 16 or row_id[6] >> 4 != 4 or row_id[8] >> 6 != 2:
        return "Invalid ID"
    if not 1 <= len(job.name) <= 255 or not _NAME.issuperset(job.name):
        return "Invalid Name"
    if not 1 <= job.ttr <= 86_400_000:
        return "Invalid TTR"
    if not 1 <= job.ttl <= _LAST_INSTANT // MILLISECOND:
        return "Invalid TTL"
    if not -(2**31) <= job.priority < 2**31:
        return "Invalid Priority"
    if not 0 <= job.max_attempts <= 255:
        return "Invalid Max Attempts"
    if not 0 <= job.max_fails <= 255:
        return "Invalid Max Fails"
    if isinstance(job, Schedule) and not 0 < job.time < _END_OF_TIME:
        return "Invalid Time"
    return ""
