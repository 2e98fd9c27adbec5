"""Every requirement and every fault has a test that shows it, or is declined in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

import register


def test_every_requirement_is_shown_by_a_test_or_declined() -> None:
    """M3-TST-1: what is neither is told as open, and nothing else is."""
    shown, declined, left = register.shown(), register.declined(), register.still_open()
    without = {one for one in register.requirements() if one not in shown and one not in declined}
    assert without <= left


def test_every_fault_is_provoked_by_a_test_or_declined() -> None:
    provoked, declined, left = register.provoked(), register.declined(), register.still_open()
    without = {one for one in register.faults() if not provoked[one] and one not in declined}
    assert without <= left


def test_what_is_open_or_declined_is_known_and_not_both() -> None:
    known = set(register.requirements()) | set(register.faults())
    assert register.still_open() <= known
    assert not register.still_open() & register.declined()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("FJ-GET-2..4, D-24", {"FJ-GET-2", "FJ-GET-3", "FJ-GET-4"}),
        ("WQ-CMD-1: not WQ-CMD-10x", {"WQ-CMD-1"}),
        ("FJ-TYP-0..5", {"FJ-TYP-0..5"}),
        ("FJ-FLG-T and M3F-SNAP-1", {"FJ-FLG-T", "M3F-SNAP-1"}),
    ],
)
def test_ids_are_found_in_words(text: str, named: set[str]) -> None:
    assert register.named_in(text, set(register.requirements())) == named


def test_the_register_is_printed_with_the_tests_of_each_id() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "register"],
        cwd=register.ROOT / "tests" / "support",
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert all(one in lines for one in register.requirements() | register.faults())
    after = lines[lines.index("M3-TST-1") + 1]
    assert after.endswith("::test_every_requirement_is_shown_by_a_test_or_declined")
