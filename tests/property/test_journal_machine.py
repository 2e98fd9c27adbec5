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

from fastjournal.journal import kinds as k
from fastjournal.model import Mode, NewJob
from machine import changes
from oracle import MS, S
from world import QUEUES, World

KEYS = [b"", b"k1", b"k2"]
WHERES: list[tuple[dict[str, Any], list[bytes]]] = [
    ({}, QUEUES),
    ({"prefix": b"a"}, [b"a", b"ab"]),
    ({"queue": b"a"}, [b"a"]),
    ({"queues": [b"b", b"w", b"none"]}, [b"b", b"w"]),
]


def put_fields(world: World, draw: Any, shortest: int = 1) -> dict[str, Any]:
    """Fields of a job; `draw(*choices)` chooses."""
    key = draw(*KEYS)
    due, life = draw(0, 0, 1, S, 61 * S), draw(0, 0, 0, -1, shortest, 30 * S, 3600 * S)
    age = draw(None, None, None, 0, -10 * S, 4 * S, 6 * S)
    limits = draw((0, 0, 0), (0, 0, 0), (1, 0, 0), (2, 2, 2))
    return {
        "queue": draw(*QUEUES[:3]),
        "value": b"value %d" % len(world.files.operations) + bytes(draw(0, 0, 300)),
        "key": key,
        "mode": draw(Mode.MERGE, Mode.MERGE, Mode.UNIQUE) if key else Mode.PLAIN,
        "priority": draw(0, 100, 100, 200, 230),
        "due": world.now + due if due else 0,
        "expires": world.now + life if life else 0,
        "timestamp": 0 if age is None else world.now + age,
        "lease": draw(0, 0, 3 * S),
        "max_attempts": limits[0],
        "max_timeouts": limits[1],
        "max_fails": limits[2],
    }


def act(world: World, name: str, draw: Any) -> None:
    """One step of this name."""
    number = draw(*range(12))
    token = draw("right", "right", "right", "wrong", "none")
    if name == "put":
        world.put(**put_fields(world, draw))
    elif name == "put_many":
        world.put_many([NewJob(**put_fields(world, draw, MS)) for _ in range(draw(1, 2, 3))])
    elif name == "add":
        row_id = bytes((number % 4,)) * 6 + b"\x40\x00\x80" + bytes(7)
        later, limits = draw(0, 0, -5 * S, 5 * S), draw((0, 0), (1, 0), (2, 3))
        kind = k.Schedule if later else k.Add
        ttl = draw(1000, 60_000, 2_592_000_000)
        when = world.now + later if later else 0
        world.add(kind(row_id, b"w", 2000, ttl, draw(0, 5, -300), *limits, b"payload", when, 0))
    elif name == "lease":
        where, names = draw(WHERES[0], *WHERES)
        how = {"fair": draw(True, False), "take": draw(False, False, False, True)}
        world.lease(
            draw(1, 1, 3), names, where, worker=draw(b"c1", b"c2"), lease=draw(0, 2 * S), **how
        )
    elif name == "touch":
        world.end("touch", number, token, extend=draw(0, 5))
    elif name == "complete":
        world.end("complete", number, token, result=draw(None, b"", b"done"))
    elif name == "complete_many":
        world.complete_many(draw(None, b"done"))
    elif name == "fail":
        world.end("fail", number, token, reason=draw(b"", b"broken"))
    elif name == "release":
        world.end("release", number, token, delay=draw(0, 1, 100))
    elif name == "delete":
        world.delete(number)
    elif name == "delete_key":
        world.delete_key(draw(*QUEUES[:3]), draw(*KEYS[1:]))
    elif name == "redrive":
        world.redrive(number)
    elif name == "wait":
        world.wall.advance(ns=draw(1, MS, S, 2 * S, 10 * S, 61 * S, 3700 * S, 8 * 86400 * S))
    elif name == "step_back":
        world.wall.step(-draw(1, 3600))
    elif name == "step_ahead":
        world.wall.step(draw(1, 3600))
    elif name == "rotate":
        world.journal.rotate()
    elif name == "clean":
        world.journal.clean()
    elif name == "snapshot":
        world.journal.snapshot()
    elif name == "lose_power":
        world.lose_power(number)
    else:
        getattr(world, name)()


NAMES = [
    *("put", "put_many", "add", "lease", "touch", "complete", "complete_many", "fail", "release"),
    *("delete", "delete_key", "redrive", "tick", "wait", "step_back", "step_ahead", "rotate"),
    *("clean", "snapshot", "restart", "kill", "lose_power"),
]


class JournalMachine(RuleBasedStateMachine):
    """Everything that can happen to a journal."""

    @initialize(archive=st.booleans())
    def open(self, archive: bool) -> None:
        self.world = World(history="archive" if archive else "delete")

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
    **{"put": 30, "lease": 30, "complete": 8, "fail": 8, "tick": 6, "wait": 10, "rotate": 6},
    **{"clean": 6, "snapshot": 2, "step_back": 1, "step_ahead": 1, "delete_key": 1, "delete": 1},
}
CALM = {"concurrency": 2}, {"max_wait": 10 * S}, {"backoff_timeouts": True}, {"dead_keep": 100 * S}


@pytest.mark.parametrize("seed", range(6))
def test_long_lives_of_a_journal_follow_the_oracle(seed: int) -> None:
    chance = Random(seed)
    world = World(seed, history="archive" if seed % 2 else "delete")
    world.configure(QUEUES[seed % 3], CALM[seed % 4])
    for step in range(400):
        (name,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        act(world, name, lambda *choices: chance.choice(choices))
        if step % 5 == 0:
            world.check()
    world.check()
    assert world.restarts > 5
    world.abandon()
