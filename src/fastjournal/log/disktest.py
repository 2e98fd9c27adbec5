"""Does a disk keep what it says it has synced? Numbers, a pulled plug, and a look.

Rules:

1. Writing appends numbered records, each synced before its number is told. Whoever watches, on
   another machine, notes the last number.
2. After the power was cut and is back, checking must find every number up to that one.
3. A disk that lies about its syncs cannot be found out in another way, nor mended by software.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fastjournal.log.files import DISK, Files
from fastjournal.log.segment import Header
from fastjournal.log.stream import Stream

__all__ = ["DISKTEST", "check", "write"]

DISKTEST = Header(b"fjdt", 1)
"""What the segments of such a test begin with."""


def write(directory: Path, files: Files = DISK) -> Iterator[int]:
    """Append the next numbers without end; each is on stable storage when it is given."""
    stream = Stream(directory, DISKTEST, files=files)
    stream.create()
    number = check(directory, files)
    with stream.open_appender(sync="always") as appender:
        while True:
            number += 1
            appender.append(number.to_bytes(8, "big"))
            yield number


def check(directory: Path, files: Files = DISK) -> int:
    """The last number up to which all of them are there; 0: none."""
    last = 0
    for record in Stream(directory, DISKTEST, files=files).open_cursor():
        if int.from_bytes(record.payload, "big") != last + 1:
            break
        last += 1
    return last
