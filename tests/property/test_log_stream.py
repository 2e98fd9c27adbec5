"""A stream under random use, crashes included, against a list as the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastjournal.log import Record, Stream
from fastjournal.log.care.check import verify
from fastjournal.log.read.cursor import Cursor
from fastjournal.log.write.appender import Appender
from fastjournal.testing import ManualClock, ManualTicker, MemoryFiles

HERE = Path("/journal")
PAYLOADS = st.one_of(
    st.binary(max_size=20),
    st.builds(lambda size: b"s" * size, st.sampled_from([127, 128, 600, 1500, 4100, 9000])),
)


@dataclass(frozen=True)
class Entry:
    time: int
    payload: bytes
    segment: int


class LogMachine(RuleBasedStateMachine):
    """The list `entries` is what the log must hold; `safe` of them survive a power loss."""

    @initialize(
        policy=st.sampled_from(["os", "interval", "always"]), zone=st.sampled_from(["0000", "ffff"])
    )
    def start(self, policy: str, zone: str) -> None:
        self.policy = policy
        self.zone = zone
        self.clock = ManualClock()
        self.ticker = ManualTicker()
        self.entries: list[Entry] = []
        self.safe = 0
        self.last_time = 0
        self.use(MemoryFiles())
        self.stream.create()
        self.open()

    def use(self, files: MemoryFiles) -> None:
        self.files = files
        self.stream = Stream(HERE, files=files, clock=self.clock, zone_bytes=self.zone)
        self.follower: Cursor | None = None
        self.followed: list[Record] = []

    def open(self) -> None:
        self.appender: Appender = self.stream.open_appender(
            segment_size=4096, sync=self.policy, ticker=self.ticker
        )
        self.appender.lock()

    def added(self, times: list[int], payloads: list[bytes], before: int) -> None:
        segment = self.appender.position.segment
        if segment != before:  # rotated: what stood there was synced
            self.safe = len(self.entries)
        self.entries += [
            Entry(time, payload, segment) for time, payload in zip(times, payloads, strict=True)
        ]
        assert times == sorted(set(times))
        assert not times or times[0] > self.last_time
        self.last_time = max([self.last_time, *times])
        if self.policy == "always":
            self.safe = len(self.entries)

    @rule(payload=PAYLOADS)
    def append(self, payload: bytes) -> None:
        before = self.appender.position.segment
        self.added([self.appender.append(payload)], [payload], before)

    @rule(payloads=st.lists(PAYLOADS, max_size=6))
    def append_many(self, payloads: list[bytes]) -> None:
        before = self.appender.position.segment
        self.added(self.appender.append_many(payloads), payloads, before)

    @rule()
    def rotate(self) -> None:
        self.appender.rotate()
        self.safe = len(self.entries)

    @rule()
    def sync(self) -> None:
        self.appender.sync()
        self.safe = len(self.entries)

    @rule()
    def tick(self) -> None:
        self.ticker.fire()
        if self.policy == "interval":
            self.safe = len(self.entries)

    @rule(seconds=st.sampled_from([-1e6, -1, 0.001, 60, 1e6]))
    def step_clock(self, seconds: float) -> None:
        self.clock.step(seconds)

    @rule()
    def reopen(self) -> None:
        self.appender.unlock()
        self.safe = len(self.entries)
        self.open()

    @rule()
    def kill(self) -> None:
        self.use(self.files.killed())
        self.open()
        self.safe = len(self.entries)  # recovery syncs what it has read
        assert self.appender.last_time >= self.last_time

    @rule(seed=st.integers(0, 1 << 16), which=st.integers(0, 7))
    def lose_power(self, seed: int, which: int) -> None:
        image = list(self.files.images(samples=8, seed=seed))
        self.use(image[which % len(image)])
        self.open()
        found = [(record.time, record.payload) for record in self.stream.open_cursor()]
        assert found == [(entry.time, entry.payload) for entry in self.entries][: len(found)]
        assert len(found) >= self.safe
        del self.entries[len(found) :]
        self.safe = len(found)
        self.last_time = max((entry.time for entry in self.entries), default=0)

    @rule(modulus=st.integers(1, 4), rest=st.integers(0, 3))
    def clean(self, modulus: int, rest: int) -> None:
        """Drop by TIME, which the oracle knows too."""
        newest = max((entry.segment for entry in self.entries), default=0)

        def drop(path: Path, record: Record) -> bool:
            return record.time % modulus == rest

        with self.stream.open_cleaner() as cleaner:
            cleaner.clean(drop)
        self.entries = [
            entry
            for entry in self.entries
            if entry.segment == newest or entry.time % modulus != rest
        ]
        if any(entry.segment != newest for entry in self.entries):
            self.safe = len(self.entries)
        else:
            self.safe = min(self.safe, len(self.entries))

    @precondition(lambda self: self.follower is None)
    @rule()
    def follow(self) -> None:
        self.follower = self.stream.open_cursor(after=self.last_time, follow=True)
        self.follow_from = self.last_time
        self.followed = []

    @precondition(lambda self: self.follower is not None)
    @rule()
    def read_on(self) -> None:
        assert self.follower is not None
        while (record := self.follower.next()) is not None:
            self.followed.append(record)
        times = [record.time for record in self.followed]
        assert times == sorted(set(times))
        kept = {entry.time for entry in self.entries if entry.time > self.follow_from}
        assert kept <= set(times), "the follower saw all that is in the log"

    @invariant()
    def the_log_holds_the_entries(self) -> None:
        if not hasattr(self, "files"):
            return
        found = list(self.stream.open_cursor())
        assert [(r.time, r.payload, r.segment) for r in found] == [
            (entry.time, entry.payload, entry.segment) for entry in self.entries
        ]
        assert not [fault for check in verify(self.stream) for fault in check.faults]

    @invariant()
    def a_cursor_starts_behind_any_time(self) -> None:
        if not hasattr(self, "files") or not self.entries:
            return
        entry = self.entries[len(self.entries) // 2]
        found = [record.time for record in self.stream.open_cursor(after=entry.time)]
        assert found == [other.time for other in self.entries if other.time > entry.time]


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
