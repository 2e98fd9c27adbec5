"""A lease is ended, the answer is lost, the question comes again: the same answer, to one only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import calls, entry_calls
from fastjournal.client import puts as put_calls
from fastjournal.journal.language.commands import End
from fastjournal.model import Outcome
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
from fastjournal.wire.fj.replies import Reply
from fjpeer import FjPeer


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d") as running:
        yield running


def done(peer: FjPeer, job_id: bytes, token: int, flags: int = 0, result: bytes = b"") -> str:
    """The error code of a DONE, empty for success."""
    value = {"value_type": Type.BUFFER, "value": result} if result else {}
    reply: Reply = peer.ask(Function.DONE, flags=flags | BY_ID, key=job_id, ttl=token, **value)
    return reply.error.split(" ")[0]


def settle(peer: FjPeer, item: Settle, flags: int = 0) -> SettleOutcome:
    reply = peer.ask(
        Function.SETTLE, flags=flags, value_type=Type.BUFFER, value=encode_settle([item])
    )
    assert reply.value is not None
    return decode_settle_outcomes(reply.value)[0]


def two_leases(daemon: LocalDaemon) -> bytes:
    """A job whose first lease was given up and which is leased a second time."""
    with daemon.connect() as client:
        receipt = client.put(b"x", queue="q")
        first = client.lease("q")
        assert first is not None
        first.release()
        second = client.lease("q")
        assert second is not None
        assert (first.token, second.token) == (1, 2)
    return receipt.id


def test_only_the_holder_of_the_token_is_told_again_that_it_is_done(daemon: LocalDaemon) -> None:
    """P-LEASE: at most one worker hears that it has completed a job."""
    job = two_leases(daemon)
    with FjPeer(daemon.port) as peer:
        assert done(peer, job, 1, AGAIN) == "LEASE-LOST"
        assert done(peer, job, 2) == ""
        assert done(peer, job, 2, AGAIN) == ""
        assert done(peer, job, 1, AGAIN) == "NOT-FOUND"
        assert done(peer, job, 0, AGAIN) == "NOT-FOUND"
        assert done(peer, job, 2) == "NOT-FOUND"  # not sent again: a mistake of the caller
        assert done(peer, bytes(15) + b"1", 1, AGAIN) == "NOT-FOUND"


def test_a_first_completion_that_never_arrived_is_carried_out_by_the_second(
    daemon: LocalDaemon,
) -> None:
    job = two_leases(daemon)
    with FjPeer(daemon.port) as peer, daemon.connect() as client:
        assert done(peer, job, 2, AGAIN) == ""
        assert client.queues() == []


def test_the_answer_is_the_same_after_a_restart(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "d") as daemon, FjPeer(daemon.port) as peer:
        job = two_leases(daemon)
        assert done(peer, job, 2) == ""
    with LocalDaemon(tmp_path / "d") as daemon, FjPeer(daemon.port) as peer:
        assert done(peer, job, 1, AGAIN) == "NOT-FOUND"
        assert done(peer, job, 2, AGAIN) == ""


def test_a_completion_with_a_result_is_told_again(daemon: LocalDaemon) -> None:
    job = two_leases(daemon)
    with FjPeer(daemon.port) as peer, daemon.connect() as client:
        assert done(peer, job, 2, result=b"42") == ""
        assert done(peer, job, 2, AGAIN, b"42") == ""
        assert done(peer, job, 1, AGAIN, b"43") == "LEASE-LOST"
        assert client.result(job) == (True, b"42")


@pytest.mark.parametrize(
    ("action", "outcome"), [(Action.FAIL, Settling.WAITING), (Action.RELEASE, Settling.WAITING)]
)
def test_a_failure_or_a_release_is_told_again(
    daemon: LocalDaemon, action: Action, outcome: Settling
) -> None:
    job = two_leases(daemon)
    other = Action.RELEASE if action is Action.FAIL else Action.FAIL
    with FjPeer(daemon.port) as peer, daemon.connect() as client:
        first = settle(peer, Settle(action, job, 2, 3600 * 10**9))
        assert first.outcome == outcome
        assert settle(peer, Settle(action, job, 2, 3600 * 10**9), AGAIN) == first
        assert settle(peer, Settle(action, job, 2, 3600 * 10**9)).outcome == REFUSED
        assert settle(peer, Settle(action, job, 1, 3600 * 10**9), AGAIN).outcome == REFUSED
        assert settle(peer, Settle(other, job, 2, 3600 * 10**9), AGAIN).outcome == REFUSED
        assert settle(peer, Settle(Action.COMPLETE, job, 2), AGAIN).outcome == REFUSED
        assert client.job(job).attempts == 2


def test_the_last_failure_is_told_again(daemon: LocalDaemon) -> None:
    with daemon.connect() as client, FjPeer(daemon.port) as peer:
        receipt = client.put(b"x", queue="q", max_fails=1)
        job = client.lease("q")
        assert job is not None
        item = Settle(Action.FAIL, receipt.id, job.token, None, b"", b"why")
        assert settle(peer, item).outcome == Settling.DEAD
        assert settle(peer, item, AGAIN).outcome == Settling.DEAD


def test_many_ends_are_remembered_and_memory_is_bounded(daemon: LocalDaemon) -> None:
    state = daemon.server.default.state
    with daemon.connect() as client:
        for _ in range(2):
            client.put_many([{"queue": "q"}] * 2000)
            jobs = client.lease_many(2000, "q")
            assert all(client.complete_many([(job.id, job.token, None) for job in jobs]))
    assert len(state.endings) == 4000
    assert state.endings.of_lease(jobs[0].id, 1) is End.DONE


def worked_off(daemon: LocalDaemon, count: int) -> None:
    with daemon.connect() as client:
        for _ in range(count):
            job = client.lease("q")
            assert job is not None
            job.done()


@pytest.mark.parametrize("delay", [None, 1e-9], ids=["plain", "with more fields"])
def test_a_put_sent_again_after_its_job_has_ended_is_no_new_job(
    daemon: LocalDaemon, delay: float | None
) -> None:
    """FJ-1, promise of put: a lost answer does not make two jobs of one."""
    call = put_calls.put(b"x", queue="q", delay=delay)
    with daemon.connect() as client:
        first = client.caller.call(call)
        worked_off(daemon, 1)
        again = client.caller.call(calls.sent_again(call))
        assert (first.outcome, again.outcome) == (Outcome.NEW, Outcome.STALE)
        assert first.id == again.id
        assert client.lease("q") is None
        assert (
            client.caller.call(call).outcome is Outcome.NEW
        )  # not said to be sent again: a new one


def test_of_a_batch_sent_again_only_what_never_came_is_put(daemon: LocalDaemon) -> None:
    jobs = [{"payload": b"%d" % n, "queue": "q", "id": bytes([n]) * 16} for n in range(1, 7)]
    (first,) = put_calls.puts(jobs[1:4])
    (whole,) = put_calls.puts(jobs)
    with daemon.connect() as client:
        client.caller.call(first)
        worked_off(daemon, 2)
        receipts = client.caller.call(calls.sent_again(whole))
        assert [one.id for one in receipts] == [job["id"] for job in jobs]
        assert [one.outcome for one in receipts] == [
            Outcome.NEW, Outcome.STALE, Outcome.STALE, Outcome.STALE, Outcome.NEW, Outcome.NEW,
        ]  # fmt: skip
        left = client.lease_many(10, "q")
        assert sorted(job.payload for job in left) == [b"1", b"4", b"5", b"6"]


def test_only_puts_and_settles_say_that_they_are_sent_again() -> None:
    put = put_calls.put(b"x", None, "q", 1)
    stable = put_calls.put(b"x", None, "q", 1, persist=True)
    assert calls.sent_again(put).data[9] & AGAIN
    assert calls.sent_again(stable).data[9] & AGAIN
    entry = entry_calls.set_entry(None, "k", b"v")
    assert calls.sent_again(entry).data == entry.data
