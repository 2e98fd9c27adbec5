"""Both clients: every wait has an end, no answer is a stranger's, nothing is lost on the way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

import fastjournal
from fastjournal.client import leases, operator_calls
from fastjournal.client._async.watch import AsyncWatching
from fastjournal.client.asyncio_transport import AsyncConnection
from fastjournal.client.calls import Call
from fastjournal.client.urls import Target, parse_url
from fastjournal.entry_model import watched
from fastjournal.errors import Closed, GarbledAnswer, ProtocolError, Unavailable
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.fields import encode_integer
from fastjournal.wire.fj.functions import Function, Type
from fastjournal.wire.fj.replies import (
    Pair,
    encode_error,
    encode_ok,
    encode_push,
    encode_reply,
)
from fjpeer import FjPeer
from relays import Impostor, Relay, say_hello


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", uvloop=request.param) as running:
        yield running


@pytest.fixture
def relay(daemon: LocalDaemon) -> Iterator[Relay]:
    made = Relay(daemon.port)
    yield made
    made.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(limited())


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[fastjournal.AsyncClient]:
    async with await fastjournal.aconnect(url) as client:
        yield client


def target_of(url: str) -> Target:
    target = parse_url(url)
    assert isinstance(target, Target)
    return target


def waiting(daemon: LocalDaemon) -> int:
    return daemon.call(lambda: len(daemon.server.default.engine.wakeups))


def answer_backwards(sock: socket.socket) -> None:
    """Answers the first two requests in the wrong order."""
    say_hello(sock)
    asked = b""
    while asked.count(b"FJ\0\1") < 2:
        asked += sock.recv(65_536)
    for place in (asked.index(b"FJ\0\1", 1), 0):
        number = int.from_bytes(asked[place + 6 : place + 8], "big")
        sock.sendall(encode_reply(number, 0, pairs=(Pair(b"", Type.BUFFER, b"%d" % place),)))
    sock.recv(1)


def test_a_pipeline_takes_no_answer_of_another_request() -> None:
    server = Impostor(answer_backwards)
    with fastjournal.connect(server.url()) as client:
        pipeline = client.pipeline()
        pipeline.entries.get("one")
        pipeline.entries.get("two")
        connection = client.caller.pool.take()
        client.caller.pool.give_back(connection)
        with pytest.raises(ProtocolError, match="not the next"):
            pipeline.execute()
        assert connection.closed
    server.close()


def test_a_stream_takes_no_answer_of_another_request() -> None:
    server = Impostor(answer_backwards)
    with fastjournal.connect(server.url()) as client:
        connection = client.caller.pool.take()
        client.caller.pool.give_back(connection)
        calls = [operator_calls.ping()] * 2
        with pytest.raises(ProtocolError, match="not the next"):
            client.caller.call_many(calls, again=False, ahead=2)
        assert connection.closed
    server.close()


def answer_nobody(sock: socket.socket) -> None:
    """Answers the first request under a number that was never sent."""
    say_hello(sock)
    sock.recv(65_536)
    sock.sendall(encode_ok(999, 0))
    sock.recv(1)


def answer_soundly(sock: socket.socket) -> None:
    say_hello(sock)
    answer_all(sock)


def test_an_answer_to_nobody_ends_the_connection_and_the_call_goes_on_to_the_next_one() -> None:
    one = threaded(answer_nobody, answer_soundly)
    with fastjournal.connect(one.url(timeout=20)) as client:
        client.ping()
    two = threaded(answer_nobody, answer_soundly)

    async def main() -> None:
        async with opened(two.url(timeout=20)) as client:
            broken = client.caller.pool.used_last()
            assert broken is not None
            await client.ping()
            assert broken.closed
            assert isinstance(broken.fault, ProtocolError)

    run(main)


def test_what_may_be_sent_only_once_is_told_of_an_answer_that_is_none() -> None:
    """Its outcome is open: `Unavailable`; and the peer is at fault: `ProtocolError`."""
    with fastjournal.connect(threaded(answer_nobody).url()) as client:
        with pytest.raises(GarbledAnswer) as told:
            client.redrive(queue="q")
        assert isinstance(told.value, Unavailable) and isinstance(told.value, ProtocolError)

    async def main() -> None:
        async with opened(threaded(answer_nobody).url()) as client:
            with pytest.raises(GarbledAnswer):
                await client.redrive(queue="q")
        async with opened(threaded(answer_nobody).url()) as client:
            pipeline = client.pipeline()
            pipeline.entries.get("one")
            with pytest.raises(ProtocolError):
                await pipeline.execute()

    run(main)


def answer_all(sock: socket.socket) -> None:
    while asked := sock.recv(65_536):
        sock.sendall(encode_ok(int.from_bytes(asked[6:8], "big"), 0))


def test_a_pipeline_of_large_values_reads_while_it_sends(daemon: LocalDaemon) -> None:
    with daemon.connect(timeout=20) as client:
        pipeline = client.pipeline()
        values = [b"%02d" % n * 500_000 for n in range(30)]
        for number, value in enumerate(values):
            pipeline.entries.set(f"k{number}", value)
            pipeline.entries.get(f"k{number}")
        assert pipeline.execute()[1::2] == values


@pytest.mark.parametrize("on_uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_a_pipeline_behind_tls_reads_while_it_sends_and_goes_on(
    tmp_path: Path, on_uvloop: bool
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    made = authority.issue_cert("localhost")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    settings = {"tls": {"certificate": str(tmp_path / "server.pem")}}
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=on_uvloop) as running:
        url = f"fjs://localhost:{running.port}?ca={tmp_path / 'ca.pem'}&timeout=20"
        with fastjournal.connect(url) as client:
            values = [b"%02d" % n * 500_000 for n in range(20)]
            pipeline = client.pipeline()
            for number, value in enumerate(values):
                pipeline.entries.set(f"k{number}", value)
                pipeline.entries.get(f"k{number}")
            connection = client.caller.pool.take()
            client.caller.pool.give_back(connection)
            assert pipeline.execute()[1::2] == values
            assert client.entries.get("k3") == values[3]
            assert connection.is_sound  # the same connection, to be used again


def test_connections_that_broke_while_idle_cost_nobody_an_error(
    daemon: LocalDaemon, relay: Relay
) -> None:
    with fastjournal.connect(f"fj://127.0.0.1:{relay.port}?timeout=5") as client:
        for ask in (lambda: client.put(b"x", queue="q"), lambda: client.redrive(queue="q")):
            idle = [client.caller.pool.take() for _ in range(15)]
            for connection in idle:
                client.caller.pool.give_back(connection)
            relay.cut()
            wait_until(lambda idle=idle: not any(each.is_sound for each in idle))  # type: ignore[misc]
            ask()


def test_a_closed_client_stays_closed_though_a_call_was_under_way(daemon: LocalDaemon) -> None:
    client = daemon.connect()
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(client.lease("q", wait=20)))
    thread.start()
    wait_until(lambda: waiting(daemon))
    client.close()
    with daemon.connect() as other:
        other.put(b"x", queue="q")
        thread.join()
    assert got
    with pytest.raises(Closed):
        client.ping()


def test_a_closed_asyncio_client_stays_closed_though_it_was_connecting() -> None:
    go_on = threading.Event()
    reached = threading.Event()

    def late(sock: socket.socket) -> None:
        reached.set()
        go_on.wait(20)
        say_hello(sock)
        answer_all(sock)

    server = Impostor(say_hello, late)

    async def main() -> None:
        client = await fastjournal.aconnect(server.url(timeout=20))
        first = await client.caller.pool.take()
        with pytest.raises(Unavailable):
            await first.pushes(20)  # it has ended
        asking = asyncio.create_task(client.ping())
        await asyncio.to_thread(reached.wait, 20)
        await client.close()
        go_on.set()
        with pytest.raises(Closed):
            await asking
        for refused in (client.ping, client.subscribe):
            with pytest.raises(Closed):
                await refused()

    run(main)
    server.close()


def test_a_listener_is_told_that_its_connection_broke(daemon: LocalDaemon, relay: Relay) -> None:
    url = f"fj://127.0.0.1:{relay.port}"
    with fastjournal.connect(url) as client, client.subscribe("q") as events:
        relay.cut()
        with pytest.raises(Unavailable):
            events.next()

    async def main() -> None:
        async with opened(url) as client:
            await client.put(queue="q")
            async with await client.subscribe("q") as events:
                told = await events.next()
                assert told is not None
                assert told.kind == "due"
                listening = asyncio.create_task(events.next())
                await asyncio.sleep(0)
                relay.cut()
                with pytest.raises(Unavailable):
                    await listening
                with pytest.raises(Unavailable):
                    await events.next(5)

    run(main)


def test_a_connection_that_fell_silent_is_dropped_by_both_clients() -> None:
    done = threading.Event()

    def silent(sock: socket.socket) -> None:
        say_hello(sock)
        done.wait(30)

    one = threaded(silent, answer_soundly)
    with fastjournal.connect(one.url(timeout=0.3)) as client:
        with pytest.raises(Unavailable):
            client.ping()
        client.ping()
    two = threaded(silent, answer_soundly)

    async def main() -> None:
        async with opened(two.url(timeout=0.3)) as client:
            with pytest.raises(Unavailable):
                await client.ping()
            await client.ping()

    run(main)
    done.set()


def test_what_a_call_may_wait_is_added_to_the_time_limit(daemon: LocalDaemon) -> None:
    url = f"{daemon.url}?timeout=1"
    with fastjournal.connect(url) as client:
        assert client.lease("empty", wait=1.2) is None
        client.ping()

    async def main() -> None:
        async with opened(url) as client:
            waiting = asyncio.create_task(client.lease("empty", wait=1.2))
            while not waiting.done():  # calls that do not wait come and go meanwhile
                await client.ping()
            assert await waiting is None

    run(main)


def test_an_answer_that_is_late_fails_its_own_call_alone() -> None:
    done = threading.Event()
    ping = operator_calls.ping()

    def answers_the_second(sock: socket.socket) -> None:
        say_hello(sock)
        sock.recv(2 * len(ping.data), socket.MSG_WAITALL)
        sock.sendall(encode_ok(3, 0))
        done.wait(30)

    server = threaded(answers_the_second)

    async def main() -> None:
        async with opened(server.url(timeout=0.5)) as client:
            connection = await client.caller.pool.take()
            asked = connection.ask(ping), connection.ask(ping)
            late, answered = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(late, Unavailable)
            assert not isinstance(answered, BaseException)
            assert not connection.closed

    run(main)
    done.set()


def threaded(*scripts: Callable[[socket.socket], None]) -> Impostor:
    """An impostor whose scripts run side by side, one for each connection."""
    left = list(scripts)

    class Many(Impostor):
        def _run(self, _: tuple[Callable[[socket.socket], None], ...]) -> None:
            while left:
                connection, _peer = self.sock.accept()
                threading.Thread(target=left.pop(0), args=(connection,), daemon=True).start()

    return Many()


def test_a_daemon_that_does_not_read_is_given_up_in_time() -> None:
    done = threading.Event()

    def reads_nothing(sock: socket.socket) -> None:
        say_hello(sock)
        done.wait(60)

    server = threaded(*[reads_nothing] * 50)

    async def main() -> None:
        client = await fastjournal.aconnect(server.url(timeout=0.5))
        puts = [client.put(bytes(1 << 20), queue="q") for _ in range(20)]
        told = await asyncio.gather(*puts, return_exceptions=True)
        assert {type(error) for error in told} == {Unavailable}
        await client.close()

    run(main)
    done.set()


def test_a_job_for_a_cancelled_lease_is_given_back(daemon: LocalDaemon) -> None:
    async def main() -> None:
        async with opened(daemon.url) as client, opened(daemon.url) as other:
            leasing = asyncio.create_task(client.lease("q", wait=30))
            await asyncio.to_thread(wait_until, lambda: waiting(daemon))
            leasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leasing
            await other.put(b"x", queue="q")
            job = await other.lease("q", wait=20)
            assert job is not None
            assert job.payload == b"x"

    run(main)


async def test_a_lease_that_came_just_before_it_was_cancelled_is_given_back(tmp_path: Path) -> None:
    sent: list[bytes] = []

    class Wire(asyncio.Transport):
        def write(self, data: Any) -> None:
            sent.append(bytes(data))

    call = leases.lease(1, "q", None, None, 30, None, True, b"", False)
    with LocalDaemon(tmp_path) as daemon, daemon.connect() as client, FjPeer(daemon.port) as peer:
        client.put(b"x", queue="q")
        peer.send(call.data)
        granted = peer.sock.recv(65_536)
    connection = AsyncConnection(target_of("fj://127.0.0.1:1"))
    connection.connection_made(Wire())
    asking = asyncio.create_task(connection.ask(call))
    await asyncio.sleep(0)
    connection.data_received(granted)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [int.from_bytes(data[4:6], "big") for data in sent] == [Function.LEASE, Function.SETTLE]


async def test_whoever_gives_up_waiting_for_a_push_loses_none() -> None:
    class Wire(asyncio.Transport):
        def write(self, data: Any) -> None:
            """Nobody is there to read it."""

    connection = AsyncConnection(target_of("fj://127.0.0.1:1"))
    connection.connection_made(Wire())

    async def opened_one() -> AsyncConnection:
        return connection

    caller: Any = SimpleNamespace(pool=SimpleNamespace(open=opened_one))
    opening = asyncio.create_task(AsyncWatching.open(caller, watched()))
    for _ in range(3):
        await asyncio.sleep(0)
    connection.data_received(encode_reply(1, 0))
    watch = await opening
    listening = asyncio.create_task(watch.next(10))
    for _ in range(3):
        await asyncio.sleep(0)
    connection.data_received(encode_push(1, 0, b"k", value_type=Type.BUFFER))
    await asyncio.sleep(0)
    listening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        assert await listening is not None  # told before it gave up
        return
    told = await watch.next(10)
    assert told is not None
    assert told.key == b"k"


def test_all_jobs_are_listed_by_both_clients(daemon: LocalDaemon) -> None:
    with daemon.connect() as client:
        client.put_many([{"payload": b"", "queue": "q"}] * 2300)
        assert len(client.jobs("q", limit=2200)) == 2200

    async def main() -> None:
        async with opened(daemon.url) as client:
            assert len(await client.jobs("q", limit=2200)) == 2200

    run(main)


def test_a_daemon_that_loads_is_waited_for_by_both_clients() -> None:
    """Also with what may be sent only once: it has not happened."""

    def loads(sock: socket.socket) -> None:
        say_hello(sock)
        parts = [encode_error(1, "LOADING not yet", 0)] * 2
        while asked := sock.recv(65_536):
            number = asked[6:8]
            value = Pair(b"", Type.INTEGER, encode_integer(3))
            data = parts.pop() if parts else encode_reply(1, 0, pairs=(value,))
            sock.sendall(data[:4] + number + data[6:])

    with fastjournal.connect(threaded(loads).url()) as client:
        assert client.redrive(queue="q") == 3

    async def main() -> None:
        async with opened(threaded(loads).url()) as client:
            assert await client.redrive(queue="q") == 3

    run(main)


def test_a_call_holds_one_number() -> None:
    """Numbers of a pipeline go round and never meet that of a single call."""
    ping, numbers = operator_calls.ping(), list[int]()

    def notes(sock: socket.socket) -> None:
        say_hello(sock)
        size, data = len(ping.data), b""
        while asked := sock.recv(65_536):
            data += asked
            count = len(data) // size
            new = [int.from_bytes(data[size * n + 6 :][:2], "big") for n in range(count)]
            data = data[size * count :]
            numbers.extend(new)
            sock.sendall(b"".join(encode_reply(number, 0) for number in new))

    with fastjournal.connect(threaded(notes).url()) as client:
        connection = client.caller.pool.take()
        calls: list[Call] = [ping] * 1000
        for _ in range(66):
            assert len(connection.receive(connection.send(calls))) == 1000
        connection.ask(ping)
        client.caller.pool.give_back(connection)
    assert numbers == [*range(2, 0x10000), *range(2, 2 + 66_000 - 0xFFFE), 1]
