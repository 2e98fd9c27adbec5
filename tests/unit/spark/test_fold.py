"""Replay by shares equals applying every record, row for row and field for field (law 1, law 6)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournal.errors import CorruptRecord
from fastjournal.journal.decide.ground import everywhere_id
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import encode
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import image
from fastjournal.log.record import encode as record
from fastjournal.log.scan.scan import Buffer
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.model import NewJob
from fastjournal.spark.replay.fold import Share, fold
from fastjournal.spark.storage.segments import Piece
from stepped_core import Decisions

T0 = 1_700_000_000_000_000_000
Segments = list[tuple[Piece, Buffer]]


def some_command(random: Random, rows: int) -> k.Command:
    """Any command on one of a few rows, fitting its state or not."""
    row = random.randrange(rows).to_bytes(16, "little")
    t = random.randrange(1, 1 << 50)
    queue, key = random.choice([b"q", b"z", b""]), random.choice([b"k1", b"k2", b""])
    makers: list[k.Command] = [
        k.Add(row, b"q", 1000, 5000, 3, 2, 1, b"x", 0, t),
        k.Schedule(row, b"q", 1000, 5000, -3, 2, 1, b"x", t, t),
        k.Complete(row, b"r"),
        k.Fail(row, b"r"),
        k.Delete(row),
        k.Expire(row),
        k.Start(row),
        k.Timeout(row),
        k.Put(row, queue, key, 5, t, t, t, 0, 1, b"v", aliases=(b"a",) if t % 2 else ()),
        k.Lease(row, t, t + 5, 3, b"w"),
        k.Renew(row, t, 3),
        k.Touch(row, t),
        k.Tomb(row, queue, key, t),
        k.Purge(row, queue, key, t),
        k.Dead(row, 1, t),
        k.Keys(row, b"k9", (b"a", b"b"), t),
        k.Value(row, 1, b"vv", t, b"op"),
        k.Mark(t, 1, 2, b""),
        k.Sender(b"s", t),
        k.Retry(row, 1, t, 1, 1, b"n"),
        k.Redrive(row, t, 3),
    ]
    return random.choice(makers)


def history(random: Random, length: int, rows: int = 6) -> list[k.Command]:
    return [
        k.Group(tuple(some_command(random, rows) for _ in range(random.randrange(1, 4))))
        if random.random() < 0.15
        else some_command(random, rows)
        for _ in range(length)
    ]


def segments_of(commands: list[k.Command], random: Random) -> Segments:
    found: Segments = []
    n = 0
    while n < len(commands):
        until = n + random.randrange(1, 20)
        data = WORKQ.encode() + b"".join(
            record(T0 + j, encode(commands[j])) for j in range(n, min(until, len(commands)))
        )
        number = len(found) + 1
        found.append((Piece(segment_name(number), number, len(data), newest=False), data))
        n = until
    return found


def rows_of(state: JournalState) -> dict[bytes, list[bytes]]:
    return {row_id: [encode(c) for c in image(row)] for row_id, row in state.rows.items()}


def replayed(commands: list[k.Command]) -> JournalState:
    state = JournalState()
    for n, command in enumerate(commands):
        state.apply(command, T0 + n)
    return state


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120), st.integers(1, 5))
def test_the_shares_together_are_the_state(seed: int, length: int, shares: int) -> None:
    random = Random(seed)
    commands = history(random, length)
    segments = segments_of(commands, random)
    found: dict[bytes, list[bytes]] = {}
    for index in range(shares):
        part = rows_of(fold(segments, share=Share(index, shares)))
        assert not found.keys() & part.keys()
        found |= part
    assert found == rows_of(replayed(commands))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_as_of_every_tenth_record_equals_the_state_at_that_record(seed: int) -> None:
    random = Random(seed)
    commands = history(random, 100)
    segments = segments_of(commands, random)
    for n in range(0, 100, 10):
        assert rows_of(fold(segments, upto=T0 + n)) == rows_of(replayed(commands[: n + 1]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 80))
def test_a_known_state_and_the_rest_of_the_log_give_the_whole_state(seed: int, cut: int) -> None:
    random = Random(seed)
    commands = history(random, 80)
    state = JournalState()
    for n, command in enumerate(commands[:cut]):
        state.apply(command, T0 + n)
    tail = [
        (piece, data)
        for piece, data in segments_of([k.Mark(1, 1, 1)] * cut + commands[cut:], random)
    ]
    assert rows_of(fold(tail, state=state)) == rows_of(replayed(commands))


@pytest.mark.parametrize("shares", [1, 3])
def test_a_key_deleted_in_all_queues_is_so_in_every_replay(shares: int) -> None:
    state = JournalState()
    jobs = Decisions(state)
    told: list[k.Command] = []

    def commit(command: k.Command | None) -> None:
        if command is not None:
            told.append(command)
            state.apply(command, T0 + len(told) - 1)

    for queue in (b"a", b"b"):
        commit(jobs.put(NewJob(queue, b"v", b"k"), T0).command)
    for now in (T0 + 1000, T0 + 2000):
        for deleted in jobs.delete_everywhere(b"k", now):
            commit(deleted.command)
    assert rows_of(replayed(told)) == rows_of(state)
    found: dict[bytes, list[bytes]] = {}
    for index in range(shares):
        found |= rows_of(fold(segments_of(told, Random(1)), share=Share(index, shares)))
    assert found == rows_of(state)
    assert state.rows[everywhere_id(b"k")].modified == T0 + 2000


def test_many_rows_make_the_set_of_settled_rows_grow() -> None:
    random = Random(5)
    commands = history(random, 20_000, rows=9_000)
    data = WORKQ.encode() + b"".join(record(T0 + n, encode(c)) for n, c in enumerate(commands))
    half = len(data)
    segments: Segments = [(Piece("1.log", 1, half, newest=True), data)]
    assert rows_of(fold(segments)) == rows_of(replayed(commands))


def one(payload: bytes) -> Segments:
    data = WORKQ.encode() + record(T0, payload)
    return [(Piece("/j/000000001.log", 1, len(data), newest=True), data)]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc8" + bytes(16),
        b"\x05" + bytes(17),
        b"\x01" + bytes(16) + b"\xff",
        b"\x2c\x05",
        b"\x07" + bytes(3),
    ],
)
def test_a_payload_that_is_no_command_stops_the_fold_with_its_place(payload: bytes) -> None:
    """WQ-CMD-12, WQ-REC-5: unknown types and bytes left over are never passed by."""
    with pytest.raises(CorruptRecord) as caught:
        fold(one(payload))
    assert (str(caught.value.path), caught.value.offset) == ("/j/000000001.log", 8)
    assert not fold(one(payload), mode="DROPMALFORMED").rows


def test_every_row_belongs_to_exactly_one_share() -> None:
    random = Random(6)
    for _ in range(200):
        row = random.randbytes(16)
        assert [Share(n, 7).has(row) for n in range(7)].count(True) == 1
