"""Clients work for an hour while everything is done to whoever keeps their journal; then: judged.

    make soak                    an hour
    SOAK_MINUTES=2 make soak     shorter
    SOAK_SEED=7 make soak        the same choices again, as far as processes allow

A run is a row of sittings of a few minutes. In each, clients of both kinds, a spool with its
forwarder, and an app of tasks with a schedule work on a stage, and one nemesis after another
strikes. At the end of a sitting the stage is healed, and what the clients were told is compared
with what is there: by the promises of the pages alone (`kill_history`).

The exit code is 1 if a promise was broken, or if nothing was struck at.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from loop_disk import hide_mounts
from producers import SpoolProducer, TaskCaller
from stages import (
    ClusterStage,
    DaemonStage,
    Nemesis,
    ReplicaStage,
    Stage,
    has_etcd,
    has_networks,
)

from kill_harness import Crowd
from kill_history import Verdict

SITTING = 180.0  # seconds
SHOWN = ("rounds", "calls", "acknowledged", "lost", "resurrected", "doubled", "unknown")


def sitting(
    stage: Stage,
    home: Path,
    until: float,
    chance: random.Random,
    struck: Counter[str],
) -> Verdict:
    """Strike until it is over, heal, and judge."""
    crowd = Crowd(stage.url, chance.randrange(10**6), stage.drift)
    spool = SpoolProducer(home, stage.url, crowd.history)
    tasks = TaskCaller(home, stage.url, crowd.history, stage.every)
    try:
        crowd.start()
        spool.start()
        tasks.start()
        try:
            rounds = 0
            while time.monotonic() < until or not rounds:
                crowd.history.wait_for(1 + chance.randrange(400), seconds=180)
                crowd.check()
                strike = choose(stage, spool, tasks, chance)
                strike()
                struck[strike.__name__] += 1
                rounds += 1
            crowd.history.wait_for(50, seconds=180)
        finally:
            crowd.stop()
        spool.finish()
        tasks.finish(crowd.history.told)
    finally:
        spool.close()
        tasks.close()
    with stage.at_rest() as journal:
        verdict = crowd.history.judge(journal)
    verdict.rounds = rounds
    return verdict


def choose(
    stage: Stage,
    spool: SpoolProducer,
    tasks: TaskCaller,
    chance: random.Random,
) -> Nemesis:
    """Mostly at the journal, sometimes at those who carry to it and fetch from it."""
    if chance.random() < 0.2:
        return chance.choice([spool.kill_forwarder, tasks.kill_worker])
    return chance.choice(stage.nemeses)


def set_up(kind: str, place: Path, chance: random.Random) -> Stage:
    """A stage of this kind."""
    if kind != "replicas":
        return DaemonStage(place, chance, own_disk=kind == "disk")
    return ClusterStage(place, chance) if has_networks() else ReplicaStage(place, chance)


def soak(minutes: float, seed: int, home: Path) -> Verdict:
    """Sit until the time is over; say what happened."""
    chance, total, struck = random.Random(seed), Verdict(), Counter[str]()
    end, number = time.monotonic() + minutes * 60, 0
    stages = ["disk", "policies", *(["replicas"] if has_etcd() else [])]
    each = min(SITTING, minutes * 60 / len(stages))
    if not has_etcd():
        print("no etcd here: replicas are left out")
    elif not has_networks():
        print("no networks can be made here (they need root and ip): no link is cut")
    while number < len(stages) or time.monotonic() < end:
        kind = stages[number % len(stages)]
        place = home / f"{number}-{kind}"
        place.mkdir()
        until = time.monotonic() + each
        stage = set_up(kind, place, chance)
        try:
            verdict = sitting(stage, place, until, chance, struck)
            if verdict.broken:
                stage.keep()
        finally:
            stage.close()
        print(f"{number + 1}. {stage.name}: {verdict}", *verdict.examples, sep="\n   ", flush=True)
        total.add(verdict)
        if not verdict.broken:
            shutil.rmtree(place)
        number += 1
    if "cut_power" not in struck:
        print("no loop mounts here (they need root): no power was cut and no disk filled")
    print("struck:", ", ".join(f"{name} {times}" for name, times in sorted(struck.items())))
    return total


def main() -> int:
    """Run, print the figures, and say by the exit code whether every promise was kept."""
    hide_mounts()
    minutes = float(os.environ.get("SOAK_MINUTES", "60"))
    seed = int(os.environ.get("SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    home = Path(tempfile.mkdtemp(prefix="fastjournal-soak-"))
    print(f"{minutes:g} minutes, SOAK_SEED={seed}, in {home}", flush=True)
    total = soak(minutes, seed, home)
    for name in SHOWN:
        print(f"{name:>12}  {getattr(total, name):>9,}")
    rest = [name for name in total.names if name not in SHOWN]
    print("        also ", ", ".join(f"{name} {getattr(total, name):,}" for name in rest))
    if total.broken or not total.rounds:
        print(f"{total.broken} promises were broken; what is left of them is in {home}")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
