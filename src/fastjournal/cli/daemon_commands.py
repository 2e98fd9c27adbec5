"""Commands for a daemon: `ping` and `listen` ask a running one, `token` makes its tokens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from fastjournal.cli.arguments import Json
from fastjournal.cli.output import instant, json_line, table

__all__ = ["app", "tokens"]

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
                typer.echo(f"{client.target.address}: {took * 1e6:.0f} µs, {instant(now)}")


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
                typer.echo(f"{instant(event.at)} {event.kind} {name}")
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
    if json:
        json_line({"name": name, "token": token, "roles": role, "journals": journal or ["*"]})
    else:
        typer.echo(token)


@tokens.command("list")
def list_tokens(file: _File, json: Json = False) -> None:
    """Show names, roles and journals.

    Examples:

        fastjournal token list ./tokens
    """
    from fastjournal.daemon.auth import read_tokens

    grants = read_tokens(file).grants
    if json:
        for grant in grants:
            json_line(
                {
                    "name": grant.name,
                    "roles": sorted(grant.roles),
                    "journals": sorted(grant.journals),
                }
            )
        return
    rows = [(g.name, ", ".join(sorted(g.roles)), ", ".join(sorted(g.journals))) for g in grants]
    table(("name", "roles", "journals"), rows)


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
    if json:
        json_line({"name": name, "outcome": "removed"})


def _client(url: str) -> Any:
    from fastjournal.client import Client

    return cast(Any, Client(url))
