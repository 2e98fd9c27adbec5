"""A log as the commands of `fastjournal log` open it and show it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.errors import NotFound, SegmentError, SettingError

if TYPE_CHECKING:
    from fastjournal.log.care.check import Fault, SegmentCheck
    from fastjournal.log.segment import Header
    from fastjournal.log.stream import Stream

__all__ = [
    "dead_tail",
    "fault_values",
    "fault_words",
    "is_salvaged",
    "magic_text",
    "open_stream",
    "segment_values",
    "total_values",
]


def open_stream(directory: Path, magic: str | None, version: int | None) -> Stream:
    """The log in a directory; what segments begin with is read from it unless given."""
    from fastjournal.log.segment import CAPTAIN, Header
    from fastjournal.log.stream import Stream

    plain = Stream(directory)
    if not plain.segments() and not _traces(directory):
        raise NotFound(f"no log in {directory}")
    found = _header(plain) if magic is None or version is None else None
    if found is None:
        found = CAPTAIN
    return Stream(
        directory,
        Header(
            found.magic if magic is None else _magic_bytes(magic),
            found.version if version is None else version,
        ),
    )


def _traces(directory: Path) -> bool:
    """Whether there was a log here: segments that are all gone are damage, not a typo."""
    from fastjournal.log.manifest import MANIFEST

    return any(
        path.name == MANIFEST or path.suffix in (".pos", ".snapshot", ".checkpoint")
        for path in directory.iterdir()
    )


def _magic_bytes(text: str) -> bytes:
    """Four characters, or 0x and eight hexadecimal digits."""
    if text.startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise SettingError(f"magic: not hexadecimal: {text!r}", name="magic") from None
    return text.encode()


def magic_text(stream: Stream) -> str:
    """The magic as text where it is text, else 0x and hex."""
    text = stream.header.magic.decode("ascii", "replace")
    return text if text.isprintable() and text.isascii() else f"0x{stream.header.magic.hex()}"


def is_salvaged(stream: Stream) -> bool:
    """Whether the log was repaired once."""
    from fastjournal.log.care.repair import SALVAGED

    return stream.files.exists(stream.path / SALVAGED)


def _header(stream: Stream) -> Header | None:
    """What the oldest segment that has a header begins with."""
    from fastjournal.log.segment import HEADER_SIZE, Header

    for number in stream.segments():
        path = stream.segment_path(number)
        if not stream.files.is_file(path):
            continue
        try:
            handle = stream.files.open_read(path)
        except OSError as error:
            raise SegmentError(path, f"cannot be opened: {error.strerror}") from error
        try:
            head = handle.read(0, HEADER_SIZE)
        finally:
            handle.close()
        if len(head) == HEADER_SIZE and any(head):
            return Header.decode(head)
    return None


def dead_tail(check: SegmentCheck) -> int:
    """Bytes behind the last whole record."""
    return sum(fault.length for fault in check.faults if fault.torn)


def fault_words(check: SegmentCheck) -> str:
    """What is wrong with a segment, in two words."""
    damaged = sum(not fault.torn for fault in check.faults)
    return f"{damaged} damaged" if damaged else "torn tail" if check.faults else ""


def segment_values(check: SegmentCheck) -> dict[str, object]:
    """A segment as JSON shows it."""
    return {
        "segment": check.number,
        "file": str(check.path),
        "size": check.size,
        "records": check.records,
        "payload_bytes": check.payload_bytes,
        "first_time": check.first_time,
        "last_time": check.last_time,
        "dead_tail": dead_tail(check),
        "faults": [fault_values(fault) for fault in check.faults],
    }


def total_values(stream: Stream, checks: list[SegmentCheck]) -> dict[str, object]:
    """The whole log as JSON shows it."""
    return {
        "magic": magic_text(stream),
        "version": stream.header.version,
        "segments": len(checks),
        "size": sum(check.size for check in checks),
        "records": sum(check.records for check in checks),
        "payload_bytes": sum(check.payload_bytes for check in checks),
        "dead_tail": sum(map(dead_tail, checks)),
        "salvaged": is_salvaged(stream),
    }


def fault_values(fault: Fault) -> dict[str, object]:
    """A fault as JSON shows it."""
    return {
        "file": str(fault.path),
        "offset": fault.offset,
        "length": fault.length,
        "reason": fault.reason,
        "torn": fault.torn,
    }
