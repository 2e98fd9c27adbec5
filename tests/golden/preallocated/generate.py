"""How the directories beside this file were made; no test runs it.

    python tests/golden/preallocated/generate.py OUT

Each is a journal under `always` whose process was killed: with room reserved behind its records
(`killed`), with a record half written into that room (`torn`), and with the room of a segment that
holds no record yet (`empty`). The clock stands still, so the bytes are the same every time but for
`synced.pos`, which names the run of the operating system.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from pathlib import Path

from fastjournal import Journal
from fastjournal.log.record import encode
from fastjournal.testing import ManualClock

T0 = 1_700_000_000 * 10**9


def write(path: Path) -> None:
    """Four jobs, one of them done, in a process that is killed."""
    child = os.fork()
    if not child:
        clock = ManualClock(T0)
        journal = Journal(
            path, sync="always", background=False, clock=clock, chance=random.Random(15)
        )
        for name in ("a", "b", "c", "d"):
            journal.put(name.encode() * 10, queue="q", key=name)
            clock.advance(1)
        lease = journal.lease("q")
        assert lease is not None
        lease.done(b"result")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    for name in ("reserve", "append.lock", "manifest.lock"):
        (path / name).unlink(missing_ok=True)


def main(out: Path) -> None:
    """Write all directories."""
    write(out / "killed")
    shutil.copytree(out / "killed", out / "torn")
    segment = out / "torn" / "000000001.log"
    content = bytearray(segment.read_bytes())
    end = len(content.rstrip(b"\0"))
    half = encode(T0 + 60 * 10**9, b"\x20 never acknowledged")[:-6]
    content[end : end + len(half)] = half
    segment.write_bytes(content)
    shutil.copytree(out / "killed", out / "empty")
    head = (out / "empty" / "000000002.log").read_bytes()
    (out / "empty" / "000000002.log").write_bytes(head + bytes(65_536))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
