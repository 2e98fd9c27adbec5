"""The dashboard in a real Chromium: it lives, it acts, it fits, and asks nothing of anybody else.

Needs the package `playwright` and a Chromium of the system (`apt install chromium`), or one named
by the environment variable CHROMIUM. Where there is none the tests are skipped, with a line that
says so.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dashboard import beat
from fastjournal import Journal, Tasks
from fastjournal.daemon.auth import add_token
from fastjournal.model import State
from fastjournal.tasks.announcing import WorkerInfo, announce_worker
from fastjournal.tasks.scheduler import Scheduler
from fastjournal.testing.daemon import LocalDaemon

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None  # type: ignore[assignment]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(
        CHROMIUM is None or sync_playwright is None,
        reason="no browser here: apt install chromium, pip install playwright",
    ),
]
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
SPILLED = """[...document.querySelectorAll(".list td")].filter((cell) =>
    getComputedStyle(cell).overflow === "visible" && [...cell.children].some((child) =>
        child.getBoundingClientRect().right > cell.getBoundingClientRect().right + 1)
).map((cell) => cell.textContent)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", settings={"web": "127.0.0.1:0"}) as running:
        fill(running.server.default.journal)
        beat(running)
        yield running


def fill(journal: Journal) -> None:
    """Something to look at: long names, large numbers, failures, dead jobs."""
    journal.configure("webhooks", max_fails=1)
    for number in range(30):
        journal.put(b'{"n": 1}', queue="webhooks", key=f"order:{number}")
        leased = journal.lease("webhooks", worker="worker-7@host-3")
        assert leased is not None
        leased.fail("HTTP 503 from hooks.example: " + "no answer " * 20)
    journal.put_many(
        {"payload": b"x" * 40, "queue": "images", "key": f"/a/{n}.jpg"} for n in range(2500)
    )
    journal.put(b"x", queue="a.queue.with.a.very.long.name." + "x" * 120, key="k" * 300)
    journal.put(b"\x00\xff" * 2000, queue="later", key="binary", delay=86_400 * 3)
    journal.put(b"x", queue="reports", key="monthly")
    journal.lease("reports", worker="worker-7@host-3", lease=600)
    app = Tasks(journal)

    @app.cron("0 5 * * *", tz="Europe/Berlin", name="reports.monthly.for.all.the.customers")
    def nightly() -> None: ...

    Scheduler(app).declare()
    now = time.time_ns()
    announce_worker(
        journal,
        WorkerInfo(
            "worker-7@host-3", "host-3", 4711, "processes", 16, ["reports", "webhooks"],
            ["reports.monthly"], now, now, {"completed": 123_456, "failed": 7}, [],
        ),
        persist=True,
    )  # fmt: skip


class Watched:
    """A page, everything it complained about and everything it asked for."""

    def __init__(self, browser: Browser, daemon: LocalDaemon, **options: Any) -> None:
        self.base = f"http://{daemon.server.addresses['web'][0]}"
        self.context = browser.new_context(**({"viewport": DESK} | options))
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, path: str) -> Page:
        self.page.goto(self.base + path)
        return self.page

    def check(self) -> None:
        assert not self.complaints
        assert [url for url in self.asked if not url.startswith(self.base)] == []
        self.context.close()


@pytest.fixture
def watched(browser: Browser, daemon: LocalDaemon) -> Iterator[Watched]:
    one = Watched(browser, daemon)
    yield one
    one.check()


def paths(journal: Journal) -> list[str]:
    dead = next(job for job in journal.jobs("webhooks") if job.state is State.FAILED)
    later = journal.jobs("later")[0]
    long = next(queue.name for queue in journal.queues() if queue.name.startswith("a.queue"))
    return [
        "/",
        "/j/default/queue?name=webhooks",
        f"/j/default/queue?name={long}",
        "/j/default/jobs",
        "/j/default/jobs?q=nobody",
        "/j/default/dead",
        "/j/default/dead?queue=webhooks",
        f"/j/default/job/{dead.id.hex()}",
        f"/j/default/job/{later.id.hex()}",
        "/j/default/errors",
        "/j/default/workers",
        "/j/default/schedules",
        "/j/default/put",
        f"/j/default/put?like={dead.id.hex()}",
        "/j/default/bulk?queue=webhooks",
        f"/j/default/bulk?queue={long}",
        "/j/default/health",
        "/nothing",
    ]


@pytest.mark.parametrize(
    ("size", "scheme"), [(PHONE, "dark"), (DESK, "light")], ids=["phone, dark", "desk, light"]
)
def test_every_page_fits_and_complains_of_nothing(
    browser: Browser, daemon: LocalDaemon, size: dict[str, int], scheme: str
) -> None:
    one = Watched(browser, daemon, viewport=size, color_scheme=scheme)
    for path in paths(daemon.server.default.journal):
        page = one.open(path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= size["width"], f"{path} is {wide} wide"
        assert page.evaluate(SPILLED) == [], f"{path}: cells cover each other"
        one.complaints = [text for text in one.complaints if "404" not in text]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(20, 23, 28)") == (scheme == "dark")
    one.check()


def test_figures_queues_and_plots_live(watched: Watched, daemon: LocalDaemon) -> None:
    journal = daemon.server.default.journal
    page = watched.open("/")
    page.wait_for_selector("#pulse.on")
    assert page.inner_text('[data-jobs="dead"]') == "30"
    journal.put_many({"payload": b"", "queue": "brand-new"} for _ in range(1234))
    row = page.wait_for_selector('tr[data-queue="brand-new"]')
    assert row is not None
    page.wait_for_function(
        "document.querySelector('tr[data-queue=\"brand-new\"] [data-f=ready]').textContent"
        " === '1,234'"
    )
    assert page.inner_text('[data-jobs="ready"]') == "3,735"
    page.wait_for_selector(".plot canvas")
    assert page.locator(".plot canvas").count() == 2
    journal.pause("brand-new")
    page.wait_for_selector('tr[data-queue="brand-new"] [data-f="paused"]:not([hidden])')
    for job in journal.jobs("brand-new", limit=2000):
        journal.delete(job.id)
    journal.configure("brand-new", paused=False)
    page.wait_for_selector('tr[data-queue="brand-new"]', state="detached")


def test_queues_are_filtered_and_sorted(watched: Watched) -> None:
    page = watched.open("/")
    page.click('th[data-sort="ready"]')
    assert page.locator("#queues tbody tr").first.get_attribute("data-queue") == "images"
    page.click('th[data-sort="ready"]')
    assert page.locator("#queues tbody tr").last.get_attribute("data-queue") == "images"
    page.fill("#filter", "HOOK")
    assert page.locator("#queues tbody tr:visible").count() == 1


def test_dead_jobs_are_chosen_and_redriven(watched: Watched, daemon: LocalDaemon) -> None:
    page = watched.open("/j/default/dead")
    assert page.is_disabled('button[value="redrive"]')
    page.locator('input[name="id"]').nth(3).check()
    page.locator('input[name="id"]').nth(5).check()
    page.wait_for_selector("text=2 chosen")
    page.click('button[value="redrive"]')
    page.wait_for_selector("text=2 jobs are waiting again")
    assert daemon.server.default.journal.queue("webhooks").ready == 2
    assert page.inner_text('[data-badge="dead"]') == "28"


def test_a_deletion_asks_first(watched: Watched, daemon: LocalDaemon) -> None:
    journal = daemon.server.default.journal
    page = watched.open("/j/default/dead?queue=webhooks")
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.click("text=Delete all")
    assert journal.queue("webhooks").dead == 30
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("text=Delete all")
    page.wait_for_selector("text=30 jobs are deleted")
    assert journal.queue("webhooks").dead == 0
    assert asked == ["Delete all dead jobs of this queue?"]


def test_a_job_is_searched_and_its_life_read(watched: Watched) -> None:
    page = watched.open("/j/default/jobs")
    page.fill('input[name="q"]', "order:7")
    page.press('input[name="q"]', "Enter")
    page.click("table.list tbody td.key a")
    assert page.locator("ol.life li").all_inner_texts()[0].split("\n")[2].startswith("put")
    assert page.locator("svg.phases rect").count() == 3
    page.click("text=Redrive")
    page.wait_for_selector("text=1 job is waiting again")
    assert "redriven" in page.inner_text("ol.life")


def test_a_lost_daemon_is_told_and_found_again(browser: Browser, tmp_path: Path) -> None:
    first = LocalDaemon(tmp_path / "d", settings={"web": "127.0.0.1:0"}).start()
    address = first.server.addresses["web"][0]
    one = Watched(browser, first)
    page = one.open("/")
    page.wait_for_selector("#pulse.on")
    first.stop()
    page.wait_for_selector("#pulse.off")
    with LocalDaemon(tmp_path / "d", settings={"web": address}):
        page.wait_for_selector("#pulse.on")
        one.context.close()


def test_a_token_is_asked_for_and_signing_out_forgets_it(browser: Browser, tmp_path: Path) -> None:
    token = add_token(tmp_path / "tokens", "somebody.with.a.long-name", ["read"], [])
    tokens = str(tmp_path / "tokens")
    settings = {"web": "127.0.0.1:0", "tokens": tokens, "journals": ["other"]}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        fill(daemon.server.default.journal)
        one = Watched(browser, daemon)
        page = one.open("/j/default/dead")
        page.fill('input[name="token"]', "wrong")
        page.press('input[name="token"]', "Enter")
        page.wait_for_selector("text=not known here")
        page.fill('input[name="token"]', token)
        page.click("text=Sign in")
        page.wait_for_selector("table.dead")
        assert page.url.endswith("/j/default/dead")
        assert page.locator("text=Redrive").count() == 0
        assert page.evaluate("document.cookie") == ""
        page.wait_for_selector("#pulse.on")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.click("text=Sign out")
        page.wait_for_url("**/login")
        assert one.open("/").url.endswith("/login")
        one.complaints = [text for text in one.complaints if "403" not in text]
        one.check()


def test_pages_work_without_scripts(browser: Browser, daemon: LocalDaemon) -> None:
    one = Watched(browser, daemon, java_script_enabled=False)
    page = one.open("/j/default/queue?name=images")
    page.click("text=Pause")
    assert "The queue is paused" in page.inner_text(".said")
    assert daemon.server.default.journal.queue("images").settings.paused
    page.click("text=Resume")
    assert not daemon.server.default.journal.queue("images").settings.paused
    one.check()


def test_workers_live(watched: Watched, daemon: LocalDaemon) -> None:
    from playwright.sync_api import expect

    journal = daemon.server.default.journal
    page = watched.open("/j/default/workers")
    expect(page.locator(".worker")).to_have_count(1)
    expect(page.locator(".worker")).to_contain_text("monthly")
    journal.put(b"x", queue="reports", key="yearly")
    leased = journal.lease("reports", worker="another", lease=60)
    assert leased is not None
    expect(page.locator(".worker")).to_have_count(2, timeout=20_000)
    expect(page.locator(".worker").nth(1)).to_contain_text("yearly")
    leased.done()
    expect(page.locator(".worker")).to_have_count(1, timeout=20_000)


def test_an_error_leads_to_its_jobs_and_all_of_them_are_redriven(
    watched: Watched, daemon: LocalDaemon
) -> None:
    from playwright.sync_api import expect

    journal = daemon.server.default.journal
    page = watched.open("/j/default/errors")
    page.locator(".errors td.line a").click()
    page.get_by_role("link", name="Change all of these").click()
    expect(page.locator("#matching")).to_have_text("30 jobs match")
    page.get_by_role("button", name="Redrive 30 jobs").click()
    expect(page.get_by_role("status")).to_have_text("30 jobs are waiting again.")
    assert (journal.queue("webhooks").dead, journal.queue("webhooks").ready) == (0, 30)


def test_many_jobs_are_counted_then_deleted_after_a_question(
    watched: Watched, daemon: LocalDaemon
) -> None:
    from playwright.sync_api import expect

    journal = daemon.server.default.journal
    page = watched.open("/j/default/jobs?q=/a/1*&queue=images")
    page.get_by_role("link", name="Change all that match").click()
    expect(page.locator("#matching")).to_have_text("1,111 jobs match")
    asked: list[str] = []

    def refuse(dialog: Any) -> None:
        asked.append(dialog.message)
        dialog.dismiss() if len(asked) == 1 else dialog.accept()

    page.on("dialog", refuse)
    page.get_by_role("button", name="Delete 1,111 jobs").click()
    assert journal.queue("images").ready == 2500
    page.get_by_role("button", name="Delete 1,111 jobs").click()
    expect(page.get_by_role("status")).to_have_text("1,111 jobs are deleted.")
    assert len(asked) == 2
    assert journal.queue("images").ready == 1389


def test_a_job_is_put_and_edited_by_hand(watched: Watched, daemon: LocalDaemon) -> None:
    from playwright.sync_api import expect

    journal = daemon.server.default.journal
    page = watched.open("/j/default/queue?name=later")
    page.get_by_role("link", name="Put a job").click()
    expect(page.get_by_label("Queue")).to_have_value("later")
    page.get_by_label("Key").fill("by hand")
    page.get_by_label("Due").fill("2h")
    page.get_by_label("Payload").fill('{\n  "n": 1\n}')
    page.get_by_role("button", name="Put", exact=True).click()
    expect(page.get_by_role("status")).to_have_text("The job was put.")
    job = journal.job(key="by hand", queue="later")
    assert job.value == b'{\n  "n": 1\n}'
    page = watched.open(f"/j/default/job/{job.id.hex()}")
    page.locator("#edit summary").click()
    page.get_by_label("Replace the payload by").check()
    page.get_by_label("Payload", exact=True).fill("other")
    page.get_by_label("Priority").fill("5")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_role("status")).to_have_text("1 job is changed.")
    assert (journal.job(job.id).value, journal.job(job.id).priority) == (b"other", 5)
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("h1 .state")).to_have_text("ready")


def test_every_plot_of_a_page_goes_on(watched: Watched, daemon: LocalDaemon) -> None:
    from playwright.sync_api import expect

    journal = daemon.server.default.journal
    page = watched.open("/")
    expect(page.locator("[data-plot] canvas")).to_have_count(2)
    journal.put_many({"payload": b"x", "queue": "images"} for _ in range(77))
    ready = f"{journal.status().ready:,}"
    # A look that takes long, on a busy machine, is followed by up to 15 seconds of rest.
    expect(page.locator('[data-jobs="ready"]')).to_have_text(ready, timeout=30_000)
    expect(page.locator('[data-plot="depth"] .u-legend')).to_contain_text(ready, timeout=30_000)


def test_settings_are_changed_and_the_hours_are_plotted(
    watched: Watched, daemon: LocalDaemon
) -> None:
    from playwright.sync_api import expect

    journal = daemon.server.default.journal
    page = watched.open("/j/default/queue?name=webhooks")
    expect(page.locator("[data-hours] canvas")).to_have_count(2)
    expect(page.locator(".pace")).to_contain_text("30")
    page.get_by_label("lease", exact=True).fill("90s")
    page.get_by_role("button", name="Save settings").click()
    expect(page.get_by_role("status")).to_have_text("The settings of the queue are changed.")
    assert journal.queue("webhooks").settings.lease == 90 * 10**9
    assert journal.queue("webhooks").settings.max_fails == 1
