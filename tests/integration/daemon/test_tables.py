"""Declared queues and journals of a daemon: made true at its start, each journal by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.clock import SECOND
from fastjournal.config import load
from fastjournal.daemon.server import declared_tables
from fastjournal.errors import SettingError
from fastjournal.journal.disk.generations import settings_of
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.daemon import LocalDaemon

TABLES = """
[queues.mail]
lease = 5

[journals.web]
sync = "always"

[journals.web.queues.pages]
period = "hour"
file_management = "truncate"
secure = true

[journals.slow]
segment_size = 8192
"""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    path = tmp_path / "tables.toml"
    path.write_text(TABLES)
    return path


def test_a_daemon_makes_what_is_declared_true_at_its_start(tmp_path: Path, tables: Path) -> None:
    """SNAP-LIB-1: queues, journals that were missing, and how each of them is kept."""
    settings = {"tables": str(tables), "journal": {"sync": "os"}}
    with LocalDaemon(tmp_path / "data", settings=settings) as daemon:
        journals = daemon.server.journals
        assert sorted(journals) == ["default", "slow", "web"]
        assert {name: one.engine.log.options.sync for name, one in journals.items()} == {
            "default": "os", "slow": "os", "web": "always",
        }  # fmt: skip
        assert journals["slow"].engine.log.options.segment_size == 8192
        with daemon.connect() as client:
            assert client.queue("mail").settings.lease == 5 * SECOND
            client.configure("mail", paused=True)
    with LocalDaemon(tmp_path / "data", settings=settings) as daemon, daemon.connect() as client:
        assert client.queue("mail").settings.paused


def test_a_period_holds_for_the_journal_that_declares_it_alone(
    tmp_path: Path, tables: Path
) -> None:
    """SNAP-SLT-1, SNAP-SLT-5: neither rotation nor overwriting reaches another journal."""
    clock = ManualClock()
    settings = {"tables": str(tables), "journal": {"sync": "os", "clean_interval": 0}}
    with LocalDaemon(tmp_path / "data", settings=settings, clock=clock) as daemon:
        begun, secure = {}, {}
        for name in ("default", "web"):
            journal = daemon.server.journals[name].journal
            journal.put(b"x", queue="pages")
            clock.advance(7200)
            journal.tick()
            journal.put(b"y", queue="pages")
            begun[name] = journal.status().upkeep.generations
            secure[name] = any(one.secure for one in settings_of(journal.engine.state))
        assert begun == {"default": 0, "web": 1}
        assert secure == {"default": False, "web": True}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[journals.web]\nsync = 'often'", "journals.web"),
        ("[journals.web]\nspeed = 1", "journals.web"),
        ("[journals.'a/b']\nsync = 'os'", "journals.a/b"),
        ("[queues.q]\nlease = 0", "lease"),
    ],
)
def test_what_cannot_be_declared_keeps_a_daemon_from_starting(
    tmp_path: Path, text: str, word: str
) -> None:
    path = tmp_path / "tables.toml"
    path.write_text(text)
    with pytest.raises(SettingError, match=word):
        declared_tables(load(None, {}, {"tables": str(path)}))
