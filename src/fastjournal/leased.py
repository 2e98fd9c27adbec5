"""A job in a consumer's hands, the same for an embedded journal and for a daemon's client."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from fastjournal.arguments import Length, as_datetime
from fastjournal.errors import RequestError
from fastjournal.model import Lease, State

__all__ = ["Finisher", "InHand", "LeasedJob", "reason_of"]

_MAX_REASON = 8192  # bytes of a traceback; its end tells most


class Finisher(Protocol):
    """Whoever handed the job out and takes it back."""

    def complete(self, job_id: bytes, token: int, result: bytes | None = None) -> None:
        """The work is done."""

    def fail(
        self, job_id: bytes, token: int, reason: bytes = b"", delay: Length | None = None
    ) -> State:
        """The work failed; returns what becomes of the job."""

    def touch(self, job_id: bytes, token: int, extend: Length | None = None) -> int:
        """Keep the lease; returns when it ends now, ns since 1970."""

    def release(self, job_id: bytes, token: int, delay: Length | None = None) -> None:
        """Give the job back unworked."""


def reason_of(error: BaseException) -> bytes:
    """The end of an exception's traceback, as the reason of a failure."""
    text = "".join(traceback.format_exception(error))
    return text.encode("utf-8", "replace")[-_MAX_REASON:]


class InHand:
    """What a consumer can read of a job it has leased."""

    __slots__ = ("_lease", "_open", "id", "payload", "token")

    _lease: Lease | Callable[[], Lease]
    _open: bool
    id: bytes
    """The job's 16 bytes."""
    payload: bytes
    """What the producer put."""
    token: int
    """Proves that this lease is the newest one."""

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
        self.payload = lease.job.value
        self.token = lease.token

    @property
    def key(self) -> str:
        """The key as text; empty if there is none. Its bytes are in `lease.job.key`."""
        return self.lease.job.key.decode("utf-8", "surrogateescape")

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.lease.job.queue.decode("utf-8", "surrogateescape")

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


class LeasedJob(InHand):
    """A leased job: work on it, then say `done`, `fail` or `release` before the lease ends.

    As a context manager it is done at the end of the block, or failed by an exception with the end
    of its traceback as the reason, or given back when the program is told to end. The exception
    goes on in any case, even if the lease was lost meanwhile.
    """

    __slots__ = ("_finisher",)

    def __init__(
        self,
        finisher: Finisher,
        lease: Lease | Callable[[], Lease],
        job_id: bytes = b"",
        token: int = 0,
        payload: bytes = b"",
    ) -> None:
        """`lease` may be made later, if somebody asks for it: then the others are needed."""
        self._finisher = finisher
        self._open = True
        if isinstance(lease, Lease):
            self.lease = lease
        else:
            self._lease = lease
            self.id = job_id
            self.token = token
            self.payload = payload

    def done(self, result: bytes | None = None) -> None:
        """The work is done; a result is kept for whoever asks, until the job expires."""
        self._finisher.complete(self.id, self.token, result)
        self._open = False

    def fail(self, reason: bytes | str = b"", delay: Length | None = None) -> State:
        """The work failed; the job is tried again after a back-off (or `delay`), or is dead now."""
        text = reason.encode("utf-8", "replace") if isinstance(reason, str) else reason
        state = self._finisher.fail(self.id, self.token, text, delay)
        self._open = False
        return state

    def release(self, delay: Length | None = None) -> None:
        """Give the job back unworked, to be handed out again after `delay`."""
        self._finisher.release(self.id, self.token, delay)
        self._open = False

    def touch(self, extend: Length | None = None) -> None:
        """Keep the lease for `extend` from now on, or for its usual length."""
        until = self._finisher.touch(self.id, self.token, extend)
        self.lease = self.lease._replace(until=until)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._open:
            return
        if error is None:
            self.done()
            return
        with contextlib.suppress(RequestError):
            if isinstance(error, Exception):
                self.fail(reason_of(error))
            else:
                self.release()
