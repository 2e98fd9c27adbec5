"""Real producers, forwarders and daemons, killed with SIGKILL; a network that fails."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.daemon.auth import add_token
from fastjournal.errors import Unauthorized, Unavailable
from fastjournal.spool.daemon_destination import DaemonDestination
from fastjournal.spool.reader import read_spool
from fastjournal.spool.service import Runner, Service
from fastjournal.spool.writer import Spool
from fastjournal.testing.daemon import LocalDaemon
from spooling import payloads

pytestmark = pytest.mark.kill

PRODUCER = """
import os, sys
from fastjournal.spool.writer import Spool
path, name, start, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
spool = Spool(path)
allowed = 0
for number in range(start, limit):
    while allowed == 0:
        allowed = int(sys.stdin.readline() or limit)
    allowed -= 1
    size = (number * 7919) % 700
    spool.put(f"{name} {number} ".encode() + b"x" * size, queue="jobs")
    if number % 10 == 0:
        spool.put(f"{name} {number}".encode(), queue="keyed", key=name)
    os.write(1, b"%d\\n" % number)
"""


def run(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "fastjournal.cli.app", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    """Look again and again: real processes have no clock that a test could move."""
    pause = threading.Event()
    for _ in range(int(seconds * 100)):
        if what():
            return
        pause.wait(0.01)
    raise AssertionError("did not happen in time")


class Producer:
    """A process that puts numbered jobs; knows which puts have returned."""

    def __init__(self, spool: Path, name: str, limit: int) -> None:
        self.spool, self.name, self.limit = spool, name, limit
        self.returned = -1
        """The last number whose put is known to have returned."""
        self.started = 0
        self.gaps: list[tuple[int, int]] = []
        self._start(0)

    def _start(self, number: int) -> None:
        self.started = number
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRODUCER, str(self.spool), self.name, str(number),
             str(self.limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def allow(self, count: int) -> None:
        """Let it put so many more jobs."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"%d\n" % count)
            self.process.stdin.flush()

    def look(self) -> int:
        assert self.process.stdout is not None
        data = self.process.stdout.read() or b""
        whole = data[: data.rfind(b"\n")].split()
        if whole:
            self.returned = int(whole[-1])
        return self.returned

    def kill(self) -> None:
        """Kill it, and let another go on behind the last put that may have happened."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.set_blocking(self.process.stdout.fileno(), True)  # type: ignore[union-attr]
        self.look()
        # A put whose return was not told may have happened or not.
        self.gaps.append((self.returned + 1, self.returned + 2))
        if self.returned + 2 < self.limit:
            self._start(self.returned + 2)

    def finish(self) -> None:
        """Let it put the rest."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

        def ended() -> bool:
            self.look()  # a pipe that nobody reads would hold it up
            return self.process.poll() is not None

        wait_for(ended)
        os.set_blocking(self.process.stdout.fileno(), True)  # type: ignore[union-attr]
        self.look()

    def check(self, found: list[int]) -> None:
        """Every put that returned is there once and in order."""
        assert found == sorted(set(found)), "twice, or out of order"
        missing = set(range(self.limit)) - set(found)
        allowed = {number for low, high in self.gaps for number in range(low, high)}
        assert missing <= allowed


def states(spool: Path) -> tuple[int, int]:
    """How many frames are ready and done, roughly but fast."""
    content = [path.read_bytes() for path in spool.glob("*.fjq")]
    return sum(c.count(b"fjR\0") for c in content), sum(c.count(b"fjD\0") for c in content)


def rows_of(data: Path) -> tuple[dict[str, list[int]], dict[str, bytes]]:
    """Numbers by producer in the order of arrival, and the last value of each key."""
    found: dict[str, list[int]] = defaultdict(list)
    keyed = {}
    with Journal(data / "default", background=False) as journal:
        rows = sorted(journal.engine.state.rows.values(), key=lambda row: row.inserted)
        for row in rows:
            if row.key:
                assert row.key.decode() not in keyed, "two rows of a key"
                keyed[row.key.decode()] = journal.engine.value(row)
            else:
                name, number, *_ = journal.engine.value(row).decode().split(" ")
                found[name].append(int(number))
    return found, keyed


@pytest.mark.parametrize(
    ("seed", "rounds", "count"),
    [(1, 8, 4000), pytest.param(2, 40, 30_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_killed_at_random_alone_and_together_nothing_is_lost_or_repeated(
    tmp_path: Path, seed: int, rounds: int, count: int
) -> None:
    """T-SPOOL, F18: producers, forwarder and daemon are killed with -9 while they work."""
    chance = random.Random(seed)
    spool, data, port = tmp_path / "spool", tmp_path / "data", free_port()

    def daemon() -> subprocess.Popen[bytes]:
        return run("serve", str(data), "--listen", f"127.0.0.1:{port}", "--journal", "default")

    def forwarder() -> subprocess.Popen[bytes]:
        return run(
            "forward", "--spool", str(spool), "--to", f"fj://127.0.0.1:{port}", "--batch", "50"
        )

    producers = [Producer(spool, name, count) for name in ("ann", "bob", "eve")]
    servants = {"daemon": (daemon, daemon()), "forwarder": (forwarder, forwarder())}
    try:
        for number in range(rounds):
            victims = chance.sample(["producer", "daemon", "forwarder"], k=1 + number % 3)
            done = states(spool)[1]
            for producer in producers:
                producer.allow(count // rounds // 2)
            wait_for(lambda done=done: states(spool)[1] >= done + 60)  # type: ignore[misc]
            # Stopped where they happen to be, so that work lies before them when they die.
            stopped = [servants[victim][1] for victim in victims if victim in servants]
            for process in stopped:
                process.send_signal(signal.SIGSTOP)
            for producer in producers:
                producer.allow(count // rounds // 2)
            if stopped:
                wait_for(lambda: states(spool)[0] > 0)
            for victim in victims:
                if victim == "producer":
                    chance.choice(producers).kill()
                else:
                    servants[victim][1].kill()
                    servants[victim][1].wait()
            for victim in victims:
                if victim != "producer":
                    start = servants[victim][0]
                    servants[victim] = (start, start())
        for producer in producers:
            producer.finish()
        servants["forwarder"][1].kill()
        servants["forwarder"][1].wait()
        last = run("forward", "--spool", str(spool), "--to", f"fj://127.0.0.1:{port}", "--once")
        assert last.wait(90) == 0
    finally:
        for _, process in servants.values():
            process.kill()
            process.wait()
        for producer in producers:
            producer.process.kill()
            producer.process.wait()
    found, keyed = rows_of(data)
    for producer in producers:
        producer.check(found[producer.name])
        newest = max(n for n in found[producer.name] if n % 10 == 0)
        assert int(keyed[producer.name].split()[1]) >= newest - 10
    assert {entry.state for entry in read_spool(spool)} <= {"done", "damaged"}


class Proxy:
    """A network between a forwarder and a daemon that drops, delays and resets."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._chance = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self.calm = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port), 5)
            except OSError:
                near.close()
                continue
            # Of what the forwarder sends so much passes; then of the answers so much.
            up, down = (self._chance.choice((300, 20_000, 90_000)) for _ in range(2))
            if self.calm:
                up = down = 1 << 60
            else:
                self.cuts += 1
            kind = self._chance.choice(("reset", "close", "delay"))
            for source, sink, most in ((near, far, up), (far, near, down // 60)):
                threading.Thread(
                    target=self._pump, args=(source, sink, most, kind), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, most: int, kind: str) -> None:
        passed = 0
        try:
            while data := source.recv(4096):
                if passed + len(data) > most:
                    sink.sendall(data[: max(0, most - passed)])  # a message cut in two
                    break
                if kind == "delay":
                    threading.Event().wait(0.002)
                sink.sendall(data)
                passed += len(data)
        except OSError:
            pass
        for sock in (source, sink):
            if kind == "reset":
                linger = b"\1\0\0\0\0\0\0\0"
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def forwarding() -> Iterator[Callable[..., Runner]]:
    services: list[Service] = []

    def start(path: Path, url: str, **options: int) -> Runner:
        runner = Runner(
            str(path),
            lambda: DaemonDestination(url),
            wait=lambda seconds: None,
            **options,  # type: ignore[arg-type]
        )
        service = Service([runner])
        service.start()
        services.append(service)
        return runner

    yield start
    for service in services:
        service.stop()
        assert service.error is None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_network_that_drops_delays_and_resets_loses_and_repeats_nothing(
    tmp_path: Path, seed: int, forwarding: Callable[..., Runner]
) -> None:
    with LocalDaemon(tmp_path / "data", settings={"log": {"level": "error"}}) as daemon:
        proxy = Proxy(daemon.port, seed)
        count = 3000
        with Spool(tmp_path / "spool") as spool:
            runner = forwarding(
                tmp_path / "spool", f"fj://127.0.0.1:{proxy.port}?timeout=5", batch_jobs=40
            )
            for number in range(count):
                spool.put(b"a %d" % number, queue="q")
        # Not the backlog: it is 0 also before the forwarder has looked for the first time.
        wait_for(lambda: proxy.cuts >= 15 or runner.figures().forwarded >= count)
        proxy.calm = True
        wait_for(lambda: runner.figures().backlog_bytes == 0 and not runner.forwarder.in_flight)
        figures = runner.figures()
        assert figures.failures > 0
        proxy.close()
    found, _ = rows_of(tmp_path / "data")
    assert found["a"] == list(range(count))
    assert figures.forwarded <= count


def test_a_job_can_be_leased_soon_after_it_was_put(
    tmp_path: Path, forwarding: Callable[..., Runner]
) -> None:
    with (
        LocalDaemon(tmp_path / "data", settings={"log": {"level": "error"}}) as daemon,
        Spool(tmp_path / "spool") as spool,
        daemon.connect() as client,
    ):
        forwarding(tmp_path / "spool", daemon.url)
        spool.put(b"warm", queue="q")
        assert client.lease("q", wait=10) is not None
        delays = []
        for _ in range(20):
            start = time.perf_counter()
            spool.put(b"x", queue="q")
            leased = client.lease("q", wait=10)
            delays.append(time.perf_counter() - start)
            assert leased is not None
        assert sorted(delays)[10] < 0.25  # far more than it takes; polling would take a second


def test_several_spools_are_forwarded_at_once_and_figures_are_served(tmp_path: Path) -> None:
    from urllib.request import urlopen

    with LocalDaemon(tmp_path / "data", settings={"log": {"level": "error"}}) as daemon:
        places = [tmp_path / name for name in ("one", "two")]
        for place in places:
            with Spool(place) as spool:
                spool.put_many([{"payload": b"%d" % n, "queue": place.name} for n in range(500)])
        port = free_port()
        process = run(
            "forward", "--spool", str(places[0]), "--spool", str(places[1]), "--to", daemon.url,
            "--metrics", f"127.0.0.1:{port}",
        )  # fmt: skip
        try:

            def served() -> str:
                try:
                    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                        text: str = answer.read().decode()
                        return text
                except OSError:
                    return ""

            for place in places:
                line = f'fastjournal_spool_jobs_total{{spool="{place}"}} 500.0'
                wait_for(lambda line=line: line in served())  # type: ignore[misc]
            text = served()
            assert f'fastjournal_spool_backlog_bytes{{spool="{places[0]}"}} 0.0' in text
            assert "fastjournal_spool_oldest_age_seconds" in text
            assert "fastjournal_spool_last_error_info" in text
        finally:
            process.terminate()
            assert process.wait(30) == 0
        with daemon.connect() as client:
            assert {client.lease(place.name).payload for place in places} == {b"0"}  # type: ignore[union-attr]


def test_a_token_and_tls_are_those_of_the_url(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    tls = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    token = add_token(tmp_path / "tokens", "forwarder", ["produce"], ["*"])
    given = {"tls": tls, "tokens": str(tmp_path / "tokens"), "log": {"level": "error"}}
    with LocalDaemon(tmp_path / "data", settings=given) as daemon:
        with Spool(tmp_path / "spool") as spool:
            spool.put_many([{"payload": b"a %d" % n, "queue": "q"} for n in range(3000)])
        url = f"fjs://127.0.0.1:{daemon.port}?ca={tmp_path / 'ca.pem'}"
        with pytest.raises(Unauthorized):
            DaemonDestination(url)
        with pytest.raises(Unavailable):
            DaemonDestination(f"fjs://127.0.0.1:{daemon.port}")
        url += f"&token={token}"
        process = run("forward", "--spool", str(tmp_path / "spool"), "--to", url, "--once")
        assert process.wait(60) == 0
    found, _ = rows_of(tmp_path / "data")
    assert found["a"] == list(range(3000))


def test_forwarding_once_ends_when_the_daemon_refuses_it(tmp_path: Path) -> None:
    tokens = [add_token(tmp_path / "tokens", name, ["produce"], ["*"]) for name in ("one", "two")]
    given = {"tokens": str(tmp_path / "tokens"), "log": {"level": "error"}}
    directory = tmp_path / "spool"

    def forward(daemon: LocalDaemon, token: str, journal: str = "") -> tuple[int, str]:
        url = f"fj://127.0.0.1:{daemon.port}/{journal}?token={token}"
        found = subprocess.run(
            [sys.executable, "-m", "fastjournal.cli.app", "forward", "--once",
             "--spool", str(directory), "--to", url],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return found.returncode, found.stderr.splitlines()[-1] if found.stderr else ""

    with LocalDaemon(tmp_path / "data", settings=given) as daemon, Spool(directory) as spool:
        spool.put(b"a 0", queue="q")
        code, text = forward(daemon, "wrong")
        assert (code, text.startswith("error: "), "refuses" in text) == (2, True, True)
        code, text = forward(daemon, tokens[0], "nix")
        assert (code, text.startswith("error: "), "nix" in text) == (2, True, True)
        assert [entry.state for entry in read_spool(directory)] == ["ready"]
        assert forward(daemon, tokens[0]) == (0, "")
        spool.put(b"a 1", queue="q")
        code, text = forward(daemon, tokens[1])
        assert (code, "belongs to another token" in text) == (2, True)
        assert [entry.state for entry in read_spool(directory)] == ["done", "ready"]
        assert forward(daemon, tokens[0]) == (0, "")
    found, _ = rows_of(tmp_path / "data")
    assert found["a"] == [0, 1]


WRITER = """
import sys
from fastjournal.spool.writer import Spool
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.readline()
spool = Spool(path)
put = spool.put
for number in range(count):
    put(b"%s %d " % (name.encode(), number) + name.encode() * (number * 31 % 400), queue="q")
"""


@pytest.mark.parametrize(
    "count",
    [100_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_eight_processes_write_at_once_and_nothing_is_torn_or_mixed(
    tmp_path: Path, count: int
) -> None:
    """FJ-M1-2: an append needs no lock."""
    each = count // 8
    names = "ABCDEFGH"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), name, str(each)], stdin=subprocess.PIPE
        )
        for name in names
    ]
    for writer in writers:
        writer.stdin.write(b"go\n")  # type: ignore[union-attr]
        writer.stdin.flush()  # type: ignore[union-attr]
    for writer in writers:
        assert writer.wait(500) == 0
    next_of = dict.fromkeys(names, 0)
    for entry in read_spool(tmp_path):
        assert entry.state == "ready" and entry.job is not None
        name, number, rest = entry.job.value.decode().split(" ")
        assert int(number) == next_of[name]
        assert rest == name * (int(number) * 31 % 400)
        next_of[name] += 1
    assert next_of == dict.fromkeys(names, each)


FILLER = """
import os, resource, signal, sys
from fastjournal.errors import NoSpace
from fastjournal.spool.writer import Spool
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
spool = Spool(sys.argv[1])
number = 0
try:
    while True:
        spool.put(b"%d" % number, queue="q")
        number += 1
except NoSpace:
    pass
print(number)
"""


def test_a_producer_without_room_is_told_and_others_go_on_behind_what_it_tore(
    tmp_path: Path,
) -> None:
    """FJ-M2-7: the kernel itself cuts the last write short."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FILLER, str(tmp_path), "50000"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    count = int(done.stdout)
    assert (tmp_path / next(p.name for p in tmp_path.glob("*.fjq"))).stat().st_size == 50_000
    with Spool(tmp_path) as spool:
        spool.put(b"after", queue="q")
    assert payloads(tmp_path) == [*(b"%d" % number for number in range(count)), b"after"]
    assert [entry.state for entry in read_spool(tmp_path)].count("damaged") == 1
