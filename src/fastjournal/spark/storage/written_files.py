"""Files that tasks leave for the driver: known again by size and CRC, or not taken. No Spark.

Rules:

1. A file of a task has a name that no other attempt uses: a second attempt, or one that goes on
   after its executor was given up, writes another file.
2. The task tells size and CRC-32C of what it wrote and synced. The driver reads the file back
   before it gives it a name that counts, takes it in, or moves a position past it.
3. A task makes no directory that the driver would have to see: where that one is missing, the node
   has another disk in its place, and the task fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from uuid import uuid4

from google_crc32c import extend

from fastjournal.errors import NotFound, SegmentError
from fastjournal.log.files import DISK, FileHandle, write_whole

__all__ = ["Writing", "Written", "attempt_word", "make_below", "read_back", "write_file"]

_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """A file that a task has written, and how to know it again."""

    path: str
    size: int
    crc: int
    """CRC-32C of all of it."""

    @property
    def name(self) -> str:
        """Its name without its directory."""
        return Path(self.path).name

    def check(self) -> None:
        """Read it; raises NotFound when it is not here, SegmentError when it is another one."""
        found = read_back(self.path)
        if found.size != self.size:
            raise SegmentError(self.path, f"has {found.size} bytes, its task wrote {self.size}")
        if found.crc != self.crc:
            raise SegmentError(self.path, "does not hold the bytes that its task wrote")


def attempt_word() -> str:
    """A word for the names of one attempt of a task; nobody has used it before."""
    return uuid4().hex


def make_below(root: Path, folder: Path) -> None:
    """Make a directory below `root`, which the driver has made and every node must see."""
    if not root.is_dir():
        raise NotFound(
            f"{root}: made by the driver, not to be seen on {gethostname()}; name a directory"
            " that all nodes share"
        )
    folder.mkdir(parents=True, exist_ok=True)


def read_back(path: str | Path) -> Written:
    """What a file holds at this moment."""
    try:
        handle = DISK.open_read(Path(path))
    except FileNotFoundError:
        raise NotFound(
            f"{path}: written by a task, not to be seen on {gethostname()}; all nodes must share"
            " its directory"
        ) from None
    try:
        size = crc = 0
        while data := handle.read(size, _CHUNK):
            crc = extend(crc, data)
            size += len(data)
        return Written(str(path), size, crc)
    finally:
        handle.close()


class Writing:
    """A new file being written by a task; it must be closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: FileHandle = DISK.create(path)
        self._size = 0
        self._crc = 0

    def write(self, data: bytes) -> None:
        """Append all of it."""
        write_whole(self._handle, data)
        self._crc = extend(self._crc, data)
        self._size += len(data)

    def finish(self) -> Written:
        """Sync it and tell what it is."""
        self._handle.sync()
        return Written(str(self._path), self._size, self._crc)

    def close(self) -> None:
        """Release the handle."""
        self._handle.close()


def write_file(path: Path, parts: Iterable[bytes]) -> Written:
    """Write and sync a whole file."""
    writing = Writing(path)
    try:
        for part in parts:
            writing.write(part)
        return writing.finish()
    finally:
        writing.close()
