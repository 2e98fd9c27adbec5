"""The recipe of docs/backup.md copies a journal that is being written to, cleaned and imaged."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from docblocks import ROOT, blocks
from fastjournal import Journal
from fastjournal.testing import check_one_waiting_row, check_replay

RECIPE = next(block for block in blocks(ROOT / "docs" / "backup.md") if "synced.pos" in block.code)
COPY = RECIPE.commands()[:3]


def copy() -> bool:
    """Type the lines of the page; False if a file vanished under the copy."""
    for line in COPY:
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        if done.returncode:
            assert "No such file" in done.stderr
            return False
    return True


@pytest.mark.parametrize("round_", range(3))
def test_the_copy_of_a_busy_journal_holds_all_that_was_acknowledged_before(
    round_: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [line.split()[0] for line in COPY] == ["mkdir", "flock", "mv"]
    alive: list[bytes] = []
    stop = threading.Event()
    with Journal("jobs", segment_size=16_384, background=False) as journal:

        def work() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                gone = journal.put(b"x" * 200, queue="gone")
                journal.delete(gone.id)
                alive.append(journal.put(b"%d" % n, queue="kept").id)
                if n % 40 == 0:
                    journal.clean()
                if n % 150 == 0:
                    journal.snapshot()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            while len(alive) < 100 * (round_ + 1):
                stop.wait(0.001)
            promised = list(alive)
            for _ in range(10):
                if copy():
                    break
                shutil.rmtree("backup")  # a file vanished: again, as the page says
        finally:
            stop.set()
            worker.join()
    with Journal("backup", background=False) as restored:
        held = {job.id for job in restored.jobs("kept", limit=1_000_000)}
        assert held.issuperset(promised)
        assert restored.jobs("gone", limit=10)[1:] == []
        check_one_waiting_row(restored)
        check_replay(restored)
