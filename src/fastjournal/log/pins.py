"""Pins: how a reader that takes long keeps a log as it is, without holding a lock.

    pin-INSTANT-WORD    a pin ends at that instant, ns since 1970, or at a later one inside the file

A lock ends with its process, and is held by one machine. A job of many tasks reads for hours, on
many machines, and may lose its driver: it pins the log.

Rules:

1. As long as a pin stands, the log grows, and no segment is replaced or removed: whoever has taken
   `read.lock` alone looks for pins, and gives the lock back if there is one.
2. A pin is written first; then whoever holds the lock alone is waited for.
3. A pin ends at its instant. Its reader moves that on in time, under the same name: who lists a
   directory while names change may see neither. What a reader has left that died is over by itself,
   and is removed by the next who comes to change something.
4. A pin that cannot be read may have been moved on: it stands for a whole lease from when its file
   was last changed.
5. A reader whose pin has ended before its work says so, whatever it has read: segments may have
   changed or gone meanwhile.
6. Instants are those of wall clocks: those of reader and cleaner differ by less than a few minutes.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from uuid import uuid4

from fastjournal.clock import SECOND, SYSTEM_CLOCK, Clock
from fastjournal.errors import Unavailable
from fastjournal.log.files import DISK, Files

__all__ = ["LEASE", "PIN", "Pin", "pinned_until"]

PIN = "pin-"
LEASE = 600 * SECOND
"""How long a pin stands unless it is renewed, in ns."""
_NAME = re.compile(PIN + r"(\d+)-\w+")


class Pin:
    """A pin of the log in a directory; it stands as long as this is open, and is renewed.

    Raises OSError where nothing may be written. Rule 2 is left to the caller.
    """

    def __init__(
        self,
        directory: Path,
        *,
        files: Files = DISK,
        clock: Clock = SYSTEM_CLOCK,
        lease: int = LEASE,
    ) -> None:
        self._files, self._clock, self._lease = files, clock, lease
        self._until = clock.now() + lease
        self._path = directory / f"{PIN}{self._until}-{uuid4().hex}"
        files.create(self._path).close()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="fastjournal-pin", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._over.wait(self._lease / SECOND / 3):
            with suppress(OSError):  # the next turn may have more luck; if not, rule 5
                self.renew()

    def renew(self) -> None:
        """Move its end on; one that has ended stays over."""
        if not self.ended():
            until = self._clock.now() + self._lease
            handle = self._files.open_in_place(self._path)
            try:
                handle.write_at(b"%020d" % until, 0)
            finally:
                handle.close()
            self._until = until

    def ended(self) -> bool:
        """Whether it does not stand any more."""
        return self._clock.now() >= self._until or not self._files.exists(self._path)

    def close(self) -> bool:
        """Let the log go; whether the pin stood until now."""
        self._over.set()
        self._thread.join()
        stood = not self.ended()
        with suppress(OSError):
            self._files.remove(self._path)
        return stood

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self.close() and (error is None or isinstance(error, Exception)):
            raise Unavailable(
                f"{self._path.parent}: the pin of this reader ended at {_text(self._until)}, before"
                " its work did, and segments may have changed since: read again"
            ) from error


def pinned_until(files: Files, directory: Path, now: int) -> str:
    """When the last pin of a log ends, as people read it; empty: there is none.

    Removes those that are past. The caller holds `read.lock` alone.
    """
    last = 0
    for name in files.names(directory):
        if found := _NAME.fullmatch(name):
            until = max(int(found[1]), _moved(files, directory / name))
            last = max(last, until)
            if until <= now:
                with suppress(OSError):
                    files.remove(directory / name)
    return _text(last) if last > now else ""


def _moved(files: Files, path: Path) -> int:
    """The instant inside a pin; 0: none, or it is gone."""
    try:
        handle = files.open_read(path)
        try:
            return int(handle.read(0, 20) or b"0")
        finally:
            handle.close()
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return files.changed_at(path) + LEASE  # rule 4


def _text(instant: int) -> str:
    return datetime.fromtimestamp(instant // SECOND, UTC).isoformat()
