"""A cluster under faults that is archived, by seeds: whoever leads ships, and may be deposed in it.

Promises, beside those of `replica_world`:

1. What the archive holds is in the log of every primary of a later epoch, byte for byte.
2. In the end, all healed, the primary ships all that it has, and a restore gives its state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from archiving import TroubledStore, check_sound
from fastjournal.archive.care import object_chunks
from fastjournal.archive.manifest import Manifest, find_newest
from fastjournal.archive.restore import plan_restore, restore
from fastjournal.archive.shipper import ArchiveOptions, Shipper
from fastjournal.archive.snapshot_reader import SnapshotReader
from fastjournal.archive.source import LocalSnapshot, Reign, Source
from fastjournal.archive.store import MemoryStore
from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.log.record import Walk
from fastjournal.log.segment import HEADER_SIZE, WORKQ
from fastjournal.log.stream import Stream
from fastjournal.replica.archived import ArchivedPart
from fastjournal.replica.disk import ReplicaLog
from fastjournal.replica.rules import Rules
from fastjournal.testing import Crash, MemoryFiles
from replica_mutants import PLANS, AnySnapshot
from replica_world import PART, BrokenPromise, Node, Plan, Replica, World, state_of

SEEDS = 12
ARCHIVED = {
    "plain": replace(PLANS["plain"], seconds=15, requests=0.03),
    "snapshots": replace(PLANS["snapshots"], seconds=15, each=0.5),
    "left behind": replace(
        PLANS["snapshots"],
        seconds=15,
        faults=("snapshot", "snapshot", "wipe", "wipe", "cut-off", "mend", "mend"),
        flips=0,
    ),
    "stopped": Plan(seconds=15, each=4, faults=("mend",), requests=0.02),
}
DAMAGED = 5
"""A seed in which a bit of an archived snapshot is turned over on its way."""
Reigns = Callable[[Replica], Reign]


def _reign(replica: Replica) -> Reign:
    return Reign(replica.member.epoch, replica.member.is_committed)


class ArchivedWorld(World):
    """Every node that has led ships until it knows better; who is behind fetches from there."""

    archived = True

    def __init__(
        self, seed: int, plan: Plan, reign: Reigns = _reign, rules: Rules | None = None
    ) -> None:
        self.store = MemoryStore()
        self.reader = SnapshotReader(lambda: self.store, piece=2 * PART)
        self.parts = 0
        """That were fetched from the archive."""
        self.shippers: dict[str, tuple[int, int, Shipper]] = {}
        self.shipping: set[str] = set()
        self.rounds = 0
        self._reign = reign
        super().__init__(seed, plan, rules)
        for node in self.nodes.values():
            self._ship_later(node)

    def _ship_later(self, node: Node) -> None:
        self.at(self.random.randrange(1, 200) * MILLISECOND, lambda: self._ship_round(node))

    def _ship_round(self, node: Node) -> None:
        self._ship_later(node)
        if node.up and node.paused_until <= self.now and "j0" in node.replicas:
            life = node.life
            try:
                self.ship(node)
            except Crash:
                if node.life == life:
                    self._died(node)

    def ship(self, node: Node) -> Shipper | None:
        """A round of whoever leads, or has led in this life of its process."""
        replica = node.replicas["j0"]
        life, epoch, shipper = self.shippers.get(node.name, (0, 0, None))
        if replica.member.is_serving and (life, epoch) != (node.life, replica.member.epoch):
            shipper = self._make_shipper(node, replica.member.log, self._reign(replica))
            self.shippers[node.name] = node.life, replica.member.epoch, shipper
        elif life != node.life:
            return None
        if shipper is not None and node.name not in self.shipping:
            self.rounds += 1
            self.shipping.add(node.name)
            try:
                shipper.ship()
            finally:
                self.shipping.remove(node.name)
        return shipper

    def read_archive(self, wanted: ArchivedPart) -> bytes:
        """Now and then it is in trouble, and now and then a bit is turned over."""
        if self.noise and self.random.random() < 0.1:
            return b""
        facts = wanted.size, wanted.crc, bytes.fromhex(wanted.checkpoint)
        data = bytearray(self.reader.read_part(*facts, wanted.at))
        self.parts += bool(data)
        if data and self.noise and self.random.random() < 0.1:
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        return bytes(data)

    def _make_shipper(self, node: Node, log: ReplicaLog, reign: Reign) -> Shipper:
        def newest() -> LocalSnapshot | None:
            facts = log.snapshot()
            if facts is None:
                return None
            path = log.stream.path / f"{facts.number:09d}.snapshot"
            base, number, size, crc, checkpoint = facts
            return LocalSnapshot(number, base, size, crc, path, checkpoint)

        source = Source(log.stream, newest, reign=reign)
        store = TroubledStore(self.store, partial(self._meddle, node))
        return Shipper(
            source, "memory:archive", ArchiveOptions(reign=reign), clock=log.stream.clock,
            store=lambda: store,
        )  # fmt: skip

    def _meddle(self, node: Node, number: int, name: str) -> str:
        """In the middle of a round the process stands still, or the store is in trouble."""
        often = 0.5 if name.endswith("claim") else 0.05
        if self.noise and len(self.shipping) == 1 and self.random.random() < often:
            life, node.paused_until = node.life, self.now + 4 * SECOND
            self.run_for(4)
            if node.life != life:
                raise Crash(name)
        if not self.noise or self.random.random() < 0.8:
            return ""
        return self.random.choice(("fail", "lose", "twice"))

    def snapshot(self, node: Node, journal: str = "j0") -> None:
        """It lets go only what is archived."""
        log = node.replicas[journal].member.log

        def archive() -> None:
            log.leave_segment()
            shipper = self.ship(node)
            if shipper is not None and shipper.hold > max(log.stream.segments()) - 1:
                super(ArchivedWorld, self).snapshot(node, journal)

        self.do(node, journal, archive)

    def _begin(self, node: Node, replica: Replica) -> None:
        super()._begin(node, replica)
        self.check_archive(replica.member.log)

    def check_archive(self, log: ReplicaLog) -> Manifest | None:
        """Whether this log holds what is archived (promise 1)."""
        manifest = find_newest(self.store)
        if manifest is None:
            return None
        if manifest.end > log.last_time:
            raise BrokenPromise(f"{manifest.end} is archived, and the primary ends before it")
        have = log.records()
        pieces = [*((one,) for one in manifest.segments), manifest.parts]
        for entries in pieces:
            data = b"".join(chunk for one in entries for chunk in object_chunks(self.store, one))
            walk = Walk(data, min(HEADER_SIZE, len(data)), len(data))
            while walk.at < walk.end:
                begin = walk.at
                walk.step()
                if walk.time > log.base and data[begin : walk.at] not in have:
                    raise BrokenPromise(f"{walk.time} is archived and not in the primary's log")
        return manifest

    def run(self) -> None:
        super().run()
        (primary,) = (
            node
            for node in self.nodes.values()
            if node.up and node.replicas["j0"].member.is_serving
        )
        log = primary.replicas["j0"].member.log
        for _ in range(4):  # what was lost of its requests is sent again
            shipper = self.ship(primary)
        assert shipper is not None
        manifest = self.check_archive(log)
        if manifest is None or manifest.end != log.last_time:
            raise BrokenPromise(f"what was committed is not archived: {shipper.status()}")
        check_sound(self.store)
        files = MemoryFiles()
        files.make_directory(Path("/d"))
        restore(self.store, plan_restore(manifest), Path("/d/again"), files=files)
        again = ReplicaLog(Stream(Path("/d/again"), WORKQ, files=files), part_size=PART)
        if again.damage or state_of(again) != state_of(log):
            raise BrokenPromise(f"a restore gives another state {again.damage}")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "fastjournal")


@pytest.mark.parametrize("plan", ARCHIVED)
def test_the_archive_holds_what_every_later_primary_has(plan: str) -> None:
    """F48, F58: primaries are killed, stopped, deposed and wiped in the middle of shipping."""
    reigns = rounds = parts = 0
    for seed in range(SEEDS):
        world = ArchivedWorld(seed, ARCHIVED[plan])
        world.run()
        newest = find_newest(world.store)
        assert newest is not None
        reigns, rounds = reigns + newest.epoch, rounds + world.rounds
        parts += world.parts
    assert reigns > SEEDS and rounds > 20 * SEEDS
    assert parts > 10 or plan != "left behind"


def uncommitted(replica: Replica) -> Reign:
    """All that is synced is shipped, whoever has it."""
    return Reign(replica.member.epoch, lambda time: True)


def unfenced(replica: Replica) -> Reign:
    """All reigns are one: whoever claims last ships."""
    return Reign(1, replica.member.is_committed)


CAUGHT: dict[str, tuple[Reigns, str, int]] = {
    "archives what is not committed": (uncommitted, "plain", 0),
    "no fence": (unfenced, "stopped", 0),
}


@pytest.mark.parametrize("mutant", CAUGHT)
def test_without_its_rule_the_archive_breaks_a_promise(mutant: str) -> None:
    """F58: each rule is needed."""
    reign, plan, seed = CAUGHT[mutant]
    with pytest.raises(BrokenPromise):
        ArchivedWorld(seed, ARCHIVED[plan], reign).run()


def test_a_snapshot_that_the_archive_has_damaged_is_not_taken() -> None:
    """F58: the archive is not believed: the CRC is the primary's."""
    ArchivedWorld(DAMAGED, ARCHIVED["left behind"]).run()
    with pytest.raises(BrokenPromise):
        ArchivedWorld(DAMAGED, ARCHIVED["left behind"], rules=AnySnapshot()).run()
