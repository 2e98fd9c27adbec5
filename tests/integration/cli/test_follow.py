"""`fastjournal log dump --follow` in a process of its own, beside a live appender."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fastjournal.log.stream import Stream


def test_dump_follows_a_live_appender_over_segments(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "log")
    stream.create()
    command = [sys.executable, "-m", "fastjournal.cli.app", "log", "dump", "--follow", "--json"]
    with stream.open_appender() as appender:
        appender.append(b"before")
        follower = subprocess.Popen(
            [*command, "--limit", "4", str(stream.path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # as behind any pipe
        )
        assert follower.stdout is not None
        try:
            seen = [follower.stdout.readline()]
            appender.append(b"same segment")
            seen.append(follower.stdout.readline())
            appender.rotate()
            appender.append(b"next segment")
            appender.append(b"last")
            seen += [follower.stdout.readline(), follower.stdout.readline()]
            assert follower.wait(timeout=60) == 0
        finally:
            follower.kill()
            follower.stdout.close()
            follower.wait()
    records = [json.loads(line) for line in seen]
    assert [(record["segment"], bytes.fromhex(record["payload_hex"])) for record in records] == [
        (1, b"before"),
        (1, b"same segment"),
        (2, b"next segment"),
        (2, b"last"),
    ]
