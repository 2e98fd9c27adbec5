"""One interface: the same sentences hold for an embedded journal and for both clients of a daemon.

The asyncio client is driven through a small adapter, so that each test is written once. Entries
have a file of their own, `test_one_journal_entries`.
"""

from __future__ import annotations

import ast
import inspect
import socket
from collections.abc import Iterator, MutableMapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fastjournal.client import AsyncCachedEntries, AsyncClient, CachedEntries, Client
from fastjournal.client._async.entries import AsyncEntries
from fastjournal.client._async.handles import AsyncHeldLock, AsyncLeasedJob
from fastjournal.client._async.pipeline import AsyncPipeline, AsyncPipelinedEntries
from fastjournal.client._async.subscription import AsyncListening
from fastjournal.client._async.watch import AsyncWatching
from fastjournal.client._sync.entries import ClientEntries
from fastjournal.client._sync.pipeline import Pipeline, PipelinedEntries
from fastjournal.client._sync.subscription import Listening
from fastjournal.client._sync.watch import Watching
from fastjournal.errors import (
    AlreadyExists,
    BadRequest,
    Closed,
    LeaseLost,
    NotFound,
    OutOfRange,
    QueuePaused,
    SettingError,
    TimedOut,
    TooLarge,
    Unavailable,
)
from fastjournal.handles import HeldLock, LeasedJob
from fastjournal.journal.journal import Journal
from fastjournal.model import NewJob, Outcome, State
from fastjournal.package.compiled import source_of
from fastjournal.wire.fj.functions import Function, Type
from fastjournal.wire.fj.replies import Pair, encode_error, encode_ok, encode_reply
from fastjournal.wire.fj.requests import RequestParser
from fjpeer import break_connections
from journal_forms import LOOPS, client_of, journal_of
from relays import Impostor, say_hello
from wire_values import PutOutcome, encode_put_outcomes


@pytest.fixture(params=LOOPS)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with journal_of(request.param, tmp_path / "j") as opened:
        yield opened


def test_put_lease_done(journal: Any) -> None:
    receipt = journal.put(b"hello", queue="q", key="k", priority=7)
    assert receipt.outcome is Outcome.NEW
    job = journal.lease("q")
    assert (job.id, job.payload, job.key, job.queue, job.attempt) == (
        receipt.id, b"hello", "k", "q", 1,
    )  # fmt: skip
    assert job.lease.job.priority == 7
    job.done()
    assert journal.lease("q") is None
    with pytest.raises(NotFound):
        journal.job(receipt.id)


def test_an_id_may_be_given_in_hexadecimal(journal: Any) -> None:
    receipt = journal.put(b"x", queue="q", max_fails=1)
    digits = receipt.id.hex()
    dashed = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    assert journal.job(digits).id == journal.job(dashed.upper()).id == receipt.id
    leased = journal.lease("q")
    assert journal.touch(digits, leased.token) > 0
    journal.release(digits, leased.token)
    leased = journal.lease("q")
    assert journal.fail(digits, leased.token, b"why") is State.FAILED
    assert journal.result(digits) == (False, b"why")
    assert journal.redrive(digits) == 1
    leased = journal.lease("q")
    journal.complete(digits, leased.token, b"42")
    assert journal.delete(digits)
    for wrong in ("", "zz" * 16, digits[:12], digits + "00", b"short", 7):
        with pytest.raises(BadRequest, match="32 hexadecimal digits"):
            journal.job(wrong)


def test_a_length_may_be_given_as_people_write_it(journal: Any) -> None:
    journal.put(b"x", queue="q", delay="5m", ttl="1.5h", lease="250ms")
    (job,) = journal.jobs("q")
    assert job.due - job.inserted == pytest.approx(300e9, abs=5e9)
    assert job.expires - job.due == 5400 * 10**9
    assert job.lease == 250 * 10**6
    assert journal.configure("q", lease="2m").lease == 120 * 10**9
    assert journal.lease("q", wait="1ms") is None
    for wrong in ("", "5 weeks", "m", "1.2.3s", "-5s", "٣s", "infs"):
        with pytest.raises(BadRequest, match="is no length"):
            journal.put(b"x", queue="q", delay=wrong)
    with pytest.raises(BadRequest, match="datetime"):
        journal.put(b"x", queue="q", due="5m")


def test_jobs_leases_and_queues_have_the_same_words_for_the_same_things(journal: Any) -> None:
    journal.put(b"hello", queue="q", key="k", ttl=3600, max_fails=1)
    (job,) = journal.jobs("q")
    leased = journal.lease("q")
    for one in (job, leased):
        assert (one.payload, one.queue, one.key) == (b"hello", "q", "k")
        assert (one.priority, one.attempt) == (100, one is leased)
        assert one.due_at == one.inserted_at
        assert one.expires_at - one.due_at == timedelta(hours=1)
        assert one.due_at.tzinfo is UTC
    status = journal.queue("q")
    assert (status.queue, status.name, status.dead) == ("q", "q", 0)
    assert abs(status.next_due_at - leased.until) < timedelta(milliseconds=1)
    leased.fail("why")
    assert journal.job(job.id).dead
    assert not job.dead
    assert journal.queue("q").dead == 1
    assert journal.queue("q").next_due_at is None


def test_a_payload_that_is_not_bytes_says_what_to_do(journal: Any) -> None:
    with pytest.raises(BadRequest, match=r"not str: encode it, payload\.encode\(\)"):
        journal.put("text", queue="q")
    with pytest.raises(BadRequest, match=r"not dict: encode it, or call a task"):
        journal.put({"a": 1}, queue="q")


def test_a_repeated_key_merges(journal: Any) -> None:
    """FJ-ADV-2."""
    first = journal.put(b"one", queue="q", key="k", priority=50)
    second = journal.put(b"two", queue="q", key="k", priority=80)
    assert second == (first.id, Outcome.MERGED)
    job = journal.job(key="k", queue="q")
    assert (job.value, job.priority) == (b"two", 50)
    assert journal.lease("q").payload == b"two"
    assert journal.put(b"three", queue="q", key="k").outcome is Outcome.TWIN
    assert journal.lease("q") is None


def test_without_a_queue_the_domain_of_the_key_is_it(journal: Any) -> None:
    journal.put(key="https://example.com/a")
    assert journal.lease("example.com").key == "https://example.com/a"


def test_unique_refuses(journal: Any) -> None:
    journal.put(queue="q", key="k", mode="unique")
    with pytest.raises(AlreadyExists):
        journal.put(queue="q", key="k", mode="unique")


def test_a_chosen_id_may_be_sent_again(journal: Any) -> None:
    chosen = bytes(range(1, 17))
    assert journal.put(b"a", queue="q", id=chosen) == (chosen, Outcome.NEW)
    assert journal.put(b"a", queue="q", id=chosen) == (chosen, Outcome.STALE)
    assert len(journal.jobs("q")) == 1


def test_put_many_and_lease_many_and_complete_many(journal: Any) -> None:
    jobs = [{"payload": b"%d" % n, "queue": "q"} for n in range(250)]
    receipts = journal.put_many([*jobs, NewJob(b"q", b"250")])
    assert len({receipt.id for receipt in receipts}) == 251
    leased = journal.lease_many(200, "q")
    assert [job.payload for job in leased] == [b"%d" % n for n in range(200)]
    finished = [(job.id, job.token, None) for job in leased]
    assert journal.complete_many([*finished, (bytes(range(16)), 1, None)]) == [True] * 200 + [False]
    assert len(journal.lease_many(200, "q")) == 51


def test_priority_then_arrival(journal: Any) -> None:
    """FJ-ADV-1, FJ-LST-1."""
    for name, priority in ((b"c", 100), (b"a", 5), (b"d", 100), (b"b", 50)):
        journal.put(name, queue="q", priority=priority)
    assert [journal.lease("q").payload for _ in range(4)] == [b"a", b"b", b"c", b"d"]


def test_delay_due_ttl_and_expires(journal: Any) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    one = journal.put(queue="q", delay=60, ttl=timedelta(minutes=5))
    two = journal.put(queue="q", due=later, expires=later + timedelta(hours=1))
    job = journal.job(one.id)
    assert 59e9 < job.due - job.inserted < 61e9
    assert 358e9 < job.expires - job.inserted < 362e9
    job = journal.job(two.id)
    assert abs(job.due / 1e9 - later.timestamp()) < 0.001
    assert journal.lease("q") is None
    assert journal.queue("q").future == 2


def test_lease_of_queues_prefix_and_all(journal: Any) -> None:
    for name in ("a.1", "a.2", "b"):
        journal.put(name.encode(), queue=name)
    assert journal.lease(queues=["nix", "b"]).payload == b"b"
    assert {journal.lease(prefix="a.").payload for _ in range(2)} == {b"a.1", b"a.2"}
    assert journal.lease() is None
    with pytest.raises(BadRequest):
        journal.lease("a", prefix="b")


def test_a_consumer_may_ask_for_a_version_of_payloads(journal: Any) -> None:
    """SNAP-SCH-1, SNAP-SCH-2: it gets jobs of no other."""
    for schema in (1, 2, 1, 2):
        journal.configure("q", schema=schema)
        journal.put(b"%d" % schema, queue="q")
    second = journal.lease("q", schema=2)
    assert (second.payload, second.lease.job.schema) == (b"2", 2)
    assert [job.payload for job in journal.lease_many(5, prefix="q", schema=2)] == [b"2"]
    assert journal.lease("q", schema=2) is None
    assert journal.lease(schema=3) is None
    assert [job.payload for job in journal.lease_many(5)] == [b"1", b"1"]
    with pytest.raises(OutOfRange):
        journal.lease("q", schema=16)


def test_what_consumers_say_is_refused_in_words_or_fits_no_lease(journal: Any) -> None:
    """F56: the same by all faces, whatever type it is of."""
    for how in (
        {"prefix": "\ud800"}, {"prefix": 5}, {"worker": "\ud800"}, {"worker": 5}, {"queue": 5},
        {"worker": "w" * 256}, {"prefix": "p" * 256}, {"queues": []}, {"queues": "q"},
    ):  # fmt: skip
        with pytest.raises((BadRequest, TooLarge)):
            journal.lease(**how)
    for count in (0, -1, True, 1.5, "1", None):
        with pytest.raises(BadRequest):
            journal.lease_many(count, "q")
    for bad in ([5], [{"queue": "q", "nope": 1}]):
        with pytest.raises(BadRequest):
            journal.put_many(bad)
    receipt = journal.put(b"x", queue="q")
    assert journal.lease(queues=[bytearray(b"q")], worker=memoryview(b"w")).id == receipt.id
    for token in (0, -1, "1", 2, 2**31, 2**32, 2**64, -(10**30), 1.0):
        for end in (journal.complete, journal.fail, journal.release, journal.touch):
            with pytest.raises(LeaseLost):
                end(receipt.id, token)
        assert journal.complete_many([(receipt.id, token, None)]) == [False]
        assert journal.touch_many([(receipt.id, token)]) == [False]
    journal.complete(receipt.id, 1)


def test_take_removes_at_once(journal: Any) -> None:
    journal.put(b"x", queue="q")
    job = journal.lease("q", take=True)
    assert job.payload == b"x"
    assert journal.queues() == []


def test_touch_extends_and_a_stale_token_is_lost(journal: Any) -> None:
    journal.put(queue="q", lease=60)
    job = journal.lease("q", worker="me")
    before = job.lease.until
    job.touch(600)
    assert job.lease.until > before + 500e9
    assert journal.job(job.id).worker == b"me"
    with pytest.raises(LeaseLost):
        journal.touch(job.id, job.token + 1)
    with pytest.raises(LeaseLost):
        journal.complete(job.id, job.token + 1)
    job.release()
    with pytest.raises(LeaseLost):
        journal.complete(job.id, job.token)
    again = journal.lease("q")
    assert (again.id, again.attempt) == (job.id, 2)


def test_fail_tries_again_then_gives_up_and_redrive_brings_back(journal: Any) -> None:
    receipt = journal.put(queue="q", max_fails=2)
    assert journal.lease("q").fail("first", delay=0) is State.WAITING
    assert journal.job(receipt.id).note == b"first"
    assert journal.lease("q").fail(b"second") is State.FAILED
    dead = journal.job(receipt.id)
    assert (dead.state, dead.result) == (State.FAILED, b"second")
    assert journal.queue("q").dead == 1
    assert journal.redrive(queue="q") == 1
    assert journal.lease("q").id == receipt.id


def test_results(journal: Any) -> None:
    receipt = journal.put(queue="q")
    with pytest.raises(TimedOut):
        journal.result(receipt.id)
    with pytest.raises(TimedOut):
        journal.result(receipt.id, wait=0.01)
    journal.lease("q").done(b"42")
    assert journal.result(receipt.id, wait=1) == (True, b"42")
    with pytest.raises(NotFound):
        journal.result(bytes(16))


def test_delete_by_id_and_by_key(journal: Any) -> None:
    receipt = journal.put(queue="q", key="k")
    journal.put(queue="other", key="k")
    assert journal.delete(receipt.id) is True
    assert journal.delete(receipt.id) is False
    assert journal.delete(key="k", queue="q") is False
    assert journal.delete(key="k", queue="other") is True
    with pytest.raises(BadRequest):
        journal.delete()


def test_pause_drain_resume_and_settings(journal: Any) -> None:
    journal.put(queue="q")
    journal.pause("q")
    assert journal.lease("q") is None
    journal.drain("q")
    with pytest.raises(QueuePaused):
        journal.put(queue="q")
    journal.resume("q")
    assert journal.lease("q") is not None
    assert journal.configure("q", lease=5, max_fails=9).lease == 5_000_000_000
    assert journal.queue("q").settings.max_fails == 9
    with pytest.raises((SettingError, BadRequest)):
        journal.configure("q", nonsense=1)


def test_looking(journal: Any) -> None:
    for n in range(5):
        journal.put(b"%d" % n, queue="q")
    journal.put(queue="r")
    journal.lease("q")
    assert len(journal.jobs()) == 6
    assert len(journal.jobs("q", state=State.PROCESSING)) == 1
    assert [job.value for job in journal.jobs("q", offset=1, limit=2)] == [b"1", b"2"]
    assert [queue.name for queue in journal.queues()] == ["q", "r"]
    status = journal.status()
    assert (status.rows, status.ready, status.leased, status.queues) == (6, 5, 1, 2)
    assert status.log.counters.writes >= 7
    with pytest.raises(NotFound):
        journal.queue("nix")


def test_what_cannot_be_meant_is_refused(journal: Any) -> None:
    with pytest.raises(BadRequest):
        journal.put("text", queue="q")
    with pytest.raises(BadRequest):
        journal.put(b"")
    with pytest.raises(OutOfRange):
        journal.put(queue="q", priority=256)
    with pytest.raises(TooLarge):
        journal.put(b"x" * (9 << 20), queue="q")
    with pytest.raises(TooLarge):
        journal.put(b"x" * ((1 << 20) + 1), queue="q")
    with pytest.raises(BadRequest):
        journal.lease_many(0)
    assert journal.put(b"x" * (1 << 20), queue="q").outcome is Outcome.NEW
    assert journal.lease("q").payload == b"x" * (1 << 20)


def test_jobs_larger_than_a_message_are_listed_page_by_page(journal: Any) -> None:
    for n in range(60):  # in one message they would be more than the 64 MiB that a client takes
        journal.put(bytes([n]) * (1 << 20), queue="q")
    found = journal.jobs(limit=100)
    assert [job.value for job in found] == [bytes([n]) * (1 << 20) for n in range(60)]
    bare = journal.jobs(limit=100, values=False)
    assert [(job.id, job.value) for job in bare] == [(job.id, b"") for job in found]


def test_a_listing_has_as_many_jobs_as_were_asked_for(journal: Any) -> None:
    journal.put_many(
        [{"payload": b"", "queue": "q", "key": f"{'ab'[n % 2]}{n:04}"} for n in range(3000)]
    )
    assert len(journal.jobs()) == 100
    keys = [job.key for job in journal.jobs("q", limit=2500)]
    assert keys == sorted(keys, key=lambda key: key[1:])
    assert len(keys) == 2500
    behind = journal.jobs(prefix="b", offset=1400, limit=5000)
    assert [job.key for job in behind] == [f"b{n:04}" for n in range(2801, 3000, 2)]
    assert journal.jobs(prefix="c") == []
    assert journal.jobs(limit=0) == []
    for wrong in ({"offset": -1}, {"limit": -1}):
        with pytest.raises(BadRequest):
            journal.jobs(**wrong)


def test_upkeep_by_hand(journal: Any) -> None:
    journal.put(queue="q")
    journal.sync()
    journal.rotate()
    journal.snapshot()
    journal.clean()
    assert journal.lease("q") is not None


def test_the_clients_offer_what_the_journal_offers() -> None:
    """FJ-IMP-4: Same names, same arguments; the clients may offer more."""
    theirs = {
        name: parameters(Journal, name)
        for name in dir(Journal)
        if not name.startswith("_") and callable(getattr(Journal, name))
    }
    assert "payload" in theirs["put"]
    only_embedded = {"tick", "digest", "subscribe", "ship", "archive_status"}
    for client in (Client, AsyncClient):
        for name, given in theirs.items():
            if name not in only_embedded:
                missing = set(given) - set(parameters(client, name))
                assert not missing, f"{client.__name__}.{name} lacks {missing}"


def parameters(kind: type, name: str) -> list[str]:
    """Those of a method, as the source has them: a compiled method does not always tell them."""
    for one in kind.__mro__:
        if one.__module__.startswith("fastjournal."):
            for node in ast.walk(ast.parse(Path(source_of(one.__module__)).read_text("utf-8"))):
                if isinstance(node, ast.ClassDef) and node.name == one.__name__:
                    for each in node.body:
                        if (
                            isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
                            and each.name == name
                        ):
                            inside = ast.walk(each.args)
                            return [given.arg for given in inside if isinstance(given, ast.arg)]
    return list(inspect.signature(getattr(kind, name)).parameters)


def some_job(journal: Any) -> Any:
    journal.put(b"x", queue="small")
    return journal.lease("small")


@pytest.mark.parametrize("size", [(1 << 20) + 1, 5 << 20, (8 << 20) + 1, 17 << 20])
@pytest.mark.parametrize(
    "use",
    [
        lambda journal, data: journal.put(data, queue="q"),
        lambda journal, data: journal.put(data, queue="q", delay=3),
        lambda journal, data: journal.put_many([{"payload": data, "queue": "q"}]),
        lambda journal, data: journal.put_many([NewJob(b"q", data)]),
        lambda journal, data: journal.entries.set("k", data),
        lambda journal, data: some_job(journal).done(data),
        lambda journal, data: some_job(journal).fail(data),
    ],
    ids=["put", "put later", "put_many", "put_many of NewJob", "set", "complete", "fail"],
)
def test_what_is_too_large_is_refused_by_the_limit_that_holds(
    journal: Any, use: Any, size: int
) -> None:
    with pytest.raises(TooLarge) as caught:
        use(journal, bytes(size))
    told = str(caught.value)
    assert any(f" {limit}" in told for limit in (1 << 20, 16 << 20)), told
    assert str(8 << 20) not in told
    assert journal.put(bytes(1 << 20), queue="q", key="k" * 60_000).outcome is Outcome.NEW


def test_a_leased_job_is_settled_by_its_block(journal: Any) -> None:
    receipts = [journal.put(b"%d" % n, queue="q", max_fails=1) for n in range(3)]
    with journal.lease("q") as job:
        assert (job.priority, job.attempt, job.until.tzinfo) == (100, 1, UTC)
    with pytest.raises(NotFound):
        journal.job(receipts[0].id)
    with pytest.raises(ZeroDivisionError), journal.lease("q"):
        _ = 1 / 0
    assert b"ZeroDivisionError" in journal.job(receipts[1].id).result
    with pytest.raises(SystemExit), journal.lease("q"):
        raise SystemExit
    assert journal.lease("q").id == receipts[2].id


def test_a_reason_that_is_no_text_is_told_as_far_as_it_is(journal: Any) -> None:
    receipt = journal.put(queue="q", max_fails=1)
    assert journal.lease("q").fail("bad name \udcff") is State.FAILED
    assert journal.job(receipt.id).result == b"bad name ?"


def test_what_makes_the_jobs_may_fail_by_itself(journal: Any) -> None:
    """Its error is told, whatever it is: nothing is left out in silence."""

    def jobs() -> Iterator[dict[str, Any]]:
        yield from ({"payload": b"%d" % n, "queue": "q"} for n in range(100))
        raise Unavailable("where the jobs come from is away")

    with pytest.raises(Unavailable, match="where the jobs come from"):
        journal.put_many(jobs())
    assert journal.queues() == []
    assert journal.put(b"next", queue="q").outcome is Outcome.NEW


CLIENTS = tuple(form for form in LOOPS if form != "embedded")


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with journal_of(request.param, tmp_path / "j") as opened:
        yield opened


def test_a_pipeline_has_each_answer_or_error_in_its_place(client: Any) -> None:
    client.drain("closed")
    pipe = client.pipeline()
    for n in range(1500):
        pipe.put(b"%d" % n, queue="q")
    pipe.put(queue="closed")
    pipe.put(queue="q", delay=60, id=bytes(range(16)))
    pipe.complete(bytes(range(16)), 7)
    pipe.entries.set("k", 5)
    pipe.entries.add("k", 2)
    pipe.entries.get("k")
    pipe.entries.get("none", "nothing there")
    pipe.entries.delete("k")
    answers = pipe.execute()
    assert {answer.outcome for answer in answers[:1500]} == {Outcome.NEW}
    assert isinstance(answers[1500], QueuePaused)
    assert answers[1501].id == bytes(range(16))
    assert isinstance(answers[1502], LeaseLost)
    assert answers[1503:] == [True, 7, 7, "nothing there", True]
    assert pipe.execute() == []
    assert client.queue("q").ready == 1500


def test_a_pipeline_has_the_error_in_the_place_of_what_is_too_large(client: Any) -> None:
    pipe = client.pipeline()
    for size in (1, 5 << 20, 2, (1 << 20) + 1, 3):
        pipe.put(bytes(size), queue="q")
    answers = pipe.execute()
    assert [isinstance(answer, TooLarge) for answer in answers] == [0, 1, 0, 1, 0]
    assert sorted(len(job.value) for job in client.jobs("q")) == [1, 2, 3]


def test_events_are_told_one_by_one(client: Any) -> None:
    with client.subscribe("q") as events:
        assert events.next(0.01) is None
        client.put(queue="q")
        told = events.next(10)
        assert (told.kind, told.queue) == ("due", b"q")


def test_a_watch_and_a_closed_client(client: Any) -> None:
    with client.entries.watch() as watch:
        client.entries.set("k", 1)
        assert watch.next(10).key == b"k"
        client.close()
        daemon_is_gone(client.caller.target.port, watch)
    for ask in (client.ping, client.subscribe, lambda: client.put_many([{"queue": "q"}])):
        with pytest.raises(Closed):
            ask()


def daemon_is_gone(port: int, watch: Any) -> None:
    """The connection of a watch breaks, and no other can be made: there is no next change."""
    break_connections(port)
    assert watch.next(10) is None


@pytest.mark.parametrize("form", CLIENTS)
def test_a_daemon_that_loads_is_waited_for_with_many_calls_too(form: str) -> None:
    """Of `put_many` and `update` as of a single call."""
    with client_of(form, impostor_that_loads().url()) as client:
        assert len(client.put_many([{"queue": "q"}] * 300)) == 300
        client.entries.update({f"k{n}": n for n in range(50)})
        assert client.entries.set("k", 1) is True


def impostor_that_loads() -> Impostor:
    """Refuses the first requests: it is still loading."""
    loading = 7

    def script(sock: socket.socket) -> None:
        nonlocal loading
        say_hello(sock)
        parser = RequestParser()
        while asked := sock.recv(65_536):
            for request in parser.feed(asked):
                number = request.identifier
                if loading:
                    loading -= 1
                    sock.sendall(encode_error(number, "LOADING not yet", 0))
                elif request.function == Function.PUTS:
                    count = int.from_bytes(request.value[:4], "big")
                    value = encode_put_outcomes([PutOutcome(0, bytes(16), "")] * count)
                    pair = Pair(b"", Type.BUFFER, value)
                    sock.sendall(encode_reply(number, 0, pairs=(pair,)))
                else:
                    sock.sendall(encode_ok(number, 0))

    return Impostor(*[script] * 10)


TWINS = {
    Client: AsyncClient,
    CachedEntries: AsyncCachedEntries,
    ClientEntries: AsyncEntries,
    HeldLock: AsyncHeldLock,
    LeasedJob: AsyncLeasedJob,
    Listening: AsyncListening,
    Pipeline: AsyncPipeline,
    PipelinedEntries: AsyncPipelinedEntries,
    Watching: AsyncWatching,
}


@pytest.mark.parametrize("blocking", TWINS, ids=lambda kind: kind.__name__)
def test_what_one_twin_can_the_other_can(blocking: type) -> None:
    def offered(kind: type) -> dict[str, Any]:
        return {
            name: parameters(kind, name) if callable(getattr(kind, name)) else None
            for name in dir(kind)
            if not name.startswith("_") and name not in MAPPING
        }

    assert offered(blocking) == offered(TWINS[blocking])
    if issubclass(blocking, MutableMapping):
        assert all(callable(getattr(TWINS[blocking], name)) for name in MAPPING)


MAPPING = {"clear", "items", "keys", "popitem", "values"}
"""What Python's own mapping offers; the asyncio twin has the same names, to be awaited."""
