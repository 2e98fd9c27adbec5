"""A client of the FJ protocol written from `docs/fj-protocol.md` alone: the page suffices.

Nothing of the protocol is taken from the package: bytes are packed here as the tables of the page
say. Every function is called, every bit of a request and of a reply is used.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fastjournal.testing.daemon import LocalDaemon

PAGE = (Path(__file__).parents[2] / "docs" / "fj-protocol.md").read_text()
FUNCTIONS = {
    name: int(number)
    for number, name in re.findall(r"^\| (\d+) \| ([A-Z]{3,}) \|", PAGE, re.MULTILINE)
}
VOID, BUFFER, STRING, INTEGER, FLOAT, BOOLEAN, JOB = range(7)
RANGE, PATTERN, CURSOR = 1, 2, 3


class Pair(NamedTuple):
    key: bytes
    type: int | None
    value: bytes
    expiry: int | None


class Answer(NamedTuple):
    identifier: int
    flags: int
    timestamp: int
    timeout: int | None
    error: str
    cursor: bytes | None
    pairs: list[Pair]

    @property
    def value(self) -> bytes:
        return self.pairs[0].value


class Plain:
    """Speaks FJ by the page."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 20)
        self.file = self.sock.makefile("rb")
        self.functions: set[str] = set()
        self.bits = 0
        self.told = 0

    def send(
        self,
        name: str,
        identifier: int = 1,
        *bits: int,
        timestamp: int = 0,
        timeout: int | None = None,
        query: int = 0,
        count: int = 0,
        ttl: int | None = None,
        key: bytes = b"",
        upper: bytes = b"",
        value: tuple[int, bytes] | None = None,
    ) -> None:
        self.functions.add(name)
        flags = sum(1 << bit for bit in bits) | query << 7
        wide = len(key) > 255 or len(upper) > 255
        flags |= int(wide)
        if timeout is not None:
            flags |= 1 << 3
        if ttl is not None:
            flags |= 1 << 13
        if value is not None:
            size = len(value[1]) + 1
            flags |= (1 if size < 1 << 8 else 2 if size < 1 << 16 else 3) << 1
        self.bits |= flags
        out = b"FJ" + struct.pack(">HHHHQ", 1, FUNCTIONS[name], identifier, flags, timestamp)
        if timeout is not None:
            out += struct.pack(">Q", timeout)
        if query == RANGE:
            out += struct.pack(">H", count)
        if ttl is not None:
            out += struct.pack(">I", ttl)
        sized = ">H" if wide else ">B"
        out += struct.pack(sized, len(key)) + key
        if query == RANGE:
            out += struct.pack(sized, len(upper)) + upper
        if value is not None:
            kind = flags >> 1 & 3
            out += struct.pack((">B", ">H", ">I")[kind - 1], size) + bytes([value[0]]) + value[1]
        self.sock.sendall(out)

    def read(self) -> Answer:
        magic, version, identifier, flags, timestamp = struct.unpack(">2sHHHQ", self._take(16))
        assert (magic, version) == (b"JR", 1)
        self.told |= flags
        timeout = struct.unpack(">Q", self._take(8))[0] if flags & 1 << 3 else None
        query = flags >> 7 & 3
        count = struct.unpack(">H", self._take(2))[0] if query else None
        error = self._sized(flags).decode()
        cursor = self._sized(flags) if query == CURSOR else None
        width = flags >> 1 & 3
        if count is None:
            count = 1 if width else 0
        return Answer(
            identifier, flags, timestamp, timeout, error, cursor,
            [self._pair(flags, width) for _ in range(count)],
        )  # fmt: skip

    def ask(self, name: str, *given: int, **fields: Any) -> Answer:
        self.send(name, *given, **fields)
        answer = self.read()
        while answer.flags & 1 << 11:  # a push
            answer = self.read()
        return answer

    def fine(self, name: str, *given: int, **fields: Any) -> Answer:
        answer = self.ask(name, *given, **fields)
        assert answer.error == "", (name, answer.error)
        return answer

    def _pair(self, flags: int, width: int) -> Pair:
        expiry = struct.unpack(">Q", self._take(8))[0] if flags & 1 << 13 else None
        key = self._sized(flags)
        if not width:
            return Pair(key, None, b"", expiry)
        size = int.from_bytes(self._take(1 << width - 1), "big")
        data = self._take(size)
        return Pair(key, data[0], data[1:], expiry)

    def _sized(self, flags: int) -> bytes:
        return self._take(int.from_bytes(self._take(2 if flags & 1 else 1), "big"))

    def _take(self, size: int) -> bytes:
        data = self.file.read(size)
        assert len(data) == size, "the connection ended"
        return data


def short(queue: bytes, data: bytes, priority: int = 100) -> tuple[int, bytes]:
    """Type 6, layout 1."""
    return JOB, struct.pack(">BBBBQIH", 1, priority, 0, 0, 0, 0, len(queue)) + queue + data


def whole(queue: bytes, data: bytes, key: bytes = b"", mode: int = 2) -> bytes:
    """Type 6, layout 2."""
    return (
        struct.pack(">BBBB", 2, mode, BUFFER, 0) + bytes(16) + struct.pack(">q", 100)
        + struct.pack(">QQQQQ", 0, 0, 0, 0, 0) + struct.pack(">III", 0, 0, 0)
        + struct.pack(">HHI", len(queue), len(key), len(data)) + queue + key + data
    )  # fmt: skip


def leased(value: bytes) -> dict[str, Any]:
    """Type 6, layout 3."""
    assert value[0] == 3
    queue, worker, note = struct.unpack_from(">HHH", value, 128)
    (size,) = struct.unpack_from(">I", value, 134)
    at = 138 + queue + worker + note
    return {
        "state": chr(value[1]), "id": value[4:20], "token": struct.unpack_from(">I", value, 20)[0],
        "until": struct.unpack_from(">Q", value, 24)[0], "queue": value[138 : 138 + queue],
        "schema": value[3] >> 2 & 15, "data": value[at : at + size],
    }  # fmt: skip


def what_to_lease(
    count: int, *queues: bytes, wait: int = 0, version: int | None = None
) -> tuple[int, bytes]:
    bits = 2 if version is None else 2 | 8 | version << 4
    head = struct.pack(">BBHIIQHH", 1, bits, count, 0, wait, 0, len(queues), 0)
    return BUFFER, head + b"".join(struct.pack(">H", len(q)) + q for q in queues)


def to_settle(*leases: tuple[int, bytes, int, bytes | None]) -> tuple[int, bytes]:
    out = struct.pack(">I", len(leases))
    for action, job_id, token, result in leases:
        bits = action | (0x80 if result is not None else 0)
        out += struct.pack(">B16sIQHI", bits, job_id, token, 0, 0, len(result or b""))
        out += result or b""
    return BUFFER, out


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", settings={"journal": {"sync": "os"}}) as running:
        yield running


def test_every_function_works_by_what_the_page_says(daemon: LocalDaemon) -> None:
    """FJ-MSG-1..3, FJ-FLG-0..12, FJ-RPL-1..2, FJ-CMD-0..4."""
    me, other = Plain(daemon.port), Plain(daemon.port)
    now = time.time_ns() // 1000
    hello = struct.pack(">BBHHHQ", 1, 0, 1, 0, 0, now)
    about = json.loads(me.fine("HELLO", 1, key=b"me", value=(BUFFER, hello)).value)
    assert about["server"] == "fastjournal"
    other.fine("HELLO", 1, key=b"other")
    me.fine("NOP", 2)
    assert abs(me.fine("PING", 3).timestamp - now) < 60_000_000

    # Entries.
    stable = me.fine("SET", 4, 5, 9, key=b"a", value=(STRING, b"hi"), timestamp=now)
    assert stable.flags & 1 << 9
    assert me.fine("SET", 4, 5, 12, key=b"p", value=(BOOLEAN, b"\0")).flags & 1 << 9
    assert me.fine("SET", 4, 5, 9, key=b"a", value=(STRING, b"old"), timestamp=now).flags & 1 << 4
    got = me.fine("GET", 5, 10, key=b"a")
    assert (got.pairs[0].type, got.value, got.timestamp) == (STRING, b"hi", now)
    assert me.ask("SET", 6, key=b"a", value=(STRING, b"x")).error.startswith("EXISTS")
    me.fine("SET", 7, 4, 5, 6, 14, key=b"e", timeout=60_000_000, ttl=5, value=(VOID, b""))
    assert me.fine("GET", 8, key=b"e").timeout
    me.fine("GET", 8, 4, 10, key=b"e")  # touch
    later = now + 600_000_000
    assert me.fine("GET", 8, 4, key=b"e", timeout=later).timeout == later
    ranged = me.fine("GET", 9, 10, query=RANGE, key=b"a", upper=b"e", count=1, ttl=0)
    assert [(pair.key, pair.value, pair.expiry) for pair in ranged.pairs] == [(b"a", b"hi", 0)]
    assert ranged.cursor is not None
    rest = me.fine("GET", 10, query=CURSOR, key=ranged.cursor)
    assert [pair.key for pair in rest.pairs] == [b"e"]
    assert [p.key for p in me.fine("GET", 11, query=PATTERN, key=b"^[ap]$").pairs] == [b"a", b"p"]
    picture = me.fine("GET", 12, 10, key=b"a", ttl=2).value
    worker, keys = struct.unpack_from(">HH", picture, 2)
    assert (picture[0], picture[1] & 1, worker, keys) == (2, 1, 0, 1)
    assert struct.unpack_from(">Q", picture, 14)[0] == now * 1000
    assert picture.endswith(b"\0\1ahi")
    number = struct.pack(">q", 5)
    assert me.fine("ADD", 13, 6, key=b"n", value=(INTEGER, number)).value == number
    assert me.fine("NOT", 14, key=b"p").value == b"\1"
    me.fine("TRUNCATE", 15, key=b"a", value=(INTEGER, b"\1"))
    me.fine("ALIAS", 16, key=b"a", value=(BUFFER, b"b"))
    assert me.fine("GET", 17, 10, key=b"b").value == b"h"
    me.fine("RENAME", 18, 5, key=b"a", value=(BUFFER, b"c"))
    held = me.fine("LOCK", 19, 14, key=b"c", timeout=5_000_000)
    fence = int.from_bytes(held.value, "big")
    assert other.fine("GET", 20, key=b"c").flags & 1 << 5
    assert other.ask("DELETE", 21, key=b"c").error.startswith("LOCKED")
    who = struct.pack(">Q", fence) + b"me"
    me.fine("SET", 22, 5, 6, query=RANGE, key=b"c", upper=who, value=(STRING, b"x" * 300))
    me.fine("UNLOCK", 23, key=b"c")
    worked = me.fine("GET", 24, 14, key=b"c", timeout=60_000_000, value=(STRING, b"worker"))
    assert worked.timeout
    assert other.fine("GET", 25, key=b"c").flags & 1 << 6
    assert other.ask("GET", 25, 6, key=b"c").error.startswith("NOT-FOUND")
    long_key = b"k" * 300
    me.fine("SET", 26, 5, key=long_key, value=(BUFFER, b"y" * 70_000))
    assert len(me.fine("GET", 27, 10, key=long_key).value) == 70_000
    assert me.fine("GET", 27, query=RANGE, key=long_key, upper=long_key).pairs[0].key == long_key
    me.fine("LISTEN", 28, key=b"c")
    other.fine("SET", 29, 5, key=b"c", value=(INTEGER, b"\1"))
    push = me.read()
    assert (push.identifier, push.pairs[0].key, push.pairs[0].type) == (28, b"c", INTEGER)
    other.fine("DELETE", 30, 5, key=b"c", value=(STRING, b""))
    assert me.read().flags & 1 << 12
    me.fine("UNLISTEN", 31, key=b"c")
    me.fine("SET", 32, 5, 11, key=b"l", value=(INTEGER, b"\1"))
    other.fine("DELETE", 33, 9, key=b"l", timestamp=time.time_ns() // 1000)
    assert me.read().identifier == 32

    # Jobs.
    me.fine("SET", 40, key=b"http://q/1", value=short(b"q", b"one"))
    job = me.fine("NEXT", 41, 10, key=b"q", value=(INTEGER, b"\0"))
    assert job.pairs[0].value[3] == 1
    assert job.timeout
    me.fine("DONE", 42, 9, key=b"http://q/1", value=(INTEGER, b"\1"))
    outcomes = me.fine(
        "PUTS", 43, 9, value=(BUFFER, struct.pack(">I", 3) + whole(b"q", b"two") * 3)
    )
    assert struct.unpack_from(">I", outcomes.value)[0] == 3
    first = me.fine("NEXT", 44, 10, 14, key=b"q", ttl=0, timeout=60_000_000)
    one = leased(first.value)
    assert (one["state"], one["data"], one["queue"]) == ("P", b"two", b"q")
    touched = me.fine("TOUCH", 45, key=one["id"], ttl=one["token"], value=(INTEGER, b"\x03\xe8"))
    assert touched.timeout
    me.fine("RELEASE", 46, 9, key=one["id"], ttl=one["token"])
    assert me.fine("LEASE", 47, value=what_to_lease(2, b"q", version=3)).pairs == []
    many = me.fine("LEASE", 47, value=what_to_lease(2, b"q", version=0))
    jobs = [leased(pair.value) for pair in many.pairs]
    assert len(jobs) == 2
    settled = me.fine("SETTLE", 48, 4, value=to_settle(
        (0, jobs[0]["id"], jobs[0]["token"], b"result"), (2, jobs[1]["id"], jobs[1]["token"], None),
    ))  # fmt: skip
    assert struct.unpack_from(">I", settled.value)[0] == 2
    assert settled.value[4] == 0
    result = me.fine("RESULT", 49, key=jobs[0]["id"], ttl=0, value=(INTEGER, b"\1"))
    assert result.value == b"\1result"
    last = leased(me.fine("NEXT", 50, 10, key=b"q", ttl=0).value)
    failed = me.fine("FAIL", 51, 9, key=last["id"], ttl=last["token"], value=(BUFFER, b"why"))
    assert failed.value[4] in (1, 2)
    me.fine("SET", 52, 4, value=(JOB, whole(b"r", b"taken")))
    assert leased(me.fine("NEXT", 53, 5, 10, key=b"r", ttl=0).value)["data"] == b"taken"
    sender = b"\1" * 6 + b"\x80" + b"\1" * 5
    forward = struct.pack(">BBHI", 1, 0, 0, 1) + struct.pack(">I", 9) + whole(b"f", b"spooled")
    told = me.fine("FORWARD", 54, 9, key=sender, value=(BUFFER, forward))
    assert struct.unpack_from(">II", told.value) == (9, 1)
    me.fine("LISTEN", 55, 6, key=b"due")
    other.fine("SET", 56, value=short(b"due", b"x"), key=b"d")
    due = me.read()
    assert (due.identifier, due.pairs[0].key) == (55, b"due")
    me.fine("UNLISTEN", 57, 6, key=b"due")
    me.fine("DELETE", 58, 6, key=b"d")

    # Looking and steering.
    queue = json.loads(me.fine("QUEUE", 60, 9, key=b"q", value=(STRING, b'{"schema": 3}')).value)
    assert queue["settings"]["schema"] == 3
    me.fine("PUTS", 61, value=(BUFFER, struct.pack(">I", 1) + whole(b"v", b"x")))
    me.fine("PAUSE", 62, key=b"q", value=(STRING, b"both"))
    me.fine("RESUME", 63, key=b"q")
    assert me.fine("REDRIVE", 64, key=b"q").pairs[0].type == INTEGER
    assert json.loads(me.fine("INSPECT", 65, key=b"q", value=(STRING, b"queue")).value)
    page = me.fine("LIST", 66, value=(STRING, b'{"limit": 1, "values": true}'))
    assert len(json.loads(page.value)) == 1
    assert page.cursor is not None
    assert json.loads(me.fine("LIST", 67, query=CURSOR, key=page.cursor).value)
    assert json.loads(me.fine("STATUS", 68).value)["promise"]
    me.fine("MAINTAIN", 69, value=(STRING, b"sync"))
    assert me.ask("NOP", 70, 5).error.startswith("BAD-FLAGS")
    other.fine("SET", 71, 5, key=b"z", value=(FLOAT, struct.pack(">d", 1.5)))
    other.fine("QUIT", 72)
    assert other.file.read(1) == b""

    assert me.functions | other.functions == set(FUNCTIONS), "a function was not called"
    used, seen = me.bits | other.bits, me.told | other.told
    assert used == 0x7FFF, f"bits of requests not used: {0x7FFF & ~used:b}"
    assert seen == 0x3FFF, f"bits of replies not seen: {0x3FFF & ~seen:b}"


def test_the_page_names_every_function_once() -> None:
    assert len(FUNCTIONS) == 34
    assert sorted(FUNCTIONS.values()) == [*range(20), *range(32, 39), *range(40, 47)]
