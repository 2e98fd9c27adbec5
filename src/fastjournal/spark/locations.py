"""Where a journal lies: in a directory here, or at a place on an object store.

Rules:

1. A location with a scheme (`s3://bucket/jobs`) is remote; without one it is a directory.
2. A directory is made absolute on the driver: the tasks have another working directory.
3. A pattern is expanded once, on the driver, to directories that hold a log.
"""

from __future__ import annotations

import glob
from pathlib import Path

from fastjournal.errors import BadRequest, NotFound

__all__ = ["absolute", "expand", "is_archive", "is_remote", "local_only", "place"]


def is_remote(path: str | Path) -> bool:
    """Whether a place is read through `pyarrow.fs`."""
    return "://" in str(path)


def expand(path: str) -> list[str]:
    """The journals that a pattern such as `data/*` names, in order; a plain path is itself.

    Raises NotFound when a pattern names none.
    """
    if is_remote(path) or not set(path) & set("*?[") or Path(path).exists():
        return [path]
    found = sorted(one for one in glob.iglob(path) if _holds_log(Path(one)))  # noqa: PTH207
    if not found:
        raise NotFound(f"no journal is named by {path}")
    return found


def _holds_log(path: Path) -> bool:
    return path.is_dir() and (is_archive(path) or any(path.glob("[0-9]*.log")))


def local_only(path: str | Path) -> None:
    """Refuse a remote place where a directory is needed."""
    if is_remote(path):
        raise BadRequest(f"{path}: an object store is only read (records, segments, jobs, export)")


def absolute(path: str | Path) -> str:
    """A directory that means the same in the tasks, whose working directory is another one.

    Raises BadRequest for an object store, where a directory is needed.
    """
    local_only(path)
    return str(Path(path).absolute())


def place(path: str | Path) -> str:
    """The same for those who only read: an object store stays as it is.

    A directory that holds an archive is read as one.
    """
    if is_remote(path):
        return str(path)
    found = absolute(path)
    return f"file://{found}" if is_archive(Path(found)) else found


def is_archive(path: Path) -> bool:
    """Whether a directory is one that a journal is shipped to."""
    return path.is_dir() and any(path.glob("[0-9][0-9][0-9][0-9][0-9][0-9]/manifest"))
