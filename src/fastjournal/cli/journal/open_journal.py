"""What the job commands work on: a journal in a directory, or behind a daemon.

Rules:

1. `open_journal` is for commands that change something: it takes the journal for itself, or says
   who has it. `open_view` is for those that only look: it takes nothing, and works beside the
   process the journal belongs to.
2. Commands know only the two protocols here, never what is behind them; the type checker holds both
   kinds of journal against them.
3. What a command says it did is on stable storage when it says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from fastjournal.errors import LockTimeout, NotFound, SettingError

if TYPE_CHECKING:
    from fastjournal.arguments import Length, Text
    from fastjournal.handles import LeasedJob
    from fastjournal.journal.engine.operations import Receipt
    from fastjournal.log.care.cleaner import Cleaned
    from fastjournal.model import Job, NewJob, QueueSettings, QueueStatus, State

__all__ = ["OpenJournal", "View", "check_one_log", "open_journal", "open_view", "whole_id"]

_PAGE = 1000
_MAX_LOOK = 100_000  # jobs among which the beginning of an id is looked for


class View(Protocol):
    """The reading half of a journal."""

    def job(
        self, job_id: bytes | None = None, *, key: Text | None = None, queue: Text | None = None
    ) -> Job: ...

    def result(self, job_id: bytes) -> tuple[bool, bytes]: ...

    def jobs(
        self,
        queue: Text | None = None,
        *,
        state: State | None = None,
        prefix: Text | None = None,
        offset: int = 0,
        limit: int = 100,
        values: bool = True,
    ) -> list[Job]: ...

    def queues(self) -> list[QueueStatus]: ...

    def queue(self, name: Text) -> QueueStatus: ...

    def status(self) -> Any:
        """A `JournalStatus`; that of a daemon has the same names."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...


class OpenJournal(View, Protocol):
    """A whole journal."""

    def put_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> list[Receipt]: ...

    def lease_many(
        self,
        count: int,
        queue: Text | None = None,
        *,
        queues: Sequence[Text] | None = None,
        prefix: Text | None = None,
        wait: Length = 0,
        lease: Length | None = None,
        fair: bool = True,
        worker: Text = b"",
        take: bool = False,
        schema: int | None = None,
    ) -> list[LeasedJob]: ...

    def touch(self, job_id: bytes, token: int, extend: Length | None = None) -> int: ...

    def complete(self, job_id: bytes, token: int | None, result: bytes | None = None) -> None: ...

    def fail(
        self, job_id: bytes, token: int | None, reason: bytes = b"", delay: Length | None = None
    ) -> State: ...

    def release(self, job_id: bytes, token: int, delay: Length | None = None) -> None: ...

    def delete(
        self, job_id: bytes | None = None, *, key: Text | None = None, queue: Text | None = None
    ) -> bool: ...

    def redrive(self, job_id: bytes | None = None, *, queue: Text | None = None) -> int: ...

    def configure(self, queue: Text, **settings: Any) -> QueueSettings: ...

    def pause(self, queue: Text) -> None: ...

    def drain(self, queue: Text) -> None: ...

    def resume(self, queue: Text) -> None: ...

    def clean(self) -> list[Cleaned] | None: ...

    def snapshot(self) -> None: ...


def open_journal(directory: Path, url: str | None = None, *, create: bool = False) -> OpenJournal:
    """A journal to be changed; that of a directory is made if missing and `create` says so."""
    if url is not None:
        return _client(url)
    from fastjournal.journal.journal import Journal

    if not create and not any(directory.glob("*.log")):
        raise _not_there(directory)
    try:
        return Journal(directory, sync="always", background=False)
    except LockTimeout as error:
        owner = f"process {error.holder}" if error.holder else "another process"
        raise LockTimeout(
            f"{directory} is in use by {owner}; list, show, queues, status and top work beside it",
            path=error.path,
            holder=error.holder,
        ) from error


def whole_id(view: View, digits: str) -> bytes:
    """The id that begins with these digits; `NotFound` if none does, or several do."""
    if len(digits) == 32:
        return bytes.fromhex(digits)
    found: set[bytes] = set()
    for offset in range(0, _MAX_LOOK, _PAGE):
        page = view.jobs(offset=offset, limit=_PAGE, values=False)
        found.update(job.id for job in page if job.id.hex().startswith(digits))
        if len(page) < _PAGE:
            break
    else:
        if not found:
            raise NotFound(f"none of {_MAX_LOOK:,} jobs begins with {digits}: give the whole id")
    if len(found) > 1:
        raise NotFound(f"{len(found)} jobs begin with {digits}: give more of the id")
    if not found:
        raise NotFound(f"no job {digits}")
    return found.pop()


def open_view(directory: Path, url: str | None = None, *, follow: bool = False) -> View:
    """A journal to be looked at, whoever has it open; `follow`: it will be asked again."""
    if url is not None:
        return _client(url)
    from fastjournal.journal.look.read_only import JournalView

    try:
        return JournalView(directory, follow=follow)
    except NotFound as error:
        raise _not_there(directory) from error


def _not_there(directory: Path) -> NotFound:
    return NotFound(
        f"no journal in {directory}: --dir names another directory, --url or FASTJOURNAL_URL a"
        " daemon"
    )


def check_one_log(view: View) -> None:
    """Refuse a group where figures of a log are told."""
    if hasattr(view, "shards"):
        raise SettingError("a group has no log of its own: see fastjournal group show", name="url")


def _client(url: str) -> OpenJournal:
    """A journal behind a daemon. Its figures have the same names; its answers come after what the
    daemon's sync policy promises."""
    from fastjournal.client import Client, Group
    from fastjournal.client.urls import target_of

    target = target_of(url)
    return Group(target) if target.group else Client(target)
