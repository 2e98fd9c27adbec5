"""fastjournal: a durable job journal.

Rules:

1. This file holds the public names, nothing else.
2. A name is resolved when it is first used, so `import fastjournal` loads no other
   module and costs a producer nothing it does not use.
"""

from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False  # `typing` would be half of what a producer's import costs
if TYPE_CHECKING:
    from typing import Any

    from fastjournal.client import AsyncClient, Client
    from fastjournal.connecting import aconnect, connect
    from fastjournal.errors import JournalError, JournalFault, RequestError
    from fastjournal.handles import LeasedJob
    from fastjournal.journal.engine.events import Event
    from fastjournal.journal.engine.operations import Receipt
    from fastjournal.journal.journal import Journal
    from fastjournal.model import Job, NewJob, Outcome, Priority, QueueSettings, State
    from fastjournal.spool.writer import Spool
    from fastjournal.tables import apply_tables, read_tables

__version__ = "0.1.0"

_BUILD = os.path.join(os.path.dirname(__file__), "..", "..", "build", "compiled")  # noqa: PTH118, PTH120
_CHECKOUT = os.path.exists(os.path.join(_BUILD, "sources"))  # noqa: PTH110, PTH118
if _CHECKOUT or "FASTJOURNAL_PURE" in os.environ:  # else the import system decides by itself
    from fastjournal.compiled import choose_core

    choose_core(_BUILD if _CHECKOUT else None)

__all__ = [
    "AsyncClient",
    "Client",
    "Event",
    "Job",
    "Journal",
    "JournalError",
    "JournalFault",
    "LeasedJob",
    "NewJob",
    "Outcome",
    "Priority",
    "QueueSettings",
    "Receipt",
    "RequestError",
    "Spool",
    "State",
    "__version__",
    "aconnect",
    "apply_tables",
    "connect",
    "read_tables",
]

_HOMES = {
    "AsyncClient": "fastjournal.client",
    "Client": "fastjournal.client",
    "Event": "fastjournal.journal.engine.events",
    "Job": "fastjournal.model",
    "Journal": "fastjournal.journal.journal",
    "JournalError": "fastjournal.errors",
    "JournalFault": "fastjournal.errors",
    "LeasedJob": "fastjournal.handles",
    "NewJob": "fastjournal.model",
    "Outcome": "fastjournal.model",
    "Priority": "fastjournal.model",
    "QueueSettings": "fastjournal.model",
    "Receipt": "fastjournal.journal.engine.operations",
    "RequestError": "fastjournal.errors",
    "Spool": "fastjournal.spool.writer",
    "State": "fastjournal.model",
    "aconnect": "fastjournal.connecting",
    "apply_tables": "fastjournal.tables",
    "connect": "fastjournal.connecting",
    "read_tables": "fastjournal.tables",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
