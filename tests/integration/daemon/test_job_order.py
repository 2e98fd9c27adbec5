"""Writes and deletions of a job are ordered by their timestamps, by whatever way they come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal, Outcome, Spool, aconnect
from fastjournal.clock import SECOND, SYSTEM_CLOCK
from fastjournal.errors import ClockSkew, NotFound
from fastjournal.spool.daemon_destination import DaemonDestination
from fastjournal.spool.forwarder import ForwardedSpool, Forwarder
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.fields import decode_integer
from fastjournal.wire.fj.functions import OVERWRITE, PERSIST, Function, Type
from fjpeer import FjPeer

HOUR = 3600


class Twin:
    """The asyncio client, asked from here."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(aconnect(url))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *given, **named: self._loop.run_until_complete(method(*given, **named))

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


@pytest.fixture(params=["embedded", "client", "asyncio client"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "embedded":
        with Journal(tmp_path / "j") as embedded:
            yield embedded
        return
    with LocalDaemon(tmp_path / "d", uvloop=request.param == "client") as daemon:
        client = daemon.connect() if request.param == "client" else Twin(daemon.url)
        yield client
        client.close()


def seconds() -> float:
    return SYSTEM_CLOCK.now() / SECOND


def test_a_deleted_job_does_not_come_back_by_an_older_put(journal: Any) -> None:
    now = seconds()
    journal.put(b"v", key="k", queue="q", timestamp=now - 20)
    assert journal.delete(key="k", queue="q", timestamp=now - 10) is True
    assert journal.put(b"old", key="k", queue="q", timestamp=now - 15).outcome is Outcome.STALE
    assert journal.jobs() == []
    again = journal.put(b"new", key="k", queue="q", timestamp=now - 5)
    assert again.outcome is Outcome.NEW
    assert journal.job(again.id).value == b"new"


def test_a_deletion_older_than_the_job_deletes_nothing(journal: Any) -> None:
    now = seconds()
    put = journal.put(b"v", key="k", queue="q", timestamp=now - 5)
    assert journal.delete(key="k", queue="q", timestamp=now - 10) is False
    assert journal.delete(put.id, timestamp=now - 10) is False
    assert journal.job(put.id).value == b"v"
    assert journal.delete(put.id, timestamp=now - 4) is True
    assert journal.jobs() == []


def test_an_older_put_on_a_waiting_job_changes_nothing(journal: Any) -> None:
    now = seconds()
    put = journal.put(b"v", key="k", queue="q", timestamp=now - 5, priority=50)
    before = journal.job(put.id)
    older = journal.put(
        b"w", key="k", queue="q", timestamp=now - 9, priority=1, due=now + 60, max_fails=9
    )
    assert older == (put.id, Outcome.STALE)
    assert journal.job(put.id) == before


def test_a_deletion_meets_the_put_that_comes_after_it(journal: Any) -> None:
    """D-20: the put may be on its way still."""
    now = seconds()
    assert journal.delete(key="k", queue="q", timestamp=now - 5) is False
    assert journal.put(b"v", key="k", queue="q", timestamp=now - 9).outcome is Outcome.STALE
    assert (journal.jobs(), journal.queues()) == ([], [])
    assert journal.put(b"v", key="k", queue="q").outcome is Outcome.NEW


def test_a_put_whose_id_was_deleted_stays_away(journal: Any) -> None:
    put = journal.put(b"v", queue="q")
    assert journal.delete(put.id) is True
    assert journal.put(b"v", queue="q", id=put.id).outcome is Outcome.STALE
    other = bytes(6) + b"\x40" + bytes(9)
    assert journal.delete(other) is False
    assert journal.put(b"v", queue="q", id=other).outcome is Outcome.STALE
    assert (journal.jobs(), journal.queues()) == ([], [])


def test_a_worker_whose_job_was_deleted_is_told_so(journal: Any) -> None:
    journal.put(b"v", key="k", queue="q")
    held = journal.lease("q")
    assert journal.put(b"w", key="k", queue="q").outcome is Outcome.TWIN
    assert journal.delete(key="k", queue="q") is True
    with pytest.raises(NotFound):
        journal.complete(held.id, held.token)
    assert journal.lease("q") is None


def test_a_deletion_of_a_clock_far_ahead_is_refused(journal: Any) -> None:
    with pytest.raises(ClockSkew):
        journal.delete(key="k", queue="q", timestamp=seconds() + HOUR)


def test_deletions_hold_over_a_restart_a_snapshot_and_cleaning(tmp_path: Path) -> None:
    now = seconds()
    gone = bytes(6) + b"\x40" + bytes(9)
    with Journal(tmp_path / "j") as journal:
        journal.delete(key="k", queue="q", timestamp=now - 5)
        journal.delete(gone)
        journal.snapshot()
        journal.clean()
        digest = journal.digest()
    with Journal(tmp_path / "j") as journal:
        assert journal.digest() == digest
        older = journal.put(b"v", key="k", queue="q", timestamp=now - 9)
        assert older.outcome is Outcome.STALE
        assert journal.put(b"v", queue="q", id=gone).outcome is Outcome.STALE


def forward(directory: Path, daemon: LocalDaemon) -> Any:
    forwarder, target = Forwarder(ForwardedSpool(directory)), DaemonDestination(daemon.url)
    try:
        forwarder.spool.lock()
        while forwarder.send(target) or forwarder.in_flight:
            forwarder.receive(target, 10)
        return forwarder.figures
    finally:
        target.close()
        forwarder.close()


def test_a_spooled_job_that_was_deleted_meanwhile_does_not_appear(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "d") as daemon, daemon.connect() as client:
        with Spool(tmp_path / "s") as spool:
            spool.put(b"v", key="k", queue="q")
        assert client.delete(key="k", queue="q") is False
        figures = forward(tmp_path / "s", daemon)
        assert (client.jobs(), figures.refused) == ([], 1)
        assert "deleted after it was put" in figures.reports[0]
        assert len(list((tmp_path / "s" / "quarantine").iterdir())) > 0


def test_a_spooled_job_that_is_older_than_what_is_there_is_kept_and_told(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "d") as daemon, daemon.connect() as client:
        with Spool(tmp_path / "s") as spool:
            spool.put(b"old", key="k", queue="q")
        put = client.put(b"new", key="k", queue="q")
        figures = forward(tmp_path / "s", daemon)
        assert client.job(put.id).value == b"new"
        assert figures.refused == 1
        assert "written after it was put" in figures.reports[0]


@pytest.mark.parametrize("asyncio_twin", [False, True], ids=["client", "asyncio client"])
def test_a_job_spooled_into_any_queue_does_not_appear_once_its_key_is_deleted(
    tmp_path: Path, asyncio_twin: bool
) -> None:
    """The deletion comes before the queue has ever heard of the key."""
    with LocalDaemon(tmp_path / "d", uvloop=not asyncio_twin) as daemon:
        client: Any = Twin(daemon.url) if asyncio_twin else daemon.connect()
        with Spool(tmp_path / "s") as spool:
            spool.put(b"v", key="site:k", queue="elsewhere")
            spool.put(b"v", key="site:k")
            spool.put(b"w", key="site:other", queue="elsewhere")
        assert client.delete(key="site:k") is False
        figures = forward(tmp_path / "s", daemon)
        assert [job.value for job in client.jobs()] == [b"w"]
        assert figures.refused == 2
        assert all("deleted after it was put" in told for told in figures.reports)
        client.close()


def test_a_deletion_without_a_queue_holds_in_every_queue(journal: Any) -> None:
    now = seconds()
    journal.put(b"v", key="site:k", queue="a", timestamp=now - 20)
    journal.put(b"v", key="site:k", queue="b", timestamp=now - 5)
    if not isinstance(journal, Twin):
        journal.entries["site:k"] = b"entry"
    assert journal.delete(key="site:k", timestamp=now - 10) is True
    assert [(job.queue, job.payload) for job in journal.jobs()] == [("b", b"v")]
    for queue in ("a", "b", "c", None):
        older = journal.put(b"old", key="site:k", queue=queue, timestamp=now - 15)
        assert older.outcome is Outcome.STALE
    many = journal.put_many(
        [
            {
                "payload": b"old",
                "key": "site:k",
                "queue": "d",
                "timestamp": now - 15,
                "mode": "unique",
            }
        ]
    )
    assert [receipt.outcome for receipt in many] == [Outcome.STALE]
    newer = journal.put(b"new", key="site:k", queue="c", timestamp=now - 9)
    assert newer.outcome is Outcome.NEW
    # The newer put does not open the other queues.
    assert journal.put(b"old", key="site:k", queue="e", timestamp=now - 15).outcome is Outcome.STALE
    assert journal.put(b"untimed", key="site:k", queue="e").outcome is Outcome.NEW
    if not isinstance(journal, Twin):
        assert journal.entries["site:k"] == b"entry"
    assert {queue.name for queue in journal.queues()} == {"b", "c", "e"}


def test_a_deletion_in_all_queues_holds_over_a_restart_a_snapshot_and_cleaning(
    tmp_path: Path,
) -> None:
    now = seconds()

    def older(journal: Journal) -> Outcome:
        return journal.put(b"v", key="site:k", queue="q", timestamp=now - 9).outcome

    with Journal(tmp_path / "j") as journal:
        for ago in (8, 7, 6, 5):  # the newest counts
            journal.delete(key="site:k", timestamp=now - ago)
        digest = journal.digest()
    with Journal(tmp_path / "j") as journal:
        assert (journal.digest(), older(journal)) == (digest, Outcome.STALE)
        journal.rotate()
        journal.clean()
        journal.snapshot()
        journal.clean()
    with Journal(tmp_path / "j") as journal:
        assert (journal.digest(), older(journal)) == (digest, Outcome.STALE)
        assert (
            journal.put(b"v", key="site:k", queue="q", timestamp=now - 5).outcome is Outcome.STALE
        )
        assert journal.put(b"v", key="site:k", queue="q", timestamp=now - 4).outcome is Outcome.NEW


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", uvloop=request.param) as running:
        yield running


def test_stale_deletions_say_so_and_a_purge_leaves_nothing(daemon: LocalDaemon) -> None:
    now = SYSTEM_CLOCK.now()
    with daemon.connect() as client, FjPeer(daemon.port) as peer:
        client.put(b"v", key="k", queue="q", timestamp=(now - 5 * SECOND) / SECOND)

        def delete(ago: int, **fields: Any) -> tuple[int, bool]:
            reply = peer.ask(
                Function.DELETE, key=b"k", timestamp=now - ago * SECOND,
                value_type=Type.STRING, value=b"q", **fields,
            )  # fmt: skip
            assert reply.value is not None
            return decode_integer(reply.value), reply.stale

        assert delete(9) == (0, True)
        assert delete(4) == (1, False)
        assert delete(4) == (0, True)
        assert delete(3, flags=OVERWRITE) == (0, False)
        older = client.put(b"v", key="k", queue="q", timestamp=(now - 9 * SECOND) / SECOND)
        assert older.outcome is Outcome.NEW


def test_a_deletion_without_a_queue_reaches_jobs_and_entry(daemon: LocalDaemon) -> None:
    now = SYSTEM_CLOCK.now()
    with daemon.connect() as client, FjPeer(daemon.port) as peer:
        client.put(b"v", key="a:k", queue="q")
        client.entries["a:k"] = b"v"
        reply = peer.ask(Function.DELETE, key=b"a:k")
        assert decode_integer(reply.value or b"") == 2
        assert ("a:k" in client.entries, client.jobs()) == (False, [])
        for queue in ("q", None):
            older = client.put(b"v", key="a:k", queue=queue, timestamp=now / SECOND - 9)
            assert older.outcome is Outcome.STALE


def test_a_durable_deletion_of_an_entry_in_memory_lasts(tmp_path: Path) -> None:
    """Bit 9 is answered with "on stable storage": then the tombstone must be there."""
    now = SYSTEM_CLOCK.now()
    stored = {"value_type": Type.STRING, "value": b"v"}
    with LocalDaemon(tmp_path / "d") as daemon, FjPeer(daemon.port) as peer:
        peer.ask(Function.SET, key=b"k", timestamp=now - 9 * SECOND, **stored)
        reply = peer.ask(
            Function.DELETE, key=b"k", flags=PERSIST, timestamp=now - 5 * SECOND,
            value_type=Type.STRING,
        )  # fmt: skip
        assert reply.stable
    with LocalDaemon(tmp_path / "d") as daemon, FjPeer(daemon.port) as peer:
        again = peer.ask(
            Function.SET, key=b"k", flags=PERSIST, timestamp=now - 7 * SECOND, **stored
        )
        assert again.stale


def test_a_change_of_an_entry_in_memory_is_never_called_stable(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        peer.ask(Function.SET, key=b"n", value_type=Type.INTEGER, value=bytes(8))
        number = {"value_type": Type.INTEGER, "value": (1).to_bytes(8, "big")}
        assert not peer.ask(Function.ADD, key=b"n", flags=PERSIST, **number).stable
        renamed = {"value_type": Type.BUFFER, "value": b"m"}
        assert not peer.ask(Function.RENAME, key=b"n", flags=PERSIST, **renamed).stable
        peer.ask(Function.SET, key=b"d", flags=PERSIST, value_type=Type.INTEGER, value=bytes(8))
        assert peer.ask(Function.ADD, key=b"d", flags=PERSIST, **number).stable
