"""Stores of every kind: memory, a directory, and S3 as `moto` serves it on loopback."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from fastjournal.archive.store import DirectoryStore, MemoryStore, ObjectStore, Store

_numbers = count()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A server that speaks S3, conditional writes too, with one bucket `archive`."""
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("obstore")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/archive", method="PUT")).close()
    yield endpoint
    server.stop()


@pytest.fixture
def s3_environment(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What finds that server in the environment; returns an address of its own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    return f"s3://archive/jobs{next(_numbers)}"


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store."""
    if request.param == "directory":
        return DirectoryStore(tmp_path / "archive")
    return ObjectStore(request.getfixturevalue("s3_environment"))


@pytest.fixture(params=["memory", "directory", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """The same, and one in memory."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "directory":
        return DirectoryStore(tmp_path / "archive")
    return ObjectStore(request.getfixturevalue("s3_environment"))
