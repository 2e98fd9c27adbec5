"""A foreign log whose jobs cannot be: damage with its place, or taken where that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.errors import CorruptRecord
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import encode
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.testing import ManualClock, MemoryFiles

HERE = Path("/log")
NOW = ManualClock().now()
SOUND: dict[str, Any] = {
    "row_id": bytes.fromhex("6ba7b8109dad41d180b400c04fd430c8"), "name": b"mail", "ttr": 1000,
    "ttl": 60_000, "priority": 0, "max_attempts": 0, "max_fails": 0, "payload": b"x",
    "time": 0, "created": NOW,
}  # fmt: skip
WRONG = [
    pytest.param("row_id", bytes(16), "ID", id="WQ-CMD-1-nil"),
    pytest.param("row_id", b"\1" * 16, "ID", id="WQ-CMD-1-not-v4"),
    pytest.param("name", b"", "Name", id="WQ-CMD-2-empty"),
    pytest.param("name", b"a b", "Name", id="WQ-CMD-2-letters"),
    pytest.param("name", b"n" * 256, "Name", id="WQ-CMD-2-long"),
    pytest.param("ttr", 0, "TTR", id="WQ-CMD-3-none"),
    pytest.param("ttr", 86_400_001, "TTR", id="WQ-CMD-3-long"),
    pytest.param("ttl", 0, "TTL", id="WQ-CMD-4-none"),
    pytest.param("priority", 2**31, "Priority", id="WQ-CMD-5-above"),
    pytest.param("priority", -(2**31) - 1, "Priority", id="WQ-CMD-5-below"),
    pytest.param("max_attempts", 256, "Max Attempts", id="WQ-CMD-6-attempts"),
    pytest.param("max_fails", 256, "Max Fails", id="WQ-CMD-6-fails"),
]


def log_of(*jobs: dict[str, Any]) -> MemoryFiles:
    """A directory as a Workq server would leave it."""
    files = MemoryFiles()
    files.make_directory(HERE)
    stream = Stream(HERE, WORKQ, files=files, clock=ManualClock(NOW))
    with stream.open_appender(sync="os") as appender:
        appender.append(encode(k.Add(**SOUND)))
        for job in jobs:
            appender.append(
                encode(k.Add(**(SOUND | {"row_id": b"\x6b" + SOUND["row_id"][:15]} | job)))
            )
    return files


def opened(files: MemoryFiles, **options: bool) -> Journal:
    return Journal(HERE, files=files, clock=ManualClock(NOW), background=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value", "word"), WRONG)
def test_a_field_that_cannot_be_is_damage_named_by_segment_and_offset(
    field: str, value: Any, word: str
) -> None:
    """WQ-CMD-1..6."""
    size = 20 + len(encode(k.Add(**SOUND)))  # of the sound record before it
    with pytest.raises(CorruptRecord, match=f"Invalid {word}") as caught:
        opened(log_of(SOUND | {field: value}))
    assert caught.value.path.name == "000000001.log"
    assert caught.value.offset == 8 + size


@pytest.mark.parametrize(("field", "value", "word"), WRONG)
def test_it_is_taken_and_counted_where_that_is_asked_for(field: str, value: Any, word: str) -> None:
    """WQ-CMD-1..6: never silently."""
    job = SOUND | {"row_id": bytes.fromhex("7ca7b8109dad41d180b400c04fd430c8"), field: value}
    with opened(log_of(job), accept=True) as journal:
        assert journal.replayed.accepted == 1
        assert journal.replayed.records == 2


def test_a_ttl_of_more_than_thirty_days_is_no_fault() -> None:
    """WQ-CMD-4: as long as the instant can be told."""
    years = 100 * 365 * 86_400_000
    job = SOUND | {"row_id": bytes.fromhex("7ca7b8109dad41d180b400c04fd430c8"), "ttl": years}
    with opened(log_of(job)) as journal:
        assert journal.job(job["row_id"]).expires == NOW + years * 1_000_000
