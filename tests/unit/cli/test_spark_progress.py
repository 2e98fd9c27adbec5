"""The bar of tasks is for people: it never comes between a result and its place."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from fastjournal.cli.spark.session import end_progress, task_bar

pytest.importorskip("pyspark")


class Terminal(io.StringIO):
    """A standard error that somebody looks at."""

    def isatty(self) -> bool:
        return True


class Session:
    """A session with one stage, of which one of two tasks is done."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        return self

    def statusTracker(self) -> Any:  # noqa: N802
        return self

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return [7]

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802
        assert stage == 7
        return self

    numCompletedTasks = 1  # noqa: N815
    numTasks = 2  # noqa: N815


def test_results_go_to_standard_output_while_a_bar_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, err = io.StringIO(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with task_bar(Session()):  # type: ignore[arg-type]
        print('{"n": 63}')
    assert out.getvalue() == '{"n": 63}\n'
    assert "tasks" in err.getvalue() and "63" not in err.getvalue()


def test_once_the_bar_is_ended_nothing_more_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    with task_bar(Session()):  # type: ignore[arg-type]
        end_progress()
        drawn = err.getvalue()
    assert err.getvalue() == drawn


def test_where_nobody_looks_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    with task_bar(Session()):  # type: ignore[arg-type]
        pass
    assert err.getvalue() == ""
