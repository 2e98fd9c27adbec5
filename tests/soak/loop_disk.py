"""A small ext4 of its own, on a loop device: it can be full, and its power can be cut.

Rules:

1. A power cut is ext4's own shutdown without a flush of its journal: what was not synced is gone,
   whatever is tried afterwards fails, and the next mount recovers. Whoever writes there is killed
   before, as by a real one: a sync under way at that moment may report success (seen with a plain
   loop of write and fdatasync), and nobody may be told so.
2. It needs root and loop devices. `make` gives None where there are none.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from pathlib import Path
from typing import Self

from fastjournal.testing import wait_until

__all__ = ["LoopDisk"]

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_NO_FLUSH = 2
_SIZE = 96 * 2**20


class LoopDisk:
    """Mounted at `path` until `close`."""

    def __init__(self, home: Path) -> None:
        self._image = home / "disk.image"
        self._ballast = home / "disk" / "ballast"
        self.path = home / "disk"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(_SIZE)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self._mount()

    @classmethod
    def make(cls, home: Path) -> Self | None:
        """A disk, or None where this machine does not let us."""
        try:
            return cls(home)
        except (OSError, subprocess.CalledProcessError):
            return None

    def cut_power(self) -> None:
        """What was not synced is gone."""
        with _open(self.path) as handle:
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _NO_FLUSH))

    def power_up(self) -> None:
        """Mount it again; nobody may have a file of it open.

        Whoever has copied the mounts of this machine for itself, as browsers do, may keep the dead
        file system alive for a while.
        """

        def is_up() -> bool:
            self._unmount()
            self._mount()
            try:
                with _open(self.path) as handle:
                    os.fsync(handle)
            except OSError:
                return False
            return True

        wait_until(is_up, seconds=120, what="the disk works again")

    def fill(self) -> None:
        """To the last kilobyte."""
        size = _SIZE
        with self._ballast.open("wb") as file:
            while size >= 1024:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
                except OSError:
                    size //= 2

    def empty(self) -> None:
        """There is room again, also after the next power cut."""
        self._ballast.unlink(missing_ok=True)
        with _open(self.path) as handle:
            os.fsync(handle)

    def close(self) -> None:
        """Unmount it and remove the image."""
        self._unmount()
        self._image.unlink()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def _unmount(self) -> None:
        def is_free() -> bool:
            return (
                subprocess.run(["umount", str(self.path)], stderr=subprocess.PIPE).returncode == 0
            )

        wait_until(is_free, seconds=30, what="the disk is unmounted")


class _open:  # noqa: N801 - it is used as a function
    """A handle of a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._handle = os.open(self._path, os.O_RDONLY)
        return self._handle

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
