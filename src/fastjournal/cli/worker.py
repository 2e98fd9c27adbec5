"""`fastjournal worker`: work off queues with a function of yours."""

from __future__ import annotations

import importlib
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fastjournal.errors import SettingError

__all__ = ["worker"]


def worker(
    function: Annotated[str, typer.Argument(help="module:function; it gets a leased job.")],
    queue: Annotated[
        list[str] | None, typer.Option(help="Queue to work off; several times. Else all.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="All queues that begin so.")] = None,
    concurrency: Annotated[int, typer.Option(help="Jobs at a time.", min=1)] = 1,
    prefetch: Annotated[
        int | None, typer.Option(help="Jobs leased ahead. [as many as concurrency]", min=0)
    ] = None,
    lease: Annotated[float | None, typer.Option(help="Length of a lease, seconds.")] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="A job that takes longer fails, seconds.")
    ] = None,
    grace: Annotated[
        float, typer.Option(help="How long running jobs may go on after a stop, seconds.")
    ] = 30.0,
    name: Annotated[str | None, typer.Option(help="Shown as the worker of its leases.")] = None,
    url: Annotated[
        str, typer.Option(help="Daemon (fj://host:port/journal) or directory of a journal.")
    ] = "fj://127.0.0.1",
) -> None:
    """Work off queues with a Python function, until SIGTERM or Ctrl-C.

    The function gets one leased job; what it returns (bytes or nothing) is the result, an
    exception fails the job. An `async def` runs on an event loop, anything else in threads.

    Examples:

        fastjournal worker tasks:resize --queue thumbs --concurrency 8

        fastjournal worker tasks:fetch --prefix fetch. --url fj://queue.example.com
    """
    import os
    import socket

    from fastjournal.client.worker import Worker
    from fastjournal.connecting import connect

    logging.basicConfig(
        stream=sys.stderr, level="INFO", format="%(asctime)s [%(levelname)s] %(message)s"
    )
    work = load_function(function)
    source: Any = connect(url)
    running = Worker(
        source, work, queues=queue or None, prefix=prefix, concurrency=concurrency,
        prefetch=prefetch, lease=lease, time_limit=time_limit, grace=grace,
        name=name or f"{socket.gethostname()}:{os.getpid()}",
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    counts = running.run()
    source.close()
    shown = {field: getattr(counts, field) for field in counts.__slots__}
    sys.stdout.write(json.dumps(shown) + "\n")


def load_function(name: str) -> Any:
    """The function `module:name`, also of a module in the current directory."""
    module, mark, attribute = name.partition(":")
    if not mark or not module or not attribute:
        raise SettingError(f"{name!r} is not module:function", name="function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"cannot load {name}: {error}", name="function") from error
    if not callable(found):
        raise SettingError(f"{name} cannot be called", name="function")
    return found
