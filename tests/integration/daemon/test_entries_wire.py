"""The same cases about key/value entries over real sockets: all of them, on a clock by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from entry_cases import CASES, Case
from entry_wire import Wire


@pytest.mark.parametrize("run", [c for _, c in CASES], ids=[name for name, _ in CASES])
def test_over_the_wire(run: Case, tmp_path: Path) -> None:
    driver = Wire(tmp_path / "d")
    try:
        run(driver)
    finally:
        driver.stop()
