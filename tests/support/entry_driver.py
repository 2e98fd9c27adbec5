"""Who the cases about key/value entries talk to: a journal in this process over files in memory.

Cases use only what `Driver` names, in bytes and nanoseconds, so another way to reach a journal can
run the same ones.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, Protocol

from fastjournal import Journal
from fastjournal.entry_model import Entry, EntryPage
from fastjournal.journal.disk.replay import replay
from fastjournal.journal.entries.key_query import PATTERN, RANGE, KeyQuery
from fastjournal.journal.entries.locks import Lock, Writer
from fastjournal.journal.entries.reads import Reading
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.testing import ManualClock, MemoryFiles

S = 1_000_000_000
HOME = Path("/journal")


class Answer(Protocol):
    """What a change came to."""

    @property
    def stale(self) -> bool: ...
    @property
    def found(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def data(self) -> bytes: ...


class Driver(Protocol):
    """What a case may ask for."""

    @property
    def now(self) -> int: ...
    def wait(self, length: int) -> None: ...
    def restart(self) -> None: ...
    def set(self, key: bytes, kind: int, data: bytes, **how: Any) -> Answer: ...
    def get(self, key: bytes, **how: Any) -> Entry: ...
    def delete(self, key: bytes, **how: Any) -> Answer: ...
    def add(self, key: bytes, kind: int, data: bytes, **how: Any) -> Answer: ...
    def flip(self, key: bytes, **how: Any) -> Answer: ...
    def truncate(self, key: bytes, size: int, **how: Any) -> Answer: ...
    def rename(self, key: bytes, new: bytes, **how: Any) -> Answer: ...
    def alias(self, key: bytes, further: bytes, **how: Any) -> Answer: ...
    def lock(self, key: bytes, owner: bytes, until: int = 0) -> Lock: ...
    def unlock(self, key: bytes, by: Writer) -> bool: ...
    def range(self, lower: bytes, upper: bytes, limit: int = 0, **how: Any) -> EntryPage: ...
    def match(self, pattern: bytes, limit: int = 0, **how: Any) -> EntryPage: ...
    def resume(self, cursor: bytes, **how: Any) -> EntryPage: ...


class Embedded:
    """A `Journal` and a clock moved by hand."""

    def __init__(self, **options: Any) -> None:
        self.options = {"sync": "always", "segment_size": 4096, **options}
        self.wall = ManualClock()
        self.files = MemoryFiles()
        self.files.make_directory(HOME.parent)
        self.opened = 0
        self.open()

    def open(self) -> None:
        self.opened += 1
        self.wall.advance(ns=1000)  # opening takes time: records are a nanosecond apart
        self.journal = Journal(
            HOME, background=False, clean_interval=0, snapshot_bytes=0, clock=self.wall,
            files=self.files, chance=Random(self.opened), **self.options,
        )  # fmt: skip

    @property
    def now(self) -> int:
        return self.journal.engine.clock.now()

    @property
    def known(self) -> int:
        """The time by which the journal judges: the clock's, or that of its newest record."""
        return max(self.now, self.journal.engine.state.now)

    def wait(self, length: int) -> None:
        self.wall.advance(ns=length)

    def restart(self) -> None:
        self.journal.close()
        self.open()

    def kill(self) -> None:
        """Everything handed to the system is there."""
        image = self.files.killed()
        self.journal.close()
        self.files = image
        self.open()

    def lose_power(self, seed: int) -> None:
        """Nothing that was answered may be missing on any disk left behind."""
        digest = self.journal.digest()
        images = list(self.files.images(samples=3, seed=seed))
        self.journal.close()
        for image in images:
            self.files = image
            self.open()
            assert self.journal.digest() == digest
            if image is not images[-1]:
                self.journal.close()

    def split_images(self, parts: int) -> list[bytes]:
        """The images of all rows, each found by a replay of its own records alone."""
        states = [JournalState() for _ in range(parts)]
        cursor = Stream(HOME, WORKQ, files=self.files).open_cursor()
        for record in cursor:
            command = decode(record.payload)
            members = command.members if isinstance(command, k.Group) else (command,)
            for member in members:
                for number, state in enumerate(states):
                    if not member.id or member.id[0] % parts == number:
                        state.apply(member, record.time)
        cursor.close()
        return sorted(line for state in states for line in state.lines())

    def images(self) -> list[bytes]:
        """The images of all rows as they stand, values read from the log where they lie there."""
        return sorted(self.journal.engine.state.lines(self.journal.engine.value))

    def replayed_digest(self) -> str:
        """The state that the files give, by hash."""
        return replay(Stream(HOME, WORKQ, files=self.files)).state.digest()

    def ask(self, name: str, *given: Any, **how: Any) -> Any:
        engine = self.journal.engine
        with engine.lock:
            answer = getattr(self.journal.entries.operations, name)(*given, **how)
            time = engine.last_time
        engine.settle(time)
        return answer

    def get(self, key: bytes, **how: Any) -> Entry:
        entry: Entry = self.ask("get", key, Reading(**how))
        return entry

    def range(self, lower: bytes, upper: bytes, limit: int = 0, **how: Any) -> EntryPage:
        return self.page(KeyQuery(RANGE, lower, upper, limit), **how)

    def match(self, pattern: bytes, limit: int = 0, **how: Any) -> EntryPage:
        return self.page(KeyQuery(PATTERN, b"", pattern, limit), **how)

    def resume(self, cursor: bytes, **how: Any) -> EntryPage:
        return self.page(KeyQuery.resume(cursor), **how)

    def page(self, scan: KeyQuery, **how: Any) -> EntryPage:
        page: EntryPage = self.ask("page", scan, Reading(**how))
        return page

    def __getattr__(self, name: str) -> Any:
        if name not in (
            *("set", "delete", "add", "flip", "truncate", "rename", "alias", "lock", "unlock"),
        ):
            raise AttributeError(name)
        return lambda *given, **how: self.ask(name, *given, **how)
