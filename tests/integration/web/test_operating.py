"""Workers, schedules, errors, many jobs at once, settings and puts by hand: over real HTTP."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from dashboard import Answer, Visitor, beat
from fastjournal import Journal, Tasks
from fastjournal.clock import SECOND
from fastjournal.model import State
from fastjournal.tasks.announcing import RunningJob, WorkerInfo, announce_worker
from fastjournal.tasks.scheduler import Scheduler
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.web.figures import SLOT, SLOTS


@pytest.fixture
def daemon(tmp_path: Path, clock: ManualClock) -> Iterator[LocalDaemon]:
    with served(tmp_path, clock) as running:
        yield running


def served(tmp_path: Path, clock: ManualClock) -> LocalDaemon:
    return LocalDaemon(tmp_path / "d", settings={"web": "127.0.0.1:0"}, clock=clock)


@pytest.fixture
def journal(daemon: LocalDaemon) -> Journal:
    return daemon.server.default.journal


@pytest.fixture
def visitor(daemon: LocalDaemon) -> Visitor:
    return Visitor(daemon)


def kill(journal: Journal, queue: str, key: str, reason: str, fails: int = 1) -> bytes:
    row_id = journal.put(b"v", queue=queue, key=key, max_fails=fails).id
    leased = journal.lease(queue)
    assert leased is not None
    leased.fail(reason)
    return row_id


def preview(visitor: Visitor, filters: str) -> tuple[str, dict[str, str]]:
    """What the page says of the jobs that match, and what its forms carry."""
    page = visitor.get(f"/j/default/bulk?{filters}").text
    said = re.search(r'id="matching">([^<]*)<', page)
    assert said
    hidden = {
        name: html.unescape(re.findall(rf'name="{name}" value="([^"]*)"', page)[-1])
        for name in ("until", "query", "back")
    }
    return said[1], hidden


def bulk(visitor: Visitor, what: str, hidden: dict[str, str], **form: object) -> Answer:
    return visitor.act("bulk", what=what, **hidden, **form)


# Workers and schedules.


def test_workers_are_shown_with_what_they_run_since_when(
    journal: Journal, visitor: Visitor, clock: ManualClock
) -> None:
    row_id = journal.put(b"x", queue="mail", key="to:ada").id
    journal.lease("mail", worker="host-1:42", lease=60)
    journal.put(b"x", queue="images")
    journal.lease("images", worker="script")
    running = [RunningJob(row_id.hex(), "mail", "shop.send", clock.now())]
    info = WorkerInfo(
        "host-1:42", "host-1", 42, "threads", 8, ["mail"], ["shop.send"], clock.now(), clock.now(),
        {"completed": 1234, "failed": 5}, running,
    )  # fmt: skip
    announce_worker(journal, info, persist=True)
    clock.advance(7)
    page = visitor.get("/j/default/workers").text
    worker, script = page.split('<section class="panel worker">')[1:]
    assert "host-1:42" in worker
    assert "1 of 8" in worker
    assert "shop.send" in worker
    assert "to:ada" in worker
    assert "1,234" in worker
    assert "7 s ago" in worker
    assert "script" in script
    assert "does not announce itself" in script
    clock.advance(60)
    page = visitor.get("/j/default/workers").text  # it is heard of no more
    assert page.count("does not announce itself") == 2


def test_without_anybody_at_work_the_page_says_so(visitor: Visitor) -> None:
    assert "Nobody works on this journal" in visitor.get("/j/default/workers").text


def test_schedules_are_shown_and_forgotten(
    journal: Journal, visitor: Visitor, clock: ManualClock
) -> None:
    app = Tasks(journal, clock=clock)

    @app.cron("*/5 * * * *", tz="Europe/Berlin", name="shop.tidy")
    def tidy() -> None: ...

    Scheduler(app).declare()
    page = visitor.get("/j/default/schedules").text
    assert "shop.tidy" in page
    assert "*/5 * * * *" in page
    assert "Europe/Berlin" in page
    assert "late:" not in page
    clock.advance(3600)
    assert "late:" in visitor.get("/j/default/schedules").text
    answer = visitor.act("forget-schedule", schedule="shop.tidy", back="/j/default/schedules")
    assert "The schedule is forgotten." in visitor.follow(answer).text
    assert visitor.act("forget-schedule", schedule="shop.tidy").status == 404


# Errors.


def test_errors_are_grouped_by_their_last_line(journal: Journal, visitor: Visitor) -> None:
    trace = "Traceback (most recent call last):\n  File {}\nValueError: <no> such address"
    for number in range(3):
        kill(journal, "mail", f"m{number}", trace.format(number))
    kill(journal, "images", "i", trace.format("other"))
    kill(journal, "images", "j", "TimeoutError: no answer", fails=5)
    page = visitor.get("/j/default/errors").text
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)[1:]
    assert len(rows) == 2
    assert "ValueError: &lt;no&gt; such address" in rows[0]
    assert 'class="num ">4</td>' in rows[0]
    assert "images" in rows[0] and "mail" in rows[0]
    assert "TimeoutError: no answer" in rows[1]
    found = re.search(r'href="(/j/default/dead\?error=[^"]*)"', rows[0])
    assert found
    listed = visitor.get(html.unescape(found[1])).text
    assert listed.count('name="id"') == 4
    retried = re.search(r'href="(/j/default/jobs\?error=[^"]*)"', rows[1])
    assert retried
    assert ">j</span>" in visitor.get(html.unescape(retried[1])).text


def test_a_reason_can_be_had_whole(journal: Journal, visitor: Visitor) -> None:
    reason = "first line\n" + "x" * 30_000 + "\nValueError: end"
    row_id = kill(journal, "mail", "a", reason)
    answer = visitor.get(f"/j/default/job/{row_id.hex()}/raw?what=result")
    assert answer.body == journal.job(row_id).result
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert visitor.get(f"/j/default/job/{row_id.hex()}/raw?what=key").status == 404
    assert visitor.get(f"/j/default/job/{'0' * 32}/raw?what=value").status == 404


# Many at once.


def test_all_that_match_are_counted_then_redriven(journal: Journal, visitor: Visitor) -> None:
    for number in range(300):
        kill(journal, "mail", f"m{number}", "boom" if number % 3 else "other")
    said, hidden = preview(visitor, "queue=mail&state=dead&error=boom")
    assert said == "200 jobs match"
    late = kill(journal, "mail", "late", "boom")  # after the counting: left alone
    answer = bulk(visitor, "redrive", hidden)
    assert "200 jobs are waiting again." in visitor.follow(answer).text
    assert journal.queue("mail").dead == 101
    assert journal.job(late).state is State.FAILED


def test_all_that_match_are_deleted_and_others_are_not(journal: Journal, visitor: Visitor) -> None:
    for number in range(20):
        journal.put(b"x", queue="mail", key=f"{'a' if number % 2 else 'b'}:{number}")
    said, hidden = preview(visitor, "q=a:*&queue=mail")
    assert said == "10 jobs match"
    journal.put(b"x", queue="mail", key="a:new")
    answer = bulk(visitor, "delete", hidden)
    assert "10 jobs are deleted." in visitor.follow(answer).text
    keys = {job.key_bytes for job in journal.jobs("mail")}
    assert keys == {b"a:new", *(b"b:%d" % number for number in range(0, 20, 2))}


def test_all_that_wait_are_edited_and_what_is_worked_on_is_not(
    journal: Journal, visitor: Visitor, clock: ManualClock
) -> None:
    for number in range(5):
        journal.put(b"x", queue="mail", key=f"k{number}", delay=3600)
    journal.put(b"x", queue="mail", key="busy")
    journal.lease("mail", lease=3600)
    _, hidden = preview(visitor, "queue=mail")
    answer = bulk(visitor, "edit", hidden, due="10m", priority="7")
    assert "5 jobs are changed." in visitor.follow(answer).text
    waiting = [job for job in journal.jobs("mail") if job.state is State.WAITING]
    assert {(job.priority, job.due) for job in waiting} == {(7, clock.now() + 600 * SECOND)}
    answer = bulk(visitor, "hurry", preview(visitor, "queue=mail&state=future")[1])
    assert "5 jobs are changed." in visitor.follow(answer).text
    assert journal.queue("mail").ready == 5


@pytest.mark.parametrize(
    ("what", "form"),
    [
        ("edit", {}),
        ("edit", {"priority": "300"}),
        ("edit", {"priority": "seven"}),
        ("edit", {"due": "soonish"}),
        ("nothing", {}),
        ("delete", {"until": ""}),
    ],
)
def test_a_change_of_many_that_means_nothing_is_refused(
    journal: Journal, visitor: Visitor, what: str, form: dict[str, str]
) -> None:
    journal.put(b"x", queue="mail", key="a")
    journal.put(b"x", queue="mail", key="b")
    _, hidden = preview(visitor, "queue=mail")
    assert visitor.act("bulk", **(hidden | {"what": what} | form)).status == 400
    assert [job.priority for job in journal.jobs("mail")] == [100, 100]


# One job.


def test_a_job_is_put_by_hand(journal: Journal, visitor: Visitor, clock: ManualClock) -> None:
    form = {"to": "mail", "key": "to:ada", "payload": 'two\r\nlines "ü"', "due": "5m"}
    answer = visitor.act("put", **form, priority="3", max_fails="9", ttl="1d")
    assert "The job was put." in visitor.follow(answer).text
    job = journal.job(key="to:ada", queue="mail")
    assert job.value == 'two\nlines "ü"'.encode()
    assert (job.priority, job.max_fails) == (3, 9)
    assert job.due == clock.now() + 300 * SECOND
    assert job.expires == job.due + 86_400 * SECOND
    merged = visitor.act("put", to="mail", key="to:ada", payload="newer")
    assert "was merged" in visitor.follow(merged).text
    assert journal.job(job.id).value == b"newer"


@pytest.mark.parametrize(
    "form", [{"to": ""}, {"to": "mail", "priority": "x"}, {"to": "mail", "due": "x"},
             {"to": "mail", "ttl": "x"}, {"to": "mail", "priority": "256"}, {"to": "q" * 256}],
)  # fmt: skip
def test_a_put_that_cannot_be_meant_is_refused(
    journal: Journal, visitor: Visitor, form: dict[str, str]
) -> None:
    assert visitor.act("put", payload="x", **form).status == 400
    assert not journal.jobs()


def test_a_job_is_put_again_with_what_it_had(journal: Journal, visitor: Visitor) -> None:
    row_id = kill(journal, "mail", "to:ada", "boom")
    page = visitor.get(f"/j/default/put?like={row_id.hex()}").text
    assert 'value="mail"' in page
    assert 'value="to:ada"' in page
    assert ">\nv</textarea>" in page
    odd = journal.put(b"\xff\x00", queue="mail").id
    assert "no text that a form can carry" in visitor.get(f"/j/default/put?like={odd.hex()}").text


def test_a_waiting_job_is_edited(journal: Journal, visitor: Visitor, clock: ManualClock) -> None:
    row_id = journal.put(b"old", queue="mail", key="a", delay=3600).id
    back = f"/j/default/job/{row_id.hex()}"
    assert "Run now" in visitor.get(back).text
    answer = visitor.act("edit", id=row_id.hex(), back=back, due="now", payload="not this")
    assert "1 job is changed." in visitor.follow(answer).text
    assert (journal.job(row_id).due, journal.job(row_id).value) == (clock.now(), b"old")
    visitor.act("edit", id=row_id.hex(), rewrite="yes", payload="new\r\n")
    assert journal.job(row_id).value == b"new\n"
    journal.lease("mail")
    assert visitor.act("edit", id=row_id.hex(), due="now").status == 400


def test_a_job_is_found_by_the_beginning_of_its_id(journal: Journal, visitor: Visitor) -> None:
    row_id = journal.put(b"x", queue="mail", key="to:ada").id
    journal.put(b"x", queue="mail", key="other")
    for words in (row_id.hex()[:12], quote(f"{row_id.hex()[:12]}…")):
        page = visitor.get(f"/j/default/jobs?q={words}").text
        assert "to:ada" in page
        assert ">other<" not in page


# Settings.


def test_settings_of_a_queue_are_edited(journal: Journal, visitor: Visitor) -> None:
    journal.put(b"x", queue="mail")
    page = visitor.get("/j/default/queue?name=mail").text
    assert 'name="set.lease" value="1m"' in page
    answer = visitor.act(
        "settings", queue=b"mail", back="/j/default/queue?name=mail",
        **{"set.lease": "5m", "was.lease": "1m", "set.max_fails": "9", "was.max_fails": "3",
           "set.keep_versions": "yes", "was.keep_versions": "no", "set.backoff_factor": "1.5",
           "was.backoff_factor": "2.0", "set.period": "none", "was.period": "none"},
    )  # fmt: skip
    assert "The settings of the queue are changed." in visitor.follow(answer).text
    settings = journal.queue("mail").settings
    assert (settings.lease, settings.max_fails) == (300 * SECOND, 9)
    assert (settings.keep_versions, settings.backoff_factor) == (True, 1.5)


def test_a_form_of_settings_takes_nothing_back_that_others_changed(
    journal: Journal, visitor: Visitor
) -> None:
    journal.put(b"x", queue="mail")
    journal.configure("mail", max_fails=9)  # since the form was made
    form = {"set.max_fails": "3", "was.max_fails": "3", "set.lease": "2m", "was.lease": "1m"}
    visitor.act("settings", queue=b"mail", **form)
    settings = journal.queue("mail").settings
    assert (settings.max_fails, settings.lease) == (9, 120 * SECOND)


@pytest.mark.parametrize(
    "form",
    [{"set.lease": "long"}, {"set.lease": "0"}, {"set.nothing": "1"}, {"set.paused": "yes"},
     {"set.max_timeouts": "256"}, {"set.persist": "maybe"}, {"set.period": "week"},
     {"set.backoff_factor": "nan"}],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(
    journal: Journal, visitor: Visitor, form: dict[str, str]
) -> None:
    journal.put(b"x", queue="mail")
    before = journal.queue("mail").settings
    assert visitor.act("settings", queue=b"mail", **form).status == 400
    assert journal.queue("mail").settings == before
    assert visitor.act("settings", queue=b"typo", **{"set.lease": "5m"}).status == 404


# Hours.


def work(journal: Journal, clock: ManualClock, queue: str, wait: float, run: float) -> None:
    journal.put(b"x", queue=queue)
    clock.advance(wait)
    leased = journal.lease(queue, lease=3600)
    assert leased is not None
    clock.advance(run)
    leased.done()


def test_throughput_and_latencies_of_a_queue_survive_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    with served(tmp_path, clock) as daemon:
        journal = daemon.server.default.journal
        for _ in range(9):
            work(journal, clock, "mail", 0.5, 0.01)
        work(journal, clock, "mail", 40, 0.2)
        beat(daemon)
    with served(tmp_path, clock) as daemon:
        visitor = Visitor(daemon)
        work(daemon.server.default.journal, clock, "mail", 0.5, 0.01)
        beat(daemon)
        told = json.loads(visitor.get("/j/default/hours.json?queue=mail").body)
        assert len({len(column) for column in told.values()}) == 1
        assert len(told["at"]) == SLOTS
        assert sum(told["done"]) * (SLOT // (60 * SECOND)) == pytest.approx(11)
        assert max(length for length in told["wait_p99"] if length) == 60
        assert {length for length in told["run_p50"] if length} == {0.01}
        page = visitor.get("/j/default/queue?name=mail").text
        pace = page[page.index('<table class="list pace">') :]
        assert "≤ 500 ms" in pace
        assert "≤ 1 min" in pace
        assert ">11</td>" in pace
        other = json.loads(visitor.get("/j/default/hours.json?queue=other").body)
        assert not any(other["done"])


def test_hours_are_a_ring_in_the_journal(
    daemon: LocalDaemon, journal: Journal, clock: ManualClock
) -> None:
    dashboard = daemon.server.dashboard
    assert dashboard is not None
    hours = dashboard.backstage.pulses["default"].hours
    for _ in range(SLOTS + 40):
        work(journal, clock, "mail", 0, 0)
        hours.take()
        hours.save()
        clock.advance(SLOT / SECOND)
    kept = list(journal.entries.range("fastjournal.hours/", "fastjournal.hours0"))
    assert SLOTS - 2 <= len(kept) <= SLOTS
    assert hours.done(SLOTS, b"mail").completions <= SLOTS
    before = journal.status().log.counters.writes
    hours.take()
    assert not hours.due
    hours.save()  # nothing happened
    assert journal.status().log.counters.writes == before


def test_a_slot_that_cannot_be_read_is_left_out(tmp_path: Path, clock: ManualClock) -> None:
    with served(tmp_path, clock) as daemon:
        entries = daemon.server.default.journal.entries
        for number, value in enumerate(("{", '{"slot": 1}', 5, '{"slot":"x","queues":{}}')):
            entries.set(f"fastjournal.hours/{number:03d}", value)
    with served(tmp_path, clock) as daemon:
        told = json.loads(Visitor(daemon).get("/j/default/hours.json").body)
        assert not any(told["done"])


def test_a_stopped_log_holds_no_figures_up(
    daemon: LocalDaemon, journal: Journal, clock: ManualClock
) -> None:
    dashboard = daemon.server.dashboard
    assert dashboard is not None
    hours = dashboard.backstage.pulses["default"].hours
    work(journal, clock, "mail", 0, 0)
    hours.take()
    journal.engine.log.close()
    hours.save()
    assert hours.fault
    assert hours.done(1, b"mail").completions == 1
