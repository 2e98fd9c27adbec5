"""The options of the data source, parsed once into frozen settings.

Rules:

1. Names are camelCase and read without regard to case; values are text. An unknown name is an error
   that lists the known ones, so a slip of the pen never reads the whole log by accident.
2. `since` is inclusive and `until` exclusive; `asOf` includes the record at that instant. An
   instant is ISO 8601 (UTC when it names no zone, up to nine decimals) or ns since 1970.
3. Nothing here imports Spark: settings travel to the tasks and are tested without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fastjournal.errors import SettingError
from fastjournal.spark.kinds import kind_number
from fastjournal.spark.locations import expand, place

__all__ = [
    "MAX_SHARDS",
    "OPTIONS",
    "Settings",
    "View",
    "instant",
    "offset_time",
    "size_bytes",
    "timestamp",
]

VIEWS = ("records", "jobs", "events", "attempts", "segments", "spool")
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
View = str

OPTIONS: Mapping[str, str] = {
    "path": "directory of the journal, several in load([...]), or a pattern such as data/*",
    "view": "records (default), jobs, events (what each command did to its job), attempts (one row"
    " a lease), segments, or spool for the directory of a spool",
    "columns": "names to read, comma separated; fewer is faster. old: all, under their names of"
    " before",
    "since": "first instant read, inclusive",
    "until": "end of the instants read, exclusive",
    "startingTimestamp": "since, as ISO 8601 or as ms since 1970",
    "endingTimestamp": "until, as ISO 8601 or as ms since 1970",
    "startingOffsets": 'earliest, or {"time": ns}: read what lies behind that record',
    "endingOffsets": 'latest, or {"time": ns}: read up to that record, inclusive',
    "asOf": "view jobs: the state after every record up to this instant",
    "timestampAsOf": "asOf, under the name that Delta has for it",
    "commands": "kinds of record to read, by name or number, comma separated",
    "queue": "queues to read, comma separated",
    "fromSegment": "first segment number read",
    "toSegment": "last segment number read",
    "mode": "FAILFAST (default), PERMISSIVE or DROPMALFORMED",
    "maxPartitionBytes": "bytes that one task reads, default 256m; larger segments are split",
    "minPartitions": "at least so many tasks; segments are split if there are fewer",
    "shards": "views jobs, events, attempts: tasks that share the jobs, each reads the log once; as"
    " many as there are cores unless told, at most 24",
}
"""Every option with what it does; the documentation and the error text are made from it."""

# Spark hands these to every source by itself.
_FOREIGN = {"paths", "__columns_for_spark"}

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_FRACTION = re.compile(r"[.,](\d{1,9})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_SHARDS = 24


def instant(text: str, name: str = "time") -> int:
    """Ns since 1970 of ISO 8601 text or of a whole number."""
    text = text.strip()
    if re.fullmatch(r"-?\d{9,}", text):
        return int(text)
    fraction = _FRACTION.search(text)
    nanos = int(fraction.group(1).ljust(9, "0")) if fraction else 0
    plain = text[: fraction.start()] + text[fraction.end() :] if fraction else text
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError:
        raise SettingError(
            f"{name}: not an instant: {text!r} (ISO 8601, or ns since 1970)", name=name
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(seconds=1) * 1_000_000_000 + nanos


def size_bytes(text: str, name: str = "size") -> int:
    """Bytes of text such as `256m`, `64 MiB` or `1000000`."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise SettingError(f"{name}: not a size: {text!r} (for example 256m)", name=name)
    return int(found.group(1)) << (10 * " kmgt".index(found.group(2).lower() or " "))


def _whole(text: str, name: str, least: int, most: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise SettingError(f"{name}: not a whole number: {text!r}", name=name) from None
    if not least <= number <= most:
        raise SettingError(f"{name}: {number} is not in {least}..{most}", name=name)
    return number


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _choice(text: str, name: str, known: Iterable[str]) -> str:
    for word in known:
        if word.lower() == text.strip().lower():
            return word
    raise SettingError(f"{name}: {text!r} is none of {', '.join(known)}", name=name)


@dataclass(frozen=True, slots=True)
class Settings:
    """What to read, and how; small, frozen, picklable."""

    paths: tuple[str, ...]
    view: View = "records"
    columns: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    as_of: int | None = None
    commands: frozenset[int] | None = None
    queues: frozenset[str] | None = None
    from_segment: int = 0
    to_segment: int = 2**32 - 1
    mode: str = "FAILFAST"
    max_partition_bytes: int = 256 << 20
    shards: int = 0
    min_partitions: int = 0
    cores: int = 0
    """Tasks that run at a time, told by the session; 0: not known."""

    @property
    def whole(self) -> bool:
        """Whether a segment that is missing is an error; not so for those who look at damage."""
        return self.mode == "FAILFAST" and self.view != "segments"

    @property
    def after(self) -> int | None:
        """Largest TIME that is too early; None when there is no such bound."""
        return None if self.since is None else self.since - 1

    @property
    def upto(self) -> int | None:
        """Largest TIME still read; None when there is no such bound."""
        bounds = [
            b for b in (None if self.until is None else self.until - 1, self.as_of) if b is not None
        ]
        return min(bounds) if bounds else None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Settings:
        """Settings from the options of a load; raises SettingError naming the option."""
        known = {name.lower(): name for name in OPTIONS}
        given: dict[str, str] = {}
        for name, value in options.items():
            lower = name.lower()
            if lower in _FOREIGN:
                continue
            if lower not in known:
                raise SettingError(
                    f"unknown option {name!r}; known: {', '.join(OPTIONS)}", name=name
                )
            given[known[lower]] = value
        values: dict[str, object] = {"paths": _paths(options)}
        for name, (field, read) in _READ.items():
            found = read(given[name], name) if name in given else None
            if found is not None and field in values:
                raise SettingError(f"{field}: given twice, under two names", name=field)
            if found is not None:
                values[field] = found
        settings = cls(**values)  # type: ignore[arg-type]
        if settings.as_of is not None and settings.view != "jobs":
            raise SettingError("asOf: only view jobs has a state as of an instant", name="asOf")
        if settings.view == "jobs" and (settings.since, settings.until, settings.commands) != (
            None,
            None,
            None,
        ):
            raise SettingError(
                "since, until, commands: view jobs needs every record; use asOf", name="since"
            )
        return settings


def timestamp(text: str, name: str) -> int:
    """Ns since 1970 of ISO 8601 text or, as other sources of Spark have it, of a number of ms."""
    text = text.strip()
    return int(text) * 1_000_000 if re.fullmatch(r"\d{1,15}", text) else instant(text, name)


def offset_time(text: str, name: str) -> int:
    """The TIME in an offset such as `{"time": 1700000000000000000}`."""
    try:
        time = json.loads(text)["time"]
    except (ValueError, KeyError, TypeError):
        time = None
    if type(time) is not int or time < 0:
        raise SettingError(
            f'{name}: not an offset: {text!r} (for example {{"time": 0}})', name=name
        )
    return time


def _behind(text: str, name: str, word: str) -> int | None:
    """The instant behind an offset; None: the word says that there is no bound."""
    return None if text.strip().lower() == word else offset_time(text, name) + 1


def _part_size(text: str, name: str) -> int:
    size = size_bytes(text, name)
    if size < 1:
        raise SettingError(f"{name}: must be at least 1", name=name)
    return size


_READ: Mapping[str, tuple[str, Callable[[str, str], object]]] = {
    "view": ("view", lambda text, name: _choice(text, name, VIEWS)),
    "columns": ("columns", lambda text, _: _words(text)),
    "since": ("since", instant),
    "until": ("until", instant),
    "asOf": ("as_of", instant),
    "timestampAsOf": ("as_of", instant),
    "startingTimestamp": ("since", timestamp),
    "endingTimestamp": ("until", timestamp),
    "startingOffsets": ("since", lambda text, name: _behind(text, name, "earliest")),
    "endingOffsets": ("until", lambda text, name: _behind(text, name, "latest")),
    "commands": ("commands", lambda text, _: frozenset(map(kind_number, _words(text)))),
    "queue": ("queues", lambda text, _: frozenset(_words(text))),
    "fromSegment": ("from_segment", lambda text, name: _whole(text, name, 0, 2**32 - 1)),
    "toSegment": ("to_segment", lambda text, name: _whole(text, name, 0, 2**32 - 1)),
    "mode": ("mode", lambda text, name: _choice(text, name, MODES)),
    "maxPartitionBytes": ("max_partition_bytes", _part_size),
    "minPartitions": ("min_partitions", lambda text, name: _whole(text, name, 1, 1 << 20)),
    "shards": ("shards", lambda text, name: _whole(text, name, 1, 4096)),
}
"""By option: the field of `Settings`, and how its value is read."""


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    lower = {name.lower(): value for name, value in options.items()}
    if "paths" in lower:
        paths = tuple(str(path) for path in json.loads(lower["paths"]))
    else:
        paths = (lower["path"],) if lower.get("path") else ()
    if not paths:
        raise SettingError("no path: load() needs the directory of a journal", name="path")
    # Tasks have another working directory: what is relative is meant here.
    return tuple(place(one) for path in paths for one in expand(path.removeprefix("file://")))
