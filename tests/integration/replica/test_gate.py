"""What waits for other nodes: answers, and what subscribers are told."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fastjournal.config import JournalSettings, ReplicaSettings, Settings
from fastjournal.daemon.log_lines import Lines
from fastjournal.daemon.main import make_server
from fastjournal.daemon.replicated.gate import Gate as ReignGate
from fastjournal.daemon.replicated.serve import serve_replicated
from fastjournal.errors import SettingError
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon


class Gate:
    """Other nodes that have what the test says."""

    def __init__(self) -> None:
        self.safe = 0

    def wrote(self) -> None:
        """Nothing is shipped."""

    def synced(self) -> None:
        """Nobody counts."""

    def safe_time(self) -> int:
        return self.safe


def test_a_push_tells_nothing_that_only_this_node_has(tmp_path: Path) -> None:
    """F58: as answers do, it waits for the others."""
    with LocalDaemon(tmp_path, settings={"journal": {"sync": "always"}}) as daemon:
        gate, loop = Gate(), daemon.server.default

        def close_gate() -> None:
            loop.gate = loop.subscriptions.gate = gate

        def let_through() -> None:
            gate.safe = 1 << 62
            loop.release()

        with daemon.connect() as listener, daemon.connect() as producer:
            listening = listener.subscribe("q")
            daemon.call(close_gate)
            put = threading.Thread(target=lambda: producer.put(b"job", key="a", queue="q"))
            put.start()
            wait_until(lambda: loop.engine.counts.puts == 1, what="it is carried out")
            assert listening.next(wait=0.05) is None
            assert put.is_alive()
            daemon.call(let_through)
            event = listening.next(wait=10)
            assert event is not None
            assert event.kind == "due"
            put.join(10)
            assert not put.is_alive()


def test_a_node_is_told_of_in_hello_and_in_the_figures(tmp_path: Path) -> None:
    """What a client and an operator may ask of a primary."""
    told = {
        "node": "a", "journal": "default", "role": "primary", "serving": True, "epoch": 7,
        "primary": "a", "address": "host:1", "eligible": True, "last_time": 5, "commit_time": 5,
        "snapshot_time": 0, "quorum": True, "lease": True, "damage": "",
        "lag": {"b": {"records": 3, "bytes": 99, "seconds": 0.5}},
    }  # fmt: skip
    with LocalDaemon(tmp_path) as daemon:
        with daemon.connect() as client:
            assert "replica" not in client.about
        daemon.server.replicas = {"default": lambda: told}
        with daemon.connect() as client:
            assert client.about["replica"] == {
                "node": "a", "role": "primary", "primary": "a", "epoch": 7,
                "address": "host:1",
            }  # fmt: skip
            assert client.status().replica.epoch == 7  # type: ignore[attr-defined]


def test_a_node_that_answers_no_more_still_tells_how_far_its_log_is(tmp_path: Path) -> None:
    """F58: others ask for that while its journal is being closed."""
    with LocalDaemon(tmp_path, settings={"journal": {"sync": "always"}}) as daemon:
        with daemon.connect() as client:
            client.put(b"job", key="a", queue="q")
        node: Any = None
        gate = ReignGate(node, "quorum")
        daemon.call(lambda: gate.open(daemon.server.default))
        far = gate.stored_time()
        assert far > 0
        daemon.call(gate.close)
        assert gate.stored_time() == gate.written_time() == far
        assert gate.safe_time() == -1
        daemon.server.default.gate = None


async def test_an_archive_inside_each_node_is_refused_not_forgotten(tmp_path: Path) -> None:
    """One archive for all: what a node keeps beside its log dies with it."""
    settings = Settings(
        data=str(tmp_path),
        journal=JournalSettings(history="archive"),
        replica=ReplicaSettings(name="a", arbiter=("http://127.0.0.1:1",)),
    )
    with pytest.raises(SettingError, match="one place"):
        await serve_replicated(settings, make_server, Lines(sys.stderr), asyncio.Event())
