"""The driver of the entry cases over the wire: a real daemon and raw FJ messages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fastjournal.entry import Entry
from fastjournal.journal.entry_ground import Decided
from fastjournal.journal.entry_locks import Lock, Writer
from fastjournal.journal.entry_operations import EntryPage
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.errortext import error_from
from fastjournal.wire.fj import Reply, decode_integer, encode_integer
from fastjournal.wire.functions import (
    DATA,
    EXACT,
    OVERWRITE,
    PERSIST,
    TTL,
    WORKED_ON,
    Function,
    Query,
    Type,
)
from fastjournal.wire.hello import Hello, encode_hello
from fjpeer import FjPeer


class Wire:
    """A daemon, and a client of it that has said HELLO."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        self.daemon = LocalDaemon(self.folder, settings={"journal": {"sync": "os"}}).start()
        self.peers: dict[bytes, FjPeer] = {}

    def stop(self) -> None:
        for peer in self.peers.values():
            peer.close()
        self.daemon.stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def now(self) -> int:
        return time.time_ns() // 1000 * 1000

    def wait(self, length: int) -> None:
        raise NotImplementedError("a daemon's clock goes by itself")

    def ask(self, function: Function, sender: bytes = b"", **fields: Any) -> Reply:
        peer = self.peers.get(sender)
        if peer is None:
            peer = self.peers[sender] = FjPeer(self.daemon.port)
            if sender:
                hello = encode_hello(Hello("", ""))
                peer.ask(Function.HELLO, key=sender, value_type=Type.BUFFER, value=hello)
        reply = peer.ask(function, **fields)
        if reply.error:
            if peer.parser.fault or reply.error.startswith("TOO-LARGE"):
                self.peers.pop(sender).close()
            raise error_from(reply.error)
        return reply

    def set(self, key: bytes, kind: int, data: bytes, **how: Any) -> Decided:
        flags = PERSIST if how.get("persist", True) else 0
        flags |= OVERWRITE if how.get("overwrite", True) else 0
        flags |= EXACT if how.get("exact", True) else 0
        reply = self.ask(
            Function.SET, key=key, value_type=kind, value=data, flags=flags,
            timestamp=how.get("timestamp", 0), timeout=how.get("expires") or None,
        )  # fmt: skip
        return Decided(stale=reply.stale, kind=kind, data=data)

    def get(self, key: bytes, **how: Any) -> Entry:
        return self._entries(self.ask(Function.GET, key=key, **_reading(how)), key)[0]

    def delete(self, key: bytes, **how: Any) -> Decided:
        flags = PERSIST | (OVERWRITE if how.get("purge") else 0)
        reply = self.ask(Function.DELETE, key=key, flags=flags, timestamp=how.get("timestamp", 0))
        return Decided(stale=reply.stale, found=decode_integer(reply.pairs[0].value))

    def add(self, key: bytes, kind: int, data: bytes, **how: Any) -> Decided:
        return self._changed(
            Function.ADD, how.get("sender", b""), key=key, value_type=kind, value=data,
            timestamp=how.get("timestamp", 0),
        )  # fmt: skip

    def flip(self, key: bytes, **how: Any) -> Decided:
        return self._changed(Function.NOT, key=key)

    def truncate(self, key: bytes, size: int, **how: Any) -> Decided:
        number = encode_integer(size)
        self.ask(Function.TRUNCATE, key=key, value_type=Type.INTEGER, value=number, flags=PERSIST)
        entry = self.get(key)
        return Decided(found=1, kind=entry.kind, data=entry.data)

    def rename(self, key: bytes, new: bytes, **how: Any) -> Decided:
        flags = PERSIST | (OVERWRITE if how.get("overwrite") else 0)
        reply = self.ask(
            Function.RENAME, key=key, value_type=Type.BUFFER, value=new, flags=flags,
            timestamp=how.get("timestamp", 0),
        )  # fmt: skip
        return Decided(stale=reply.stale, found=1)

    def alias(self, key: bytes, further: bytes, **how: Any) -> Decided:
        reply = self.ask(
            Function.ALIAS, key=key, value_type=Type.BUFFER, value=further, flags=PERSIST
        )
        return Decided(stale=reply.stale, found=1)

    def lock(self, key: bytes, owner: bytes, until: int = 0) -> Lock:
        reply = self.ask(Function.LOCK, owner, key=key, timeout=until or None)
        return Lock(owner, reply.timeout or 0, decode_integer(reply.pairs[0].value))

    def unlock(self, key: bytes, by: Writer) -> bool:
        self.ask(Function.UNLOCK, by.owner, key=key)
        return True

    def range(self, lower: bytes, upper: bytes, limit: int = 0, **how: Any) -> EntryPage:
        return self._page(key=lower, upper=upper, limit=limit, query=Query.RANGE, **_reading(how))

    def match(self, pattern: bytes, limit: int = 0, **how: Any) -> EntryPage:
        return self._page(key=pattern, query=Query.PATTERN, **_reading(how))

    def resume(self, cursor: bytes, **how: Any) -> EntryPage:
        return self._page(key=cursor, query=Query.CURSOR, **_reading(how))

    def _page(self, **fields: Any) -> EntryPage:
        fields["flags"] |= TTL
        reply = self.ask(Function.GET, ttl=0, **fields)
        return EntryPage(self._entries(reply), reply.cursor or b"")

    def _changed(self, function: Function, sender: bytes = b"", **fields: Any) -> Decided:
        reply = self.ask(function, sender, flags=PERSIST, **fields)
        pair = reply.pairs[0]
        return Decided(stale=reply.stale, kind=pair.type, data=pair.value)

    def _entries(self, reply: Reply, key: bytes = b"") -> list[Entry]:
        return [
            Entry(
                key or pair.key, pair.type, pair.value, 0, reply.timestamp if key else 0,
                pair.expires or 0 if not key else reply.timeout or 0, 0, True,
            )
            for pair in reply.pairs
        ]  # fmt: skip


def _reading(how: dict[str, Any]) -> dict[str, Any]:
    flags = DATA if how.get("data", True) else 0
    flags |= WORKED_ON if how.get("skip") else 0
    flags |= EXACT if how.get("touch") or how.get("expires") else 0
    timeout = how.get("expires") or how.get("lease") or None
    return {"flags": flags, "timeout": timeout}
