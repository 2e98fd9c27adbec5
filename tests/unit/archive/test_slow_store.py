"""A store that does not answer: nobody waits for it but the shipper."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from archiving import GatedStore, check_sound, restored_rows, rows
from fastjournal import Journal
from fastjournal.archive.shipper import ArchiveOptions, Shipper
from fastjournal.archive.store import CHUNK, MemoryStore
from fastjournal.errors import JournalError, ReadOnly
from fastjournal.testing import ManualClock, wait_until


def shipper(journal: Journal) -> Shipper:
    found = journal.shipper
    assert found is not None
    return found


@pytest.fixture
def store() -> Iterator[GatedStore]:
    found = GatedStore(MemoryStore())
    yield found
    found.gate.set()


def slow_journal(
    path: Path, store: GatedStore, clock: ManualClock | None = None, **options: object
) -> Journal:
    """A journal whose thread ships to this store, and is inside a request soon."""
    journal = Journal(
        path, sync="always", segment_size=4096, clock=clock or ManualClock(), clean_interval=0,
        archive="memory:unused", background=False,
        archive_options=ArchiveOptions(interval=0.01, **options),  # type: ignore[arg-type]
    )  # fmt: skip
    shipper(journal).open_store = lambda: store
    journal.put(b"first", queue="q", key="first")
    shipper(journal).start()
    assert store.entered.wait(60)
    return journal


def test_while_a_request_is_under_way_every_call_is_answered(
    tmp_path: Path, store: GatedStore
) -> None:
    """Nothing is timed: a call that waited for the store would never come back."""
    with slow_journal(tmp_path / "jobs", store) as journal:
        for number in range(200):
            journal.put(bytes(100), queue="q", key=f"{number}")
        leased = journal.lease_many(50, "q")
        for job in leased:
            job.done()
        journal.entries["e"] = 1
        journal.rotate()
        journal.sync()
        assert journal.clean() == [], "what is not archived is not dropped"
        journal.snapshot()
        told = journal.status().archive
        assert told is not None and told.uploads == 0 and told.lag_bytes > 0
        assert not store.gate.is_set()
        live = rows(journal)
        store.gate.set()

        def is_shipped() -> bool:
            status = journal.archive_status()
            return status is not None and status.archived_to == journal.status().log.synced_time

        wait_until(is_shipped, what="all is archived")
        assert rows(journal) == live
    check_sound(store)
    assert restored_rows(store, tmp_path / "back") == live


def test_a_journal_closes_though_its_store_does_not_answer(
    tmp_path: Path, store: GatedStore, caplog: pytest.LogCaptureFixture
) -> None:
    journal = slow_journal(tmp_path / "jobs", store)
    shipper(journal).last_wait = 0.01
    live = rows(journal)
    journal.close()
    assert "the rest is not archived yet" in caplog.text
    with Journal(tmp_path / "jobs", background=False, clock=ManualClock()) as again:
        assert rows(again) == live


def test_a_request_that_never_ends_is_a_lag_like_any_other(
    tmp_path: Path, store: GatedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that ships cannot say so: the cleaner does."""
    clock = ManualClock()
    journal = slow_journal(tmp_path / "jobs", store, clock, max_lag=60, behind="stop")
    shipper(journal).last_wait = 0.01
    journal.clean()
    journal.put(b"", queue="q")
    clock.advance(61)
    told = journal.archive_status()
    assert told is not None and told.state == "behind" and told.lag_seconds > 60
    journal.clean()
    assert "longer than archive_max_lag" in caplog.text
    with pytest.raises(ReadOnly):
        journal.put(b"", queue="q")
    with pytest.raises(JournalError):
        journal.close()


class Drain(MemoryStore):
    """Takes everything and keeps none of it but manifests and claims."""

    taken = 0

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            assert len(chunk) <= CHUNK
            self.taken += len(chunk)


@pytest.mark.parametrize("compress", [False, True])
def test_shipping_a_large_segment_holds_a_few_chunks_of_it(tmp_path: Path, compress: bool) -> None:
    store, size = Drain(), 32 * CHUNK
    with Journal(
        tmp_path / "jobs", sync="os", segment_size=size, background=False, clock=ManualClock(),
        archive="memory:unused", archive_options=ArchiveOptions(compress=compress),
    ) as journal:  # fmt: skip
        for number in range(40):
            journal.put(bytes(CHUNK), queue="q", key=f"{number}")
        shipper(journal).open_store = lambda: store
        journal.sync()
        tracemalloc.start()
        try:
            journal.ship()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert compress or store.taken >= size
    assert peak < 12 * CHUNK, "of a segment and a tail of 40 MiB"
