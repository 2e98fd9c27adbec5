"""What is wrong with a journal, found by walking all of it.

prefilter, prefilter_kernel   which rows must be looked at closely
rules                         the findings, piece by piece
run                           all of it on Spark, as rows, with a second opinion in SQL
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.package.lazy_names import names_from

if TYPE_CHECKING:
    from fastjournal.spark.audit.run import audit, exit_code, second_opinion

__all__ = ["audit", "exit_code", "second_opinion"]

__getattr__ = names_from(__name__, dict.fromkeys(__all__, "run"))
