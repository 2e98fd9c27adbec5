"""The daemon as a process: start, ports, signals, systemd, log lines, metrics, the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastjournal
from command_line import invoke
from daemon_process import DaemonProcess, free_port
from fastjournal.daemon.auth import add_token
from fastjournal.daemon.systemd import inherited, notify, watchdog_seconds
from fastjournal.errors import Unauthorized, Unavailable
from fastjournal.journal.journal import Journal
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    running = DaemonProcess(tmp_path / "d")
    yield running
    if running.process is not None:
        running.stop()


def get(port: int, path: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def run(*arguments: str) -> str:
    """The command line; its standard output."""
    done = invoke(list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_stop_drains_and_closes_in_order(daemon: DaemonProcess) -> None:
    daemon.start()
    client = fastjournal.connect(daemon.url)
    client.put_many([{"queue": "q"}] * 100)
    waiting: list[object] = []
    thread = threading.Thread(target=lambda: waiting.append(client.lease("nix", wait=60)))
    thread.start()
    other = fastjournal.connect(daemon.url)
    wait_until(lambda: other.status().server.waiting == 1, what="the consumer waits")
    assert daemon.stop() == 0
    with Journal(daemon.data / "default") as journal:
        assert journal.replayed.clean
        assert journal.status().ready == 100
    thread.join(40)
    text = daemon.log.read_text()
    assert "ready" in text
    assert "stopped" in text


def test_the_promise_is_printed_at_start(daemon: DaemonProcess) -> None:
    """P-SAY: every loss window that the daemon accepts is told."""
    daemon.options = ("--log-format", "json")
    daemon.start()
    wait_until(lambda: "ready" in daemon.log.read_text())
    lines = [json.loads(line) for line in daemon.log.read_text().splitlines()]
    ready = next(line for line in lines if line["event"] == "ready")
    assert ready["sync"] == "interval"
    assert "sync interval" in ready["promise"]
    with fastjournal.connect(daemon.url) as client:
        assert client.about["promise"] == ready["promise"] == client.status().promise


def test_hang_up_reloads_the_tokens(tmp_path: Path, daemon: DaemonProcess) -> None:
    file = tmp_path / "tokens"
    first = add_token(file, "first", ["admin"], [])
    daemon.options = ("--tokens", str(file))
    daemon.start()
    fastjournal.connect(f"{daemon.url}?token={first}").close()
    second = add_token(file, "second", ["admin"], [])
    with pytest.raises(Unauthorized):
        fastjournal.connect(f"{daemon.url}?token={second}")
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: "reloaded" in daemon.log.read_text())
    fastjournal.connect(f"{daemon.url}?token={second}").close()
    assert first not in daemon.log.read_text()


def test_a_second_daemon_on_the_same_data_is_refused(daemon: DaemonProcess) -> None:
    daemon.start()
    second = subprocess.run(
        [sys.executable, "-m", "fastjournal.cli.app", "serve", str(daemon.data),
         "--listen", f"127.0.0.1:{free_port()}"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert second.returncode == 2
    assert "error:" in second.stderr.splitlines()[-1]
    fastjournal.connect(daemon.url).close()


def test_settings_come_from_file_environment_and_options(tmp_path: Path) -> None:
    port, http = free_port(), free_port()
    (tmp_path / "fj.toml").write_text(
        f'data = "{tmp_path / "d"}"\nlisten = ["127.0.0.1:{port}"]\n'
        '[journal]\nsync = "os"\n[limits]\nmax_connections = 5\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "fastjournal.cli.app", "serve", "--config",
         str(tmp_path / "fj.toml"), "--sync", "always"],
        env=os.environ | {"FASTJOURNAL_HTTP": f"127.0.0.1:{http}"}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with fastjournal.connect(f"fj://127.0.0.1:{port}?connect_timeout=20") as client:
        assert client.about["sync"] == "always"
    assert get(http, "/readyz") == (200, "ready\n")
    process.terminate()
    assert process.wait(20) == 0
    wrong = subprocess.run(
        [sys.executable, "-m", "fastjournal.cli.app", "serve", "--sync", "sometimes"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "journal.sync" in wrong.stderr


def test_systemd_is_told_and_sockets_are_inherited(tmp_path: Path) -> None:
    """Type=notify with a watchdog, and a socket unit: the daemon serves a socket it was given."""
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, socket.socket() as given:
        told.bind(str(address))
        told.settimeout(20)
        given.bind(("127.0.0.1", 0))
        given.listen()
        port = given.getsockname()[1]
        code = (
            "import os,sys;os.dup2(int(sys.argv[1]),3);os.environ['LISTEN_PID']=str(os.getpid());"
            "os.execv(sys.executable,[sys.executable,'-m','fastjournal.cli.app','serve',sys.argv[2]])"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(given.fileno()), str(tmp_path / "d")],
            pass_fds=(given.fileno(), 3) if given.fileno() != 3 else (3,),
            env=os.environ | {"NOTIFY_SOCKET": str(address), "LISTEN_FDS": "1",
                              "LISTEN_FDNAMES": "fj", "WATCHDOG_USEC": "400000"},
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        said = b""
        while b"WATCHDOG=1" not in said or b"READY=1" not in said:
            said += told.recv(1000) + b"\n"
        assert said.index(b"replaying") < said.index(b"READY=1")
        with fastjournal.connect(f"fj://127.0.0.1:{port}") as client:
            client.put(queue="q")
        process.terminate()
        while b"STOPPING=1" not in said:
            said += told.recv(1000) + b"\n"
        assert process.wait(20) == 0


def test_without_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "LISTEN_PID", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    notify("READY=1")
    assert inherited() == []
    assert watchdog_seconds() == 0
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    assert watchdog_seconds() == 5
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_seconds() == 0


def test_metrics_are_those_of_the_page(tmp_path: Path) -> None:
    """Every family is documented, and nothing else is."""
    with LocalDaemon(tmp_path / "d") as daemon, daemon.connect() as client:
        client.put(b"x", queue="q", key="k")
        client.put(b"y", queue="q", key="k")
        job = client.lease("q")
        assert job is not None
        job.done()
        client.put(queue="r", delay=60)
        with pytest.raises(fastjournal.RequestError):
            client.complete(bytes(range(16)), 1)
        status, page = get(daemon.http_port, "/metrics")
        assert status == 200
        shown = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
        text = (DOCS / "metrics.md").read_text()
        documented = set(re.findall(r"^\| `(fastjournal_\w+)`", text, re.MULTILINE))
        of_nodes = {name for name in documented if name.startswith("fastjournal_replica_")}
        assert shown == documented - of_nodes
        for line in (
            'fastjournal_puts_total{journal="default"} 3.0',
            'fastjournal_merges_total{journal="default"} 1.0',
            'fastjournal_leases_total{journal="default"} 1.0',
            'fastjournal_completions_total{journal="default"} 1.0',
            'fastjournal_queue_jobs{journal="default",queue="r",state="future"} 1.0',
            'fastjournal_errors_total{code="NOT-FOUND"} 1.0',
            'fastjournal_connections{protocol="fj"} 1.0',
        ):
            assert line in page, line
        assert 'fastjournal_merge_ratio{journal="default"} 0.33' in page


def test_health_and_readiness(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "d") as daemon:
        assert get(daemon.http_port, "/healthz") == (200, "ok\n")
        assert get(daemon.http_port, "/readyz") == (200, "ready\n")
        daemon.server.ready = False
        assert get(daemon.http_port, "/readyz") == (503, "loading\n")


def test_the_ports_open_after_the_replay(tmp_path: Path) -> None:
    """WQ-GEN-5: while it replays, only readiness answers, and says loading."""
    with Journal(tmp_path / "d") as journal:
        for _ in range(60):
            journal.put_many([{"payload": bytes(200), "queue": "q"}] * 1000)
    http = free_port()
    daemon = DaemonProcess(tmp_path / "d", "--http", f"127.0.0.1:{http}")
    daemon.start(wait=False)
    seen: set[object] = set()
    while (200, "ready\n") not in seen:
        try:
            answer = get(http, "/readyz")
        except OSError:
            continue
        if answer[0] == 503:
            try:
                socket.create_connection(("127.0.0.1", daemon.port), 1).close()
            except ConnectionRefusedError:
                seen.add("closed while loading")
        seen.add(answer)
    assert {(503, "loading\n"), "closed while loading"} <= seen
    with fastjournal.connect(daemon.url) as client:
        assert client.status().ready == 60_000
    assert daemon.stop() == 0


def test_the_job_commands_work_on_a_daemon(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "d") as daemon:
        url = ("--url", daemon.url)
        run("put", "hello", "--queue", "q", *url)
        leased = json.loads(run("lease", "q", "--json", *url))
        run("done", leased["id"], str(leased["token"]), *url)
        assert "µs" in run("ping", *url)
        assert json.loads(run("status", "--json", *url))["about"]["server"] == "fastjournal"
        assert "promise" in run("status", *url)
        run("put", "again", "--queue", "q", *url)
        event = json.loads(run("listen", "q", "--limit", "1", "--json", *url))
        assert (event["kind"], event["queue"]) == ("due", "q")
        assert "q" in run("queues", *url)


def test_the_token_commands(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens")
    token = run("token", "add", file, "me", "--role", "produce", "--role", "consume").strip()
    assert token.startswith("fj_")
    one = ("you", "--role", "admin", "--journal", "b")
    made = json.loads(run("token", "add", file, *one, "--json"))
    assert made["journals"] == ["b"]
    listed = [json.loads(line) for line in run("token", "list", file, "--json").splitlines()]
    assert [(one["name"], one["roles"]) for one in listed] == [
        ("me", ["consume", "produce"]), ("you", ["admin"]),
    ]  # fmt: skip
    assert "me" in run("token", "list", file)
    run("token", "remove", file, "me")
    assert len(run("token", "list", file, "--json").splitlines()) == 1
    assert token not in Path(file).read_text()


def test_nobody_there_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:  # so that nobody else listens there
        taken.bind(("127.0.0.1", 0))
        done = subprocess.run(
            [sys.executable, "-m", "fastjournal.cli.app", "ping", "--url",
             f"fj://127.0.0.1:{taken.getsockname()[1]}?connect_timeout=0.2"],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: 127.0.0.1:")
    assert len(done.stderr.splitlines()) == 1
    with pytest.raises(Unavailable):
        fastjournal.connect(f"unix:{tmp_path / 'none'}?connect_timeout=0.1")
