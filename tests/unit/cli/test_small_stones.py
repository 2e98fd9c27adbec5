"""What people mistype is told; what they clear away is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import invoke
from fastjournal import Journal, NotFound, SettingError, Tasks
from fastjournal.arguments import NEVER


def run(*words: str, code: int = 0) -> str:
    done = invoke(list(words))
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize("verb", ["pause", "drain", "resume"])
def test_a_mistyped_queue_is_told_and_not_made(tmp_path: Path, verb: str) -> None:
    with Journal(tmp_path) as journal:
        journal.put(b"x", queue="mail")
    done = invoke([verb, "mial", "--dir", str(tmp_path)])
    assert isinstance(done.exception, NotFound)
    assert str(done.exception) == "no queue 'mial'"
    run(verb, "mail", "--dir", str(tmp_path))
    with Journal(tmp_path) as journal:
        assert [queue.name for queue in journal.queues()] == ["mail"]


def test_an_unknown_setting_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, pytest.raises(SettingError, match=r"there are: .*max_wait"):
        journal.configure("q", max_weight=5)
    text = run("configure", "q", "max_weight=5", "--dir", str(tmp_path), code=2)
    assert "there are: lease" in text


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


@pytest.mark.parametrize("verb", ["put", "list", "status", "configure", "get", "worker", "workers"])
def test_the_help_of_a_command_shows_both_ways_to_name_a_journal(verb: str) -> None:
    text = run(verb, "--help")
    assert "--dir" in text
    assert "--url" in text


def dead_job(tmp_path: Path) -> bytes:
    with Journal(tmp_path) as journal:
        key = "https://shop.example.com/orders/" + "7" * 60
        row_id = journal.put(b"payload " * 20, queue="shop.example.com", key=key).id
        job = journal.lease()
        assert job is not None
        job.fail("Traceback (most recent call last):\n  File x\nValueError: no such address", NEVER)
        journal.put(b"\x00\xff", queue="q" * 100)
    return row_id


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_list_fits_the_screen_and_tells_why_jobs_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    row_id = dead_job(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = run("list", "--dir", str(tmp_path)).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["id", "state", "queue", "key", "due", "tries", "payload"]
    assert lines[1].startswith(f"{row_id.hex()[:12]}  dead ")
    assert lines[2].strip() == "ValueError: no such address"
    assert len(lines) == 4


def test_the_beginning_of_an_id_is_enough(tmp_path: Path) -> None:
    row_id = dead_job(tmp_path)
    digits, place = row_id.hex(), ("--dir", str(tmp_path))
    for form in (digits, digits[:8], f"{digits[:12]}…", digits[:13].upper()):
        assert f"id            {digits}" in run("show", form, *place)
    assert run("redrive", digits[:12], *place) == "1 waiting again\n"
    leased = json.loads(run("lease", "shop.example.com", "--json", *place))
    assert run("release", digits[:12], str(leased["token"]), *place) == f"{digits} released\n"
    for wrong in (digits[:7], "nonsense", digits + "0"):
        run("show", wrong, *place, code=2)
    other = "0" * 8 if digits[0] != "0" else "f" * 8
    done = invoke(["show", other, *place])
    assert isinstance(done.exception, NotFound)
    assert "there was no such job" in run("delete", other, *place, code=1)
    assert run("delete", digits[:12], *place) == "deleted\n"


def test_the_call_of_a_task_is_listed_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Tasks(tmp_path / "jobs")
    monkeypatch.setenv("COLUMNS", "100")

    @app.task(name="shop.send")
    def send(to: str, times: int = 1) -> None: ...

    send.put("ada", times=2)
    app.journal.put(b'{"task":"broken', queue="tasks")
    app.close()
    lines = run("list", "--dir", str(tmp_path / "jobs")).splitlines()
    assert lines[1].endswith('shop.send(to="ada", times=2)')
    assert lines[2].endswith('{"task":"broken')


def test_two_jobs_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for end in (1, 2):
            journal.put(
                b"x", queue="q", id=bytes.fromhex("ab" * 5) + bytes([7] * 10) + bytes([end])
            )
    done = invoke(["show", "abababab", "--dir", str(tmp_path)])
    assert "2 jobs begin with abababab" in str(done.exception)


def test_a_dump_of_a_log_says_what_its_records_say(tmp_path: Path) -> None:
    row_id = dead_job(tmp_path)
    lines = run("log", "dump", str(tmp_path)).splitlines()
    put, lease = lines[1], lines[2]
    assert f"PUT {row_id.hex()[:12]} queue=shop.example.com key=https://shop" in put
    assert "value_bytes=160" in put
    assert f"LEASE {row_id.hex()[:12]} attempt=1" in lease
    told = [json.loads(line) for line in run("log", "dump", str(tmp_path), "--json").splitlines()]
    assert told[0]["command"]["type"] == "PUT"
    assert told[0]["command"]["id"] == row_id.hex()
    assert told[0]["payload_hex"].startswith("20" + row_id.hex())


def test_a_log_of_something_else_is_dumped_as_bytes(tmp_path: Path) -> None:
    from fastjournal.cli.log import command_values

    assert command_values(b"\xff\xfe nothing of ours") is None
    assert command_values(b"") is None
