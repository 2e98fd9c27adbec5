"""Jobs and queues as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastjournal.errors import BadRequest, JournalError, SettingError
from fastjournal.model import Job, QueueSettings, QueueStatus, State
from fastjournal.wire.fj.json_values import (
    dump,
    job_from_json,
    job_to_json,
    load,
    queue_from_json,
    queue_to_json,
    settings_from_json,
)

blobs = st.binary(max_size=40)
numbers = st.integers(0, 2**63 - 1)
jobs = st.builds(
    Job, st.binary(min_size=16, max_size=16), blobs, blobs, blobs, st.sampled_from(State),
    st.integers(-(2**63), 2**63 - 1), *[numbers] * 14, blobs, blobs, blobs, *[st.booleans()] * 3,
    numbers, st.lists(blobs, max_size=3).map(tuple), numbers,
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs)
def test_a_job_comes_back_as_it_went(job: Job) -> None:
    back = job_from_json(load(dump(job_to_json(job))))
    assert back == job
    assert back.state is job.state


@given(st.binary(min_size=1, max_size=40), st.lists(numbers, min_size=7, max_size=7))
def test_a_queue_comes_back_as_it_went(name: bytes, counts: list[int]) -> None:
    status = QueueStatus(name, *counts, QueueSettings(max_wait=5, paused=True, period="day"))
    assert queue_from_json(load(dump(queue_to_json(status)))) == status


def test_queues_of_the_same_settings_share_them_so_that_a_long_list_is_quick() -> None:
    own = QueueSettings(max_wait=5)
    listed = [
        QueueStatus(b"%d" % n, *[n] * 7, own if n == 7 else QueueSettings()) for n in range(100)
    ]
    shown = [queue_to_json(status) for status in listed]
    assert len({id(picture["settings"]) for picture in shown}) == 2
    back = [queue_from_json(picture) for picture in load(dump(shown))]
    assert back == listed
    assert len({id(status.settings) for status in back}) == 2


def test_settings_that_only_look_the_same_are_not_taken_for_each_other() -> None:
    assert settings_from_json({"max_fails": 1}).max_fails == 1
    for wrong in (True, 1.0, "1", [1]):
        with pytest.raises(SettingError):
            settings_from_json({"max_fails": wrong})
    assert settings_from_json({"max_fails": 1, "of a later version": {}}).max_fails == 1


def test_values_can_be_left_out() -> None:
    job = job_from_json({"value": "aGk=", "queue": "q"})
    picture = job_to_json(job, values=False)
    assert "value" not in picture
    assert picture["size"] == 2
    assert job_from_json(picture) == job._replace(payload=b"")


def test_unknown_fields_are_ignored_and_missing_ones_have_defaults() -> None:
    job = job_from_json({"queue": "q", "of a later version": [1]})
    assert (job.queue, job.state, job.id, job.held) == ("q", State.WAITING, bytes(16), False)


@pytest.mark.parametrize(
    "data",
    [None, 1, [], "x", {"id": 5}, {"id": "zz"}, {"state": "asleep"}, {"value": "*"}, {"due": "x"}],
)
def test_what_is_no_job_is_refused(data: Any) -> None:
    with pytest.raises(BadRequest):
        job_from_json(data)


@pytest.mark.parametrize("data", [None, [], {}, {"name": "q"}, {"name": 5, "settings": {}}])
def test_what_is_no_queue_is_refused(data: Any) -> None:
    with pytest.raises(BadRequest):
        queue_from_json(data)


def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(SettingError):
        settings_from_json({"slow_from": 257})


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest):
        load(value)


NAMES = sorted(job_to_json(job_from_json({})))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(NAMES), json_values, max_size=4))
def test_any_object_is_a_job_or_refused(data: dict[str, Any]) -> None:
    try:
        job = job_from_json(json.loads(json.dumps(data)))
    except JournalError:
        return
    assert isinstance(job, Job)
