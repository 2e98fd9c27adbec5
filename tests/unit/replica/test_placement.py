"""Which nodes keep which journal, and to which journal of a group a key belongs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fastjournal.client.group_table import shard_addresses, shard_names
from fastjournal.config import load
from fastjournal.daemon.replicated.sets import check_homes, find_home, make_sets
from fastjournal.errors import SettingError
from fastjournal.keys import murmur128, shard_of
from fastjournal.replica.placement import place_journals
from fastjournal.replica.rules import MemberSet


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", "00000000000000000000000000000000"),
        (b"hello", "cbd8a7b341bd9b025b1e906a48ae1d19"),
        (
            b"The quick brown fox jumps over the lazy dog",
            "e34bbc7bbc071b6c7a433ca9c49a9347",
        ),
    ],
)
def test_murmur_is_what_the_published_function_gives(data: bytes, digest: str) -> None:
    assert murmur128(data).hex() == digest


def test_twenty_journals_on_two_hundred_nodes_use_sixty_nodes_and_none_twice() -> None:
    nodes = {f"node{n}": f"zone{n % 3}" for n in range(200)}
    placed = place_journals([f"journal{n}" for n in range(20)], nodes)
    used = [name for homes in placed.values() for name in homes]
    assert len(used) == len(set(used)) == 60
    for homes in placed.values():
        assert {nodes[name] for name in homes} == {"zone0", "zone1", "zone2"}


def test_a_node_that_is_swapped_moves_about_one_copy() -> None:
    journals = [f"journal{n}" for n in range(20)]
    before = place_journals(journals, {f"node{n}": "" for n in range(200)})
    moved = []
    for gone in range(12):
        names = {f"node{n}": "" for n in range(200) if n != gone} | {"fresh": ""}
        after = place_journals(journals, names)
        moved.append(sum(len({*after[one]} - {*before[one]}) for one in journals))
    assert sum(moved) / len(moved) < 2


def test_no_node_has_more_than_its_share() -> None:
    placed = place_journals([f"j{n}" for n in range(50)], {f"n{n}": "" for n in range(7)})
    loads = [sum(f"n{n}" in homes for homes in placed.values()) for n in range(7)]
    assert sum(loads) == 150
    assert max(loads) <= 22  # ceil(150 / 7)
    assert all(len(set(homes)) == 3 for homes in placed.values())


def test_zones_come_first_and_are_used_again_when_there_are_too_few() -> None:
    placed = place_journals(["a"], {"x": "east", "y": "east", "z": "west"})
    assert set(placed["a"]) == {"x", "y", "z"}
    pair = place_journals([f"j{n}" for n in range(9)], {"x": "e", "y": "e", "z": "w"}, copies=2)
    assert all("z" in homes for homes in list(pair.values())[:6])


def test_a_journal_that_has_its_place_keeps_it() -> None:
    nodes = {f"n{n}": "" for n in range(6)}
    placed = place_journals(["a", "b"], nodes, fixed={"a": ("n0", "n1", "n2")})
    assert placed["a"] == ("n0", "n1", "n2")
    assert set(placed["b"]) == {"n3", "n4", "n5"}


def test_more_copies_than_nodes_are_refused() -> None:
    with pytest.raises(SettingError, match="3 copies"):
        place_journals(["a"], {"x": "", "y": ""})


def test_a_key_always_meets_the_same_journal_and_keys_are_spread() -> None:
    shards = [shard_of(b"pages", b"key %d" % n, 64) for n in range(6400)]
    assert shards == [shard_of(b"pages", b"key %d" % n, 64) for n in range(6400)]
    counts = [shards.count(n) for n in range(64)]
    assert min(counts) > 50 and max(counts) < 160
    assert shard_of(b"a", b"bc", 1 << 30) != shard_of(b"ab", b"c", 1 << 30)


@dataclass
class Told:
    """Sets as an arbiter keeps them; `meanwhile`: what others make while somebody thinks."""

    sets: dict[str, MemberSet] = field(default_factory=dict)
    meanwhile: dict[str, MemberSet] = field(default_factory=dict)

    def find_all(self) -> dict[str, MemberSet]:
        return dict(self.sets)

    def create(self, journal: str, members: MemberSet) -> None:
        self.sets |= self.meanwhile
        self.sets.setdefault(journal, members)


NODES = {"name": "n0", "copies": 3, "peers": [f"n{n}=10.0.0.{n}:1@z{n % 3}" for n in range(9)]}


def test_a_journal_is_placed_once_and_others_are_placed_beside_it() -> None:
    """SNAP-IDX-2, SNAP-IDX-3: by whoever comes first; the nodes that have less take the others."""
    told = Told()
    first = make_sets(told, load(overrides={"replica": NODES}))
    names = shard_names("jobs", 5)
    settings = load(overrides={"replica": NODES, "journals": names})
    placed = make_sets(told, settings)
    assert placed == told.sets == make_sets(told, settings)
    assert set(placed) == {"default", *names}
    assert placed["default"] == first["default"]
    share = [sum(f"n{n}" in members.voters for members in placed.values()) for n in range(9)]
    assert share == [2] * 9
    for members in placed.values():
        assert {int(name[1:]) % 3 for name in members.voters} == {0, 1, 2}


def test_what_somebody_else_has_placed_meanwhile_counts() -> None:
    """SNAP-IDX-2: nodes that start together agree, whatever each of them has thought."""
    told = Told(meanwhile={"default": MemberSet(("n7",)), "other": MemberSet(("n8",))})
    assert make_sets(told, load(overrides={"replica": NODES})) == told.meanwhile


def test_a_directory_with_another_journal_is_refused(tmp_path: Path) -> None:
    settings = load(overrides={"data": str(tmp_path)})
    placed = {"default": MemberSet(("a",)), "jobs": MemberSet(("b",))}
    for name in ("jobs", "strange"):
        assert find_home(settings, name) == tmp_path / name
        find_home(settings, name).mkdir()
        (tmp_path / name / "append.lock").touch()
    with pytest.raises(SettingError, match="others: strange"):
        check_homes(settings, placed)
    check_homes(settings, placed | {"strange": MemberSet(("a",))})


def test_one_journal_has_no_place_for_another(tmp_path: Path) -> None:
    (tmp_path / "append.lock").touch()
    settings = load(overrides={"data": str(tmp_path), "default_journal": "jobs"})
    assert find_home(settings, "jobs") == tmp_path
    with pytest.raises(SettingError, match="mail has no place"):
        find_home(settings, "mail")


def test_the_journals_of_a_group_are_beside_its_home() -> None:
    """SNAP-IDX-3: by the same nodes; who asks is never part of the table."""
    beside = ["fj://a:1,b/jobs-0", "fj://a:1,b/jobs-1"]
    assert shard_addresses("fj://a:1,b/jobs", 2) == beside
    assert shard_addresses("fjs://me@a/jobs?timeout=3", 1) == ["fjs://a/jobs-0"]
    for home, count in (("fj://a", 2), ("./jobs", 2), ("fj://a/jobs", 0), ("fj://a/jobs", 5000)):
        with pytest.raises(SettingError):
            shard_addresses(home, count)
