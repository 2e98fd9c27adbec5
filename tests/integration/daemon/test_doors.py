"""The daemon's doors: who is let in, how many, for how long, and what is left for the log."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

import fastjournal
from daemon_process import DaemonProcess
from fastjournal.config import load
from fastjournal.daemon.auth import add_token
from fastjournal.daemon.listener import Listener, allow_all, bind_unix, left_for_peers
from fastjournal.daemon.main import make_server
from fastjournal.errors import SettingError
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.functions import Function
from fjpeer import FjPeer, other_end

LOOPS = pytest.mark.parametrize("uvloop", [False, True])


class Said:
    """A log that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def _say(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    debug = info = warning = error = _say

    def find(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.lines if name == event]


def on_loop(uvloop: bool, work: Callable[[], Any]) -> None:
    factory = None
    if uvloop:
        import uvloop as fast

        factory = fast.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())


def test_idle_connections_never_take_the_descriptors_of_the_log(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "d", files=(256, 256), env={
        "FASTJOURNAL_JOURNAL_SEGMENT_SIZE": "65536", "FASTJOURNAL_JOURNAL_CLEAN_INTERVAL": "0",
    })  # fmt: skip
    daemon.start()
    idle = []
    try:
        with fastjournal.connect(daemon.url) as client:
            client.put(b"first", queue="q")
            for _ in range(400):
                with contextlib.suppress(OSError):
                    idle.append(socket.create_connection(("127.0.0.1", daemon.port), 5))
            for _ in range(60):  # some fifteen rotations
                client.put(bytes(16_000), queue="q")
            assert client.status().ready == 61
    finally:
        for sock in idle:
            sock.close()
        daemon.stop()
    said = daemon.log.read_text()
    assert "the limit of open files bounds the connections" in said
    assert "open_files=256" in said
    assert "the next segment cannot be made" not in said
    assert "no connection can be accepted" not in said
    assert len(list((tmp_path / "d" / "default").glob("*.log"))) > 10


def test_a_daemon_raises_its_limit_of_open_files(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "d", files=(128, 700))
    daemon.start()
    try:
        assert daemon.process is not None
        limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
        assert line.split()[3:5] == ["700", "700"]
    finally:
        daemon.stop()


def test_a_limit_that_cannot_be_raised_stays() -> None:
    def refuse(_: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    assert allow_all(lambda _: (256, resource.RLIM_INFINITY), refuse) == 256
    assert allow_all(lambda _: (256, 4096), lambda *_: None) == 4096


def test_the_log_has_its_share_of_every_limit() -> None:
    assert left_for_peers(resource.RLIM_INFINITY, 1, 0) > 1_000_000
    assert left_for_peers(1024, 1, 0) == 1024 - 128
    assert left_for_peers(1024, 10, 200) == 256
    assert left_for_peers(64, 1, 264) == 16


@LOOPS
def test_who_is_let_in_at_one_door_finds_the_others_open(tmp_path: Path, uvloop: bool) -> None:
    ports = []
    for _ in range(2):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            ports.append(sock.getsockname()[1])

    def opens(port: int) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    async def start() -> None:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        given = {"data": str(tmp_path / "d"), "listen": addresses[:1], "workq": addresses[1:]}
        server = make_server(load(environment={}, overrides=given), log=Said())
        starting = asyncio.create_task(server.start())
        while not opens(ports[0]):  # noqa: ASYNC110 - no event tells of a door
            await asyncio.sleep(0)
        assert opens(ports[1])
        await starting
        await server.stop()

    on_loop(uvloop, start)


@LOOPS
def test_what_the_limit_of_open_files_leaves_is_told_at_the_start(
    tmp_path: Path, uvloop: bool
) -> None:
    said = Said()

    async def start() -> None:
        settings = load(
            environment={}, overrides={"data": str(tmp_path / "d"), "listen": ["127.0.0.1:0"]}
        )
        server = make_server(settings, log=said, open_files=1024)
        await server.start()
        assert server.max_connections == 896
        server.reload(settings)
        assert server.max_connections == 896
        await server.stop()

    on_loop(uvloop, start)
    told = said.find("the limit of open files bounds the connections")
    assert told[0]["max_connections"] == 896
    assert said.find("ready")[0]["max_connections"] == 896


class Exhausted:
    """A listening socket of a process that has no descriptor left, until it gets one."""

    def __init__(self) -> None:
        self.real = socket.create_server(("127.0.0.1", 0))
        self.tries = 0
        self.asked = asyncio.Event()
        self.full = True

    def accept(self) -> Any:
        self.tries += 1
        self.asked.set()
        if self.full:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@LOOPS
def test_accepting_pauses_while_no_descriptor_is_left(uvloop: bool) -> None:
    said = Said()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        met = asyncio.Event()

        class Greeter(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                met.set()
                transport.close()

        sock = Exhausted()
        listener = Listener(
            loop, sock, Greeter, has_room=lambda: True, refusal=lambda: b"", log=said,  # type: ignore[arg-type]
        )  # fmt: skip
        listener.open()
        with socket.create_connection(sock.getsockname()):
            await asyncio.wait_for(sock.asked.wait(), 20)
            for _ in range(1000):
                await asyncio.sleep(0)
            assert sock.tries == 1
            sock.full = False
            await asyncio.wait_for(met.wait(), 20)
        listener.close()

    on_loop(uvloop, run)
    told = said.find("no connection can be accepted")
    assert len(told) == 1
    assert "max_connections" in told[0]["advice"]


@pytest.fixture
def certificate(tmp_path: Path) -> str:
    made = trustme.CA().issue_cert("localhost", "127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    return str(tmp_path / "server.pem")


@LOOPS
def test_a_tls_handshake_takes_a_place_and_has_its_time(
    tmp_path: Path, certificate: str, uvloop: bool
) -> None:
    settings = {
        "tls": {"certificate": certificate},
        "limits": {"max_connections": 2, "hello_timeout": 1},
    }
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=uvloop) as daemon:
        address = ("127.0.0.1", daemon.port)
        silent = [socket.create_connection(address, 10) for _ in range(2)]
        with socket.create_connection(address, 10) as third:
            assert third.recv(1) == b""
        assert daemon.call(lambda: daemon.server.turned_away) == 1
        for sock in silent:  # cut when their time is over
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
            sock.close()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(address, 10) as plain, context.wrap_socket(plain) as again:
            assert again.version()


@LOOPS
def test_a_stranger_has_its_time_however_often_it_says_something(
    tmp_path: Path, uvloop: bool
) -> None:
    add_token(tmp_path / "tokens", "ops", ["admin"], [])
    settings = {"tokens": str(tmp_path / "tokens"), "limits": {"hello_timeout": 0.3}}
    with (
        LocalDaemon(tmp_path / "d", settings=settings, uvloop=uvloop) as daemon,
        FjPeer(daemon.port) as peer,
    ):
        server, end = daemon.server, time.monotonic() + 10
        while not daemon.call(lambda: server.cuts["stranger"]):
            assert time.monotonic() < end, "a stranger stays as long as it likes"
            with contextlib.suppress(OSError, AssertionError):
                peer.ask(Function.NOP)
            daemon.call(lambda: server.sweep(server.loop.time()))
        with contextlib.suppress(OSError):
            assert peer.is_closed()


@LOOPS
def test_connections_are_sent_without_delay(tmp_path: Path, uvloop: bool) -> None:
    with (
        LocalDaemon(tmp_path / "d", uvloop=uvloop) as daemon,
        FjPeer(daemon.port) as peer,
    ):
        assert peer.ask(Function.PING).error == ""
        with other_end(peer.sock) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_file_that_is_no_socket_is_never_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("years of work")
    for target in (path, tmp_path / "link"):
        if target != path:
            target.symlink_to(path)
        with pytest.raises(SettingError, match="no socket"):
            LocalDaemon(tmp_path / "d", settings={"listen": [f"unix:{target}"]}).start()
    assert path.read_text() == "years of work"


def test_the_socket_of_a_successor_stays(tmp_path: Path) -> None:
    path = tmp_path / "fj.sock"
    settings = {"listen": [f"unix:{path}"], "workq": [f"unix:{tmp_path / 'wq.sock'}"]}
    with LocalDaemon(tmp_path / "d", settings=settings):
        path.unlink()
        successor = bind_unix(str(path), 0o600)
    assert path.exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (tmp_path / "wq.sock").exists()
    successor.close()


@LOOPS
def test_no_other_task_sees_the_mask_of_a_unix_socket(tmp_path: Path, uvloop: bool) -> None:
    usual = os.umask(0)
    os.umask(usual)
    seen = set()

    async def look() -> None:
        while True:
            seen.add(mask := os.umask(0))
            os.umask(mask)
            await asyncio.sleep(0)

    async def start() -> None:
        settings = load(
            environment={},
            overrides={"data": str(tmp_path / "d"), "listen": [f"unix:{tmp_path / 's'}"]},
        )
        watching = asyncio.create_task(look())
        server = make_server(settings, log=Said())
        await server.start()
        await server.stop()
        watching.cancel()

    on_loop(uvloop, start)
    assert seen == {usual}


@LOOPS
@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nabc"]
)
def test_a_request_to_the_dashboard_must_come_to_its_end(
    tmp_path: Path, uvloop: bool, sent: bytes
) -> None:
    settings = {"web": "127.0.0.1:0", "limits": {"message_timeout": 0.3}}
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=uvloop) as daemon:
        port = int(daemon.server.addresses["web"][0].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 10) as peer:
            peer.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                while peer.recv(65_536):
                    pass


@LOOPS
def test_the_dashboard_has_room_for_so_many_and_no_more(tmp_path: Path, uvloop: bool) -> None:
    with LocalDaemon(tmp_path / "d", settings={"web": "127.0.0.1:0"}, uvloop=uvloop) as daemon:
        port = int(daemon.server.addresses["web"][0].rpartition(":")[2])
        peers = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(200)]
        with socket.create_connection(("127.0.0.1", port), 10) as one_more:
            assert one_more.recv(1) == b""
        peers.pop().close()

        def is_let_in() -> bool:
            again = socket.create_connection(("127.0.0.1", port), 10)
            with again, contextlib.suppress(ConnectionError):
                again.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                return again.recv(8) == b"HTTP/1.1"
            return False

        wait_until(is_let_in, seconds=20, what="a place that became free is given away")
        for peer in peers:
            peer.close()
