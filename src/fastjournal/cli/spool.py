"""`fastjournal forward` and `fastjournal spool`: carry a spool to a daemon, look into one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastjournal.cli.arguments import Json
from fastjournal.clock import instant_text

if TYPE_CHECKING:
    from fastjournal.spool.reader import SpooledJob
    from fastjournal.spool.service import Runner

__all__ = ["app", "forward"]

app = typer.Typer(help="Look into a spool.", no_args_is_help=True)

_Directory = Annotated[Path, typer.Argument(help="Directory of the spool.")]
DAMAGED = 1
LEFT_OVER = 1
_MODES = ("0660", "660", "0600", "600")


def forward(
    to: Annotated[
        str, typer.Option(help="The daemon: fj://, fjs:// or unix:; see docs/daemon.md.")
    ],
    spool: Annotated[list[Path], typer.Option(help="Directory of a spool; several times.")],
    watch: Annotated[str, typer.Option(help="auto, inotify or ping.")] = "auto",
    window: Annotated[int, typer.Option(help="Batches under way at a time.")] = 8,
    batch: Annotated[int, typer.Option(help="Most jobs in a batch.")] = 1000,
    durable: Annotated[
        bool, typer.Option(help="Wait for stable storage of the daemon, whatever its policy.")
    ] = True,
    metrics: Annotated[
        str | None, typer.Option(help="Serve /metrics for Prometheus on host:port.")
    ] = None,
    once: Annotated[bool, typer.Option(help="End when nothing waits any more.")] = False,
    mode: Annotated[
        str, typer.Option(help="Of the files it makes: 0660 or 0600; never wider than the spool.")
    ] = "0660",
) -> None:
    """Forward spools to a daemon until told to stop.

    With `--once` it ends when all whole frames have arrived; what is torn at the end of a file is
    told and stays. Exit code **1** if there was no room in `quarantine/` for what is refused,
    **2** if the daemon refuses the forwarder, as for its token: what waits stays in the spool.

    Examples:

        fastjournal forward --spool ./spool --to fj://127.0.0.1

        fastjournal forward --spool ./spool --to fjs://queue.example.com/mail?ca=ca.pem --once
    """
    import logging
    import sys

    from fastjournal.cli.stop_signal import Stop
    from fastjournal.client.urls import Target, parse_url
    from fastjournal.errors import SettingError, Unauthorized
    from fastjournal.spool.daemon_destination import DaemonDestination
    from fastjournal.spool.forwarder import SpoolDisk
    from fastjournal.spool.service import Runner, Service

    logging.basicConfig(
        stream=sys.stderr, format="%(asctime)s [%(levelname)s] %(name)s: %(message)s"
    )
    address = parse_url(to)
    if not isinstance(address, Target):
        raise SettingError("a spool is forwarded to a daemon: fj://, fjs:// or unix:", name="to")
    if watch not in ("auto", "inotify", "ping"):
        raise SettingError(f"--watch is auto, inotify or ping, not {watch!r}", name="watch")
    if mode not in _MODES:
        raise SettingError(f"--mode is 0660 or 0600, not {mode!r}", name="mode")
    files = SpoolDisk(int(mode, 8))
    runners = [
        Runner(
            str(path),
            lambda: DaemonDestination(address, durable=durable),
            how=watch,
            window=window,
            batch_jobs=batch,
            files=files,
        )
        for path in spool
    ]
    service = Service(runners)
    stop = Stop()
    stop.listen()
    if metrics:
        _serve_metrics(metrics, runners)
    service.start()
    try:
        while not stop.wait(0.2) and not service.wait(0):
            if once and any(runner.forwarder.figures.denied for runner in runners):
                break
            if once and all(_is_empty(runner) for runner in runners):
                break
    finally:
        service.stop()
    for runner in runners:
        figures = runner.forwarder.figures
        for line in figures.reports:
            typer.echo(f"not forwarded: {line}", err=True)
        if once and figures.torn_bytes:
            typer.echo(f"{runner.path}: {figures.torn_bytes} bytes are torn and stay", err=True)
        if once and figures.owed:
            typer.echo(f"{runner.path}: {figures.last_error}", err=True)
    if service.error is not None:
        raise service.error
    for runner in runners:
        if once and (denied := runner.forwarder.figures.denied):
            raise Unauthorized(f"{runner.path}: the daemon refuses it: {denied}")
    if once and any(runner.forwarder.figures.owed for runner in runners):
        raise typer.Exit(LEFT_OVER)


def _is_empty(runner: Runner) -> bool:
    figures = runner.figures()
    return not figures.backlog_bytes and not runner.forwarder.in_flight and figures.looked


def _serve_metrics(address: str, runners: list[Runner]) -> None:
    from prometheus_client import CollectorRegistry, start_http_server

    from fastjournal.errors import SettingError
    from fastjournal.spool.service import SpoolCollector

    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise SettingError(f"--metrics is host:port, not {address!r}", name="metrics")
    registry = CollectorRegistry()
    registry.register(SpoolCollector(runners))
    start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)


@app.command()
def stat(directory: _Directory, as_json: Json = False) -> None:
    """Tell how much waits in a spool, and since when.

    Examples:

        fastjournal spool stat ./spool
    """
    from fastjournal.cli.output import bytes_text, json_line, table
    from fastjournal.spool.forwarder import QUARANTINE
    from fastjournal.spool.spool_dir import used

    files: dict[str, dict[str, Any]] = {}
    total: dict[str, Any] = {"ready": 0, "done": 0, "damaged": 0, "backlog_bytes": 0, "oldest": 0}
    for spooled in _spooled_jobs(directory):
        of_file = files.setdefault(
            spooled.file, {"file": spooled.file, "ready": 0, "done": 0, "damaged": 0, "bytes": 0}
        )
        for counts in (of_file, total):
            counts[spooled.state] += 1
        of_file["bytes"] += spooled.size
        if spooled.state == "ready":
            total["backlog_bytes"] += spooled.size
            total["oldest"] = min(total["oldest"] or spooled.put_at, spooled.put_at)
    total["bytes"] = used(str(directory))
    total["quarantined"] = len(list((directory / QUARANTINE).glob("*.bad")))
    if as_json:
        json_line({**total, "files": list(files.values())})
        return
    columns = ("file", "ready", "done", "damaged", "size")
    rows = [
        [f["file"], *(str(f[c]) for c in columns[1:4]), bytes_text(f["bytes"])]
        for f in files.values()
    ]
    table(columns, rows, right=columns[1:])
    oldest = f", the oldest since {instant_text(total['oldest'])}" if total["oldest"] else ""
    typer.echo(
        f"{total['ready']} jobs wait ({bytes_text(total['backlog_bytes'])}){oldest}; "
        f"{total['quarantined']} quarantined"
    )


@app.command()
def dump(
    directory: _Directory,
    all_: Annotated[bool, typer.Option("--all", help="Done ones too.")] = False,
    limit: Annotated[int, typer.Option(help="At most so many; 0: all.")] = 0,
    as_json: Json = False,
) -> None:
    """Print the jobs of a spool.

    Examples:

        fastjournal spool dump ./spool --limit 10

        fastjournal spool dump ./spool --all --json
    """
    from fastjournal.cli.output import json_line, preview, table

    rows = []
    count = 0
    for spooled in _spooled_jobs(directory):
        if spooled.state == "done" and not all_:
            continue
        count += 1
        if as_json:
            json_line(_picture(spooled))
        else:
            job = spooled.job
            rows.append(
                [
                    f"{spooled.file}:{spooled.offset}",
                    spooled.state,
                    instant_text(spooled.put_at),
                    preview(job.queue, 30) if job else "",
                    preview(job.key, 40) if job else "",
                    preview(job.value, 50) if job else spooled.reason,
                ]
            )
        if count == limit:
            break
    if not as_json:
        table(("place", "state", "put", "queue", "key", "payload"), rows)


@app.command()
def verify(directory: _Directory, as_json: Json = False) -> None:
    """Check every frame of a spool; exit code 1 if one is damaged.

    Examples:

        fastjournal spool verify ./spool
    """
    from fastjournal.cli.output import json_line, show_outcome

    count = 0
    damaged = []
    for spooled in _spooled_jobs(directory):
        count += 1
        if spooled.job is None:
            damaged.append(spooled)
            if as_json:
                json_line(_picture(spooled))
            else:
                typer.echo(
                    f"{spooled.file}: offset {spooled.offset}: {spooled.size} bytes:"
                    f" {spooled.reason}"
                )
    sound, bad = count - len(damaged), len(damaged)
    show_outcome(as_json, {"frames": sound, "damaged": bad}, f"{sound} sound, {bad} damaged")
    if damaged:
        raise typer.Exit(DAMAGED)


def _spooled_jobs(directory: Path) -> Any:
    from fastjournal.errors import NotFound
    from fastjournal.spool.reader import read_spool
    from fastjournal.spool.spool_dir import IDENTITY

    if not (directory / IDENTITY).is_file():
        raise NotFound(f"{directory} is no spool")
    return read_spool(directory)


def _picture(spooled: SpooledJob) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "file": spooled.file,
        "offset": spooled.offset,
        "size": spooled.size,
        "state": spooled.state,
        "put_at": spooled.put_at,
    }
    job = spooled.job
    if job is None:
        return {**shown, "reason": spooled.reason}
    for name, value in (("queue", job.queue), ("key", job.key), ("payload", job.value)):
        try:
            shown[name] = value.decode()
        except UnicodeDecodeError:
            shown[f"{name}_hex"] = value.hex()
    shown |= {
        "mode": job.mode.name.lower(),
        "priority": job.priority,
        "due": job.due,
        "expires": job.expires,
        "timestamp": job.timestamp,
    }
    return shown
