"""A job in a consumer's hands: whoever handed it out hears what became of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fastjournal.errors import LeaseLost
from fastjournal.handles import LeasedJob
from fastjournal.model import Job, Lease, State

JOB = Job(
    b"i" * 16, b"queue", b"key", b"payload", State.PROCESSING, 7, 0, 0, 0, 0, 1, 3, *(0,) * 8,
    b"w", b"", b"", False, False, False, priority=7,
)  # fmt: skip
UNTIL = 1_700_000_000_000_000_000


class Hears:
    """Notes what it is told; refuses if so told."""

    def __init__(self, lost: bool = False) -> None:
        self.told: list[tuple[object, ...]] = []
        self.lost = lost

    def _note(self, *what: object) -> None:
        self.told.append(what)
        if self.lost:
            raise LeaseLost

    def complete(self, job_id: bytes, token: int, result: bytes | None = None) -> None:
        self._note("complete", job_id, token, result)

    def fail(self, job_id: bytes, token: int, reason: bytes = b"", delay: object = None) -> State:
        self._note("fail", token, reason, delay)
        return State.WAITING

    def touch(self, job_id: bytes, token: int, extend: object = None) -> int:
        self._note("touch", token, extend)
        return UNTIL + 5

    def release(self, job_id: bytes, token: int, delay: object = None) -> None:
        self._note("release", token, delay)


def leased(hears: Hears) -> LeasedJob:
    return LeasedJob(hears, Lease(JOB, 3, UNTIL))


def test_a_leased_job_shows_what_it_is() -> None:
    job = leased(Hears())
    assert (job.id, job.payload, job.key, job.queue) == (b"i" * 16, b"payload", "key", "queue")
    assert (job.priority, job.attempt, job.token) == (7, 3, 3)
    assert job.until == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert repr(job) == f"<LeasedJob {'69' * 16} 'queue' 'key' attempt 3>"


def test_keys_that_are_no_text_can_still_be_shown() -> None:
    odd = LeasedJob(Hears(), Lease(JOB._replace(key_bytes=b"\xff", queue_bytes=b"\xfe"), 1, UNTIL))
    assert odd.key.encode("utf-8", "surrogateescape") == b"\xff"
    assert odd.queue.encode("utf-8", "surrogateescape") == b"\xfe"


def test_its_ends_are_told_with_its_token() -> None:
    hears = Hears()
    leased(hears).done(b"result")
    leased(hears).fail("why ü", delay=5)
    leased(hears).release(3)
    assert hears.told == [
        ("complete", b"i" * 16, 3, b"result"),
        ("fail", 3, "why ü".encode(), 5),
        ("release", 3, 3),
    ]


def test_a_touch_moves_the_end_of_the_lease() -> None:
    job = leased(Hears())
    job.touch(10)
    assert job.lease.until == UNTIL + 5


def test_a_block_ends_the_job_unless_it_was_ended_inside() -> None:
    hears = Hears()
    with leased(hears):
        pass
    with leased(hears) as job:
        job.release()
    assert [what[0] for what in hears.told] == ["complete", "release"]


def test_an_exception_fails_the_job_and_goes_on() -> None:
    hears = Hears()
    with pytest.raises(ValueError, match="broken"), leased(hears):
        raise ValueError("broken" + "x" * 20_000)
    ((kind, _, reason, _),) = hears.told
    assert kind == "fail"
    assert isinstance(reason, bytes)
    assert len(reason) <= 8192
    assert reason.rstrip().endswith(b"x")


def test_an_interrupt_gives_the_job_back() -> None:
    hears = Hears()
    with pytest.raises(KeyboardInterrupt), leased(hears):
        raise KeyboardInterrupt
    assert hears.told == [("release", 3, None)]


def test_a_lost_lease_does_not_hide_the_exception_but_is_told_otherwise() -> None:
    hears = Hears(lost=True)
    with pytest.raises(ValueError, match="the real one"), leased(hears):
        raise ValueError("the real one")
    with pytest.raises(LeaseLost), leased(hears):
        pass
