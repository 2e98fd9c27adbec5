"""The report: its figures against SQL over the export, its page against what a browser needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import duckdb
import numpy as np
import pytest

from fastjournal.errors import NotFound
from fastjournal.journal.journal import Journal
from fastjournal.keys import domain
from fastjournal.spark.lake.exporter import export
from fastjournal.spark.report.svg import bytes_text, count_text, length_text, lines
from fastjournal.spark.report.tally import BINS, Window, bins_of, percentile
from fastjournal.spark.report.write import Report, report
from fastjournal.spark.storage.segments import journal_segments
from fastjournal.testing import ManualClock
from spark_traffic import NOON, SECOND, Told, traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END = NOON + 3 * 3600 * SECOND


def inline(tasks: Sequence[Callable[[], Sequence[Any]]]) -> list[Any]:
    """Carry tasks out here, one after the other."""
    return [answer for task in tasks for answer in task()]


class Lake:
    """Three hours of traffic, its report, and its export for questions in SQL."""

    def __init__(self, root: Path) -> None:
        self.path = root / "jobs"
        self.told: Told = traffic(self.path, puts=2500)
        self.report: Report = report(inline, self.path, shares=3, target=30, targets={"mail": 5})
        self.figures = self.report.figures
        export(inline, self.path, root / "lake", shares=2)
        self._root = root / "lake"

    def sql(self, question: str) -> list[tuple[Any, ...]]:
        for name in ("events", "attempts", "jobs"):
            files = f"read_parquet('{self._root}/{name}/**/*.parquet', hive_partitioning=true)"
            question = re.sub(rf"\b{name}\b", files, question)
        return duckdb.sql(question).fetchall()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("report"))


def test_totals_are_what_sql_finds(lake: Lake) -> None:
    totals = lake.figures["totals"]
    effects = dict(lake.sql("select effect, count(*) from events group by all"))
    assert totals["asked"] == effects["new"] + effects["merged"] == lake.told.puts
    assert totals["merged"] == effects["merged"] == lake.told.merged
    assert totals["merge_ratio"] == pytest.approx(lake.told.puts / effects["new"], abs=1e-6)
    assert totals["leases"] == effects["leased"] == lake.told.leases
    assert totals["dead"] == effects["dead"]
    outcomes = dict(lake.sql("select outcome, count(*) from attempts group by all"))
    assert (totals["done"], totals["failed_attempts"]) == (outcomes["done"], outcomes["failed"])
    assert (totals["timed_out"], totals["released"]) == (
        outcomes["timed_out"],
        outcomes["released"],
    )
    states = dict(lake.sql("select state, count(*) from jobs group by all"))
    for word in ("waiting", "processing", "completed", "failed"):
        assert totals[f"{word}_now"] == states.get(word.upper(), 0)
    more = lake.sql("select avg((attempt > 1)::int) from attempts where outcome = 'done'")
    assert totals["retried_jobs"] == pytest.approx(more[0][0], abs=1e-6)


def test_percentiles_are_those_of_sql_to_one_per_cent(lake: Lake) -> None:
    for word in ("wait", "run"):
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            question = f"select quantile_disc({word}_ms, {share}) / 1000 from attempts"
            found = lake.sql(question)[0][0]
            assert lake.figures["totals"][f"{word}_s"][name] == pytest.approx(found, 0.011, 2e-6)
    for queue in lake.figures["queues"]:
        where = f"from attempts where queue = '{queue['queue']}'"
        found = lake.sql(f"select quantile_disc(run_ms, 0.95) / 1000 {where}")[0][0]
        assert queue["run_s"]["p95"] == pytest.approx(found, 0.011)


def test_series_are_what_sql_finds(lake: Lake) -> None:
    series, step = lake.figures["series"], lake.figures["step_s"]
    bucket = f"cast(floor((time_ns - {NOON}) / {step * SECOND}) as bigint)"
    for name, effects in (
        ("asked", "'new', 'merged', 'revived'"),
        ("leased", "'leased'"),
        ("done", "'done'"),
        ("retried", "'retried'"),
        ("timed_out", "'timed_out'"),
        ("dead", "'dead'"),
    ):
        found = dict(
            lake.sql(
                f"select {bucket}, count(*) from events where effect in ({effects}) group by 1"
            )
        )
        assert series[name] == [found.get(n, 0) for n in range(len(series[name]))], name
    for name, state in (("waiting", "WAITING"), ("processing", "PROCESSING"), ("failed", "FAILED")):
        changes = dict(
            lake.sql(
                f"select {bucket}, sum((after is not distinct from '{state}')::int"
                f" - (before is not distinct from '{state}')::int) from events group by 1"
            )
        )
        levels, level = [], 0
        for n in range(len(series[name])):
            level += changes.get(n, 0)
            levels.append(level)
        assert series[name] == levels, name
    written = dict(lake.sql(f"select {bucket}, count(distinct time_ns) from events group by 1"))
    assert series["records"] == [written.get(n, 0) for n in range(len(series["records"]))]


def test_the_table_of_queues_is_what_sql_finds(lake: Lake) -> None:
    found = {
        row[0]: row[1:]
        for row in lake.sql(
            "select queue, count(*), count(*) filter (outcome = 'done'),"
            " count(*) filter (outcome = 'timed_out'),"
            " avg((wait_ms <= if(queue = 'mail', 5000, 30000))::int) from attempts group by 1"
        )
    }
    for one in lake.figures["queues"]:
        attempts, done, lost, within = found[one["queue"]]
        assert (one["attempts"], one["done"], one["timed_out"]) == (attempts, done, lost)
        assert one["within_target"] == pytest.approx(within, abs=1e-5)
        assert one["asked"] == lake.told.by_queue[one["queue"]]
    assert {one["target_s"] for one in lake.figures["queues"]} == {30.0, 5.0}


def test_dead_rows_hot_keys_domains_and_workers_are_what_sql_finds(lake: Lake) -> None:
    dead = lake.sql(
        "select queue, coalesce(decode(result), ''), count(*) from events"
        " where effect = 'dead' group by all"
    )
    assert sorted((d["queue"], d["text"], d["count"]) for d in lake.figures["dead"]) == sorted(dead)
    keys = lake.sql(
        "select queue, key, count(*) n from events where effect in ('new', 'merged')"
        " and key is not null group by all order by n desc, queue, key limit 20"
    )
    assert [(k["queue"], k["key"], k["asked"]) for k in lake.figures["hot_keys"]] == keys
    counts: dict[str, int] = {}
    for key, count in lake.sql(
        "select key, count(*) from events where effect in ('new', 'merged')"
        " and key is not null group by all"
    ):
        name = domain(key.encode()).decode()
        counts[name] = counts.get(name, 0) + count
    assert {d["domain"]: d["asked"] for d in lake.figures["hot_domains"]} == counts
    workers = lake.sql(
        "select worker, count(*), count(*) filter (outcome = 'timed_out') from attempts group by 1"
    )
    assert sorted((w["worker"], w["attempts"], w["lost"]) for w in lake.figures["workers"]) == (
        sorted(workers)
    )


def test_the_log_grows_by_its_bytes_and_cleaning_would_free_some(lake: Lake) -> None:
    log = lake.figures["log"]
    size = sum(piece.size for piece in journal_segments(lake.path))
    assert log["bytes"] == size
    assert log["written_bytes"] == size - 8 * log["segments"]
    assert sum(lake.figures["series"]["log_bytes"]) == log["written_bytes"]
    assert 0 < log["after_cleaning"] < size
    unasked = report(inline, lake.path, cleaning=False).figures["log"]
    assert unasked["after_cleaning"] is None


def test_a_window_counts_only_its_time_and_knows_the_backlog_before_it(lake: Lake) -> None:
    since, until = NOON + 5400 * SECOND, NOON + 7200 * SECOND
    told = report(inline, lake.path, since=since, until=until, shares=2).figures
    asked = lake.sql(
        "select count(*) from events where effect in ('new', 'merged')"
        f" and time_ns >= {since} and time_ns < {until}"
    )[0][0]
    assert told["totals"]["asked"] == asked
    level = lake.sql(
        "select sum((after is not distinct from 'FAILED')::int"
        f" - (before is not distinct from 'FAILED')::int) from events where time_ns < {until}"
    )[0][0]
    assert told["totals"]["failed_now"] == level > 0
    assert told["from"] == "2026-01-31T13:30:00Z"


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.foreign: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.foreign += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "br", "line", "circle", "path", "rect") or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_nobody_for_anything(lake: Lake) -> None:
    html = lake.report.html()
    seen = _Page()
    seen.feed(html)
    assert not seen.open and not seen.foreign
    assert not {"script", "link", "img", "iframe"} & seen.seen
    assert "url(" not in html and "@import" not in html
    assert "prefers-color-scheme: dark" in html and "width=device-width" in html
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawings) == 6
    for one in drawings:
        ET.fromstring(one)
    for word in ("Throughput", "Backlog", "Wait", "Run", "Trouble", "Log", "Queues", "Dead rows",
                 "Hot keys", "Hot domains", "Lease losses"):  # fmt: skip
        assert f"<h2>{word}</h2>" in html
    assert len(html) < 400_000
    assert json.loads(lake.report.json()) == lake.figures


def test_what_producers_wrote_is_escaped(tmp_path: Path) -> None:
    clock = ManualClock(NOON)
    bad = "<script>alert(1)</script>"
    with Journal(tmp_path / "j", clock=clock, background=False) as journal:
        journal.configure(bad, max_fails=1)
        journal.put(b"x", queue=bad, key=bad + "&")
        clock.advance(3)
        job = journal.lease(bad, worker=bad)
        assert job is not None
        job.fail(bad.encode())
    told = report(inline, tmp_path / "j")
    assert told.figures["dead"] == [{"queue": bad, "reason": "failed", "text": bad, "count": 1}]
    assert "<script" not in told.html() and "&lt;script&gt;alert(1)" in told.html()


def test_an_empty_journal_says_so_and_one_record_is_enough(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        journal.put(b"x", queue="q")
        journal.sync()
        told = report(inline, tmp_path / "j")
    assert told.figures["totals"]["asked"] == 1
    assert told.figures["totals"]["wait_s"]["p50"] is None
    assert "None died." in told.html()
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no record"):
        report(inline, tmp_path / "empty")


def test_spark_gives_the_same_figures(spark: SparkSession, lake: Lake) -> None:
    told = report(spark, lake.path, shares=2, target=30, targets={"mail": 5})
    assert told.figures == lake.figures


def test_windows_are_round_and_never_too_many() -> None:
    for seconds in (0, 1, 59, 3600, 86_400, 40 * 86_400, 2000 * 86_400):
        window = Window.over(NOON + 7, NOON + 7 + seconds * SECOND)
        assert 1 <= window.count <= 120
        assert window.start <= NOON + 7 < window.start + window.step
        assert window.start + window.count * window.step > NOON + 7 + seconds * SECOND


def test_a_percentile_is_the_length_so_many_are_not_above() -> None:
    lengths = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) * SECOND
    counts = np.bincount(bins_of(lengths), minlength=BINS)
    for share, value in ((0.1, 1), (0.5, 5), (0.95, 10), (1.0, 10)):
        assert percentile(counts, share) == pytest.approx(value, 0.011)
    assert percentile(np.zeros(BINS), 0.5) is None


def test_numbers_are_written_for_people() -> None:
    assert [count_text(n) for n in (0, 7, 999, 1200, 3_400_000)] == [
        "0",
        "7",
        "999",
        "1.2k",
        "3.4M",
    ]
    assert [length_text(s) for s in (0, 2e-5, 0.012, 1, 90, 300, 7200, 200_000)] == [
        "0", "20 µs", "12 ms", "1 s", "90 s", "5 min", "2 h", "2.31 d"
    ]  # fmt: skip
    assert [bytes_text(b) for b in (12, 1500, 2_500_000)] == ["12 B", "1.5 kB", "2.5 MB"]


def test_a_line_has_gaps_where_nothing_is_known() -> None:
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    times = [(start + timedelta(minutes=n)).isoformat() for n in range(4)]
    drawing = lines("x", times, {"a": [1.0, None, 2.0, 3.0]})
    path = re.search(r'class="line s0" d="([^"]*)"', drawing)
    assert path is not None and path.group(1).count("M") == 2 and "nan" not in drawing
    assert drawing.count("<circle") == 1


def test_a_table_exports_and_reports_itself(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    from fastjournal.spark import JournalTable

    table = JournalTable.for_path(spark, lake.path)
    assert table.export(tmp_path, tables=["attempts"]).rows["attempts"] > 0
    assert table.report(cleaning=False).figures["totals"] == lake.figures["totals"]
