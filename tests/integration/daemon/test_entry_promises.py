"""What entries promise over the wire: exact bytes, races, crashes, locks, long scans."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import fastjournal
from daemon_process import DaemonProcess
from fastjournal.client.entry_calls import page as page_call
from fastjournal.entry_value import STRING, VOID
from fastjournal.errors import LeaseLost, Locked
from fastjournal.journal.entries.key_query import KeyQuery
from fastjournal.put_request import PutRequest
from fastjournal.testing import ManualClock
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.entry_codec import ALL, decode_entry
from fastjournal.wire.fj.functions import DATA, OVERWRITE, PUSH, Function, Type
from fastjournal.wire.fj.job_codec import encode_job
from fastjournal.wire.fj.replies import Pair, encode_reply
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer

GOLDEN = Path(__file__).parents[2] / "golden" / "wire" / "fj-worked-examples.json"
EXAMPLES = {e["name"]: bytes.fromhex(e["bytes"]) for e in json.loads(GOLDEN.read_text())}
T = 1_700_000_000_000_000_000
US = 1000
S = 1_000_000_000
QUICK = {"journal": {"sync": "os"}}


class AtT:
    """A daemon whose clock stands where the worked examples say."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(T)
        self.daemon = LocalDaemon(folder, settings=QUICK, clock=self.clock).start()
        self.peer = FjPeer(self.daemon.port)

    def at(self, us: int) -> None:
        """Move to so many microseconds after T."""
        self.clock.advance(ns=T + us * US - self.clock.now())

    def raw(self, data: bytes, size: int) -> bytes:
        """What is answered, byte for byte."""
        self.peer.send(data)
        return self.read(size)

    def read(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            part = self.peer.sock.recv(size - len(got))
            assert part, f"the stream ended after {got.hex(' ')}"
            got += part
        return got


@pytest.fixture
def examples(tmp_path: Path) -> Iterator[AtT]:
    made = AtT(tmp_path / "d")
    yield made
    made.peer.close()
    made.daemon.stop()


def test_every_worked_example_is_answered_byte_for_byte(examples: AtT) -> None:
    """Section 4.8. Ours alone is the cursor; a single GET tells the time of the value, which is T,
    where the example shows the time of the question."""
    e = examples
    want = EXAMPLES["SET answered, on stable storage"]
    assert e.raw(EXAMPLES["SET a = string hi, overwrite, persist"], len(want)) == want
    e.at(1)
    want = EXAMPLES["GET answered"]
    got = e.raw(EXAMPLES["GET a with data"], len(want))
    assert got == want[:8] + EXAMPLES["SET answered, on stable storage"][8:16] + want[16:]
    with FjPeer(e.daemon.port) as other:
        for key, kind, value in ((b"b", Type.BOOLEAN, b"\1"), (b"c", Type.VOID, b"")):
            other.ask(Function.SET, key=key, value_type=kind, value=value, flags=OVERWRITE)
    e.at(2)
    cursor = KeyQuery(1, b"a", b"c", 2).cursor(b"b")
    want = EXAMPLES["GET range answered: 2 pairs and a cursor"]
    want = want[:19] + bytes((len(cursor),)) + cursor + want[22:]
    assert e.raw(EXAMPLES["GET range a..c, count 2"], len(want)) == want
    e.at(3)
    want = EXAMPLES["GET answered NOT-FOUND"]
    assert e.raw(EXAMPLES["GET zz"], len(want)) == want


def test_next_is_answered_with_the_time_of_the_next_job(examples: AtT) -> None:
    """Section 4.8, 4.6."""
    e = examples
    job = encode_job(PutRequest(b"q", b"x", key=b"k", due=T + 60 * S))
    e.peer.ask(Function.SET, value_type=Type.JOB, value=job)
    e.at(5)
    want = EXAMPLES["NEXT answered: nothing yet, next at T + 60 s"]
    assert e.raw(EXAMPLES["NEXT any queue, lease until T + 3600 s"], len(want)) == want


def test_a_listener_gets_the_push_of_the_example(examples: AtT) -> None:
    """Section 4.8, 4.7."""
    e = examples
    listening = EXAMPLES["SET a = string hi, overwrite, persist"]
    flags = (int.from_bytes(listening[8:10], "big") | 1 << 11).to_bytes(2, "big")
    want = EXAMPLES["SET answered, on stable storage"]
    assert e.raw(listening[:8] + flags + listening[10:], len(want)) == want
    e.at(6)
    with FjPeer(e.daemon.port) as other:
        other.ask(Function.SET, key=b"a", value_type=STRING, value=b"ho", flags=OVERWRITE)
    want = EXAMPLES["push for the listener of SET id 1: a changed, type string"]
    assert e.read(len(want)) == want
    e.clock.advance(1)
    with FjPeer(e.daemon.port) as other:
        other.ask(Function.DELETE, key=b"a")
    gone = encode_reply(1, e.clock.now(), flags=PUSH | 1 << 12, pairs=[Pair(b"a", STRING)])
    assert e.read(len(gone)) in (gone, gone[:-1] + b"\0")


def test_quit_is_answered_and_the_connection_ends(examples: AtT) -> None:
    """Section 4.8, FJ-CMD-1."""
    e = examples
    e.at(4)
    asked = EXAMPLES["SET a = string hi, overwrite, persist"] + EXAMPLES["QUIT"]
    first = EXAMPLES["SET answered, on stable storage"]
    answer = e.raw(asked, len(first) + 17)
    time = EXAMPLES["QUIT"][10:18]
    assert answer[: len(first)] == first[:8] + time + first[16:]
    assert answer[len(first) :] == bytes.fromhex("4A 52 00 01 00 05 00 00") + time + b"\0"
    assert e.peer.is_closed()


def test_set_with_expiry_and_ttl_is_kept_so(examples: AtT) -> None:
    """FJ-TCH-1: Section 4.8, D-19."""
    e = examples
    e.at(7)
    asked = EXAMPLES["SET k = void, expiry T + 30 s, ttl 30 s, overwrite"]
    want = bytes.fromhex("4A 52 00 01 00 07 00 00") + asked[10:18] + b"\0"
    assert e.raw(asked, len(want)) == want
    pair = e.peer.ask(Function.GET, key=b"k", ttl=ALL).pairs[0]
    entry = decode_entry(b"k", pair.type, pair.value)
    assert (entry.kind, entry.expires, entry.ttl) == (VOID, T + 30 * S, 30 * S)
    assert (entry.modified, entry.persist) == (T + 7 * US, False)
    e.clock.advance(20)
    touched = e.peer.ask(Function.GET, key=b"k", flags=DATA)
    assert touched.timeout == e.clock.now() + 30 * S


def test_the_newest_timestamp_wins_in_whatever_order_writes_arrive(tmp_path: Path) -> None:
    """FJ-TS-1, D-09, D-20: SETs and DELETEs of two clients in every order."""
    start = datetime.now(UTC) - timedelta(seconds=1)
    at = [start + timedelta(milliseconds=n) for n in range(4)]
    with (
        LocalDaemon(tmp_path / "d", settings=QUICK) as daemon,
        daemon.connect() as one,
        daemon.connect() as two,
    ):
        for number, order in enumerate(itertools.permutations(range(4))):
            for turn, what in enumerate(order):
                entries = (one, two)[turn % 2].entries
                for newest, key in ((3, f"set{number}"), (2, f"deleted{number}")):
                    moment = at[what] if what != newest else at[3] + timedelta(milliseconds=5)
                    if what == 2:
                        entries.delete(key, timestamp=moment)
                    else:
                        entries.set(key, what, timestamp=moment)
            assert two.entries.get(f"set{number}") == 3
            assert f"deleted{number}" not in one.entries


def test_two_clients_racing_leave_the_write_of_the_newest_timestamp(tmp_path: Path) -> None:
    """FJ-TS-1."""
    start = datetime.now(UTC) - timedelta(seconds=2)
    stamps = list(range(400))
    random.Random(3).shuffle(stamps)
    with LocalDaemon(tmp_path / "d", settings=QUICK) as daemon:

        def write(mine: list[int]) -> None:
            with daemon.connect() as client:
                for stamp in mine:
                    moment = start + timedelta(milliseconds=stamp)
                    client.entries.set("k", stamp, timestamp=moment)

        threads = [threading.Thread(target=write, args=(stamps[n::2],)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with daemon.connect() as client:
            assert client.entries["k"] == 399


def add_through_kills(folder: Path, kills: int, adds: int) -> None:
    """8 clients add while the daemon is killed; each addition is counted once."""
    daemon = DaemonProcess(folder / "data", "--sync", "os")
    daemon.start()
    done = [0] * 8
    stop = threading.Event()
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            url = f"{daemon.url}?timeout=300&connect_timeout=300"
            with fastjournal.connect(url) as client:
                while not stop.is_set():
                    client.entries.add("sum", number + 1)
                    client.entries.add(f"own{number}")
                    done[number] += 1
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(kills):
        before = sum(done)
        while sum(done) < before + adds and not faults:
            threads[0].join(0.005)
        daemon.kill()
        daemon.start()
    before = sum(done)
    while sum(done) < before + adds and not faults:
        threads[0].join(0.005)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults
    with fastjournal.connect(daemon.url) as client:
        for number in range(8):
            assert client.entries[f"own{number}"] == done[number]
        assert client.entries["sum"] == sum((n + 1) * count for n, count in enumerate(done))
    daemon.stop()


@pytest.mark.kill
def test_eight_clients_add_up_exactly_though_the_daemon_is_killed(tmp_path: Path) -> None:
    """D-21: exactly once, over kill -9."""
    add_through_kills(tmp_path, kills=3, adds=150)


@pytest.mark.slow
@pytest.mark.kill
def test_eight_clients_add_up_exactly_over_many_kills(tmp_path: Path) -> None:
    """D-21."""
    add_through_kills(tmp_path, kills=25, adds=300)


HOLDER = """
import sys, time, fastjournal
with fastjournal.connect(sys.argv[1]) as client:
    held = client.entries.lock("k", 1)
    held.set("mine")
    print(held.fence, flush=True)
    time.sleep(600)
"""


@pytest.mark.kill
def test_a_holder_that_dies_frees_its_lock_at_the_deadline_and_its_late_write_is_refused(
    tmp_path: Path,
) -> None:
    """D-22, law 8."""
    with LocalDaemon(tmp_path / "d", settings=QUICK) as daemon, daemon.connect() as client:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, daemon.url], stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout is not None
        fence = int(holder.stdout.readline())
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        entries = client.entries
        with pytest.raises(Locked):
            entries.lock("k")
        locks = daemon.server.default.journal.entries.operations.locks
        held = daemon.call(lambda: locks.holder((b"k",), 0))
        assert held is not None
        deadline = held.until
        with entries.lock("k", wait=20) as mine:
            assert client.server_now() >= deadline - S // 10
            assert mine.fence > fence
            with pytest.raises(LeaseLost):
                entries.set("k", "late", fence=fence)
            assert mine.set("newer")
        with pytest.raises(LeaseLost):
            entries.set("k", "later", fence=fence)
        assert entries["k"] == "newer"


def test_a_dead_holders_lock_ends_when_the_clock_says_so(tmp_path: Path) -> None:
    """D-22, on a clock moved by hand: not a nanosecond earlier."""
    clock = ManualClock()
    with LocalDaemon(tmp_path / "d", settings=QUICK, clock=clock) as daemon:
        with FjPeer(daemon.port) as holder:
            held = holder.ask(Function.LOCK, key=b"k", timeout=clock.now() + 10 * S)
            assert held.error == ""
        with FjPeer(daemon.port) as other:
            clock.advance(ns=10 * S - 1)
            assert other.ask(Function.LOCK, key=b"k").error.startswith("LOCKED")
            clock.advance(ns=1)
            assert other.ask(Function.LOCK, key=b"k").error == ""


def test_a_scan_of_100_000_keys_during_changes_and_a_restart_is_whole(tmp_path: Path) -> None:
    """D-26: never a key twice, none missed that stood throughout; over a restart of the daemon."""
    standing = [b"k%06d" % (2 * n) for n in range(100_000)]
    with fastjournal.Journal(tmp_path / "d", sync="os") as journal:
        journal.entries.update(dict.fromkeys(standing))
    daemon = LocalDaemon(tmp_path / "d", settings=QUICK).start()
    settings = QUICK | {"listen": [f"127.0.0.1:{daemon.port}"]}
    stop = threading.Event()
    with daemon.connect(timeout=60) as client, daemon.connect(timeout=60) as other:

        def disturb() -> None:
            chance = random.Random(5)
            while not stop.is_set():
                keys = [b"k%06d" % (2 * chance.randrange(100_000) + 1) for _ in range(20)]
                stop.wait(0.01)
                other.entries.update((key, 1) for key in keys)
                for key in keys[::2]:
                    other.entries.delete(key)

        thread = threading.Thread(target=disturb)
        thread.start()
        seen: list[bytes] = []
        for number, entry in enumerate(client.entries.range(data=False)):
            seen.append(entry.key)
            if number == 50_000:
                stop.set()
                thread.join()
                daemon.stop()
                daemon = LocalDaemon(tmp_path / "d", settings=settings).start()
                stop.clear()
                thread = threading.Thread(target=disturb)
                thread.start()
        stop.set()
        thread.join()
        assert all(a < b for a, b in itertools.pairwise(seen))
        assert set(standing) <= set(seen)
        assert len(seen) > len(standing)
    daemon.stop()


def test_a_reply_holds_65_535_keys(tmp_path: Path) -> None:
    """FJ-RPL-2, FJ-CNT-1."""
    with fastjournal.Journal(tmp_path / "d", sync="os") as journal:
        journal.entries.update(dict.fromkeys(b"%05d" % number for number in range(65_540)))
    with LocalDaemon(tmp_path / "d", settings=QUICK) as daemon, daemon.connect() as client:
        page = client.entries.page(limit=65_535, data=False)
        assert len(page.entries) == 65_535
        assert page.entries[-1].key == b"65534"
        rest = client.entries.page(cursor=page.cursor)
        assert [entry.key for entry in rest.entries] == [b"%05d" % n for n in range(65_535, 65_540)]
        assert len(client.entries) == 65_540


def test_adversarial_patterns_cost_little_over_many_keys(tmp_path: Path) -> None:
    """D-25: linear time, whatever the pattern; a page costs so much and no more."""
    with LocalDaemon(tmp_path / "d", settings=QUICK) as daemon, daemon.connect() as client:
        entries = client.entries
        entries.update((b"a" * 30 + b"%05d" % number, None) for number in range(12_000))
        for pattern in ("(a+)+$", "(a|aa)+$", "(.*a){20}x", "(x+x+)+y", "([a-z]+)*!"):
            assert list(entries.match(pattern)) == []
        first = client.caller.call(page_call(match="nothing holds this"))
        assert first.entries == [] and first.cursor, "an empty page may come with a cursor"


def test_requests_of_zero_length_are_told_what_they_lack(tmp_path: Path) -> None:
    """FJ-MSG-2."""
    with LocalDaemon(tmp_path / "d", settings=QUICK) as daemon, FjPeer(daemon.port) as peer:
        for function in (2, 3, 4, 5, 6, 7, 8, 9, 10, 17):
            error = peer.ask(function).error
            assert error.startswith(("CLIENT-ERROR", "BAD-FLAGS")), (function, error)
        for function in (5, 6, 7, 9, 10, 17, 8, 2):
            fields = {"value_type": 3, "value": b""} if function in (2, 5, 7) else {}
            fields |= {"value_type": 1, "value": b""} if function in (10, 17) else {}
            reply = peer.ask(function, key=b"k", **fields)
            assert function in (2, 8) or reply.error, function
        peer.send(encode_request(Function.NOP, 1) * 3)
        assert [peer.read() is not None for _ in range(3)] == [True] * 3
