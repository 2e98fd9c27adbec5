"""The appender: adds records to the end of a stream.

Rules:

1. One appender at a time, over all processes; nothing is appended without the lock.
2. Taking the lock recovers the tail (a torn one is cut, a copy kept): never append behind a torn
   record.
3. Record times strictly increase, by at least 1 ns, even when the wall clock steps back.
4. A segment is left once its size has reached the minimum: synced first, then the next one is made.
   So records in a newer segment imply that all older ones are on stable storage, under every
   policy. Then it is named in the manifest.
5. After a fault that could not be undone every later call says so (`AppenderPoisoned`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, Self

from fastjournal.errors import (
    AppenderPoisoned,
    BadRequest,
    JournalError,
    NoSpace,
    NotLocked,
    SettingError,
    TooLarge,
)
from fastjournal.log import record as codec
from fastjournal.log.care.recovery import recover
from fastjournal.log.files import FileLock
from fastjournal.log.manifest import ManifestFile
from fastjournal.log.segment import Position
from fastjournal.log.segment_directory import MAX_SEGMENT_SIZE, MIN_SEGMENT_SIZE, SegmentDirectory
from fastjournal.log.synced_mark import SyncedMark
from fastjournal.log.write.segment_writer import SegmentWriter

__all__ = [
    "SYNC_POLICIES",
    "AppendOptions",
    "Appender",
    "ThreadTicker",
    "Ticker",
    "check_payloads",
    "make_segment",
    "name_sealed",
    "open_newest",
    "take_in",
]

SYNC_POLICIES = ("os", "interval", "always")
DEFAULT_SYNC_INTERVAL = 1000  # ms
MAX_SYNC_INTERVAL = 86_400_000  # ms, a day

_BYTES: set[type] = {bytes}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """Settings of an appender, checked when made."""

    segment_size: int
    sync: str
    sync_interval: int | None = None
    """Milliseconds between two syncs; only with the policy `interval`, where None means 1000."""

    def __post_init__(self) -> None:
        if not MIN_SEGMENT_SIZE <= self.segment_size <= MAX_SEGMENT_SIZE:
            raise SettingError(
                f"segment_size must be {MIN_SEGMENT_SIZE}..{MAX_SEGMENT_SIZE},"
                f" not {self.segment_size}",
                name="segment_size",
            )
        if self.sync not in SYNC_POLICIES:
            raise SettingError(
                f"sync must be one of {SYNC_POLICIES}, not {self.sync!r}", name="sync"
            )
        if self.sync_interval is None:
            if self.sync == "interval":
                object.__setattr__(self, "sync_interval", DEFAULT_SYNC_INTERVAL)
        elif self.sync != "interval":
            raise SettingError(
                f"sync_interval is only for sync='interval', not {self.sync!r}",
                name="sync_interval",
            )
        elif not 1 <= self.sync_interval <= MAX_SYNC_INTERVAL:
            raise SettingError(
                f"sync_interval must be 1..{MAX_SYNC_INTERVAL} ms, not {self.sync_interval}",
                name="sync_interval",
            )


class Ticker(Protocol):
    """Calls a function again and again; a test moves it by hand."""

    def start(self, tick: Callable[[], None], interval_ms: int) -> None:
        """Begin to call `tick`, each time `interval_ms` after it last returned."""

    def stop(self) -> None:
        """No more calls after this returns."""


class ThreadTicker:
    """A ticker with a thread of its own."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, tick: Callable[[], None], interval_ms: int) -> None:
        def run() -> None:
            while not self._stop.wait(interval_ms / 1000):
                tick()

        self._stop.clear()
        self._thread = threading.Thread(target=run, name="fastjournal-sync", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


class Appender:
    """Appends to one stream; made by `Stream.open_appender`."""

    def __init__(
        self,
        stream: SegmentDirectory,
        options: AppendOptions,
        ticker: Ticker | None = None,
        *,
        preallocate: bool = False,
    ) -> None:
        """`preallocate`: room is reserved ahead (see `segment_writer`)."""
        self.stream = stream
        self.options = options
        self._ticker: Ticker = ticker or ThreadTicker()
        self._guard = threading.RLock()  # appends of several threads, and the ticker's sync
        self._always = options.sync == "always"
        self._preallocate = (lambda: True) if preallocate else None
        # What every append asks for, within one step.
        self._segment_size = options.segment_size
        self._now = stream.clock.now
        self._max_payload = stream.max_payload
        self._zone = stream.zone
        self._lock: FileLock | None = None
        self._mark: SyncedMark | None = None
        self._manifest = ManifestFile(stream)
        self._writer: SegmentWriter | None = None

    def lock(self, timeout: float | None = None) -> None:
        """Become the stream's only appender; waits for the other one, at most `timeout` seconds."""
        if self._lock is not None:
            raise BadRequest("the appender is locked already")
        lock = self.stream.lock_appender(timeout)
        try:
            report = recover(self.stream)
            self._mark = SyncedMark(self.stream.files, self.stream.path, lock)
            self._writer = open_newest(self.stream, self._mark, report.last_time, report.used)
            self._writer.preallocate = self._preallocate
            take_in(self._manifest, self._writer.number - 1)
        except BaseException:
            self._mark_close()
            lock.release()
            raise
        self._lock = lock
        if self.options.sync == "interval":
            self._ticker.start(self._tick, self.options.sync_interval or DEFAULT_SYNC_INTERVAL)

    def unlock(self) -> None:
        """Sync what is left, close the segment, let the next appender in.

        A poisoned appender says so here too: its last appends may not be safe.
        """
        if self._lock is None:
            return
        if self.options.sync == "interval":
            self._ticker.stop()
        with self._guard:
            lock, self._lock = self._lock, None
            writer, self._writer = self._writer, None
            try:
                if writer is not None:
                    try:
                        writer.check()
                        writer.trim()
                        if writer.dirty:
                            writer.sync()
                    finally:
                        writer.close()
            finally:
                self._mark_close()
                lock.release()

    close = unlock

    def append(self, payload: bytes) -> int:
        """Add one record; returns its TIME in ns since 1970."""
        if type(payload) is not bytes or len(payload) > self._max_payload:
            check_payloads((payload,), self._max_payload)
        with self._guard:
            writer = self._writer
            if writer is None or writer.offset >= self._segment_size:
                writer = self._ready()
            time = self._now()
            if time <= writer.last_time:
                time = writer.last_time + 1
            writer.write(codec.encode(time, payload, self._zone), time)
            if self._always:
                writer.sync()
            return time

    def append_many(self, payloads: Iterable[bytes]) -> list[int]:
        """Add records with one write (and one sync if the policy is `always`); returns their TIMEs.

        They stand together in one segment. Either all are appended or none.
        """
        batch = payloads if isinstance(payloads, (list, tuple)) else list(payloads)
        check_payloads(batch, self.stream.max_payload)
        if not batch:
            return []
        with self._guard:
            writer = self._ready()
            first = max(self.stream.clock.now(), writer.last_time + 1)
            data, count = codec.encode_many(first, batch, self.stream.zone)
            writer.write(data, first + count - 1)
            if self._always:
                writer.sync()
            return list(range(first, first + count))

    def append_made(self, count: int, make: Callable[[int, int], bytes]) -> int:
        """Add `count` records that `make(first TIME, zone)` encodes, a nanosecond apart.

        For a caller that encodes many at once; returns the first TIME. All or none, as above.
        """
        with self._guard:
            writer = self._ready()
            first = max(self.stream.clock.now(), writer.last_time + 1)
            writer.write(make(first, self.stream.zone), first + count - 1)
            if self._always:
                writer.sync()
            return first

    def append_encoded(self, data: bytes, first_time: int, last_time: int) -> None:
        """Add whole records of another log, whose TIMEs rise and lie behind all that is here.

        The caller has checked them. All or none, as above.
        """
        with self._guard:
            writer = self._ready()
            if first_time <= writer.last_time:
                raise BadRequest(f"TIME {first_time} is not behind {writer.last_time}")
            writer.write(data, last_time)
            if self._always:
                writer.sync()

    def sync(self) -> None:
        """Bring everything appended so far to stable storage, whatever the policy."""
        with self._guard:
            self._held().sync()

    def rotate(self) -> int:
        """Close the current segment and go on in a new one; returns its number."""
        with self._guard:
            return self._roll(self._held()).number

    @property
    def position(self) -> Position:
        """Where the next record goes."""
        writer = self._held()
        return Position(writer.number, writer.offset)

    @property
    def last_time(self) -> int:
        """TIME of the newest record; 0 in an empty stream."""
        return self._held().last_time

    def __enter__(self) -> Self:
        self.lock()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.unlock()
        except AppenderPoisoned:
            if error is None:  # else the error under way tells more
                raise

    def _held(self) -> SegmentWriter:
        if self._writer is None:
            raise NotLocked("lock the appender before using it")
        return self._writer

    def _ready(self) -> SegmentWriter:
        writer = self._held()
        if writer.offset >= self.options.segment_size:
            return self._roll(writer)
        return writer

    def _roll(self, writer: SegmentWriter) -> SegmentWriter:
        writer.trim()
        writer.sync()
        assert self._mark is not None
        fresh = make_segment(self.stream, writer.number + 1, self._mark, writer.last_time)
        try:
            writer.close()
        except AppenderPoisoned:  # and so is this appender: the old writer stays in its place
            fresh.close()
            raise
        fresh.preallocate = self._preallocate
        self._writer = fresh
        name_sealed(self._manifest, writer)
        return fresh

    def _tick(self) -> None:
        writer = self._writer  # no lock: an append goes on beside the sync
        if writer is not None and writer.dirty and not writer.poisoned:
            with contextlib.suppress(AppenderPoisoned):  # the next append says so
                writer.sync()

    def _mark_close(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.close()


def open_newest(
    stream: SegmentDirectory, mark: SyncedMark, last_time: int, used: int = -1
) -> SegmentWriter:
    """The newest segment of a recovered stream, ready to be written; number 1 if there is none.

    If that one is sealed, as its number `used` in the manifest says, the next one is made.
    """
    numbers = stream.segments()
    if not numbers or numbers[-1] <= used:
        number = max(used + 1, 1)
        mark.begin(number, 0, last_time)
        return make_segment(stream, number, mark, last_time)
    writer = SegmentWriter.resume(
        stream.files, stream.path, numbers[-1], stream.header, mark, last_time
    )
    mark.begin(writer.number, writer.offset, last_time)
    return writer


def make_segment(
    stream: SegmentDirectory, number: int, mark: SyncedMark, last_time: int
) -> SegmentWriter:
    """A new segment that takes over as the newest; all older ones must be synced."""
    writer = SegmentWriter.create(stream.files, stream.path, number, stream.header, mark, last_time)
    writer.mark_synced()
    return writer


def take_in(manifest: ManifestFile, upto: int) -> None:
    """Bring the manifest up to date when a log is opened; a full disk does not prevent that."""
    with contextlib.suppress(NoSpace):  # then the next segment that is left comes with them
        manifest.settle()
        manifest.take_in(upto)


def name_sealed(manifest: ManifestFile, writer: SegmentWriter) -> bool:
    """Name a segment that was left; False if that failed: the next one tries it again."""
    try:
        manifest.seal(writer.number, writer.last_time)
    except JournalError as error:
        _log.warning("%s: not named in the manifest yet: %s", writer.path, error)
        return False
    return True


def check_payloads(payloads: Collection[bytes], limit: int) -> None:
    """Refuse what cannot be a record, before anything is written."""
    if set(map(type, payloads)) <= _BYTES and max(map(len, payloads), default=0) <= limit:
        return
    for payload in payloads:
        if type(payload) is not bytes and not _is_bytes(payload):
            raise BadRequest(f"a payload must be bytes, not {type(payload).__name__}")
        if len(payload) > limit:
            raise TooLarge(f"a payload of {len(payload)} bytes exceeds the limit of {limit}")


def _is_bytes(payload: object) -> bool:
    if isinstance(payload, memoryview):  # its length counts items, which may be larger than a byte
        return payload.contiguous and payload.itemsize == 1 and payload.ndim == 1
    return isinstance(payload, (bytes, bytearray))
