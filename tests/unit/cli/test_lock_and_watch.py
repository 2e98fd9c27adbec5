"""The commands that stay: lock and watch, on a directory and behind a daemon."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from command_line import Command
from fastjournal import Journal
from fastjournal.cli.journal.entries import directory_changes
from fastjournal.entry_model import watched
from fastjournal.entry_value import INTEGER, STRING
from fastjournal.testing.daemon import LocalDaemon

SHOW = "import os, sys; print(os.environ['FASTJOURNAL_LOCK'], os.environ['FASTJOURNAL_FENCE'])"


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return Command(capfd, monkeypatch, tmp_path / "j")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", settings={"journal": {"sync": "os"}}) as running:
        yield running


def test_a_command_runs_under_a_lock_and_learns_its_number(
    run: Command, daemon: LocalDaemon
) -> None:
    """D-22."""
    code, out, _ = run("lock", "k", "--", sys.executable, "-c", SHOW)
    assert code == 0 and out.split()[0] == "k" and int(out.split()[1]) > 0
    numbers = []
    for _ in range(2):
        code, out, _ = run("lock", "k", "--url", daemon.url, "--", sys.executable, "-c", SHOW)
        assert code == 0
        numbers.append(int(out.split()[1]))
    assert numbers[0] < numbers[1]


def test_the_exit_code_is_that_of_the_command(run: Command, daemon: LocalDaemon) -> None:
    exits = [sys.executable, "-c", "raise SystemExit(7)"]
    assert run("lock", "k", "--url", daemon.url, "--", *exits)[0] == 7
    killed = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    assert run("lock", "k", "--url", daemon.url, "--", *killed)[0] == 137
    assert run("lock", "k", "--url", daemon.url, "--", "/no/such/program")[0] == 127
    with daemon.connect() as client:
        client.entries.lock("k").free()  # whatever became of the command


def test_a_lock_of_somebody_else_is_waited_for_or_refused(
    run: Command, daemon: LocalDaemon
) -> None:
    with daemon.connect() as client:
        held = client.entries.lock("k", 60)
        code, out, err = run("lock", "k", "--url", daemon.url, "--", sys.executable, "-c", SHOW)
        assert (code, out, err) == (75, "", "k is locked\n")
        timer = threading.Timer(0.1, held.free)
        timer.start()
        wait = ["lock", "--wait", "20s", "--url", daemon.url, "k", "--"]
        assert run(*wait, sys.executable, "-c", SHOW)[0] == 0
        timer.join()


def test_a_lock_is_kept_while_the_command_runs(run: Command, daemon: LocalDaemon) -> None:
    with daemon.connect() as client:
        client.entries["k"] = 1
        source = f"""
import fastjournal, os, time
fence = int(os.environ["FASTJOURNAL_FENCE"])
with fastjournal.connect({daemon.url!r}) as client:
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        client.entries.set("k", 2, fence=fence)
        time.sleep(0.05)
"""
        lock = ["lock", "k", "--length", "300ms", "--url", daemon.url, "--"]
        assert run(*lock, sys.executable, "-c", source)[0] == 0
        assert client.entries["k"] == 2


def test_a_command_whose_lock_was_lost_is_told_to_end(run: Command, daemon: LocalDaemon) -> None:
    source = f"""
import fastjournal, os, time
from fastjournal.client.entry_calls import unlock
fence = int(os.environ["FASTJOURNAL_FENCE"])
with fastjournal.connect({daemon.url!r}) as client:
    client.caller.call(unlock(b"k", fence))
    client.entries.lock("k", 60)
time.sleep(60)
"""
    began = time.monotonic()
    lock = ["lock", "k", "--length", "600ms", "--url", daemon.url, "--"]
    code, _, err = run(*lock, sys.executable, "-c", source)
    assert (code, "was lost" in err) == (75, True)
    assert time.monotonic() - began < 30


def test_entry_commands_ask_a_daemon(run: Command, daemon: LocalDaemon) -> None:
    """FJ-CLI-1."""
    there = ["--url", daemon.url]
    assert run("set", "a", "hello", *there)[:2] == (0, "a set\n")
    assert run("get", "a", *there)[1] == "hello"
    assert run("add", "n", "5", *there)[1] == run("get", "n", *there)[1] == "5\n"
    lines = run("scan", "--json", *there)[1].splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["a", "n"]
    assert run("scan", "--match", "^n", *there)[1].count("integer") == 1
    assert run("unset", "a", *there)[0] == 0
    assert run("delete", "--entry", "n", *there)[0] == 0
    assert run("delete", "--entry", "n", *there)[0] == 1
    assert run("delete", "--entry", "n", "--key", "k", *there)[0] == 2
    assert run("get", "n", *there)[0] == 1


def test_changes_are_printed_as_they_come(run: Command, daemon: LocalDaemon) -> None:
    with daemon.connect() as client:

        def write() -> None:
            while not stopped.is_set():
                client.entries["k"] = 1
                client.entries["other"] = 1
                stopped.wait(0.05)

        for options in (["k"], ["--prefix", "k"]):
            stopped = threading.Event()
            thread = threading.Thread(target=write)
            thread.start()
            code, out, _ = run("watch", *options, "--limit", "2", "--json", "--url", daemon.url)
            stopped.set()
            thread.join()
            changes = [json.loads(line) for line in out.splitlines()]
            assert code == 0
            assert [(c["change"], c["key"], c["type"]) for c in changes] == [
                ("set", "k", "integer")
            ] * 2


def test_a_directory_in_use_is_watched(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", sync="os") as journal:
        journal.entries["b"] = 1
        looks = 0

        def look(_: float) -> None:
            nonlocal looks
            looks += 1
            if looks == 1:
                journal.entries["a"], journal.entries["other"] = "x", 1
            elif looks == 3:
                del journal.entries["b"]
                journal.entries["a"] = 2

        changes = directory_changes(tmp_path / "j", watched(), look)
        told = [(c.key, c.kind, c.gone) for c in islice(changes, 4)]
        assert told[:2] == [(b"a", STRING, False), (b"other", INTEGER, False)]
        assert told[2:] == [(b"a", INTEGER, False), (b"b", 0, True)]
        changes.close()
        only = directory_changes(tmp_path / "j", watched("b"), look)
        journal.entries["b"] = 1
        looks = 2
        assert [(c.key, c.gone) for c in islice(only, 1)] == [(b"b", True)]
        only.close()
