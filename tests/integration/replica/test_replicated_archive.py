"""Three real daemons and one archive: whoever leads ships, and the next one goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import fastjournal
from archiving import check_sound
from fastjournal import Journal
from fastjournal.archive.manifest import find_newest
from fastjournal.archive.restore import plan_restore, restore
from fastjournal.archive.store import DirectoryStore
from fastjournal.testing import wait_until
from replica_rig import NODES, Rig

pytestmark = [pytest.mark.kill, pytest.mark.xdist_group("replica")]


def archived_to(store: DirectoryStore) -> int:
    manifest = find_newest(store)
    return 0 if manifest is None else manifest.end


def test_the_archive_goes_on_when_the_primary_is_killed_or_wakes_up(tmp_path: Path) -> None:
    """F48, F58: one stands still past its lease, one is killed; what was answered is restored."""
    more = {
        "FASTJOURNAL_JOURNAL_ARCHIVE": str(tmp_path / "archive"),
        "FASTJOURNAL_JOURNAL_ARCHIVE_INTERVAL": "0.2",
        "FASTJOURNAL_JOURNAL_CLEAN_INTERVAL": "0.5",
        "FASTJOURNAL_JOURNAL_SNAPSHOT_BYTES": "100000",
        "FASTJOURNAL_JOURNAL_SEGMENT_SIZE": "32768",
    }
    store = DirectoryStore(tmp_path / "archive" / "default")
    keys: list[str] = []
    with Rig(tmp_path, more=more) as rig:

        def put(count: int) -> None:
            with fastjournal.connect(rig.url) as journal:
                for _ in range(count):
                    keys.append(f"key {len(keys):04}")
                    journal.put(b"x" * 1000, key=keys[-1], queue="q")

        rig.wait_joined()
        first = rig.wait_primary()
        put(250)
        wait_until(
            lambda: all(rig.ask(name).get("snapshot_time") for name in NODES),
            seconds=60, what="a snapshot on every node",
        )  # fmt: skip
        stopped = rig.daemons[first].process
        assert stopped is not None
        stopped.send_signal(signal.SIGSTOP)
        wait_until(
            lambda: any(rig.ask(name).get("serving") for name in NODES if name != first),
            seconds=40, what="another one leads",
        )  # fmt: skip
        stopped.send_signal(signal.SIGCONT)
        put(40)
        second = rig.wait_primary()
        rig.wait_joined()
        rig.kill(second)
        wait_until(lambda: rig.primary() not in ("", second), seconds=40, what="a third reign")
        put(40)
        third = rig.wait_primary()
        goal = rig.ask(third)["commit_time"]
        wait_until(lambda: archived_to(store) >= goal, seconds=40, what="all is archived")
        figures = rig.get(third, "/metrics")[1]
        assert 'fastjournal_archive_ok{journal="default"} 1.0' in figures
        with fastjournal.connect(rig.url) as journal:
            archive = journal.status().archive  # type: ignore[attr-defined]
            assert archive.state == "shipping" and archive.archived_to >= goal
    manifest = check_sound(store)
    assert manifest is not None and not manifest.floor, "every instant can be restored"
    restore(store, plan_restore(manifest), tmp_path / "again")
    with Journal(tmp_path / "again") as again:
        assert sorted(job.key for job in again.jobs("q", limit=1_000_000)) == keys
