"""Three daemons and an etcd as processes of their own, for tests that kill them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from daemon_process import DaemonProcess, free_port
from fastjournal.testing import wait_until

NODES = ("a", "b", "c")


class Etcd:
    """One etcd of its own; the test is skipped, and says so, where none is installed."""

    def __init__(self, home: Path) -> None:
        found = shutil.which("etcd")
        if found is None:
            pytest.skip("etcd is not installed (Debian: etcd-server)")
        port, peer = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        mine, others = self.url, f"http://127.0.0.1:{peer}"
        self.log = (home / "etcd.log").open("w")
        self.process = subprocess.Popen(
            [found, "--data-dir", str(home / "etcd"), "--listen-client-urls", mine,
             "--advertise-client-urls", mine, "--listen-peer-urls", others,
             "--initial-advertise-peer-urls", others, "--initial-cluster", f"default={others}"],
            stdout=self.log, stderr=self.log, env=os.environ | {"ETCD_UNSUPPORTED_ARCH": "arm64"},
        )  # fmt: skip
        wait_until(lambda: _answers(port), seconds=30, what="etcd answers")

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self.log.close()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Rig:
    """Three daemons that keep one journal."""

    def __init__(
        self,
        home: Path,
        *,
        sync: str = "always",
        ack: str = "quorum",
        more: dict[str, str] | None = None,
    ) -> None:
        """`more`: settings, as the environment tells them."""
        self.etcd = Etcd(home)
        self.inner = {name: free_port() for name in NODES}
        self.http = {name: free_port() for name in NODES}
        self.daemons = {}
        for name in NODES:
            peers = [f"{other}=127.0.0.1:{self.inner[other]}" for other in NODES if other != name]
            env = {
                "FASTJOURNAL_HTTP": f"127.0.0.1:{self.http[name]}",
                "FASTJOURNAL_REPLICA_NAME": name,
                "FASTJOURNAL_REPLICA_LISTEN": f"127.0.0.1:{self.inner[name]}",
                "FASTJOURNAL_REPLICA_PEERS": ",".join(peers),
                "FASTJOURNAL_REPLICA_ARBITER": self.etcd.url,
                "FASTJOURNAL_REPLICA_TTL": "2",
                "FASTJOURNAL_REPLICA_ACK": ack,
                "FASTJOURNAL_JOURNAL_SYNC": sync,
            } | (more or {})
            self.daemons[name] = DaemonProcess(home / name, env=env)

    @property
    def url(self) -> str:
        """All of them."""
        ports = ",".join(f"127.0.0.1:{daemon.port}" for daemon in self.daemons.values())
        return f"fj://{ports}?timeout=60"

    def start(self) -> None:
        """Start all that do not run."""
        for daemon in self.daemons.values():
            if daemon.process is None or daemon.process.poll() is not None:
                daemon.start(wait=False)

    def ask(
        self,
        name: str,
        command: str = "status",
        member: str = "",
        *,
        leaves: str = "",
        journal: str = "default",
    ) -> dict[str, Any]:
        """What `fastjournal replica` asks; empty: nobody is there."""
        try:
            with socket.create_connection(("127.0.0.1", self.inner[name]), 2) as sock:
                sock.settimeout(2)
                line = {"command": command, "journal": journal, "secret": "", "member": member}
                line["leaves"] = leaves
                sock.sendall(json.dumps(line).encode() + b"\n")
                answer: dict[str, Any] = json.loads(sock.makefile().readline() or "{}")
                return answer
        except (OSError, ValueError):
            return {}

    def get(self, name: str, path: str) -> tuple[int, str]:
        """What a node says by HTTP: the status, and the text."""
        connection = HTTPConnection("127.0.0.1", self.http[name], timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def primary(self) -> str:
        """Who serves; empty: nobody."""
        serving = [name for name in NODES if self.ask(name).get("serving")]
        return serving[0] if len(serving) == 1 else ""

    def wait_primary(self) -> str:
        """Wait until somebody serves."""
        found = ""

        def serves() -> bool:
            nonlocal found
            found = self.primary()
            return bool(found)

        wait_until(serves, seconds=40, what="somebody serves")
        return found

    def caught_up(self) -> bool:
        """Whether all nodes hold the same, and know it to be on a majority."""
        told = [self.ask(name) for name in NODES]
        ends = {(one.get("last_time"), one.get("commit_time")) for one in told}
        return len(ends) == 1 and all(told) and any(one["serving"] for one in told)

    def wait_joined(self) -> None:
        """Wait until every node has what the primary has now, though more is put meanwhile."""
        goal = self.ask(self.wait_primary()).get("last_time", 0)
        wait_until(
            lambda: all(self.ask(name).get("last_time", -1) >= goal for name in NODES),
            seconds=40,
            what="all nodes are there again",
        )

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.daemons[name].process
        assert process is not None
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for daemon in self.daemons.values():
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.wait()
        self.etcd.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
