"""The stand-ins for librt do what librt does."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt import strings, vecs
from mypy_extensions import u8

from fastjournal.package import plain_buffers

BOTH = (strings, plain_buffers)
WIDTHS = {"i16": 16, "i32": 32, "i64": 64}

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 255)),
        st.tuples(st.just("write"), st.binary(max_size=40)),
        st.tuples(st.just("truncate"), st.integers(0, 60)),
        *(
            st.tuples(st.just(f"write_{name}_be"), st.integers(-(1 << w - 1), (1 << w - 1) - 1))
            for name, w in WIDTHS.items()
        ),
    ),
    max_size=30,
)


def play(module: ModuleType, story: list[tuple[str, Any]]) -> list[object]:
    writer = module.BytesWriter()
    seen: list[object] = []
    for what, value in story:
        try:
            if what.startswith("write_"):
                getattr(module, what)(writer, value)
            else:
                getattr(writer, what)(u8(value) if what == "append" else value)
        except ValueError:
            seen.append("refused")
        seen.append((writer.getvalue(), len(writer)))
    return seen


@given(steps)
def test_writers_grow_alike(story: list[tuple[str, Any]]) -> None:
    assert play(plain_buffers, story) == play(strings, story)


@given(st.binary(max_size=24), st.integers(0, 30), st.sampled_from(sorted(WIDTHS)))
def test_numbers_are_read_alike(data: bytes, at: int, width: str) -> None:
    found: list[object] = []
    for module in BOTH:
        try:
            found.append(getattr(module, f"read_{width}_be")(data, at))
        except IndexError:
            found.append(IndexError)
    assert found[0] == found[1]


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("width", sorted(WIDTHS))
def test_a_number_that_does_not_fit_is_refused(module: ModuleType, width: str) -> None:
    for value in (1 << WIDTHS[width] - 1, -(1 << WIDTHS[width] - 1) - 1):
        with pytest.raises((ValueError, OverflowError)):
            getattr(module, f"write_{width}_be")(module.BytesWriter(), value)


@pytest.mark.parametrize("module", BOTH)
def test_numbers_are_read_from_bytes_alone(module: ModuleType) -> None:
    with pytest.raises(TypeError):
        module.read_i64_be(bytearray(8), 0)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=20), st.data())
def test_arrays_are_read_and_written_alike(numbers: list[int], data: st.DataObject) -> None:
    at, number = data.draw(st.integers(0, len(numbers) - 1)), data.draw(st.integers(0, 255))
    found = []
    arrays: list[Any] = [vecs.vec, plain_buffers.vec]
    for kind in arrays:
        array = kind[u8](numbers)
        array[at] = number
        found.append((list(array), len(array), array[at]))
        with pytest.raises(IndexError):
            array[len(numbers)] = 0
    assert found[0] == found[1]
