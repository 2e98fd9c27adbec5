"""P-CLEAN: cleaning never changes what replay gives.

Random lives, cut into segments at random, cleaned at random moments, whole or in part, in cycles
that may break off: what the segments give at every moment is the living state.
"""

from __future__ import annotations

from random import Random

import pytest

from fastjournal.journal.disk.retention import Fate, Retention, fate
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.state.apply import JournalState
from machine import WEIGHTS, JournalMachine, arguments


class Disk:
    """Segments in memory: number -> records."""

    def __init__(self, chance: Random, state: JournalState) -> None:
        self.chance = chance
        self.segments: dict[int, list[tuple[int, bytes]]] = {1: []}
        self.retention = Retention(state)
        self.dropped = 0

    @property
    def sealed(self) -> list[int]:
        return sorted(self.segments)[:-1]

    def append(self, time: int, payload: bytes) -> None:
        last = max(self.segments)
        if len(self.segments[last]) >= self.chance.choice([1, 3, 10, 40]):
            last += 1
            self.segments[last] = []
        self.segments[last].append((time, payload))

    def replay(self) -> JournalState:
        state = JournalState()
        for number in sorted(self.segments):
            for time, payload in self.segments[number]:
                state.apply(decode(payload), time)
        return state

    def cycle(self, now: int, *, honest: bool) -> None:
        """Survey and clean; dishonest: any segments at all, and breaking off anywhere."""
        chance, retention = self.chance, self.retention
        for number in self.sealed:
            if honest or chance.random() < 0.6:
                retention.survey(number, self.segments[number])
        if honest:
            chosen = retention.plan(self.sealed, now)
        else:
            chosen = [number for number in self.sealed if chance.random() < 0.5]
            retention.begin(self.sealed, chosen)
        for number in chosen:
            if not honest and chance.random() < 0.1:
                return
            kept = [r for r in self.segments[number] if not retention.drop(number, *r)]
            self.dropped += len(self.segments[number]) - len(kept)
            if kept:
                self.segments[number] = kept
            else:
                del self.segments[number]
        retention.finish()


class CleaningMachine(JournalMachine):
    """A machine whose log lies in segments."""

    def start(self, chance: Random) -> None:
        self.open()
        self.disk = Disk(chance, self.state)

    def commit(self, command: k.Command) -> int:
        time = super().commit(command)
        self.disk.append(*self.log[-1])
        return time

    def reopen_disk(self) -> None:
        """After a restart nothing is known about the segments."""
        self.replace_state(self.disk.replay())
        self.disk.retention = Retention(self.state)
        self.log = [
            record for _, records in sorted(self.disk.segments.items()) for record in records
        ]


def live(seed: int, steps: int, *, honest: bool) -> CleaningMachine:
    chance = Random(seed)
    machine = CleaningMachine()
    machine.start(chance)
    weights = {name: w for name, w in WEIGHTS.items() if not name.startswith("restart")}
    weights |= {"clean": 6, "reopen": 1}
    for _ in range(steps):
        (name,) = chance.choices(list(weights), list(weights.values()))
        if name == "clean":
            machine.disk.cycle(machine.clock, honest=honest)
            assert machine.disk.replay().digest() == machine.state.digest()
        elif name == "reopen":
            machine.reopen_disk()
        else:
            getattr(machine, name)(**arguments(name, chance))
    return machine


@pytest.mark.parametrize("seed", range(12))
def test_cleaning_any_segments_in_broken_cycles_keeps_the_replayed_state(seed: int) -> None:
    machine = live(seed, 500, honest=False)
    assert machine.disk.replay().digest() == machine.state.digest()
    assert machine.disk.dropped > 20


@pytest.mark.parametrize("seed", range(100, 106))
def test_planned_cleaning_keeps_the_replayed_state_and_bounds_the_log(seed: int) -> None:
    """WQ-CLN-1."""
    machine = live(seed, 800, honest=True)
    machine.disk.cycle(machine.clock, honest=True)
    machine.disk.cycle(machine.clock, honest=True)
    assert machine.disk.replay().digest() == machine.state.digest()
    sealed = [r for number in machine.disk.sealed for r in machine.disk.segments[number]]
    fates = [fate(machine.state, *record) for record in sealed]
    spent = sum(f is not Fate.KEEP for f in fates)
    assert spent <= len(fates) // 2 + 40


def test_a_rewritten_log_is_cleaned_to_the_newest_image_of_each_row() -> None:
    state = JournalState()
    retention = Retention(state)
    row = bytes(range(16))
    records = []
    for n in range(1, 101):
        put = k.Put(row, b"q", b"k", 1, n, 1, n, 0, 1, b"%d" % n)
        state.apply(put, n)
        records.append((n, encode(put)))
    retention.survey(1, records)
    assert retention.plan([1], 100) == [1]
    kept = [record for record in records if not retention.drop(1, *record)]
    assert kept == records[-1:]


def test_the_end_of_a_row_stays_while_its_beginning_is_on_disk_d04() -> None:
    """The case in which real Workq brings a deleted job back."""
    state = JournalState()
    retention = Retention(state)
    job = k.Add(bytes(16), b"q", 1000, 10**9, 0, 0, 0, b"", 0, 1)
    other = k.Put(bytes(15) + b"\1", b"q", b"", 1, 1, 1, 1, 0, 1, b"x" * 1000)
    segments = {
        1: [(1, encode(job)), (2, encode(other))],
        2: [(3, encode(k.Delete(job.id)))],
    }
    for records in segments.values():
        for time, payload in records:
            state.apply(decode(payload), time)
    # Only the second segment is cleaned: the first still holds the add.
    for number, records in segments.items():
        retention.survey(number, records)
    retention.begin([1, 2], [2])
    assert [retention.drop(2, *record) for record in segments[2]] == [False]
    retention.finish()
    # Once the add is gone the delete may go.
    retention.begin([1, 2], [1, 2])
    assert [retention.drop(1, *record) for record in segments[1]] == [True, False]
    assert [retention.drop(2, *record) for record in segments[2]] == [True]
    retention.finish()


def test_the_end_of_a_row_stays_while_a_snapshot_holds_the_row() -> None:
    state = JournalState()
    put = k.Put(bytes(16), b"q", b"", 1, 1, 1, 1, 0, 1, b"")
    purge = k.Purge(bytes(16), b"q", b"", 1)
    state.apply(put, 1)
    state.apply(purge, 5)
    for snapshot_at, dropped in ((3, False), (5, True), (None, True)):
        retention = Retention(state)
        retention.snapshot_at = snapshot_at
        retention.survey(1, [(5, encode(purge))])
        retention.begin([1], [1])
        assert retention.drop(1, 5, encode(purge)) is dropped


def test_a_segment_not_yet_surveyed_holds_back_every_end_behind_it() -> None:
    state = JournalState()
    put = k.Put(bytes(16), b"q", b"", 1, 1, 1, 1, 0, 1, b"")
    state.apply(put, 1)
    state.apply(k.Delete(put.id), 2)
    retention = Retention(state)
    retention.survey(2, [(2, encode(k.Delete(put.id)))])
    retention.begin([1, 2], [2])
    assert retention.drop(2, 2, encode(k.Delete(put.id))) is False


def test_a_group_that_stays_pins_the_rows_of_its_spent_members() -> None:
    state = JournalState()
    gone = k.Put(bytes(16), b"q", b"", 1, 1, 1, 1, 0, 1, b"")
    stays = k.Put(bytes(15) + b"\1", b"q", b"", 1, 1, 1, 1, 0, 1, b"")
    group = k.Group((gone, stays))
    end = k.Purge(gone.id, b"q", b"", 1)
    state.apply(group, 1)
    state.apply(end, 2)
    retention = Retention(state)
    retention.survey(1, [(1, encode(group))])
    retention.survey(2, [(2, encode(end))])
    retention.begin([1, 2], [1, 2])
    assert retention.drop(1, 1, encode(group)) is False
    assert retention.drop(2, 2, encode(end)) is False


def test_a_group_held_back_by_one_end_pins_its_other_rows() -> None:
    state = JournalState()
    one, two, three = (
        k.Put(bytes(15) + bytes((n,)), b"q", b"", 1, 1, 1, 1, 0, 1, b"") for n in range(3)
    )
    segments = {
        1: [(1, encode(one)), (2, encode(three))],
        2: [(3, encode(k.Group((k.Expire(one.id), two))))],
        3: [(4, encode(k.Expire(two.id)))],
    }
    for records in segments.values():
        for time, payload in records:
            state.apply(decode(payload), time)
    retention = Retention(state)
    retention.survey(1, segments[1])  # holds a spent record and stays as it is
    retention.begin([1, 2, 3], [2, 3])
    assert retention.drop(2, *segments[2][0]) is False
    assert retention.drop(3, *segments[3][0]) is False


def test_records_whose_times_go_back_are_not_taken_for_spent() -> None:
    """Workq's own clock may step back while it writes."""
    state = JournalState()
    job = k.Add(bytes(16), b"q", 1000, 10**9, 0, 0, 0, b"", 0, 1)
    records = [(50, encode(job)), (40, encode(k.Start(job.id))), (41, encode(k.Timeout(job.id)))]
    for time, payload in records:
        state.replay(payload, time)
    assert [fate(state, *record) for record in records] == [Fate.KEEP] * 3
    assert state.applied == 50


def test_a_segment_is_rewritten_when_its_average_expiry_has_passed_wq_cln_6() -> None:
    state = JournalState()
    records = []
    for n in range(10):
        put = k.Put(bytes((n,)) * 16, b"q", b"", 1, 1, 1, 1, 100 + 10 * n, 1, b"")
        state.apply(put, n + 1)
        records.append((n + 1, encode(put)))
    retention = Retention(state)
    report = retention.survey(1, records)
    assert report.average == 145
    assert not retention.wants_survey(1, 144)
    for n in range(3):
        state.apply(k.Expire(bytes((n,)) * 16), 20 + n)
    report = retention.survey(1, records)
    assert report.average == 160
    assert retention.plan([1], 159) == []
    assert retention.wants_survey(1, 160)
    assert retention.plan([1], 160) == [1]


def test_the_ends_of_many_rows_do_not_wait_for_a_few_spent_bytes() -> None:
    """One old row among living ones must not make the log grow without bound."""
    state = JournalState()
    first = []
    for n in range(10):
        put = k.Put(bytes((n,)) * 16, b"q", b"", 1, 1, 1, 1, 0, 1, b"")
        state.apply(put, n + 1)
        first.append((n + 1, encode(put)))
    ends = [(20, encode(k.Purge(bytes(16), b"q", b"", 1)))]
    state.apply(decode(ends[0][1]), 20)
    for n in range(100):
        end = k.Purge(n.to_bytes(16, "big"), b"q", b"", 1)
        if n > 10:
            state.apply(end, 100 + n)
            ends.append((100 + n, encode(end)))
    retention = Retention(state)
    assert retention.survey(1, first).spent > 0
    retention.survey(2, ends)
    assert retention.plan([1, 2], 1000) == [1, 2]


def test_settings_senders_and_marks_are_kept_only_in_their_newest_form() -> None:
    from fastjournal.model import DEFAULT_SETTINGS

    state = JournalState()
    paused = DEFAULT_SETTINGS.changed({"paused": True})
    commands = [
        k.Queue(b"q", paused),
        k.Sender(b"s", 1),
        k.Mark(1, 1, 1),
        k.Queue(b"q", DEFAULT_SETTINGS.changed({"draining": True})),
        k.Sender(b"s", 2),
        k.Mark(1, 1, 1),
        k.Queue(b"r", paused),
        k.Queue(b"r", DEFAULT_SETTINGS),
    ]
    for time, command in enumerate(commands, 1):
        state.apply(command, time)
    fates = [fate(state, time, encode(command)) for time, command in enumerate(commands, 1)]
    assert fates == [Fate.SPENT] * 3 + [Fate.KEEP] * 3 + [Fate.SPENT, Fate.LAST]
