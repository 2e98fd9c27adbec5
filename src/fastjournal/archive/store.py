"""Where an archive lies: one small interface over a directory, memory, and object stores.

Rules:

1. Names are paths with `/` below the store's own place. An object is written whole or not at all,
   and never changed: `create` refuses a name that is taken, `put` is for names that only one
   writer can choose, so that it may be sent again.
2. A directory is served by our own `Files`, not by obstore: what is named must survive a power
   loss, and obstore syncs nothing. So neither it nor the store in memory needs a package.
3. Everything with a scheme (`s3://`, `gs://`, `az://`, ...) is obstore's, which finds credentials
   and endpoints in the environment. Nothing else in the project talks to a store.
4. What is not there is `NotFound`; any other trouble is an `ArchiveError`. A request whose answer
   was lost may have been carried out: whoever asks again compares.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from fastjournal.errors import ArchiveError, JournalError, NotFound, SettingError
from fastjournal.log.files import DISK, Files, file_size, replace_file
from fastjournal.log.segment import NEW_SUFFIX

__all__ = [
    "CHUNK",
    "DirectoryStore",
    "Found",
    "MemoryStore",
    "Store",
    "join_address",
    "open_store",
]

T = TypeVar("T")

CHUNK = 1024 * 1024
"""Bytes that are held at a time where objects are large."""
_PART = 8 * CHUNK  # bytes of one part of a large upload
_LOCK = "archive.lock"
_LOCK_SECONDS = 30.0
_DELETE_AT_A_TIME = 500


class Found(NamedTuple):
    """An object that is there."""

    name: str
    size: int


class Store(Protocol):
    """What an archive needs of a store."""

    address: str
    """How people name it."""

    def create(self, name: str, data: bytes) -> bool:
        """Make an object unless there is one of this name; False: there is one."""

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Make an object whose name nobody else uses; the same again changes nothing."""

    def get(self, name: str) -> bytes:
        """All bytes of an object."""

    def stream(self, name: str) -> Iterator[bytes]:
        """All bytes of an object, a stretch at a time."""

    def get_range(self, name: str, start: int, size: int) -> bytes:
        """Up to `size` bytes from `start` on."""

    def find(self, prefix: str) -> list[Found]:
        """All objects below a folder, at any depth, by name."""

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders right in a folder, without what they hold."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects; one that is not there is no error."""


class MemoryStore:
    """A store that lives in this process."""

    def __init__(self, address: str = "memory:") -> None:
        self.address = address
        self.objects: dict[str, bytes] = {}
        self._guard = threading.Lock()

    def create(self, name: str, data: bytes) -> bool:
        with self._guard:
            if name in self.objects:
                return False
            self.objects[name] = bytes(data)
            return True

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        data = b"".join(chunks)
        with self._guard:
            self.objects[name] = data

    def get(self, name: str) -> bytes:
        with self._guard:
            found = self.objects.get(name)
        if found is None:
            raise NotFound(f"{self.address}: no object {name}")
        return found

    def stream(self, name: str) -> Iterator[bytes]:
        data = self.get(name)
        for at in range(0, len(data), CHUNK):
            yield data[at : at + CHUNK]

    def get_range(self, name: str, start: int, size: int) -> bytes:
        return self.get(name)[start : start + size]

    def find(self, prefix: str) -> list[Found]:
        head = _folder(prefix)
        with self._guard:
            return sorted(Found(n, len(d)) for n, d in self.objects.items() if n.startswith(head))

    def folders(self, prefix: str) -> list[str]:
        head = _folder(prefix)
        rest = (one.name[len(head) :] for one in self.find(prefix))
        return sorted({name.partition("/")[0] for name in rest if "/" in name})

    def delete(self, names: Sequence[str]) -> None:
        with self._guard:
            for name in names:
                self.objects.pop(name, None)


class DirectoryStore:
    """A store in a directory: synced, renamed, the directory synced (rule 2)."""

    def __init__(self, path: str | Path, files: Files = DISK) -> None:
        self.path = Path(path)
        self.address = str(path)
        self._files = files
        self._known: set[Path] = set()

    def create(self, name: str, data: bytes) -> bool:
        path = self.path / name

        def make() -> bool:
            self._make_folder(path.parent)
            # Whoever makes an object of this kind holds the lock: of two only one finds no file.
            lock = self._files.lock(self.path / _LOCK, exclusive=True, timeout=_LOCK_SECONDS)
            try:
                if self._files.exists(path):
                    return False
                replace_file(self._files, path, [data])
                return True
            finally:
                lock.release()

        return self._do(name, make)

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        path = self.path / name

        def make() -> None:
            self._make_folder(path.parent)
            replace_file(self._files, path, chunks)

        self._do(name, make)

    def _make_folder(self, folder: Path) -> None:
        """Make a directory and those above it; their names are as durable as what is put there."""
        if folder in self._known:
            return
        if not self._files.exists(folder):
            self._make_folder(folder.parent)
            self._files.make_directory(folder)
            self._files.sync_directory(folder.parent)
        self._known.add(folder)

    def get(self, name: str) -> bytes:
        return b"".join(self.stream(name))

    def stream(self, name: str) -> Iterator[bytes]:
        handle = self._do(name, lambda: self._files.open_read(self.path / name))
        try:
            at, size = 0, self._do(name, handle.size)
            while at < size:
                chunk = self._do(name, partial(handle.read, at, CHUNK))
                if not chunk:
                    raise ArchiveError(f"{self.path / name}: ends early, after {at} bytes")
                yield chunk
                at += len(chunk)
        finally:
            handle.close()

    def get_range(self, name: str, start: int, size: int) -> bytes:
        def read() -> bytes:
            with closing(self._files.open_read(self.path / name)) as handle:
                return handle.read(start, size)

        return self._do(name, read)

    def find(self, prefix: str) -> list[Found]:
        return self._do(prefix, lambda: sorted(self._walk(prefix)))

    def _walk(self, prefix: str) -> Iterator[Found]:
        for name in self._names(prefix):
            path = f"{_folder(prefix)}{name}"
            if not self._files.is_file(self.path / path):
                yield from self._walk(path)
            elif not name.endswith(NEW_SUFFIX):
                with suppress(FileNotFoundError):  # removed meanwhile
                    yield Found(path, file_size(self._files, self.path / path))

    def folders(self, prefix: str) -> list[str]:
        folder = self.path / prefix
        names = self._do(prefix, lambda: self._names(prefix))
        return sorted(name for name in names if not self._files.is_file(folder / name))

    def _names(self, prefix: str) -> list[str]:
        try:
            return self._files.names(self.path / prefix)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, names: Sequence[str]) -> None:
        def remove() -> None:
            for folder in {(self.path / name).parent for name in names}:
                some = False
                for name in names:
                    path = self.path / name
                    if path.parent == folder and self._files.exists(path):
                        self._files.remove(path)
                        some = True
                if some:
                    self._files.sync_directory(folder)

        self._do("", remove)

    def _do(self, name: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except FileNotFoundError as error:
            raise NotFound(f"{self.path / name}: no such object") from error
        except OSError as error:
            raise ArchiveError(f"{self.path / name}: {error}") from error
        except ArchiveError:
            raise
        except JournalError as error:
            raise ArchiveError(f"{self.path / name}: {error}") from error


class ObjectStore:
    """A store that obstore speaks to (rule 3)."""

    def __init__(self, address: str, **options: Any) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise SettingError(
                f"{address}: needs pip install 'fastjournal[archive]'", name="archive"
            ) from error
        self.address = address
        self._obstore = obstore
        try:
            # Its own patience is three minutes; whoever ships tries again, and says so meanwhile.
            patience = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
            given = {"retry_config": patience, **options}
            self._store: Any = from_url(address.rstrip("/"), **given)
        except Exception as error:  # obstore has no root for what may go wrong here
            raise SettingError(f"{address}: {_first_line(error)}", name="archive") from error

    def create(self, name: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self._obstore.put(self._store, name, data, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        except Exception as error:
            raise self._failure(name, error) from error
        return True

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        def send() -> None:
            rest = iter(chunks)
            head, size = list[bytes](), 0
            for chunk in rest:
                head.append(chunk)
                size += len(chunk)
                if size >= _PART:
                    break
            else:  # small: one request instead of the three that parts take
                self._obstore.put(self._store, name, b"".join(head), use_multipart=False)
                return
            # Two parts in flight: memory stays bounded whatever the size of the object.
            self._obstore.put(
                self._store, name, chain(head, rest), chunk_size=_PART, max_concurrency=2
            )

        self._do(name, send)

    def get(self, name: str) -> bytes:
        return bytes(self._do(name, lambda: self._obstore.get(self._store, name).bytes()))

    def stream(self, name: str) -> Iterator[bytes]:
        result = self._do(name, lambda: self._obstore.get(self._store, name))
        parts = result.stream(min_chunk_size=CHUNK)
        while (part := self._do(name, lambda: next(parts, None))) is not None:
            yield bytes(part)

    def get_range(self, name: str, start: int, size: int) -> bytes:
        return bytes(
            self._do(
                name,
                lambda: self._obstore.get_range(self._store, name, start=start, length=size),
            )
        )

    def find(self, prefix: str) -> list[Found]:
        def read() -> list[Found]:
            pages = self._obstore.list(self._store, prefix.rstrip("/") or None)
            return sorted(Found(one["path"], one["size"]) for page in pages for one in page)

        return self._do(prefix, read)

    def folders(self, prefix: str) -> list[str]:
        def read() -> list[str]:
            found = self._obstore.list_with_delimiter(self._store, prefix.rstrip("/") or None)
            return sorted(one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"])

        return self._do(prefix, read)

    def delete(self, names: Sequence[str]) -> None:
        for at in range(0, len(names), _DELETE_AT_A_TIME):
            some = list(names[at : at + _DELETE_AT_A_TIME])
            with suppress(NotFound):
                self._do(some[0], partial(self._obstore.delete, self._store, some))

    def _do(self, name: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except FileNotFoundError as error:
            raise NotFound(f"{self.address}: no object {name}") from error
        except JournalError:
            raise
        except Exception as error:  # obstore's own, those of the system, and those of its runtime
            raise self._failure(name, error) from error

    def _failure(self, name: str, error: Exception) -> ArchiveError:
        path = f"{self.address.rstrip('/')}/{name}".rstrip("/")
        return ArchiveError(f"{path}: {_advice(error)}{_first_line(error)}")


_in_memory: dict[str, MemoryStore] = {}


def open_store(address: str | Path, *, files: Files = DISK, **options: Any) -> Store:
    """The store of an address: `s3://bucket/jobs`, `file:///backup/jobs`, a path, `memory:name`.

    `options` go to obstore.
    """
    text = str(address)
    if text.startswith("memory:"):
        return _in_memory.setdefault(text, MemoryStore(text))
    if text.startswith("file:"):
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise SettingError(f"{text} is no address: {error}", name="archive") from None
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise SettingError(f"{text}: a directory is named by file:///path", name="archive")
        return DirectoryStore(Path(unquote(parts.path)), files)
    if "://" in text:
        return ObjectStore(text, **options)
    if not text:
        raise SettingError("an archive needs an address", name="archive")
    return DirectoryStore(Path(os.path.abspath(text)) if files is DISK else Path(text), files)  # noqa: PTH100


def join_address(address: str, name: str) -> str:
    """The address of a folder in a store."""
    return f"{address.rstrip('/')}/{name}"


def _folder(prefix: str) -> str:
    return f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""


_ADVICE = {
    "169.254.169.254": "no credentials in the environment, and the machine has no role",
    "metadata.google.internal": "no credentials in the environment, and the machine has no role",
    "404 Not Found": "is there such a bucket?",
    "401 Unauthorized": "are these the right credentials?",
    "403 Forbidden": "are these the right credentials, and may they do that?",
    "error sending request": "the store cannot be reached",
    "builder error": "plain http must be allowed (AWS_ALLOW_HTTP=true)",
}
"""What an operator should look at, by what obstore says."""


def _advice(error: Exception) -> str:
    found = next((advice for sign, advice in _ADVICE.items() if sign in str(error)), "")
    return found and f"{found}: "


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or repr(error)
