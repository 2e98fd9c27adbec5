"""A question asked twice has one answer: after a kill, a snapshot, a cleaning, another's turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_line import Command
from fastjournal import Journal, Outcome, aconnect
from fastjournal.clock import SECOND
from fastjournal.errors import NotFound, TimedOut
from fastjournal.testing import ManualClock, MemoryFiles
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.bulk import (
    REFUSED,
    Action,
    Settle,
    SettleOutcome,
    Settling,
    decode_settle_outcomes,
    encode_settle,
)
from fastjournal.wire.fj.functions import AGAIN, BY_ID, Function, Type
from fjpeer import FjPeer


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class World:
    """A daemon on a disk in memory that can be killed and started again."""

    def __init__(self, uvloop: bool) -> None:
        self.files = MemoryFiles()
        self.uvloop = uvloop
        self.daemon = self._daemon()

    def _daemon(self) -> LocalDaemon:
        settings = {"journal": {"segment_size": 4096}}
        return LocalDaemon("/d", files=self.files, uvloop=self.uvloop, settings=settings).start()

    def kill(self) -> None:
        """Everything handed to the system is there, nothing else happens."""
        self.files = self.files.killed()
        self.daemon.stop()
        self.daemon = self._daemon()

    def settle(self, action: Action, job: bytes, token: int, flags: int = AGAIN) -> SettleOutcome:
        with FjPeer(self.daemon.port) as peer:
            value = encode_settle([Settle(action, job, token)])
            reply = peer.ask(Function.SETTLE, flags=flags, value_type=Type.BUFFER, value=value)
            assert reply.value is not None, reply
            return decode_settle_outcomes(reply.value)[0]

    def done(self, job: bytes, token: int, flags: int = AGAIN) -> str:
        with FjPeer(self.daemon.port) as peer:
            return peer.ask(Function.DONE, flags=flags | BY_ID, key=job, ttl=token).error[:9]

    def fill(self) -> None:
        """Work that makes the segments before it worth cleaning."""
        with self.daemon.connect() as client:
            for _ in range(60):
                client.put(b"x" * 200, queue="filling")
                client.lease("filling").done()


@pytest.fixture
def world(loop: bool) -> Iterator[World]:
    made = World(loop)
    yield made
    made.daemon.stop()


def snapshot(world: World) -> None:
    with world.daemon.connect() as client:
        client.snapshot()


def clean(world: World) -> None:
    world.fill()
    with world.daemon.connect() as client:
        client.rotate()
        client.clean()


def clean_and_snapshot(world: World) -> None:
    clean(world)
    snapshot(world)
    clean(world)


@pytest.mark.parametrize("upkeep", [None, snapshot, clean, clean_and_snapshot])
def test_who_ended_a_job_is_told_so_after_a_kill(
    world: World, upkeep: Callable[[World], None] | None
) -> None:
    with world.daemon.connect() as client:
        put = client.put(b"x", queue="q")
        client.lease("q").release()
        client.lease("q").done()
        failed = client.put(b"x", queue="q")
        client.lease("q").fail(b"why", delay=3600)
    if upkeep is not None:
        upkeep(world)
    world.kill()
    assert world.done(put.id, 2) == ""
    assert world.done(put.id, 1) == "NOT-FOUND"
    assert world.settle(Action.RELEASE, put.id, 1).outcome == Settling.WAITING
    assert world.settle(Action.FAIL, put.id, 2).outcome == REFUSED
    assert world.settle(Action.FAIL, failed.id, 1).outcome == Settling.WAITING
    with world.daemon.connect() as client:
        assert client.result(put.id) == (True, b"")


def test_a_failure_that_gave_way_to_a_twin_is_told_again(world: World) -> None:
    with world.daemon.connect() as client:
        put = client.put(b"1", key="k", queue="q")
        client.lease("q")
        assert client.put(b"2", key="k", queue="q").outcome is Outcome.TWIN
    first = world.settle(Action.FAIL, put.id, 1, 0)
    assert first.outcome == Settling.DONE
    world.kill()
    assert world.settle(Action.FAIL, put.id, 1) == first
    assert world.settle(Action.RELEASE, put.id, 1).outcome == REFUSED
    assert world.done(put.id, 1) == "NOT-FOUND"


def test_a_release_that_gave_way_to_a_twin_is_told_again(world: World) -> None:
    with world.daemon.connect() as client:
        put = client.put(b"1", key="k", queue="q")
        client.lease("q")
        client.put(b"2", key="k", queue="q")
    first = world.settle(Action.RELEASE, put.id, 1, 0)
    world.kill()
    assert world.settle(Action.RELEASE, put.id, 1) == first
    assert world.settle(Action.FAIL, put.id, 1).outcome == REFUSED


def test_a_job_deleted_under_its_worker_was_not_done_by_it(world: World) -> None:
    with world.daemon.connect() as client:
        put = client.put(b"x", queue="q")
        client.lease("q")
        assert client.delete(put.id)
        assert world.done(put.id, 1) == "NOT-FOUND"
        with pytest.raises(NotFound):
            client.result(put.id)


def test_a_failure_is_told_again_after_the_job_went_on(world: World) -> None:
    with world.daemon.connect() as client:
        put = client.put(b"x", queue="q")
        job = client.lease("q")
        job.fail(b"why", delay=0)
        client.lease("q").done()
    assert world.settle(Action.FAIL, put.id, 1).outcome == Settling.WAITING


def test_an_addition_sent_again_has_the_answer_of_the_first(world: World) -> None:
    number = (1).to_bytes(8, "big")

    def add(identifier: int) -> int:
        with FjPeer(world.daemon.port) as peer:
            peer.hello()
            reply = peer.ask(
                Function.ADD, timestamp=stamps[identifier], key=b"n", flags=0x200,
                value_type=Type.INTEGER, value=number,
            )  # fmt: skip
            return int.from_bytes(reply.value or b"", "big")

    with world.daemon.connect() as client:
        now = client.ping() // 1000 * 1000
    stamps = [now, now + 1000, now + 2000]
    assert [add(0), add(1), add(0)] == [1, 2, 1]
    world.kill()
    assert [add(0), add(1)] == [1, 2]
    snapshot(world)
    world.kill()
    assert [add(0), add(2), add(1), add(0)] == [1, 3, 2, 1]
    with world.daemon.connect() as client:
        assert client.entries["n"] == 3


def test_numbers_and_their_answers_survive_another_value() -> None:
    clock, files = ManualClock(), MemoryFiles()
    at = clock.now() / SECOND
    with Journal("/j", clock=clock, files=files) as journal:
        assert journal.entries.add("n", 2, sender="a", timestamp=at) == 2
        journal.entries["n"] = b"text"
        digest = journal.digest()
        journal.snapshot()
    with Journal("/j", clock=clock, files=files) as journal:
        assert journal.digest() == digest
        assert journal.entries.add("n", 2, sender="a", timestamp=at) == 2
        assert journal.entries["n"] == b"text"


def test_a_result_without_a_value_is_a_result(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        put = journal.put(b"x", queue="q")
        with pytest.raises(TimedOut):
            journal.result(put.id)
        job = journal.lease("q")
        assert job is not None
        job.done()
        assert journal.result(put.id, wait=5) == (True, b"")
        taken = journal.put(b"x", queue="q")
        assert journal.lease("q", take=True) is not None
        with pytest.raises(NotFound):
            journal.result(taken.id)
    with Journal(tmp_path / "j") as journal:
        assert journal.result(put.id) == (True, b"")


def test_a_result_without_a_value_is_a_result_over_a_daemon(world: World) -> None:
    async def of_twin(job: bytes) -> tuple[bool, bytes]:
        async with await aconnect(world.daemon.url) as client:
            waiting = asyncio.create_task(client.result(job, wait=10))
            held = await client.lease("q", wait=10)
            assert held is not None
            await held.done()
            return await waiting

    with world.daemon.connect() as client:
        put = client.put(b"x", queue="q")
        assert asyncio.run(of_twin(put.id)) == (True, b"")
        assert client.result(put.id, wait=10) == (True, b"")


def test_an_empty_result_is_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(tmp_path / "j") as journal:
        put = journal.put(b"x", queue="q")
        job = journal.lease("q")
        assert job is not None
        job.done()
    run = Command(capfd, monkeypatch)
    shown = run("show", put.id.hex(), "--result", "--dir", str(tmp_path / "j"))
    assert shown == (0, "", "")
