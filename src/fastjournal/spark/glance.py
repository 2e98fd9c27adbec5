"""What a writer must know of a journal to add rows that meet no other: senders and settings.

Rules:

1. The snapshot is read first, then the log, in order; only SENDER and QUEUE commands are applied,
   alone or inside a GROUP. The rows themselves are walked over, not decoded.
2. A sender's newest mark may stand in the id of a job only; it is found there.
3. The caller holds the appender's lock: nothing is added meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastjournal.journal.language.codec import decode
from fastjournal.journal.language.commands import Group, Queue, Sender
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.scan.scan import Chunk, Scan
from fastjournal.spark.plan import at_one_moment, journal_segments, load, tear_rule
from fastjournal.spark.snapshots import open_snapshot

__all__ = ["Glance", "glance"]

_PUT, _GROUP, _QUEUE, _SENDER = 32, 44, 46, 49


@dataclass(frozen=True, slots=True)
class Glance:
    """Senders and settings of a journal."""

    state: JournalState
    newest: dict[bytes, int]
    """The newest mark found in ids, for the senders asked for."""

    def mark_of(self, sender: bytes) -> int:
        """How far a sender has come; 0 for one that is not known."""
        if sender not in self.state.senders:
            return 0
        return max(self.state.mark_of(sender), self.newest.get(sender, 0))

    def is_plain(self, queues: Iterable[bytes]) -> bool:
        """Whether none of these queues has settings of its own."""
        lanes = self.state.queues
        return all(name not in lanes or not lanes[name].settings_at for name in queues)


def glance(directory: str, sender: bytes) -> Glance:
    """Walk a journal; of jobs only the ids of `sender` are looked at."""
    found = Glance(JournalState(), {})
    opened = open_snapshot(directory)
    if opened is not None:
        snapshot, image = opened
        for chunk in Scan(image, path=snapshot.path, kinds={_QUEUE, _SENDER}):
            assert isinstance(chunk, Chunk)
            _apply(chunk, found.state)
    pieces = at_one_moment(
        directory, lambda: [(piece, load(piece)) for piece in journal_segments(directory)]
    )
    kinds = {_PUT, _GROUP, _QUEUE, _SENDER}
    for piece, data in pieces:
        if data:
            for chunk in Scan(data, path=piece.path, torn=tear_rule(piece), kinds=kinds):
                assert isinstance(chunk, Chunk)
                _ids(chunk, sender, found.newest)
                _apply(chunk, found.state)
    return found


def _apply(chunk: Chunk, state: JournalState) -> None:
    wanted = chunk.select(chunk.kinds != _PUT)
    for time, start, size in zip(
        wanted.times.tolist(), wanted.starts.tolist(), wanted.sizes.tolist(), strict=True
    ):
        command = decode(bytes(wanted.data[start : start + size]))
        for member in command.members if isinstance(command, Group) else (command,):
            if isinstance(member, (Queue, Sender)):
                state.apply(member, time)


def _ids(chunk: Chunk, sender: bytes, newest: dict[bytes, int]) -> None:
    import numpy as np

    puts = chunk.select(chunk.kinds == _PUT)
    if not len(puts):
        return
    ids = puts.ids()
    own = ids[np.all(ids[:, :12] == np.frombuffer(sender, dtype=np.uint8), axis=1)]
    if len(own):
        marks = np.ascontiguousarray(own[:, 12:]).view(">u4")
        newest[sender] = max(newest.get(sender, 0), int(marks.max()))
