"""A crash at every step between a spool and a journal: every job arrives once, in order.

Three sweeps: the forwarder (or its connection) dies before and after everything it does; the
spool's machine and the journal's die before every file operation, with every image of the disk that
may leave.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal, NewJob
from fastjournal.clock import SECOND
from fastjournal.errors import JournalError
from fastjournal.journal.engine.reserve import RESERVE_SIZE
from fastjournal.journal.journal import Receiver
from fastjournal.journal.language.commands import Sender
from fastjournal.model import Mode
from fastjournal.spool.forwarder import ForwardedSpool, Forwarder
from fastjournal.spool.frames import HOUR, frame, name_of, sender_name, spool_tag
from fastjournal.spool.reader import read_spool
from fastjournal.spool.writer import Spool
from fastjournal.testing import Crash, ManualClock, MemoryFiles
from spooling import (
    CrashingDestination,
    CrashingSpool,
    JournalDestination,
    SpoolMemory,
    Steps,
    drain,
    rows,
)

NOW = 1_700_000_000 * SECOND
NAME = sender_name(spool_tag(bytes(range(16))), NOW // HOUR)


def write(path: Path) -> ManualClock:
    """Three hours of jobs: plain, keyed, repeated, refused and damaged ones."""
    clock = ManualClock(NOW)
    with Spool(path, clock=clock) as spool:
        for hour in range(3):
            for number in range(5):
                spool.put(b"%d %d" % (hour, number), queue="q")
            spool.put(b"k%d" % hour, queue="q", key="k")
            spool.put(b"late", queue="q", ttl=1)
            clock.advance(3600)
    first = path / name_of(NOW // HOUR)
    first.write_bytes(first.read_bytes() + frame(b"nonsense"))
    clock.advance(3600)
    return clock


def expect(journal: Journal) -> None:
    """Everything is in, once, in order; the key merged to its newest value."""
    plain = [journal.engine.value(row) for row in rows(journal) if not row.key]
    assert plain == [b"%d %d" % (hour, number) for hour in range(3) for number in range(5)]
    assert [journal.engine.value(row) for row in rows(journal) if row.key] == [b"k2"]


def forward(
    path: Path, clock: ManualClock, target: JournalDestination, crash_at: int | None
) -> tuple[bool, int]:
    """Run a forwarder that dies at a step; whether it came to the end, and its steps."""
    steps = Steps(crash_at)
    forwarder = Forwarder(CrashingSpool(path, steps), clock=clock, batch_jobs=3, window=2)
    try:
        drain(forwarder, CrashingDestination(target, steps))
    except Crash:
        target.close()
        forwarder.close()
        return False, steps.count
    forwarder.close()
    return True, steps.count


def test_a_forwarder_that_dies_at_any_step_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """T-SPOOL, F18, FJ-SAFE-1."""
    finished = False
    for crash_at in itertools.count(1):
        path = tmp_path / str(crash_at)
        clock = write(path)
        journal = Journal("/j", files=MemoryFiles(), clock=clock, background=False)
        target = JournalDestination(journal)
        finished, _ = forward(path, clock, target, crash_at)
        assert forward(path, clock, target, None)[0]
        expect(journal)
        assert sorted(p.name for p in path.glob("*.fj*")) == []
        assert journal.engine.state.senders == {}
        copies = [copy.read_bytes() for copy in (path / "quarantine").glob("*.bad")]
        assert frame(b"nonsense") in copies and len(copies) == 4
        if finished:
            break
    assert crash_at > 60


def test_a_forwarder_that_dies_again_and_again_comes_to_the_end(tmp_path: Path) -> None:
    for often in (1, 2, 3, 5, 7):
        path = tmp_path / str(often)
        clock = write(path)
        journal = Journal("/j", files=MemoryFiles(), clock=clock, background=False)
        target = JournalDestination(journal)
        # Each life is one step longer than the last: none can do everything.
        for life in itertools.count(often):
            if forward(path, clock, target, life)[0]:
                break
        expect(journal)
        assert list(path.glob("*.fj*")) == []


def jobs() -> list[tuple[int, NewJob]]:
    plain: list[tuple[int, NewJob]] = [
        (10 * n, NewJob(b"q", b"%d" % n, b"", Mode.PLAIN)) for n in range(1, 5)
    ]
    return [
        *plain,
        (50, NewJob(b"q", b"old", b"k", timestamp=NOW)),
        (60, NewJob(b"q", b"new", b"k", timestamp=NOW + 1)),
        (70, NewJob(b"q", b"older", b"k", timestamp=NOW - 1, priority=5)),
        (80, NewJob(b"q", b"x" * 5000, b"", Mode.PLAIN)),
        (90, NewJob(b"q", b"mine", b"", Mode.PLAIN, id=bytes(range(16)))),
        (100, NewJob(b"q", b"expired", b"", Mode.PLAIN, expires=1)),
        (110, NewJob(b"q", b"last", b"", Mode.PLAIN)),
    ]


def put_from(journal: Journal, sender: bytes, some: Sequence[tuple[int, NewJob]]) -> Any:
    return Receiver(journal).put_from(sender, some)


def picture(journal: Journal) -> list[tuple[bytes, bytes, int]]:
    value = journal.engine.value
    return [(value(row), row.key, row.rank) for row in rows(journal)]


def reference(sender: bytes) -> list[tuple[bytes, bytes, int]]:
    with Journal(
        "/j", files=MemoryFiles(), clock=ManualClock(NOW + SECOND), background=False
    ) as journal:
        put_from(journal, sender, jobs())
        return picture(journal)


def test_a_power_loss_at_any_step_of_the_forwarder_loses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    """The daemon lives on, and a consumer has ended the jobs before anything is sent again."""
    clock = write(tmp_path)
    images = 0
    for crash_at in itertools.count(1):
        files = SpoolMemory.copy_of(tmp_path, crash_at=crash_at)
        disk = MemoryFiles()
        journal = Journal("/j", files=disk, clock=clock, background=False, sync="always")
        target = JournalDestination(journal)
        crashed = False
        try:
            drain(
                Forwarder(ForwardedSpool(tmp_path, files), clock=clock, batch_jobs=3, window=2),
                target,
            )
        except Crash:
            crashed = True
        # What the journal has acknowledged is on its disk: each image begins from there.
        for left in (files.killed(), *files.images(samples=20, seed=crash_at)):
            images += 1
            with Journal(
                "/j", files=disk.killed(), clock=clock, background=False, sync="always"
            ) as again:
                gone = worked_off(again)
                drain(
                    Forwarder(ForwardedSpool(tmp_path, left), clock=clock),
                    JournalDestination(again),
                )
                gone += worked_off(again)
            plain = [value for value in gone if not value.startswith(b"k")]
            want = [b"%d %d" % (hour, number) for hour in range(3) for number in range(5)]
            assert sorted(plain) == want, crash_at
            assert_copied(tmp_path, left)
        if not crashed:
            break
    assert images > 300


def worked_off(journal: Journal) -> list[bytes]:
    """Lease and end everything; what it was."""
    gone = []
    while (leased := journal.lease("q")) is not None:
        gone.append(leased.payload)
        leased.done()
    return gone


def assert_copied(path: Path, files: SpoolMemory) -> None:
    """No spool file is left, and what could not be forwarded is in quarantine, and told."""
    names = [place.name for place in files.snapshot()]
    assert not [name for name in names if name.endswith((".fjq", ".fjd"))]
    copies = {name for name in names if name.endswith(".bad")}
    # The journal is another one, which does not know that it refused the late jobs.
    assert f"{name_of(NOW // HOUR).removesuffix('.fjq')}-0000000884.bad" in copies
    report = files.content(path / "quarantine" / "report.jsonl").splitlines()
    whole = [line for line in report if line.startswith(b"{") and line.endswith(b"}")]
    told = {json.loads(line)["copy"] for line in whole}
    assert told >= copies


@pytest.mark.parametrize("sender", [NAME, b"a host of another kind"])
def test_a_journal_whose_machine_dies_at_any_step_takes_every_job_once(sender: bytes) -> None:
    """Whatever the crash leaves of the log, sending everything again gives the same rows, in the
    same order; what was acknowledged is there before anything is sent again."""
    want = reference(sender)
    images = 0
    for crash_at in itertools.count(1):
        files = MemoryFiles(crash_at=crash_at)
        done = 0
        crashed = False
        try:
            journal = Journal(
                "/j", files=files, clock=ManualClock(NOW + SECOND), background=False, sync="always"
            )
            for start in range(0, len(jobs()), 4):
                put_from(journal, sender, jobs()[start : start + 4])
                done = start + 4
            journal.close()
        except (Crash, JournalError):
            crashed = True
        for image in (files.killed(), *files.images(samples=40, seed=crash_at)):
            images += 1
            with Journal(
                "/j", files=image, clock=ManualClock(NOW + 2 * SECOND), background=False
            ) as again:
                mark = again.engine.state.senders.get(sender, (0, 0))[0]
                assert mark >= (jobs()[:done][-1][0] if done else 0)
                assert not again.engine.state.unwritten_marks
                # A consumer is quicker than the forwarder: its jobs are done and gone.
                gone = []
                while (leased := again.lease("q")) is not None:
                    gone.append(leased.payload)
                    leased.done()
                put_from(again, sender, jobs())
                rest = [value for value, _, _ in picture(again)]
                plain = [value for value in gone + rest if value not in (b"old", b"new", b"older")]
                assert sorted(plain) == sorted(v for v, key, _ in want if not key), crash_at
            again = Journal(
                "/j", files=image, clock=ManualClock(NOW + 3 * SECOND), background=False
            )
            again.close()
        if not crashed:
            break
    assert images > 500


@pytest.mark.parametrize("sender", [NAME, b"a host of another kind"])
def test_sending_again_after_any_crash_gives_the_rows_of_sending_once(sender: bytes) -> None:
    want = reference(sender)
    for crash_at in itertools.count(1):
        files = MemoryFiles(crash_at=crash_at)
        crashed = False
        try:
            with Journal(
                "/j", files=files, clock=ManualClock(NOW + SECOND), background=False
            ) as journal:
                put_from(journal, sender, jobs())
        except (Crash, JournalError):
            crashed = True
        for image in (files.killed(), *files.images(samples=60, seed=crash_at)):
            with Journal(
                "/j", files=image, clock=ManualClock(NOW + 2 * SECOND), background=False
            ) as again:
                put_from(again, sender, jobs())
                assert picture(again) == want
                digest = again.digest()
                taken = put_from(again, sender, jobs())
                assert taken.repeated + len(taken.refused) == len(jobs())
                assert again.digest() == digest
            with Journal(
                "/j", files=image, clock=ManualClock(NOW + 2 * SECOND), background=False
            ) as again:
                assert again.digest() == digest
        if not crashed:
            break


def test_a_mark_survives_the_cleaning_of_its_jobs() -> None:
    files = MemoryFiles()
    clock = ManualClock(NOW)
    with Journal("/j", files=files, clock=clock, background=False, segment_size=4096) as journal:
        for number in range(2, 100):
            put_from(journal, NAME, [(number, NewJob(b"q", b"x" * 100, b"", Mode.PLAIN))])
            leased = journal.lease("q")
            assert leased is not None
            leased.done()
        clock.advance(3600)
        assert journal.clean()
    with Journal("/j", files=files, clock=clock, background=False) as journal:
        assert journal.engine.state.senders[NAME][0] == 99
        Receiver(journal).forget_sender(NAME)
        assert journal.engine.state.senders == {}
    with Journal("/j", files=files, clock=clock, background=False) as journal:
        assert journal.engine.state.senders == {}


def test_a_torn_batch_keeps_the_mark_of_what_is_left_of_it() -> None:
    """The id of a job tells its mark: the SENDER record at the end of the batch may be lost."""
    from fastjournal.journal.language.codec import encode

    files = MemoryFiles()
    clock = ManualClock(NOW + SECOND)
    journal = Journal("/j", files=files, clock=clock, background=False, sync="os")
    put_from(journal, NAME, jobs()[:4])
    at = journal.engine.state.senders[NAME]
    files = files.killed()
    path = next(path for path in files.snapshot() if path.name.endswith(".log"))
    data = files.content(path)
    cut = data.rindex(encode(Sender(NAME, 40)))
    files.put(path, data[: cut - 5])
    with Journal("/j", files=files, clock=clock, background=False) as journal:
        assert journal.engine.state.senders[NAME][0] == at[0] == 40
        assert put_from(journal, NAME, jobs()[:4]).repeated == 4
        assert len(journal.engine.state.rows) == 4
    with Journal("/j", files=files, clock=clock, background=False) as journal:
        assert journal.engine.state.senders[NAME][0] == 40


def test_every_entry_of_a_swept_spool_is_done_or_set_aside(tmp_path: Path) -> None:
    clock = write(tmp_path)
    clock.step(-3 * 3600)
    journal = Journal("/j", files=MemoryFiles(), clock=clock, background=False)
    drain(Forwarder(ForwardedSpool(tmp_path), clock=clock), JournalDestination(journal))
    assert {entry.state for entry in read_spool(tmp_path)} == {"done"}


def test_a_journal_without_room_gets_everything_once_when_there_is_room(tmp_path: Path) -> None:
    """Disk full on the daemon's side: the spool keeps what cannot be taken in."""
    clock = write(tmp_path)
    files = MemoryFiles()
    journal = Journal("/j", files=files, clock=clock, background=False)
    target = JournalDestination(journal)
    files.capacity = RESERVE_SIZE + 500
    failures = 0
    for _ in range(100):
        forwarder = Forwarder(ForwardedSpool(tmp_path), clock=clock, batch_jobs=2)
        try:
            drain(forwarder, target)
            break
        except JournalError:
            failures += 1
            target.close()
            forwarder.close()
            clock.advance(2)
            files.capacity = RESERVE_SIZE + failures * 500
    assert failures > 2
    expect(journal)
    assert list(tmp_path.glob("*.fj*")) == []
