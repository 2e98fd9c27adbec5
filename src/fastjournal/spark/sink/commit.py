"""The single writer takes staged segments in, each batch once.

Rules:

1. A batch is (application, version). The journal remembers the newest version of an application as
   the mark of a sender, in one record with the batch's last job: a batch whose version is not above
   it came before, and changes nothing. A batch without an application is remembered by nobody.
2. Row n of a batch has the sender of the batch and mark n + 2, which is its id too unless it
   brought one: a writer that dies half-way knows from the log how far it had come.
3. Every staged file is read and compared with what its task told before the first row is taken in.
4. Rows that bring no id, in queues without settings of their own, meet no other row if they have no
   key, or if the keys of the batch are all new to the journal: they are stamped column by column
   and appended. All others are decided by the journal, one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fastjournal.errors import BadRequest, Locked, LockTimeout
from fastjournal.journal.journal import Journal, Receiver
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.language.commands import Group, Put, Sender
from fastjournal.log.scan.encode_columns import encode_column
from fastjournal.log.scan.scan import Chunk, Scan
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.model import Mode, NewJob
from fastjournal.spark.decode.fields import Fields
from fastjournal.spark.replay.fold import no_collection
from fastjournal.spark.sink.batch import FIRST_MARK, Batch
from fastjournal.spark.sink.encode import Staged
from fastjournal.spark.sink.glance import glance
from fastjournal.spark.sink.new_keys import all_new
from fastjournal.spark.sink.stamp import stamped
from fastjournal.spark.storage.segments import Piece, load

if TYPE_CHECKING:
    import pyarrow as pa

    from fastjournal.log.write.appender import Appender

__all__ = [
    "Adopted",
    "Target",
    "adopt",
    "adopt_into",
]

_MAX_ROWS = 2**32 - 4
_NO_ID = bytes(16)


class Adopted(NamedTuple):
    """What became of the rows of a batch."""

    rows: int = 0
    new: int = 0
    merged: int = 0
    stale: int = 0
    refused: int = 0
    """Not taken in: expired before they came."""
    repeated: int = 0
    """Taken in by an earlier attempt."""


class Result(Protocol):
    """What became of the jobs of one call."""

    @property
    def outcomes(self) -> tuple[int, int, int, int]:
        """How many are new, merged, twins, stale."""

    @property
    def repeated(self) -> int:
        """How many came before."""

    @property
    def refused(self) -> Sequence[object]:
        """Those that were refused."""


class Target(Protocol):
    """A journal that takes in the jobs of a sender, in this process or behind a daemon."""

    def put_from(self, sender: bytes, jobs: Iterator[tuple[int, NewJob]]) -> Result:
        """Take in those whose marks are new."""

    def mark_of(self, sender: bytes) -> int:
        """How far a sender has come."""

    def forget_sender(self, sender: bytes) -> None:
        """Nothing of it will come again."""


def adopt(
    directory: str,
    batch: Batch,
    staged: Sequence[Staged],
    *,
    lock_seconds: float = 60.0,
    stream: Stream | None = None,
) -> Adopted:
    """Take a batch in as the journal's single writer; `stream`: how its log is opened."""
    rows = _rows_of(staged)
    if not rows:
        return Adopted()
    stream = stream or Stream(directory, WORKQ)
    stream.create()
    with _writer(directory):
        if not any(one.own_ids for one in staged):
            appender = stream.open_appender()
            appender.lock(lock_seconds)
            try:
                done = _appended(appender, batch, staged, rows)
            finally:
                appender.unlock()
            if done is not None:
                return done
        stream.lock_appender(lock_seconds).release()  # a journal waits for its lock only briefly
        with no_collection(), Journal(directory, background=False, sync="os") as journal:
            done = adopt_into(Receiver(journal), batch, staged)
            journal.sync()
            return done


def adopt_into(target: Target, batch: Batch, staged: Sequence[Staged]) -> Adopted:
    """Let a journal decide the rows of a batch, one by one."""
    rows = _rows_of(staged)
    if not rows:
        return Adopted()
    if batch.app and target.mark_of(batch.application) >= batch.mark:
        target.forget_sender(batch.sender)
        return Adopted(rows, repeated=rows)
    _check(staged)
    jobs = _jobs(batch, staged)
    taken: list[Result] = []
    if batch.app:
        taken.append(target.put_from(batch.sender, islice(jobs, rows - 1)))
        last = [(batch.mark, job) for _, job in jobs]
        taken.append(target.put_from(batch.application, iter(last)))
    else:
        taken.append(target.put_from(batch.sender, jobs))
    target.forget_sender(batch.sender)
    new, merged, twins, stale = (sum(t.outcomes[n] for t in taken) for n in range(4))
    return Adopted(
        rows,
        new + twins,
        merged,
        stale,
        sum(len(t.refused) for t in taken),
        sum(t.repeated for t in taken),
    )


def _rows_of(staged: Sequence[Staged]) -> int:
    rows = sum(one.rows for one in staged)
    if rows > _MAX_ROWS:
        raise BadRequest(f"a batch of {rows} rows is more than {_MAX_ROWS}")
    return rows


@contextlib.contextmanager
def _writer(directory: str) -> Iterator[None]:
    try:
        yield
    except LockTimeout as error:
        raise Locked(
            f"{directory} has a writer already ({error}); if it is a daemon, write to its url"
        ) from error


def _check(staged: Sequence[Staged]) -> None:
    for one in staged:
        one.check()


def _chunks(staged: Sequence[Staged]) -> Iterator[Chunk]:
    for one in staged:
        if one.rows:
            data = load(Piece(one.path, 0, 0, newest=False))
            for chunk in Scan(data, path=one.path):
                assert isinstance(chunk, Chunk)
                yield chunk


def _appended(
    appender: Appender, batch: Batch, staged: Sequence[Staged], rows: int
) -> Adopted | None:
    """Take in rows that meet no other; None if there may be something that a row meets."""
    import pyarrow as pa

    found = glance(str(appender.stream.path), batch.sender)
    before = found.mark_of(batch.sender)
    if batch.app and found.mark_of(batch.application) >= batch.mark:
        if before:
            appender.append(encode(Sender(batch.sender, 0)))
            appender.sync()
        return Adopted(rows, repeated=rows)
    if not found.is_plain({name for one in staged for name in one.queues}):
        return None
    _check(staged)
    if not all(one.plain for one in staged):
        keys = [Fields(chunk).text("key").drop_null() for chunk in _chunks(staged)]
        if not all_new(str(appender.stream.path), pa.chunked_array(keys)):
            return None
    return _append(appender, batch, staged, rows, before)


def _append(
    appender: Appender, batch: Batch, staged: Sequence[Staged], rows: int, before: int
) -> Adopted:
    """Stamp and append rows that meet no other; `before`: the mark reached by a dead writer."""
    sender = batch.sender
    if not before:
        appender.append(encode(Sender(sender, FIRST_MARK - 1)))
    done = max(0, before - FIRST_MARK + 1)
    row = 0
    for chunk in _chunks(staged):
        skip = min(max(done - row, 0), len(chunk))
        if skip < len(chunk):
            now = max(appender.stream.clock.now(), appender.last_time + 1)
            for payloads in stamped(chunk, skip, sender, row + FIRST_MARK, now):
                count = len(payloads)
                if batch.app and row + skip + count == rows:
                    count -= 1
                _append_column(appender, payloads.slice(0, count))
                if count < len(payloads):
                    put = decode(payloads[count].as_py())
                    version = Sender(batch.application, batch.mark)
                    appender.append(encode(Group((put, version))))
                skip += len(payloads)
        row += len(chunk)
    appender.append(encode(Sender(sender, 0)))
    appender.sync()
    return Adopted(rows, rows - done, repeated=done)


def _append_column(appender: Appender, payloads: pa.Array) -> None:
    if len(payloads):
        appender.append_made(
            len(payloads), lambda first, zone: encode_column(first, payloads, zone)
        )


def _jobs(batch: Batch, staged: Sequence[Staged]) -> Iterator[tuple[int, NewJob]]:
    mark = FIRST_MARK
    sender = batch.sender
    new, merge, plain = tuple.__new__, Mode.MERGE, Mode.PLAIN
    for chunk in _chunks(staged):
        for payload in chunk.payloads().to_pylist():
            put = decode(payload)
            assert isinstance(put, Put)
            given = put.id
            if given == _NO_ID:
                given = sender + mark.to_bytes(4, "big")
            mode = merge if put.key else plain
            # The bare constructor of tuple takes half the time, which counts per job.
            yield (
                mark,
                new(
                    NewJob,
                    (
                        put.queue,
                        put.value,
                        put.key,
                        mode,
                        put.rank,
                        put.due,
                        put.expires,
                        0,
                        0,
                        0,
                        0,
                        0,
                        put.kind,
                        0,
                        given,
                    ),
                ),
            )
            mark += 1
