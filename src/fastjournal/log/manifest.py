"""The manifest: what the sealed segments of a log are, in one small file beside them.

    manifest   one line for each event: CRC-32C of the rest in eight hex digits, a space, the rest

    fastjournal manifest 1 GENERATION COUNT USED FLOOR DROPPED-TO     first line; COUNT lines belong
                                                                      to it
    sealed NUMBER FIRST LAST SIZE CRC CLEANED-TO    a segment that is not written to any more
    changes NUMBER FIRST LAST SIZE CRC CLEANED-TO   it is about to be replaced by this
    goes NUMBER                                     it is about to be removed
    done NUMBER, kept NUMBER                        that has happened, or will not happen
    covered NUMBER                                  all below it are covered by another file

For readers, `read(files, directory)` gives a `Manifest` or None: `sealed` (number -> `Sealed` with
`number`, `first`, `last`, `size`, `crc`, `cleaned_to`, oldest first), `generation`, `used`,
`floor`, `dropped_to`, and `fault(...)`, which says what is wrong with a file. It needs no lock and
no listing. Segments above `used` are not in it: the newest ones, which are still written to.

Rules:

1. A segment is synced before it is named; a change is named before it happens, and it is the only
   one under way: a later `changes`, `goes` or `covered` says that it was done. So at any moment
   each file is what its line says, or what the line before said: a crash needs no repair, and what
   fits neither is damage.
2. Events are appended, so that naming a segment costs one short line however many there are. Each
   line is synced before the next one is written: bytes at the end that are no line are an event
   that was never relied on, and are left out; a broken line before a whole one is damage. When most
   lines are past, the file is written anew beside it, synced and renamed. So it is by a writer that
   did not write the last line itself: what another one could not sync must not stand before it.
3. A number that was named is never used again, nor is its segment appended to. A segment with such
   a number that has no line is a stranger. Those above the newest named one are taken in when the
   log is opened: a crash came before their line.
4. Writers hold `manifest.lock` for the one change: the appender names, the cleaner changes. The
   generation rises with each event; a reader that finds the same one knows that nothing changed.
5. A log without a manifest is taken in as it is and gets one. So to remove the file is how an
   operator says that the segments are as they should be.
6. The CRC of a segment is computed from the file when it is sealed: 64 MiB take some 20 ms on the
   background thread of a commit log, less than a running CRC would cost the writes themselves.
   Opening compares presence, size and first TIME; `log verify` compares the CRC too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from fastjournal.errors import SegmentError, VersionMismatch, write_failure
from fastjournal.log.files import (
    FileHandle,
    FileLock,
    Files,
    file_size,
    read_file,
    replace_file,
    write_whole,
)
from fastjournal.log.record import TIME_SIZE, BrokenRecord, decode_time
from fastjournal.log.scan.scan import verify
from fastjournal.log.segment import HEADER_SIZE

if TYPE_CHECKING:
    from fastjournal.log.segment_directory import SegmentDirectory

__all__ = [
    "MANIFEST",
    "MANIFEST_LOCK",
    "Change",
    "Digest",
    "FollowedManifest",
    "Manifest",
    "ManifestFile",
    "Sealed",
    "check_segments",
    "digest_of",
    "faults",
    "first_time",
    "measure",
    "read",
    "read_digest",
]

MANIFEST = "manifest"
MANIFEST_LOCK = "manifest.lock"

_MAGIC = "fastjournal manifest"
_VERSION = 1
_LOCK_SECONDS = 10.0  # a change takes milliseconds
_SLACK = 100  # lines of the past that are not worth a new file
_CHUNK = 1024 * 1024
_LAST = attrgetter("last")


class Sealed(NamedTuple):
    """One sealed segment."""

    number: int
    first: int
    """TIME of the first record; 0 if it holds none."""
    last: int
    """The largest TIME in it, which is that of the last record in a log of ours; 0 if none."""
    size: int
    """Bytes of the file."""
    crc: int
    """CRC-32C of the whole file."""
    cleaned_to: int = 0
    """The largest TIME of a record that was dropped from it; 0 if none was, as far as is known."""


class Change(NamedTuple):
    """A segment that is being replaced or removed: its file is the one or the other."""

    before: Sealed
    after: Sealed | None
    """None: it goes."""
    dropped_to: int
    """What `Manifest.dropped_to` was before."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says."""

    sealed: dict[int, Sealed] = field(default_factory=dict)
    """The sealed segments by number, oldest first."""
    generation: int = 0
    """Rises with every event."""
    used: int = -1
    """The highest number that was ever sealed; higher ones are not known here."""
    floor: int = 0
    """Segments below this number are covered by a snapshot of that number; 0 if none is."""
    dropped_to: int = 0
    """The largest TIME of a record that was ever dropped from the log, as far as is known.

    Who has read up to a TIME that is not below it has missed nothing.
    """
    pending: Change | None = None

    @property
    def last_time(self) -> int:
        """The largest TIME that is known to have been in the log; 0 if none is."""
        return max(self.dropped_to, max(map(_LAST, self.sealed.values()), default=0))

    def fault(self, number: int, size: int, first: int, crc: int | None = None) -> str:
        """What is wrong with the file of a segment; empty if it is what it should be.

        `first`: TIME of its first record, 0 without one. Without a `crc` that is not compared.
        """
        known = [self.sealed.get(number)]
        if self.pending is not None and self.pending.before.number == number:
            known.append(self.pending.before)
        reason = ""
        for one in known:
            if one is None:
                continue
            reason = reason or _difference(one, size, first, crc)
            if not _difference(one, size, first, crc):
                return ""
        if not reason and self.floor <= number <= self.used:
            reason = "is a stranger: the manifest has no segment of this number"
        return reason

    def missing(self, numbers: Sequence[int]) -> list[Sealed]:
        """Segments that should be there and are not among these."""
        there = set(numbers)
        return [one for one in self.sealed.values() if one.number not in there]


def _difference(one: Sealed, size: int, first: int, crc: int | None) -> str:
    if size != one.size:
        return f"has {size} bytes, the manifest says {one.size}"
    if first != one.first:
        return f"begins with the record of TIME {first}, the manifest says {one.first}"
    if crc is not None and crc != one.crc:
        return f"has the CRC {crc:08x}, the manifest says {one.crc:08x}"
    return ""


def read(files: Files, directory: Path) -> Manifest | None:
    """The manifest of a directory; None if there is none. Damage to it is a `SegmentError`."""
    text = _text(files, directory / MANIFEST)
    return None if text is None else _Lines.parse(text, directory / MANIFEST).manifest


class FollowedManifest:
    """The manifest of a directory for who looks at it again and again: only new lines are read.

    `Manifest.sealed` goes on: what was given before is not the picture of an earlier moment.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / MANIFEST
        self._lock = Lock()
        self._known: _Lines | None = None

    def read(self) -> Manifest | None:
        """As `read` of the module."""
        with self._lock:
            if self._known is None or not self._go_on(self._known):
                self._known = None
                text = _text(self._files, self._path)
                self._known = None if text is None else _Lines.parse(text, self._path)
            return None if self._known is None else self._known.manifest

    def _go_on(self, known: _Lines) -> bool:
        """Take the lines behind those that are known; False if the file is another one."""
        try:
            with closing(self._files.open_read(self._path)) as handle:
                head, size = handle.read(0, len(known.head) + 1), handle.size()
                if head != known.head + b"\n" or size < known.end:
                    return False
                return known.add(handle.read(known.end, size - known.end))
        except OSError:
            return False


def faults(
    stream: SegmentDirectory, manifest: Manifest, numbers: Sequence[int]
) -> Iterator[tuple[int, str]]:
    """Compare presence, size and first TIME of the segments; yields number and reason."""
    for one in manifest.missing(numbers):
        yield one.number, "is missing: the manifest names it"
    for number in numbers:
        if not manifest.floor <= number <= manifest.used:
            continue
        try:
            with closing(stream.files.open_read(stream.segment_path(number))) as handle:
                reason = manifest.fault(number, handle.size(), _first_time(handle))
        except OSError as error:
            reason = f"cannot be read: {error}"
        if reason:
            yield number, reason


def check_segments(stream: SegmentDirectory) -> Manifest:
    """Refuse a log whose segments are not those of its manifest; returns that, empty if none is."""
    manifest = read(stream.files, stream.path) or Manifest()
    for number, reason in faults(stream, manifest, stream.segments()):
        raise SegmentError(stream.segment_path(number), f"{reason}; see fastjournal log verify")
    return manifest


def measure(stream: SegmentDirectory, number: int) -> Sealed:
    """What a segment is that nothing is known of: all of it is read."""
    path = stream.segment_path(number)
    try:
        data = read_file(stream.files, path)
    except OSError as error:
        raise SegmentError(path, f"cannot be read: {error}") from error
    found = verify(data, max_payload=stream.max_payload)
    size, first, crc = digest_of(data)
    return Sealed(number, first, found.max_time or 0, size, crc)


def _first_time(handle: FileHandle) -> int:
    return first_time(handle.read(0, HEADER_SIZE + TIME_SIZE))


class Digest(NamedTuple):
    """What a line tells of a segment's bytes."""

    size: int
    first: int
    """TIME of the first record; 0 if there is none."""
    crc: int


def digest_of(content: bytes) -> Digest:
    """Of a segment's bytes."""
    return Digest(len(content), first_time(content), google_crc32c.value(content))


def read_digest(files: Files, path: Path) -> Digest:
    """Of a whole file, of which little is in memory at a time."""
    with closing(files.open_read(path)) as handle:
        size, crc = handle.size(), 0
        for at in range(0, size, _CHUNK):
            crc = google_crc32c.extend(crc, handle.read(at, min(_CHUNK, size - at)))
        return Digest(size, _first_time(handle), crc)


def first_time(content: bytes) -> int:
    """TIME of the first record of a segment; 0 if there is none."""
    head = content[HEADER_SIZE : HEADER_SIZE + TIME_SIZE]
    if len(head) < TIME_SIZE:
        return 0
    try:
        return decode_time(head)
    except BrokenRecord:
        return 0


class ManifestFile:
    """The manifest of one log, to be changed; each change is on stable storage when it returns."""

    def __init__(self, stream: SegmentDirectory) -> None:
        self._stream = stream
        self._files = stream.files
        self._directory = stream.path
        self._path = stream.path / MANIFEST
        self._known: _Lines | None = None
        self._suspect = True  # not known to be on the disk whole: the next change makes a new file

    def seal(self, number: int, last: int) -> None:
        """Name a segment that was left and synced, and those below it that have no line yet.

        `last`: its largest TIME, if it holds a record.
        """
        try:
            segment = self._identify(number, last)
        except SegmentError:
            if self._is_named(number):  # by a cleaner or a snapshot, and it may be gone since
                return
            raise
        with self._changing() as lines:
            self._name(lines, [*self._unnamed(lines, number - 1), segment])

    def _is_named(self, number: int) -> bool:
        with self._changing() as lines:
            self._known = lines
            return number <= lines.manifest.used

    def take_in(self, upto: int) -> None:
        """Name all segments up to a number that have no line yet; all of them are sealed."""
        with self._changing() as lines:
            self._name(lines, self._unnamed(lines, upto))
            if lines.missing:
                self._write(lines, [])

    def change(self, number: int, new: Digest | None, last: int = 0, dropped_to: int = 0) -> None:
        """Say that a segment is about to have another content, or to go if there is none.

        `last`: its largest TIME from then on; `dropped_to`: the largest that it loses; 0 if that is
        not known. Then do it, then `settle`.
        """
        with self._changing() as lines:
            self._name(lines, self._unnamed(lines, number))
            self._finish(lines, aloud=False)
            if number not in lines.manifest.sealed:
                path = self._stream.segment_path(number)
                raise SegmentError(path, "is a stranger: the manifest has no segment of its number")
            if new is None:
                self._write(lines, [f"goes {number}"])
                return
            old = lines.manifest.sealed[number]
            cleaned_to = max(old.cleaned_to, dropped_to or old.last)
            last = (last or old.last) if new.size > HEADER_SIZE else 0
            changed = Sealed(number, new.first, last, new.size, new.crc, cleaned_to)
            self._write(lines, [_line("changes", changed)])

    def check(self, number: int, content: Digest) -> None:
        """Refuse a sealed segment whose content is not what its line says."""
        with self._changing() as lines:
            reason = lines.manifest.fault(number, *content)
            self._known = lines
        if reason:
            raise SegmentError(self._stream.segment_path(number), reason)

    def settle(self) -> None:
        """Say what became of the last change, if that is not written down yet."""
        with self._changing() as lines:
            self._finish(lines, aloud=True)

    def cover(self, number: int) -> None:
        """Say that a snapshot stands for all segments below a number: they may go."""
        with self._changing() as lines:
            if lines.manifest.floor < number:
                self._name(lines, self._unnamed(lines, number - 1))
                self._finish(lines, aloud=False)
                self._write(lines, [f"covered {number}"])

    def replace(self, manifest: Manifest) -> None:
        """Write it anew, after a repair."""
        with self._changing(damaged=True) as lines:
            self._suspect = True
            self._write(_Lines(replace(manifest, generation=lines.manifest.generation)), [])

    @contextmanager
    def _changing(self, *, damaged: bool = False) -> Iterator[_Lines]:
        lock: FileLock | None = None
        try:
            lock = self._files.lock(
                self._directory / MANIFEST_LOCK, exclusive=True, timeout=_LOCK_SECONDS
            )
            yield self._current(damaged=damaged)
        except OSError as error:
            raise write_failure(error, self._path) from error
        finally:
            if lock is not None:
                lock.release()

    def _current(self, *, damaged: bool) -> _Lines:
        """What the file says; read again only if another writer has changed it."""
        known = self._known
        if known is not None and self._files.exists(self._path):
            with closing(self._files.open_read(self._path)) as handle:
                head = handle.read(0, len(known.head))
                if head == known.head and handle.size() == known.end:
                    return known
        self._suspect = True
        text = _text(self._files, self._path)
        try:
            if text is not None:
                return _Lines.parse(text, self._path)
        except SegmentError:
            if not damaged:
                raise
        return _Lines(Manifest(), missing=True)

    def _identify(self, number: int, last: int) -> Sealed:
        path = self._stream.segment_path(number)
        try:
            size, first, crc = read_digest(self._files, path)
        except OSError as error:
            raise SegmentError(path, f"cannot be read: {error}") from error
        return Sealed(number, first, last if size > HEADER_SIZE else 0, size, crc)

    def _unnamed(self, lines: _Lines, upto: int) -> list[Sealed]:
        used = lines.manifest.used
        if upto <= used:
            return []
        numbers = [number for number in self._stream.segments() if used < number <= upto]
        return [measure(self._stream, number) for number in numbers]

    def _name(self, lines: _Lines, segments: list[Sealed]) -> None:
        used = lines.manifest.used
        fresh = [_line("sealed", one) for one in segments if one.number > used]
        if fresh:
            self._write(lines, fresh)

    def _finish(self, lines: _Lines, *, aloud: bool) -> None:
        """Settle the change under way by looking at its file: the sizes always differ.

        Not `aloud`: the line that comes next says that it was done.
        """
        change = lines.manifest.pending
        if change is None:
            return
        path = self._stream.segment_path(change.before.number)
        size = file_size(self._files, path) if self._files.exists(path) else None
        if size == change.before.size:
            self._write(lines, [f"kept {change.before.number}"])
        elif aloud:
            self._write(lines, [f"done {change.before.number}"])

    def _write(self, lines: _Lines, texts: list[str]) -> None:
        self._known = None  # until it is on the disk
        data, end = b"".join(map(_sign, texts)), lines.end
        for text in texts:
            lines.take(text)
        # One line, one write, one sync (rule 2); more of them go with a new file.
        if self._suspect or len(texts) > 1 or lines.past > 2 * len(lines.manifest.sealed) + _SLACK:
            self._make(lines)
        else:
            self._append(data)
            lines.end = end + len(data)
        self._known = lines

    def _append(self, data: bytes) -> None:
        with closing(self._files.open(self._path)) as handle:
            self._suspect = True
            write_whole(handle, data)
            handle.sync()
            self._suspect = False

    def _make(self, lines: _Lines) -> None:
        self._suspect = True
        replace_file(self._files, self._path, [lines.whole()])
        self._suspect = lines.missing = False


class _Lines:
    """The lines of a manifest and what they come to."""

    def __init__(self, manifest: Manifest, *, missing: bool = False) -> None:
        self.manifest = manifest
        self.missing = missing
        """Whether there is no file yet."""
        self.head = b""
        self.end = 0
        """Where the next line goes."""
        self.past = 0
        """Lines behind those that belong to the first one."""

    @classmethod
    def parse(cls, text: bytes, path: Path) -> _Lines:
        """Read all lines; a torn one at the end is left out."""
        lines = text.split(b"\n")
        texts = [_content(line) for line in lines[:-1]]
        sound = texts.index(None) if None in texts else len(texts)
        if any(one is not None for one in texts[sound:]) or not sound:
            raise SegmentError(path, f"line {sound + 1} is damaged")
        try:
            self = cls._begin(texts[0] or "", path)
            count = self.past
            for n, one in enumerate(texts[1:sound]):
                self.take(one or "", counted=n >= count)
        except (ValueError, KeyError, IndexError) as error:
            raise SegmentError(path, f"makes no sense: {error}") from error
        if sound - 1 < count:
            raise SegmentError(
                path, f"is cut: {count} lines belong to the first, {sound - 1} follow"
            )
        self.past = sound - 1 - count
        self.head = lines[0]
        self.end = sum(len(line) + 1 for line in lines[:sound])
        return self

    @classmethod
    def _begin(cls, text: str, path: Path) -> _Lines:
        if not text.startswith(_MAGIC):
            raise SegmentError(path, "is no manifest")
        version, *rest = map(int, text.removeprefix(_MAGIC).split())
        if version != _VERSION:
            raise VersionMismatch(f"{path}: version {version}, expected {_VERSION}")
        generation, count, used, floor, dropped_to = rest
        self = cls(Manifest({}, generation, used, floor, dropped_to))
        self.past = count
        return self

    def add(self, text: bytes) -> bool:
        """Apply the lines that follow; False if they are not sound: all of it must be parsed."""
        for line in text.split(b"\n")[:-1]:
            content = _content(line)
            try:
                if content is None:
                    return False
                self.take(content)
            except (ValueError, KeyError, IndexError):
                return False
            self.end += len(line) + 1
        return True

    def take(self, text: str, *, counted: bool = True) -> None:
        """Apply one line."""
        word, *rest = text.split()
        old = self.manifest
        sealed, used, floor, dropped = old.sealed, old.used, old.floor, old.dropped_to
        pending = old.pending
        number = int(rest[0])
        if word in ("sealed", "changes"):
            first, last, size, crc, cleaned_to = rest[1:]
            new = Sealed(number, int(first), int(last), int(size), int(crc, 16), int(cleaned_to))
            if word == "changes":
                pending = Change(sealed[number], new, dropped)
            if number >= floor:
                sealed[number] = new
            used, dropped = max(used, number), max(dropped, new.cleaned_to)
        elif word == "goes":
            pending = Change(sealed.pop(number), None, dropped)
            dropped = max(dropped, pending.before.last)
        elif word == "kept" and pending is not None:
            sealed[number] = pending.before
            if pending.after is None:
                _sort(sealed)
            dropped, pending = pending.dropped_to, None
        elif word == "done":
            pending = None
        elif word == "covered":
            for n in [n for n in sealed if n < number]:
                dropped = max(dropped, sealed.pop(n).last)
            used, floor, pending = max(used, number - 1), number, None
        else:
            raise ValueError(f"unknown word {word!r}")
        self.past += 1
        generation = old.generation + counted
        self.manifest = Manifest(sealed, generation, used, floor, dropped, pending)

    def whole(self) -> bytes:
        """All of it in as few lines as possible; this is a generation of its own."""
        m = self.manifest
        sealed, dropped, tail = m.sealed, m.dropped_to, list[str]()
        if m.pending is not None:
            before, after, dropped = m.pending
            sealed = _sort({**sealed, before.number: before})
            tail = [f"goes {before.number}" if after is None else _line("changes", after)]
        head = f"{_MAGIC} {_VERSION} {m.generation + 1} {len(sealed)} {m.used} {m.floor} {dropped}"
        texts = [head, *(_line("sealed", one) for one in sealed.values()), *tail]
        data = b"".join(map(_sign, texts))
        self.manifest = replace(m, generation=m.generation + 1 + len(tail))
        self.head, self.end, self.past = _sign(head)[:-1], len(data), len(tail)
        return data


def _sort(sealed: dict[int, Sealed]) -> dict[int, Sealed]:
    ordered = sorted(sealed.items())
    sealed.clear()
    sealed.update(ordered)
    return sealed


def _line(word: str, one: Sealed) -> str:
    return f"{word} {one.number} {one.first} {one.last} {one.size} {one.crc:08x} {one.cleaned_to}"


def _sign(text: str) -> bytes:
    data = text.encode("ascii")
    return b"%08x %s\n" % (google_crc32c.value(data), data)


def _content(line: bytes) -> str | None:
    """The text of a whole line; None if it is not what was written."""
    crc, _, data = line.partition(b" ")
    try:
        return data.decode("ascii") if b"%08x" % google_crc32c.value(data) == crc else None
    except UnicodeDecodeError:
        return None


def _text(files: Files, path: Path) -> bytes | None:
    if not files.exists(path):
        return None
    try:
        return read_file(files, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SegmentError(path, f"cannot be read: {error}") from error
