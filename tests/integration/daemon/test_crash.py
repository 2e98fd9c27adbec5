"""A real daemon, killed again and again while clients of both kinds work; the promises hold.

P-ONCE and F53: what was acknowledged is there or was ended; what was ended stays ended.
P-LEASE: nobody gets a job before the lease of another has ended.
P-PREFIX: the log replays, and what it gives equals what the daemon had.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import fastjournal
from daemon_process import DaemonProcess
from kill_harness import kill_rounds
from kill_history import Verdict

pytestmark = pytest.mark.kill


SLOW_ROUNDS = int(os.environ.get("FASTJOURNAL_KILL_ROUNDS", "1000"))


def judged(verdict: Verdict) -> Verdict:
    """The verdict, if every promise was kept."""
    assert not verdict.broken, verdict.examples
    assert verdict.done
    return verdict


@pytest.mark.timeout(600)
def test_thirty_kills_of_the_daemon_lose_nothing(tmp_path: Path) -> None:
    verdict = judged(kill_rounds(tmp_path, 30))
    assert verdict.acknowledged > 300


@pytest.mark.slow
@pytest.mark.timeout(60 + 8 * SLOW_ROUNDS)
def test_a_thousand_kills_of_the_daemon_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`FASTJOURNAL_KILL_ROUNDS` says how many; the figures are printed."""
    verdict = kill_rounds(tmp_path, SLOW_ROUNDS)
    with capsys.disabled():
        print(f"\nkills of the daemon: {verdict}", *verdict.examples, sep="\n  ")
    assert judged(verdict).acknowledged > 10 * SLOW_ROUNDS


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
