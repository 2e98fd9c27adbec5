"""The forwarder's hands on a spool's directory: everything it changes there.

Rules:

1. A frame is marked done in place, by its state byte. Frames that lie together are written with one
   call: the other bytes stay what they are, and nobody else writes there.
2. A finished file goes in three steps, each of which may be the last before a crash: renamed under
   an exclusive lock, so that no producer has it open or can open it; forgotten by the daemon;
   removed.
3. What cannot be forwarded is copied to `quarantine/` before it is passed over: the bytes in a file
   of their own, a line of JSON in `report.jsonl`. Doing it again changes nothing.
4. One forwarder at a time: it holds `forwarder.lock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path

from fastjournal.log.files import DISK, FileLock
from fastjournal.spool.directory import GOING, hours, identity
from fastjournal.spool.frames import SUFFIX, hour_of, name_of, spool_tag
from fastjournal.spool.reader import Damage, Frame, SpoolFile

__all__ = ["LOCK", "QUARANTINE", "Shelf"]

QUARANTINE = "quarantine"
LOCK = "forwarder.lock"
_DONE = b"D"


class Shelf:
    """A spool's directory, for the one forwarder that serves it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        os.makedirs(self.path, exist_ok=True)
        self.tag = spool_tag(identity(self.path))
        self._lock: FileLock | None = None

    def lock(self) -> None:
        """Be the only forwarder; `LockTimeout` if there is another."""
        if self._lock is None:
            self._lock = DISK.lock(Path(self.path, LOCK), exclusive=True, timeout=0)

    def close(self) -> None:
        """Let another forwarder have it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def hours(self) -> list[int]:
        """The hours of which there are files, oldest first."""
        return hours(self.path)

    def open(self, hour: int) -> SpoolFile | None:
        """The file of an hour; None if it is gone."""
        try:
            return SpoolFile(self.path, hour, writable=True)
        except FileNotFoundError:
            return None

    def mark(self, file: SpoolFile, frames: Sequence[Frame]) -> None:
        """These frames are done."""
        run: list[bytes] = []
        start = end = -1
        for frame in frames:
            if frame.offset != end:
                self._write(file, start, run)
                run, start = [], frame.offset
            data = frame.data
            run += (data[:2], _DONE, data[3:])
            end = frame.end
        self._write(file, start, run)

    def _write(self, file: SpoolFile, start: int, parts: list[bytes]) -> None:
        if parts:
            os.pwrite(file.fd, b"".join(parts), start)

    def quarantine(self, file: SpoolFile, item: Frame | Damage, reason: str) -> bool:
        """Copy what cannot be forwarded aside; False if it is there already."""
        folder = os.path.join(self.path, QUARANTINE)
        os.makedirs(folder, exist_ok=True)
        name = f"{name_of(file.hour).removesuffix(SUFFIX)}-{item.offset:010}.bad"
        place = os.path.join(folder, name)
        if os.path.exists(place):
            return False
        line = json.dumps(
            {"file": name_of(file.hour), "offset": item.offset, "size": item.end - item.offset,
             "copy": name, "reason": reason}
        )  # fmt: skip
        with open(os.path.join(folder, "report.jsonl"), "a", encoding="utf-8") as report:
            report.write(line + "\n")
        draft = place + ".new"
        with open(draft, "wb") as copy:
            copy.write(item.data)
            copy.flush()
            os.fsync(copy.fileno())
        os.replace(draft, place)
        return True

    def seize(self, file: SpoolFile) -> bool:
        """Keep producers out of a file; False if one has it open."""
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def give_back(self, file: SpoolFile) -> None:
        """Let producers in again."""
        fcntl.flock(file.fd, fcntl.LOCK_UN)

    def set_aside(self, file: SpoolFile) -> None:
        """Take a file that was seized away from producers for good."""
        os.rename(file.path, self._going(file.hour))

    def going(self) -> list[int]:
        """Hours of the files that are set aside."""
        found = []
        for name in os.listdir(self.path):
            if name.endswith(GOING):
                hour = hour_of(name.removesuffix(GOING) + SUFFIX)
                if hour is not None:
                    found.append(hour)
        return sorted(found)

    def remove(self, hour: int) -> None:
        """Remove a file that was set aside."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._going(hour))

    def _going(self, hour: int) -> str:
        return os.path.join(self.path, name_of(hour).removesuffix(SUFFIX) + GOING)
