"""Views `events` and `attempts`, without a session: one row a command, one row a lease."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from fastjournal import Journal
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.by_share import shards
from fastjournal.spark.schema import VIEW_COLUMNS, arrow_schema
from fastjournal.spark.source.life_rows import life_batches
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
    batches = [one for shard in shards(settings) for one in life_batches(shard, settings)]
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
