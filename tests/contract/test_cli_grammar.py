"""One grammar for every command: how a journal is named, what programs get, what help shows.

The commands are found by walking over the whole command line, so a new one is held to it as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from command_line import Command
from fastjournal import Journal
from fastjournal.cli import app as cli
from fastjournal.testing.daemon import LocalDaemon

SERVICES = {"serve", "forward", "workq", "worker", "demo", "spark shell"}
"""They run until they are told to stop, or talk to people: there is no result to print."""
ELSEWHERE = {
    "ping": "asks a daemon only", "listen": "asks a daemon only",
    "backup": "names two places", "restore": "names two places",
    "tasks": "looks at a program", "version": "looks at nothing",
    "serve": "is the daemon", "workq": "is the daemon", "forward": "carries spools",
    "demo": "makes its own",
}  # fmt: skip
"""Commands that are not about one journal."""


def walk() -> Iterator[tuple[str, Any]]:
    def below(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", None)
        if children is None:
            yield path.strip(), command
        else:
            for name, child in children.items():
                yield from below(child, f"{path} {name}")

    yield from below(ROOT, "")


APP = cli.app
ROOT = typer.main.get_command(cli.app)
ALL = dict(walk())
SHOWN = {name: command for name, command in ALL.items() if not command.hidden}


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Command:
    for name in ("FASTJOURNAL_DIR", "FASTJOURNAL_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return Command(capfd, monkeypatch)


@pytest.mark.parametrize("name", sorted(ALL.keys() - SERVICES))
def test_every_result_can_be_had_as_json(name: str) -> None:
    assert "--json" in options(ALL[name])


@pytest.mark.parametrize("name", sorted(name for name in ALL if " " not in name))
def test_a_journal_is_named_the_same_way_everywhere(name: str) -> None:
    both = {"--dir", "--url"}
    found = options(ALL[name]) & both
    assert found == (both if name not in ELSEWHERE else found - {"--dir"})
    for parameter in ALL[name].params:
        if "--dir" in parameter.opts and name != "serve":
            assert parameter.envvar == "FASTJOURNAL_DIR"
        if "--url" in parameter.opts:
            assert parameter.envvar == "FASTJOURNAL_URL"


@pytest.mark.parametrize("name", sorted(ALL))
def test_help_tells_what_it_does_with_an_example(run: Command, name: str) -> None:
    code, out, err = run(*name.split(), "--help")
    assert (code, err) == (0, "")
    assert f"fastjournal {name}" in out
    command = ALL[name]
    assert f"    fastjournal {name}" in command.help
    assert command.help.split("\n\n")[0].strip().endswith(".")


def test_stat_is_a_deprecated_name_that_help_does_not_show(run: Command, tmp_path: Path) -> None:
    Journal(tmp_path / "jobs").close()
    old, new = run("stat", "--json"), run("status", "--json")
    assert old[0] == new[0] == 0
    assert json.loads(old[1]).keys() == json.loads(new[1]).keys()
    assert old[2] == "warning: stat is deprecated; say status\n"
    assert new[2] == ""
    assert set(ALL) - set(SHOWN) == {"stat"}
    shown = cli.overview(APP)
    listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]
    assert "status" in listed
    assert "stat" not in listed


NONSENSE = [
    ["--nonsense"],
    ["\udcff\udcfe"],
    ["", "", ""],
    ["-"],
    ["../../nowhere", "-1"],
    ["x" * 5000],
    ["--dir", "/dev/null", "x", "1"],
    ["--url", "fj://[::", "x", "1"],
    ["--url", "http://x", "x", "1"],
    ["--url", "fj://host:notaport"],
    ["--url", "fj://\udcff"],
    ["--url", "fj://a..b"],
    ["--url", "fj://h?timeout=soon"],
    ["--json", "--limit", "-3"],
    ["9" * 40, "9" * 40],
    ["☃", "☃=☃"],
]
CODES = (0, 1, 2, 3, 75)
HEAVY = {"serve", "workq", "demo", "forward", "worker"}
"""Whose right arguments would begin to serve; `test_cli_bad_input` has wrong ones for them."""


@pytest.mark.parametrize("name", sorted(name for name in ALL if not name.startswith("spark")))
def test_nonsense_is_answered_in_one_line_and_never_by_a_traceback(run: Command, name: str) -> None:
    for words in NONSENSE:
        if name in HEAVY and words[0] != "--nonsense":
            continue
        if name in ("watch", "listen", "top", "log disktest") and not words[0].startswith("--"):
            continue  # a key, a queue, a directory may have any name; they would wait
        code, out, err = run(*name.split(), *words)
        assert code in CODES or (name, code) == ("lock", 127), (words, code)
        assert "Traceback" not in err + out, words
        if code >= 2:
            assert err.strip(), words


# What programs get.


def answer(run: Command, *words: str) -> dict[str, Any]:
    code, out, err = run(*words, "--json")
    assert (code, err) == (0, ""), (words, err)
    lines = out.splitlines()
    assert len(lines) == 1, out
    told = json.loads(lines[0])
    assert isinstance(told, dict)
    return told


@pytest.fixture(params=["directory", "daemon"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    if request.param == "directory":
        yield ["--dir", str(tmp_path / "jobs")]
    else:
        with LocalDaemon(tmp_path / "data") as daemon:
            yield ["--url", daemon.url]


def test_every_verb_tells_programs_what_it_did(run: Command, place: list[str]) -> None:
    def put() -> str:
        return str(answer(run, "put", "x", "--queue", "q", "--max-fails", "1", *place)["id"])

    def lease() -> list[str]:
        told = answer(run, "lease", "q", *place)
        return [told["id"], str(told["token"])]

    put()
    job, token = lease()
    assert answer(run, "touch", job, token, "--extend", "5m", *place)["until"] > 0
    assert answer(run, "release", job, token, *place) == {"id": job, "outcome": "released"}
    job, token = lease()
    assert answer(run, "fail", job, token, *place) == {"id": job, "outcome": "dead"}
    assert answer(run, "redrive", job, *place) == {"redriven": 1}
    job, token = lease()
    assert answer(run, "done", job, token, *place) == {"id": job, "outcome": "done"}
    assert answer(run, "delete", put(), *place) == {"outcome": "deleted"}
    put()
    run("fail", *lease(), *place)
    assert answer(run, "delete", "--dead", *place) == {"deleted": 1}
    put()
    for verb, word in (("pause", "paused"), ("drain", "draining"), ("resume", "resumed")):
        assert answer(run, verb, "q", *place) == {"queue": "q", "outcome": word}
    assert answer(run, "set", "k", "v", *place) == {"key": "k", "outcome": "set"}
    assert answer(run, "add", "n", "2", *place) == {"key": "n", "value": 2}
    assert answer(run, "unset", "k", *place) == {"key": "k", "outcome": "deleted"}
    assert answer(run, "delete", "--entry", "n", *place) == {"key": "n", "outcome": "deleted"}
    assert answer(run, "snapshot", *place)["rows"] >= 1
    top = answer(run, "top", "--once", *place)
    assert top["jobs"] == 1
    assert [queue["queue"] for queue in top["queues"]] == ["q"]
    assert answer(run, "status", *place)["jobs"] == 1
    code, out, err = run("lock", "--json", *place, "key", "--", "true")
    told = json.loads(out)
    assert (code, err, told["key"], told["code"]) == (0, "", "key", 0)
    assert told["fence"] > 0


def test_the_version_and_the_end_of_a_token_are_told_to_programs(
    run: Command, tmp_path: Path
) -> None:
    told = answer(run, "version")
    assert told.keys() == {"version", "core"}
    assert told["core"].startswith(("pure", "compiled"))
    tokens = os.fspath(tmp_path / "tokens")
    run("token", "add", tokens, "web", "--role", "read")
    assert answer(run, "token", "remove", tokens, "web") == {"name": "web", "outcome": "removed"}
