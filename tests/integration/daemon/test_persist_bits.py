"""Bits 9, 12 and 6: what persists, how it is answered; and queues that live in memory (D-23)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal, State
from fastjournal.model import Mode
from fastjournal.put_request import PutRequest
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.bulk import (
    Action,
    LeaseRequest,
    Settle,
    encode_lease_request,
    encode_settle,
)
from fastjournal.wire.fj.functions import (
    DATA,
    EXACT,
    JOBS,
    KEPT,
    LENGTH,
    OVERWRITE,
    PERSIST,
    PERSIST_SET,
    STABLE,
    TIMEOUT,
    Function,
    Type,
)
from fastjournal.wire.fj.job_codec import decode_leased, encode_job
from fjpeer import FjPeer

LOOPS = pytest.mark.parametrize("on_uvloop", [False, True], ids=["asyncio", "uvloop"])
BYTES: dict[str, Any] = {"value_type": Type.BUFFER, "value": b"why"}
ONE: dict[str, Any] = {"value_type": Type.INTEGER, "value": b"\1"}


def short_job(queue: bytes, payload: bytes) -> dict[str, Any]:
    """A job of layout 1 as SET takes it."""
    value = b"\1\x64\0\0" + bytes(8) + bytes(4) + len(queue).to_bytes(2, "big") + queue + payload
    return {"value_type": Type.JOB, "value": value}


@LOOPS
@pytest.mark.parametrize("sync", ["os", "always"])
def test_both_persist_bits_of_set_answer_on_stable_storage(
    tmp_path: Path, sync: str, on_uvloop: bool
) -> None:
    """FJ-FLG-9, FJ-SET-4, D-23: of an entry and of a job; bit 6 answers as the policy promises."""
    settings = {"journal": {"sync": sync}}
    with (
        LocalDaemon(tmp_path / "d", settings=settings, uvloop=on_uvloop) as daemon,
        FjPeer(daemon.port) as peer,
    ):
        for number, bit in enumerate((PERSIST, PERSIST_SET, PERSIST | PERSIST_SET)):
            key = b"%d" % number
            told = peer.ask(Function.SET, key=key, flags=bit | OVERWRITE, **ONE)
            assert (told.error, told.flags & STABLE) == ("", STABLE)
            told = peer.ask(Function.SET, key=key, flags=bit, **short_job(b"q", b"x"))
            assert (told.error, told.flags & STABLE) == ("", STABLE)
        promised = STABLE if sync == "always" else 0
        for function in (Function.SET, Function.ADD):
            told = peer.ask(function, key=b"kept", flags=KEPT, **ONE)
            assert told.error in ("", "EXISTS kept")
            assert told.flags & STABLE == promised
        assert not peer.ask(Function.SET, key=b"lost", **ONE).flags & STABLE
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon, FjPeer(daemon.port) as peer:
        there = [
            peer.ask(Function.GET, key=key, flags=DATA).error == ""
            for key in (b"0", b"1", b"2", b"kept", b"lost")
        ]
        assert there == [True, True, True, True, False]


def test_bit_12_is_for_set_alone(tmp_path: Path) -> None:
    """FJ-FLG-9, D-23."""
    with LocalDaemon(tmp_path / "d") as daemon, FjPeer(daemon.port) as peer:
        for function in Function:
            if function not in (Function.SET, Function.QUIT, Function.HELLO):
                told = peer.ask(function, key=b"k", flags=PERSIST_SET, **ONE)
                assert told.error.startswith("BAD-FLAGS"), function.name
        assert peer.ask(Function.SET, key=b"k", flags=PERSIST_SET, **ONE).error == ""


@pytest.fixture
def j(tmp_path: Path, clock: ManualClock) -> Iterator[Journal]:
    with Journal(tmp_path / "j", sync="os", background=False, clock=clock) as journal:
        journal.configure("ram", persist=False, max_timeouts=2, lease=10)
        yield journal


def reopened(j: Journal) -> Journal:
    clock = ManualClock(j.engine.clock.now())
    path = j.path
    j.close()
    return Journal(path, sync="os", background=False, clock=clock)


def test_jobs_of_a_queue_that_lives_in_memory_die_with_the_process(
    j: Journal, clock: ManualClock
) -> None:
    """FJ-SET-4, FJ-IMP-1: one that asks to persist, and other queues, stay."""
    written = j.engine.last_time
    for number in range(3):
        j.put(b"%d" % number, queue="ram", key=f"k{number}")
    clock.advance(1)
    job = j.lease("ram")
    assert job is not None
    job.touch()
    job.done()
    job = j.lease("ram")
    assert job is not None
    job.fail(b"why")
    j.delete(key="k2", queue="ram")
    assert j.engine.last_time == written, "nothing of them was logged"
    j.put(b"kept", queue="ram", key="p", persist=True)
    j.put(b"kept", queue="disk")
    assert j.queue("ram").future + j.queue("ram").ready == 2
    again = reopened(j)
    assert [job.value for job in again.jobs()] == [b"kept", b"kept"]
    again.close()


def test_a_lost_lease_and_death_in_memory_work_as_on_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    with Journal(tmp_path / "j", sync="os", background=False, clock=clock) as j:
        j.configure("ram", persist=False, max_timeouts=2, lease=10)
        j.put(b"x", queue="ram")
        for _ in range(2):
            assert j.lease("ram") is not None
            clock.advance(11)
            j.tick()
        assert [job.state for job in j.jobs("ram")] == [State.FAILED]


def test_a_repeat_that_asks_to_persist_brings_the_row_into_the_log(j: Journal) -> None:
    first = j.put(b"1", queue="ram", key="k")
    assert j.put(b"2", queue="ram", key="k", persist=True).id == first.id
    j.put(b"3", queue="ram", key="k")
    again = reopened(j)
    assert [job.value for job in again.jobs("ram")] == [b"3"]
    again.close()


def test_a_deleted_key_stays_deleted_though_it_is_put_again_in_memory(j: Journal) -> None:
    """The tombstone is in the log; a row in memory does not take its slot."""
    j.put(b"old", queue="ram", key="k", persist=True)
    j.delete(key="k", queue="ram")
    j.put(b"new", queue="ram", key="k")
    assert [job.value for job in j.jobs("ram")] == [b"new"]
    j.snapshot()
    j.clean()
    again = reopened(j)
    assert again.jobs("ram") == []
    again.close()


def test_cleaning_and_snapshots_leave_jobs_in_memory_alone(j: Journal) -> None:
    j.put(b"x", queue="ram", key="k")
    j.put(b"y", queue="disk")
    j.rotate()
    j.snapshot()
    j.clean()
    assert sorted(job.value for job in j.jobs()) == [b"x", b"y"]


def test_a_put_in_memory_is_never_called_stable_and_the_queue_is_told(tmp_path: Path) -> None:
    """FJ-SET-4: in STATUS, and by the settings of the queue."""
    settings = {"journal": {"sync": "always"}}
    with (
        LocalDaemon(tmp_path / "d", settings=settings) as daemon,
        daemon.connect() as client,
        FjPeer(daemon.port) as peer,
    ):
        client.configure("ram", persist=False)
        assert not peer.ask(Function.SET, key=b"a", **short_job(b"ram", b"x")).flags & STABLE
        assert peer.ask(Function.SET, key=b"b", **short_job(b"q", b"x")).flags & STABLE
        job = encode_job(PutRequest(b"ram", b"x", mode=Mode.PLAIN))
        many = {"value_type": Type.BUFFER, "value": (1).to_bytes(4, "big") + job}
        assert not peer.ask(Function.PUTS, **many).flags & STABLE
        assert peer.ask(Function.PUTS, flags=PERSIST, **many).flags & STABLE
        assert client.status().memory_queues == ["ram"]
        assert client.queue("ram").settings.persist is False


@LOOPS
def test_no_answer_about_a_job_in_memory_says_that_it_is_on_stable_storage(
    tmp_path: Path, on_uvloop: bool
) -> None:
    """FJ-FLG-9, D-23: under `always`; what is done to a job in the log is, beside it."""
    settings = {"journal": {"sync": "always"}}
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=on_uvloop) as daemon:
        daemon.server.default.journal.configure("ram", persist=False)
        with FjPeer(daemon.port) as peer:
            for queue, promised in ((b"ram", 0), (b"disk", STABLE)):
                for number in range(6):
                    peer.ask(Function.SET, key=queue + b"%d" % number, **short_job(queue, b"x"))
                told = peer.ask(
                    Function.SET, key=queue + b"0", timestamp=1, **short_job(queue, b"")
                )
                assert (told.error, told.flags & STABLE) == ("", promised), "stale"
                told = peer.ask(Function.NEXT, key=queue)
                key = told.pairs[0].key
                assert told.flags & STABLE == promised
                leased = LeaseRequest((queue,), 2)
                told = peer.ask(
                    Function.LEASE, value_type=Type.BUFFER, value=encode_lease_request(leased)
                )
                assert (len(told.pairs), told.flags & STABLE) == (2, promised)
                second = told.pairs[0].key
                third = told.pairs[1].key
                assert peer.ask(Function.TOUCH, key=key).flags & STABLE == promised
                assert peer.ask(Function.DONE, key=key).flags & STABLE == promised
                assert peer.ask(Function.RELEASE, key=second).flags & STABLE == promised
                assert peer.ask(Function.FAIL, key=third, **BYTES).flags & STABLE == promised
                deleted = peer.ask(Function.DELETE, key=second, flags=JOBS)
                assert (deleted.error, deleted.flags & STABLE) == ("", promised)
                read = peer.ask(Function.GET, key=queue + b"5", flags=EXACT | DATA)
                assert (read.error, read.flags & STABLE) == ("", promised)
                later = {"flags": TIMEOUT | LENGTH, "timeout": 10**9}
                assert peer.ask(Function.GET, key=queue + b"5", **later).flags & STABLE == promised


@LOOPS
def test_jobs_of_both_kinds_in_one_answer_are_not_called_stable(
    tmp_path: Path, on_uvloop: bool
) -> None:
    """FJ-FLG-9: a lease over all queues, and a settling of both."""
    settings = {"journal": {"sync": "always"}}
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=on_uvloop) as daemon:
        daemon.server.default.journal.configure("ram", persist=False)
        with FjPeer(daemon.port) as peer:
            for queue in (b"ram", b"disk"):
                peer.ask(Function.SET, key=queue, **short_job(queue, b"x"))
            value = encode_lease_request(LeaseRequest((), 9))
            both = peer.ask(Function.LEASE, value_type=Type.BUFFER, value=value)
            assert (len(both.pairs), both.flags & STABLE) == (2, 0)
            leases = [decode_leased(pair) for pair in both.pairs]
            ends = [Settle(Action.COMPLETE, one.job.id, one.token) for one in leases]
            both = peer.ask(Function.SETTLE, value_type=Type.BUFFER, value=encode_settle(ends))
            assert (both.error, both.flags & STABLE) == ("", 0)
