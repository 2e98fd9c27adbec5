"""Three real daemons and a real etcd: what was answered survives the primary, however it goes."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastjournal
from command_line import Command
from fastjournal.errors import JournalError
from fastjournal.testing import wait_until
from replica_rig import NODES, Rig

pytestmark = [pytest.mark.kill, pytest.mark.xdist_group("replica")]
ROUNDS = int(os.environ.get("FASTJOURNAL_KILL_ROUNDS", "30"))


class Producer(threading.Thread):
    """Puts jobs one after another, and remembers which were acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[str] = []
        self.unsure: list[str] = []
        self._url = url
        self._over = threading.Event()

    def run(self) -> None:
        numbers = itertools.count()
        while not self._over.is_set():
            try:
                with fastjournal.connect(self._url) as journal:
                    self._put(journal, numbers)
            except JournalError:
                continue  # nobody serves right now

    def _put(self, journal: fastjournal.Client, numbers: Iterator[int]) -> None:
        while not self._over.is_set():
            key = f"key {next(numbers)}"
            try:
                journal.put(b"job", key=key, queue="q")
                self.acknowledged.append(key)
            except JournalError:
                self.unsure.append(key)

    def finish(self) -> None:
        self._over.set()
        self.join(90)


def all_keys(url: str) -> list[str]:
    """Every job of the queue, whatever became of it."""
    with fastjournal.connect(url) as journal:
        return sorted(job.key for job in journal.jobs("q", limit=1_000_000))


def check_bytes(rig: Rig) -> None:
    """Every node holds the same records."""
    wait_until(rig.caught_up, seconds=40, what="all nodes hold the same")


def test_nothing_answered_is_lost_when_the_primary_is_killed(tmp_path: Path) -> None:
    """F58, F11: kill -9 of the primary under load."""
    with Rig(tmp_path) as rig:
        rig.wait_joined()  # a node that has just been made has no vote before
        producer = Producer(rig.url)
        producer.start()
        for _ in range(1):
            have = len(producer.acknowledged)
            wait_until(lambda have=have: len(producer.acknowledged) > have + 20, what="puts")
            primary = rig.wait_primary()
            process = rig.daemons[primary].process
            assert process is not None
            process.kill()
            process.wait()
            killed = time.monotonic()
            have = len(producer.acknowledged)
            wait_until(lambda have=have: len(producer.acknowledged) > have, what="a new primary")
            assert time.monotonic() - killed < 20
            assert rig.wait_primary() != primary
            rig.start()
            rig.wait_joined()
        producer.finish()
        check_bytes(rig)
        kept = all_keys(rig.url)
        assert set(producer.acknowledged) <= set(kept)
        assert set(kept) <= {*producer.acknowledged, *producer.unsure}
        assert len(kept) == len(set(kept))


def test_a_client_that_knows_a_follower_alone_finds_the_primary(tmp_path: Path) -> None:
    """SNAP-IDX-1: NOT-PRIMARY leads there, and again after a switchover; looks stay with it."""
    with Rig(tmp_path) as rig:
        rig.wait_joined()
        primary = rig.wait_primary()
        one = next(name for name in NODES if name != primary)
        node = f"fj://127.0.0.1:{rig.daemons[one].port}?timeout=60"
        with (
            fastjournal.connect(node) as journal,
            fastjournal.connect(f"{node}&read=follower&max_lag=10s") as looking,
        ):
            assert journal.about["replica"]["node"] == primary
            receipt = journal.put(b"job", key="a", queue="q")

            def looked_at() -> str:
                told = looking.status()
                return str(told.replica.node) if told.ready else ""

            wait_until(lambda: looked_at() == one, seconds=40, what="the follower is looked at")
            assert looking.job(receipt.id).key == "a"
            assert rig.ask(primary, "switchover")["role"] == "follower"
            assert journal.put(b"job", key="b", queue="q").id
            assert journal.about["replica"]["node"] != primary
            wait_until(lambda: looking.queue("q").ready == 2, seconds=40, what="both are seen")


@pytest.mark.slow
def test_a_stopped_primary_is_refused_when_it_wakes(tmp_path: Path) -> None:
    """F48, F58: SIGSTOP past the lease; what it still thinks counts for nothing."""
    with Rig(tmp_path) as rig:
        check_bytes(rig)
        primary = rig.wait_primary()
        with fastjournal.connect(rig.url) as journal:
            journal.put(b"before", key="before", queue="q")
            process = rig.daemons[primary].process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            others = [name for name in NODES if name != primary]
            wait_until(lambda: any(rig.ask(name).get("serving") for name in others), seconds=40)
            process.send_signal(signal.SIGCONT)
            wait_until(lambda: rig.ask(primary).get("role") == "follower", seconds=40)
            assert rig.wait_primary() in others
            journal.put(b"after", key="after", queue="q")
        check_bytes(rig)
        assert all_keys(rig.url) == ["after", "before"]


@pytest.mark.slow
def test_a_snapshot_goes_to_all_nodes_and_brings_a_new_one_up(tmp_path: Path) -> None:
    """F58, M3F-SNAP-1: records that a snapshot stands for go everywhere; a wiped node gets it."""
    more = {
        "FASTJOURNAL_JOURNAL_CLEAN_INTERVAL": "0.5",
        "FASTJOURNAL_JOURNAL_SNAPSHOT_BYTES": "200000",
        "FASTJOURNAL_JOURNAL_SEGMENT_SIZE": "65536",
    }
    with Rig(tmp_path, more=more) as rig:
        check_bytes(rig)
        keys = []
        with fastjournal.connect(rig.url) as journal:
            for number in range(600):
                keys.append(f"key {number:04}")
                journal.put(b"x" * 1000, key=keys[-1], queue="q")
            wait_until(
                lambda: all(rig.ask(name).get("snapshot_time") for name in NODES),
                seconds=40,
                what="a snapshot on every node",
            )
        check_bytes(rig)
        primary = rig.wait_primary()
        wiped = next(name for name in NODES if name != primary)
        rig.kill(wiped)
        shutil.rmtree(rig.daemons[wiped].data)
        rig.start()
        wait_until(lambda: bool(rig.ask(wiped).get("snapshot_time")), seconds=40)
        check_bytes(rig)
        wait_until(lambda: bool(rig.ask(wiped).get("eligible")), seconds=40)
        for name in NODES:  # whoever is left leads with what it was given
            if name != wiped:
                rig.kill(name)
                wait_until(lambda: bool(rig.primary()), seconds=40, what="another one serves")
                assert all_keys(rig.url) == keys
                rig.start()
                check_bytes(rig)


def test_who_is_to_leave_is_shown_while_that_waits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SNAP-IDX-2: nobody leaves while one of the two who would stay is lost."""
    with Rig(tmp_path) as rig:
        rig.wait_joined()
        command_line = Command(capfd, monkeypatch)
        primary = rig.wait_primary()
        lost, leaves = [name for name in NODES if name != primary]
        for name in (lost, leaves):
            rig.kill(name)
        wait_until(lambda: not rig.ask(primary)["quorum"], seconds=40, what="both are missed")
        node = f"127.0.0.1:{rig.inner[primary]}"
        command_line("replica", "remove", node, leaves)
        assert f"{leaves} leaves once" in command_line("replica", "status", node).out
        told = command_line("replica", "status", node, "--json").lines
        assert [one["leaving"] for one in told] == [[leaves]]
        command_line("replica", "add", node, leaves)
        assert "leaves" not in command_line("replica", "status", node).out
        command_line("replica", "remove", node, leaves)
        rig.start()
        wait_until(lambda: leaves not in rig.ask(primary)["voters"], seconds=60, what="it leaves")
        assert "leaves" not in command_line("replica", "status", node).out


@pytest.mark.slow
def test_every_node_tells_what_it_is(tmp_path: Path) -> None:
    """F58: ready is the serving primary alone; figures are told by all."""
    with Rig(tmp_path) as rig:
        check_bytes(rig)
        primary = rig.wait_primary()
        wait_until(lambda: rig.get(primary, "/readyz")[0] == 200, what="the primary is ready")
        for name in NODES:
            status, text = rig.get(name, "/readyz")
            assert status == (200 if name == primary else 503), text
            assert rig.get(name, "/healthz")[0] == 200
            role = "primary" if name == primary else "follower"
            figures = rig.get(name, "/metrics")[1]
            assert f'fastjournal_replica_role{{journal="default",role="{role}"}} 1.0' in figures
        with fastjournal.connect(rig.url) as journal:
            told = journal.about["replica"]
            assert (told["node"], told["primary"], told["role"]) == (primary, primary, "primary")
            with journal.subscribe("q") as listening:
                journal.put(b"job", key="a", queue="q")
                event = listening.next(wait=20)
                assert event is not None and event.kind == "due"
        assert 'fastjournal_replica_lag_bytes{journal="default"' in rig.get(primary, "/metrics")[1]


@pytest.mark.slow
def test_a_node_leaves_and_joins_again(tmp_path: Path) -> None:
    """SNAP-IDX-2: members change one at a time, by an operator's word to the primary."""
    with Rig(tmp_path) as rig:
        check_bytes(rig)
        primary = rig.wait_primary()
        other = next(name for name in NODES if name != primary)
        assert "only the primary" in rig.ask(other, "remove", primary)["error"]
        assert "not among the peers" in rig.ask(primary, "add", "x")["error"]
        assert "error" not in rig.ask(primary, "remove", other)
        wait_until(lambda: other not in rig.ask(primary)["voters"], what="it has left")
        with fastjournal.connect(rig.url) as journal:
            for number in range(20):
                journal.put(b"job", key=f"key {number:02}", queue="q")
        assert rig.ask(other)["last_time"] < rig.ask(primary)["last_time"]
        assert "error" not in rig.ask(primary, "add", other)
        wait_until(lambda: other in rig.ask(primary)["voters"], what="it has joined")
        check_bytes(rig)
        rig.kill(primary)
        wait_until(lambda: rig.primary() not in ("", primary), seconds=40)
        assert len(all_keys(rig.url)) == 20


@pytest.mark.slow
def test_one_command_lets_a_node_take_the_place_of_another_one(tmp_path: Path) -> None:
    """SNAP-IDX-2: the place of the primary too, asked of any node, as often as one likes."""
    with Rig(tmp_path) as rig:
        check_bytes(rig)
        primary = rig.wait_primary()
        spare, other = (name for name in NODES if name != primary)
        assert "error" not in rig.ask(primary, "remove", spare)
        wait_until(lambda: spare not in rig.ask(primary)["voters"], what="it has left")
        with fastjournal.connect(rig.url) as journal:
            for number in range(20):
                journal.put(b"job", key=f"key {number:02}", queue="q")
        for _ in range(2):
            told = _move(rig, other, primary, spare)
            assert told.returncode == 0, told.stderr
            assert json.loads(told.stdout.splitlines()[-1]) == {"node": spare, "outcome": "moved"}
        wait_until(lambda: rig.primary() in (spare, other), what="one of those who stay serves")
        assert set(rig.ask(rig.primary())["voters"]) == {spare, other}
        assert len(all_keys(rig.url)) == 20
        refused = _move(rig, other, other, "x")
        assert refused.returncode != 0
        assert "x is not among the peers" in refused.stderr


def _move(rig: Rig, at: str, old: str, new: str) -> subprocess.CompletedProcess[str]:
    node = f"127.0.0.1:{rig.inner[at]}"
    words = ["replica", "move", node, old, new, "--json", "--timeout", "40"]
    command = [sys.executable, "-m", "fastjournal.cli.app", *words]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_a_switchover_is_short_and_loses_nothing(tmp_path: Path) -> None:
    """F58: planned: the primary resigns, another one serves."""
    with Rig(tmp_path) as rig:
        primary = rig.wait_primary()
        with fastjournal.connect(rig.url) as journal:
            journal.put(b"before", key="before", queue="q")
            check_bytes(rig)
            assert rig.ask(primary, "switchover")["role"] == "follower"
            journal.put(b"after", key="after", queue="q")
            wait_until(lambda: rig.primary() not in ("", primary), what="somebody else serves")
        assert all_keys(rig.url) == ["after", "before"]


@pytest.mark.slow
def test_without_a_majority_nothing_is_answered(tmp_path: Path) -> None:
    """F58: two of three nodes lost: no answer, until one is back."""
    with Rig(tmp_path) as rig:
        primary = rig.wait_primary()
        check_bytes(rig)
        others = [name for name in NODES if name != primary]
        for name in others:
            process = rig.daemons[name].process
            assert process is not None
            process.kill()
            process.wait()
        producer = Producer(rig.url.replace("timeout=60", "timeout=3"))
        producer.start()
        wait_until(lambda: bool(producer.unsure), what="an error")
        assert not producer.acknowledged
        rig.start()
        wait_until(lambda: bool(producer.acknowledged), seconds=40, what="an answer")
        producer.finish()


@pytest.mark.slow
def test_a_quorum_goes_on_without_etcd(tmp_path: Path) -> None:
    """F58: nobody can take over, and nobody needs to."""
    with Rig(tmp_path) as rig:
        check_bytes(rig)
        primary = rig.wait_primary()
        rig.etcd.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not rig.ask(primary)["lease"], what="the lease is over")
        with fastjournal.connect(rig.url) as journal:
            for number in range(5):
                journal.put(b"without", key=f"without {number}", queue="q")
        assert rig.ask(primary)["serving"]
        assert not rig.ask(primary)["lease"]
        rig.etcd.process.send_signal(signal.SIGCONT)
        rig.wait_primary()
        assert len(all_keys(rig.url)) == 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_rounds_of_kills_and_stops(tmp_path: Path) -> None:
    """F58: nodes are killed and stopped at random, primary or not; nothing answered is lost."""
    luck = random.Random(1)
    with Rig(tmp_path) as rig:
        rig.wait_joined()
        # An answer of a process that stands still is given up after so long.
        producer = Producer(rig.url.replace("timeout=60", "timeout=8"))
        producer.start()
        for _ in range(ROUNDS):
            rig.wait_primary()
            victim = luck.choice([rig.primary() or "a", luck.choice(NODES)])
            process = rig.daemons[victim].process
            assert process is not None
            if luck.random() < 0.3:
                process.send_signal(signal.SIGSTOP)
                have = len(producer.acknowledged)
                wait_until(lambda have=have: len(producer.acknowledged) > have + 5, seconds=60)
                process.send_signal(signal.SIGCONT)
            else:
                process.kill()
                process.wait()
                have = len(producer.acknowledged)
                wait_until(lambda have=have: len(producer.acknowledged) > have + 5, seconds=60)
                rig.start()
            rig.wait_joined()
        producer.finish()
        check_bytes(rig)
        assert set(producer.acknowledged) <= set(all_keys(rig.url))
