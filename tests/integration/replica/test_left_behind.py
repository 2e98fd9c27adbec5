"""`fastjournal replica lost`: what was cut off, and its jobs put again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from command_line import invoke
from fastjournal import Journal
from fastjournal.errors import CorruptRecord
from fastjournal.log.care.repair import cut
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.testing.daemon import LocalDaemon


def run(*words: str) -> list[dict[str, object]]:
    """Its lines of JSON."""
    done = invoke(["replica", "lost", *words, "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The directory of a node that was cut back to what the journal in `went-on` has."""
    home = tmp_path / "old"
    with Journal(home, sync="always") as journal:
        journal.put(b"merged", key="both", queue="q")
        journal.put(b"worked on", key="begun", queue="q", priority=1)
        journal.engine.log.sync()
        common = journal.engine.log.position
        shutil.copytree(home, tmp_path / "went-on" / "default")
        journal.put(b"newer", key="both", queue="q")
        journal.put(b"lost", key="mine", queue="other", priority=7, max_attempts=3)
        again = journal.put(b"sent again", key="again", queue="q")
        ended = journal.put(b"ended", key="ended", queue="q", priority=0)
        job = journal.lease("q")
        assert job is not None and job.id == ended.id
        job.done()
        (tmp_path / "again").write_bytes(again.id)
    cut(Stream(home, WORKQ), common, aside="diverged-7")
    return home


def test_jobs_that_a_newer_primary_did_not_have_are_put_again_once(
    old: Path, tmp_path: Path
) -> None:
    """F58: under their own ids; what merged merges again, what ended there stays ended."""
    listed = run(str(old))
    assert [one["command"] for one in listed].count("Put") == 4
    with LocalDaemon(tmp_path / "went-on") as daemon:
        with daemon.connect() as journal:
            sent = (tmp_path / "again").read_bytes()
            journal.put(b"sent again", key="again", queue="q", id=sent)
        (told,) = run(str(old), "--put", daemon.url)
        assert told == {"outcome": "put", "jobs": 2, "known": 1, "files": 1}
        with daemon.connect() as journal:
            jobs = {job.key: job for job in journal.jobs(limit=100)}
            assert {key: job.payload for key, job in jobs.items()} == {
                "both": b"newer",
                "begun": b"worked on",
                "mine": b"lost",
                "again": b"sent again",
            }
            mine = jobs["mine"]
            assert (mine.queue, mine.priority, mine.max_attempts) == ("other", 7, 3)
            assert mine.id.hex() in {one["id"] for one in listed}
        assert run(str(old)) == []
        (told,) = run(str(old), "--put", daemon.url)
        assert told == {"outcome": "put", "jobs": 0, "known": 0, "files": 0}


def test_a_damaged_tail_is_named_and_stays_until_it_could_be_read(
    old: Path, tmp_path: Path
) -> None:
    """F58: what lies behind the damage is never taken for nothing; zeros at the end are."""
    (tail,) = old.glob("*.diverged-*")
    whole = tail.read_bytes()
    tail.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    with LocalDaemon(tmp_path / "went-on") as daemon:
        for words in ([str(old)], [str(old), "--put", daemon.url]):
            done = invoke(["replica", "lost", *words, "--json"])
            assert isinstance(done.exception, CorruptRecord), done.output
            assert done.exception.path == tail
        with daemon.connect() as journal:
            assert {job.key for job in journal.jobs(limit=100)} == {"both", "begun"}
        tail.write_bytes(whole + bytes(4096))
        (told,) = run(str(old), "--put", daemon.url)
        assert told["files"] == 1
