"""A journal whose disk fills, fails and loses its power at random, while its clock is stepped: it
keeps what it told."""

from __future__ import annotations

import pytest

from attacks import Attack


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_journal_under_attack_keeps_its_word(sync: str) -> None:
    """F02, F10, F12, F45, F50, F53: no job lost, brought back, or leased twice by one token."""
    crashes = refusals = 0
    for seed in range(4):
        attack = Attack(seed, sync)
        attack.run(120)
        crashes += attack.crashes
        refusals += attack.refusals
    assert crashes > 4
    assert refusals > 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_a_journal_under_many_attacks_keeps_its_word(part: int) -> None:
    """The same, a thousand times."""
    crashes = 0
    for seed in range(1000 + part, 2000, 8):
        attack = Attack(seed, ("always", "os")[seed // 8 % 2])
        attack.run(200)
        crashes += attack.crashes
    assert crashes > 1000
