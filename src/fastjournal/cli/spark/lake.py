"""`fastjournal spark export`, `report`, `consume`, `apply`: the journal joins the lake.

Rules:

1. What was done goes to standard output, how it goes on to standard error, as one line a step.
2. Ctrl-C and SIGTERM end a running loop in order: the step under way is finished first.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastjournal.cli.arguments import seconds
from fastjournal.cli.output import bytes_text, json_line
from fastjournal.cli.spark.session import (
    LOCAL,
    Conf,
    Json,
    Master,
    TaskCount,
    end_progress,
    spark_session,
    stopping,
)

if TYPE_CHECKING:
    from fastjournal.spark.consume.loop import Consumed
    from fastjournal.spark.lake.exporter import ExportReport

__all__ = ["app"]

app = typer.Typer(rich_markup_mode="markdown")

Source = Annotated[
    str, typer.Argument(help="Directory of the journal, or URI of sealed segments (s3://...).")
]
Archive = Annotated[
    str | None, typer.Option(help="Where history is kept that was cleaned away since.")
]
Url = Annotated[str, typer.Argument(help="Daemon (fj://host:port/journal) or directory.")]

_SECOND = 1_000_000_000


@app.command()
def export(
    source: Source,
    out: Annotated[
        str, typer.Option("--out", "-o", help="Directory of the tables, or their URI (s3://...).")
    ],
    archive: Archive = None,
    table: Annotated[
        list[str] | None, typer.Option(help="events, attempts, jobs; all unless told.")
    ] = None,
    values: Annotated[bool, typer.Option(help="With payloads and results.")] = True,
    delta: Annotated[
        bool, typer.Option("--delta", help="Delta tables instead of plain Parquet.")
    ] = False,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact", help="Delta: join small files; remove what no version of a week needs."
        ),
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="LENGTH", help="Go on, and export so often."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Records before this instant only.")] = None,
    shares: TaskCount = 0,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Write what is new to tables by day; every record once, whatever is interrupted.

    Call it again and it goes on where it ended.

    Examples:

        fastjournal spark export ./jobs -o ./lake

        fastjournal spark export ./jobs -o ./lake --archive ./jobs/archive --delta

        fastjournal spark export ./jobs -o ./lake --every 60

        fastjournal spark export s3://archive/jobs -o s3://lake/jobs --delta --compact
    """
    from fastjournal.spark.options import instant

    end = None if until is None else instant(until, "until")
    if compact and not delta:
        raise typer.BadParameter("only Delta tables are compacted", param_hint="--compact")
    if "://" not in out and Path(out).exists() and not Path(out).is_dir():
        raise typer.BadParameter(f"{out} is no directory", param_hint="--out")
    with (
        spark_session(master, conf, _local(source), bar=every is None) as spark,
        stopping() as stop,
    ):
        from fastjournal.spark.lake.exporter import export as run
        from fastjournal.spark.lake.tables import TABLES

        while True:
            told = run(
                spark, source, out, archive=archive, tables=table or TABLES, values=values,
                until=end, shares=shares, delta=delta,
            )  # fmt: skip
            end_progress()
            _print_export(told, out, as_json)
            if compact:
                _compact(out)
            if every is None or stop.wait(every):
                return


def _compact(out: str) -> None:
    from fastjournal.spark.lake.delta import compact

    for table, (joined, removed) in compact(out).items():
        sys.stderr.write(f"{table}: {joined} files joined, {removed} removed\n")


def _print_export(told: ExportReport, out: str, as_json: bool) -> None:
    from fastjournal.clock import SYSTEM_CLOCK

    lag = max(SYSTEM_CLOCK.now() - told.upto, 0) / _SECOND if told.upto else None
    if as_json:
        json_line({**asdict(told), "mb_per_s": round(told.rate, 3), "lag_s": lag, "out": out})
        return
    if not told.records:
        typer.echo(f"{out}: nothing new since commit {told.commit}, {_lag(lag)}")
        return
    rows = ", ".join(f"{count:,} {name}" for name, count in told.rows.items())
    typer.echo(
        f"{out}: commit {told.commit}: {told.records:,} records as {rows} in {told.files} files,"
        f" {bytes_text(told.log_bytes)} -> {bytes_text(told.parquet_bytes)},"
        f" {told.rate:.1f} MB/s, {_lag(lag)}"
    )
    if told.missing_segments:
        sys.stderr.write(
            f"{told.missing_segments} segments were cleaned away before they were exported;"
            " export more often, or keep an archive\n"
        )


def _lag(seconds: float | None) -> str:
    if seconds is None:
        return "empty"
    return f"last record {seconds:,.1f} s ago"


@app.command()
def report(
    source: Source,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the page.")] = Path(
        "report.html"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON instead of a page.")
    ] = False,
    archive: Archive = None,
    since: Annotated[str | None, typer.Option(help="Count from this instant on.")] = None,
    until: Annotated[str | None, typer.Option(help="Count up to this instant.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="How long a job may wait: 60, 5m, or queue=5s; several times."),
    ] = None,
    cleaning: Annotated[bool, typer.Option(help="Ask what cleaning would free.")] = True,
    master: Master = LOCAL,
    conf: Conf = None,
) -> None:
    """Look at a journal: throughput, backlog, waits, trouble, hot keys, on one page.

    The page needs nothing else: it opens offline, in light and dark.

    Examples:

        fastjournal spark report ./jobs -o report.html

        fastjournal spark report ./jobs --target 60 --target mail=5 --since 2026-01-31

        fastjournal spark report ./jobs --json > report.json
    """
    from fastjournal.spark.options import instant

    usual, targets = _targets(target or [])
    if not as_json and (out.is_dir() or not out.parent.is_dir()):
        raise typer.BadParameter(f"{out} cannot be a file")
    start = None if since is None else instant(since, "since")
    end = None if until is None else instant(until, "until")
    with spark_session(master, conf, _local(source)) as spark:
        from fastjournal.spark.report.write import report as look

        told = look(
            spark, source, archive=archive, since=start, until=end, target=usual, targets=targets,
            cleaning=cleaning,
        )  # fmt: skip
    if as_json:
        sys.stdout.write(told.json())
        return
    out.write_text(told.html(), encoding="utf-8")
    totals = told.figures["totals"]
    typer.echo(
        f"{out}: {totals['asked']:,} jobs asked for, {totals['done']:,} done,"
        f" {totals['dead']:,} died, {totals['waiting_now']:,} waiting"
    )


def _targets(given: list[str]) -> tuple[float, dict[str, float]]:
    usual, targets = 60.0, {}
    for one in given:
        queue, mark, length = one.rpartition("=")
        value = seconds(length)
        if mark:
            targets[queue] = value
        else:
            usual = value
    return usual, targets


@app.command()
def consume(
    url: Url,
    queue: Annotated[str, typer.Argument(help="Queue to work off.")],
    function: Annotated[str, typer.Argument(help="module:function; it gets a batch of jobs.")],
    batch: Annotated[int, typer.Option(min=1, help="Jobs leased for one Spark job.")] = 50_000,
    each: Annotated[
        bool, typer.Option("--each", help="The function gets one payload, not a batch.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="End when the queue is empty.")] = False,
    lease: Annotated[
        float | None, typer.Option(parser=seconds, metavar="LENGTH", help="Length of a lease.")
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="Batches under way at a time.")] = 2,
    partitions: TaskCount = 0,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Work off a queue on Spark: the driver leases and settles, executors run your function.

    The function gets an Arrow batch (id, queue, key, payload, attempt) and answers None, a list of
    results, or a table with columns result and error.

    Examples:

        fastjournal spark consume fj://127.0.0.1 thumbs images:resize --batch 20000

        fastjournal spark consume ./jobs mail mailer:send --each --once
    """
    from fastjournal.cli.worker import load_function
    from fastjournal.client.urls import parse_url
    from fastjournal.connect_url import connect
    from fastjournal.spark.storage.segments import journal_segments

    work = load_function(function)
    if url.startswith("spool:"):
        raise typer.BadParameter("nothing can be leased from a spool")
    place = parse_url(url)
    if isinstance(place, Path):
        journal_segments(place)  # a name that was mistyped makes no journal
    source: Any = connect(url)
    try:
        with spark_session(master, conf, [], bar=False) as spark, stopping() as stop:
            from fastjournal.spark.consume.loop import consume as run
            from fastjournal.spark.consume.loop import per_job

            _ship(work)
            told = run(
                spark, source, queue, per_job(work) if each else work, batch, once=once, stop=stop,
                lease=lease, depth=depth, partitions=partitions,
                progress=lambda counts: _print_consumed(counts, source, queue),
            )  # fmt: skip
    finally:
        source.close()
    if as_json:
        json_line({**asdict(told), "jobs_per_s": round(told.rate, 1)})
    else:
        typer.echo(_consumed(told))


def _ship(work: Any) -> None:
    """Send the function itself: its module may be a file beside us that no executor knows."""
    from pyspark import cloudpickle

    module = sys.modules.get(getattr(work, "__module__", ""))
    place = getattr(module, "__file__", None) or ""
    if module is not None and "site-packages" not in place:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _consumed(told: Consumed) -> str:
    return (
        f"{told.done:,} done, {told.failed:,} failed, {told.lost:,} lost"
        f" in {told.batches:,} batches, {told.rate:,.0f} jobs/s"
    )


def _print_consumed(told: Consumed, source: Any, queue: str) -> None:
    status = source.queue(queue)
    left = f"{status.ready:,} ready, {status.leased:,} leased"
    sys.stderr.write(f"{_consumed(told)}; {left}\n")


@app.command()
def apply(
    url: Url,
    query: Annotated[str, typer.Argument(help="SQL over jobs, records, segments; gives ids.")],
    action: Annotated[str, typer.Option(help="redrive, delete or put.")] = "redrive",
    directory: Annotated[
        Path | None, typer.Option(help="Directory of the journal, when the URL is a daemon's.")
    ] = None,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Redrive, delete or put the jobs that a question in SQL finds.

    Examples:

        fastjournal spark apply ./jobs "select id from jobs where state = 'FAILED'"

        fastjournal spark apply fj://127.0.0.1 --directory /var/lib/fastjournal/default \\
            --action delete "select id from jobs where queue = 'old'"
    """
    from fastjournal.connect_url import connect
    from fastjournal.spark.consume.bulk_edit import ACTIONS

    if action not in ACTIONS:
        raise typer.BadParameter(f"--action is one of {', '.join(ACTIONS)}, not {action!r}")
    place = directory or Path(url.removeprefix("embedded:"))
    with spark_session(master, conf, [place]) as spark:
        from fastjournal.spark.consume.bulk_edit import apply_frame
        from fastjournal.spark.table import JournalTable

        JournalTable.for_path(spark, place).create_views()
        frame = spark.sql(query)
        source: Any = connect(url)
        try:
            told = apply_frame(source, frame, action)
        finally:
            source.close()
        end_progress()
    if as_json:
        json_line(asdict(told))
    else:
        typer.echo(f"{action}: {told.changed:,} jobs, {told.refused:,} refused")


def _local(source: str) -> list[Path]:
    return [] if "://" in source else [Path(source)]
