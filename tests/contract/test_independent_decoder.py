"""A decoder of logs written from `docs/log-format.md` alone: the page suffices.

Nothing of the format is taken from the package: bytes are read here as the page says. Every type
of record is met, every setting by its number, `synced.pos`, the manifest, snapshots.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import pytest

from fastjournal import Journal
from fastjournal.model import QueueSettings
from fastjournal.testing import ManualClock

DOCS = Path(__file__).parents[2] / "docs"
GOLDEN = Path(__file__).parents[1] / "golden"
PAGE = (DOCS / "log-format.md").read_text()
TYPES = {
    int(number): name for number, name in re.findall(r"^ +(\d+)  ([A-Z]+) ", PAGE, re.MULTILINE)
}
SETTINGS = {
    int(number): (name, written)
    for number, name, written in re.findall(
        r"^\| (\d+) \| `(\w+)` \| (.*) \|$",
        PAGE.partition("<!-- table settings -->")[2].partition("<!-- end settings -->")[0],
        re.MULTILINE,
    )
}
YEAR_1 = 62_135_596_800


class Record(NamedTuple):
    offset: int
    time: int
    payload: bytes


class Reader:
    """Fields of a payload."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def raw(self, size: int) -> bytes:
        assert self.at + size <= len(self.data), "the payload is cut off"
        self.at += size
        return self.data[self.at - size : self.at]

    def u8(self) -> int:
        return self.raw(1)[0]

    def uv(self) -> int:
        number = shift = 0
        while True:
            byte = self.u8()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def sv(self) -> int:
        number = self.uv()
        return number >> 1 ^ -(number & 1)

    def b(self) -> bytes:
        return self.raw(self.uv())

    def t(self) -> int:
        return int(struct.unpack(">Q", self.raw(8))[0])

    def z(self) -> int:
        return time_of(self.raw(15))

    def bs(self) -> tuple[bytes, ...]:
        return tuple(self.b() for _ in range(self.uv()))


def time_of(data: bytes) -> int:
    version, seconds, ns, zone = struct.unpack(">BQIH", data)
    assert version == 1
    assert zone in (0, 0xFFFF)
    return 0 if not seconds else (seconds - YEAR_1) * 10**9 + ns


def records_of(data: bytes, magic: bytes) -> Iterator[Record]:
    """The records of a segment or a snapshot; zeros behind them are room reserved ahead."""
    assert data[:8] == magic + struct.pack(">I", 1)
    at = 8
    while at < len(data) and data[at]:
        reader = Reader(data[at:])
        time = time_of(reader.raw(15))
        size = reader.uv()
        if at + reader.at + size + 4 > len(data):
            return  # a torn tail: an append was under way
        payload = reader.raw(size)
        end = at + reader.at
        if not any(data[end:]):
            return  # torn inside room reserved ahead
        assert google_crc32c.value(data[at:end]) == struct.unpack_from(">I", data, end)[0]
        yield Record(at, time, payload)
        at = end + 4


def decoded(payload: bytes) -> dict[str, Any]:
    """A command by its table."""
    r = Reader(payload)
    kind = r.u8()
    name = TYPES[kind]
    out: dict[str, Any] = {"type": name}
    if name in ("MARK", "GROUP", "QUEUE", "SENDER", "ENDS"):
        pass
    else:
        out["id"] = r.raw(16)
    if name in ("ADD", "SCHEDULE"):
        out |= {"name": r.b(), "ttr": r.uv(), "ttl": r.uv(), "priority": r.sv()}
        out |= {"max_attempts": r.uv(), "max_fails": r.uv(), "value": r.b()}
        out |= {"time": r.z(), "created": r.z()}
    elif name in ("COMPLETE", "FAIL"):
        out["result"] = r.b() if r.at < len(payload) else b""
    elif name == "PUT":
        assert r.u8() == 1
        out |= {"queue": r.b(), "key": r.b(), "aliases": r.bs(), "rank": r.sv(), "due": r.t()}
        out |= {"inserted": r.t(), "modified": r.t(), "expires": r.t(), "ttl": r.uv()}
        out |= {"kind": r.u8(), "value": r.b()}
        flags = r.u8()
        out |= {"persist": flags & 1, "keep_versions": flags >> 1 & 1, "workq": flags >> 2 & 1}
        out |= {"scheduled": flags >> 3 & 1, "schema": flags >> 4}
        out |= {"lease": r.uv(), "attempts": r.uv(), "timeouts": r.uv(), "fails": r.uv()}
        out |= {"max_attempts": r.uv(), "max_timeouts": r.uv(), "max_fails": r.uv()}
    elif name == "LEASE":
        out |= {"start": r.t(), "until": r.t(), "attempt": r.uv(), "worker": r.b()}
    elif name == "RENEW":
        out |= {"until": r.t(), "attempt": r.uv()}
    elif name == "TOUCH":
        out["expires"] = r.t()
    elif name in ("TOMB", "PURGE"):
        out |= {"queue": r.b(), "key": r.b(), "modified": r.t()}
    elif name == "DEAD":
        out |= {"reason": r.u8(), "when": r.t()}
    elif name == "KEYS":
        out |= {"key": r.b(), "aliases": r.bs(), "modified": r.t()}
    elif name == "VALUE":
        out |= {"kind": r.u8(), "value": r.b(), "modified": r.t(), "operation": r.b()}
    elif name == "GROUP":
        out["members"] = [decoded(r.b()) for _ in range(r.uv())]
    elif name == "MARK":
        out |= {"when": r.t(), "segment": r.uv(), "offset": r.uv(), "note": r.b()}
    elif name == "QUEUE":
        out["queue"] = r.b()
        assert r.u8() == 1
        out["settings"] = {r.uv(): r.sv() for _ in range(r.uv())}
    elif name == "RETRY":
        out |= {"reason": r.u8(), "due": r.t(), "timeouts": r.uv(), "fails": r.uv(), "note": r.b()}
    elif name == "REDRIVE":
        out |= {"due": r.t(), "max_attempts": r.uv()}
    elif name == "SENDER":
        out |= {"sender": r.b(), "mark": r.t()}
    elif name == "ENDS":
        out["ends"] = [(r.raw(16), r.u8(), r.uv()) for _ in range(r.uv())]
    assert r.at == len(payload), f"bytes behind a {name}"
    return out


def all_of(path: Path) -> list[dict[str, Any]]:
    """The commands of a journal's segments in order; those of a group count one by one too."""
    found = []
    for segment in sorted(path.glob("[0-9]*.log")):
        data = segment.read_bytes()
        if len(data) < 8 or not any(data[:8]):
            continue  # created, not written
        times = [0]
        for record in records_of(data, b"wqwq"):
            times.append(record.time)
            command = decoded(record.payload)
            found += [command, *command.get("members", ())]
    return found


def settings_of(written: dict[int, int]) -> dict[str, Any]:
    """The settings of a QUEUE by the table of numbers."""
    out: dict[str, Any] = {}
    for number, value in written.items():
        name, how = SETTINGS[number]
        if how == "thousandths":
            out[name] = value / 1000
        elif how == "0 or 1":
            out[name] = bool(value)
        else:
            out[name] = value if how == "as it is" else how.split(", ")[value]
    return out


OTHER: dict[str, Any] = {
    "lease": 1, "max_timeouts": 7, "max_attempts": 7, "max_fails": 9, "max_wait": 5,
    "backoff_base": 2, "backoff_factor": 1.125, "backoff_cap": 9, "backoff_jitter": 0.25,
    "backoff_timeouts": True, "slow_from": 256, "keep_versions": True, "dead_keep": 1,
    "result_ttl": 1, "concurrency": 3, "paused": True, "draining": True,
    "priority_order": "larger", "period": "month", "file_management": "truncate", "secure": True,
    "persist": False, "schema": 2,
}  # fmt: skip


@pytest.fixture
def lived_in(tmp_path: Path) -> Path:
    """A directory in which all that makes records of our own has happened."""
    path, clock = tmp_path / "journal", ManualClock()
    with Journal(path, sync="always", background=False, clock=clock) as j:
        j.configure("all", **OTHER)
        j.configure("q", max_fails=2, max_timeouts=1, schema=5)
        j.put(b"letter", queue="q", key="user:42", priority=20, lease=30, ttl=3600)
        j.put(b"dead", queue="d")
        clock.advance(1)
        job = j.lease("q", worker="w1")
        assert job is not None
        job.touch()
        j.put(b"newer", queue="q", key="user:42")  # a twin
        job.release(5)
        clock.advance(10)
        job = j.lease("q")
        assert job is not None
        job.done(b"result")
        j.delete(key="none", queue="q")
        dying = j.put(b"dying", queue="q", key="dies")
        for _ in range(2):
            clock.advance(100)
            job = j.lease("q")
            assert job is not None
            job.fail(b"why")
        clock.advance(100)
        j.redrive(dying.id)
        e = j.entries
        e.set("e", 1, ttl=100, touch=50)
        clock.advance(40)
        e.get("e")
        e.add("e", 2, sender="s", timestamp=clock.now() / 1e9)
        e.alias("e", "f")
        e.rename("e", "g")
        e.delete("g", purge=True)
        j.configure("t", max_timeouts=1, lease=1)
        j.put(b"times out", queue="t")
        clock.advance(1)
        assert j.lease("t") is not None
        clock.advance(5)
        j.tick()
        j.put(b"goes", queue="x", ttl=1)
        clock.advance(5)
        j.tick()
        with j.engine.lock:
            j.operations.forwarding.put_from(b"sender", [])
        j.rotate()
        j.put(b"more", queue="q")
        j.clean()
    return path


def test_every_type_of_record_is_read_by_what_the_page_says(lived_in: Path) -> None:
    """WQ-REC-1..6, CPT-FIL-3, SNAP-SCH-1: of a new directory, of 0.1.0 and of the Workq server."""
    seen = {command["type"] for command in all_of(lived_in)}
    places = [one for one in GOLDEN.rglob("*") if one.is_dir() and any(one.glob("0*.log"))]
    assert len(places) > 10
    for place in places:
        seen |= {command["type"] for command in all_of(place)}
    assert seen == set(TYPES.values()), set(TYPES.values()) ^ seen


def test_every_setting_is_read_by_its_number(lived_in: Path) -> None:
    queues = {c["queue"]: c["settings"] for c in all_of(lived_in) if c["type"] == "QUEUE"}
    told = settings_of(queues[b"all"])
    with Journal(lived_in, sync="os", background=False, clock=ManualClock()) as journal:
        settings = asdict(journal.queue("all").settings)
    assert told == settings
    assert set(told) == {name for name, _ in SETTINGS.values()}
    assert all(told[name] != value for name, value in asdict(QueueSettings()).items())


def test_a_put_says_what_was_put(lived_in: Path) -> None:
    puts = [c for c in all_of(lived_in) if c["type"] == "PUT" and c.get("key") == b"user:42"]
    first = puts[0]
    assert (first["queue"], first["value"], first["rank"]) == (b"q", b"letter", 20)
    assert (first["lease"], first["persist"], first["schema"]) == (30_000, 1, 5)
    assert first["inserted"] == first["due"] == first["modified"]


def test_what_was_synced_and_what_is_sealed_is_read_too(lived_in: Path) -> None:
    """Slots of `synced.pos`, lines of the manifest with their checksums, sizes and times."""
    mark = (lived_in / "synced.pos").read_bytes()
    slots = []
    for at in (0, 64):
        data = mark[at : at + 44]
        if len(data) == 44 and google_crc32c.value(data[:40]) == struct.unpack(">I", data[40:])[0]:
            slots.append(struct.unpack(">QQq", data[:24]))
    segment, offset, time = max(slots)
    newest = lived_in / f"{segment:09}.log"
    synced = [r for r in records_of(newest.read_bytes(), b"wqwq") if r.offset < offset]
    assert synced[-1].time == time
    lines = (lived_in / "manifest").read_text().splitlines()
    for line in lines:
        crc, text = line.split(" ", 1)
        assert google_crc32c.value(text.encode()) == int(crc, 16)
    assert lines[0].split()[1:4] == ["fastjournal", "manifest", "1"]
    sealed = {}
    for line in lines[1:]:
        words = line.split()[1:]
        if words[0] in ("sealed", "changes"):
            sealed[int(words[1])] = words[2:]
    assert sealed
    for number, (first, last, size, crc, _) in sealed.items():
        data = (lived_in / f"{number:09}.log").read_bytes()
        times = [record.time for record in records_of(data, b"wqwq")]
        assert (times[0], max(times), len(data)) == (int(first), int(last), int(size))
        assert google_crc32c.value(data) == int(crc, 16)


def test_a_snapshot_holds_every_row_that_lives(lived_in: Path) -> None:
    with Journal(lived_in, sync="os", background=False, clock=ManualClock()) as journal:
        journal.snapshot()
        living = {job.id for job in journal.jobs(limit=1000)}
    (snapshot,) = lived_in.glob("*.snapshot")
    data = snapshot.read_bytes()
    records = list(records_of(data, b"fjsn"))
    images = [decoded(record.payload) for record in records]
    images += [member for image in list(images) for member in image.get("members", ())]
    assert living <= {image["id"] for image in images if image["type"] == "PUT"}
    check = snapshot.with_suffix(".checkpoint").read_bytes()
    assert check[:8] == b"fjck" + struct.pack(">I", 1)
    count, size, crc, own = struct.unpack(">QQII", check[8:32])
    assert (count, size, crc) == (len(records), len(data), google_crc32c.value(data))
    assert own == google_crc32c.value(check[:28])


def test_the_page_names_every_type_and_number_once() -> None:
    assert set(TYPES) == {*range(1, 9), 32, *range(34, 42), *range(44, 51)}
    assert sorted(SETTINGS) == list(range(23))
    assert json.dumps(sorted(TYPES))
