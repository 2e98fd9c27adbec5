"""Where a sitting of the soak takes place: what is kept, and who strikes at it.

Rules:

1. A stage heals whatever it has struck at before it strikes again, and is whole when it is judged.
2. Power is cut under `always` alone: the other policies promise less, and say so.
3. The clock is stepped while the daemon runs, by hours, to where it is two hours behind that of
   the clients, with it, or two hours ahead. Where it stands is kept over a restart. A schedule
   makes up for 1000 missed instants at most, so there its instants lie further apart.
4. Links between replicas are cut in networks of their own, which take root; else they are only
   killed and paused.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from loop_disk import LoopDisk

import fastjournal
import stepped_daemon
from daemon_process import DaemonProcess
from fastjournal import Client, Journal
from fastjournal.clock import SECOND
from fastjournal.testing import check_one_waiting_row, check_replay, wait_until
from kill_harness import QUEUE, QUEUES, SETTINGS
from replica_cluster import Cluster
from replica_cluster import Nemesis as ClusterNemesis
from replica_rig import NODES, Rig

__all__ = [
    "ClusterStage",
    "DaemonStage",
    "Nemesis",
    "ReplicaStage",
    "Stage",
    "has_etcd",
    "has_networks",
]

POLICIES = ("interval", "always", "os")
DESCRIPTORS = 200
HOURS = (-2, 0, 2)
Nemesis = Callable[[], None]


class Stage(Protocol):
    """Where a sitting takes place."""

    name: str
    drift: int
    """By how much a lease may end early, ns."""
    every: int
    """Seconds between two instants of the schedule."""

    @property
    def url(self) -> str:
        """For clients."""

    @property
    def nemeses(self) -> list[Nemesis]:
        """Who may strike."""

    def at_rest(self) -> AbstractContextManager[Journal | Client]:
        """What there is in the end."""

    def keep(self) -> None:
        """What is judged stays, to be looked at."""

    def close(self) -> None:
        """End everything."""


def rest(seconds: float) -> None:
    """Let the others work for a while."""
    threading.Event().wait(seconds)


def configure(url: str) -> None:
    """No job may die of what befalls it here."""
    with fastjournal.connect(f"{url}?timeout=60") as client:
        for queue in QUEUES:
            client.configure(queue, **QUEUE)


class DaemonStage:
    """One daemon: with a disk of its own under `always`, else under each policy in turn."""

    drift = SECOND
    every = 15

    def __init__(self, home: Path, chance: random.Random, *, own_disk: bool) -> None:
        self._chance = chance
        self._disk = LoopDisk.make(home) if own_disk else None
        self.name = "daemon whose power is cut" if self._disk else "daemon"
        self._clock = stepped_daemon.StepFile(home / "steps")
        self._clock.set(chance.choice(HOURS) * 3600)
        data = (self._disk.path if self._disk else home) / "data"
        self._daemon = DaemonProcess(
            data, env=SETTINGS, files=(DESCRIPTORS, DESCRIPTORS),
            program=(stepped_daemon.__file__, str(home / "steps")),
        )  # fmt: skip
        self._daemon.log = home / "daemon.stderr"
        self._starts = 0
        self._start()
        configure(self._daemon.url)

    @property
    def url(self) -> str:
        """Of the daemon."""
        return self._daemon.url

    @property
    def nemeses(self) -> list[Nemesis]:
        """Who may strike."""
        usual = [self.kill, self.kill, self.pause, self.use_up_descriptors, self.step_clock]
        return [*usual, self.cut_power, self.cut_power, self.fill_disk] if self._disk else usual

    def kill(self) -> None:
        """SIGKILL, now and then twice: again while it starts."""
        self._daemon.kill()
        self._start(wait=False)
        if self._chance.random() < 0.3:
            rest(self._chance.uniform(0.1, 0.8))
            self._daemon.kill()
            self._start(wait=False)
        self._daemon.wait_ready()

    def pause(self) -> None:
        """SIGSTOP, for shorter or longer than leases last."""
        self._daemon.signal(signal.SIGSTOP)
        rest(self._chance.uniform(0.2, 4))
        self._daemon.signal(signal.SIGCONT)

    def use_up_descriptors(self) -> None:
        """As many idle connections as it takes."""
        held: list[socket.socket] = []
        with contextlib.suppress(OSError):
            for _ in range(2 * DESCRIPTORS):
                held.append(socket.create_connection(("127.0.0.1", self._daemon.port), 0.5))
        rest(self._chance.uniform(0.5, 2))
        for sock in held:
            sock.close()

    def step_clock(self) -> None:
        """Back or forth by hours; leases keep their length once the daemon has seen it."""
        with Client(f"{self.url}?timeout=60&connect_timeout=60"):
            pass  # its journal is open: a step before that is seen by nobody
        elsewhere = [hours for hours in HOURS if hours * 3600 * SECOND != self._clock.ahead]
        self._clock.set(self._chance.choice(elsewhere) * 3600)
        wait_until(self._has_followed, seconds=60, what="the daemon has followed its clock")

    def _has_followed(self) -> bool:
        """As a quick answer tells; what is less than a second is followed at once."""
        asked = time.monotonic()
        with Client(f"{self.url}?timeout=60") as client:
            told = client.server_now()
        return time.monotonic() - asked < 0.2 and told > self._clock.now() - SECOND // 2

    def cut_power(self) -> None:
        """What was not synced is gone."""
        assert self._disk is not None
        self._daemon.signal(signal.SIGKILL)  # it goes with the machine: nothing is answered after
        self._disk.cut_power()
        self._daemon.kill()
        self._disk.power_up()
        self._start()

    def fill_disk(self) -> None:
        """To the last byte; now and then it is killed in this state."""
        assert self._disk is not None
        self._disk.fill()
        rest(self._chance.uniform(0.5, 3))
        if self._chance.random() < 0.5:
            self._daemon.kill()
            self._start(wait=False)
            rest(self._chance.uniform(0.2, 2))
        self._disk.empty()
        try:
            self._daemon.wait_ready()
        except AssertionError:  # it does not start where it cannot write
            self._start()

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[Journal]:
        """What there is when the daemon has stopped."""
        code = self._daemon.stop()
        assert code == 0, self._daemon.log.read_text()
        with Journal(self._daemon.data / "default", background=False, clock=self._clock) as journal:
            check_replay(journal)
            check_one_waiting_row(journal)
            yield journal

    def keep(self) -> None:
        """What is judged stays, to be looked at: the disk itself goes."""
        if self._disk is not None:
            shutil.copytree(self._daemon.data, self._disk.path.parent / "data")

    def close(self) -> None:
        """End everything."""
        process = self._daemon.process
        if process is not None and process.poll() is None:
            self._daemon.signal(signal.SIGCONT)
            self._daemon.kill()
        if self._disk is not None:
            self._disk.close()

    def _start(self, *, wait: bool = True) -> None:
        policy = "always" if self._disk else POLICIES[self._starts % len(POLICIES)]
        self._starts += 1
        self._daemon.options = ("--sync", policy)
        self._daemon.start(wait=wait)


def has_etcd() -> bool:
    """Whether there can be replicas."""
    return shutil.which("etcd") is not None


def has_networks() -> bool:
    """Whether each of them can have a network of its own."""
    return has_etcd() and os.geteuid() == 0 and shutil.which("ip") is not None


class ClusterStage:
    """Three daemons and three etcd, each pair in a network of its own."""

    name = "three replicas whose links are cut"
    drift = SECOND
    every = 1

    def __init__(self, home: Path, chance: random.Random) -> None:
        self._open = contextlib.ExitStack()
        self._cluster = self._open.enter_context(Cluster(home))
        self._nemesis = ClusterNemesis(self._cluster, chance.randrange(10**6))
        try:
            self._nemesis.wait_well()
            configure(self.url)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Of all three."""
        return self._cluster.url.partition("?")[0]

    @property
    def nemeses(self) -> list[Nemesis]:
        """Who may strike."""
        return [self._strike(word) for word in ClusterNemesis.words()]

    def _strike(self, word: str) -> Nemesis:
        def strike() -> None:
            self._nemesis.strike(word)

        strike.__name__ = word.removeprefix("do_")
        return strike

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[Client]:
        """What whoever serves now has."""
        self._nemesis.wait_well()
        with Client(f"{self.url}?timeout=60") as client:
            yield client

    def keep(self) -> None:
        """It lies where it may stay."""

    def close(self) -> None:
        """End everything."""
        self._open.close()


class ReplicaStage:
    """Three daemons and an etcd; what a majority has is acknowledged."""

    name = "three replicas"
    drift = 0
    every = 1

    def __init__(self, home: Path, chance: random.Random) -> None:
        self._chance = chance
        self._rig = Rig(home)
        self._rig.start()
        self._rig.wait_joined()
        configure(self.url)

    @property
    def url(self) -> str:
        """Of all three."""
        return self._rig.url.partition("?")[0]

    @property
    def nemeses(self) -> list[Nemesis]:
        """Who may strike."""
        return [self.kill_primary, self.kill_follower, self.pause_primary, self.kill_all]

    def kill_primary(self) -> None:
        """SIGKILL."""
        self._kill([self._rig.wait_primary()])

    def kill_follower(self) -> None:
        """SIGKILL."""
        primary = self._rig.wait_primary()
        self._kill([self._chance.choice([name for name in NODES if name != primary])])

    def kill_all(self) -> None:
        """SIGKILL of the whole house."""
        self._kill(list(NODES))

    def pause_primary(self) -> None:
        """SIGSTOP, for shorter or longer than it may lead without asking."""
        daemon = self._rig.daemons[self._rig.wait_primary()]
        daemon.signal(signal.SIGSTOP)
        rest(self._chance.uniform(0.5, 6))
        daemon.signal(signal.SIGCONT)
        self._rig.wait_joined()

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[Client]:
        """What whoever serves now has."""
        self._rig.wait_joined()
        with Client(self._rig.url) as client:
            yield client

    def keep(self) -> None:
        """It lies where it may stay."""

    def close(self) -> None:
        """End everything."""
        for daemon in self._rig.daemons.values():
            if daemon.process is not None and daemon.process.poll() is None:
                os.kill(daemon.process.pid, signal.SIGCONT)
        self._rig.stop()

    def _kill(self, names: list[str]) -> None:
        for name in names:
            self._rig.daemons[name].kill()
        rest(self._chance.uniform(0, 3))
        self._rig.start()
        self._rig.wait_joined()
