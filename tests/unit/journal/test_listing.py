"""Pages of jobs: bounded in rows and bytes, in order, none missed and none told twice."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastjournal.errors import BadCursor
from fastjournal.journal.journal import Journal
from fastjournal.journal.look.listing import MAX_LOOK, Listing
from fastjournal.model import State
from fastjournal.testing import ManualClock
from fastjournal.testing.files import MemoryFiles


def opened(files: MemoryFiles | None = None) -> Journal:
    return Journal(
        "/j", files=files or MemoryFiles(), clock=ManualClock(), sync="os", background=False
    )


def pages(j: Journal, asked: Listing, limit: int) -> list[list[bytes]]:
    out = []
    more: Listing | None = asked
    while more is not None:
        page = j.lister.page(Listing.resume(more.cursor()), limit)
        out.append([job.id for job in page.jobs])
        more = page.more
    return out


def test_a_page_looks_at_so_many_rows_and_no_more() -> None:
    j = opened()
    j.put_many([{"payload": b"", "queue": "many"}] * (2 * MAX_LOOK))
    last = j.put(b"last", queue="few").id
    found = pages(j, Listing(b"few"), 10)
    assert found == [[], [], [last]]
    assert [job.id for job in j.jobs("few")] == [last]
    j.close()


def test_rows_that_went_count_too_and_are_forgotten_in_time() -> None:
    j = opened()
    ids = [r.id for r in j.put_many([{"payload": b"", "queue": "q"}] * (3 * MAX_LOOK))]
    assert len(j.jobs(limit=10**9)) == len(ids)
    for job in j.lease_many(len(ids) - 1, "q"):
        job.done()
    assert [job.id for job in j.jobs()] == [ids[-1]]
    assert len(j.lister.arrivals()) == 1
    j.close()


def test_a_page_ends_when_it_has_so_many_bytes_and_has_one_job_at_least() -> None:
    j = opened()
    j.put_many([{"payload": bytes(10_000), "queue": "q"}] * 10)
    page = j.lister.page(Listing(), 100, 35_000)
    assert len(page.jobs) == 4
    assert page.more is not None
    assert len(j.lister.page(page.more, 100, 1).jobs) == 1
    assert page.sizes == [10_000] * 4
    bare = j.lister.page(Listing(values=False), 100, 35_000)
    assert [len(job.value) for job in bare.jobs] == [0] * 10
    assert bare.sizes == [10_000] * 10
    j.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whoever_stood_throughout_is_told_once_whatever_happens_between_pages(
    data: st.DataObject,
) -> None:
    files = MemoryFiles()
    j = opened(files)
    ids = [j.put(queue="q", id=bytes([n]) * 16).id for n in range(1, 13)]
    gone: set[bytes] = set()
    told: list[bytes] = []
    more: Listing | None = Listing()
    while more is not None:
        page = j.lister.page(Listing.resume(more.cursor()), data.draw(st.integers(1, 4)))
        told += [job.id for job in page.jobs]
        more = page.more
        for victim in data.draw(st.lists(st.sampled_from(ids), max_size=4)):
            j.delete(victim)
            gone.add(victim)
        if data.draw(st.booleans()):
            j.put(queue="q")
        if gone and data.draw(st.booleans()):  # the same id again: another job
            j.put(queue="q", id=data.draw(st.sampled_from(sorted(gone))))
        if data.draw(st.integers(0, 3)) == 0:
            j.close()
            j = opened(files)
    kept = [job_id for job_id in ids if job_id not in gone]
    assert [job_id for job_id in told if job_id in kept] == kept
    assert len(told) <= len(set(told)) + len(gone)
    j.close()


def test_prefix_state_and_queue_are_applied_before_offset_and_limit() -> None:
    j = opened()
    for n in range(20):
        j.put(b"", queue="q", key=f"{'ab'[n % 2]}{n:02}")
    keys = [job.key_bytes for job in j.jobs(prefix="b", offset=2, limit=3)]
    assert keys == [b"b05", b"b07", b"b09"]
    assert j.jobs(prefix="c") == []
    j.lease("q")
    assert len(j.jobs(prefix="a", state=State.PROCESSING)) == 1
    j.close()


@pytest.mark.parametrize("at", [0, 5, -1])
def test_a_damaged_cursor_is_refused(at: int) -> None:
    cursor = bytearray(Listing(b"q", State.WAITING, b"p", True, 3, 4, bytes(16)).cursor())
    cursor[at] ^= 1
    with pytest.raises(BadCursor):
        Listing.resume(bytes(cursor))
    with pytest.raises(BadCursor):
        Listing.resume(b"")


def test_a_tombstone_of_a_clock_ahead_hides_nobody() -> None:
    j = opened()
    j.put(b"1", queue="q")
    ahead = datetime.fromtimestamp(j.engine.clock.now() / 1e9 + 1, UTC)
    j.entries.delete("nothing", timestamp=ahead)
    assert len(j.jobs()) == 1
    j.put(b"2", queue="q")
    assert [job.value for job in j.jobs()] == [b"1", b"2"]
    j.close()
