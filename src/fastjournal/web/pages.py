"""The pages that look. None of them changes anything.

Rules:

1. Figures come from the pulse, so a page costs the journal nothing; jobs and their lives are looked
   up in a thread.
2. A journal that the viewer may not see is as good as missing.
3. The workers are those that announce themselves, and whoever else holds leases. What one runs is
   what the journal has handed to it, at this moment; what it is, it has announced itself, ten
   seconds ago at most.
4. At most `MOST` leases are looked at; the page says if there are more.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from fastjournal.clock import SECOND
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.errors import JournalError, NotFound
from fastjournal.journal.look.history import Life, life_of
from fastjournal.log.files import file_size
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.model import DEFAULT_SETTINGS, PLACES, Job, State, place_of
from fastjournal.tasks.announcing import WorkerInfo, known_schedules, known_workers
from fastjournal.web.figures import SLOT, SLOTS, Done, Latency, QueueFigures
from fastjournal.web.formatting import quoted, setting_fields, span
from fastjournal.web.job_lookup import (
    MAX_ALL,
    Asked,
    count_reasons,
    find_all,
    look,
    phases_of,
)
from fastjournal.web.login import Viewer
from fastjournal.web.page_templates import (
    Backstage,
    Renderer,
    Viewing,
    asked_for,
    host_of,
    read_query,
)

__all__ = ["MOST", "Busy", "Crew", "Pages", "Worker", "crew_of"]


MOST = 2000


class Busy(NamedTuple):
    """A job that somebody works on."""

    id: str
    queue: bytes
    key: bytes
    task: str
    """Empty: it is not known."""
    since: int
    until: int
    attempts: int


class Worker(NamedTuple):
    """Somebody who works."""

    name: str
    info: WorkerInfo | None
    """What it has announced; None: it only leases."""
    jobs: list[Busy]
    """What it has in hand, the oldest first."""


class Crew(NamedTuple):
    """Everybody who works on a journal."""

    workers: list[Worker]
    cut: bool
    """There are more leases than were looked at."""

    @property
    def slots(self) -> int:
        """How many jobs the workers that announce themselves can run at a time."""
        return sum(one.info.concurrency for one in self.workers if one.info is not None)

    @property
    def running(self) -> int:
        """How many jobs are being worked on."""
        return sum(len(one.jobs) for one in self.workers)


def crew_of(host: JournalLoop) -> Crew:
    """Everybody who works on this journal."""
    announced = {info.name: info for info in known_workers(host.journal)}
    tasks = {job.id: job.task for info in announced.values() for job in info.running}
    by_worker: dict[str, list[Busy]] = {}
    with host.engine.lock:
        lanes = [lane for lane in host.state.queues.values() if lane.name]
        leased = (row for lane in lanes for row in lane.leases)
        rows = list(islice(leased, MOST + 1))
        for row in sorted(rows[:MOST], key=lambda row: row.rare.start):
            name = row.rare.worker.decode("utf-8", "backslashreplace")
            by_worker.setdefault(name, []).append(
                Busy(
                    row.id.hex(),
                    row.queue.name,
                    row.key,
                    tasks.get(row.id.hex(), ""),
                    row.rare.start,
                    row.lease_until,
                    row.attempts,
                )
            )
    names = sorted({*announced, *by_worker}, key=lambda name: (name not in announced, name))
    workers = [Worker(name, announced.get(name), by_worker.get(name, [])) for name in names]
    return Crew(workers, len(rows) > MOST)


_PAGE = 50
_MAX_PAGES = 2000
_MAX_STREAMS = 100
_MAX_STEPS = 500
_MAX_REASONS = 200
_MAX_TYPED = 65_536  # bytes of a payload that a form may hold
_HOUR = 3600 * SECOND // SLOT
_Endpoint = Callable[["Pages", Request], Awaitable[Response]]


class _Stretch(NamedTuple):
    words: str
    done: Done
    waits: Latency
    runs: Latency


def _page(show: Callable[[Pages, Viewing], Awaitable[Response]]) -> _Endpoint:
    """A page of a journal; whoever has not said who they are is asked for a token first."""

    async def answer(pages: Pages, request: Request) -> Response:
        viewer = pages.backstage.doors.viewer(request)
        if viewer is None:
            return _to_login(request)
        host = host_of(pages.backstage, viewer, request)
        return await show(pages, Viewing(request, viewer, host, read_query(request)))

    return answer


class Pages:
    """What may be looked at."""

    def __init__(self, backstage: Backstage, renderer: Renderer) -> None:
        self.backstage = backstage
        self._render = renderer
        self._streams = 0

    async def home(self, request: Request) -> Response:
        """Lead to the first journal there is to see."""
        viewer = self.backstage.doors.viewer(request)
        if viewer is None:
            return _to_login(request)
        server = self.backstage.server
        names = [server.settings.default_journal, *sorted(server.journals)]
        for name in names:
            if name in server.journals and viewer.opens(name):
                return RedirectResponse(f"/j/{name}/", 303)
        raise HTTPException(404, "this token opens no journal that is served here")

    async def login(self, request: Request) -> Response:
        """Ask for a token."""
        doors = self.backstage.doors
        if doors.viewer(request) is not None:
            return RedirectResponse("/", 303)
        return self._render.login(doors.login_secret(), False, read_query(request).text("next"))

    @_page
    async def history(self, viewing: Viewing) -> Response:
        """What the plots show at first."""
        return JSONResponse(self.backstage.pulses[viewing.host.name].history())

    @_page
    async def hours(self, viewing: Viewing) -> Response:
        """What a queue, or all of them, did in the last hours."""
        hours = self.backstage.pulses[viewing.host.name].hours
        return JSONResponse(hours.columns(viewing.query.bytes("queue") or None))

    async def live(self, request: Request) -> Response:
        """Figures as they change."""
        doors = self.backstage.doors
        viewer = doors.viewer(request)
        if viewer is None:
            raise HTTPException(401, "show a token first")
        host = host_of(self.backstage, viewer, request)
        if self._streams >= _MAX_STREAMS:
            raise HTTPException(503, "too many are looking already")
        pulse = self.backstage.pulses[host.name]

        async def send_figures() -> Any:
            self._streams += 1
            try:
                async for event in pulse.stream(lambda: doors.still_open(viewer)):
                    yield event
            finally:
                self._streams -= 1

        return StreamingResponse(send_figures(), media_type="text/event-stream")

    @_page
    async def queues(self, viewing: Viewing) -> Response:
        """All queues, and what goes on."""
        pulse = self.backstage.pulses[viewing.host.name]
        busy = {quoted(name): done for name, done in pulse.hours.busy(_HOUR).items()}
        return self._render.page(
            viewing, "queues.html", queues=pulse.queues, left_out=pulse.left_out,
            hour={url: (done, Latency.of(done.waits)) for url, done in busy.items()},
        )  # fmt: skip

    @_page
    async def queue(self, viewing: Viewing) -> Response:
        """One queue."""
        name = viewing.query.bytes("name")
        status = viewing.host.journal.queue(name)  # NotFound becomes a page
        pages = [
            (place, await self._look(viewing.host, Asked(queue=name, place=place, limit=10)))
            for place in ("leased", "ready", "future", "dead")
        ]
        counts = tuple(getattr(status, place) for place in PLACES)
        row = QueueFigures(
            "", "", counts, 0, status.next_due, status.settings.paused, status.settings.draining
        )
        return self._render.page(
            viewing, "queue.html", name=name, row=row, places=PLACES,
            settings=setting_fields(status.settings), changed=status.settings != DEFAULT_SETTINGS,
            found=[(place, page) for place, page in pages if page.jobs],
            stretches=self._stretches(viewing.host, name),
        )  # fmt: skip

    def _stretches(self, host: JournalLoop, queue: bytes | None) -> list[_Stretch]:
        """What a queue did lately: in words, what, waits, runs."""
        hours = self.backstage.pulses[host.name].hours
        out = []
        for words, slots in (("last hour", _HOUR), ("6 hours", 6 * _HOUR), ("24 hours", SLOTS)):
            done = hours.done(slots, queue)
            out.append(_Stretch(words, done, Latency.of(done.waits), Latency.of(done.runs)))
        return out

    @_page
    async def jobs(self, viewing: Viewing) -> Response:
        """Look jobs up."""
        words = viewing.query.text("q")
        number = viewing.query.number("page", _MAX_PAGES)
        asked = asked_for(viewing.query)._replace(offset=number * _PAGE, limit=_PAGE)
        found = await self._look(viewing.host, asked)
        if len(found.jobs) == 1 and not number and words and _maybe_id(words) == found.jobs[0].id:
            return RedirectResponse(f"/j/{viewing.host.name}/job/{found.jobs[0].id}", 303)
        return self._render.page(
            viewing, "jobs.html", asked=asked, words=words, found=found,
            page_number=number, places=PLACES,
            gone=_maybe_id(words) if not found.jobs else "", filters=_filters(asked),
        )  # fmt: skip

    @_page
    async def dead(self, viewing: Viewing) -> Response:
        """Jobs that were given up."""
        queue = viewing.query.bytes("queue")
        number = viewing.query.number("page", _MAX_PAGES)
        asked = asked_for(viewing.query)._replace(
            place="dead", words=b"", offset=number * _PAGE, limit=_PAGE
        )
        found = await self._look(viewing.host, asked)
        pulse = self.backstage.pulses[viewing.host.name]
        return self._render.page(
            viewing, "dead.html", found=found, queue=queue, page_number=number,
            queues=[row for row in pulse.queues if row.counts[-1]], error=asked.error,
            filters=_filters(asked),
        )  # fmt: skip

    @_page
    async def errors(self, viewing: Viewing) -> Response:
        """Why jobs fail, by the last lines of their reasons."""
        reasons, cut = await self.backstage.beside(lambda: count_reasons(viewing.host))
        return self._render.page(
            viewing, "errors.html", reasons=reasons[:_MAX_REASONS], cut=cut,
            left_out=len(reasons) - _MAX_REASONS,
        )  # fmt: skip

    @_page
    async def bulk(self, viewing: Viewing) -> Response:
        """How many jobs match, before something is done to all of them."""
        _check_admin(viewing.viewer)
        host = viewing.host
        with host.engine.lock:  # jobs put in the same instant have later numbers
            now = max(host.state.promote(host.engine.clock.now()), host.state.last_inserted)
        asked = asked_for(viewing.query, now)
        matching = await self.backstage.beside(lambda: find_all(host, asked))
        found = await self._look(host, asked._replace(limit=10))
        counts = {place: len(ids) for place, ids in matching.places.items()}
        return self._render.page(
            viewing, "bulk.html", asked=asked, matching=matching, counts=counts,
            found=found, filters=_filters(asked), until=now, max_all=MAX_ALL,
            waiting=counts["ready"] + counts["future"] + counts["held"],
        )  # fmt: skip

    @_page
    async def put(self, viewing: Viewing) -> Response:
        """The form that puts a job."""
        _check_admin(viewing.viewer)
        like = _maybe_id(viewing.query.text("like"))
        job = None
        if like:
            job = await self.backstage.beside(lambda: _find(viewing.host, bytes.fromhex(like)))
        return self._render.page(
            viewing, "put.html", queue=viewing.query.bytes("queue"), like=job,
            payload="" if job is None else _typed(job.payload) or "",
            unreadable=job is not None and _typed(job.payload) is None,
            queues=self.backstage.pulses[viewing.host.name].queues,
        )  # fmt: skip

    @_page
    async def raw(self, viewing: Viewing) -> Response:
        """A payload, a result or a reason, whole and as it is."""
        text = _maybe_id(viewing.request.path_params["id"])
        what = viewing.query.text("what")
        if not text or what not in ("value", "result", "note"):
            raise NotFound("there is no such thing")
        job = await self.backstage.beside(lambda: _find(viewing.host, bytes.fromhex(text)))
        if job is None:
            raise NotFound(f"no job {text}")
        name = f'attachment; filename="{text[:12]}-{what}"'
        return Response(
            getattr(job, what), media_type="application/octet-stream",
            headers={"content-disposition": name},
        )  # fmt: skip

    @_page
    async def workers(self, viewing: Viewing) -> Response:
        """Who works, and on what since when."""
        crew = await self.backstage.beside(lambda: crew_of(viewing.host))
        return self._render.page(viewing, "workers.html", crew=crew, most=MOST)

    @_page
    async def schedules(self, viewing: Viewing) -> Response:
        """What is called when."""
        found = await self.backstage.beside(lambda: known_schedules(viewing.host.journal))
        return self._render.page(viewing, "schedules.html", schedules=found)

    @_page
    async def job(self, viewing: Viewing) -> Response:
        """One job and its life."""
        text = _maybe_id(viewing.request.path_params["id"])
        if not text:
            raise NotFound("an id has 32 hexadecimal digits")
        row_id = bytes.fromhex(text)
        job = await self.backstage.beside(lambda: _find(viewing.host, row_id))
        fault = ""
        try:
            life = await self.backstage.beside(
                lambda: _life(viewing.host, row_id, 0 if job is None else job.inserted)
            )
        except (JournalError, OSError) as error:
            if job is None:
                raise
            life, fault = Life([], False, False, 0, b"", b""), str(error)
        if job is None and not life.steps:
            raise NotFound(f"no job {text}, and the log knows of none")
        now = viewing.host.engine.clock.now()
        last = life.steps[-1].after if life.steps else None
        alive = job is not None or last in (State.WAITING, State.PROCESSING)
        return self._render.page(
            viewing, "job.html", id=text, job=job, life=life, fault=fault,
            place="gone" if job is None else place_of(job, now),
            payload=None if job is None else _typed(job.payload),
            phases=phases_of(life.steps, now if alive else 0),
        )  # fmt: skip

    @_page
    async def health(self, viewing: Viewing) -> Response:
        """The log, its syncs, the server."""
        server = self.backstage.server
        status = viewing.host.journal.status()
        segments, disk = await self.backstage.beside(lambda: _files(viewing.host))
        return self._render.page(
            viewing, "health.html", status=status, segments=segments, disk=disk,
            server=server, replica=server.report_replica(viewing.host.name),
            sync_bars=_bars(status.log.counters.sync_seconds, "s"),
            group_bars=_bars(status.log.counters.group_size, ""),
            errors=server.errors.most_common(), cuts=server.cuts.most_common(),
        )  # fmt: skip

    async def _look(self, host: JournalLoop, asked: Asked) -> Any:
        return await self.backstage.beside(lambda: look(host, asked))


def _to_login(request: Request) -> Response:
    path = request.scope["path"]
    return RedirectResponse("/login" + ("" if path == "/" else f"?next={quote(path)}"), 303)


def _maybe_id(words: str) -> str:
    """The words as an id, if they can be one."""
    digits = words.strip().replace("-", "").lower()
    fine = len(digits) == 32 and all(digit in "0123456789abcdef" for digit in digits)
    return digits if fine else ""


def _find(host: JournalLoop, row_id: bytes) -> Job | None:
    try:
        job = host.journal.job(row_id)
    except NotFound:
        return None
    return job if job.queue_bytes else None


def _life(host: JournalLoop, row_id: bytes, since: int) -> Life:
    source = host.engine.log.stream
    stream = Stream(source.path, WORKQ, files=source.files)
    return life_of(stream, row_id, since=since, limit=_MAX_STEPS)


def _typed(value: bytes) -> str | None:
    """A payload as it can be typed into a form; None: it would not come back as it is."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    fine = len(value) <= _MAX_TYPED and "\r" not in text
    return text if fine and all(sign.isprintable() or sign in "\n\t" for sign in text) else None


def _filters(asked: Asked) -> str:
    """Which jobs were asked for, as a part of an address."""
    named: list[tuple[str, bytes | str]] = [
        ("q", asked.words),
        ("queue", asked.queue),
        ("state", asked.place),
        ("error", asked.error),
    ]
    return "&".join(f"{name}={quoted(value)}" for name, value in named if value)


def _check_admin(viewer: Viewer) -> None:
    if not viewer.admin:
        raise HTTPException(403, "only the role admin may change anything")


def _files(host: JournalLoop) -> tuple[list[tuple[str, int]], tuple[int, int]]:
    """The newest segments with their sizes, and the disk's free and whole space."""
    stream = host.engine.log.stream
    found = []
    for number in stream.segments()[-20:]:
        path = stream.segment_path(number)
        with suppress(OSError):
            found.append((path.name, file_size(stream.files, path)))
    try:
        usage = shutil.disk_usage(stream.path)
    except OSError:
        return found, (0, 0)
    return found, (usage.free, usage.total)


def _bars(histogram: Any, unit: str) -> list[tuple[str, int, int]]:
    """Label, count and width in percent of each bar, without the empty ends."""
    bounds = [*histogram.bounds, None]
    counts = histogram.counts
    used = [number for number, count in enumerate(counts) if count]
    if not used:
        return []
    most = max(counts)
    out = []
    for number in range(used[0], used[-1] + 1):
        bound = bounds[number]
        if bound is None:
            label = "more"
        elif unit == "s":
            label = "≤ " + span(round(bound * 1e9))
        else:
            label = f"≤ {bound:.0f}"
        width = max(1, round(100 * counts[number] / most)) if counts[number] else 0
        out.append((label, counts[number], width))
    return out
