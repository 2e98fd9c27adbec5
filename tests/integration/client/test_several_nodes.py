"""A client of several nodes finds the one that serves, and finds it again; on both twins."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastjournal
from daemon_process import free_port
from fastjournal.errors import Unavailable
from fastjournal.testing.daemon import LocalDaemon


def test_the_blocking_client_finds_who_serves_and_finds_it_again(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    url = "fj://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "?timeout=20"
    with LocalDaemon(tmp_path / "data", settings={"listen": [f"127.0.0.1:{ports[1]}"]}):
        client = fastjournal.connect(url)
        client.put(b"one", key="one", queue="q")
    with LocalDaemon(tmp_path / "data", settings={"listen": [f"127.0.0.1:{ports[2]}"]}):
        client.put(b"two", key="two", queue="q")
        assert [job.key for job in client.jobs("q")] == ["one", "two"]
        client.close()


async def test_the_asyncio_client_finds_who_serves_and_finds_it_again(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    url = "fj://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "?timeout=20"
    with LocalDaemon(tmp_path / "data", settings={"listen": [f"127.0.0.1:{ports[1]}"]}):
        client = await fastjournal.aconnect(url)
        await client.put(b"one", key="one", queue="q")
    with LocalDaemon(tmp_path / "data", settings={"listen": [f"127.0.0.1:{ports[2]}"]}):
        await client.put(b"two", key="two", queue="q")
        assert [job.key for job in await client.jobs("q")] == ["one", "two"]
        await client.close()


def test_nodes_of_which_none_serves_are_named(tmp_path: Path) -> None:
    url = f"fj://127.0.0.1:{free_port()},127.0.0.1:{free_port()}?timeout=0.2&connect_timeout=0.2"
    with pytest.raises(Unavailable), fastjournal.connect(url) as client:
        client.put(b"x", queue="q")
