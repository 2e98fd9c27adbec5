"""The appender: choice of segment, rotation, sync policies, TIME, faults."""

from __future__ import annotations

import array
import errno
import threading
from pathlib import Path

import pytest

from fastjournal.errors import (
    AppenderPoisoned,
    BadRequest,
    CorruptRecord,
    LockTimeout,
    NoSpace,
    NotLocked,
    SegmentError,
    SettingError,
    TooLarge,
    VersionMismatch,
    WriteFailed,
)
from fastjournal.log import CAPTAIN, WORKQ, Position, Stream
from fastjournal.log.record import encode
from fastjournal.log.segment import segment_name
from fastjournal.log.synced_mark import SyncedMark
from fastjournal.log.write.appender import AppendOptions, ThreadTicker
from fastjournal.log.write.segment_writer import SegmentWriter
from fastjournal.testing import Fault, ManualClock, ManualTicker, MemoryFiles

HERE = Path("/journal")
HEADER = CAPTAIN.encode()


class Log:
    """A stream in memory with a clock moved by hand."""

    def __init__(self, files: MemoryFiles | None = None) -> None:
        self.files = files or MemoryFiles()
        self.clock = ManualClock()
        self.stream = Stream(HERE, files=self.files, clock=self.clock)
        self.stream.create()

    def payloads(self) -> list[bytes]:
        return [record.payload for record in self.stream.open_cursor()]

    def sizes(self) -> list[int]:
        return [
            len(self.files.content(self.stream.segment_path(number)))
            for number in self.stream.segments()
        ]

    def open_and_close(self) -> None:
        with self.stream.open_appender():
            pass

    def fail_next(self, fault: Fault, skip: int = 0) -> None:
        self.files.faults[len(self.files.operations) + 1 + skip] = fault


@pytest.fixture
def log() -> Log:
    return Log()


# Choosing and leaving segments


def test_an_empty_directory_gets_segment_1_with_a_header(log: Log) -> None:
    """CPT-APP-1, CPT-STR-2, WQ-FIL-1."""
    with log.stream.open_appender() as appender:
        assert appender.position == Position(1, 8)
    assert log.stream.segments() == [1]
    assert log.files.content(HERE / "000000001.log") == HEADER


def test_a_segment_exceeds_its_minimum_by_at_most_one_record(log: Log) -> None:
    """WQ-CFG-8, CPT-APP-2: the lazy rule, 29 50 71 29 of Captain's Log at our smallest size."""
    record = 1022  # bytes, so that the header and four of them are exactly 4096
    sizes = []
    with log.stream.open_appender(segment_size=4096) as appender:
        for _ in range(9):
            appender.append(b"x" * (record - 15 - 2 - 4))
            sizes.append((appender.position.segment, appender.position.offset))
    assert sizes == [
        (1, 1030), (1, 2052), (1, 3074), (1, 4096),
        (2, 1030), (2, 2052), (2, 3074), (2, 4096),
        (3, 1030),
    ]  # fmt: skip
    assert log.sizes() == [4096, 4096, 1030]


@pytest.mark.parametrize("size", [4095, 4096, 4097, 5000])
def test_the_next_segment_is_opened_once_the_size_is_reached_not_before(
    log: Log, size: int
) -> None:
    """CPT-FEA-1."""
    with log.stream.open_appender(segment_size=4096) as appender:
        appender.append(b"x" * (size - 8 - 15 - 2 - 4))
        assert appender.position == Position(1, size)
        appender.append(b"")
        assert appender.position.segment == (2 if size >= 4096 else 1)


def test_a_batch_stands_in_one_segment_however_large(log: Log) -> None:
    with log.stream.open_appender(segment_size=4096) as appender:
        appender.append(b"first")
        appender.append_many([b"x" * 1000] * 20)
        assert appender.position.segment == 1
        appender.append_many([b"y"] * 3)
        assert appender.position.segment == 2
    assert [record.segment for record in log.stream.open_cursor()] == [1] * 21 + [2] * 3


def test_a_full_last_segment_is_left_alone_and_the_next_one_is_made(log: Log) -> None:
    with log.stream.open_appender(segment_size=4096) as appender:
        appender.append(b"x" * 5000)
    before = log.files.content(HERE / "000000001.log")
    with log.stream.open_appender(segment_size=4096) as appender:
        assert appender.position.segment == 1
        appender.append(b"next")
        assert appender.position.segment == 2
    assert log.files.content(HERE / "000000001.log") == before


def test_an_existing_log_is_continued_in_its_last_segment(log: Log) -> None:
    for number in (3, 7, 12):  # gaps are fine
        log.files.put(HERE / segment_name(number), HEADER + encode(number, b"%d" % number))
    with log.stream.open_appender() as appender:
        assert appender.position.segment == 12
        appender.append(b"new")
    assert log.stream.segments() == [3, 7, 12]
    assert log.payloads() == [b"3", b"7", b"12", b"new"]


@pytest.mark.parametrize("number", [0, 999_999_999, 1_000_000_000])
def test_any_number_can_be_continued_and_rotated(log: Log, number: int) -> None:
    """WQ-FIL-1: number 0, and more than nine digits."""
    log.files.put(HERE / segment_name(number), HEADER + encode(1, b"old"))
    with log.stream.open_appender() as appender:
        appender.append(b"same")
        assert appender.rotate() == number + 1
        appender.append(b"next")
    assert log.stream.segments() == [number, number + 1]
    assert log.payloads() == [b"old", b"same", b"next"]


def test_foreign_names_are_ignored_with_a_warning(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """WQ-FIL-1, F26."""
    foreign = {HERE / "1.log": b"a", HERE / "00000000a.log": b"b", HERE / "notes.txt": b"c"}
    for path, content in foreign.items():
        log.files.put(path, content)
    with log.stream.open_appender() as appender:
        appender.append(b"x")
    assert log.stream.segments() == [1]
    assert all(log.files.content(path) == content for path, content in foreign.items())
    assert "1.log: not a segment name" in caplog.text


def test_rotation_by_hand_syncs_the_old_segment_first(log: Log) -> None:
    log.open_and_close()
    with log.stream.open_appender() as appender:
        appender.append(b"one")
        start = len(log.files.operations)
        assert appender.rotate() == 2
        steps = log.files.operations[start:]
    assert steps[0] == "sync 000000001.log"
    assert steps.index("sync 000000002.log.new") < steps.index("rename 000000002.log")
    assert steps.index("rename 000000002.log") < steps.index("sync_directory journal")
    mark = SyncedMark.read(log.files, HERE)
    assert mark is not None
    assert mark[:3] == (2, 8, log.clock.now()), "the mark names the new segment"


# TIME


def test_times_strictly_increase_when_the_clock_stands_still_or_steps_back(log: Log) -> None:
    """Design law 3."""
    with log.stream.open_appender() as appender:
        times = [appender.append(b"a"), appender.append(b"b")]
        log.clock.step(-3600)
        times += [appender.append(b"c"), *appender.append_many([b"d", b"e"])]
        log.clock.step(7200)
        times.append(appender.append(b"f"))
        assert appender.last_time == times[-1]
    assert times[1] == times[0] + 1
    assert times == sorted(set(times))
    assert times[-1] == log.clock.now()
    assert [record.time for record in log.stream.open_cursor()] == times


def test_times_increase_over_a_reopening_with_a_clock_that_went_back(log: Log) -> None:
    with log.stream.open_appender() as appender:
        last = appender.append(b"a")
    log.clock.step(-1_000_000)
    with log.stream.open_appender() as appender:
        assert appender.last_time == last
        appender.rotate()
    with log.stream.open_appender() as appender:
        assert appender.append(b"b") == last + 1


# Sync policies


def synced(log: Log) -> list[bytes]:
    """What a power loss right now would leave, if everything unsynced is lost."""
    image = next(iter(log.files.images(samples=1)))
    return [record.payload for record in Stream(HERE, files=image).open_cursor()]


def test_without_options_segments_have_64_mib_and_syncing_is_left_to_the_system(log: Log) -> None:
    """CPT-APP-1, CPT-APP-2, CPT-APP-3, D-05."""
    appender = log.stream.open_appender()
    assert appender.options == AppendOptions(64 * 1024 * 1024, "os", None)
    assert log.stream.open_appender(sync="interval").options.sync_interval == 1000
    assert log.stream.open_appender(sync="always").options.sync == "always"
    with appender:
        before = log.files.syncs
        appender.append(b"x")
        assert log.files.syncs == before


def test_a_stream_is_appended_to_iterated_and_cleaned(log: Log) -> None:
    """CPT-STR-3, CPT-FEA-3: all by one object."""
    with log.stream.open_appender() as appender:
        appender.append_many([b"keep", b"drop"])
        appender.rotate()
        appender.append(b"newest")
    assert log.payloads() == [b"keep", b"drop", b"newest"]
    with log.stream.open_cleaner() as cleaner:
        (cleaned,) = cleaner.clean(lambda path, record: record.payload == b"drop")
    assert (cleaned.segment, cleaned.kept) == (1, 1)
    assert log.payloads() == [b"keep", b"newest"]


def test_always_means_exactly_one_sync_for_each_append(log: Log) -> None:
    """CPT-APP-3, WQ-CFG-5."""
    with log.stream.open_appender(sync="always") as appender:
        for number in range(5):
            before = log.files.syncs
            appender.append(b"%d" % number)
            assert log.files.syncs == before + 1
            assert synced(log)[-1] == b"%d" % number
        before = log.files.syncs
        appender.append_many([b"x"] * 50)
        assert log.files.syncs == before + 1
        assert appender.append_many([]) == []
        assert log.files.syncs == before + 1
    assert log.files.syncs == before + 1, "nothing was left to sync"


def test_os_syncs_at_rotation_and_at_the_end_only(log: Log) -> None:
    """WQ-CFG-4."""
    with log.stream.open_appender(segment_size=4096) as appender:
        before = log.files.syncs
        appender.append(b"a" * 3000)
        appender.append(b"b" * 3000)
        assert log.files.syncs == before
        assert synced(log) == []
        appender.append(b"c")
        assert log.files.syncs == before + 3, "the old segment, the next one's header, its name"
        assert synced(log) == [b"a" * 3000, b"b" * 3000]
    assert synced(log) == [b"a" * 3000, b"b" * 3000, b"c"]


def test_the_interval_ticker_syncs_only_what_is_new(log: Log) -> None:
    """WQ-CFG-3, CPT-APP-4."""
    ticker = ManualTicker()
    with log.stream.open_appender(sync="interval", sync_interval=10, ticker=ticker) as appender:
        assert ticker.interval_ms == 10
        before = log.files.syncs
        ticker.fire()
        assert log.files.syncs == before, "nothing to sync yet"
        appender.append(b"a")
        appender.append(b"b")
        assert log.files.syncs == before
        ticker.fire()
        ticker.fire()
        assert log.files.syncs == before + 1
        assert synced(log) == [b"a", b"b"]
    ticker.fire()
    assert log.files.syncs == before + 1, "a released appender does not tick"


def test_under_interval_an_append_does_not_wait_for_the_timers_sync(log: Log) -> None:
    ticker = ManualTicker()
    reached, let_go = threading.Event(), threading.Event()

    def slow(path: Path) -> None:
        reached.set()
        assert let_go.wait(20)

    with log.stream.open_appender(sync="interval", ticker=ticker) as appender:
        appender.append(b"a")
        log.files.on_sync = slow
        ticking = threading.Thread(target=ticker.fire)
        ticking.start()
        assert reached.wait(20)
        beside = threading.Thread(target=appender.append, args=(b"b",))
        beside.start()
        beside.join(20)
        waits = beside.is_alive()
        let_go.set()
        ticking.join(20)
        beside.join(20)
        assert not waits
        log.files.on_sync = None
        ticker.fire()
        assert synced(log) == [b"a", b"b"]


def test_interval_syncs_a_segment_closed_by_rotation_and_the_directory(log: Log) -> None:
    """The real server forgets both."""
    ticker = ManualTicker()
    with log.stream.open_appender(segment_size=4096, sync="interval", ticker=ticker) as appender:
        appender.append(b"a" * 5000)
        appender.append(b"b")
        assert synced(log) == [b"a" * 5000]
        ticker.fire()
        assert synced(log) == [b"a" * 5000, b"b"]


def test_a_sync_on_demand_works_under_every_policy(log: Log) -> None:
    with log.stream.open_appender() as appender:
        appender.append(b"a")
        appender.sync()
        assert synced(log) == [b"a"]


def test_the_thread_ticker_ticks_until_it_is_stopped() -> None:
    ticks = threading.Semaphore(0)
    ticker = ThreadTicker()
    ticker.start(ticks.release, 1)
    for _ in range(3):
        assert ticks.acquire(timeout=10)
    ticker.stop()
    while ticks.acquire(blocking=False):
        pass
    assert not ticks.acquire(timeout=0.02)
    ticker.stop()


# Locks


def test_nothing_is_appended_without_the_lock(log: Log) -> None:
    """CPT-APP-5."""
    appender = log.stream.open_appender()
    for call in (
        lambda: appender.append(b"x"),
        lambda: appender.append_many([b"x"]),
        appender.sync,
        appender.rotate,
        lambda: appender.position,
        lambda: appender.last_time,
    ):
        with pytest.raises(NotLocked):
            call()
    assert log.stream.segments() == []
    appender.unlock()  # harmless
    appender.lock()
    appender.append(b"x")
    appender.unlock()
    with pytest.raises(NotLocked):
        appender.append(b"y")
    appender.lock()
    appender.append(b"z")
    appender.close()
    assert log.payloads() == [b"x", b"z"]


def test_there_is_one_appender_at_a_time(log: Log) -> None:
    """CPT-APP-5, CPT-APP-7."""
    with log.stream.open_appender() as appender:
        with pytest.raises(BadRequest):
            appender.lock()
        second = log.stream.open_appender()
        with pytest.raises(LockTimeout) as caught:
            second.lock(timeout=0)
        assert caught.value.path == HERE / "append.lock"
        appender.append(b"x")
    second.lock(timeout=0)
    second.append(b"y")
    second.unlock()
    assert log.payloads() == [b"x", b"y"]


def test_a_second_appender_waits_for_the_first(log: Log) -> None:
    """CPT-APP-7: without limit if none is given."""
    second = log.stream.open_appender()

    def wait() -> None:
        second.lock()
        second.append(b"second")
        second.unlock()

    with log.stream.open_appender() as first:
        thread = threading.Thread(target=wait)
        thread.start()
        first.append(b"first")
    thread.join(10)
    assert not thread.is_alive()
    assert log.payloads() == [b"first", b"second"]


def test_appenders_block_neither_cursors_nor_cleaners(log: Log) -> None:
    """CPT-APP-8."""
    with log.stream.open_appender() as appender, log.stream.open_cursor() as cursor:
        appender.append(b"x")
        record = cursor.next()
        assert record is not None
        assert record.payload == b"x"
        cursor.close()
        with log.stream.open_cleaner() as cleaner:
            appender.append(b"y")
            assert cleaner.clean(lambda path, record: True) == []


def test_a_failed_lock_leaves_the_lock_free(log: Log) -> None:
    log.files.put(HERE / "000000001.log", b"wqwq\0\0\0\x01")
    appender = log.stream.open_appender()
    for _ in range(2):
        with pytest.raises(SegmentError):
            appender.lock(timeout=0)
    log.files.put(HERE / "000000001.log", HEADER)
    with appender:
        appender.append(b"x")


def test_several_threads_may_share_an_appender(log: Log) -> None:
    def work(appender: object, name: bytes) -> None:
        for number in range(50):
            appender.append(name + b"%d" % number)  # type: ignore[attr-defined]

    with log.stream.open_appender(segment_size=4096) as appender:
        threads = [
            threading.Thread(target=work, args=(appender, name)) for name in (b"a", b"b", b"c")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    found = log.payloads()
    assert len(found) == 150
    for name in (b"a", b"b", b"c"):
        assert [p for p in found if p[:1] == name] == [name + b"%d" % n for n in range(50)]


# Faults


def test_a_failed_write_is_undone_and_the_next_one_goes_on(log: Log) -> None:
    """CPT-APP-11, F01, F02."""
    with log.stream.open_appender() as appender:
        appender.append(b"kept")
        end = appender.position
        for fault, error in (
            (Fault(), WriteFailed),
            (Fault(error=errno.ENOSPC), NoSpace),
            (Fault(error=errno.EDQUOT), NoSpace),
            *[(Fault(short=length), NoSpace) for length in range(len(encode(1, b"lost")))],
        ):
            log.fail_next(fault)
            with pytest.raises(error, match=r"000000001\.log"):
                appender.append(b"lost")
            assert appender.position == end
            assert len(log.files.content(HERE / "000000001.log")) == end.offset
        time = appender.append(b"next")
        assert time == next(iter(log.stream.open_cursor())).time + 1, "no TIME was used up"
    assert log.payloads() == [b"kept", b"next"]


def test_a_write_that_cannot_be_undone_poisons_the_appender(log: Log) -> None:
    """CPT-APP-11, P-STOP."""
    appender = log.stream.open_appender()
    appender.lock()
    appender.append(b"kept")
    log.fail_next(Fault(short=3))
    log.fail_next(Fault(), skip=1)  # the truncation
    with pytest.raises(AppenderPoisoned, match="could not be undone"):
        appender.append(b"lost")
    assert_poisoned(log, appender)
    assert log.payloads() == [b"kept"]
    with log.stream.open_appender() as again:
        again.append(b"next")
    assert log.payloads() == [b"kept", b"next"]


@pytest.mark.parametrize("synced_part", ["keep", "drop", "half"])
@pytest.mark.parametrize("policy", ["os", "interval", "always"])
def test_a_failed_sync_poisons_the_appender_and_is_never_tried_again(
    log: Log, policy: str, synced_part: str
) -> None:
    """F04, design law 4."""
    ticker = ManualTicker()
    appender = log.stream.open_appender(segment_size=4096, sync=policy, ticker=ticker)
    appender.lock()
    log.fail_next(Fault(synced=synced_part), skip=1)
    if policy == "always":
        with pytest.raises(AppenderPoisoned, match="sync failed"):
            appender.append(b"a" * 5000)  # the segment is full: the next append would rotate
    else:
        appender.append(b"a" * 5000)
        if policy == "interval":
            ticker.fire()  # its failure is told by the next call
        else:
            with pytest.raises(AppenderPoisoned, match="sync failed"):
                appender.sync()
    ticker.fire()
    assert_poisoned(log, appender)


def assert_poisoned(log: Log, appender: object) -> None:
    """Every call says so, nothing is written or synced, also not at the end."""
    before, syncs = log.files.snapshot(), log.files.syncs
    for _ in range(2):
        for call in (
            lambda: appender.append(b"x"),  # type: ignore[attr-defined]
            lambda: appender.append_many([b"x", b"y"]),  # type: ignore[attr-defined]
            appender.sync,  # type: ignore[attr-defined]
            appender.rotate,  # type: ignore[attr-defined]
        ):
            with pytest.raises(AppenderPoisoned) as caught:
                call()
            assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(AppenderPoisoned):
        appender.unlock()  # type: ignore[attr-defined]
    assert (log.files.snapshot(), log.files.syncs) == (before, syncs)
    appender.unlock()  # type: ignore[attr-defined]
    log.stream.lock_appender(timeout=0).release()


def test_a_segment_whose_sync_failed_stays_dirty(log: Log) -> None:
    """Whoever asks whether something is left to sync must meet the poison."""
    log.open_and_close()
    mark = SyncedMark(log.files, HERE)
    writer = SegmentWriter.resume(log.files, HERE, 1, CAPTAIN, mark, 0)
    writer.write(encode(5, b"x"), 5)
    log.fail_next(Fault())
    with pytest.raises(AppenderPoisoned):
        writer.sync()
    assert writer.dirty
    assert writer.poisoned
    for call in (writer.sync, writer.check, lambda: writer.write(b"y", 6)):
        with pytest.raises(AppenderPoisoned, match="earlier fault"):
            call()


def test_a_poisoned_appender_in_a_with_statement_keeps_the_first_error(log: Log) -> None:
    def fail_aloud() -> None:
        with log.stream.open_appender() as appender:
            appender.append(b"x")
            log.fail_next(Fault())
            appender.sync()

    def fail_silently() -> None:
        ticker = ManualTicker()
        with log.stream.open_appender(sync="interval", ticker=ticker) as appender:
            appender.append(b"y")
            log.fail_next(Fault())
            ticker.fire()

    with pytest.raises(AppenderPoisoned, match="sync failed"):
        fail_aloud()
    with pytest.raises(AppenderPoisoned, match="earlier fault"):
        fail_silently()


def test_a_failing_rotation_keeps_the_old_segment_and_loses_nothing() -> None:
    """F08: an error at each step of making the next segment."""
    probe = Log()
    probe.open_and_close()
    with probe.stream.open_appender() as appender:
        appender.append(b"a")
        start = len(probe.files.operations)
        appender.rotate()
        steps = probe.files.operations[start:]
    assert len(steps) >= 6
    left = steps.index("close 000000001.log")  # what follows is its line in the manifest
    for step, kind in enumerate(steps):
        log = Log()
        log.open_and_close()
        appender = log.stream.open_appender()
        appender.lock()
        appender.append(b"a")
        log.fail_next(Fault(), skip=step)
        if kind == "write synced.pos" or step > left:  # a help for recovery only
            appender.rotate()
            appender.append(b"b")
        elif kind in ("sync 000000001.log", "close 000000001.log"):
            with pytest.raises(AppenderPoisoned):
                appender.rotate()
            assert_poisoned(log, appender)
            assert log.payloads() == [b"a"]
            continue
        else:
            with pytest.raises(WriteFailed):
                appender.rotate()
            assert appender.position.segment == 1
            appender.append(b"b")
            assert log.payloads() == [b"a", b"b"]
            assert appender.rotate() == 2
        appender.append(b"c")
        appender.unlock()
        assert log.payloads() == [b"a", b"b", b"c"]
        assert not [name for name in log.files.names(HERE) if name.endswith(".new")]


def test_a_full_disk_is_no_poison(log: Log) -> None:
    """F02."""
    log.files.capacity = 500
    with log.stream.open_appender() as appender:
        with pytest.raises(NoSpace):
            appender.append(b"x" * 600)
        appender.append(b"y" * 50)
        with pytest.raises(NoSpace):
            appender.append_many([b"z" * 100] * 5)
        log.files.capacity = None
        appender.append(b"w" * 600)
    assert log.payloads() == [b"y" * 50, b"w" * 600]


# Bad input


@pytest.mark.parametrize("payload", ["text", None, 7, [b"x"], memoryview(array.array("I", [1, 2]))])
def test_a_payload_that_is_not_bytes_is_refused(log: Log, payload: object) -> None:
    with log.stream.open_appender() as appender:
        with pytest.raises(BadRequest):
            appender.append(payload)  # type: ignore[arg-type]
        with pytest.raises(BadRequest):
            appender.append_many([b"good", payload])  # type: ignore[list-item]
        appender.append(memoryview(b"seen")[1:3])
        appender.append_many([bytearray(b"array"), memoryview(b"view")])
    assert log.payloads() == [b"ee", b"array", b"view"]


def test_a_payload_above_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    stream = Stream(HERE, files=MemoryFiles(), clock=ManualClock(), max_payload=100)
    stream.create()
    with stream.open_appender() as appender:
        appender.append(b"x" * 100)
        end = appender.position
        with pytest.raises(TooLarge):
            appender.append(b"x" * 101)
        with pytest.raises(TooLarge):
            appender.append_many([b"x", b"x" * 101])
        assert appender.position == end
    assert [len(record.payload) for record in stream.open_cursor()] == [100]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("segment_size", {"segment_size": 4095}),
        ("segment_size", {"segment_size": 0}),
        ("segment_size", {"segment_size": -1}),
        ("segment_size", {"segment_size": (1 << 30) + 1}),
        ("segment_size", {"segment_size": 1 << 63}),
        ("sync", {"sync": "never"}),
        ("sync", {"sync": ""}),
        ("sync_interval", {"sync_interval": 1000}),
        ("sync_interval", {"sync": "always", "sync_interval": 1000}),
        ("sync_interval", {"sync": "interval", "sync_interval": 0}),
        ("sync_interval", {"sync": "interval", "sync_interval": -5}),
        ("sync_interval", {"sync": "interval", "sync_interval": 86_400_001}),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(
    log: Log, name: str, options: dict[str, object]
) -> None:
    """WQ-CFG-2, WQ-CFG-6, WQ-CFG-8, CPT-APP-4, F42."""
    with pytest.raises(SettingError) as caught:
        log.stream.open_appender(**options)  # type: ignore[arg-type]
    assert caught.value.name == name
    assert log.files.snapshot() == {}


def test_settings_at_their_limits_are_taken() -> None:
    assert AppendOptions(4096, "os").sync_interval is None
    assert AppendOptions(1 << 30, "always").segment_size == 1 << 30
    assert AppendOptions(4096, "interval").sync_interval == 1000
    assert AppendOptions(4096, "interval", 1).sync_interval == 1
    assert AppendOptions(4096, "interval", 86_400_000).sync_interval == 86_400_000


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (WORKQ.encode(), SegmentError),
        (b"cptn\0\0\0\x02", VersionMismatch),
        (b"junk", SegmentError),
        (b"\x01" * 100, SegmentError),
        (HEADER + encode(1, b"a")[:-1] + b"\x00" + encode(2, b"b"), CorruptRecord),
    ],
)
def test_a_bad_segment_is_refused_and_nothing_changes(
    log: Log, content: bytes, error: type[Exception]
) -> None:
    """CPT-STR-2, F27: wrong magic, newer version, damage."""
    log.files.put(HERE / "000000001.log", content)
    before = log.files.snapshot()
    with pytest.raises(error):
        log.stream.open_appender().lock()
    assert log.files.snapshot() == before


def test_a_directory_in_place_of_a_segment_is_refused(log: Log) -> None:
    log.files.make_directory(HERE / "000000001.log")
    with pytest.raises(SegmentError, match="not a regular file"):
        log.stream.open_appender().lock()
    assert log.files.snapshot() == {}


def test_a_missing_directory_is_refused_by_everyone() -> None:
    stream = Stream(Path("/nowhere"), files=MemoryFiles())
    for call in (
        stream.open_appender().lock,
        stream.open_cursor().next,
        stream.open_cursor().lock,
        stream.open_cleaner,
    ):
        with pytest.raises(SegmentError, match="no such directory"):
            call()


@pytest.mark.parametrize("fault", [Fault(), Fault(error=errno.ENOSPC), Fault(short=3)])
def test_a_fault_at_any_step_of_opening_is_a_typed_error_and_opening_again_works(
    fault: Fault,
) -> None:
    """T-IO: nothing but our own errors comes out."""
    probe = Log()
    with probe.stream.open_appender():
        steps = len(probe.files.operations)
    failed = 0
    for number in range(2, steps + 1):  # 1 makes the directory
        log = Log(MemoryFiles(faults={number: fault}))
        appender = log.stream.open_appender()
        try:
            appender.lock()
        except (WriteFailed, NoSpace, SegmentError, AppenderPoisoned):
            failed += 1
            appender.lock()
        appender.append(b"x")
        appender.unlock()
        assert log.payloads() == [b"x"]
    assert failed >= 1
