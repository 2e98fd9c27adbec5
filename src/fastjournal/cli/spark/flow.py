"""Work and history on the move: `stream`, `export`, `report`, `load`, `apply`, `consume`.

Rules:

1. `stream` says after each batch how many records it had, how fast, and how far it is behind the
   end of the log; on standard error, so that records may go to standard output.
2. Ctrl-C and SIGTERM end a stream between two steps of Spark; its checkpoint says where to go on.
3. `load` under `--app` and `--number` may be repeated: what was loaded stays loaded once.
4. What was done goes to standard output, how it goes on to standard error, as one line a step.
5. Ctrl-C and SIGTERM end a running loop in order: the step under way is finished first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastjournal.cli.arguments import seconds
from fastjournal.cli.output import bytes_text, json_line, show_outcome
from fastjournal.cli.spark.session import (
    LOCAL,
    Conf,
    Directory,
    Json,
    Master,
    TaskCount,
    end_progress,
    pairs,
    print_rows,
    spark_session,
    stopping,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from fastjournal.spark.consume.loop import Consumed
    from fastjournal.spark.lake.exporter import ExportReport

__all__ = ["app"]


app = typer.Typer(rich_markup_mode="markdown")

_LOOK = 1  # seconds between two looks at the progress


@app.command()
def stream(
    directory: Directory,
    checkpoint: Annotated[
        Path, typer.Option(help="Directory that remembers how far the stream has come.")
    ],
    to: Annotated[
        str | None, typer.Option(help="Directory to write to; else JSON lines are printed.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="Format of --to: parquet, json, csv, orc, delta...")
    ] = "parquet",
    begin: Annotated[
        str, typer.Option("--from", help="earliest, latest or an instant; for a new checkpoint.")
    ] = "earliest",
    columns: Annotated[str, typer.Option(help="Columns, comma separated; fewer is faster.")] = "",
    commands: Annotated[str, typer.Option(help="Kinds of record: put,lease,complete...")] = "",
    queue: Annotated[str, typer.Option(help="Only records that name these queues.")] = "",
    every: Annotated[str, typer.Option(help="Time from batch to batch: 500ms, 5s, 1m.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, then end.")] = False,
    max_records: Annotated[int, typer.Option(min=0, help="Records in a batch; 0: all.")] = 0,
    max_bytes: Annotated[str, typer.Option(help="Bytes of records in a batch, as 64m.")] = "",
    fail_on_data_loss: Annotated[
        bool, typer.Option(help="Fail when records were cleaned away unread.")
    ] = True,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: Annotated[bool, typer.Option("--json", help="Progress as JSON lines.")] = False,
) -> None:
    """Follow a live journal and write its records, each once.

    Examples:

        fastjournal spark stream ./jobs --checkpoint ./at --to ./lake --columns time_ns,command,id

        fastjournal spark stream ./jobs --checkpoint ./at --from latest --commands dead,fail
    """
    pause = _pause(every)
    if checkpoint.exists() and not checkpoint.is_dir():
        raise typer.BadParameter(f"{checkpoint} is no directory")
    options = {
        "startingOffsets": begin,
        "columns": columns,
        "commands": commands,
        "queue": queue,
        "maxRecordsPerTrigger": str(max_records or ""),
        "maxBytesPerTrigger": max_bytes,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    with spark_session(master, conf, [directory], bar=False) as spark:
        reader = spark.readStream.format("fastjournal")
        for name, value in options.items():
            if value:
                reader = reader.option(name, value)
        writer = reader.load(str(directory.absolute())).writeStream
        writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=pause)
        _follow(_begin(writer, to, form), _progress_json if as_json else _progress_text)


def _pause(text: str) -> str:
    """A length as Spark has it; its own words ("1 second") are left as they are."""
    words = text.split()
    if len(words) == 2 and words[0].isdigit() and words[1].isalpha():
        return text
    return f"{round(seconds(text) * 1000)} milliseconds"


def _begin(writer: DataStreamWriter, to: str | None, form: str) -> StreamingQuery:
    if to is not None:
        return writer.format(form).start(to if "://" in to else str(Path(to).absolute()))
    return writer.foreachBatch(_print_batch).start()


def _print_batch(batch: DataFrame, _: int) -> None:
    print_rows(batch)
    sys.stdout.flush()


def _follow(query: StreamingQuery, show_batch: Callable[[dict[str, Any]], None]) -> None:
    """Tell each batch until the query ends, by itself or because somebody asks."""
    seen = -1
    with stopping() as over:
        while True:
            ended = query.awaitTermination(_LOOK)
            for progress in query.recentProgress:
                found = json.loads(progress.json)
                if found["batchId"] > seen and found["numInputRows"]:
                    seen = found["batchId"]
                    show_batch(found)
            if ended:
                return
            if over.is_set():
                query.stop()
                return


def _behind(progress: dict[str, Any]) -> float:
    """Seconds of log between the end of the batch and the end of the log."""
    source = progress["sources"][0]
    end, latest = source.get("endOffset"), source.get("latestOffset")
    if not isinstance(end, dict) or not isinstance(latest, dict):
        return 0.0
    return float(max(0, latest["time"] - end["time"])) / 1e9


def _progress_text(progress: dict[str, Any]) -> None:
    seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
    sys.stderr.write(
        f"batch {progress['batchId']}: {progress['numInputRows']:,} records in {seconds:.1f} s,"
        f" {progress.get('processedRowsPerSecond', 0):,.0f}/s, {_behind(progress):.1f} s behind\n"
    )
    sys.stderr.flush()


def _progress_json(progress: dict[str, Any]) -> None:
    found = {
        "batch": progress["batchId"],
        "records": progress["numInputRows"],
        "seconds": progress["durationMs"].get("triggerExecution", 0) / 1000,
        "per_second": progress.get("processedRowsPerSecond", 0),
        "behind": _behind(progress),
        "offset": progress["sources"][0].get("endOffset"),
    }
    sys.stderr.write(json.dumps(found) + "\n")
    sys.stderr.flush()


_OUTCOMES = ("new", "merged", "stale", "refused", "repeated")


@app.command()
def load(
    source: Annotated[str, typer.Argument(help="Files to read, as Spark's reader takes them.")],
    target: Annotated[
        str, typer.Argument(help="Directory of the journal, or url of a daemon: fj://host:port.")
    ],
    form: Annotated[
        str, typer.Option("--format", help="Format of the files: parquet, json, csv, orc...")
    ] = "parquet",
    mapped: Annotated[
        list[str] | None,
        typer.Option("--map", help="A column of jobs in SQL: payload='to_json(struct(*))'."),
    ] = None,
    where: Annotated[str, typer.Option(help="Only rows for which this SQL is true.")] = "",
    queue: Annotated[str, typer.Option(help="Queue of rows that name none.")] = "",
    application: Annotated[
        str, typer.Option("--app", help="Who loads; with --number a repeat changes nothing.")
    ] = "",
    number: Annotated[
        int | None, typer.Option(min=0, help="Number of the load, growing from load to load.")
    ] = None,
    staging: Annotated[
        str, typer.Option(help="Directory shared by all nodes, for what tasks leave behind.")
    ] = "",
    read_option: Annotated[
        list[str] | None, typer.Option("--option", help="Of the reader: header=true.")
    ] = None,
    master: Master = LOCAL,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Put every row of a table as a job.

    The columns are **payload**, **key**, **queue**, **priority**, **due**, **ttl** and **id**; all
    may be missing but for a queue, or a key that has a domain.

    Examples:

        fastjournal spark load ./pages ./jobs --map key=url --map "payload=to_json(struct(*))"

        fastjournal spark load ./mail.csv fj://127.0.0.1 --format csv --option header=true \\
            --map payload=body --queue mail --app mail --number 12
    """
    options = {
        "queue": queue,
        "txnAppId": application,
        "txnVersion": "" if number is None else str(number),
        "stagingLocation": str(Path(staging).absolute()) if staging else "",
    }
    chosen, read_options = pairs(mapped, "--map"), pairs(read_option, "--option")
    if Path(target).is_file():
        raise typer.BadParameter(f"{target} is no directory of a journal")
    with spark_session(master, conf, []) as spark:
        source = source if "://" in source else str(Path(source).absolute())
        frame = _rows(spark, source, form, read_options, where)
        if chosen:
            frame = frame.selectExpr(*(f"{sql} as {name}" for name, sql in chosen.items()))
        if "://" not in target and not target.startswith("unix:"):
            target = str(Path(target).absolute())
        _load(frame, target, {name: value for name, value in options.items() if value}, as_json)


def _rows(
    spark: SparkSession, source: str, form: str, options: dict[str, str], where: str
) -> DataFrame:
    frame = spark.read.format(form).options(**options).load(source)
    return frame.where(where) if where else frame


def _load(frame: DataFrame, target: str, options: dict[str, str], as_json: bool) -> None:
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    seen = Observation("load")
    began = perf_counter()
    counted = frame.observe(seen, count(lit(1)).alias("rows"))
    counted.write.format("fastjournal").mode("append").options(**options).save(target)
    seconds = perf_counter() - began
    rows = seen.get["rows"]
    end_progress()
    from fastjournal.spark.sink.outcomes import newest_outcome
    from fastjournal.spark.sink.writer import SinkSettings

    report = newest_outcome(SinkSettings.parse({**options, "path": target}).staging) or {}
    became = {name: report[name] for name in _OUTCOMES if name in report}
    if as_json:
        json_line({"rows": rows, "seconds": round(seconds, 3), "target": target, **became})
    else:
        typer.echo(f"{rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f}/s -> {target}")
        if words := ", ".join(f"{count:,} {name}" for name, count in became.items() if count):
            typer.echo(words)


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
            report = run(
                spark, source, out, archive=archive, tables=table or TABLES, values=values,
                until=end, shares=shares, delta=delta,
            )  # fmt: skip
            end_progress()
            _print_export(report, out, as_json)
            if compact:
                _compact(out)
            if every is None or stop.wait(every):
                return


def _compact(out: str) -> None:
    from fastjournal.spark.lake.delta import compact

    for table, (joined, removed) in compact(out).items():
        sys.stderr.write(f"{table}: {joined} files joined, {removed} removed\n")


def _print_export(report: ExportReport, out: str, as_json: bool) -> None:
    from fastjournal.clock import SYSTEM_CLOCK

    lag = max(SYSTEM_CLOCK.now() - report.upto, 0) / _SECOND if report.upto else None
    if as_json:
        json_line({**asdict(report), "mb_per_s": round(report.rate, 3), "lag_s": lag, "out": out})
        return
    if not report.records:
        typer.echo(f"{out}: nothing new since commit {report.commit}, {_lag(lag)}")
        return
    rows = ", ".join(f"{count:,} {name}" for name, count in report.rows.items())
    typer.echo(
        f"{out}: commit {report.commit}: {report.records:,} records as {rows}"
        f" in {report.files} files, {bytes_text(report.log_bytes)}"
        f" -> {bytes_text(report.parquet_bytes)}, {report.rate:.1f} MB/s, {_lag(lag)}"
    )
    if report.missing_segments:
        sys.stderr.write(
            f"{report.missing_segments} segments were cleaned away before they were exported;"
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

        report = look(
            spark, source, archive=archive, since=start, until=end, target=usual, targets=targets,
            cleaning=cleaning,
        )  # fmt: skip
    if as_json:
        sys.stdout.write(report.json())
        return
    out.write_text(report.html(), encoding="utf-8")
    totals = report.figures["totals"]
    typer.echo(
        f"{out}: {totals['asked']:,} jobs asked for, {totals['done']:,} done,"
        f" {totals['dead']:,} died, {totals['waiting_now']:,} waiting"
    )


def _targets(given: list[str]) -> tuple[float, dict[str, float]]:
    usual, targets = 60.0, {}
    for one in given:
        queue, equals, length = one.rpartition("=")
        value = seconds(length)
        if equals:
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
    target = parse_url(url)
    if isinstance(target, Path):
        journal_segments(target)  # a name that was mistyped makes no journal
    source: Any = connect(url)
    try:
        with spark_session(master, conf, [], bar=False) as spark, stopping() as stop:
            from fastjournal.spark.consume.loop import consume as run
            from fastjournal.spark.consume.loop import per_job

            _ship(work)
            report = run(
                spark, source, queue, per_job(work) if each else work, batch, once=once, stop=stop,
                lease=lease, depth=depth, partitions=partitions,
                progress=lambda counts: _print_consumed(counts, source, queue),
            )  # fmt: skip
    finally:
        source.close()
    values = {**asdict(report), "jobs_per_s": round(report.rate, 1)}
    show_outcome(as_json, values, _consumed(report))


def _ship(work: Any) -> None:
    """Send the function itself: its module may be a file beside us that no executor knows."""
    from pyspark import cloudpickle

    module = sys.modules.get(getattr(work, "__module__", ""))
    file = getattr(module, "__file__", None) or ""
    if module is not None and "site-packages" not in file:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _consumed(report: Consumed) -> str:
    return (
        f"{report.done:,} done, {report.failed:,} failed, {report.lost:,} lost"
        f" in {report.batches:,} batches, {report.rate:,.0f} jobs/s"
    )


def _print_consumed(report: Consumed, source: Any, queue: str) -> None:
    status = source.queue(queue)
    left = f"{status.ready:,} ready, {status.leased:,} leased"
    sys.stderr.write(f"{_consumed(report)}; {left}\n")


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
    path = directory or Path(url.removeprefix("embedded:"))
    with spark_session(master, conf, [path]) as spark:
        from fastjournal.spark.consume.bulk_edit import apply_frame
        from fastjournal.spark.table import JournalTable

        JournalTable.for_path(spark, path).create_views()
        frame = spark.sql(query)
        source: Any = connect(url)
        try:
            report = apply_frame(source, frame, action)
        finally:
            source.close()
        end_progress()
    words = f"{action}: {report.changed:,} jobs, {report.refused:,} refused"
    show_outcome(as_json, asdict(report), words)


def _local(source: str) -> list[Path]:
    return [] if "://" in source else [Path(source)]
