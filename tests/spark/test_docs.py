"""What docs/spark.md shows is true: its example runs, its tables name what the code has."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from command_line import invoke
from docblocks import ALL_BLOCKS, Block
from fastjournal.journal.journal import Journal
from fastjournal.spark.audit.rules import RULES
from fastjournal.spark.options import OPTIONS
from fastjournal.spark.schema import VIEW_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parent.parent.parent / "docs" / "spark.md").read_text()


EXAMPLES = [block for block in ALL_BLOCKS if "spark" in block.words and not block.not_run]


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("block", EXAMPLES, ids=[block.place for block in EXAMPLES])
def test_the_example_runs_as_it_stands(
    block: Block, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block finds a journal with one job in ./jobs, and shares the session."""
    monkeypatch.chdir(tmp_path)
    with Journal("./jobs", background=False) as journal:
        journal.put(b"payload", key="key", queue="queue")
    if block.language == "console":
        for line in block.commands():
            done = invoke(shlex.split(line)[1:])
            assert done.exit_code == 0, f"$ {line}\n{done.output}\n{done.exception!r}"
        return
    names: dict[str, object] = {"spark": spark}
    exec(compile(block.code, block.place, "exec"), names)
    assert names["spark"] is spark


def test_every_option_rule_and_column_is_documented() -> None:
    for name in OPTIONS:
        assert name == "path" or f"`{name}`" in PAGE, name
    for rule, meaning in RULES.items():
        assert f"| `{rule}` | {meaning} |" in PAGE, rule
    for name in (*VIEW_COLUMNS["records"][0], *VIEW_COLUMNS["records"][1]):
        assert f"`{name}`" in PAGE, name
