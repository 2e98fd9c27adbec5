"""A spool is a directory into which others may write: what they can place there, and what not."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.errors import JournalFault, SettingError
from fastjournal.log.files import DISK
from fastjournal.spool.forwarder import LOCK, QUARANTINE, ForwardedSpool, Forwarder, SpoolDisk
from fastjournal.spool.frames import HEADER, HOUR, frame, name_of
from fastjournal.spool.reader import read_spool
from fastjournal.spool.spool_dir import ForeignFile
from fastjournal.spool.watch import PingWatch
from fastjournal.spool.writer import WAKE, Spool
from fastjournal.testing import ManualClock
from spooling import NOW, JournalDestination, drain, payloads, rows

T = NOW // HOUR
SECRET = b"a secret of somebody else\n"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    path = tmp_path / "spool"
    path.mkdir()
    path.chmod(0o770)
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def place_link(place: Path, secret: Path) -> None:
    place.symlink_to(secret)


def place_pipe(place: Path, secret: Path) -> None:
    os.mkfifo(place)


def place_folder(place: Path, secret: Path) -> None:
    place.mkdir()


PLACED = pytest.mark.parametrize("placed", [place_link, place_pipe, place_folder])


def everything(path: Path) -> bytes:
    """All bytes of all files of a spool."""
    found = [p for p in path.rglob("*") if p.is_file() and not p.is_symlink()]
    return b"".join(p.read_bytes() for p in found)


@PLACED
def test_a_forwarder_leaves_a_foreign_name_alone_and_forwards_the_rest(
    spool: Path,
    secret: Path,
    clock: ManualClock,
    journal: Journal,
    placed: Callable[[Path, Path], None],
) -> None:
    with Spool(spool, clock=clock) as producer:
        producer.put(b"a", queue="q")
    placed(spool / name_of(T - 5), secret)
    forwarder = Forwarder(ForwardedSpool(spool), clock=clock)
    clock.advance(3 * 3600)
    drain(forwarder, JournalDestination(journal))
    assert [row.value for row in rows(journal)] == [b"a"]
    assert secret.read_bytes() == SECRET
    assert SECRET not in everything(spool)
    assert forwarder.measure().foreign == 1
    (report,) = forwarder.figures.reports
    assert name_of(T - 5) in report and "not opened" in report


def test_many_foreign_names_do_not_crowd_out_the_files(
    spool: Path, secret: Path, clock: ManualClock, journal: Journal
) -> None:
    with Spool(spool, clock=clock) as producer:
        producer.put(b"a", queue="q")
    for hour in range(T - 300, T):
        place_link(spool / name_of(hour), secret)
    drain(Forwarder(ForwardedSpool(spool), clock=clock), JournalDestination(journal))
    assert [row.value for row in rows(journal)] == [b"a"]


@pytest.mark.parametrize("in_use", [False, True], ids=["new", "in use"])
@PLACED
def test_a_producer_takes_the_next_file_instead_of_a_foreign_name(
    spool: Path, secret: Path, clock: ManualClock, placed: Callable[[Path, Path], None],
    in_use: bool,
) -> None:  # fmt: skip
    """Of a spool in use the file of the hour is opened whoever made it."""
    if in_use:
        put_before(spool)
    placed(spool / name_of(T), secret)
    with Spool(spool, clock=clock) as producer:
        producer.put(b"a", queue="q")
    assert secret.read_bytes() == SECRET
    assert (spool / name_of(T + 1)).is_file()
    assert payloads(spool) == [b"before"] * in_use + [b"a"]


def put_before(spool: Path) -> None:
    """An hour ago the spool was in use."""
    with Spool(spool, clock=ManualClock(NOW - HOUR)) as producer:
        producer.put(b"before", queue="q")


@PLACED
def test_who_looks_into_a_spool_is_told_of_a_foreign_name(
    spool: Path, secret: Path, placed: Callable[[Path, Path], None]
) -> None:
    placed(spool / name_of(T), secret)
    (entry,) = read_spool(spool)
    assert (entry.state, entry.job, entry.data) == ("damaged", None, b"")
    assert "not opened" in entry.reason


@pytest.mark.parametrize("name", ["spool.id", "spool.boot"])
@PLACED
def test_the_names_of_a_spool_are_not_read_through_a_foreign_name(
    spool: Path, secret: Path, clock: ManualClock, name: str, placed: Callable[[Path, Path], None]
) -> None:
    secret.write_bytes(b"ab" * 16 + b"\n")
    placed(spool / name, secret)
    with pytest.raises(JournalFault, match="not opened"), Spool(spool, clock=clock) as producer:
        producer.put(b"a", queue="q")


def test_a_lock_is_not_taken_through_a_link(spool: Path, secret: Path) -> None:
    place_link(spool / LOCK, secret)
    with pytest.raises(OSError):
        ForwardedSpool(spool).lock()
    assert secret.read_bytes() == SECRET


def test_a_journal_opens_nothing_through_a_link(tmp_path: Path, secret: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(secret)
    for open_it in (DISK.open, DISK.open_in_place, DISK.open_read, DISK.create):
        with pytest.raises(OSError):
            open_it(link)
    with pytest.raises(OSError):
        DISK.lock(link, exclusive=True, timeout=0)
    assert secret.read_bytes() == SECRET


def test_nothing_is_quarantined_through_a_link(
    spool: Path, tmp_path: Path, clock: ManualClock, journal: Journal
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (spool / QUARANTINE).symlink_to(elsewhere)
    (spool / name_of(T)).write_bytes(HEADER + frame(b"nonsense"))
    with pytest.raises(ForeignFile):
        drain(Forwarder(ForwardedSpool(spool), clock=clock), JournalDestination(journal))
    assert list(elsewhere.iterdir()) == []


def test_a_report_is_not_written_through_a_link(
    spool: Path, secret: Path, clock: ManualClock, journal: Journal
) -> None:
    (spool / QUARANTINE).mkdir()
    (spool / QUARANTINE / "report.jsonl").symlink_to(secret)
    (spool / name_of(T)).write_bytes(HEADER + frame(b"nonsense"))
    with pytest.raises(ForeignFile):
        drain(Forwarder(ForwardedSpool(spool), clock=clock), JournalDestination(journal))
    assert secret.read_bytes() == SECRET


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_counts_only_if_its_owner_may_write_into_the_directory(
    spool: Path, clock: ManualClock
) -> None:
    place = spool / name_of(T)
    for owner, group, mode, counts in [
        (1234, 1234, 0o700, False),
        (1234, os.getegid(), 0o750, False),
        (1234, 1234, 0o770, False),
        (1234, os.getegid(), 0o770, True),
        (1234, 1234, 0o777, True),
    ]:
        place.write_bytes(HEADER)
        os.chown(place, owner, group)
        spool.chmod(mode)
        if counts:
            SpoolDisk().open_spooled(place).close()
        else:
            with pytest.raises(ForeignFile, match="user 1234"):
                SpoolDisk().open_spooled(place)


@pytest.mark.parametrize(
    ("directory", "mode", "files", "names"),
    [
        (0o2770, 0o660, 0o660, 0o660),
        (0o770, 0o600, 0o600, 0o660),
        (0o755, 0o660, 0o640, 0o644),
        (0o777, 0o660, 0o660, 0o664),
        (0o700, 0o660, 0o600, 0o600),
    ],
)
@pytest.mark.usefixtures("usual_umask")
def test_files_are_never_wider_than_the_directory_whatever_the_umask(
    spool: Path, clock: ManualClock, journal: Journal,
    directory: int, mode: int, files: int, names: int,
) -> None:  # fmt: skip
    spool.chmod(directory)
    with Spool(spool, clock=clock, mode=mode) as producer:
        producer.put(b"a", queue="q")
        producer.put(b"b", queue="q", ttl=1)
    clock.advance(5)
    drain(
        Forwarder(ForwardedSpool(spool, SpoolDisk(mode)), clock=clock), JournalDestination(journal)
    )
    assert mode_of(spool / name_of(T)) == files
    assert mode_of(spool / "spool.id") == mode_of(spool / "spool.boot") == names
    quarantine = spool / QUARANTINE
    kept = list(quarantine.iterdir())
    assert len(kept) == 2
    assert {mode_of(path) for path in kept} == {files}
    assert mode_of(quarantine) & 0o7777 == files | (files >> 2) & 0o111
    assert json.loads((quarantine / "report.jsonl").read_text())["reason"]


def test_a_copy_is_for_nobody_who_may_not_read_the_file(
    spool: Path, clock: ManualClock, journal: Journal
) -> None:
    place = spool / name_of(T)
    place.write_bytes(HEADER + frame(b"nonsense"))
    place.chmod(0o600)
    drain(Forwarder(ForwardedSpool(spool), clock=clock), JournalDestination(journal))
    (copy,) = (spool / QUARANTINE).glob("*.bad")
    assert mode_of(copy) == 0o600


@pytest.mark.parametrize("mode", [0o666, 0o644, 0, 0o4660])
def test_any_other_mode_is_refused(spool: Path, mode: int) -> None:
    with pytest.raises(SettingError, match="0600 or 0660"):
        Spool(spool, mode=mode)
    with pytest.raises(SettingError, match="0600 or 0660"):
        SpoolDisk(mode)


def test_the_socket_is_for_those_who_share_the_directory(spool: Path) -> None:
    spool.chmod(0o770)
    watcher = PingWatch(str(spool))
    assert mode_of(spool / WAKE) == 0o660
    watcher.close()


def test_a_producer_wakes_nobody_through_a_link(
    spool: Path, tmp_path: Path, clock: ManualClock
) -> None:
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    other = PingWatch(str(elsewhere))
    (spool / WAKE).symlink_to(elsewhere / WAKE)
    with Spool(spool, clock=clock) as producer:
        producer.put(b"a", queue="q")
    with pytest.raises(BlockingIOError):
        os.read(other.fileno(), 16)
    other.close()


def test_a_put_does_not_wait_for_the_reader_of_a_pipe(spool: Path, clock: ManualClock) -> None:
    put_before(spool)
    os.mkfifo(spool / name_of(T))
    done = threading.Event()

    def put() -> None:
        with Spool(spool, clock=clock) as producer:
            producer.put(b"a", queue="q")
        done.set()

    threading.Thread(target=put, daemon=True).start()
    assert done.wait(10)
