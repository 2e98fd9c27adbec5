"""Pages from templates, and what every page knows and works with.

Rules:

1. Everything put into a template is escaped; a name that is missing there is an error, not a blank.
2. Addresses and forms are read as bytes: names and keys need not be text.
3. What may take long is done in two threads beside the loop; whoever asks for more waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qs

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from fastjournal.daemon.context import PROMISES
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.errors import BadRequest, TooLarge
from fastjournal.model import PLACES
from fastjournal.package import __version__
from fastjournal.web import formatting
from fastjournal.web.figures import Pulse
from fastjournal.web.job_lookup import Asked
from fastjournal.web.login import Doors, Viewer

if TYPE_CHECKING:
    from fastjournal.daemon.server import Server

__all__ = [
    "Backstage",
    "Fields",
    "Renderer",
    "Viewing",
    "asked_for",
    "host_of",
    "read_form",
    "read_query",
]

_T = TypeVar("_T")
_THREADS = 2

_MAX_FORM = 256 * 1024
_MAX_FIELDS = 2000
_SAID = {
    "paused": "{} is paused: nothing is handed out.",
    "draining": "{} is draining: nothing is taken in.",
    "resumed": "{} goes on.",
    "redriven": "{} waiting again.",
    "deleted": "{} deleted.",
    "edited": "{} changed.",
    "put": "The job was put.",
    "merged": "The job was merged into the one of its key that waits.",
    "held": "The job was put; it waits for the one of its key that is being worked on.",
    "configured": "The settings of the queue are changed.",
    "unchanged": "Nothing was changed.",
    "forgotten": "The schedule is forgotten.",
    "synced": "Everything is on stable storage.",
    "snapshot": "A snapshot was taken.",
    "cleaned": "The log was cleaned.",
}


class Fields:
    """What an address or a form says."""

    def __init__(self, data: bytes) -> None:
        try:
            self._values = parse_qs(
                data.decode("ascii"), errors="surrogateescape", max_num_fields=_MAX_FIELDS
            )
        except (UnicodeDecodeError, ValueError):
            raise BadRequest("not a form") from None

    def text(self, name: str) -> str:
        """One value, without space around it."""
        return self._values.get(name, [""])[0].strip()

    def bytes(self, name: str) -> bytes:
        """One value as the bytes it stands for."""
        return self._values.get(name, [""])[0].encode("utf-8", "surrogateescape")

    def all(self, name: str) -> list[str]:
        """All values of a name."""
        return self._values.get(name, [])

    def beginning(self, prefix: str) -> dict[str, str]:
        """The values of all names that begin so, by the rest of the name."""
        return {
            name.removeprefix(prefix): self.text(name)
            for name in self._values
            if name.startswith(prefix)
        }

    def number(self, name: str, most: int) -> int:
        """A number from 0 to `most`; 0 if there is none."""
        value = self.text(name)
        return min(int(value), most) if value.isascii() and value.isdigit() else 0


def read_query(request: Request) -> Fields:
    """What the address says behind its `?`."""
    return Fields(request.scope["query_string"])


async def read_form(request: Request) -> Fields:
    """What a form says; bounded."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > _MAX_FORM:
            raise TooLarge("the form is too large")
    return Fields(data)


class Backstage:
    """What all pages of a dashboard work with: the server, its visitors, figures, threads."""

    def __init__(self, server: Server, doors: Doors) -> None:
        self.server = server
        self.doors = doors
        self.pulses: dict[str, Pulse] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "fastjournal-web")

    async def beside(self, work: Callable[[], _T]) -> _T:
        """Do something in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Viewing(NamedTuple):
    """Somebody looks at a page of a journal."""

    request: Request
    viewer: Viewer
    host: JournalLoop
    query: Fields


class Renderer:
    """Fills templates."""

    def __init__(self, backstage: Backstage, folder: Path) -> None:
        self._backstage = backstage
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name in set(formatting.__all__) - {"Shown", "text"}:
            self._templates.filters[name] = getattr(formatting, name)
        self._templates.filters["as_text"] = formatting.text
        self._templates.globals["version"] = __version__

    def page(self, viewing: Viewing, template: str, **values: Any) -> Response:
        """A page of a journal."""
        request, viewer, host, query = viewing
        server = self._backstage.server
        figures = self._backstage.pulses[host.name].figures
        sync = host.engine.log.options.sync
        common = {
            "viewer": viewer,
            "journal": host.name,
            "journals": [name for name in sorted(server.journals) if viewer.opens(name)],
            "base": f"/j/{host.name}",
            "here": request.scope["path"],
            "address": formatting.text(_address(request)),
            "figures": figures,
            "now": host.engine.clock.now(),
            "sync": sync,
            "promise": PROMISES[sync],
            "said": _said(query),
        }
        return self._filled(template, 200, common | values)

    def login(self, secret: str, wrong: bool, back: str) -> Response:
        """The form that asks for a token."""
        values = {"secret": secret, "wrong": wrong, "back": back}
        return self._filled("login.html", 403 if wrong else 200, values)

    def error(self, request: Request, status: int, text: str) -> Response:
        """A page that says what went wrong."""
        values = {"status": status, "text": formatting.text(text)}
        return self._filled("error.html", status, values)

    def _filled(self, template: str, status: int, values: dict[str, Any]) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(values), status)


def host_of(backstage: Backstage, viewer: Viewer, request: Request) -> JournalLoop:
    """The journal a request is about; as good as missing if the viewer may not see it."""
    name = request.path_params["journal"]
    host = backstage.server.journals.get(name)
    if host is None or not viewer.opens(name):
        raise HTTPException(404, "there is no such journal")
    return host


def asked_for(fields: Fields, until: int = 0) -> Asked:
    """Which jobs an address or a form means."""
    place = fields.text("state")
    return Asked(
        fields.bytes("q").strip(),
        fields.bytes("queue"),
        place if place in PLACES else "",
        error=fields.text("error"),
        until=until,
    )


def _address(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    path: str = request.scope["path"]
    return path + (f"?{query.decode('latin-1')}" if query else "")


def _said(query: Fields) -> str:
    """What an action did, from its code: never words of the address."""
    form = _SAID.get(query.text("said"), "")
    if "{}" not in form:
        return form
    if form.startswith(("{} waiting", "{} deleted", "{} changed")):
        count = query.number("count", 10**9)
        what = "1 job is" if count == 1 else f"{count:,} jobs are"
        return form.format(what)
    return form.format("The queue")
