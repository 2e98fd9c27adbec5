"""What a writer must know of a journal to add rows that meet no other: senders and settings.

Rules:

1. The snapshot is read first, then the log, in order; only SENDER and QUEUE commands are applied,
   alone or inside a GROUP. The rows themselves are walked over, not decoded.
2. A sender's newest mark may stand in the id of a job only. It counts where the state's own rule
   says so (`JournalState.learn_mark`): in a PUT that is a record by itself, behind the SENDER that
   made the sender known; never in an image of the snapshot.
3. The caller holds the appender's lock: nothing is added meanwhile.
4. What was found is kept beside the journal, with the segment in which the log ended: as long as
   that one is not cleaned, only what was added since is walked over. A sender that had begun by
   then died half-way; for its sake, and whenever the segment is another one, all is walked over.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.language.commands import (
    GROUP,
    MARK,
    PUT,
    QUEUE,
    SENDER,
    Group,
    Mark,
    Queue,
    Sender,
)
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.scan.scan import Buffer, Chunk, Scan
from fastjournal.spark.replay.snapshots import open_snapshot
from fastjournal.spark.storage.segments import (
    Piece,
    at_one_moment,
    first_time,
    journal_segments,
    load,
    tear_rule,
)

__all__ = ["Glance", "glance", "loaded_segments"]


@dataclass(frozen=True, slots=True)
class Glance:
    """Senders and settings of a journal."""

    state: JournalState

    def mark_of(self, sender: bytes) -> int:
        """How far a sender has come; 0 for one that is not known."""
        return self.state.mark_of(sender)

    def is_plain(self, queues: Iterable[bytes]) -> bool:
        """Whether none of these queues has settings of its own."""
        lanes = self.state.queues
        return all(name not in lanes or not lanes[name].settings_at for name in queues)


def glance(directory: str, sender: bytes) -> Glance:
    """Walk a journal; of jobs only the ids of `sender` are looked at."""
    pieces = loaded_segments(directory)
    known = _Known.read(directory, [piece for piece, _ in pieces], sender)
    first, state, upto = known or (0, _from_snapshot(directory), None)
    kinds = {PUT, GROUP, QUEUE, SENDER}
    for piece, data in pieces[first:]:
        if data:
            scan = Scan(data, path=piece.path, torn=tear_rule(piece), kinds=kinds, after=upto)
            for chunk in scan:
                assert isinstance(chunk, Chunk)
                _walk(chunk, sender, state)
                upto = int(chunk.times[-1])
    if pieces:
        _Known.write(directory, pieces[-1][0], state, upto or 0)
    return Glance(state)


def loaded_segments(directory: str) -> list[tuple[Piece, Buffer]]:
    """The segments of a journal with their bytes, as they are at one moment."""
    return at_one_moment(
        directory, lambda: [(piece, load(piece)) for piece in journal_segments(directory)]
    )


def _from_snapshot(directory: str) -> JournalState:
    state = JournalState()
    opened = open_snapshot(directory)
    if opened is not None:
        snapshot, image = opened
        as_of = 0
        for chunk in Scan(image, path=snapshot.path, kinds={MARK, QUEUE, SENDER}):
            assert isinstance(chunk, Chunk)
            for start, size in zip(chunk.starts.tolist(), chunk.sizes.tolist(), strict=True):
                command = decode(bytes(image[start : start + size]))
                if isinstance(command, Mark):
                    as_of = command.when
                else:
                    state.apply_part(command, as_of + 1)
    return state


class _Known:
    """What a glance found, beside the journal: the next one begins there (rule 4)."""

    @staticmethod
    def _name(directory: str) -> Path:
        return Path(directory) / "spark-known.json"

    @classmethod
    def read(
        cls, directory: str, pieces: list[Piece], sender: bytes
    ) -> tuple[int, JournalState, int] | None:
        """The first piece to walk over, what was known, up to which TIME; None: not to be used."""
        with contextlib.suppress(OSError, ValueError, KeyError, StopIteration):
            known = json.loads(cls._name(directory).read_text())
            number = known["segment"][0]
            first = next(n for n, piece in enumerate(pieces) if piece.number == number)
            if known["segment"] != _identity(pieces[first]):
                return None
            state = JournalState()
            for payload in known["commands"]:
                state.apply_part(decode(bytes.fromhex(payload)), int(known["upto"]))
            if sender not in state.senders:
                return first, state, int(known["upto"])
        return None

    @classmethod
    def write(cls, directory: str, newest: Piece, state: JournalState, upto: int) -> None:
        commands = [encode(one).hex() for one in state.general_commands()]
        text = json.dumps({"segment": _identity(newest), "upto": upto, "commands": commands})
        path = cls._name(directory)
        _sync(newest.path)  # what is told is in the log, whatever happens to the machine
        draft = path.with_suffix(".new")
        draft.write_text(text)
        draft.replace(path)


def _sync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _identity(piece: Piece) -> list[int]:
    """A segment that is cleaned, or of another journal, is another one."""
    return [piece.number, Path(piece.path).stat().st_ino, first_time(piece) or 0]


def _walk(chunk: Chunk, sender: bytes, state: JournalState) -> None:
    """Apply what a chunk says, in order."""
    import numpy as np

    jobs = _Jobs(chunk, sender)
    for n in np.flatnonzero(chunk.kinds != PUT).tolist():
        start, size, time = int(chunk.starts[n]), int(chunk.sizes[n]), int(chunk.times[n])
        command = decode(bytes(chunk.data[start : start + size]))
        for member in command.members if isinstance(command, Group) else (command,):
            if isinstance(member, Sender) and member.name == sender:
                jobs.tell(n, state)  # those before it, by what was known then
            if isinstance(member, (Queue, Sender)):
                state.apply_part(member, time)
    jobs.tell(len(chunk), state)


class _Jobs:
    """The jobs of a chunk whose ids begin with a sender's name."""

    def __init__(self, chunk: Chunk, sender: bytes) -> None:
        import numpy as np

        self._chunk = chunk
        self._ids = chunk.ids()
        named = np.all(self._ids[:, :12] == np.frombuffer(sender, dtype=np.uint8), axis=1)
        self._where = np.flatnonzero(named & (chunk.kinds == PUT))
        self._passed = 0

    def tell(self, end: int, state: JournalState) -> None:
        """Let those that come before record `end` say how far the sender has come."""
        import numpy as np

        upto = int(np.searchsorted(self._where, end))
        where, self._passed = self._where[self._passed : upto], upto
        if len(where):
            marks = np.ascontiguousarray(self._ids[where, 12:]).view(">u4")
            last = int(where[int(marks.argmax())])
            state.learn_mark(self._ids[last].tobytes(), int(self._chunk.times[last]))
