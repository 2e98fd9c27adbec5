"""What a caller holds of a journal: a leased job, a lock on a key.

Rules:

1. A leased job is done, failed or given back by whoever holds its newest lease.
2. What is changed through a lock carries its fencing number: once the lock is lost, `LeaseLost`.
3. Leaving the context frees a lock; one that was lost meanwhile is none of its business any more.
4. `keep` prolongs the very lock that was taken: if it had passed on, `LeaseLost`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, Self

from mypy_extensions import mypyc_attr

from fastjournal.arguments import Length, as_datetime, length
from fastjournal.entry_value import EntryValue
from fastjournal.errors import LeaseLost, Locked, RequestError, failure_text
from fastjournal.model import Lease, State, Unchecked

__all__ = ["AsyncFinisher", "AsyncHeldLock", "AsyncLeasedJob", "AsyncLocking"]


class AsyncFinisher(Protocol):
    """Whoever handed a job out and takes it back."""

    async def complete(self, job_id: bytes, token: int, result: bytes | None = None) -> None:
        """The work is done."""

    async def fail(
        self, job_id: bytes, token: int, reason: bytes = b"", delay: Length | None = None
    ) -> State:
        """The work failed; returns what becomes of the job."""

    async def touch(self, job_id: bytes, token: int, extend: Length | None = None) -> int:
        """Keep the lease; returns when it ends now, ns since 1970."""

    async def release(self, job_id: bytes, token: int, delay: Length | None = None) -> None:
        """Give the job back unworked."""


@mypyc_attr(acyclic=True)
class AsyncLeasedJob:
    """A leased job: work on it, then say `done`, `fail` or `release` before the lease ends.

    As an async context manager it is done at the end of the block, or failed by an exception with
    its traceback as the reason, or given back when the program is told to end. The
    exception goes on in any case, even if the lease was lost meanwhile.
    """

    __slots__ = ("_finisher", "_lease", "_open", "id", "payload", "token")

    id: bytes
    """The job's 16 bytes."""
    payload: bytes
    """What the producer put."""
    token: int
    """Proves that this lease is the newest one."""

    def __init__(
        self,
        finisher: AsyncFinisher,
        lease: Lease | Callable[[], Lease],
        job_id: bytes = b"",
        token: int = 0,
        payload: bytes = b"",
    ) -> None:
        """`lease` may be made later, if somebody asks for it: then the others are needed."""
        self._finisher = finisher
        self._open = True
        self._lease: Lease | Callable[[], Lease]
        if isinstance(lease, Lease):
            self.lease = lease
        else:
            self._lease = lease
            self.id = job_id
            self.token = token
            self.payload = payload

    @property
    def lease(self) -> Lease:
        """The lease, and the job as it was when it was leased."""
        lease = self._lease
        if not isinstance(lease, Lease):
            lease = self._lease = lease()
        return lease

    @lease.setter
    def lease(self, lease: Lease) -> None:
        self._lease = lease
        self.id = lease.job.id
        self.payload = lease.job.payload
        self.token = lease.token

    @property
    def key(self) -> str:
        """The key as text; empty if there is none. Its bytes are in `lease.job.key_bytes`."""
        return self.lease.job.key_bytes.decode("utf-8", "surrogateescape")

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.lease.job.queue_bytes.decode("utf-8", "surrogateescape")

    @property
    def due_at(self) -> datetime | None:
        """Since when it was due."""
        return self.lease.job.due_at

    @property
    def inserted_at(self) -> datetime | None:
        """When it was put."""
        return self.lease.job.inserted_at

    @property
    def expires_at(self) -> datetime | None:
        """When it is gone; None: never."""
        return self.lease.job.expires_at

    @property
    def priority(self) -> int:
        """0..255, smaller first."""
        return self.lease.job.priority

    @property
    def attempt(self) -> int:
        """How often the job was handed out, this time included."""
        return self.lease.job.attempts

    @property
    def until(self) -> datetime:
        """When the lease ends unless it is touched."""
        until = as_datetime(self.lease.until)
        assert until is not None
        return until

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.id.hex()} {self.queue!r} {self.key!r} attempt {self.attempt}>"

    async def done(self, result: bytes | Unchecked | None = None) -> None:
        """The work is done; a result is kept for whoever asks, until the job expires."""
        given: Any = result
        await self._finisher.complete(self.id, self.token, given)
        self._open = False

    async def fail(
        self, reason: bytes | str | Unchecked = b"", delay: Length | None = None
    ) -> State:
        """The work failed; the job is tried again after a back-off (or `delay`), or is dead now."""
        text: Any = reason.encode("utf-8", "replace") if isinstance(reason, str) else reason
        state = await self._finisher.fail(self.id, self.token, text, delay)
        self._open = False
        return state

    async def release(self, delay: Length | None = None) -> None:
        """Give the job back unworked, to be handed out again after `delay`."""
        await self._finisher.release(self.id, self.token, delay)
        self._open = False

    async def touch(self, extend: Length | None = None) -> None:
        """Keep the lease for `extend` from now on, or for its usual length."""
        until = await self._finisher.touch(self.id, self.token, extend)
        self.lease = self.lease._replace(until=until)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._open:
            return
        if error is None:
            await self.done()
            return
        with contextlib.suppress(RequestError):
            if isinstance(error, Exception):
                await self.fail(failure_text(error))
            else:
                await self.release()


class AsyncLocking(Protocol):
    """Entries that can be locked."""

    async def _lock(self, key: bytes, owner: bytes, lasts: int, wait: int) -> tuple[int, int]: ...

    async def _unlock(self, key: bytes, fence: int) -> bool: ...

    async def set(self, *given: Any, **how: Any) -> bool: ...

    async def get(self, *given: Any, **how: Any) -> Any: ...

    async def add(self, *given: Any, **how: Any) -> EntryValue: ...

    async def delete(self, *given: Any, **how: Any) -> bool: ...


class AsyncHeldLock:
    """A locked key; free it, or use it as an async context manager.

    `lasts` and `wait` hold whenever nothing else is said.
    """

    __slots__ = ("_entries", "_lasts", "_wait", "fence", "key", "owner", "until")

    def __init__(
        self, entries: AsyncLocking, key: bytes, owner: bytes, lasts: Length = 10, wait: Length = 0
    ) -> None:
        self._entries = entries
        self._lasts, self._wait = lasts, wait
        self.key = key
        self.owner = owner
        self.fence = 0
        """A number larger than that of every earlier lock; 0: not taken yet."""
        self.until = 0
        """When it ends by itself, ns since 1970, by the clock of whoever keeps the journal."""

    @property
    def until_at(self) -> datetime | None:
        """When it ends by itself."""
        return as_datetime(self.until)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} number {self.fence}>"

    async def take(self, lasts: Length | None = None, wait: Length | None = None) -> Self:
        """Take the lock, or keep it for so long from now on."""
        self.fence, self.until = await self._entries._lock(
            self.key,
            self.owner,
            length(self._lasts if lasts is None else lasts, "length"),
            length(self._wait if wait is None else wait, "wait"),
        )
        return self

    async def keep(self, lasts: Length | None = None) -> None:
        """Keep the lock for so long from now on; `LeaseLost` if it is no longer ours."""
        fence = self.fence
        try:
            await self.take(lasts, 0)
        except Locked:
            raise LeaseLost("the lock is no longer yours") from None
        if self.fence != fence:
            await self.free()
            raise LeaseLost("the lock was lost in between")

    async def free(self) -> bool:
        """Free the lock; False if it was not held any more: lost, or freed by an earlier try."""
        try:
            return await self._entries._unlock(self.key, self.fence)
        except Locked:
            return False

    async def set(self, value: EntryValue, **how: Any) -> bool:
        """Store a value under the locked key; `how` as in `entries.set`."""
        return await self._entries.set(self.key, value, fence=self.fence, **how)

    async def get(self, default: EntryValue = None) -> EntryValue:
        """The value of the locked key."""
        value: EntryValue = await self._entries.get(self.key, default)
        return value

    async def add(self, number: float | Unchecked = 1, **how: Any) -> EntryValue:
        """Add to the number under the locked key."""
        return await self._entries.add(self.key, number, fence=self.fence, **how)

    async def delete(self, **how: Any) -> bool:
        """Delete the locked entry."""
        return await self._entries.delete(self.key, fence=self.fence, **how)

    async def __aenter__(self) -> Self:
        return self if self.fence else await self.take()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.free()
