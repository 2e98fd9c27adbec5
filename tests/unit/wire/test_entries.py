"""Entries on the wire: pictures, and who changes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.buffers import BytesWriter
from fastjournal.entry_model import Entry, Watched, watched
from fastjournal.errors import BadRequest, ProtocolError
from fastjournal.wire.fj.entry_codec import (
    decode_entry,
    decode_who,
    encode_who,
    write_entry,
)

INSTANT = st.integers(0, 2**63 - 1)
ENTRIES = st.builds(
    Entry,
    key=st.binary(min_size=1, max_size=20),
    kind=st.integers(0, 255),
    data=st.binary(max_size=300),
    created=INSTANT,
    modified=INSTANT,
    expires=INSTANT,
    ttl=INSTANT,
    persist=st.booleans(),
    lease_until=INSTANT,
    worker=st.binary(max_size=255),
    token=st.integers(0, 2**32 - 1),
    locked=st.booleans(),
    keys=st.lists(st.binary(min_size=1, max_size=300), max_size=5).map(tuple),
    accessed=st.integers(0, 2**63 - 1),
)
T = 1_700_000_000_000_000_000


def encode_entry(entry: Entry, *, read: bool = False) -> bytes:
    """The picture of an entry; `read`: with when it was read last."""
    out = BytesWriter()
    write_entry(
        out, entry.created, entry.modified, entry.expires, entry.ttl, entry.lease_until,
        entry.token, entry.persist, entry.locked, entry.worker, entry.keys, entry.data,
        entry.accessed if read else -1,
    )  # fmt: skip
    return out.getvalue()


@given(ENTRIES)
def test_a_picture_gives_the_same_entry(entry: Entry) -> None:
    """FJ-KV-3."""
    assert decode_entry(entry.key, entry.kind, encode_entry(entry, read=True)) == entry


@given(ENTRIES, st.data())
def test_a_picture_that_is_cut_off_is_refused_or_has_a_shorter_value(
    entry: Entry, data: st.DataObject
) -> None:
    whole = encode_entry(entry)
    size = data.draw(st.integers(0, len(whole)))
    try:
        read = decode_entry(entry.key, entry.kind, whole[:size])
    except ProtocolError:
        assert size < len(whole) - len(entry.data)
    else:
        assert entry.data.startswith(read.data)


def test_a_picture_of_another_layout_is_refused() -> None:
    picture = encode_entry(Entry(b"k", 1, b"x", 1, 2, 3, 4, True))
    with pytest.raises(ProtocolError):
        decode_entry(b"k", 1, b"\2" + picture[1:])


def test_the_golden_picture_reads_as_its_name_says() -> None:
    golden = Path(__file__).parents[2] / "golden" / "wire" / "fj-extensions.json"
    example = next(e for e in json.loads(golden.read_text()) if "all of a, also" in e["name"])
    _, kind, value, _ = example["means"]["pairs"][0]
    entry = decode_entry(b"a", kind, bytes.fromhex(value))
    assert (entry.value, entry.keys, entry.locked, entry.worker) == (
        "hi",
        (b"a", b"b"),
        True,
        b"me",
    )
    assert (entry.created, entry.modified, entry.persist) == (T, T + 1000, True)


@given(st.integers(0, 2**63 - 1), st.binary(max_size=255))
def test_who_comes_back(fence: int, name: bytes) -> None:
    """D-22."""
    assert decode_who(encode_who(fence, name)) == (fence, name)


def test_who_is_checked() -> None:
    for fence in (-1, 2**63):
        with pytest.raises(BadRequest):
            encode_who(fence)
    with pytest.raises(BadRequest):
        encode_who(1, b"n" * 256)
    for upper in (b"", b"1234567", bytes(264)):
        with pytest.raises(BadRequest):
            decode_who(upper)


def test_what_is_watched_holds_its_keys_and_no_others() -> None:
    assert watched("k") == Watched(b"k", None)
    assert [key for key in (b"a", b"k", b"ka") if watched("k").holds(key)] == [b"k"]
    keys = (b"j\xff", b"k", b"k\xff\xff", b"l")
    assert [key for key in keys if watched(prefix="k").holds(key)] == [b"k", b"k\xff\xff"]
    assert [key for key in keys if watched(lower="k", upper="l").holds(key)] == list(keys[1:])
    assert [key for key in keys if watched(lower=b"k\xff\xff\0").holds(key)] == [b"l"]
    assert all(watched().holds(key) for key in keys)
    assert watched(prefix=b"\xff").upper == b""
    with pytest.raises(BadRequest):
        watched("k", prefix="k")
