"""What docs/spark.md shows is true: its example runs, its tables name what the code has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastjournal.journal.journal import Journal
from fastjournal.spark.findings import RULES
from fastjournal.spark.schema import VIEW_COLUMNS
from fastjournal.spark.settings import OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parent.parent.parent / "docs" / "spark.md").read_text()


def test_the_example_runs_as_it_stands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Journal("./jobs", background=False) as journal:
        journal.put(b"payload", key="key", queue="queue")
    (example,) = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, "docs/spark.md", "exec"), names)
    assert names["spark"] is spark


def test_every_option_rule_and_column_is_documented() -> None:
    for name in OPTIONS:
        assert name == "path" or f"`{name}`" in PAGE, name
    for rule, meaning in RULES.items():
        assert f"| `{rule}` | {meaning} |" in PAGE, rule
    for name in (*VIEW_COLUMNS["records"][0], *VIEW_COLUMNS["records"][1]):
        assert f"`{name}`" in PAGE, name
