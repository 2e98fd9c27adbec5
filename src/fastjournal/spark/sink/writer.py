"""The sinks: rows of a DataFrame, or of each batch of a stream, become jobs.

Rules:

1. Tasks stage (`staging`), the driver's commit has the single writer adopt (`adopting`): into a
   directory by the journal's own lock, into a running daemon by its url.
2. A batch of a stream is known by the query's id and the batch's number, a batch write by
   `txnAppId` and `txnVersion`: coming again it changes nothing. A batch write without them is new
   each time.
3. The driver makes the journal's directory and that of the staged files; tasks make none outside
   of it. A node that does not see it fails its task, and a staged file that the driver does not
   see, or sees otherwise than its task wrote it, fails the commit (`written`).
4. Tasks learn query and batch from Spark's task context, the commit learns the query from what the
   tasks tell: nothing else passes between them.
5. What talks to a daemon is named by module and function (`deliverer`) and loaded by the commit
   only: a machine where only files are needs none of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from fastjournal.arguments import queue_bytes
from fastjournal.errors import BadRequest, SettingError
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.errors import coded_errors, from_pyspark
from fastjournal.spark.locations import absolute, is_remote, place
from fastjournal.spark.sink.batch import MAX_VERSION, MAX_VERSION_SENT, Batch, begin, discard
from fastjournal.spark.sink.commit import Adopted, Target, adopt, adopt_into
from fastjournal.spark.sink.encode import Staged, check_schema, stage
from fastjournal.spark.sink.outcomes import note_outcome
from fastjournal.spark.storage.written_files import attempt_word, make_below

with from_pyspark("jobs out of a DataFrame"):
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "SINK_OPTIONS",
    "JournalStreamWriter",
    "JournalWriter",
    "SinkSettings",
    "StagedMessage",
]

SINK_OPTIONS: Mapping[str, str] = {
    "path": "directory of the journal, or url of a daemon's: fj://host:port/journal",
    "queue": "queue of rows that name none",
    "txnAppId": "who writes; with txnVersion a repeated write changes nothing",
    "txnVersion": "number of the write, growing; a stream uses the number of its batch",
    "stagingLocation": "directory, shared by all nodes, for staged segments; default: inside the"
    " journal, for a daemon inside the checkpoint; without one the system's temporary directory,"
    " which will do where all runs on one machine",
    "lockSeconds": "how long to wait for the journal's writer to end, default 60",
    "deliverer": "module:function that opens a daemon's url",
}
"""Every option of the sinks with what it does."""

DELIVERER = "fastjournal.spool.daemon_destination:open_delivery"
_FOLDER = "spark-staged"
_URLS = ("fj://", "fjs://", "unix:")
# Spark hands these to every sink by itself.
_FOREIGN = {"paths", "checkpointlocation", "__columns_for_spark", "queryname"}


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Where jobs go, and under which name; small, frozen, picklable."""

    target: str
    staging: str
    queue: bytes = b""
    app: str = ""
    version: int | None = None
    lock_seconds: float = 60.0
    deliverer: str = DELIVERER
    checkpoint: str = ""

    @property
    def is_url(self) -> bool:
        """Whether the journal is behind a daemon."""
        return self.target.startswith(_URLS)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkSettings:
        """Settings from the options of a write; raises SettingError naming the option."""
        known = {name.lower(): name for name in SINK_OPTIONS}
        given: dict[str, str] = {}
        checkpoint = ""
        for name, value in options.items():
            lower = name.lower()
            if lower == "checkpointlocation":
                checkpoint = place(value.removeprefix("file://").removeprefix("file:"))
            if lower in _FOREIGN:
                continue
            if lower not in known:
                raise SettingError(
                    f"unknown option {name!r}; known: {', '.join(SINK_OPTIONS)}", name=name
                )
            given[known[lower]] = value
        target = given.get("path", "")
        if not target:
            raise SettingError("no path: save() needs a directory or a url", name="path")
        if not target.startswith(_URLS):
            target = absolute(target.removeprefix("file://").removeprefix("embedded:"))
        settings = cls(target, _staging(given.get("stagingLocation"), target, checkpoint))
        if "queue" in given:
            settings = replace(settings, queue=queue_bytes(given["queue"]))
        if "lockSeconds" in given:
            seconds = _seconds(given["lockSeconds"])
            settings = replace(settings, lock_seconds=seconds)
        if "deliverer" in given:
            settings = replace(settings, deliverer=given["deliverer"])
        version = None
        if "txnVersion" in given:
            most = MAX_VERSION_SENT if settings.is_url else MAX_VERSION
            version = _version(given["txnVersion"], most)
        return replace(
            settings, app=given.get("txnAppId", ""), version=version, checkpoint=checkpoint
        )

    def make_directories(self, batch: Batch) -> None:
        """Make, on the driver, what the tasks of a batch, or of others of its app, must find."""
        if not self.is_url:
            Stream(self.target, WORKQ).create()
        staging = Path(self.staging)
        known = batch.app or batch.name
        made = batch.folder(staging).parent if known else staging
        made.mkdir(parents=True, exist_ok=True)

    def adopt(self, batch: Batch, staged: Sequence[Staged]) -> Adopted:
        """Take a batch in, once, and remove what was staged for it."""
        staging = Path(self.staging)
        files = begin(staging, batch, staged) if batch.app else list(staged)
        if not self.is_url:
            done = adopt(self.target, batch, files, lock_seconds=self.lock_seconds)
        elif any(one.rows for one in files):
            with self._open() as target:
                done = adopt_into(target, batch, files)
        else:
            done = Adopted()
        discard(staging, batch, all_of_app=True)
        note_outcome(self.staging, batch, done)
        return done

    def _open(self) -> OpenTarget:
        module, _, function = self.deliverer.partition(":")
        opened: OpenTarget = getattr(import_module(module), function)(self.target)
        return opened


if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    OpenTarget = AbstractContextManager[Target]


def _staging(given: str | None, target: str, checkpoint: str) -> str:
    if given:
        return absolute(given.removeprefix("file://"))
    if not target.startswith(_URLS):
        return str(Path(target) / _FOLDER)
    if is_remote(checkpoint):
        raise SettingError(
            "stagingLocation: name a directory that all nodes share; the checkpoint is on an"
            " object store, where nothing can be staged",
            name="stagingLocation",
        )
    if checkpoint:
        return str(Path(checkpoint) / _FOLDER)
    return str(private_folder(Path(tempfile.gettempdir())))


def private_folder(parent: Path) -> Path:
    """A directory of this user alone, the same each time: a repeated write finds what it staged.

    Its name is known to everybody, so one that somebody else has made is refused.
    """
    path = parent / f"fastjournal-{os.geteuid()}-{_FOLDER}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SettingError(
            f"stagingLocation: {path} is not a directory of this user alone; name another one",
            name="stagingLocation",
        )
    return path


def _version(text: str, most: int) -> int:
    number = int(text) if text.strip().isdecimal() else -1
    if not 0 <= number <= most:
        raise SettingError(
            f"txnVersion: a whole number in 0..{most}, not {text!r}", name="txnVersion"
        )
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise SettingError(f"lockSeconds: not a number of seconds: {text!r}", name="lockSeconds")
    return seconds


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task tells the commit: the batch it worked for, and its file if it had rows."""

    batch: Batch
    staged: Staged | None


def _staged(
    settings: SinkSettings, batch: Batch, batches: Iterator[pa.RecordBatch]
) -> StagedMessage:
    from pyspark import TaskContext

    task = TaskContext.get()
    partition = task.partitionId() if task else 0
    folder = batch.folder(Path(settings.staging))
    # Attempts are numbered anew by each application, and a file of a dead one may be the batch.
    path = folder / f"part-{partition:05d}-{attempt_word()}.log"
    make_below(Path(settings.staging), folder)
    try:
        staged = stage(batches, path, queue=settings.queue)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    if not staged.rows:
        path.unlink()
    return StagedMessage(batch, staged if staged.rows else None)


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """The staged files in the order of the partitions, which is that of the messages."""
    found = [message for message in messages if isinstance(message, StagedMessage)]
    if len(found) != len(messages):
        raise BadRequest(f"{len(messages) - len(found)} tasks did not tell what they staged")
    return [message.staged for message in found if message.staged is not None]


class _Sink:
    """What both sinks share."""

    def __init__(self, schema: StructType, settings: SinkSettings, overwrite: bool) -> None:
        if overwrite:
            raise BadRequest("a journal is not overwritten; use mode append")
        check_schema(schema, settings.queue)
        self.settings = settings


class JournalWriter(_Sink, DataSourceArrowWriter):
    """Rows of a DataFrame become jobs; one object for all tasks and the commit of a write."""

    def __init__(self, schema: StructType, settings: SinkSettings, overwrite: bool) -> None:
        super().__init__(schema, settings, overwrite)
        if (settings.version is None) == bool(settings.app):
            raise SettingError("txnAppId and txnVersion go together", name="txnVersion")
        self.batch = Batch(settings.app, settings.version or 0, "" if settings.app else uuid4().hex)
        settings.make_directories(self.batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        with coded_errors():
            return _staged(self.settings, self.batch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Take them all in."""
        with coded_errors():
            self.settings.adopt(self.batch, _files(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave nothing behind, unless the batch was being taken in: then for another attempt."""
        discard(Path(self.settings.staging), self.batch)


class JournalStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """The rows of each batch of a stream become jobs, once."""

    def __init__(self, schema: StructType, settings: SinkSettings, overwrite: bool) -> None:
        super().__init__(schema, settings, overwrite)
        if settings.version is not None:
            raise SettingError(
                "txnVersion: a stream uses the number of its batch", name="txnVersion"
            )
        settings.make_directories(Batch(settings.app or _query_id(settings.checkpoint), 0))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        from pyspark import TaskContext

        with coded_errors():
            task = TaskContext.get()
            assert task is not None
            app = self.settings.app or task.getLocalProperty("sql.streaming.queryId") or ""
            number = task.getLocalProperty("streaming.sql.batchId")
            if not app or number is None:
                raise BadRequest("this Spark does not tell tasks the id of their query and batch")
            return _staged(self.settings, Batch(app, int(number)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Take the batch in, or notice that it came before."""
        with coded_errors():
            batch = self._batch(messages, batchId)
            if batch is not None:
                self.settings.adopt(batch, _files(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave nothing behind, unless the batch was being taken in: then for another attempt."""
        batch = self._batch(messages, batchId)
        if batch is not None:
            discard(Path(self.settings.staging), batch)

    def _batch(self, messages: Sequence[WriterCommitMessage | None], number: int) -> Batch | None:
        for message in messages:
            if isinstance(message, StagedMessage):
                return message.batch
        app = self.settings.app or _query_id(self.settings.checkpoint)
        return Batch(app, number) if app else None


def _query_id(checkpoint: str) -> str:
    """The query's id as its checkpoint says; empty where that cannot be read."""
    try:
        return str(json.loads((Path(checkpoint) / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError):
        return ""
