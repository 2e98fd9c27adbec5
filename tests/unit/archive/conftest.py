"""Stores of every kind: memory, a directory, S3 by `moto`, and Azure by Azurite if it is there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from azure_server import CONTAINER, serve_azure
from fastjournal.archive.store import DirectoryStore, MemoryStore, ObjectStore, Store
from s3_server import BUCKET, environment, serve_s3

_numbers = count()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A server that speaks S3, with one bucket `archive`."""
    pytest.importorskip("obstore")
    with serve_s3() as endpoint:
        yield endpoint


@pytest.fixture
def s3_environment(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What finds that server in the environment; returns an address of its own."""
    for name, value in environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/jobs{next(_numbers)}"


@pytest.fixture(scope="session")
def azure_variables() -> Iterator[dict[str, str]]:
    """What finds a server that speaks Azure's blobs."""
    pytest.importorskip("obstore")
    with serve_azure() as found:
        yield found


@pytest.fixture
def azure_environment(azure_variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The same in the environment; returns an address of its own."""
    for name, value in azure_variables.items():
        monkeypatch.setenv(name, value)
    return f"az://{CONTAINER}/jobs{next(_numbers)}"


@pytest.fixture(params=["directory", "s3", "azure"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store."""
    if request.param == "directory":
        return DirectoryStore(tmp_path / "archive")
    return ObjectStore(request.getfixturevalue(f"{request.param}_environment"))


@pytest.fixture(params=["memory", "directory", "s3", "azure"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """The same, and one in memory."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "directory":
        return DirectoryStore(tmp_path / "archive")
    return ObjectStore(request.getfixturevalue(f"{request.param}_environment"))
