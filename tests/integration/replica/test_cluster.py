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


def test_nothing_answered_is_lost_whatever_befalls_the_nodes(tmp_path: Path) -> None:
    """F58, F48, F11: no acknowledged job lost, no completion accepted twice, the same bytes."""
    luck = random.Random(SEED)
    with Cluster(tmp_path) as cluster:
        nemesis = Nemesis(cluster, SEED)
        clients = Clients(cluster.url)
        clients.start()
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
                told = f"{time.monotonic() - begun:.0f} s, {len(clients.put)} put"
                print(number + 1, word, told, len(clients.completed), "completed", flush=True)
        finally:
            clients.finish()
        nemesis.wait_well()
        left = clients.left()
        lost = set(clients.put) - left - set(clients.completed) - clients.maybe
        twice = [key for key, count in clients.completed.items() if count > 1]
        back = left & {key for key, count in clients.completed.items() if count}
        cluster.settle("snapshot_time")
        clients.put_more(200)  # no snapshot stands for these
        cluster.settle("snapshot_time", "last_time", "commit_time")
        for name in NODES:
            cluster.kill(name)
        same = compare_logs(cluster)
        print(
            f"{ROUNDS} rounds, {len(clients.put)} puts and {len(clients.completed)} completions"
            f" acknowledged, {len(lost)} lost, {len(twice)} completed twice, {len(back)} came back,"
            f" {same} bytes the same; {dict(nemesis.deeds)}"
        )
        assert not lost
        assert not twice
        assert not back
        assert same > 200 * 300
        assert len(clients.put) > 10 * ROUNDS
        if shutil.which("java"):
            assert audit(cluster) == 0
        else:
            print("no Java here: Spark's audit is left out")
