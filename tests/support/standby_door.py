"""A node that does not lead, beside a daemon that does: both have one directory, so it has it all.

How far a majority is, and how old that is, is what the test says.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any, Self

from fastjournal.clock import SECOND, SYSTEM_CLOCK
from fastjournal.config import load
from fastjournal.daemon.auth import read_tokens
from fastjournal.daemon.context import Context
from fastjournal.daemon.fj.standby import Progress, Standby, StandbyConnection
from fastjournal.daemon.log_lines import Lines
from fastjournal.errors import NotPrimary
from fastjournal.testing import wait_until


class StandbyDoor:
    """One node on a loop of its own; use it with `with`."""

    def __init__(self, path: Path, primary: str, *, tokens: Path | None = None) -> None:
        """`path`: of the journal; `primary`: the address it tells."""
        self.path = path
        self.primary = primary
        self.progress = Progress(0, 1 << 62, 0)
        self.watched = False
        self.looks = 0
        """Requests that were answered here."""
        self.port = 0
        self._tokens = tokens
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.standby: Standby = None  # type: ignore[assignment]

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(20)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"fj://127.0.0.1:{self.port}"

    def wait_ready(self, client: Any) -> None:
        """Until a client that looks is served here."""

        def looked() -> bool:
            before = self.looks
            client.queues()
            return self.looks > before

        wait_until(looked, what="a follower answers")

    async def _open(self) -> None:
        settings = load(environment={}, overrides={"data": str(self.path.parent)})
        tokens = None if self._tokens is None else read_tokens(self._tokens)
        context = Context(settings, SYSTEM_CLOCK, Lines(sys.stderr, level="warning"), tokens)
        context.replicas["default"] = lambda: {
            "node": "b", "role": "follower", "primary": "a", "epoch": 1, "address": self.primary,
        }  # fmt: skip
        door = self

        class Counted(Standby):
            async def look(self, request: Any, max_lag: int) -> bytes:
                try:
                    return await super().look(request, max_lag)
                except NotPrimary:
                    door.looks -= 1
                    raise
                finally:
                    door.looks += 1

        self.standby = Counted(
            context, "default", self.path, primary_address=lambda: self.primary,
            progress=lambda: self.progress, watch=self._watch,
        )  # fmt: skip
        self._server = await self._loop.create_server(
            lambda: StandbyConnection(self.standby), "127.0.0.1", 0
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _watch(self, wanted: bool) -> None:
        self.watched = wanted

    def is_old(self, seconds: float) -> None:
        """From now on it has heard of the primary so long ago."""
        self.progress = self.progress._replace(lag=round(seconds * SECOND))

    async def _close(self) -> None:
        self._server.close()
        self.standby.close()
