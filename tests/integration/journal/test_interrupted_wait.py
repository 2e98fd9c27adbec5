"""Ctrl-C while a thread waits for a job or a result: nobody is left behind, the journal goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys, threading, time
from fastjournal import Journal

with Journal(sys.argv[1], sync="always") as journal:
    kept = journal.put(b"kept", queue="other")
    ask = {
        "lease": lambda: journal.lease("q", wait=60),
        "result": lambda: journal.result(kept.id, wait=60),
    }[sys.argv[2]]

    def strike():
        while not len(journal.engine.wakeups):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=strike).start()
    try:
        ask()
    except KeyboardInterrupt:
        print("interrupted", len(journal.engine.wakeups))
    journal.put(b"next", queue="q")
    print(journal.lease("q").payload.decode())
    journal.lease("other").done(b"42")
    print(journal.result(kept.id)[1].decode())
"""


@pytest.mark.parametrize("what", ["lease", "result"])
def test_ctrl_c_ends_a_wait_and_leaves_nobody_behind(tmp_path: Path, what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "jobs"), what],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == ["interrupted", "0", "next", "42"]
