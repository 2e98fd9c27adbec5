"""Spark as a consumer: the driver leases and settles, executors do the work.

loop            lease, run, settle
executor_side   what runs on the executors
bulk_edit       many jobs changed at once, chosen by a question in SQL
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.package.lazy_names import names_from

if TYPE_CHECKING:
    from fastjournal.spark.consume.loop import Consumed, Source, StopSign, consume, opened, per_job

__all__ = ["Consumed", "Source", "StopSign", "consume", "opened", "per_job"]

__getattr__ = names_from(__name__, dict.fromkeys(__all__, "loop"))
