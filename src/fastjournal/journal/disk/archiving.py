"""Sealed segments copied to the archive, each history once.

Rules:

1. A name says nothing: a copy counts if it has the bytes of the segment, or holds every record of
   it and more, as it does once the segment was cleaned.
2. A copy with that name which lacks a record of the segment is of another history, as a repair may
   leave one behind. It is kept under `<name>.before-<time>`, and the segment is copied.
3. Written beside it, synced, renamed, the directory synced: a crash leaves the old copy, the one
   set aside, or the new one.
"""

from __future__ import annotations

import logging
from pathlib import Path

import google_crc32c

from fastjournal.log.files import Files
from fastjournal.log.record import decode_many
from fastjournal.log.segment import HEADER_SIZE, REWRITE_SUFFIX
from fastjournal.log.write.segment_writer import write_whole

__all__ = ["copy_segment"]

_log = logging.getLogger(__name__)


def copy_segment(files: Files, source: Path, archive: Path, now: int) -> bool:
    """Copy a sealed segment into a directory; False if that has it already."""
    target = archive / source.name
    data = _content(files, source)
    if files.exists(target):
        copy = _content(files, target)
        if _is_same(data, copy) or _holds(copy, data):
            return False
        aside = target.with_name(f"{target.name}.before-{now}")
        _log.warning("%s is of another history: kept as %s", target, aside.name)
        files.rename(target, aside)
        files.sync_directory(archive)
    work = target.with_name(target.name + REWRITE_SUFFIX)
    if files.exists(work):
        files.remove(work)
    handle = files.create(work)
    try:
        write_whole(handle, data)
        handle.sync()
    finally:
        handle.close()
    files.rename(work, target)
    files.sync_directory(archive)
    return True


def _is_same(data: bytes, copy: bytes) -> bool:
    return len(data) == len(copy) and google_crc32c.value(data) == google_crc32c.value(copy)


def _holds(copy: bytes, data: bytes) -> bool:
    """Whether all records of `data` are among those of `copy`."""
    there = {
        (record.time, record.payload)
        for record in decode_many(copy, HEADER_SIZE, len(copy), 0, 0)[0]
    }
    records = decode_many(data, HEADER_SIZE, len(data), 0, 0)[0]
    return all((record.time, record.payload) in there for record in records)


def _content(files: Files, path: Path) -> bytes:
    handle = files.open_read(path)
    try:
        return handle.read(0, handle.size())
    finally:
        handle.close()
