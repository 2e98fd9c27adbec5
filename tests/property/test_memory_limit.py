"""The same requests with hardly any memory, with all of it, and after a restart: one outcome.

Cleanings, snapshots, rotations, crashes in between. Every value may be let go, however short, and
only a handful fits.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from deeds import act
from entry_driver import Embedded, S
from fastjournal.entry_value import BUFFER, INTEGER, STRING
from fastjournal.errors import RequestError
from fastjournal.journal.entries.ground import Decided
from fastjournal.journal.entries.reads import Reading
from world import World

TINY = {"memory_limit": 1024}
KEYS = [b"k%d" % number for number in range(12)]


class Twin:
    """Two journals, one of them with hardly any memory; all requests go to both."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.both = [Embedded(), Embedded(**TINY)]
        self.all, self.tiny = self.both
        self.counts: dict[str, int] = {}

    def ask(self, name: str, *given: Any, **how: Any) -> None:
        """The same answer, or the same refusal, from both."""
        answers = []
        for one in self.both:
            try:
                answers.append(_fields(one.ask(name, *given, **how)))
            except RequestError as error:
                answers.append(type(error))
        assert answers[0] == answers[1], (name, given)
        self.counts[name] = self.counts.get(name, 0) + 1

    def step(self) -> None:
        chance = self.chance
        for one in self.both:
            one.wait(1000)  # restating a row takes a record of its own
        key, other = chance.choice(KEYS), chance.choice(KEYS)
        name = chance.choice(("set", "set", "set", "get", "get", *REQUESTS))
        if name == "set":
            size = chance.choice((0, 10, 200, 400, 900, 2000))
            how = {"expires": self.all.now + 30 * S} if chance.random() < 0.2 else {}
            self.ask("set", key, chance.choice((BUFFER, STRING)), chance.randbytes(size), **how)
        elif name == "number":
            self.ask("set", key, INTEGER, chance.randbytes(8))
        elif name == "add":
            how = {"sender": b"me", "timestamp": self.all.now} if chance.random() < 0.5 else {}
            self.ask("add", key, INTEGER, (5).to_bytes(8, "big"), **how)
        elif name == "truncate":
            self.ask("truncate", key, chance.choice((0, 100, 1500)))
        elif name in ("flip", "delete"):
            self.ask(name, key)
        elif name == "purge":
            self.ask("delete", key, purge=True)
        elif name == "get":
            self.ask("get", key)
        elif name == "lease":
            self.ask("get", key, Reading(lease=self.all.now + 5 * S, worker=b"w"))
        elif name == "touched":
            self.ask("get", key, Reading(expires=self.all.now + 60 * S))
        elif name in ("rename", "alias"):
            self.ask(name, key, other)
        elif name == "wait":
            for one in self.both:
                one.wait(chance.choice((S, 10 * S)) if one is self.all else 0)
            self.tiny.wall.advance(ns=self.all.now - self.tiny.now)
            for one in self.both:
                one.journal.tick()
        else:
            for one in self.both:
                _upkeep(one, name)

    def check(self) -> None:
        digest = self.all.journal.digest()
        assert self.tiny.journal.digest() == digest
        assert self.tiny.replayed_digest() == digest
        values = self.tiny.journal.engine.values
        held = [row.value for row in self.tiny.journal.engine.state.rows.values()]
        assert values.bytes == sum(len(v) for v in held if type(v) is bytes)
        assert values.bytes <= 1024 or values.count == 1


REQUESTS = (
    "number", "add", "truncate", "flip", "delete", "purge", "lease", "touched", "rename", "alias",
    "wait", "clean", "snapshot", "restart", "kill", "rotate",
)  # fmt: skip


def _fields(answer: Any) -> Any:
    if isinstance(answer, Decided):
        return (
            answer.logged,
            answer.remembered,
            answer.stale,
            answer.found,
            answer.kind,
            answer.data,
        )
    return answer


def _upkeep(one: Embedded, name: str) -> None:
    if name == "restart":
        one.restart()
    elif name == "kill":
        one.kill()
    else:
        getattr(one.journal, name)()


@pytest.mark.parametrize("seed", range(10))
def test_hardly_any_memory_changes_nothing_that_can_be_seen(seed: int) -> None:
    """FJ-KV-1, FJ-KV-2: entries with a tiny limit, without one, and after a reopening."""
    twin = Twin(seed)
    for number in range(250):
        twin.step()
        if number % 10 == 0:
            twin.check()
    twin.check()
    for one in twin.both:
        one.restart()
    twin.check()
    for key in KEYS:
        twin.ask("get", key)
    assert twin.counts["get"] > 30
    for one in twin.both:
        one.journal.close()


LIFE = {
    "put": 40,
    "lease": 10,
    **dict.fromkeys(("add", "complete", "fail", "wait", "rotate"), 8),
    **dict.fromkeys(("put_many", "touch", "complete_many", "release", "tick"), 4),
    **dict.fromkeys(("delete", "delete_key", "redrive"), 2),
}


@pytest.mark.parametrize("seed", range(8))
def test_jobs_with_hardly_any_memory_follow_the_oracle(seed: int) -> None:
    """Payloads that were let go are leased, merged, retried and recovered as all others."""
    chance = Random(seed)
    world = World(seed, **TINY)
    loads = 0
    for turn in range(8):
        for name in chance.choices(list(LIFE), list(LIFE.values()), k=90):
            act(world, name, lambda *choices: chance.choice(choices))
        world.check()
        values = world.journal.engine.values
        assert values.bytes <= 1024 or values.count == 1
        loads += values.loads
        if turn % 2:
            world.journal.clean()
        elif turn % 3 == 0:
            world.journal.snapshot()
        else:
            world.kill()
        world.check()
    world.abandon()
    assert loads > 20
