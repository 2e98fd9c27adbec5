"""The values of fastjournal: what a job is, in which states, under which rules.

Rules:

1. Values never change; a changed job is another value.
2. Instants and lengths are integer nanoseconds; 0 means "not set".
3. `rank` orders jobs, smaller first. In our own queues it is the priority, 0..255.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from fastjournal.clock import SECOND, as_datetime
from fastjournal.errors import SettingError

__all__ = [
    "DEFAULT_PRIORITY",
    "DEFAULT_SETTINGS",
    "MAX_INSTANT",
    "PLACES",
    "SETTING_CHOICES",
    "SETTING_LENGTHS",
    "SETTING_NAMES",
    "Event",
    "Job",
    "Lease",
    "Mode",
    "NameText",
    "NewJob",
    "Outcome",
    "Priority",
    "QueueSettings",
    "QueueStatus",
    "Receipt",
    "State",
    "Unchecked",
    "Where",
    "name_bytes",
    "name_text",
    "place_of",
]

DAY = 86_400 * SECOND
MAX_INSTANT: Final = 2**63 - 1
"""The last instant that can be stored, in the year 2262."""


class Unchecked(Protocol):
    """Stands in the union of an argument's types: nothing is of it, and everything may be.

    A compiled function refuses a wrong type by itself, with a bare TypeError. Arguments of users
    are refused by `arguments`, in words; this leaves it to that.
    """

    def nothing_is_of_this_type(self) -> None: ...


class State(IntEnum):
    """Where a row stands."""

    WAITING = 0
    PROCESSING = 1
    COMPLETED = 2
    FAILED = 3
    DELETED = 4
    """A tombstone: it only keeps older writes of its key away."""

    @property
    def letter(self) -> str:
        """The one-letter form: W P C F D."""
        return "WPCFD"[self]


class Priority(IntEnum):
    """Well-known priorities; any number from 0 to 255 will do, smaller first."""

    NOW = 0
    IMPORTANT = 10
    NEW_PAGE = 20
    RESET = 50
    UPDATES = 180
    SLOW = 200
    REVIEW = 230
    TIME_ALLOWS = 255


DEFAULT_PRIORITY = 100


class Mode(IntEnum):
    """What `put` does when its key is taken."""

    MERGE = 0
    """Merge into the waiting row; a row being worked on gets a waiting twin."""
    UNIQUE = 1
    """Refuse."""
    PLAIN = 2
    """There is no key: always a new row."""


class Outcome(IntEnum):
    """What `put` did."""

    NEW = 0
    MERGED = 1
    TWIN = 2
    """A new row, held back until the row being worked on ends."""
    STALE = 3
    """Nothing: an equal or newer write is already there."""


class NewJob(NamedTuple):
    """A job as its producer describes it."""

    queue: bytes
    value: bytes = b""
    key: bytes = b""
    mode: Mode = Mode.MERGE
    priority: int = DEFAULT_PRIORITY
    due: int = 0
    """When to work on it; 0 or the past: as soon as possible."""
    expires: int = 0
    """After this instant the job is gone; 0: never."""
    timestamp: int = 0
    """The sender's clock: the newest write of a key wins; 0: the journal's own clock."""
    lease: int = 0
    """How long a lease lasts; 0: as the queue says. So for the three limits below."""
    max_attempts: int = 0
    max_timeouts: int = 0
    max_fails: int = 0
    kind: int = 1
    """Type of the value: 0 void, 1 buffer, 2 string, 3 integer, 4 float, 5 boolean."""
    ttl: int = 0
    """Every lease and touch moves `expires` at least this far ahead; 0: never."""
    id: bytes = b""
    """Its 16 bytes, chosen by the producer so that it may send the put again; empty: ours."""


class Receipt(NamedTuple):
    """What `put` did: the job's id, and whether it is new, merged, a waiting twin or stale."""

    id: bytes
    outcome: Outcome


class Event(NamedTuple):
    """Something happened."""

    kind: str
    """`due`, `dead`, `changed` or `lost`."""
    queue: bytes = b""
    key: bytes = b""
    id: bytes = b""
    at: int = 0
    """TIME of its record, ns since 1970."""


class Where(NamedTuple):
    """Which queues a consumer asks: these names, or else all that begin with `prefix`."""

    names: tuple[bytes, ...] = ()
    prefix: bytes = b""
    schema: int = -1
    """Only jobs of this version of payloads; -1: of any."""


class NameText(str):
    """A name, as text. In 0.1.0 it was bytes: it still equals and gives those, with a warning."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, bytes):
            self._warn("compare it with text")
            return name_bytes(self) == other
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__  # that of the same bytes, if they are ASCII

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """What it was good for in 0.1.0."""
        self._warn("it need not be decoded")
        return name_bytes(self).decode(encoding, errors)

    def _warn(self, advice: str) -> None:
        warnings.warn(
            f"a name is text and not bytes: {advice}, or use queue_bytes, key_bytes, name_bytes",
            DeprecationWarning,
            stacklevel=3,
        )


def name_bytes(name: str) -> bytes:
    """The bytes of a name, also of one that is not UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def name_text(data: bytes) -> NameText:
    """The text of a name, also of one that is not UTF-8."""
    return NameText(data, "utf-8", "surrogateescape")


class Job(NamedTuple):
    """A row as a caller sees it: a picture taken at one instant.

    Names are text, and bytes under a name with `_bytes`. Instants are dates under a name with
    `_at`, and ns since 1970 under the same name without.
    """

    id: bytes
    queue_bytes: bytes
    key_bytes: bytes
    payload: bytes
    """What the producer put."""
    state: State
    rank: int
    due: int
    inserted: int
    modified: int
    expires: int
    kind: int
    attempts: int
    timeouts: int
    fails: int
    max_attempts: int
    max_timeouts: int
    max_fails: int
    lease: int
    lease_start: int
    lease_until: int
    worker: bytes
    result: bytes
    note: bytes
    """Why it was last given back or died."""
    held: bool
    """Waits for the row of the same key that is being worked on."""
    workq: bool
    """Came through the Workq commands."""
    scheduled: bool
    """Came through the Workq schedule command."""
    ttl: int = 0
    aliases: tuple[bytes, ...] = ()
    priority: int = 0
    """As its producer gave it: Workq counts the other way round than `rank`."""
    schema: int = 0
    """Version of its payload: the setting `schema` of its queue when it was put."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        return name_text(self.queue_bytes)

    @property
    def key(self) -> str:
        """The key; empty if there is none."""
        return name_text(self.key_bytes)

    @property
    def value(self) -> bytes:
        """The payload, by its name of 0.1.0."""
        return self.payload

    @property
    def due_at(self) -> datetime | None:
        """When it is due."""
        return as_datetime(self.due)

    @property
    def inserted_at(self) -> datetime | None:
        """When it was put."""
        return as_datetime(self.inserted)

    @property
    def modified_at(self) -> datetime | None:
        """When its payload was written, by the clock of whoever wrote it."""
        return as_datetime(self.modified)

    @property
    def expires_at(self) -> datetime | None:
        """When it is gone; None: never."""
        return as_datetime(self.expires)

    @property
    def until(self) -> datetime | None:
        """When its lease ends unless it is touched; None: it is not leased."""
        return as_datetime(self.lease_until)

    @property
    def attempt(self) -> int:
        """How often the job was handed out: `attempts` by the name that a leased job has for it."""
        return self.attempts

    @property
    def dead(self) -> bool:
        """It was given up."""
        return self.state is State.FAILED

    def __repr__(self) -> str:
        word = "dead" if self.dead else "held" if self.held else self.state.name.lower()
        more = [f"{word} {self.id.hex()} queue={str(self.queue)!r}"]
        if self.key_bytes:
            more.append(f"key={str(self.key)!r}")
        short = self.payload if len(self.payload) <= 40 else self.payload[:37] + b"..."
        more.append(f"priority={self.priority} attempt={self.attempt} payload={short!r}")
        for name, instant in (
            ("due_at", self.due_at), ("inserted_at", self.inserted_at),
            ("expires_at", self.expires_at), ("until", self.until),
        ):  # fmt: skip
            if instant is not None:
                more.append(f"{name}={instant.isoformat(' ', 'milliseconds')}")
        return f"<Job {' '.join(more)}>"


PLACES = ("ready", "future", "held", "leased", "completed", "dead")
"""Where a job stands, in one word; the numbers of places in `journal.state.row` count these."""


def place_of(job: Job, now: int) -> str:
    """Where a job stands at an instant: one of `PLACES`, or `deleted`."""
    if job.state is State.WAITING:
        return "held" if job.held else "future" if job.due > now else "ready"
    return ("leased", "completed", "dead", "deleted")[job.state - 1]


class Lease(NamedTuple):
    """A job handed out, and the token that proves it."""

    job: Job
    token: int
    until: int


class QueueStatus(NamedTuple):
    """How many rows of a queue stand where."""

    name_bytes: bytes
    ready: int
    future: int
    held: int
    leased: int
    completed: int
    dead: int
    next_due: int
    """`next_due_at` in ns since 1970; 0: none."""
    settings: QueueSettings

    @property
    def queue(self) -> str:
        """Its name, by the word that jobs have for it."""
        return name_text(self.name_bytes)

    @property
    def name(self) -> str:
        """Its name."""
        return name_text(self.name_bytes)

    @property
    def next_due_at(self) -> datetime | None:
        """When the next row becomes due or the next lease ends; None: nothing is in sight."""
        return as_datetime(self.next_due)

    def __repr__(self) -> str:
        words = [f"{n}={getattr(self, n)}" for n in self._fields[1:7] if getattr(self, n)]
        if self.next_due_at is not None:
            words.append(f"next_due_at={self.next_due_at.isoformat(' ', 'milliseconds')}")
        words += [word for word in ("paused", "draining") if getattr(self.settings, word)]
        return f"<{' '.join([type(self).__name__, repr(str(self.name)), *words])}>"


SETTING_CHOICES: Mapping[str, tuple[str, ...]] = {
    "priority_order": ("smaller", "larger"),
    "period": ("none", "hour", "day", "month"),
    "file_management": ("delete", "truncate", "keep"),
}
SETTING_LENGTHS = frozenset(
    ("lease", "max_wait", "backoff_base", "backoff_cap", "dead_keep", "result_ttl")
)
"""Settings that are lengths of time: seconds outside, ns here."""
_FLOATS: Mapping[str, tuple[float, float]] = {"backoff_factor": (1, 1000), "backoff_jitter": (0, 1)}
_LIMITS: Mapping[str, int] = {
    "max_timeouts": 255,
    "max_attempts": 2**31 - 1,
    "max_fails": 2**31 - 1,
    "slow_from": 256,
    "concurrency": 2**31 - 1,
    "schema": 15,
}


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The rules of one queue. Lengths in ns; a limit of 0 means none."""

    lease: int = 60 * SECOND
    """How long a worker may keep a row without touching it."""
    max_timeouts: int = 10
    """A row that lost this many leases is dead."""
    max_attempts: int = 0
    """A row handed out this many times without an end is dead."""
    max_fails: int = 3
    """A row that failed this many times is dead; until then it is tried again."""
    max_wait: int = 0
    """Repeats of a key never push its due time past insertion + this."""
    backoff_base: int = SECOND
    """Wait after the first failure; times `backoff_factor` for each further one."""
    backoff_factor: float = 2.0
    backoff_cap: int = 3600 * SECOND
    backoff_jitter: float = 0.1
    """Each wait is moved by up to this share, up or down."""
    backoff_timeouts: bool = False
    """Wait after a lost lease too; else the row is ready again at once."""
    slow_from: int = 200
    """Rows of this priority and above wait for a pass without other work; 256 switches it off."""
    keep_versions: bool = False
    """Keep every write of a key as a row of its own: no merging."""
    dead_keep: int = 7 * DAY
    """How long dead rows that never expire stay to be looked at; 0: for ever."""
    result_ttl: int = DAY
    """How long a result is kept when its job never expires."""
    concurrency: int = 0
    """At most this many rows handed out at a time."""
    paused: bool = False
    """Nothing is handed out."""
    draining: bool = False
    """Nothing is taken in."""
    priority_order: str = "smaller"
    """`larger` for queues fed by the Workq protocol."""
    period: str = "none"
    """Short-lived tables: a new generation every hour, day or month."""
    file_management: str = "delete"
    """What becomes of an emptied generation: delete, truncate or keep its file."""
    secure: bool = False
    """Overwrite a generation's file before it goes; best effort."""
    persist: bool = True
    """False: jobs that are put without asking for it live in memory only and die with us."""
    schema: int = 0
    """Version of what producers put now. Rows keep theirs; a new one begins a new generation."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_setting(self, field.name)

    def changed(self, changes: Mapping[str, Any]) -> QueueSettings:
        """These settings with some replaced; an unknown name is an error that names it."""
        for name in changes:
            if name not in SETTING_NAMES:
                known = ", ".join(SETTING_NAMES)
                raise SettingError(f"unknown queue setting {name!r}; there are: {known}", name=name)
        return replace(self, **changes)


def _check_setting(settings: QueueSettings, name: str) -> None:
    value = getattr(settings, name)
    if name in SETTING_CHOICES:
        fine = value in SETTING_CHOICES[name]
    elif name in _FLOATS:
        low, high = _FLOATS[name]
        fine = isinstance(value, (int, float)) and not isinstance(value, bool)
        fine = fine and math.isfinite(value) and low <= value <= high
        if fine:  # stored in thousandths
            object.__setattr__(settings, name, round(float(value), 3))
    elif isinstance(_DEFAULTS[name], bool):
        fine = isinstance(value, bool)
    else:
        fine = type(value) is int and 0 <= value <= _LIMITS.get(name, MAX_INSTANT)
        if name in ("lease", "result_ttl"):
            fine = fine and value > 0
    if not fine:
        raise SettingError(f"queue setting {name!r} cannot be {value!r}", name=name)


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(QueueSettings)}
SETTING_NAMES = tuple(_DEFAULTS)
DEFAULT_SETTINGS = QueueSettings()
