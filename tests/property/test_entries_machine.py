"""Entries beside a plain dict: every request, clock jumps, restarts, crashes, upkeep.

After every step what can be read is what the dict holds, the files replay to the same state by
hash, and the keys come in order.
"""

from __future__ import annotations

from random import Random

import pytest

from entry_driver import Embedded, S
from fastjournal.entry_value import BOOLEAN, INTEGER, STRING
from fastjournal.errors import AlreadyExists, NotFound, RequestError

KEYS = [b"a", b"b", b"c", b"d", b"e"]
WINDOW = 600 * S


class Box:
    """One value under some keys."""

    def __init__(self, keys: list[bytes], kind: int, data: bytes, at: int) -> None:
        self.keys = keys
        self.kind = kind
        self.data = data
        self.modified = at
        self.expires = 0
        self.persist = True
        self.numbers: set[tuple[bytes, int]] = set()


class Plain:
    """What entries should do, in dicts."""

    def __init__(self) -> None:
        self.boxes: dict[bytes, Box] = {}
        self.tombs: dict[bytes, tuple[int, bool]] = {}

    def live(self, key: bytes, now: int) -> Box | None:
        box = self.boxes.get(key)
        if box is not None and 0 < box.expires < now:
            for each in box.keys:
                del self.boxes[each]
            return None
        return box

    def newest(self, key: bytes, now: int) -> int:
        box = self.live(key, now)
        if box is not None:
            return box.modified
        return self.tombs.get(key, (0, True))[0]

    def drop(self, box: Box, at: int, tomb: bool = True) -> None:
        for key in box.keys:
            del self.boxes[key]
            if tomb:
                self.tombs[key] = (at, box.persist)

    def view(self, now: int) -> dict[bytes, tuple[int, bytes, int, bool]]:
        return {
            key: (box.kind, box.data, box.expires, box.persist)
            for key in sorted(self.boxes)
            if (box := self.live(key, now)) is not None
        }

    def forget_memory(self) -> None:
        self.boxes = {key: box for key, box in self.boxes.items() if box.persist}
        self.tombs = {key: tomb for key, tomb in self.tombs.items() if tomb[1]}


class Machine:
    """A journal and its plain twin."""

    def __init__(self, seed: int, without: str = "") -> None:
        self.chance = Random(seed)
        self.steps = [step for step in STEPS if step != without]
        self.d = Embedded()
        self.plain = Plain()
        self.used: set[int] = set()
        self.sent: list[tuple[bytes, bytes, int]] = []

    def stamp(self) -> int:
        """A sender's time, some seconds off, never the same twice."""
        while True:
            at = self.d.known + self.chance.randrange(-20, 4) * S + self.chance.randrange(1000)
            if at not in self.used:
                self.used.add(at)
                return at

    def modified(self, key: bytes) -> int:
        """The time of the newest write, also of an entry that has expired this very moment."""
        row = self.d.journal.entries.operations.ground.slot(key)
        assert row is not None
        return row.modified

    def step(self) -> None:
        name = self.chance.choice(self.steps)
        getattr(self, name)(self.chance.choice(KEYS))

    def set(self, key: bytes) -> None:
        chance, at, now = self.chance, self.stamp(), self.d.known
        kind, data = chance.choice(
            [(STRING, b"%d" % chance.randrange(99)), (INTEGER, bytes(8)), (BOOLEAN, b"\1")]
        )
        persist, overwrite = chance.random() < 0.7, chance.random() < 0.8
        expires = now + chance.choice([1, 5, 60]) * S if chance.random() < 0.4 else 0
        box = self.plain.live(key, now)
        try:
            given = self.d.set(
                key, kind, data, timestamp=at, expires=expires, persist=persist,
                overwrite=overwrite,
            )  # fmt: skip
        except AlreadyExists:
            assert box is not None and not overwrite
            return
        assert box is None or overwrite
        assert given.stale == (at <= self.plain.newest(key, now))
        if given.stale:
            return
        if box is None:
            box = Box([key], kind, data, at)
            self.plain.boxes[key] = box
            self.plain.tombs.pop(key, None)
        box.kind, box.data, box.modified = kind, data, at
        box.expires, box.persist = expires, persist

    def delete(self, key: bytes) -> None:
        at, now = self.stamp(), self.d.known
        box = self.plain.live(key, now)
        expired_at = 0
        row = self.d.journal.entries.operations.ground.slot(key)
        if row is not None and box is None and not self.plain.tombs.get(key):
            expired_at = row.modified  # expired, not collected: its time still counts
        given = self.d.delete(key, timestamp=at)
        stale = at <= max(self.plain.newest(key, now), expired_at)
        assert given.stale == stale
        assert given.found == (0 if stale or box is None else 1)
        if stale:
            return
        if box is not None:
            self.plain.drop(box, at)
        else:
            kept = self.plain.tombs.get(key, (0, True))[1]
            if expired_at and row is not None:
                kept = bool(row.policy.flags & 1)
                for alias in (row.key, *row.rare.aliases):
                    self.plain.tombs[alias] = (at, kept)
            elif row is not None:
                for alias in (row.key, *row.rare.aliases):
                    self.plain.tombs[alias] = (at, kept)
            self.plain.tombs[key] = (at, kept)

    def purge(self, key: bytes) -> None:
        now = self.d.known
        box = self.plain.live(key, now)
        if box is None:
            return
        assert self.d.delete(key, purge=True).found == 1
        self.plain.drop(box, 0, tomb=False)

    def add(self, key: bytes) -> None:
        now = self.d.known
        box = self.plain.live(key, now)
        if box is None:
            return
        sender, at = self.chance.choice([b"x", b"y"]), self.stamp()
        again = [s for s in self.sent if s[0] == key and s[2] > now - WINDOW + 60 * S]
        if again and self.chance.random() < 0.5:
            _, sender, at = self.chance.choice(again)
        try:
            given = self.d.add(key, INTEGER, (3).to_bytes(8, "big"), sender=sender, timestamp=at)
        except RequestError:
            assert box.kind != INTEGER
            return
        if (sender, at) in box.numbers:
            assert given.stale
            return
        assert not given.stale
        box.numbers.add((sender, at))
        self.sent.append((key, sender, at))
        box.data = (int.from_bytes(box.data, "big") + 3).to_bytes(8, "big")
        box.modified = max(box.modified, at)

    def flip(self, key: bytes) -> None:
        box = self.plain.live(key, self.d.known)
        try:
            given = self.d.flip(key)
        except RequestError:
            assert box is None or box.kind != BOOLEAN
            return
        assert box is not None
        box.data = b"\1" if box.data == b"\0" else b"\0"
        assert given.data == box.data
        box.modified = self.modified(key)

    def rename(self, key: bytes) -> None:
        now, new, overwrite = self.d.known, self.chance.choice(KEYS), self.chance.random() < 0.5
        box, target = self.plain.live(key, now), self.plain.live(new, now)
        try:
            self.d.rename(key, new, overwrite=overwrite)
        except NotFound:
            assert box is None
            return
        except AlreadyExists:
            assert target is not None and target is not box and not overwrite
            return
        assert box is not None
        if key == new:
            return
        if target is not None and target is not box:
            self.plain.drop(target, 0, tomb=False)
        box.modified = self.modified(new)
        del self.plain.boxes[key]
        box.keys.remove(key)
        if new not in box.keys:
            box.keys.append(new)
        self.plain.boxes[new] = box
        self.plain.tombs[key] = (box.modified, box.persist)
        self.plain.tombs.pop(new, None)

    def alias(self, key: bytes) -> None:
        now, new = self.d.known, self.chance.choice(KEYS)
        box, target = self.plain.live(key, now), self.plain.live(new, now)
        try:
            self.d.alias(key, new)
        except NotFound:
            assert box is None
            return
        except AlreadyExists:
            assert target is not None and target is not box
            return
        assert box is not None
        if target is box:
            return
        box.modified = self.modified(key)
        box.keys.append(new)
        self.plain.boxes[new] = box
        self.plain.tombs.pop(new, None)

    def lease(self, key: bytes) -> None:
        if self.plain.live(key, self.d.known) is not None:
            self.d.get(key, lease=self.d.known + 3 * S, worker=self.chance.choice([b"u", b"v"]))

    def wait(self, key: bytes) -> None:
        self.d.wait(self.chance.choice([1, S, 10 * S]))

    def tick(self, key: bytes) -> None:
        self.d.journal.tick()
        self.d.journal.sync()

    def clean(self, key: bytes) -> None:
        self.d.journal.engine.log.rotate()
        self.d.journal.clean()

    def snapshot(self, key: bytes) -> None:
        self.d.journal.snapshot()

    def restart(self, key: bytes) -> None:
        self.d.restart()
        self.plain.forget_memory()

    def kill(self, key: bytes) -> None:
        self.d.kill()
        self.plain.forget_memory()

    def lose_power(self, key: bytes) -> None:
        self.d.lose_power(self.chance.randrange(1000))
        self.plain.forget_memory()

    def check(self) -> None:
        page = self.d.range(b"", b"")
        ours = {e.key: (e.kind, e.data, e.expires, e.persist) for e in page.entries}
        assert list(ours) == sorted(ours)
        assert ours == self.plain.view(self.d.known)
        assert self.d.replayed_digest() == self.d.journal.digest()


STEPS = [
    *["set"] * 8, *["delete"] * 3, "purge", *["add"] * 5, *["flip"] * 2, *["rename"] * 3,
    *["alias"] * 3, *["lease"] * 2, *["wait"] * 3, *["tick"] * 2, "clean", "snapshot", "restart",
    "kill", "lose_power",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_long_lives_of_entries_follow_a_plain_dict(seed: int) -> None:
    machine = Machine(seed)
    for _ in range(250):
        machine.step()
        machine.check()
    assert machine.d.opened > 3
    machine.d.journal.close()


@pytest.mark.parametrize("seed", range(20, 23))
def test_a_replay_split_by_row_gives_the_same_entries(seed: int) -> None:
    machine = Machine(seed, without="snapshot")
    for step in range(300):
        machine.step()
        if step % 20 == 0:
            assert machine.d.split_images(3) == machine.d.images()
    machine.d.journal.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_cursor_repeats_no_key_and_misses_none_that_stood_throughout(seed: int) -> None:
    """FJ-GET-4, D-26: during inserts, deletes, and a restart in the middle."""
    chance = Random(seed)
    d = Embedded(sync="os", segment_size=1 << 20)
    stood = {b"%06d" % n for n in chance.sample(range(1_000_000), 3000)}
    others = [b"%06d" % n for n in range(0, 1_000_000, 251)]
    for key in stood:
        d.set(key, STRING, b"")
    seen: list[bytes] = []
    page = d.range(b"", b"", 97)
    turns = 0
    while True:
        seen += [entry.key for entry in page.entries]
        if not page.cursor:
            break
        for key in chance.sample(others, 30):
            if key not in stood:
                (d.set(key, STRING, b"") if chance.random() < 0.6 else d.delete(key))
        turns += 1
        if turns == 15:
            d.restart()
        page = d.resume(page.cursor)
    assert seen == sorted(set(seen))
    assert stood <= set(seen)
    d.journal.close()
