"""`fastjournal serve` by a clock that others step: a file says how far it is ahead."""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path

from fastjournal.clock import SECOND, SYSTEM_CLOCK
from fastjournal.config import load
from fastjournal.daemon.main import run

__all__ = ["StepFile"]

_AHEAD = struct.Struct("<q")


class StepFile:
    """How far the daemon's wall clock is ahead, shared by whoever maps the file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_AHEAD.pack(0))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _AHEAD.size)

    @property
    def ahead(self) -> int:
        """Ns."""
        return int(_AHEAD.unpack(self._shared[:])[0])

    def set(self, seconds: int) -> None:
        """The clock jumps to so far ahead."""
        self._shared[:] = _AHEAD.pack(seconds * SECOND)

    def now(self) -> int:
        """Wall clock, ns since 1970 UTC."""
        return SYSTEM_CLOCK.now() + self.ahead

    def monotonic(self) -> int:
        """Never steps."""
        return SYSTEM_CLOCK.monotonic()


def main(steps: str, data: str, listen: str, sync: str) -> int:
    """Serve until a signal comes."""
    given = {"data": data, "listen": [listen], "journal": {"sync": sync}, "log": {"level": "error"}}
    return run(load(None, overrides=given), clock=StepFile(Path(steps)))


if __name__ == "__main__":
    # steps, data, --listen, address, --sync, policy: as `DaemonProcess` puts them
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[4], sys.argv[6]))
