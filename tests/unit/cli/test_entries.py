"""The entry commands on a journal in a directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Command
from fastjournal import Journal


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return Command(capfd, monkeypatch, tmp_path / "j")


def test_what_was_set_is_got(run: Command) -> None:
    """FJ-CLI-1."""
    assert run("set", "a", "hello")[:2] == (0, "a set\n")
    assert run("get", "a")[:2] == (0, "hello")
    run("set", "b", "-", "--type", "buffer", stdin=b"from stdin")
    assert run("get", "b")[1] == "from stdin"
    run("set", "t", "yes", "--type", "boolean")
    assert run("get", "t")[1] == "true\n"
    entry = json.loads(run("get", "t", "--json")[1])
    assert (entry["key"], entry["type"], entry["value"]) == ("t", "boolean", True)


def test_a_key_that_is_not_there_ends_with_1(run: Command) -> None:
    run("set", "a", "x")
    assert run("get", "zz")[:2] == (1, "")
    assert run("unset", "zz")[0] == 1
    assert run("unset", "a")[:2] == (0, "a deleted\n")
    assert run("get", "a")[0] == 1


def test_numbers_are_added(run: Command) -> None:
    assert run("add", "n")[1] == "1\n"
    assert run("add", "n", "41")[1] == "42\n"
    assert run("add", "n", "--", "-2")[1] == "40\n"
    assert run("add", "f", "0.5")[1] == "0.5\n"
    assert run("add", "f", "1")[0] == 2
    assert run("add", "n", "many")[0] == 2


def test_a_scan_lists_in_order(run: Command, tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        for number in range(5):
            journal.entries[f"k{number}"] = number
    lines = run("scan", "k1", "k3", "--json")[1].splitlines()
    assert [json.loads(line)["value"] for line in lines] == [1, 2, 3]
    assert len(run("scan", "--match", "[24]$", "--json")[1].splitlines()) == 2
    assert len(run("scan", "--limit", "2", "--json")[1].splitlines()) == 2
    assert "k4" in run("scan")[1]


def test_refusals_are_one_line_and_code_2(run: Command) -> None:
    run("set", "a", "x")
    assert run("set", "a", "y", "--new")[0] == 2
    code, _, err = run("set", "a", "y", "--type", "colour")
    assert (code, err.count("\n")) == (2, 1)
    assert run("set", "a", "y", "--type", "integer")[0] == 2
    assert run("scan", "--match", "(")[0] == 2
    assert run("get", "a")[1] == "x"
