"""fastjournal: a durable job journal.

Rules:

1. This file holds the public names, nothing else.
2. A name is resolved when it is first used, so `import fastjournal` loads no other
   module and costs a producer nothing it does not use.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

TYPE_CHECKING = False  # `typing` would be half of what a producer's import costs
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

    from fastjournal.client import AsyncClient, Client
    from fastjournal.client.worker import Retry, Worker
    from fastjournal.connect_url import aconnect, connect
    from fastjournal.errors import (
        AlreadyExists,
        BadRequest,
        Closed,
        JournalError,
        JournalFault,
        LeaseLost,
        Loading,
        Locked,
        NoSpace,
        NotFound,
        OutcomeUnknown,
        QueueFull,
        QueuePaused,
        RequestError,
        SettingError,
        SpoolFull,
        TimedOut,
        TooLarge,
        Unauthorized,
        Unavailable,
    )
    from fastjournal.handles import LeasedJob
    from fastjournal.journal.engine.events import Event
    from fastjournal.journal.engine.operations import Receipt
    from fastjournal.journal.journal import Journal
    from fastjournal.model import Job, NewJob, Outcome, Priority, QueueSettings, State
    from fastjournal.package import __version__
    from fastjournal.spool.writer import Spool
    from fastjournal.tables import apply_tables, read_tables
    from fastjournal.tasks import (
        BadArguments,
        Discard,
        Handle,
        Middleware,
        Retries,
        TaskFailed,
        Tasks,
    )

_BUILD = os.path.join(os.path.dirname(__file__), "..", "..", "build", "compiled")  # noqa: PTH118, PTH120
_CHECKOUT = os.path.exists(os.path.join(_BUILD, "sources"))  # noqa: PTH110, PTH118
if _CHECKOUT or "FASTJOURNAL_PURE" in os.environ:  # else the import system decides by itself
    from fastjournal.package.compiled import choose_core

    choose_core(_BUILD if _CHECKOUT else None)

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "BadArguments",
    "BadRequest",
    "Client",
    "Closed",
    "Discard",
    "Event",
    "Handle",
    "Job",
    "Journal",
    "JournalError",
    "JournalFault",
    "LeaseLost",
    "LeasedJob",
    "Loading",
    "Locked",
    "Middleware",
    "NewJob",
    "NoSpace",
    "NotFound",
    "Outcome",
    "OutcomeUnknown",
    "Priority",
    "QueueFull",
    "QueuePaused",
    "QueueSettings",
    "Receipt",
    "RequestError",
    "Retries",
    "Retry",
    "SettingError",
    "Spool",
    "SpoolFull",
    "State",
    "TaskFailed",
    "Tasks",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Worker",
    "__version__",
    "aconnect",
    "apply_tables",
    "connect",
    "read_tables",
]

_HOMES = {
    "AlreadyExists": "fastjournal.errors",
    "AsyncClient": "fastjournal.client",
    "BadArguments": "fastjournal.tasks",
    "BadRequest": "fastjournal.errors",
    "Client": "fastjournal.client",
    "Closed": "fastjournal.errors",
    "Discard": "fastjournal.tasks",
    "Event": "fastjournal.journal.engine.events",
    "Handle": "fastjournal.tasks",
    "Job": "fastjournal.model",
    "Journal": "fastjournal.journal.journal",
    "JournalError": "fastjournal.errors",
    "JournalFault": "fastjournal.errors",
    "LeaseLost": "fastjournal.errors",
    "LeasedJob": "fastjournal.handles",
    "Loading": "fastjournal.errors",
    "Locked": "fastjournal.errors",
    "Middleware": "fastjournal.tasks",
    "NewJob": "fastjournal.model",
    "NoSpace": "fastjournal.errors",
    "NotFound": "fastjournal.errors",
    "Outcome": "fastjournal.model",
    "OutcomeUnknown": "fastjournal.errors",
    "Priority": "fastjournal.model",
    "QueueFull": "fastjournal.errors",
    "QueuePaused": "fastjournal.errors",
    "QueueSettings": "fastjournal.model",
    "Receipt": "fastjournal.journal.engine.operations",
    "RequestError": "fastjournal.errors",
    "Retries": "fastjournal.tasks",
    "Retry": "fastjournal.client.worker",
    "SettingError": "fastjournal.errors",
    "Spool": "fastjournal.spool.writer",
    "SpoolFull": "fastjournal.errors",
    "State": "fastjournal.model",
    "TaskFailed": "fastjournal.tasks",
    "Tasks": "fastjournal.tasks",
    "TimedOut": "fastjournal.errors",
    "TooLarge": "fastjournal.errors",
    "Unauthorized": "fastjournal.errors",
    "Unavailable": "fastjournal.errors",
    "Worker": "fastjournal.client.worker",
    "__version__": "fastjournal.package",
    "aconnect": "fastjournal.connect_url",
    "connect": "fastjournal.connect_url",
    "apply_tables": "fastjournal.tables",
    "read_tables": "fastjournal.tables",
}


class _MovedModules:
    """Asked for modules that nobody else has found."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("fastjournal."):
            return None
        from fastjournal.package.moved_names import find_moved

        return find_moved(name)


sys.meta_path.append(_MovedModules)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
