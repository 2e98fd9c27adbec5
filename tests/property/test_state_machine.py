"""Every request, mixed with clock jumps, restarts and snapshots, against the plain oracle.

After every step: the rows are the oracle's rows; replaying the log gives the same state by hash,
whole and split by row; the indexes agree with the rows.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings

from machine import CHECK_EVERY, WEIGHTS, JournalMachine, arguments

JournalMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestJournal = JournalMachine.TestCase


@pytest.mark.parametrize("seed", range(8))
def test_long_lives_of_jobs_follow_the_oracle(seed: int) -> None:
    chance = Random(seed)
    machine = JournalMachine()
    machine.open()
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    for step in range(600):
        (name,) = chance.choices(names, weights)
        getattr(machine, name)(**arguments(name, chance))
        machine.rows_are_those_of_the_oracle()
        machine.indexes_agree_with_the_rows()
        if step % CHECK_EVERY == 0:
            machine.replay_gives_the_state()
            machine.replay_gives_the_places_too()
            machine.replay_split_by_row_gives_the_same_rows()
            machine.at_most_one_waits_and_one_is_worked_on_for_each_key()
    machine.replay_gives_the_state()
