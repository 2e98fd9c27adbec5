"""What tests of the spool share: a journal as the target, and a crash at every step."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from fastjournal import Journal
from fastjournal.clock import SECOND
from fastjournal.errors import Unavailable
from fastjournal.log.files import FileHandle
from fastjournal.spool.forwarder import ForwardedSpool, Forwarder
from fastjournal.spool.reader import SpooledHandle, read_spool
from fastjournal.testing import Crash, MemoryFiles
from fastjournal.testing.files import MemoryHandle
from fastjournal.wire.fj.bulk import Forwarded, read_forward
from fastjournal.wire.fj.replies import error_text

__all__ = [
    "NOW",
    "CrashingDestination",
    "CrashingSpool",
    "JournalDestination",
    "SpoolMemory",
    "Steps",
    "drain",
    "payloads",
    "rows",
]

NOW = 1_700_000_000 * SECOND
"""When tests of the spool begin."""


class _SpooledHandle(MemoryHandle):
    """An open spool file of which no producer holds another end."""

    def mode(self) -> int:
        return 0o660

    def seize(self) -> bool:
        return True

    def give_back(self) -> None:
        pass


class _Folder:
    def __init__(self, files: MemoryFiles, directory: Path) -> None:
        self._files = files
        self._directory = directory

    def exists(self, name: str) -> bool:
        return self._files.exists(self._directory / name)

    def create(self, name: str, mode: int) -> FileHandle:
        return self._files.create(self._directory / name)

    def append(self, name: str) -> FileHandle:
        path = self._directory / name
        return self._files.open(path) if self._files.exists(path) else self._files.create(path)

    def rename(self, source: str, target: str) -> None:
        self._files.rename(self._directory / source, self._directory / target)

    def remove(self, name: str) -> None:
        self._files.remove(self._directory / name)

    def sync(self) -> None:
        self._files.sync_directory(self._directory)


class SpoolMemory(MemoryFiles):
    """The disk of a forwarder, in memory: knows what a power loss leaves of a spool."""

    handle_class = _SpooledHandle

    @classmethod
    def copy_of(cls, directory: Path, **options: Any) -> SpoolMemory:
        """The files of a real spool, durable, under the same names."""
        files = cls(**options)
        for path in directory.iterdir():
            if path.is_file():
                files.put(path, path.read_bytes())
        return files

    def spool_identity(self, directory: Path) -> bytes:
        return bytes.fromhex(self.content(directory / "spool.id").decode())

    def open_spooled(self, path: Path) -> SpooledHandle:
        return cast(_SpooledHandle, self.open_read(path))

    @contextlib.contextmanager
    def folder(self, directory: Path) -> Iterator[_Folder]:
        self.make_directory(directory)
        yield _Folder(self, directory)


class JournalDestination:
    """A journal of this process, as a daemon would serve it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.sent: list[tuple[bytes, bytes]] = []
        self._answers: deque[Forwarded] = deque()

    def send(self, sender: bytes, value: bytes) -> None:
        self.sent.append((sender, value))
        forwarding, engine = self.journal.operations.forwarding, self.journal.engine
        now = engine.clock.now()
        read = read_forward(value, 0, len(value), now, sender)
        with engine.lock:
            if read.forget:
                forwarding.forget_sender(sender)
                self._answers.append(Forwarded(0))
                return
            taken = forwarding.put_from(sender, zip(read.marks, read.jobs, strict=True), now)
        errors = tuple((mark, error_text(error)) for mark, error in taken.refused)
        self._answers.append(
            Forwarded(taken.mark, *taken.outcomes, len(errors), taken.repeated, errors)
        )

    def receive(self, seconds: float) -> list[Forwarded]:
        answers = list(self._answers)
        self._answers.clear()
        return answers

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._answers.clear()


class Steps:
    """Counts the steps of everything that shares it, and crashes at one of them."""

    def __init__(self, crash_at: int | None = None) -> None:
        self.count = 0
        self.crash_at = crash_at
        self.dead = False

    def step(self) -> None:
        if self.dead:
            raise Crash
        self.count += 1
        if self.count == self.crash_at:
            self.dead = True
            raise Crash


class CrashingSpool(ForwardedSpool):
    """Dies before or after a change of the directory."""

    def __init__(self, path: Path, steps: Steps) -> None:
        super().__init__(path)
        self._steps = steps

    def set_done(self, *args: Any) -> None:
        self._around(super().set_done, *args)

    def quarantine(self, *args: Any) -> bool:
        return bool(self._around(super().quarantine, *args))

    def set_aside(self, *args: Any) -> None:
        self._around(super().set_aside, *args)

    def remove(self, *args: Any) -> None:
        self._around(super().remove, *args)

    def _around(self, change: Any, *args: Any) -> Any:
        self._steps.step()
        result = change(*args)
        self._steps.step()
        return result


class CrashingDestination:
    """Loses the connection, the request or the answer."""

    def __init__(self, target: JournalDestination, steps: Steps) -> None:
        self._target = target
        self._steps = steps

    def send(self, sender: bytes, value: bytes) -> None:
        self._steps.step()
        self._target.send(sender, value)
        self._steps.step()

    def receive(self, seconds: float) -> list[Forwarded]:
        self._steps.step()
        return self._target.receive(seconds)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._target.close()


class Broken:
    """A target that is never there."""

    def send(self, sender: bytes, value: bytes) -> None:
        raise Unavailable

    def receive(self, seconds: float) -> list[Forwarded]:
        raise Unavailable

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


def drain(forwarder: Forwarder, target: Any, *, rounds: int = 10_000) -> None:
    """Forward until nothing is left to do."""
    for _ in range(rounds):
        moved = forwarder.send(target)
        if forwarder.in_flight:
            moved += forwarder.receive(target, 0)
        if not moved and not forwarder.in_flight and not forwarder.retire(target):
            return
    raise AssertionError("the forwarder does not come to rest")


def payloads(path: Path | str) -> list[bytes]:
    """The payloads in a spool, done or not, in order."""
    return [entry.job.value for entry in read_spool(path) if entry.job is not None]


def rows(journal: Journal) -> Iterable[Any]:
    """The rows of a journal in the order in which they came."""
    return sorted(journal.engine.state.rows.values(), key=lambda row: row.inserted)
