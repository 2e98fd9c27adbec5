"""Putting into a spool: one append, and nothing else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fastjournal.arguments import put_request
from fastjournal.errors import (
    BadRequest,
    Closed,
    NoSpace,
    OutOfRange,
    RequestError,
    SpoolFull,
    TooLarge,
    WriteFailed,
)
from fastjournal.model import NewJob
from fastjournal.spool.forwarder import ForwardedSpool
from fastjournal.spool.frames import HEADER, HOUR, hour_of, name_of
from fastjournal.spool.reader import Frame, job_bytes, open_to_read, read_spool
from fastjournal.spool.spool_dir import hours
from fastjournal.spool.writer import Spool
from fastjournal.testing import ManualClock
from fastjournal.wire.fj.functions import Function
from fastjournal.wire.fj.job_codec import encode_job, read_job
from fastjournal.wire.fj.requests import Request, RequestParser
from spooling import NOW, payloads


def files(path: Path) -> list[str]:
    return sorted(place.name for place in path.glob("*.fjq"))


def fill(spool: Spool, payload: bytes, *others: Spool) -> int:
    """Put until there is no room; returns how many came in."""
    count = 0
    try:
        while True:
            for each in (spool, *others):
                each.put(payload, queue="q")
                count += 1
    except SpoolFull:
        return count


@pytest.mark.parametrize(
    "arguments",
    [
        {"queue": "q"},
        {"queue": b"q", "payload": b"hello"},
        {"key": "http://example.com/a"},
        {"key": b"k\xff", "queue": "q", "priority": 0},
        {"key": "k", "queue": "q" * 255, "priority": 255, "payload": b"x" * 70_000},
        {"key": "k" * 65_535, "queue": "q"},
        {"queue": "q", "payload": b"x" * 170},
        {"queue": "q", "delay": 5, "ttl": 60.5, "lease": timedelta(minutes=1)},
        {"queue": "q", "due": datetime(2030, 1, 1, tzinfo=UTC), "expires": 2_000_000_000},
        {"key": "k", "queue": "q", "mode": "unique", "max_attempts": 3, "max_fails": 4},
        {"key": "k", "queue": "q", "timestamp": 1_600_000_000, "max_timeouts": 7},
        {"queue": "q", "id": bytes(range(16))},
        {"queue": "q", "payload": bytearray(b"not quite bytes")},
    ],
)
def test_a_put_says_what_the_put_of_a_journal_says(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    """FJ-M1-1: the frame holds a complete FJ request with every field of the job."""
    with Spool(tmp_path, clock=ManualClock(NOW)) as spool:
        spool.put(**arguments)
    (entry,) = read_spool(tmp_path)
    want = put_request(NOW, **arguments).new_job()
    if want.key and not want.timestamp:
        want = want._replace(timestamp=NOW)
    assert entry.job is not None
    got = entry.job
    assert got._replace(timestamp=want.timestamp) == want
    assert got.timestamp == want.timestamp or not want.key
    (request,) = RequestParser().feed(entry.data[12:])
    assert isinstance(request, Request)
    assert request.function == Function.SET and request.persist
    assert request.timestamp == NOW
    direct = job_bytes(Frame(entry.offset, entry.offset + entry.size, entry.data))
    job = read_job(direct, 0, len(direct))
    assert encode_job(job) == direct  # one layout, whoever writes it
    assert job.new_job()._replace(timestamp=0) == entry.job._replace(timestamp=0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, BadRequest),
        ({"queue": ""}, BadRequest),
        ({"queue": "q", "key": ""}, BadRequest),
        ({"queue": "q" * 256}, TooLarge),
        ({"queue": "q", "key": "k" * 65_536}, TooLarge),
        ({"queue": "q", "payload": b"x" * (1024 * 1024 + 1)}, TooLarge),
        ({"queue": "q", "payload": "text"}, BadRequest),
        ({"queue": "q", "priority": 256}, OutOfRange),
        ({"queue": "q", "priority": True}, BadRequest),
        ({"queue": "q", "priority": 1.5}, BadRequest),
        ({"queue": 5}, BadRequest),
        ({"queue": "\ud800"}, BadRequest),
        ({"key": "/no/domain"}, BadRequest),
        ({"queue": "q", "delay": -1}, BadRequest),
        ({"queue": "q", "mode": "never"}, BadRequest),
        ({"queue": "q", "id": b"short"}, BadRequest),
    ],
)
def test_what_a_journal_refuses_a_spool_refuses_and_nothing_is_written(
    tmp_path: Path, arguments: dict[str, Any], error: type[RequestError]
) -> None:
    with pytest.raises(error):
        put_request(NOW, **arguments)
    with Spool(tmp_path) as spool, pytest.raises(error):
        spool.put(**arguments)
    assert payloads(tmp_path) == []


def test_files_are_of_absolute_hours_and_begin_with_the_header(tmp_path: Path) -> None:
    """FJ-M2-5."""
    clock = ManualClock(NOW)
    with Spool(tmp_path, clock=clock) as spool:
        for number in range(3):
            spool.put(b"%d" % number, queue="q")
            clock.advance(3600)
    assert files(tmp_path) == ["20231114T22.fjq", "20231114T23.fjq", "20231115T00.fjq"]
    assert all((tmp_path / name).read_bytes().startswith(HEADER) for name in files(tmp_path))
    assert payloads(tmp_path) == [b"0", b"1", b"2"]


def test_a_clock_that_is_set_back_does_not_change_the_order(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"a", key="k", queue="q")
        clock.step(-7200)
        spool.put(b"b", key="k", queue="q")
    with Spool(tmp_path, clock=clock) as other:
        other.put(b"c", queue="q")
    assert files(tmp_path) == ["20231114T22.fjq"]
    jobs = [entry.job for entry in read_spool(tmp_path)]
    assert [job.value for job in jobs if job] == [b"a", b"b", b"c"]
    assert jobs[1] and jobs[0] and jobs[1].timestamp > jobs[0].timestamp


def test_many_threads_may_begin_a_file_at_once(tmp_path: Path) -> None:
    spools = [Spool(tmp_path) for _ in range(8)]
    ready = threading.Barrier(8)

    def work(spool: Spool, name: int) -> None:
        ready.wait()
        for number in range(200):
            spool.put(b"%d %d" % (name, number), queue="q")

    threads = [threading.Thread(target=work, args=(s, n)) for n, s in enumerate(spools)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [tuple(map(int, payload.split())) for payload in payloads(tmp_path)]
    for name in range(8):
        assert [number for who, number in found if who == name] == list(range(200))
    assert len({spool.identity for spool in spools}) == 1
    assert not list(tmp_path.glob("*.new"))


def test_put_many_is_one_write(tmp_path: Path) -> None:
    writes: list[int] = []

    def write(fd: int, data: bytes) -> int:
        writes.append(len(data))
        return os.write(fd, data)

    jobs: list[NewJob | dict[str, Any]] = [
        {"payload": b"a", "queue": "q"},
        {"payload": b"b", "queue": "q", "delay": 1},
        NewJob(b"q", b"c", b"k"),
    ]
    with Spool(tmp_path, write=write) as spool:
        spool.put_many(jobs)
        spool.put_many([])
    assert len(writes) == 1
    assert payloads(tmp_path) == [b"a", b"b", b"c"]


def test_put_many_puts_none_if_one_is_refused(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        with pytest.raises(BadRequest, match="nonsense"):
            spool.put_many([{"queue": "q"}, {"queue": "q", "nonsense": 1}])
        with pytest.raises(TooLarge):
            spool.put_many([{"queue": "q", "payload": b"x" * 1_000_000}] * 68)
        with pytest.raises(TooLarge):
            spool.put_many([NewJob(b"q", b"x" * (1 << 21))])
    assert payloads(tmp_path) == []


def test_a_write_that_is_cut_short_raises_and_is_passed_over(tmp_path: Path) -> None:
    """FJ-M2-7: a full disk is told to the writer; what is torn does not harm what follows."""
    room = [10_000]

    def write(fd: int, data: bytes) -> int:
        done = os.write(fd, data[: room[0]])
        room[0] -= done
        return done

    with Spool(tmp_path, write=write) as spool:
        spool.put(b"before", queue="q")
        room[0] = 50
        with pytest.raises(NoSpace, match="only 50 of"):
            spool.put(b"torn", queue="q")
        room[0] = 10_000
        spool.put(b"after", queue="q")
    assert payloads(tmp_path) == [b"before", b"after"]
    assert [entry.state for entry in read_spool(tmp_path)] == ["ready", "damaged", "ready"]


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, NoSpace), (errno.EDQUOT, NoSpace), (errno.EIO, WriteFailed)],
)
def test_a_disk_that_fails_is_told(tmp_path: Path, number: int, error: type[Exception]) -> None:
    def write(fd: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    with Spool(tmp_path, write=write) as spool, pytest.raises(error):
        spool.put(b"x", queue="q")
    assert payloads(tmp_path) == []


def test_a_spool_that_is_full_says_so_and_takes_jobs_again_when_it_is_not(tmp_path: Path) -> None:
    """P-BOUND."""
    clock = ManualClock(NOW)
    with Spool(tmp_path, max_bytes=50_000, clock=clock) as spool:
        count = fill(spool, b"x" * 100)
        size = sum((tmp_path / name).stat().st_size for name in files(tmp_path))
        assert 49_000 < size <= 50_000
        assert len(payloads(tmp_path)) == count
        with pytest.raises(SpoolFull):
            spool.put(b"x" * 1000, queue="q")
        (tmp_path / files(tmp_path)[0]).unlink()
        clock.advance(3600)  # a file of its own: the one that was open has no name
        spool.put(b"x", queue="q")
    assert payloads(tmp_path) == [b"x"]


def test_two_spools_at_the_limit_overshoot_little(tmp_path: Path) -> None:
    limit = 1 << 20
    with Spool(tmp_path, max_bytes=limit) as one, Spool(tmp_path, max_bytes=limit) as two:
        fill(one, b"x" * 1000, two)
    size = sum((tmp_path / name).stat().st_size for name in files(tmp_path))
    assert size <= limit * 1.01


def test_sync_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd)))
    with Spool(tmp_path, sync=True) as spool:
        spool.put(b"a", queue="q")
        assert len(synced) == 1
        spool.put(b"b", queue="q", sync=False)
        assert len(synced) == 1
    with Spool(tmp_path) as spool:
        spool.put(b"c", queue="q")
        assert len(synced) == 1
        spool.put_many([{"queue": "q"}], sync=True)
        assert len(synced) == 2


def test_a_closed_spool_takes_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put(b"a", queue="q")
    spool.close()
    spool.close()
    with pytest.raises(Closed):
        spool.put(b"b", queue="q")
    assert payloads(tmp_path) == [b"a"]


def test_a_file_from_before_the_machine_started_anew_is_not_written_to(tmp_path: Path) -> None:
    """Its end may be lost although it was forwarded: no place may be given out twice."""
    clock = ManualClock(NOW)
    with Spool(tmp_path, clock=clock, boot=lambda: b"1") as spool:
        spool.put(b"a", queue="q")
    with Spool(tmp_path, clock=clock, boot=lambda: b"1") as spool:
        spool.put(b"b", queue="q")
    assert len(files(tmp_path)) == 1
    for boot in (b"2", b"3"):
        for _ in range(2):
            with Spool(tmp_path, clock=clock, boot=lambda: boot) as spool:  # noqa: B023
                spool.put(boot, queue="q")
    assert files(tmp_path) == ["20231114T22.fjq", "20231114T23.fjq", "20231115T00.fjq"]
    assert payloads(tmp_path) == [b"a", b"b", b"2", b"2", b"3", b"3"]


def test_a_file_that_a_producer_has_open_cannot_be_taken_away(tmp_path: Path) -> None:
    """FJ-M2-2, D-18: the lock of a producer is shared, and lasts as long as it has the file."""
    forwarded = ForwardedSpool(tmp_path)
    spool = Spool(tmp_path)
    spool.put(b"a", queue="q")
    file = forwarded.open(hours(str(tmp_path))[0])
    assert file is not None
    assert not forwarded.seize(file)
    spool.close()
    assert forwarded.seize(file)


def test_a_producer_does_not_write_into_a_file_that_is_being_taken_away(tmp_path: Path) -> None:
    """The forwarder is stuck between lock and removal: the producer waits for nobody."""
    clock = ManualClock(NOW)
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"a", queue="q")
    forwarded = ForwardedSpool(tmp_path)
    file = forwarded.open(NOW // HOUR)
    assert file is not None and forwarded.seize(file)
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"b", queue="q")
    assert [entry.hour - NOW // HOUR for entry in read_spool(tmp_path)] == [0, 1]
    forwarded.set_aside(file)
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"c", queue="q")
    assert payloads(tmp_path) == [b"b", b"c"]


def test_a_file_that_was_taken_away_between_opening_and_locking_is_let_go(tmp_path: Path) -> None:
    from fastjournal.spool.writer import open_locked

    with Spool(tmp_path, clock=ManualClock(NOW)) as spool:
        spool.put(b"a", queue="q")
    path = tmp_path / name_of(NOW // HOUR)
    stale = os.open(path, os.O_RDONLY)
    path.unlink()
    path.write_bytes(HEADER)
    found = open_locked(str(path))
    assert os.fstat(found).st_ino == path.stat().st_ino != os.fstat(stale).st_ino
    os.close(found)
    os.close(stale)


def test_a_full_file_is_left_for_the_next_before_its_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offset has 4 bytes."""
    from fastjournal.spool import writer

    monkeypatch.setattr(writer, "FILE_LIMIT", 10_000)
    monkeypatch.setattr(writer, "LOOK_BYTES", 1000)
    with Spool(tmp_path, clock=ManualClock(NOW)) as spool:
        for number in range(200):
            spool.put(b"%d" % number, queue="q")
    assert len(files(tmp_path)) == 3
    assert max((tmp_path / name).stat().st_size for name in files(tmp_path)) <= 11_000
    assert payloads(tmp_path) == [b"%d" % number for number in range(200)]


def test_the_identity_is_drawn_once_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    assert Spool(tmp_path).identity == Spool(tmp_path).identity
    assert len(Spool(tmp_path).identity) == 16
    (tmp_path / "spool.id").write_text("nonsense")
    with pytest.raises(WriteFailed, match="32 hex digits"):
        Spool(tmp_path)


def test_a_forwarder_that_listens_is_told_of_every_put(tmp_path: Path) -> None:
    """FJ-M2-8, FJ-M1-3: a datagram, whose loss is harmless."""
    from fastjournal.spool.watch import PingWatch

    watch = PingWatch(str(tmp_path))
    with Spool(tmp_path) as spool:
        spool.put(b"a", queue="q")
        assert os.read(watch.fileno(), 16) == b"!"
        for _ in range(2000):  # more than the socket holds
            spool.put(b"a", queue="q")
        watch.drain()
        watch.close()
        spool.put(b"b", queue="q")
        spool.put(b"b", queue="q")
    assert len(payloads(tmp_path)) == 2003


def test_a_spool_survives_a_fork(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put(b"parent", queue="q")
    child = os.fork()
    if child == 0:
        spool.put(b"child", queue="q")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    spool.put(b"parent again", queue="q")
    assert payloads(tmp_path) == [b"parent", b"child", b"parent again"]


HEAVY = (
    "typing", "collections", "re", "asyncio", "ssl", "socket", "logging", "pathlib", "inspect",
    "dataclasses", "threading",
    "json", "datetime", "typer", "msgspec", "rich", "structlog", "prometheus_client", "numpy",
    "fastjournal.wire.fj.job_codec", "fastjournal.wire.fj.requests", "fastjournal.journal",
    "fastjournal.model", "urllib", "subprocess",
)  # fmt: skip


def test_importing_and_using_the_writer_loads_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "from fastjournal.spool.writer import Spool\n"
        f"Spool({str(tmp_path)!r}).put(b'x', key='http://example.com/a', priority=5)\n"
        "import sys; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert not loaded & set(HEAVY)
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    loaded -= set(bare.stdout.split())  # what the machine loads by itself, as Debian does
    ours = {name.partition(".")[0] for name in loaded - set(sys.stdlib_module_names)}
    ours -= {name for name in ours if name.startswith("_") or name in sys.stdlib_module_names}
    assert ours == {"fastjournal", "google_crc32c"}
    assert payloads(tmp_path) == [b"x"]


def test_a_frame_holds_what_the_protocol_holds(tmp_path: Path) -> None:
    with Spool(tmp_path, clock=ManualClock(NOW)) as spool:
        spool.put(b"hi", queue="q", key="k", priority=10)
    hour = hour_of(files(tmp_path)[0])
    assert hour == NOW // HOUR
    data = (tmp_path / files(tmp_path)[0]).read_bytes()
    assert data[8:12] == b"fjR\0"
    assert data[20:38] == bytes.fromhex("464a 0001 0002 0001 0202 00060a24181e4000")
    file = open_to_read(str(tmp_path), hour)
    assert file.look() == len(data)
    file.close()


def test_a_synced_put_syncs_the_name_of_a_file_that_another_made(
    tmp_path: Path,
) -> None:
    """One who does not sync began the file: its name may be lost with the power."""
    with Spool(tmp_path, clock=ManualClock(NOW)) as lax:
        lax.put(b"a", queue="q")
        synced: list[str] = []
        careful = Spool(tmp_path, clock=ManualClock(NOW), sync_names=synced.append)
        with careful:
            careful.put(b"b", queue="q")
            assert synced == []
            careful.put(b"c", queue="q", sync=True)
            careful.put(b"d", queue="q", sync=True)
    assert synced == [str(tmp_path)]
