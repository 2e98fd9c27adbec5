"""Where a journal lies: in a directory here, or at a place on an object store.

Rules:

1. A location with a scheme (`s3://bucket/jobs`) is remote; without one it is a directory.
2. A directory is made absolute on the driver: the tasks have another working directory.
"""

from __future__ import annotations

from pathlib import Path

from fastjournal.errors import BadRequest

__all__ = ["absolute", "is_remote", "local_only", "place"]


def is_remote(path: str | Path) -> bool:
    """Whether a place is read through `pyarrow.fs`."""
    return "://" in str(path)


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
    return f"file://{found}" if _is_archive(Path(found)) else found


def _is_archive(path: Path) -> bool:
    return path.is_dir() and any(path.glob("[0-9][0-9][0-9][0-9][0-9][0-9]/manifest"))
