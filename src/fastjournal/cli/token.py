"""`fastjournal token`: who may do what, in a file of hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastjournal.cli.output import json_line, table

__all__ = ["app"]

app = typer.Typer(help="Tokens of a daemon: make, list and remove them.", no_args_is_help=True)

_File = Annotated[Path, typer.Argument(help="The file of tokens.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@app.command()
def add(
    file: _File,
    name: Annotated[str, typer.Argument(help="Who will use it.")],
    role: Annotated[
        list[str], typer.Option(help="read, produce, consume or admin; several times.")
    ],
    journal: Annotated[
        list[str] | None, typer.Option(help="Only for this journal; several times. Else all.")
    ] = None,
    json: _Json = False,
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


@app.command("list")
def list_tokens(file: _File, json: _Json = False) -> None:
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


@app.command()
def remove(file: _File, name: Annotated[str, typer.Argument(help="Whose token.")]) -> None:
    """Take a token out of the file; a running daemon forgets it at SIGHUP.

    Examples:

        fastjournal token remove ./tokens web
    """
    from fastjournal.daemon.auth import remove_token

    remove_token(file, name)
