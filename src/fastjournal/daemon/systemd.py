"""systemd: readiness, watchdog and inherited sockets. One datagram each; no library needed.

Rules:

1. Without the environment that systemd sets, nothing happens.
2. Inherited sockets are told apart by their names in `LISTEN_FDNAMES`: `fj`, `workq`, `http`;
   unnamed ones are FJ.
"""

from __future__ import annotations

import os
import socket

__all__ = ["inherited", "notify", "watchdog_seconds"]

_FIRST = 3


def notify(state: str) -> None:
    """Tell systemd something, such as `READY=1`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)  # who does not read what it is told is not waited for
            sock.sendto(state.encode(), address)
    except OSError:
        pass  # whoever started us does not listen any more; that is no reason to stop


def watchdog_seconds() -> float:
    """How often to send `WATCHDOG=1`: half of what systemd waits; 0: not at all."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    period = os.environ.get("WATCHDOG_USEC", "")
    return int(period) / 2_000_000 if period.isdigit() else 0.0


def inherited() -> list[tuple[str, socket.socket]]:
    """Sockets that systemd opened for us, with their names."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = int(os.environ.get("LISTEN_FDS", "0"))
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    found = []
    for number in range(count):
        sock = socket.socket(fileno=_FIRST + number)
        sock.setblocking(False)
        os.set_inheritable(_FIRST + number, False)
        name = names[number] if number < len(names) else "fj"
        found.append((name if name in ("fj", "workq", "http") else "fj", sock))
    return found
