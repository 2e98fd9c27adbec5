"""Values: settings check themselves; states and priorities are what the documents say."""

from __future__ import annotations

import math

import pytest

from fastjournal.errors import SettingError
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.language.settings_codec import SETTING_NUMBERS
from fastjournal.model import (
    DEFAULT_SETTINGS,
    SETTING_NAMES,
    Job,
    Priority,
    QueueSettings,
    QueueStatus,
    State,
)


def test_known_priorities_snap_col_4() -> None:
    assert [(p.name, p.value) for p in Priority] == [
        ("NOW", 0),
        ("IMPORTANT", 10),
        ("NEW_PAGE", 20),
        ("RESET", 50),
        ("UPDATES", 180),
        ("SLOW", 200),
        ("REVIEW", 230),
        ("TIME_ALLOWS", 255),
    ]


def test_states_have_one_letter_each() -> None:
    assert "".join(state.letter for state in State) == "WPCFD"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease", 0),
        ("lease", -1),
        ("lease", 1.5),
        ("lease", True),
        ("max_timeouts", 256),
        ("max_fails", -1),
        ("backoff_factor", 0.5),
        ("backoff_factor", math.nan),
        ("backoff_factor", math.inf),
        ("backoff_jitter", 1.1),
        ("backoff_jitter", "much"),
        ("slow_from", 257),
        ("paused", 1),
        ("priority_order", "upwards"),
        ("period", "week"),
        ("file_management", "burn"),
        ("result_ttl", 0),
        ("dead_keep", 2**63),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(SettingError) as caught:
        QueueSettings(**{name: value})  # type: ignore[arg-type]
    assert caught.value.name == name


OTHER = {
    "lease": 1,
    "max_timeouts": 0,
    "max_attempts": 7,
    "max_fails": 0,
    "max_wait": 5,
    "backoff_base": 0,
    "backoff_factor": 1.125,
    "backoff_cap": 9,
    "backoff_jitter": 0.0,
    "backoff_timeouts": True,
    "slow_from": 256,
    "keep_versions": True,
    "dead_keep": 0,
    "result_ttl": 1,
    "concurrency": 3,
    "paused": True,
    "draining": True,
    "priority_order": "larger",
    "period": "month",
    "file_management": "keep",
    "secure": True,
    "persist": False,
    "schema": 2,
}


def test_every_setting_has_a_number_in_the_log_and_survives_it() -> None:
    assert set(OTHER) == set(SETTING_NAMES) == set(SETTING_NUMBERS)
    for name, value in OTHER.items():
        changed = DEFAULT_SETTINGS.changed({name: value})
        assert changed != DEFAULT_SETTINGS
        assert decode(encode(k.Queue(b"q", changed))) == k.Queue(b"q", changed)
    everything = QueueSettings(**OTHER)  # type: ignore[arg-type]
    assert decode(encode(k.Queue(b"q", everything))) == k.Queue(b"q", everything)


def test_setting_numbers_never_change() -> None:
    assert [SETTING_NUMBERS[name] for name in OTHER] == list(range(23))


JOB = Job(
    b"i" * 16, b"mail", b"ada", b"x" * 50, State.FAILED, 7, 10**18, 10**18, 10**18, 0, 1, 3,
    *(0,) * 8, b"", b"", b"why", False, False, False, priority=7,
)  # fmt: skip


def test_names_are_text_and_what_was_bytes_in_0_1_0_still_works_with_a_warning() -> None:
    assert (JOB.queue, JOB.key) == ("mail", "ada")
    assert isinstance(JOB.queue, str)
    assert {"mail": 1}[JOB.queue] == 1
    with pytest.deprecated_call(match="text and not bytes"):
        assert JOB.queue == b"mail"
    with pytest.deprecated_call(match="text and not bytes"):
        assert JOB.key != b"mail"
    with pytest.deprecated_call(match="need not be decoded"):
        assert JOB.queue.decode() == "mail"  # type: ignore[attr-defined]
    with pytest.deprecated_call():
        assert {b"mail": 1}[JOB.queue] == 1  # type: ignore[index]
    odd = JOB._replace(key_bytes=b"\xff")
    with pytest.deprecated_call():
        assert odd.key == b"\xff"
    assert JOB.value == JOB.payload


def test_a_job_and_a_queue_are_shown_with_text_and_dates() -> None:
    shown = repr(JOB._replace(expires=10**18 + 5 * 10**9))
    assert shown == (
        "<Job dead 69696969696969696969696969696969 queue='mail' key='ada' priority=7 attempt=3 "
        f"payload=b'{'x' * 37}...' due_at=2001-09-09 01:46:40.000+00:00 "
        "inserted_at=2001-09-09 01:46:40.000+00:00 expires_at=2001-09-09 01:46:45.000+00:00>"
    )
    queue = QueueStatus(b"mail", 2, 0, 0, 1, 0, 0, 10**18, QueueSettings(paused=True))
    assert repr(queue) == (
        "<QueueStatus 'mail' ready=2 leased=1 next_due_at=2001-09-09 01:46:40.000+00:00 paused>"
    )
