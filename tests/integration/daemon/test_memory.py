"""A daemon whose journal is larger than its memory, over the wire."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from fastjournal.client import Client
from fastjournal.config import load
from fastjournal.errors import CorruptRecord, JournalFault, QueueFull, SettingError
from fastjournal.testing.daemon import LocalDaemon

LIMIT = 65_536


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    settings = {"journal": {"memory_limit": LIMIT, "sync": "os"}}
    with LocalDaemon(tmp_path / "data", settings=settings) as running:
        yield running


@pytest.fixture
def client(daemon: LocalDaemon) -> Iterator[Client]:
    with daemon.connect() as connected:
        yield connected


def value(number: int) -> bytes:
    return b"%d " % number * 2000


def test_entries_and_jobs_beyond_the_limit_come_over_the_wire(
    daemon: LocalDaemon, client: Client
) -> None:
    """FJ-KV-1: by key, by range, leased one by one and many at a time, looked at."""
    for number in range(100):
        client.entries[f"k{number:03}"] = value(number)
        client.put(value(number), queue="q", key=str(number))
    engine = daemon.server.journals["default"].engine
    assert engine.values.bytes <= LIMIT
    assert [client.entries[f"k{number:03}"] for number in range(100)] == [
        value(number) for number in range(100)
    ]
    assert [entry.value for entry in client.entries.range()] == [
        value(number) for number in range(100)
    ]
    assert client.job(key="7", queue="q").value[:20] == value(7)[:20]
    first = client.lease("q")
    assert first is not None
    got = [first.payload, *(job.payload for job in client.lease_many(99, "q"))]
    while len(got) < 100:
        got += [job.payload for job in client.lease_many(99, "q")]
    assert got == [value(number) for number in range(100)]
    assert engine.values.bytes <= LIMIT
    assert engine.values.loads > 100


def test_what_lives_in_memory_only_is_full_over_the_wire(client: Client) -> None:
    """FJ-KV-2: FULL, and what is there stays."""
    client.entries.set("kept", value(1), persist=False)
    with pytest.raises(QueueFull):
        client.entries.set("more", bytes(LIMIT), persist=False)
    assert client.entries["kept"] == value(1)
    client.entries.set("more", bytes(LIMIT))
    assert client.entries["more"] == bytes(LIMIT)


def test_a_damaged_value_is_an_error_of_its_own_request(
    daemon: LocalDaemon, client: Client, tmp_path: Path
) -> None:
    for number in range(40):
        client.entries[f"k{number}"] = value(number)
    host = daemon.server.journals["default"]
    with host.engine.lock:
        row = next(host.state.keys.find(b"", b"k3"))
    assert row.value is None
    path = host.engine.log.stream.segment_path(row.segment)
    with path.open("r+b") as file:
        file.seek(row.offset + 1000)
        file.write(b"?!")
    with pytest.raises(JournalFault, match=path.name):
        client.entries["k3"]
    with pytest.raises(CorruptRecord):
        host.journal.entries["k3"]
    assert client.entries["k4"] == value(4)


def test_stat_shows_the_memory_of_a_daemon(daemon: LocalDaemon, client: Client) -> None:
    for number in range(30):
        client.entries[f"k{number}"] = value(number)
    command = [sys.executable, "-m", "fastjournal.cli.app", "status", "--url", daemon.url]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "30 entries; " in shown
    assert "of values in memory, limit 64.0 KiB" in shown
    raw = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    found = json.loads(raw)
    assert found["memory_limit"] == LIMIT
    assert 0 < found["value_bytes"] <= LIMIT


def test_metrics_tell_what_the_memory_does(daemon: LocalDaemon, client: Client) -> None:
    for number in range(30):
        client.entries[f"k{number}"] = value(number)
    assert client.entries["k0"] == value(0)
    with urlopen(f"http://127.0.0.1:{daemon.http_port}/metrics", timeout=10) as page:
        told = page.read().decode()
    assert 'fastjournal_memory_limit_bytes{journal="default"} 65536.0' in told
    assert 'fastjournal_memory_loads_total{journal="default"} 1.0' in told


def test_the_limit_is_a_setting() -> None:
    given = {"FASTJOURNAL_JOURNAL_MEMORY_LIMIT": "1048576"}
    assert load(environment=given).journal.memory_limit == 1 << 20
    assert load(environment={}).journal.memory_limit == 0
    with pytest.raises(SettingError) as caught:
        load(environment={"FASTJOURNAL_JOURNAL_MEMORY_LIMIT": "-1"})
    assert caught.value.name == "journal.memory_limit"
