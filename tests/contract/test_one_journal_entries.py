"""One interface: the same sentences hold for the entries of an embedded journal and of clients."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fastjournal.client._async.entries import AsyncEntries
from fastjournal.client._sync.entries import ClientEntries
from fastjournal.client.change_numbers import ChangeNumbers
from fastjournal.entry_value import STRING, VOID
from fastjournal.errors import (
    AlreadyExists,
    BadCursor,
    BadPattern,
    BadRequest,
    ClockSkew,
    LeaseLost,
    Locked,
    NotFound,
    OutOfRange,
    TooLarge,
    WrongType,
)
from fastjournal.journal.entry_map import EntryMap
from fastjournal.testing.daemon import LocalDaemon
from journal_forms import FORMS, client_entries, entries_of

VALUES = (None, b"", b"\0\xff", "", "hi \u20ac", 0, -5, 2**63 - 1, -(2**63), 1.5, True, False)


@pytest.fixture(params=FORMS)
def entries(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with entries_of(request.param, tmp_path / "j") as made:
        yield made


def test_the_three_forms_have_the_same_methods_with_the_same_arguments() -> None:
    names = {name for name in vars(EntryMap) if not name.startswith("_")}
    for name in names:
        ours = inspect.signature(getattr(EntryMap, name)).parameters
        for form in (ClientEntries, AsyncEntries):
            theirs = inspect.signature(getattr(form, name)).parameters
            assert list(theirs) == list(ours), (form, name)
            assert [p.default for p in theirs.values()] == [p.default for p in ours.values()] or (
                name == "pop"  # whose default is an object of its own
            )


def test_values_come_back_as_what_they_were(entries: Any) -> None:
    """FJ-TYP-0..5."""
    for number, value in enumerate(VALUES):
        entries[f"k{number}"] = value
        got = entries[f"k{number}"]
        assert got == value and type(got) is type(value)
    entries.update({"big": b"x" * 300, "bigger": b"y" * 70_000}, plain=1)
    assert (entries["big"], entries["bigger"], entries["plain"]) == (b"x" * 300, b"y" * 70_000, 1)
    entries["largest"] = bytes(1 << 20)
    assert entries.get("largest") == bytes(1 << 20)
    with pytest.raises(TooLarge):
        entries["larger"] = bytes((1 << 20) + 1)
    with pytest.raises(OutOfRange):
        entries["k"] = 2**63
    with pytest.raises(BadRequest):
        entries["k"] = object()


def test_it_is_a_mapping(entries: Any) -> None:
    entries["b"], entries[b"a"], entries["\u00e4" * 200] = 1, 2, 3
    assert list(entries) == [b"a", b"b", "\u00e4".encode() * 200]
    assert (len(entries), "b" in entries, "c" in entries) == (3, True, False)
    assert entries.get("c") is None and entries.get("c", 7) == 7
    for ask in (lambda: entries["c"], lambda: entries.pop("c")):
        with pytest.raises(KeyError):
            ask()
    with pytest.raises(KeyError):
        del entries["c"]
    del entries["b"]
    assert entries.pop("a") == 2 and entries.pop("a", 9) == 9
    assert entries.setdefault("d", "first") == entries.setdefault("d", "second") == "first"
    for bad in ("", b"", "k" * 65_536, 5, "\udc80"):
        with pytest.raises((BadRequest, TooLarge)):
            entries[bad] = 1
        with pytest.raises((BadRequest, TooLarge)):
            entries.get(bad)


def test_an_entry_tells_all_that_is_known_of_it(entries: Any) -> None:
    """FJ-KV-3."""
    written = datetime.now(UTC) - timedelta(seconds=3)
    assert entries.set("k", "v", timestamp=written, touch=30, ttl=timedelta(hours=1))
    entries.alias("k", "also")
    entry = entries.entry("also", data=False)
    assert (entry.key, entry.kind, entry.data, entry.persist) == (b"also", STRING, b"", True)
    assert entry.keys == (b"k", b"also") and entry.ttl == 30_000_000_000
    assert abs(entry.expires_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(seconds=30)
    assert entry.modified <= entry.created + 1_000_000_000
    worked = entries.entry("k", lease=60, worker="me")
    assert (worked.worker, worked.token, worked.value) == (b"me", 1, "v")
    assert entries.entry("k", lease=90, worker="you").worker == b"me"
    with pytest.raises(NotFound):
        entries.entry("k", skip_worked_on=True)
    later = datetime.now(UTC) + timedelta(days=1)
    assert abs(entries.entry("k", expires=later).expires_at - later) < timedelta(seconds=1)
    with pytest.raises(NotFound):
        entries.entry("x")


def test_the_newest_timestamp_wins(entries: Any) -> None:
    """FJ-TS-1, D-09."""
    now = datetime.now(UTC)
    assert entries.set("k", "new", timestamp=now - timedelta(seconds=1))
    assert not entries.set("k", "old", timestamp=now - timedelta(seconds=2))
    assert not entries.delete("k", timestamp=now - timedelta(seconds=2))
    assert entries["k"] == "new"
    assert entries.delete("k", timestamp=now)
    assert not entries.set("k", "late", timestamp=now - timedelta(milliseconds=1))
    assert entries.delete("unknown", timestamp=now) is False
    assert not entries.set("unknown", 1, timestamp=now - timedelta(seconds=1))
    with pytest.raises(ClockSkew):
        entries.set("k", 1, timestamp=now + timedelta(seconds=60))


def test_storing_without_overwriting_and_purging(entries: Any) -> None:
    """FJ-SET-2, FJ-DEL-2."""
    assert entries.set("k", 1, overwrite=False)
    with pytest.raises(AlreadyExists):
        entries.set("k", 2, overwrite=False)
    then = datetime.now(UTC) - timedelta(seconds=1)
    assert entries.delete("k", purge=True)
    assert entries.set("k", 3, timestamp=then)


def test_numbers_booleans_and_sizes(entries: Any) -> None:
    """FJ-NTH-1..3."""
    assert [entries.add("n"), entries.add("n", 41), entries.add("n", -2)] == [1, 42, 40]
    assert entries.add("f", 0.5) == 0.5
    with pytest.raises(WrongType):
        entries.add("n", 0.5)
    entries["max"] = 2**63 - 1
    with pytest.raises(OutOfRange):
        entries.add("max")
    at = datetime.now(UTC)
    for _ in range(3):
        assert entries.add("once", 5, sender="me", timestamp=at) == 5
    entries["b"] = True
    assert entries.flip("b") is False and entries["b"] is False
    entries["s"] = "hello"
    entries.truncate("s", 2)
    assert entries["s"] == "he"
    for ask in (lambda: entries.flip("x"), lambda: entries.truncate("x", 1)):
        with pytest.raises(NotFound):
            ask()


def test_renaming_and_further_keys(entries: Any) -> None:
    """FJ-NTH-6, FJ-KV-6."""
    entries["a"], entries["b"] = 1, 2
    with pytest.raises(AlreadyExists):
        entries.rename("a", "b")
    assert entries.rename("a", "b", overwrite=True)
    entries.alias("b", "c")
    assert (entries["c"], list(entries), len(entries)) == (1, [b"b", b"c"], 1)
    with pytest.raises(NotFound):
        entries.rename("a", "z")


def test_ranges_patterns_and_pages(entries: Any) -> None:
    """FJ-GET-2..4, D-24..26."""
    entries.update({f"k{n:04}": n for n in range(2500)})
    assert [e.value for e in entries.range("k0003", "k0005")] == [3, 4, 5]
    assert [e.value for e in entries.range()] == list(range(2500))
    assert [e.value for e in entries.match("99$")] == list(range(99, 2500, 100))
    assert [e.value for e in entries.match("")] == list(range(2500))
    assert [e.data for e in entries.range("k0003", "k0003", data=False)] == [b""]
    assert list(entries.range("z", "a")) == []
    page = entries.page("k0100", limit=3)
    assert [e.value for e in page.entries] == [100, 101, 102]
    assert [e.value for e in entries.page(cursor=page.cursor).entries] == [103, 104, 105]
    with pytest.raises(BadCursor):
        entries.page(cursor=page.cursor[:-1] + b"?")
    with pytest.raises(BadPattern):
        list(entries.match("("))


def test_locks(entries: Any) -> None:
    """FJ-NTH-4, D-22."""
    entries["k"] = 1
    with entries.lock("k") as held:
        assert held.set(2) and held.add(3) == 5 and held.get() == 5
        for change in (
            lambda: entries.set("k", 0), lambda: entries.delete("k"), lambda: entries.add("k"),
            lambda: entries.rename("k", "n"), lambda: entries.alias("k", "n"),
            lambda: entries.lock("k"), lambda: entries.truncate("k", 1),
        ):  # fmt: skip
            with pytest.raises(Locked):
                change()
        assert entries.entry("k").locked and entries["k"] == 5
        first = held.fence
        held.keep(20)
        assert held.fence == first
        assert held.until > 0 and held.until_at is not None
    assert entries.set("k", 6)
    for change in (lambda: held.set(7), lambda: held.keep(), lambda: held.delete()):
        with pytest.raises(LeaseLost):
            change()
    assert held.free() is False
    with entries.lock("k", wait=5) as again:
        assert again.fence > first
        with pytest.raises(LeaseLost):
            entries.set("k", 8, fence=first)
        assert entries.set("k", 9, fence=again.fence)
        with pytest.raises(LeaseLost):
            held.keep()
    mine, also_mine = entries.lock("o", owner="me"), entries.lock("o", owner="me")
    assert mine.fence == also_mine.fence and mine.free()


def test_what_is_in_memory_only_says_so(entries: Any) -> None:
    """FJ-SET-4."""
    entries.set("m", 1, persist=False)
    assert not entries.entry("m").persist
    assert entries.add("n", 1, persist=False) == 1
    assert not entries.entry("n").persist


@pytest.mark.parametrize("form", ["blocking", "asyncio"])
def test_entries_are_no_jobs(form: str, tmp_path: Path) -> None:
    with (
        LocalDaemon(tmp_path / "d") as daemon,
        daemon.connect() as client,
        client_entries(form, daemon.url) as entries,
    ):
        client.put(b"job", key="k", queue="q")
        assert entries.get("k") is None and "k" not in entries
        with pytest.raises(KeyError):
            del entries["k"]
        entries["k"] = None
        assert entries.entry("k").kind == VOID
        assert entries.delete("k") and not entries.delete("k")
        assert client.job(key="k", queue="q").value == b"job"


def test_requests_about_entries_go_out_together(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "d") as daemon, daemon.connect() as client:
        pipe = client.pipeline()
        pipe.entries.set("a", 1)
        pipe.entries.set("b", b"x" * 300, ttl=60)
        pipe.entries.get("a")
        pipe.entries.get("b")
        pipe.entries.get("none", 7)
        pipe.entries.add("a", 4)
        pipe.entries.add("b")
        pipe.put(b"job", queue="q")
        pipe.entries.delete("a")
        pipe.entries.get("a")
        *answers, wrong, receipt, deleted, last = pipe.execute()
        assert answers == [True, True, 1, b"x" * 300, 7, 5]
        assert isinstance(wrong, WrongType) and len(receipt.id) == 16
        assert (deleted, last, len(pipe)) == (True, None, 0)


def test_a_forked_child_numbers_its_additions_anew() -> None:
    numbers = ChangeNumbers()
    own, _ = numbers.next(0)
    theirs, ours = os.pipe()
    child = os.fork()
    if not child:
        os.write(ours, numbers.next(0)[0])
        os._exit(0)
    os.waitpid(child, 0)
    name = os.read(theirs, 100)
    assert len(name) == len(own) and name != own
    os.close(theirs)
    os.close(ours)
    first, second = numbers.next(5_000_000), numbers.next(5_000_000)
    assert own == first[0] == second[0] and first[1] < second[1]


def test_a_lock_is_kept_as_long_as_it_was_taken_for(entries: Any) -> None:
    with entries.lock("k", 600) as held:
        first = held.until
        held.keep()
        assert held.until >= first
        held.keep(20)
        assert held.until < first


def test_what_is_refused_for_its_arguments_is_refused_by_the_call(entries: Any) -> None:
    """Not when somebody looks at what it gave."""
    for wrong in (
        lambda: entries.range(lower="k" * 70_000),
        lambda: entries.page(limit=70_000),
        lambda: entries.lock(""),
    ):
        with pytest.raises((BadRequest, OutOfRange, TooLarge)):
            wrong()


def test_the_notation_of_a_mapping_has_a_name_for_each_form(entries: Any) -> None:
    entries.update({"a": 1, "b": 2, "c": 3})
    assert list(entries.keys()) == [b"a", b"b", b"c"]
    assert list(entries.values()) == [1, 2, 3]
    assert list(entries.items()) == [(b"a", 1), (b"b", 2), (b"c", 3)]
    assert entries.popitem() == (b"a", 1)
    entries.clear()
    assert len(entries) == 0
    with pytest.raises(KeyError):
        entries.popitem()
