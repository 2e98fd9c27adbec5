"""A server on loopback that speaks S3, conditional writes too: `moto`."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator

import pytest

BUCKET = "archive"


@contextlib.contextmanager
def serve_s3(port: int = 0) -> Iterator[str]:
    """Serve one empty bucket; gives the endpoint."""
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        host, found = server.get_host_and_port()
        endpoint = f"http://{host}:{found}"
        bucket = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(bucket).close()
        yield endpoint
    finally:
        server.stop()


def environment(endpoint: str) -> dict[str, str]:
    """What clients find such a server by."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }
