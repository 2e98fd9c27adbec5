"""`fastjournal spark`: SQL over a log, its state as of an instant, an audit, a prompt.

Rules:

1. Results go to standard output as a table, JSON lines (`--json`) or into Parquet (`--parquet`).
2. A family of commands has a module of its own with a nameless `app`; it is named in `_FAMILIES`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from fastjournal.cli.spark import clean, lake, stream
from fastjournal.cli.spark.session import (
    LOCAL,
    AsOf,
    Conf,
    Directory,
    Json,
    Limit,
    Master,
    Parquet,
    Place,
    TaskCount,
    end_progress,
    print_frame,
    spark_session,
)

__all__ = ["app"]

app = typer.Typer(
    help="Work on the log with Spark: SQL, replay, audit, clean.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

# One line for each module with more commands.
_FAMILIES = (clean.app, stream.app, lake.app)

for family in _FAMILIES:
    app.add_typer(family)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="Over the views records, jobs and segments.")],
    directory: Place,
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
    directory: Place,
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
def shell(directory: Place, as_of: AsOf = None, master: Master = LOCAL, conf: Conf = None) -> None:
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
