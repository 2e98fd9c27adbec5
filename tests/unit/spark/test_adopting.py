"""Staged segments and their adoption, without Spark: exactly once, whatever dies in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from fastjournal.errors import BadRequest, JournalError, Locked, OutOfRange, TooLarge  # noqa: E402
from fastjournal.journal.journal import Journal, Receiver  # noqa: E402
from fastjournal.journal.language import codec  # noqa: E402
from fastjournal.journal.language.commands import Put  # noqa: E402
from fastjournal.log.segment import WORKQ  # noqa: E402
from fastjournal.log.stream import Stream  # noqa: E402
from fastjournal.model import Job, NewJob  # noqa: E402
from fastjournal.spark.sink import commit as adopting  # noqa: E402
from fastjournal.spark.sink.batch import Batch, begin, discard  # noqa: E402
from fastjournal.spark.sink.commit import Adopted, adopt  # noqa: E402
from fastjournal.spark.sink.encode import Staged, payloads, stage  # noqa: E402

NOW = 1_700_000_000_000_000_000
DUE = datetime(2100, 1, 1, tzinfo=UTC)
STAMP = pa.timestamp("us", tz="UTC")


def table(rows: int, first: int = 0, **more: Any) -> pa.RecordBatch:
    """So many rows with different payloads and queues."""
    numbers = range(first, first + rows)
    columns = {
        "payload": pa.array([b"job %d" % n for n in numbers], pa.binary()),
        "queue": pa.array([f"queue-{n % 3}" for n in numbers]),
        "priority": pa.array([n % 256 for n in numbers], pa.int32()),
        **more,
    }
    return pa.RecordBatch.from_pydict(columns)


def staged(path: Path, *batches: pa.RecordBatch) -> list[Staged]:
    """One file for each batch."""
    path.mkdir(parents=True, exist_ok=True)
    files = len(list(path.iterdir()))
    return [stage([batch], path / f"part-{files + n:05d}-0.log") for n, batch in enumerate(batches)]


def jobs(directory: Path) -> dict[bytes, Job]:
    """All jobs by payload; two of one payload are told apart by nobody, so they are refused."""
    with Journal(directory, background=False) as journal:
        found = [job for name in journal.queues() for job in journal.jobs(name.name)]
    by_payload = {job.value: job for job in found}
    assert len(by_payload) == len(found)
    return by_payload


def test_a_row_is_encoded_as_the_put_that_the_journal_would_write() -> None:
    batch = table(
        300,
        key=pa.array([None if n % 2 else f"k{n}" for n in range(300)]),
        due=pa.array([None if n % 5 else DUE for n in range(300)], STAMP),
        ttl=pa.array([None if n % 3 else 1.5 for n in range(300)]),
        id=pa.array([None if n % 7 else bytes([n % 255 + 1]) * 16 for n in range(300)]),
    )
    made, queues, keyed, own_ids = payloads(batch, NOW, b"")
    assert queues == {b"queue-0", b"queue-1", b"queue-2"} and keyed and own_ids
    due = int(DUE.timestamp()) * 10**9
    for n, payload in enumerate(made.to_pylist()):
        put = codec.decode(payload)
        assert isinstance(put, Put) and codec.encode(put) == payload
        at = 0 if n % 5 else due
        assert put == Put(
            bytes(16) if n % 7 else bytes([n % 255 + 1]) * 16,
            b"queue-%d" % (n % 3), b"" if n % 2 else b"k%d" % n, n % 256, at, 0, 0,
            0 if n % 3 else max(at, NOW) + 1_500_000_000, 1, b"job %d" % n, put.policy,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("column", "error"),
    [
        ({"priority": pa.array([256])}, OutOfRange),
        ({"priority": pa.array([-1])}, OutOfRange),
        ({"payload": pa.array([b"x" * (1 << 20) + b"x"])}, TooLarge),
        ({"key": pa.array(["k" * 65_536])}, TooLarge),
        ({"queue": pa.array(["q" * 256])}, TooLarge),
        ({"queue": pa.array([""])}, BadRequest),
        ({"queue": pa.array([None], pa.string())}, BadRequest),
        ({"id": pa.array([b"short"])}, BadRequest),
        ({"id": pa.array([bytes(16)])}, BadRequest),
        ({"ttl": pa.array([0.0])}, BadRequest),
        ({"ttl": pa.array([float("nan")])}, OutOfRange),
        ({"ttl": pa.array([1e300])}, OutOfRange),
    ],
)
def test_a_value_out_of_range_is_refused_and_named(
    column: dict[str, Any], error: type[JournalError]
) -> None:
    with pytest.raises(error, match=next(iter(column))):
        payloads(table(1, **column), NOW, b"")


def test_a_row_without_a_queue_goes_to_the_option_or_to_the_domain_of_its_key() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"key": ["https://a.example/x", "https://b.example/y"], "queue": pa.array([None, "own"])}
    )
    named = [codec.decode(p).queue for p in payloads(rows, NOW, b"")[0].to_pylist()]  # type: ignore[union-attr]
    assert named == [b"a.example", b"own"]
    given = [codec.decode(p).queue for p in payloads(rows, NOW, b"q")[0].to_pylist()]  # type: ignore[union-attr]
    assert given == [b"q", b"own"]


@pytest.mark.parametrize("keyed", [False, True])
def test_a_batch_is_taken_in_once_however_often_it_comes(tmp_path: Path, keyed: bool) -> None:
    directory = tmp_path / "journal"
    more = {"key": pa.array([f"key {n}" for n in range(100)])} if keyed else {}
    batch = Batch("query", 0)
    first = adopt(str(directory), batch, staged(tmp_path / "a", table(100, **more)))
    assert first == Adopted(100, new=100)
    before = jobs(directory)
    assert len(before) == 100
    again = adopt(str(directory), batch, staged(tmp_path / "b", table(100, **more)))
    assert again == Adopted(100, repeated=100)
    assert jobs(directory) == before
    other = adopt(str(directory), Batch("query", 1), staged(tmp_path / "c", table(50, 100)))
    assert other == Adopted(50, new=50)
    assert len(jobs(directory)) == 150


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_appended_in_bulk_equal_rows_that_the_journal_decided(
    tmp_path: Path, keyed: bool
) -> None:
    keys = [None if n % 4 == 0 else f"{n}" * n for n in range(200)]
    rows = table(
        200,
        **({"key": pa.array(keys)} if keyed else {}),
        due=pa.array([None if n % 5 else DUE for n in range(200)], STAMP),
        ttl=pa.array([None if n % 3 else 10**6 for n in range(200)]),
    )
    files = staged(tmp_path / "staged", rows.slice(0, 70), rows.slice(70))
    batch = Batch("app", 7)
    adopt(str(tmp_path / "bulk"), batch, files)
    with Journal(tmp_path / "decided", background=False) as journal:
        adopting.adopt_into(Receiver(journal), batch, files)
    bulk, decided = jobs(tmp_path / "bulk"), jobs(tmp_path / "decided")
    assert bulk.keys() == decided.keys() and len(bulk) == 200
    for payload, job in bulk.items():
        other = decided[payload]
        same = job._replace(inserted=0, modified=0, due=0)
        assert same == other._replace(inserted=0, modified=0, due=0)
        assert (job.due == other.due) or (job.due == job.inserted and other.due == other.inserted)
    ordered = sorted(bulk.values(), key=lambda job: job.inserted)
    assert [job.value for job in ordered] == [b"job %d" % n for n in range(200)]


def test_keyed_rows_merge_into_what_waits(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", background=False) as journal:
        journal.put(b"old", key="k", queue="q", priority=50)
    rows = pa.RecordBatch.from_pydict(
        {"payload": [b"new", b"other"], "key": ["k", "k2"], "queue": ["q", "q"]}
    )
    done = adopt(str(tmp_path / "journal"), Batch("a", 1), staged(tmp_path / "s", rows))
    assert done == Adopted(2, new=1, merged=1)
    found = jobs(tmp_path / "journal")
    assert found.keys() == {b"new", b"other"} and found[b"new"].rank == 50


def _waits(journal: Journal) -> None:
    journal.put(b"old", key="k", queue="q", priority=50)


def _waits_elsewhere(journal: Journal) -> None:
    journal.put(b"old", key="k", queue="another")


def _is_worked_on(journal: Journal) -> None:
    _waits(journal)
    assert journal.lease("q")


def _is_done(journal: Journal) -> None:
    _waits(journal)
    lease = journal.lease("q")
    assert lease
    lease.done()


def _was_deleted(journal: Journal) -> None:
    _waits(journal)
    assert journal.delete(key="k", queue="q")


def _was_deleted_before_it_came(journal: Journal) -> None:
    assert not journal.delete(key="k", queue="q")


def _was_deleted_everywhere(journal: Journal) -> None:
    journal.delete(key="k")


def _is_of_an_entry(journal: Journal) -> None:
    journal.entries.set("k", b"v")


def _came_with_others(journal: Journal) -> None:
    sender = Receiver(journal)
    sender.put_from(b"someone", [(2, NewJob(b"q", b"old", b"k"))])  # its PUT stands in a GROUP


def _is_in_the_snapshot_alone(journal: Journal) -> None:
    _waits(journal)
    journal.rotate()
    journal.put(b"later", queue="other")
    journal.snapshot()
    journal.clean()


@pytest.mark.parametrize(
    "history",
    [
        _waits, _waits_elsewhere, _is_worked_on, _is_done, _was_deleted,
        _was_deleted_before_it_came, _was_deleted_everywhere,
        _is_of_an_entry, _came_with_others, _is_in_the_snapshot_alone,
    ],
)  # fmt: skip
def test_a_key_that_the_journal_knows_is_decided_as_the_journal_would(
    tmp_path: Path, history: Callable[[Journal], None]
) -> None:
    """Whatever became of the key: the rows, and what is left of old ones, are the same."""
    with Journal(tmp_path / "bulk", background=False) as journal:
        history(journal)
    shutil.copytree(tmp_path / "bulk", tmp_path / "decided")
    rows = pa.RecordBatch.from_pydict(
        {"payload": [b"new", b"other"], "key": ["k", "k2"], "queue": ["q", "q"]}
    )
    batch, files = Batch("a", 1), staged(tmp_path / "s", rows)
    done = adopt(str(tmp_path / "bulk"), batch, files)
    with Journal(tmp_path / "decided", background=False) as journal:
        assert done == adopting.adopt_into(Receiver(journal), batch, files)
    assert _rows(tmp_path / "bulk") == _rows(tmp_path / "decided")


def test_a_key_that_was_deleted_everywhere_by_a_clock_ahead_is_written_later_still(
    tmp_path: Path,
) -> None:
    with Journal(tmp_path / "journal", background=False) as journal:
        deleted = datetime.now(UTC) + timedelta(seconds=4)
        journal.delete(key="k", timestamp=deleted)
    files = staged(tmp_path / "s", table(1, key=pa.array(["k"])))
    assert adopt(str(tmp_path / "journal"), Batch("a", 1), files) == Adopted(1, new=1)
    assert jobs(tmp_path / "journal")[b"job 0"].modified > round(deleted.timestamp() * 10**6) * 1000


def _rows(directory: Path) -> set[tuple[Any, ...]]:
    """All rows, tombstones too, without their times."""
    with Journal(directory, background=False) as journal:
        rows = journal.engine.state.rows.values()
        return {(row.id, row.key, row.queue.name, row.stage, row.rank, row.value) for row in rows}


def test_rows_of_one_batch_with_one_key_merge(tmp_path: Path) -> None:
    rows = table(3, queue=pa.array(["q"] * 3), key=pa.array(["k", "l", "k"]))
    files = staged(tmp_path / "s", rows.slice(0, 2), rows.slice(2))
    assert adopt(str(tmp_path / "journal"), Batch("a", 1), files) == Adopted(3, new=2, merged=1)
    assert jobs(tmp_path / "journal").keys() == {b"job 1", b"job 2"}


def test_queues_with_settings_of_their_own_are_decided_by_the_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", background=False) as journal:
        journal.configure("queue-1", max_wait=60)
    due = {"due": pa.array([DUE] * 9, STAMP)}
    adopt(str(tmp_path / "journal"), Batch("a", 1), staged(tmp_path / "s", table(9, **due)))
    found = jobs(tmp_path / "journal").values()
    assert {job.queue for job in found if job.due < job.inserted + 61 * 10**9} == {"queue-1"}


class Killed(BaseException):
    """The process dies here."""


def _dying(appender: Any, after: int) -> None:
    """Let an appender die after so many appends, without a word on the rest."""
    left = iter(range(after))

    def guard(work: Any) -> Any:
        def call(*args: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return work(*args)

        return call

    appender.append, appender.append_made = guard(appender.append), guard(appender.append_made)


class DyingStream(Stream):
    """A stream whose appender dies after so many appends."""

    def __init__(self, directory: Path, after: int) -> None:
        super().__init__(directory, WORKQ)
        self.after = after

    def open_appender(self, **options: Any) -> Any:
        appender = super().open_appender(**options)
        _dying(appender, self.after)
        return appender


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("app", ["query", ""])
@pytest.mark.parametrize("after", range(5))
def test_a_writer_that_dies_at_any_step_is_carried_on_without_gap_or_repeat(
    tmp_path: Path, app: str, after: int, keyed: bool
) -> None:
    def part(first: int) -> pa.RecordBatch:
        keys = {"key": pa.array([f"key {n}" for n in range(first, first + 40)])} if keyed else {}
        return table(40, first, **keys)

    directory, batch = tmp_path / "journal", Batch(app, 3, "" if app else "name")
    files = staged(tmp_path / "s", part(0), part(40), part(80))
    with pytest.raises(Killed):
        adopt(str(directory), batch, files, stream=DyingStream(directory, after))
    with Journal(directory, background=False) as journal:  # others work on meanwhile
        lease = journal.lease(queues=["queue-0", "queue-1", "queue-2"])
        worked = {lease.payload} if lease else set()
        if lease:
            journal.complete(lease.id, lease.token)
        journal.clean()
    adopt(str(directory), batch, files)
    found = jobs(directory)
    assert found.keys() == {b"job %d" % n for n in range(120)} - worked
    assert Stream(directory, WORKQ).segments()
    with Journal(directory, background=False) as journal:
        assert set(journal.engine.state.senders) == ({batch.application} if app else set())


def test_an_attempt_that_computed_its_rows_in_another_order_goes_on_with_the_first_files(
    tmp_path: Path,
) -> None:
    directory, batch, staging = tmp_path / "journal", Batch("query", 3), tmp_path / "staging"
    folder = batch.folder(staging)
    files = begin(staging, batch, staged(folder, table(60), table(60, 60)))
    with pytest.raises(Killed):
        adopt(str(directory), batch, files, stream=DyingStream(directory, 2))
    again = begin(staging, batch, staged(folder, table(70, 50), table(50)))
    assert again == files
    assert adopt(str(directory), batch, again) == Adopted(120, new=60, repeated=60)
    assert jobs(directory).keys() == {b"job %d" % n for n in range(120)}
    discard(staging, batch, all_of_app=True)
    assert not staging.exists()


def test_a_journal_with_a_writer_is_left_alone(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", background=False):
        files = staged(tmp_path / "s", table(1))
        with pytest.raises(Locked, match="has a writer already"):
            adopt(str(tmp_path / "journal"), Batch("a", 1), files, lock_seconds=0)
