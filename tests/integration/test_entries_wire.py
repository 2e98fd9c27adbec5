"""The same cases about key/value entries over real sockets.

Left out are those that move the clock, and those about what a reply does not tell.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from entry_cases import CASES, Case
from entry_wire import Wire

UNTOLD = {
    *("wait", "Writer", "created", "ttl", "locked", "token", "lease_until", "worker", "persist"),
}
BY_NAME = {
    "FJ-KV-6-one_value_stands_under_several_keys": "all keys of an entry",
    "D-22-a_lock_lasts_up_to_an_hour": "a lock until now: the clock has moved on",
    "D-19-what_never_expires_is_not_touched": "touch lengths in seconds",
}
TOLD = [
    (name, run)
    for name, run in CASES
    if not UNTOLD & set(run.__code__.co_names) and name not in BY_NAME
]


def test_most_cases_run_over_the_wire_too() -> None:
    assert len(TOLD) >= 28
    assert BY_NAME.keys() <= {name for name, _ in CASES}


@pytest.mark.parametrize("run", [c for _, c in TOLD], ids=[name for name, _ in TOLD])
def test_over_the_wire(run: Case, tmp_path: Path) -> None:
    driver = Wire(tmp_path / "d")
    try:
        run(driver)
    finally:
        driver.stop()
