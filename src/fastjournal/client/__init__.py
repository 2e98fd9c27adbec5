"""The clients of a daemon, blocking and for asyncio, and the worker.

    from fastjournal.client import AsyncClient, Client, CachedEntries, Worker

Written by hand is `_async`; `tools/unasync` makes `_sync` from it, so both have the same methods,
limits and errors. From the top down:

_async, _sync          what a user has: client, entries, pipeline, subscription, watch, cache;
                       group: several journals behind one face
worker                 a consumer loop around your function
blocking_transport     sockets and threads; `asyncio_transport` has the same names
retry                  when a call is tried again, and after which pause; no I/O
puts, leases, ...      the calls: what is sent, and how its answer is read; no I/O
urls                   where a journal is: one string
"""

from __future__ import annotations

from fastjournal.package.lazy_names import names_from
from fastjournal.package.moved_names import MovedModules

TYPE_CHECKING = False  # whoever only needs `urls` does not pay for `typing`
if TYPE_CHECKING:
    from fastjournal.client._async.cache import AsyncCachedEntries
    from fastjournal.client._async.client import AsyncClient
    from fastjournal.client._async.group import AsyncGroup
    from fastjournal.client._sync.cache import CachedEntries
    from fastjournal.client._sync.client import Client
    from fastjournal.client._sync.group import Group
    from fastjournal.client.cached_values import CacheCounts
    from fastjournal.client.worker import Retry, Worker, WorkerCounts

__all__ = [
    "AsyncCachedEntries",
    "AsyncClient",
    "AsyncGroup",
    "CacheCounts",
    "CachedEntries",
    "Client",
    "Group",
    "Retry",
    "Worker",
    "WorkerCounts",
]

_MOVED = {
    "sync": ("_sync.client", "_sync.pipeline", "_sync.subscription"),
    "aio": ("_async.client", "_async.handles", "_async.subscription"),
    "entries": ("_sync.entries",),
    "aentries": ("_async.entries", "_async.handles"),
    "cache": ("_sync.cache", "cached_values"),
    "acache": ("_async.cache",),
    "listening": ("_sync.subscription",),
    "alistening": ("_async.subscription",),
    "watching": ("_sync.watch",),
    "awatching": ("_async.watch",),
    "pipeline": ("_sync.pipeline",),
    "aleased": ("_async.handles",),
    "operating": ("operator_calls",),
    "protocol": ("calls",),
    "retrying": ("retry",),
    "worker_contract": ("worker",),
}
MovedModules(
    {
        f"{__name__}.{name}": [f"{__name__}.{module}" for module in modules]
        for name, modules in _MOVED.items()
    }
).install()

__getattr__ = names_from(
    __name__,
    {
        "AsyncCachedEntries": "_async.cache",
        "AsyncClient": "_async.client",
        "AsyncGroup": "_async.group",
        "CacheCounts": "cached_values",
        "CachedEntries": "_sync.cache",
        "Client": "_sync.client",
        "Group": "_sync.group",
        "Retry": "worker",
        "Worker": "worker",
        "WorkerCounts": "worker",
    },
)
