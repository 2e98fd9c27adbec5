"""Faults that are provoked in a daemon: cut messages, a disk that stalls, damage at its start."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.put_request import PutRequest
from fastjournal.testing import ManualClock, MemoryFiles
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.fields import encode_integer
from fastjournal.wire.fj.functions import KEPT, OVERWRITE, Function, Type
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer
from wire_values import encode_jobs, encode_short

LOOPS = pytest.mark.parametrize("on_uvloop", [False, True], ids=["asyncio", "uvloop"])


def changing() -> dict[str, bytes]:
    """A message of each kind that changes something."""
    short = encode_short(b"data", queue=b"q")
    five: dict[str, Any] = {"value_type": Type.INTEGER, "value": encode_integer(5)}
    jobs = encode_jobs([PutRequest(b"q", b"%d" % n, mode=2) for n in range(3)])
    return {
        "SET of an entry": encode_request(
            Function.SET, 1, flags=KEPT | OVERWRITE, key=b"e", value_type=Type.STRING, value=b"new"
        ),
        "SET of a job": encode_request(Function.SET, 1, key=b"j", value_type=Type.JOB, value=short),
        "PUTS": encode_request(Function.PUTS, 1, value_type=Type.BUFFER, value=jobs),
        "ADD": encode_request(Function.ADD, 1, flags=KEPT, key=b"n", **five),
        "DELETE": encode_request(Function.DELETE, 1, key=b"e"),
        "RENAME": encode_request(
            Function.RENAME, 1, key=b"e", value_type=Type.BUFFER, value=b"moved"
        ),
        "NEXT": encode_request(Function.NEXT, 1, key=b"w"),
    }


@LOOPS
@pytest.mark.parametrize("name", changing())
def test_a_message_cut_at_any_byte_has_no_part_of_its_effect(name: str, on_uvloop: bool) -> None:
    """F56: cut and then the end of the stream; the whole message has the whole effect."""
    message = changing()[name]
    settings = {"journal": {"sync": "os"}}
    with LocalDaemon("/data", files=MemoryFiles(), settings=settings, uvloop=on_uvloop) as daemon:
        journal = daemon.server.default.journal
        journal.entries["e"] = "old"
        journal.entries["n"] = 1
        journal.put(b"w", queue="w")
        before = journal.digest()
        for cut in range(1, len(message)):
            with FjPeer(daemon.port) as peer:
                peer.send(message[:cut])
                peer.sock.shutdown(1)
                while peer.read() is not None:
                    pass
            assert journal.digest() == before, f"{name} cut at {cut}"
        with FjPeer(daemon.port) as peer:
            peer.send(message)
            told = peer.read()
            assert told is not None
            assert told.error == ""
        assert journal.digest() != before


@LOOPS
def test_what_was_said_before_a_stall_of_the_disk_counts_though_the_lease_ends_meanwhile(
    on_uvloop: bool,
) -> None:
    """F05: the daemon's loop is not held up by a sync, and a completion in time is one."""
    release, blocked = threading.Event(), threading.Event()
    stalls: list[bool] = []

    def sync(path: Path) -> None:
        if stalls and path.suffix == ".log":
            blocked.set()
            release.wait(30)

    files, clock = MemoryFiles(on_sync=sync), ManualClock()
    settings = {"journal": {"sync": "always"}}
    with (
        LocalDaemon(
            "/data", files=files, settings=settings, clock=clock, uvloop=on_uvloop
        ) as daemon,
        FjPeer(daemon.port) as peer,
        FjPeer(daemon.port) as other,
    ):
        value = encode_short(b"data", queue=b"q", lease=10 * 10**9)
        peer.ask(Function.SET, key=b"k", value_type=Type.JOB, value=value)
        clock.advance(1)
        assert len(peer.ask(Function.NEXT, key=b"q").pairs) == 1
        stalls.append(True)
        try:
            peer.send(
                encode_request(
                    Function.DONE, 2, key=b"k", value_type=Type.INTEGER, value=encode_integer(1)
                )
            )
            assert blocked.wait(20), "the answer waits for the disk"
            clock.advance(60)
        finally:
            stalls.clear()
            release.set()
        done = peer.read()
        assert done is not None
        assert (done.identifier, done.error) == (2, "")
        assert other.ask(Function.NEXT, key=b"q").pairs == (), "it was not handed out again"


def test_a_daemon_does_not_start_on_damage_and_says_where_the_next_record_is(
    tmp_path: Path,
) -> None:
    """F21, F28: exit code 3; file, offset, reason, and the next valid offset."""
    path = tmp_path / "data" / "default"
    path.parent.mkdir()
    with Journal(path, sync="os", background=False) as journal:
        for number in range(20):
            journal.put(b"%d" % number * 50, queue="q")
        journal.rotate()
        journal.put(b"more", queue="q")
    segment = path / "000000001.log"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-m", "fastjournal.cli.app", "serve", str(tmp_path / "data"),
         "--listen", f"unix:{tmp_path}/socket"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "000000001.log" in done.stderr
    found = re.search(
        r"offset (\d+): .*; next valid record at offset (\d+)", done.stderr.split("error:")[-1]
    )
    assert found, done.stderr
    at, following = int(found[1]), int(found[2])
    assert at < len(data) // 2 < following < len(data)
