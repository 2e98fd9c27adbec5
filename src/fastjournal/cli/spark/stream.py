"""`fastjournal spark stream` and `load`: history flows out, work flows in.

Rules:

1. `stream` says after each batch how many records it had, how fast, and how far it is behind the
   end of the log; on standard error, so that records may go to standard output.
2. Ctrl-C and SIGTERM end a stream between two steps of Spark; its checkpoint says where to go on.
3. `load` under `--app` and `--number` may be repeated: what was loaded stays loaded once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastjournal.cli.arguments import seconds
from fastjournal.cli.output import json_line
from fastjournal.cli.spark.session import (
    LOCAL,
    Conf,
    Directory,
    Json,
    Master,
    end_progress,
    spark_session,
    stopping,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

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
    for row in batch.toLocalIterator():
        values = row.asDict(recursive=True)
        json_line(
            {
                n: bytes(v).hex() if isinstance(v, bytes | bytearray) else v
                for n, v in values.items()
            }
        )
    sys.stdout.flush()


def _follow(query: StreamingQuery, tell: Callable[[dict[str, Any]], None]) -> None:
    """Tell each batch until the query ends, by itself or because somebody asks."""
    told = -1
    with stopping() as over:
        while True:
            ended = query.awaitTermination(_LOOK)
            for progress in query.recentProgress:
                found = json.loads(progress.json)
                if found["batchId"] > told and found["numInputRows"]:
                    told = found["batchId"]
                    tell(found)
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
    chosen, read_options = _pairs(mapped or [], "--map"), _pairs(read_option or [], "--option")
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

    told = newest_outcome(SinkSettings.parse({**options, "path": target}).staging) or {}
    became = {name: told[name] for name in _OUTCOMES if name in told}
    if as_json:
        json_line({"rows": rows, "seconds": round(seconds, 3), "target": target, **became})
    else:
        typer.echo(f"{rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f}/s -> {target}")
        if words := ", ".join(f"{count:,} {name}" for name, count in became.items() if count):
            typer.echo(words)


def _pairs(given: list[str], option: str) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} takes name=value, not {one!r}")
        found[name.strip()] = value
    return found
