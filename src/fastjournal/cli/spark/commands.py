"""`fastjournal spark`: SQL over a log, its state as of an instant, an audit, a prompt, cleaning.

Rules:

1. Results go to standard output as a table, JSON lines (`--json`) or into Parquet (`--parquet`).
2. The same bytes as the journal's own cleaning; a task that dies leaves the segment as it was.
3. `--dry-run` changes nothing and says what would go.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastjournal.cli.arguments import seconds
from fastjournal.cli.output import bytes_text, json_line, table
from fastjournal.cli.spark import flow
from fastjournal.cli.spark.session import (
    LOCAL,
    AsOf,
    Conf,
    Directory,
    DryRun,
    JournalPath,
    Json,
    Limit,
    Master,
    Parquet,
    TaskCount,
    end_progress,
    print_frame,
    spark_session,
)

if TYPE_CHECKING:
    from fastjournal.spark.maintain.clean import CleanReport

__all__ = ["app"]


app = typer.Typer(
    help="Work on the log with Spark: SQL, replay, audit, clean.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

app.add_typer(flow.app)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="Over the views records, jobs and segments.")],
    directory: JournalPath,
    as_of: AsOf = None,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: Json = False,
    parquet: Parquet = None,
    limit: Limit = 1000,
) -> None:
    """Ask a question in SQL.

    The views are **records** (the log), **jobs** (the state) and **segments** (the files).

    Examples:

        fastjournal spark sql "select queue, state, count(*) from jobs group by all" ./jobs

        fastjournal spark sql "select * from records where command = 'dead'" ./jobs --json
    """
    with spark_session(master, conf, [directory]) as spark:
        from fastjournal.spark.table import JournalTable

        JournalTable.for_path(spark, directory).create_views(as_of)
        print_frame(spark.sql(query), as_json, parquet, limit)


@app.command()
def replay(
    directory: JournalPath,
    as_of: AsOf = None,
    queue: Annotated[list[str] | None, typer.Option(help="Only rows of this queue.")] = None,
    columns: Annotated[str, typer.Option(help="Columns to show, comma separated.")] = "",
    shards: TaskCount = 0,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: Json = False,
    parquet: Parquet = None,
    limit: Limit = 1000,
) -> None:
    """Show the rows that the log gives, now or as of an instant.

    Examples:

        fastjournal spark replay ./jobs --as-of 2026-01-31T12:00Z --columns id,queue,key,state

        fastjournal spark replay ./jobs --parquet ./state.parquet

        fastjournal spark replay s3://archive/jobs --as-of 2026-01-31
    """
    with spark_session(master, conf, [directory]) as spark:
        from fastjournal.spark.table import JournalTable

        chosen = [name.strip() for name in columns.split(",") if name.strip()]
        found = JournalTable.for_path(spark, directory).jobs(
            as_of, columns=chosen, queues=queue or [], shards=shards
        )
        print_frame(found, as_json, parquet, limit)


@app.command()
def audit(
    directory: Directory,
    second_opinion: Annotated[
        bool, typer.Option(help="Fold the log a second time, in SQL, and compare.")
    ] = True,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: Json = False,
    parquet: Parquet = None,
    limit: Limit = 1000,
) -> None:
    """Look for everything that a sound journal would not have written.

    Exit code **0**: nothing, or notes only. **1**: warnings. **3**: errors.

    Examples:

        fastjournal spark audit ./jobs

        fastjournal spark audit ./jobs --json --no-second-opinion
    """
    with spark_session(master, conf, [directory]) as spark:
        from fastjournal.spark.audit.run import exit_code
        from fastjournal.spark.table import JournalTable

        found = JournalTable.for_path(spark, directory).audit(opinion=second_opinion).cache()
        code = exit_code(found)
        rows = found.orderBy("severity", "rule", "segment", "offset")
        if as_json or parquet or not rows.isEmpty():
            print_frame(rows, as_json, parquet, limit)
        else:
            end_progress()
            typer.echo("sound: no finding")
    raise typer.Exit(code)


@app.command()
def shell(
    directory: JournalPath, as_of: AsOf = None, master: Master = LOCAL, conf: Conf = None
) -> None:
    """Open a Python prompt with `spark`, `journal` and the three views.

    Examples:

        fastjournal spark shell ./jobs

        echo 'sql("select count(*) from jobs").show()' | fastjournal spark shell ./jobs
    """
    import code

    with spark_session(master, conf, [directory], bar=False) as spark:
        from fastjournal.spark.table import JournalTable

        journal = JournalTable.for_path(spark, directory)
        journal.create_views(as_of)
        names = {"spark": spark, "sql": spark.sql, "journal": journal}
        banner = (
            "spark: the session; journal: JournalTable; sql('select * from jobs').show()\n"
            "views: records, jobs, segments"
        )
        with suppress(SystemExit):  # exit() ends the prompt, not the tidying up behind it
            code.interact(banner=banner, local=names, exitmsg="")


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
