"""What a writer of Spark takes for a sender's mark is what the journal itself takes for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.journal.journal import Receiver
from fastjournal.log.scan.scan import Chunk, Damage, Scan
from fastjournal.model import Mode, NewJob
from fastjournal.put_request import checked_request
from fastjournal.spark.sink import glance as glance_module
from fastjournal.spark.sink.glance import glance
from fastjournal.spool.frames import sender_name, spool_tag

NAME = sender_name(spool_tag(bytes(16)), 472_222)
FORGED = NAME + b"\xff\xff\xff\xfe"


def job(value: bytes, row_id: bytes = b"") -> NewJob:
    return NewJob(b"work", value, mode=Mode.PLAIN, id=row_id)


@pytest.mark.parametrize("way", ["replayed", "snapshot", "cleaned", "killed"])
def test_a_mark_moves_by_what_its_sender_said_alone(tmp_path: Path, way: str) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        journal.put(b"forged", queue="q", key="k", id=FORGED)
        Receiver(journal).put_from(NAME, [(8, job(b"a")), (9, job(b"x" * 5000))])
        journal.put(b"merged", queue="q", key="k")
        other = sender_name(spool_tag(b"x" * 16), 472_222)
        Receiver(journal).put_from(other, [(8, job(b"b", NAME + b"\x7f\0\0\0"))])
        while held := journal.lease("work"):
            journal.complete(held.id, held.token)
        if way == "snapshot":
            journal.snapshot()
        elif way == "cleaned":
            journal.rotate()
            journal.put(b"", queue="later")
            assert journal.clean()
        if way == "killed":  # what stands in an id only, behind all that was told
            with journal.engine.lock:
                last = checked_request(job(b"c", NAME + b"\0\0\0\x14"))
                command = journal.engine.puts.put(last, 0, True)
                assert command is not None
                journal.engine.commit(command)
        journal.sync()
        live = journal.engine.state.mark_of(NAME)
        assert live == (20 if way == "killed" else 9)
        assert glance(str(tmp_path / "j"), NAME).mark_of(NAME) == live


def test_a_sender_that_is_not_known_has_no_mark(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        journal.put(b"forged", queue="q", id=FORGED)
        journal.sync()
        assert glance(str(tmp_path / "j"), NAME).mark_of(NAME) == 0


def test_only_what_was_added_since_is_walked_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the segment in which the log ended is cleaned, or a sender had died half-way."""
    walked: list[int] = []

    class Counted(Scan):
        """Counts the records that are handed on."""

        def __iter__(self) -> Iterator[Chunk | Damage]:
            for chunk in super().__iter__():
                walked.append(len(chunk) if isinstance(chunk, Chunk) else 0)
                yield chunk

    monkeypatch.setattr(glance_module, "Scan", Counted)
    path = str(tmp_path / "j")

    def look(sender: bytes) -> tuple[int, int]:
        walked.clear()
        found = glance(path, sender)
        return sum(walked), found.mark_of(b"spark-txn:a")

    with Journal(path, background=False) as journal:
        receiver = Receiver(journal)
        for n in range(50):
            journal.put(b"%d" % n, queue="q")
        receiver.put_from(b"spark-txn:a", [(2**62, job(b"x"))])
        journal.sync()
        assert look(NAME) == (52, 2**62)
        assert look(NAME) == (0, 2**62)
        receiver.put_from(NAME, [(8, job(b"a"))])  # and dies here
        journal.rotate()
        journal.put(b"more", queue="q")
        journal.sync()
        assert look(b"another one!")[0] < 5
        assert look(NAME)[0] > 52
        assert glance(path, NAME).mark_of(NAME) == 8
        for held in journal.lease_many(52, "q"):
            held.done()
        journal.rotate()
        assert look(b"another one!")[1] == 2**62
        journal.put(b"last", queue="q")
        assert journal.clean()
        assert look(b"another one!")[1] == 2**62
