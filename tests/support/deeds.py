"""What may happen to a `World`, by name; the arguments are chosen by whoever calls."""

from __future__ import annotations

from typing import Any

from fastjournal.journal.language import commands as k
from fastjournal.model import Mode, NewJob
from oracle import MS, S
from world import QUEUES, World

KEYS = [b"", b"k1", b"k2"]
WHERES: list[tuple[dict[str, Any], list[bytes]]] = [
    ({}, QUEUES),
    ({"prefix": b"a"}, [b"a", b"ab"]),
    ({"queue": b"a"}, [b"a"]),
    ({"queues": [b"b", b"w", b"none"]}, [b"b", b"w"]),
]


def put_fields(world: World, draw: Any) -> dict[str, Any]:
    """Fields of a job; `draw(*choices)` chooses."""
    key = draw(*KEYS)
    due, life = draw(0, 0, 1, S, 61 * S), draw(0, 0, 0, -1, MS // 2, 30 * S, 3600 * S)
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
        world.put_many([NewJob(**put_fields(world, draw)) for _ in range(draw(1, 2, 3))])
    elif name == "add":
        row_id = bytes((number % 4,)) * 6 + b"\x40\x00\x80" + bytes(7)
        later, limits = draw(0, 0, -5 * S, 5 * S), draw((0, 0), (1, 0), (2, 3))
        kind: Any = k.Schedule if later else k.Add
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
        world.step_ahead(draw(1, 3600))
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
