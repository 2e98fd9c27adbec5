"""Real processes, killed again and again: 4 producers, 4 workers, one daemon; the promises hold.

Every process writes down what it was told. Afterwards the journal is opened and compared:

P-ONCE and F53: what was acknowledged is there or was ended; what was ended stays ended.
P-LEASE: nobody gets a job before the lease of another has ended.
P-PREFIX: the log replays, and what it gives equals what the daemon had.
"""

from __future__ import annotations

import itertools
import math
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import fastjournal
from daemon_process import DaemonProcess
from fastjournal.journal.journal import Journal
from fastjournal.model import State
from fastjournal.testing import wait_until

CHILD = Path(__file__).parent.parent / "daemon_child.py"
pytestmark = pytest.mark.kill


class Crowd:
    """Producers and workers."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.children: list[subprocess.Popen[bytes]] = []
        self.started = 0

    def start(self, kind: str) -> None:
        path = self.folder / f"{kind}-{self.started}.txt"
        child = subprocess.Popen(
            [sys.executable, str(CHILD), kind, f"{self.url}?timeout=60&connect_timeout=60",
             str(path), str(self.started)],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.started += 1
        self.children.append(child)

    def replace_one(self, chance: random.Random) -> None:
        """A worker dies in the middle of its work; another takes its place."""
        victim = self.children.pop(chance.randrange(4, 8))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self.start("work")

    def stop(self) -> None:
        for child in self.children:
            child.send_signal(signal.SIGKILL)
            child.wait()


def histories(folder: Path) -> dict[str, list[list[str]]]:
    """The lines of all children, by their first word; a line cut by a kill is left out."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for path in folder.glob("*.txt"):
        for line in path.read_text().split("\n")[:-1]:
            words = line.split()
            if words:
                found[words[0]].append(words[1:])
    return found


class Progress:
    """Counts what the children write down, without reading it twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done = 0
        self.lines = 0
        self._read: Counter[Path] = Counter()

    def look(self) -> None:
        for path in self.folder.glob("*.txt"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] += len(whole)
            self.done += whole.count(b"done ")
            self.lines += whole.count(b"\n")

    def wait(self, *, done: int = 0, more: int = 0) -> None:
        """Until so many completions were told in all, and so many lines more were written."""
        lines = self.lines + more

        def enough() -> bool:
            self.look()
            return self.done >= done and self.lines >= lines

        wait_until(enough, seconds=120, what=f"{done} completions, {more} lines more")


def rounds(tmp_path: Path, count: int, sync: str, most: int) -> dict[str, int]:
    """Kill the daemon `count` times while everybody works; returns figures.

    Each time something was completed since the last kill, for rounds in which nothing happens prove
    nothing, and then up to `most` more answers were given.
    """
    chance = random.Random(count)
    folder = tmp_path / "histories"
    folder.mkdir()
    daemon = DaemonProcess(
        tmp_path / "d", "--sync", sync, "--log-level", "error",
        env={"FASTJOURNAL_JOURNAL_SEGMENT_SIZE": "200000",
             "FASTJOURNAL_JOURNAL_CLEAN_INTERVAL": "0.3",
             "FASTJOURNAL_JOURNAL_SNAPSHOT_BYTES": "500000"},
    )  # fmt: skip
    crowd = Crowd(folder, daemon.url)
    daemon.start()
    for kind in ("produce",) * 4 + ("work",) * 4:
        crowd.start(kind)
    progress = Progress(folder)
    wait_until(lambda: len(list(folder.glob("*.txt"))) == 8, seconds=120, what="all are there")
    try:
        for number in range(count):
            progress.wait(done=progress.done + 5)
            progress.wait(more=chance.randrange(most))
            daemon.kill()
            if number % 5 == 4:
                crowd.replace_one(chance)
            daemon.start()
        progress.wait(done=progress.done + 5)
    finally:
        crowd.stop()
        assert daemon.stop() == 0
    return check(tmp_path / "d" / "default", histories(folder))


def lives_of(job_id: str, leases: list[tuple[int, int, int]], answered: float) -> int:
    """How often the job came to be, if its leases (at, token, until) keep their promises.

    Once; but a put whose answer was lost and that is sent again when its job has been completed
    and is gone makes a new one, whose tokens begin anew: delivery is at least once. Such a put is
    answered after the first life of the job began; what was answered before must not come back.
    """
    lives = 1
    leases.sort()
    for (last, before, until), (at, token, _) in itertools.pairwise(leases):
        if token == 1:
            assert answered > last, f"{job_id} came back"
            lives += 1
            continue
        assert token > before, f"{job_id} was leased twice under one token"
        assert at >= until, f"{job_id} was handed out before the lease before it had ended"
    return lives


def check(path: Path, told: dict[str, list[list[str]]]) -> dict[str, int]:
    put = {job_id: int(at) for job_id, at in told["put"]}
    done = {words[0] for words in told["done"]}
    ending = {words[0] for words in told["ending"]}
    by_job: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for job_id, token, at, until in told["lease"]:
        by_job[job_id].append((int(at), int(token), int(until)))
    lives = {
        job_id: lives_of(job_id, leases, put.get(job_id, math.inf))
        for job_id, leases in by_job.items()
    }
    for job_id, times in Counter(words[0] for words in told["done"]).items():
        assert times <= lives[job_id], f"{job_id} was completed {times} times"
    with Journal(path, background=False) as journal:
        rows = {job.id.hex(): job for job in journal.jobs("q", limit=10**9)}
        assert all(job.state in (State.WAITING, State.PROCESSING) for job in rows.values())
        missing = set(put) - set(rows) - ending
        assert not missing, f"{len(missing)} acknowledged jobs are lost"
        back = done & set(rows)
        assert not back, f"{len(back)} completed jobs came back"
    return {
        "put": len(put),
        "done": len(done),
        "leases": len(told["lease"]),
        "left": len(rows),
        "reborn": sum(count - 1 for count in lives.values()),
    }


@pytest.mark.timeout(600)
def test_thirty_kills_of_the_daemon_lose_nothing(tmp_path: Path) -> None:
    figures = rounds(tmp_path, 30, "interval", 200)
    assert figures["put"] > 300
    assert figures["done"] > 150


def test_kills_under_always_lose_nothing(tmp_path: Path) -> None:
    assert rounds(tmp_path, 3, "always", 50)["done"] >= 20


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_kills_of_the_daemon_lose_nothing(tmp_path: Path) -> None:
    assert rounds(tmp_path, 1000, "os", 400)["put"] > 10_000


def test_a_put_that_is_sent_again_after_a_kill_is_taken_once(tmp_path: Path) -> None:
    """F49: the client repeats what was not answered; the id makes it harmless."""
    daemon = DaemonProcess(tmp_path / "d", "--log-level", "error")
    daemon.start()
    client = fastjournal.connect(f"{daemon.url}?timeout=60")
    for n in range(3):
        receipt = client.put(b"%d" % n, queue="q")
        daemon.kill()
        daemon.start()
        again = client.put(b"%d" % n, queue="q", id=receipt.id)
        assert again.id == receipt.id
    assert [job.value for job in client.jobs("q")] == [b"0", b"1", b"2"]
    client.close()
    assert daemon.stop() == 0


def test_a_frozen_daemon_is_waited_for_and_its_leases_hold(tmp_path: Path) -> None:
    """F48: SIGSTOP and SIGCONT; clients give up in time, nothing is handed out twice."""
    daemon = DaemonProcess(tmp_path / "d", "--log-level", "error")
    daemon.start()
    with fastjournal.connect(daemon.url) as client:
        client.put(b"x", queue="q", lease=60)
        job = client.lease("q")
        assert job is not None
        daemon.signal(signal.SIGSTOP)
        with pytest.raises(fastjournal.JournalFault):
            fastjournal.connect(f"{daemon.url}?connect_timeout=0.3&timeout=0.3").ping()
        daemon.signal(signal.SIGCONT)
        assert client.lease("q") is None
        job.done()
    assert daemon.stop() == 0
