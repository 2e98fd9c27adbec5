"""What was cut off a node's log because a newer primary did not have it.

Rules:

1. `<segment>.diverged-<epoch>` beside the log holds whole records, the first of them behind a
   header or not, and perhaps zeros behind them: room that was reserved. Damage is an error that
   names its place, behind what could be read; then nothing is put, and no file counts as done.
2. A job that the journal does not have, and that did not end there, can be put again, under its own
   id: if its producer sends it again too, that is the same put.
3. A row that the journal has, and that waits, may have been given something newer there: that is
   put as its producer did, and merges with it by its key. One that is beyond that is left alone.
4. Entries, and ends of jobs that the journal still has, are told and nothing more.
5. A file that was read whole and whose jobs were put again has `.put` behind its name, and is not
   told of any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fastjournal.clock import MILLISECOND
from fastjournal.errors import CorruptCommand, CorruptRecord, NotFound
from fastjournal.journal.language.codec import decode
from fastjournal.journal.language.commands import (
    Command,
    Complete,
    Dead,
    Delete,
    Expire,
    Fail,
    Group,
    Purge,
    Put,
    Tomb,
)
from fastjournal.log.record import BrokenRecord, Walk
from fastjournal.log.segment import HEADER_SIZE, WORKQ
from fastjournal.model import Job, NewJob, State

__all__ = [
    "LeftBehind",
    "Taker",
    "files_left",
    "left_behind",
    "lost_jobs",
    "mark_put",
    "put_again",
]

_PUT = ".put"
_ENDS = (Complete, Dead, Delete, Expire, Fail, Purge, Tomb)


class Taker(Protocol):
    """The journal that went on."""

    def job(self, job_id: bytes) -> Job:
        """A job by its id; `NotFound`."""

    def put_many(self, jobs: Sequence[NewJob]) -> Sequence[Any]:
        """Take jobs in."""


class LeftBehind(NamedTuple):
    """One command that no journal has any more."""

    path: Path
    time: int
    """Of its record, ns since 1970."""
    command: Command


def left_behind(paths: Iterable[Path]) -> Iterator[LeftBehind]:
    """All of them, file by file; those of a group one by one."""
    for path in paths:
        data = path.read_bytes()
        start = HEADER_SIZE if data.startswith(WORKQ.magic) else 0
        walk = Walk(data, start, len(data))
        while walk.at < walk.end and data[walk.at]:
            at = int(walk.at)
            try:
                walk.step()
                command = decode(data[walk.start : walk.stop])
            except (BrokenRecord, CorruptCommand) as error:
                raise CorruptRecord(path, at, str(error)) from error
            members = command.members if isinstance(command, Group) else (command,)
            yield from (LeftBehind(path, int(walk.time), one) for one in members)
        if any(data[walk.at :]):
            raise CorruptRecord(path, int(walk.at), "there are zeros before other bytes")


def lost_jobs(found: Iterable[LeftBehind], now: int) -> list[Put]:
    """The jobs that came in or changed there, and neither ended nor expired (rule 2)."""
    waiting: dict[bytes, Put] = {}
    for one in found:
        command = one.command
        if isinstance(command, Put) and command.queue:
            waiting[command.id] = command
        elif isinstance(command, _ENDS):
            waiting.pop(command.id, None)
    return [put for put in waiting.values() if not 0 < put.expires <= now]


def put_again(journal: Taker, lost: Iterable[Put]) -> int:
    """Put them into the journal that went on (rules 2 and 3); returns how many it lacked."""
    jobs = []
    for put in lost:
        try:
            row = journal.job(put.id)
        except NotFound:
            jobs.append(_job(put, put.id, 0))
            continue
        if row.state is State.WAITING and row.modified < put.modified:
            jobs.append(_job(put, b"", int(put.modified)))
    if jobs:
        journal.put_many(jobs)
    return len(jobs)


def mark_put(paths: Iterable[Path]) -> None:
    """Let these files be told of no more (rule 5)."""
    for path in paths:
        path.rename(path.with_name(path.name + _PUT))


def files_left(directory: Path) -> list[Path]:
    """The files of a directory that were not dealt with yet."""
    return sorted(
        path
        for path in directory.iterdir()
        if ".diverged-" in path.name and not path.name.endswith(_PUT)
    )


def _job(put: Put, job_id: bytes, timestamp: int) -> NewJob:
    policy = put.policy
    return NewJob(
        put.queue,
        put.value,
        put.key,
        priority=min(abs(int(put.rank)), 255),
        due=int(put.due),
        expires=int(put.expires),
        timestamp=timestamp,
        lease=int(policy.lease) * MILLISECOND,
        max_attempts=int(policy.max_attempts),
        max_timeouts=int(policy.max_timeouts),
        max_fails=int(policy.max_fails),
        kind=int(put.kind),
        ttl=int(policy.ttl) * MILLISECOND,
        id=job_id,
    )
