"""The commands over a spool, and `connect("spool:...")`."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import fastjournal
from command_line import invoke
from fastjournal.clock import SECOND
from fastjournal.errors import NotFound, SettingError
from fastjournal.model import DEFAULT_PRIORITY
from fastjournal.spool.forwarder import ForwardedSpool
from fastjournal.spool.frames import HOUR, name_of
from fastjournal.spool.writer import Spool
from fastjournal.testing import ManualClock
from fastjournal.testing.daemon import LocalDaemon
from spooling import payloads

NOW = 1_700_000_000 * SECOND


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """One done, two ready, one damaged."""
    with Spool(tmp_path, clock=ManualClock(NOW)) as writer:
        writer.put(b"done", queue="q")
        writer.put(b"a", queue="q", key="k")
        writer.put(b"\xff\0", queue="q")
    forwarded = ForwardedSpool(tmp_path)
    file = forwarded.open(NOW // HOUR)
    assert file is not None
    file.look()
    forwarded.set_done(file, file.read(0, most=1))  # type: ignore[arg-type]
    path = tmp_path / name_of(NOW // HOUR)
    path.write_bytes(path.read_bytes() + b"fjR\0damage")
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = invoke(arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_stat_counts_what_waits(spool: Path) -> None:
    code, text = run("spool", "stat", str(spool), "--json")
    told = json.loads(text)
    assert code == 0
    assert (told["ready"], told["done"], told["damaged"]) == (2, 1, 1)
    assert told["oldest"] == NOW
    assert told["backlog_bytes"] == sum(s for s in (12 + 109 + 3, 12 + 109 + 3))
    assert told["bytes"] == (spool / name_of(NOW // HOUR)).stat().st_size
    code, text = run("spool", "stat", str(spool))
    assert code == 0 and "2 jobs wait" in text and "20231114T22.fjq" in text


def test_dump_prints_the_jobs_that_wait_or_all(spool: Path) -> None:
    _, text = run("spool", "dump", str(spool), "--json")
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["state"] for row in rows] == ["ready", "ready", "damaged"]
    assert (rows[0]["key"], rows[0]["payload"], rows[0]["mode"]) == ("k", "a", "merge")
    assert rows[1]["payload_hex"] == "ff00"
    assert "torn" in rows[2]["reason"]
    _, text = run("spool", "dump", str(spool), "--all", "--limit", "1")
    assert "done" in text and "ready" not in text


def test_verify_names_the_damage_and_ends_with_1(spool: Path) -> None:
    code, text = run("spool", "verify", str(spool))
    assert code == 1
    assert "3 sound, 1 damaged" in text and "20231114T22.fjq: offset" in text
    path = spool / name_of(NOW // HOUR)
    path.write_bytes(path.read_bytes()[:-10])
    code, text = run("spool", "verify", str(spool), "--json")
    assert code == 0
    assert json.loads(text) == {"frames": 3, "damaged": 0}


@pytest.mark.parametrize("command", ["stat", "dump", "verify"])
def test_a_directory_that_is_no_spool_is_named(tmp_path: Path, command: str) -> None:
    with pytest.raises(NotFound, match="is no spool"):
        run("spool", command, str(tmp_path))


@pytest.mark.parametrize(
    "options",
    [
        ["--to", "./directory"],
        ["--to", "fj://localhost", "--watch", "nonsense"],
        ["--to", "fj://localhost", "--metrics", "nonsense"],
        ["--to", "fj://localhost", "--mode", "0666"],
    ],
)
def test_forward_refuses_what_cannot_be_meant(tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(SettingError):
        run("forward", "--spool", str(tmp_path), *options)


def test_forward_once_ends_although_the_last_frame_is_torn(tmp_path: Path) -> None:
    """A full disk tore it in the file of this hour: nothing more comes, nothing is waited for."""
    spool = tmp_path / "spool"
    with Spool(spool) as writer:
        writer.put(b"a", queue="q")
        writer.put(b"b", queue="q")
    path = max(spool.glob("*.fjq"))
    path.write_bytes(path.read_bytes()[:-10])
    with LocalDaemon(tmp_path / "data") as daemon:
        result = invoke(["forward", "--spool", str(spool), "--to", daemon.url, "--once"])
        assert (result.exit_code, result.exception) == (0, None)
        assert "bytes are torn and stay" in result.stderr
        with daemon.connect() as client:
            assert [job.payload for job in client.lease_many(9, "q")] == [b"a"]


def test_connect_opens_a_spool_by_its_url(tmp_path: Path) -> None:
    with fastjournal.connect(f"spool:{tmp_path / 'spool'}", max_bytes=1 << 20) as producer:
        assert isinstance(producer, Spool)
        producer.put(b"x", key="k", queue="q")
        assert producer.max_bytes == 1 << 20
    assert payloads(tmp_path / "spool") == [b"x"]


def put_arguments(module: str, kind: str) -> dict[str, str | None]:
    """The arguments of a `put` and their defaults, by the source: compiled methods tell neither."""
    source = Path(fastjournal.__file__).parent / module
    (put,) = (
        member
        for thing in ast.parse(source.read_text()).body
        if isinstance(thing, ast.ClassDef) and thing.name == kind
        for member in thing.body
        if isinstance(member, ast.FunctionDef) and member.name == "put"
    )
    given = put.args
    names = [each.arg for each in given.args[1:] + given.kwonlyargs]
    defaults = [*given.defaults, *given.kw_defaults]
    return {
        name: None if default is None else ast.unparse(default)
        for name, default in zip(names, defaults, strict=True)
    }


def test_the_put_of_a_spool_takes_what_the_put_of_a_journal_takes() -> None:
    ours = put_arguments("spool/writer.py", "Spool")
    theirs = put_arguments("journal/journal.py", "Journal")
    assert (ours.pop("sync"), theirs.pop("persist")) == ("None", "False"), "each has one of its own"
    assert theirs.pop("priority") == "DEFAULT_PRIORITY"
    assert ours.pop("priority") == str(DEFAULT_PRIORITY)
    assert theirs == ours
