"""A job in the hands of an asyncio consumer."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fastjournal.arguments import Length
from fastjournal.errors import RequestError
from fastjournal.leased import InHand, reason_of
from fastjournal.model import Lease, State

if TYPE_CHECKING:
    from fastjournal.client.aio import AsyncClient

__all__ = ["AsyncLeasedJob"]


class AsyncLeasedJob(InHand):
    """A leased job: work on it, then `await` `done`, `fail` or `release` before the lease ends.

    As an async context manager it is done at the end of the block, or failed by an exception,
    which goes on.
    """

    __slots__ = ("_client",)

    def __init__(self, client: AsyncClient, lease: Lease) -> None:
        self._client = client
        self._open = True
        self.lease = lease

    async def done(self, result: bytes | None = None) -> None:
        """The work is done."""
        await self._client.complete(self.id, self.token, result)
        self._open = False

    async def fail(self, reason: bytes | str = b"", delay: Length | None = None) -> State:
        """The work failed; the job is tried again, or is dead now."""
        text = reason.encode() if isinstance(reason, str) else reason
        state = await self._client.fail(self.id, self.token, text, delay)
        self._open = False
        return state

    async def release(self, delay: Length | None = None) -> None:
        """Give the job back unworked."""
        await self._client.release(self.id, self.token, delay)
        self._open = False

    async def touch(self, extend: Length | None = None) -> None:
        """Keep the lease."""
        until = await self._client.touch(self.id, self.token, extend)
        self.lease = self.lease._replace(until=until)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._open:
            return
        if error is None:
            await self.done()
            return
        with contextlib.suppress(RequestError):
            if isinstance(error, Exception):
                await self.fail(reason_of(error))
            else:
                await self.release()
