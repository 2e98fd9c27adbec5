"""A daemon that ships its journals: what it says of that, and what is left when it is killed."""

from __future__ import annotations

import threading
import urllib.request
from pathlib import Path
from random import Random

import pytest

from archiving import check_sound, restored_rows, rows, rows_in
from daemon_process import DaemonProcess
from dashboard import Visitor
from fastjournal import connect
from fastjournal.archive.store import DirectoryStore
from fastjournal.errors import JournalError
from fastjournal.journal.disk.replay import replay
from fastjournal.journal.language.codec import encode
from fastjournal.journal.state.row import image
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon


@pytest.mark.parametrize("uvloop", [False, True])
def test_a_daemon_ships_each_journal_below_its_name_and_says_how_far(
    tmp_path: Path, uvloop: bool
) -> None:
    settings = {
        "journals": ["mail"], "web": "127.0.0.1:0",
        "journal": {
            "sync": "always", "archive": str(tmp_path / "archive"), "archive_interval": 0.05,
        },
    }  # fmt: skip
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=uvloop) as daemon:
        journal = daemon.server.journals["mail"].journal
        with daemon.connect(journal="mail") as client:
            for n in range(50):
                client.put(b"x", queue="q", key=f"{n}")

            def is_shipped() -> bool:
                archive = client.status().archive
                return bool(archive.archived_to == journal.status().log.written_time)

            wait_until(is_shipped, what="all is archived")
            told = client.status().archive
        assert told.state == "shipping" and told.errors == 0 and told.uploads >= 2
        assert told.address == str(tmp_path / "archive" / "mail")
        store = DirectoryStore(tmp_path / "archive" / "mail")
        assert restored_rows(store, tmp_path / "back") == rows(journal)
        page = _metrics(daemon)
        assert 'fastjournal_archive_ok{journal="mail"} 1.0' in page
        assert 'fastjournal_archive_lag_bytes{journal="mail"}' in page
        health = Visitor(daemon).get("/j/mail/health").text
        assert str(tmp_path / "archive" / "mail") in health and "restorable up to" in health
    assert rows_in(tmp_path / "d" / "mail") == restored_rows(store, tmp_path / "again")


def test_the_old_setting_ships_into_the_directory_of_each_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"journal": {"history": "archive", "archive_interval": 0.05, "sync": "always"}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon, daemon.connect() as client:
        client.put(b"x", queue="q")
        journal = daemon.server.journals["default"].journal
        wait_until(
            lambda: client.status().archive.archived_to == journal.status().log.written_time,
            what="all is archived",
        )
        live = rows(journal)
    assert "deprecated" in caplog.text
    store = DirectoryStore(tmp_path / "d" / "default" / "archive")
    assert restored_rows(store, tmp_path / "back") == live


def _metrics(daemon: LocalDaemon) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.http_port}/metrics") as answer:
        return str(answer.read().decode())


def test_a_store_in_trouble_is_shown_and_no_answer_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("not a directory")
    settings = {
        "web": "127.0.0.1:0",
        "journal": {"archive": str(tmp_path / "archive"), "archive_interval": 0.05},
    }
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon, daemon.connect() as client:
        client.put(b"x", queue="q")
        wait_until(lambda: client.status().archive.errors, what="it was tried")
        told = client.status().archive
        assert told.state == "failing" and told.last_error
        assert 'fastjournal_archive_ok{journal="default"} 0.0' in _metrics(daemon)
        assert "last error" in Visitor(daemon).get("/j/default/health").text
        assert len(client.put(b"y", queue="q").id) == 16


def test_without_an_archive_nothing_is_said_of_one(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "d") as daemon, daemon.connect() as client:
        assert client.status().archive is None
        assert "journal=" in _metrics(daemon)
        assert "fastjournal_archive_ok{" not in _metrics(daemon)


@pytest.mark.kill
@pytest.mark.parametrize("cleans", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_daemon_leaves_a_sound_archive_that_ends_as_the_journal_does(
    tmp_path: Path, cleans: bool
) -> None:
    """Where nothing is cleaned, it is at each kill what the log says of that TIME."""
    chance = Random(11)
    archive = tmp_path / "archive"
    settings = tmp_path / "settings.toml"
    settings.write_text(
        f'[journal]\nsync = "always"\nsegment_size = 20000\narchive = "{archive}"\n'
        f"archive_interval = 0.02\nclean_interval = {0.2 if cleans else 0}\n"
        f"snapshot_bytes = {100_000 if cleans else 0}\n"
    )
    daemon = DaemonProcess(tmp_path / "d", "--config", str(settings))
    store = DirectoryStore(archive / "default")
    compared = 0
    for round_ in range(3):
        daemon.start()
        stop = threading.Event()

        def work(stop: threading.Event = stop, round_: int = round_) -> None:
            n = 0
            try:
                with connect(daemon.url) as client:
                    while not stop.is_set():
                        n += 1
                        client.put(bytes(100), queue="q", key=f"{round_}-{n}")
                        if n % 2:
                            client.lease("q", take=True)
            except JournalError:
                return  # it was killed

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        before = len(store.find(""))
        more = chance.randrange(1, 20)
        wait_until(lambda b=before, m=more: len(store.find("")) >= b + m, what="it ships")
        daemon.kill()
        stop.set()  # its last call ends when the daemon is there again
        manifest = check_sound(store)
        if manifest is not None:
            back = restored_rows(store, tmp_path / f"back{round_}")
            if not cleans:
                assert back == _rows_at(tmp_path / "d" / "default", manifest.end)
                compared += 1
    daemon.start()
    with connect(daemon.url) as client:
        client.put(b"last", queue="q", key="last")

        def is_shipped() -> bool:
            figures = client.status()
            return bool(figures.archive.archived_to >= figures.log.written_time)

        wait_until(is_shipped, what="all is archived")
    assert daemon.stop() == 0
    manifest = check_sound(store)
    assert manifest is not None and manifest.epoch == 4
    assert cleans or compared
    assert restored_rows(store, tmp_path / "back") == rows_in(tmp_path / "d" / "default")


def _rows_at(directory: Path, time: int) -> list[bytes]:
    """The rows of a log as of a TIME, by replaying it from its beginning."""
    state = replay(Stream(directory, WORKQ), until=time).state
    return sorted(
        encode(one) for row in state.rows.values() for one in image(row, row.value or b"")
    )
