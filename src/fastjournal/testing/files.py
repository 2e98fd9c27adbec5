"""Files in memory that know what a power loss would leave, and that fail on demand.

Rules:

1. Each file has a volatile content (what a reader sees now) and a durable one (what was synced),
   with the writes in between; each directory has volatile and durable names, with the changes in
   between.
2. Every changing call is one *operation*, counted from 1. `crash_at=n` stops the machine just
   before operation n: `Crash` is raised there and by every later call.
3. After a crash `images()` yields the disks that a file system could legally leave: each unsynced
   write absent, whole, zeros, garbage, its first or second half, or cut at a border of sectors;
   each unsynced creation, renaming and removal there or not, a rename in one step. Few pending
   changes: all combinations. Many: seeded samples. Disks that are alike are given once.
4. Faults are given by operation number, so a sweep over all of them is a plain loop; or by
   `failing`, which is shown every operation and may ask which thread it is on.
5. A disk at its capacity takes what fits of a write and says how much, as Linux does; a write of
   which nothing fits is ENOSPC.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from fastjournal.errors import LockTimeout
from fastjournal.log.files import FileHandle, FileLock, Identity

__all__ = ["Crash", "Fault", "MemoryFiles", "MemoryHandle"]


_SECTOR = 512


@dataclass(slots=True)
class Write:
    """Bytes laid over a content at an offset."""

    offset: int
    data: bytes


@dataclass(slots=True)
class Truncate:
    """A content cut or grown to a size."""

    size: int


class Named(Protocol):
    """An open file that knows its name."""

    path: Path


@dataclass(slots=True, eq=False)
class Inode:
    """A file: what a reader sees, what is durable, and the changes in between."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[Write | Truncate] = field(default_factory=list)
    handles: list[Named] = field(default_factory=list)
    """Open handles: they follow a rename."""


@dataclass(slots=True)
class NameChange:
    """A creation; `target` None: a removal; `source` set: a rename."""

    path: Path
    target: Inode | None
    source: Path | None = None


def apply_name(names: dict[Path, Inode], change: NameChange) -> None:
    """Let a change of a name happen."""
    if change.target is None:
        names.pop(change.path, None)
        return
    if change.source is not None:
        names.pop(change.source, None)
    names[change.path] = change.target


def overlay(content: bytearray, offset: int, data: bytes) -> None:
    """Lay bytes over a content, growing it with zeros where needed."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def outcomes(op: Write) -> int:
    """Absent, whole, zeros, garbage, either half, and a cut at each sector border inside."""
    first = op.offset // _SECTOR
    last = (op.offset + len(op.data) - 1) // _SECTOR if op.data else first
    return 6 + (last - first)


def apply_write(content: bytearray, op: Write | Truncate, outcome: int, seed: int) -> None:
    """Let a write end in one of its outcomes."""
    if outcome == 0:
        return
    if isinstance(op, Truncate):
        if op.size < len(content):
            del content[op.size :]
        else:
            content.extend(bytes(op.size - len(content)))
    elif outcome == 1:
        overlay(content, op.offset, op.data)
    elif outcome == 2:
        overlay(content, op.offset, bytes(len(op.data)))
    elif outcome == 3:
        noise = random.Random(seed + op.offset).randbytes(len(op.data))
        overlay(content, op.offset, noise)
    elif outcome == 4:
        overlay(content, op.offset, op.data[: len(op.data) // 2])
    elif outcome == 5:
        half = len(op.data) // 2
        overlay(content, op.offset + half, op.data[half:])
    else:
        border = (op.offset // _SECTOR + outcome - 5) * _SECTOR
        overlay(content, op.offset, op.data[: border - op.offset])


def choices(options: Sequence[Sequence[int]], samples: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Every combination of outcomes if they are few, else seeded samples of them."""
    total = 1
    for option in options:
        total *= len(option)
        if total > samples:
            break
    if total <= samples:
        yield from itertools.product(*options)
        return
    yield tuple(0 for _ in options)
    yield tuple(1 for _ in options)
    draw = random.Random(seed)
    for _ in range(samples - 2):
        yield tuple(draw.choice(option) for option in options)


class Crash(BaseException):
    """The machine stopped here; not an Exception, so that no code under test survives it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """How an operation fails.

    `error`: errno raised. `short`: a write takes only so many bytes and returns. `synced`: for a
    failing sync, which part of the unsynced writes is nevertheless safe: `keep` leaves them
    pending, `drop` forgets them (later syncs succeed without them, as Linux does), `half` saves
    the first half and forgets the rest.
    """

    error: int = errno.EIO
    short: int | None = None
    synced: str = "keep"


class MemoryHandle:
    """An open file of a `MemoryFiles`."""

    def __init__(self, files: MemoryFiles, inode: Inode, path: Path) -> None:
        self.files = files
        self._inode = inode
        self.path = path
        """Its name now: an open file follows its renames."""
        self._open = True
        inode.handles.append(self)
        self._changed = False  # closing a file that was only read cannot fail

    def write(self, data: bytes | memoryview) -> int:
        self._usable()
        self._changed = True
        return self.files._write(self._inode, self.path, data, None)

    def write_at(self, data: bytes, offset: int) -> int:
        self._usable()
        self._changed = True
        return self.files._write(self._inode, self.path, data, offset)

    def reserve(self, offset: int, size: int) -> None:
        self._usable()
        self._changed = True
        self.files._reserve(self._inode, self.path, offset + size)

    def read(self, offset: int, size: int) -> bytes:
        self._usable()
        return bytes(self._inode.content[offset : offset + size])

    def size(self) -> int:
        self._usable()
        return len(self._inode.content)

    def current_name(self) -> str:
        here = self.files.identity(self.path) == self.identity()
        return str(self.path) if here else f"{self.path} (deleted)"

    def identity(self) -> Identity:
        return 0, id(self._inode)

    def truncate(self, size: int) -> None:
        self._usable()
        self._changed = True
        self.files._truncate(self._inode, self.path, size)

    def sync(self) -> None:
        self._usable()
        self.files._sync(self._inode, self.path)

    def _usable(self) -> None:
        self.files._alive()
        if not self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))

    def close(self) -> None:
        if self._open:
            self._open = False
            if self._changed:
                self.files._close(self.path)


class MemoryFiles:
    """A `Files` for tests; see the rules above."""

    handle_class: type[MemoryHandle] = MemoryHandle
    """What an open file is; a disk with ways of its own names another one."""

    def __init__(
        self,
        *,
        crash_at: int | None = None,
        faults: Mapping[int, Fault] | None = None,
        capacity: int | None = None,
        failing: Callable[[str], Fault | None] | None = None,
        on_sync: Callable[[Path], None] | None = None,
    ) -> None:
        self.crash_at = crash_at
        self.faults = dict(faults or {})
        self.capacity = capacity
        """Bytes that fit on the disk (rule 5)."""
        self.failing = failing
        """Told every operation as `kind name`; the fault it returns happens."""
        self.on_sync = on_sync
        """Called before each file sync, outside the lock: may block to play a slow disk."""
        self.operations: list[str] = []
        """Every operation so far, as `kind name`."""
        self.syncs = 0
        self.times: dict[Path, int] = {}
        """When files were last changed, as a test says."""
        self._names: dict[Path, Inode] = {}
        self._durable_names: dict[Path, Inode] = {}
        self._changes: list[NameChange] = []
        self._directories: set[Path] = set()
        self._locks: dict[Path, list[bool]] = {}
        self._guard = threading.RLock()
        self._unlocked = threading.Condition(self._guard)
        self._crashed = False
        self._boot = 1

    def reboot(self) -> None:
        """The operating system has started again."""
        self._boot += 1

    def crash(self) -> None:
        """Stop the machine now: every later call raises `Crash`."""
        self._crashed = True

    def used(self) -> int:
        """Bytes on the disk, as far as `capacity` counts them."""
        return sum(len(inode.content) for inode in self._names.values())

    def names(self, directory: Path) -> list[str]:
        with self._guard:
            self._alive()
            if directory not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
            paths = [*self._names, *self._directories]
            return [path.name for path in paths if path.parent == directory and path.name]

    def exists(self, path: Path) -> bool:
        with self._guard:
            self._alive()
            return path in self._names or path in self._directories

    def is_file(self, path: Path) -> bool:
        with self._guard:
            return path in self._names

    def identity(self, path: Path) -> Identity:
        with self._guard:
            inode = self._names.get(path)
            return None if inode is None else (0, id(inode))

    def changed_at(self, path: Path) -> int:
        with self._guard:
            return self.times.get(path, 0)

    def make_directory(self, directory: Path) -> None:
        # A directory is durable at once: losing the whole journal's directory is not modelled.
        with self._guard:
            self._alive()
            self._directories.add(directory)

    def create(self, path: Path) -> FileHandle:
        with self._guard:
            self._operation("create", path)
            if path in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            if path.parent not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            inode = Inode()
            self._names[path] = inode
            self._changes.append(NameChange(path, inode))
            return self.handle_class(self, inode, path)

    def open(self, path: Path) -> FileHandle:
        return self.open_read(path)

    def open_in_place(self, path: Path) -> FileHandle:
        with self._guard:
            return self.open_read(path) if path in self._names else self.create(path)

    def open_read(self, path: Path) -> FileHandle:
        with self._guard:
            self._alive()
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            return self.handle_class(self, self._names[path], path)

    def rename(self, source: Path, target: Path) -> None:
        with self._guard:
            self._operation("rename", target)
            inode = self._names.pop(source)
            self._names[target] = inode
            for handle in inode.handles:
                handle.path = target
            self._changes.append(NameChange(target, inode, source))

    def remove(self, path: Path) -> None:
        with self._guard:
            self._operation("remove", path)
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            del self._names[path]
            self._changes.append(NameChange(path, None))

    def sync_directory(self, directory: Path) -> None:
        with self._guard:
            self._operation("sync_directory", directory)
            kept = []
            for change in self._changes:
                if change.path.parent == directory:
                    apply_name(self._durable_names, change)
                else:
                    kept.append(change)
            self._changes = kept

    def boot_id(self) -> bytes:
        return self._boot.to_bytes(16, "big")

    def lock(self, path: Path, *, exclusive: bool, timeout: float | None) -> FileLock:
        with self._guard:
            self._alive()
            holders = self._locks.setdefault(path, [])

            def free() -> bool:
                return not holders or not (exclusive or any(holders))

            if not self._unlocked.wait_for(free, timeout):
                raise LockTimeout(f"{path} is locked", path=path)
            holders.append(exclusive)
            return _MemoryLock(self, path, exclusive)

    def put(self, path: Path, content: bytes) -> None:
        """Place a file durably, behind the back of the code under test."""
        with self._guard:
            self._directories.add(path.parent)
            inode = Inode(bytearray(content), content)
            self._names[path] = self._durable_names[path] = inode

    def content(self, path: Path) -> bytes:
        """What a reader sees now."""
        return bytes(self._names[path].content)

    def snapshot(self) -> dict[Path, bytes]:
        """Every file and what a reader sees in it now, to compare before and after."""
        with self._guard:
            return {path: bytes(inode.content) for path, inode in self._names.items()}

    def killed(self) -> Self:
        """The disk after kill -9: all that was written is there, locks are free, no faults."""
        return self._image(self.snapshot(), self._boot)

    def images(self, *, samples: int = 200, seed: int = 0) -> Iterator[Self]:
        """Disks that a power loss at this moment may leave (rule 3)."""
        made = [change.target for change in self._changes if change.target is not None]
        inodes = list(dict.fromkeys([*self._durable_names.values(), *self._names.values(), *made]))
        writes = [(inode, op) for inode in inodes for op in inode.pending]
        options: list[Sequence[int]] = [(0, 1) for _ in self._changes]
        options += [(0, 1) if isinstance(op, Truncate) else range(outcomes(op)) for _, op in writes]
        given: set[frozenset[tuple[Path, bytes]]] = set()
        for choice in choices(options, samples, seed):
            names = dict(self._durable_names)
            for change, taken in zip(self._changes, choice, strict=False):
                if taken:
                    apply_name(names, change)
            contents = {inode: bytearray(inode.durable) for inode in inodes if inode.pending}
            for (inode, op), outcome in zip(writes, choice[len(self._changes) :], strict=True):
                apply_write(contents[inode], op, outcome, seed)
            left = {
                path: bytes(contents[inode]) if inode.pending else inode.durable
                for path, inode in names.items()
            }
            if (whole := frozenset(left.items())) not in given:
                given.add(whole)
                yield self._image(left, self._boot + 1)

    def _image(self, contents: Mapping[Path, bytes], boot: int) -> Self:
        image = type(self)()
        image._boot = boot
        image._directories = set(self._directories)
        for path, content in contents.items():
            image.put(path, content)
        return image

    def _alive(self) -> None:
        if self._crashed:
            raise Crash

    def _operation(self, kind: str, path: Path) -> Fault | None:
        """Count an operation; crash, raise or return the fault that is planned for it."""
        self._alive()
        self.operations.append(f"{kind} {path.name}")
        number = len(self.operations)
        if self.crash_at is not None and number >= self.crash_at:
            self._crashed = True
            raise Crash
        fault = self.faults.get(number)
        if fault is None and self.failing is not None:
            fault = self.failing(self.operations[-1])
        if fault is not None and kind not in ("write", "sync"):
            raise OSError(fault.error, os.strerror(fault.error), str(path))
        return fault

    def _write(self, inode: Inode, path: Path, data: bytes | memoryview, offset: int | None) -> int:
        with self._guard:
            fault = self._operation("write", path)
            data = bytes(data)
            if fault is not None:
                if fault.short is None:
                    raise OSError(fault.error, os.strerror(fault.error), str(path))
                data = data[: fault.short]
            at = len(inode.content) if offset is None else offset
            if self.capacity is not None:
                fits = max(0, self.capacity - self.used()) + len(inode.content) - at
                if data and fits <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
                data = data[:fits]
            overlay(inode.content, at, data)
            inode.pending.append(Write(at, data))
            return len(data)

    def _truncate(self, inode: Inode, path: Path, size: int) -> None:
        with self._guard:
            self._operation("truncate", path)
            op = Truncate(size)
            apply_write(inode.content, op, 1, 0)
            inode.pending.append(op)

    def _reserve(self, inode: Inode, path: Path, size: int) -> None:
        with self._guard:
            self._operation("reserve", path)
            more = size - len(inode.content)
            if self.capacity is not None and more > self.capacity - self.used():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            if more > 0:
                op = Truncate(size)
                apply_write(inode.content, op, 1, 0)
                inode.pending.append(op)

    def _sync(self, inode: Inode, path: Path) -> None:
        if self.on_sync is not None:
            self.on_sync(path)
        with self._guard:
            fault = self._operation("sync", path)
            self.syncs += 1
            safe = inode.pending
            if fault is not None:
                half = len(inode.pending) // 2 if fault.synced == "half" else 0
                safe = inode.pending[:half]
            durable = bytearray(inode.durable)
            for op in safe:
                apply_write(durable, op, 1, 0)
            inode.durable = bytes(durable)
            if fault is None or fault.synced != "keep":
                inode.pending = []
            if fault is not None:
                raise OSError(fault.error, os.strerror(fault.error), str(path))

    def _close(self, path: Path) -> None:
        with self._guard:
            self._operation("close", path)

    def _release(self, path: Path, exclusive: bool) -> None:
        with self._guard:
            self._locks[path].remove(exclusive)
            self._unlocked.notify_all()


class _MemoryLock:
    def __init__(self, files: MemoryFiles, path: Path, exclusive: bool) -> None:
        self._files: MemoryFiles | None = files
        self._path = path
        self._exclusive = exclusive

    def is_named(self) -> bool:
        return True  # a lock here has no file

    def release(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files._release(self._path, self._exclusive)
