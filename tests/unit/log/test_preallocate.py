"""Room reserved ahead of the log: what is written, what every reader sees, and what is trimmed."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.errors import AppenderPoisoned, CorruptRecord, JournalError, NoSpace, Stopped
from fastjournal.journal.look.read_only import JournalView
from fastjournal.log import Stream
from fastjournal.log.care.check import verify
from fastjournal.log.care.cleaner import sealed_segments
from fastjournal.log.care.recovery import recover
from fastjournal.log.care.repair import cut, salvage
from fastjournal.log.files import DISK
from fastjournal.log.read.by_time import Lookup
from fastjournal.log.read.search import find_in_segments, segments_of
from fastjournal.log.record import encode
from fastjournal.log.segment import HEADER_SIZE, Position, segment_name
from fastjournal.log.segment_directory import has_records, read_growing
from fastjournal.log.write.log_writer import LogWriter, never
from fastjournal.spark.storage.segments import journal_segments, load, newest_time
from fastjournal.spark.stream.tail import Tail
from fastjournal.testing import Fault, ManualClock, MemoryFiles
from fastjournal.testing.files import MemoryHandle

HERE = Path("/log")
FIRST = HERE / segment_name(1)
LEAST = 64 * 1024
RECORD = 15 + 1 + 4  # bytes around a short payload


def stream_on(files: MemoryFiles) -> Stream:
    files.make_directory(HERE)
    return Stream(HERE, files=files, clock=ManualClock())


def opened(files: MemoryFiles, *, sync: str = "always", **options: object) -> LogWriter:
    return LogWriter(stream_on(files), sync=sync, lock_timeout=0, **options)  # type: ignore[arg-type]


def stored(files: MemoryFiles) -> list[bytes]:
    return [record.payload for record in stream_on(files).open_cursor()]


def killed(count: int = 3) -> MemoryFiles:
    """A disk on which a writer was killed, with room reserved behind its records."""
    files = MemoryFiles()
    log = opened(files)
    for number in range(count):
        log.append_one(b"%d" % number)
    log.wait_synced(log.written_time)
    return files.killed()


def written_end(files: MemoryFiles) -> int:
    return len(files.content(FIRST).rstrip(b"\0"))


def test_a_sync_has_no_size_to_bring_to_the_disk() -> None:
    files = MemoryFiles()
    log = opened(files)
    log.wait_synced(log.append_one(b"first"))
    size = len(files.content(FIRST))
    assert size >= LEAST
    for _ in range(100):
        log.wait_synced(log.append_one(b"x" * 100))
    assert len(files.content(FIRST)) == size
    assert files.operations.count(f"reserve {FIRST.name}") == 1
    assert log.position == Position(1, written_end(files))


def test_as_much_is_reserved_as_is_there_already_up_to_4_mib() -> None:
    files = MemoryFiles()
    log = opened(files)
    for _ in range(90):
        log.append_one(bytes(range(1, 251)) * 400)
        ahead = len(files.content(FIRST)) - log.position.offset
        assert 0 <= ahead <= max(LEAST, min(log.position.offset, 4 << 20))
    assert files.operations.count(f"reserve {FIRST.name}") < 12


@pytest.mark.parametrize("sync", ["os", "interval"])
def test_where_nobody_waits_for_a_sync_nothing_is_reserved(sync: str) -> None:
    files = MemoryFiles()
    log = opened(files, sync=sync)
    log.append_one(b"x")
    assert len(files.content(FIRST)) == log.position.offset
    log.close()


def test_a_clean_close_trims_the_file_and_so_does_a_rotation() -> None:
    files = MemoryFiles()
    log = opened(files)
    log.append_one(b"a")
    log.rotate()
    assert len(files.content(FIRST)) == HEADER_SIZE + RECORD + 1
    log.append_one(b"b")
    log.close()
    for image in files.images():
        for number in (1, 2):
            assert len(image.content(HERE / segment_name(number))) == HEADER_SIZE + RECORD + 1
    assert not [fault for check in verify(stream_on(files)) for fault in check.faults]


def test_a_segment_is_trimmed_before_a_later_one_holds_a_record() -> None:
    """So a reader that finds a later record finds this one at its final length."""
    files = MemoryFiles()
    log = opened(files, segment_size=4096)
    for _ in range(30):
        log.append_one(bytes(range(1, 251)) * 4)
        numbers = stream_on(files).segments()
        for number in numbers:
            if number < log.position.segment:
                content = files.content(HERE / segment_name(number))
                assert content == content.rstrip(b"\0") or content[-4:] != bytes(4)
    assert log.position.segment > 5
    order = [one for one in files.operations if one.endswith((FIRST.name, segment_name(2)))]
    first = order.index(f"truncate {FIRST.name}")
    assert order[first + 1] == f"sync {FIRST.name}"
    assert order.index(f"write {segment_name(2)}") > first


def test_after_a_kill_every_reader_finds_the_end_and_recovery_trims_it() -> None:
    files = killed()
    end = written_end(files)
    assert len(files.content(FIRST)) > end
    stream = stream_on(files)
    assert stored(files) == [b"0", b"1", b"2"]
    assert not [fault for check in verify(stream) for fault in check.faults]
    assert [check.records for check in verify(stream) if check.number == 1] == [3]
    assert sealed_segments(stream) == []
    found = find_in_segments(segments_of(stream), b"\0" * 16)
    assert not found.records and found.searched < LEAST + end
    record = next(iter(stream.open_cursor()))
    assert Lookup(stream).read(record.time, 1, 0, 1).payload == b"0"
    with pytest.raises(JournalError, match="is not there"):
        Lookup(stream).read(record.time + 50, 1, 0, 1)
    report = recover(stream, strict=True)
    assert (report.cut, report.last_time) == (None, record.time + 2)
    assert len(files.content(FIRST)) == end
    assert not [name for name in files.names(HERE) if "torn" in name]
    with opened(files) as log:
        log.append_one(b"3")
    assert stored(files) == [b"0", b"1", b"2", b"3"]


def test_room_reserved_in_a_segment_without_a_record_is_no_record() -> None:
    """A writer that was killed between reserving and its first write."""
    files = MemoryFiles()
    with opened(files) as log:
        log.append_one(b"a")
        log.rotate()
    second = HERE / segment_name(2)
    files.put(second, files.content(second)[:HEADER_SIZE] + bytes(LEAST))
    stream = stream_on(files)
    assert stored(files) == [b"a"]
    assert not [fault for check in verify(stream) for fault in check.faults]
    with opened(files) as log:
        log.append_one(b"b")
    assert stored(files) == [b"a", b"b"]


def test_zeros_before_what_was_synced_are_damage() -> None:
    files = killed()
    end = written_end(files)
    content = files.content(FIRST)
    for at in range(HEADER_SIZE, end - RECORD):
        files.put(FIRST, content[:at] + bytes(len(content) - at))
        with pytest.raises(JournalError):
            recover(stream_on(files))
    assert [fault.torn for check in verify(stream_on(files)) for fault in check.faults] == [False]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_record_behind_zeros_is_a_tear_only_after_a_restart_of_the_machine(
    restarted: bool,
) -> None:
    """A power loss may keep later pages and lose earlier ones; a kill cannot."""
    files = MemoryFiles()
    log = opened(files)
    log.wait_synced(log.append_one(b"safe"))
    lost_at = log.position.offset
    log.append_one(b"lost" * 10)
    kept_at = log.position.offset
    log.append_one(b"kept" * 10)
    content = files.content(FIRST)
    left = files.killed()
    if restarted:
        left.reboot()
    left.put(FIRST, content[:lost_at] + bytes(kept_at - lost_at) + content[kept_at:])
    if not restarted:
        with pytest.raises(CorruptRecord):
            recover(stream_on(left))
        return
    report = recover(stream_on(left))
    assert report.cut is not None and report.cut.offset == lost_at
    assert b"kept" in left.content(report.cut.copy)
    assert stored(left) == [b"safe"]
    assert len(left.content(FIRST)) == lost_at


def test_a_segment_that_was_copied_while_it_was_written_ends_where_the_copy_has_a_hole() -> None:
    """`cp` has read a page before its records came, and the next one after that."""
    files = MemoryFiles()
    log = opened(files)
    log.wait_synced(log.append_one(b"safe"))
    end = log.position.offset
    early = files.content(FIRST)
    copied = files.killed()  # the mark was copied first
    for number in range(100):
        log.append_one(b"%d" % number * 100)
    content = early[:4096] + files.content(FIRST)[4096:]
    copied.put(FIRST, content)
    stream = stream_on(copied)
    assert stored(copied) == [b"safe"]
    assert [f.torn for check in verify(stream) for f in check.faults] == [True]
    report = recover(stream)
    assert report.cut is not None and report.cut.offset == end
    assert copied.content(report.cut.copy) == content[end:]
    assert stored(copied) == [b"safe"]


def test_a_torn_record_before_the_zeros_is_cut_with_a_copy() -> None:
    files = killed()
    end = written_end(files)
    content = bytearray(files.content(FIRST))
    torn = encode(1_800_000_000 * 10**9, b"never acknowledged")[:-3]
    content[end : end + len(torn)] = torn
    files.put(FIRST, bytes(content))
    assert stored(files) == [b"0", b"1", b"2"]
    (fault,) = (fault for check in verify(stream_on(files)) for fault in check.faults)
    assert fault.torn and fault.offset == end
    report = recover(stream_on(files))
    assert report.cut is not None and files.content(report.cut.copy).startswith(torn)
    assert len(files.content(FIRST)) == end


def test_in_a_sealed_segment_zeros_are_damage() -> None:
    files = MemoryFiles()
    with opened(files) as log:
        log.append_one(b"a")
        log.rotate()
        log.append_one(b"b")
    files.put(FIRST, files.content(FIRST) + bytes(100))
    with pytest.raises(CorruptRecord):
        stored(files)
    with pytest.raises(JournalError):
        recover(stream_on(files))


def test_a_full_disk_reserves_nothing_and_is_written_to_the_last_byte() -> None:
    files = MemoryFiles()
    log = opened(files)
    files.capacity = files.used() + 10 * (RECORD + 100)
    for _ in range(10):
        log.wait_synced(log.append_one(bytes(range(1, 101))))
    with pytest.raises(NoSpace):
        log.append_one(bytes(range(1, 101)))
    files.capacity = None
    log.wait_synced(log.append_one(b"after"))
    assert len(files.content(FIRST)) > LEAST
    assert stored(files) == [bytes(range(1, 101))] * 10 + [b"after"]
    log.close()


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EIO, errno.EINVAL])
def test_a_disk_that_cannot_reserve_is_written_all_the_same(error: int) -> None:
    files = MemoryFiles(failing=lambda what: Fault(error) if "reserve" in what else None)
    with opened(files) as log:
        for number in range(5):
            log.wait_synced(log.append_one(b"%d" % number))
        assert len(files.content(FIRST)) == log.position.offset
    assert stored(files) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("short", [None, 0, 1, 7, 24])
def test_a_failed_write_into_reserved_room_leaves_nothing_behind(short: int | None) -> None:
    files = MemoryFiles()
    log = opened(files)
    log.wait_synced(log.append_one(b"before"))
    files.faults[len(files.operations) + 1] = Fault(errno.ENOSPC, short=short)
    with pytest.raises(NoSpace):
        log.append_one(b"refused")
    assert stored(files) == [b"before"]
    for image in files.images():
        assert stored(image) == [b"before"]
    log.wait_synced(log.append_one(b"after"))
    assert stored(files) == [b"before", b"after"]
    assert len(files.content(FIRST)) > LEAST


@pytest.mark.parametrize("act", ["rotate", "close"])
def test_a_cut_that_fails_ends_acknowledging(act: str) -> None:
    files = MemoryFiles()
    log = opened(files)
    log.wait_synced(log.append_one(b"a"))
    files.failing = lambda what: Fault() if what == f"truncate {FIRST.name}" else None
    with pytest.raises((Stopped, AppenderPoisoned)):
        getattr(log, act)()
    files.failing = None
    if act == "rotate":
        with pytest.raises(Stopped):
            log.append_one(b"b")
    assert stored(files) == [b"a"]


def test_a_repair_trims_what_is_left() -> None:
    files = killed()
    stream = stream_on(files)
    third = list(stream.open_cursor())[2]
    assert cut(stream, Position(1, third.offset))
    with opened(files) as log:
        log.append_one(b"next")
    assert stored(files) == [b"0", b"1", b"next"]
    files = killed()
    content = bytearray(files.content(FIRST))
    content[HEADER_SIZE + 16] ^= 1
    files.put(FIRST, bytes(content))
    assert len(salvage(stream_on(files))) == 1
    assert stored(files) == [b"1", b"2"]
    assert not [fault for check in verify(stream_on(files)) for fault in check.faults]
    with opened(files) as log:
        log.append_one(b"next")
    assert stored(files) == [b"1", b"2", b"next"]


def test_one_look_at_a_segment_that_is_being_written_misses_nothing() -> None:
    """The first read comes before a record was written, its end after the next one was."""
    before, late, behind = b"head" * 4, b"late" * 4, b"more" * 4
    looks = [before + bytes(16) + behind + bytes(20), before + late + behind + bytes(20)]

    def read(start: int, size: int) -> bytes:
        return looks.pop(0)[start : start + size]

    assert read_growing(read, 0, 1000) == before + late + behind + bytes(20)


def test_a_cursor_does_not_take_a_half_seen_write_for_damage() -> None:
    """A record that was not there yet when the one behind it was read already."""
    looks: list[bytes] = []
    """What the next reads see; then there is what there is."""

    class Behind(MemoryHandle):
        def read(self, offset: int, size: int) -> bytes:
            seen = looks.pop(0)[offset : offset + size] if looks else None
            return super().read(offset, size) if seen is None else seen

    files = MemoryFiles()
    log = opened(files)
    log.wait_synced(log.append_one(b"a"))
    files.handle_class = Behind
    cursor = stream_on(files).open_cursor(follow=True)
    assert cursor.next() is not None
    at = log.position.offset
    log.append_one(b"b" * 50)
    between = log.position.offset
    log.append_one(b"c" * 50)
    whole = files.content(FIRST)
    hole = whole[:at] + bytes(between - at) + whole[between:]
    looks += [hole, hole]  # the chunk, then the first of the two looks
    assert [record.payload for record in cursor] == [b"b" * 50, b"c" * 50]
    assert not looks


def test_a_journal_kept_readable_for_the_workq_server_is_not_preallocated(tmp_path: Path) -> None:
    home = tmp_path / "jobs"
    with Journal(home, sync="always", background=False, zone_bytes="ffff") as journal:
        log = journal.engine.log
        segment = home / segment_name(1)
        assert not journal.engine.own
        log.append_one(b"\x08")  # what stands for a record of Workq's own
        log.wait_synced(log.written_time)
        assert segment.stat().st_size == log.position.offset
        journal.engine.own = True
        log.append_one(b"\x08")
        assert segment.stat().st_size >= LEAST
    assert segment.stat().st_size < LEAST


def test_readers_of_a_live_directory_see_records_and_no_zeros(tmp_path: Path) -> None:
    home = tmp_path / "jobs"
    with Journal(home, sync="always", background=False) as journal:
        for number in range(5):
            journal.put(b"%d" % number, queue="q")
        segment = home / segment_name(1)
        size = segment.stat().st_size
        assert size >= LEAST
        with JournalView(home, follow=True) as view:
            assert len(list(view.jobs())) == 5
            journal.put(b"more", queue="q")
            assert view.refresh() == 1
            assert view.refresh() == 0
        pieces = journal_segments(home)
        assert [piece.number for piece in pieces] == [1]
        assert newest_time(pieces[0]) == journal.engine.log.written_time
        assert len(load(pieces[0])) == size
        reached = Tail(str(home)).newest()
        assert reached is not None and reached.time == journal.engine.log.written_time
        assert not [
            f
            for check in verify(Stream(home, journal.engine.log.stream.header))
            for f in check.faults
        ]
    assert segment.stat().st_size < LEAST


def test_the_disk_itself_reserves_and_is_written_in_place(tmp_path: Path) -> None:
    handle = DISK.create(tmp_path / "file")
    handle.write(b"head")
    handle.reserve(4, 1000)
    assert handle.size() == 1004
    assert handle.write_at(b"body", 4) == 4
    assert handle.read(0, 10) == b"headbody\0\0"
    assert handle.current_name().endswith("/file")
    assert not has_records(handle) or handle.read(8, 1) != b"\0"
    (tmp_path / "file").rename(tmp_path / "other")
    assert handle.current_name().endswith("/other")
    (tmp_path / "other").unlink()
    assert not handle.current_name().endswith("/other")
    handle.close()
    assert handle.current_name() == ""


def test_never_is_asked_before_room_is_reserved() -> None:
    files = MemoryFiles()
    with opened(files, preallocate=never) as log:
        log.wait_synced(log.append_one(b"x"))
        assert len(files.content(FIRST)) == log.position.offset


def test_one_buffer_of_encoded_records_goes_with_one_write() -> None:
    files = MemoryFiles()
    log = opened(files, segment_size=4096)
    clock = log.stream.clock
    begin = len(files.operations)
    first = clock.now()
    data = encode(first, b"a") + encode(first + 5, b"b")
    log.append_encoded(data, 2, first, first + 5)
    assert (log.began_in, log.began_at) == (1, HEADER_SIZE)
    assert [one for one in files.operations[begin:] if one.startswith("write")] == [
        f"write {FIRST.name}"
    ]
    log.wait_synced(first + 5)
    assert log.written_time == log.synced_time == first + 5
    with pytest.raises(JournalError, match="is not behind"):
        log.append_encoded(data, 2, first + 5, first + 6)
    assert log.failure is None
    big = encode(first + 6, bytes(5000))
    log.append_encoded(big, 1, first + 6, first + 6)
    assert (log.began_in, log.began_at) == (1, HEADER_SIZE + len(data))
    last = encode(first + 7, b"c")
    log.append_encoded(last, 1, first + 7, first + 7)
    assert (log.began_in, log.began_at) == (2, HEADER_SIZE)
    assert log.position.segment == 2
    assert stored(files) == [b"a", b"b", bytes(5000), b"c"]
    assert log.counters.writes == 4
    log.close()


def test_who_comes_first_syncs_for_all_that_is_written() -> None:
    """One leads; those whose records its sync covers, or the next one's, are told by it."""
    reached, let_go = threading.Event(), threading.Event()
    syncs: list[str] = []

    def on_sync(path: Path) -> None:
        syncs.append(threading.current_thread().name)
        if len(syncs) == 1:
            reached.set()
            assert let_go.wait(20)

    files = MemoryFiles()
    log = opened(files)
    files.on_sync = on_sync
    first = log.append_one(b"first")
    leader = threading.Thread(target=log.wait_synced, args=(first,), name="leader")
    leader.start()
    assert reached.wait(20)
    times = [log.append_one(b"%d" % n) for n in range(8)]  # written beside the sync
    followers = [threading.Thread(target=log.wait_synced, args=(time,)) for time in times]
    for follower in followers:
        follower.start()
    while len(log._waiting) < 8:
        pass
    let_go.set()
    for thread in (leader, *followers):
        thread.join(20)
        assert not thread.is_alive()
    assert syncs[0] == "leader" and len(syncs) == 2
    assert log.synced_time == times[-1]
    files.on_sync = None
    log.close()


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_a_disk_is_slow_by_the_average_of_its_syncs(seconds: float) -> None:
    clock = ManualClock()
    files = MemoryFiles(on_sync=lambda _: clock.advance(seconds))
    files.make_directory(HERE)
    log = LogWriter(Stream(HERE, files=files, clock=clock), sync="always", lock_timeout=0)
    assert not log.is_slow
    for _ in range(10):
        log.wait_synced(log.append_one(b"x"))
    assert log.is_slow == bool(seconds)
    files.on_sync = None
    for _ in range(40):
        log.wait_synced(log.append_one(b"x"))
    assert not log.is_slow
    log.close()


def test_a_failed_sync_tells_every_waiter_and_is_not_tried_again() -> None:
    files = MemoryFiles()
    log = opened(files)
    time = log.append_one(b"a")
    files.failing = lambda what: Fault() if what == f"sync {FIRST.name}" else None
    calls: list[Callable[[], None]] = [lambda: log.wait_synced(time)] * 3
    for call in calls:
        with pytest.raises(Stopped):
            call()
    assert files.operations.count(f"sync {FIRST.name}") == 1
    told: list[JournalError | None] = []
    log.when_synced(time, lambda _, error: told.append(error))
    assert isinstance(told[0], Stopped)
    with pytest.raises(Stopped):
        log.close()
