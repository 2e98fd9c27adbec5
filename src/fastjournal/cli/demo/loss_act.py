"""The fifth act of the demonstration: a directory is lost, and a primary is.

Rules:

1. What was there at an instant is remembered by the judge, before anything is lost.
2. Three nodes take an etcd. Where none is installed, that is said and the rest is shown.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from fastjournal.archive.manifest import find_newest
from fastjournal.archive.restore import plan_restore, restore
from fastjournal.archive.store import open_store
from fastjournal.cli.demo.players import Troupe, free_port
from fastjournal.cli.demo.stage import Stage
from fastjournal.client import Client
from fastjournal.errors import JournalError
from fastjournal.journal.journal import Journal

__all__ = ["LossAct"]

JOBS = 200
NODES = ("a", "b", "c")
PATIENCE = 40.0  # seconds


class LossAct:
    """Shows the archive and the replicas."""

    def __init__(self, stage: Stage, home: Path) -> None:
        self._stage = stage
        self._home = home

    def show(self) -> None:
        """Both losses."""
        self._directory_lost(self._home / "archive")
        if shutil.which("etcd") is None:
            self._stage.step("Three nodes: left out")
            self._stage.say("they take an etcd, which is not installed here (Debian: etcd-server)")
            return
        self._primary_lost(self._home / "nodes")

    def _directory_lost(self, home: Path) -> None:
        stage = self._stage
        stage.step("A journal ships its history; then its directory is gone")
        home.mkdir(parents=True)
        jobs, archive = home / "jobs", home / "archive"
        with Journal(jobs, archive=str(archive), sync="always") as journal:
            for number in range(JOBS):
                journal.put(b"%d" % number, queue="letters")
            before = {job.id: job.payload for job in journal.jobs("letters", limit=JOBS)}
            instant = journal.engine.clock.now()
            for job_id in before:
                journal.delete(job_id)
            journal.sync()
            journal.ship()
            gone = not journal.jobs("letters")
        shutil.rmtree(jobs)
        stage.claim(f"{JOBS} letters were there, then deleted by mistake, then the disk died", gone)
        store = open_store(str(archive))
        manifest = find_newest(store)
        assert manifest is not None
        began = time.monotonic()
        restore(store, plan_restore(manifest, instant), jobs)
        took = f"{time.monotonic() - began:.2f} s"
        with Journal(jobs) as journal:
            after = {job.id: job.payload for job in journal.jobs("letters", limit=2 * JOBS)}
        stage.figure("a lost directory, restored to the instant before a mistake", took)
        stage.claim(
            f"restored as of the instant before the mistake: all {len(after)} letters, {took}",
            after == before,
        )

    def _primary_lost(self, home: Path) -> None:
        stage = self._stage
        stage.step("Three nodes keep one journal; the one that serves is killed with -9")
        with Troupe(home) as troupe:
            nodes = Nodes(troupe)
            with Client(nodes.url) as client:
                _wait(nodes.joined)
                acknowledged = self._put(client, 0)
                primary = nodes.serving()
                troupe.kill(nodes.running[primary])
                began = time.monotonic()
                acknowledged += self._put(client, len(acknowledged))
                took = f"{time.monotonic() - began:.1f} s"
                other = nodes.serving()
                there = {job.payload for job in client.jobs("letters", limit=10 * JOBS)}
            stage.say(f"node {primary} was killed; node {other} serves")
            stage.figure("a primary killed, until another had taken 200 puts", took)
            stage.claim("another node serves", bool(other) and other != primary)
            stage.claim(
                f"all {len(acknowledged)} acknowledged letters are there, {took} after the kill",
                len(acknowledged) == 2 * JOBS and there >= set(acknowledged),
            )

    def _put(self, client: Client, start: int) -> list[bytes]:
        """Put so many; what was acknowledged."""
        acknowledged: list[bytes] = []
        give_up = time.monotonic() + PATIENCE
        for number in count(start):
            if len(acknowledged) == JOBS or time.monotonic() > give_up:
                break
            try:
                client.put(b"%d" % number, queue="letters")
            except JournalError:
                continue  # nobody knows whether it is there
            acknowledged.append(b"%d" % number)
        return acknowledged


class Nodes:
    """Three daemons and an etcd."""

    def __init__(self, troupe: Troupe) -> None:
        ports = [free_port() for _ in range(8)]
        self._inner = dict(zip(NODES, ports, strict=False))
        outer = dict(zip(NODES, ports[3:], strict=False))
        etcd, peers = (f"http://127.0.0.1:{port}" for port in ports[6:])
        self.url = "fj://" + ",".join(f"127.0.0.1:{port}" for port in outer.values())
        troupe.other(
            "etcd", "--data-dir", str(troupe.home / "etcd"), "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peers,
            "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
        )  # fmt: skip
        _wait(lambda: _answers(ports[6]))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name in NODES:
            others = [f"{node}=127.0.0.1:{self._inner[node]}" for node in NODES if node != name]
            settings = {
                "FASTJOURNAL_LISTEN": f"127.0.0.1:{outer[name]}",
                "FASTJOURNAL_JOURNAL_SYNC": "always",
                "FASTJOURNAL_REPLICA_NAME": name,
                "FASTJOURNAL_REPLICA_LISTEN": f"127.0.0.1:{self._inner[name]}",
                "FASTJOURNAL_REPLICA_PEERS": ",".join(others),
                "FASTJOURNAL_REPLICA_ARBITER": etcd,
                "FASTJOURNAL_REPLICA_TTL": "2",
                "FASTJOURNAL_REPLICA_ACK": "quorum",
            }
            self.running[name] = troupe.node(troupe.home / name, settings)
        _wait(lambda: bool(self.serving()))

    def serving(self) -> str:
        """Who serves; empty: nobody."""
        found = [name for name in NODES if self._status(name).get("serving")]
        return found[0] if found else ""

    def joined(self) -> bool:
        """Whether all have the same."""
        return len({self._status(name).get("last_time", name) for name in NODES}) == 1

    def _status(self, name: str) -> dict[str, object]:
        try:
            with socket.create_connection(("127.0.0.1", self._inner[name]), 2) as sock:
                sock.settimeout(2)
                line = {"command": "status", "journal": "default", "secret": ""}
                sock.sendall(json.dumps(line).encode() + b"\n")
                answer: dict[str, object] = json.loads(sock.makefile().readline() or "{}")
                return answer
        except (OSError, ValueError):
            return {}


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _wait(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.05)
