"""Three daemons that keep several journals: each has its own primary, and clients find it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import fastjournal
from command_line import Command
from fastjournal.client import Group
from fastjournal.errors import NotFound, Unauthorized
from fastjournal.testing import wait_until
from replica_rig import NODES, Rig

pytestmark = [pytest.mark.kill, pytest.mark.xdist_group("replica")]
JOURNALS = ("default", "orders", "pages")


@pytest.fixture
def command_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capfd, monkeypatch)


def url(rig: Rig, journal: str, *names: str) -> str:
    """Of a journal, by the ports of some nodes."""
    ports = ",".join(f"127.0.0.1:{rig.daemons[name].port}" for name in names or NODES)
    return f"fj://{ports}/{journal}?timeout=60"


def leaders(rig: Rig) -> dict[str, str]:
    """Who serves each journal; empty: nobody."""
    return {
        journal: next((name for name in NODES if rig.ask(name, journal=journal).get("serving")), "")
        for journal in JOURNALS
    }


def wait_leaders(rig: Rig) -> dict[str, str]:
    """Wait until each journal is served."""
    wait_until(lambda: all(leaders(rig).values()), seconds=60, what="all journals are served")
    return leaders(rig)


def move(rig: Rig, journal: str, old: str, new: str) -> None:
    """Let another node take the place of the one that leads."""
    told = rig.ask(old, "swap", member=new, leaves=old, journal=journal)
    assert "error" not in told, told
    wait_until(lambda: leaders(rig)[journal] == new, seconds=60, what="it has moved")


def test_each_journal_has_its_own_primary_and_clients_find_it(tmp_path: Path) -> None:
    """SNAP-IDX-2, F58: a daemon leads some and follows others; one dies, and only its own move."""
    with Rig(tmp_path, more={"FASTJOURNAL_JOURNALS": "orders,pages"}) as rig:
        first = wait_leaders(rig)
        moved = rig.ask(first["orders"], "switchover", journal="orders")
        assert moved["journal"] == "orders" and moved["role"] == "follower"
        wait_until(
            lambda: leaders(rig)["orders"] not in ("", first["orders"]),
            seconds=60,
            what="another one leads orders",
        )
        led = wait_leaders(rig)
        for journal in JOURNALS:
            others = [name for name in NODES if name != led[journal]]
            with fastjournal.connect(url(rig, journal, others[0])) as client:
                assert client.about["replica"]["node"] == led[journal]
                assert client.about["journal"] == journal
                client.put(b"job", key=journal, queue="q")
                assert [job.key for job in client.jobs("q", limit=9)] == [journal]
        with (
            pytest.raises(NotFound, match="no journal 'other'"),
            fastjournal.connect(url(rig, "other")) as client,
        ):
            client.queues()
        for name in NODES:
            status, figures = rig.get(name, "/metrics")
            assert status == 200
            for journal in JOURNALS:
                role = "primary" if led[journal] == name else "follower"
                assert f'replica_role{{journal="{journal}",role="{role}"}} 1.0' in figures
                ready = rig.get(name, f"/readyz?journal={journal}")[0]
                assert ready == (200 if led[journal] == name else 503)
            assert rig.get(name, "/readyz")[0] == (200 if name in led.values() else 503)
        gone = led["orders"]
        epochs = {journal: rig.ask(led[journal], journal=journal)["epoch"] for journal in JOURNALS}
        rig.kill(gone)
        wait_until(lambda: gone not in leaders(rig).values(), seconds=60, what="it is replaced")
        again = wait_leaders(rig)
        for journal in JOURNALS:
            with fastjournal.connect(url(rig, journal)) as client:
                assert [job.key for job in client.jobs("q", limit=9)] == [journal]
            epoch = rig.ask(again[journal], journal=journal)["epoch"]
            assert (epoch > epochs[journal]) == (led[journal] == gone)


def test_journals_are_placed_and_one_moves_to_a_node_that_did_not_keep_it(tmp_path: Path) -> None:
    """SNAP-IDX-2, SNAP-IDX-3: one copy of each, one each; who does not keep it knows who does."""
    more = {"FASTJOURNAL_JOURNALS": "orders,pages", "FASTJOURNAL_REPLICA_COPIES": "1"}
    with Rig(tmp_path, more=more) as rig:
        led = wait_leaders(rig)
        assert sorted(led.values()) == sorted(NODES)
        for journal in JOURNALS:
            assert rig.ask(led[journal], journal=journal)["voters"] == [led[journal]]
            other = next(name for name in NODES if name != led[journal])
            assert "nobody keeps" in rig.ask(other, journal=journal)["error"]
            with fastjournal.connect(url(rig, journal, other)) as client:
                client.put(b"job", key=journal, queue="q")
                assert client.about["replica"]["node"] == led[journal]
        old = led["orders"]
        new = next(name for name in NODES if name != old)
        move(rig, "orders", old, new)
        closed = "nobody keeps orders"
        wait_until(
            lambda: closed in rig.ask(old, journal="orders").get("error", ""),
            seconds=60,
            what="who has left it closes it",
        )
        with fastjournal.connect(url(rig, "orders", old)) as client:
            assert [job.key for job in client.jobs("q", limit=9)] == ["orders"]
        move(rig, "orders", new, old)  # it may come again, and leave again
        move(rig, "orders", old, new)
        for name in (old, new):
            rig.kill(name)
        rig.start()
        wait_leaders(rig)
        assert leaders(rig)["orders"] == new
        wait_until(
            lambda: "nobody keeps" in rig.ask(old, journal="orders").get("error", ""),
            what="it keeps orders no longer",
        )


def test_a_group_is_placed_by_one_command_and_taken_up_by_daemons_that_run(
    tmp_path: Path, command_line: Command
) -> None:
    """SNAP-IDX-2, SNAP-IDX-3: a home and six journals of two copies each, on three nodes."""
    with Rig(tmp_path, more={"FASTJOURNAL_REPLICA_COPIES": "2"}) as rig:
        rig.wait_primary()
        with pytest.raises(NotFound), fastjournal.connect(url(rig, "jobs")) as client:
            client.queues()
        config = tmp_path / "node.toml"
        peers = [f"{name}=127.0.0.1:{port}" for name, port in rig.inner.items()]
        config.write_text(
            f'[replica]\nname = "a"\ncopies = 2\npeers = {peers}\narbiter = ["{rig.etcd.url}"]\n'
        )
        words = ("replica", "place", "--config", config, "--json")
        told = command_line(*words, "jobs", "--shards", "6").lines
        names = [one["journal"] for one in told]
        assert names == ["jobs", *(f"jobs-{number}" for number in range(6))]
        assert all(len(set(one["nodes"])) == 2 for one in told)
        share = Counter(name for one in told for name in one["nodes"])
        assert max(share.values()) <= 6  # with the default journal 16 copies on 3 nodes
        assert command_line(*words, "jobs", "--shards", "6", "--copies", "3").lines == told
        assert [one["journal"] for one in command_line(*words).lines] == sorted(["default", *names])

        home = url(rig, "jobs").partition("?")[0]
        made = command_line("group", "create", home, "--shards", "6")
        assert made.out.strip() == f"{home}?group=6", made.err
        nodes = {one["journal"]: set(one["nodes"]) for one in told}
        with Group(f"{home}?group=6&timeout=60") as group:
            for number in range(60):
                group.put(b"job", key=f"{number}", queue="q")
            for name, shard in zip(names[1:], group.shards, strict=True):
                assert shard.about["journal"] == name
                assert shard.about["replica"]["node"] in nodes[name]
                assert shard.status().jobs
            gone = group.shards[0].about["replica"]["node"]
            rig.kill(gone)
            rig.start()
            done: set[str] = set()
            while len(done) < 60:
                job = group.lease("q", wait=20)
                assert job is not None
                job.done()
                done.add(job.key)
        wait_until(
            lambda: (
                {name for name in names if rig.ask(gone, journal=name).get("journal") == name}
                == {name for name in names if gone in nodes[name]}
            ),
            seconds=60,
            what="it keeps what it kept",
        )


def test_nothing_is_told_to_strangers(tmp_path: Path) -> None:
    """Where tokens are demanded: not even where a journal is kept."""
    tokens = tmp_path / "tokens"
    tokens.write_text("")
    more = {
        "FASTJOURNAL_JOURNALS": "orders,pages",
        "FASTJOURNAL_REPLICA_COPIES": "1",
        "FASTJOURNAL_TOKENS": str(tokens),
    }
    with Rig(tmp_path, more=more) as rig:
        led = wait_leaders(rig)
        for journal in JOURNALS:
            other = next(name for name in NODES if name != led[journal])
            for name in (other, led[journal]):
                with (
                    pytest.raises(Unauthorized),
                    fastjournal.connect(url(rig, journal, name)) as client,
                ):
                    client.queues()
