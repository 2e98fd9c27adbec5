"""The dashboard on the daemon's own loop.

Rules:

1. uvicorn only carries HTTP: loop, signals, log and life belong to the daemon.
2. What may take long is done in two threads beside the loop; whoever asks for more waits.
3. A stop ends the live streams first, then the connections.
4. A request must have come whole within `message_timeout`, a TLS handshake within `hello_timeout`.
   There are at most `WEB_CONNECTIONS` connections; whoever comes then is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from fastjournal.config import WEB_CONNECTIONS, WEB_PORT, parse_address
from fastjournal.daemon.listener import Listener
from fastjournal.errors import SettingError

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from fastjournal.web.app import make_app
    from fastjournal.web.live import Pulse
    from fastjournal.web.login import Doors
except ImportError as error:
    raise SettingError(
        f"the dashboard needs: pip install 'fastjournal[web]' ({error.name} is missing)", name="web"
    ) from error

if TYPE_CHECKING:
    from fastjournal.daemon.server import Server

__all__ = ["Dashboard"]

_T = TypeVar("_T")
_THREADS = 2
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
        self.doors = Doors(server, secure=tls is not None)
        self.pulses: dict[str, Pulse] = {}
        self._tls = tls
        self._threads = ThreadPoolExecutor(_THREADS, "fastjournal-web")
        self._tasks: list[asyncio.Task[None]] = []
        self._http: uvicorn.Server | None = None
        self._listener: Listener | None = None

    async def start(self) -> str:
        """Listen; returns the address."""
        sock = _listen(self.server.settings.web)
        for name, host in self.server.journals.items():
            pulse = self.pulses[name] = Pulse(self.server, host)
            await pulse.look()
            self._tasks.append(asyncio.create_task(pulse.run()))
        config = uvicorn.Config(
            make_app(self),
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
        for pulse in self.pulses.values():
            pulse.close()
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.shutdown()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def beside(self, work: Callable[[], _T]) -> _T:
        """Do something in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _listen(address: str) -> socket.socket:
    if address.startswith("unix:"):
        raise SettingError("the dashboard listens on host:port only", name="web")
    host, port = parse_address(address, WEB_PORT)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingError(f"cannot listen on {address}: {error}", name="web") from error
