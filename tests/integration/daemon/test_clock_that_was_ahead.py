"""A clock was an hour ahead and was set right: the journal's stays ahead, its clients do not care.

The daemon here has records of a clock that was an hour ahead of everybody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal, Outcome, Spool, Tasks, aconnect
from fastjournal.client import entry_calls
from fastjournal.clock import SECOND, SYSTEM_CLOCK
from fastjournal.errors import ClockSkew
from fastjournal.spool.daemon_destination import DaemonDestination
from fastjournal.spool.forwarder import ForwardedSpool, Forwarder
from fastjournal.tasks.scheduler import Scheduler
from fastjournal.testing import ManualClock, MemoryFiles, wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.functions import LENGTH, TIMEOUT, Function, Type
from fastjournal.wire.fj.hello import Hello, decode_hello, encode_hello
from fjpeer import FjPeer

HOUR = 3600


class AheadClock:
    """The machine's clock, an hour ahead."""

    def now(self) -> int:
        return SYSTEM_CLOCK.now() + HOUR * SECOND

    def monotonic(self) -> int:
        return SYSTEM_CLOCK.monotonic()


class Twin:
    """The asyncio client, asked from here."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(aconnect(url))
        self.entries = self._asked(self._client.entries)

    def _asked(self, thing: Any) -> Any:
        loop = self._loop

        class Asked:
            def __getattr__(self, name: str) -> Any:
                method = getattr(thing, name)
                return lambda *given, **named: loop.run_until_complete(method(*given, **named))

        return Asked()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asked(self._client), name)

    def locks(self, key: str) -> bool:
        async def lock() -> bool:
            async with self._client.entries.lock(key, 10):
                return True

        return self._loop.run_until_complete(lock())

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", clock=AheadClock()) as ahead, ahead.connect() as client:
        client.put(b"x", queue="of an hour ahead")
    with LocalDaemon(tmp_path / "d", uvloop=request.param) as running:
        yield running


@pytest.fixture(params=["client", "asyncio client"])
def client(request: pytest.FixtureRequest, daemon: LocalDaemon) -> Iterator[Any]:
    made: Any = daemon.connect() if request.param == "client" else Twin(daemon.url)
    yield made
    made.close()


def seconds() -> float:
    return SYSTEM_CLOCK.now() / SECOND


def locks(client: Any) -> bool:
    if isinstance(client, Twin):
        return client.locks("l")
    with client.entries.lock("l", 10) as held:
        return bool(held.fence)


def test_numbers_hold(client: Any) -> None:
    assert client.entries.add("n", 1) == 1


def test_a_life_holds(client: Any) -> None:
    assert client.entries.set("k", b"v", ttl=60) is True
    assert client.entries["k"] == b"v" if not isinstance(client, Twin) else True


def test_a_lock_and_a_lease_hold(client: Any) -> None:
    assert locks(client)
    client.entries.set("k", b"v")
    assert client.entries.entry("k", lease=10, worker="w").worker == b"w"


@pytest.mark.parametrize("uvloop", [True, False])
@pytest.mark.parametrize("twin", [False, True], ids=["client", "asyncio client"])
def test_lengths_hold_while_the_clocks_part(tmp_path: Path, uvloop: bool, twin: bool) -> None:
    """So it is, too, when an answer is long in coming and the request is sent again."""
    clock = ManualClock()
    with LocalDaemon(tmp_path / "d", uvloop=uvloop, clock=clock) as daemon:
        client: Any = Twin(daemon.url) if twin else daemon.connect()
        for _ in range(3):
            clock.advance(60)
            assert client.entries.set("k", b"v", ttl=10) is True
            assert client.entries.entry("k").expires == clock.now() + 10 * SECOND
            assert locks(client)
        client.close()


def test_a_write_of_now_is_the_newest(client: Any) -> None:
    client.entries.set("k", b"old")
    assert client.entries.set("k", b"new", timestamp=seconds()) is True
    put = client.put(b"old", key="k", queue="q")
    assert client.put(b"new", key="k", queue="q", timestamp=seconds()).outcome is Outcome.MERGED
    assert client.put_many([{"payload": b"x", "key": "k", "queue": "q", "timestamp": seconds()}])
    assert client.job(put.id).value == b"x"
    assert client.delete(key="k", queue="q", timestamp=seconds()) is True
    assert client.entries.delete("k", timestamp=seconds()) is True


def test_what_is_ahead_of_the_client_itself_is_refused(client: Any) -> None:
    with pytest.raises(ClockSkew):
        client.put(b"x", key="k", queue="q", timestamp=seconds() + 30)
    with pytest.raises(ClockSkew):
        client.entries.set("k", b"v", timestamp=seconds() + 30)


def test_an_addition_is_made_once_over_connections(daemon: LocalDaemon) -> None:
    at = seconds()
    for _ in range(3):
        with daemon.connect() as client:
            assert client.entries.add("n", 5, sender="me", timestamp=at) == 5


def test_a_newer_spooled_job_wins_over_an_older_direct_one(
    daemon: LocalDaemon, tmp_path: Path
) -> None:
    with daemon.connect() as client:
        put = client.put(b"older", key="k", queue="q")
        with Spool(tmp_path / "s") as spool:
            spool.put(b"newer", key="k", queue="q")
        forwarder, target = Forwarder(ForwardedSpool(tmp_path / "s")), DaemonDestination(daemon.url)
        forwarder.spool.lock()
        while forwarder.send(target) or forwarder.in_flight:
            forwarder.receive(target, 10)
        assert (forwarder.figures.merged, forwarder.figures.refused) == (1, 0)
        target.close()
        forwarder.close()
        assert client.job(put.id).value == b"newer"


@pytest.mark.parametrize("uvloop", [True, False])
def test_a_length_counts_from_when_the_request_is_served(tmp_path: Path, uvloop: bool) -> None:
    """However long it was on its way: sent again it is as long as before."""
    clock = ManualClock()
    call = entry_calls.set_entry(None, "k", b"v", ttl=10)
    lock = entry_calls.lock(None, b"k", b"me", 10 * SECOND)
    settings = LocalDaemon(tmp_path / "d", uvloop=uvloop, clock=clock)
    with settings as daemon, daemon.connect() as client:
        for _ in range(3):
            clock.advance(60)
            assert client.caller.call(call) is True
            fence, until = client.caller.call(lock)
            assert fence
            assert until == clock.now() + 10 * SECOND


def test_a_client_that_does_not_tell_its_time_hears_the_journals(daemon: LocalDaemon) -> None:
    """As those of 0.1.0 do: they send instants by the clock they heard."""
    with FjPeer(daemon.port) as peer:
        heard = peer.hello().timestamp
        assert heard > SYSTEM_CLOCK.now() + (HOUR - 60) * SECOND
        value = {"value_type": Type.BUFFER, "value": b"v"}
        assert not peer.ask(Function.LOCK, key=b"k", timeout=heard + 10 * SECOND).error
        assert not peer.ask(Function.SET, key=b"k", timeout=heard + 60 * SECOND, **value).error
        assert peer.ask(Function.SET, key=b"k", timeout=10 * SECOND, **value).error


@pytest.mark.parametrize("function", [Function.SET, Function.GET, Function.LOCK, Function.NEXT])
def test_bit_14_says_that_a_timeout_is_a_length(daemon: LocalDaemon, function: Function) -> None:
    value: dict[str, Any] = {}
    if function is Function.SET:
        value = {"value_type": Type.BUFFER, "value": b"v"}
    with FjPeer(daemon.port) as peer:
        peer.ask(Function.SET, key=b"k", value_type=Type.BUFFER, value=b"v")
        ok = peer.ask(function, key=b"k", flags=LENGTH | 32 * bool(value), timeout=SECOND, **value)
        assert not ok.error
        assert peer.ask(function, key=b"k", flags=LENGTH, **value).error.startswith("BAD-FLAGS")
        other = peer.ask(Function.UNLOCK, key=b"k", flags=LENGTH | TIMEOUT, timeout=SECOND)
        assert other.error.startswith("BAD-FLAGS")


def test_hello_may_tell_the_clients_time() -> None:
    told = Hello("token", "journal", 1, 1_700_000_000_123_456_000)
    assert decode_hello(encode_hello(told)) == told
    plain = Hello("token", "journal", 1)
    assert encode_hello(told).startswith(encode_hello(plain))
    assert decode_hello(encode_hello(plain)) == plain


def test_an_embedded_journal_takes_a_write_of_now_as_now() -> None:
    clock, files = ManualClock(), MemoryFiles()
    right = clock.now() / SECOND
    clock.advance(HOUR)
    with Journal("/j", clock=clock, files=files) as journal:
        journal.put(b"old", key="k", queue="q")
        journal.entries["k"] = b"old"
    clock.step(-HOUR)
    with Journal("/j", clock=clock, files=files) as journal:
        again = journal.put(b"new", key="k", queue="q", timestamp=right)
        assert again.outcome is Outcome.MERGED
        assert journal.entries.set("k", b"new", timestamp=right) is True
        assert journal.entries.add("n", 1, sender="me", timestamp=right) == 1
        assert journal.entries.add("n", 1, sender="me", timestamp=right) == 1
        assert journal.entries.set("t", b"v", ttl=60) is True
        assert journal.entries.lock("k", 10).free() is True
        assert journal.delete(key="k", queue="q", timestamp=right + 1) is True
        with pytest.raises(ClockSkew):
            journal.put(b"x", key="k", queue="q", timestamp=right + 30)


def test_schedules_are_fired_by_workers_whose_clock_is_an_hour_behind(daemon: LocalDaemon) -> None:
    app = Tasks(daemon.url)

    @app.every(1, missed="all")
    def tick() -> None: ...

    scheduler = Scheduler(app)
    scheduler.declare()
    scheduler.declare()
    began = app.now()
    wait_until(lambda: scheduler.fire_due() > began + 2 * SECOND, what="two ticks")
    assert scheduler.fired >= 1
    app.close()
