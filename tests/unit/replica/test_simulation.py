"""A cluster under faults, by seeds: what must never happen does not, and each rule is needed.

A seed that fails is run again by `World(seed, PLANS[plan]).run()`; it does the same each time.
"""

from __future__ import annotations

import logging
import os

import pytest

import replica_mutants
from fastjournal.replica.placement import place_journals
from fastjournal.replica.rules import Rules
from replica_mutants import PLANS
from replica_world import BrokenPromise, Plan, World

SEEDS = 8
"""For each plan, in the ordinary suite."""
MANY = int(os.environ.get("FASTJOURNAL_SEEDS", "400"))
"""For each plan, in the slow one."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "fastjournal")


@pytest.mark.parametrize("plan", PLANS)
def test_no_promise_is_broken(plan: str) -> None:
    """SNAP-IDX-1, FJ-IMP-2, F58, F59, F60: acknowledged by a quorum is there, whatever happens."""
    worlds = [World(seed, PLANS[plan]) for seed in range(SEEDS)]
    for world in worlds:
        world.run()
    assert sum(world.counted["acknowledged"] for world in worlds) > 20
    assert sum(world.counted["faults"] for world in worlds) > 40


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("plan", PLANS)
def test_no_promise_is_broken_in_many_worlds(plan: str) -> None:
    """F58, F59, F60: thousands of seeds."""
    for seed in range(1000, 1000 + MANY):
        World(seed, PLANS[plan]).run()


def test_the_same_seed_gives_the_same_run() -> None:
    worlds = [World(7, PLANS["plain"]) for _ in range(2)]
    for world in worlds:
        world.run()
    assert worlds[0].counted == worlds[1].counted
    assert worlds[0].acknowledged == worlds[1].acknowledged
    assert worlds[0].led == worlds[1].led


CAUGHT = {
    "NoFence": ("plain", 14),
    "AnyEpoch": ("late mail", 548),
    "PromiseToAnybody": ("old backup", 87),
    "SameEpochAgain": ("old backup", 5),
    "GapsAreFine": ("lazy and late", 3),
    "CrcIsNothing": ("damage", 111),
    "AmnesicVotes": ("damage", 29),
    "OwnEnd": ("plain", 3),
    "TailsStay": ("plain", 13),
    "Minority": ("plain", 0),
    "OldMajority": ("growing", 1),
    "LongLease": ("leases", 28),
    "NothingLost": ("lazy sync", 24),
    "AnyTime": ("clocks", 4),
    "ShipsHoles": ("snapshots", 26),
    "AnySnapshot": ("snapshots", 40),
}
"""Each rule that is taken away, the worlds that notice it, and the seed."""


@pytest.mark.parametrize("mutant", CAUGHT)
def test_without_a_rule_a_promise_is_broken(mutant: str) -> None:
    """Every safety rule is needed: F58, F59."""
    plan, seed = CAUGHT[mutant]
    with pytest.raises(BrokenPromise):
        World(seed, PLANS[plan], getattr(replica_mutants, mutant)()).run()
    World(seed, PLANS[plan]).run()


def test_every_mutant_has_its_seed() -> None:
    mutants = {
        name
        for name, one in vars(replica_mutants).items()
        if isinstance(one, type) and issubclass(one, Rules) and one is not Rules
    }
    assert mutants == set(CAUGHT) | set(replica_mutants.LED_BY_HAND)


class Placed(World):
    """Journals on nodes of their own."""

    def place(self, names: list[str]) -> dict[str, tuple[str, ...]]:
        journals = [f"j{number}" for number in range(self.plan.journals)]
        return place_journals(journals, {name: f"zone{int(name[1:]) % 3}" for name in names})


def test_twenty_journals_on_two_hundred_nodes() -> None:
    """SNAP-IDX-2, SNAP-IDX-3: each journal on its own three nodes, sixty in all."""
    plan = Plan(nodes=200, journals=20, seconds=5, each=0.1, requests=0.2)
    world = Placed(1, plan)
    used = {name for homes in world.homes.values() for name in homes}
    assert len(used) == 60
    world.run()
    assert all(world.acknowledged.values())
