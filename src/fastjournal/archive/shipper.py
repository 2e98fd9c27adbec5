"""Carries out what `shipping` asks for, on a thread of its own.

Rules:

1. The thread looks at the log every `interval`, and once a second whether 4 MiB have come. It takes
   no lock of the journal and holds at most a few MiB: no answer ever waits for it.
2. A store in trouble is tried again after 1 s, 2 s, 4 s, ... up to a minute. That costs only disk:
   the cleaner leaves alone what is not archived, for `max_lag` seconds. Then, as `behind` says, it
   goes on (`clean`: the archive begins anew later) or the journal stops taking writes (`stop`).
3. At the end the rest is shipped, if the store answers within ten seconds.
4. `archive.pos` beside the log remembers the epoch claimed last (see `shipping.Lineage`). Once the
   log was repaired it is another one: then equal bytes are the proof, not this.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fastjournal.archive.care import prune
from fastjournal.archive.manifest import ShippedPart, ShippedSegment, epochs, find_newest
from fastjournal.archive.shipping import (
    TAIL_BYTES,
    CopySegment,
    CopySnapshot,
    Create,
    Get,
    Lineage,
    ListEpochs,
    Look,
    ReadNewest,
    RememberLineage,
    Renumber,
    Request,
    Shipping,
    Superseded,
)
from fastjournal.archive.source import Changed, Content, Reign, Source, View
from fastjournal.archive.store import Store, open_store
from fastjournal.clock import SECOND, SYSTEM_CLOCK, Clock
from fastjournal.errors import ArchiveError, JournalError, NotFound, SettingError
from fastjournal.log.care.repair import SALVAGED
from fastjournal.log.files import Files, file_size, read_file, replace_file

__all__ = ["LINEAGE", "ArchiveOptions", "ArchiveStatus", "Shipper"]

LINEAGE = "archive.pos"
_LOOK = 1.0  # seconds
_BACK_OFF = 60.0  # seconds, at most
_LAST_WAIT = 10.0  # seconds
_MOMENT = 0.01  # seconds
_PATIENCE = 100  # moments
_PRUNE = 3600 * SECOND
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """How a journal is archived; times in seconds."""

    interval: float = 5.0
    """Between two looks for what is new."""
    max_lag: float = 86_400.0
    """How long the cleaner waits for what is not archived."""
    behind: str = "clean"
    """Then: `clean`, and the archive begins anew; or `stop` taking writes."""
    keep_days: float = 0
    """Instants older than this need not be restorable; 0: all are kept."""
    keep_versions: int = 100
    """Manifests to keep."""
    compress: bool = False
    """Pack sealed segments with zstd."""
    reign: Reign | None = None
    """Of a replicated journal: who ships it."""

    def __post_init__(self) -> None:
        if self.behind not in ("clean", "stop"):
            raise SettingError(f"behind is clean or stop, not {self.behind!r}", name="behind")
        if self.keep_versions < 2:
            raise SettingError("keep_versions must be 2 or more", name="keep_versions")
        if not self.interval > 0:
            raise SettingError("interval must be more than 0", name="interval")


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """How far an archive is."""

    address: str
    state: str
    """`starting`, `shipping`, `failing`, `behind` (for longer than it may be) or `superseded`."""
    epoch: int
    archived_to: int
    """The last TIME that can be restored."""
    lag_seconds: float
    lag_bytes: int
    uploads: int
    uploaded_bytes: int
    errors: int
    last_error: str


class Shipper:
    """Ships one log to one store; `start` it, or call `ship` yourself."""

    def __init__(
        self,
        source: Source,
        address: str,
        options: ArchiveOptions | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        store: Callable[[], Store] | None = None,
        remembers: bool = True,
    ) -> None:
        """`store`: how to open it. `remembers`: keep `archive.pos` beside the log."""
        self.address = address
        self.options = options or ArchiveOptions()
        self._source = source
        self._files: Files = source.stream.files
        self._clock = clock
        self.open_store = store or (lambda: open_store(address, files=self._files))
        """Called when the store is first needed."""
        self._store: Store | None = None
        self._remembers = remembers
        self._repaired = self._size_of(SALVAGED)
        lineage = self._read_lineage() if remembers else None
        if lineage is not None and lineage.repaired != self._repaired:
            lineage = None
        reign = 0 if self.options.reign is None else self.options.reign.epoch
        self._shipping = Shipping(secrets.token_hex(8), lineage, self.options.keep_days, reign)
        if self.options.compress:
            _zstd()
        self._wake = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._uploads = self._uploaded = self._errors = 0
        self._last_error = ""
        self._failures = 0  # in a row
        self._bytes = 0
        self._lag_from: int | None = None  # since when something is not archived
        self._shipped_at = self._pruned_at = clock.monotonic()
        self._shipped_to = (0, 0)  # segment and offset, as far as is known
        self._complained = False
        self.last_wait = _LAST_WAIT
        """Seconds for the rest, when the journal closes."""
        self.on_behind: Callable[[str], object] | None = None
        """Called once when the archive is too far behind and the journal is to stop."""

    def is_own_archive(self) -> bool:
        """Whether the journal's own shipper uses this archive."""
        return self._read_lineage() is not None

    @property
    def hold(self) -> int:
        """Segments below this number may be cleaned; see rule 2."""
        self._judge_lag()  # the shipper's own thread may be inside a request that never ends
        if self.is_behind and self.options.behind == "clean":
            return 1 << 62
        return self._shipping.hold - self._source.shift

    @property
    def is_behind(self) -> bool:
        """Whether the archive is behind for longer than it may be."""
        return self._lag() > self.options.max_lag

    def _lag(self) -> float:
        start = self._lag_from
        return 0.0 if start is None else (self._clock.monotonic() - start) / SECOND

    def status(self) -> ArchiveStatus:
        """How far it is."""
        written = self._shipping.written
        if self._shipping.superseded:
            state = "superseded"
        elif self.is_behind:
            state = "behind"
        elif self._failures:
            state = "failing"
        else:
            state = "shipping" if self._shipping.epoch else "starting"
        return ArchiveStatus(
            self.address,
            state,
            self._shipping.epoch,
            0 if written is None else written.end,
            round(self._lag(), 3),
            self._bytes,
            self._uploads,
            self._uploaded,
            self._errors,
            self._last_error,
        )

    def ship(self) -> bool:
        """One round, on the caller's thread; False if it failed, which `status` tells of."""
        try:
            self.ship_once()
        except Superseded as error:
            _log.error(
                "%s: another shipper has taken over; this journal is not archived any more: %s",
                self.address,
                error,
            )
            self._last_error = f"another shipper has taken over: {error}"
        except (JournalError, OSError) as error:
            self._errors += 1
            self._failures += 1
            self._last_error = str(error)
            if self._failures == 1:
                _log.warning("%s: archiving failed, will try again: %s", self.address, error)
            self._judge_lag()
            return False
        else:
            self._failures, self._last_error = 0, ""
        self._judge_lag()
        return True

    def ship_once(self) -> None:
        """One round; whatever goes wrong is raised."""
        with self._one_at_a_time:
            self._ship()

    def _ship(self) -> None:
        mark = self._source.mark()
        view = self._look()
        for _ in range(_PATIENCE):
            if view.complete:
                break
            self._wake.wait(_MOMENT)  # a segment was just left and is about to be named
            view = self._look()
        round_ = self._shipping.round(view, self._clock.now())
        answer: Any = None
        try:
            while True:
                answer = self._answer(round_.send(answer))
        except StopIteration:
            pass
        self._shipped_at = self._clock.monotonic()
        self._shipped_to = (mark.segment, mark.offset)
        self._look()
        self._prune_at_times()

    def _look(self) -> View:
        view = self._source.view()
        self._bytes = self._shipping.behind(view)
        if not self._bytes and self._shipping.written is not None:
            self._lag_from = None
        elif self._lag_from is None:
            self._lag_from = self._clock.monotonic()
        return view

    def _judge_lag(self) -> None:
        if not self.is_behind:
            self._complained = False
            return
        if self._complained:
            return
        self._complained = True
        goes_on = self.options.behind == "clean"
        complaint = f"{self.address}: nothing was archived for {self._lag():.0f} s"
        _log.critical(
            "%s, longer than archive_max_lag. %s",
            complaint,
            "Cleaning goes on without it" if goes_on else "Writing stops",
        )
        if not goes_on and self.on_behind is not None:
            self.on_behind(complaint)

    def _answer(self, request: Request) -> Any:
        if isinstance(request, Look):
            return self._source.view()
        if isinstance(request, Renumber):
            self._source.shift = request.shift
            return self._source.view()
        if isinstance(request, RememberLineage):
            return self._remember(request.lineage)
        store = self._store = self._store or self.open_store()
        if isinstance(request, ListEpochs):
            return epochs(store)
        if isinstance(request, ReadNewest):
            return find_newest(store)
        if isinstance(request, Get):
            try:
                return store.get(request.name)
            except NotFound:
                return None
        if isinstance(request, Create):
            made = store.create(request.name, request.data)
            self._count(len(request.data))
            return made
        if isinstance(request, CopySegment):
            return self._copy_segment(store, request)
        if isinstance(request, CopySnapshot):
            content = self._source.snapshot(request.snapshot)
            return self._put(store, request.listed.name, content, content)
        return self._copy_part(store, request.listed, request.fresh)

    def _copy_segment(self, store: Store, request: CopySegment) -> ShippedSegment | None:
        content, listed = self._source.segment(request.sealed), request.listed
        if not self.options.compress:
            return listed if self._put(store, listed.name, content, content) else None
        packed = _Packed(content)
        name = listed._replace(stored=1).name
        if not self._put(store, name, packed, content):
            return None
        return listed._replace(stored=packed.size)

    def _copy_part(self, store: Store, listed: ShippedPart, fresh: int) -> ShippedPart | None:
        content = self._source.part(listed.segment, listed.start, listed.end, fresh)
        if not self._put(store, listed.name, content, content):
            return None
        return listed._replace(crc=content.crc, first=content.first, last=content.last)

    def _put(self, store: Store, name: str, chunks: Iterable[bytes], content: Content) -> bool:
        try:
            store.put(name, chunks)
        except (Changed, ArchiveError):
            if content.changed:
                return False
            raise
        if content.changed:
            return False
        self._count(content.size)
        return True

    def _count(self, size: int) -> None:
        self._uploads += 1
        self._uploaded += size

    def _prune_at_times(self) -> None:
        now = self._clock.monotonic()
        if self._store is not None and now - self._pruned_at >= _PRUNE:
            self._pruned_at = now
            prune(self._store, keep_versions=self.options.keep_versions)

    def _read_lineage(self) -> Lineage | None:
        path = self._source.stream.path / LINEAGE
        try:
            if not self._files.exists(path):
                return None
            known = json.loads(read_file(self._files, path))
            if known["address"] != self.address:
                return None
            return Lineage(known["epoch"], known["word"], known["after"], known.get("repaired", 0))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # then equal bytes are the proof

    def _size_of(self, name: str) -> int:
        path = self._source.stream.path / name
        return file_size(self._files, path) if self._files.exists(path) else 0

    def _remember(self, lineage: Lineage) -> None:
        if not self._remembers:
            return
        path = self._source.stream.path / LINEAGE
        lineage = lineage._replace(repaired=self._repaired)
        data = json.dumps({"address": self.address, **lineage._asdict()}).encode()
        try:
            replace_file(self._files, path, [data])
        except OSError as error:
            raise ArchiveError(f"{path}: {error}") from error

    @property
    def is_started(self) -> bool:
        """Whether a thread ships by itself."""
        return self._thread is not None

    def start(self) -> None:
        """Ship from now on, on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="fastjournal-archive", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ship the rest, if the store is well, and end."""
        self._stopping = True
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(self.last_wait)
            if thread.is_alive():
                _log.warning("%s: the store is slow: the rest is not archived yet", self.address)

    def _run(self) -> None:
        while not self._shipping.superseded:
            stopping = self._stopping
            try:
                if stopping or self._is_due():
                    self.ship()
            except Exception as error:  # never the journal's end
                self._failures += 1
                self._errors += 1
                self._last_error = repr(error)
                _log.exception("%s: archiving failed, will try again", self.address)
            if stopping:
                return
            self._wake.wait(self._pause())

    def _pause(self) -> float:
        if self._failures:
            return min(_BACK_OFF, 2.0 ** (self._failures - 1))
        return min(_LOOK, self.options.interval)

    def _is_due(self) -> bool:
        if self._failures or not self._shipping.epoch:
            return True
        since = (self._clock.monotonic() - self._shipped_at) / SECOND
        if since >= self.options.interval:
            return True
        mark, (segment, offset) = self._source.mark(), self._shipped_to
        return mark.segment != segment or mark.offset - offset >= TAIL_BYTES


class _Packed:
    """Content packed with zstd; counts what comes out."""

    def __init__(self, content: Iterable[bytes]) -> None:
        self._content = content
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        packer = _zstd().ZstdCompressor(level=3).compressobj()
        self.size = 0
        for chunk in self._content:
            yield from self._out(packer.compress(chunk))
        yield from self._out(packer.flush())

    def _out(self, data: bytes) -> Iterator[bytes]:
        self.size += len(data)
        if data:
            yield data


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise SettingError(
            "packing segments needs pip install 'fastjournal[archive]'", name="compress"
        ) from error
    return zstandard
