"""`journal.entries` as people use it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from entry_driver import Embedded, S
from fastjournal import Journal
from fastjournal.entry_value import INTEGER, EntryValue
from fastjournal.errors import (
    BadRequest,
    ClockSkew,
    Closed,
    LeaseLost,
    Locked,
    OutOfRange,
    TooLarge,
)
from fastjournal.journal.entries.locks import Writer
from fastjournal.model import MAX_INSTANT
from fastjournal.testing import ManualClock, MemoryFiles

VALUES: dict[str, EntryValue] = {
    "none": None, "yes": True, "no": False, "int": -(2**63), "big": 2**63 - 1, "float": 0.1,
    "text": "käse", "empty": "", "bytes": b"\0\xff", "odd": "\udcff",
}  # fmt: skip


def test_python_values_come_back_as_what_they_were(tmp_path: Path) -> None:
    """FJ-TYP-0..5, D-21."""
    with Journal(tmp_path / "j") as journal:
        journal.entries.update((key.encode(), value) for key, value in VALUES.items())
    with Journal(tmp_path / "j") as journal:
        entries = journal.entries
        assert {key.decode(): value for key, value in entries.items()} == VALUES
        assert all(type(entries[key]) is type(value) for key, value in VALUES.items())


def test_it_is_a_mapping(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        entries = journal.entries
        assert journal.entries is entries
        assert (len(entries), list(entries), "a" in entries, 5 in entries) == (0, [], False, False)
        entries["a"] = 1
        entries[b"b"] = 2
        assert (len(entries), list(entries), "a" in entries) == (2, [b"a", b"b"], True)
        assert entries.get("x") is None
        assert entries.get("x", 7) == 7
        assert entries.setdefault("a", 9) == 1
        assert entries.setdefault("c", 9) == 9
        assert entries.pop("c") == 9
        assert entries.pop("c", None) is None
        del entries["a"]
        for ask in (
            lambda: entries["a"],
            lambda: entries.pop("a"),
            lambda: entries.__delitem__("a"),
        ):
            with pytest.raises(KeyError):
                ask()
        entries.clear()
        assert not entries


def test_what_is_no_value_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        for wrong in ([1], {}, object()):
            with pytest.raises(BadRequest):
                journal.entries["k"] = wrong  # type: ignore[assignment]
        with pytest.raises(OutOfRange):
            journal.entries["k"] = 2**63
        with pytest.raises(BadRequest):
            journal.entries.set("k", 1, ttl=1, expires=2)
    with pytest.raises(Closed):
        journal.entries["k"] = 1


def test_scans_run_over_many_pages_in_order(tmp_path: Path) -> None:
    """FJ-GET-2, FJ-GET-3."""
    with Journal(tmp_path / "j", background=False) as journal:
        entries = journal.entries
        for number in range(2500):
            entries.set(f"k{number:04d}", number, persist=False)
        assert [entry.value for entry in entries.range()] == list(range(2500))
        some = entries.range("k0999", "k2001")
        assert [entry.value for entry in some] == list(range(999, 2002))
        assert [entry.value for entry in entries.match("0$")] == list(range(0, 2500, 10))
        assert sum(1 for _ in entries.match("")) == 2500
        assert len(entries) == 2500


def test_ttl_and_touch(tmp_path: Path) -> None:
    """FJ-KV-4, D-19."""
    d = Embedded()
    entries = d.journal.entries
    entries.set("short", 1, ttl=10)
    entries.set("kept", 1, touch=10)
    for _ in range(5):
        d.wait(6_000_000_000)
        assert entries["kept"] == 1
    assert list(entries) == [b"kept"]
    assert len(entries) == 1
    d.journal.close()


def test_a_lock_as_a_context_manager(tmp_path: Path) -> None:
    """FJ-NTH-4, D-22."""
    with Journal(tmp_path / "j", background=False) as journal:
        entries = journal.entries
        with entries.lock("k") as held:
            held.set(1)
            assert held.add(2) == 3
            with pytest.raises(Locked):
                entries["k"] = 0
            with pytest.raises(Locked):
                entries.lock("k")
        entries["k"] = 5
        with pytest.raises(LeaseLost):
            held.set(6)
        assert not held.free()
        assert entries["k"] == 5


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        entries = journal.entries
        first = entries.lock("k", 60)
        got: list[int] = []
        waiter = threading.Thread(target=lambda: got.append(entries.lock("k", wait=30).fence))
        waiter.start()
        first.free()
        waiter.join(20)
        assert got and got[0] > first.fence


def test_two_writers_of_a_counter_lose_nothing(tmp_path: Path) -> None:
    """FJ-NTH-1."""
    with Journal(tmp_path / "j", sync="os") as journal:
        threads = [
            threading.Thread(target=lambda: [journal.entries.add("n") for _ in range(200)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert journal.entries["n"] == 1600
    with Journal(tmp_path / "j") as journal:
        assert journal.entries["n"] == 1600


def test_changes_of_entries_are_told_to_subscribers(tmp_path: Path) -> None:
    """FJ-SET-3, as events of an embedded journal."""
    with Journal(tmp_path / "j", background=False) as journal:
        events = journal.subscribe("changed")
        journal.entries["a"] = 1
        journal.entries.set("m", 1, persist=False)
        journal.entries.delete("m", purge=True)
        told = [events.next(0) for _ in range(3)]
        assert [(e.queue, e.key) for e in told if e] == [(b"", b"a"), (b"", b"m"), (b"", b"m")]


def test_jobs_and_entries_of_one_key_do_not_meet(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        journal.put(b"job", key="k", queue="q")
        journal.entries["k"] = "entry"
        assert journal.lease().payload == b"job"  # type: ignore[union-attr]
        assert journal.lease() is None
        assert [queue.name for queue in journal.queues()] == ["q"]
        assert len(journal.jobs()) == 1
        journal.delete(key="k", queue="q")
        assert journal.entries["k"] == "entry"


def test_entries_of_memory_leave_no_record(tmp_path: Path) -> None:
    """FJ-SET-4."""
    clock = ManualClock()
    with Journal(tmp_path / "j", background=False, clock=clock) as journal:
        before = journal.status().log
        entries = journal.entries
        entries.set("m", 1, persist=False, ttl=5, touch=5)
        entries.add("m", 2)
        entries.alias("m", "n")
        entries.entry("m", lease=2, worker="w")
        clock.advance(3)
        journal.tick()
        assert entries.entry("n").value == 3
        entries.rename("n", "o")
        clock.advance(60)
        journal.tick()
        assert list(entries) == []
        entries.set("p", 1, persist=False)
        entries.delete("p")
        clock.advance(4000)
        journal.tick()
        assert journal.status().log == before
        assert not journal.engine.state.rows


def test_the_timer_looks_when_a_tombstone_may_go(tmp_path: Path) -> None:
    """FJ-DEL-1: also in a journal where nothing else ever happens."""
    clock = ManualClock()
    with Journal(tmp_path / "j", background=False, clock=clock) as journal:
        journal.entries["k"] = 1
        journal.entries.delete("k")
        hour = 3600 * 1_000_000_000
        assert journal.engine.timer_at <= clock.now() + hour + 1000
        clock.advance(3601)
        journal.tick()
        assert not journal.engine.state.rows


def test_without_re2_a_pattern_is_refused_with_a_word_on_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "re2", None)
    with Journal(tmp_path / "j", background=False) as journal:
        with pytest.raises(Exception, match="pip install") as told:
            list(journal.entries.match("never-seen-before"))
        assert told.value.code == "REGEX"  # type: ignore[attr-defined]


def test_numbers_beyond_64_bits_are_refused_in_both_builds() -> None:
    """A compiled field wraps: whatever a request says is looked at before it is used."""
    huge = 2**70
    d = Embedded()
    d.set(b"k", 1, b"value")
    d.set(b"t", 1, b"value", ttl=S, expires=d.now + S)
    for refusal, ask in (
        (TooLarge, lambda: d.truncate(b"k", huge)),
        (BadRequest, lambda: d.truncate(b"k", -huge)),
        (ClockSkew, lambda: d.set(b"k", 1, b"", timestamp=huge)),
        (ClockSkew, lambda: d.delete(b"k", timestamp=huge)),
        (ClockSkew, lambda: d.add(b"n", INTEGER, bytes(8), sender=b"me", timestamp=huge)),
        (BadRequest, lambda: d.set(b"k", 1, b"", expires=huge)),
        (BadRequest, lambda: d.set(b"k", 1, b"", ttl=huge)),
        (BadRequest, lambda: d.set(b"k", huge, b"")),
        (OutOfRange, lambda: d.get(b"k", lease=huge)),
        (OutOfRange, lambda: d.lock(b"k", b"me", huge)),
        (LeaseLost, lambda: d.set(b"k", 1, b"", by=Writer(fence=huge))),
        (BadRequest, lambda: d.range(b"", b"", limit=huge)),
    ):
        with pytest.raises(refusal):
            ask()
    assert d.get(b"t", expires=huge).expires == MAX_INSTANT
    assert d.get(b"k").data == b"value"
    d.journal.close()


@pytest.mark.timeout(15)
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(x+x+)+y|(a*)*b", "([a-z]+)*!"])
def test_a_pattern_that_backtracking_never_ends_is_searched_in_time(pattern: str) -> None:
    """F40, D-25: linear in the key; a backtracking engine is still at the first of these keys."""
    files = MemoryFiles()
    with Journal("/j", files=files, sync="os", background=False) as journal:
        journal.entries.update((b"a" * 60 + b"%05d" % number, None) for number in range(50))
        assert list(journal.entries.match(pattern)) == []


@pytest.mark.parametrize("back", [0, 7200])
def test_fencing_numbers_grow_over_a_power_cut_and_a_clock_that_was_set_back(back: int) -> None:
    """A lock lives in memory, its number does not: nothing else was written before the cut."""
    files, clock = MemoryFiles(), ManualClock()
    with Journal(Path("/jobs"), files=files, clock=clock, sync="always") as journal:
        journal.entries["k"] = 1
        clock.advance(60)
        told = journal.entries.lock("k", 10).fence
        images = list(files.images(samples=20))
    assert images
    clock.step(-back)
    for image in images:
        with Journal(Path("/jobs"), files=image, clock=clock, sync="always") as journal:
            assert journal.entries.lock("k", 10).fence > told


def test_a_lock_that_is_kept_costs_no_record() -> None:
    with Journal(Path("/jobs"), files=MemoryFiles(), clock=ManualClock()) as journal:
        held = journal.entries.lock("k", 10)
        written = journal.engine.last_time
        assert held.fence == written
        held.keep(20)
        assert journal.engine.last_time == written
