"""A server on loopback that speaks Azure's blobs: Azurite, where it is installed.

`npm install azurite` makes one; its `azurite-blob` must be on the path.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from fastjournal.testing import wait_until

CONTAINER = "archive"
_ACCOUNT = "devstoreaccount1"
# The key that every Azurite has; it opens nothing else.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextlib.contextmanager
def serve_azure() -> Iterator[dict[str, str]]:
    """Serve one empty container; gives what clients find it by in the environment."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("there is no azurite-blob here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--silent", "--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry"]
    process = subprocess.Popen(
        [program, *words, "--blobPort", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        endpoint = f"http://127.0.0.1:{port}"
        wait_until(lambda: _make_container(endpoint), what="Azurite serves")
        yield {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }
    finally:
        process.kill()
        process.wait()


def _make_container(endpoint: str) -> bool:
    date = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S} GMT"
    told = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    lines = [
        "PUT", *[""] * 11, *(f"{name}:{value}" for name, value in told.items()),
        f"/{_ACCOUNT}/{_ACCOUNT}/{CONTAINER}", "restype:container",
    ]  # fmt: skip
    digest = hmac.new(base64.b64decode(_KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    request = urllib.request.Request(
        f"{endpoint}/{_ACCOUNT}/{CONTAINER}?restype=container", method="PUT",
        headers=told | {"Authorization": f"SharedKey {_ACCOUNT}:{signature}"},
    )  # fmt: skip
    try:
        urllib.request.urlopen(request).close()
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False
    return True
