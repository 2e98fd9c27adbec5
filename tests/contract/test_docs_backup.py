"""The recipe of docs/backup.md copies a journal that is being written to, cleaned and imaged."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from command_line import Command
from docblocks import ROOT, blocks
from fastjournal import Journal
from fastjournal.testing import check_one_waiting_row, check_replay

PAGE = [line for block in blocks(ROOT / "docs" / "backup.md") for line in block.commands()]
COPY = [line.split()[1:] for line in PAGE if line.startswith("fastjournal backup")]
RESTORE = [line.split()[1:] for line in PAGE if line.startswith("fastjournal restore")]


@pytest.mark.parametrize("round_", range(3))
def test_the_copy_of_a_busy_journal_holds_all_that_was_acknowledged_before(
    round_: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Command(capfd, monkeypatch)
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
            code, _, error = run(*COPY[0])
            assert code == 0, error
        finally:
            stop.set()
            worker.join()
    Path("jobs").rename("jobs.broken")
    for words in RESTORE:
        code, _, error = run(*words)
        assert code == 0, error
    with Journal("jobs", background=False) as restored:
        held = {job.id for job in restored.jobs("kept", limit=1_000_000)}
        assert held.issuperset(promised)
        assert restored.jobs("gone", limit=10)[1:] == []
        check_one_waiting_row(restored)
        check_replay(restored)
