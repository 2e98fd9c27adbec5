"""The dashboard on the daemon's own loop.

Rules:

1. uvicorn only carries HTTP: loop, signals, log and life belong to the daemon.
2. What may take long is done in two threads beside the loop; whoever asks for more waits.
3. A stop ends the live streams first, then the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from fastjournal.config import WEB_PORT, parse_address
from fastjournal.errors import SettingError

try:
    import uvicorn

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
_BACKLOG = 64
_MAX_REQUESTS = 200  # at a time, live streams included
_THREADS = 2


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

    async def start(self) -> str:
        """Listen; returns the address."""
        listener = _listen(self.server.settings.web)
        for name, host in self.server.journals.items():
            pulse = self.pulses[name] = Pulse(self.server, host)
            await pulse.look()
            self._tasks.append(asyncio.create_task(pulse.run()))
        config = uvicorn.Config(
            make_app(self),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MAX_REQUESTS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
        )
        config.load()
        config.ssl = self._tls
        http = self._http = uvicorn.Server(config)
        http.lifespan = config.lifespan_class(config)
        await http.startup([listener])
        self._tasks.append(asyncio.create_task(http.main_loop()))
        name = listener.getsockname()
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    async def stop(self) -> None:
        """End streams, connections and threads."""
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
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingError(f"cannot listen on {address}: {error}", name="web") from error
    listener.setblocking(False)
    return listener
