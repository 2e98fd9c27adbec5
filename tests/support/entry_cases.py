"""Key/value entries, requirement by requirement: one table of cases, for whatever driver."""

from __future__ import annotations

import entry_cases_changes
import entry_cases_reading
import entry_cases_values
from entry_table import CASES, Case

__all__ = ["CASES", "PARTS", "Case"]

PARTS = (entry_cases_values, entry_cases_reading, entry_cases_changes)
"""Each adds its cases to the table."""
