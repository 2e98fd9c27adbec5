"""Addresses of sockets, and the files that Unix sockets leave behind."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from fastjournal.errors import SettingError

__all__ = ["address_of", "remove_sockets", "remove_stale"]


def address_of(sock: Any) -> str:
    """Where a socket listens: `host:port` or `unix:/path`."""
    name = sock.getsockname()
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return f"unix:{name}"


def remove_sockets(addresses: list[str]) -> None:
    """Take away the files of Unix sockets."""
    for address in addresses:
        if address.startswith("unix:"):
            Path(address[5:]).unlink(missing_ok=True)


def remove_stale(path: str) -> None:
    """A socket file that nobody listens on any more is in the way."""
    if not Path(path).exists():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            Path(path).unlink()
        else:
            raise SettingError(f"somebody listens on {path}", name="listen")
