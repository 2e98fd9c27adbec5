"""`fastjournal serve`: run the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fastjournal.cli.arguments import seconds

__all__ = ["ServeCommand", "serve"]

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
