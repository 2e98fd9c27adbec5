"""Open a log after a crash.

Rules:

1. Torn is normal, damaged is not. Only the tail of the newest segment with records is mended by
   itself, and only behind `synced.pos` (a segment older than the one it names was synced whole).
   A fault there is a tear if no valid record follows. If one follows it is still a tear when the
   operating system has started again since, for then unsynced writes may have been lost in any
   order; or when it begins with reserved room (see `resync`), for then the file was copied while it
   was written. Everything else is damage, refused with file, offset and
   reason.
2. What is cut is first copied to `<name>.torn-<time>` and synced. Zeros to the very end of the
   newest segment are room reserved ahead, no tear: they are cut off, and not worth a copy.
3. The segment is synced before it is read, so that what was read is what will be there next time.
4. Running recovery twice equals running it once; a crash inside it changes nothing of this.
5. Each segment that the manifest names must be there, as it says (see `manifest`).
6. Left-over `.new` and `.rw` files go, the latter unless a cleaner is at work right now.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from fastjournal.errors import (
    CorruptRecord,
    JournalFault,
    LockTimeout,
    SegmentError,
    is_full,
    write_failure,
)
from fastjournal.log.files import Files, make_file
from fastjournal.log.manifest import FollowedManifest, Manifest, check_segments
from fastjournal.log.scan.resync import fault_reason
from fastjournal.log.scan.scan import FAILFAST, verify
from fastjournal.log.segment import HEADER_SIZE, NEW_SUFFIX, REWRITE_SUFFIX
from fastjournal.log.segment_directory import SegmentDirectory, has_records
from fastjournal.log.synced_mark import Mark, SyncedMark

__all__ = ["Cut", "Recovery", "Safe", "keep_copy", "recover"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A torn tail that was removed."""

    path: Path
    offset: int
    length: int
    reason: str
    copy: Path


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery found and did."""

    segments: int
    last_time: int
    """TIME of the newest record, ns since 1970; 0 in an empty stream."""
    cut: Cut | None = None
    removed: tuple[Path, ...] = ()
    used: int = -1
    """The highest number that the manifest names: nothing is appended up to there."""


def recover(
    stream: SegmentDirectory, *, strict: bool = False, trust_mark: bool = False
) -> Recovery:
    """Mend the tail of a stream; the caller holds `append.lock`.

    `strict` refuses a torn tail too. `trust_mark` reads only what lies behind `synced.pos`: for a
    caller that checks all records itself, as a replay does.
    """
    removed = _remove_work_files(stream)
    manifest = check_segments(stream)
    numbers = stream.segments()
    safe = Safe.of(stream)
    if safe.offset and safe.segment > max(numbers, default=-1):
        raise SegmentError(stream.segment_path(safe.segment), "is missing: it was synced before")
    tail = _tail(stream, numbers)
    if safe.offset > HEADER_SIZE and (tail is None or safe.segment > tail):
        raise SegmentError(stream.segment_path(safe.segment), "is empty: it was synced before")
    _trim_empty(stream, [number for number in numbers if tail is None or number > tail])
    if tail is None:
        return Recovery(len(numbers), safe.last_time, None, removed, manifest.used)
    cut, newest = _mend(stream, tail, safe, strict=strict, trust_mark=trust_mark)
    if not newest and safe.segment < tail:  # nothing left in the tail, and the mark is old
        newest = _last_time(stream, [number for number in numbers if number < tail])
    return Recovery(len(numbers), max(safe.last_time, newest), cut, removed, manifest.used)


@dataclass(frozen=True, slots=True)
class Safe:
    """What is known to have been synced: the rule that tells torn from damaged."""

    segment: int
    offset: int
    last_time: int
    restarted: bool
    """The operating system started again since: what was not synced may have holes."""

    @classmethod
    def of(cls, stream: SegmentDirectory, followed: FollowedManifest | None = None) -> Safe:
        """What the side file of a stream says, and its manifest: what is sealed was synced.

        `followed`: the manifest, for who asks again and again.
        """
        mark = SyncedMark.read(stream.files, stream.path) or Mark(0, 0, 0)
        followed = followed or FollowedManifest(stream.files, stream.path)
        manifest = followed.read() or Manifest()
        boot = stream.files.boot_id()
        restarted = bool(boot and mark.boot and boot != mark.boot)
        last_time = max(mark.last_time, manifest.last_time)
        if mark.segment <= manifest.used:
            return cls(manifest.used + 1, 0, last_time, restarted)
        return cls(mark.segment, mark.offset, last_time, restarted)

    def length(self, number: int) -> int:
        """How long that segment must be at least; 0 if nothing is known."""
        return self.offset if self.segment == number else 0

    def is_torn(self, number: int, at: int, next_valid: int | None) -> bool:
        """Whether a fault at `at` of the newest segment with records is a tear (rule 1)."""
        synced = number < self.segment or at < self.length(number)
        return not synced and (next_valid is None or self.restarted)


def _tail(stream: SegmentDirectory, numbers: list[int]) -> int | None:
    """The newest segment that holds more than a header."""
    for number in reversed(numbers):
        handle, whole = stream.open_segment(number, newest=number == numbers[-1])
        with closing(handle):
            if whole and has_records(handle):
                return number
    return None


def _trim_empty(stream: SegmentDirectory, numbers: list[int]) -> None:
    """Cut off what was reserved in segments that hold no record."""
    for number in numbers:
        path = stream.segment_path(number)
        try:
            with closing(stream.files.open(path)) as handle:
                if handle.size() > HEADER_SIZE and any(handle.read(0, HEADER_SIZE)):
                    handle.truncate(HEADER_SIZE)
                    handle.sync()
        except OSError as error:
            raise _failure(path, error) from error


def _failure(path: Path, error: OSError) -> JournalFault:
    """What is told of a segment that cannot be recovered; lack of space is not its fault."""
    if is_full(error):
        return write_failure(error, path)
    return SegmentError(path, f"cannot be recovered: {error}")


def _last_time(stream: SegmentDirectory, numbers: list[int]) -> int:
    """TIME of the newest record in sealed segments; 0 if there is none."""
    for number in reversed(numbers):
        handle, _ = stream.open_segment(number, newest=False)
        with closing(handle):
            data = handle.read(0, handle.size())
        found = verify(data, max_payload=stream.max_payload, torn=_stop_at_fault)
        if found.max_time is not None:
            return found.max_time
    return 0


def _stop_at_fault(at: int, following: int | None) -> bool:
    """A rule for who wants what lies before the first fault, whatever that is."""
    return True


def _mend(
    stream: SegmentDirectory, number: int, safe: Safe, *, strict: bool, trust_mark: bool
) -> tuple[Cut | None, int]:
    path = stream.segment_path(number)
    try:
        handle = stream.files.open(path)
    except OSError as error:
        raise SegmentError(path, f"cannot be opened: {error}") from error
    try:
        handle.sync()
        size, synced = handle.size(), safe.length(number)
        if size < synced:
            raise CorruptRecord(path, size, f"file is cut: {synced} bytes were synced")
        start = max(synced, HEADER_SIZE) if trust_mark else HEADER_SIZE
        data = handle.read(start, size - start)
        found = verify(
            data,
            path=path,
            start=0,
            torn=lambda at, following: safe.is_torn(number, at, following),
            mode=FAILFAST,
            max_payload=stream.max_payload,
            base=start,
        )
        newest, at = found.max_time or 0, start + found.end
        cut = None
        if found.torn:
            reason = fault_reason(data, found.end, len(data), stream.max_payload)
            if strict:
                raise CorruptRecord(path, at, reason)
            copy = keep_copy(stream.files, path, data[found.end :], f"torn-{stream.clock.now()}")
            cut = Cut(path, at, size - at, reason, copy)
        if at < size:
            handle.truncate(at)
            handle.sync()
        return cut, newest
    except OSError as error:
        raise _failure(path, error) from error
    finally:
        handle.close()


def keep_copy(files: Files, path: Path, data: bytes, suffix: str) -> Path:
    """Put `data` durably beside `path` under `<name>.<suffix>`; an equal name gets a number."""
    copy = path.with_name(f"{path.name}.{suffix}")
    again = 0
    while files.exists(copy):
        again += 1
        copy = path.with_name(f"{path.name}.{suffix}-{again}")
    try:
        make_file(files, copy, [data])
        files.sync_directory(path.parent)
    except OSError:
        with suppress(OSError):  # half a copy is worth nothing and may fill the disk
            files.remove(copy)
        raise
    return copy


def _remove_work_files(stream: SegmentDirectory) -> tuple[Path, ...]:
    left = stream.work_files(NEW_SUFFIX)
    rewrites = stream.work_files(REWRITE_SUFFIX)
    lock = None
    if rewrites:
        with suppress(LockTimeout):
            lock = stream.lock_readers(exclusive=True, timeout=0)
            left += rewrites
    try:
        for path in left:
            stream.files.remove(path)
        if left:
            stream.files.sync_directory(stream.path)
    except OSError as error:
        raise SegmentError(stream.path, f"a left-over cannot be removed: {error}") from error
    finally:
        if lock is not None:
            lock.release()
    return tuple(left)
