"""`fastjournal spark clean` and `trim`: drop what is no longer needed, by Spark.

Rules:

1. The same bytes as the journal's own cleaning; a task that dies leaves the segment as it was.
2. `--dry-run` changes nothing and says what would go.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastjournal.cli.arguments import seconds
from fastjournal.cli.output import bytes_text, json_line, table
from fastjournal.cli.spark.session import LOCAL, Conf, DryRun, Json, Master, spark_session

if TYPE_CHECKING:
    from fastjournal.spark.maintain.clean import CleanReport

__all__ = ["app"]

app = typer.Typer(rich_markup_mode="markdown")


@app.command()
def clean(
    directories: Annotated[
        list[Path], typer.Argument(help="Directories of journals.", metavar="DIRECTORY...")
    ],
    dry_run: DryRun = False,
    wait: Annotated[
        float,
        typer.Option(parser=seconds, metavar="LENGTH", help="Wait so long for readers to leave."),
    ] = 60.0,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Directory that all nodes see, for files of the job.", metavar="DIRECTORY"
        ),
    ] = None,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Drop from sealed segments what replay does not need; never changes the state.

    Examples:

        fastjournal spark clean ./jobs --dry-run

        fastjournal spark clean ./jobs ./other --json

        fastjournal spark clean /nfs/jobs --work /nfs/tmp
    """
    with spark_session(master, conf, directories) as spark:
        from fastjournal.spark.maintain.clean import clean as clean_all

        reports = clean_all(spark, list(directories), lock_seconds=wait, dry_run=dry_run, work=work)
    _print_reports(reports, as_json, dry_run)


@app.command()
def trim(
    directory: Annotated[Path, typer.Argument(help="Directory of the copies.")],
    before: Annotated[str, typer.Option(help="Records before this instant go.")],
    queue: Annotated[list[str] | None, typer.Option(help="Only rows of this queue.")] = None,
    dry_run: DryRun = False,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Drop old records from copied segments, of all queues or of some; a living journal is refused.

    An archive that a journal is shipped to is left to `fastjournal archive prune`.

    Examples:

        fastjournal spark trim ./copies --before 2026-01-01 --dry-run

        fastjournal spark trim ./copies --before 2026-01-01 --queue mail --queue sms
    """
    from fastjournal.spark.options import instant

    moment = instant(before, "before")
    with spark_session(master, conf, [directory]) as spark:
        from fastjournal.spark.maintain.trim import trim_archive

        report = trim_archive(spark, directory, before=moment, queues=queue or [], dry_run=dry_run)
    _print_reports([report], as_json, dry_run)


def _print_reports(reports: Sequence[CleanReport], as_json: bool, dry_run: bool) -> None:
    if as_json:
        for report in reports:
            json_line(
                {
                    "directory": report.directory,
                    "live_rows": report.live_rows,
                    "bytes_before": report.bytes_before,
                    "bytes_after": report.bytes_after,
                    "records_dropped": report.records_dropped,
                    "segments": [
                        {name: getattr(one, name) for name in one.__slots__}
                        for one in report.segments
                    ],
                }
            )
        return
    for report in reports:
        rows = [
            [
                str(one.segment),
                f"{one.records:,}",
                f"{one.kept:,}",
                bytes_text(one.bytes_before),
                bytes_text(one.bytes_after) if one.bytes_after else "removed",
            ]
            for one in report.segments
        ]
        heads = ["segment", "records", "kept", "before", "after"]
        if rows:
            table(heads, rows, right=heads)
        typer.echo(
            f"{report.directory}: {bytes_text(report.bytes_before)} -> "
            f"{bytes_text(report.bytes_after)}, {report.records_dropped:,} records "
            f"{'would go' if dry_run else 'gone'}"
        )
