"""A whole journal beside the plain oracle: every request, clock jumps, restarts, crashes, upkeep.

After every step the rows are the oracle's rows and the files replay to the same state by hash.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from deeds import act
from machine import changes
from oracle import S
from world import HOME, QUEUES, World

NAMES = [
    *("put", "put_many", "add", "lease", "touch", "complete", "complete_many", "fail", "release"),
    *("delete", "delete_key", "redrive", "tick", "wait", "step_back", "step_ahead", "rotate"),
    *("clean", "snapshot", "restart", "kill", "lose_power"),
]


class JournalMachine(RuleBasedStateMachine):
    """Everything that can happen to a journal."""

    @initialize(archive=st.booleans())
    def open(self, archive: bool) -> None:
        self.world = World(archive=HOME / "archive" if archive else None)

    @rule(
        name=st.sampled_from(["put", "put", "put", "lease", "lease", "rotate", *NAMES]),
        data=st.data(),
    )
    def step(self, name: str, data: Any) -> None:
        act(self.world, name, lambda *choices: data.draw(st.sampled_from(choices)))

    @rule(queue=st.sampled_from(QUEUES), change=changes)
    def configure(self, queue: bytes, change: dict[str, Any]) -> None:
        self.world.configure(queue, change)

    @invariant()
    def rows_are_the_oracles_and_the_files_say_the_same(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.abandon()


JournalMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestJournal = JournalMachine.TestCase

WEIGHTS = {
    **dict.fromkeys(NAMES, 2),
    **dict.fromkeys(("put", "lease"), 30),
    **dict.fromkeys(("complete", "fail", "wait"), 8),
    **dict.fromkeys(("tick", "rotate", "clean"), 6),
    **dict.fromkeys(("step_back", "step_ahead", "delete", "delete_key"), 1),
}
CALM = {"concurrency": 2}, {"max_wait": 10 * S}, {"backoff_timeouts": True}, {"dead_keep": 100 * S}


@pytest.mark.parametrize("seed", range(6))
def test_long_lives_of_a_journal_follow_the_oracle(seed: int) -> None:
    chance = Random(seed)
    world = World(seed, archive=HOME / "archive" if seed % 2 else None)
    world.configure(QUEUES[seed % 3], CALM[seed % 4])
    for step in range(400):
        (name,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        act(world, name, lambda *choices: chance.choice(choices))
        if step % 5 == 0:
            world.check()
    world.check()
    assert world.restarts > 5
    world.abandon()
