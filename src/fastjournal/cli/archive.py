"""`fastjournal restore`, `backup` and `archive`: a journal's history on another store."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastjournal.cli.arguments import moment
from fastjournal.cli.output import bytes_text, json_line, progress, show_outcome, table
from fastjournal.clock import instant_text
from fastjournal.errors import NotFound

if TYPE_CHECKING:
    from fastjournal.archive.manifest import Manifest
    from fastjournal.archive.store import Store

__all__ = ["app", "backup", "restore"]

DAMAGE = 3
_LOOK_INTO = 20  # folders of a place that is no archive
_DAY = 24 * 3600 * 1_000_000_000

app = typer.Typer(
    help="Look after an archive: what it holds, whether it is sound, what may go.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Address = Annotated[
    str,
    typer.Argument(
        help="Where the archive is: s3://bucket/jobs, gs://, az://, file:///backup, or a path.",
        metavar="ARCHIVE",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON lines instead of text.")]


def restore(
    archive: Address,
    directory: Annotated[
        Path, typer.Argument(help="Where to; empty or missing.", metavar="DIRECTORY")
    ],
    to: Annotated[
        Any,
        typer.Option(parser=moment, metavar="INSTANT", help="As of this instant. [the latest]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would take.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a journal of its archive, as of the latest or of any instant.

    Examples:

        fastjournal restore s3://bucket/jobs ./jobs

        fastjournal restore s3://bucket/jobs ./jobs --to 2026-11-15T12:00Z

        fastjournal restore /backup/jobs ./jobs --dry-run
    """
    from fastjournal.archive.restore import plan_restore
    from fastjournal.archive.restore import restore as restore_journal

    store, manifest = _open(archive)
    plan = plan_restore(manifest, None if to is None else _nanoseconds(to))
    values = {
        "archive": archive,
        "epoch": manifest.epoch,
        "snapshot": None if plan.snapshot is None else plan.snapshot.name,
        "segments": len(plan.segments),
        "parts": len(plan.parts),
        "bytes": plan.bytes,
        "archived_to": manifest.end,
    }
    if dry_run:
        if as_json:
            json_line(values)
        else:
            for listed in (plan.snapshot, *plan.segments, *plan.parts):
                if listed is not None:
                    typer.echo(listed.name)
            typer.echo(
                f"{bytes_text(plan.bytes)} to download; archived up to {instant_text(manifest.end)}"
            )
        return
    with progress("restoring", plan.bytes) as advance:
        done = 0

        def show(so_far: int, total: int) -> None:
            nonlocal done
            advance(so_far - done)
            done = so_far

        restored = restore_journal(store, plan, directory, progress=show)
    if as_json:
        json_line(values | {"directory": str(directory), "last_time": restored.last_time})
    else:
        typer.echo(
            f"{directory}: {bytes_text(plan.bytes)} restored,"
            f" last record {instant_text(restored.last_time)}"
        )
        if plan.to is not None and plan.to > manifest.end:
            typer.echo(
                f"the archive ends at {instant_text(manifest.end)}, before the instant asked for"
            )


def backup(
    directory: Annotated[
        Path, typer.Argument(help="Directory of a journal, in use or not.", metavar="DIRECTORY")
    ],
    target: Annotated[
        str,
        typer.Argument(help="Where to: s3://bucket/jobs, gs://, az://, a path.", metavar="ARCHIVE"),
    ],
    compress: Annotated[bool, typer.Option(help="Pack sealed segments with zstd.")] = False,
    as_json: Json = False,
) -> None:
    """Copy a journal to an archive, consistently, while it may be at work.

    Only what is not there yet is sent. `fastjournal restore` makes a journal of it again.

    Examples:

        fastjournal backup ./jobs /backup/jobs

        fastjournal backup ./jobs s3://bucket/jobs --compress
    """
    from fastjournal.archive.shipper import ArchiveOptions
    from fastjournal.journal.disk.archived import back_up
    from fastjournal.log.segment import WORKQ
    from fastjournal.log.stream import Stream

    status = back_up(Stream(directory, WORKQ), target, ArchiveOptions(compress=compress))
    words = (
        f"{target}: {status.uploads} objects, {bytes_text(status.uploaded_bytes)} sent;"
        f" restorable up to {instant_text(status.archived_to)}"
    )
    show_outcome(as_json, asdict(status), words)


@app.command("list")
def list_archive(archive: Address, as_json: Json = False) -> None:
    """Show what an archive holds, and which instants it can restore.

    Examples:

        fastjournal archive list s3://bucket/jobs
    """
    _, manifest = _open(archive)
    rows = [
        *(("snapshot", one.number, one.as_of, one.as_of, one.size) for one in manifest.snapshots),
        *(("segment", one.number, one.first, one.last, one.bytes) for one in manifest.segments),
        *(("tail", one.segment, one.first, one.last, one.size) for one in manifest.parts),
    ]
    if as_json:
        for kind, number, first, last, size in rows:
            json_line({"kind": kind, "number": number, "first": first, "last": last, "bytes": size})
        return
    table(
        ("kind", "number", "first", "last", "size"),
        [
            (k, str(n), instant_text(first), instant_text(last), bytes_text(s))
            for k, n, first, last, s in rows
        ],
        right=("number", "size"),
    )
    total = sum(size for _, size in manifest.objects())
    typer.echo(
        f"epoch {manifest.epoch}, {len(rows)} objects, {bytes_text(total)};"
        f" restorable from {instant_text(manifest.begin)} to {instant_text(manifest.end)}"
    )


@app.command()
def verify(
    archive: Address,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only presence and size; nothing is downloaded.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every object that the archive names: presence, size, CRC.

    Ends with 0 if all is well, with 3 if anything is missing or damaged.

    Examples:

        fastjournal archive verify s3://bucket/jobs

        fastjournal archive verify s3://bucket/jobs --quick
    """
    from fastjournal.archive.care import verify_archive

    store, manifest = _open(archive)
    count = bad = 0
    for name, fault in verify_archive(store, manifest, quick=quick):
        count += 1
        bad += bool(fault)
        if as_json:
            json_line({"object": name, "fault": fault})
        elif fault:
            typer.echo(f"{name}: {fault}")
    if not as_json:
        typer.echo(f"{count} objects, {bad} of them bad" if bad else f"{count} objects, all well")
    if bad:
        raise typer.Exit(DAMAGE)


@app.command("prune")
def prune_archive(
    archive: Address,
    keep_versions: Annotated[
        int, typer.Option(min=1, help="Manifests to keep, with all that they name.")
    ] = 100,
    keep_days: Annotated[
        float,
        typer.Option(min=0, help="Instants older than this need not be restorable; 0: all are."),
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Json = False,
) -> None:
    """Delete what no kept manifest names: parts of the tail since sealed, left-overs.

    A shipper does so once an hour, by its `archive_keep_versions` and `archive_keep_days`. With
    `--keep-days` history goes by the same rule; what the kept manifests name stays all the same.

    Examples:

        fastjournal archive prune s3://bucket/jobs --dry-run

        fastjournal archive prune s3://bucket/jobs --keep-days 30 --keep-versions 1
    """
    from fastjournal.archive.care import prune
    from fastjournal.clock import SYSTEM_CLOCK

    store, _ = _open(archive)
    since = SYSTEM_CLOCK.now() - int(keep_days * _DAY) if keep_days else None
    pruned = prune(store, keep_versions=keep_versions, since=since, dry_run=dry_run)
    if as_json:
        json_line({"objects": len(pruned.names), "bytes": pruned.bytes, "dry_run": dry_run})
        return
    if dry_run:
        for name in pruned.names:
            typer.echo(name)
    word = "would go" if dry_run else "deleted"
    typer.echo(f"{len(pruned.names)} objects, {bytes_text(pruned.bytes)} {word}")


def _open(address: str) -> tuple[Store, Manifest]:
    from fastjournal.archive.manifest import find_newest
    from fastjournal.archive.store import open_store

    store = open_store(address)
    manifest = find_newest(store)
    if manifest is None:
        raise NotFound(f"{address}: no archive there{_those_below(address, store)}")
    return store, manifest


def _those_below(address: str, store: Store) -> str:
    """A daemon ships each journal below its name: which names are there?"""
    from fastjournal.archive.manifest import epochs
    from fastjournal.archive.store import join_address, open_store

    below = [join_address(address, name) for name in store.folders("")[:_LOOK_INTO]]
    found = [address for address in below if epochs(open_store(address))]
    return f", but in {', '.join(found)}" if found else ""


def _nanoseconds(when: datetime) -> int:
    return int(when.timestamp()) * 1_000_000_000 + when.microsecond * 1000
