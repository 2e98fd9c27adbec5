"""P-CLEAN through the real cleaner and real snapshots: replay before equals replay after.

Random histories, random segment cuts, random choices of segments, clock moves; snapshots taken
while the journal goes on changing.
"""

from __future__ import annotations

from random import Random

import pytest

from deeds import act
from fastjournal.journal.disk.replay import replay
from fastjournal.journal.disk.retention import Retention
from fastjournal.journal.disk.snapshot import write_snapshot
from fastjournal.journal.language import commands as k
from fastjournal.log.care.cleaner import sealed_segments, segment_records
from fastjournal.log.segment import WORKQ, parse_name
from fastjournal.log.stream import Stream
from world import HOME, World

LIFE = {
    **dict.fromkeys(("put", "lease"), 20),
    **dict.fromkeys(("add", "complete", "fail", "wait", "rotate"), 8),
    **dict.fromkeys(("put_many", "touch", "complete_many", "release", "tick"), 3),
    **dict.fromkeys(("delete", "delete_key", "redrive"), 2),
}


def live(world: World, chance: Random, steps: int) -> None:
    for name in chance.choices(list(LIFE), list(LIFE.values()), k=steps):
        act(world, name, lambda *choices: chance.choice(choices))


def cleaner_of(world: World, chance: Random, retention: Retention) -> int:
    """One cycle over segments chosen by chance; how many records it dropped."""
    stream = Stream(HOME, WORKQ, files=world.files)
    sealed = sealed_segments(stream)
    for number in sealed:
        if chance.random() < 0.8:
            records = segment_records(stream, number)
            retention.survey(number, ((r.time, r.payload) for r in records))
    chosen = [number for number in sealed if chance.random() < 0.6]
    retention.begin(sealed, chosen)
    with stream.open_cleaner() as cleaner:
        cleaned = cleaner.clean(retention.clean, before_replace=world.journal.sync)
    retention.finish()
    return sum(one.records - one.kept for one in cleaned)


@pytest.mark.parametrize("seed", range(12))
def test_cleaning_segments_chosen_by_chance_never_changes_the_replay(seed: int) -> None:
    """D-04, F30, WQ-CLN-2: whatever is cleaned in whatever order, and whenever it stops."""
    chance = Random(seed)
    dropped = 0
    for history in range(4):
        world = World(seed * 100 + history)
        retention = Retention(world.journal.engine.state)
        for _ in range(6):
            live(world, chance, 25)
            before = world.replayed().digest()
            dropped += cleaner_of(world, chance, retention)
            assert world.replayed().digest() == before == world.journal.digest()
        world.check()
        world.abandon()
    assert dropped > 50


@pytest.mark.parametrize("seed", range(12))
def test_a_snapshot_taken_while_the_journal_changes_recovers_to_the_live_state(seed: int) -> None:
    """M3F-SNAP-1, F31: requests between any two parts, of our rows and of Workq's."""
    chance = Random(seed)
    world = World(seed)
    live(world, chance, 60)
    parts = changed = 0
    for _ in range(4):
        upkeep = world.journal.upkeep
        upkeep.part = chance.choice([1, 2, 5])
        first = parse_name(world.journal.engine.log.rotate().name)
        assert first is not None
        live(world, chance, chance.randrange(4))
        as_of: list[int] = []

        def interleaved(upkeep: object = upkeep, as_of: list[int] = as_of):  # type: ignore[no-untyped-def]
            nonlocal parts, changed
            for part in upkeep.parts(as_of):  # type: ignore[attr-defined]
                yield part
                parts += 1
                before = world.journal.digest()
                live(world, chance, chance.randrange(5))
                changed += world.journal.digest() != before

        stream = Stream(HOME, WORKQ, files=world.files)
        snapshot = write_snapshot(stream, first, interleaved())
        recovered = replay(stream)
        assert recovered.snapshot == snapshot
        assert recovered.state.digest() == world.journal.digest()
        live(world, chance, 20)
        world.check()
        world.kill()  # goes on from the snapshot and the rest of the log
        world.check()
        world.journal.clean()
        live(world, chance, 20)
        world.check()
    world.abandon()
    assert parts > 10
    assert changed > 2


def test_a_deleted_job_does_not_come_back_after_cleaning() -> None:
    """D-04: add, delete, one cleaning cycle, restart; real Workq brings the job back."""
    world = World()
    for number in range(40):
        row_id = bytes((number,)) * 6 + b"\x40\x00\x80" + bytes(7)
        world.add(k.Add(row_id, b"w", 2000, 2_592_000_000, 0, 0, 0, bytes(200), 0, 0))
    for number in range(10):
        world.delete(number)
    world.journal.rotate()
    world.put(queue=b"a", value=b"in the newest segment")
    for _ in range(5):
        world.journal.clean()
        world.kill()
        world.check()
    assert len(world.journal.jobs(limit=100)) == 31
    world.abandon()
