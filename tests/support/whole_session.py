"""A program run to its end, of which no process is left, however it ends.

Spark's executors and Python workers have parents and process groups of their own: what they share
with the program is the session in which it was started (Linux).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["run_whole"]


def run_whole(
    command: Sequence[str],
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """What it said on standard output; raises with its last words unless it ended well, in time."""
    child = subprocess.Popen(
        command,
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        try:
            output, errors = child.communicate(timeout=seconds)
        finally:
            while _kill_session(child.pid):
                pass
    except subprocess.TimeoutExpired:
        _, errors = child.communicate()
        raise AssertionError(f"not done in {seconds:.0f} s: {errors[-3000:]}") from None
    assert child.returncode == 0, errors[-3000:]
    return output


def _kill_session(leader: int) -> int:
    """Kill what runs in a session; returns how many processes were found."""
    found = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = entry.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                os.kill(int(entry.parent.name), signal.SIGKILL)
                found += 1
    return found
