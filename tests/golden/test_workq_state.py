"""Logs written by the real Workq server: what their records say, and the state they lead to.

The state is compared with the server's own answers. Where the server itself errs (the README of
the fixtures lists it) ours is what the documents promise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fastjournal.journal.disk.retention import Retention
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import TYPE_OF, decode, encode
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import READY, image, job_of
from fastjournal.log.record import decode_many
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.model import Job, Where
from stepped_core import Decisions, Nothing

CASES = sorted(path.parent for path in (Path(__file__).parent / "workq").glob("*/expected.json"))
STATES = {0: "W", 3: "W", 1: "C", 2: "F", 4: "P"}
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def facts_of(case: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((case / "expected.json").read_text())
    return facts


def records_of(case: Path) -> Iterator[tuple[int, bytes]]:
    for number, path in enumerate(sorted(case.glob("*.log")), 1):
        data = path.read_bytes()
        records, end, fault = decode_many(data, HEADER_SIZE, len(data), number, 0)
        assert (end, fault) == (len(data), None)
        for record in records:
            yield record.time, record.payload


def replay(case: Path) -> JournalState:
    state = JournalState()
    for time, payload in records_of(case):
        state.replay(payload, time)
    return state


def as_ns(text: str) -> int:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))


@by_case
def test_each_record_says_what_the_server_was_told_wq_cmd_1_to_9(case: Path) -> None:
    facts = facts_of(case)["records"]
    records = list(records_of(case))
    assert len(records) == len(facts)
    for fact, (_, payload) in zip(facts, records, strict=True):
        command = decode(payload)
        assert TYPE_OF[type(command)] == fact["type"]
        assert not isinstance(command, (k.Group, k.Mark, k.Queue, k.Sender))
        assert str(UUID(bytes=command.id)) == fact["id"]
        if isinstance(command, (k.Add, k.Schedule)):
            assert command.name.decode() == fact["name"]
            for name in ("ttr", "ttl", "priority", "max_attempts", "max_fails"):
                assert getattr(command, name) == fact[name]
            assert command.payload.hex() == fact["payload_hex"]
            assert command.created == as_ns(fact["created"])
            no_time = fact["job_time"].startswith("0001-")
            assert command.time == (0 if no_time else as_ns(fact["job_time"]))
        elif isinstance(command, (k.Complete, k.Fail)):
            assert command.result.hex() == fact["result_hex"]


@by_case
def test_written_again_with_the_servers_zone_bytes_each_record_is_the_same_d02(case: Path) -> None:
    for _, payload in records_of(case):
        assert encode(decode(payload), 0xFFFF) == payload


@by_case
def test_replay_gives_the_jobs_the_server_had(case: Path) -> None:
    facts = facts_of(case)
    after = facts["after_restart"]
    server = after["state"] if after["starts"] else facts["state_before_stop"]
    now = int(after["as_of_unix"] * 1000) * 1_000_000
    state = replay(case)
    for text, seen in server["jobs"].items():
        row = state.rows.get(UUID(text).bytes)
        if row is None or 0 < row.expires < now:
            assert seen == "-NOT-FOUND"
            continue
        assert seen != "-NOT-FOUND"
        compare(job_of(row), seen)


def compare(job: Job, seen: dict[str, Any]) -> None:
    assert job.queue == seen["name"]
    assert job.lease == seen["ttr"] * 1_000_000
    start = job.due if job.scheduled else job.inserted
    assert job.expires == start + seen["ttl"] * 1_000_000
    assert job.priority == seen["priority"]
    assert job.max_attempts == seen["max-attempts"]
    assert job.max_fails == seen["max-fails"]
    assert job.attempts == seen["attempts"]
    assert job.state.letter == STATES[seen["state"]]
    assert len(job.value) == seen["payload-size"]
    assert hashlib.sha256(job.value).hexdigest() == seen["payload_sha256"]
    assert job.inserted // 10**9 == as_ns(seen["created"]) // 10**9
    assert job.scheduled == ("time" in seen)
    if "result" in seen:
        assert job.result.hex() == seen["result"]["result_hex"]
        assert (job.state.letter == "C") == bool(seen["result"]["success"])


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != "reordered"], ids=lambda case: case.name
)
def test_jobs_are_handed_out_in_the_servers_order_d35(case: Path) -> None:
    """All but the log that the server refused: it has no order to compare with."""
    facts = facts_of(case)
    after = facts["after_restart"]
    now = int(after["as_of_unix"] * 1000) * 1_000_000
    state = replay(case)
    jobs = Decisions(state)
    compared = 0
    for name, queue in after["state"]["queues"].items():
        ready = [UUID(text).bytes for text in queue["ready"]]
        kinds = {job_of(state.rows[row_id]).scheduled for row_id in ready}
        handed = []
        while not isinstance(granted := jobs.lease(Where((name.encode(),)), now), Nothing):
            handed.append(granted.row.id)
            state.apply(granted.command, now)
        if len(kinds) > 1:  # there plain adds overtake due scheduled jobs
            assert sorted(handed) == sorted(ready)
        else:
            assert handed == ready
        compared += 1
    assert compared == len(after["state"]["queues"])


@by_case
def test_scheduled_jobs_wait_for_their_time(case: Path) -> None:
    facts = facts_of(case)
    after = facts["after_restart"]
    server = after["state"] if after["starts"] else facts["state_before_stop"]
    now = int(after["as_of_unix"] * 1000) * 1_000_000
    state = replay(case)
    state.promote(now)
    for queue in server["queues"].values():
        for text in queue["scheduled"]:
            row = state.rows[UUID(text).bytes]
            assert row.place != READY
            assert row.due > now


@by_case
def test_an_image_of_the_state_gives_it_again(case: Path) -> None:
    state = replay(case)
    again = JournalState()
    for row in state.rows.values():
        for command in image(row):
            again.replay(encode(command), 1)
    assert again.digest() == state.digest()


def test_lease_ends_count_from_the_record_not_from_the_restart_d30() -> None:
    case = next(case for case in CASES if case.name == "all-types")
    state = replay(case)
    starts = {}
    for time, payload in records_of(case):
        if payload[0] == 7:
            starts[payload[1:17]] = time
    leased = [row for row in state.rows.values() if row.lease_until]
    assert leased
    for row in leased:
        assert row.lease_until == starts[row.id] + row.policy.lease * 1_000_000


def test_a_deleted_job_does_not_come_back_when_our_cleaner_cleans_d04() -> None:
    """The history of the fixture `cleaned`, with every record still there, cleaned our way."""
    case = next(case for case in CASES if case.name == "cleaned")
    facts = facts_of(case)
    ghost = UUID(facts["ghost_job"]).bytes
    adds = {payload[1:17]: payload for _, payload in records_of(case) if payload[0] < 3}
    segments: dict[int, list[tuple[int, bytes]]] = {}
    state = JournalState()
    for time, (name, kind, text) in enumerate(facts["records_before_cleaning"], 10**18):
        row_id = UUID(text).bytes
        payload = adds.get(row_id) if kind < 3 else bytes((kind,)) + row_id
        if payload is None:  # its add was cleaned away, so all that is known of it is its id
            payload = encode(k.Add(row_id, b"q", 1, 1, 0, 0, 0, b"", 0, time))
        segments.setdefault(int(name.split(".")[0]), []).append((time, payload))
        state.replay(payload, time)
    assert ghost not in state.rows
    before = state.digest()
    deletes = [n for n, rs in segments.items() for _, p in rs if p == b"\x05" + ghost]
    assert len(deletes) == 1
    sealed = sorted(segments)[:-1]
    for _ in range(3):
        retention = Retention(state)
        for number in sealed:
            retention.survey(number, segments[number])
        retention.begin(sealed, sealed)
        for number in sealed:
            kept = [r for r in segments[number] if not retention.drop(number, *r)]
            segments[number] = kept
            again = JournalState()
            for n in sorted(segments):
                for time, payload in segments[n]:
                    again.replay(payload, time)
            assert ghost not in again.rows
            assert again.digest() == before
        retention.finish()
    left = [payload for n in sealed for _, payload in segments[n]]
    assert all(payload[1:17] != ghost for payload in left)
