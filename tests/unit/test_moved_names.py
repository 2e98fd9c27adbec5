"""What 0.1.0 documented can still be imported from where it stood, and says where it stands."""

from __future__ import annotations

import importlib
import sys

import pytest

MOVED = {
    "fastjournal.journal.view": "JournalView",
    "fastjournal.log.aio": "AsyncCommitLog",
    "fastjournal.log.commitlog": "CommitLog",
}


@pytest.mark.parametrize(("place", "name"), MOVED.items())
def test_a_documented_name_is_found_where_it_stood_with_a_warning(place: str, name: str) -> None:
    sys.modules.pop(place, None)
    with pytest.warns(DeprecationWarning, match="has moved"):
        module = importlib.import_module(place)
    assert getattr(module, name).__name__ == name


def test_the_commit_logs_are_found_at_the_log() -> None:
    from fastjournal import log

    assert log.CommitLog.__name__ == "CommitLog"
    assert log.AsyncCommitLog.__name__ == "AsyncCommitLog"
    with pytest.raises(AttributeError, match="nonsense"):
        log.nonsense  # noqa: B018
