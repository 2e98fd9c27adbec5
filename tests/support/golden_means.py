"""What a directory means, as JSON: asked through the public face only.

Rules:

1. It works with every version from 0.1.0 on: an open journal, a client or a view is asked, the
   command line, and the Spark source, which needs no Spark session to be read.
2. Bytes are shown as text where they are plain text, else as hex behind `0x`; long ones by size
   and hash.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = [
    "journal_means",
    "log_means",
    "plain",
    "row_means",
    "spool_means",
    "view_means",
    "write_means",
]

JOB_FIELDS = (
    "id", "queue", "key", "value", "state", "rank", "due", "inserted", "modified", "expires",
    "kind", "attempts", "timeouts", "fails", "max_attempts", "max_timeouts", "max_fails", "lease",
    "lease_start", "lease_until", "worker", "result", "note", "held", "workq", "scheduled", "ttl",
    "aliases", "priority",
)  # fmt: skip
ENTRY_FIELDS = (
    "key", "kind", "data", "created", "modified", "expires", "ttl", "persist", "lease_until",
    "worker", "token", "locked", "keys",
)  # fmt: skip
QUEUE_FIELDS = ("ready", "future", "held", "leased", "completed", "dead", "next_due", "settings")
ROW_COLUMNS = (
    "id", "queue_bytes", "key_bytes", "state", "rank", "due_ns", "inserted_ns", "modified_ns",
    "expires_ns", "lease_start_ns", "lease_until_ns", "lease_ns", "ttl_ns", "worker_bytes", "kind",
    "attempts", "timeouts", "fails", "max_attempts", "max_timeouts", "max_fails", "value", "result",
    "note_bytes", "workq", "scheduled",
)  # fmt: skip
_LONG = 48
_GROUP = 44


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        if len(data) > _LONG:
            return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
        text = data.decode("ascii", "replace")
        return text if text.isascii() and text.isprintable() else f"0x{data.hex()}"
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(item) for name, item in asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _fields(thing: Any, names: Iterable[str]) -> dict[str, Any]:
    """By name; of names their bytes, which need not be UTF-8."""
    return {
        name: plain(getattr(thing, f"{name}_bytes", None) or getattr(thing, name)) for name in names
    }


def view_means(journal: Any) -> dict[str, Any]:
    """Jobs and queues, of an open journal or of a view of it."""
    jobs = sorted(journal.jobs(limit=1000), key=lambda job: job.id)
    return {
        "jobs": [
            _fields(job, JOB_FIELDS) | {"id": job.id.hex(), "state": job.state.name} for job in jobs
        ],
        "queues": {
            plain(queue.name_bytes): _fields(queue, QUEUE_FIELDS) for queue in journal.queues()
        },
    }


def journal_means(journal: Any) -> dict[str, Any]:
    """Jobs, queues, entries and results of an open journal."""
    means = view_means(journal)
    means["entries"] = {
        plain(entry.key): _fields(entry, ENTRY_FIELDS) for entry in journal.entries.range()
    }
    means["results"] = {
        job["id"]: plain(journal.result(bytes.fromhex(job["id"])))
        for job in means["jobs"]
        if job["state"] in ("COMPLETED", "FAILED")
    }
    return means


def _command(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "fastjournal.cli.app", *words], stdout=subprocess.PIPE, text=True
    )
    return done.returncode, done.stdout, ""


def log_means(
    path: Path, command: Callable[..., tuple[int, str, str]] = _command
) -> dict[str, Any]:
    """The records of a log with their types, and what `log verify` says of it."""
    _, out, _ = command("log", "verify", str(path), "--json")
    verdict = json.loads(out.splitlines()[-1])
    _, out, _ = command("log", "dump", str(path), "--json")
    records = [json.loads(line) for line in out.splitlines()]
    return {
        "verify": [verdict["verdict"], verdict["records"]],
        "records": [
            [r["segment"], r["offset"], r["time"], r["size"], *_kinds(r["payload_hex"])]
            for r in records
        ],
    }


def _kinds(text: str) -> list[int]:
    """The type of a record, and those of the members of a GROUP (docs/log-format.md)."""
    payload = bytes.fromhex(text)
    if payload[0] != _GROUP:
        return [payload[0]]
    count, at = _number(payload, 1)
    kinds = [_GROUP]
    for _ in range(count):
        size, at = _number(payload, at)
        kinds.append(payload[at])
        at += size
    return kinds


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Unsigned LEB128."""
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return number, at


def row_means(path: Path, **options: str) -> list[dict[str, Any]]:
    """Every row as Spark's `jobs` view folds it, tombstones and entries too."""
    from pyspark_fastjournal import DefaultSource

    given = {"path": str(path), "view": "jobs", "columns": ",".join(ROW_COLUMNS)} | options
    source = DefaultSource(given)
    reader = source.reader(source.schema())
    rows = [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in records_of(batch)
    ]
    rows.sort(key=lambda row: bytes(row["id"]))
    return [plain(row) | {"id": row["id"].hex()} for row in rows]


def records_of(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch of Arrow."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def spool_means(path: Path) -> list[dict[str, Any]]:
    """The frames of a spool, done and undone."""
    from pyspark_fastjournal import DefaultSource

    columns = "put_ns,state,id,queue,key_bytes,mode,priority,due,expires,value,file,offset,size"
    source = DefaultSource({"path": str(path), "view": "spool", "columns": columns})
    reader = source.reader(source.schema())
    rows = [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in records_of(batch)
    ]
    for row in rows:
        row["file"] = Path(row["file"]).name
        row["id"] = row["id"] and row["id"].hex()
        for name in ("due", "expires"):
            row[name] = row[name] and row[name].isoformat()
    return [plain(row) for row in rows]


def write_means(path: Path, means: Mapping[str, Any]) -> None:
    """One line a row, so that a difference can be read."""
    lines = []
    for name, value in means.items():
        if isinstance(value, list) and value and not isinstance(value[0], (int, str)):
            inner = ",\n".join("  " + json.dumps(item) for item in value)
            lines.append(f'"{name}": [\n{inner}\n]')
        elif isinstance(value, dict) and name != "archive":
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f'"{name}": {{\n{inner}\n}}')
        else:
            lines.append(f'"{name}": {json.dumps(value)}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
