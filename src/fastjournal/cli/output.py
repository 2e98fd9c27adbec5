"""Results for people and for programs: tables and JSON, of jobs, queues and journals too.

Rules:

1. People get tables, programs JSON lines: one object a line, times as integers of ns since 1970.
2. What is printed for programs is a superset of what is printed for people.
3. Progress and remarks go to standard error, and only to a terminal.
4. Bytes that are text are shown as text. In JSON a payload that is not is `payload_hex` instead of
   `payload`; so is a result.
5. `state` is where the job stands: waiting, leased, completed, dead. For people a waiting job is
   ready, future or held.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fastjournal.arguments import last_words, length_text
from fastjournal.clock import instant_text
from fastjournal.model import PLACES, SETTING_LENGTHS, State, place_of

if TYPE_CHECKING:
    from rich.console import Console

    from fastjournal.journal.look.inspection import JournalStatus
    from fastjournal.model import Job, Lease, QueueSettings, QueueStatus

__all__ = [
    "JOB_COLUMNS",
    "QUEUE_COLUMNS",
    "STATES",
    "Advance",
    "bytes_text",
    "call_text",
    "console",
    "distance",
    "job_lines",
    "job_values",
    "json_line",
    "lease_values",
    "preview",
    "progress",
    "queue_row",
    "queue_values",
    "setting_text",
    "settings_values",
    "show_list",
    "show_outcome",
    "span",
    "status_values",
    "table",
    "text",
]


T = TypeVar("T")


class Advance(Protocol):
    """Told how much more is done."""

    def __call__(self, amount: int, /) -> None: ...


def bytes_text(size: int) -> str:
    """A size as people read it: 512 B, 1.5 KiB, 64.0 MiB."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            break
    return f"{value:.1f} {unit}"


def preview(payload: bytes, width: int) -> str:
    """The beginning of a payload in one line: text if it is text, else hex."""
    head = payload[: width * 4]
    text = head.decode("utf-8", "ignore")
    shown = text if text and text.isprintable() and b"\x00" not in head else head.hex(" ")
    if len(shown) > width or len(head) < len(payload):
        return shown[: width - 1] + "…"
    return shown


def json_line(values: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    sys.stdout.write(json.dumps(values, separators=(",", ":"), default=str) + "\n")


def show_outcome(as_json: bool, values: Mapping[str, Any], words: str) -> None:
    """Say what was done: a JSON object for programs, words for people."""
    if as_json:
        json_line(values)
    else:
        sys.stdout.write(words + "\n")


def console(*, error: bool = False) -> Console:
    """Where tables go; plain text when it is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    # A pipe or file has no width: do not fold columns that a program may read.
    width = None if stream.isatty() else 200
    return Console(stderr=error, width=width, highlight=False, soft_wrap=False)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
    """Print a table; the columns named in `right` are set flush right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        grid.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=False
        )
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    console().print(grid)


def show_list(
    as_json: bool,
    found: Iterable[T],
    values: Callable[[T], Mapping[str, Any]],
    columns: Sequence[str],
    row: Callable[[T], Sequence[str]],
    *,
    right: Sequence[str] = (),
) -> None:
    """Show what was found: a JSON object of each for programs, a table with a row of each."""
    if as_json:
        for one in found:
            json_line(values(one))
    else:
        table(columns, [row(one) for one in found], right=right)


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """A progress bar over `total` bytes, shown only on a terminal."""
    if not sys.stderr.isatty() or not total:
        yield lambda _amount: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(error=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda amount: bar.advance(task, amount)


STATES = {
    "waiting": State.WAITING,
    "leased": State.PROCESSING,
    "completed": State.COMPLETED,
    "dead": State.FAILED,
}
_WORDS = {state: word for word, state in STATES.items()}
_SECOND = 1_000_000_000

JOB_COLUMNS = ("id", "state", "queue", "key", "due", "tries", "payload")
SHORT = 12
"""Digits of an id that people are shown; commands take them for the whole."""
QUEUE_COLUMNS = ("queue", *PLACES, "next", "")


def text(data: bytes) -> str:
    """Bytes for people: text, with what is none escaped."""
    return data.decode("utf-8", "backslashreplace")


def span(ns: int) -> str:
    """A length in the largest unit that says enough: 250ms, 59s, 12m, 5h, 3d."""
    if ns < _SECOND:
        return f"{ns // 1_000_000}ms"
    whole = ns // _SECOND
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def distance(time: int, now: int) -> str:
    """How far away an instant is; a dash for none."""
    if not time:
        return "-"
    return f"in {span(time - now)}" if time > now else f"{span(now - time)} ago"


def job_values(job: Job) -> dict[str, Any]:
    """A job for programs."""
    values: dict[str, Any] = {
        "id": job.id.hex(),
        "state": _WORDS.get(job.state, "deleted"),
        "queue": text(job.queue_bytes),
        "key": text(job.key_bytes),
        "priority": job.priority,
        "due": job.due,
        "inserted": job.inserted,
        "modified": job.modified,
        "expires": job.expires,
        "held": job.held,
        "attempts": job.attempts,
        "timeouts": job.timeouts,
        "fails": job.fails,
        "max_attempts": job.max_attempts,
        "max_timeouts": job.max_timeouts,
        "max_fails": job.max_fails,
        "lease": job.lease,
        "lease_start": job.lease_start,
        "lease_until": job.lease_until,
        "schema": job.schema,
        "worker": text(job.worker),
        "note": text(job.note),
        **_content("payload", job.payload),
    }
    if job.state in (State.COMPLETED, State.FAILED):
        values |= _content("result", job.result)
    return values


def lease_values(lease: Lease) -> dict[str, Any]:
    """A leased job for programs, its token first."""
    values = job_values(lease.job)
    return {"id": values.pop("id"), "token": lease.token, "until": lease.until, **values}


def job_lines(jobs: Sequence[Job], now: int, width: int) -> list[str]:
    """Jobs for people: a line for each, at most `width` columns wide.

    Below a job that failed stands the last line of the reason. Queues and keys share what the short
    columns leave, the payload gets the rest.
    """
    rows = [_job_row(job, now) for job in jobs]
    columns = list(zip(JOB_COLUMNS, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    room = width - 2 * (len(widths) - 1) - sum(widths[number] for number in _SHORT_COLUMNS)
    widths[2] = min(widths[2], max(5, room // 4))
    widths[3] = min(widths[3], max(5, (room - widths[2]) * 2 // 3))
    widths[6] = max(7, min(widths[6], room - widths[2] - widths[3]))
    lines = [_line(JOB_COLUMNS, widths)]
    for job, row in zip(jobs, rows, strict=True):
        lines.append(_line(row, widths))
        reason = b"" if job.state is State.COMPLETED else job.result or job.note
        if reason:
            lines.append(" " * (SHORT + 2) + _cut(last_words(reason, 1000), width - SHORT - 2))
    return lines


_SHORT_COLUMNS = (0, 1, 4, 5)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    shown = [_cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
    padded = [
        cell.rjust(width) if name == "tries" else cell.ljust(width)
        for name, cell, width in zip(JOB_COLUMNS, shown, widths, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _job_row(job: Job, now: int) -> list[str]:
    """The cells of `JOB_COLUMNS`."""
    when = job.lease_until if job.state is State.PROCESSING else job.due
    return [
        job.id.hex()[:SHORT],
        place_of(job, now),
        text(job.queue_bytes),
        text(job.key_bytes),
        distance(when, now),
        str(job.attempts),
        call_text(job.payload) or preview(job.payload, 100),
    ]


_CALL, _LONGEST_CALL = b'{"task":"', 16_384


def call_text(payload: bytes) -> str:
    """The call of a task as it is written in Python; empty: the payload is none."""
    if not payload.startswith(_CALL) or len(payload) > _LONGEST_CALL:
        return ""
    try:
        call = json.loads(payload)
        given = call.get("args", {}).items()
    except (ValueError, AttributeError):
        return ""
    return f"{call['task']}({', '.join(f'{name}={json.dumps(one)}' for name, one in given)})"


def queue_values(queue: QueueStatus) -> dict[str, Any]:
    """A queue for programs."""
    return {
        "queue": text(queue.name_bytes),
        **{name: getattr(queue, name) for name in PLACES},
        "next_due": queue.next_due,
        "settings": settings_values(queue.settings),
    }


def queue_row(queue: QueueStatus, now: int) -> list[str]:
    """A queue for people: the cells of `QUEUE_COLUMNS`."""
    words = [word for word in ("paused", "draining") if getattr(queue.settings, word)]
    return [
        text(queue.name_bytes),
        *(f"{getattr(queue, name):,}" for name in PLACES),
        distance(queue.next_due, now),
        ", ".join(words),
    ]


def settings_values(settings: QueueSettings) -> dict[str, Any]:
    """The settings of a queue for programs; lengths in ns."""
    return asdict(settings)


def setting_text(name: str, value: Any) -> str:
    """One setting as it is typed in `fastjournal configure`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in SETTING_LENGTHS:
        return length_text(value)
    return str(value)


def status_values(status: JournalStatus) -> dict[str, Any]:
    """A journal for programs."""
    return {
        "rows": status.rows,
        "jobs": status.jobs,
        "entries": status.entries,
        "queues": status.queues,
        **{name: getattr(status, name) for name in PLACES},
        "memory_limit": status.memory_limit,
        "value_bytes": status.value_bytes,
        "unlogged_bytes": status.unlogged_bytes,
        "log_bytes": status.log.counters.bytes,
        "log_records": status.log.counters.writes,
        "written_time": status.log.written_time,
        "written_at": instant_text(status.log.written_time),
        "segment": Path(status.log.active).name,  # a daemon tells the name only
        "replayed_records": status.replayed_records,
        "replay_seconds": status.replay_seconds,
        "clean_start": status.clean_start,
        "archive": _archive_values(getattr(status, "archive", None)),
    }


def _archive_values(archive: Any) -> dict[str, Any] | None:
    """How far an archive is, as the journal or a daemon tells it."""
    if archive is None:
        return None
    return dict(archive._asdict()) if hasattr(archive, "_asdict") else asdict(archive)


def _content(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_hex": data.hex()}
