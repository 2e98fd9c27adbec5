"""The first act of the demonstration: a log, its writer killed, recovered and verified.

Rules:

1. Every claim is checked against the files, by the same code an operator would use; one that fails
   ends the demonstration with exit code 1.
2. The writer is a real process, killed with SIGKILL while it appends. What it was told was safe it
   reports through a pipe, so the judge never believes the log about itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from fastjournal.cli.demo.stage import Stage, killed_after
from fastjournal.cli.output import bytes_text
from fastjournal.clock import instant_text
from fastjournal.errors import CorruptRecord
from fastjournal.log.care.check import Fault, verify
from fastjournal.log.record import encode
from fastjournal.log.segment import CAPTAIN
from fastjournal.log.stream import Stream

__all__ = ["LogAct", "child", "payload"]

SEGMENT_SIZE = 64 * 1024
KILL_AFTER = 1000  # acknowledged records

_WRITER = "from fastjournal.cli.demo.log_act import child; import sys; child(sys.argv[1])"


def payload(number: int) -> bytes:
    """What the writer appends as record `number`."""
    job = {"number": number, "key": f"https://example.net/{number}", "note": "x" * (number % 200)}
    return json.dumps(job).encode()


def child(directory: str) -> None:
    """The writer: appends numbered records for ever, and says each number once it is safe."""
    with Stream(directory).open_appender(sync="always", segment_size=SEGMENT_SIZE) as appender:
        number = 0
        while True:
            appender.append(payload(number))
            sys.stdout.buffer.write(b"%d\n" % number)
            sys.stdout.buffer.flush()
            number += 1


def _write_and_kill(home: Path) -> int:
    """Run the writer, kill it in the middle; returns how many records it was told were safe."""
    return len(killed_after(_WRITER, home, KILL_AFTER))


class LogAct:
    """Shows the log; `write` replaces the killed process in tests."""

    def __init__(
        self, stage: Stage, home: Path, write: Callable[[Path], int] | None = None
    ) -> None:
        self.stage = stage
        self.home = home
        self.stream = Stream(home)
        self.write = write or _write_and_kill

    def show(self) -> None:
        """All steps."""
        self.stream.create()
        acknowledged = self._written()
        self._torn()
        survivors = self._recovered(acknowledged)
        self._goes_on(survivors)
        self._damaged()

    def _written(self) -> int:
        self.stage.step("A process appends records, each synced before it is acknowledged")
        self.stage.say(f"log: {self.home}")
        acknowledged = self.write(self.home)
        self.stage.say("kill -9, in the middle of its work")
        self.stage.claim(f"it had {acknowledged} records acknowledged", acknowledged > 0)
        return acknowledged

    def _torn(self) -> None:
        self.stage.step("The machine goes down too, in the middle of the next write")
        newest = self.stream.segment_path(self.stream.segments()[-1])
        whole = newest.stat().st_size
        half = encode(self.stream.clock.now(), b"never acknowledged" * 10)[:100]
        with newest.open("ab") as file:
            file.write(half)
        self.stage.say(f"{len(half)} bytes of an unfinished record at the end of {newest.name}")
        faults = self._faults()
        self._show_faults(faults)
        self.stage.claim(
            "verify finds exactly that tail, and calls it torn",
            [(fault.path, fault.offset, fault.length, fault.torn) for fault in faults]
            == [(newest, whole, len(half), True)],
        )

    def _recovered(self, acknowledged: int) -> int:
        self.stage.step("The log is opened again: recovery")
        with self.stream.open_appender(sync="always", segment_size=SEGMENT_SIZE):
            pass
        copies = list(self.home.glob("*.torn-*"))
        self.stage.claim("the torn bytes were cut off, and a copy kept", len(copies) == 1)
        self.stage.claim("verify finds nothing any more", not self._faults())
        records = list(self.stream.open_cursor())
        segments = self.stream.segments()
        size = sum(self.stream.segment_path(number).stat().st_size for number in segments)
        self.stage.say(f"{len(records)} records in {len(segments)} segments, {bytes_text(size)}")
        self.stage.claim(
            f"all {acknowledged} acknowledged records are there (and at most one more)",
            acknowledged <= len(records) <= acknowledged + 1,
        )
        self.stage.claim(
            "every record is the one that was written, in order, none missing between",
            all(record.payload == payload(number) for number, record in enumerate(records)),
        )
        times = [record.time for record in records]
        self.stage.claim("their times strictly increase", all(a < b for a, b in pairwise(times)))
        return len(records)

    def _goes_on(self, survivors: int) -> None:
        self.stage.step("Work goes on where it stopped")
        with self.stream.open_appender(sync="always", segment_size=SEGMENT_SIZE) as appender:
            times = appender.append_many(
                [payload(number) for number in range(survivors, survivors + 500)]
            )
        self.stage.say(
            f"500 records more, with one write and one sync, up to {instant_text(times[-1])}"
        )
        found = sum(1 for _ in self.stream.open_cursor())
        self.stage.claim(f"the log holds {survivors + 500} records", found == survivors + 500)

    def _damaged(self) -> None:
        self.stage.step("A disk flips one bit in an old segment")
        target = self.stream.segment_path(self.stream.segments()[0])
        sound = target.read_bytes()
        flipped = bytearray(sound)
        flipped[len(flipped) // 2] ^= 0x10
        target.write_bytes(flipped)
        faults = self._faults()
        self._show_faults(faults)
        self.stage.claim(
            "verify names the file, and calls it damage, not a torn tail",
            len(faults) == 1 and faults[0].path == target and not faults[0].torn,
        )
        try:
            for _ in self.stream.open_cursor():
                pass
        except CorruptRecord as error:
            self.stage.claim("a reader gets an error, never a wrong record", error.path == target)
        else:
            self.stage.claim("a reader gets an error, never a wrong record", False)
        self.stage.claim("nothing was changed by looking", target.read_bytes() == bytes(flipped))
        target.write_bytes(sound)
        self.stage.claim("with the bit put right again the log is clean", not self._faults())

    def _faults(self) -> list[Fault]:
        assert self.stream.header == CAPTAIN
        return [fault for check in verify(self.stream) for fault in check.faults]

    def _show_faults(self, faults: list[Fault]) -> None:
        for fault in faults:
            word = "torn tail" if fault.torn else "DAMAGE"
            self.stage.say(f"{fault.path.name}: offset {fault.offset}: {word}: {fault.reason}")
