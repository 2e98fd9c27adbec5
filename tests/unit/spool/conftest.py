"""What tests of the spool begin with: an instant, and a journal that is forwarded to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastjournal import Journal
from fastjournal.testing import ManualClock, MemoryFiles
from spooling import NOW


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def journal(clock: ManualClock) -> Iterator[Journal]:
    with Journal("/journal", files=MemoryFiles(), clock=clock, background=False) as journal:
        yield journal
