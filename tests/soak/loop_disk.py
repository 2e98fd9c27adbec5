"""A small ext4 of its own, on a loop device: it can be full, and its power can be cut.

Rules:

1. A power cut is ext4's own shutdown without a flush of its journal: what was not synced is gone,
   whatever is tried afterwards fails, and the next mount recovers. Whoever writes there is killed
   before, as by a real one: a sync under way at that moment may report success (seen with a plain
   loop of write and fdatasync), and nobody may be told so.
2. It needs root and loop devices. `make` gives None where there are none.
3. Nobody else may see it: a browser, say, that copied this machine's mounts for itself would keep a
   dead file system alive, and the next mount would find that. `hide_mounts` sees to it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Self

from fastjournal.testing import wait_until

__all__ = ["LoopDisk", "hide_mounts"]

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_NO_FLUSH = 2
_SIZE = 96 * 2**20
_HIDDEN = "SOAK_MOUNTS_HIDDEN"


def hide_mounts() -> None:
    """Begin this program anew with mounts that only it and its children see; not without root."""
    if os.geteuid() == 0 and shutil.which("unshare") and os.environ.get(_HIDDEN) is None:
        words = ["unshare", "--mount", *sys.orig_argv]
        os.execvpe(words[0], words, os.environ | {_HIDDEN: "1"})


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
        """Mount it again; nobody may have a file of it open."""
        self._unmount()
        self._mount()

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
