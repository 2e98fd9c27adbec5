"""The dashboard on the daemon's own loop: its addresses, its headers, its errors.

Rules:

1. uvicorn only carries HTTP: loop, signals, log and life belong to the daemon.
2. A stop ends the live streams first, then the connections.
3. A request must have come whole within `message_timeout`, a TLS handshake within `hello_timeout`.
   There are at most `WEB_CONNECTIONS` connections; whoever comes then is closed.
4. Every answer carries headers that forbid foreign scripts, frames and guesses of content; nothing
   is ever asked of another site.
5. Pages are never stored by browsers; files that belong to them carry the version in their address.
6. An error of ours becomes a page with its words; a bug is told in the daemon's log only.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.config import WEB_CONNECTIONS, WEB_PORT, parse_address
from fastjournal.daemon.listener import Listener
from fastjournal.errors import (
    JournalError,
    JournalFault,
    NotFound,
    QueueFull,
    SettingError,
    Unauthorized,
)

try:
    import h11
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import MutableHeaders
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from fastjournal.web.actions import Actions
    from fastjournal.web.figures import Pulse
    from fastjournal.web.login import Doors
    from fastjournal.web.page_templates import Backstage, Renderer
    from fastjournal.web.pages import Pages
except ImportError as error:
    raise SettingError(
        f"the dashboard needs: pip install 'fastjournal[web]' ({error.name} is missing)", name="web"
    ) from error

if TYPE_CHECKING:
    from fastjournal.daemon.server import Server

__all__ = ["HEADERS", "Dashboard"]

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
_ARRIVED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)


class _Visit(H11Protocol):
    """A connection that is cut when a request does not come to its end."""

    patience = 30.0
    """Seconds that a request may take to arrive."""
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request is awaited."""
        super().connection_made(transport)
        self._limit = self.loop.call_later(self.patience, transport.abort)

    def data_received(self, data: bytes) -> None:
        """The time of a request runs until its last byte is here, however often one comes."""
        super().data_received(data)
        if self.conn.their_state in _ARRIVED:
            self._end_limit()
        elif self._limit is None:
            self._limit = self.loop.call_later(self.patience, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._end_limit()
        super().connection_lost(exc)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


class Dashboard:
    """Pages over the journals of one server: `start`, then `stop`."""

    def __init__(self, server: Server, tls: ssl.SSLContext | None = None) -> None:
        self.server = server
        self.backstage = Backstage(server, Doors(server, secure=tls is not None))
        self._tls = tls
        self._tasks: list[asyncio.Task[None]] = []
        self._http: uvicorn.Server | None = None
        self._listener: Listener | None = None

    async def start(self) -> str:
        """Listen; returns the address."""
        sock = _listen(self.server.settings.web)
        for name, host in self.server.journals.items():
            pulse = self.backstage.pulses[name] = Pulse(self.server, host)
            await asyncio.to_thread(pulse.hours.load)
            await pulse.look()
            self._tasks.append(asyncio.create_task(pulse.run()))
        config = uvicorn.Config(
            _application(self.backstage),
            http=_Visit,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=WEB_CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
        )
        config.load()
        http = self._http = uvicorn.Server(config)
        http.lifespan = config.lifespan_class(config)
        await http.startup([])  # it only carries; the socket is ours
        self._tasks.append(asyncio.create_task(http.main_loop()))
        state = http.server_state

        def visit() -> _Visit:
            made = _Visit(config, state, http.lifespan.state)
            made.patience = self.server.settings.limits.message_timeout
            return made

        listener = self._listener = Listener(
            self.server.loop,
            sock,
            visit,
            has_room=lambda: len({*state.connections, *listener.arriving}) < WEB_CONNECTIONS,
            refusal=lambda: b"",
            log=self.server.log,
            tls=self._tls,
            patience=lambda: self.server.settings.limits.hello_timeout,
        )
        listener.open()
        return listener.address

    async def stop(self) -> None:
        """End streams, connections and threads."""
        if self._listener is not None:
            self._listener.close()
        for pulse in self.backstage.pulses.values():
            pulse.close()
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.shutdown()
        for pulse in self.backstage.pulses.values():
            await asyncio.to_thread(pulse.hours.end)
        self.backstage.close()


def _listen(address: str) -> socket.socket:
    if address.startswith("unix:"):
        raise SettingError("the dashboard listens on host:port only", name="web")
    host, port = parse_address(address, WEB_PORT)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingError(f"cannot listen on {address}: {error}", name="web") from error


def _application(backstage: Backstage) -> ASGIApp:
    """The application over the journals of a server."""
    renderer = Renderer(backstage, _HERE / "templates")
    pages, actions = Pages(backstage, renderer), Actions(backstage, renderer)

    async def show_error(request: Request, error: Exception) -> Response:
        status = next(number for kind, number in _STATUS if isinstance(error, kind))
        return renderer.error(request, status, str(error))

    async def show_refusal(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return renderer.error(request, error.status_code, error.detail)

    async def show_fault(request: Request, error: Exception) -> Response:
        backstage.server.report(error)
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
            Route("/j/{journal}/job/{id}/raw", pages.raw),
            Route("/j/{journal}/dead", pages.dead),
            Route("/j/{journal}/errors", pages.errors),
            Route("/j/{journal}/bulk", pages.bulk),
            Route("/j/{journal}/put", pages.put),
            Route("/j/{journal}/workers", pages.workers),
            Route("/j/{journal}/schedules", pages.schedules),
            Route("/j/{journal}/health", pages.health),
            Route("/j/{journal}/live", pages.live),
            Route("/j/{journal}/history.json", pages.history),
            Route("/j/{journal}/hours.json", pages.hours),
            Route("/j/{journal}/act", actions.act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ],
        exception_handlers={
            JournalError: show_error,
            HTTPException: show_refusal,
            Exception: show_fault,
        },
    )
    return _Guard(app, backstage.doors)


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
