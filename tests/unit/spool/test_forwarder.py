"""From a spool to a journal: in order, in batches, each job once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.clock import SECOND
from fastjournal.errors import (
    JournalError,
    LockTimeout,
    NotFound,
    ProtocolError,
    Unauthorized,
    Unavailable,
)
from fastjournal.spool.forwarder import ForwardedSpool, Forwarder
from fastjournal.spool.frames import HOUR, frame, name_of
from fastjournal.spool.reader import read_spool
from fastjournal.spool.service import Runner, SpoolCollector, pause
from fastjournal.spool.watch import InotifyWatch, PingWatch, watch
from fastjournal.spool.writer import Spool
from fastjournal.testing import ManualClock
from fastjournal.wire.fj.bulk import Forwarded, read_forward
from fastjournal.wire.fj.functions import Function
from fastjournal.wire.fj.requests import encode_request
from spooling import NOW, JournalDestination, SpoolMemory, drain, payloads, rows

T = NOW // HOUR


@pytest.fixture
def target(journal: Journal) -> JournalDestination:
    return JournalDestination(journal)


def forwarder_of(path: Path, clock: ManualClock, **options: int) -> Forwarder:
    return Forwarder(ForwardedSpool(path), clock=clock, **options)


def values(journal: Journal) -> list[bytes]:
    return [row.value for row in rows(journal)]


def put(path: Path, clock: ManualClock, *payloads: bytes) -> None:
    with Spool(path, clock=clock) as spool:
        for payload in payloads:
            spool.put(payload, queue="q")


def test_jobs_arrive_in_order_and_are_marked_done(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    """FJ-M2-1, FJ-M2-3."""
    wanted = [b"%d" % number for number in range(50)]
    put(tmp_path, clock, *wanted)
    forwarder = forwarder_of(tmp_path, clock, batch_jobs=7)
    drain(forwarder, target)
    assert values(journal) == wanted
    assert {entry.state for entry in read_spool(tmp_path)} == {"done"}
    assert len(target.sent) == 8
    assert forwarder.figures.forwarded == 50


def test_the_id_of_a_job_tells_where_it_was_put(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    put(tmp_path, clock, b"a", b"b")
    forwarded = ForwardedSpool(tmp_path)
    drain(forwarder_of(tmp_path, clock), target)
    ends = [entry.offset + entry.size for entry in read_spool(tmp_path)]
    ids = [row.id for row in rows(journal)]
    assert [job_id[:8] for job_id in ids] == [forwarded.tag] * 2
    assert [int.from_bytes(job_id[9:12], "big") for job_id in ids] == [T, T]
    assert [int.from_bytes(job_id[12:], "big") for job_id in ids] == ends


def test_nothing_is_marked_before_its_answer(
    tmp_path: Path, clock: ManualClock, target: JournalDestination
) -> None:
    """FJ-IMP-3, FJ-SAFE-1."""
    put(tmp_path, clock, b"a", b"b", b"c")
    forwarder = forwarder_of(tmp_path, clock, batch_jobs=1, window=2)
    assert forwarder.send(target) == 2
    assert {entry.state for entry in read_spool(tmp_path)} == {"ready"}
    forwarder.receive(target, 0)
    assert [entry.state for entry in read_spool(tmp_path)] == ["done", "done", "ready"]


def test_no_more_batches_are_under_way_than_the_window_allows(
    tmp_path: Path, clock: ManualClock, target: JournalDestination
) -> None:
    put(tmp_path, clock, *[b"x"] * 20)
    forwarder = forwarder_of(tmp_path, clock, batch_jobs=2, window=3)
    assert forwarder.send(target) == 3
    assert forwarder.send(target) == 0
    assert forwarder.in_flight == 3
    drain(forwarder, target)
    assert forwarder.figures.forwarded == 20


def test_what_is_sent_again_changes_nothing(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    """FJ-M2-4, F18: the answers were lost, then the marks too."""
    put(tmp_path, clock, *[b"%d" % number for number in range(10)])
    forwarder = forwarder_of(tmp_path, clock, batch_jobs=3)
    forwarder.send(target)
    target.close()
    forwarder.reset()
    drain(forwarder, target)
    assert values(journal) == [b"%d" % number for number in range(10)]
    assert forwarder.figures.repeated == 10
    path = tmp_path / name_of(T)
    path.write_bytes(path.read_bytes().replace(b"fjD\0", b"fjR\0"))
    digest = journal.engine.state.digest()
    drain(forwarder_of(tmp_path, clock), target)
    assert journal.engine.state.digest() == digest


def test_a_job_that_was_worked_on_and_is_gone_does_not_come_back(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    put(tmp_path, clock, b"a")
    forwarder = forwarder_of(tmp_path, clock)
    forwarder.send(target)
    leased = journal.lease("q")
    assert leased is not None
    leased.done()
    target.close()
    forwarder.reset()
    drain(forwarder, target)
    assert journal.lease("q") is None


def test_a_restarted_forwarder_skips_what_is_done(
    tmp_path: Path, clock: ManualClock, target: JournalDestination
) -> None:
    """FJ-M2-4."""
    put(tmp_path, clock, b"a", b"b")
    drain(forwarder_of(tmp_path, clock), target)
    put(tmp_path, clock, b"c")
    target.sent.clear()
    drain(forwarder_of(tmp_path, clock), target)
    assert [len(read_forward(value, 0, len(value), NOW).jobs) for _, value in target.sent] == [1]


def test_repeated_keys_merge_by_the_rule(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"old", key="k", queue="q", priority=50)
        clock.advance(1)
        spool.put(b"new", key="k", queue="q", priority=100)
    journal.put(b"other", key="k", queue="q", timestamp=(NOW // SECOND) - 10)
    drain(forwarder_of(tmp_path, clock), target)
    (row,) = rows(journal)
    assert (row.value, row.rank) == (b"new", 50)
    assert journal.engine.state.senders[target.sent[0][0]][0] > 8


def test_a_newer_direct_put_is_not_undone_by_an_older_spooled_one(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"spooled", key="k", queue="q")
    clock.advance(60)
    journal.put(b"direct", key="k", queue="q")
    drain(forwarder_of(tmp_path, clock), target)
    assert values(journal) == [b"direct"]


def test_a_producer_whose_clock_is_ahead_is_not_refused(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    ahead = ManualClock(NOW + 3600 * SECOND)
    with Spool(tmp_path, clock=ahead) as spool:
        spool.put(b"a", key="k", queue="q")
        spool.put(b"b", key="k", queue="q")
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    assert values(journal) == [b"b"]
    assert forwarder.figures.refused == 0


def test_a_draining_queue_takes_what_was_promised(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    journal.configure("q", draining=True)
    put(tmp_path, clock, b"a")
    drain(forwarder_of(tmp_path, clock), target)
    assert values(journal) == [b"a"]


def test_delays_and_lives_count_from_the_put_not_from_the_arrival(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"a", queue="q", delay=100, ttl=1000)
    clock.advance(50)
    drain(forwarder_of(tmp_path, clock), target)
    (row,) = rows(journal)
    assert (row.due, row.expires) == (NOW + 100 * SECOND, NOW + 1100 * SECOND)


def test_refused_and_damaged_ones_are_set_aside_and_do_not_hold_up_the_rest(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    journal.put(b"taken", key="k", queue="q")
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"a", queue="q")
        spool.put(b"unique", key="k", queue="q", mode="unique")
        spool.put(b"flipped", queue="q")
        spool.put(b"expired", queue="q", ttl=1)
        spool.put(b"b", queue="q")
    path = tmp_path / name_of(T)
    data = path.read_bytes().replace(b"flipped", b"flippEd")
    data += frame(encode_request(Function.PING, 1))
    path.write_bytes(data)
    put(tmp_path, clock, b"c")
    clock.advance(10)
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    assert values(journal) == [b"taken", b"a", b"b", b"c"]
    report = (tmp_path / "quarantine" / "report.jsonl").read_text().splitlines()
    reasons = [json.loads(line)["reason"] for line in report]
    assert [reason.partition(" ")[0] for reason in reasons] == ["no", "the", "EXISTS", "RANGE"]
    copies = sorted(p.read_bytes() for p in (tmp_path / "quarantine").glob("*.bad"))
    assert len(copies) == 4
    assert any(b"flippEd" in copy for copy in copies)
    assert (forwarder.figures.refused, forwarder.figures.damaged) == (3, 1)
    again = forwarder_of(tmp_path, clock)
    drain(again, target)
    assert (tmp_path / "quarantine" / "report.jsonl").read_text().splitlines() == report
    assert again.figures.damaged == 0
    assert [entry.state for entry in read_spool(tmp_path)].count("damaged") == 1


def test_a_torn_frame_in_the_newest_file_is_left_until_something_follows(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    put(tmp_path, clock, b"a", b"b")
    path = tmp_path / name_of(T)
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    clock.advance(100)
    drain(forwarder, target)
    assert values(journal) == [b"a"]
    assert not (tmp_path / "quarantine").exists()
    put(tmp_path, clock, b"c")
    drain(forwarder, target)
    assert values(journal) == [b"a", b"c"]
    assert len(list((tmp_path / "quarantine").glob("*.bad"))) == 1


def test_newer_files_wait_for_a_frame_that_may_be_on_its_way(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    """The order of a producer is kept over the change of the hour."""
    put(tmp_path, clock, b"a", b"b")
    path = tmp_path / name_of(T)
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    clock.advance(3600)
    put(tmp_path, clock, b"c")
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    assert values(journal) == [b"a"]
    path.write_bytes(path.read_bytes() + data[-5:])
    drain(forwarder, target)
    assert values(journal) == [b"a", b"b", b"c"]


def test_a_job_put_into_an_older_file_late_is_forwarded_too(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    """Each file has a mark of its own: nothing is taken for a repeat. It is as old as its put."""
    late = Spool(tmp_path, clock=ManualClock(NOW))
    late.put(b"a", queue="q")
    clock.advance(3600)
    put(tmp_path, clock, b"b")
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    late.put(b"c", queue="q")
    drain(forwarder, target)
    assert values(journal) == [b"a", b"c", b"b"]


def test_finished_files_go_when_they_are_older_than_the_last_hour(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    """FJ-M2-6."""
    put(tmp_path, clock, b"a")
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    clock.advance(3600)
    drain(forwarder, target)
    assert (tmp_path / name_of(T)).exists()
    assert len(journal.engine.state.senders) == 1
    clock.advance(3600)
    drain(forwarder, target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["spool.boot", "spool.id"]
    assert journal.engine.state.senders == {}
    assert values(journal) == [b"a"]


def test_a_large_file_goes_as_soon_as_there_is_a_newer_one(
    tmp_path: Path,
    clock: ManualClock,
    target: JournalDestination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fastjournal.spool import forwarder as module

    monkeypatch.setattr(module, "LARGE", 1000)
    put(tmp_path, clock, b"x" * 1000)
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    assert (tmp_path / name_of(T)).exists()
    clock.advance(3600)
    put(tmp_path, clock, b"y")
    drain(forwarder, target)
    assert [path.name for path in tmp_path.glob("*.fj*")] == [name_of(T + 1)]


def test_more_files_than_may_be_open_are_forwarded_in_turns(
    tmp_path: Path,
    clock: ManualClock,
    target: JournalDestination,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fastjournal.spool import forwarder as module

    monkeypatch.setattr(module, "MAX_FILES", 3)
    wanted = []
    for hour in range(10):
        put(tmp_path, clock, b"%d" % hour)
        wanted.append(b"%d" % hour)
        clock.advance(3600)
    clock.advance(7200)
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    assert values(journal) == wanted
    assert list(tmp_path.glob("*.fj*")) == []


def test_a_file_stays_while_a_producer_has_it_open(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    idle = Spool(tmp_path, clock=ManualClock(NOW))
    idle.put(b"a", queue="q")
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    clock.advance(5 * 3600)
    drain(forwarder, target)
    idle.put(b"b", queue="q")
    drain(forwarder, target)
    assert values(journal) == [b"a", b"b"]
    idle.close()
    drain(forwarder, target)
    assert not (tmp_path / name_of(T)).exists()


def test_a_file_of_the_same_hour_that_comes_again_is_forwarded(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    """FJ-M2-6: an append recreates it. Its places were used before, by jobs that still wait."""
    put(tmp_path, clock, b"a")
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    clock.advance(2 * 3600)
    drain(forwarder, target)
    put(tmp_path, ManualClock(NOW), b"b")
    drain(forwarder, target)
    assert values(journal) == [b"a", b"b"]


def test_a_day_without_a_forwarder_loses_nothing_and_leaves_nothing(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    """FJ-M2-7."""
    wanted = []
    with Spool(tmp_path, clock=clock) as spool:
        for minute in range(24 * 60):
            spool.put(b"%d" % minute, queue="q")
            wanted.append(b"%d" % minute)
            clock.advance(60)
    assert len(list(tmp_path.glob("*.fjq"))) == 25
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    assert values(journal) == wanted
    clock.advance(2 * 3600)
    drain(forwarder, target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["spool.boot", "spool.id"]
    assert journal.engine.state.senders == {}


def test_the_torn_end_of_an_old_file_is_set_aside(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    put(tmp_path, clock, b"a", b"b")
    path = tmp_path / name_of(T)
    path.write_bytes(path.read_bytes()[:-3])
    clock.advance(3 * 3600)
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    clock.advance(2)
    drain(forwarder, target)
    assert values(journal) == [b"a"]
    assert not path.exists()
    assert len(list((tmp_path / "quarantine").glob("*.bad"))) == 1


def test_what_comes_while_a_file_is_about_to_go_is_forwarded(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    late = ManualClock(NOW)
    put(tmp_path, late, b"a")
    clock.advance(3 * 3600)
    forwarder = forwarder_of(tmp_path, clock)
    forwarder.send(target)
    forwarder.receive(target, 0)
    put(tmp_path, late, b"b")
    assert forwarder.retire(target) == 0
    drain(forwarder, target)
    assert values(journal) == [b"a", b"b"]
    assert not (tmp_path / name_of(T)).exists()


def test_an_answer_that_falls_short_is_a_fault(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, clock, b"a")
    forwarder = forwarder_of(tmp_path, clock)
    forwarder.send(target)
    monkeypatch.setattr(target, "receive", lambda seconds: [Forwarded(9)])
    with pytest.raises(ProtocolError):
        forwarder.receive(target, 0)
    assert {entry.state for entry in read_spool(tmp_path)} == {"ready"}


def test_the_backlog_and_its_age_are_told(
    tmp_path: Path, clock: ManualClock, target: JournalDestination
) -> None:
    put(tmp_path, clock, b"a", b"b")
    clock.advance(30)
    forwarder = forwarder_of(tmp_path, clock, batch_jobs=1, window=1)
    forwarder.send(target)
    figures = forwarder.measure()
    assert figures.backlog_bytes == (tmp_path / name_of(T)).stat().st_size - 8
    assert figures.oldest == NOW
    drain(forwarder, target)
    assert (forwarder.measure().backlog_bytes, forwarder.measure().oldest) == (0, 0)


def test_a_spool_has_one_forwarder(tmp_path: Path) -> None:
    one, two = ForwardedSpool(tmp_path), ForwardedSpool(tmp_path)
    one.lock()
    with pytest.raises(LockTimeout):
        two.lock()
    one.close()
    two.lock()


def test_pauses_grow_to_a_minute_and_are_jittered() -> None:
    chance = random.Random(1)
    for failures in range(1, 40):
        longest = min(0.1 * 2 ** (failures - 1), 60)
        seconds = {pause(failures, chance) for _ in range(20)}
        assert longest / 2 <= min(seconds) < max(seconds) <= longest
    assert len(seconds) == 20


def test_a_runner_tries_again_until_the_daemon_is_there(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    put(tmp_path, clock, b"a")
    pauses: list[float] = []
    tries = iter([Unavailable("no daemon"), OSError("no route"), target])

    def connect() -> JournalDestination:
        found = next(tries)
        if isinstance(found, Exception):
            raise found
        return found

    runner = Runner(str(tmp_path), connect, clock=clock, wait=pauses.append, how="ping")
    watcher = PingWatch(str(tmp_path))
    watcher.interval = 0.0
    for _ in range(2):
        runner.turn(watcher)
    assert len(pauses) == 2 and runner.figures().last_error == "no route"
    for _ in range(4):
        runner.turn(watcher)
    assert values(journal) == [b"a"]
    assert len(pauses) == 2
    watcher.close()


@pytest.mark.parametrize("refusal", [Unauthorized("no such token"), NotFound("no such journal")])
def test_a_runner_that_is_refused_says_so_and_goes_on_once_it_may(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal,
    refusal: JournalError, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    put(tmp_path, clock, b"a")
    pauses: list[float] = []
    may = False

    def connect() -> JournalDestination:
        if not may:
            raise refusal
        return target

    runner = Runner(str(tmp_path), connect, clock=clock, wait=pauses.append, how="ping")
    collector = SpoolCollector([runner])

    def told() -> float:
        (found,) = (one for one in collector.collect() if one.name == "fastjournal_spool_denied")
        return float(found.samples[0].value)

    watcher = PingWatch(str(tmp_path))
    watcher.interval = 0.0
    assert told() == 0
    for _ in range(3):
        runner.turn(watcher)
    assert (len(pauses), runner.figures().denied, told()) == (3, str(refusal), 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert "refuses this forwarder" in caplog.text
    assert {entry.state for entry in read_spool(tmp_path)} == {"ready"}
    may = True
    for _ in range(4):
        runner.turn(watcher)
    assert (values(journal), runner.figures().denied, told()) == ([b"a"], "", 0)
    watcher.close()


def test_a_runner_whose_daemon_fails_sends_again(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    put(tmp_path, clock, b"a", b"b")

    class Lossy(JournalDestination):
        def receive(self, seconds: float) -> list[Forwarded]:
            raise Unavailable("cut")

    targets: Iterator[JournalDestination] = iter([Lossy(journal), target])
    runner = Runner(
        str(tmp_path), lambda: next(targets), clock=clock, wait=lambda s: None, how="ping"
    )
    watcher = PingWatch(str(tmp_path))
    watcher.interval = 0.0
    for _ in range(6):
        runner.turn(watcher)
    assert values(journal) == [b"a", b"b"]
    assert {entry.state for entry in read_spool(tmp_path)} == {"done"}
    assert runner.figures().repeated == 2
    watcher.close()


def test_a_job_that_spoils_its_batch_is_found_and_set_aside(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    """Sound frames whose jobs are malformed: the journal refuses the whole request."""
    wanted = [b"%d" % number for number in range(100)]
    put(tmp_path, clock, *wanted[:40])
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"spoilt", queue="q")
    path = tmp_path / name_of(T)
    data = path.read_bytes()
    start = data.rindex(b"fjR\0")
    message = bytearray(data[start + 12 :])
    message[22] |= 0x80  # a flag that there is not
    path.write_bytes(data[:start] + frame(bytes(message)) * 2)
    put(tmp_path, clock, *wanted[40:])
    runner = Runner(
        str(tmp_path), lambda: target, clock=clock, wait=lambda s: None, how="ping", batch_jobs=64
    )
    watcher = PingWatch(str(tmp_path))
    watcher.interval = 0.0
    for _ in range(200):
        runner.turn(watcher)
    assert values(journal) == wanted
    assert {entry.state for entry in read_spool(tmp_path)} == {"done"}
    assert len(list((tmp_path / "quarantine").glob("*.bad"))) == 2
    assert runner.figures().refused == 2
    watcher.close()


@pytest.mark.parametrize("how", ["inotify", "ping"])
def test_a_watch_is_readable_after_a_put(tmp_path: Path, how: str) -> None:
    """FJ-M1-3."""
    import select

    watcher = watch(str(tmp_path), how)
    assert isinstance(watcher, InotifyWatch if how == "inotify" else PingWatch)
    watcher.drain()
    with Spool(tmp_path) as spool:
        spool.put(b"a", queue="q")
        assert select.select([watcher], [], [], 5)[0]
        watcher.drain()
        assert not select.select([watcher], [], [], 0)[0]
        spool.put(b"b", queue="q")
        assert select.select([watcher], [], [], 5)[0]
    watcher.close()
    assert payloads(tmp_path) == [b"a", b"b"]


def test_a_full_disk_holds_up_nothing_and_what_is_refused_stays_until_there_is_room(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    put(tmp_path, clock, b"a")
    path = tmp_path / name_of(T)
    path.write_bytes(path.read_bytes() + b"fjR\0torn" + frame(b"nonsense"))
    put(tmp_path, clock, b"b")
    files = SpoolMemory.copy_of(tmp_path)
    files.capacity = sum(map(len, files.snapshot().values()))
    clock.advance(3 * 3600)
    forwarder = Forwarder(ForwardedSpool(tmp_path, files), clock=clock)
    for _ in range(3):
        drain(forwarder, target)
        clock.advance(2)
    forwarder.send(target)
    assert values(journal) == [b"a", b"b"]
    figures = forwarder.measure()
    assert figures.owed and figures.backlog_bytes == 0
    assert "room" in figures.last_error
    assert path in files.snapshot()
    files.capacity = None
    for _ in range(3):
        drain(forwarder, target)
        clock.advance(2)
    assert not forwarder.measure().owed
    names = sorted(place.name for place in files.snapshot())
    assert len([name for name in names if name.endswith(".bad")]) == 2
    assert not [name for name in names if name.endswith((".fjq", ".fjd", ".new"))]
    assert values(journal) == [b"a", b"b"]
    assert (forwarder.figures.damaged, forwarder.figures.refused) == (1, 1)


def test_a_torn_last_frame_is_no_backlog_once_nobody_goes_on_with_it(
    tmp_path: Path, clock: ManualClock, target: JournalDestination, journal: Journal
) -> None:
    """A disk that was full when the frame was written: nothing more comes, nothing waits."""
    put(tmp_path, clock, b"a", b"b")
    path = tmp_path / name_of(T)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    forwarder = forwarder_of(tmp_path, clock)
    drain(forwarder, target)
    assert forwarder.measure().backlog_bytes > 0
    clock.advance(2)
    drain(forwarder, target)
    figures = forwarder.measure()
    assert (figures.backlog_bytes, figures.oldest) == (0, 0)
    assert figures.torn_bytes == (len(whole) - 8) // 2 - 7
    path.write_bytes(whole)
    assert forwarder.measure().backlog_bytes > 0
    drain(forwarder, target)
    assert values(journal) == [b"a", b"b"]
    assert forwarder.measure().torn_bytes == 0
