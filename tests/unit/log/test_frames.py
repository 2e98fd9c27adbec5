"""A column of payloads to records: both engines give the bytes of `record.encode_many`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from fastjournal.errors import SettingError  # noqa: E402
from fastjournal.log.record import encode_many  # noqa: E402
from fastjournal.log.scan.encode_columns import encode_column  # noqa: E402
from fastjournal.log.scan.scan import engines  # noqa: E402

ENGINES = ["python", *(name for name in engines() if name == "numba")]


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=300), max_size=20),
    time=st.integers(0, 4 * 10**18),
    zone=st.sampled_from([0, 0xFFFF]),
    skip=st.integers(0, 3),
)
def test_a_column_is_framed_as_its_payloads_one_by_one(
    engine: str, payloads: list[bytes], time: int, zone: int, skip: int
) -> None:
    column = pa.array(payloads, pa.binary()).slice(skip)
    made = encode_column(time, column, zone, engine=engine)
    assert bytes(made) == encode_many(time, payloads[skip:], zone)[0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_sizes_are_varints_and_seconds_carry(engine: str, size: int) -> None:
    payloads = [b"x" * size, b"", b"y"]
    time = 1_700_000_000 * 10**9 - 1
    made = encode_column(time, pa.array(payloads, pa.binary()), engine=engine)
    assert bytes(made) == encode_many(time, payloads)[0]


def test_a_missing_payload_is_refused() -> None:
    with pytest.raises(SettingError, match="nulls"):
        encode_column(0, pa.array([None], pa.binary()))
