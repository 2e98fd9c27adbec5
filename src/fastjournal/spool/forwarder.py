"""From a spool to a journal: in order, in batches, each job once.

Rules:

1. Files are sent oldest first, frames in their order, up to `window` batches ahead of what has been
   acknowledged. A batch is of one file.
2. A frame is marked done only after its batch was acknowledged; what is not marked is sent again,
   and the journal takes it in once (see `docs/spool.md`).
3. After any error everything unacknowledged is read and sent again. Nothing else is kept in memory.
4. A damaged place, a frame that holds no job, a job that the journal refuses: copied to quarantine,
   told, passed over. None of them holds up the rest, not even on a full disk: then the file stays,
   and is read again later.
5. A batch that the journal refuses as a whole is halved, and halved again, until the job that
   spoils it stands alone and goes to quarantine; then batches grow again.
6. A finished file goes when it is neither of this hour nor of the last one, or is large and not the
   newest, and no producer has it open. The journal is told to forget it before it is removed.
7. A name that leads to no file of this spool's people is told once and left alone.
8. No clock, socket or file is touched but through the objects given.

On the disk, by `ForwardedSpool`:

9. A frame is marked done in place, by its state byte. Frames that lie together are written with one
   call: the other bytes stay what they are, and nobody else writes there.
10. A finished file goes in three steps, each of which may be the last before a crash: renamed under
   an exclusive lock, so that no producer has it open or can open it; forgotten by the daemon;
   removed. Each is on stable storage before the next begins: a file that came back after the daemon
   has forgotten it would be sent a second time.
11. What cannot be forwarded is copied to `quarantine/` before it is passed over: the bytes in a
   file of their own, a line of JSON in `report.jsonl`, both on stable storage. Who may not read
   the file may not read the copy. Doing it again changes nothing.
12. One forwarder at a time: it holds `forwarder.lock`.
13. Others may write into the directory: names are opened and made as `spool_dir` says. What goes on
   inside `quarantine/` holds on to the open directory, so nobody can put another one in its place.
14. File operations are those of an object: tests give it one in memory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from fastjournal.clock import SYSTEM_CLOCK, Clock
from fastjournal.errors import (
    BadFlags,
    BadRequest,
    JournalError,
    OutOfRange,
    ProtocolError,
    TooLarge,
    WrongType,
    is_full,
    short_write,
)
from fastjournal.log.files import DiskFiles, DiskHandle, FileHandle, FileLock, Files
from fastjournal.spool.frames import HOUR, SUFFIX, hour_of, name_of, sender_name, spool_tag
from fastjournal.spool.reader import (
    Damage,
    Frame,
    SpooledHandle,
    SpoolFile,
    job_bytes,
    open_spooled,
)
from fastjournal.spool.sound_frames import done_runs, take_plain
from fastjournal.spool.spool_dir import (
    GOING,
    SHARED,
    ForeignFile,
    checked_mode,
    identity,
    make_file,
    mode_in,
    open_file,
    open_folder,
)
from fastjournal.wire.fj.bulk import Forwarded, encode_forget, encode_forward

__all__ = [
    "LOCK",
    "QUARANTINE",
    "Destination",
    "Figures",
    "Folder",
    "ForwardedSpool",
    "Forwarder",
    "SpoolDisk",
    "SpoolFiles",
]


QUARANTINE = "quarantine"
LOCK = "forwarder.lock"
_REPORT = "report.jsonl"


class Folder(Protocol):
    """A directory inside the spool, held open; files are told by their names."""

    def exists(self, name: str) -> bool:
        """Whether there is anything of that name."""

    def create(self, name: str, mode: int) -> FileHandle:
        """Make a new file, for at most these people."""

    def append(self, name: str) -> FileHandle:
        """A file to append to, made if it is missing."""

    def rename(self, source: str, target: str) -> None:
        """Put `source` in the place of `target`."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def sync(self) -> None:
        """Make the names durable."""


class SpoolFiles(Files, Protocol):
    """The file operations of a forwarder."""

    def spool_identity(self, directory: Path) -> bytes:
        """The 16 bytes that name the spool."""

    def open_spooled(self, path: Path) -> SpooledHandle:
        """Open a spool file to read it and to mark its frames."""

    def folder(self, directory: Path) -> AbstractContextManager[Folder]:
        """A directory inside the spool, made if it is missing."""


class _DiskFolder:
    def __init__(self, fd: int, mode: int) -> None:
        self._fd = fd
        self._mode = mode

    def exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def create(self, name: str, mode: int) -> FileHandle:
        return DiskHandle(make_file(name, mode_in(self._fd, mode & self._mode), self._fd))

    def append(self, name: str) -> FileHandle:
        with contextlib.suppress(FileExistsError):
            return self.create(name, self._mode)
        return DiskHandle(open_file(name, os.O_RDWR | os.O_APPEND, self._fd))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        os.fsync(self._fd)


class SpoolDisk(DiskFiles):
    """Spools on the disks of the operating system."""

    def __init__(self, mode: int = SHARED) -> None:
        """`mode`: of the files that are made, 0660 or 0600."""
        self._mode = checked_mode(mode)

    def spool_identity(self, directory: Path) -> bytes:
        os.makedirs(directory, exist_ok=True)
        return identity(str(directory))

    def open_spooled(self, path: Path) -> SpooledHandle:
        return open_spooled(str(path), os.O_RDWR)

    @contextlib.contextmanager
    def folder(self, directory: Path) -> Iterator[Folder]:
        mode = mode_in(str(directory.parent), self._mode)
        entered = mode | (mode >> 2) & 0o111  # who may read may enter
        made = False
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, entered)
            made = True
        fd = open_folder(str(directory))
        try:
            if made:
                os.fchmod(fd, entered)  # whatever the umask
            yield _DiskFolder(fd, mode)
        finally:
            os.close(fd)


class ForwardedSpool:
    """A spool's directory, for the one forwarder that serves it."""

    def __init__(self, path: str | os.PathLike[str], files: SpoolFiles | None = None) -> None:
        self.path = os.fspath(path)
        self._folder = Path(self.path)
        self._files = files if files is not None else SpoolDisk()
        self.tag = spool_tag(self._files.spool_identity(self._folder))
        self._lock: FileLock | None = None

    def lock(self) -> None:
        """Be the only forwarder; `LockTimeout` if there is another."""
        if self._lock is None:
            self._lock = self._files.lock(self._folder / LOCK, exclusive=True, timeout=0)

    def close(self) -> None:
        """Let another forwarder have it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def hours(self) -> list[int]:
        """The hours of which there are files, oldest first."""
        return self._hours("")

    def open(self, hour: int) -> SpoolFile | None:
        """The file of an hour; None if it is gone, `ForeignFile` if it is none of the spool's."""
        try:
            handle = self._files.open_spooled(self._folder / name_of(hour))
        except FileNotFoundError:
            return None
        return SpoolFile(self.path, hour, handle)

    def set_done(self, file: SpoolFile, frames: Sequence[Frame]) -> None:
        """These frames are done."""
        for start, data in done_runs(frames):
            file.handle.write_at(data, start)

    def quarantine(self, file: SpoolFile, item: Frame | Damage, reason: str) -> bool:
        """Copy what cannot be forwarded aside; False if it is there already."""
        name = f"{name_of(file.hour).removesuffix(SUFFIX)}-{item.offset:010}.bad"
        quarantine = self._folder / QUARANTINE
        known = self._files.exists(quarantine)
        with self._files.folder(quarantine) as folder:
            if not known:
                self._files.sync_directory(self._folder)
            if folder.exists(name):
                return False
            line = json.dumps(
                {"file": name_of(file.hour), "offset": item.offset,
                 "size": item.end - item.offset, "copy": name, "reason": reason}
            )  # fmt: skip
            draft = f"{name}.{os.urandom(4).hex()}.new"
            try:
                _write(folder.create(draft, file.handle.mode()), item.data)
                _write(folder.append(_REPORT), line.encode() + b"\n", line=True)
            except OSError:
                with contextlib.suppress(FileNotFoundError):
                    folder.remove(draft)
                raise
            folder.sync()  # a copy that stands under its name was reported
            folder.rename(draft, name)
            folder.sync()
        return True

    def seize(self, file: SpoolFile) -> bool:
        """Keep producers out of a file; False if one has it open."""
        return file.handle.seize()

    def give_back(self, file: SpoolFile) -> None:
        """Let producers in again."""
        file.handle.give_back()

    def set_aside(self, file: SpoolFile) -> None:
        """Take a file that was seized away from producers for good; on stable storage."""
        file.handle.sync()
        self._files.rename(self._folder / name_of(file.hour), self._going(file.hour))
        self._files.sync_directory(self._folder)

    def going(self) -> list[int]:
        """Hours of the files that are set aside."""
        return self._hours(GOING)

    def remove(self, hour: int) -> None:
        """Remove a file that was set aside; on stable storage."""
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._going(hour))
        self._files.sync_directory(self._folder)

    def _hours(self, suffix: str) -> list[int]:
        names = self._files.names(self._folder)
        if suffix:
            names = [n.removesuffix(suffix) + SUFFIX for n in names if n.endswith(suffix)]
        return sorted(hour for name in names if (hour := hour_of(name)) is not None)

    def _going(self, hour: int) -> Path:
        return self._folder / (name_of(hour).removesuffix(SUFFIX) + GOING)


def _write(handle: FileHandle, data: bytes, *, line: bool = False) -> None:
    """Append all of it to stable storage, or nothing; a line begins a line, whatever is before."""
    before = handle.size()
    if line and before and handle.read(before - 1, 1) != b"\n":
        data = b"\n" + data
    try:
        try:
            if (written := handle.write(data)) != len(data):
                raise short_write(written, len(data))
        except OSError:
            handle.truncate(before)
            raise
        handle.sync()
    finally:
        handle.close()


LARGE = 64 << 20
"""Bytes from which on a finished file goes before its time."""
MAX_FILES = 256
"""Files open at a time; newer ones wait until the oldest are finished."""
_CONTENT = (BadFlags, BadRequest, OutOfRange, TooLarge, WrongType)
"""Errors that say something of what was sent, not of who sent it or where."""
_log = logging.getLogger(__name__)


class Destination(Protocol):
    """Where batches go. Answers come in the order of the batches."""

    def send(self, sender: bytes, value: bytes) -> None:
        """Send the value of a FORWARD."""

    def receive(self, seconds: float) -> list[Forwarded]:
        """Wait for answers; none if nothing came in time."""

    def fileno(self) -> int:
        """Readable when an answer is there; -1 if there is no such thing."""

    def close(self) -> None:
        """Give up whatever is under way."""


@dataclass
class Figures:
    """What a forwarder has done, and what is left."""

    forwarded: int = 0
    """Jobs acknowledged for the first time."""
    repeated: int = 0
    """Jobs that the journal had already."""
    merged: int = 0
    refused: int = 0
    damaged: int = 0
    """Damaged places."""
    batches: int = 0
    bytes: int = 0
    """Of the frames acknowledged."""
    failures: int = 0
    last_error: str = ""
    denied: str = ""
    """What the daemon has against this forwarder, if that is why nothing is forwarded: only its
    operator can help."""
    backlog_bytes: int = 0
    torn_bytes: int = 0
    """At the ends of files: frames of which no more came."""
    foreign: int = 0
    """Names of spool files that lead to no file of this spool."""
    owed: bool = False
    """Something could not be copied to quarantine for want of space; it is still in its file."""
    oldest: int = 0
    """When the oldest job that waits was put, ns; 0: none waits."""
    files: int = 0
    looked: bool = False
    """The directory has been looked at."""
    reports: deque[str] = field(default_factory=lambda: deque(maxlen=100))
    """What was quarantined lately, for people."""


class _Flight(NamedTuple):
    file: SpoolFile | None
    frames: Sequence[Frame]
    going: int = -1
    """The hour that is to be forgotten."""


class Forwarder:
    """One spool on its way to one journal."""

    def __init__(
        self,
        spool: ForwardedSpool,
        *,
        clock: Clock = SYSTEM_CLOCK,
        batch_jobs: int = 1000,
        batch_bytes: int = 512 << 10,
        window: int = 8,
    ) -> None:
        self.spool = spool
        self.figures = Figures()
        self._clock = clock
        self._batch_jobs = batch_jobs
        self._batch_bytes = batch_bytes
        self._window = window
        self._at_a_time = batch_jobs  # jobs in a batch now: fewer while one is searched for
        self._files: dict[int, SpoolFile] = {}
        self._pass: deque[SpoolFile] = deque()
        self._flights: deque[_Flight] = deque()
        self._going: set[int] | None = None
        self._foreign: set[int] = set()

    @property
    def in_flight(self) -> int:
        """Batches without an answer."""
        return len(self._flights)

    def send(self, destination: Destination) -> int:
        """Send what may be sent now; returns how many batches."""
        sent = 0
        if self._going is None:
            self._forget(self.spool.going(), destination)
        window = self._window if self._at_a_time == self._batch_jobs else 1
        while len(self._flights) < window:
            batch = self._next_batch()
            if batch is None:
                break
            file, frames, jobs = batch
            value = encode_forward([frame.end for frame in frames], jobs)
            self._flights.append(_Flight(file, frames))
            destination.send(sender_name(self.spool.tag, file.hour), value)
            sent += 1
        return sent

    def receive(self, destination: Destination, seconds: float) -> int:
        """Take answers; returns how many came."""
        answers = destination.receive(seconds)
        for answer in answers:
            self._acknowledged(answer)
        return len(answers)

    def doubt(self, error: Exception) -> bool:
        """A request was answered with an error; True if smaller batches may help.

        Call before `reset`.
        """
        if not isinstance(error, _CONTENT):
            return False
        flight = self._flights[0] if self._flights else None
        if flight is None or flight.file is None:
            return False
        if self._at_a_time == 1 and len(flight.frames) == 1:
            if self._quarantine(flight.file, flight.frames[0], str(error)):
                self.spool.set_done(flight.file, flight.frames)
            self._flights.popleft()  # it is passed over, not sent again
        self._at_a_time = max(1, self._at_a_time // 2)
        return True

    def reset(self) -> None:
        """Nobody knows what became of the batches under way: they will be sent again."""
        for flight in self._flights:
            if flight.file is not None and flight.frames:
                flight.file.offset = min(flight.file.offset, flight.frames[0].offset)
        self._flights.clear()
        self._pass.clear()
        self._going = None

    def close(self) -> None:
        """Release the files."""
        self.reset()
        for file in self._files.values():
            file.close()
        self._files.clear()
        self.spool.close()

    def retire(self, destination: Destination) -> int:
        """Let finished files go; returns how many. Call when nothing is under way."""
        this_hour = self._clock.now() // HOUR
        aside = []
        newest = max(self._files, default=0)
        for hour, file in sorted(self._files.items()):
            if file.owed:  # there may be room by now
                file.owed = False
                file.rewind()
                continue
            fresh = abs(hour - this_hour) <= 1 and (hour == newest or file.limit < LARGE)
            if fresh or self._flights or not self.spool.seize(file):
                continue
            rest = file.rest()
            if rest is not None and rest.sound:  # came just now
                self.spool.give_back(file)
                continue
            if rest is not None and not self._quarantine(file, rest, rest.reason):
                self.spool.give_back(file)
                continue
            self.spool.set_aside(file)
            aside.append(hour)
            file.close()
            del self._files[hour]
        self._forget(aside, destination)
        return len(aside)

    def measure(self) -> Figures:
        """The figures, with the backlog as it is now."""
        figures = self.figures
        figures.backlog_bytes = figures.torn_bytes = figures.oldest = 0
        now = self._clock.monotonic()
        waiting = {id(f.file): f.frames[0] for f in reversed(self._flights) if f.frames}
        for file in self._files.values():
            first = waiting.get(id(file))
            if first is None and file.is_torn(now):
                figures.torn_bytes += file.limit - file.offset
                continue
            start = file.offset if first is None else first.offset
            figures.backlog_bytes += max(0, file.look() - start)
            if first is None:
                first = file.peek()
            if first is not None and not first.done:
                figures.oldest = min(figures.oldest or first.timestamp, first.timestamp)
        figures.files = len(self._files)
        figures.foreign = len(self._foreign)
        figures.owed = any(file.owed for file in self._files.values())
        return figures

    def _forget(self, going: Sequence[int], destination: Destination) -> None:
        self._going = (self._going or set()) | set(going)
        for hour in going:
            self._flights.append(_Flight(None, (), hour))
            destination.send(sender_name(self.spool.tag, hour), encode_forget())

    def _acknowledged(self, answer: Forwarded) -> None:
        if not self._flights:
            raise ProtocolError("an answer to nothing")
        flight = self._flights.popleft()
        if flight.file is None:
            self.spool.remove(flight.going)
            if self._going is not None:
                self._going.discard(flight.going)
            return
        frames, figures = flight.frames, self.figures
        self._at_a_time = min(self._batch_jobs, self._at_a_time * 2)
        if answer.mark < frames[-1].end:
            raise ProtocolError(f"the journal stopped at {answer.mark} of {frames[-1].end}")
        kept = set()
        if answer.errors:
            by_end = {frame.end: frame for frame in frames}
            for mark, text in answer.errors:
                if mark in by_end and not self._quarantine(flight.file, by_end[mark], text):
                    kept.add(mark)
        self.spool.set_done(
            flight.file, [f for f in frames if f.end not in kept] if kept else frames
        )
        figures.repeated += answer.repeated
        figures.merged += answer.merged
        figures.forwarded += len(frames) - answer.repeated - answer.refused
        figures.batches += 1
        figures.bytes += frames[-1].end - frames[0].offset

    def _next_batch(self) -> tuple[SpoolFile, list[Frame], list[bytes]] | None:
        if not self._pass and not self._look():
            return None
        now = self._clock.monotonic()
        while self._pass:
            file = self._pass[0]
            found = file.read(now, most_bytes=self._batch_bytes, most=self._at_a_time)
            if not found:
                if file.waits(now):  # no newer file is read meanwhile
                    self._pass.clear()
                else:
                    self._pass.popleft()
                continue
            frames, jobs = self._take(file, found)
            if frames:
                return file, frames, jobs
        return None

    def _take(
        self, file: SpoolFile, found: Sequence[Frame | Damage]
    ) -> tuple[list[Frame], list[bytes]]:
        """The jobs of what was read."""
        frames: list[Frame] = []
        jobs: list[bytes] = []
        at = 0
        while (at := take_plain(found, at, frames, jobs)) < len(found):
            item = found[at]
            at += 1
            if isinstance(item, Damage):
                self._quarantine(file, item, item.reason)
                continue
            try:
                if item.end >= 1 << 32:
                    raise JournalError("it lies beyond 4 GiB")
                job = job_bytes(item)
            except JournalError as error:
                if self._quarantine(file, item, str(error)):
                    self.spool.set_done(file, (item,))
                continue
            frames.append(item)
            jobs.append(job)
        return frames, jobs

    def _look(self) -> bool:
        """Begin another pass over the files; False if there is nothing new in them."""
        found = self._open_files()
        self.figures.looked = True
        for hour in self._files.keys() - found:  # somebody else removed it
            self._files.pop(hour).close()
        files = [self._files[hour] for hour in sorted(self._files)]
        for file in reversed(files):
            file.look()
        self._pass.extend(file for file in files if not file.at_end)
        return bool(self._pass)

    def _open_files(self) -> set[int]:
        """Open what is new; the hours of which there are files, only the oldest of many."""
        found: set[int] = set()
        foreign: set[int] = set()
        for hour in self.spool.hours():
            if len(found) == MAX_FILES:
                break
            if hour not in self._files:
                try:
                    file = self.spool.open(hour)
                except ForeignFile as error:
                    foreign.add(hour)
                    if hour not in self._foreign:
                        path = os.path.join(self.spool.path, name_of(hour))
                        self._report(path, str(error.strerror))
                    continue
                if file is None:
                    continue
                self._files[hour] = file
            found.add(hour)
        self._foreign = foreign
        return found

    def _quarantine(self, file: SpoolFile, item: Frame | Damage, reason: str) -> bool:
        """Copy aside what cannot be forwarded; False if there is no room for it, see rule 4."""
        try:
            fresh = self.spool.quarantine(file, item, reason)
        except OSError as error:
            if not is_full(error):
                raise
            file.owed = True
            self.figures.last_error = f"no room in quarantine: {error.strerror}"
            return False
        if fresh:
            if isinstance(item, Damage):
                self.figures.damaged += 1
            else:
                self.figures.refused += 1
            self._report(file.path, f"offset {item.offset}: {reason}")
        return True

    def _report(self, path: str, text: str) -> None:
        self.figures.reports.append(f"{path}: {text}")
        _log.warning("%s: %s", path, text)
