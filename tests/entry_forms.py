"""The three forms of `entries`, each to be used like the blocking one."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastjournal
from fastjournal.client._async.handles import AsyncHeldLock
from fastjournal.client._async.watch import AsyncWatching
from fastjournal.testing.daemon import LocalDaemon

FORMS = ("embedded", "blocking", "asyncio")


class Blocking:
    """An asyncio object as a blocking one: awaits what it must, lists what it iterates."""

    def __init__(self, thing: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._thing, self._loop = thing, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if not callable(value):
            return value

        def call(*given: Any, **how: Any) -> Any:
            return self._done(value(*given, **how))

        return call

    def _done(self, made: Any) -> Any:
        if inspect.isasyncgen(made):
            return self._wait(_listed(made))
        if inspect.iscoroutine(made):
            made = self._wait(made)
        elif isinstance(made, AsyncHeldLock):
            made = self._wait(made.take())
        if isinstance(made, (AsyncHeldLock, AsyncWatching)):
            return Blocking(made, self._loop)
        return made

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def __getitem__(self, key: Any) -> Any:
        missing = object()
        value = self.get(key, missing)
        if value is missing:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: Any) -> bool:
        return bool(self.has(key))

    def __len__(self) -> int:
        return int(self.count())

    def __iter__(self) -> Iterator[bytes]:
        return (entry.key for entry in self.range(data=False))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        end = self.free if isinstance(self._thing, AsyncHeldLock) else self.close
        end()


async def _listed(items: Any) -> list[Any]:
    return [item async for item in items]


@contextmanager
def entries_of(form: str, folder: Path) -> Iterator[Any]:
    """`entries` of a new journal."""
    if form == "embedded":
        with fastjournal.Journal(folder) as journal:
            yield journal.entries
        return
    with (
        LocalDaemon(folder, settings={"journal": {"sync": "os"}}) as daemon,
        client_entries(form, daemon.url) as entries,
    ):
        yield entries


@contextmanager
def client_entries(form: str, url: str) -> Iterator[Any]:
    """`entries` of a client of a daemon."""
    if form == "blocking":
        with fastjournal.connect(url) as client:
            yield client.entries
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = asyncio.run_coroutine_threadsafe(fastjournal.aconnect(url), loop).result(10)
    try:
        yield Blocking(made.entries, loop)
    finally:
        asyncio.run_coroutine_threadsafe(made.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
