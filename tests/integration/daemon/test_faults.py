"""The daemon on a disk that is slow, full or failing: no answer says more than is true (P-STOP)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from pathlib import Path

import pytest

import fastjournal
from fastjournal import Journal
from fastjournal.errors import JournalError, NoSpace, OutcomeUnknown, ReadOnly
from fastjournal.testing import Fault, ManualClock, wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.testing.files import MemoryFiles
from fastjournal.wire.fj.functions import DATA, Function
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer, put_bytes

ALWAYS = {"journal": {"sync": "always", "clean_interval": 0}}


class Disk:
    """Says when a sync begins, and lets it go on, or fail; each takes so many seconds."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.fail = False
        self.seconds = seconds
        self.clock = ManualClock()
        self.threads: list[str] = []
        self.files = MemoryFiles(on_sync=self._sync)

    def _sync(self, path: Path) -> None:
        self.clock.advance(self.seconds)
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        self.go_on.wait(20)
        if self.fail:
            raise OSError(errno.EIO, "I/O error")


@pytest.mark.parametrize("slow", [False, True])
def test_under_always_no_answer_leaves_before_its_sync(slow: bool) -> None:
    """FJ-SAFE-2: the loop syncs at the end of its turn, on a slow disk a thread, and it goes on."""
    disk = Disk(seconds=0.1 if slow else 0.0)
    daemon = LocalDaemon("/data", settings=ALWAYS, files=disk.files, clock=disk.clock)
    with daemon, FjPeer(daemon.port) as one, FjPeer(daemon.port) as two:
        loop = daemon.call(lambda: threading.current_thread().name)
        for peer, identifier in ((one, 8), (two, 9)):
            peer.send(put_bytes(identifier))
            assert peer.read() is not None
        disk.go_on.clear()
        disk.begun.clear()
        disk.threads.clear()
        one.send(put_bytes(1) + put_bytes(2))
        disk.begun.wait(10)
        two.send(put_bytes(3))
        for peer in (one, two):
            peer.sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                peer.sock.recv(1)
            peer.sock.settimeout(10)
        # Decided and logged, but not told; on a slow disk the other connection's too.
        rows = daemon.server.default.state.rows
        wait_until(lambda: len(rows) == (5 if slow else 4))
        assert disk.threads == ["fastjournal-sync" if slow else loop]
        disk.go_on.set()
        replies = [one.read(), one.read(), two.read()]
        assert [reply.identifier for reply in replies if reply] == [1, 2, 3]
        assert all(reply is not None and reply.stable for reply in replies)


def test_a_failed_sync_is_told_to_everybody_who_waits_for_it() -> None:
    disk = Disk(seconds=0.1)
    daemon = LocalDaemon("/data", settings=ALWAYS, files=disk.files, clock=disk.clock).start()
    with FjPeer(daemon.port) as one, FjPeer(daemon.port) as two:
        one.send(put_bytes(1))
        assert one.read() is not None
        disk.go_on.clear()
        disk.begun.clear()
        one.send(put_bytes(2) + put_bytes(3))
        disk.begun.wait(10)
        two.send(put_bytes(4))
        state = daemon.server.default.state
        wait_until(lambda: len(state.rows) == 4, what="all are decided and logged")
        disk.fail = True
        disk.go_on.set()
        for peer, identifier in ((one, 2), (one, 3), (two, 4)):
            reply = peer.read()
            assert reply is not None
            assert (reply.identifier, reply.error.split()[0]) == (identifier, "UNKNOWN")
        for again in (put_bytes(5), put_bytes(2)):
            one.send(again)
            reply = one.read()
            assert reply is not None
            assert reply.error.startswith("READ-ONLY")
        assert one.ask(Function.STATUS).error == ""
    daemon.stop()


def test_a_full_disk_refuses_puts_and_lets_work_be_ended(tmp_path: Path) -> None:
    files = MemoryFiles()
    settings = {"journal": {"sync": "os", "clean_interval": 0}}
    with LocalDaemon("/data", settings=settings, files=files) as daemon, daemon.connect() as client:
        client.put_many([{"payload": bytes(1000), "queue": "q"}] * 50)
        jobs = client.lease_many(50, "q")
        files.capacity = sum(map(len, files.snapshot().values()))  # nothing more fits
        fill = [client.put] * 2000
        with pytest.raises(NoSpace):
            _ = [put(bytes(10_000), queue="q") for put in fill]
        assert client.complete_many([(job.id, job.token, None) for job in jobs]) == [True] * 50
        assert client.status().disk_full
        files.capacity = None
        taken = False
        while not taken:  # the reserve is asked for again now and then
            with contextlib.suppress(NoSpace):
                client.put(b"again", queue="q")
                taken = True


def test_a_put_that_is_there_but_not_safe_is_never_acknowledged(tmp_path: Path) -> None:
    """F49 meets P-STOP: sent again after a failed sync its id is known, and still it is refused."""
    disk = Disk()
    daemon = LocalDaemon("/data", settings=ALWAYS, files=disk.files).start()
    with daemon.connect() as client:
        chosen = bytes(range(16))
        disk.fail = True
        for _ in range(2):
            with pytest.raises(ReadOnly):
                client.put(b"x", queue="q", id=chosen)
        assert client.job(chosen).value == b"x"  # reading goes on, and shows what is in memory
    daemon.stop()


@pytest.mark.parametrize("uvloop", [False, True])
@pytest.mark.parametrize("twin", ["blocking", "asyncio"])
def test_a_put_whose_sync_failed_is_an_open_outcome_and_the_next_one_is_not(
    twin: str, uvloop: bool
) -> None:
    """It may be there after a restart; what is asked later changes nothing, and both are told."""
    disk = Disk()
    daemon = LocalDaemon("/data", settings=ALWAYS, files=disk.files, uvloop=uvloop).start()

    def blocking() -> list[JournalError]:
        told = []
        with daemon.connect() as client:
            for _ in range(2):
                with pytest.raises(ReadOnly) as caught:
                    client.put(b"x", queue="q")
                told.append(caught.value)
        return told

    async def waiting() -> list[JournalError]:
        told = []
        async with await fastjournal.aconnect(daemon.url) as client:
            for _ in range(2):
                with pytest.raises(ReadOnly) as caught:
                    await client.put(b"x", queue="q")
                told.append(caught.value)
        return told

    disk.fail = True
    first, second = blocking() if twin == "blocking" else asyncio.run(waiting())
    assert type(first) is OutcomeUnknown
    assert type(second) is ReadOnly
    daemon.stop()


def test_waiting_consumers_are_told_when_the_log_stops(tmp_path: Path) -> None:
    disk = Disk()
    daemon = LocalDaemon("/data", settings=ALWAYS, files=disk.files).start()
    with daemon.connect() as client, daemon.connect() as other:
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                client.lease("q", wait=20)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while not daemon.call(lambda: len(daemon.server.default.engine.wakeups)):
            pass
        disk.fail = True
        with pytest.raises(ReadOnly):
            other.put(b"x", queue="q")
        thread.join(20)
        assert not thread.is_alive()
        assert all(isinstance(error, ReadOnly) for error in caught)
        with FjPeer(daemon.port) as peer:
            assert peer.ask(Function.GET, flags=DATA, key=b"nix").error.startswith("NOT-FOUND")
    daemon.stop()


def test_a_turn_of_which_a_part_is_in_the_log_is_not_told_as_undone() -> None:
    """F10: on a full disk each request of a turn writes for itself; the log stops at the second."""
    files = MemoryFiles()
    settings = {"journal": {"sync": "os", "clean_interval": 0}}
    daemon = LocalDaemon("/data", settings=settings, files=files).start()
    with FjPeer(daemon.port) as one, daemon.connect() as client:
        client.put_many([{"key": key, "queue": "q"} for key in ("a", "b")])
        client.lease_many(2, "q")
        engine = daemon.server.default.engine
        daemon.call(engine.reserve.give_up)
        writes = 0

        def fail_second(operation: str) -> Fault | None:
            nonlocal writes
            writes += operation.startswith("write") and operation.endswith(".log")
            return Fault(errno.EIO) if writes == 2 else None

        files.failing = fail_second
        ends = [
            encode_request(Function.DONE, 1, key=b"a"),
            encode_request(Function.DONE, 2, key=b"b"),
        ]
        one.send(b"".join(ends))
        replies = [one.read(), one.read()]
    assert [reply and reply.error.split()[0] for reply in replies] == ["UNKNOWN", "UNKNOWN"]
    files.failing = None
    daemon.stop()
    with Journal("/data/default", files=files.killed(), background=False) as journal:
        assert [job.key for job in journal.jobs()] == ["b"]
