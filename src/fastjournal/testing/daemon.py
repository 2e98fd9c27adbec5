"""A daemon inside the test's own process: its own loop, its own thread, ports of its own.

Rules:

1. `LocalDaemon` speaks real TCP on loopback; nothing is simulated but what the caller passes in.
2. It stops in order at the end of the `with` block.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fastjournal.clock import SYSTEM_CLOCK, Clock
from fastjournal.log.files import DISK, Files

if TYPE_CHECKING:
    from fastjournal.client import Client
    from fastjournal.daemon.server import Server

__all__ = ["LocalDaemon"]

_T = TypeVar("_T")


class LocalDaemon:
    """A daemon to test against; use it with `with`."""

    def __init__(
        self,
        data: str | Path,
        *,
        settings: Mapping[str, Any] | None = None,
        uvloop: bool = False,
        log: Any = None,
        files: Files = DISK,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Serve `data`; `settings` are nested like the file of settings.

        `log`: a `daemon.log_lines.Log`; warnings go to standard error unless told. `files`: where
        the journals are, `MemoryFiles` for faults. `clock`: a `ManualClock` moves when told.
        """
        from fastjournal.config import load

        given: dict[str, Any] = {
            "data": str(data), "listen": ["127.0.0.1:0"], "workq": ["127.0.0.1:0"],
            "http": "127.0.0.1:0",
        }  # fmt: skip
        self.settings = load(environment={}, overrides=given | dict(settings or {}))
        self._uvloop = uvloop
        self._log = log
        self._files = files
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self.server: Server = None  # type: ignore[assignment]

    def start(self) -> Self:
        """Start it and wait until it is ready."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def stop(self) -> None:
        """Drain and stop it."""
        if self._loop is None or self._stop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop = None
        if self._error is not None:
            raise self._error

    def call(self, work: Callable[[], _T]) -> _T:
        """Do something on the daemon's loop; returns what it returned."""
        assert self._loop is not None
        done = threading.Event()
        out: list[Any] = []

        def run() -> None:
            try:
                out.append((work(), None))
            except BaseException as error:
                out.append((None, error))
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()
        value, error = out[0]
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    @property
    def url(self) -> str:
        """Where the FJ protocol is spoken."""
        address = self.server.addresses["fj"][0]
        return address if address.startswith("unix:") else f"fj://{address}"

    @property
    def port(self) -> int:
        """Port of the FJ protocol."""
        return _port(self.server.addresses["fj"][0])

    @property
    def workq_port(self) -> int:
        """Port of the Workq protocol."""
        return _port(self.server.addresses["workq"][0])

    @property
    def http_port(self) -> int:
        """Port of the metrics."""
        return _port(self.server.addresses["http"][0])

    def connect(self, **options: Any) -> Client:
        """A blocking client; `options` go into its URL."""
        from urllib.parse import urlencode

        from fastjournal.client import Client
        from fastjournal.client.urls import Target, parse_url

        query = "?" + urlencode(options) if options else ""
        target = parse_url(self.url + query)
        assert isinstance(target, Target)
        return Client(target)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, ready: threading.Event) -> None:
        factory: Callable[[], asyncio.AbstractEventLoop] | None = None
        if self._uvloop:
            import uvloop

            factory = uvloop.new_event_loop
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(self._serve(ready))
        except BaseException as error:
            self._error = error
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        from fastjournal.daemon.log_lines import Lines
        from fastjournal.daemon.main import make_server

        log = self._log or Lines(sys.stderr, level="warning")
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = make_server(self.settings, log=log, files=self._files, clock=self._clock)
        await self.server.start()
        ready.set()
        await self._stop.wait()
        await self.server.stop()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
