"""The cases about key/value entries, on a journal in this process."""

from __future__ import annotations

import pytest

from entry_cases import CASES, Case
from entry_driver import Embedded


@pytest.mark.parametrize("run", [c for _, c in CASES], ids=[name for name, _ in CASES])
def test_embedded(run: Case) -> None:
    driver = Embedded()
    run(driver)
    assert driver.replayed_digest() == driver.journal.digest()
    driver.journal.close()
