"""Declared queues and journals: what is read, refused, and made true (SNAP-LIB-1, D-17)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command_line import invoke
from fastjournal import Journal, apply_tables, read_tables
from fastjournal.clock import SECOND
from fastjournal.errors import SettingError
from fastjournal.model import DEFAULT_SETTINGS, SETTING_LENGTHS, SETTING_NAMES
from fastjournal.tables import Change

TOML = """
[queues.mail]
kind = "list"
priority_order = "smaller"
max_timeouts = 5
period = "day"
file_management = "truncate"
secure = true
persist = false
slow_from = 100
keep_versions = true
replicas = 1
schema = 3

[queues."example.com"]
lease = "250ms"
backoff_jitter = 0.5

[journals.web]
sync = "always"

[journals.web.queues.pages]
max_wait = 600
"""
INI = """
[queues.mail]
kind = list
priority_order = smaller
max_timeouts = 5
period = day
file_management = truncate
secure = yes
persist = no
slow_from = 100
keep_versions = on
replicas = 1
schema = 3

[queues.example.com]
lease = 250ms
backoff_jitter = 0.5

[journals.web]
sync = always

[journals.web.queues.pages]
max_wait = 10m
"""
DICT: dict[str, Any] = {
    "queues": {
        "mail": {
            "lease": 86_400, "priority_order": "smaller", "max_timeouts": 5, "period": "day",
            "file_management": "truncate", "secure": True, "persist": False, "slow_from": 100,
            "keep_versions": True, "schema": 3, "name": "mail",
        },
        "example.com": {"lease": 0.25, "backoff_jitter": 0.5},
    },
    "journals": {"web": {"sync": "always", "queues": {"pages": {"max_wait": 600}}}},
}  # fmt: skip


def written(path: Path, text: str, name: str = "tables.toml") -> Path:
    (path / name).write_text(text)
    return path / name


def test_toml_ini_and_a_dict_declare_the_same(tmp_path: Path) -> None:
    """SNAP-LIB-1, FJ-SQL-1: the kind `list` has a lease of a day."""
    told = read_tables(DICT)
    assert read_tables(written(tmp_path, TOML)) == told
    assert read_tables(str(written(tmp_path, INI, "tables.ini"))) == told
    assert told.queues["mail"]["lease"] == 86_400
    assert told.journals["web"].settings == {"sync": "always"}


def test_every_setting_of_a_queue_may_be_declared() -> None:
    """SNAP-LIB-1."""
    every = {name: getattr(DEFAULT_SETTINGS, name) for name in SETTING_NAMES}
    every |= {name: every[name] / SECOND for name in every if name in SETTING_LENGTHS}
    assert set(read_tables({"queues": {"q": every}}).queues["q"]) == set(SETTING_NAMES)


def test_what_is_declared_is_made_true_once_and_nothing_else_changes(tmp_path: Path) -> None:
    """SNAP-LIB-1."""
    tables = read_tables(DICT)
    with Journal(tmp_path, sync="os", background=False) as journal:
        journal.configure("mail", paused=True)
        found = apply_tables(journal, tables.queues)
        assert Change("mail", "lease", 60 * SECOND, 86_400 * SECOND) in found
        settings = journal.queue("mail").settings
        assert (settings.lease, settings.period, settings.paused) == (86_400 * SECOND, "day", True)
        written = journal.engine.last_time
        assert apply_tables(journal, tables.queues) == []
        assert journal.engine.last_time == written
    with Journal(tmp_path, sync="os", background=False) as journal:
        assert journal.queue("mail").settings == settings


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({"queue": {}}, "'queue'"),
        ({"queues": {"q": {"leese": 1}}}, "leese"),
        ({"queues": {"q": {"lease": "soon"}}}, "lease"),
        ({"queues": {"q": {"lease": -1}}}, "lease"),
        ({"queues": {"q": {"persist": "maybe"}}}, "persist"),
        ({"queues": {"q": {"max_timeouts": 256}}}, "max_timeouts"),
        ({"queues": {"q": {"schema": "new"}}}, "schema"),
        ({"queues": {"q": {"kind": "stack"}}}, "stack"),
        ({"queues": {"q": {"name": "p"}}}, "named by its table"),
        ({"queues": {"q": {"replicas": 3}}}, "replicas"),
        ({"queues": {"example": {"com": {"lease": 1}}}}, "quotes"),
        ({"queues": {"": {}}}, "queue"),
        ({"queues": {"q": 3}}, "queues.q"),
        ({"queues": 3}, "queues"),
        ({"journals": {"j": {"queues": {"q": {"lease": 0}}}}}, "journals.j.queues.q"),
    ],
)
def test_what_cannot_be_declared_is_refused_by_name(told: dict[str, Any], word: str) -> None:
    with pytest.raises(SettingError, match=word.replace(".", r"\.")):
        read_tables(told)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.toml", "[queues"), ("a.ini", "lease = 1"), ("a.ini", "[mail]\nlease = 1"), ("a", "= 3")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(SettingError, match=name):
        read_tables(written(tmp_path, text, name))
    with pytest.raises(SettingError, match="nowhere"):
        read_tables(tmp_path / "nowhere.toml")


def test_the_command_shows_the_difference_applies_it_and_is_then_content(tmp_path: Path) -> None:
    """SNAP-LIB-1: `--dry-run` changes nothing, and looks at a journal in use."""
    tables = str(written(tmp_path, TOML))
    place = str(tmp_path / "jobs")

    def run(*more: str) -> str:
        done = invoke(["apply", tables, "--dir", place, *more])
        assert done.exit_code == 0, done.output
        return done.output

    shown = run("--dry-run")
    assert "mail  lease  1m -> 1d" in shown
    assert "web/pages  max_wait  0 -> 10m" in shown
    assert not (tmp_path / "jobs").exists()
    assert run() == shown
    with Journal(place, sync="os", background=False) as journal:
        assert journal.queue("mail").settings.schema == 3
        journal.configure("mail", lease=5)
        assert "mail  lease  5s -> 1d" in run("--dry-run")
    assert '"setting":"lease"' in run("--json").replace(" ", "")
    assert "nothing differs" in run()
    with Journal(f"{place}/web", sync="os", background=False) as journal:
        assert journal.queue("pages").settings.max_wait == 600 * SECOND
