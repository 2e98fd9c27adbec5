"""`fastjournal spark`: SQL over a log, its state as of an instant, an audit, a cleaning.

Rules:

1. Spark starts on this machine unless `--master` says otherwise; Java is found or brought along.
2. Results go to standard output as a table, JSON lines (`--json`) or into Parquet (`--parquet`).
3. What the JVM says goes to a file whose name is told when something fails; an error is one line.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastjournal.cli.render import bytes_text, console, json_line, preview, table
from fastjournal.errors import BadRequest, JournalError, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fastjournal.spark.clean import CleanReport

__all__ = ["app"]

app = typer.Typer(
    help="Work on the log with Spark: SQL, replay, audit, clean.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Directory = Annotated[Path, typer.Argument(help="Directory of the journal.", metavar="DIRECTORY")]
Master = Annotated[str, typer.Option(help="Where Spark runs: local[2], spark://host:7077, yarn...")]
Json = Annotated[bool, typer.Option("--json", help="JSON lines instead of a table.")]
Parquet = Annotated[
    Path | None, typer.Option(help="Write the result to this directory as Parquet.")
]
AsOf = Annotated[
    str | None, typer.Option(help="The state at this instant (ISO 8601, or ns since 1970).")
]
Limit = Annotated[int, typer.Option(min=1, help="Print at most so many rows of a table.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="A Spark setting: spark.name=value.")
]

_LOCAL = "local[*]"
_CELL = 60
_SMALL = 256 << 20


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="Over the views records, jobs and segments.")],
    directory: Directory,
    as_of: AsOf = None,
    master: Master = _LOCAL,
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
    with _session(master, conf, [directory]) as spark:
        from fastjournal.spark.table import JournalTable

        JournalTable.for_path(spark, directory).create_views(as_of)
        _print(spark.sql(query), as_json, parquet, limit)


@app.command()
def replay(
    directory: Directory,
    as_of: AsOf = None,
    queue: Annotated[list[str] | None, typer.Option(help="Only rows of this queue.")] = None,
    columns: Annotated[str, typer.Option(help="Columns to show, comma separated.")] = "",
    shards: Annotated[int, typer.Option(min=0, help="Number of tasks; 0: by cores.")] = 0,
    master: Master = _LOCAL,
    conf: Conf = None,
    as_json: Json = False,
    parquet: Parquet = None,
    limit: Limit = 1000,
) -> None:
    """Show the rows that the log gives, now or as of an instant.

    Examples:

        fastjournal spark replay ./jobs --as-of 2026-01-31T12:00Z --columns id,queue,key,state

        fastjournal spark replay ./jobs --parquet ./state.parquet
    """
    with _session(master, conf, [directory]) as spark:
        from fastjournal.spark.table import JournalTable

        chosen = [name.strip() for name in columns.split(",") if name.strip()]
        found = JournalTable.for_path(spark, directory).jobs(
            as_of, columns=chosen, queues=queue or [], shards=shards
        )
        _print(found, as_json, parquet, limit)


@app.command()
def audit(
    directory: Directory,
    second_opinion: Annotated[
        bool, typer.Option(help="Fold the log a second time, in SQL, and compare.")
    ] = True,
    master: Master = _LOCAL,
    conf: Conf = None,
    as_json: Json = False,
    parquet: Parquet = None,
    limit: Limit = 1000,
) -> None:
    """Look for everything that a sound journal would not have written.

    Exit code **0**: nothing, or notes only. **1**: warnings. **2**: errors.

    Examples:

        fastjournal spark audit ./jobs

        fastjournal spark audit ./jobs --json --no-second-opinion
    """
    with _session(master, conf, [directory]) as spark:
        from fastjournal.spark.audit import exit_code
        from fastjournal.spark.table import JournalTable

        found = JournalTable.for_path(spark, directory).audit(opinion=second_opinion).cache()
        code = exit_code(found)
        rows = found.orderBy("severity", "rule", "segment", "offset")
        if as_json or parquet or not rows.isEmpty():
            _print(rows, as_json, parquet, limit)
        else:
            typer.echo("sound: no finding")
    raise typer.Exit(code)


@app.command()
def clean(
    directories: Annotated[
        list[Path], typer.Argument(help="Directories of journals.", metavar="DIRECTORY...")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for readers to leave.")] = 60.0,
    master: Master = _LOCAL,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Drop from sealed segments what replay does not need; never changes the state.

    Examples:

        fastjournal spark clean ./jobs --dry-run

        fastjournal spark clean ./jobs ./other --json
    """
    with _session(master, conf, directories) as spark:
        from fastjournal.spark.clean import clean as clean_all

        reports = clean_all(spark, list(directories), lock_seconds=wait, dry_run=dry_run)
    _print_reports(reports, as_json, dry_run)


@app.command()
def trim(
    directory: Annotated[Path, typer.Argument(help="Directory of the archive.")],
    before: Annotated[str, typer.Option(help="Records before this instant go.")],
    queue: Annotated[list[str] | None, typer.Option(help="Only rows of this queue.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    master: Master = _LOCAL,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Drop old history from an archive, of all queues or of some; a living journal is refused.

    Examples:

        fastjournal spark trim ./jobs/archive --before 2026-01-01 --dry-run

        fastjournal spark trim ./jobs/archive --before 2026-01-01 --queue mail --queue sms
    """
    from fastjournal.spark.settings import instant

    moment = instant(before, "before")
    with _session(master, conf, [directory]) as spark:
        from fastjournal.spark.archive import trim_archive

        report = trim_archive(spark, directory, before=moment, queues=queue or [], dry_run=dry_run)
    _print_reports([report], as_json, dry_run)


@app.command()
def shell(
    directory: Directory, as_of: AsOf = None, master: Master = _LOCAL, conf: Conf = None
) -> None:
    """Open a Python prompt with `spark`, `journal` and the three views.

    Examples:

        fastjournal spark shell ./jobs
    """
    import code

    with _session(master, conf, [directory]) as spark:
        from fastjournal.spark.table import JournalTable

        journal = JournalTable.for_path(spark, directory)
        journal.create_views(as_of)
        names = {"spark": spark, "sql": spark.sql, "journal": journal}
        banner = (
            "spark: the session; journal: JournalTable; sql('select * from jobs').show()\n"
            "views: records, jobs, segments"
        )
        code.interact(banner=banner, local=names, exitmsg="")


@contextmanager
def _session(
    master: str, conf: list[str] | None, directories: Sequence[Path]
) -> Iterator[SparkSession]:
    """A session whose JVM is silent and whose errors are one line."""
    try:
        from pyspark.sql import SparkSession

        from fastjournal.spark.session import local_session, quietly
    except ImportError as error:
        raise Unavailable("Spark is not installed: pip install 'fastjournal[spark]'") from error
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        **_small_conf(master, directories),
        **_pairs(conf or []),
    }
    number, name = tempfile.mkstemp(prefix="fastjournal-spark-", suffix=".log")
    os.close(number)
    log = Path(name)
    found = SparkSession.getActiveSession()
    spark = found
    failed = True
    try:
        with quietly(log):
            spark = local_session(master, **settings)
        with _progress(spark):
            yield spark
        failed = False
    except (typer.Exit, JournalError, BrokenPipeError):
        failed = False
        raise
    except Exception as error:
        failed = not isinstance(_told(error), BadRequest)
        raise _told(error, log) from error
    finally:
        if spark is not None and found is None:
            spark.stop()
        if not failed:
            log.unlink(missing_ok=True)


def _small_conf(master: str, directories: Sequence[Path]) -> dict[str, str]:
    """For a small log on this machine: a JVM that starts quickly rather than runs fast."""
    from fastjournal.spark.plan import journal_segments

    size = sum(piece.size for one in directories for piece in journal_segments(one))
    if not master.startswith("local") or size > _SMALL:
        return {}
    return {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def _told(error: Exception, log: Path | None = None) -> JournalError:
    """An error of Spark as one of ours, in one line."""
    from fastjournal.spark.failure import explain

    ours = explain(error)
    if ours is not None:
        return BadRequest(f"{ours[1]} [{ours[0]}]")
    name = type(error).__name__
    text = next((line for line in str(error).splitlines() if line.strip()), name)
    if name in {"ParseException", "AnalysisException"}:
        return BadRequest(text)
    return Unavailable(f"{name}: {text} (what Spark said is in {log})")


def _pairs(conf: list[str]) -> dict[str, str]:
    found = {}
    for one in conf:
        name, equals, value = one.partition("=")
        if not equals or not name.startswith("spark."):
            raise typer.BadParameter(f"--conf takes spark.name=value, not {one!r}")
        found[name] = value
    return found


@contextmanager
def _progress(spark: SparkSession) -> Iterator[None]:
    """A bar of the tasks that run, on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from fastjournal.spark.session import tasks_done

    over = threading.Event()
    columns = (TextColumn("tasks"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(error=True), transient=True) as bar:
        task = bar.add_task("tasks", total=None)

        def watch() -> None:
            while not over.wait(0.2):
                done, total = tasks_done(spark)
                bar.update(task, completed=done, total=total or None)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


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


def _print(frame: DataFrame, as_json: bool, parquet: Path | None, limit: int) -> None:
    if parquet is not None:
        frame.write.parquet(str(parquet))
        return
    if as_json:
        for row in frame.toLocalIterator():
            json_line({name: _plain(value) for name, value in row.asDict(recursive=True).items()})
        return
    rows = frame.limit(limit + 1).collect()
    numbers = [name for name, kind in frame.dtypes if kind in {"int", "bigint", "smallint"}]
    table(frame.columns, [[_cell(v) for v in row] for row in rows[:limit]], right=numbers)
    if len(rows) > limit:
        sys.stderr.write(f"only the first {limit} rows; --limit, --json or --parquet for more\n")


def _plain(value: Any) -> Any:
    return bytes(value).hex() if isinstance(value, (bytes, bytearray)) else value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (bytes, bytearray)):
        text = bytes(value)
        return text.hex() if len(text) == 16 else preview(text, _CELL)
    return str(value)
