"""One string says where a journal is; what comes back has the same methods everywhere.

    ./jobs, embedded:./jobs      a directory, opened in this process
    fj://host:port/journal       a daemon; fjs:// behind TLS; unix:/path for a socket
    fj://host/journal?group=4    several journals behind one face, by the table of this one
    spool:./dir                  a spool: what is put is forwarded by somebody else

Rules:

1. Nothing of the server is loaded for a daemon's client, nothing of the client for a directory.
2. A directory that another process has open is told with what to do instead.
3. A spool has `put`, `put_many` and `close` only; its puts answer nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fastjournal.client.urls import parse_url
from fastjournal.errors import LockTimeout, SettingError

if TYPE_CHECKING:
    from fastjournal.client import AsyncClient, Client
    from fastjournal.journal.journal import Journal

__all__ = ["aconnect", "connect"]


def connect(url: str | Path, **options: Any) -> Journal | Client:
    """Open a journal for blocking use; `options` are those of `Journal` or `Spool`.

    A daemon takes none: they stand in its URL.
    """
    if str(url).startswith("spool:"):
        from fastjournal.spool.writer import Spool

        # For the type checker a journal: code that only puts need not care which it has.
        return cast("Client", Spool(str(url).removeprefix("spool:"), **options))
    target = parse_url(str(url))
    if isinstance(target, Path):
        from fastjournal.journal.journal import Journal

        try:
            return Journal(target, **options)
        except LockTimeout as error:
            owner = f"process {error.holder}" if error.holder else "another process"
            raise LockTimeout(
                f"{target} is in use by {owner}: one process has a directory at a time, "
                "for several there is `fastjournal serve`",
                path=error.path,
                holder=error.holder,
            ) from error
    if options:
        raise SettingError(f"{min(options)} is for directories only", name="options")
    if target.group:
        from fastjournal.client import Group

        return cast("Client", Group(target))  # the methods of a client
    from fastjournal.client import Client

    return Client(target)


async def aconnect(url: str) -> AsyncClient:
    """Connect to a daemon from asyncio; the methods of `connect`, to be awaited."""
    target = parse_url(url)
    if isinstance(target, Path):
        raise SettingError("a directory is opened with connect, not from asyncio", name="url")
    if target.group:
        from fastjournal.client import AsyncGroup

        return cast("AsyncClient", await AsyncGroup.open(target))
    from fastjournal.client import AsyncClient

    return await AsyncClient.open(target)
