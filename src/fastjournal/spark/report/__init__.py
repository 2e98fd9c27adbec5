"""How a journal is doing, from its log alone.

tally      figures of a share of the rows, which add up
figures    a tally as plain figures
page, svg  one page that needs nothing else
write      all of it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.package.lazy_names import names_from

if TYPE_CHECKING:
    from fastjournal.spark.report.write import Report, report

__all__ = ["Report", "report"]

__getattr__ = names_from(__name__, dict.fromkeys(__all__, "write"))
