"""The clients when things go wrong: broken connections, late answers, restarts, forks, threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastjournal
from fastjournal.client import AsyncClient, Client
from fastjournal.client.urls import Target
from fastjournal.errors import (
    BadRequest,
    Closed,
    JournalFault,
    LeaseLost,
    OutOfRange,
    ProtocolError,
    QueuePaused,
    SettingError,
    TooLarge,
    Unavailable,
    VersionMismatch,
)
from fastjournal.model import NewJob, Outcome
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.replies import encode_error, encode_ok
from relays import Impostor, Relay, say_hello


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d") as running:
        yield running


@pytest.fixture
def relay(daemon: LocalDaemon) -> Iterator[Relay]:
    made = Relay(daemon.port)
    yield made
    made.close()


def test_a_put_whose_answer_was_lost_is_sent_again_and_taken_once(
    daemon: LocalDaemon, relay: Relay
) -> None:
    with fastjournal.connect(f"fj://127.0.0.1:{relay.port}") as client:
        relay.swallow = True
        receipt = client.put(b"once", queue="q")
        assert receipt.outcome is Outcome.STALE  # it had been taken in the first time
        assert [job.value for job in client.jobs("q")] == [b"once"]
        relay.cut()
        assert client.put(b"two", queue="q").outcome is Outcome.NEW


def test_a_client_may_be_subclassed(daemon: LocalDaemon) -> None:
    """Both twins, by whoever wants other words or notes of their own on them."""

    class Blocking(Client):
        def put_text(self, text: str) -> bytes:
            self.newest = self.put(text.encode(), queue="q").id
            return self.newest

        def close(self) -> None:
            self.left = True
            super().close()

    class Awaited(AsyncClient):
        async def put_text(self, text: str) -> bytes:
            return (await self.put(text.encode(), queue="q")).id

    async def put_other() -> bytes:
        async with await Awaited.open(daemon.url) as client:
            return await client.put_text("two")

    with Blocking(daemon.url) as client:
        assert client.put_text("one") == client.newest
        other = asyncio.run(put_other())
        assert [job.id for job in client.jobs("q")] == [client.newest, other]
    assert client.left


def test_put_many_goes_on_where_the_connection_broke(daemon: LocalDaemon, relay: Relay) -> None:
    with fastjournal.connect(f"fj://127.0.0.1:{relay.port}") as client:
        jobs = [{"payload": b"%d" % n, "queue": "q"} for n in range(2000)]
        relay.swallow = True
        receipts = client.put_many(jobs)
        assert len({receipt.id for receipt in receipts}) == 2000
        assert client.queue("q").ready == 2000


def test_a_completion_whose_answer_was_lost_is_a_completion(
    daemon: LocalDaemon, relay: Relay
) -> None:
    with fastjournal.connect(f"fj://127.0.0.1:{relay.port}") as client:
        client.put(queue="q")
        job = client.lease("q")
        assert job is not None
        relay.swallow = True
        job.done()
        assert client.queues() == []


def test_asyncio_sends_again_too(daemon: LocalDaemon, relay: Relay) -> None:
    async def main() -> list[Outcome]:
        async with await fastjournal.aconnect(f"fj://127.0.0.1:{relay.port}") as client:
            relay.swallow = True
            first = await client.put(b"once", queue="q")
            relay.cut()
            second = await client.put(b"two", queue="q")
            many = await asyncio.gather(*[client.put(queue="q") for _ in range(50)])
            return [first.outcome, second.outcome, *{r.outcome for r in many}]

    assert asyncio.run(main()) == [Outcome.STALE, Outcome.NEW, Outcome.NEW]


def test_redrive_is_not_sent_again(daemon: LocalDaemon, relay: Relay) -> None:
    with fastjournal.connect(f"fj://127.0.0.1:{relay.port}") as client:
        relay.swallow = True
        with pytest.raises(Unavailable):
            client.redrive(queue="q")


def test_clients_outlive_a_restart_of_the_daemon(tmp_path: Path) -> None:
    settings = {"listen": [f"unix:{tmp_path / 's'}"]}
    first = LocalDaemon(tmp_path / "d", settings=settings).start()
    client = first.connect()
    client.put(b"before", queue="q")
    first.stop()
    with LocalDaemon(tmp_path / "d", settings=settings):
        assert client.put(b"after", queue="q").outcome is Outcome.NEW
        assert [job.payload for job in client.lease_many(5, "q")] == [b"before", b"after"]
    client.close()


def test_nobody_there_is_found_out_in_time() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        fastjournal.connect(f"fj://127.0.0.1:{port}?connect_timeout=0.2")
    assert time.monotonic() - start < 5


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    asked = threading.Event()
    silent = Impostor(*[lambda sock: asked.wait(60)] * 5)
    with pytest.raises(Unavailable):
        fastjournal.connect(silent.url(connect_timeout=0.2, timeout=0.2))

    async def main() -> None:
        with pytest.raises(Unavailable):
            await fastjournal.aconnect(silent.url(connect_timeout=0.2, timeout=0.2))

    asyncio.run(main())
    asked.set()
    silent.close()


def test_an_answer_that_comes_late_is_not_taken_for_the_next_one() -> None:
    def late(sock: socket.socket) -> None:
        say_hello(sock)
        sock.recv(1000)
        assert not sock.recv(1000)  # it was given up
        with contextlib.suppress(OSError):
            sock.sendall(encode_ok(1, 111_000))

    def prompt(sock: socket.socket) -> None:
        say_hello(sock)
        sock.recv(1000)
        sock.sendall(encode_ok(1, 222_000))
        sock.recv(1)

    impostor = Impostor(late, prompt)
    client = fastjournal.connect(impostor.url(timeout=0.2, connect_timeout=1))
    assert isinstance(client, Client)
    times = []
    for _ in range(2):
        try:
            times.append(client.ping())
        except Unavailable:
            continue
    assert 111_000 not in times
    client.close()
    impostor.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError),
        (b"JR\0\2" + bytes(20), VersionMismatch),
        (encode_ok(77, 0), ProtocolError),
        (encode_error(0, "FULL too many connections", 0), fastjournal.RequestError),
        (encode_error(1, "NEW-CODE of a newer server", 0), JournalFault),
    ],
)
def test_a_server_that_speaks_otherwise_is_named(answer: bytes, error: type[Exception]) -> None:
    def script(sock: socket.socket) -> None:
        sock.recv(1000)
        sock.sendall(answer)
        sock.recv(1)

    impostor = Impostor(*[script] * 20)  # a full house is asked again
    with pytest.raises(error):
        fastjournal.connect(impostor.url(connect_timeout=0.3, timeout=0.3))
    impostor.close()


def test_many_threads_share_a_client(daemon: LocalDaemon) -> None:
    with daemon.connect() as client:
        got: list[bytes] = []

        def consume() -> None:
            while (job := client.lease("q", wait=5)) is not None and job.payload != b"stop":
                got.append(job.payload)
                job.done()

        threads = [threading.Thread(target=consume) for _ in range(8)]
        for thread in threads:
            thread.start()
        for n in range(200):
            client.put(b"%d" % n, queue="q")
        for _ in threads:
            client.put(b"stop", queue="q", priority=255)
        for thread in threads:
            thread.join(30)
        assert sorted(map(int, got)) == list(range(200))


def test_a_forked_child_has_its_own_connections_and_ids(daemon: LocalDaemon) -> None:
    with daemon.connect() as client:
        client.put(b"parent", queue="q")
        child = os.fork()
        if child == 0:
            try:
                for _ in range(20):
                    client.put(b"child", queue="q")
            finally:
                os._exit(0)
        for _ in range(20):
            client.put(b"parent", queue="q")
        assert os.waitpid(child, 0)[1] == 0
        values = [job.value for job in client.jobs("q")]
        assert (values.count(b"parent"), values.count(b"child")) == (21, 20)


def test_a_pipeline_gives_answers_and_errors_in_order(daemon: LocalDaemon) -> None:
    with daemon.connect() as client:
        client.drain("closed")
        pipe = client.pipeline()
        for n in range(2500):
            pipe.put(b"%d" % n, queue="q")
        pipe.put(queue="closed")
        pipe.put(queue="q", delay=60, id=bytes(range(16)))
        pipe.complete(bytes(range(16)), 7)
        assert len(pipe) == 2503
        answers = pipe.execute()
        assert all(answer.outcome is Outcome.NEW for answer in answers[:2500])
        assert isinstance(answers[2500], QueuePaused)
        assert answers[2501].id == bytes(range(16))
        assert isinstance(answers[2502], LeaseLost)
        assert pipe.execute() == []
        assert client.queue("q").ready == 2500


def test_a_refused_job_of_a_batch_raises_and_the_others_are_in(daemon: LocalDaemon) -> None:
    with daemon.connect() as client:
        with pytest.raises(OutOfRange):
            client.put_many([{"queue": "q"}, NewJob(b"q", priority=999), {"queue": "q"}])
        assert client.queue("q").ready == 2
        with pytest.raises(BadRequest):  # found before anything is sent
            client.put_many([{"queue": "q"}, {"queue": "q", "payload": "text"}])
        assert client.queue("q").ready == 2
        with pytest.raises(TooLarge):
            client.put(b"x" * (1 << 21), queue="q")
        assert client.ping()


def test_a_refused_batch_leaves_nothing_in_a_directory_and_the_others_in_a_daemon(
    tmp_path: Path, daemon: LocalDaemon
) -> None:
    """The one difference between the two: a daemon takes a batch in by parts."""
    jobs = [{"queue": "q"} for _ in range(2000)]
    jobs[0] = jobs[700] = {"queue": "closed"}
    with fastjournal.connect(str(tmp_path / "embedded")) as embedded:
        embedded.drain("closed")
        with pytest.raises(QueuePaused):
            embedded.put_many(jobs)
        assert embedded.status().ready == 0
    with daemon.connect() as client:
        client.drain("closed")
        with pytest.raises(QueuePaused):
            client.put_many(jobs)
        assert client.queue("q").ready == 1998
        assert client.ping()

    async def main() -> None:
        async with await fastjournal.aconnect(daemon.url) as client:
            with pytest.raises(QueuePaused):
                await client.put_many(jobs)

    asyncio.run(main())
    with daemon.connect() as client:
        assert client.queue("q").ready == 3996


def test_persist_waits_for_stable_storage(tmp_path: Path) -> None:
    settings = {"journal": {"sync": "interval", "sync_interval": 600_000}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon, daemon.connect() as client:
        log = daemon.server.default.engine.log
        client.put(queue="q")
        assert log.synced_time < log.written_time
        client.put(queue="q", persist=True)
        assert log.synced_time == log.written_time


def test_asyncio_calls_overlap_on_one_connection(daemon: LocalDaemon) -> None:
    def waits(count: int) -> None:
        wakeups = daemon.server.default.engine.wakeups
        wait_until(lambda: daemon.call(lambda: len(wakeups)) == count, what="the lease waits")

    async def main() -> None:
        async with await fastjournal.aconnect(daemon.url) as client:
            waiting = asyncio.create_task(client.lease("q", wait=10))
            await asyncio.to_thread(waits, 1)
            assert await client.ping()
            await client.put(b"x", queue="q")
            job = await waiting
            assert job is not None
            async with job:
                pass
            cancelled = asyncio.create_task(client.lease("nix", wait=10))
            await asyncio.to_thread(waits, 1)
            cancelled.cancel()
            assert await client.ping()
        with pytest.raises(Closed):
            await client.ping()

    asyncio.run(main())
    assert daemon.call(lambda: daemon.server.accepted["fj"]) == 1


def test_an_exception_in_the_block_fails_the_job(daemon: LocalDaemon) -> None:
    async def main() -> None:
        async with await fastjournal.aconnect(daemon.url) as client:
            receipt = await client.put(queue="q", max_fails=1)
            job = await client.lease("q")
            assert job is not None
            with contextlib.suppress(ZeroDivisionError):
                async with job:
                    _ = 1 / 0
            assert b"ZeroDivisionError" in (await client.job(receipt.id)).result

    asyncio.run(main())


def test_asyncio_events(daemon: LocalDaemon) -> None:
    async def main() -> None:
        client = await fastjournal.aconnect(daemon.url)
        async with client, await client.subscribe("q") as events:
            assert await events.next(0.01) is None
            await client.put(queue="q")
            event = await events.next(5)
            assert event is not None
            assert (event.kind, event.queue) == ("due", b"q")

    asyncio.run(main())


def test_what_connect_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(SettingError):
        fastjournal.connect("fj://127.0.0.1", sync="os")
    with pytest.raises(SettingError):
        fastjournal.connect("http://127.0.0.1")
    with pytest.raises(SettingError):
        asyncio.run(fastjournal.aconnect(str(tmp_path)))
    assert repr(Target(token="fj_x")).count("fj_x") == 0


def test_a_closed_client_says_so(daemon: LocalDaemon) -> None:
    client = daemon.connect()
    client.close()
    with pytest.raises(Closed):
        client.put(queue="q")


def test_the_client_loads_nothing_of_the_server() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from fastjournal.client import Client; Client;"
        " bad = [m for m in sys.modules if m.startswith("
        "('fastjournal.journal', 'fastjournal.log', 'fastjournal.daemon', 'ssl', 'asyncio',"
        " 'msgspec', 'structlog', 'typer'))]; sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_ids_drawn_by_many_threads_are_never_the_same() -> None:
    """F49: two jobs under one id would be taken for one put that was sent again."""
    from fastjournal.client.puts import new_id

    drawn: list[list[bytes]] = [[] for _ in range(8)]
    gate = threading.Barrier(8)

    def draw(ids: list[bytes]) -> None:
        gate.wait()
        ids.extend(new_id() for _ in range(5000))

    threads = [threading.Thread(target=draw, args=(ids,)) for ids in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [job_id for ids in drawn for job_id in ids]
    assert len(set(every)) == len(every) == 40_000
    assert {(job_id[6] >> 4, job_id[8] >> 6, len(job_id)) for job_id in every} == {(4, 2, 16)}
