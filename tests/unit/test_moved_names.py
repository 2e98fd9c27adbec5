"""What 0.1.0 documented can still be imported from where it stood, and says where it stands."""

from __future__ import annotations

import importlib
import sys

import pytest

MOVED = {
    "fastjournal.client.acache": "AsyncCachedEntries",
    "fastjournal.client.aentries": "AsyncEntries",
    "fastjournal.client.aio": "AsyncClient",
    "fastjournal.client.aleased": "AsyncLeasedJob",
    "fastjournal.client.alistening": "AsyncListening",
    "fastjournal.client.awatching": "AsyncWatching",
    "fastjournal.client.cache": "CachedEntries",
    "fastjournal.client.entries": "ClientEntries",
    "fastjournal.client.listening": "Listening",
    "fastjournal.client.pipeline": "Pipeline",
    "fastjournal.client.sync": "Client",
    "fastjournal.client.watching": "Watching",
    "fastjournal.connecting": "connect",
    "fastjournal.delivering": "Delivery",
    "fastjournal.entry": "Entry",
    "fastjournal.held": "HeldLock",
    "fastjournal.journal.mapping": "EntryMap",
    "fastjournal.journal.view": "JournalView",
    "fastjournal.log.aio": "AsyncCommitLog",
    "fastjournal.leased": "LeasedJob",
    "fastjournal.log.commitlog": "CommitLog",
    "fastjournal.spark.clean": "CleanReport",
    "fastjournal.spark.consume_frames": "apply_frame",
    "fastjournal.spark.export": "export",
    "fastjournal.spark.failure": "explain",
}

DOCUMENTED = {
    "fastjournal": (
        "Event", "Job", "Journal", "LeasedJob", "NewJob", "Outcome", "Priority", "QueueSettings",
        "Receipt", "Spool", "State", "aconnect", "connect",
    ),
    "fastjournal.client.cache": ("CacheCounts", "CachedEntries"),
    "fastjournal.client.worker": ("Retry", "Worker", "WorkerCounts"),
    "fastjournal.journal.mapping": ("EntryMap",),
    "fastjournal.journal.view": ("JournalView",),
    "fastjournal.spark": (
        "CleanReport", "JournalTable", "apply_frame", "configure", "ensure_java", "explain",
        "local_session", "per_job", "read", "register",
    ),
    "fastjournal.testing": (
        "Answers", "Crash", "Fault", "ManualClock", "ManualTicker", "MemoryFiles", "PromiseBroken",
        "check_max_wait", "check_one_waiting_row", "check_replay", "check_stale_token",
        "wait_until",
    ),
    "fastjournal.testing.daemon": ("LocalDaemon",),
}  # fmt: skip
"""What the page of the Python interface named in 0.1.0, where it stood."""


@pytest.mark.filterwarnings("ignore:.* has moved:DeprecationWarning")
@pytest.mark.parametrize("module", DOCUMENTED)
def test_whatever_0_1_0_documented_can_be_imported(module: str) -> None:
    found = importlib.import_module(module)
    for name in DOCUMENTED[module]:
        assert getattr(found, name) is not None


@pytest.mark.parametrize(("module", "name"), MOVED.items())
def test_a_documented_name_is_found_where_it_stood_with_a_warning(module: str, name: str) -> None:
    sys.modules.pop(module, None)
    with pytest.warns(DeprecationWarning, match="has moved"):
        found = importlib.import_module(module)
    assert getattr(found, name).__name__ == name


def test_the_clients_and_the_worker_are_found_at_the_client() -> None:
    from fastjournal import client

    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        client.nonsense  # noqa: B018


def test_what_a_worker_needs_is_found_where_it_stood_without_a_warning() -> None:
    from fastjournal.client.worker import Retry, Source, Worker, WorkerCounts

    assert {kind.__name__ for kind in (Retry, Source, Worker, WorkerCounts)} == {
        "Retry", "Source", "Worker", "WorkerCounts",
    }  # fmt: skip


def test_the_commit_logs_are_found_at_the_log() -> None:
    from fastjournal import log

    assert log.CommitLog.__name__ == "CommitLog"
    assert log.AsyncCommitLog.__name__ == "AsyncCommitLog"
    with pytest.raises(AttributeError, match="nonsense"):
        log.nonsense  # noqa: B018


@pytest.mark.parametrize("name", ["audit", "consume", "report"])
def test_a_room_of_the_pipeline_has_the_names_of_the_module_that_it_was(name: str) -> None:
    room = importlib.import_module(f"fastjournal.spark.{name}")
    assert getattr(room, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'typo'"):
        _ = room.typo
