"""fastjournal: a durable job journal.

Rules:

1. This file holds the public names, nothing else.
2. A name is resolved when it is first used, so `import fastjournal` loads no other
   module and costs a producer nothing it does not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastjournal.errors import JournalError, JournalFault, RequestError

__version__ = "0.1.0"

__all__ = ["JournalError", "JournalFault", "RequestError", "__version__"]

_HOMES = {
    "JournalError": "fastjournal.errors",
    "JournalFault": "fastjournal.errors",
    "RequestError": "fastjournal.errors",
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
