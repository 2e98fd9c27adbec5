"""Every record type, byte for byte: what is written, what is read, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.errors import CorruptCommand
from fastjournal.journal.disk.retention import fate
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import TYPE_NAMES, TYPE_OF, decode, encode, row_ids
from fastjournal.journal.language.varint import Reader, sv, uv
from fastjournal.journal.state.apply import JournalState
from fastjournal.model import DEFAULT_SETTINGS, QueueSettings

ID = bytes(range(16))
ID_HEX = "000102030405060708090a0b0c0d0e0f"
T1 = 1_700_000_000_000_000_001
T1_HEX = "17979cfe362a0001"
T2 = 1_700_000_060_000_000_000
T2_HEX = "17979d0c2e715800"
# Seconds since the year 1 (0x0EDCE5F400 + ...), nanoseconds, zone 0.
Z1_HEX = "01" + f"{1_700_000_000 + 62_135_596_800:016x}" + "00000001" + "0000"
NO_TIME_HEX = "01" + "00" * 14

GOLDEN = [
    (
        k.Add(ID, b"q", 1000, 2_592_000_000, 64, 0, 255, b"hi", 0, T1),
        "01"
        + ID_HEX
        + "0171"
        + "e807"
        + "8090fbd309"
        + "8001"
        + "00"
        + "ff01"
        + "026869"
        + NO_TIME_HEX
        + Z1_HEX,
    ),
    (
        k.Schedule(ID, b"ab", 1, 127, -1, 3, 0, b"", T1, T1),
        "02" + ID_HEX + "026162" + "01" + "7f" + "01" + "03" + "00" + "00" + Z1_HEX + Z1_HEX,
    ),
    (k.Complete(ID, b"ok"), "03" + ID_HEX + "026f6b"),
    (k.Fail(ID, b""), "04" + ID_HEX + "00"),
    (k.Delete(ID), "05" + ID_HEX),
    (k.Expire(ID), "06" + ID_HEX),
    (k.Start(ID), "07" + ID_HEX),
    (k.Timeout(ID), "08" + ID_HEX),
    (
        k.Put(ID, b"q", b"k1", 100, T1, T1, T1, 0, 1, b"data"),
        "20"
        + ID_HEX
        + "01"
        + "0171"
        + "026b31"
        + "00"
        + "c801"
        + T1_HEX * 3
        + "00" * 8
        + "00"
        + "01"
        + "0464617461"
        + "0100000000000000",
    ),
    (
        k.Put(
            ID,
            b"",
            b"k",
            -3,
            T2,
            T1,
            T2,
            T2,
            200,
            b"",
            k.Policy(5, 1000, 300, 4, 5, 6),
            1,
            2,
            3,
            (b"a", b"bc"),
        ),
        "20"
        + ID_HEX
        + "01"
        + "00"
        + "016b"
        + "02"
        + "0161"
        + "026263"
        + "05"
        + T2_HEX
        + T1_HEX
        + T2_HEX
        + T2_HEX
        + "e807"
        + "c8"
        + "00"
        + "05"
        + "ac02"
        + "01"
        + "02"
        + "03"
        + "04"
        + "05"
        + "06",
    ),
    (k.Lease(ID, T1, T2, 300, b"w"), "22" + ID_HEX + T1_HEX + T2_HEX + "ac02" + "0177"),
    (k.Renew(ID, T2, 1), "23" + ID_HEX + T2_HEX + "01"),
    (k.Touch(ID, T2), "24" + ID_HEX + T2_HEX),
    (k.Tomb(ID, b"q", b"k", T1), "25" + ID_HEX + "0171" + "016b" + T1_HEX),
    (k.Purge(ID, b"q", b"", T1), "26" + ID_HEX + "0171" + "00" + T1_HEX),
    (k.Dead(ID, 1, T1), "27" + ID_HEX + "01" + T1_HEX),
    (k.Keys(ID, b"new", (b"a",), T1), "28" + ID_HEX + "036e6577" + "01" + "0161" + T1_HEX),
    (k.Value(ID, 3, b"\x05", T1, b"op"), "29" + ID_HEX + "03" + "0105" + T1_HEX + "026f70"),
    (
        k.Group((k.Timeout(ID), k.Dead(ID, 2, T1))),
        "2c" + "02" + "11" + "08" + ID_HEX + "1a" + "27" + ID_HEX + "02" + T1_HEX,
    ),
    (k.Mark(T1, 7, 300, b"end"), "2d" + T1_HEX + "07" + "ac02" + "03656e64"),
    (k.Queue(b"q", DEFAULT_SETTINGS), "2e" + "0171" + "01" + "00"),
    (
        k.Queue(b"q", QueueSettings(max_timeouts=3, backoff_factor=1.5, paused=True, period="day")),
        "2e" + "0171" + "01" + "04" + "0106" + "06b817" + "0f02" + "1204",
    ),
    (k.Retry(ID, 1, T2, 0, 2, b"no"), "2f" + ID_HEX + "01" + T2_HEX + "00" + "02" + "026e6f"),
    (k.Redrive(ID, T2, 9), "30" + ID_HEX + T2_HEX + "09"),
    (k.Sender(b"host", T1), "31" + "04686f7374" + T1_HEX),
    (k.Ends(((ID, 1, 300), (ID, 14, 1))), "32" + "02" + ID_HEX + "01ac02" + ID_HEX + "0e01"),
]
NAMES = [f"{TYPE_OF[type(command)]}-{n}" for n, (command, _) in enumerate(GOLDEN)]


@pytest.mark.parametrize(("command", "golden"), GOLDEN, ids=NAMES)
def test_each_type_is_written_as_documented_and_read_back(command: k.Command, golden: str) -> None:
    payload = encode(command)
    assert payload.hex() == golden
    again = decode(payload)
    assert again == command
    assert type(again) is type(command)


def test_every_type_has_a_golden_record() -> None:
    assert {TYPE_OF[type(command)] for command, _ in GOLDEN} == set(TYPE_NAMES)


@pytest.mark.parametrize(("command", "golden"), GOLDEN, ids=NAMES)
def test_a_trailing_byte_is_corruption(command: k.Command, golden: str) -> None:
    with pytest.raises(CorruptCommand, match=r"too many|too early|bits|shortest"):
        decode(bytes.fromhex(golden) + b"\0")


@pytest.mark.parametrize(("command", "golden"), GOLDEN, ids=NAMES)
def test_each_truncation_is_corruption(command: k.Command, golden: str) -> None:
    payload = bytes.fromhex(golden)
    for size in range(len(payload)):
        if payload[0] in (3, 4) and size == 17:
            continue
        with pytest.raises(CorruptCommand):
            decode(payload[:size])


@pytest.mark.parametrize("cls", [k.Complete, k.Fail])
def test_the_bare_17_byte_form_of_complete_and_fail_is_an_empty_result_d03(cls: type) -> None:
    bare = bytes((TYPE_OF[cls],)) + ID
    assert decode(bare) == cls(ID, b"")
    assert encode(decode(bare)) == bare + b"\0"


def test_zone_bytes_ff_ff_are_read_and_can_be_written_d02() -> None:
    job = k.Schedule(ID, b"q", 1, 1, 0, 0, 0, b"", T1, T2)
    payload = encode(job, 0xFFFF)
    assert payload.count(b"\xff\xff") == 2
    plain = encode(job)
    assert payload == plain[:-17] + b"\xff\xff" + plain[-15:-2] + b"\xff\xff"
    assert decode(payload) == job
    add = k.Add(ID, b"q", 1, 1, 0, 0, 0, b"", 0, T2)
    assert encode(add, 0xFFFF)[-30:-15] == b"\x01" + bytes(12) + b"\xff\xff"
    assert decode(encode(add, 0xFFFF)) == add


def test_other_zone_bytes_are_corruption_d02() -> None:
    payload = encode(k.Add(ID, b"q", 1, 1, 0, 0, 0, b"", 0, T2))
    with pytest.raises(CorruptCommand, match="zone"):
        decode(payload[:-1] + b"\x3c")


@pytest.mark.parametrize("number", [0, 9, 31, 33, 42, 43, 51, 255])
def test_an_unknown_type_is_corruption_and_is_named_wq_cmd_12(number: int) -> None:
    with pytest.raises(CorruptCommand, match=f"type {number}"):
        decode(bytes((number,)) + ID)
    with pytest.raises(CorruptCommand, match=f"type {number}"):
        decode(bytes((number,)))


def test_an_empty_payload_is_corruption() -> None:
    with pytest.raises(CorruptCommand, match="empty"):
        decode(b"")


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        ("20" + ID_HEX + "02" + "00" * 60, "image version 2"),
        ("27" + ID_HEX + "04" + T1_HEX, "reason 4"),
        ("2f" + ID_HEX + "00" + T1_HEX + "000000", "reason 0"),
        ("2e" + "0171" + "02" + "00", "layout 2"),
        ("2e" + "0171" + "01" + "01" + "7f00", "setting 127"),
        ("2e" + "0171" + "01" + "01" + "1208", "period"),
        ("2e" + "0171" + "01" + "01" + "0001", "lease"),
        ("2c" + "00", "no members"),
        ("2c" + "01" + "13" + "2c01" + "11" + "05" + ID_HEX, "group inside"),
        ("2c" + "01" + "01" + "63", "unknown command type 99"),
        ("03" + ID_HEX + "8000", "shortest"),
        ("03" + ID_HEX + "ff" * 10, "64 bits"),
    ],
)
def test_wrong_content_is_corruption_and_is_named(payload: str, word: str) -> None:
    with pytest.raises(CorruptCommand, match=word):
        decode(bytes.fromhex(payload))


def test_every_record_names_its_row_in_the_16_bytes_after_the_type() -> None:
    rowless = {"GROUP", "MARK", "QUEUE", "SENDER", "ENDS"}
    for command, golden in GOLDEN:
        payload = bytes.fromhex(golden)
        name = TYPE_NAMES[payload[0]]
        if name in rowless:
            assert row_ids(payload) == ((ID, ID) if name == "GROUP" else ())
        else:
            assert payload[1:17] == ID == command.id
            assert row_ids(payload) == (ID,)


def test_rows_with_equal_limits_share_one_policy_object() -> None:
    policy = k.Policy(1, 0, 77, 1, 2, 3)
    one = decode(encode(k.Put(ID, b"q", b"", 1, T1, T1, T1, 0, 1, b"", policy)))
    two = decode(encode(k.Put(ID, b"q", b"", 2, T1, T1, T1, 0, 1, b"", policy)))
    assert isinstance(one, k.Put)
    assert isinstance(two, k.Put)
    assert one.policy is two.policy
    assert (one.policy.lease, one.policy.max_fails) == (77, 3)


i63 = st.integers(0, 2**63 - 1)
counters = st.integers(0, 400)
policies = st.builds(k.Policy, st.integers(0, 15), i63, i63, counters, counters, counters)
puts = st.builds(
    k.Put,
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=255),
    st.binary(max_size=300),
    st.integers(-(2**63), 2**63 - 1),
    i63,
    i63,
    i63,
    i63,
    st.integers(0, 255),
    st.binary(max_size=20_000),
    policies,
    counters,
    counters,
    counters,
    st.lists(st.binary(max_size=200), max_size=3).map(tuple),
)


@given(puts)
def test_a_row_image_comes_back_as_it_was_written(put: k.Put) -> None:
    payload = encode(put)
    assert decode(payload) == put
    assert encode(decode(payload)) == payload


@given(st.binary(max_size=120))
def test_any_bytes_decode_to_a_command_that_writes_them_again_or_are_corruption(
    data: bytes,
) -> None:
    try:
        command = decode(data)
    except CorruptCommand:
        return
    again = encode(command)
    assert decode(again) == command


@given(i63)
def test_numbers_come_back(number: int) -> None:
    reader = Reader(uv(number))
    assert (reader.uv(), reader.at) == (number, len(uv(number)))
    for signed in (number, -number - 1):
        reader = Reader(sv(signed))
        assert (reader.sv(), reader.at) == (signed, len(sv(signed)))


def test_an_instant_past_2262_is_read_as_the_last_one_that_can_be_told() -> None:
    touch = decode(b"\x24" + ID + b"\xff" * 8)
    assert isinstance(touch, k.Touch)
    assert touch.expires == 2**63 - 1


@pytest.mark.parametrize("kind", sorted(set(range(256)) - set(TYPE_NAMES)))
def test_the_cleaner_calls_no_record_spent_whose_type_it_does_not_know(kind: int) -> None:
    """It may be of a later version, and say something of a row that is not here."""
    with pytest.raises(CorruptCommand):
        fate(JournalState(), T1, bytes((kind,)) + ID)
