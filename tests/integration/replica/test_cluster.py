"""Three daemons and three etcd in networks of their own, under everything that may befall them.

`FASTJOURNAL_REPLICA_ROUNDS` says how many faults; each kind comes up in turn, in a random order.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from replica_cluster import NODES, Clients, Cluster, Nemesis, audit, compare_logs

pytestmark = [
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.timeout(36_000),
    pytest.mark.xdist_group("replica"),
]
ROUNDS = int(os.environ.get("FASTJOURNAL_REPLICA_ROUNDS", "18"))
SEED = int(os.environ.get("FASTJOURNAL_REPLICA_SEED", "1"))


@pytest.mark.parametrize("journals", [("default",), ("default", "orders")], ids=["one", "two"])
def test_nothing_answered_is_lost_whatever_befalls_the_nodes(
    tmp_path: Path, journals: tuple[str, ...]
) -> None:
    """F58, F48, F11: no acknowledged job lost, no completion accepted twice, the same bytes."""
    luck = random.Random(SEED)
    with Cluster(tmp_path, journals) as cluster:
        nemesis = Nemesis(cluster, SEED)
        clients = {journal: Clients(cluster.url_of(journal)) for journal in journals}
        for one in clients.values():
            one.start()
        try:
            nemesis.wait_well()
            words: list[str] = []
            begun = time.monotonic()
            for number in range(ROUNDS):
                if not words:
                    words = nemesis.words()
                    luck.shuffle(words)
                word = words.pop()
                nemesis.strike(word)
                figures = [(len(one.put), len(one.completed)) for one in clients.values()]
                told = f"{time.monotonic() - begun:.0f} s, put and completed"
                print(number + 1, word, told, *figures, flush=True)
        finally:
            for one in clients.values():
                one.finish()
        nemesis.wait_well()
        judged = {journal: Judged(one) for journal, one in clients.items()}
        cluster.settle("snapshot_time")
        for one in clients.values():
            one.put_more(400)  # a snapshot may fall among them: it does not stand for all
        cluster.settle("snapshot_time", "last_time", "commit_time")
        for name in NODES:
            cluster.kill(name)
        for journal, found in judged.items():
            same = compare_logs(cluster, journal)
            told = f"{ROUNDS} rounds, {found}, {same} bytes the same; {dict(nemesis.deeds)}"
            print(journal, told, flush=True)
            assert not found.lost
            assert not found.twice
            assert not found.back
            assert same > 200 * 300
            assert found.put > 10 * ROUNDS
            if shutil.which("java"):
                assert audit(cluster, journal) == 0
            else:
                print("no Java here: Spark's audit is left out")


class Judged:
    """What has become of what clients were told."""

    def __init__(self, clients: Clients) -> None:
        left, completed = clients.left(), clients.completed
        self.put, self.completed = len(clients.put), len(completed)
        self.lost = set(clients.put) - left - set(completed) - clients.maybe
        self.twice = [key for key, count in completed.items() if count > 1]
        self.back = left & {key for key, count in completed.items() if count}

    def __str__(self) -> str:
        return (
            f"{self.put} puts and {self.completed} completions acknowledged, {len(self.lost)} lost,"
            f" {len(self.twice)} completed twice, {len(self.back)} came back"
        )
