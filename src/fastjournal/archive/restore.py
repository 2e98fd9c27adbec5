"""A journal made again from its archive, as of now or of any instant.

Rules:

1. The newest snapshot as of the instant or before, the segments behind it, the tail; the segment in
   which the instant lies is cut behind its last record up to then.
2. A file `restoring` marks a directory that was not finished: every opening and repair refuses it,
   restoring again begins anew. The manifest of the log is written before what it names.
3. Every byte is checked against the archive's manifest, and the end is the recovery of any opening.
4. An instant before the archive can tell is refused; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from fastjournal.archive.care import object_chunks
from fastjournal.archive.manifest import Manifest, ShippedPart, ShippedSegment, ShippedSnapshot
from fastjournal.archive.store import Store
from fastjournal.clock import instant_text
from fastjournal.errors import ArchiveError, BadRequest, write_failure
from fastjournal.log import manifest as log_manifest
from fastjournal.log.care.recovery import recover
from fastjournal.log.files import DISK, Files, make_file
from fastjournal.log.manifest import ManifestFile, Sealed, first_time
from fastjournal.log.record import Walk
from fastjournal.log.segment import HEADER_SIZE, WORKQ, Header, segment_name
from fastjournal.log.segment_directory import RESTORING
from fastjournal.log.stream import Stream

__all__ = ["RestorePlan", "Restored", "plan_restore", "restore"]

Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore would take."""

    to: int | None
    """The instant asked for; None: all there is."""
    snapshot: ShippedSnapshot | None
    segments: tuple[ShippedSegment, ...]
    parts: tuple[ShippedPart, ...]
    bytes: int
    """To be downloaded."""
    dropped_to: int


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore made."""

    plan: RestorePlan
    last_time: int
    """TIME of the last record; 0 if there is none."""


def plan_restore(manifest: Manifest, to: int | None = None) -> RestorePlan:
    """Choose what is needed for an instant (rules 1 and 4)."""
    usable = [one for one in manifest.snapshots if to is None or one.as_of <= to]
    snapshot = max(usable, key=lambda one: one.as_of, default=None)
    if manifest.floor and (snapshot is None or snapshot.number < manifest.floor):
        raise BadRequest(_too_early(to, manifest))
    start = 0 if snapshot is None else snapshot.number
    segments = []
    for one in manifest.segments:
        if one.number >= start:
            if to is not None and one.first > to:
                break
            segments.append(one)
    exact_from = max((one.exact_from for one in segments), default=0)
    if to is not None and to < exact_from:
        raise BadRequest(_too_early(to, manifest))
    parts = [
        one
        for one in manifest.parts
        if one.segment >= start and (to is None or not one.first or one.first <= to)
    ]
    if len(segments) < sum(one.number >= start for one in manifest.segments):
        parts = []  # it ends in a segment before
    if snapshot is None and not segments and not parts:
        raise BadRequest(_too_early(to, manifest))
    below = max((one.last for one in manifest.segments if one.number < start), default=0)
    size = sum(one.bytes for one in segments) + sum(one.size for one in parts)
    size += 0 if snapshot is None else snapshot.size
    return RestorePlan(to, snapshot, tuple(segments), tuple(parts), size, max(exact_from, below))


def _too_early(to: int | None, manifest: Manifest) -> str:
    asked = "the end" if to is None else instant_text(to)
    begin = instant_text(manifest.begin)
    return f"the archive cannot tell the state at {asked}; the earliest is {begin}"


def restore(
    store: Store,
    plan: RestorePlan,
    directory: str | Path,
    *,
    files: Files = DISK,
    header: Header = WORKQ,
    progress: Progress | None = None,
) -> Restored:
    """Carry out a plan into a directory that is empty or missing."""
    return _Restore(store, plan, Stream(directory, header, files=files), progress).run()


class _Restore:
    def __init__(
        self, store: Store, plan: RestorePlan, stream: Stream, progress: Progress | None
    ) -> None:
        self._store = store
        self._plan = plan
        self._stream = stream
        self._files = stream.files
        self._progress = progress
        self._done = 0

    def run(self) -> Restored:
        stream, plan = self._stream, self._plan
        self._begin()
        *whole, newest = self._in_order()
        number, pieces = newest
        last = max((listed.last for listed in pieces), default=0)
        content, last = self._cut(b"".join(map(b"".join, map(self._chunks, pieces))), last)
        self._write_manifest(whole, number, content, last)
        if plan.snapshot is not None:
            name = f"{plan.snapshot.number:09d}"
            self._write(f"{name}.snapshot", self._chunks(plan.snapshot))
            self._write(f"{name}.checkpoint", [bytes.fromhex(plan.snapshot.checkpoint)])
        for one, parts in whole:
            self._write(segment_name(one), (chunk for p in parts for chunk in self._chunks(p)))
        self._write(segment_name(number), [content])
        lock = stream.lock_appender(1.0)
        try:
            recovered = recover(stream)
        finally:
            lock.release()
        self._files.remove(stream.path / RESTORING)
        self._files.sync_directory(stream.path)
        return Restored(plan, recovered.last_time)

    def _begin(self) -> None:
        stream, files = self._stream, self._files
        stream.create()
        marker = stream.path / RESTORING
        names = files.names(stream.path)
        if names and RESTORING not in names:
            raise BadRequest(f"{stream.path} is not empty")
        try:
            for name in names:
                if name != RESTORING:
                    files.remove(stream.path / name)
            if not names:
                files.create(marker).close()
            files.sync_directory(stream.path)
        except OSError as error:
            raise write_failure(error, marker) from error

    def _in_order(self) -> list[tuple[int, list[ShippedSegment] | list[ShippedPart]]]:
        """Segment numbers, and what each is made of; the newest last."""
        plan = self._plan
        found: list[tuple[int, list[ShippedSegment] | list[ShippedPart]]] = [
            (one.number, [one]) for one in plan.segments
        ]
        if plan.parts:
            found.append((plan.parts[0].segment, list(plan.parts)))
            at = 0
            for part in plan.parts:
                if part.start != at or part.segment != plan.parts[0].segment:
                    raise ArchiveError(f"{part.name}: does not follow the part before it")
                at = part.end
        if not found:  # all of it is in the snapshot: the log goes on behind that
            assert plan.snapshot is not None
            found.append((plan.snapshot.number, []))
        return found

    def _chunks(self, listed: ShippedSegment | ShippedSnapshot | ShippedPart) -> Iterable[bytes]:
        for chunk in object_chunks(self._store, listed):
            self._done += len(chunk)
            if self._progress is not None:
                self._progress(self._done, self._plan.bytes)
            yield chunk

    def _cut(self, content: bytes, last: int) -> tuple[bytes, int]:
        """What of the newest segment lies up to the instant, and the last TIME in it."""
        if not content:
            return self._stream.header.encode(), 0
        self._stream.header.check(content[:HEADER_SIZE], self._stream.path)
        to = self._plan.to
        if to is None or last <= to:
            return content, last
        walk = Walk(content, HEADER_SIZE, len(content), self._stream.max_payload)
        end, last = HEADER_SIZE, 0
        while end < len(content):
            walk.step()
            if walk.time > to:
                break
            end, last = int(walk.at), int(walk.time)
        return content[:end], last

    def _write_manifest(
        self,
        whole: list[tuple[int, list[ShippedSegment] | list[ShippedPart]]],
        number: int,
        content: bytes,
        last: int,
    ) -> None:
        plan = self._plan
        sealed = {
            one.number: Sealed(one.number, one.first, one.last, one.size, one.crc)
            for one in plan.segments
            if one.number != number
        }
        assert len(sealed) == len(whole)
        used = max(sealed, default=-1)
        if len(content) > HEADER_SIZE:
            crc = google_crc32c.value(content)
            sealed[number] = Sealed(number, first_time(content), last, len(content), crc)
            used = number
        floor = 0 if plan.snapshot is None else plan.snapshot.number
        used = max(used, floor - 1)
        ManifestFile(self._stream).replace(
            log_manifest.Manifest(sealed, 0, used, floor, plan.dropped_to)
        )

    def _write(self, name: str, chunks: Iterable[bytes]) -> None:
        path = self._stream.path / name
        try:
            make_file(self._files, path, chunks)
            self._files.sync_directory(path.parent)
        except OSError as error:
            raise write_failure(error, path) from error
