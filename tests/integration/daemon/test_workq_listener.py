"""The Workq protocol over real sockets: exchanges of the Workq server, and its defects mended.

Where an exchange was captured from the Workq server, the bytes here are those it sent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.journal.journal import Journal
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon

ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c4"


class Peer:
    """A Workq client that looks at bytes."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 10)
        self.file = self.sock.makefile("rb")

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, data: bytes) -> bytes:
        """Send, and read one answer: its line, and what belongs to it."""
        self.send(data)
        return self.read()

    def read(self) -> bytes:
        line = self.file.readline()
        if not line.startswith(b"+OK "):
            return line
        out = [line]
        for _ in range(int(line[4:])):
            head = self.file.readline()
            out.append(head)
            words = head.split()
            if words[0] == b"server":
                out += [self.file.readline() for _ in range(3)]
            elif len(words) == 2:
                out += self._keys(int(words[1]))
            else:
                out.append(self.file.read(int(words[-1]) + 2))
        return b"".join(out)

    def _keys(self, count: int) -> list[bytes]:
        lines = []
        size = 0
        for _ in range(count):
            line = self.file.readline()
            if line.startswith(b"payload-size"):
                size = int(line.split()[1])
            if line.startswith(b"payload "):
                while len(line) < 8 + size + 2:
                    line += self.file.readline()
            lines.append(line)
        return lines

    def close(self) -> None:
        self.file.close()
        self.sock.close()


def new_id() -> bytes:
    return str(uuid.uuid4()).encode()


def add(job_id: bytes, name: bytes = b"q", payload: bytes = b"ping", more: bytes = b"") -> bytes:
    size = len(payload)
    return b"add %b %b 1000 60000 %d%b\r\n%b\r\n" % (job_id, name, size, more, payload)


@pytest.fixture(params=["asyncio", "uvloop"])
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "data", uvloop=request.param == "uvloop") as running:
        yield running


@pytest.fixture
def peer(daemon: LocalDaemon) -> Iterator[Peer]:
    connected = Peer(daemon.workq_port)
    yield connected
    connected.close()


@pytest.fixture
def other(daemon: LocalDaemon) -> Iterator[Peer]:
    connected = Peer(daemon.workq_port)
    yield connected
    connected.close()


def test_add_lease_complete_result(peer: Peer) -> None:
    job = new_id()
    assert peer.ask(add(job)) == b"+OK\r\n"
    assert peer.ask(b"lease q 1000\r\n") == b"+OK 1\r\n%b q 1000 4\r\nping\r\n" % job
    assert peer.ask(b"complete %b 4\r\npong\r\n" % job) == b"+OK\r\n"
    expected = b"+OK 1\r\n%b 1 4\r\npong\r\n" % job
    assert peer.ask(b"result %b 1000\r\n" % job) == expected
    assert peer.ask(b"result %b 0\r\n" % job) == expected  # reading does not remove it


def test_fail_gives_a_result_that_says_so(peer: Peer) -> None:
    job = new_id()
    peer.ask(add(job))
    assert peer.ask(b"fail %b 4\r\noops\r\n" % job) == b"+OK\r\n"
    assert peer.ask(b"result %b 1000\r\n" % job) == b"+OK 1\r\n%b 0 4\r\noops\r\n" % job


def test_the_first_result_wins(peer: Peer) -> None:
    job = new_id()
    peer.ask(add(job))
    assert peer.ask(b"complete %b 1\r\na\r\n" % job) == b"+OK\r\n"
    assert peer.ask(b"complete %b 1\r\nb\r\n" % job) == b"-CLIENT-ERROR Duplicate result\r\n"
    assert peer.ask(b"fail %b 1\r\nb\r\n" % job) == b"-CLIENT-ERROR Duplicate result\r\n"
    assert peer.ask(b"result %b 0\r\n" % job).endswith(b"\r\na\r\n")


def test_unknown_ids_and_names_are_not_found(peer: Peer) -> None:
    job = new_id()
    for command in (
        b"complete %b 1\r\na\r\n", b"fail %b 1\r\na\r\n", b"delete %b\r\n", b"result %b 0\r\n",
        b"inspect job %b\r\n",
    ):  # fmt: skip
        assert peer.ask(command % job) == b"-NOT-FOUND\r\n", command
    for command in (
        b"inspect queue nix\r\n",
        b"inspect jobs nix 0 1\r\n",
        b"inspect scheduled-jobs nix 0 1\r\n",
    ):
        assert peer.ask(command) == b"-NOT-FOUND\r\n", command


def test_a_duplicate_job_is_refused_and_an_id_is_free_after_delete(peer: Peer) -> None:
    job = new_id()
    assert peer.ask(add(job)) == b"+OK\r\n"
    assert peer.ask(add(job)) == b"-CLIENT-ERROR Duplicate job\r\n"
    assert peer.ask(b"delete %b\r\n" % job) == b"+OK\r\n"
    assert peer.ask(add(job)) == b"+OK\r\n"


def test_delete_of_an_id_that_no_job_can_have_is_ok(peer: Peer) -> None:
    assert peer.ask(b"delete 6ba7b810-9dad-11d1-80b4-00c04fd430c4\r\n") == b"+OK\r\n"


def test_a_scheduled_job_waits_for_its_time(peer: Peer) -> None:
    job = new_id()
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600)).encode()
    command = b"schedule %b q 1000 60000 %b 4\r\nping\r\n" % (job, soon)
    assert peer.ask(command) == b"+OK\r\n"
    assert peer.ask(b"lease q 1\r\n") == b"-TIMEOUT\r\n"
    assert peer.ask(b"inspect queue q\r\n") == (
        b"+OK 1\r\nq 2\r\nready-len 0\r\nscheduled-len 1\r\n"
    )
    shown = peer.ask(b"inspect scheduled-jobs q 0 10\r\n")
    assert shown.startswith(b"+OK 1\r\n%b 13\r\nname q\r\n" % job)
    assert shown.endswith(b"time %b\r\n" % soon)


def test_a_job_scheduled_into_the_past_can_be_had_and_one_past_its_life_cannot(peer: Peer) -> None:
    job = new_id()
    past = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 10)).encode()
    assert peer.ask(b"schedule %b q 1000 60000 %b 1\r\na\r\n" % (job, past)) == b"+OK\r\n"
    assert peer.ask(b"lease q 1000\r\n").startswith(b"+OK 1\r\n" + job)
    late = b"schedule %b q 1000 1000 %b 1\r\na\r\n" % (new_id(), past)
    assert peer.ask(late) == b"-CLIENT-ERROR Invalid Time\r\n"


def test_higher_priorities_come_first_and_equals_in_order_of_arrival(peer: Peer) -> None:
    ids = [new_id() for _ in range(5)]
    for job, priority in zip(ids, (0, 5, -3, 5, 0), strict=True):
        peer.ask(add(job, more=b" -priority=%d" % priority))
    order = [peer.ask(b"lease q 0\r\n").split()[2] for _ in ids]
    assert order == [ids[1], ids[3], ids[0], ids[4], ids[2]]


def test_lease_without_waiting_gets_what_is_ready(peer: Peer) -> None:
    for _ in range(20):
        job = new_id()
        peer.ask(add(job))
        assert peer.ask(b"lease q 0\r\n").startswith(b"+OK 1\r\n" + job)
    assert peer.ask(b"lease q 0\r\n") == b"-TIMEOUT\r\n"


def test_lease_on_several_names_is_fair(peer: Peer) -> None:
    for name in (b"a", b"b", b"c"):
        for _ in range(20):
            peer.ask(add(new_id(), name))
    names = [peer.ask(b"lease a b c 0\r\n").split()[3] for _ in range(60)]
    assert peer.ask(b"lease a b c 1\r\n") == b"-TIMEOUT\r\n"
    for start in range(0, 60, 3):
        assert sorted(names[start : start + 3]) == [b"a", b"b", b"c"]


def test_a_waiting_lease_is_woken_by_an_add(peer: Peer, other: Peer) -> None:
    peer.send(b"lease a b 10000\r\n")
    job = new_id()
    assert other.ask(add(job, b"b")) == b"+OK\r\n"
    assert peer.read() == b"+OK 1\r\n%b b 1000 4\r\nping\r\n" % job


def test_no_wake_up_is_lost_with_many_waiters_and_bursts(daemon: LocalDaemon) -> None:
    waiters = [Peer(daemon.workq_port) for _ in range(8)]
    source = Peer(daemon.workq_port)
    for _ in range(20):
        for waiter in waiters:
            waiter.send(b"lease a b 10000\r\n")
        burst = b"".join(add(new_id(), b"ab"[n % 2 : n % 2 + 1]) for n in range(8))
        source.send(burst)
        assert [source.read() for _ in range(8)] == [b"+OK\r\n"] * 8
        got = {waiter.read().split()[2] for waiter in waiters}
        assert len(got) == 8
    for peer in (*waiters, source):
        peer.close()


def test_every_waiter_of_a_result_is_woken(daemon: LocalDaemon, peer: Peer) -> None:
    job = new_id()
    peer.ask(add(job))
    waiters = [Peer(daemon.workq_port) for _ in range(4)]
    for waiter in waiters:
        waiter.send(b"result %b 10000\r\n" % job)
    peer.ask(b"complete %b 4\r\ndone\r\n" % job)
    for waiter in waiters:
        assert waiter.read() == b"+OK 1\r\n%b 1 4\r\ndone\r\n" % job
        waiter.close()


def test_result_of_an_unfinished_job_times_out(peer: Peer) -> None:
    job = new_id()
    peer.ask(add(job))
    assert peer.ask(b"result %b 1\r\n" % job) == b"-TIMEOUT\r\n"


def test_run_over_two_connections(peer: Peer, other: Peer) -> None:
    job = new_id()
    peer.send(b"run %b q 1000 10000 4\r\nping\r\n" % job)
    assert other.ask(b"lease q 10000\r\n") == b"+OK 1\r\n%b q 1000 4\r\nping\r\n" % job
    assert other.ask(b"complete %b 4\r\npong\r\n" % job) == b"+OK\r\n"
    assert peer.read() == b"+OK 1\r\n%b 1 4\r\npong\r\n" % job
    assert peer.ask(b"inspect job %b\r\n" % job) == b"-NOT-FOUND\r\n"


def test_run_without_a_worker_times_out_and_is_gone(peer: Peer, other: Peer) -> None:
    job = new_id()
    assert peer.ask(b"run %b q 1000 1 4\r\nping\r\n" % job) == b"-TIMEOUT\r\n"
    assert other.ask(b"lease q 0\r\n") == b"-TIMEOUT\r\n"
    assert peer.ask(add(job)) == b"+OK\r\n"  # the id is free again


def test_run_waits_for_the_attempt_that_runs_when_its_time_is_over(peer: Peer, other: Peer) -> None:
    job = new_id()
    peer.send(b"run %b q 5000 50 4\r\nping\r\n" % job)
    other.ask(b"lease q 10000\r\n")
    peer.sock.settimeout(0.15)
    with pytest.raises(TimeoutError):  # its own 50 ms have passed, the attempt goes on
        peer.sock.recv(1, socket.MSG_PEEK)
    peer.sock.settimeout(10)
    other.ask(b"fail %b 1\r\nx\r\n" % job)
    assert peer.read() == b"+OK 1\r\n%b 0 1\r\nx\r\n" % job


def test_result_beside_run_is_answered_too(daemon: LocalDaemon, peer: Peer, other: Peer) -> None:
    job = new_id()
    peer.send(b"run %b q 1000 10000 4\r\nping\r\n" % job)
    assert other.ask(b"lease q 10000\r\n").startswith(b"+OK 1")
    third = Peer(daemon.workq_port)
    third.send(b"result %b 10000\r\n" % job)
    wakeups = daemon.server.default.engine.wakeups
    wait_until(lambda: daemon.call(lambda: len(wakeups)) == 2, what="both wait")
    other.ask(b"complete %b 1\r\ny\r\n" % job)
    assert peer.read() == b"+OK 1\r\n%b 1 1\r\ny\r\n" % job
    assert third.read() == b"+OK 1\r\n%b 1 1\r\ny\r\n" % job
    third.close()


def test_delete_of_a_running_run_ends_it_and_harms_nobody(peer: Peer, other: Peer) -> None:
    job = new_id()
    peer.send(b"run %b q 1000 300 4\r\nping\r\n" % job)
    assert other.ask(b"lease q 10000\r\n").startswith(b"+OK 1")
    assert other.ask(b"delete %b\r\n" % job) == b"+OK\r\n"
    assert peer.read() == b"-NOT-FOUND\r\n"
    assert peer.ask(b"inspect server\r\n").startswith(b"+OK 1\r\nserver 2\r\n")


def test_run_takes_an_id_whose_job_was_deleted(
    daemon: LocalDaemon, peer: Peer, other: Peer
) -> None:
    """A tombstone is no job."""
    job = uuid.uuid4()
    with daemon.connect() as client:
        assert client.delete(job.bytes) is False
        name = str(job).encode()
        peer.send(b"run %b q 1000 10000 4\r\nping\r\n" % name)
        assert other.ask(b"lease q 10000\r\n") == b"+OK 1\r\n%b q 1000 4\r\nping\r\n" % name
        assert other.ask(b"complete %b 4\r\npong\r\n" % name) == b"+OK\r\n"
        assert peer.read() == b"+OK 1\r\n%b 1 4\r\npong\r\n" % name
        assert client.jobs() == []


def test_run_leaves_no_job_behind_when_its_client_leaves(daemon: LocalDaemon, peer: Peer) -> None:
    job = new_id()
    gone = Peer(daemon.workq_port)
    gone.send(b"run %b q 1000 60000 4\r\nping\r\n" % job)
    while peer.ask(b"inspect job %b\r\n" % job) == b"-NOT-FOUND\r\n":
        pass
    gone.close()
    while peer.ask(b"inspect job %b\r\n" % job) != b"-NOT-FOUND\r\n":
        pass
    assert peer.ask(b"lease q 0\r\n") == b"-TIMEOUT\r\n"


def test_run_is_not_in_the_log_but_its_end_is(tmp_path: Path) -> None:
    """WQ-CMD-11."""
    from fastjournal.journal.language.codec import decode
    from fastjournal.log.segment import WORKQ
    from fastjournal.log.stream import Stream

    with LocalDaemon(tmp_path / "data") as daemon:
        peer = Peer(daemon.workq_port)
        job = new_id()
        peer.ask(b"run %b q 1000 1 4\r\nping\r\n" % job)
        peer.close()
    cursor = Stream(tmp_path / "data" / "default", WORKQ).open_cursor()
    kinds = [type(decode(record.payload)).__name__ for record in cursor]
    cursor.close()
    assert kinds == ["Expire"]
    with Journal(tmp_path / "data" / "default") as journal:
        assert journal.status().rows == 0


def test_max_attempts_fails_the_job_after_its_last_time_out(peer: Peer) -> None:
    job = new_id()
    command = b"add %b q 1 60000 1 -max-attempts=1\r\na\r\n" % job
    assert peer.ask(command) == b"+OK\r\n"
    assert peer.ask(b"lease q 0\r\n").startswith(b"+OK 1")
    assert peer.ask(b"result %b 10000\r\n" % job) == b"+OK 1\r\n%b 0 0\r\n\r\n" % job


def test_a_timed_out_job_goes_back_to_its_old_place(peer: Peer) -> None:
    first, second = new_id(), new_id()
    peer.ask(b"add %b q 1 60000 1\r\na\r\n" % first)
    peer.ask(add(second))
    assert peer.ask(b"lease q 0\r\n").split()[2] == first
    while b"state 3" not in peer.ask(b"inspect job %b\r\n" % first):
        pass
    assert peer.ask(b"lease q 0\r\n").split()[2] == first


def test_max_fails_retries(peer: Peer) -> None:
    job = new_id()
    peer.ask(add(job, more=b" -max-fails=2"))
    assert peer.ask(b"lease q 0\r\n").startswith(b"+OK 1")
    assert peer.ask(b"fail %b 1\r\nx\r\n" % job) == b"+OK\r\n"
    assert b"fails 1\r\n" in peer.ask(b"inspect job %b\r\n" % job)
    assert peer.ask(b"lease q 1000\r\n").startswith(b"+OK 1\r\n" + job)
    assert peer.ask(b"fail %b 1\r\ny\r\n" % job) == b"+OK\r\n"
    assert peer.ask(b"result %b 0\r\n" % job) == b"+OK 1\r\n%b 0 1\r\ny\r\n" % job


def test_a_job_can_be_leased_more_than_256_times(peer: Peer) -> None:
    job = new_id()
    peer.ask(b"add %b q 1 600000 1\r\na\r\n" % job)
    for _ in range(260):
        assert peer.ask(b"lease q 10000\r\n").startswith(b"+OK 1\r\n" + job)
    assert b"attempts 260\r\n" in peer.ask(b"inspect job %b\r\n" % job)


def test_complete_needs_no_lease(peer: Peer) -> None:
    job = new_id()
    peer.ask(add(job))
    assert peer.ask(b"complete %b 0\r\n\r\n" % job) == b"+OK\r\n"
    assert peer.ask(b"lease q 0\r\n") == b"-TIMEOUT\r\n"
    assert b"state 1\r\n" in peer.ask(b"inspect job %b\r\n" % job)


def test_inspect_job_shows_twelve_keys(peer: Peer) -> None:
    job = new_id()
    peer.ask(add(job, payload=b"a\r\nb", more=b" -priority=7 -max-attempts=3 -max-fails=2"))
    shown = peer.ask(b"inspect job %b\r\n" % job)
    before, created = shown.rsplit(b"created ", 1)
    assert (
        before
        == (
            b"+OK 1\r\n%b 12\r\nname q\r\nttr 1000\r\nttl 60000\r\npayload-size 4\r\n"
            b"payload a\r\nb\r\n"
            b"max-attempts 3\r\nattempts 0\r\nmax-fails 2\r\nfails 0\r\npriority 7\r\nstate 0\r\n"
        )
        % job
    )
    assert len(created) == len(b"2026-11-15T02:04:48Z\r\n")
    peer.ask(b"lease q 0\r\n")
    assert b"attempts 1\r\n" in (leased := peer.ask(b"inspect job %b\r\n" % job))
    assert b"state 4\r\n" in leased


def test_inspect_jobs_pages_in_the_order_of_the_queue(peer: Peer) -> None:
    ids = [new_id() for _ in range(5)]
    for n, job in enumerate(ids):
        peer.ask(add(job, more=b" -priority=%d" % n))
    shown = peer.ask(b"inspect jobs q 1 2\r\n")
    assert shown.startswith(b"+OK 2\r\n%b 12\r\n" % ids[3])
    assert b"\r\n%b 12\r\n" % ids[2] in shown
    assert peer.ask(b"inspect jobs q 5 2\r\n") == b"+OK 0\r\n"


def test_inspect_queues_shows_every_name_that_was_mentioned(peer: Peer) -> None:
    peer.ask(add(new_id(), b"b"))
    peer.ask(b"lease a 0\r\n")
    assert peer.ask(b"inspect queues 0 10\r\n") == (
        b"+OK 2\r\na 2\r\nready-len 0\r\nscheduled-len 0\r\n"
        b"b 2\r\nready-len 1\r\nscheduled-len 0\r\n"
    )
    assert peer.ask(b"inspect queues 1 1\r\n").startswith(b"+OK 1\r\nb 2\r\n")
    assert peer.ask(b"inspect queues 2 1\r\n") == b"+OK 0\r\n"


def test_inspect_server_counts_clients(daemon: LocalDaemon, peer: Peer) -> None:
    shown = peer.ask(b"inspect server\r\n")
    assert shown.startswith(b"+OK 1\r\nserver 2\r\nactive-clients 1\r\nevicted-jobs 0\r\nstarted 2")
    second = Peer(daemon.workq_port)
    assert b"active-clients 2\r\n" in second.ask(b"inspect server\r\n")
    second.close()
    while b"active-clients 1\r\n" not in peer.ask(b"inspect server\r\n"):
        pass


def test_an_expired_job_is_gone_and_counts_as_evicted(peer: Peer) -> None:
    job = new_id()
    assert peer.ask(b"add %b q 1000 1 1\r\na\r\n" % job) == b"+OK\r\n"
    while peer.ask(b"inspect job %b\r\n" % job) != b"-NOT-FOUND\r\n":
        pass
    while b"evicted-jobs 1\r\n" not in peer.ask(b"inspect server\r\n"):
        pass
    assert peer.ask(b"lease q 0\r\n") == b"-TIMEOUT\r\n"


@pytest.mark.parametrize("size", [241, 256, 4096, 65_536])
def test_pipelined_commands_of_any_size_stay_in_step(peer: Peer, size: int) -> None:
    ids = [new_id() for _ in range(40)]
    payload = b"x" * size
    threading.Thread(
        target=peer.send, args=(b"".join(add(job, payload=payload) for job in ids),)
    ).start()
    assert [peer.read() for _ in ids] == [b"+OK\r\n"] * 40


def test_cr_and_lf_in_different_reads_are_one_end_of_line(daemon: LocalDaemon, peer: Peer) -> None:
    job = new_id()
    peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.send(add(job)[:-1])
    reads = daemon.server.connections
    wait_until(lambda: daemon.call(lambda: any(c.partial_since for c in reads)))
    peer.send(b"\n")
    assert peer.read() == b"+OK\r\n"


def test_what_follows_a_waiting_request_is_carried_out_after_it(peer: Peer, other: Peer) -> None:
    job = new_id()
    peer.send(b"lease q 10000\r\ninspect server\r\nlease nix 0\r\n")
    other.ask(add(job))
    assert peer.read().startswith(b"+OK 1\r\n" + job)
    assert peer.read().startswith(b"+OK 1\r\nserver 2\r\n")
    assert peer.read() == b"-TIMEOUT\r\n"


def test_a_client_that_left_does_not_get_a_job(daemon: LocalDaemon, peer: Peer) -> None:
    for _ in range(5):
        gone = Peer(daemon.workq_port)
        gone.send(b"lease q 60000\r\n")
        while not daemon.call(lambda: len(daemon.server.default.engine.wakeups)):
            pass
        gone.close()
        while daemon.call(lambda: len(daemon.server.default.engine.wakeups)):
            pass
    job = new_id()
    peer.ask(add(job))
    assert peer.ask(b"lease q 1000\r\n").startswith(b"+OK 1\r\n" + job)


@pytest.mark.parametrize(
    ("request_bytes", "replies"),
    [
        (b"lease q\r\n", [b"-CLIENT-ERROR Invalid command args\r\n"]),
        (b"lease q x\r\n", [b"-CLIENT-ERROR Invalid wait timeout\r\n"]),
        (b"lease q 86400001\r\n", [b"-CLIENT-ERROR Invalid wait timeout\r\n"]),
        (b"lease q! 1\r\n", [b"-CLIENT-ERROR Invalid Name\r\n"]),
        (b"result x 1\r\n", [b"-CLIENT-ERROR Invalid ID\r\n"]),
        (b"inspect jobs q 0 101\r\n", [b"-CLIENT-ERROR Invalid limit\r\n"]),
        (b"inspect jobs q -1 1\r\n", [b"-CLIENT-ERROR Invalid cursor offset\r\n"]),
        (b"inspect foo\r\n", [b"-CLIENT-ERROR Unknown command\r\n"]),
        (b"inspect job urn:uuid:6ba7b810-9dad-41d1-80b4\r\n", [b"-CLIENT-ERROR Invalid ID\r\n"]),
        (f"add {ID} q 0 1 1\r\na\r\n".encode(), [b"-CLIENT-ERROR Invalid TTR\r\n"]),
        (f"add {ID} q 1 0 1\r\na\r\n".encode(), [b"-CLIENT-ERROR Invalid TTL\r\n"]),
        (f"add {ID} q 1 2592000001 1\r\na\r\n".encode(), [b"-CLIENT-ERROR Invalid TTL\r\n"]),
        (
            f"add {ID} q 1 1 1 -max-fails=256\r\na\r\n".encode(),
            [b"-CLIENT-ERROR Invalid Max Fails\r\n"],
        ),
        (
            f"add {ID} q 1 1 1 -priority=x\r\na\r\n".encode(),
            [b"-CLIENT-ERROR Invalid Priority\r\n"],
        ),
        # Found before the payload, which is passed over.
        (
            f"add {ID} q 1 1 16 -a=1 -a=2\r\ninspect server\r\n\r\n".encode(),
            [b"-CLIENT-ERROR Invalid command flags\r\n"],
        ),
    ],
)  # fmt: skip
def test_malformed_requests_get_the_words_of_workq(
    peer: Peer, request_bytes: bytes, replies: list[bytes]
) -> None:
    peer.send(request_bytes)
    assert [peer.read() for _ in replies] == replies
    assert peer.ask(b"inspect server\r\n").startswith(b"+OK 1\r\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"add ID q 1 1 *", b"-CLIENT-ERROR Invalid payload size\r\n"),
        (b"add ID q 1 1 1048577", b"-CLIENT-ERROR Invalid payload size\r\n"),
        (b"add ID q 1 1 5", b"-CLIENT-ERROR Invalid payload size\r\n"),  # and it is longer
        (b"add ID q 1 1", b"-CLIENT-ERROR Invalid command args\r\n"),
        (b"schedule ID q 1 1 soon", b"-CLIENT-ERROR Invalid command args\r\n"),
        (b"complete ID", b"-CLIENT-ERROR Invalid command args\r\n"),
        (b"fail ID x", b"-CLIENT-ERROR Invalid result size\r\n"),
        (b"set key 0 0 20", b"-CLIENT-ERROR Unknown command\r\n"),
        (b"", b"-CLIENT-ERROR Unknown command\r\n"),
        (b"ADD", b"-CLIENT-ERROR Unknown command\r\n"),
        (b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 46\r\n", b""),
    ],
)
def test_nothing_behind_a_request_that_is_out_of_step_is_carried_out(
    daemon: LocalDaemon, peer: Peer, other: Peer, line: bytes, said: bytes
) -> None:
    victim = new_id()
    assert other.ask(add(victim)) == b"+OK\r\n"
    peer.send(line.replace(b"ID", ID.encode()) + b"\r\ndelete %b\r\n" % victim)
    with contextlib.suppress(ConnectionResetError):
        assert peer.file.read() == said
    assert other.ask(b"inspect job %b\r\n" % victim).startswith(b"+OK 1\r\n")


def test_what_stands_behind_a_waiting_lease_is_bounded_in_bytes(
    daemon: LocalDaemon, peer: Peer, other: Peer
) -> None:
    peer.send(b"lease empty 60000\r\n")
    wait_until(lambda: daemon.call(lambda: len(daemon.server.default.engine.wakeups)) == 1)
    requests = b"".join([add(new_id(), payload=bytes(1 << 20)) for _ in range(40)])
    sender = threading.Thread(target=peer.send, args=(requests,))
    sender.start()

    def kept() -> tuple[int, bool]:
        (held,) = [c for c in daemon.server.connections if c.waiters]
        pending = sum(len(getattr(item, "payload", b"")) for item in held._queue)  # type: ignore[attr-defined]
        return pending, held._transport.is_reading()

    wait_until(lambda: not daemon.call(kept)[1], seconds=20, what="it is not read any more")
    assert daemon.call(kept)[0] <= 6 << 20
    # A message that is cut off because nobody reads it is not the fault of its sender.
    daemon.call(lambda: daemon.server.sweep(daemon.server.loop.time() + 100))
    assert other.ask(add(new_id(), b"empty")) == b"+OK\r\n"
    assert peer.read().startswith(b"+OK 1\r\n")
    assert [peer.read() for _ in range(40)] == [b"+OK\r\n"] * 40
    sender.join()


@pytest.mark.parametrize("uvloop", [False, True])
def test_a_busy_producer_is_not_cut_for_the_message_it_is_about_to_end(
    tmp_path: Path, uvloop: bool
) -> None:
    settings = {"limits": {"message_timeout": 0.2}}
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=uvloop) as daemon:
        server, peer = daemon.server, Peer(daemon.workq_port)
        end = time.monotonic() + 1
        peer.send(b"add ")
        while time.monotonic() < end:  # every read ends in the middle of a message
            assert peer.ask(add(new_id())[4:] + b"add ") == b"+OK\r\n"
            daemon.call(lambda: server.sweep(server.loop.time()))
        assert not daemon.call(lambda: dict(server.cuts))
        peer.close()


def test_inspect_jobs_gives_as_many_as_fit_into_a_message(peer: Peer, other: Peer) -> None:
    jobs = [new_id() for _ in range(40)]
    for job in jobs:
        assert peer.ask(add(job, payload=bytes(1 << 20))) == b"+OK\r\n"
    found: list[bytes] = []
    while len(found) < 40:
        shown = other.ask(b"inspect jobs q %d 100\r\n" % len(found))
        count = int(shown.split(b"\r\n", 1)[0][4:])
        assert 1 <= count <= 16
        found += [line[:36] for line in shown.split(b"\r\n") if line[36:] == b" 12"]
    assert found == jobs


def test_a_log_that_only_workq_wrote_is_left_readable_for_it(tmp_path: Path) -> None:
    from fastjournal.log.segment import WORKQ
    from fastjournal.log.stream import Stream

    def types() -> list[int]:
        cursor = Stream(tmp_path / "d" / "default", WORKQ).open_cursor()
        found = [record.payload[0] for record in cursor]
        cursor.close()
        return found

    with LocalDaemon(tmp_path / "d"):
        pass  # nothing was asked: nothing is written
    for _ in range(2):
        with LocalDaemon(tmp_path / "d") as daemon:
            peer, job = Peer(daemon.workq_port), new_id()
            peer.ask(add(job))
            peer.ask(b"lease q 0\r\n")
            peer.ask(b"complete %b 1\r\na\r\n" % job)
            peer.close()
    assert types()
    assert max(types()) <= 8
    with LocalDaemon(tmp_path / "d") as daemon, daemon.connect() as client:
        client.put(queue="q")
    assert types()[-1] == 45  # MARK: from here on it is a log of ours
    with Journal(tmp_path / "d" / "default") as journal:
        assert journal.status().clean_start


def test_a_line_without_cr_ends_the_connection_without_an_answer(peer: Peer) -> None:
    peer.send(b"inspect server\n")
    assert peer.file.read() == b""


def test_a_request_beyond_the_limit_ends_the_connection(peer: Peer) -> None:
    with contextlib.suppress(OSError):
        for _ in range(20):
            peer.send(b"lease " + b"x" * 65_530)
    with contextlib.suppress(ConnectionResetError):
        assert peer.file.read() == b""


def test_jobs_of_both_protocols_meet_in_one_queue(daemon: LocalDaemon, peer: Peer) -> None:
    with daemon.connect() as client:
        receipt = client.put(b"from fj", queue="q", lease=5)
        shown = peer.ask(b"lease q 0\r\n")
        expected = str(uuid.UUID(bytes=receipt.id)).encode()
        assert shown == b"+OK 1\r\n%b q 5000 7\r\nfrom fj\r\n" % expected
        assert peer.ask(b"complete %b 2\r\nok\r\n" % expected) == b"+OK\r\n"
        assert client.result(receipt.id) == (True, b"ok")
        job = new_id()
        peer.ask(add(job))
        leased = client.lease("q")
        assert leased is not None
        assert leased.payload == b"ping"
        leased.done(b"yes")
        assert peer.ask(b"result %b 0\r\n" % job).endswith(b"\r\nyes\r\n")


def test_canaries_survive_a_restart(tmp_path: Path) -> None:
    """Completed, failed, timed out, deleted, scheduled: as before (WQ-GEN-5, D-30)."""
    done, failed, dead, gone, later, waiting = (new_id() for _ in range(6))
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600)).encode()
    with LocalDaemon(tmp_path / "d") as daemon:
        peer = Peer(daemon.workq_port)
        for job in (done, failed, gone):
            peer.ask(add(job))
        peer.ask(b"add %b t 1 60000 1 -max-attempts=1\r\na\r\n" % dead)
        peer.ask(b"lease t 0\r\n")
        assert peer.ask(b"result %b 10000\r\n" % dead).startswith(b"+OK")
        peer.ask(b"complete %b 1\r\na\r\n" % done)
        peer.ask(b"fail %b 1\r\nb\r\n" % failed)
        peer.ask(b"delete %b\r\n" % gone)
        peer.ask(b"schedule %b q 1000 60000 %b 1\r\na\r\n" % (later, soon))
        peer.ask(add(waiting))
        peer.close()
    with LocalDaemon(tmp_path / "d") as daemon:
        peer = Peer(daemon.workq_port)
        assert peer.ask(b"result %b 0\r\n" % done) == b"+OK 1\r\n%b 1 1\r\na\r\n" % done
        assert peer.ask(b"result %b 0\r\n" % failed) == b"+OK 1\r\n%b 0 1\r\nb\r\n" % failed
        assert peer.ask(b"result %b 0\r\n" % dead) == b"+OK 1\r\n%b 0 0\r\n\r\n" % dead
        assert peer.ask(b"inspect job %b\r\n" % gone) == b"-NOT-FOUND\r\n"
        assert b"\r\ntime " in peer.ask(b"inspect job %b\r\n" % later)
        assert peer.ask(b"lease q 0\r\n").startswith(b"+OK 1\r\n" + waiting)
        assert peer.ask(b"lease q 0\r\n") == b"-TIMEOUT\r\n"
        peer.close()
