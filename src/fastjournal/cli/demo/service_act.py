"""The third act of the demonstration: the whole service, its worker and its daemon killed.

Rules:

1. Each letter and each newest version of a page that a producer was told is in the spool must be
   found in the notes of a worker in the end; a letter may be there twice, if its worker or the
   daemon was killed in between. That is at-least-once, and it is counted.
2. The producers never stop: what they do while the daemon is dead is part of the claim.

Rules of its live view: who runs, what waits where, what has happened:

3. It looks ten times a second from a thread of its own, by the means of any operator: a client of
   the daemon, and the files of the spool. A daemon that does not answer is shown as down.
4. On a terminal the view stays in one place; elsewhere nothing but the last look is printed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fastjournal.cli.demo.players import KEYS, Troupe
from fastjournal.cli.demo.stage import Stage
from fastjournal.cli.output import bytes_text
from fastjournal.connect_url import connect
from fastjournal.errors import JournalError
from fastjournal.model import State
from fastjournal.spool.spool_dir import used

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from fastjournal.model import Job, QueueStatus

__all__ = ["Board", "ServiceAct"]


_LOOKS = 10  # a second


class Board:
    """What is shown; `settled` tells whether nothing is left to do."""

    def __init__(self, url: str, spool: Path, done: Callable[[], int]) -> None:
        self._url = url
        self._spool = spool
        self._done = done
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._queues: list[QueueStatus] | None = None
        self._backlog = 0

    @contextmanager
    def shown(self, console: Console) -> Iterator[None]:
        """Look and show until the end of the block."""
        looker = threading.Thread(target=self._look, daemon=True)
        looker.start()
        live = Live(
            get_renderable=self._picture, console=console, refresh_per_second=8, transient=True
        )
        try:
            with live:
                yield
        finally:
            self._over.set()
            looker.join()

    def _look(self) -> None:
        from fastjournal.connect_url import connect

        with connect(f"{self._url}?timeout=1&connect_timeout=1") as client:
            while not self._over.wait(1 / _LOOKS):
                try:
                    queues = client.queues()
                except JournalError:
                    queues = None
                backlog = used(str(self._spool)) if self._spool.is_dir() else 0
                with self._lock:
                    self._queues, self._backlog = queues, backlog

    def _picture(self) -> Table:
        with self._lock:
            queues, backlog = self._queues, self._backlog
        head = Text.assemble(
            f"spool {bytes_text(backlog)}   daemon ",
            ("down", "bold red") if queues is None else ("up", "green"),
            f"   done by the workers {self._done():,}",
        )
        grid = Table(title=head, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        grid.add_column("queue", min_width=12)
        for column in ("ready", "not yet due", "leased", "dead"):
            grid.add_column(column, justify="right", min_width=8)
        for one in queues or []:
            numbers = (one.ready + one.held, one.future, one.leased, one.dead)
            grid.add_row(one.name, *(f"{number:,}" for number in numbers))
        return grid


PRODUCERS = 2
LEASE = 1.0  # seconds
MAX_WAIT = 1.0  # seconds by which requests can put off a page
TOMORROW = 25  # letters that wait for the next day
PATIENCE = 60.0  # seconds until something that must happen counts as not happening


class ServiceAct:
    """Shows the service; the rows that are left in the end are those that Spark must find."""

    def __init__(self, stage: Stage, home: Path) -> None:
        self._stage = stage
        self._home = home
        self.asked = 0
        """How often a job was put, repeats of a key included."""

    def show(self) -> list[Job]:
        """All steps; returns the rows of the daemon at the end."""
        stage = self._stage
        with Troupe(self._home) as troupe:
            stage.step("A daemon, a forwarder and two workers start; two producers begin to write")
            daemon = troupe.daemon()
            with connect(troupe.url) as client:
                client.configure("mail", max_fails=2, backoff_base=0.1)
                client.configure("pages", max_wait=MAX_WAIT)
            forwarder = troupe.forwarder()
            workers = [troupe.worker(name, LEASE, "mail", "pages") for name in ("ada", "bob")]
            board = Board(troupe.url, troupe.spool, lambda: len(troupe.lines("*.notes")))
            with board.shown(stage.console):
                producers = [troupe.producer(number) for number in range(PRODUCERS)]
                self._await(lambda: len(troupe.lines("*.notes")) > 50, "the first letters arrive")
                self._worker_killed(troupe)
                daemon = self._daemon_killed(troupe, daemon)
                troupe.enough()
                for producer in producers:
                    producer.wait(PATIENCE)
                self._await(lambda: _delivered(troupe), "everything put is worked on")
                with connect(troupe.url) as client:
                    self._await(lambda: _idle(client), "nothing is left over")
            self._judge(troupe)
            rows = self._left(troupe)
            codes = [*troupe.end(*workers, forwarder), *troupe.end(daemon)]
            stage.claim("all of them stop when asked to", codes == [0] * len(codes))
        return rows

    def _worker_killed(self, troupe: Troupe) -> None:
        stage = self._stage
        stage.step("A worker is killed with a job in its hands")
        with connect(troupe.url) as client:
            doomed = troupe.worker("doomed", LEASE, "traps")
            job = client.put(b"trap", queue="traps").id
            self._await(lambda: _trapped(troupe, job), "it takes the job")
            stage.say("it will never end that job; its heartbeat keeps the lease while it lives")
            troupe.worker("cleo", LEASE, "traps")
            troupe.kill(doomed)
            start = time.monotonic()
            self._await(lambda: _gone(client, job), "the lease ends and another worker gets it")
            took = f"{time.monotonic() - start:.1f} s"
            stage.figure("a killed worker's job, done by another", f"after {took}")
            stage.claim(
                f"handed on and done {took} after kill -9, by the end of its lease of {LEASE:g} s",
                ["traps", "", "trap"] in troupe.lines("*.notes"),
            )

    def _daemon_killed(self, troupe: Troupe, daemon: Any) -> Any:
        stage = self._stage
        stage.step("The daemon is killed with -9; the producers do not notice")
        troupe.kill(daemon)
        before = len(troupe.lines("*.told"))
        time.sleep(0.7)  # the audience sees the spool grow
        after = len(troupe.lines("*.told"))
        stage.figure("puts while the daemon was dead", f"{after - before:,}, none of them waited")
        stage.claim(f"{after - before} puts while there was no daemon", after > before)
        start = time.monotonic()
        daemon = troupe.daemon()
        stage.say(f"started again: it answers after {time.monotonic() - start:.1f} s")
        with connect(troupe.url) as client:
            status = client.status()
            replayed = f"{status.replayed_records:,} records in {status.replay_seconds:.3f} s"
            stage.say(f"replayed {replayed}")
            stage.figure("replayed after kill -9 of the daemon", replayed)
            client.put(b"poison", queue="mail")
            client.put_many(
                {"payload": b"later %d" % n, "queue": "tomorrow", "delay": 86_400}
                for n in range(TOMORROW)
            )
        return daemon

    def _judge(self, troupe: Troupe) -> None:
        stage = self._stage
        stage.step("What was asked for, what was done")
        asked_lines, notes = troupe.lines("*.told"), troupe.lines("*.notes")
        letters = {words[1] for words in asked_lines if words[0] == "mail"}
        delivered = Counter(words[2] for words in notes if words[0] == "mail")
        twice = sum(count - 1 for count in delivered.values())
        stage.figure("letters put, letters delivered", f"{len(letters):,}, {len(delivered):,}")
        stage.claim(
            f"all {len(letters):,} letters were delivered ({twice} of them again)",
            letters == set(delivered),
        )
        asked = [words for words in asked_lines if words[0] == "pages"]
        made = [words for words in notes if words[0] == "pages"]
        stage.figure("requests for pages, runs", f"{len(asked):,}, {len(made):,}")
        stage.claim(
            f"{len(asked):,} requests for {KEYS} pages became {len(made)} runs: "
            f"{1 - len(made) / len(asked):.0%} merged away",
            KEYS <= len(made) < len(asked) / 2,
        )
        stage.claim("each page was made after its last request", _newest(asked, made))
        self.asked = len(letters) + len(asked) + TOMORROW + 2  # and the trap, and the poison
        slowest = max(int(words[1]) for words in asked_lines if words[0] == "slowest")
        stage.claim(
            f"the slowest request spent {slowest:,} µs on its two puts, the daemon dead or not",
            slowest < 1_000_000,
        )

    def _left(self, troupe: Troupe) -> list[Job]:
        with connect(troupe.url) as client:
            rows: list[Job] = client.jobs(limit=1000)
            dead = [row for row in rows if row.state is State.FAILED]
            self._stage.claim(
                f"{TOMORROW} letters wait for tomorrow, one that cannot be delivered is dead "
                f"after {dead[0].fails if dead else 0} tries",
                len(rows) == TOMORROW + 1 and [row.payload for row in dead] == [b"poison"],
            )
            return rows

    def _await(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            if time.monotonic() > deadline:
                self._stage.claim(what, False)
                return
            time.sleep(0.02)


def _newest(asked: list[list[str]], made: list[list[str]]) -> bool:
    """Whether some run of each page had what its last request brought.

    The last request is that of one of the producers; which of theirs came later, nobody told.
    """
    last: dict[str, dict[str, str]] = {}
    for _, page, text in asked:
        last.setdefault(page, {})[text.partition("-")[0]] = text
    runs = {(page, text) for _, page, text in made}
    return len(last) == KEYS and all(
        any((page, text) in runs for text in texts.values()) for page, texts in last.items()
    )


def _delivered(troupe: Troupe) -> bool:
    """Whether the workers have seen all that the producers put."""
    asked_lines, notes = troupe.lines("*.told"), troupe.lines("*.notes")
    letters = {words[1] for words in asked_lines if words[0] == "mail"}
    return letters <= {words[2] for words in notes if words[0] == "mail"} and _newest(
        [words for words in asked_lines if words[0] == "pages"],
        [words for words in notes if words[0] == "pages"],
    )


def _trapped(troupe: Troupe, job: bytes) -> bool:
    return ["trapped", job.hex()] in troupe.lines("doomed.notes")


def _idle(client: Any) -> bool:
    """Whether nothing is left but what waits for tomorrow and what is dead."""
    return all(
        not (one.ready or one.held or one.leased or (one.future and one.name != "tomorrow"))
        for one in client.queues()
    )


def _gone(client: Any, job: bytes) -> bool:
    from fastjournal.errors import NotFound

    try:
        client.job(job)
    except NotFound:
        return True
    return False
