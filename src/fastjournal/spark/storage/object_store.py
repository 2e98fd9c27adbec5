"""Segments that lie on an object store: listed and read through `pyarrow.fs`. No Spark.

Rules:

1. A place with a scheme (`s3://bucket/jobs`, `gs://`, `abfs://`, `hdfs://`, `fsspec+...://`) is
   remote; credentials are those that `pyarrow.fs` finds. Without one it is a directory here.
2. What lies there was copied whole: every segment is sealed, so a torn tail in it is damage.
3. An archive (see `fastjournal.archive.manifest`) is what its newest manifest names: segments,
   packed or not, and the parts of the tail, which are one segment: their names are joined by `+`.
   Segments beside it are copies of 0.1.0, which only a history looks at: a state of both may be
   none that ever was.
4. It is only read. Appending, cleaning and following want a directory.
5. A file that is not there is an error, never an empty one.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, cast

from fastjournal.archive.care import unpack
from fastjournal.archive.manifest import Manifest, find_newest
from fastjournal.archive.store import Found, Store
from fastjournal.errors import NotFound, SegmentError
from fastjournal.log.segment import HEADER_SIZE, parse_name

__all__ = [
    "StoredSegment",
    "find_archive",
    "is_growing",
    "list_copies",
    "list_segments",
    "read_head",
    "read_part",
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


class StoredSegment(NamedTuple):
    """A segment on a store."""

    number: int
    address: str
    size: int
    first: int = 0
    """TIME of the first record, as the manifest of an archive says; 0: it is not said."""


def list_segments(uri: str) -> list[StoredSegment]:
    """Every segment of a place, in order."""
    entries = _entries(uri)
    if any(entry.base_name.isdecimal() and not entry.is_file for entry in entries):
        archive = find_archive(uri)
        if archive is not None:
            return _archived(uri.rstrip("/"), archive)
    return _copies(uri, entries)


def list_copies(uri: str) -> list[StoredSegment]:
    """The same of those segments only that lie right there."""
    return _copies(uri, _entries(uri))


def _entries(uri: str) -> list[Any]:
    from pyarrow.fs import FileSelector

    files, path = _filesystem(uri)
    try:
        return list(files.get_file_info(FileSelector(path)))
    except FileNotFoundError:
        raise NotFound(f"no such journal: {uri}") from None
    except OSError as error:
        raise NotFound(f"{uri}: {error}") from error


def _copies(uri: str, entries: list[Any]) -> list[StoredSegment]:
    return sorted(
        StoredSegment(number, f"{uri.rstrip('/')}/{entry.base_name}", entry.size)
        for entry in entries
        if (number := parse_name(entry.base_name)) is not None
        and entry.is_file
        and entry.size > HEADER_SIZE
    )


def _archived(uri: str, archive: Manifest) -> list[StoredSegment]:
    found = [
        StoredSegment(one.number, f"{uri}/{one.name}", one.size, one.first)
        for one in archive.segments
        if one.size > HEADER_SIZE
    ]
    if archive.parts:
        folder = archive.parts[0].name.rpartition("/")[0]
        names = "+".join(part.name.rpartition("/")[2] for part in archive.parts)
        # The parts may be of different epochs only if they are of different openings: they are not.
        assert all(part.name.startswith(folder) for part in archive.parts)
        first, size = archive.parts[0], archive.parts[-1].end
        address = f"{uri}/{folder}/{names}"
        found.append(StoredSegment(first.segment, address, size, first.first))
    return found


def is_growing(uri: str) -> bool:
    """Whether this is a segment that was being written when it was shipped."""
    return uri.endswith(".part")


def find_archive(uri: str) -> Manifest | None:
    """What the archive at a place holds; None: there is none."""
    return find_newest(cast(Store, _ArrowStore(uri)))


class _ArrowStore:
    """As much of a store as reading a manifest needs."""

    def __init__(self, uri: str) -> None:
        self.address = uri
        self._files, path = _filesystem(uri.rstrip("/"))
        self._path = path.rstrip("/")

    def folders(self, prefix: str) -> list[str]:
        return sorted(one.base_name for one in self._entries(prefix) if not one.is_file)

    def find(self, prefix: str) -> list[Found]:
        return sorted(
            Found(f"{prefix}/{one.base_name}", one.size)
            for one in self._entries(prefix)
            if one.is_file
        )

    def get(self, name: str) -> bytes:
        return read_whole(f"{self.address.rstrip('/')}/{name}")

    def _entries(self, prefix: str) -> list[Any]:
        from pyarrow.fs import FileSelector

        path = f"{self._path}/{prefix}".rstrip("/")
        try:
            return list(self._files.get_file_info(FileSelector(path, allow_not_found=True)))
        except OSError as error:
            raise NotFound(f"{self.address}: {error}") from error


def read_whole(uri: str) -> bytes:
    """All bytes of a file; raises NotFound when there is none."""
    return _read(uri, None)


def read_head(uri: str, size: int) -> bytes:
    """The first bytes of a file, so many as there are; raises NotFound when there is none."""
    return _read(uri, size)


def read_part(uri: str, at: int, size: int) -> bytes:
    """Bytes of a file that is not packed, fewer at its end; raises NotFound when there is none."""
    folder, _, name = uri.rpartition("/")
    return _read_file(uri, folder, name, size, at)


def _read(uri: str, size: int | None) -> bytes:
    folder, _, name = uri.rpartition("/")
    if "+" in name and name.endswith(".part"):
        if size is not None:
            return _read(f"{folder}/{name.partition('+')[0]}", size)
        return b"".join(_read(f"{folder}/{part}", None) for part in name.split("+"))
    if name.endswith(".log.zst"):
        return b"".join(unpack(iter([_read_file(uri, folder, name, None)]), uri))[:size]
    return _read_file(uri, folder, name, size)


def _read_file(uri: str, folder: str, name: str, size: int | None, at: int = 0) -> bytes:
    files, path = _filesystem(folder)
    try:
        with files.open_input_file(f"{path.rstrip('/')}/{name}") as file:
            return bytes(file.read() if size is None else file.read_at(size, at))
    except FileNotFoundError:
        raise NotFound(f"{uri}: no such file") from None
    except OSError as error:
        raise SegmentError(uri, f"cannot be read: {error}") from error
