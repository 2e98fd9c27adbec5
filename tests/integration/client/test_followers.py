"""A node that does not lead names the one that does, and lets those look who ask for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fastjournal
from daemon_process import free_port
from fastjournal.client import Client
from fastjournal.client.blocking_transport import Pool
from fastjournal.client.urls import Target, target_of
from fastjournal.daemon.auth import add_token
from fastjournal.errors import NotFound, NotPrimary, Unauthorized, Unavailable
from fastjournal.model import NewJob
from fastjournal.spool.daemon_destination import open_delivery
from fastjournal.testing.daemon import LocalDaemon
from standby_door import StandbyDoor


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "data", settings={"journal": {"sync": "always"}}) as served:
        yield served


@pytest.fixture
def door(daemon: LocalDaemon, tmp_path: Path) -> Iterator[StandbyDoor]:
    with StandbyDoor(tmp_path / "data" / "default", f"127.0.0.1:{daemon.port}") as opened:
        yield opened


def looking(door: StandbyDoor, max_lag: str = "5s") -> Client:
    return Client(looked_at(door, max_lag))


def looked_at(door: StandbyDoor, max_lag: str = "5s") -> Target:
    return target_of(f"{door.url}?read=follower&max_lag={max_lag}")


def last_time(daemon: LocalDaemon) -> int:
    return daemon.call(lambda: daemon.server.default.engine.last_time)


def test_a_client_is_led_to_a_primary_that_its_url_does_not_name(door: StandbyDoor) -> None:
    """SNAP-IDX-1: NOT-PRIMARY tells where to go."""
    with fastjournal.connect(door.url) as client:
        receipt = client.put(b"job", key="a", queue="q")
        assert client.job(receipt.id).key == "a"
        assert door.looks == 0


async def test_so_is_one_for_asyncio(door: StandbyDoor) -> None:
    client = await fastjournal.aconnect(door.url)
    receipt = await client.put(b"job", key="a", queue="q")
    assert (await client.job(receipt.id)).key == "a"
    await client.close()


def test_so_is_a_forwarder(door: StandbyDoor, daemon: LocalDaemon) -> None:
    with open_delivery(door.url) as delivery:
        delivery.put_from(b"me", [(2, NewJob(b"q", b"job", b"a"))])
    with daemon.connect() as client:
        assert [job.key for job in client.jobs("q")] == ["a"]


def test_a_node_that_knows_nobody_is_passed_over(door: StandbyDoor, daemon: LocalDaemon) -> None:
    door.primary = ""
    with fastjournal.connect(f"{door.url},127.0.0.1:{daemon.port}") as client:
        client.put(b"job", key="a", queue="q")
    with pytest.raises(Unavailable, match="nobody is known to lead"):
        fastjournal.connect(f"{door.url}?connect_timeout=0.1")


def test_a_primary_that_is_named_and_gone_is_not_waited_for(
    door: StandbyDoor, daemon: LocalDaemon
) -> None:
    door.primary = f"127.0.0.1:{free_port()}"
    with fastjournal.connect(f"{door.url},127.0.0.1:{daemon.port}") as client:
        assert client.put(b"job", key="a", queue="q").id


def test_nobody_without_a_token_learns_who_leads(daemon: LocalDaemon, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    good = add_token(tokens, "me", ["read"], ["*"])
    path = tmp_path / "data" / "default"
    with StandbyDoor(path, f"127.0.0.1:{daemon.port}", tokens=tokens) as door:
        for url in (door.url, f"fj://wrong@127.0.0.1:{door.port}"):
            with pytest.raises(Unauthorized):
                fastjournal.connect(url)
        with fastjournal.connect(f"fj://{good}@127.0.0.1:{door.port}") as client:
            assert client.queues() == []


def test_looks_go_to_a_follower_and_changes_to_the_primary(
    door: StandbyDoor, daemon: LocalDaemon
) -> None:
    """SNAP-IDX-1: ?read=follower."""
    with looking(door) as client:
        receipt = client.put(b"payload", key="a", queue="q")
        client.entries.set("colour", "red")
        door.wait_ready(client)
        assert door.watched
        before = door.looks
        assert client.job(receipt.id).payload == b"payload"
        assert client.job(key="a", queue="q").id == receipt.id
        assert [job.key for job in client.jobs("q")] == ["a"]
        assert client.queue("q").ready == 1
        assert client.status().ready == 1
        assert client.status().replica.role == "follower"
        assert client.entries.get("colour") == "red"
        assert client.entries.entry("colour").value == "red"
        assert client.entries.count() == 1
        assert [entry.key for entry in client.entries.range("a", "z")] == [b"colour"]
        assert [entry.key for entry in client.entries.match("^col")] == [b"colour"]
        assert door.looks == before + 11
        with pytest.raises(NotFound):
            client.job(key="b", queue="q")
        leased = client.lease("q")
        assert leased is not None
        leased.done()
        assert door.looks == before + 12


async def test_so_do_those_of_asyncio(door: StandbyDoor) -> None:
    with looking(door) as client:
        client.put(b"payload", key="a", queue="q")
        door.wait_ready(client)
    other = await fastjournal.aconnect(f"{door.url}?read=follower")
    before = door.looks
    assert [job.key for job in await other.jobs("q")] == ["a"]
    assert await other.entries.get("nothing", 7) == 7
    assert door.looks == before + 2
    await other.close()


def test_nothing_is_shown_that_a_majority_does_not_have(
    door: StandbyDoor, daemon: LocalDaemon
) -> None:
    """F58: what is behind the commit TIME may still vanish."""
    with looking(door) as client:
        client.put(b"job", key="a", queue="q")
        door.progress = door.progress._replace(commit=last_time(daemon))
        client.put(b"job", key="b", queue="q")
        door.wait_ready(client)
        assert [job.key for job in client.jobs("q")] == ["a"]
        client.put(b"job", key="c", queue="q")
        assert [job.key for job in client.jobs("q")] == ["a"]
        door.progress = door.progress._replace(commit=last_time(daemon))
        assert [job.key for job in client.jobs("q")] == ["a", "b", "c"]


def test_records_that_were_cut_off_are_forgotten(door: StandbyDoor, daemon: LocalDaemon) -> None:
    with looking(door) as client:
        client.put(b"job", key="a", queue="q")
        kept = last_time(daemon)
        client.put(b"job", key="b", queue="q")
        door.wait_ready(client)
        assert [job.key for job in client.jobs("q")] == ["a", "b"]
        before = door.looks
        door.progress = door.progress._replace(rewritten=1, commit=kept)
        assert [job.key for job in client.jobs("q")] == ["a"]
        assert door.looks > before


def test_a_follower_that_is_too_old_is_passed_over(door: StandbyDoor) -> None:
    """F58: the primary answers instead, and the follower again when it has caught up."""
    with looking(door, "2s") as client:
        client.put(b"job", key="a", queue="q")
        door.wait_ready(client)
        door.is_old(2.5)
        before = door.looks
        assert [job.key for job in client.jobs("q")] == ["a"]
        assert client.status().ready == 1
        assert door.looks == before
        door.is_old(1.5)
        door.wait_ready(client)
        assert door.looks > before


def test_a_change_depends_on_what_the_primary_says(door: StandbyDoor, daemon: LocalDaemon) -> None:
    """Under a lock, and where reading changes something, nothing old is read."""
    with looking(door) as client:
        client.entries.set("n", 1)
        client.entries.set("kept", b"x", touch=100)
        door.wait_ready(client)
        door.progress = door.progress._replace(commit=last_time(daemon))
        client.entries.set("n", 2)
        client.entries.set("new", 5)
        assert client.entries.get("n") == 1
        with client.entries.lock("n") as held:
            assert held.get() == 2
        assert client.entries.setdefault("new", 6) == 5
        assert client.entries.pop("n") == 2
        before = door.looks
        assert client.entries.get("kept") == b"x"
        assert door.looks == before


def test_only_looks_are_answered(door: StandbyDoor) -> None:
    with looking(door) as client:
        door.wait_ready(client)
        from fastjournal.client import leases, puts

        connection = Pool(looked_at(door)).take()
        for call in (puts.put(b"x", queue="q"), leases.complete(bytes(16), 1, None)):
            with pytest.raises(NotPrimary) as refused:
                connection.ask(call)
            assert refused.value.address == door.primary
        connection.close()
