"""A real etcd answers as the arbiter in memory does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.clock import SECOND
from fastjournal.errors import Unavailable
from fastjournal.replica.arbiter import ChangeSet, Look, Raise, Resign, Take, View
from fastjournal.replica.etcd import EtcdArbiter
from fastjournal.replica.rules import MemberSet
from fastjournal.testing import wait_until
from memory_arbiter import MemoryArbiter
from replica_rig import Etcd

ABC = MemberSet(("a", "b", "c"))
pytestmark = pytest.mark.xdist_group("replica")


class InMemory(MemoryArbiter):
    """With the face of a driver."""

    def grant(self, ttl: int = 0) -> int:
        return super().grant()


@pytest.fixture(params=["memory", "etcd"])
def arbiter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InMemory | EtcdArbiter]:
    if request.param == "memory":
        yield InMemory(60 * SECOND)
        return
    etcd = Etcd(tmp_path)
    try:
        yield EtcdArbiter([etcd.url])
    finally:
        etcd.stop()


def test_both_arbiters_give_the_same_answers(arbiter: InMemory | EtcdArbiter) -> None:
    arbiter.create("j", ABC)
    arbiter.create("j", MemberSet(("x",)))  # it is there already
    one, two = arbiter.grant(60 * SECOND), arbiter.grant(60 * SECOND)
    assert arbiter.keep_alive(one)
    assert arbiter.ask("j", "a", Look()) == View(ABC, 0, "", 0)
    assert arbiter.ask("j", "a", Take(0, 2, one)) is False
    assert arbiter.ask("j", "a", Take(0, 1, one)) is True
    assert arbiter.ask("j", "b", Take(1, 1, two)) is False
    assert arbiter.ask("j", "b", Look()) == View(ABC, 1, "a", 1)
    joint = MemberSet(("a", "b", "c"), 2, ("b", "c", "d"))
    assert arbiter.ask("j", "b", ChangeSet(1, joint)) is False
    assert arbiter.ask("j", "a", ChangeSet(2, joint)) is False
    assert arbiter.ask("j", "a", ChangeSet(1, joint)) is True
    assert arbiter.ask("j", "a", ChangeSet(1, joint)) is True
    assert arbiter.ask("j", "b", Resign(1)) is False
    assert arbiter.ask("j", "a", Resign(2)) is False
    assert arbiter.ask("j", "b", Raise(7)) is True
    assert arbiter.ask("j", "b", Raise(3)) is True
    assert arbiter.ask("j", "a", Resign(1)) is True
    assert arbiter.ask("j", "c", Look()) == View(joint, 7, "", 0)
    assert arbiter.ask("j", "c", Take(7, 2, two)) is True


def test_of_many_who_take_at_once_one_leads(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path)
    try:
        arbiter = EtcdArbiter([etcd.url])
        arbiter.create("j", ABC)
        lease = arbiter.grant(60 * SECOND)
        won: list[int] = []

        def take(number: int) -> None:
            if arbiter.ask("j", f"node {number}", Take(0, 1, lease)) is True:
                won.append(number)

        threads = [threading.Thread(target=take, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        view = arbiter.ask("j", "", Look())
        assert isinstance(view, View)
        assert [view.leader] == [f"node {number}" for number in won]
        assert view.epoch == view.leads == 1
    finally:
        etcd.stop()


def test_a_leader_goes_with_its_lease(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path)
    try:
        arbiter = EtcdArbiter([etcd.url])
        arbiter.create("j", ABC)
        assert arbiter.ask("j", "a", Take(0, 1, arbiter.grant(SECOND))) is True
        wait_until(lambda: arbiter.ask("j", "a", Look()) == View(ABC, 1, "", 0))
    finally:
        etcd.stop()


def test_an_etcd_that_is_not_there_is_told_and_the_next_is_tried(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="etcd does not answer"):
        EtcdArbiter(["http://127.0.0.1:1"], seconds=0.5).ask("j", "a", Look())
    etcd = Etcd(tmp_path)
    try:
        arbiter = EtcdArbiter(["http://127.0.0.1:1", etcd.url])
        with pytest.raises(Unavailable, match="no set of members"):
            arbiter.ask("j", "a", Look())
    finally:
        etcd.stop()


def test_etcd_tells_of_all_journals_below_its_prefix(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path)
    try:
        arbiter = EtcdArbiter([etcd.url])
        assert arbiter.find_all() == {}
        for journal in ("jobs", "jobs-0"):
            arbiter.create(journal, ABC)
        EtcdArbiter([etcd.url], prefix="fastjournal2").create("another", ABC)
        assert arbiter.find_all() == {"jobs": ABC, "jobs-0": ABC}
    finally:
        etcd.stop()
