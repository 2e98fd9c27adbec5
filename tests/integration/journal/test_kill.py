"""A real process that uses a journal from four threads is killed with SIGKILL, again and again.

Nothing acknowledged is lost; nothing done is handed out again after its acknowledgement.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.errors import LeaseLost, NotFound
from fastjournal.model import Outcome, Receipt
from fastjournal.testing import (
    Answers,
    check_max_wait,
    check_one_waiting_row,
    check_replay,
    check_stale_token,
)

CHILD = Path(__file__).with_name("journal_child.py")


def one_life(path: Path, sync: str, seed: int, answers: Answers) -> tuple[int, list[str]]:
    """Start the child, kill it at a random moment; returns how much it was answered."""
    chance = random.Random(seed)
    again = []
    count = 0
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(path), sync, str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open \n"
        killer = threading.Timer(chance.uniform(0.005, 0.12), child.kill)
        killer.start()
        for line in child.stdout:
            if not line.endswith("\n"):
                break
            word, text = line.split()
            job_id = bytes.fromhex(text)
            if word == "put":
                answers.put(Receipt(job_id, Outcome.NEW))
            elif word == "lease" and job_id in answers.ended:
                again.append(text)
            elif word == "ending":
                answers.ending(job_id)
            elif word == "ended":
                answers.end(job_id)
            count += word in ("put", "ended")
        killer.join()
    assert child.returncode == -9
    return count, again


@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("sync", "kills"), [("os", 17), ("interval", 17), ("always", 16)])
def test_nothing_acknowledged_is_lost_and_nothing_done_comes_back(
    tmp_path: Path, sync: str, kills: int
) -> None:
    """T-KILL: SIGKILL spares what the system has, so all three policies must keep everything."""
    path = tmp_path / "jobs"
    answers = Answers()
    checked = 0
    for seed in range(kills):
        count, again = one_life(path, sync, seed, answers)
        assert not again
        checked += count
        if seed % 4 == 3 or seed == kills - 1:
            with Journal(path, sync=sync, background=False) as j:
                answers.check(j)
                check_replay(j)
                check_one_waiting_row(j)
                check_max_wait(j)
                leased = j.lease("q")
                if leased is not None:
                    leased.release()
                    check_stale_token(j, leased.id, leased.token)
                for job_id in list(answers.ended)[:50]:
                    with pytest.raises((NotFound, LeaseLost)):
                        j.touch(job_id, 1)
    assert checked > 100
