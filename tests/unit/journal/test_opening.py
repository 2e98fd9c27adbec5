"""From a directory to a state."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.clock import SECOND
from fastjournal.errors import CorruptRecord
from fastjournal.journal.disk.replay import replay
from fastjournal.journal.disk.snapshot import snapshot_path, write_snapshot
from fastjournal.journal.language.codec import encode
from fastjournal.journal.language.commands import Mark, Purge, Put, Sender
from fastjournal.journal.spill.fetching import Fetching
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.values import Values
from fastjournal.log.record import Record, encode_many, record_size
from fastjournal.log.segment import HEADER_SIZE, WORKQ
from fastjournal.log.stream import Stream
from fastjournal.testing import ManualClock, MemoryFiles

HOME = Path("/jobs")
NOW = 1_700_000_000 * SECOND


def log_of(*payloads: bytes) -> MemoryFiles:
    files = MemoryFiles()
    data, _ = encode_many(NOW, payloads)
    files.put(HOME / "000000001.log", WORKQ.encode() + data)
    return files


def a_put(number: int, key: bytes = b"") -> bytes:
    row_id = bytes((number,)) * 16
    return encode(Put(row_id, b"q", key, 100, NOW, NOW + number, NOW, 0, 1, b"v"))


def stream_of(files: MemoryFiles) -> Stream:
    return Stream(HOME, WORKQ, files=files)


def test_an_empty_directory_is_an_empty_state() -> None:
    files = MemoryFiles()
    files.make_directory(HOME)
    replayed = replay(stream_of(files))
    assert (replayed.records, replayed.snapshot, replayed.clean) == (0, None, False)
    assert not replayed.state.rows


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xc8" + bytes(16), "unknown command type 200"),
        (b"", "empty"),
        (b"\x05" + bytes(15), "ends too early"),
        (b"\x05" + bytes(17), "too many"),
        (a_put(1)[:30], "ends too early"),
        (a_put(1) + b"x", "too many"),
    ],
)
def test_an_undecodable_record_is_damage_with_its_place(payload: bytes, reason: str) -> None:
    """WQ-CMD-12: nothing is served."""
    files = log_of(a_put(1), payload, a_put(2))
    offset = 8 + len(encode_many(NOW, [a_put(1)])[0])
    with pytest.raises(CorruptRecord, match=reason) as refused:
        replay(stream_of(files))
    assert refused.value.path == HOME / "000000001.log"
    assert refused.value.offset == offset
    with pytest.raises(CorruptRecord):
        Journal(HOME, files=files, clock=ManualClock(), background=False)


def test_a_replay_stops_at_an_instant() -> None:
    """F64: the record of that TIME is the last one."""
    files = log_of(a_put(1), a_put(2), encode(Purge(bytes((1,)) * 16, b"q", b"", NOW)))
    for records, rows in ((0, set()), (1, {1}), (2, {1, 2}), (3, {2})):
        replayed = replay(stream_of(files), until=NOW + records - 1)
        assert {row_id[0] for row_id in replayed.state.rows} == rows
        assert replayed.records == records


def test_progress_is_told() -> None:
    told: list[int] = []
    replay(stream_of(log_of(*(a_put(n) for n in range(9)))), told.append)
    assert told[-1] == 9


def test_reading_a_log_keeps_no_chunk_alive() -> None:
    """Also while the collector of cycles rests: memory must not grow with the log."""
    large = b"\x03" + bytes(16) + b"\x80\x80\x40" + bytes(2**20)
    files = log_of(*[large] * 12)
    cursor = stream_of(files).open_cursor()
    gc.collect()
    gc.disable()
    try:
        for batch in cursor.batches():
            del batch
        alive = [
            one
            for one in gc.get_objects()
            if isinstance(one, Record) and len(one.payload) == len(large)  # not other tests' ones
        ]
    finally:
        gc.enable()
        cursor.close()
    assert len(alive) < 6


def test_senders_survive_a_restart_and_a_snapshot() -> None:
    files = log_of(encode(Sender(b"spool", 5)), encode(Sender(b"spool", 9)))
    with Journal(HOME, files=files, clock=ManualClock(), background=False) as j:
        assert j.engine.state.senders[b"spool"][0] == 9
        j.snapshot()
        j.clean()
    with Journal(HOME, files=files, clock=ManualClock(), background=False) as j:
        assert j.engine.state.senders[b"spool"][0] == 9


def test_a_journal_opens_in_the_past_of_its_records_and_time_goes_on_from_there() -> None:
    """The wall clock was set back while it was closed."""
    files = log_of(a_put(1))
    clock = ManualClock(NOW - 3600 * SECOND)
    with Journal(HOME, files=files, clock=clock, background=False) as j:
        job = j.lease("q", lease=10)
        assert job is not None
        clock.advance(9)
        assert j.tick() == 0
        clock.advance(2)
        assert j.tick() == 1


def test_an_undecodable_image_is_damage_with_its_place() -> None:
    files = log_of(a_put(1))
    stream = stream_of(files)
    good = a_put(2)
    write_snapshot(stream, 1, [(NOW, [good, b"\xc8" + bytes(16)])])
    with pytest.raises(CorruptRecord, match="unknown command type 200") as refused:
        replay(stream)
    assert refused.value.path == HOME / "000000001.snapshot"
    mark = len(encode(Mark(NOW, 1, 0, b"as of")))
    assert refused.value.offset == HEADER_SIZE + record_size(mark) + record_size(len(good))


@pytest.mark.parametrize("logged", [False, True])
def test_a_log_read_in_stretches_gives_what_its_records_give_one_by_one(logged: bool) -> None:
    """Records across the ends of stretches, and one that is larger than a stretch."""
    payloads, expected = [], JournalState()
    sizes = [300_000, 1, 700_001, 0, 900_000, 99_999, 400_000, 600_000, 3 << 20, 5]
    for number, size in enumerate(sizes):
        value = bytes((number,)) * size
        row_id = bytes((number + 1,)) * 16
        put = Put(row_id, b"q", b"", 100, NOW, NOW + number, NOW, 0, 1, value)
        payloads.append(encode(put))
        expected.apply(put, NOW + number)
    files = log_of(*payloads)
    seen: list[int] = []
    state = JournalState(Values(1024, logged=logged))
    replayed = replay(stream_of(files), seen.append, state=state)
    assert replayed.records == len(payloads)
    assert len(seen) >= 4  # between them other threads have their turn
    fetching = Fetching(stream_of(files), state.values, snapshot_path)
    assert state.digest(fetching.value) == expected.digest()
    assert [row.value is None for row in state.rows.values()] == [
        logged and bool(row.size) for row in state.rows.values()
    ]


def test_the_collector_of_cycles_rests_during_a_replay_and_goes_on_afterwards() -> None:
    files = log_of(a_put(1))
    enabled: list[bool] = []
    assert gc.isenabled()
    replay(stream_of(files), lambda count: enabled.append(gc.isenabled()))
    assert (enabled, gc.isenabled()) == ([False], True)
    gc.disable()
    try:
        replay(stream_of(files))
        assert not gc.isenabled()
    finally:
        gc.enable()
