"""Views `events` and `attempts`, without a session: one row a command, one row a lease."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from fastjournal import Journal
from fastjournal.errors import BadRequest, SettingError
from fastjournal.journal.language.codec import decode
from fastjournal.journal.language.commands import Put
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.jobs import shards
from fastjournal.spark.schema import (
    OLD_NAMES,
    VIEW_COLUMNS,
    WRITTEN,
    arrow_schema,
    made_columns,
    names_of,
    struct,
)
from fastjournal.spark.sink.encode import check_schema, payloads
from fastjournal.spark.source import life_stream
from fastjournal.spark.source.data_source import JournalReader
from fastjournal.spark.source.life_rows import life_batches
from fastjournal.spark.source.life_stream import LifeStreamReader
from fastjournal.spark.stream.reader import StreamSettings
from fastjournal.testing import ManualClock

T0 = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


@pytest.fixture
def journal(tmp_path: Path) -> str:
    """Ten jobs of two queues: five are done, two fail once, the rest waits."""
    clock = ManualClock(T0)
    with Journal(tmp_path / "j", segment_size=4096, clock=clock) as journal:
        for n in range(10):
            clock.advance(1)
            journal.put(b"v%d" % n, queue="mail" if n % 2 else "sms", key=b"k%d" % n)
        for n in range(7):
            clock.advance(1)
            job = journal.lease(queues=["mail", "sms"], worker="w")
            assert job is not None
            clock.advance(1)
            if n < 5:
                job.done()
            else:
                job.fail("no\nwell: broken", delay=60)
    return str(tmp_path / "j")


def told(path: str, view: str, count: int = 1, **more: object) -> list[dict[str, object]]:
    settings = replace(Settings((path,), view=view, shards=count), **more)  # type: ignore[arg-type]
    if not settings.columns:
        settings = replace(settings, columns=tuple(VIEW_COLUMNS[view][0]))
    batches = [
        one
        for shard in shards(settings)
        for one in made_columns(settings, partial(life_batches, shard))
    ]
    schema = arrow_schema(view, settings.columns)
    assert all(one.schema == schema for one in batches)
    return pa.Table.from_batches(batches, schema).to_pylist()  # type: ignore[no-any-return]


def test_every_command_is_an_event_and_every_lease_that_ended_an_attempt(journal: str) -> None:
    events = [one for one in told(journal, "events") if one["effect"] != "noted"]
    effects = Counter(one["effect"] for one in events)
    assert (effects["new"], effects["leased"], effects["done"], effects["retried"]) == (10, 7, 5, 2)
    assert Counter(one["queue"] for one in events if one["effect"] == "new") == {
        "mail": 5,
        "sms": 5,
    }
    attempts = told(journal, "attempts")
    assert Counter(one["outcome"] for one in attempts) == {"done": 5, "failed": 2}
    assert {one["run_ms"] for one in attempts} == {1000.0}
    assert {one["worker"] for one in attempts} == {"w"}


@pytest.mark.parametrize("view", ["events", "attempts"])
def test_shares_together_tell_the_same(journal: str, view: str) -> None:
    def words(rows: list[dict[str, object]]) -> list[str]:
        return sorted(map(str, rows))

    assert words(told(journal, view, 3)) == words(told(journal, view))


def test_what_is_told_is_bounded_by_time_queue_and_command(journal: str) -> None:
    half = T0 + 10 * SECOND + 1
    late = told(journal, "events", since=half)
    assert late and all(one["time_ns"] >= half for one in late)  # type: ignore[operator]
    assert {one["before"] for one in late if one["effect"] == "leased"} == {"WAITING"}
    mail = told(journal, "attempts", queues=frozenset({"mail"}))
    assert mail and {one["queue"] for one in mail} == {"mail"}
    early = told(journal, "events", until=T0 + 5 * SECOND + 1)
    assert sum(one["effect"] == "new" for one in early) == 5
    named = told(journal, "events", columns=("id", "_directory", "effect"))
    assert {one["_directory"] for one in named} == {journal}


def streamed(path: str, view: str, state: str = "", most: int = 6) -> list[dict[str, object]]:
    """All of it in batches of a few records, as Spark's planner and tasks would."""
    names = tuple(VIEW_COLUMNS[view][0])
    options = {"path": path, "view": view, "shards": "2", "maxRecordsPerTrigger": str(most)}
    settings = StreamSettings.parse({**options, **({"stateLocation": state} if state else {})})
    query = LifeStreamReader(struct(view, names), settings)
    start, found = query.initialOffset(), list[dict[str, object]]()
    while (end := query.latestOffset(start, query.getDefaultReadLimit())) != start:
        again = []
        for _ in range(2):  # a batch may be planned again
            again = [b for p in query.partitions(start, end) for b in query.read(p)]
        found += pa.Table.from_batches(again, arrow_schema(view, names)).to_pylist()
        query.commit(start)
        start = end
    return found


def in_order(rows: list[dict[str, object]]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize("view", ["events", "attempts"])
def test_a_stream_tells_batch_by_batch_what_a_read_tells_at_once(
    journal: str, tmp_path: Path, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = told(journal, view)
    assert in_order(streamed(journal, view)) == in_order(everything)
    walks = []
    monkeypatch.setattr(life_stream, "rows_before", lambda *a: walks.append(a))
    state = tmp_path / "state"
    assert in_order(streamed(journal, view, str(state))) == in_order(everything)
    assert len(walks) == 4, "only the first batch, planned twice, walks the log from its beginning"
    (folder,) = state.iterdir()
    assert len(list(folder.iterdir())) == 2, "states before the last batch but one are gone"


def test_what_a_job_is_put_with_has_the_same_name_in_every_view(journal: str) -> None:
    """And its id may be read as text."""
    shown = {"attempts": {"key", "queue", "id"}}
    for view in ("records", "jobs", "events", "attempts", "spool"):
        assert shown.get(view, set(WRITTEN)) <= VIEW_COLUMNS[view][0].keys()
        assert not OLD_NAMES.keys() & VIEW_COLUMNS[view][0].keys()
    names = {
        "jobs": (*WRITTEN, "id_text"),
        "events": (*WRITTEN, "id_text", "value"),
        "attempts": ("key", "queue", "id_text"),
        "records": (*WRITTEN, "id_text", "rank", "value"),
    }
    for view, columns in names.items():
        reader = JournalReader(struct(view, columns), Settings((journal,), view=view, shards=1))
        batches = [one for part in reader.partitions() for one in reader.read(part)]
        assert all(one.schema == arrow_schema(view, columns) for one in batches)
        rows = pa.Table.from_batches(batches).to_pylist()
        keyed = [one for one in rows if one["key"] == ("k8" if view == "jobs" else "k3")]
        assert keyed
        for one in keyed:
            assert len(bytes.fromhex(one["id_text"])) == 16
            assert one.get("id", bytes.fromhex(one["id_text"])).hex() == one["id_text"]
        assert {one["priority"] for one in keyed if one.get("priority") is not None} <= {100}
        assert {one["payload"] for one in keyed if one.get("payload")} <= {b"v3", b"v8"}
    assert all((one["rank"], one["value"]) == (one["priority"], one["payload"]) for one in keyed)


def test_names_of_before_are_read_with_a_warning_and_all_of_them_as_old(
    journal: str, caplog: pytest.LogCaptureFixture
) -> None:
    for view in ("records", "jobs", "events"):
        settings = Settings((journal,), view=view, columns=("old",), shards=1)
        names = names_of(settings)
        assert {"value", "rank"} <= set(names) and not {"payload", "priority", "ttl"} & set(names)
        assert "column value: its name is payload now" in caplog.text
        caplog.clear()
        reader = JournalReader(struct(view, names), settings)
        batches = [one for part in reader.partitions() for one in reader.read(part)]
        found = pa.Table.from_batches(batches, arrow_schema(view, names))
        now = told(journal, view) if view == "events" else read_all(journal, view)
        assert found["value"].to_pylist() == [one["payload"] for one in now]
        assert found["rank"].to_pylist() == [one["priority"] for one in now]
    assert "value" in names_of(Settings((journal,), view="spool", columns=("old",)))
    with pytest.raises(SettingError, match="attempts has no 'value'; it has id, "):
        names_of(Settings((journal,), view="attempts", columns=("value",)))


def read_all(path: str, view: str) -> list[dict[str, object]]:
    settings = Settings((path,), view=view, shards=1)
    reader = JournalReader(struct(view, names_of(settings)), settings)
    batches = [one for part in reader.partitions() for one in reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist()  # type: ignore[no-any-return]


def test_a_ttl_is_how_long_a_job_lives_once_it_is_due(tmp_path: Path) -> None:
    with Journal(tmp_path, clock=ManualClock(T0), background=False) as journal:
        journal.put(b"now", queue="q", ttl=60)
        journal.put(b"later", queue="q", ttl=60, delay=30)
        journal.put(b"never", queue="q", delay=30)
    wanted = {b"now": 60.0, b"later": 60.0, b"never": None}
    for view in ("records", "jobs", "events"):
        rows = [one for one in read_all(str(tmp_path), view) if one["payload"]]
        assert {one["payload"]: one["ttl"] for one in rows} == wanted
    due, expires = (pa.array([at], pa.timestamp("us", tz="UTC")) for at in (2_000_000, 1_000_000))
    batch = pa.RecordBatch.from_arrays([expires, due, due], names=["expires", "due", "inserted"])
    (late,) = made_columns(Settings(("",), columns=("ttl",)), lambda own: iter([batch]))
    assert late["ttl"].to_pylist() == [1e-6], "what is written with it is gone before it is due"


def test_old_names_are_written_with_a_warning_and_ids_as_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schema = StructType().add("value", BinaryType()).add("rank", IntegerType())
    check_schema(schema.add("queue", StringType()).add("id", StringType()))
    assert "its name is payload now" in caplog.text and "priority now" in caplog.text
    batch = pa.RecordBatch.from_pydict(
        {"value": [b"x"], "rank": [7], "queue": ["q"], "id": ["00112233-44556677-8899aabbccddeeff"]}
    )
    made, queues, keyed, own_ids = payloads(batch, T0, b"")
    put = decode(made[0].as_py())
    assert isinstance(put, Put) and (put.value, put.rank, queues) == (b"x", 7, {b"q"})
    assert (keyed, own_ids) == (False, True)
    assert put.id.hex() == "00112233445566778899aabbccddeeff"
    with pytest.raises(BadRequest, match="32 hexadecimal digits"):
        payloads(batch.set_column(3, "id", pa.array(["no id"])), T0, b"")
