"""Stretches of a file applied to a state, record by record.

Whoever reads the file hands in what it has; a record that is cut off at the end comes again, whole,
with the next stretch. Between two stretches other threads have their turn: in here they have not.
"""

from typing import Final

from mypy_extensions import i32, i64

from fastjournal.errors import CorruptCommand
from fastjournal.journal.language.codec import decode_part
from fastjournal.journal.language.commands import PUT, Command, Group, Mark, WorkqJob, fault_of
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.values import UNREADABLE
from fastjournal.log.record import BrokenRecord, Walk

__all__ = ["CLEAN_NOTE", "Playback", "pass_records"]

CLEAN_NOTE: Final = b"clean"
"""Note of the MARK that ends an orderly shutdown."""
_LAST_INSTANT: Final[i64] = 9_223_372_036_854_775_807
_LAST_NUMBER: Final[i64] = 2_147_483_647


class Playback:
    """What has been applied so far."""

    def __init__(self, state: JournalState, until: int | None = None) -> None:
        """`until`: records of a later TIME are passed over."""
        self.state = state
        self.until: i64 = _LAST_INSTANT if until is None else until
        self.overlap: i64 = 0
        """Records up to this TIME may be in the images already: they are applied only to rows
        stated before them."""
        self.count: i64 = 0
        """Records applied, those of a snapshot not counted."""
        self.own = False
        """Whether there was anything that the Workq server cannot read."""
        self.clean = False
        """Whether the record applied last says that the journal was closed in order."""
        self.first_mark: i64 = -1
        """As of which TIME the first part of the snapshot is; -1: none was begun."""
        self.last_mark: i64 = 0
        """As of which TIME its last part so far is."""
        self.file: i64 = 0
        """The number of the file being applied, and where the record stands in it."""
        self.at: i64 = 0
        self.accepts = False
        """Jobs of Workq whose fields cannot be are taken all the same; else they are damage."""
        self.accepted: i64 = 0
        """How many were."""

    def play(
        self, data: bytes, at: int, end: int, segment: int, base: int, max_payload: int
    ) -> tuple[int, int, BrokenRecord | None]:
        """Apply the whole records of a segment from `at` on; answers as `decode_many` does.

        Instead of the records it says how many there are.
        """
        return self._run(data, at, end, segment, base, max_payload, False)

    def load(
        self, data: bytes, at: int, end: int, number: int, base: int, max_payload: int
    ) -> tuple[int, int, BrokenRecord | None]:
        """The same for a snapshot, whose `number` has a minus sign."""
        return self._run(data, at, end, number, base, max_payload, True)

    def _run(
        self, data: bytes, at: i64, end: i64, number: i64, base: i64, limit: i64, images: bool
    ) -> tuple[int, int, BrokenRecord | None]:
        values = self.state.values
        known = number and -_LAST_NUMBER <= number <= _LAST_NUMBER
        values.segment = i32(number) if known else UNREADABLE
        self.file = number
        walk = Walk(data, at, end, limit)
        count: i64 = 0
        stopped: BrokenRecord | None = None
        while walk.at < walk.end:
            here = walk.at
            try:
                walk.step()
            except BrokenRecord as broken:
                stopped = broken.with_traceback(None)  # it would hold `data` and all
                break
            count += 1
            values.record = self.at = base + here
            if images:
                self._image(decode_part(data, walk.start, walk.stop))
            elif walk.time <= self.until:
                if not self.own and data[walk.start] >= PUT:
                    self.own = True
                self._record(decode_part(data, walk.start, walk.stop), walk.time)
        values.segment = 0
        return int(count), int(walk.at), stopped

    def _record(self, command: Command, time: i64) -> None:
        if isinstance(command, WorkqJob):
            fault = fault_of(command)
            if fault:
                if not self.accepts:
                    raise CorruptCommand(f"a job of Workq that cannot be: {fault}")
                self.accepted += 1
        if time <= self.overlap:
            self._apply_over(command, time)
        else:
            self.state.apply(command, time)
        self.count += 1
        self.clean = isinstance(command, Mark) and command.note == CLEAN_NOTE

    def _image(self, command: Command) -> None:
        if isinstance(command, Mark):
            self.last_mark = command.when
            if self.first_mark < 0:
                self.first_mark = command.when
        else:
            self.state.apply_part(command, self.last_mark + 1)

    def _apply_over(self, command: Command, time: i64) -> None:
        state = self.state
        if isinstance(command, Group):
            for member in command.members:
                row = state.rows.get(member.id)
                if row is None or row.at <= time:
                    state.apply_part(member, time)
            return
        row = state.rows.get(command.id)
        if row is None or row.at <= time:
            state.apply(command, time)


def pass_records(
    data: bytes, at: int, end: int, number: int, base: int, max_payload: int
) -> tuple[int, int, BrokenRecord | None]:
    """Check records and do nothing else; answers as `Playback.play` does."""
    walk = Walk(data, at, end, max_payload)
    count = 0
    while walk.at < walk.end:
        try:
            walk.step()
        except BrokenRecord as broken:
            return count, int(walk.at), broken.with_traceback(None)
        count += 1
    return count, int(walk.at), None
