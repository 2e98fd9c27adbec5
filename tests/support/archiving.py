"""What the tests of the archive share: stores of every kind, stores that fail, pictures of rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from fastjournal import Journal
from fastjournal.archive.care import verify_archive
from fastjournal.archive.manifest import Manifest, find_newest
from fastjournal.archive.restore import plan_restore, restore
from fastjournal.archive.store import Found, Store
from fastjournal.errors import ArchiveError
from fastjournal.journal.language.codec import encode
from fastjournal.journal.state.row import image
from fastjournal.log.files import DISK, Files
from fastjournal.testing import Crash, ManualClock


def rows(journal: Journal) -> list[bytes]:
    """All rows of a journal as they would stand in a snapshot, in an order of their own."""
    engine = journal.engine
    with engine.lock:
        return sorted(
            encode(command)
            for row in engine.state.rows.values()
            for command in image(row, engine.fetching.value(row))
        )


def rows_in(directory: Path, files: Files = DISK) -> list[bytes]:
    """The same of a journal that is not open."""
    with Journal(directory, background=False, files=files, clock=ManualClock()) as journal:
        return rows(journal)


def restored_rows(
    store: Store, directory: Path, to: int | None = None, files: Files = DISK
) -> list[bytes]:
    """The rows of an archive as of an instant, by restoring it."""
    manifest = find_newest(store)
    assert manifest is not None
    restore(store, plan_restore(manifest, to), directory, files=files)
    return rows_in(directory, files)


def check_sound(store: Store) -> Manifest | None:
    """The archive never names what is not there."""
    manifest = find_newest(store)
    if manifest is not None:
        faults = [(name, fault) for name, fault in verify_archive(store, manifest) if fault]
        assert not faults
    return manifest


def work_a_while(journal: Journal, clock: ManualClock, chance: Random, steps: int) -> None:
    """Jobs of all fates; each step takes some time."""
    for n in range(steps):
        clock.advance(ns=chance.randrange(1, 50_000_000))
        deed = chance.randrange(6)
        if deed < 3:
            journal.put(
                bytes(chance.randrange(200)), queue=f"q{chance.randrange(3)}",
                key=f"k{chance.randrange(20)}", delay=chance.choice((None, 1)),
            )  # fmt: skip
        elif (job := journal.lease(queues=["q0", "q1", "q2"], lease=60)) is not None:
            if deed == 3:
                job.done(b"done")
            elif deed == 4:
                job.fail(b"no")
        if n % 7 == 0:
            journal.entries[f"e{chance.randrange(5)}"] = n


class TroubledStore:
    """A store whose requests fail as told; see `trouble`."""

    def __init__(self, store: Store, trouble: Callable[[int, str], str] | None = None) -> None:
        """`trouble`: shown the number of a request that changes something and its name; answers

        `""` (it is well), `fail` (nothing happens), `lose` (it happens, and the answer is lost),
        `twice` (it happens twice), `die` (the machine stops before it), `died` (and behind it).
        """
        self.store = store
        self.address = store.address
        self.trouble = trouble
        self.requests: list[str] = []

    def _ask(self, name: str) -> str:
        self.requests.append(name)
        return "" if self.trouble is None else self.trouble(len(self.requests), name)

    def create(self, name: str, data: bytes) -> bool:
        how = self._ask(name)
        self._before(how, name)
        made = self.store.create(name, data)
        if how == "twice":
            self.store.create(name, data)
        self._behind(how, name)
        return made

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        how = self._ask(name)
        self._before(how, name)
        data = list(chunks)
        self.store.put(name, data)
        if how == "twice":
            self.store.put(name, data)
        self._behind(how, name)

    def delete(self, names: Sequence[str]) -> None:
        how = self._ask(",".join(names))
        self._before(how, "")
        self.store.delete(names)
        self._behind(how, "")

    def _before(self, how: str, name: str) -> None:
        if how == "die":
            raise Crash(name)
        if how == "fail":
            raise ArchiveError(f"{name}: 503")

    def _behind(self, how: str, name: str) -> None:
        if how == "died":
            raise Crash(name)
        if how == "lose":
            raise ArchiveError(f"{name}: the answer was lost")

    def get(self, name: str) -> bytes:
        return self.store.get(name)

    def stream(self, name: str) -> Iterator[bytes]:
        return self.store.stream(name)

    def get_range(self, name: str, start: int, size: int) -> bytes:
        return self.store.get_range(name, start, size)

    def find(self, prefix: str) -> list[Found]:
        return self.store.find(prefix)

    def folders(self, prefix: str) -> list[str]:
        return self.store.folders(prefix)


class GatedStore(TroubledStore):
    """A store whose requests stay under way until a gate is opened; takes a chunk at a time."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, self._wait)
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.largest = 0
        """Bytes of the largest chunk it was given."""

    def _wait(self, number: int, name: str) -> str:
        self.entered.set()
        assert self.gate.wait(60), "nobody opened the gate"
        return ""

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        self._wait(0, name)
        self.store.put(name, self._watched(chunks))

    def _watched(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.largest = max(self.largest, len(chunk))
            yield chunk
