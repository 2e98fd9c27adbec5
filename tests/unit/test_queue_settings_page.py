"""docs/queues.md lists every setting with its default, no more and no less."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from fastjournal.arguments import length_text
from fastjournal.clock import SECOND
from fastjournal.model import SETTING_LENGTHS as _LENGTHS
from fastjournal.model import QueueSettings

PAGE = Path(__file__).parents[2] / "docs" / "queues.md"


def test_the_page_lists_every_setting_with_its_default() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    listed = {row[1].strip().strip("`"): row[2].strip() for row in rows}
    expected = {
        field.name: length_text(field.default) if field.name in _LENGTHS else str(field.default)
        for field in fields(QueueSettings)
    }
    assert listed == expected


def test_lengths_are_those_settings_that_are_nanoseconds_inside() -> None:
    assert set(QueueSettings.__slots__) >= _LENGTHS
    assert all(getattr(QueueSettings(), name) % SECOND == 0 for name in _LENGTHS)
