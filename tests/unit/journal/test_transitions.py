"""The table of legal changes agrees with itself and with what records do."""

from __future__ import annotations

import itertools

import pytest

from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import BROADCAST, TYPE_NAMES, TYPE_OF
from fastjournal.journal.language.transitions import STEPS, TRANSITIONS, markdown
from fastjournal.journal.state.apply import JournalState
from fastjournal.model import State
from stepped_core import NOW, S

ROW = bytes(range(16))
PUT = k.Put(ROW, b"q", b"k", 1, NOW, NOW, NOW, 0, 1, b"v")
COMMANDS: list[k.Command] = [
    k.Add(ROW, b"q", 1000, 1000, 0, 0, 0, b"", 0, NOW),
    k.Schedule(ROW, b"q", 1000, 1000, 0, 0, 0, b"", NOW, NOW),
    k.Complete(ROW, b"r"),
    k.Fail(ROW, b"r"),
    k.Delete(ROW),
    k.Expire(ROW),
    k.Start(ROW),
    k.Timeout(ROW),
    PUT,
    k.Lease(ROW, NOW, NOW + S, 1),
    k.Renew(ROW, NOW + S, 1),
    k.Touch(ROW, NOW + S),
    k.Tomb(ROW, b"q", b"k", NOW),
    k.Purge(ROW, b"q", b"k", NOW),
    k.Dead(ROW, 1, NOW),
    k.Keys(ROW, b"l", (), NOW),
    k.Value(ROW, 1, b"w", NOW),
    k.Retry(ROW, 1, NOW, 0, 1),
    k.Redrive(ROW, NOW, 0),
]
WAYS: dict[State | None, list[k.Command]] = {
    None: [],
    State.WAITING: [PUT],
    State.PROCESSING: [PUT, k.Lease(ROW, NOW, NOW + S, 1)],
    State.COMPLETED: [PUT, k.Complete(ROW, b"first")],
    State.FAILED: [PUT, k.Fail(ROW, b"first")],
    State.DELETED: [PUT, k.Tomb(ROW, b"q", b"k", NOW)],
}


def state_in(before: State | None) -> JournalState:
    state = JournalState()
    for command in WAYS[before]:
        state.apply(command, NOW)
    return state


@pytest.mark.parametrize(
    ("before", "command"),
    list(itertools.product(WAYS, COMMANDS)),
    ids=lambda part: getattr(part, "name", type(part).__name__),
)
def test_a_record_makes_a_legal_change_or_none(before: State | None, command: k.Command) -> None:
    state = state_in(before)
    digest = state.digest()
    state.apply(command, NOW + 1)
    row = state.rows.get(ROW)
    after = None if row is None else row.state
    number = TYPE_OF[type(command)]
    possible = any(step[0] == before for step in STEPS[number])
    if possible:
        assert (before, after) in STEPS[number]
    else:
        assert state.digest() == digest


def test_a_record_of_an_unknown_row_is_ignored_wq_cmd_12() -> None:
    for command in COMMANDS:
        if isinstance(command, (k.Add, k.Schedule, k.Put, k.Tomb)):
            continue
        state = JournalState()
        state.apply(command, NOW)
        assert not state.rows


def test_every_row_record_has_steps_and_every_line_uses_known_records() -> None:
    assert set(STEPS) == set(TYPE_NAMES) - BROADCAST
    assert {TYPE_NAMES[number] for number in BROADCAST} == {
        "GROUP", "MARK", "QUEUE", "SENDER", "ENDS",
    }  # fmt: skip
    for line in TRANSITIONS:
        assert set(line.records) <= set(STEPS)


def test_every_line_can_be_walked_by_its_records() -> None:
    for line in TRANSITIONS:
        if not line.records:
            continue
        for before in line.before:
            reached = {before}
            for number in line.records:
                steps = STEPS[number]
                reached = {after for state in reached for b, after in steps if b == state}
            ends = line.after if line.after != line.before else (before,)
            if line.number == 7:  # the record is that of the new row
                assert (None, State.WAITING) in STEPS[line.records[0]]
                continue
            assert reached & (set(ends) | set(line.after)), line


def test_line_numbers_are_unique() -> None:
    numbers = [line.number for line in TRANSITIONS]
    assert len(set(numbers)) == len(numbers)


def test_the_table_can_be_printed() -> None:
    lines = markdown().splitlines()
    assert len(lines) == len(TRANSITIONS) + 2
    assert all(line.count("|") == 8 for line in lines)
    assert "| 9 | W | lease |" in markdown()


def test_the_first_result_wins_v7() -> None:
    for state in (state_in(State.COMPLETED), state_in(State.FAILED)):
        state.apply(k.Complete(ROW, b"second"), NOW)
        state.apply(k.Fail(ROW, b"third"), NOW)
        assert state.rows[ROW].rare.result == b"first"
