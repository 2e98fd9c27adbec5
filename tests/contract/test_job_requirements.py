"""What a journal of jobs is asked for, column by column, through its public face."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Job, Journal, State
from fastjournal.clock import SECOND
from fastjournal.errors import AlreadyExists, JournalError, LeaseLost, QueuePaused, TooLarge
from fastjournal.log.stream import Stream
from fastjournal.model import DEFAULT_PRIORITY
from fastjournal.testing import ManualClock, MemoryFiles

HOME = Path("/journal")
HOUR = 3600


class Life:
    """A journal on a disk in memory, by a clock moved by hand."""

    def __init__(self, **options: Any) -> None:
        self.files, self.clock = MemoryFiles(), ManualClock()
        self.journal = Journal(
            HOME, files=self.files, clock=self.clock, sync="os", background=False, **options
        )

    def log(self) -> bytes:
        """All segments, one behind the other."""
        names = sorted(name for name in self.files.names(HOME) if name.endswith(".log"))
        return b"".join(self.files.content(HOME / name)[8:] for name in names)

    def kinds(self) -> list[int]:
        """The types of the records in the log."""
        stream = Stream(HOME, self.journal.engine.log.stream.header, files=self.files)
        return [record.payload[0] for record in stream.open_cursor()]

    def seconds(self) -> int:
        """The time as callers give instants."""
        return self.clock.now() // SECOND

    def lease(self, queue: str = "q", **options: Any) -> Any:
        job = self.journal.lease(queue, **options)
        assert job is not None
        return job

    def job(self, job_id: bytes) -> Job:
        return self.journal.job(job_id)


@pytest.fixture
def life() -> Life:
    return Life()


def test_every_command_that_changes_a_job_is_added_to_the_log_and_nothing_before_it_changes(
    life: Life,
) -> None:
    """WQ-GEN-1: and what the log says recovers to the same state."""
    j = life.journal
    held: list[Any] = []
    steps: dict[str, Callable[[], object]] = {
        "put": lambda: j.put(b"1", queue="q", key="k", max_fails=3),
        "merge": lambda: j.put(b"2", queue="q", key="k"),
        "lease": lambda: held.append(life.lease()),
        "touch": lambda: held[-1].touch(),
        "release": lambda: held.pop().release(),
        "lease again": lambda: held.append(life.lease()),
        "fail": lambda: held.pop().fail(b"why", delay=0),
        "lease a last time": lambda: held.append(life.lease()),
        "done": lambda: held.pop().done(),
        "another": lambda: j.put(b"3", queue="q", key="l"),
        "delete": lambda: j.delete(key="l", queue="q"),
        "settings": lambda: j.configure("q", lease=7),
        "pause": lambda: j.pause("q"),
    }
    for name, step in steps.items():
        before = life.log()
        life.clock.advance(1)
        step()
        after = life.log()
        assert len(after) > len(before), name
        assert after.startswith(before), name
    with Journal(HOME, files=life.files.killed(), clock=life.clock, background=False) as again:
        assert again.digest() == j.digest()


def test_what_is_refused_leaves_no_record(life: Life) -> None:
    """WQ-GEN-2."""
    j = life.journal
    j.put(b"x", queue="q", key="k")
    job = life.lease(lease=1)
    life.clock.advance(2)
    j.tick()
    j.configure("closed", draining=True)
    refusals: dict[str, tuple[Callable[[], object], type[JournalError]]] = {
        "too large": (lambda: j.put(bytes(2**20 + 1), queue="q"), TooLarge),
        "taken": (lambda: j.put(b"x", queue="q", key="k", mode="unique"), AlreadyExists),
        "draining": (lambda: j.put(b"x", queue="closed"), QueuePaused),
        "touch too late": (job.touch, LeaseLost),
        "done too late": (job.done, LeaseLost),
        "failed too late": (lambda: job.fail(b""), LeaseLost),
    }
    before = life.log()
    for name, (deed, error) in refusals.items():
        with pytest.raises(error):
            deed()
        assert life.log() == before, name
    assert j.lease("none") is None
    assert life.log() == before


def test_the_records_of_jobs_past_their_ttl_or_deleted_go_when_segments_are_cleaned() -> None:
    """WQ-GEN-6, WQ-CLN-1, SNAP-IMM-4: their space is free again, what lives stays."""
    life = Life(segment_size=4096)
    j = life.journal
    living = j.put(b"living", queue="q")
    for number in range(100):
        j.put(b"%d" % number * 50, queue="q", expires=life.seconds() + 60)
    deleted = [j.put(b"%d" % number * 50, queue="q").id for number in range(100)]
    full = len(life.log())
    for job_id in deleted:
        j.delete(job_id)
    life.clock.advance(2 * HOUR)  # tombstones keep older writes away for an hour
    for _ in range(2):
        j.tick()
    j.rotate()
    j.put(b"newest", queue="q")
    for _ in range(3):
        j.clean()
    assert len(life.log()) < full // 5
    assert [job.value for job in j.jobs()] == [b"living", b"newest"]
    assert life.job(living.id).value == b"living"


def test_every_job_has_the_predefined_columns(life: Life) -> None:
    """SNAP-GEN-1, SNAP-COL-6: who puts a payload into a queue says nothing of them."""
    put = life.journal.put(b"data", queue="q")
    job = life.job(put.id)
    now = life.clock.now()
    assert (job.queue, job.key, job.payload, job.state) == ("q", "", b"data", State.WAITING)
    assert job.inserted == job.due == job.modified
    assert 0 <= job.inserted - now < SECOND
    assert (job.expires, job.priority, job.lease_start, job.timeouts) == (0, DEFAULT_PRIORITY, 0, 0)


def test_a_job_of_the_list_is_a_row_of_its_table(life: Life) -> None:
    """FJ-SQL-1: id, domain, priority, start, URI, and until when it is worked on, a day at most."""
    uri, start = "http://example.com/a", life.seconds() + 5
    life.journal.configure("example.com", lease=24 * HOUR)
    put = life.journal.put(b"", key=uri, priority=255, due=start)
    job = life.job(put.id)
    assert (job.id, job.queue, job.key) == (put.id, "example.com", uri)
    assert (job.priority, job.due, job.lease_until) == (255, start * SECOND, 0)
    life.clock.advance(5)
    life.lease("example.com")
    until = life.job(put.id).lease_until
    assert 0 <= until - (life.seconds() + 24 * HOUR) * SECOND < SECOND
    assert life.journal.queue("example.com").next_due == until, "next processing"


def changed(before: Job, after: Job) -> set[str]:
    """The columns in which two pictures of a job differ."""
    return {name for name in Job._fields if getattr(before, name) != getattr(after, name)}


def test_work_on_a_job_changes_nothing_but_what_tells_of_the_work(life: Life) -> None:
    """SNAP-IMM-1, SNAP-IMM-3: status, when it began and until when, by whom, and the counters."""
    put = life.journal.put(b"data", queue="q", key="k", priority=7, max_timeouts=9)
    work = {"state", "attempts", "lease_start", "lease_until", "worker"}
    first = before = life.job(put.id)
    job = life.lease(worker="w", lease=10)
    before, leased = life.job(put.id), before
    assert changed(leased, before) == work
    life.clock.advance(5)
    job.touch()
    assert changed(before, life.job(put.id)) == {"lease_until"}
    life.clock.advance(HOUR)
    life.journal.tick()
    lost = life.job(put.id)
    assert changed(first, lost) == {"attempts", "timeouts"}
    life.lease().release()
    assert changed(lost, life.job(put.id)) == {"attempts"}
    assert life.job(put.id).value == b"data"


def test_a_replaced_job_is_a_new_image_of_the_row_with_another_process_date(life: Life) -> None:
    """SNAP-IMM-2, SNAP-KIX-2: the same payload put again; the row stays, its dates move."""
    put = life.journal.put(b"data", queue="q", key="k")
    before = life.job(put.id)
    life.clock.advance(5)
    assert life.journal.put(b"data", queue="q", key="k").id == put.id
    assert changed(before, life.job(put.id)) == {"due", "modified"}
    assert life.job(put.id).due >= before.due + 5 * SECOND
    assert life.kinds() == [32, 32]


def test_a_merge_keeps_each_column_as_its_rule_says(life: Life) -> None:
    """SNAP-KEY-1..9: the first is more urgent and lives longer, the second is due later."""
    j, now = life.journal, life.seconds()
    put = j.put(b"1", queue="q", key="k", priority=10, due=now + 1, expires=now + HOUR)
    life.clock.advance(2)
    life.lease(lease=1)
    life.clock.advance(2)
    j.tick()
    before = life.job(put.id)
    assert (before.timeouts, before.state) == (1, State.WAITING)
    j.put(b"2", queue="q", key="k", priority=20, due=now + 60, expires=now + 90)
    after = life.job(put.id)
    assert (after.inserted, after.state, after.lease_start) == (before.inserted, State.WAITING, 0)
    assert (after.expires, after.priority, after.due) == (before.expires, 10, (now + 60) * SECOND)
    assert (after.timeouts, after.value) == (0, b"2")
    j.put(b"3", queue="q", key="k", priority=5, due=now + 30)
    last = life.job(put.id)
    assert (last.expires, last.priority, last.due) == (0, 5, (now + 60) * SECOND), "0 is never"


def test_a_job_expires_after_its_date_by_a_timer_and_never_without_one(life: Life) -> None:
    """SNAP-COL-2, SNAP-EXP-1, SNAP-EXP-3, FJ-LST-4: the timer's look is written as EXPIRE."""
    j = life.journal
    kept = j.put(b"kept", queue="q")
    j.tick()
    assert j.engine.timer_at > life.clock.now() + 100 * 365 * 24 * HOUR * SECOND
    gone = j.put(b"gone", queue="q", expires=life.seconds() + 60)
    life.clock.advance(59)
    j.tick()
    assert life.job(gone.id).value == b"gone"
    assert j.engine.timer_at <= life.clock.now() + 2 * SECOND
    life.clock.advance(2)
    assert 6 not in life.kinds()
    j.tick()
    assert life.kinds()[-1] == 6
    assert [job.id for job in j.jobs("q")] == [kept.id]
    life.clock.advance(10 * 365 * 24 * HOUR)
    j.tick()
    assert life.job(kept.id).value == b"kept"


def test_a_lease_of_a_queue_with_a_limit_of_an_hour_ends_after_it_and_is_counted_once(
    life: Life,
) -> None:
    """SNAP-COL-8, SNAP-COL-11: whoever looks first, another consumer or the timer."""
    j = life.journal
    j.configure("q", lease=HOUR)
    put = j.put(b"x", queue="q")
    life.lease()
    life.clock.advance(HOUR - 1)
    assert j.lease("q") is None
    assert life.job(put.id).timeouts == 0
    life.clock.advance(2)
    again = life.lease()
    j.tick()
    assert (again.id, life.job(put.id).timeouts) == (put.id, 1)
    life.clock.advance(HOUR + 1)
    j.tick()
    assert life.lease().id == put.id
    j.tick()
    assert life.job(put.id).timeouts == 2


def test_keys_have_up_to_65535_bytes_and_user_data_may_be_any_or_none(life: Life) -> None:
    """SNAP-COL-12, SNAP-COL-13."""
    j = life.journal
    for key in (b"\0", bytes(range(256)), b"k" * 65_535):
        put = j.put(bytes(range(256)), queue="q", key=key)
        assert j.job(key=key, queue="q").id == put.id
    with pytest.raises(TooLarge):
        j.put(b"", queue="q", key=b"k" * 65_536)
    empty = j.put(b"", queue="empty")
    assert life.lease("empty").payload == b""
    assert life.job(empty.id).value == b""


def test_jobs_that_are_alike_in_every_column_stay_apart(life: Life) -> None:
    """SNAP-PK-1, SNAP-PK-2, FJ-URI-3: each has an id, and goes to one consumer."""
    puts = [life.journal.put(b"same", queue="q", due=1, priority=5) for _ in range(5)]
    assert len({put.id for put in puts}) == 5
    assert [life.lease().id for _ in range(5)] == [put.id for put in puts]
    assert life.journal.lease("q") is None


def test_one_resource_may_wait_once_for_each_function(life: Life) -> None:
    """FJ-URI-1, FJ-URI-2, FJ-URI-3: key = function NUL URI; it leads to the row by its id."""
    j, uri = life.journal, b"http://example.com/a"
    fetch = j.put(b"1", queue="q", key=b"fetch\0" + uri)
    index = j.put(b"2", queue="q", key=b"index\0" + uri)
    assert fetch.id != index.id
    assert j.put(b"3", queue="q", key=b"fetch\0" + uri).id == fetch.id
    assert j.job(key=b"fetch\0" + uri, queue="q").id == fetch.id
    assert len(j.jobs("q")) == 2


def test_jobs_are_sorted_by_domain_priority_and_time_and_each_domain_tells_its_next(
    life: Life,
) -> None:
    """FJ-SORT-1, FJ-SORT-2, FJ-SQL-2, FJ-DYN-3: the domain of a URI is its queue."""
    j, now = life.journal, life.seconds()
    for path, priority, wait in (("c", 9, 1), ("b", 5, 2), ("a", 5, 1), ("later", 1, 900)):
        for domain in ("one.org", "two.org"):
            key = f"http://{domain}/{path}"
            j.put(key.encode(), key=key, priority=priority, due=now + wait)
    life.clock.advance(10)
    for domain in ("two.org", "one.org"):
        got = [life.lease(domain, lease=HOUR).payload for _ in range(3)]
        assert got == [f"http://{domain}/{path}".encode() for path in "abc"]
        assert j.lease(domain) is None
        assert j.queue(domain).next_due == (now + 900) * SECOND


def test_a_row_that_is_updated_stands_at_its_new_place_and_is_found_by_its_key(life: Life) -> None:
    """FJ-KV-7: its sorted key is renamed."""
    j = life.journal
    for name in ("a", "b", "c"):
        j.put(name.encode(), queue="q", key=name, priority=50)
    j.put(b"c again", queue="q", key="c", priority=1)
    assert j.job(key="c", queue="q").priority == 1
    assert [life.lease().payload for _ in range(3)] == [b"c again", b"a", b"b"]
