"""The dashboard as an ASGI application: its addresses, its headers, its errors.

Rules:

1. Every answer carries headers that forbid foreign scripts, frames and guesses of content; nothing
   is ever asked of another site.
2. Pages are never stored by browsers; files that belong to them carry the version in their address.
3. An error of ours becomes a page with its words; a bug is told in the daemon's log only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastjournal.errors import (
    JournalError,
    JournalFault,
    NotFound,
    QueueFull,
    Unauthorized,
)
from fastjournal.web.actions import Actions
from fastjournal.web.login import Doors
from fastjournal.web.page_templates import Renderer
from fastjournal.web.pages import Pages

if TYPE_CHECKING:
    from fastjournal.web.dashboard_server import Dashboard

__all__ = ["HEADERS", "make_app"]

_HERE = Path(__file__).parent
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_STATUS: tuple[tuple[type[JournalError], int], ...] = (
    (NotFound, 404),
    (Unauthorized, 403),
    (QueueFull, 503),
    (JournalFault, 503),
    (JournalError, 400),
)


def make_app(dashboard: Dashboard) -> ASGIApp:
    """The application over the journals of a server."""
    renderer = Renderer(dashboard, _HERE / "templates")
    pages, actions = Pages(dashboard, renderer), Actions(dashboard, renderer)

    async def told(request: Request, error: Exception) -> Response:
        status = next(number for kind, number in _STATUS if isinstance(error, kind))
        return renderer.error(request, status, str(error))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return renderer.error(request, error.status_code, error.detail)

    async def broken(request: Request, error: Exception) -> Response:
        dashboard.server.report(error)
        return renderer.error(request, 500, "something went wrong here; the daemon's log tells")

    app = Starlette(
        routes=[
            Route("/", pages.home),
            Route("/login", pages.login, methods=["GET"]),
            Route("/login", actions.login, methods=["POST"]),
            Route("/logout", actions.logout, methods=["POST"]),
            Route("/j/{journal}/", pages.queues),
            Route("/j/{journal}/queue", pages.queue),
            Route("/j/{journal}/jobs", pages.jobs),
            Route("/j/{journal}/job/{id}", pages.job),
            Route("/j/{journal}/dead", pages.dead),
            Route("/j/{journal}/health", pages.health),
            Route("/j/{journal}/live", pages.live),
            Route("/j/{journal}/history.json", pages.history),
            Route("/j/{journal}/act", actions.act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ],
        exception_handlers={JournalError: told, HTTPException: refused, Exception: broken},
    )
    return _Guard(app, dashboard.doors)


class _Guard:
    """Turns foreign names away and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, doors: Doors) -> None:
        self._app = app
        self._doors = doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        kept = scope["path"].startswith("/static/") and b"v=" in scope["query_string"]

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["cache-control"] = "max-age=86400, immutable" if kept else "no-store"
            await send(message)

        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if self._doors.is_known_host(host):
            await self._app(scope, receive, send_guarded)
        else:
            answer = PlainTextResponse("this name does not lead here\n", 421)
            await answer(scope, receive, send_guarded)
