"""The forms that change something: log in and out, put, steer queues, redrive, delete, edit.

Rules:

1. Each is a POST from one of our own pages, with the session's secret (see `login`), by somebody
   with the role `admin`. Who did what is in the daemon's log.
2. They go through the journal's own operations, in a thread, and are answered when the journal has
   kept its promise; many jobs are changed some hundred at a time, so that others get their turn.
3. The answer leads back to the page, which tells what was done.
4. What is done to all jobs that match is done to those that matched when they were counted for the
   one who pressed the button (see `job_lookup`), and still stand where they stood.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode, urlsplit, urlunsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from fastjournal.arguments import as_datetime
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.errors import AlreadyExists, BadRequest, Closed, NotFound, OutOfRange
from fastjournal.journal.engine.operations import Operations
from fastjournal.journal.journal import Journal
from fastjournal.model import PLACES, Outcome
from fastjournal.tasks.announcing import forget_schedule
from fastjournal.web.formatting import (
    body_bytes,
    read_due,
    read_length,
    read_number,
    read_settings,
    text,
)
from fastjournal.web.job_lookup import find_all
from fastjournal.web.page_templates import (
    Backstage,
    Fields,
    Renderer,
    asked_for,
    host_of,
    read_form,
)

__all__ = ["DEEDS", "Actions"]

_AT_ONCE = 200  # jobs under one hold of the lock
_MAX_IDS = 1000
_MAX_ALL = 100_000  # jobs that one press of a button changes


_Work = Callable[[JournalLoop, Fields], tuple[str, int]]
"""Carries out what a form asks: which words tell of it, and how many jobs it was done to."""


class Actions:
    """What may be done."""

    def __init__(self, backstage: Backstage, renderer: Renderer) -> None:
        self._backstage = backstage
        self._render = renderer

    async def login(self, request: Request) -> Response:
        """Let in whoever shows a token."""
        doors, server = self._backstage.doors, self._backstage.server
        form = await read_form(request)
        back = form.text("next")
        if not doors.is_ours(request, form.text("secret"), doors.login_secret()):
            raise HTTPException(403, "this form did not come from here; go back and try again")
        response = RedirectResponse(_safe(back) or "/", 303)
        peer = request.client.host if request.client else "?"
        if not doors.enter(form.text("token"), response):
            server.count_error("DENIED")
            server.log.warning("denied", peer=peer, reason="wrong token on the dashboard")
            return self._render.login(doors.login_secret(), True, back)
        server.log.info("dashboard entered", peer=peer)
        return response

    async def logout(self, request: Request) -> Response:
        """End a session."""
        doors = self._backstage.doors
        viewer = doors.viewer(request)
        form = await read_form(request)
        response = RedirectResponse("/login", 303)
        if viewer is not None and doors.is_ours(request, form.text("secret"), viewer.secret):
            doors.leave(viewer, response)
        return response

    async def act(self, request: Request) -> Response:
        """Change something in a journal."""
        doors, server = self._backstage.doors, self._backstage.server
        viewer = doors.viewer(request)
        if viewer is None:
            raise HTTPException(401, "show a token first")
        host = host_of(self._backstage, viewer, request)
        form = await read_form(request)
        if not doors.is_ours(request, form.text("secret"), viewer.secret):
            raise HTTPException(403, "this form did not come from here; go back and try again")
        if not viewer.admin:
            raise HTTPException(403, "only the role admin may change anything")
        name = form.text("do")
        work = DEEDS.get(name)
        if work is None:
            raise BadRequest(f"nothing is done by {name[:40]!r}")
        said, count = await self._backstage.beside(lambda: work(host, form))
        server.log.info(
            "dashboard",
            did=name,
            by=viewer.name or "anybody",
            journal=host.name,
            queue=text(_queue(form)),
            jobs=count,
        )
        pulse = self._backstage.pulses[host.name]
        await pulse.look()
        back = _safe(form.text("back")) or f"/j/{host.name}/"
        return RedirectResponse(_address_back(back, said, count), 303)


def _configure(said: str, **changes: bool) -> _Work:
    def work(host: JournalLoop, form: Fields) -> tuple[str, int]:
        name = _queue(form)
        host.journal.queue(name)  # a queue that is not there is not made
        host.journal.configure(name, **changes)
        return said, 0

    return work


def _settle(
    said: str,
    chosen: Callable[[JournalLoop, Fields], list[bytes]],
    operation: Callable[[Operations, bytes], object],
) -> _Work:
    """Do something to each of the jobs that are chosen."""

    def work(host: JournalLoop, form: Fields) -> tuple[str, int]:
        return said, _each(host, chosen(host, form), partial(operation, host.operations))

    return work


def _each(host: JournalLoop, ids: list[bytes], work: Callable[[bytes], object]) -> int:
    """Do something to each of these jobs; returns to how many."""
    engine, count = host.engine, 0
    for at in range(0, len(ids), _AT_ONCE):
        with engine.lock:
            if host.closed:
                raise Closed("the journal is closed")
            with engine.batch():
                for row_id in ids[at : at + _AT_ONCE]:
                    try:
                        done = work(row_id)
                    except OutOfRange:  # what was asked for is wrong, not the job
                        raise
                    except (AlreadyExists, NotFound, BadRequest):
                        if len(ids) == 1:
                            raise
                        continue
                    count += done is None or bool(done)
            time = engine.last_time
        engine.settle(time)
    return count


def _ids(_: JournalLoop, form: Fields) -> list[bytes]:
    """The jobs that were ticked."""
    try:
        ids = [bytes.fromhex(one) for one in form.all("id")[:_MAX_IDS]]
    except ValueError:
        raise BadRequest("an id has 32 hexadecimal digits") from None
    if not ids or any(len(one) != 16 for one in ids):
        raise BadRequest("choose at least one job")
    return ids


def _dead(host: JournalLoop, form: Fields) -> list[bytes]:
    """The dead jobs of a queue."""
    name = _queue(form)
    with host.engine.lock:
        lane = host.state.queues.get(name)
        if lane is None:
            raise NotFound(f"no queue {text(name)!r}")
        return list(lane.dead)[:_MAX_ALL]


def _queue(form: Fields) -> bytes:
    """The name of a queue, which stands in forms as it does in addresses."""
    return unquote_to_bytes(form.text("queue"))


def _put(host: JournalLoop, form: Fields) -> tuple[str, int]:
    queue = form.bytes("to").strip()
    if not queue:
        raise BadRequest("a job needs a queue")
    now = host.engine.clock.now()
    due, ttl = read_due(form.text("due"), now), read_length(form.text("ttl"), "ttl")
    options: dict[str, Any] = {
        "key": form.bytes("key") or None,
        "priority": read_number(form.text("priority"), "priority"),
        "due": None if due is None else as_datetime(due),
        "ttl": None if ttl is None else timedelta(microseconds=ttl // 1000),
        "max_fails": read_number(form.text("max_fails"), "max_fails"),
    }
    given = {name: value for name, value in options.items() if value is not None}
    receipt = host.journal.put(body_bytes(form.bytes("payload")), queue=queue, **given)
    words = {Outcome.MERGED: "merged", Outcome.TWIN: "held", Outcome.STALE: "unchanged"}
    return words.get(receipt.outcome, "put"), 1


def _edit(host: JournalLoop, form: Fields) -> tuple[str, int]:
    payload = body_bytes(form.bytes("payload")) if form.text("rewrite") else None
    return "edited", _each(host, _ids(host, form), _editing(host, form, payload))


def _editing(
    host: JournalLoop, form: Fields, payload: bytes | None = None
) -> Callable[[bytes], object]:
    """What the fields of a form do to a job that waits."""
    due = read_due(form.text("due"), host.engine.clock.now())
    priority = read_number(form.text("priority"), "priority")
    if due is None and priority is None and payload is None:
        raise BadRequest("say what is to be changed")
    return partial(host.operations.edit, value=payload, priority=priority, due=due)


def _hurrying(host: JournalLoop, form: Fields) -> Callable[[bytes], object]:
    return partial(host.operations.edit, due=host.engine.clock.now())


_MANY: dict[
    str, tuple[str, tuple[str, ...], Callable[[JournalLoop, Fields], Callable[[bytes], object]]]
] = {
    "redrive": ("redriven", ("dead",), lambda host, form: host.operations.redrive),
    "hurry": ("edited", ("future",), _hurrying),
    "edit": ("edited", ("ready", "future", "held"), _editing),
    "delete": ("deleted", PLACES, lambda host, form: host.operations.delete),
}
"""What can be done to all jobs that match: what is said then, to those that stand where, how."""


def _bulk(host: JournalLoop, form: Fields) -> tuple[str, int]:
    until = read_number(form.text("until"), "until")
    what = form.text("what")
    if not until or what not in _MANY:
        raise BadRequest("count the jobs first")
    said, places, make_work = _MANY[what]
    work = make_work(host, form)
    query = Fields(form.text("query").encode("ascii", "replace"))
    matching = find_all(host, asked_for(query, until))
    ids = [row_id for place in places for row_id in matching.places[place]]
    return said, _each(host, ids, work)


def _settings(host: JournalLoop, form: Fields) -> tuple[str, int]:
    name = _queue(form)
    host.journal.queue(name)  # a queue that is not there is not made
    changes = read_settings(form.beginning("set."), form.beginning("was."))
    if not changes:
        return "unchanged", 0
    with host.engine.lock:
        if host.closed:
            raise Closed("the journal is closed")
        host.operations.configure(name, changes)
        time = host.engine.last_time
    host.engine.settle(time)
    return "configured", 0


def _forget_schedule(host: JournalLoop, form: Fields) -> tuple[str, int]:
    forget_schedule(host.journal, form.text("schedule"))
    return "forgotten", 0


def _upkeep(said: str, care: Callable[[Journal], object]) -> _Work:
    def work(host: JournalLoop, form: Fields) -> tuple[str, int]:
        care(host.journal)
        return said, 0

    return work


DEEDS: dict[str, _Work] = {
    "pause": _configure("paused", paused=True),
    "drain": _configure("draining", draining=True),
    "resume": _configure("resumed", paused=False, draining=False),
    "redrive": _settle("redriven", _ids, Operations.redrive),
    "redrive-all": _settle("redriven", _dead, Operations.redrive),
    "delete": _settle("deleted", _ids, Operations.delete),
    "delete-all": _settle("deleted", _dead, Operations.delete),
    "put": _put,
    "edit": _edit,
    "bulk": _bulk,
    "settings": _settings,
    "forget-schedule": _forget_schedule,
    "sync": _upkeep("synced", Journal.sync),
    "snapshot": _upkeep("snapshot", Journal.snapshot),
    "clean": _upkeep("cleaned", Journal.clean),
}


def _safe(back: str) -> str:
    """A path of ours; empty if it leads elsewhere."""
    parts = urlsplit(back)
    fine = back.startswith("/j/") and not parts.scheme and not parts.netloc
    fine = fine and back.isascii() and back.isprintable() and "\\" not in back
    return back if fine else ""


def _address_back(back: str, said: str, count: int) -> str:
    parts = urlsplit(back)
    kept = [
        pair for pair in parts.query.split("&") if pair and not pair.startswith(("said=", "count="))
    ]
    query = "&".join([*kept, urlencode({"said": said, "count": count})])
    return urlunsplit(("", "", parts.path, query, ""))
