"""What the commands of `fastjournal spark` share: options, the session, the bar of tasks, results.

Rules:

1. Spark starts on this machine unless `--master` says otherwise; Java is found or brought along.
2. What the JVM says goes to a file whose name is told when something fails; an error is one line.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastjournal.cli.arguments import Json
from fastjournal.cli.output import console, json_line, preview, table
from fastjournal.cli.stop_signal import SIGNALS, Stop
from fastjournal.errors import BadRequest, CorruptCommand, JournalError, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "LOCAL",
    "AsOf",
    "Conf",
    "Directory",
    "DryRun",
    "JournalPath",
    "Json",
    "Limit",
    "Master",
    "Parquet",
    "TaskCount",
    "end_progress",
    "error_of",
    "pairs",
    "print_frame",
    "print_rows",
    "spark_session",
    "stopping",
    "task_bar",
]

Directory = Annotated[Path, typer.Argument(help="Directory of the journal.", metavar="DIRECTORY")]
JournalPath = Annotated[
    str,
    typer.Argument(
        help="Directory of the journal, or of a copy on an object store: s3://bucket/jobs.",
        metavar="DIRECTORY",
    ),
]
Master = Annotated[str, typer.Option(help="Where Spark runs: local[2], spark://host:7077, yarn...")]
Parquet = Annotated[
    Path | None, typer.Option(help="Write the result to this directory as Parquet.")
]


def _instant(text: str | None) -> str | None:
    """What was typed, if it is an instant: Spark need not begin to find out that it is not."""
    if text is not None:
        from fastjournal.spark.options import instant

        instant(text, "--as-of")
    return text


AsOf = Annotated[
    str | None,
    typer.Option(callback=_instant, help="The state at this instant (ISO 8601, or ns since 1970)."),
]
Limit = Annotated[int, typer.Option(min=1, help="Print at most so many rows of a table.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="A Spark setting: spark.name=value.")
]

TaskCount = Annotated[int, typer.Option(min=0, max=10_000, help="Number of tasks; 0: by cores.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")]

LOCAL = "local[*]"
_CELL = 60  # characters of one
_SMALL = 256 << 20  # bytes of log below which a JVM that starts quickly is the better one


@contextmanager
def spark_session(
    master: str, conf: list[str] | None, directories: Sequence[Path | str], *, bar: bool = True
) -> Iterator[SparkSession]:
    """A session whose JVM is silent and whose errors are one line; `bar`: with one of its tasks."""
    try:
        from pyspark.sql import SparkSession

        from fastjournal.spark.session import local_session, quietly
    except ImportError as error:
        raise Unavailable("Spark is not installed: pip install 'fastjournal[spark]'") from error
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        **_small_conf(master, directories),
        **pairs(conf, "--conf", "spark."),
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
        with task_bar(spark) if bar else nullcontext():
            yield spark
        failed = False
    except (typer.Exit, JournalError, BrokenPipeError):
        failed = False
        raise
    except Exception as error:
        failed = isinstance(error_of(error), Unavailable)
        raise error_of(error, log) from error
    finally:
        if spark is not None and found is None:
            spark.stop()
        if not failed:
            log.unlink(missing_ok=True)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Set by Ctrl-C and SIGTERM, instead of breaking Spark's own calls off.

    Outside the main thread nobody sets it.
    """
    over = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield over
        return
    kept = {number: signal.getsignal(number) for number in SIGNALS}
    over.listen()
    try:
        yield over
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _small_conf(master: str, directories: Sequence[Path | str]) -> dict[str, str]:
    """For a small log on this machine: a JVM that starts quickly rather than runs fast."""
    from fastjournal.spark.storage.segments import journal_segments

    size = sum(piece.size for one in directories for piece in journal_segments(one))
    if not master.startswith("local") or size > _SMALL:
        return {}
    return {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def error_of(error: Exception, log: Path | None = None) -> JournalError:
    """An error of Spark as one of ours, in one line."""
    from fastjournal.spark.errors import explain, tells_damage

    ours = explain(error)
    if ours is not None:
        text = f"{ours[1]} [{ours[0]}]"
        return CorruptCommand(text) if tells_damage(error) else BadRequest(text)
    if isinstance(error, OSError):
        return BadRequest(f"{error.filename or 'the system'}: {error.strerror or error}")
    name = type(error).__name__
    lines = [line for line in str(error).splitlines() if line.strip()]
    # Py4J says first that something was called, and then what became of it.
    text = next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else name)
    if name in {"ParseException", "AnalysisException"}:
        return BadRequest(text)
    return Unavailable(f"{name}: {text} (what Spark said is in {log})")


def pairs(given: list[str] | None, option: str, prefix: str = "") -> dict[str, str]:
    """What an option that takes `name=value` was given, each with its name; names begin so."""
    found = {}
    for one in given or []:
        name, equals, value = one.partition("=")
        if not equals or not name or not name.startswith(prefix):
            raise typer.BadParameter(f"{option} takes {prefix}name=value, not {one!r}")
        found[name.strip()] = value
    return found


class _Bar:
    """A bar of the tasks that run, on a terminal; gone for good once something is printed."""

    def __init__(self, spark: SparkSession) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("tasks"), BarColumn(), MofNCompleteColumn())
        # Results belong on standard output, whatever it is: the bar must not take them to its own.
        self._bar = Progress(
            *columns,
            console=console(error=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._over = threading.Event()
        self._task = self._bar.add_task("tasks", total=None)
        self._watcher = threading.Thread(target=self._watch, args=(spark,), daemon=True)
        self._bar.start()
        self._watcher.start()

    def _watch(self, spark: SparkSession) -> None:
        from fastjournal.spark.session import tasks_done

        while not self._over.wait(0.2):
            done, total = tasks_done(spark)
            self._bar.update(self._task, completed=done, total=total or None)

    def end(self) -> None:
        """Take the bar away; again is harmless."""
        if not self._over.is_set():
            self._over.set()
            self._watcher.join()
            self._bar.stop()


_shown: list[_Bar] = []


def end_progress() -> None:
    """Take the bar away before results are printed, so that the two do not mix on a terminal."""
    while _shown:
        _shown.pop().end()


@contextmanager
def task_bar(spark: SparkSession) -> Iterator[None]:
    if sys.stderr.isatty():
        _shown.append(_Bar(spark))
    try:
        yield
    finally:
        end_progress()


def print_frame(frame: DataFrame, as_json: bool, parquet: Path | None, limit: int) -> None:
    """Print or write a result; a table shows at most `limit` rows and says so."""
    if parquet is not None:
        frame.write.parquet(str(parquet))
        return
    if as_json:
        print_rows(frame)
        return
    rows = frame.limit(limit + 1).collect()
    end_progress()
    numbers = [name for name, kind in frame.dtypes if kind in {"int", "bigint", "smallint"}]
    table(frame.columns, [[_cell(v) for v in row] for row in rows[:limit]], right=numbers)
    if len(rows) > limit:
        sys.stderr.write(f"only the first {limit} rows; --limit, --json or --parquet for more\n")


def print_rows(frame: DataFrame) -> None:
    """Print rows as JSON lines, bytes in hexadecimal."""
    for row in frame.toLocalIterator():
        end_progress()
        values = row.asDict(recursive=True).items()
        json_line({n: bytes(v).hex() if isinstance(v, bytes | bytearray) else v for n, v in values})


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (bytes, bytearray)):
        text = bytes(value)
        return text.hex() if len(text) == 16 else preview(text, _CELL)
    return str(value)
