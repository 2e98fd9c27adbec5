"""No command answers bad input with a trace: one line, and an exit code that docs/cli.md tells.

Each command of the command line stands in one of the tables below, or a test fails. What those of
Spark see before they begin a session is tested here, the rest where Spark is.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_line import Command, commands
from fastjournal import Journal
from fastjournal.cli import app as cli
from fastjournal.daemon.auth import add_token
from fastjournal.testing.daemon import LocalDaemon

COMMANDS = dict(commands())
DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
JOB = "0" * 31 + "1"
USAGE, DAMAGE, NO_LOCK = 2, 3, 75

ON_JOURNALS: dict[str, list[str]] = {
    "put": ["x", "--queue", "q"],
    "lease": ["q"],
    "done": [JOB, "1"],
    "fail": [JOB, "1"],
    "touch": [JOB, "1"],
    "release": [JOB, "1"],
    "list": [],
    "show": [JOB],
    "queues": [],
    "status": [],
    "top": ["--once"],
    "delete": [JOB],
    "redrive": [JOB],
    "pause": ["q"],
    "drain": ["q"],
    "resume": ["q"],
    "configure": ["q", "lease=5m"],
    "apply": [str(Path(__file__).parents[1] / "tables.toml")],
    "clean": [],
    "snapshot": [],
    "set": ["k", "v"],
    "get": ["k"],
    "add": ["k"],
    "unset": ["k"],
    "scan": [],
    "workers": [],
    "schedules": [],
    "lock": ["k", "true"],
    "watch": ["k", "--limit", "1"],
}
"""Commands that take `--dir` or `--url`, with arguments that are right."""
MAKING = ("put", "configure", "apply", "set", "add", "lock")
"""Those that make a journal where there is none."""
WAITING = ("top", "watch")
"""Those that wait for something to happen."""
EACH_WAY = ("put", "done", "list", "top", "get", "lock", "watch")
"""One for each way in which a command opens a journal."""
ON_DAEMONS = {"ping": [], "listen": []}
"""Commands that only take `--url`."""
PLACE_OF_ARCHIVE = "PLACE"
ON_LOGS = {
    "log dump": [],
    "log stat": [],
    "log verify": [],
    "log repair": ["--salvage", "--yes"],
}
"""Commands that take the directory of a log."""
ON_ARCHIVES: dict[str, list[str]] = {
    "archive list": [PLACE_OF_ARCHIVE],
    "archive verify": [PLACE_OF_ARCHIVE],
    "archive prune": [PLACE_OF_ARCHIVE],
    "restore": [PLACE_OF_ARCHIVE, "jobs"],
    "backup": [PLACE_OF_ARCHIVE, "archive"],
}
"""Commands that take an archive, or a journal to make one of."""
ON_NODES = {
    "replica status": [],
    "replica switchover": [],
    "replica add": ["d"],
    "replica remove": ["d"],
    "replica move": ["c", "d"],
    "replica promote": ["--accept-loss"],
}
"""Commands that take the address of a node."""
ON_GROUPS = {
    "group create": ["fj://127.0.0.1:1/a"],
    "group show": [],
    "group move": ["0", "fj://127.0.0.1:1/a"],
}
"""Commands that take the home of a group."""
ON_SPOOLS = ("spool stat", "spool dump", "spool verify")
ON_TOKENS = {"token add": ["web", "--role", "read"], "token list": [], "token remove": ["web"]}
PLACE = "PLACE"
ON_SPARK: dict[str, list[str]] = {
    "spark sql": ["select 1", PLACE],
    "spark replay": [PLACE],
    "spark audit": [PLACE],
    "spark shell": [PLACE],
    "spark clean": [PLACE],
    "spark trim": [PLACE, "--before", "2020-01-01"],
    "spark stream": [PLACE, "--checkpoint", "checkpoint"],
    "spark export": [PLACE, "--out", "lake"],
    "spark report": [PLACE],
}
"""Commands of Spark that read a directory."""
BEYOND_SPARK: dict[str, list[str]] = {
    "spark consume": ["fj://127.0.0.1:1", "q", "os:getcwd"],
    "spark apply": ["fj://127.0.0.1:1", "select 1"],
    "spark load": ["rows.parquet", "fj://127.0.0.1:1"],
}
"""Those that begin a session before they look at where they read."""
WRONG: list[list[str]] = [
    ["put"],
    ["put", "x", "--queue", "q", "--delay", "soon"],
    ["put", "x", "--queue", "q", "--priority", "1000"],
    ["put", "x", "--queue", "q" * 300],
    ["lease", "--count", "none"],
    ["done", "short", "1"],
    ["done", JOB, "0"],
    ["done", JOB, "many"],
    ["fail", JOB, "-1"],
    ["touch", JOB, "1", "--extend", "-5s"],
    ["release", JOB, "1", "--delay", "x"],
    ["list", "--state", "asleep"],
    ["list", "--limit", "-1"],
    ["show"],
    ["show", JOB, "--key", "k"],
    ["queues", "--nonsense"],
    ["top", "--interval", "x"],
    ["delete"],
    ["redrive"],
    ["pause"],
    ["drain"],
    ["resume"],
    ["configure", "q", "nonsense=1"],
    ["configure", "q", "lease"],
    ["configure", "q", "concurrency=-1"],
    ["apply"],
    ["apply", "/nowhere/tables.toml"],
    ["workq", "-cmdlog-sync", "os"],
    ["workq", "-cmdlog-path", "/nowhere/at/all"],
    ["workq", "-cmdlog-path", ".", "-cmdlog-sync", "often"],
    ["workq", "-cmdlog-path", ".", "-cmdlog-sync", "os", "-cmdlog-sync-int", "5"],
    ["serve", "/nowhere/at/all/data"],
    ["log", "disktest", "/nowhere/at/all"],
    ["log", "disktest", "/nowhere", "--seen", "-1"],
    ["serve", "--sync", "os", "--sync-interval", "5"],
    ["clean", "surplus"],
    ["snapshot", "surplus"],
    ["set"],
    ["set", "k", "v", "--type", "nonsense"],
    ["set", "k", "v", "--type", "integer"],
    ["get"],
    ["add", "k", "much"],
    ["unset"],
    ["scan", "--match", "("],
    ["lock", "k"],
    ["lock", "k", "--length", "x", "true"],
    ["watch", "--limit", "-1"],
    ["ping", "--count", "0"],
    ["status", "surplus"],
    ["listen", "--url", "nonsense://x"],
    ["token", "add", "/nowhere/at/all/tokens", "web", "--role", "read"],
    ["token", "add", "tokens", "web"],
    ["token", "add", "tokens", "web", "--role", "king"],
    ["token", "add", "tokens", "two words", "--role", "read"],
    ["token", "list"],
    ["token", "remove", "tokens"],
    ["log", "dump"],
    ["log", "dump", ".", "--since", "x"],
    ["log", "stat", ".", "--magic", "toolong"],
    ["log", "verify"],
    ["log", "repair", "."],
    ["log", "repair", ".", "--cut", "x", "--yes"],
    ["spool", "stat"],
    ["spool", "dump", ".", "--limit", "x"],
    ["spool", "verify"],
    ["serve", "--sync", "sometimes", "data"],
    ["serve", "--config", "missing.toml", "data"],
    ["serve", "--config", ".", "data"],
    ["serve", "--listen", "host:port:more", "data"],
    ["serve", "--listen", "0.0.0.0", "data"],
    ["serve", "--tokens", "missing", "data"],
    ["serve", "--tls-cert", "missing", "--tls-key", "missing", "data"],
    ["serve", "file"],
    ["serve", "file/below"],
    ["forward", "--spool", "spool"],
    ["forward", "--to", "fj://127.0.0.1"],
    ["forward", "--spool", "spool", "--to", "nonsense://x"],
    ["forward", "--spool", "file", "--to", "fj://127.0.0.1"],
    ["forward", "--spool", "file/below", "--to", "fj://127.0.0.1"],
    ["forward", "--spool", "spool", "--to", "fj://127.0.0.1", "--metrics", "127.0.0.1:99999"],
    ["forward", "--spool", "spool", "--to", "fj://127.0.0.1", "--metrics", "192.0.2.1:9"],
    ["worker"],
    ["worker", "nonsense"],
    ["worker", "no.such:thing"],
    ["worker", "os:getcwd", "--url", "nonsense://x"],
    ["worker", "os:getcwd", "--url", "spool:spool"],
    ["worker", "os:getcwd", "--url", "file"],
    ["worker", "os:getcwd", "--url", "file/below"],
    ["worker", "os:getcwd", "--concurrency", "0"],
    ["worker", "os:getcwd", "--mode", "processes"],
    ["worker", "os:sep"],
    ["worker", "os:getcwd", "--dir", "a", "--url", "fj://127.0.0.1"],
    ["worker", "os:getcwd", "--grace", "soon"],
    ["tasks"],
    ["tasks", "nonsense"],
    ["tasks", "no.such:thing"],
    ["tasks", "os:getcwd"],
    ["demo", "file", "--brief"],
    ["demo", "file/below", "--brief"],
    ["version", "surplus"],
    ["nonsense"],
]
"""Whole command lines that cannot be meant."""


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Beside it: `file` is a file, `tokens` a file of one token, `spool` a spool."""
    for name in ("FASTJOURNAL_DIR", "FASTJOURNAL_URL", "FASTJOURNAL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("no directory")
    return Command(capfd, monkeypatch)


def refused(outcome: tuple[int, str, str], *codes: int) -> None:
    """It ended with one of these codes and a word for people."""
    code, out, err = outcome
    assert code in codes, (code, out, err)
    assert "Traceback" not in out + err
    assert err.strip(), "nothing was said"
    if err.startswith("error: "):
        assert err.count("\n") == 1, err


def missing(path: Path) -> Path:
    return path / "nowhere"


def a_file(path: Path) -> Path:
    return path / "file"


def below_a_file(path: Path) -> Path:
    return path / "file" / "below"


def too_long(path: Path) -> Path:
    return path / ("x" * 300)


def a_ring(path: Path) -> Path:
    (path / "ring").symlink_to(path / "ring")
    return path / "ring"


def no_journal(path: Path) -> Path:
    (path / "other").mkdir()
    (path / "other" / "notes.txt").write_text("nothing of ours")
    return path / "other"


def odd_journal(path: Path) -> Path:
    (path / "odd" / "000000001.log").mkdir(parents=True)
    return path / "odd"


def closed(path: Path) -> Path:
    """A directory that may not be read, unless by root."""
    (path / "closed").mkdir()
    (path / "closed" / "000000001.log").write_text("x")
    (path / "closed").chmod(0)
    return path / "closed"


def damaged(path: Path) -> Path:
    with Journal(path / "damaged", sync="os", background=False) as journal:
        for number in range(20):
            journal.put(b"%d" % number, queue="q")
        journal.rotate()
        journal.put(b"more", queue="q")
    segment = min((path / "damaged").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    return path / "damaged"


PLACES = [a_file, missing, below_a_file, too_long, a_ring, no_journal]
if os.geteuid():  # root may read it
    PLACES.append(closed)


def test_every_command_is_given_bad_input_here() -> None:
    here = {*ON_JOURNALS, *ON_DAEMONS, *ON_LOGS, *ON_ARCHIVES, *ON_SPOOLS, *ON_TOKENS}
    here |= {"serve", "workq", "log disktest", "forward", "worker", "tasks", "demo", "version"}
    here |= {*ON_SPARK, *BEYOND_SPARK, *ON_NODES, *ON_GROUPS}
    here |= {"replica lost", "replica leave", "replica place"}
    assert {name.removeprefix("fastjournal ") for name in COMMANDS} == here


@pytest.mark.parametrize("line", WRONG, ids=" ".join)
def test_what_cannot_be_meant_is_an_error_of_usage(run: Command, line: list[str]) -> None:
    refused(run(*line), USAGE)


@pytest.mark.parametrize(
    ("command", "place"),
    [
        *((command, a_file) for command in ON_JOURNALS),
        *(
            (command, place)
            for command in EACH_WAY
            for place in [*PLACES[1:], odd_journal]
            if not (command in MAKING and place in (missing, no_journal))
        ),
    ],
)
def test_a_place_without_a_journal_is_named(
    run: Command, tmp_path: Path, command: str, place: Callable[[Path], Path]
) -> None:
    there = place(tmp_path)
    refused(run(command, *option("--dir", there, ON_JOURNALS[command])), USAGE, DAMAGE)


@pytest.mark.parametrize("command", ON_JOURNALS)
def test_a_damaged_journal_is_told_by_its_own_code(
    run: Command, tmp_path: Path, command: str
) -> None:
    refused(run(command, *option("--dir", damaged(tmp_path), ON_JOURNALS[command])), DAMAGE)


def option(name: str, value: Path | str, arguments: list[str]) -> list[str]:
    """Options stand first: the command that `lock` runs takes all that follows."""
    return [name, str(value), *arguments]


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """Something that listens and says nothing of ours."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"fj://127.0.0.1:{server.getsockname()[1]}?timeout=0.1&connect_timeout=0.1"


@pytest.mark.parametrize(
    "url", ["fj://127.0.0.1:1?timeout=0.1&connect_timeout=0.1", "nonsense://x", "host:17994"]
)
@pytest.mark.parametrize("command", [*ON_JOURNALS, *ON_DAEMONS])
def test_a_daemon_that_is_not_there_is_named(run: Command, command: str, url: str) -> None:
    arguments = (ON_JOURNALS | ON_DAEMONS)[command]
    refused(run(command, *option("--url", url, arguments)), USAGE)


@pytest.mark.parametrize("command", ON_DAEMONS)
def test_a_directory_is_no_daemon(run: Command, command: str) -> None:
    refused(run(command, "--url", "./directory"), USAGE)


@pytest.mark.parametrize("form", ["./journal", "embedded:journal"])
def test_a_url_may_be_that_of_a_directory(
    run: Command, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    assert run("put", "x", "--queue", "q", "--url", form)[0] == 0
    monkeypatch.setenv("FASTJOURNAL_URL", form)
    assert "q" in run("queues")[1]
    assert run("list", "--dir", "elsewhere")[0] == USAGE
    assert run("list", "--dir", "elsewhere", "--url", form)[0] == USAGE


def test_a_daemon_that_cannot_be_one_is_named(run: Command, elsewhere: str) -> None:
    for url in (
        elsewhere,
        "unix:/nowhere/socket?timeout=0.1&connect_timeout=0.1",
        "fj://127.0.0.1?nonsense=1",
    ):
        refused(run("status", "--url", url), USAGE)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[LocalDaemon]:
    """A daemon that wants tokens."""
    add_token(tmp_path / "known", "web", ["admin"], [])
    settings = {"tokens": str(tmp_path / "known")}
    with LocalDaemon(tmp_path / "data", settings=settings) as daemon:
        yield daemon


@pytest.mark.parametrize("command", [*ON_JOURNALS, *ON_DAEMONS])
def test_a_missing_or_wrong_token_is_an_error_of_usage(
    run: Command, guarded: LocalDaemon, command: str
) -> None:
    arguments = (ON_JOURNALS | ON_DAEMONS)[command]
    wrong = guarded.url.replace("fj://", "fj://fj_wrong@")
    for url in (guarded.url, wrong):
        refused(run(command, *option("--url", url, arguments)), USAGE)


@pytest.mark.parametrize("command", [name for name in ON_JOURNALS if name not in WAITING])
def test_each_command_works_on_a_daemon_or_says_what_it_lacks(
    run: Command, tmp_path: Path, command: str
) -> None:
    """What a client answers differs from what a journal answers: no command trips over it."""
    with LocalDaemon(tmp_path / "data") as daemon:
        for extra in ([], ["--json"]):
            options = cli_options(command)
            if extra and "--json" not in options:
                continue
            line = option("--url", daemon.url, [*extra, *ON_JOURNALS[command]])
            code, out, err = run(command, *line)
            assert "Traceback" not in out + err
            assert code in (0, 1, USAGE)
            assert code == 0 or err or command in ("lease", "get", "unset")


def cli_options(command: str) -> list[str]:
    return COMMANDS[f"fastjournal {command}"]


def test_cleaning_by_a_daemon_says_so(run: Command, tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "data") as daemon:
        assert run("clean", "--url", daemon.url) == (0, "the daemon has cleaned\n", "")
        assert run("clean", "--url", daemon.url, "--json")[:2] == (0, "")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", ON_LOGS)
def test_a_place_without_a_log_is_named(
    run: Command, tmp_path: Path, command: str, place: Callable[[Path], Path]
) -> None:
    refused(run(*command.split(), str(place(tmp_path)), *ON_LOGS[command]), USAGE, DAMAGE)


@pytest.mark.parametrize("command", ON_NODES)
def test_a_node_that_is_not_there_is_named(run: Command, tmp_path: Path, command: str) -> None:
    words = command.split()
    refused(run(*words), USAGE)
    refused(run(*words, "127.0.0.1:1", *ON_NODES[command]), USAGE)
    refused(run(*words, "127.0.0.1:many", *ON_NODES[command]), USAGE)
    nowhere = str(tmp_path / "nowhere")
    refused(run(*words, "127.0.0.1:1", "--secret-file", nowhere, *ON_NODES[command]), USAGE)


@pytest.mark.parametrize("command", ON_GROUPS)
def test_a_home_that_is_not_there_is_named(run: Command, tmp_path: Path, command: str) -> None:
    words, more = command.split(), ON_GROUPS[command]
    refused(run(*words), USAGE)
    for home in (str(tmp_path), "fj://127.0.0.1:1/jobs?connect_timeout=0.1", "fj://127.0.0.1:many"):
        refused(run(*words, home, *more), USAGE)


def test_journals_are_placed_by_settings_that_name_nodes_and_an_arbiter(
    run: Command, tmp_path: Path
) -> None:
    config = tmp_path / "node.toml"
    place = ("replica", "place", "--config", str(config))
    refused(run(*place), USAGE)
    config.write_text('[replica]\nname = "a"\n')
    refused(run(*place, "jobs"), USAGE)
    config.write_text('[replica]\nname = "a"\narbiter = ["http://127.0.0.1:1"]\n')
    for words in ([], ["jobs"], ["jobs", "mail", "--shards", "2"], ["--shards", "2"], ["../jobs"]):
        refused(run(*place, *words), USAGE)
    refused(run(*place, "jobs", "--shards", "5000"), USAGE)


def test_a_loss_must_be_accepted_in_words(run: Command) -> None:
    refused(run("replica", "promote", "127.0.0.1:1"), USAGE)


@pytest.mark.parametrize("place", [place for place in PLACES if place is not no_journal])
def test_what_was_cut_off_is_looked_for_in_a_directory(
    run: Command, tmp_path: Path, place: Callable[[Path], Path]
) -> None:
    refused(run("replica", "lost", str(place(tmp_path))), USAGE)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_copy_of_a_replicated_journal_cannot_leave(
    run: Command, tmp_path: Path, place: Callable[[Path], Path]
) -> None:
    refused(run("replica", "leave", str(place(tmp_path))), USAGE)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", ON_ARCHIVES)
def test_a_place_without_an_archive_or_a_journal_is_named(
    run: Command, tmp_path: Path, command: str, place: Callable[[Path], Path]
) -> None:
    there = str(place(tmp_path))
    line = [there if one == PLACE_OF_ARCHIVE else one for one in ON_ARCHIVES[command]]
    refused(run(*command.split(), *line), USAGE, DAMAGE)


@pytest.mark.parametrize("command", ON_ARCHIVES)
def test_an_archive_that_cannot_be_meant_is_an_error_of_usage(run: Command, command: str) -> None:
    refused(run(*command.split()), USAGE)
    refused(run(*command.split(), "x", "y", "--nonsense"), USAGE)
    refused(
        run(*command.split(), *(["x", "y"] if command == "backup" else []), "nonsense://x"), USAGE
    )
    refused(run("restore", "x", "y", "--to", "soon"), USAGE)


@pytest.mark.parametrize("place", [a_file, missing, below_a_file, too_long, a_ring])
@pytest.mark.parametrize("command", ON_SPARK)
def test_a_place_without_a_journal_is_named_before_spark_begins(
    run: Command, tmp_path: Path, command: str, place: Callable[[Path], Path]
) -> None:
    there = str(place(tmp_path))
    line = [there if one == PLACE else one for one in ON_SPARK[command]]
    refused(run(*command.split(), *line), USAGE)


@pytest.mark.parametrize("command", [*ON_SPARK, *BEYOND_SPARK])
def test_a_command_of_spark_that_cannot_be_meant_is_an_error_of_usage(
    run: Command, tmp_path: Path, command: str
) -> None:
    with Journal(tmp_path / "jobs", background=False) as journal:
        journal.put(b"x", queue="q")
    arguments = (ON_SPARK | BEYOND_SPARK)[command]
    line = [str(tmp_path / "jobs") if one == PLACE else one for one in arguments]
    refused(run(*command.split()), USAGE)
    refused(run(*command.split(), *line, "--nonsense"), USAGE)
    refused(run(*command.split(), *line, "--conf", "nonsense"), USAGE)


@pytest.mark.parametrize(
    "line",
    [
        "sql|select 1|PLACE|--as-of|yesterday",
        "sql|select 1|PLACE|--limit|0",
        "replay|PLACE|--as-of|1",
        "replay|PLACE|--shards|-1",
        "replay|PLACE|--shards|10001",
        "shell|PLACE|--as-of|nonsense",
        "clean|PLACE|--wait|soon",
        "trim|PLACE|--before|nonsense",
        "stream|PLACE|--checkpoint|file",
        "stream|PLACE|--checkpoint|at|--every|now and then",
        "stream|PLACE|--checkpoint|at|--max-records|-1",
        "export|PLACE|--out|file",
        "export|PLACE|--out|lake|--until|nonsense",
        "export|PLACE|--out|lake|--every|-1",
        "report|PLACE|--target|soon",
        "report|PLACE|--since|nonsense",
        "report|PLACE|--out|nowhere/report.html",
        "consume|PLACE|q|os:nothing",
        "consume|PLACE|q|nowhere:work",
        "consume|PLACE|q|os",
        "consume|file|q|os:getcwd",
        "consume|127.0.0.1:17994|q|os:getcwd",
        "consume|nowhere|q|os:getcwd",
        "consume|spool:x|q|os:getcwd",
        "consume|PLACE|q|os:getcwd|--lease|soon",
        "apply|PLACE|select id from jobs|--action|nonsense",
        "load|rows.csv|PLACE|--map|payload",
        "load|rows.csv|PLACE|--option|header",
        "load|rows.csv|PLACE|--number|-1",
        "load|rows.csv|file|--queue|q",
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_before_spark_begins(
    run: Command, tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fastjournal.spark.session.local_session", None)  # to begin is a fault
    with Journal("jobs", background=False) as journal:
        journal.put(b"x", queue="q")
    words = ["jobs" if word == "PLACE" else word for word in line.split("|")]
    refused(run("spark", *words), USAGE)
    assert not (tmp_path / "nowhere").exists()


def test_damage_that_spark_tells_of_has_the_code_of_damage() -> None:
    from fastjournal.cli.spark.session import error_of
    from fastjournal.errors import CorruptRecord, SegmentError, is_damage
    from fastjournal.spark.errors import CodedError, coded_errors

    def through_spark(error: Exception) -> Exception:
        with pytest.raises(CodedError) as caught, coded_errors():
            raise error
        return error_of(RuntimeError(f"Job aborted:\n{caught.value}\n  at java.lang"))

    damage = through_spark(CorruptRecord("1.log", 888, "crc mismatch"))
    assert is_damage(damage)
    assert str(damage) == "1.log: offset 888: crc mismatch [SERVER-ERROR]"
    away = SegmentError("1.log", "gone")
    away.__cause__ = FileNotFoundError()
    assert not is_damage(through_spark(away))
    java = RuntimeError("An error occurred while calling o1.start.\n: java.lang.Error: why\n at x")
    assert "java.lang.Error: why" in str(error_of(java))


def test_verify_tells_damage_from_a_typo(run: Command, tmp_path: Path) -> None:
    assert run("log", "verify", str(damaged(tmp_path)))[0] == DAMAGE
    assert run("log", "verify", str(tmp_path / "damagde"))[0] == USAGE
    assert run("log", "verify", str(tmp_path / "damaged"), "--nonsense")[0] == USAGE
    for segment in (tmp_path / "damaged").glob("*.log"):
        segment.unlink()
    assert run("log", "verify", str(tmp_path / "damaged"))[0] == DAMAGE


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", ON_SPOOLS)
def test_a_place_without_a_spool_is_named(
    run: Command, tmp_path: Path, command: str, place: Callable[[Path], Path]
) -> None:
    refused(run(*command.split(), str(place(tmp_path))), USAGE)


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (command, place)
        for command in ON_TOKENS
        for place in (missing, below_a_file, too_long, a_ring, no_journal)
        if not (command == "token add" and place is missing)  # a file is made there
    ],
)
def test_a_place_without_tokens_is_named(
    run: Command, tmp_path: Path, command: str, place: Callable[[Path], Path]
) -> None:
    refused(run(*command.split(), str(place(tmp_path)), *ON_TOKENS[command]), USAGE)


@pytest.mark.parametrize("command", ["token list", "token remove"])
def test_a_file_of_something_else_holds_no_tokens(run: Command, command: str) -> None:
    Path("binary").write_bytes(b"\xff\xfe\0\1")
    refused(run(*command.split(), "binary", *ON_TOKENS[command]), USAGE)


def test_what_is_typed_wins_over_the_environment(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put goes to the journal that was named, not to another one."""
    here = str(tmp_path / "here")
    with LocalDaemon(tmp_path / "data") as daemon, daemon.connect() as client:
        monkeypatch.setenv("FASTJOURNAL_URL", daemon.url)
        assert run("put", "typed", "--queue", "q", "--dir", here)[0] == 0
        assert client.status().jobs == 0
        assert run("list", "--dir", here, "--json")[1].count("\n") == 1
        assert run("put", "environment", "--queue", "q")[0] == 0
        assert client.status().jobs == 1
        monkeypatch.setenv("FASTJOURNAL_DIR", here)
        assert run("put", "typed", "--queue", "q", "--url", daemon.url)[0] == 0
        assert client.status().jobs == 2


@pytest.mark.parametrize("command", ON_JOURNALS)
def test_two_journals_are_an_error(
    run: Command, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = str(tmp_path / "here"), "fj://127.0.0.1:1?timeout=0.1&connect_timeout=0.1"
    arguments = ON_JOURNALS[command]
    for line in (["--dir", here, "--url", there], ["--url", there, "--dir", here]):
        outcome = run(command, *line, *arguments)
        refused(outcome, USAGE)
        assert "two journals" in " ".join(outcome[2].split())
    monkeypatch.setenv("FASTJOURNAL_URL", there)
    monkeypatch.setenv("FASTJOURNAL_DIR", here)
    outcome = run(command, *arguments)
    refused(outcome, USAGE)
    assert "both set" in " ".join(outcome[2].split())
    assert not Path(here).exists()


def test_the_codes_stand_on_the_page() -> None:
    assert (cli.FAULT, cli.DAMAGE) == (USAGE, DAMAGE)
    for row in ("| 2 |", "| 3 |"):
        assert row in DOCS[: DOCS.index("\n## ")]
