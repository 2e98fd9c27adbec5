"""`fastjournal workq`: the daemon under the names that the Workq server's users type.

Rules:

1. Options have the names of the Workq server, with one dash or two.
2. The directory of its log is served as it is, and stays readable for that server.
3. Without a directory nothing is kept, as there: the log lies in memory and goes with the process.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fastjournal.errors import SettingError

__all__ = ["WorkqCommand", "workq"]

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
    told = {name: value for name, value in journal.items() if value is not None}
    if cmdlog_path is None and told:
        raise typer.BadParameter("without --cmdlog-path there is no log to be told about")
    with _directory(cmdlog_path) as path:
        settings = load(
            None,
            overrides={
                "data": str(path), "listen": [], "workq": [listen], "insecure": insecure,
                "journal": told if cmdlog_path is not None else {"sync": "os"},
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
