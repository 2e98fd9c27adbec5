"""Records to Arrow columns, without Spark: readers called directly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournal.errors import CorruptCommand, SettingError
from fastjournal.journal.language import codec, commands
from fastjournal.log.record import encode
from fastjournal.log.scan.scan import Chunk, Scan
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.spark.decode import field_kernel
from fastjournal.spark.decode.field_kernel import group_sizes
from fastjournal.spark.decode.fields import NUMBERS, SLICES, Fields
from fastjournal.spark.errors import CodedError, explain
from fastjournal.spark.options import Settings
from fastjournal.spark.schema import VIEW_COLUMNS, arrow_schema, names_of, struct
from fastjournal.spark.source.data_source import JournalReader

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "workq"
T0 = 1_700_000_000_000_000_000
EVERY = ",".join([*VIEW_COLUMNS["records"][0], *VIEW_COLUMNS["records"][1]])


def segment(payloads: Sequence[bytes]) -> bytes:
    return WORKQ.encode() + b"".join(encode(T0 + n, p) for n, p in enumerate(payloads))


def read(path: Path, **options: str) -> list[dict[str, Any]]:
    """What a load of `path` with these options gives, as the tasks give it."""
    given = Settings.parse({"path": str(path), **options})
    names = names_of(given)
    reader = JournalReader(struct(given.view, names), given)
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    for batch in found:
        assert batch.schema.equals(arrow_schema(given.view, names))
        batch.validate(full=True)
    return pa.Table.from_batches(found, arrow_schema(given.view, names)).to_pylist()


@pytest.mark.parametrize("case", sorted(p.name for p in GOLDEN.iterdir() if p.is_dir()))
def test_logs_of_the_real_server_give_its_own_values(case: str) -> None:
    """WQ-CMD-1..9: every field of every record as a second decoder saw it."""
    expected = json.loads((GOLDEN / case / "expected.json").read_text())["records"]
    rows = read(GOLDEN / case, columns=EVERY)
    assert len(rows) == len(expected) > 0
    for row, told in zip(rows, expected, strict=True):
        assert row["_error"] is None
        assert (row["_offset"], row["type"]) == (told["offset"], told["type"])
        assert row["id"].hex() == told["id"].replace("-", "")
        if told["type"] in (1, 2):
            assert row["queue"] == told["name"]
            assert row["lease_ms"] == told["ttr"]
            assert row["priority"] == -told["priority"]
            assert (row["max_attempts"], row["max_fails"]) == (
                told["max_attempts"],
                told["max_fails"],
            )
            assert row["payload"].hex() == told["payload_hex"]
        else:
            assert row["payload"] is None and row["queue"] is None
        if told["type"] in (3, 4):
            assert row["result"].hex() == told["result_hex"]


instants = st.integers(0, 2**62)
small = st.integers(0, 2**31 - 1)
names = st.binary(max_size=200)
puts = st.builds(
    commands.Put,
    row_id=st.binary(min_size=16, max_size=16),
    queue=names,
    key=names,
    rank=st.integers(-(2**40), 2**40),
    due=instants,
    inserted=instants,
    modified=instants,
    expires=instants,
    kind=st.integers(0, 5),
    value=st.binary(max_size=300),
    policy=st.builds(commands.Policy, st.integers(0, 15), small, small, small, small, small),
    attempts=small,
    timeouts=small,
    fails=small,
    aliases=st.lists(names, max_size=3).map(tuple),
)
adds = st.builds(
    commands.Add,
    row_id=st.binary(min_size=16, max_size=16),
    name=names,
    ttr=small,
    ttl=st.one_of(st.integers(0, 2**31), st.integers(0, 2**62)),
    priority=st.integers(-(2**31), 2**31 - 1),
    max_attempts=st.integers(0, 255),
    max_fails=st.integers(0, 255),
    payload=st.binary(max_size=300),
    time=st.one_of(st.just(0), st.integers(1, 2**61)),
    created=st.integers(1, 2**61),
)
results = st.builds(
    commands.Complete, row_id=st.binary(min_size=16, max_size=16), result=st.binary(max_size=300)
)


rows = st.binary(min_size=16, max_size=16)
rarer = st.one_of(
    st.builds(commands.Lease, rows, instants, instants, small, names),
    st.builds(commands.Renew, rows, instants, small),
    st.builds(commands.Touch, rows, instants),
    st.builds(commands.Tomb, rows, names, names, instants),
    st.builds(commands.Purge, rows, names, names, instants),
    st.builds(commands.Dead, rows, st.integers(1, 3), instants),
    st.builds(commands.Keys, rows, names, st.lists(names, max_size=3).map(tuple), instants),
    st.builds(commands.Value, rows, st.integers(0, 5), names, instants, names),
    st.builds(commands.Retry, rows, st.integers(1, 3), instants, small, small, names),
    st.builds(commands.Redrive, rows, instants, small),
    st.builds(commands.Start, rows),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(puts, adds, results), min_size=1, max_size=12))
def test_fields_decoded_all_at_once_equal_the_commands_that_were_written(given: list[Any]) -> None:
    (chunk,) = Scan(segment([codec.encode(c) for c in given]))
    assert isinstance(chunk, Chunk)
    _equal_to_commands(chunk, Fields(chunk), given)


def _equal_to_commands(chunk: Chunk, fields: Fields, given: list[Any]) -> None:
    assert not fields.bad.any()

    def cut(name: str, n: int) -> bytes | None:
        starts, sizes, missing = fields.slice_of(name)
        return None if missing[n] else chunk.data[starts[n] : starts[n] + sizes[n]]

    def number(name: str, n: int) -> int | None:
        values, missing = fields.number(name)
        return None if missing[n] else int(values[n])

    for n, command in enumerate(given):
        if isinstance(command, commands.Put):
            assert (cut("queue", n), cut("key", n), cut("payload", n)) == (
                command.queue,
                command.key,
                command.value,
            )
            assert number("priority", n) == command.rank
            assert number("due", n) == (command.due or None)
            assert number("expires", n) == (command.expires or None)
            assert number("lease_ms", n) == command.policy.lease
            assert number("max_fails", n) == command.policy.max_fails
        elif isinstance(command, commands.Add):
            assert (cut("queue", n), cut("payload", n)) == (command.name, command.payload)
            assert number("priority", n) == -command.priority
            start = command.time or command.created
            end = min(start + command.ttl * 1_000_000, 2**63 - 1) if command.ttl else None
            assert (number("due", n), number("expires", n)) == (start, end)
        else:
            assert cut("result", n) == command.result and cut("payload", n) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(rarer, min_size=1, max_size=12))
def test_what_the_rarer_commands_say_is_read_by_the_same_kernel(given: list[Any]) -> None:
    (chunk,) = Scan(segment([codec.encode(c) for c in given]))
    assert isinstance(chunk, Chunk)
    fields = Fields(chunk, every=True)
    assert not fields.bad.any()
    assert all(fields.number(name)[1].all() for name in NUMBERS)
    told = dict(zip(field_kernel.NUMBERS, fields.numbers.tolist(), strict=True))
    texts = {name: fields.text(name).to_pylist() for name in field_kernel.SLICES}
    for n, command in enumerate(given):
        for name, values in told.items():
            assert values[n] == getattr(command, name, 0), name
        for name in ("queue", "key", "worker", "note"):
            assert texts[name][n] == (getattr(command, name, b"") or None)


@settings(max_examples=300, deadline=None)
@given(st.one_of(puts, adds, results, rarer), st.data())
def test_a_payload_that_does_not_parse_is_marked_and_has_no_fields(
    command: Any, data: st.DataObject
) -> None:
    payload = bytearray(codec.encode(command))
    cut = data.draw(st.integers(17, len(payload)))
    payload = payload[:cut] + data.draw(st.binary(max_size=3))
    try:
        codec.decode(bytes(payload))
        sound = True
    except CorruptCommand:
        sound = False
    (chunk,) = Scan(segment([bytes(payload), b"\x05" + bytes(16)]))
    assert isinstance(chunk, Chunk)
    fields = Fields(chunk, every=True)
    assert fields.bad.tolist() == [not sound, False]
    if not sound:
        assert all(fields.slice_of(name)[2][0] for name in SLICES)
        assert all(fields.number(name)[1][0] for name in NUMBERS)
        assert not fields.numbers[:, 0].any()


def test_names_that_are_not_utf_8_are_shown_with_their_odd_bytes(tmp_path: Path) -> None:
    put = commands.Put(bytes(16), b"caf\xe9", b"\xff\x00k", 0, 1, 1, 1, 0, 1, b"v")
    (tmp_path / segment_name(1)).write_bytes(segment([codec.encode(put)]))
    (row,) = read(tmp_path, columns="queue,key,key_bytes")
    assert row == {"queue": "caf\\xe9", "key": "\\xff\x00k", "key_bytes": b"\xff\x00k"}


def test_broadcast_kinds_have_no_id(tmp_path: Path) -> None:
    mark = codec.encode(commands.Mark(1, 2, 3, b"a note of more than sixteen bytes"))
    (tmp_path / segment_name(1)).write_bytes(segment([mark, b"\x05" + b"i" * 16, b"\x05short"]))
    assert [r["id"] for r in read(tmp_path, columns="id,command")] == [None, b"i" * 16, None]


def test_filters_by_time_command_queue_and_segment_choose_rows(tmp_path: Path) -> None:
    def put(queue: bytes) -> bytes:
        return codec.encode(commands.Put(bytes(16), queue, b"k", 0, 1, 1, 1, 0, 1, b"v"))

    (tmp_path / segment_name(1)).write_bytes(segment([put(b"a"), put(b"b"), b"\x05" + bytes(16)]))
    assert [r["queue"] for r in read(tmp_path, queue="b,c")] == ["b"]
    assert [r["command"] for r in read(tmp_path, commands="delete")] == ["delete"]
    bounds = {"since": str(T0 + 1), "until": str(T0 + 2)}
    assert [r["time_ns"] for r in read(tmp_path, **bounds)] == [T0 + 1]
    assert read(tmp_path, fromSegment="2") == []


def damaged(tmp_path: Path) -> tuple[Path, int]:
    payloads = [b"\x05" + bytes([n]) * 16 for n in range(5)]
    data = bytearray(segment(payloads))
    at = 8 + 2 * 37
    data[at + 20] ^= 1
    (tmp_path / segment_name(1)).write_bytes(bytes(data))
    return tmp_path, at


def test_failfast_names_file_offset_and_code(tmp_path: Path) -> None:
    path, at = damaged(tmp_path)
    with pytest.raises(CodedError) as caught:
        read(path)
    code, text = explain(caught.value) or ("", "")
    assert code == "SERVER-ERROR"
    assert f"offset {at}" in text and "000000001.log" in text and "crc mismatch" in text


def test_permissive_gives_the_damage_as_a_row_in_its_place(tmp_path: Path) -> None:
    path, at = damaged(tmp_path)
    rows = read(path, mode="PERMISSIVE", columns="time_ns,_offset,_segment,_corrupt_record,_error")
    assert [r["_error"] for r in rows] == [None, None, "crc mismatch", None, None]
    assert rows[2]["time_ns"] is None
    assert (rows[2]["_segment"], rows[2]["_offset"]) == (1, at)
    assert len(rows[2]["_corrupt_record"]) == 37
    assert {"_corrupt_record", "_error"} <= set(read(path, mode="PERMISSIVE")[0])


def test_dropmalformed_leaves_the_damage_out(tmp_path: Path) -> None:
    path, _ = damaged(tmp_path)
    assert len(read(path, mode="DROPMALFORMED")) == 4


def test_the_segments_view_counts_damage_instead_of_raising(tmp_path: Path) -> None:
    path, _ = damaged(tmp_path)
    whole = segment([b"\x05" + bytes(16)])
    (path / segment_name(2)).write_bytes(whole + b"\x01torn")
    (path / segment_name(4)).write_bytes(WORKQ.encode())
    rows = read(path, view="segments")
    assert [(r["segment"], r["records"], r["damaged"], r["torn_bytes"]) for r in rows] == [
        (1, 4, 1, 0),
        (2, 1, 0, 5),
    ]
    assert rows[1]["newest"] and rows[0]["first_time_ns"] == T0


def test_small_segments_share_batches_in_order(tmp_path: Path) -> None:
    for n in range(1, 301):
        row = b"\x05" + n.to_bytes(16, "big")
        (tmp_path / segment_name(n)).write_bytes(WORKQ.encode() + encode(T0 + n, row))
    given = Settings.parse({"path": str(tmp_path), "columns": "time_ns"})
    reader = JournalReader(struct("records", names_of(given)), given)
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert len(found) == 1
    assert found[0].column(0).to_pylist() == [T0 + n for n in range(1, 301)]


def partitions(path: Path, **options: str) -> tuple[JournalReader, list[Any]]:
    given = Settings.parse({"path": str(path), **options})
    reader = JournalReader(struct(given.view, names_of(given)), given)
    return reader, list(reader.partitions())


def times_in(reader: JournalReader, part: Any) -> list[int]:
    return [time for batch in reader.read(part) for time in batch.column(0).to_pylist()]


@pytest.mark.parametrize("number", [1, 2])
def test_a_large_segment_is_read_by_several_tasks_each_record_once(
    tmp_path: Path, number: int
) -> None:
    """Sealed or newest; also where payloads look like records, and damage stands between."""
    inner = segment([b"\x05" + bytes(16)] * 40)
    payloads = [b"\x05" + n.to_bytes(16, "big") + (inner if n % 3 else b"") for n in range(400)]
    data = bytearray(segment(payloads))
    at = data.index(payloads[99])
    data[at] ^= 1
    for n in (1, 2):
        small = WORKQ.encode() + encode(T0 - 1 if n == 1 else T0 + 10**6, b"\x05" + bytes(16))
        (tmp_path / segment_name(n)).write_bytes(bytes(data) if n == number else small)
    columns = "time_ns,_offset,_error"
    whole = read(tmp_path, columns=columns, mode="PERMISSIVE")
    assert len(whole) > 400 and [row["_error"] for row in whole].count(None) < len(whole)
    for option in ({"minPartitions": "7"}, {"maxPartitionBytes": str(len(data) // 6)}):
        assert read(tmp_path, columns=columns, mode="PERMISSIVE", **option) == whole
        reader, parts = partitions(tmp_path, columns="time_ns", mode="DROPMALFORMED", **option)
        found = [len(times_in(reader, part)) for part in parts]
        assert len(found) >= 7 and max(found) < 200


def test_a_segment_cleaned_between_its_tasks_gives_each_record_that_is_left_once(
    tmp_path: Path,
) -> None:
    payloads = [b"\x05" + n.to_bytes(16, "big") for n in range(600)]
    records = [encode(T0 + n, payload) for n, payload in enumerate(payloads)]
    path = tmp_path / segment_name(1)
    path.write_bytes(WORKQ.encode() + b"".join(records))
    (tmp_path / segment_name(2)).write_bytes(WORKQ.encode() + encode(T0 + 600, payloads[0]))
    reader, parts = partitions(tmp_path, columns="time_ns", minPartitions="4")
    found = times_in(reader, parts[0])
    path.unlink()
    path.write_bytes(WORKQ.encode() + b"".join(records[500:]))
    for part in parts[1:]:
        found += times_in(reader, part)
    assert len(found) == len(set(found))
    assert set(range(T0 + 500, T0 + 601)) <= set(found)


def test_a_schema_of_the_user_must_have_the_types_of_the_view(tmp_path: Path) -> None:
    from pyspark.sql.types import IntegerType, LongType, StructType

    given = Settings.parse({"path": str(tmp_path)})
    reader = JournalReader(StructType().add("size", IntegerType()), given)
    assert reader.settings.columns == ("size",)
    with pytest.raises(SettingError, match="size is int, not bigint"):
        JournalReader(StructType().add("size", LongType()), given)
    with pytest.raises(SettingError, match="records has no 'colour'"):
        JournalReader(StructType().add("colour", LongType()), given)


def test_a_number_in_more_bytes_than_it_needs_is_none_for_any_reader() -> None:
    """One reader of numbers: what the journal refuses no kernel takes in."""
    member = codec.encode(commands.Expire(bytes(16)))
    sound = bytes((44, 1, len(member))) + member
    long = bytes((44, 0x81, 0x00, len(member))) + member
    assert codec.decode(sound)
    with pytest.raises(CorruptCommand):
        codec.decode(long)
    for payload, wanted in ((sound, 1), (long, -1)):
        counts = np.zeros(1, dtype=np.int64)
        group_sizes(
            np.frombuffer(payload, dtype=np.uint8), np.array([0]), np.array([len(payload)]),
            np.array([44]), counts,
        )  # fmt: skip
        assert counts[0] == wanted
