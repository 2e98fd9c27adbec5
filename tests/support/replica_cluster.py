"""Three daemons and three etcd, each pair in a network of its own, and what may befall them.

Every node has a network namespace, joined to the others by a bridge, a disk of its own that can be
full, and a clock that can be stepped. Links are cut by routes that lead nowhere, in one direction
or both, and slowed down by a program that passes on what a node says to its peers; clients stay
outside, and still reach whom the others do not. It takes root, `ip`, and etcd; where one of them
is missing the tests are skipped, and say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import fastjournal
import stepped_daemon
from fastjournal.errors import JournalError, LeaseLost
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.replica.disk import ReplicaLog
from fastjournal.testing import wait_until
from replica_world import records_between
from stepped_daemon import StepFile

NODES = ("a", "b", "c")
TTL = 3.0  # seconds
_DISK = "96m"
_BACKLOG = 10_000  # jobs that wait: their snapshots must fit on the disks
_PORT, _INNER = 17001, 17101
_LINKS = 17201  # the first port of slow links, on loopback of each node
_SLOW = Path(__file__).with_name("slow_links.py")


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


class Cluster:
    """The machines."""

    def __init__(self, home: Path, journals: Sequence[str] = ("default",)) -> None:
        if os.geteuid() != 0 or not shutil.which("ip"):
            pytest.skip("network namespaces need root and ip")
        if not shutil.which("etcd"):
            pytest.skip("etcd is not installed (Debian: etcd-server)")
        self.home = home
        self.journals = journals
        self._tag = f"fj{os.getpid() % 10_000}"
        self._net = f"10.{77 + os.getpid() % 100}.{os.getpid() % 250}"
        self.hosts = {name: f"{self._net}.{at}" for at, name in enumerate(NODES, 1)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """The daemons, by node."""
        self.etcds: dict[str, subprocess.Popen[bytes]] = {}
        self.clocks: dict[str, StepFile] = {}
        self._links: list[subprocess.Popen[bytes]] = []
        self._bridge = f"{self._tag}br"
        (home / "secret").write_text("among us")

    def __enter__(self) -> Self:
        try:
            self._plug_in()
            for name in NODES:
                self.start_etcd(name)
                self._slow_links(name)
            for name in NODES:
                self.start(name)
        except BaseException:
            self.close(keep=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(keep=error is not None)

    def close(self, *, keep: bool = False) -> None:
        """Leave nothing behind; `keep`: but what the nodes have on their disks, to be looked at."""
        for process in [*self.processes.values(), *self.etcds.values(), *self._links]:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        for name in NODES:
            if keep:
                shutil.copytree(self.home / name, self.home / f"{name}.kept")
            subprocess.run(["umount", "-l", str(self.home / name)], capture_output=True)
            _ip("netns", "del", self._space(name), check=False)
        _ip("link", "del", self._bridge, check=False)

    def _space(self, name: str) -> str:
        return f"{self._tag}{name}"

    def _plug_in(self) -> None:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no bridge can be made here: {error.stderr.decode().strip()}")
        _ip("addr", "add", f"{self._net}.254/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for name in NODES:
            space, wire = self._space(name), f"{self._tag}v{name}"
            _ip("netns", "add", space)
            _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", wire, "master", self._bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.hosts[name]}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            disk = self.home / name
            disk.mkdir()
            size = f"size={_DISK}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(disk)], check=True)

    def _run(self, name: str, log: str, words: list[str], env: dict[str, str]) -> Any:
        with (self.home / log).open("ab") as out:
            return subprocess.Popen(
                ["ip", "netns", "exec", self._space(name), *words],
                stdout=out, stderr=out, env=os.environ | env,
            )  # fmt: skip

    def start_etcd(self, name: str) -> None:
        """Start one of the three, or start it again."""
        host = self.hosts[name]
        peers = ",".join(f"{one}=http://{at}:2380" for one, at in self.hosts.items())
        words = [
            "etcd", "--name", name, "--data-dir", str(self.home / f"etcd-{name}"),
            "--listen-client-urls", f"http://{host}:2379",
            "--advertise-client-urls", f"http://{host}:2379",
            "--listen-peer-urls", f"http://{host}:2380",
            "--initial-advertise-peer-urls", f"http://{host}:2380", "--initial-cluster", peers,
        ]  # fmt: skip
        env = {"ETCD_UNSUPPORTED_ARCH": "arm64"}
        self.etcds[name] = self._run(name, f"etcd-{name}.log", words, env)

    def _slow_links(self, name: str) -> None:
        """A clock that can be stepped, and links to the others that can be slow."""
        self.clocks[name] = StepFile(self.home / f"{name}.steps")
        self.delay(name, 0)
        words = [sys.executable, str(_SLOW), str(self.home / f"{name}.delay")]
        words += [f"{port}={self.hosts[one]}:{_INNER}" for one, port in self._peers(name).items()]
        self._links.append(self._run(name, f"links-{name}.log", words, {}))

    def _peers(self, name: str) -> dict[str, int]:
        """The port of loopback by which a node speaks to each other one."""
        return {one: _LINKS + at for at, one in enumerate(NODES) if one != name}

    def delay(self, name: str, seconds: float) -> None:
        """What this node says to the others arrives so much later, and what they answer too."""
        (self.home / f"{name}.delay").write_text(str(seconds))

    def start(self, name: str) -> None:
        """Start a daemon, if it does not run."""
        known = self.processes.get(name)
        if known is not None and known.poll() is None:
            return
        others = [one for one in NODES if one != name]
        env = {
            "FASTJOURNAL_INSECURE": "true",
            "FASTJOURNAL_JOURNALS": ",".join(self.journals),
            "FASTJOURNAL_REPLICA_NAME": name,
            "FASTJOURNAL_REPLICA_LISTEN": f"{self.hosts[name]}:{_INNER}",
            "FASTJOURNAL_REPLICA_PEERS": ",".join(
                f"{one}=127.0.0.1:{port}" for one, port in self._peers(name).items()
            ),
            "FASTJOURNAL_REPLICA_ARBITER": ",".join(
                f"http://{self.hosts[one]}:2379" for one in (name, *others)
            ),
            "FASTJOURNAL_REPLICA_SECRET_FILE": str(self.home / "secret"),
            "FASTJOURNAL_REPLICA_TTL": str(TTL),
            "FASTJOURNAL_REPLICA_CLIENTS": f"{self.hosts[name]}:{_PORT}",
            "FASTJOURNAL_JOURNAL_CLEAN_INTERVAL": "1",
            "FASTJOURNAL_JOURNAL_SNAPSHOT_BYTES": "1000000",
            "FASTJOURNAL_JOURNAL_SEGMENT_SIZE": "262144",
        }
        words = [
            sys.executable, stepped_daemon.__file__, str(self.home / f"{name}.steps"),
            str(self.home / name / "data"), "--listen", f"{self.hosts[name]}:{_PORT}",
            "--sync", "always",
        ]  # fmt: skip
        self.processes[name] = self._run(name, f"{name}.log", words, env)

    @property
    def url(self) -> str:
        """For clients of the default journal."""
        return self.url_of("default")

    def url_of(self, journal: str) -> str:
        """For clients of a journal."""
        hosts = ",".join(f"{host}:{_PORT}" for host in self.hosts.values())
        return f"fj://{hosts}/{journal}?timeout=6"

    def ask(self, name: str, command: str = "status", journal: str = "default") -> dict[str, Any]:
        """What an operator asks a node; empty: nobody is there."""
        line = {"command": command, "journal": journal, "secret": "among us"}
        try:
            with socket.create_connection((self.hosts[name], _INNER), 1) as sock:
                sock.settimeout(1)
                sock.sendall(json.dumps(line).encode() + b"\n")
                answer: dict[str, Any] = json.loads(sock.makefile().readline() or "{}")
                return answer
        except (OSError, ValueError):
            return {}

    def primary(self, journal: str = "default") -> str:
        """Who serves under the arbiter's word; empty: nobody."""
        told = {name: self.ask(name, journal=journal) for name in NODES}
        found = [name for name, one in told.items() if one.get("serving") and one["lease"]]
        return found[0] if len(found) == 1 else ""

    def is_well(self) -> bool:
        """Whether each journal is."""
        return all(self._is_well(journal) for journal in self.journals)

    def _is_well(self, journal: str) -> bool:
        """Whether all vote, one serves, and all are as far as it was a moment ago."""
        primary = self.primary(journal)
        goal = self.ask(primary, journal=journal).get("last_time", 0) if primary else 0
        told = [self.ask(name, journal=journal) for name in NODES]
        return bool(goal) and all(
            one.get("eligible") and one.get("last_time", 0) >= goal for one in told
        )

    def cut(self, sender: str, to: str) -> None:
        """Nothing of one node reaches the other."""
        _ip("-n", self._space(sender), "route", "add", "blackhole", f"{self.hosts[to]}/32")

    def mend(self) -> None:
        """Whatever was done is undone; what is down is started, as a supervisor would."""
        for name in NODES:
            for other in NODES:
                route = ("route", "del", "blackhole", f"{self.hosts[other]}/32")
                _ip("-n", self._space(name), *route, check=False)
            with contextlib.suppress(FileNotFoundError):
                (self.home / name / "filler").unlink()
            if self.etcds[name].poll() is not None:
                self.start_etcd(name)
            self.etcds[name].send_signal(signal.SIGCONT)
            self.delay(name, 0)
            self.clocks[name].set(0)
            if self.processes[name].poll() is None:
                self.processes[name].send_signal(signal.SIGCONT)
            self.start(name)

    def kill(self, name: str) -> None:
        """kill -9."""
        self.processes[name].kill()
        self.processes[name].wait()

    def settle(self, *figures: str) -> None:
        """Wait until these are the same on all nodes."""

        def same(journal: str) -> bool:
            told = [self.ask(name, journal=journal) for name in NODES]
            return len({tuple(one.get(word, id(one)) for word in figures) for one in told}) == 1

        for journal in self.journals:
            wait_until(partial(same, journal), seconds=90, what=f"the same {figures}")


class Nemesis:
    """What may befall them: each method does one thing, which `mend` ends."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.deeds: Counter[str] = Counter()

    @classmethod
    def words(cls) -> list[str]:
        """Everything it can do."""
        return [name for name in vars(cls) if name.startswith("do_")]

    def strike(self, word: str) -> None:
        """Do one of them, let it last, mend, and wait until all is well."""
        cluster = self.cluster
        primary = cluster.primary(self.random.choice(cluster.journals))
        primary = primary or self.random.choice(NODES)
        follower = self.random.choice([name for name in NODES if name != primary])
        getattr(self, word)(primary, follower)
        self.deeds[word] += 1
        time.sleep(self.random.uniform(0.2, TTL + 2))
        cluster.mend()
        self.wait_well(word)

    def wait_well(self, word: str = "the start") -> None:
        """Until all vote, one serves, and nobody is behind."""
        wait_until(self._well, seconds=90, what=f"all is well after {word}")

    def _well(self) -> bool:
        for name in NODES:  # one that found its log damaged, or its disk full, has ended
            self.cluster.start(name)
        return self.cluster.is_well()

    def do_kill_primary(self, primary: str, follower: str) -> None:
        self.cluster.kill(primary)

    def do_kill_follower(self, primary: str, follower: str) -> None:
        self.cluster.kill(follower)

    def do_kill_all(self, primary: str, follower: str) -> None:
        for name in NODES:
            self.cluster.kill(name)

    def do_stop_primary(self, primary: str, follower: str) -> None:
        self.cluster.processes[primary].send_signal(signal.SIGSTOP)
        time.sleep(TTL + 1)

    def do_stop_follower(self, primary: str, follower: str) -> None:
        self.cluster.processes[follower].send_signal(signal.SIGSTOP)

    def do_cut_primary(self, primary: str, follower: str) -> None:
        for name in NODES:
            if name != primary:
                self.cluster.cut(primary, name)
                self.cluster.cut(name, primary)
        time.sleep(TTL)

    def do_cut_follower(self, primary: str, follower: str) -> None:
        for name in NODES:
            if name != follower:
                self.cluster.cut(follower, name)
                self.cluster.cut(name, follower)

    def do_one_way(self, primary: str, follower: str) -> None:
        pair = [primary, follower]
        self.random.shuffle(pair)
        self.cluster.cut(*pair)

    def do_bridge(self, primary: str, follower: str) -> None:
        self.cluster.cut(primary, follower)
        self.cluster.cut(follower, primary)

    def do_lose_etcd(self, primary: str, follower: str) -> None:
        for name in self.random.sample(NODES, 2):
            self.cluster.etcds[name].send_signal(signal.SIGSTOP)
        time.sleep(TTL)

    def do_kill_etcd(self, primary: str, follower: str) -> None:
        name = self.random.choice(NODES)
        self.cluster.etcds[name].kill()
        self.cluster.etcds[name].wait()

    def do_fill_disk(self, primary: str, follower: str) -> None:
        victim = self.random.choice((primary, follower))
        with (
            contextlib.suppress(OSError),
            (self.cluster.home / victim / "filler").open("wb", 0) as out,
        ):
            while True:
                out.write(bytes(65536))

    def do_wipe(self, primary: str, follower: str) -> None:
        victim = self.random.choice((primary, follower))
        self.cluster.kill(victim)
        shutil.rmtree(self.cluster.home / victim / "data")

    def do_flip(self, primary: str, follower: str) -> None:
        victim = self.random.choice((primary, follower))
        self.cluster.kill(victim)
        logs = sorted((self.cluster.home / victim / "data").glob("*/*.log"))
        path = self.random.choice(logs)
        content = bytearray(path.read_bytes())
        if len(content) > 100:
            content[self.random.randrange(8, max(9, len(content) // 2))] ^= 16
            path.write_bytes(bytes(content))

    def do_clock_ahead(self, primary: str, follower: str) -> None:
        self.cluster.clocks[self.random.choice((primary, follower))].set(2 * 3600)
        time.sleep(TTL)

    def do_clock_behind(self, primary: str, follower: str) -> None:
        self.cluster.clocks[self.random.choice((primary, follower))].set(-2 * 3600)
        time.sleep(TTL)

    def do_slow_links(self, primary: str, follower: str) -> None:
        victim = self.random.choice((primary, follower))
        self.cluster.delay(victim, self.random.uniform(0.05, 0.5))
        time.sleep(TTL)

    def do_switchover(self, primary: str, follower: str) -> None:
        for journal in self.cluster.journals:  # whoever does not lead it refuses
            self.cluster.ask(primary, "switchover", journal)


class Clients:
    """Producers and workers, and what they were told."""

    def __init__(self, url: str, producers: int = 2, workers: int = 2) -> None:
        self._url = url
        self._over = threading.Event()
        self.put: list[str] = []
        """Keys whose put was acknowledged."""
        self.completed: Counter[str] = Counter()
        """Keys by how many completions were acknowledged."""
        self.maybe: set[str] = set()
        """Keys whose completion went out, and nobody knows."""
        self._threads = [
            *(threading.Thread(target=self._produce, args=(n,)) for n in range(producers)),
            *(threading.Thread(target=self._work) for _ in range(workers)),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _again(self, work: Any) -> None:
        while not self._over.is_set():
            with contextlib.suppress(JournalError), fastjournal.connect(self._url) as journal:
                work(journal)

    def _produce(self, number: int) -> None:
        count = 0

        def work(journal: fastjournal.Client) -> None:
            nonlocal count
            while not self._over.is_set():
                if len(self.put) - len(self.completed) > _BACKLOG:
                    self._over.wait(0.05)
                    continue
                count += 1
                key = f"{number} {count}"
                journal.put(b"x" * 300, key=key, queue="q")
                self.put.append(key)

        self._again(work)

    def _work(self) -> None:
        def work(journal: fastjournal.Client) -> None:
            while not self._over.is_set():
                job = journal.lease("q", wait=0.5, lease=2)
                if job is None:
                    continue
                key = job.key
                try:
                    journal.complete(job.id, job.token)
                    self.completed[key] += 1
                except LeaseLost:
                    continue
                except JournalError:
                    self.maybe.add(key)
                    raise

        self._again(work)

    def put_more(self, count: int) -> None:
        with fastjournal.connect(self._url) as journal:
            for number in range(count):
                journal.put(b"x" * 300, key=f"more {number}", queue="q")

    def left(self) -> set[str]:
        """What still waits, when all is over."""
        found: set[str] = set()
        with fastjournal.connect(self._url) as journal:
            while jobs := journal.lease_many(500, "q", lease=600):
                found |= {job.key for job in jobs}
            found |= {job.key for job in journal.jobs("q", limit=1_000_000, values=False)}
        return found


def audit(cluster: Cluster, journal: str = "default") -> int:
    """What Spark's audit of one node's log says: 0 if nothing, or notes only.

    The daemons have ended, and all that is there is on a majority.
    """
    directory = str(cluster.home / NODES[0] / "data" / journal)
    command = [sys.executable, "-m", "fastjournal.cli.app", "spark", "audit", directory]
    return subprocess.run(command).returncode


def compare_logs(cluster: Cluster, journal: str = "default") -> int:
    """What a majority has is the same bytes on every node; returns how many bytes that is.

    The daemons have ended.
    """
    logs = [
        ReplicaLog(Stream(cluster.home / name / "data" / journal, WORKQ), sync="always")
        for name in NODES
    ]
    base, commit = max(log.base for log in logs), min(log.commit_time for log in logs)
    found = {records_between(log, base, commit) for log in logs}
    for log in logs:
        assert not log.damage
        log.close()
    assert len(found) == 1, [len(one) for one in found]
    return len(found.pop())
