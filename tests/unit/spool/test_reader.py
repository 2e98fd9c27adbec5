"""Reading a spool past whatever is damaged, in the order in which it was put."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.clock import SECOND
from fastjournal.errors import JournalError
from fastjournal.put_request import PutRequest
from fastjournal.spool.frames import HEADER, HOUR, frame, name_of
from fastjournal.spool.reader import (
    Damage,
    Frame,
    SpoolFile,
    job_bytes,
    job_of,
    open_to_read,
    read_spool,
)
from fastjournal.spool.writer import Spool
from fastjournal.testing import ManualClock
from fastjournal.wire.fj.functions import Function, Type
from fastjournal.wire.fj.job_codec import DELAY, LIFETIME, encode_job, read_job
from fastjournal.wire.fj.requests import encode_request
from spooling import NOW, payloads
from wire_values import encode_short

T = NOW // HOUR


def spooled(path: Path, *values: bytes) -> Path:
    with Spool(path, clock=ManualClock(NOW)) as spool:
        for value in values:
            spool.put(value, queue="q")
    return path / name_of(T)


def opened(path: Path) -> SpoolFile:
    file = open_to_read(str(path), T)
    file.look()
    return file


def values(found: list[Frame | Damage]) -> list[bytes]:
    return [job_of(item).value if isinstance(item, Frame) else b"DAMAGE" for item in found]


def test_a_frame_that_is_not_whole_is_waited_for(tmp_path: Path) -> None:
    """FJ-M1-2."""
    path = spooled(tmp_path, b"a", b"b")
    data = path.read_bytes()
    for cut in range(1, len(data)):
        path.write_bytes(data[:cut])
        file = opened(tmp_path)
        assert set(values(file.read(0))) <= {b"a"}
        assert file.read(0) == []
        assert file.read(10**12) == []
        path.write_bytes(data)
        file.look()
        file.headless = False
        if cut >= len(HEADER):
            rest = values(file.read(10**12))
            assert rest[-1] == b"b"
        file.close()


def test_a_torn_frame_with_sound_ones_behind_it_is_passed_over_after_a_while(
    tmp_path: Path,
) -> None:
    path = spooled(tmp_path, b"a", b"b", b"c")
    data = path.read_bytes()
    size = (len(data) - 8) // 3
    for cut in range(1, size):
        path.write_bytes(data[: 8 + size + cut] + data[8 + 2 * size :])
        file = opened(tmp_path)
        assert values(file.read(5)) == [b"a"]
        first = file.read(5)
        if not first:
            assert file.waits(5)
            assert file.read(5 + SECOND - 1) == []
            first = file.read(5 + SECOND)
        assert values(first) == [b"DAMAGE"]
        assert first[0].end - first[0].offset == cut
        assert values(file.read(5)) == [b"c"]
        assert file.at_end
        file.close()


def test_every_flipped_byte_costs_one_frame_and_no_more(tmp_path: Path) -> None:
    path = spooled(tmp_path, b"a", b"b", b"c")
    data = bytearray(path.read_bytes())
    size = (len(data) - 8) // 3
    for at in range(8 + size, 8 + 2 * size):
        data[at] ^= 0x10
        path.write_bytes(data)
        found = [entry.job.value if entry.job else entry.state for entry in read_spool(tmp_path)]
        data[at] ^= 0x10
        if at == 8 + size + 2:  # the state: neither ready nor done
            assert found == [b"a", "damaged", b"c"]
        else:
            assert found == [b"a", "damaged", b"c"], at


def test_zeros_left_by_a_power_loss_are_passed_over(tmp_path: Path) -> None:
    path = spooled(tmp_path, b"a")
    data = path.read_bytes()
    path.write_bytes(data + bytes(5000) + data[8:])
    assert payloads(tmp_path) == [b"a", b"a"]
    path.write_bytes(data + bytes(5000))
    file = opened(tmp_path)
    assert values(file.read(0)) == [b"a"]
    assert file.read(10**12) == []


def test_a_file_without_its_header_is_read(tmp_path: Path) -> None:
    path = spooled(tmp_path, b"a", b"b")
    data = path.read_bytes()
    path.write_bytes(data[8:])
    assert payloads(tmp_path) == [b"a", b"b"]
    path.write_bytes(bytes(8) + data[8:])
    assert payloads(tmp_path) == [b"a", b"b"]
    path.write_bytes(b"")
    assert list(read_spool(tmp_path)) == []


def test_frames_larger_than_one_reading_are_read(tmp_path: Path) -> None:
    with Spool(tmp_path, max_payload=4 << 20, clock=ManualClock(NOW)) as spool:
        for size in (1, 3 << 20, 1 << 20, 5):
            spool.put(b"x" * size, queue="q")
    assert [len(value) for value in payloads(tmp_path)] == [1, 3 << 20, 1 << 20, 5]


def test_scan_tells_hour_offset_state_and_job(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"a", queue="q", key="k")
        clock.advance(3600)
        spool.put(b"b", queue="q")
    first, second = read_spool(tmp_path)
    assert (first.hour, first.offset, first.state, first.put_at) == (T, 8, "ready", NOW)
    assert first.file == "20231114T22.fjq"
    assert second.hour == T + 1
    assert [entry.hour for entry in read_spool(tmp_path, lambda hour: hour > T)] == [T + 1]
    with (tmp_path / first.file).open("r+b") as file:
        file.seek(10)
        file.write(b"D")
    assert [entry.state for entry in read_spool(tmp_path)] == ["done", "ready"]


def test_requests_of_other_writers_are_understood(tmp_path: Path) -> None:
    """Any FJ request that puts a job will do: the key outside, layout 1, an expiry, a timestamp."""
    short = encode_short(b"one", queue=b"q", priority=3)
    long = encode_job(PutRequest(b"q", b"two"))
    messages = [
        encode_request(Function.SET, 1, timestamp=NOW, key=b"k", value_type=Type.JOB, value=short),
        encode_request(
            Function.SET, 9, timestamp=NOW, timeout=NOW + HOUR, key=b"k", value_type=Type.JOB,
            value=long,
        ),
        encode_request(Function.SET, 9, timestamp=NOW, value_type=Type.JOB,
                       value=encode_job(PutRequest(b"q", b"three", b"k"))),
    ]  # fmt: skip
    (tmp_path / name_of(T)).write_bytes(HEADER + b"".join(map(frame, messages)))
    jobs = [entry.job for entry in read_spool(tmp_path)]
    assert [job.value for job in jobs if job] == [b"one", b"two", b"three"]
    assert all(job and job.key == b"k" and job.timestamp == NOW for job in jobs)
    assert jobs[1] and jobs[1].expires == NOW + HOUR
    file = opened(tmp_path)
    frames = [item for item in file.read(0) if isinstance(item, Frame)]
    read = [job_bytes(item) for item in frames]
    assert [read_job(data, 0, len(data)).new_job() for data in read] == jobs


def test_lengths_of_other_writers_count_from_when_the_job_was_put(tmp_path: Path) -> None:
    """However long it lies in the spool, a delay does not begin with its arrival."""
    job = PutRequest(b"q", b"x", b"k", due=5 * HOUR, expires=9 * HOUR, timestamp=NOW)
    value = encode_job(job, int(DELAY | LIFETIME))
    message = encode_request(Function.SET, 1, timestamp=NOW, value_type=Type.JOB, value=value)
    (tmp_path / name_of(T)).write_bytes(HEADER + frame(message))
    (entry,) = read_spool(tmp_path)
    assert entry.job is not None
    assert (entry.job.due, entry.job.expires) == (NOW + 5 * HOUR, NOW + 9 * HOUR)
    (item,) = opened(tmp_path).read(0)
    assert isinstance(item, Frame)
    data = job_bytes(item)
    assert read_job(data, 0, len(data), now=NOW + 100 * HOUR).new_job() == entry.job


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"nonsense",
        encode_request(Function.DELETE, 1, key=b"k"),
        encode_request(Function.SET, 1, key=b"k", value_type=Type.STRING, value=b"v"),
        encode_request(Function.SET, 1, key=b"k", value_type=Type.JOB, value=b"\2short"),
        encode_request(Function.PING, 1) * 2,
    ],
)
def test_a_frame_that_puts_no_job_says_so(tmp_path: Path, message: bytes) -> None:
    item = Frame(8, 20 + len(message), frame(message))
    with pytest.raises(JournalError):
        job_bytes(item)
    (tmp_path / name_of(T)).write_bytes(HEADER + frame(message))
    (entry,) = read_spool(tmp_path)
    assert entry.job is None and entry.reason


def test_a_spool_can_be_read_without_permission_to_write(tmp_path: Path) -> None:
    path = spooled(tmp_path, b"a")
    path.chmod(0o444)
    file = open_to_read(str(tmp_path), T)
    with pytest.raises(OSError):
        file.handle.write_at(b"D", 10)
    assert payloads(tmp_path) == [b"a"]


@pytest.mark.parametrize("size", range(88))
def test_a_frame_with_the_beginning_of_a_job_is_refused_as_any_other_that_holds_none(
    size: int,
) -> None:
    job = encode_job(PutRequest(b"", timestamp=NOW))[:size]
    message = encode_request(
        Function.SET, 1, flags=0x200, timestamp=NOW, value_type=Type.JOB, value=job
    )
    # As wide as a large value: where the job begins is the end of a short frame.
    wide = message[:9] + b"\x06" + message[10:19] + (size + 1).to_bytes(4, "big") + b"\x06" + job
    for data in (frame(message), frame(wide)):
        with pytest.raises(JournalError):
            job_bytes(Frame(0, len(data), data))
