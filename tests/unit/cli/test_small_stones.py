"""What people mistype is told; what they clear away is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastjournal import Journal, NotFound, SettingError
from fastjournal.arguments import NEVER
from fastjournal.cli.app import app


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize("verb", ["pause", "drain", "resume"])
def test_a_mistyped_queue_is_told_and_not_made(tmp_path: Path, verb: str) -> None:
    with Journal(tmp_path) as journal:
        journal.put(b"x", queue="mail")
    done = CliRunner().invoke(app, [verb, "mial", "--dir", str(tmp_path)])
    assert isinstance(done.exception, NotFound)
    assert "no queue" in str(done.exception)
    run(verb, "mail", "--dir", str(tmp_path))
    with Journal(tmp_path) as journal:
        assert [queue.name for queue in journal.queues()] == [b"mail"]


def test_an_unknown_setting_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, pytest.raises(SettingError, match=r"there are: .*max_wait"):
        journal.configure("q", max_weight=5)


def test_all_dead_jobs_of_a_queue_or_of_all_can_be_deleted(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for queue in ("a", "a", "b"):
            journal.put(b"x", queue=queue)
            job = journal.lease(queue)
            assert job is not None
            job.fail("why", NEVER)
        journal.put(b"alive", queue="a")
    place = ("--dir", str(tmp_path))
    assert run("delete", "--dead", "--queue", "a", *place) == "2 deleted\n"
    assert run("delete", "--dead", *place) == "1 deleted\n"
    run("delete", "--dead", *place, code=1)
    run("delete", "--dead", "--key", "k", *place, code=2)
    with Journal(tmp_path) as journal:
        assert [job.value for job in journal.jobs()] == [b"alive"]


@pytest.mark.parametrize("verb", ["put", "list", "stat", "configure", "get", "worker", "workers"])
def test_the_help_of_a_command_shows_both_ways_to_name_a_journal(verb: str) -> None:
    text = run(verb, "--help")
    assert "--dir" in text
    assert "--url" in text
