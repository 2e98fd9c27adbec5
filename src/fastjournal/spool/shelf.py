"""The forwarder's hands on a spool's directory: everything it changes there.

Rules:

1. A frame is marked done in place, by its state byte. Frames that lie together are written with one
   call: the other bytes stay what they are, and nobody else writes there.
2. A finished file goes in three steps, each of which may be the last before a crash: renamed under
   an exclusive lock, so that no producer has it open or can open it; forgotten by the daemon;
   removed. Each is on stable storage before the next begins: a file that came back after the daemon
   has forgotten it would be sent a second time.
3. What cannot be forwarded is copied to `quarantine/` before it is passed over: the bytes in a file
   of their own, a line of JSON in `report.jsonl`, both on stable storage. Who may not read the file
   may not read the copy. Doing it again changes nothing.
4. One forwarder at a time: it holds `forwarder.lock`.
5. Others may write into the directory: a name that leads elsewhere is refused (see `opening`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from fastjournal.diskfull import short_write
from fastjournal.log.files import FileHandle, FileLock
from fastjournal.spool.directory import GOING
from fastjournal.spool.files import SpoolDisk, SpoolFiles
from fastjournal.spool.frames import SUFFIX, hour_of, name_of, spool_tag
from fastjournal.spool.reader import Damage, Frame, SpoolFile

__all__ = ["LOCK", "QUARANTINE", "Shelf"]

QUARANTINE = "quarantine"
LOCK = "forwarder.lock"
_DONE = b"D"
_REPORT = "report.jsonl"


class Shelf:
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

    def mark(self, file: SpoolFile, frames: Sequence[Frame]) -> None:
        """These frames are done."""
        run: list[bytes] = []
        start = end = -1
        for frame in frames:
            if frame.offset != end:
                self._mark(file, start, run)
                run, start = [], frame.offset
            data = frame.data
            run += (data[:2], _DONE, data[3:])
            end = frame.end
        self._mark(file, start, run)

    def _mark(self, file: SpoolFile, start: int, parts: list[bytes]) -> None:
        if parts:
            file.handle.write_at(b"".join(parts), start)

    def quarantine(self, file: SpoolFile, item: Frame | Damage, reason: str) -> bool:
        """Copy what cannot be forwarded aside; False if it is there already."""
        name = f"{name_of(file.hour).removesuffix(SUFFIX)}-{item.offset:010}.bad"
        place = self._folder / QUARANTINE
        known = self._files.exists(place)
        with self._files.folder(place) as folder:
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
