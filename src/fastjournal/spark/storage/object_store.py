"""Segments that lie on an object store: listed and read through `pyarrow.fs`. No Spark.

Rules:

1. A place with a scheme (`s3://bucket/jobs`, `gs://`, `abfs://`, `hdfs://`, `fsspec+...://`) is
   remote; credentials are those that `pyarrow.fs` finds. Without one it is a directory here.
2. What lies there was copied whole: every segment is sealed, so a torn tail in it is damage.
3. It is only read. Appending, cleaning and following want a directory.
4. A file that is not there is an error, never an empty one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fastjournal.errors import NotFound, SegmentError
from fastjournal.log.segment import HEADER_SIZE, parse_name

__all__ = [
    "list_segments",
    "read_head",
    "read_whole",
]


@cache
def _filesystem(uri: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        found, path = FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, ImportError) as error:
        raise NotFound(f"{uri}: {error}") from error
    return found, path


def list_segments(uri: str) -> list[tuple[int, str, int]]:
    """Number, address and size of every segment of a place, in order."""
    from pyarrow.fs import FileSelector

    files, path = _filesystem(uri)
    try:
        entries = files.get_file_info(FileSelector(path))
    except FileNotFoundError:
        raise NotFound(f"no such journal: {uri}") from None
    except OSError as error:
        raise NotFound(f"{uri}: {error}") from error
    return sorted(
        (number, f"{uri.rstrip('/')}/{entry.base_name}", entry.size)
        for entry in entries
        if (number := parse_name(entry.base_name)) is not None
        and entry.is_file
        and entry.size > HEADER_SIZE
    )


def read_whole(uri: str) -> bytes:
    """All bytes of a file; raises NotFound when there is none."""
    return _read(uri, None)


def read_head(uri: str, size: int) -> bytes:
    """The first bytes of a file, so many as there are; raises NotFound when there is none."""
    return _read(uri, size)


def _read(uri: str, size: int | None) -> bytes:
    folder, _, name = uri.rpartition("/")
    files, path = _filesystem(folder)
    try:
        with files.open_input_file(f"{path.rstrip('/')}/{name}") as file:
            return bytes(file.read() if size is None else file.read(size))
    except FileNotFoundError:
        raise NotFound(f"{uri}: no such file") from None
    except OSError as error:
        raise SegmentError(uri, f"cannot be read: {error}") from error
