"""Commands of a daemon: `serve` and `workq` run it, `ping` and `listen` ask it, `token` lets in.

Rules of `workq`, the daemon under the names that the Workq server's users type:

1. Options have the names of the Workq server, with one dash or two.
2. The directory of its log is served as it is, and stays readable for that server.
3. Without a directory nothing is kept, as there: the log lies in memory and goes with the process.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from fastjournal.cli.arguments import Json, seconds
from fastjournal.cli.output import json_line, show_list, show_outcome
from fastjournal.clock import instant_text
from fastjournal.errors import SettingError

__all__ = ["ServeCommand", "WorkqCommand", "app", "serve", "tokens", "workq"]


_WEB = "127.0.0.1:17995"


class ServeCommand(TyperCommand):
    """Lets `--web` stand without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give `--web` its address where none follows: one has a colon in front of a number."""
        for at, word in enumerate(args):
            if word == "--web":
                following = args[at + 1] if at + 1 < len(args) else ""
                if not following.rpartition(":")[2].isdigit() or ":" not in following:
                    args = [*args[:at], f"--web={_WEB}", *args[at + 1 :]]
        return super().parse_args(ctx, args)


def serve(
    data: Annotated[
        Path | None,
        typer.Argument(help="Directory of the journals, or of one embedded journal."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings, TOML; see docs/daemon.md.")] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(help="host:port or unix:/path; several times. [127.0.0.1:17994]"),
    ] = None,
    workq: Annotated[
        list[str] | None, typer.Option(help="Also speak the Workq protocol on host:port [:9922].")
    ] = None,
    http: Annotated[
        str | None, typer.Option(help="Address of /metrics, /healthz and /readyz.")
    ] = None,
    web: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]", help="Also serve the dashboard. [127.0.0.1:17995 if not given]"
        ),
    ] = None,
    journal: Annotated[
        list[str] | None, typer.Option(help="Make this journal if it is missing; several times.")
    ] = None,
    sync: Annotated[str | None, typer.Option(help="always, interval or os. [interval]")] = None,
    sync_interval: Annotated[int | None, typer.Option(help="ms between syncs. [1000]")] = None,
    segment_size: Annotated[
        int | None, typer.Option(help="Bytes after which a new segment begins. [64 MiB]")
    ] = None,
    clean_interval: Annotated[
        float | None,
        typer.Option(
            parser=seconds, metavar="LENGTH", help="Time between two cleanings, 0: never. [300]"
        ),
    ] = None,
    memory_limit: Annotated[
        int | None,
        typer.Option(
            help="Bytes of values a journal holds in memory; the others stay on disk. [8 MiB]"
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(help="Ship all history to this place, such as s3://bucket/jobs or a path."),
    ] = None,
    tables: Annotated[
        Path | None, typer.Option(help="Declared queues and journals; see `fastjournal apply`.")
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="File of tokens; see `fastjournal token`.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Clients must show a certificate of these authorities.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Listen beyond this machine without tokens and TLS.")
    ] = False,
    accept: Annotated[
        bool, typer.Option(help="Take jobs of a foreign log whose fields cannot be.")
    ] = False,
    log_format: Annotated[str | None, typer.Option(help="text or json. [text]")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning, error.")] = None,
) -> None:
    """Serve journals to many hosts.

    Without any option: one journal in ./fastjournal-data, on 127.0.0.1:17994.

    With --web there is a dashboard on http://127.0.0.1:17995/.

    Examples:

        fastjournal serve --web

        fastjournal serve /var/lib/fastjournal --sync always --http 127.0.0.1:9924

        fastjournal serve --listen 0.0.0.0 --tokens tokens --tls-cert a.pem --tls-key a.key
    """
    from fastjournal.config import Settings, load
    from fastjournal.daemon.main import run

    given: dict[str, Any] = {
        "data": data, "listen": listen, "workq": workq, "http": http, "web": web,
        "journals": journal, "tables": tables, "tokens": tokens, "insecure": insecure or None,
        "journal": {
            "sync": sync, "sync_interval": sync_interval, "segment_size": segment_size,
            "clean_interval": clean_interval, "memory_limit": memory_limit,
            "archive": archive, "accept": accept or None,
        },
        "tls": {"certificate": tls_cert, "key": tls_key, "client_ca": tls_client_ca},
        "log": {"format": log_format, "level": log_level},
    }  # fmt: skip
    overrides = _said(given)

    def settings() -> Settings:
        return load(config, overrides=overrides)

    raise typer.Exit(run(settings(), settings))


def _said(given: dict[str, Any]) -> dict[str, Any]:
    """Without what was not given; paths as text."""
    out: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, dict):
            out[name] = _said(value)
        elif value is not None and value != []:
            out[name] = str(value) if isinstance(value, Path) else value
    return out


_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory; what is made there is ours alone
_ONE_DASH = re.compile(r"-[a-z][a-z-]+(=.*)?")


class WorkqCommand(TyperCommand):
    """Takes options with one dash too, as programs in Go do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give each of them its second dash."""
        return super().parse_args(ctx, [f"-{a}" if _ONE_DASH.fullmatch(a) else a for a in args])


def workq(
    listen: Annotated[str, typer.Option(help="host:port.")] = "127.0.0.1:9922",
    cmdlog_path: Annotated[
        Path | None, typer.Option(help="Directory of the log; without it nothing is kept.")
    ] = None,
    cmdlog_seg_size: Annotated[
        int | None, typer.Option(help="Bytes after which a new segment begins. [64 MiB]")
    ] = None,
    cmdlog_sync: Annotated[
        str | None, typer.Option(help="interval, os or always. [interval]")
    ] = None,
    cmdlog_sync_interval: Annotated[
        int | None,
        typer.Option(
            "--cmdlog-sync-interval", "--cmdlog-sync-int", help="ms between syncs. [1000]"
        ),
    ] = None,
    cmdlog_clean_int: Annotated[
        int | None, typer.Option(help="ms between two cleanings, 0: never. [300000]")
    ] = None,
    accept: Annotated[
        bool, typer.Option(help="Take jobs of a foreign log whose fields cannot be.")
    ] = False,
    insecure: Annotated[bool, typer.Option(help="Listen beyond this machine.")] = False,
) -> None:
    """Serve the Workq protocol, by the Workq server's own options.

    They may stand with one dash or two. Without --cmdlog-path nothing is kept.

    Examples:

        fastjournal workq --cmdlog-path /var/lib/workq

        fastjournal workq -listen 127.0.0.1:9922 -cmdlog-path /var/lib/workq -cmdlog-sync always
    """
    from fastjournal.config import load
    from fastjournal.daemon.main import run

    journal = {
        "segment_size": cmdlog_seg_size, "sync": cmdlog_sync,
        "sync_interval": cmdlog_sync_interval,
        "clean_interval": None if cmdlog_clean_int is None else cmdlog_clean_int / 1000,
        "accept": accept or None,
    }  # fmt: skip
    given = {name: value for name, value in journal.items() if value is not None}
    if cmdlog_path is None and given:
        raise typer.BadParameter("without --cmdlog-path there is no log to be told about")
    with _directory(cmdlog_path) as path:
        settings = load(
            None,
            overrides={
                "data": str(path), "listen": [], "workq": [listen], "insecure": insecure,
                "journal": given if cmdlog_path is not None else {"sync": "os"},
            },
        )  # fmt: skip
        raise typer.Exit(run(settings))


@contextlib.contextmanager
def _directory(path: Path | None) -> Iterator[Path]:
    """Where the log is: made if only its last part is missing; or in memory, while it is needed."""
    if path is None:
        with TemporaryDirectory(prefix="workq-", dir=_MEMORY if _MEMORY.is_dir() else None) as made:
            (Path(made) / "append.lock").touch()
            yield Path(made)
        return
    try:
        path.mkdir(exist_ok=True)
        (path / "append.lock").touch()  # this directory is the journal itself
    except OSError as error:
        raise SettingError(f"cmdlog-path {path}: {error.strerror}", name="cmdlog-path") from error
    yield path


app = typer.Typer()
tokens = typer.Typer(help="Tokens of a daemon: make, list and remove them.", no_args_is_help=True)

_Url = Annotated[
    str, typer.Option(help="Where the daemon is.", envvar="FASTJOURNAL_URL", show_envvar=False)
]
_File = Annotated[Path, typer.Argument(help="The file of tokens.")]
_DEFAULT = "fj://127.0.0.1"


@app.command()
def ping(
    url: _Url = _DEFAULT,
    count: Annotated[int, typer.Option(help="How often.", min=1)] = 1,
    json: Json = False,
) -> None:
    """Ask a daemon whether it is there, and how long its answer takes.

    Examples:

        fastjournal ping

        fastjournal ping --url fj://queue.example.com --count 5
    """
    with _client(url) as client:
        for _ in range(count):
            start = time.perf_counter()
            now = client.ping()
            took = time.perf_counter() - start
            if json:
                json_line({"server_time": now, "microseconds": round(took * 1e6, 1)})
            else:
                typer.echo(f"{client.target.address}: {took * 1e6:.0f} µs, {instant_text(now)}")


@app.command()
def listen(
    queue: Annotated[str | None, typer.Argument(help="Queue; all if not given.")] = None,
    url: _Url = _DEFAULT,
    limit: Annotated[int, typer.Option(help="Stop after so many events; 0: never.")] = 0,
    json: Json = False,
) -> None:
    """Print an event whenever a queue has something to give, or a job has died.

    Examples:

        fastjournal listen mail

        fastjournal listen --json --limit 1
    """
    with _client(url) as client, client.subscribe(queue) as events:
        for number, event in enumerate(events, 1):
            name = event.queue.decode("utf-8", "backslashreplace")
            if json:
                json_line({"kind": event.kind, "queue": name, "at": event.at})
            else:
                typer.echo(f"{instant_text(event.at)} {event.kind} {name}")
            if number == limit:
                return


@tokens.command()
def add(
    file: _File,
    name: Annotated[str, typer.Argument(help="Who will use it.")],
    role: Annotated[
        list[str], typer.Option(help="read, produce, consume or admin; several times.")
    ],
    journal: Annotated[
        list[str] | None, typer.Option(help="Only for this journal; several times. Else all.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a token and print it. It is not kept: only its hash is in the file.

    Examples:

        fastjournal token add ./tokens web --role produce

        fastjournal token add ./tokens resizer --role consume --journal images
    """
    from fastjournal.daemon.auth import add_token

    token = add_token(file, name, role, journal or [])
    said = {"name": name, "token": token, "roles": role, "journals": journal or ["*"]}
    show_outcome(json, said, token)


@tokens.command("list")
def list_tokens(file: _File, json: Json = False) -> None:
    """Show names, roles and journals.

    Examples:

        fastjournal token list ./tokens
    """
    from fastjournal.daemon.auth import read_tokens

    show_list(
        json,
        read_tokens(file).grants,
        lambda one: {
            "name": one.name,
            "roles": sorted(one.roles),
            "journals": sorted(one.journals),
        },
        ("name", "roles", "journals"),
        lambda one: (one.name, ", ".join(sorted(one.roles)), ", ".join(sorted(one.journals))),
    )


@tokens.command()
def remove(
    file: _File,
    name: Annotated[str, typer.Argument(help="Whose token.")],
    json: Json = False,
) -> None:
    """Take a token out of the file; a running daemon forgets it at SIGHUP.

    Examples:

        fastjournal token remove ./tokens web
    """
    from fastjournal.daemon.auth import remove_token

    remove_token(file, name)
    show_outcome(json, {"name": name, "outcome": "removed"}, f"{name} removed")


def _client(url: str) -> Any:
    from fastjournal.client import Client

    return cast(Any, Client(url))
