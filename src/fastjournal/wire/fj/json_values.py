"""Jobs and queues as JSON: what INSPECT and LIST answer, and the same values back.

Rules:

1. Names, keys, workers and notes are text (UTF-8; bytes that are not are kept by surrogates, as
   `\\udcNN`). Ids are 32 hex digits. Values and results are base64 under `value` and `result`.
2. Instants and lengths are integers of ns; states and settings have their names.
3. Most queues have the same settings: these are pictured and read once, and shared. Nobody changes
   a picture.
4. Reading ignores fields it does not know and gives defaults for those that are missing, so that
   either side may be newer. `from` of `to` gives the same value.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from fastjournal.errors import BadRequest, JournalError
from fastjournal.model import SETTING_NAMES, Job, QueueSettings, QueueStatus, State

__all__ = [
    "dump",
    "job_from_json",
    "job_to_json",
    "load",
    "queue_from_json",
    "queue_to_json",
    "settings_from_json",
]

_SHARED = 1024  # kinds of settings that are kept
_TEXT = frozenset({"queue", "key", "worker", "note"})
_BLOB = frozenset({"value", "result"})
_FLAGS = frozenset({"held", "workq", "scheduled"})
_ON_THE_WIRE = {"queue_bytes": "queue", "key_bytes": "key", "payload": "value"}
_NAMES = tuple(_ON_THE_WIRE.get(name, name) for name in Job._fields)
"""Of the fields of a job, in their order."""
_EMPTY: dict[str, Any] = {
    **dict.fromkeys(_NAMES, 0),
    **dict.fromkeys(_TEXT | _BLOB, b""),
    **dict.fromkeys(_FLAGS, False),
    "id": bytes(16),
    "state": State.WAITING,
    "aliases": (),
}


def dump(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """JSON as the bytes of a value of type string."""
    return json.dumps(value, separators=(",", ":")).encode()


def load(value: bytes) -> Any:
    """Read a value of type string that holds JSON."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise BadRequest("not JSON") from None


def job_to_json(job: Job, *, values: bool = True, size: int | None = None) -> dict[str, Any]:
    """A job as a JSON object; without its value and result if not `values`.

    `size`: bytes of its value, where the job has come without.
    """
    out: dict[str, Any] = {}
    fields: tuple[Any, ...] = job
    for name, field in zip(_NAMES, fields, strict=True):
        if name in _TEXT:
            out[name] = _text(field)
        elif name in _BLOB:
            if values:
                out[name] = base64.b64encode(field).decode()
        else:
            out[name] = field
    return out | {
        "id": job.id.hex(),
        "state": job.state.name.lower(),
        "aliases": [_text(alias) for alias in job.aliases],
        "size": len(job.payload) if size is None else size,
    }


def job_from_json(data: Any) -> Job:
    """The job of a JSON object."""
    fields = dict(_EMPTY)
    try:
        for name, field in data.items():
            if name not in fields:
                continue
            if name in _TEXT:
                fields[name] = _bytes(field)
            elif name in _BLOB:
                fields[name] = base64.b64decode(field, validate=True)
            elif name == "id":
                fields[name] = bytes.fromhex(field)
            elif name == "state":
                fields[name] = State[field.upper()]
            elif name == "aliases":
                fields[name] = tuple([_bytes(alias) for alias in field])
            else:
                fields[name] = type(_EMPTY[name])(field)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, binascii.Error):
        raise BadRequest("not a job") from None
    if len(fields["id"]) != 16:
        raise BadRequest("an id has 16 bytes")
    return Job(*fields.values())


def queue_to_json(status: QueueStatus) -> dict[str, Any]:
    """The figures and settings of a queue as a JSON object."""
    out: dict[str, Any] = {"name": _text(status.name_bytes)}
    out |= zip(QueueStatus._fields[1:-1], status[1:-1], strict=True)
    return out | {"settings": _picture_of(status.settings)}


_picture_of = lru_cache(_SHARED)(asdict)


def queue_from_json(data: Any) -> QueueStatus:
    """The figures and settings of a queue from a JSON object."""
    try:
        ready, future, held, leased, completed, dead, next_due = (
            int(data.get(name, 0)) for name in QueueStatus._fields[1:-1]
        )
        return QueueStatus(
            _bytes(data["name"]), ready, future, held, leased, completed, dead, next_due,
            settings_from_json(data["settings"]),
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BadRequest("not a queue") from None


def settings_from_json(data: Any) -> QueueSettings:
    """The settings of a queue from a JSON object; unknown ones are left out."""
    exact = repr(data)  # tells 1 from True and from 1.0, as hashing the values would not
    found = _read.get(exact)
    if found is None:
        if len(_read) >= _SHARED:
            _read.clear()
        found = _read[exact] = _settings_of(data)
    return found


_read: dict[str, QueueSettings] = {}


def _settings_of(data: Any) -> QueueSettings:
    try:
        return QueueSettings(**{name: data[name] for name in SETTING_NAMES if name in data})
    except JournalError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BadRequest("not settings of a queue") from None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
