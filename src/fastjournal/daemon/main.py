"""Put a daemon together and run it until a signal ends it.

Rules:

1. SIGTERM and SIGINT drain and stop; a second one ends at once. SIGHUP reads the settings again.
2. uvloop is used when it is installed.
3. The soft limit of open files is raised to the hard one: each connection takes one.
4. Log lines go to standard error, as text or JSON. A token is never in one.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import ssl
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from fastjournal.clock import SYSTEM_CLOCK, Clock
from fastjournal.config import LogSettings, Settings
from fastjournal.daemon.context import Context
from fastjournal.daemon.fj.connection import FjConnection
from fastjournal.daemon.listener import allow_all
from fastjournal.daemon.log_lines import LEVELS, LibraryLines, Lines
from fastjournal.daemon.server import Page, Server
from fastjournal.errors import JournalError, SettingError
from fastjournal.keys import use_domain

__all__ = ["make_server", "run", "set_up_log", "use_domain_of"]

_COLLECT = (50_000, 20, 100)
_SWITCH = 0.0005  # seconds a thread may keep the interpreter while another waits for it


def run(
    settings: Settings,
    reload: Callable[[], Settings] | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> int:
    """Serve until told to stop; returns the exit code."""
    log = set_up_log(settings.log)
    use_domain_of(settings.domain)
    allow_all()
    # A thread that has synced the log must not wait 5 ms to say so.
    sys.setswitchinterval(_SWITCH)
    # Rows live long and hold no cycles: looking for garbage among them costs a put a tenth.
    gc.set_threshold(*_COLLECT)
    loop_module = _uvloop()
    factory = loop_module.new_event_loop if loop_module else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_serve(settings, reload, log, clock))


def use_domain_of(name: str) -> None:
    """Take the rule that `module:function` names; empty: the usual one."""
    if not name:
        use_domain(None)
        return
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(f"domain {name}: {error}", name="domain") from error
    if not callable(found):
        raise SettingError(f"domain {name} is no function", name="domain")
    use_domain(found)


def make_server(settings: Settings, **given: Any) -> Server:
    """A daemon that speaks all protocols; `given`: see `Server`."""
    protocols = {"fj": _speak_fj, "workq": _speak_workq, "http": _speak_http}
    return Server(settings, protocols, _make_dashboard, **given)


def _speak_fj(context: Context) -> Callable[[], Any]:
    return lambda: FjConnection(context)


def _speak_workq(context: Context) -> Callable[[], Any]:
    from fastjournal.daemon.workq.connection import QueueNames, WorkqConnection

    mentioned = QueueNames()
    return lambda: WorkqConnection(context, mentioned)


def _speak_http(context: Context) -> Callable[[], Any]:
    from fastjournal.daemon.health_http import HttpConnection  # with Prometheus' library

    return lambda: HttpConnection(context)


def _make_dashboard(server: Server, tls: ssl.SSLContext | None) -> Page:
    from fastjournal.web.dashboard_server import Dashboard  # with a whole web framework

    return Dashboard(server, tls)


async def _serve(
    settings: Settings, reload: Callable[[], Settings] | None, log: Lines, clock: Clock
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def asked_to_stop() -> None:
        if stop.is_set():
            raise SystemExit(130)
        stop.set()

    def on_reload(take: Callable[[Settings], object]) -> None:
        """From now on `take` is given what the settings are when SIGHUP comes."""

        def asked_to_reload() -> None:
            if reload is None:
                return
            try:
                changed = reload()
            except JournalError as error:
                log.error("reload refused", error=str(error))
                return
            log.level, log.form = LEVELS[changed.log.level], changed.log.format
            take(changed)

        loop.add_signal_handler(signal.SIGHUP, asked_to_reload)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    if settings.replica.name:
        from fastjournal.daemon.replicated.serve import serve_replicated  # nobody else pays for it

        await serve_replicated(settings, make_server, log, stop, clock, on_reload)
        return 0
    server = make_server(settings, log=log, clock=clock)
    on_reload(server.reload)
    await server.start()
    # What was replayed is no garbage: looking through 300,000 rows takes a third of a second.
    gc.freeze()
    await stop.wait()
    server.log.info("stopping")
    await server.stop()
    return 0


def set_up_log(settings: LogSettings) -> Lines:
    """Send log lines of the daemon and of the library to standard error."""
    lines = Lines(sys.stderr, level=settings.level, form=settings.format)
    logging.basicConfig(level=LEVELS[settings.level], handlers=[LibraryLines(lines)])
    return lines


def _uvloop() -> ModuleType | None:
    try:
        import uvloop
    except ImportError:
        return None
    module: ModuleType = uvloop
    return module
