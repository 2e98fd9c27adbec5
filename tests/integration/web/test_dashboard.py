"""The pages of the dashboard and the buttons on them, over real HTTP."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard import Visitor, beat
from fastjournal import Journal
from fastjournal.model import State
from fastjournal.testing.daemon import LocalDaemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", settings={"web": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture
def journal(daemon: LocalDaemon) -> Journal:
    return daemon.server.default.journal


@pytest.fixture
def visitor(daemon: LocalDaemon) -> Visitor:
    return Visitor(daemon)


def kill(journal: Journal, queue: str, key: str, reason: str = "boom") -> bytes:
    """A dead job."""
    row_id = journal.put(b"v", queue=queue, key=key, max_fails=1).id
    leased = journal.lease(queue)
    assert leased is not None
    leased.fail(reason)
    return row_id


def test_the_front_door_leads_to_the_queues_of_the_default_journal(visitor: Visitor) -> None:
    answer = visitor.get("/")
    assert (answer.status, answer.leads_to) == (303, "/j/default/")
    assert "No queue yet" in visitor.follow(answer).text


def test_queues_are_shown_with_their_depths(
    daemon: LocalDaemon, journal: Journal, visitor: Visitor
) -> None:
    for number in range(1200):
        journal.put(b"x", queue="mail", key=f"k{number}")
    journal.put(b"x", queue="later", delay=3600)
    journal.lease("mail")
    beat(daemon)
    page = visitor.get("/j/default/").text
    assert 'data-queue="mail"' in page
    assert 'data-f="ready">1,199</td>' in page
    assert 'data-f="leased">1</td>' in page
    assert 'data-queue="later"' in page


def test_names_that_are_no_text_are_shown_linked_and_acted_on(
    daemon: LocalDaemon, journal: Journal, visitor: Visitor
) -> None:
    name = b'a/b<i>&"\xff %41'
    journal.put(b"x", queue=name, key=b"\xfe<script>")
    beat(daemon)
    page = visitor.get("/j/default/").text
    assert "<i>&" not in page
    assert "a/b&lt;i&gt;&amp;&#34;\\xff %41" in page
    link = "/j/default/queue?name=a%2Fb%3Ci%3E%26%22%FF%20%2541"
    assert link in page
    one = visitor.get(link)
    assert one.status == 200
    assert "\\xfe&lt;script&gt;" in one.text
    assert visitor.act("pause", queue=name).status == 303
    assert journal.queue(name).settings.paused


def test_a_queue_shows_its_jobs_and_the_settings_of_its_own(
    journal: Journal, visitor: Visitor
) -> None:
    journal.configure("mail", max_fails=7)
    journal.put(b"x", queue="mail", key="first")
    journal.put(b"x", queue="mail", key="second")
    journal.lease("mail", worker="w@host")
    page = visitor.get("/j/default/queue?name=mail").text
    for words in ("Being worked on", "Next in line", "w@host", "first", "second"):
        assert words in page
    assert 'class="own"' in page
    missing = visitor.get("/j/default/queue?name=nothing")
    assert missing.status == 404
    assert "no queue" in missing.text


def test_a_queue_that_lives_in_memory_says_so(journal: Journal, visitor: Visitor) -> None:
    """FJ-SET-4."""
    journal.put(b"x", queue="mail")
    assert "in memory" not in visitor.get("/j/default/queue?name=mail").text
    journal.configure("mail", persist=False)
    assert "in memory" in visitor.get("/j/default/queue?name=mail").text


def test_a_queue_is_paused_drained_and_resumed(journal: Journal, visitor: Visitor) -> None:
    journal.put(b"x", queue="mail")
    said = visitor.follow(visitor.act("pause", queue=b"mail", back="/j/default/queue?name=mail"))
    assert "The queue is paused" in said.text
    assert journal.lease("mail") is None
    visitor.act("drain", queue=b"mail")
    assert journal.queue("mail").settings.draining
    visitor.act("resume", queue=b"mail")
    settings = journal.queue("mail").settings
    assert (settings.paused, settings.draining) == (False, False)
    assert visitor.act("pause", queue=b"new").status == 404
    assert [queue.name for queue in journal.queues()] == ["mail"]


def test_jobs_are_found_by_key_id_part_queue_and_state(journal: Journal, visitor: Visitor) -> None:
    row_id = journal.put(b"x", queue="mail", key="user:42").id
    journal.put(b"x", queue="mail", key="user:421")
    journal.put(b"x", queue="sms", key="user:42")
    journal.put(b"x", queue="sms", key="other", delay=600)

    def found(query: str) -> list[str]:
        page = visitor.get(f"/j/default/jobs?{query}").text
        return [key for key in ("user:42<", "user:421<", "other<") for _ in range(page.count(key))]

    assert found("q=user%3A42") == ["user:42<", "user:42<"]
    assert found("q=user%3A42&queue=sms") == ["user:42<"]
    assert found("q=user%3A4*") == ["user:42<", "user:42<", "user:421<"]
    assert found("q=*21") == ["user:421<"]
    assert found("state=future") == ["other<"]
    assert found("state=ready&queue=mail") == ["user:42<", "user:421<"]
    assert found("q=nobody") == []
    assert found("state=nonsense") == ["user:42<", "user:42<", "user:421<", "other<"]
    by_id = visitor.get(f"/j/default/jobs?q={row_id.hex()}")
    assert by_id.leads_to == f"/j/default/job/{row_id.hex()}"


def test_a_long_list_has_pages(journal: Journal, visitor: Visitor) -> None:
    journal.put_many({"payload": b"x", "queue": "mail", "key": f"k{n:03}"} for n in range(120))
    first = visitor.get("/j/default/jobs?q=k*").text
    assert first.count("/j/default/job/") == 50
    assert "page=1" in first
    last = visitor.get("/j/default/jobs?q=k*&page=2").text
    assert last.count("/j/default/job/") == 20
    assert "page=3" not in last
    assert visitor.get("/j/default/jobs?page=99999999999999").status == 200


def test_the_life_of_a_job_is_told_also_after_its_end(journal: Journal, visitor: Visitor) -> None:
    row_id = journal.put(json.dumps({"a": "<b>"}).encode(), queue="mail", key="k").id
    journal.put(b'{"a": "<c>"}', queue="mail", key="k", priority=3)
    leased = journal.lease("mail", worker="w1")
    assert leased is not None
    path = f"/j/default/job/{row_id.hex()}"
    page = visitor.get(path).text
    for words in (
        "<b>put</b>",
        "<b>merged</b>",
        "<b>leased</b>",
        "w1",
        "&lt;c&gt;",
        "PUT",
        "LEASE",
    ):
        assert words in page
    assert "<c>" not in page
    leased.done()
    page = visitor.get(path).text
    assert "gone; the log remembers" in page
    assert "completed or deleted" in page
    unknown = visitor.get("/j/default/job/" + "0" * 32)
    assert unknown.status == 404
    assert visitor.get("/j/default/job/zz").status == 404


def test_a_value_of_any_bytes_is_shown(journal: Journal, visitor: Visitor) -> None:
    for value, words in (
        (bytes(range(256)), "000000  0001 0203"),
        (b"x" * 100_000, "Only its beginning is shown"),
        ("grüße".encode(), "grüße"),
        (b"[1, {", "[1, {"),
        (b"", "empty"),
    ):
        row_id = journal.put(value, queue="mail").id
        assert words in visitor.get(f"/j/default/job/{row_id.hex()}").text


def test_dead_jobs_are_shown_with_their_reason_and_redriven(
    daemon: LocalDaemon, journal: Journal, visitor: Visitor
) -> None:
    ids = [kill(journal, "mail", f"k{n}", "no answer <5s>") for n in range(3)]
    beat(daemon)
    page = visitor.get("/j/default/dead").text
    assert page.count('name="id"') == 3
    assert "no answer &lt;5s&gt;" in page
    answer = visitor.act("redrive", id=[ids[0].hex(), ids[2].hex()], back="/j/default/dead")
    assert "2 jobs are waiting again" in visitor.follow(answer).text
    assert [journal.job(one).state for one in ids] == [State.WAITING, State.FAILED, State.WAITING]


def traceback(depth: int) -> str:
    frames = [f'  File "work.py", line {n}, in step\n    step({n})' for n in range(depth)]
    return "\n".join(["Traceback (most recent call last):", *frames, "ValueError: no <stamp>\n"])


@pytest.mark.parametrize("depth", [1, 100])
def test_the_dead_list_shows_the_last_line_of_a_traceback(
    journal: Journal, visitor: Visitor, depth: int
) -> None:
    kill(journal, "mail", "k", traceback(depth))
    page = visitor.get("/j/default/dead").text
    assert re.findall(r'<td class="why wide"><span title="[^"]*">([^<]*)</span>', page) == [
        "ValueError: no &lt;stamp&gt;"
    ]


def test_a_life_shows_the_last_line_of_each_traceback_and_the_whole_below_it(
    journal: Journal, visitor: Visitor
) -> None:
    row_id = journal.put(b"v", queue="mail", max_fails=2).id
    for _ in range(2):
        leased = journal.lease("mail")
        assert leased is not None
        leased.fail(traceback(100), delay=0)
    page = visitor.get(f"/j/default/job/{row_id.hex()}").text
    assert re.findall(r"<q>([^<]*)</q>", page) == ["ValueError: no &lt;stamp&gt;"] * 2
    whole = re.findall(r"<details>.*?<pre[^>]*>([^<]*)</pre>", page, re.DOTALL)
    assert [html.unescape(text) for text in whole] == [traceback(100)] * 2
    assert html.escape(traceback(100), quote=False) in page.replace("&#34;", '"')


def test_of_a_very_long_reason_the_end_is_shown(journal: Journal, visitor: Visitor) -> None:
    row_id = kill(journal, "mail", "k", traceback(3000))
    page = visitor.get(f"/j/default/job/{row_id.hex()}").text
    assert "Only its end is shown." in page
    assert "Only its beginning is shown." not in page
    assert page.count("ValueError: no &lt;stamp&gt;") == 3


def test_a_result_is_shown_from_its_beginning(journal: Journal, visitor: Visitor) -> None:
    row_id = journal.put(b"v", queue="mail").id
    leased = journal.lease("mail")
    assert leased is not None
    leased.done(b"first line\nlast line")
    page = visitor.get(f"/j/default/job/{row_id.hex()}").text
    assert re.findall(r"<q>([^<]*)</q>", page) == ["first line\nlast line"]


def test_dead_jobs_are_deleted_and_the_last_one_by_its_page(
    journal: Journal, visitor: Visitor
) -> None:
    ids = [kill(journal, "mail", f"k{n}") for n in range(2)]
    said = visitor.follow(visitor.act("delete", id=ids[0].hex(), back="/j/default/dead"))
    assert "1 job is deleted" in said.text
    assert [job.id for job in journal.jobs()] == [ids[1]]
    back = f"/j/default/job/{ids[1].hex()}"
    assert "gone" in visitor.follow(visitor.act("delete", id=ids[1].hex(), back=back)).text
    assert journal.jobs() == []


def test_all_dead_jobs_of_a_queue_are_redriven_or_deleted(
    journal: Journal, visitor: Visitor
) -> None:
    for number in range(450):
        kill(journal, "mail", f"k{number}")
    kill(journal, "sms", "k")
    journal.put(b"newer", queue="mail", key="k7")
    said = visitor.follow(visitor.act("redrive-all", queue=b"mail"))
    assert "449 jobs are waiting again" in said.text
    assert (journal.queue("mail").dead, journal.queue("sms").dead) == (1, 1)
    visitor.act("delete-all", queue=b"sms")
    assert journal.queues()[0].name == "mail"
    assert visitor.act("delete-all", queue=b"none").status == 404


def test_a_refused_redrive_says_why(journal: Journal, visitor: Visitor) -> None:
    row_id = kill(journal, "mail", "k")
    journal.put(b"newer", queue="mail", key="k")
    answer = visitor.act("redrive", id=row_id.hex())
    assert answer.status == 400
    assert "a newer job of this key is waiting" in answer.text


@pytest.mark.parametrize(
    "form",
    [
        {"do": "nonsense"},
        {"do": "redrive"},
        {"do": "redrive", "id": "zz"},
        {"do": "delete", "id": "00"},
        {"do": "pause"},
    ],
)
def test_a_form_that_means_nothing_is_refused(visitor: Visitor, form: dict[str, str]) -> None:
    answer = visitor.act(**form)  # type: ignore[arg-type]
    assert answer.status == 400
    assert "That cannot be done" in answer.text


def test_health_shows_the_log_and_its_upkeep(journal: Journal, visitor: Visitor) -> None:
    journal.put(b"x", queue="mail")
    page = visitor.get("/j/default/health").text
    for words in ("stable storage", "Time of a sync", "Segments", "000000001.log", "disk free"):
        assert words in page
    for button, words in (
        ("sync", "on stable storage"),
        ("snapshot", "A snapshot was taken"),
        ("clean", "The log was cleaned"),
    ):
        assert words in visitor.follow(visitor.act(button, back="/j/default/health")).text
    assert journal.status().upkeep.snapshots == 1


def test_a_stopped_log_is_told_on_every_page_and_reading_goes_on(
    daemon: LocalDaemon, journal: Journal, visitor: Visitor
) -> None:
    row_id = journal.put(b"x", queue="mail", key="k").id
    daemon.server.default.engine.log.stop(OSError("the disk is on fire"))
    beat(daemon)
    for path in ("/", "/jobs", "/dead", "/health", f"/job/{row_id.hex()}"):
        page = visitor.get(f"/j/default{path}")
        assert page.status == 200
        assert "The log has stopped" in page.text
    refused = visitor.act("pause", queue=b"mail")
    assert refused.status == 503


def test_several_journals_have_pages_of_their_own(tmp_path: Path) -> None:
    settings = {"web": "127.0.0.1:0", "journals": ["b"]}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        daemon.server.journals["b"].journal.put(b"x", queue="only-in-b")
        beat(daemon, "b")
        visitor = Visitor(daemon)
        assert "only-in-b" in visitor.get("/j/b/").text
        assert "only-in-b" not in visitor.get("/j/default/").text
        assert 'href="/j/b/"' in visitor.get("/j/default/").text
        assert visitor.get("/j/c/").status == 404


def test_unknown_addresses_and_methods_are_refused_politely(visitor: Visitor) -> None:
    assert visitor.get("/nothing").status == 404
    assert visitor.ask("DELETE", "/j/default/").status == 405
    assert visitor.ask("PUT", "/j/default/act").status == 405
    assert visitor.get("/static/../serving.py").status == 404
    assert visitor.get("/static/%2e%2e/serving.py").status == 404


def test_a_journal_larger_than_memory_is_shown_too(tmp_path: Path) -> None:
    settings = {"web": "127.0.0.1:0", "journal": {"memory_limit": 1 << 20}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        journal = daemon.server.default.journal
        ids = [journal.put(b"%04d" % n * 5000, queue="mail").id for n in range(200)]
        visitor = Visitor(daemon)
        page = visitor.get("/j/default/jobs?state=ready").text
        assert page.count("/j/default/job/") == 50
        assert "19.5 KiB" in page
        assert "000000000000" in visitor.get(f"/j/default/job/{ids[0].hex()}").text
