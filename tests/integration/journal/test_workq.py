"""Directories written by the real Workq server, opened as journals; and ours read by others."""

from __future__ import annotations

import json
import shutil
import struct
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal, State
from fastjournal.clock import SECOND
from fastjournal.errors import NotFound
from fastjournal.journal.language import commands as k
from fastjournal.testing import ManualClock, MemoryFiles, check_replay

CASES = Path(__file__).parents[2] / "golden" / "workq"
NAMES = sorted(path.name for path in CASES.iterdir() if path.is_dir())
# Workq's numbers: new, completed, failed, pending (given back), leased.
STATES = {
    0: State.WAITING,
    1: State.COMPLETED,
    2: State.FAILED,
    3: State.WAITING,
    4: State.PROCESSING,
}


def facts_of(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((CASES / name / "expected.json").read_text())
    return facts


def expected_jobs(name: str, facts: dict[str, Any]) -> dict[bytes, Any]:
    """What the documents promise: the server's state, where that is not its own defect."""
    after = facts["after_restart"]
    state = after["state"] if after["starts"] else facts["state_before_stop"]
    return {bytes.fromhex(i.replace("-", "")): job for i, job in state["jobs"].items()}


def opened(path: Path, facts: dict[str, Any]) -> tuple[Journal, ManualClock]:
    as_of = datetime.fromisoformat(facts["after_restart"]["as_of"])
    clock = ManualClock(int(as_of.timestamp()) * SECOND)
    return Journal(path, clock=clock, background=False, segment_size=4096, sync="os"), clock


@pytest.mark.parametrize("name", NAMES)
def test_a_workq_directory_opens_as_a_journal_and_goes_on(name: str, tmp_path: Path) -> None:
    """All nine: the jobs are there, work goes on, cleaning and snapshots change nothing."""
    facts = facts_of(name)
    path = tmp_path / "jobs"
    shutil.copytree(CASES / name, path, ignore=shutil.ignore_patterns("*.json", "*.lock"))
    j, clock = opened(path, facts)
    for job_id, expected in expected_jobs(name, facts).items():
        if expected == "-NOT-FOUND":
            with pytest.raises(NotFound):
                j.job(job_id)
            continue
        job = j.job(job_id)
        assert (job.queue, job.attempts) == (expected["name"], expected["attempts"])
        assert job.state is STATES[expected["state"]]
        assert (job.priority, job.workq) == (expected["priority"], True)
        if "result" in expected:
            assert j.result(job_id) == (
                bool(expected["result"]["success"]),
                bytes.fromhex(expected["result"]["result_hex"]),
            )
    check_replay(j)
    before = j.digest()
    j.clean()
    assert j.digest() == before
    check_replay(j)
    j.put(b"ours", key="http://example.com/")
    leased = j.lease("example.com")
    assert leased is not None
    leased.done()
    for queue in j.queues():
        if queue.ready and (job := j.lease(queue.name)) is not None:
            job.done(b"done by us")
    j.snapshot()
    j.clean()
    check_replay(j)
    after = j.digest()
    j.close()
    again = Journal(path, clock=clock, background=False)
    assert again.digest() == after
    again.close()


def test_a_job_that_workq_brought_back_stays_away_once_we_delete_it(tmp_path: Path) -> None:
    """D-04: the `cleaned` log holds the add of a deleted job without its delete."""
    facts = facts_of("cleaned")
    path = tmp_path / "jobs"
    shutil.copytree(CASES / "cleaned", path, ignore=shutil.ignore_patterns("*.json", "*.lock"))
    ghost = bytes.fromhex(facts["ghost_job"].replace("-", ""))
    j, clock = opened(path, facts)
    assert j.delete(ghost)
    for _ in range(4):
        j.rotate()
        j.put(b"x", queue="q")
        j.clean()
        check_replay(j)
        j.close()
        j = Journal(path, clock=clock, background=False, segment_size=4096)
        with pytest.raises(NotFound):
            j.job(ghost)
    j.close()


def crc32c(data: bytes) -> int:
    """Castagnoli's polynomial, bit by bit, from its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Reader:
    """Reads a command log as its document describes it; shares no code with the journal."""

    def __init__(self, data: bytes) -> None:
        assert data[:8] == b"wqwq\x00\x00\x00\x01"
        self.data, self.at = data, 8

    def take(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        value = self.varint()
        return value // 2 if value % 2 == 0 else -(value + 1) // 2

    def time(self) -> int:
        version, seconds, nanoseconds, zone = struct.unpack(">BQIH", self.take(15))
        assert version == 1
        assert zone in (0, 0xFFFF)
        return (seconds - 62_135_596_800) * SECOND + nanoseconds if seconds else 0

    def records(self) -> list[tuple[Any, ...]]:
        found = []
        while self.at < len(self.data):
            start = self.at
            self.time()
            end = self.varint() + self.at
            found.append(self.command())
            assert self.at == end
            body = self.data[start:end]
            assert self.take(4) == crc32c(body).to_bytes(4, "big")
        return found

    def command(self) -> tuple[Any, ...]:
        (kind,) = self.take(1)
        job_id = self.take(16)
        if kind in (1, 2):
            name = self.take(self.varint())
            numbers = [self.varint(), self.varint(), self.signed(), self.varint(), self.varint()]
            payload = self.take(self.varint())
            return (kind, job_id, name, *numbers, payload, self.time(), self.time())
        if kind in (3, 4):
            return (kind, job_id, self.take(self.varint()))
        assert kind in (5, 6, 7, 8)
        return (kind, job_id)


@pytest.mark.parametrize("zone", ["0000", "ffff"])
def test_a_log_of_workq_commands_reads_by_its_own_document(zone: str) -> None:
    """WQ-REC, WQ-CMD, D-02: types 1 to 8 only, decoded by an independent description."""
    files, clock = MemoryFiles(), ManualClock()
    files.make_directory(Path("/"))
    j = Journal("/jobs", files=files, clock=clock, background=False, sync="os", zone_bytes=zone)
    now = clock.now()
    expected: list[tuple[Any, ...]] = []

    def job_id(number: int) -> bytes:
        return bytes((number,)) * 6 + b"\x41\x00\x92" + bytes(7)

    def add(number: int, ttr: int, ttl: int, priority: int, limits: Any, later: int = 0) -> None:
        kind = k.Schedule if later else k.Add
        when = now + later if later else 0
        job = kind(job_id(number), b"q", ttr, ttl, priority, *limits, bytes(number), when, 0)
        with j.engine.lock:
            j.operations.add(job)
        created = j.job(job_id(number)).inserted
        fields = (b"q", ttr, ttl, priority, *limits, bytes(number), when, created)
        expected.append((2 if later else 1, job_id(number), *fields))

    for number in range(6):
        add(number, 1000 * 10**number % 86_400_000 or 1, 60_000, number - 3, (0, 0))
    add(200, 1, 2_592_000_000, -(2**31), (255, 255), 3600 * SECOND)
    add(201, 300, 86_400_000, 2**31 - 1, (1, 0))
    order = [201, 5, 4, 3]
    for number in order:
        job = j.lease("q")
        assert job is not None
        assert job.id == job_id(number)
        expected.append((7, job.id))
    j.complete(job_id(5), None, b"r" * 300)
    j.fail(job_id(4), None, b"\x00\xff")
    j.delete(job_id(3))
    expected += [(3, job_id(5), b"r" * 300), (4, job_id(4), b"\x00\xff"), (5, job_id(3))]
    clock.advance(0.5)
    j.tick()  # 201 loses its only attempt
    expected.append((8, job_id(201)))
    clock.advance(61)
    j.tick()
    expired = [(6, job_id(number)) for number in (0, 1, 2, 4, 5)]
    written = Reader(files.content(Path("/jobs/000000001.log"))).records()
    assert written[: len(expected)] == expected
    assert sorted(written[len(expected) :]) == expired
    if zone == "ffff":
        assert b"\xff\xff" in files.content(Path("/jobs/000000001.log"))[8:200]
    check_replay(j)
    j.close()
