"""`fastjournal workq`: the options of the Workq server, its directory, and a mode without a log."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastjournal.config import load
from fastjournal.errors import SettingError
from fastjournal.testing.daemon import LocalDaemon

JOB = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"


@contextmanager
def serving(*options: str) -> Iterator[tuple[socket.socket, subprocess.Popen[str]]]:
    """A connection to `fastjournal workq`, ended by SIGTERM."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "fastjournal.cli.app", "workq", "-listen", f"127.0.0.1:{port}",
         *options],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if " ready" in line or "event=ready" in line:
                break
        with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
            yield peer, process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def say(peer: socket.socket, text: str) -> bytes:
    peer.sendall(text.encode())
    return peer.recv(65_536)


def test_workqs_own_options_with_one_dash_serve_its_directory(tmp_path: Path) -> None:
    """WQ-USE-1, WQ-CFG-1..3, WQ-CFG-6..8: what was added is there after a restart."""
    path = tmp_path / "log"
    options = (
        "-cmdlog-path", str(path), "-cmdlog-seg-size=4096", "-cmdlog-sync", "interval",
        "-cmdlog-sync-interval", "50", "--cmdlog-clean-int", "0",
    )  # fmt: skip
    with serving(*options) as (peer, _):
        assert say(peer, f"add {JOB} mail 1000 60000 2\r\nhi\r\n") == b"+OK\r\n"
    assert sorted(path.glob("*.log"))
    assert not (path / "default").exists()
    with serving(*options) as (peer, _):
        assert say(peer, "lease mail 0\r\n").startswith(b"+OK 1\r\n" + JOB.encode())


def test_without_a_path_nothing_is_kept(tmp_path: Path) -> None:
    """WQ-USE-1."""
    before = set(Path("/dev/shm").glob("workq-*")) if Path("/dev/shm").is_dir() else set()
    with serving() as (peer, _):
        assert say(peer, f"add {JOB} mail 1000 60000 2\r\nhi\r\n") == b"+OK\r\n"
    with serving() as (peer, _):
        assert say(peer, "lease mail 0\r\n") == b"-TIMEOUT\r\n"
    if Path("/dev/shm").is_dir():
        assert set(Path("/dev/shm").glob("workq-*")) == before


def test_cleaning_every_0_is_never_and_an_interval_that_nothing_follows_is_refused() -> None:
    """WQ-CFG-6, WQ-CFG-7."""
    assert load(None, {}, {"journal": {"clean_interval": 0}}).journal.clean_interval == 0
    for sync in ("os", "always"):
        with pytest.raises(SettingError, match="means nothing") as caught:
            load(None, {}, {"journal": {"sync": sync, "sync_interval": 1000}})
        assert caught.value.name == "journal.sync_interval"


def test_a_data_directory_is_made_but_not_its_parents(tmp_path: Path) -> None:
    """WQ-CFG-1: a path that was mistyped is told instead of made."""
    with LocalDaemon(tmp_path / "data", settings={"journal": {"sync": "os"}}):
        pass
    assert (tmp_path / "data" / "default").is_dir()
    with pytest.raises(SettingError, match="mistyped"):
        LocalDaemon(tmp_path / "dtaa" / "data", settings={"journal": {"sync": "os"}}).start()
    assert not (tmp_path / "dtaa").exists()


def test_a_directory_of_the_workq_server_is_one_journal(tmp_path: Path) -> None:
    """WQ-USE-1: it has segments and none of our own files."""
    golden = Path(__file__).parents[2] / "golden" / "workq"
    case = min(path.parent for path in golden.rglob("000000001.log"))
    data = tmp_path / "workq"
    data.mkdir()
    for segment in case.glob("*.log"):
        (data / segment.name).write_bytes(segment.read_bytes())
    with LocalDaemon(data, settings={"journal": {"sync": "os"}}) as daemon:
        assert daemon.server.default.journal.path == data
