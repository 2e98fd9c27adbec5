"""Nodes as systemd runs them: sockets that were opened for them, readiness, reloading."""

from __future__ import annotations

import contextlib
import signal
import socket
from pathlib import Path

import pytest

import fastjournal
from fastjournal.daemon.auth import add_token
from fastjournal.errors import Unauthorized
from fastjournal.testing import wait_until
from replica_rig import Rig

pytestmark = [pytest.mark.kill, pytest.mark.xdist_group("replica")]


def test_to_systemd_a_node_is_ready_and_alive_whether_it_leads_or_not(tmp_path: Path) -> None:
    """F58: the end of a reign is not the end of the node."""
    with contextlib.ExitStack() as stack:
        told: dict[str, socket.socket] = {}
        rig = Rig(tmp_path)
        for name, daemon in rig.daemons.items():
            sock = told[name] = stack.enter_context(
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            )
            sock.bind(str(tmp_path / f"notify-{name}"))
            sock.settimeout(20)
            notified = str(tmp_path / f"notify-{name}")
            daemon.env |= {"NOTIFY_SOCKET": notified, "WATCHDOG_USEC": "400000"}
        with rig:
            rig.wait_joined()
            primary = rig.wait_primary()
            rig.ask(primary, "switchover")
            wait_until(lambda: rig.primary() not in ("", primary), seconds=40)
            for sock in told.values():
                said = b""
                while said.count(b"WATCHDOG=1") < 3 or b"READY=1" not in said:
                    said += sock.recv(1000) + b"\n"
                assert b"STOPPING" not in said


def test_hang_up_reloads_the_tokens_of_every_node(tmp_path: Path) -> None:
    """SNAP-IDX-1: of the primary, of who waits, and of the next reign."""
    file = tmp_path / "tokens"
    add_token(file, "first", ["admin"], [])
    with Rig(tmp_path, more={"FASTJOURNAL_TOKENS": str(file)}) as rig:
        rig.wait_joined()
        second = add_token(file, "second", ["admin"], [])
        urls = [f"{daemon.url}?timeout=60&token={second}" for daemon in rig.daemons.values()]
        for url in urls:
            with pytest.raises(Unauthorized):
                fastjournal.connect(url)
        for daemon in rig.daemons.values():
            daemon.signal(signal.SIGHUP)
            wait_until(lambda one=daemon: "reloaded" in one.log.read_text())
        primary = rig.wait_primary()
        for url in urls:
            fastjournal.connect(url).close()
        rig.ask(primary, "switchover")
        wait_until(lambda: rig.primary() not in ("", primary), seconds=40)
        for url in urls:
            with fastjournal.connect(url) as journal:
                journal.put(b"job", queue="q")
