"""The life of one row, as the log tells it: what happened to it, when, and what came of it.

Rules:

1. Only the log is read. What cleaning and snapshots have removed is not there; `Life.whole` says
   whether the row's first record still is. An archive beside the journal is read too.
2. A step states what its record states, in words. Where the log does not tell two events apart (a
   job completed without a result and a leased job deleted both leave a PURGE), the words say so.
3. It works on files alone and takes no lock, so it may run beside whoever owns the journal, in any
   thread. It is bounded by what `log.finding` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fastjournal.archive.care import open_segments
from fastjournal.archive.manifest import find_newest
from fastjournal.archive.store import DirectoryStore
from fastjournal.errors import CorruptCommand
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import TYPE_NAMES, TYPE_OF, decode
from fastjournal.log.read.search import Readable, find_in_segments, segments_of
from fastjournal.log.record import Record
from fastjournal.log.stream import Stream
from fastjournal.model import State

__all__ = ["Life", "Step", "life_of"]

_EARLIER = 10_000_000_000  # ns by which a row's `inserted` may lie behind its first record
_BACK = {k.GAVE_UP: "failed", k.GAVE_BACK: "released", k.TIMED_OUT: "timed out"}
_DEATHS = {
    k.TOO_MANY_TIMEOUTS: "too many lost leases",
    k.TOO_MANY_ATTEMPTS: "too many attempts",
    k.FAILED: "failed too often",
}


class Step(NamedTuple):
    """One thing that happened to a row."""

    time: int
    """TIME of its record."""
    event: str
    """One or two words: put, merged, leased, failed, ..."""
    after: State | None
    """How the row stands now; None: it is gone."""
    record: str
    """Name of the record's type."""
    text: str = ""
    """What else the record tells, in words."""
    until: int = 0
    """An instant the record sets: due, end of a lease, end of life; 0: none."""
    until_is: str = ""
    data: bytes = b""
    """A result, the reason of a failure, or a value."""
    worker: bytes = b""


class Life(NamedTuple):
    """All that the log still tells of a row."""

    steps: list[Step]
    whole: bool
    """The row's first record is among them."""
    complete: bool
    """Nothing was left out for the sake of limits."""
    searched: int
    """Bytes of log that were looked at."""
    queue: bytes
    key: bytes


def life_of(
    stream: Stream, row_id: bytes, *, since: int = 0, max_bytes: int = 1 << 30, limit: int = 1000
) -> Life:
    """Search the log, and the archive beside it, for the records of a row.

    `since`: when the row was inserted, if that is known; older segments are then passed over.
    """
    begin = max(0, since - _EARLIER)
    records: dict[int, Record] = {}
    complete, searched = True, 0
    for source in (segments_of(stream), *_archived(stream)):
        found = find_in_segments(
            source, row_id, since=begin, max_bytes=max_bytes, max_records=limit,
            max_payload=stream.max_payload,
        )  # fmt: skip
        complete = complete and found.complete
        searched += found.searched
        for record in found.records:
            records.setdefault(record.time, record)
    story = _LifeStory(row_id)
    for time in sorted(records):
        story.add_record(records[time])
    return Life(story.steps, story.whole, complete, searched, story.queue, story.key)


def _archived(stream: Stream) -> Iterator[Iterator[tuple[int, Readable]]]:
    """The archive beside a journal: what was shipped there, and what 0.1.0 copied there."""
    folder, files = stream.path / "archive", stream.files
    if files.exists(folder):
        yield segments_of(Stream(folder, stream.header, files=files))
        store = DirectoryStore(folder, files)
        if (manifest := find_newest(store)) is not None:
            yield iter(open_segments(store, manifest))


class _LifeStory:
    """Turns records into steps, in order."""

    def __init__(self, row_id: bytes) -> None:
        self.steps: list[Step] = []
        self.whole = False
        self.queue = b""
        self.key = b""
        self._id = row_id
        self._put: k.Put | None = None
        self._state: State | None = None

    def add_record(self, record: Record) -> None:
        try:
            command = decode(record.payload)
        except CorruptCommand:
            return
        members = command.members if isinstance(command, k.Group) else (command,)
        for member in members:
            if getattr(member, "id", None) == self._id:
                step = self._step(member, record.time)
                self._state = step.after
                self.steps.append(step)

    def _step(self, command: k.Command, time: int) -> Step:
        name = TYPE_NAMES[TYPE_OF[type(command)]]
        match command:
            case k.Put():
                return self._put_step(command, time, name)
            case k.Add() | k.Schedule():
                self.queue, self.whole = command.name, True
                due = command.time if isinstance(command, k.Schedule) else 0
                return Step(time, "put", State.WAITING, name, _size(command.payload), due, "due")
            case k.Lease():
                text = f"attempt {command.attempt}"
                return Step(
                    time, "leased", State.PROCESSING, name, text, command.until, "until",
                    worker=command.worker,
                )  # fmt: skip
            case k.Start():
                return Step(time, "leased", State.PROCESSING, name)
            case k.Renew():
                text = f"attempt {command.attempt} goes on"
                return Step(
                    time, "lease extended", State.PROCESSING, name, text, command.until, "until"
                )
            case k.Touch():
                ended = self._state in (State.COMPLETED, State.FAILED)
                event = "kept" if ended else "life extended"
                return Step(time, event, self._state, name, "", command.expires, "until")
            case k.Complete():
                return Step(
                    time, "completed", State.COMPLETED, name, _size(command.result, "result"),
                    data=command.result,
                )  # fmt: skip
            case k.Fail():
                return Step(
                    time, "failed for good", State.FAILED, name, _size(command.result, "result"),
                    data=command.result,
                )  # fmt: skip
            case k.Dead():
                return Step(time, "dead", State.FAILED, name, _DEATHS.get(command.reason, ""))
            case k.Retry():
                return self._retry_step(command, time, name)
            case k.Timeout():
                return Step(time, "lease lost", State.WAITING, name, "ready again at once")
            case k.Redrive():
                return Step(
                    time, "redriven", State.WAITING, name, "counters at 0", command.due, "due"
                )
            case k.Value():
                return Step(time, "value changed", self._state, name, _size(command.value))
            case k.Keys():
                self.key = command.key
                return Step(time, "renamed", self._state, name, _text(command.key))
            case k.Purge():
                self.queue, self.key = command.queue or self.queue, command.key or self.key
                return Step(time, *self._gone(), name)
            case k.Tomb():
                return Step(time, "deleted", State.DELETED, name, "its key is remembered")
            case k.Expire():
                return Step(time, "expired", None, name, "its life was over")
            case k.Delete():
                return Step(time, "deleted", None, name)
        return Step(time, name.lower(), self._state, name)

    def _put_step(self, put: k.Put, time: int, name: str) -> Step:
        before, self._put = self._put, put
        self.queue, self.key = put.queue, put.key
        due = put.due if put.due > time else 0
        if before is None:
            fresh = not (put.attempts or put.fails or put.timeouts)
            fresh = fresh and abs(time - int(put.inserted)) <= _EARLIER
            self.whole = self.whole or fresh
            if fresh:
                return Step(time, "put", State.WAITING, name, _described(put), due, "due")
            return Step(time, "stood", State.WAITING, name, "an image of the row", due, "due")
        changes = _changes(before, put, time)
        if not changes and self._state in (State.WAITING, State.PROCESSING):
            return Step(time, "noted again", State.WAITING, name, "an image of the row")
        event = "merged" if self._state is State.WAITING else "put again"
        return Step(time, event, State.WAITING, name, ", ".join(changes), due, "due")

    def _retry_step(self, retry: k.Retry, time: int, name: str) -> Step:
        event = _BACK.get(retry.reason, "waits again")
        counts = {"failed": f"failure {retry.fails}", "timed out": f"lost lease {retry.timeouts}"}
        due = retry.due if retry.due > time else 0
        return Step(
            time, event, State.WAITING, name, counts.get(event, ""), due, "due",
            data=retry.note,
        )  # fmt: skip

    def _gone(self) -> tuple[str, None]:
        if self._state is State.PROCESSING:
            return "completed or deleted", None
        if self._state is State.WAITING:
            return "taken or deleted", None
        return "removed", None


def _described(put: k.Put) -> str:
    return f"priority {put.rank}, {_size(put.value)}"


def _changes(before: k.Put, after: k.Put, time: int) -> list[str]:
    """What a repeat of the key changed."""
    out = []
    if before.value != after.value:
        out.append(f"new value of {len(after.value)} bytes")
    if before.rank != after.rank:
        out.append(f"priority {before.rank} → {after.rank}")
    if before.due != after.due and after.due > time:
        out.append("due moved")
    if before.expires != after.expires:
        out.append("expiry moved")
    if before.modified != after.modified and not out:
        out.append("nothing but its time changed")
    return out


def _size(data: bytes, what: str = "value") -> str:
    return f"{what} of {len(data)} bytes" if data else f"no {what}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
