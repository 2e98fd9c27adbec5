"""`journal.entries`: key/value entries as a mapping.

Rules:

1. Keys may be text (UTF-8) or bytes and come back as bytes. Values are bytes, str, int, float, bool
   or None and come back as what they were.
2. What is not there is a `KeyError` where a mapping says so, else `NotFound`.
3. Scans take the journal's lock for a page at a time: they see what changes ahead of them, tell no
   key twice and miss none that stood throughout.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TypeVar

from fastjournal.arguments import Instant, Length, Text, instant, key_bytes, length, worker_bytes
from fastjournal.clock import SECOND
from fastjournal.entry_model import Entry, EntryPage, watched
from fastjournal.entry_value import EntryValue, from_value, to_value
from fastjournal.errors import BadRequest, Locked, NotFound
from fastjournal.handles import HeldLock
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.engine.entry_operations import EntryOperations
from fastjournal.journal.engine.events import EntryWatch
from fastjournal.journal.entries.key_query import PATTERN, RANGE, KeyQuery
from fastjournal.journal.entries.locks import NOBODY, Writer
from fastjournal.journal.entries.reads import Reading
from fastjournal.model import MAX_INSTANT

__all__ = ["EntryMap"]

_T = TypeVar("_T")
_PAGE = 1000
_MISSING: Any = object()
_WITH_VALUE = Reading()
_PROBE = Reading(data=False)


class EntryMap(MutableMapping[bytes, EntryValue]):
    """The entries of a journal."""

    def __init__(self, engine: Engine, check_open: Callable[[], None]) -> None:
        """`check_open`: asked first of all in a request, under the lock."""
        self._engine = engine
        self._check_open = check_open
        self.operations = EntryOperations(engine)
        """The requests themselves, to be called under `engine.lock`."""
        self._freed = threading.Condition(self._engine.lock)
        self._owners = itertools.count(1)

    def __getitem__(self, key: Text) -> EntryValue:
        try:
            return self._ask(self.operations.get, key_bytes(key), _WITH_VALUE).value
        except NotFound:
            raise KeyError(key) from None

    def get(self, key: Text, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def __setitem__(self, key: Text, value: EntryValue) -> None:
        self.set(key, value)

    def __delitem__(self, key: Text) -> None:
        name = key_bytes(key)

        def drop() -> None:
            self.operations.get(name, _PROBE)
            self.operations.delete(name)

        try:
            self._ask(drop)
        except NotFound:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, (str, bytes)):
            return False
        try:
            self._ask(self.operations.read, key_bytes(key), _PROBE)
        except NotFound:
            return False
        return True

    def __iter__(self) -> Iterator[bytes]:
        return (entry.key for entry in self._pages(KeyQuery(RANGE, b"", limit=_PAGE), _PROBE))

    def __len__(self) -> int:
        with self._engine.lock:
            return self.operations.count()

    def __repr__(self) -> str:
        return f"<{len(self)} entries>"

    def set(
        self,
        key: Text,
        value: EntryValue,
        *,
        ttl: Length | None = None,
        expires: Instant | None = None,
        touch: Length | None = None,
        overwrite: bool = True,
        persist: bool = True,
        timestamp: Instant | None = None,
        fence: int = 0,
    ) -> bool:
        """Store a value; False if an equal or newer `timestamp` is there already.

        Gone `ttl` from now or at `expires`. `touch`: every reading keeps it at least about so long.
        Without `overwrite` an entry that is there is `AlreadyExists`. `persist=False`: in memory
        only. `fence`: the number of a lock that must still be held.
        """
        name = key_bytes(key)
        kind, data = to_value(value)
        if ttl is not None and expires is not None:
            raise BadRequest("give ttl or expires, not both")
        kept = 0 if touch is None else length(touch, "touch")
        lives = kept if ttl is None else length(ttl, "ttl")
        until = 0
        if expires is not None:
            until = instant(expires, "expires")
        elif ttl is not None or touch is not None:
            until = min(self._engine.clock.now() + lives, MAX_INSTANT)
        decided = self._ask(
            self.operations.set, name, kind, data, timestamp=self._stamp(timestamp), expires=until,
            ttl=kept, overwrite=overwrite, persist=persist, by=_by(fence),
        )  # fmt: skip
        return not decided.stale

    def entry(
        self,
        key: Text,
        *,
        data: bool = True,
        lease: Length | None = None,
        worker: Text = b"",
        skip_worked_on: bool = False,
        expires: Instant | None = None,
    ) -> Entry:
        """An entry with all that is known of it; `NotFound` if it is not there.

        `data=False` leaves the value out. `lease` marks it as worked on by `worker` for so long.
        `expires` keeps it at least until then.
        """
        name = key_bytes(key)
        until = 0
        if lease is not None:
            until = min(self._engine.clock.now() + length(lease, "lease"), MAX_INSTANT)
        least = 0 if expires is None else instant(expires, "expires")
        who = worker_bytes(worker) if worker else b""
        reading = Reading(data, None, least, until, who, skip_worked_on)
        return self._ask(self.operations.get, name, reading)

    def setdefault(  # type: ignore[override]
        self, key: Text, default: EntryValue = None
    ) -> EntryValue:
        """The value of a key, stored first if there was none; in one step."""
        kind, data = to_value(default)
        name = key_bytes(key)

        def ask() -> EntryValue:
            try:
                return self.operations.get(name).value
            except NotFound:
                self.operations.set(name, kind, data)
                return default

        return self._ask(ask)

    def pop(self, key: Text, default: Any = _MISSING) -> Any:
        """Delete an entry and return its value; in one step."""
        name = key_bytes(key)

        def take() -> EntryValue:
            value = self.operations.get(name).value
            self.operations.delete(name)
            return value

        try:
            return self._ask(take)
        except NotFound:
            if default is _MISSING:
                raise KeyError(key) from None
            return default

    def delete(
        self,
        key: Text,
        *,
        purge: bool = False,
        timestamp: Instant | None = None,
        fence: int = 0,
    ) -> bool:
        """Delete an entry under all its keys; False if there was none, or a newer one.

        A tombstone keeps older writes away for a while; `purge` leaves nothing.
        """
        name = key_bytes(key)
        stamp = self._stamp(timestamp)
        decided = self._ask(
            self.operations.delete, name, purge=purge, timestamp=stamp,
            persist=True if stamp else None, by=_by(fence),
        )  # fmt: skip
        return decided.found > 0

    def add(
        self,
        key: Text,
        number: float = 1,
        *,
        sender: Text = b"",
        timestamp: Instant | None = None,
        persist: bool = True,
        fence: int = 0,
    ) -> EntryValue:
        """Add to a number and return the sum; a key that is not there counts as 0.

        With a `sender` and its `timestamp` the addition is made once, however often it is asked for
        within ten minutes.
        """
        name = key_bytes(key)
        kind, data = to_value(number)
        decided = self._ask(
            self.operations.add, name, kind, data, sender=worker_bytes(sender) if sender else b"",
            timestamp=self._stamp(timestamp), persist=persist, by=_by(fence),
            number=0 if timestamp is None else instant(timestamp, "timestamp"),
        )  # fmt: skip
        return from_value(decided.kind, decided.data)

    def flip(self, key: Text, *, fence: int = 0) -> bool:
        """Turn a boolean into the other one and return it."""
        name = key_bytes(key)
        return self._ask(self.operations.flip, name, by=_by(fence)).data == b"\1"

    def truncate(self, key: Text, size: int, *, fence: int = 0) -> None:
        """Cut bytes or text to `size` bytes, or fill it up with zero bytes."""
        if type(size) is not int:
            raise BadRequest("a size is a number, not negative")
        self._ask(self.operations.truncate, key_bytes(key), size, by=_by(fence))

    def rename(
        self,
        key: Text,
        new: Text,
        *,
        overwrite: bool = False,
        timestamp: Instant | None = None,
        fence: int = 0,
    ) -> bool:
        """Give an entry another key in one step; False if a newer write forbids it."""
        decided = self._ask(
            self.operations.rename, key_bytes(key), key_bytes(new), overwrite=overwrite,
            timestamp=self._stamp(timestamp), by=_by(fence),
        )  # fmt: skip
        return not decided.stale

    def alias(self, key: Text, further: Text, *, fence: int = 0) -> None:
        """Let an entry be found under a further key too."""
        self._ask(self.operations.alias, key_bytes(key), key_bytes(further), by=_by(fence))

    def range(self, lower: Text = b"", upper: Text = b"", *, data: bool = True) -> Iterator[Entry]:
        """The entries from `lower` to `upper`, both included, in order; empty: no bound."""
        low, high = (key_bytes(bound) if bound else b"" for bound in (lower, upper))
        return self._pages(KeyQuery(RANGE, low, high, _PAGE), Reading(data=data))

    def match(self, pattern: str | bytes, *, data: bool = True) -> Iterator[Entry]:
        """The entries whose keys hold this regular expression (RE2), in order."""
        raw = pattern.encode() if isinstance(pattern, str) else bytes(pattern)
        return self._pages(KeyQuery(PATTERN, b"", raw, _PAGE), Reading(data=data))

    def page(
        self,
        lower: Text = b"",
        upper: Text = b"",
        *,
        match: str | bytes = b"",
        cursor: bytes = b"",
        limit: int = 0,
        data: bool = True,
    ) -> EntryPage:
        """Some entries of a range or pattern, at most `limit` (0: as many as fit), and a cursor.

        Give its cursor back for the next page, from any process and after any restart.
        """
        if cursor:
            query = KeyQuery.resume(cursor)
        elif match:
            query = KeyQuery(
                PATTERN, b"", match.encode() if isinstance(match, str) else match, limit
            )
        else:
            low, high = (key_bytes(bound) if bound else b"" for bound in (lower, upper))
            query = KeyQuery(RANGE, low, high, limit)
        return self._ask(self.operations.page, query, Reading(data=data))

    def lock(
        self,
        key: Text,
        length: Length = 10,
        *,
        wait: Length = 0,
        owner: Text = b"",
    ) -> HeldLock:
        """Lock a key, entry or not, against changes by others; use it as a context manager.

        It ends after `length` by itself. Waits up to `wait` for another to free it, then `Locked`.
        """
        name = key_bytes(key)
        who = worker_bytes(owner) if owner else b"here-%d" % next(self._owners)
        return HeldLock(self, name, who, length, wait).take()

    def watch(
        self, key: Text | None = None, *, prefix: Text = b"", lower: Text = b"", upper: Text = b""
    ) -> EntryWatch:
        """Changes as they come: of a key, of all keys that begin so, of a range, or of all keys."""
        engine = self._engine
        watch = EntryWatch(engine.state, watched(key, prefix, lower, upper), engine.forget)
        with engine.lock:
            self._check_open()
            engine.subscribe(watch)
        return watch

    def _lock(self, key: bytes, owner: bytes, lasts: int, wait: int) -> tuple[int, int]:
        """Fencing number and deadline of a lock, taken or kept."""
        clock = self._engine.clock
        give_up = clock.monotonic() + wait
        with self._engine.lock:
            while True:
                self._check_open()
                try:
                    lock = self.operations.lock(key, owner, clock.now() + lasts)
                except Locked:
                    left = give_up - clock.monotonic()
                    if left <= 0:
                        raise
                    self._freed.wait(min(left / SECOND, 0.1))
                else:
                    time = self._engine.last_time
                    break
        self._engine.settle(time)
        return lock.fence, lock.until

    def _unlock(self, key: bytes, fence: int) -> bool:
        with self._engine.lock:
            freed = self.operations.unlock(key, Writer(fence=fence))
            self._freed.notify_all()
            return freed

    def _pages(self, query: KeyQuery, reading: Reading) -> Iterator[Entry]:
        while True:
            page = self._ask(self.operations.page, query, reading)
            yield from page.entries
            if not page.cursor:
                return
            query = KeyQuery.resume(page.cursor)

    def _stamp(self, timestamp: Instant | None) -> int:
        return 0 if timestamp is None else self._engine.stamp_of(instant(timestamp, "timestamp"))

    def _ask(self, request: Callable[..., _T], *given: Any, **how: Any) -> _T:
        engine = self._engine
        with engine.lock:
            self._check_open()
            before = engine.last_time
            missing: NotFound | None = None
            try:
                answer = request(*given, **how)
            except NotFound as error:  # which is something to show, too
                missing = error
            time = engine.last_time
        if time != before:
            engine.settle(time)
        else:
            engine.settle_reading(time)
        if missing is not None:
            raise missing
        return answer


def _by(fence: int) -> Writer:
    """Who makes a change: the holder of a lock, or nobody in particular."""
    return Writer(fence=fence) if fence else NOBODY
