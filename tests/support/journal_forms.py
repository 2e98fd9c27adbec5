"""The three forms of a journal, embedded and two clients; each is used like the blocking one."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastjournal
from fastjournal.client._async.entries import AsyncEntries
from fastjournal.client._async.handles import AsyncHeldLock, AsyncLeasedJob
from fastjournal.client._async.pipeline import AsyncPipeline, AsyncPipelinedEntries
from fastjournal.client._async.subscription import AsyncListening
from fastjournal.client._async.watch import AsyncWatching
from fastjournal.testing.daemon import LocalDaemon

FORMS = ("embedded", "blocking", "asyncio")
LOOPS = (*FORMS, "asyncio on uvloop")

_WRAPPED = (
    AsyncEntries, AsyncHeldLock, AsyncLeasedJob, AsyncListening, AsyncPipeline,
    AsyncPipelinedEntries, AsyncWatching,
)  # fmt: skip


class Blocking:
    """An asyncio object as a blocking one: awaits what it must, lists what it iterates."""

    def __init__(self, thing: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._thing, self._loop = thing, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if not callable(value):
            return self._done(value)

        def call(*given: Any, **how: Any) -> Any:
            return self._done(self._wait(_called(value, given, how)))

        return call

    def _done(self, made: Any) -> Any:
        if isinstance(made, AsyncHeldLock) and not made.fence:
            made = self._wait(made.take())
        if isinstance(made, list):
            return [self._done(each) for each in made]
        return Blocking(made, self._loop) if isinstance(made, _WRAPPED) else made

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
        self._wait(self._thing.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._wait(self._thing.__aexit__(*error))


async def _called(function: Any, given: Any, how: Any) -> Any:
    """What it gives, awaited or listed, on the loop."""
    made = function(*given, **how)
    if inspect.isasyncgen(made):
        return [item async for item in made]
    return await made if inspect.isawaitable(made) else made


@contextmanager
def journal_of(form: str, folder: Path, **settings: Any) -> Iterator[Any]:
    """A new journal."""
    if form == "embedded":
        with fastjournal.Journal(folder) as journal:
            yield journal
        return
    with (
        LocalDaemon(folder, settings=settings, uvloop="uvloop" in form) as daemon,
        client_of(form, daemon.url) as client,
    ):
        yield client


@contextmanager
def client_of(form: str, url: str) -> Iterator[Any]:
    """A client of a daemon."""
    if form == "blocking":
        with fastjournal.connect(url) as client:
            yield client
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = asyncio.run_coroutine_threadsafe(fastjournal.aconnect(url), loop).result(10)
    try:
        yield Blocking(made, loop)
    finally:
        asyncio.run_coroutine_threadsafe(made.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def entries_of(form: str, folder: Path) -> Iterator[Any]:
    """`entries` of a new journal."""
    with journal_of(form, folder, journal={"sync": "os"}) as journal:
        yield journal.entries


@contextmanager
def client_entries(form: str, url: str) -> Iterator[Any]:
    """`entries` of a client of a daemon."""
    with client_of(form, url) as client:
        yield client.entries
