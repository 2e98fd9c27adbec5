"""Does this file system keep its word? Tried out in a directory before anything relies on it.

Rules:

1. Tried are: a file can be made, synced and read back; a rename takes the place of another file in
   one step; a directory can be synced; a lock keeps a second one out.
2. What fails is a reason not to write there. A file system that is known to weaken a promise (over
   a network, or laid over another) is a reason to say so.
3. What a full disk does not let be tried is not held against it.
4. Nothing is left behind. That a disk keeps what it has synced cannot be tried out like this:
   `fastjournal log disktest` and a pulled plug can.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from fastjournal.errors import LockTimeout, is_full
from fastjournal.log.files import Files, make_file, read_file

__all__ = ["WEAK", "file_system_of", "probe"]

WEAK = {
    "nfs": "locks and syncs depend on the server and its mount options",
    "nfs4": "locks and syncs depend on the server and its mount options",
    "cifs": "renames and syncs depend on the server",
    "smb3": "renames and syncs depend on the server",
    "9p": "syncs depend on the host",
    "overlay": "it may be gone with its container; give the journal a volume",
    "tmpfs": "it is memory: nothing outlives the machine",
    "ramfs": "it is memory: nothing outlives the machine",
}
"""File systems that weaken a promise, and how."""
_OLD, _NEW = "probe.old", "probe.new"


def probe(files: Files, directory: Path) -> list[str]:
    """What this directory cannot do; empty if it can do all that a log needs."""
    old, new = directory / _OLD, directory / _NEW
    tries: list[tuple[str, Callable[[], object]]] = [
        ("a file cannot be written, synced and read back", lambda: _write(files, old, b"old")),
        ("a file cannot be put in the place of another", lambda: _replace(files, old, new)),
        ("a directory cannot be synced", lambda: files.sync_directory(directory)),
        ("a lock keeps nobody out", lambda: _lock(files, old)),
    ]
    found = []
    for fault, deed in tries:
        try:
            deed()
        except (OSError, ValueError) as error:
            if not (isinstance(error, OSError) and is_full(error)):
                found.append(f"{fault}: {error}")
    for path in (old, new):
        with contextlib.suppress(OSError):
            if files.exists(path):
                files.remove(path)
    return found


def _write(files: Files, path: Path, data: bytes) -> None:
    if files.exists(path):  # left by a probe that was killed
        files.remove(path)
    make_file(files, path, [data])
    if read_file(files, path) != data:
        raise ValueError("another content came back")


def _replace(files: Files, old: Path, new: Path) -> None:
    _write(files, new, b"new")
    files.rename(new, old)
    if files.exists(new) or read_file(files, old) != b"new":
        raise ValueError("the old file is still there")


def _lock(files: Files, path: Path) -> None:
    lock = files.lock(path, exclusive=True, timeout=0)
    try:
        second = files.lock(path, exclusive=True, timeout=0)
    except LockTimeout:
        return
    finally:
        lock.release()
    second.release()
    raise ValueError("a second one was given")


def file_system_of(directory: Path) -> str:
    """The kind of file system that a directory lies on; empty where that cannot be told."""
    try:
        path = os.path.realpath(directory)
        lines = Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        words = line.split(" ")
        if len(words) < 3:
            continue
        mounted = words[1].encode().decode("unicode_escape")
        inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):
            best, kind = mounted, words[2]
    return kind
