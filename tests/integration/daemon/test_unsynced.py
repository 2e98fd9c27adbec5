"""No answer leaves before its sync, and none says "done" after the sync or the write has failed."""

from __future__ import annotations

import errno
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastjournal.client.puts import puts
from fastjournal.daemon.fj.connection import FjConnection
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.testing.files import Fault, MemoryFiles
from fastjournal.wire.fj.bulk import LeaseRequest, encode_lease_request
from fastjournal.wire.fj.functions import (
    DATA,
    KEPT,
    OVERWRITE,
    PERSIST,
    Function,
    Type,
)
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer, put_bytes

LOOPS = pytest.mark.parametrize("on_uvloop", [False, True], ids=["asyncio", "uvloop"])


class Disk:
    """Fails to sync once the test says so."""

    def __init__(self) -> None:
        self.fails: Callable[[], bool] = lambda: False
        self.files = MemoryFiles(on_sync=self._sync)

    def _sync(self, path: Path) -> None:
        if self.fails():
            raise OSError(errno.EIO, "I/O error")


@contextmanager
def served(files: MemoryFiles, on_uvloop: bool, sync: str = "always") -> Iterator[LocalDaemon]:
    settings = {"journal": {"sync": sync, "clean_interval": 0}}
    with LocalDaemon("/data", settings=settings, files=files, uvloop=on_uvloop) as daemon:
        yield daemon


@LOOPS
@pytest.mark.parametrize("long", [False, True], ids=["", "behind a long answer"])
def test_a_command_behind_one_that_waits_is_not_acknowledged_after_a_failed_sync(
    on_uvloop: bool, long: bool
) -> None:
    """Behind a long answer it is carried out in a turn of its own."""
    disk = Disk()
    first, second, large = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    with (
        served(disk.files, on_uvloop) as daemon,
        socket.create_connection(("127.0.0.1", daemon.workq_port), 10) as consumer,
        socket.create_connection(("127.0.0.1", daemon.workq_port), 10) as producer,
    ):
        state = daemon.server.default.state
        disk.fails = lambda: second.bytes in state.rows
        wanted = [(first, b"x")]
        commands = b"lease q 20000\r\n"
        if long:
            wanted.append((large, b"y" * (1 << 20)))
            producer.sendall(_add(large, b"big", b"y" * (1 << 20)))
            assert producer.makefile("rb").readline() == b"+OK\r\n"
            commands += b"lease big 1\r\n"
        consumer.sendall(commands + _add(second, b"r", b"x"))
        wait_until(lambda: daemon.call(lambda: len(daemon.server.default.engine.wakeups)))
        producer.sendall(_add(first, b"q", b"x"))
        answers = consumer.makefile("rb")
        leased = b""
        for job, payload in wanted:
            leased = answers.readline()
            if leased == b"+OK 1\r\n":
                assert answers.readline().startswith(str(job).encode())
                assert answers.readline() == payload + b"\r\n"
        assert answers.readline().startswith(b"-SERVER-ERROR")
        assert leased == b"+OK 1\r\n"


def _add(job: uuid.UUID, queue: bytes, payload: bytes) -> bytes:
    head = b"add %s %s 1000 60000 %d\r\n" % (str(job).encode(), queue, len(payload))
    return head + payload + b"\r\n"


@LOOPS
def test_a_request_that_waits_behind_a_failed_sync_is_answered_once(on_uvloop: bool) -> None:
    disk = Disk()
    wanted = encode_lease_request(
        LeaseRequest((b"none",), 1, 20_000, 0, False, True, False, 0, b"")
    )
    lease = encode_request(Function.LEASE, 2, value_type=Type.BUFFER, value=wanted)
    with served(disk.files, on_uvloop) as daemon, FjPeer(daemon.port) as peer:
        peer.hello()
        disk.fails = lambda: True
        peer.send(put_bytes(1) + lease + put_bytes(3))
        told = [peer.read() for _ in range(3)]
        assert sorted(reply.identifier for reply in told if reply) == [1, 2, 3]
        assert peer.ask(Function.PING, 4).identifier == 4
        # What was written may be there or not: nobody knows. The lease came to nothing.
        assert sorted((reply.identifier, reply.error.split()[0]) for reply in told if reply) == [
            (1, "UNKNOWN"),
            (2, "READ-ONLY"),
            (3, "UNKNOWN"),
        ]


@LOOPS
def test_what_a_group_could_not_write_is_not_acknowledged_by_its_other_answers(
    on_uvloop: bool,
) -> None:
    """A large group is written in parts; here the first is neither written nor cut off again."""
    files = MemoryFiles()
    with served(files, on_uvloop, "os") as daemon, FjPeer(daemon.port) as peer:
        peer.hello()
        # A key each: plain jobs would be written together or not at all.
        jobs = [{"payload": bytes(60_000), "queue": "q", "key": f"k{n}"} for n in range(9)]
        (call,) = puts(jobs)
        after = len(files.operations)
        files.faults = dict.fromkeys(range(after + 1, after + 50), Fault())
        peer.send(call.data)
        reply = peer.read()
        files.faults = {}
        assert reply is not None
        assert reply.error.startswith("UNKNOWN"), reply.pairs


@LOOPS
def test_answers_that_wait_for_a_sync_are_bounded(on_uvloop: bool) -> None:
    """A slow disk and small questions about large values, each in a read of its own."""
    release = threading.Event()
    blocked: list[bool] = []

    def sync(path: Path) -> None:
        if blocked:
            release.wait(30)

    large = b"x" * 300_000
    get = encode_request(Function.GET, 9, flags=DATA, key=b"k")
    files = MemoryFiles(on_sync=sync)
    with served(files, on_uvloop, "os") as daemon, FjPeer(daemon.port) as peer:
        fields = {"key": b"k", "value_type": Type.BUFFER}
        peer.ask(Function.SET, 1, flags=KEPT | OVERWRITE, value=large, **fields)
        (connection,) = daemon.server.connections
        assert isinstance(connection, FjConnection)
        blocked.append(True)
        try:
            safe = encode_request(Function.SET, 2, flags=PERSIST | OVERWRITE, value=b"y", **fields)
            peer.send(safe.replace(b"k", b"j", 1))
            wait_until(lambda: daemon.call(lambda: connection.behind), what="its answer waits")
            asked = 0
            while not daemon.call(lambda: connection.frames.pending):
                assert asked < 20, "every question was answered into memory"
                asked, held = asked + 1, daemon.call(lambda: connection.unsynced)
                peer.send(get)
                wait_until(
                    lambda held=held: daemon.call(  # type: ignore[misc]
                        lambda: connection.unsynced > held or connection.frames.pending
                    )
                )
            assert daemon.call(lambda: connection.unsynced) < (1 << 20) + 2 * len(large)
        finally:
            release.set()
        told = [peer.read() for _ in range(1 + asked)]
        assert [reply and reply.identifier for reply in told] == [2] + [9] * asked
