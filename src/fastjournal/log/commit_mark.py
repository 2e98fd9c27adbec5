"""The side file that says how far the log of a replicated journal is there to stay.

    commit.pos   two slots: a TIME up to which a majority of the nodes has the log

Rules:

1. What lies behind that may be cut off, when another node comes to lead: whoever reads the
   directory of a node from outside stops there.
2. It may be old, never too new. A directory of a replicated journal (`replica.meta` is there)
   without it promises nothing yet.
3. A log without `replica.meta` is nobody else's: it has no such end.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct

import google_crc32c

from fastjournal.log.files import Files, read_file

__all__ = [
    "COMMIT_POS",
    "COMMIT_SLOT",
    "REPLICA_META",
    "encode_commit",
    "end_of_log",
    "read_commit",
]

COMMIT_POS = "commit.pos"
REPLICA_META = "replica.meta"
_SLOT = Struct(">qI")
COMMIT_SLOT = _SLOT.size


def encode_commit(time: int) -> bytes:
    """One slot."""
    return _SLOT.pack(time, google_crc32c.value(time.to_bytes(8, "big", signed=True)))


def read_commit(files: Files, directory: Path) -> int:
    """Up to which TIME a majority is known to have the log; 0: nothing is known."""
    try:
        content = read_file(files, directory / COMMIT_POS)
    except FileNotFoundError:
        return 0
    times = [0]
    for at in range(0, len(content) - _SLOT.size + 1, _SLOT.size):
        time, crc = _SLOT.unpack_from(content, at)
        if crc == google_crc32c.value(content[at : at + 8]):
            times.append(time)
    return max(times)


def end_of_log(files: Files, directory: Path) -> int | None:
    """The TIME at which readers stop; None: at the newest record, for this is nobody's copy."""
    if not files.exists(directory / REPLICA_META):
        return None
    return read_commit(files, directory)
