"""`fastjournal worker`: work off queues with a function of yours."""

from __future__ import annotations

import importlib
import json
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastjournal.errors import Loading, SettingError, Unavailable

if TYPE_CHECKING:
    from fastjournal.cli.stop_signal import Stop

__all__ = ["worker"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0  # seconds between two tries to reach the daemon


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
        str,
        typer.Option(
            envvar="FASTJOURNAL_URL",
            show_envvar=False,
            help="Daemon (fj://host:port/journal) or directory of a journal.",
        ),
    ] = "fj://127.0.0.1",
) -> None:
    """Work off queues with a Python function, until SIGTERM or Ctrl-C.

    The function gets one leased job; what it returns (bytes or nothing) is the result, an
    exception fails the job. An `async def` runs on an event loop, anything else in threads. A
    daemon that is not up yet is waited for.

    Examples:

        fastjournal worker tasks:resize --queue thumbs --concurrency 8

        fastjournal worker tasks:fetch --prefix fetch. --url fj://queue.example.com
    """
    import os
    import socket

    from fastjournal.cli.stop_signal import Stop
    from fastjournal.client.worker import Worker
    from fastjournal.client.worker.results import check_result

    logging.basicConfig(
        stream=sys.stderr, level="INFO", format="%(asctime)s [%(levelname)s] %(message)s"
    )
    work = load_function(function)
    check_result(work)
    stop = Stop()
    stop.listen()
    source = _connected(url, stop)
    if source is None:
        return
    running = Worker(
        source, work, queues=queue or None, prefix=prefix, concurrency=concurrency,
        prefetch=prefetch, lease=lease, time_limit=time_limit, grace=grace,
        name=name or f"{socket.gethostname()}:{os.getpid()}",
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    if stop.asked:  # just before
        running.stop()
    counts = running.run()
    source.close()
    shown = {field: getattr(counts, field) for field in counts.__slots__}
    sys.stdout.write(json.dumps(shown) + "\n")


def _connected(url: str, stop: Stop) -> Any:
    """What to lease from, once it is there; None if we were asked to stop before."""
    from fastjournal.connect_url import connect

    if url.startswith("spool:"):
        raise SettingError("nothing can be leased from a spool", name="url")
    pause = _FIRST_PAUSE
    while not stop.asked:
        try:
            return connect(url)
        except (Loading, Unavailable) as error:
            logging.warning("%s; again in %.1f s", error, pause)
        stop.wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return None


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
