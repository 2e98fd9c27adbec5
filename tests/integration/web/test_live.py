"""Figures as they change: one look for everybody, rates, streams that end."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard import Visitor, beat
from fastjournal import Journal
from fastjournal.daemon.auth import add_token, remove_token
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.web.figures import MAX_QUEUES, Pulse, rest_after


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", settings={"web": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture
def journal(daemon: LocalDaemon) -> Journal:
    return daemon.server.default.journal


def pulse_of(daemon: LocalDaemon) -> Pulse:
    dashboard = daemon.server.dashboard
    assert dashboard is not None
    return dashboard.backstage.pulses["default"]


class Stream:
    """An EventSource."""

    def __init__(self, visitor: Visitor, path: str = "/j/default/live") -> None:
        self._connection = visitor.connect()
        cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
        self._connection.request("GET", path, headers={"Cookie": cookie})
        self.answer = self._connection.getresponse()

    def next(self) -> dict[str, Any] | None:
        """The next pulse; None at the end."""
        while line := self.answer.readline():
            if line.startswith(b"data: "):
                return json.loads(line[6:])  # type: ignore[no-any-return]
        return None

    def close(self) -> None:
        self._connection.close()


def test_a_stream_tells_totals_rates_and_the_queues_that_changed(
    daemon: LocalDaemon, journal: Journal
) -> None:
    journal.put(b"x", queue="still")
    beat(daemon)
    stream = Stream(Visitor(daemon))
    assert stream.answer.getheader("content-type", "").startswith("text/event-stream")
    for number in range(10):
        journal.put(b"x", queue="mail", key=f"k{number % 5}")
    beat(daemon)
    told = stream.next()
    while told is not None and not told["queues"]:
        told = stream.next()
    assert told is not None
    assert told["jobs"]["ready"] == 6
    assert (told["counts"]["puts"], told["counts"]["merges"]) == (11, 5)
    assert told["merged"] == pytest.approx(5 / 11)
    assert [queue["name"] for queue in told["queues"]] == ["mail"]
    assert sorted(told["names"]) == ["mail", "still"]
    assert told["log"]["failure"] == ""
    assert told["plot"]["jobs_ready"] == 6
    stream.close()


def test_history_has_a_row_for_each_look_and_rates_from_the_counters(
    daemon: LocalDaemon, journal: Journal
) -> None:
    for _ in range(3):
        journal.put(b"x", queue="mail")
        beat(daemon)
    told = json.loads(Visitor(daemon).get("/j/default/history.json").body)
    assert len({len(column) for column in told.values()}) == 1
    assert len(told["at"]) >= 3
    assert told["at"] == sorted(told["at"])
    assert sum(rate > 0 for rate in told["puts"]) >= 2
    assert told["jobs_ready"][-1] == 3


def test_a_queue_that_is_gone_is_no_longer_named(daemon: LocalDaemon, journal: Journal) -> None:
    row_id = journal.put(b"x", queue="short").id
    beat(daemon)
    assert json.loads(pulse_of(daemon).changes_since(0))["names"] == ["short"]
    journal.delete(row_id)
    beat(daemon)
    assert json.loads(pulse_of(daemon).changes_since(0))["names"] == []


def test_of_very_many_queues_the_fullest_are_told(daemon: LocalDaemon, journal: Journal) -> None:
    journal.put_many({"payload": b"", "queue": f"q{n:04}"} for n in range(1500))
    journal.put_many({"payload": b"", "queue": "q1499"} for _ in range(5))
    beat(daemon)
    pulse = pulse_of(daemon)
    assert len(pulse.queues) == MAX_QUEUES
    assert "q1499" in {queue.name for queue in pulse.queues}
    assert pulse.left_out == 1300
    assert pulse.figures["jobs"]["ready"] == 1505
    page = Visitor(daemon).get("/j/default/").text
    assert "1,300</span> others are not" in page


def test_many_viewers_share_one_look(daemon: LocalDaemon, journal: Journal) -> None:
    pulse = pulse_of(daemon)
    streams = [Stream(Visitor(daemon)) for _ in range(20)]
    before = pulse.number
    beat(daemon)
    told = [stream.next() for stream in streams]
    assert all(one is not None for one in told)
    assert pulse.number - before <= 3
    for stream in streams:
        stream.close()


def test_a_slow_look_is_followed_by_a_long_rest() -> None:
    """Of the time at most about a hundredth is spent, however many queues there are."""
    assert rest_after(0.0) == 1.0
    assert rest_after(0.002) == pytest.approx(0.998)
    assert rest_after(0.05) == pytest.approx(5.0)
    assert rest_after(2.0) == pytest.approx(15.0)


def test_streams_end_when_the_daemon_stops(tmp_path: Path) -> None:
    daemon = LocalDaemon(tmp_path / "d", settings={"web": "127.0.0.1:0"}).start()
    streams = [Stream(Visitor(daemon)) for _ in range(3)]
    began = time.monotonic()
    daemon.stop()
    assert time.monotonic() - began < 5
    for stream in streams:
        while stream.next() is not None:
            pass


def test_a_stream_ends_with_its_session(tmp_path: Path) -> None:
    token = add_token(tmp_path / "tokens", "boss", ["admin"], [])
    settings = {"web": "127.0.0.1:0", "tokens": str(tmp_path / "tokens")}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        visitor = Visitor(daemon)
        visitor.log_in(token)
        stream = Stream(visitor)
        assert stream.next() is not None
        remove_token(tmp_path / "tokens", "boss")
        daemon.call(lambda: daemon.server.reload(daemon.settings))
        beat(daemon)
        while stream.next() is not None:
            pass


def test_a_viewer_that_reads_nothing_does_not_hold_up_the_others(
    daemon: LocalDaemon, journal: Journal
) -> None:
    host, _, port = daemon.server.addresses["web"][0].rpartition(":")
    lazy = socket.create_connection((host, int(port)))
    lazy.sendall(b"GET /j/default/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    journal.put_many({"payload": b"", "queue": f"q{n:04}"} for n in range(300))
    stream = Stream(Visitor(daemon))
    for number in range(200):
        journal.put(b"", queue=f"q{number:04}")
        beat(daemon)
    assert stream.next() is not None
    stream.close()
    lazy.close()


def test_work_goes_on_while_pages_are_read(daemon: LocalDaemon, journal: Journal) -> None:
    """Pages, searches and lives beside puts and leases: nothing is lost, nothing fails."""
    failed: list[object] = []
    done = threading.Event()

    def browse() -> None:
        visitor = Visitor(daemon)
        while not done.is_set():
            for path in ("/", "/jobs?q=k*", "/jobs?state=ready", "/dead", "/health"):
                answer = visitor.get(f"/j/default{path}")
                if answer.status != 200:
                    failed.append(answer)

    threads = [threading.Thread(target=browse) for _ in range(3)]
    for thread in threads:
        thread.start()
    completed = 0
    with daemon.connect() as client:
        for number in range(300):
            client.put(b"x", queue="mail", key=f"k{number}")
            leased = client.lease("mail")
            assert leased is not None
            leased.done()
            completed += 1
    done.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert completed == 300
    assert journal.status().rows == 0
