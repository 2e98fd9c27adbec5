"""The job commands on a journal in a directory: what they print, what they change, how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import Command
from fastjournal import Journal, State


class JobCommand(Command):
    def leased(self, *arguments: str) -> tuple[str, str]:
        """Lease a job; its id and token as they are typed."""
        job = self("lease", "--json", *arguments).lines[0]
        return job["id"], str(job["token"])

    def shown(self, job: str) -> dict[str, Any]:
        return self("show", job, "--json").lines[0]


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> JobCommand:
    return JobCommand(capsys, monkeypatch, tmp_path / "jobs")


def test_put_prints_the_id_and_what_became_of_the_job(run: JobCommand) -> None:
    first = run("put", "one", "--key", "https://example.com/a")
    again = run("put", "two", "--key", "https://example.com/a", "--json")
    job, word = first.out.split()
    assert (first.code, len(job), word) == (0, 32, "new")
    assert again.lines == [{"id": job, "outcome": "merged"}]
    assert run.shown(job)["payload"] == "two"


def test_a_job_put_by_one_command_is_leased_and_ended_by_others(run: JobCommand) -> None:
    run("put", "work", "--queue", "mail")
    job, token = run.leased("mail", "--worker", "me")
    assert run.shown(job)["worker"] == "me"
    assert run("done", job, token).out == f"{job} done\n"
    assert run("show", job).code == 2
    assert run("lease").code == 1


def test_lease_without_a_job_ends_with_1_and_prints_nothing(run: JobCommand) -> None:
    run("put", "later", "--queue", "q", "--delay", "1h")
    outcome = run("lease", "--json")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "")


def test_lease_prints_id_and_token_for_people_too(run: JobCommand) -> None:
    run("put", "work", "--queue", "mail")
    words = run("lease").out.split()
    job = words[words.index("payload") + 2 :]
    assert len(job[0]) == 32
    assert job[1:3] == ["1", "mail"]


def test_lease_takes_several_jobs_of_the_queues_asked_for(run: JobCommand) -> None:
    for queue in ("a.x", "a.y", "b"):
        run("put", queue, "--queue", queue)
    assert [job["queue"] for job in run("lease", "b", "--json").lines] == ["b"]
    assert {
        job["queue"] for job in run("lease", "--prefix", "a.", "--count", "9", "--json").lines
    } == {
        "a.x",
        "a.y",
    }


def test_lease_takes_jobs_of_one_version_of_payloads(run: JobCommand) -> None:
    run("put", "old", "--queue", "q")
    run("configure", "q", "schema=2")
    run("put", "new", "--queue", "q")
    (job,) = run("lease", "q", "--schema", "2", "--count", "9", "--json").lines
    assert (job["payload"], job["schema"]) == ("new", 2)
    assert run("lease", "q", "--schema", "2").code == 1
    assert run("lease", "q", "--schema", "16").code == 2


def test_a_job_that_is_taken_is_gone_at_once(run: JobCommand) -> None:
    run("put", "work", "--queue", "mail")
    assert run("lease", "--take", "--json").lines[0]["payload"] == "work"
    assert run("list", "--json").lines == []


def test_a_result_stays_to_be_shown(run: JobCommand) -> None:
    run("put", "work", "--queue", "mail")
    job, token = run.leased()
    run("done", job, token, "--result", "-", stdin=b"42")
    assert run.shown(job)["state"] == "completed"
    assert run.shown(job)["result"] == "42"


def test_a_stale_token_changes_nothing_and_is_one_line_of_error(run: JobCommand) -> None:
    run("put", "work", "--queue", "mail")
    job, token = run.leased()
    run("release", job, token)
    again, newer = run.leased()
    assert (again, newer) == (job, "2")
    for command in (["done"], ["fail"], ["touch"], ["release"]):
        outcome = run(*command, job, token)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == "error: The lease is no longer yours: its token is stale.\n"
    assert run.shown(job)["state"] == "leased"


def test_a_failed_job_is_tried_again_then_dead_then_redriven(run: JobCommand) -> None:
    run("put", "work", "--queue", "mail", "--max-fails", "2")
    job, token = run.leased()
    outcome = run("fail", job, token, "--reason", "no route", "--delay", "0")
    assert outcome.out == f"{job} will be tried again\n"
    assert run.shown(job)["note"] == "no route"
    job, token = run.leased()
    assert run("fail", job, token, "--reason", "no host").out == f"{job} dead\n"
    assert [dead["result"] for dead in run("list", "--state", "dead", "--json").lines] == [
        "no host"
    ]
    assert run("redrive", "--queue", "mail").out == "1 waiting again\n"
    assert run.shown(job)["fails"] == 0
    assert run("redrive", "--queue", "mail").code == 1


def test_touch_moves_the_end_of_a_lease(run: JobCommand) -> None:
    run("put", "work", "--queue", "mail")
    job, token = run.leased("--lease", "1s")
    before = run.shown(job)["lease_until"]
    assert run("touch", job, token, "--extend", "1h").code == 0
    assert run.shown(job)["lease_until"] > before + 3000 * 10**9


def test_release_gives_the_job_back_after_a_delay(run: JobCommand) -> None:
    run("put", "work", "--queue", "mail")
    job, token = run.leased()
    run("release", job, token, "--delay", "1h")
    assert run.shown(job)["state"] == "waiting"
    assert run("lease").code == 1


def test_list_shows_one_queue_one_state_one_page(run: JobCommand) -> None:
    lines = "".join(f'{{"payload": "{n}", "queue": "q"}}\n' for n in range(5))
    run("put", "--lines", "-", stdin=lines.encode())
    run("put", "other", "--queue", "r")
    run.leased("q")
    assert len(run("list", "q", "--json").lines) == 5
    assert len(run("list", "--json").lines) == 6
    assert [job["payload"] for job in run("list", "--state", "leased", "--json").lines] == ["0"]
    assert [
        job["payload"] for job in run("list", "q", "--limit", "2", "--offset", "3", "--json").lines
    ] == ["3", "4"]
    shown = run("list", "q", "--limit", "2")
    assert "only 2 are shown" in shown.err
    assert run("list", "--state", "asleep").code == 2


def test_list_tells_people_ready_future_and_held_apart(run: JobCommand) -> None:
    run("put", "a", "--key", "site:a")
    run("put", "b", "--key", "site:b", "--delay", "1h")
    run.leased()
    run("put", "a again", "--key", "site:a")
    words = run("list").out
    assert all(word in words for word in ("leased", "future", "held"))
    assert "in 59m" in words


def test_show_finds_a_job_by_its_key(run: JobCommand) -> None:
    run("put", "-", "--key", "site:a", stdin=b"\x00\xff payload")
    found = run("show", "--key", "site:a", "--json").lines[0]
    assert found["payload_hex"] == b"\x00\xff payload".hex()
    assert "waiting" in run("show", "--key", "site:a").out


def test_show_prints_payload_and_result_byte_for_byte(run: JobCommand) -> None:
    run("put", "line\n\u00e9", "--key", "site:a")
    assert run("show", "--key", "site:a", "--payload").out == "line\n\u00e9"
    job, token = run.leased()
    run("done", job, token, "--result", "done\n")
    assert run("show", job, "--result").out == "done\n"


def test_delete_by_id_and_by_key(run: JobCommand) -> None:
    job = run("put", "a", "--key", "site:a").out.split()[0]
    run("put", "b", "--key", "site:b")
    assert run("delete", job).out == "deleted\n"
    assert run("delete", "--key", "site:b").out == "deleted\n"
    gone = run("delete", job)
    assert (gone.code, gone.err) == (1, "there was no such job\n")
    assert run("list", "--json").lines == []


def test_queues_counts_jobs_where_they_stand(run: JobCommand) -> None:
    run("put", "a", "--queue", "q")
    run("put", "b", "--queue", "q", "--delay", "1h")
    run("drain", "q")
    found = run("queues", "--json").lines[0]
    assert (found["queue"], found["ready"], found["future"], found["settings"]["draining"]) == (
        "q", 1, 1, True,
    )  # fmt: skip
    assert "draining" in run("queues").out


def test_a_paused_queue_hands_nothing_out_until_it_is_resumed(run: JobCommand) -> None:
    run("put", "a", "--queue", "q")
    assert run("pause", "q").out == "q paused\n"
    assert run("lease").code == 1
    run("resume", "q")
    assert run("lease").code == 0


def test_configure_changes_and_shows_settings(run: JobCommand) -> None:
    changed = run(
        "configure", "q", "lease=5m", "concurrency=2", "backoff_jitter=0", "keep_versions=yes",
        "period=day", "--json",
    ).lines[0]  # fmt: skip
    assert changed["lease"] == 300 * 10**9
    assert (changed["concurrency"], changed["backoff_jitter"]) == (2, 0)
    assert (changed["keep_versions"], changed["period"]) == (True, "day")
    assert "lease             5m" in run("configure", "q").out


@pytest.mark.parametrize(
    "setting", ["lease", "speed=9", "lease=soon", "paused=maybe", "concurrency=x"]
)
def test_a_setting_that_cannot_be_is_an_error_of_usage(run: JobCommand, setting: str) -> None:
    outcome = run("configure", "q", setting)
    assert outcome.code == 2
    assert not run.directory.exists()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"payload": 1}', "payload cannot be 1"),
        (b'{"speed": 1}', "speed cannot be 1"),
        (b'{"delay": "soon"}', 'delay cannot be "soon"'),
    ],
)
def test_a_line_that_is_no_job_is_named(run: JobCommand, line: bytes, complaint: str) -> None:
    outcome = run(
        "put", "--lines", "-", stdin=b'{"payload": "fine", "queue": "q"}\n' + line + b"\n"
    )
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: -:2: {complaint}")
    assert run("list", "--json").lines == []


def test_a_file_that_cannot_be_read_is_named(run: JobCommand) -> None:
    outcome = run("put", "--lines", "nowhere.jsonl")
    assert outcome.code == 2
    assert outcome.err == "error: nowhere.jsonl cannot be read: No such file or directory\n"


def test_put_takes_every_field_of_a_line(run: JobCommand) -> None:
    line = {
        "payload": "x", "key": "site:a", "priority": 3, "delay": "10m", "ttl": 60, "lease": "5s",
        "max_attempts": 4, "max_timeouts": 5, "max_fails": 6, "mode": "unique",
        "timestamp": "2026-01-01T00:00", "expires": None,
    }  # fmt: skip
    assert run("put", "--lines", "-", stdin=json.dumps(line).encode()).code == 0
    job = run("show", "--key", "site:a", "--json").lines[0]
    assert (job["priority"], job["lease"], job["max_attempts"]) == (3, 5 * 10**9, 4)
    assert (job["max_timeouts"], job["max_fails"]) == (5, 6)
    assert job["expires"] == job["due"] + 60 * 10**9


def test_stat_shows_the_journal_in_figures(run: JobCommand) -> None:
    run("put", "a", "--queue", "q")
    found = run("status", "--json").lines[0]
    assert (found["rows"], found["queues"], found["ready"]) == (1, 1, 1)
    assert found["clean_start"] is True
    assert "1 jobs in 1 queues" in run("status").out


def test_stat_tells_entries_from_jobs(run: JobCommand) -> None:
    run("put", "a", "--queue", "q")
    run("set", "key", "value")
    found = run("status", "--json").lines[0]
    assert (found["rows"], found["jobs"], found["entries"]) == (2, 1, 1)
    assert (found["memory_limit"], found["value_bytes"]) == (None, 0)
    shown = run("status").out
    assert "1 jobs in 1 queues" in shown
    assert "1 entries\n" in shown


def test_top_shows_every_queue_once(run: JobCommand) -> None:
    run("put", "a", "--queue", "mail")
    shown = run("top", "--once")
    assert shown.code == 0
    assert "mail" in shown.out
    assert "all 1" in shown.out


def test_clean_and_snapshot_leave_every_job(run: JobCommand) -> None:
    run("put", "--lines", "-", stdin=b'{"payload": "x", "queue": "q"}\n' * 20)
    assert run("snapshot").out == "snapshot of 20 jobs\n"
    assert "segments cleaned" in run("clean").out
    assert len(run("list", "--json").lines) == 20


@pytest.mark.parametrize("command", ["lease", "list", "queues", "status", "clean", "snapshot"])
def test_a_directory_without_a_journal_is_named_and_not_made(run: JobCommand, command: str) -> None:
    outcome = run(command)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: no journal in {run.directory}: --dir names another")
    assert "--url" in outcome.err
    assert not run.directory.exists()


def test_a_journal_in_use_is_named_with_its_owner_but_may_be_looked_at(run: JobCommand) -> None:
    with Journal(run.directory, background=False) as journal:
        journal.put(b"mine", queue="q")
        refused = run("put", "x", "--queue", "q")
        assert refused.code == 2
        assert refused.err.startswith(f"error: {run.directory} is in use by process ")
        assert refused.err.count("\n") == 1
        assert [job["payload"] for job in run("list", "--json").lines] == ["mine"]
        assert "q" in run("queues").out
        assert "mine" in run("show", journal.jobs()[0].id.hex()).out
        assert [job.state for job in journal.jobs()] == [State.WAITING]


@pytest.mark.parametrize(
    "arguments",
    [
        ["put", "x", "--queue", "q", "--delay", "soon"],
        ["put", "x", "--queue", "q", "--due", "soon"],
        ["put", "x", "--lines", "file"],
        ["done", "abc", "1"],
        ["done", "0" * 32, "0"],
        ["show"],
        ["show", "0" * 32, "--key", "k"],
        ["delete"],
        ["redrive"],
    ],
)
def test_what_cannot_be_meant_is_an_error_of_usage(run: JobCommand, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.err
    assert not run.directory.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["put", "x"],
        ["put", "x", "--queue", "q", "--priority", "256"],
        ["put", "x", "--queue", "q", "--delay", "1", "--due", "2030-01-01"],
        ["put", "x", "--queue", "q", "--mode", "sideways"],
        ["put", "x", "--queue", "q", "--expires", "2001-01-01"],
        ["done", "0" * 32, "1"],
    ],
)
def test_a_refused_request_is_one_line_and_code_2(run: JobCommand, arguments: list[str]) -> None:
    run("configure", "q", "lease=1m")
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert run("list", "--json").lines == []
