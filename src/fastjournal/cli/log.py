"""`fastjournal log`: look into a log, check it, and mend it by hand.

Rules:

1. `dump`, `stat` and `verify` only read: they take no lock and change nothing, so they work beside
   a live appender and on a read-only disk.
2. `verify` ends with 0 for a clean log, 1 if only a torn tail is there that the next opening mends,
   3 for damage.
3. `repair` does nothing until it is told what to do, and asks before it does it.
4. A payload that is no command of ours stays bytes: the log carries other things too.
5. Fields that say nothing (0, empty) are left out. Values are told by their size, texts by their
   beginning.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastjournal.cli.arguments import Json
from fastjournal.cli.output import bytes_text, json_line, preview, progress, show_outcome, table
from fastjournal.clock import instant_text
from fastjournal.errors import NotFound, SegmentError, SettingError

if TYPE_CHECKING:
    from fastjournal.log.care.check import Fault, SegmentCheck
    from fastjournal.log.care.repair import Dropped
    from fastjournal.log.record import Record
    from fastjournal.log.segment import Header, Position
    from fastjournal.log.stream import Stream

__all__ = ["app", "command_text", "command_values"]


_INSTANTS = ("due", "inserted", "modified", "expires", "until", "start", "when", "created", "time")
_TEXTS = ("queue", "name", "key", "worker", "note", "reason_text", "owner", "sender")
_NUMBERS = (
    "rank",
    "priority",
    "attempts",
    "attempt",
    "timeouts",
    "fails",
    "kind",
    "mark",
    "reason",
)
_CONTENTS = ("value", "payload", "result")
_WIDTH = 60


def command_values(payload: bytes) -> dict[str, Any] | None:
    """What a payload says; None: it is no command."""
    from fastjournal.errors import CorruptCommand
    from fastjournal.journal.language.codec import decode

    try:
        return _values(decode(payload))
    except CorruptCommand:
        return None


def _values(command: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"type": type(command).__name__.upper()}
    members = getattr(command, "members", None)
    if members is not None:
        return values | {"members": [_values(member) for member in members]}
    row_id = getattr(command, "id", b"")
    if isinstance(row_id, bytes) and any(row_id):
        values["id"] = row_id.hex()
    for name in (*_TEXTS, *_NUMBERS, *_INSTANTS, *_CONTENTS):
        value = getattr(command, name, None)
        if isinstance(value, bytes):
            if value and name in _CONTENTS:
                values[f"{name}_bytes"] = len(value)
            elif value:
                values[name] = value.decode("utf-8", "backslashreplace")
        elif isinstance(value, int) and value and not isinstance(value, bool):
            values[name] = int(value)
    return values


def command_text(values: dict[str, Any]) -> str:
    """The same in one line."""
    members = values.get("members")
    if members is not None:
        inside = "; ".join(command_text(member) for member in members[:3])
        more = f"; and {len(members) - 3} more" if len(members) > 3 else ""
        return f"{values['type']} of {len(members)}: {inside}{more}"
    words = [values["type"]]
    for name, value in values.items():
        if name == "id":
            words.append(value[:12])
        elif name in _INSTANTS:
            words.append(f"{name}={instant_text(value)[:19]}Z")
        elif name != "type":
            shown = preview(value.encode(), _WIDTH) if isinstance(value, str) else value
            words.append(f"{name}={shown}")
    return " ".join(map(str, words))


CLEAN, TORN, DAMAGE = 0, 1, 3
_POLL_SECONDS = 0.1

app = typer.Typer(
    help="Look into a log directory, check it, and mend it by hand.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Directory = Annotated[Path, typer.Argument(help="Directory of the log.", metavar="DIRECTORY")]
Magic = Annotated[
    str | None,
    typer.Option(
        help="What segments begin with: four characters, or 0x and hex. Found out if not given."
    ),
]
Version = Annotated[
    int | None,
    typer.Option(help="Version behind the magic; read from the log if not given."),
]


@app.command()
def dump(
    directory: Directory,
    magic: Magic = None,
    version: Version = None,
    as_json: Json = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as records are appended.")
    ] = False,
    since: Annotated[
        str | None, typer.Option(help="From this instant on (ISO 8601, or ns since 1970).")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Up to, but without, this instant.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many records.")] = None,
) -> None:
    """Print the records in order: what each of them says; its bytes where that is not known.

    Examples:

        fastjournal log dump ./jobs

        fastjournal log dump ./jobs --follow --json

        fastjournal log dump ./jobs --since 2026-01-31T12:00 --until 2026-01-31T13:00 --limit 20
    """
    stream = _open_stream(directory, magic, version)
    after = None if since is None else _instant(since) - 1
    before = None if until is None else _instant(until)
    if not as_json:
        typer.echo(_ROW.format("TIME", "SEGMENT", "OFFSET", "SIZE", "COMMAND"))
    cursor = stream.open_cursor(after=after, follow=follow)
    left = limit
    try:
        while left is None or left > 0:
            record = cursor.next()
            if record is None:
                if not follow:
                    return
                sys.stdout.flush()  # a reader at the other end of a pipe waits for it
                time.sleep(_POLL_SECONDS)
                continue
            if before is not None and record.time >= before:
                return
            _print_record(record, as_json)
            left = None if left is None else left - 1
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        cursor.close()


@app.command()
def stat(
    directory: Directory, magic: Magic = None, version: Version = None, as_json: Json = False
) -> None:
    """Show the segments: sizes, times, record counts, dead tail.

    The dead tail is what follows the last whole record of a segment.

    Examples:

        fastjournal log stat ./jobs

        fastjournal log stat ./jobs --json
    """
    stream = _open_stream(directory, magic, version)
    checks = _check(stream, "reading")
    if as_json:
        for check in checks:
            json_line({"kind": "segment", **_segment_values(check)})
        json_line({"kind": "total", **_total_values(stream, checks)})
        return
    rows = [
        [
            check.path.name,
            bytes_text(check.size),
            f"{check.records:,}",
            instant_text(check.first_time),
            instant_text(check.last_time),
            bytes_text(_dead_tail(check)),
            _fault_words(check),
        ]
        for check in checks
    ]
    table(
        ["segment", "size", "records", "first", "last", "dead tail", "faults"],
        rows,
        right=["size", "records", "dead tail"],
    )
    typer.echo(
        f"\n{len(checks)} segments, {bytes_text(sum(check.size for check in checks))}, "
        f"{sum(check.records for check in checks):,} records, "
        f"{bytes_text(sum(check.payload_bytes for check in checks))} of payload, "
        f"magic {_magic_text(stream)}, version {stream.header.version}"
    )
    if _is_salvaged(stream):
        typer.echo("salvaged: this log was repaired once, its state may have holes")


@app.command()
def verify(
    directory: Directory, magic: Magic = None, version: Version = None, as_json: Json = False
) -> None:
    """Check every record and name each fault with file, offset and reason.

    The manifest of the segments and, of a journal, the snapshot and its checkpoint are checked too.

    Exit code **0**: clean. **1**: only a torn tail, which the next opening for appending mends.
    **3**: damage.

    Examples:

        fastjournal log verify ./jobs

        fastjournal log verify ./jobs --json && echo clean
    """
    stream = _open_stream(directory, magic, version)
    checks = _check(stream, "verifying")
    faults = [fault for check in checks for fault in check.faults]
    records = sum(check.records for check in checks)
    size = sum(check.size for check in checks)
    damaged = sum(not fault.torn for fault in faults)
    code = DAMAGE if damaged else TORN if faults else CLEAN
    if as_json:
        for fault in faults:
            json_line({"kind": "fault", **_fault_values(fault)})
        verdict = {CLEAN: "clean", TORN: "torn", DAMAGE: "damaged"}[code]
        json_line({"kind": "verdict", "verdict": verdict, "records": records, "size": size})
        raise typer.Exit(code)
    for fault in faults:
        word = "torn tail" if fault.torn else "DAMAGE"
        typer.echo(
            f"{fault.path}: offset {fault.offset}: {word}: {fault.reason} ({fault.length} bytes)"
        )
    segments = sum(check.number >= 0 for check in checks)
    checked = f"{records:,} records in {segments} segments, {bytes_text(size)}"
    if code == CLEAN:
        typer.echo(f"clean: {checked}")
    elif code == TORN:
        typer.echo(f"torn tail: {checked}; the next opening for appending cuts it, keeping a copy")
    else:
        typer.echo(f"damaged: {checked}; {damaged} faults; see: fastjournal log repair --help")
    raise typer.Exit(code)


@app.command()
def repair(
    directory: Directory,
    salvage: Annotated[
        bool,
        typer.Option("--salvage", help="Keep every whole record, drop the damaged stretches."),
    ] = False,
    cut: Annotated[
        str | None,
        typer.Option(
            metavar="SEGMENT:OFFSET",
            help="Keep what lies before this position, move everything behind it aside.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    magic: Magic = None,
    version: Version = None,
    as_json: Json = False,
) -> None:
    """Get back what is left of a damaged log. For people, with the log not in use.

    Each file that changes is first copied to NAME.damaged-TIME beside it. Everything that is
    dropped is listed. A repaired log is marked by the file `salvaged`: its state may have holes.
    A mere torn tail needs no repair.

    Examples:

        fastjournal log repair ./jobs --salvage

        fastjournal log repair ./jobs --cut 7:1048584
    """
    if salvage == (cut is not None):
        raise typer.BadParameter("say what to do: either --salvage or --cut SEGMENT:OFFSET")
    from fastjournal.journal.disk import directory_check
    from fastjournal.log.care import repair as tool
    from fastjournal.log.segment import WORKQ

    stream = _open_stream(directory, magic, version)
    position = None if cut is None else _position(cut)
    if not yes:
        what = "all damaged bytes" if cut is None else f"everything from {cut} on"
        typer.confirm(f"drop {what} of {directory} (copies are kept)?", abort=True, err=True)
    if position is not None:
        dropped = tool.cut(stream, position)
    elif stream.header == WORKQ:
        dropped = directory_check.salvage(stream)
    else:
        dropped = tool.salvage(stream)
    _print_dropped(dropped, as_json)


_ROW = "{:<31} {:>7} {:>10} {:>8}  {}"


@app.command()
def disktest(
    directory: Directory,
    seen: Annotated[
        int | None,
        typer.Option(help="Check instead: was every number up to this one kept?", min=0),
    ] = None,
    count: Annotated[int, typer.Option(help="Numbers to write; 0: until it ends.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Find out whether a disk keeps what it says it has synced.

    Write, watch the numbers from another machine, pull the plug; then check with the last number.

    Exit code **1** if a number that was told is missing.

    Examples:

        fastjournal log disktest /mnt/disk/test

        fastjournal log disktest /mnt/disk/test --seen 12345
    """
    from fastjournal.log import disktest as test
    from fastjournal.log.care.probe import WEAK, file_system_of, probe
    from fastjournal.log.files import DISK

    if seen is not None:
        last = test.check(directory)
        show_outcome(
            as_json, {"kept": last, "told": seen}, f"{last} numbers were kept, {seen} were told"
        )
        raise typer.Exit(0 if last >= seen else 1)
    DISK.make_directory(directory)
    faults = probe(DISK, directory)
    for fault in faults:
        typer.echo(fault, err=True)
    kind = file_system_of(directory)
    if kind in WEAK:
        typer.echo(f"{kind}: {WEAK[kind]}", err=True)
    if faults:
        raise typer.Exit(1)
    for number in test.write(directory):
        show_outcome(as_json, {"number": number}, str(number))
        sys.stdout.flush()
        if number == count:
            break


def _print_record(record: Record, as_json: bool) -> None:
    command = command_values(record.payload)
    if as_json:
        json_line(
            {
                "time": record.time,
                "at": instant_text(record.time),
                "segment": record.segment,
                "offset": record.offset,
                "size": len(record.payload),
                "payload_hex": record.payload.hex(),
                "command": command,
            }
        )
        return
    typer.echo(
        _ROW.format(
            instant_text(record.time),
            record.segment,
            record.offset,
            len(record.payload),
            preview(record.payload, 60) if command is None else command_text(command),
        )
    )


def _print_dropped(dropped: list[Dropped], as_json: bool) -> None:
    if as_json:
        for item in dropped:
            json_line(
                {
                    "kind": "dropped",
                    "file": str(item.path),
                    "offset": item.offset,
                    "length": item.length,
                    "records": item.records,
                    "reason": item.reason,
                    "copy": item.copy and str(item.copy),
                }
            )
        return
    if not dropped:
        typer.echo("nothing to drop")
        return
    rows = [
        [item.path.name, str(item.offset), str(item.length), str(item.records), item.reason]
        for item in dropped
    ]
    heads = ["segment", "offset", "bytes", "whole records", "reason"]
    table(heads, rows, right=["offset", "bytes", "whole records"])
    typer.echo("\ncopies:")
    for copy in sorted({str(item.copy) for item in dropped if item.copy}):
        typer.echo(f"  {copy}")


def _check(stream: Stream, label: str) -> list[SegmentCheck]:
    from fastjournal.journal.disk import directory_check
    from fastjournal.log.care.check import verify
    from fastjournal.log.segment import WORKQ

    check_all = directory_check.verify if stream.header == WORKQ else verify
    sizes = [stream.segment_path(number).stat().st_size for number in stream.segments()]
    with progress(label, sum(sizes)) as advance:
        return list(check_all(stream, advance))


def _position(text: str) -> Position:
    from fastjournal.log.segment import Position

    segment, colon, offset = text.partition(":")
    if not colon or not segment.isdecimal() or not offset.isdecimal():
        raise SettingError(f"cut: not SEGMENT:OFFSET: {text!r}", name="cut")
    return Position(int(segment), int(offset))


def _instant(text: str) -> int:
    from fastjournal.spark.options import instant as parse

    return parse(text)


def _open_stream(directory: Path, magic: str | None, version: int | None) -> Stream:
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


def _magic_text(stream: Stream) -> str:
    """The magic as text where it is text, else 0x and hex."""
    text = stream.header.magic.decode("ascii", "replace")
    return text if text.isprintable() and text.isascii() else f"0x{stream.header.magic.hex()}"


def _is_salvaged(stream: Stream) -> bool:
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
            with closing(stream.files.open_read(path)) as handle:
                head = handle.read(0, HEADER_SIZE)
        except OSError as error:
            raise SegmentError(path, f"cannot be opened: {error.strerror}") from error
        if len(head) == HEADER_SIZE and any(head):
            return Header.decode(head)
    return None


def _dead_tail(check: SegmentCheck) -> int:
    """Bytes behind the last whole record."""
    return sum(fault.length for fault in check.faults if fault.torn)


def _fault_words(check: SegmentCheck) -> str:
    """What is wrong with a segment, in two words."""
    damaged = sum(not fault.torn for fault in check.faults)
    return f"{damaged} damaged" if damaged else "torn tail" if check.faults else ""


def _segment_values(check: SegmentCheck) -> dict[str, object]:
    """A segment as JSON shows it."""
    return {
        "segment": check.number,
        "file": str(check.path),
        "size": check.size,
        "records": check.records,
        "payload_bytes": check.payload_bytes,
        "first_time": check.first_time,
        "last_time": check.last_time,
        "dead_tail": _dead_tail(check),
        "faults": [_fault_values(fault) for fault in check.faults],
    }


def _total_values(stream: Stream, checks: list[SegmentCheck]) -> dict[str, object]:
    """The whole log as JSON shows it."""
    return {
        "magic": _magic_text(stream),
        "version": stream.header.version,
        "segments": len(checks),
        "size": sum(check.size for check in checks),
        "records": sum(check.records for check in checks),
        "payload_bytes": sum(check.payload_bytes for check in checks),
        "dead_tail": sum(map(_dead_tail, checks)),
        "salvaged": _is_salvaged(stream),
    }


def _fault_values(fault: Fault) -> dict[str, object]:
    """A fault as JSON shows it."""
    return {
        "file": str(fault.path),
        "offset": fault.offset,
        "length": fault.length,
        "reason": fault.reason,
        "torn": fault.torn,
    }
