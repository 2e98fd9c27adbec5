"""Random lives of a journal and its archive over a store in trouble.

What is named is there, what is restored is what was.

A life is one seed: requests, cleaning, snapshots, kills, power losses, other shippers and prunings
in any order, some of them in the middle of a round, and every request to the store may fail, be
lost, happen twice or never return.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from archiving import TroubledStore, check_sound, restored_rows, rows, work_a_while
from fastjournal import Journal
from fastjournal.archive.care import prune
from fastjournal.archive.manifest import epochs, read_manifest, sequences
from fastjournal.archive.shipper import ArchiveOptions
from fastjournal.archive.store import DirectoryStore, Found, MemoryStore, Store
from fastjournal.clock import SECOND
from fastjournal.errors import ArchiveError, BadRequest, NotFound
from fastjournal.testing import Crash, ManualClock, MemoryFiles

HOME = Path("/d/jobs")
_DAY = 86_400


class FlakyStore(TroubledStore):
    """Also what only reads may fail."""

    reads = 0.0

    def __init__(self, store: Store, chance: Random) -> None:
        super().__init__(store)
        self._chance = chance

    def _read(self) -> None:
        if self._chance.random() < self.reads:
            raise ArchiveError("500")

    def get(self, name: str) -> bytes:
        self._read()
        return super().get(name)

    def find(self, prefix: str) -> list[Found]:
        self._read()
        return super().find(prefix)

    def folders(self, prefix: str) -> list[str]:
        self._read()
        return super().folders(prefix)


class Lives:
    """One journal, its archive, and whatever befalls them."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed)
        self.clock = ManualClock()
        self.files = MemoryFiles()
        self.files.make_directory(Path("/d"))
        self.files.sync_directory(Path("/"))
        self.on_disk = chance.random() < 0.3
        self.inner: Store = MemoryStore()
        self.keep_days = chance.choice((0, 0, 1, 3))
        self.max_lag = chance.choice((1e9, 1e9, 3600.0))
        self.compress = chance.random() < 0.2
        self.rate = chance.choice((0.0, 0.1, 0.3))
        self.meddling = chance.choice((0.0, 0.0, 0.05))
        self.pictures: dict[int, list[bytes]] = {}
        self.strangers: list[tuple[int, list[bytes]]] = []
        self.forgets = bool(self.keep_days) or self.max_lag < 1e9
        self.restores = 0
        self.open()

    def open(self) -> None:
        if self.on_disk:
            self.inner = DirectoryStore("/d/archive", self.files)
        self.store = FlakyStore(self.inner, self.chance)
        self.store.trouble = self.trouble
        self.store.reads = self.rate / 3
        options = ArchiveOptions(
            max_lag=self.max_lag, keep_days=self.keep_days, compress=self.compress,
            keep_versions=self.chance.choice((2, 3, 100)),
        )  # fmt: skip
        self.journal = Journal(
            HOME, sync="always", segment_size=4096, background=False, clock=self.clock,
            files=self.files, chance=Random(1), archive="memory:unused", archive_options=options,
        )  # fmt: skip
        shipper = self.journal.shipper
        assert shipper is not None
        self.shipper = shipper
        store = self.store
        shipper.open_store = lambda: store
        self.picture()

    def trouble(self, number: int, name: str) -> str:
        if self.chance.random() < self.meddling:  # somebody else, in the middle of a round
            deed = self.chance.choice((self.prune, self.prune, self.stranger))
            deed(self.inner)
        if self.chance.random() >= self.rate:
            return ""
        return self.chance.choice(("fail", "fail", "lose", "lose", "twice", "die", "died"))

    def picture(self) -> None:
        self.pictures[self.journal.status().log.written_time] = rows(self.journal)

    def step(self) -> None:
        deeds = (
            *([self.work] * 4), *([self.ship] * 4), self.clean, self.clean, self.snapshot,
            self.wait, self.restart, self.kill, self.lose_power, self.prune, self.stranger,
        )  # fmt: skip
        deed = self.chance.choice(deeds)
        try:
            deed()
        except Crash:
            self.kill()
        self.picture()
        self.check()

    def work(self) -> None:
        work_a_while(self.journal, self.clock, self.chance, self.chance.randrange(1, 30))

    def ship(self) -> None:
        self.shipper.ship()

    def clean(self) -> None:
        self.journal.clean()

    def snapshot(self) -> None:
        self.journal.snapshot()

    def wait(self) -> None:
        self.clock.advance(self.chance.choice((1, 61, 3601, _DAY)))

    def restart(self) -> None:
        self.journal.close()
        self.open()

    def kill(self) -> None:
        self.files = self.files.killed()
        self.open()

    def lose_power(self) -> None:
        images = list(self.files.images(samples=4, seed=self.chance.randrange(1 << 30)))
        self.files = self.chance.choice(images)
        self.open()

    def prune(self, store: Store | None = None) -> None:
        """By hand, beside the shipper."""
        since = None
        if self.chance.random() < 0.4:
            since = self.clock.now() - self.chance.choice((0, 1, _DAY)) * SECOND
            self.forgets = True
        keep = self.chance.choice((1, 2, 10))
        whole = {version for version in self.versions() if self.is_whole(*version)}
        with contextlib.suppress(ArchiveError):
            prune(store or self.store, keep_versions=keep, since=since)
        kept = self.versions()[-keep:]
        assert all(self.is_whole(*version) for version in kept if version in whole)

    def stranger(self, store: Store | None = None) -> None:
        """Another journal ships to the same place."""
        if self.chance.random() < 0.7:
            return
        self.forgets = True
        files = MemoryFiles()
        files.make_directory(Path("/d"))
        with Journal(
            HOME, sync="always", segment_size=4096, background=False, clock=self.clock, files=files,
            archive="memory:unused",
        ) as journal:  # fmt: skip
            assert journal.shipper is not None
            journal.shipper.open_store = lambda: store or self.store
            for _ in range(self.chance.randrange(1, 80)):
                journal.put(b"stranger", queue="s")
            self.strangers.append((journal.status().log.written_time, rows(journal)))
            journal.shipper.ship()

    def versions(self) -> list[tuple[int, int]]:
        """The manifests that are there."""
        taken = epochs(self.inner)
        return [(epoch, number) for epoch in taken for number in sequences(self.inner, epoch)]

    def is_whole(self, epoch: int, number: int) -> bool:
        """Whether a manifest can be read and all that it names is there."""
        sizes = {one.name: one.size for one in self.inner.find("")}
        try:
            manifest = read_manifest(self.inner, epoch, number)
        except NotFound:
            return False
        return all(sizes.get(name) == size for name, size in manifest.objects())

    def check(self) -> None:
        """What the newest epoch has is whole, and its newest manifest is a moment that was.

        What a shipper writes after another one has taken over does not count.
        """
        versions = self.versions()
        assert all(self.is_whole(*one) for one in versions if one[0] == versions[-1][0])
        manifest = check_sound(self.inner)
        if manifest is not None and self.chance.random() < 0.3:
            self.restored(manifest.end, None)

    def restored(self, time: int, to: int | None) -> None:
        """The archive tells the rows of that moment, if it may still be asked for it."""
        expected = [picture for when, picture in self.strangers if when == time]
        if time in self.pictures:
            expected.append(self.pictures[time])
        if not expected:
            return
        files = self.files.killed() if not self.on_disk else MemoryFiles()
        if self.on_disk:
            files.make_directory(Path("/d"))
        try:
            found = restored_rows(self.inner, Path("/d/back"), to, files=files)
        except BadRequest:
            assert self.forgets and to is not None
            return
        assert found in expected
        self.restores += 1

    def end(self) -> None:
        """The store is well again, and the journal opened once more: it is archived whole."""
        self.rate = self.meddling = 0.0
        self.kill()
        self.work()
        self.picture()
        assert self.shipper.ship() and self.shipper.ship()
        manifest = check_sound(self.inner)
        time = self.journal.status().log.written_time
        assert manifest is not None and manifest.end == time
        live, self.strangers = rows(self.journal), []
        self.restored(time, None)
        assert self.pictures[time] == live
        for instant in self.chance.sample(sorted(self.pictures), min(3, len(self.pictures))):
            if instant:
                self.restored(instant, instant)


def live(seeds: Iterator[int] | range) -> None:
    for seed in seeds:
        try:
            lives = Lives(seed)
            for _ in range(40):
                lives.step()
            lives.end()
            assert lives.restores
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("part", range(4))
def test_an_archive_survives_random_faults(part: int) -> None:
    live(range(part * 5, part * 5 + 5))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_archive_survives_random_faults_of_a_thousand_lives() -> None:
    live(range(1000, 2000))
