"""The driver of the entry cases over the wire: a real daemon, raw FJ messages, a clock by hand.

Every reading is asked for twice: as documented, then with all that is known of the entry; what both
tell must agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastjournal.entry_model import Entry, EntryPage
from fastjournal.errors import NotFound
from fastjournal.journal.entries.ground import Decided
from fastjournal.journal.entries.locks import NOBODY, Lock, Writer
from fastjournal.testing import ManualClock
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.entry_codec import ALL, decode_entry, encode_who
from fastjournal.wire.fj.fields import decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    DATA,
    EXACT,
    LOCKED,
    OVERWRITE,
    PERSIST,
    WORKED_ON,
    Function,
    Query,
    Type,
)
from fastjournal.wire.fj.replies import Reply, error_from
from fjpeer import FjPeer

S = 1_000_000_000


class Wire:
    """A daemon, and a client of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wall = ManualClock()
        self.start()

    def start(self) -> None:
        self.wall.advance(ns=1000)  # starting takes time: records are a nanosecond apart
        settings = {"journal": {"sync": "os", "clean_interval": 0}}
        self.daemon = LocalDaemon(self.folder, settings=settings, clock=self.wall).start()
        self.peer = FjPeer(self.daemon.port)

    def stop(self) -> None:
        self.peer.close()
        self.daemon.stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def now(self) -> int:
        return self.wall.now()

    def wait(self, length: int) -> None:
        self.wall.advance(ns=length)

    def ask(self, function: Function, by: Writer = NOBODY, **fields: Any) -> Reply:
        if by != NOBODY:
            fields |= {"query": Query.RANGE, "upper": encode_who(by.fence, by.owner)}
        reply = self.peer.ask(function, **fields)
        if reply.error:
            raise error_from(reply.error)
        return reply

    def set(self, key: bytes, kind: int, data: bytes, **how: Any) -> Decided:
        flags = PERSIST if how.get("persist", True) else 0
        flags |= OVERWRITE if how.get("overwrite", True) else 0
        flags |= EXACT if how.get("exact", True) else 0
        ttl = how.get("ttl", 0)
        assert ttl % S == 0, "touch lengths are whole seconds on the wire"
        reply = self.ask(
            Function.SET, how.get("by", NOBODY), key=key, value_type=kind, value=data, flags=flags,
            timestamp=how.get("timestamp", 0), timeout=how.get("expires") or None,
            ttl=ttl // S if ttl else None,
        )  # fmt: skip
        return Decided(stale=reply.stale, kind=kind, data=data)

    def get(self, key: bytes, **how: Any) -> Entry:
        told = self.ask(Function.GET, key=key, **_reading(how))
        probe = self.ask(Function.GET, key=key, ttl=ALL)
        entry = decode_entry(key, probe.pairs[0].type, probe.pairs[0].value)
        pair = told.pairs[0]
        assert (pair.key, pair.type, entry.data) == (b"", entry.kind, b"")
        assert told.timestamp == entry.modified // 1000 * 1000
        assert bool(told.flags & LOCKED) == entry.locked
        mine = how.get("worker") == entry.worker
        assert bool(told.flags & WORKED_ON) == (entry.lease_until > 0 and not mine)
        timeout = entry.lease_until if "lease" in how else entry.expires
        assert (told.timeout or 0) == timeout // 1000 * 1000
        return entry._replace(data=pair.value)

    def delete(self, key: bytes, **how: Any) -> Decided:
        flags = PERSIST | (OVERWRITE if how.get("purge") else 0)
        reply = self.ask(
            Function.DELETE, how.get("by", NOBODY), key=key, flags=flags,
            timestamp=how.get("timestamp", 0),
        )  # fmt: skip
        return Decided(stale=reply.stale, found=decode_integer(reply.pairs[0].value))

    def add(self, key: bytes, kind: int, data: bytes, **how: Any) -> Decided:
        by = Writer(how["sender"]) if "sender" in how else how.get("by", NOBODY)
        return self._changed(
            Function.ADD, by, key=key, value_type=kind, value=data,
            timestamp=how.get("timestamp", 0),
        )  # fmt: skip

    def flip(self, key: bytes, **how: Any) -> Decided:
        return self._changed(Function.NOT, how.get("by", NOBODY), key=key)

    def truncate(self, key: bytes, size: int, **how: Any) -> Decided:
        self.ask(
            Function.TRUNCATE, how.get("by", NOBODY), key=key, value_type=Type.INTEGER,
            value=encode_integer(size), flags=PERSIST,
        )  # fmt: skip
        entry = self.get(key)
        return Decided(found=1, kind=entry.kind, data=entry.data)

    def rename(self, key: bytes, new: bytes, **how: Any) -> Decided:
        flags = PERSIST | (OVERWRITE if how.get("overwrite") else 0)
        reply = self.ask(
            Function.RENAME, how.get("by", NOBODY), key=key, value_type=Type.BUFFER, value=new,
            flags=flags, timestamp=how.get("timestamp", 0),
        )  # fmt: skip
        return Decided(stale=reply.stale, found=1)

    def alias(self, key: bytes, further: bytes, **how: Any) -> Decided:
        reply = self.ask(
            Function.ALIAS, how.get("by", NOBODY), key=key, value_type=Type.BUFFER, value=further,
            flags=PERSIST,
        )  # fmt: skip
        return Decided(stale=reply.stale, found=1)

    def lock(self, key: bytes, owner: bytes, until: int = 0) -> Lock:
        reply = self.ask(Function.LOCK, Writer(owner), key=key, timeout=until or None)
        return Lock(owner, reply.timeout or 0, decode_integer(reply.pairs[0].value))

    def unlock(self, key: bytes, by: Writer) -> bool:
        try:
            self.ask(Function.UNLOCK, by, key=key)
        except NotFound:
            return False
        return True

    def range(self, lower: bytes, upper: bytes, limit: int = 0, **how: Any) -> EntryPage:
        fields = {"key": lower, "upper": upper, "limit": limit, "query": Query.RANGE}
        return self._page(how, **fields)

    def match(self, pattern: bytes, limit: int = 0, **how: Any) -> EntryPage:
        return self._page(how, key=pattern, query=Query.PATTERN)

    def resume(self, cursor: bytes, **how: Any) -> EntryPage:
        return self._page(how, key=cursor, query=Query.CURSOR)

    def _page(self, how: dict[str, Any], **fields: Any) -> EntryPage:
        reading = _reading(how)
        told = self.ask(Function.GET, ttl=0, **fields, **reading)
        full = self.ask(Function.GET, ttl=ALL, flags=reading["flags"] & ~EXACT, **fields)
        entries = [decode_entry(pair.key, pair.type, pair.value) for pair in full.pairs]
        shown = [(p.key, p.type, p.value, p.expires) for p in told.pairs]
        assert shown == [(e.key, e.kind, e.data, e.expires // 1000 * 1000) for e in entries]
        assert told.flags & LOCKED == full.flags & LOCKED
        assert told.cursor == full.cursor
        return EntryPage(entries, told.cursor or b"")

    def _changed(self, function: Function, by: Writer, **fields: Any) -> Decided:
        reply = self.ask(function, by, flags=PERSIST, **fields)
        pair = reply.pairs[0]
        return Decided(stale=reply.stale, kind=pair.type, data=pair.value)


def _reading(how: dict[str, Any]) -> dict[str, Any]:
    flags = DATA if how.get("data", True) else 0
    flags |= WORKED_ON if how.get("skip") else 0
    flags |= EXACT if how.get("touch") or how.get("expires") else 0
    timeout = how.get("expires") or how.get("lease") or None
    worker = how.get("worker")
    value = {"value_type": Type.STRING, "value": worker} if worker else {}
    return {"flags": flags, "timeout": timeout, **value}
