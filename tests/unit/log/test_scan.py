"""The column scan: three engines, one answer (WQ-REC-1..6, CPT-CUR-2, CPT-CUR-6)."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournal.errors import CorruptRecord, SettingError
from fastjournal.log import record
from fastjournal.log.record import encode
from fastjournal.log.scan import scan
from fastjournal.log.segment import HEADER_SIZE, WORKQ

np = pytest.importorskip("numpy")

ENGINES = scan.engines()
T0 = 1_700_000_000_000_000_000


def segment(payloads: list[bytes], first: int = T0, zone: int = 0) -> bytes:
    """A whole segment with records 1 ns apart."""
    return WORKQ.encode() + b"".join(
        encode(first + n, payload, zone) for n, payload in enumerate(payloads)
    )


def boundaries(payloads: list[bytes]) -> list[int]:
    at, found = HEADER_SIZE, [HEADER_SIZE]
    for payload in payloads:
        at += len(encode(T0, payload))
        found.append(at)
    return found


def rows(data: bytes, **options: object) -> list[tuple[int, int, bytes, int]]:
    """(time, offset, payload, kind) of every record the scan gives."""
    found = []
    for chunk in scan.Scan(data, **options):  # type: ignore[arg-type]
        if isinstance(chunk, scan.Chunk):
            found += zip(
                chunk.times.tolist(),
                chunk.offsets.tolist(),
                chunk.payloads().to_pylist(),
                chunk.kinds.tolist(),
                strict=True,
            )
    return found


def sample(count: int = 50, seed: int = 1) -> list[bytes]:
    random = Random(seed)
    return [
        bytes([1 + n % 8]) + random.randbytes(random.choice((16, 40, 200))) for n in range(count)
    ]


def test_all_engines_are_tested_here() -> None:
    assert ENGINES == ("numba", "numpy", "plain")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_scan_gives_what_the_record_decoder_gives(engine: str) -> None:
    payloads = [b"", b"\x07", *sample(), bytes(300), b"\x20" * 70_000]
    data = segment(payloads, zone=0xFFFF)
    expected, end, broken = record.decode_many(data, HEADER_SIZE, len(data), 1, 0)
    assert broken is None and end == len(data)
    assert rows(data, engine=engine) == [
        (r.time, r.offset, r.payload, r.payload[0] if r.payload else 0) for r in expected
    ]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("chunk_rows", "span"), [(1, 1 << 20), (7, 1 << 20), (65536, 64), (65536, 300)]
)
def test_the_size_of_the_chunks_changes_nothing(engine: str, chunk_rows: int, span: int) -> None:
    data = segment(sample(120))
    assert rows(data, engine=engine, rows=chunk_rows, span=span) == rows(data)


@pytest.mark.parametrize("engine", ENGINES)
def test_ids_are_the_sixteen_bytes_behind_the_kind_and_zero_when_there_are_fewer(
    engine: str,
) -> None:
    payloads = [
        b"",
        b"\x01" + bytes(range(16)),
        b"\x05short",
        b"\x02" + bytes(range(16, 32)) + b"more",
    ]
    (chunk,) = scan.Scan(segment(payloads), engine=engine)
    assert isinstance(chunk, scan.Chunk)
    assert chunk.ids().tolist() == [
        [0] * 16,
        list(range(16)),
        [0] * 16,
        list(range(16, 32)),
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_bounds_on_time_and_kind_choose_records(engine: str) -> None:
    data = segment(sample(80))
    every = rows(data)
    chosen = rows(data, engine=engine, after=T0 + 9, upto=T0 + 60, kinds={1, 5})
    assert chosen == [r for r in every if T0 + 9 < r[0] <= T0 + 60 and r[3] in {1, 5}]
    assert len(chosen) > 5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tail_cut_at_any_byte_is_torn_in_the_newest_segment_and_damage_elsewhere(
    engine: str,
) -> None:
    payloads = sample(4)
    data = segment(payloads)
    ends = boundaries(payloads)
    for cut in range(HEADER_SIZE, len(data) + 1):
        whole = max(end for end in ends if end <= cut)
        survey = scan.Scan(data[:cut], newest=True, engine=engine)
        found = sum(len(chunk) for chunk in survey if isinstance(chunk, scan.Chunk))
        assert (found, survey.end, survey.torn) == (ends.index(whole), whole, cut != whole)
        if cut != whole:
            with pytest.raises(CorruptRecord) as caught:
                list(scan.Scan(data[:cut], engine=engine, path="/x/000000001.log"))
            assert caught.value.offset == whole
            assert str(caught.value.path) == "/x/000000001.log"


@pytest.mark.parametrize("engine", ENGINES)
def test_zeros_behind_the_last_record_are_the_end_of_the_newest_segment(engine: str) -> None:
    data = segment(sample(3))
    survey = scan.Scan(data + bytes(5000), newest=True, engine=engine)
    assert len(list(survey)) == 1
    assert not survey.torn and survey.end == len(data)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_flipped_byte_in_the_middle_is_damage_with_the_next_valid_record_named(
    engine: str,
) -> None:
    payloads = sample(5)
    data = segment(payloads)
    ends = boundaries(payloads)
    for at in range(ends[2], ends[3]):
        broken = bytearray(data)
        broken[at] ^= 0xFF
        with pytest.raises(CorruptRecord) as caught:
            list(scan.Scan(bytes(broken), newest=True, engine=engine))
        assert (caught.value.offset, caught.value.next_valid) == (ends[2], ends[3])


@pytest.mark.parametrize("engine", ENGINES)
def test_permissive_yields_the_damage_in_its_place_and_goes_on(engine: str) -> None:
    payloads = sample(6)
    data = bytearray(segment(payloads))
    ends = boundaries(payloads)
    data[ends[2] + 20] ^= 1
    parts = list(scan.Scan(bytes(data), mode=scan.PERMISSIVE, engine=engine))
    assert [type(p).__name__ for p in parts] == ["Chunk", "Damage", "Chunk"]
    assert parts[1] == scan.Damage(ends[2], ends[3], "crc mismatch")
    assert [len(p) for p in parts if isinstance(p, scan.Chunk)] == [2, 3]


@pytest.mark.parametrize("engine", ENGINES)
def test_dropmalformed_keeps_every_sound_record_and_counts_the_rest(engine: str) -> None:
    payloads = sample(6)
    data = bytearray(segment(payloads))
    ends = boundaries(payloads)
    data[ends[1] + 20] ^= 1
    data[ends[4] + 20] ^= 1
    survey = scan.Scan(bytes(data), mode=scan.DROPMALFORMED, engine=engine)
    assert sum(len(chunk) for chunk in survey if isinstance(chunk, scan.Chunk)) == 4
    assert [d.offset for d in survey.damage] == [ends[1], ends[4]]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_payload_above_the_limit_is_damage_and_one_at_the_limit_is_not(engine: str) -> None:
    data = segment([b"a" * 1000, b"b"])
    assert len(rows(data, engine=engine, max_payload=1000)) == 2
    with pytest.raises(CorruptRecord, match="exceeds the limit"):
        list(scan.Scan(data, max_payload=999, engine=engine))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_payload_of_sixteen_mebibytes_is_read(engine: str) -> None:
    large = bytes(16 << 20)
    found = rows(segment([b"\x01small", large, b"\x02small"]), engine=engine, span=1 << 20)
    assert [len(r[2]) for r in found] == [6, 16 << 20, 6]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_the_engines_agree_on_any_bytes(junk: bytes, newest: bool) -> None:
    data = segment(sample(2)) + junk + segment([b"\x01tail"])[HEADER_SIZE:]
    told = []
    for engine in ENGINES:
        survey = scan.Scan(data, mode=scan.PERMISSIVE, newest=newest, engine=engine)
        parts = [
            p if isinstance(p, scan.Damage) else p.offsets.tolist() + p.times.tolist()
            for p in survey
        ]
        told.append((parts, survey.end, survey.torn))
    assert [one == told[0] for one in told] == [True] * len(ENGINES)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_engines_agree_after_any_single_flip(draw: st.DataObject) -> None:
    data = bytearray(segment(sample(6, seed=draw.draw(st.integers(0, 99)))))
    at = draw.draw(st.integers(HEADER_SIZE, len(data) - 1))
    data[at] ^= draw.draw(st.integers(1, 255))
    answers = [scan.verify(bytes(data), newest=True, engine=engine) for engine in ENGINES]
    assert [one == answers[0] for one in answers] == [True] * len(ENGINES)
    assert answers[0].records >= 4 or answers[0].damage or answers[0].torn


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_engines_agree_on_a_log_cut_and_damaged_anywhere_in_chunks_of_any_size(
    draw: st.DataObject,
) -> None:
    whole = segment(sample(30, seed=draw.draw(st.integers(0, 99))))
    data = bytearray(whole[: draw.draw(st.integers(HEADER_SIZE, len(whole)))])
    for _ in range(draw.draw(st.integers(0, 4))):
        at = draw.draw(st.integers(HEADER_SIZE, max(HEADER_SIZE, len(data) - 1)))
        junk = draw.draw(st.binary(max_size=30))
        data[at : at + draw.draw(st.integers(0, 30))] = junk
    bounds = {"after": T0 + 3, "upto": T0 + 25, "kinds": {1, 2, 3, 5}}
    chosen = {name: value for name, value in bounds.items() if draw.draw(st.booleans())}
    size = (
        draw.draw(st.sampled_from([1, 7, 65_536])),
        draw.draw(st.sampled_from([64, 300, 1 << 20])),
    )
    told = []
    for engine in ENGINES:
        survey = scan.Scan(
            bytes(data),
            mode=scan.DROPMALFORMED,
            newest=True,
            engine=engine,
            rows=size[0],
            span=size[1],
            **chosen,
        )
        found = [
            row
            for chunk in survey
            if isinstance(chunk, scan.Chunk)
            for row in zip(
                *(c.tolist() for c in (chunk.times, chunk.offsets, chunk.starts, chunk.sizes)),
                chunk.kinds.tolist(),
                strict=True,
            )
        ]
        told.append((found, survey.records, survey.end, survey.torn, survey.damage))
    assert [one == told[0] for one in told] == [True] * len(ENGINES)


@pytest.mark.parametrize("engine", ENGINES)
def test_who_knows_what_was_synced_says_what_is_a_tear(engine: str) -> None:
    payloads = sample(5)
    data = bytearray(segment(payloads))
    ends = boundaries(payloads)
    data[ends[2] + 20] ^= 1
    holes = scan.Scan(bytes(data), torn=lambda at, following: at >= ends[1], engine=engine)
    assert sum(len(c) for c in holes if isinstance(c, scan.Chunk)) == 2
    assert (holes.torn, holes.end) == (True, ends[2])
    safe = scan.Scan(bytes(data[: ends[3] - 2]), torn=lambda at, following: False, engine=engine)
    with pytest.raises(CorruptRecord):
        list(safe)


def test_verify_says_how_many_records_and_which_times() -> None:
    data = segment(sample(10))
    size = sum(map(len, sample(10)))
    whole = scan.Verdict(10, T0, T0 + 9, len(data), False, (), size, T0 + 9)
    assert [scan.verify(data, engine=engine) for engine in ENGINES] == [whole] * len(ENGINES)
    assert scan.verify(WORKQ.encode()).records == 0


def test_a_mapped_file_scans_as_its_bytes(tmp_path: Path) -> None:
    data = segment(sample(30))
    path = tmp_path / "000000001.log"
    path.write_bytes(data)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for engine in ENGINES:
        assert rows(mapped, engine=engine) == rows(data)  # type: ignore[arg-type]


def test_slices_become_binary_in_any_order_and_null_where_asked() -> None:
    found = scan.slices_to_binary(
        b"xxabcyyde",
        np.array([7, 2, 5, 3, 0]),
        np.array([2, 3, 4, 1, 0]),
        np.array([False, False, True, False, False]),
    )
    assert found.to_pylist() == [b"de", b"abc", None, b"b", b""]
    found.validate(full=True)
    assert len(found.buffers()[2]) == 6  # the bytes of what is null are not held
    nothing = np.array([], dtype=np.int64)
    assert scan.slices_to_binary(b"", nothing, nothing).to_pylist() == []


def test_an_unknown_engine_or_mode_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="engine 'fortran'"):
        scan.Scan(b"", engine="fortran")
    with pytest.raises(SettingError, match="mode"):
        scan.Scan(b"", mode="LAX")


def test_the_crc_table_agrees_with_the_cpu_instruction(tmp_path: Path) -> None:
    """On a CPU without the instruction the table is used; both give the check value of CRC-32C."""
    code = (
        "import numpy as np; from fastjournal.log.scan import kernel as s;"
        "d=np.frombuffer(b'123456789'*5, dtype=np.uint8);"
        "print(s.HARDWARE_CRC, hex(s.crc32c(d,0,9)), s.crc32c(d,1,44))"
    )
    told = []
    for name in ("", "generic"):
        env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)} | (
            {"NUMBA_CPU_NAME": name} if name else {}
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=env,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        told.append(done.stdout.split())
    assert told[1][0] == "False"
    assert told[0][1:] == told[1][1:]
    assert told[0][1] == "0xe3069283"


def told_by(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_a_small_log_is_checked_without_loading_numpy_or_numba() -> None:
    told = told_by(
        "import sys, fastjournal.log.scan.scan as scan;"
        "assert scan.verify(bytes(8)).records == 0;"
        "print([m for m in ('numpy', 'numba', 'pyarrow', 'pyspark') if m in sys.modules])"
    )
    assert told == "[]"


def test_a_journal_opens_without_loading_numpy_or_numba(tmp_path: Path) -> None:
    told = told_by(
        "import sys, fastjournal; from pathlib import Path;"
        f"path = Path({str(tmp_path / 'jobs')!r});"
        "journal = fastjournal.Journal(path, background=False); journal.put(b'v', queue='q');"
        "journal.close(); (path / 'synced.pos').unlink();"
        "last = max(path.glob('*.log')); last.write_bytes(last.read_bytes() + b'torn');"
        "journal = fastjournal.Journal(path, background=False); journal.close();"
        "print([m for m in ('numpy', 'numba', 'pyarrow') if m in sys.modules])"
    )
    assert told == "[]"


def test_a_large_log_is_worth_loading_the_compiled_engine_and_a_loaded_one_is_used() -> None:
    told = told_by(
        "import sys, fastjournal.log.scan.scan as scan;"
        "print(scan.fitting(1 << 20), scan.fitting(1 << 30), 'numba' in sys.modules);"
        "scan.warm_up(); print(scan.fitting(0))"
    )
    assert told.split() == ["plain", "numba", "False", "numba"]


def test_without_numpy_a_log_is_scanned_and_checked_all_the_same(tmp_path: Path) -> None:
    """The base installation has neither numpy nor numba."""
    data = bytearray(segment(sample(9)))
    data[boundaries(sample(9))[3] + 20] ^= 1
    path = tmp_path / "log"
    path.write_bytes(data)
    told = told_by(
        "import sys; sys.modules['numpy'] = sys.modules['numba'] = None;"
        "import fastjournal.log.scan.scan as scan;"
        f"data = open({str(path)!r}, 'rb').read();"
        "survey = scan.Scan(data, mode='PERMISSIVE', kinds={1, 2});"
        "found = [c.kinds.tolist() for c in survey if isinstance(c, scan.Chunk)];"
        "print(scan.engines(), scan.fitting(1 << 40), survey.engine, found);"
        "print(scan.verify(data).records)"
    )
    assert told == "('plain',) plain plain [[1, 2], [1]]\n8"


def test_strictly_increasing_times_come_out_in_file_order() -> None:
    found = [r[0] for r in rows(segment(sample(200)), rows=13)]
    assert all(a < b for a, b in pairwise(found))
