"""What a node keeps of a replicated journal, crash by crash."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from fastjournal.errors import LockTimeout, NotFound, SegmentError
from fastjournal.log.commit_mark import COMMIT_POS, REPLICA_META, end_of_log, read_commit
from fastjournal.log.segment import HEADER_SIZE, WORKQ
from fastjournal.log.stream import Stream
from fastjournal.replica.disk import Meta, ReplicaLog, walk_records
from fastjournal.replica.leaving import leave_replication
from fastjournal.replica.rules import EpochStart, Promise
from fastjournal.testing import Crash, ManualClock, MemoryFiles
from replica_world import make_checkpoint

HOME = Path("/node/jobs")


def open_log(files: MemoryFiles, sync: str = "always") -> ReplicaLog:
    files.make_directory(HOME.parent)
    stream = Stream(HOME, WORKQ, files=files, clock=ManualClock())
    return ReplicaLog(stream, sync=sync, segment_size=4096)


def fill(log: ReplicaLog, count: int = 36) -> list[int]:
    """Two epochs over several segments."""
    times = [log.begin_epoch(1, b"mark 1", 1000)]
    for number in range(count):
        if number == count // 2:
            times.append(log.begin_epoch(2, b"mark 2", 50_000))
        times.append(log.append(b"job %d " % number + b"x" * 200, 1000))
    log.flush()
    return times


def test_records_are_read_behind_any_time_over_all_segments() -> None:
    log = open_log(MemoryFiles())
    times = fill(log)
    assert len(log.stream.segments()) > 1
    raw = log.records()
    assert walk_records(raw).times == times
    for after in (0, times[0], times[17], times[18], times[-2]):
        found, last = [], after
        while data := log.read_after(last, 700).data:
            found += walk_records(data).times
            last = found[-1]
        assert found == [time for time in times if time > after]
    assert log.read_after(times[-1]).data == b""


def test_a_record_larger_than_a_chunk_is_shipped_whole() -> None:
    log = open_log(MemoryFiles())
    time = log.append(b"y" * 100_000, 5)
    assert walk_records(log.read_after(0, 512).data).times == [time]


def test_raw_bytes_of_another_log_give_the_same_log() -> None:
    one, two = open_log(MemoryFiles()), open_log(MemoryFiles())
    fill(one)
    last = 0
    while data := one.read_after(last, 1000).data:
        times = walk_records(data).times
        two.append_raw(data, times)
        last = times[-1]
    assert two.records() == one.records()


def test_what_is_promised_is_there_after_every_crash() -> None:
    """T-SIM: a promise that was given is never forgotten; one that was not is all or nothing."""
    before = Promise(3, "a")
    for number in range(1, 12):
        files = MemoryFiles()
        log = open_log(files)
        log.write_meta(replace(log.meta, promise=before, sound=True))
        files.crash_at = len(files.operations) + number
        given = False
        try:
            log.write_meta(replace(log.meta, promise=Promise(4, "b")))
            given = True
        except Crash:
            pass
        for image in [files.killed(), *files.images(samples=20)]:
            after = open_log(image).meta
            assert after.promise == Promise(4, "b") or (after.promise == before and not given)
            assert after.sound
        if given:
            return
    pytest.fail("writing never came to its end")


def test_a_cut_that_crashes_anywhere_is_finished_when_the_log_is_opened() -> None:
    """F17, T-SIM: the divergent tail is gone, its copy is kept, and the rest is as it was."""
    whole = open_log(MemoryFiles())
    times = fill(whole)
    keep = times[20]
    history = (whole.meta.history[0], EpochStart(3, times[20] + 5, keep))
    kept = [time for time in times if time <= keep]
    number = 0
    finished = False
    while not finished:
        number += 1
        files = MemoryFiles()
        log = open_log(files)
        fill(log)
        raw = log.records()
        files.crash_at = len(files.operations) + number
        try:
            log.take_history(history, keep, 3)
            finished = True
        except Crash:
            pass
        for image in [files.killed(), *islice(files.images(samples=1, seed=number), 2)]:
            again = open_log(image)
            found = walk_records(again.records()).times
            assert found in (times, kept)
            assert again.damage == ""
            if again.meta.history == history or finished:
                assert found == kept
            again.take_history(history, keep, 3)
            assert walk_records(again.records()).times == kept
            assert raw.startswith(again.records())
            # The copies hold every record that was cut off, at least once.
            copies = b"".join(
                content for path, content in image.snapshot().items() if ".diverged-3" in path.name
            )
            for time in times[21:]:
                assert _record_of(raw, time) in copies
            assert again.append(b"goes on", 0) == keep + 1
    assert number > 10


def _record_of(raw: bytes, time: int) -> bytes:
    times = walk_records(raw).times
    at = times.index(time)
    head = raw
    for _ in range(at):
        head = head[_size(head) :]
    return head[: _size(head)]


def _size(raw: bytes) -> int:
    from fastjournal.log.record import decode

    return decode(raw, 0, len(raw))[3]


def test_how_far_a_majority_is_survives_a_torn_slot() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log)
    for time in (2000, 3000, 2500, 4000):
        log.set_commit(time)
        log.note_commit()
    assert log.commit_time == read_commit(files, HOME) == 4000
    content = bytearray(files.content(HOME / COMMIT_POS))
    content[content.index((4000).to_bytes(8, "big")) + 7] ^= 1
    files.put(HOME / COMMIT_POS, bytes(content))
    assert read_commit(files, HOME) == 3000


@pytest.mark.parametrize("newest", [True, False])
def test_a_damaged_log_is_set_aside_and_the_node_knows_that_it_lost_something(
    newest: bool,
) -> None:
    """F59: a damaged copy does not lead; the flipped bit may be in any segment."""
    files = MemoryFiles()
    log = open_log(files)
    fill(log)
    log.write_meta(replace(log.meta, promise=Promise(7, "b"), sound=True))
    log.close()
    number = log.stream.segments()[-1 if newest else 0]
    path = log.stream.segment_path(number)
    content = bytearray(files.content(path))
    content[60] ^= 1
    files.put(path, bytes(content))
    again = open_log(files)
    assert str(path) in again.damage
    assert again.last_time == 0
    assert not again.meta.sound
    assert again.meta.promise == Promise(7, "b")
    assert any(".damaged-" in name for name in files.names(HOME))


def test_a_promise_that_cannot_be_read_counts_as_forgotten() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log)
    log.close()
    content = bytearray(files.content(HOME / REPLICA_META))
    content[5] ^= 1
    files.put(HOME / REPLICA_META, bytes(content))
    again = open_log(files)
    assert not again.known
    assert again.meta == Meta()
    assert "replica.meta" in again.damage


SNAPSHOT = b"the state, whatever that is" * 100


def boundary(log: ReplicaLog) -> int:
    """The last TIME of the first segment."""
    return log.sealed()[0].last


@pytest.mark.parametrize("behind", [False, True], ids=["within the log", "behind the log"])
def test_a_snapshot_whose_installing_crashes_counts_wholly_or_not_at_all(behind: bool) -> None:
    """F17, T-SIM: no record goes before the snapshot counts, and none is left that it covers."""
    number, finished = 0, False
    while not finished:
        number += 1
        files = MemoryFiles()
        log = open_log(files)
        times = fill(log, 20)
        base = times[-1] + 1000 if behind else boundary(log)
        raw = log.records()
        log.take_part(0, SNAPSHOT)
        files.crash_at = len(files.operations) + number
        try:
            log.install(base, make_checkpoint(SNAPSHOT))
            finished = True
        except Crash:
            pass
        for image in [files.killed(), *islice(files.images(samples=1, seed=number), 1)]:
            again = open_log(image)
            facts = again.snapshot()
            if facts is None:
                assert not finished
                assert again.records() == raw
            else:
                assert facts.base == base
                assert again.read_snapshot(facts, 0) == SNAPSHOT
                assert walk_records(again.records()).times == [t for t in times if t > base]
                assert again.last_time == max(base, times[-1])
            assert not again.damage
            time = again.append(b"more", 7)
            assert walk_records(again.records()).times[-1] == time > times[-1]


def test_a_snapshot_needs_the_boundary_of_a_segment() -> None:
    log = open_log(MemoryFiles())
    times = fill(log)
    assert log.has_boundary(boundary(log))
    assert not log.has_boundary(boundary(log) - 1)
    assert log.has_boundary(times[-1])


def test_a_damaged_snapshot_is_set_aside_with_its_log() -> None:
    """F58: what a log begins behind is checked as its records are."""
    files = MemoryFiles()
    log = open_log(files)
    fill(log)
    log.take_part(0, SNAPSHOT)
    log.install(boundary(log), make_checkpoint(SNAPSHOT))
    log.close()
    for path, content in files.snapshot().items():
        if path.suffix == ".snapshot":
            files.put(path, b"X" + content[1:])
    again = open_log(files)
    assert "damaged" in again.damage
    assert again.last_time == 0
    assert again.snapshot() is None


def test_the_crc_of_a_segment_is_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """F58: a large one is not read whole while others wait for this node."""
    monkeypatch.setattr("fastjournal.replica.disk.PIECE", 1000)
    log = open_log(MemoryFiles())
    while not log.sealed():
        log.append(b"x" * 100, 1)
    (one,) = log.sealed()
    at, crc, pieces = 0, 0, 0
    while at < one.size:
        before = at
        at, crc = log.extend_crc(one, at, crc)
        assert 0 < at - before <= 1000
        pieces += 1
    assert (at, crc) == (one.size, one.crc) and pieces > 3
    assert log.extend_crc(one, at, crc) == (at, crc)


def test_a_follower_leaves_its_segments_where_the_primary_does_and_nowhere_else() -> None:
    """F58: also where one chunk of many ends behind its own size: archives compare segments."""
    files = MemoryFiles()
    files.make_directory(HOME.parent)
    stream = Stream(HOME, WORKQ, files=files, clock=ManualClock())
    one, two = ReplicaLog(stream, segment_size=65536), open_log(MemoryFiles())
    fill(one, 400)
    last = 0
    while data := (chunk := one.read_after(last, 1000)).data:
        times = walk_records(data).times
        two.append_raw(data, times, chunk.begins)
        last = times[-1]
    assert [(s.size, s.crc) for s in two.sealed()] == [(s.size, s.crc) for s in one.sealed()]
    assert len(one.sealed()) == 1


def test_a_follower_reserves_room_ahead_and_cuts_it_off_where_a_segment_is_left() -> None:
    """So a sync of it has no size to bring to the disk; after a kill the room is no record."""
    files = MemoryFiles()
    log = open_log(files)
    times = fill(log, 4)
    (first,) = log.stream.segments()
    path = log.stream.segment_path(first)
    records = HEADER_SIZE + len(log.records())
    content = files.content(path)
    assert len(content) > records
    assert not any(content[records:])
    killed = open_log(files.killed())
    assert killed.last_time == times[-1]
    assert walk_records(killed.records()).times == times
    log.leave_segment()
    assert len(files.content(path)) == records
    log.append(b"more", times[-1] + 1)
    log.flush()
    log.close()
    assert walk_records(open_log(files).records()).times == [*times, times[-1] + 1]


def test_a_copy_becomes_a_journal_of_its_own() -> None:
    """Readers stop nowhere; a crash in between leaves the copy, and it is done again."""
    files = MemoryFiles()
    log = open_log(files)
    times = fill(log)
    log.write_meta(replace(log.meta, sound=True))
    log.set_commit(times[3])
    log.note_commit()
    with pytest.raises(LockTimeout):
        leave_replication(log.stream)
    log.close()
    assert end_of_log(files, HOME) == times[3]
    stream = log.stream
    before = len(files.operations)
    for stop in range(1, 5):
        left = files.killed()
        left.crash_at = stop
        cut = Stream(HOME, WORKQ, files=left, clock=ManualClock())
        with pytest.raises(Crash):
            leave_replication(cut)
        for image in left.images():
            assert end_of_log(image, HOME) in (times[3], 0, None)
            if image.exists(HOME / REPLICA_META):
                leave_replication(Stream(HOME, WORKQ, files=image, clock=ManualClock()))
            assert end_of_log(image, HOME) is None
    leave_replication(stream)
    assert len(files.operations) == before + 4
    assert end_of_log(files, HOME) is None
    with pytest.raises(NotFound):
        leave_replication(stream)


def test_a_copy_that_may_lack_something_leaves_only_if_that_is_accepted() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log)
    log.write_meta(replace(log.meta, sound=False))
    log.close()
    with pytest.raises(SegmentError, match="may lack"):
        leave_replication(log.stream)
    leave_replication(log.stream, accept_loss=True)
    assert end_of_log(files, HOME) is None
