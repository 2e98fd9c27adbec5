"""A group of four journals, each of a daemon of its own, behind one face."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastjournal
from command_line import Command
from daemon_process import DaemonProcess, free_port
from fastjournal.client import AsyncGroup, Client, Group
from fastjournal.client.group_table import STAMP, shard_of_id
from fastjournal.client.worker import Worker
from fastjournal.errors import AlreadyExists, BadRequest, LeaseLost, NotFound, SettingError
from fastjournal.handles import LeasedJob
from fastjournal.keys import shard_of
from fastjournal.model import NewJob, Outcome, State
from fastjournal.spool.daemon_destination import DaemonDestination
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon

SHARDS = 4


class Daemons:
    """A home and four journals, each served by itself; any of them may be stopped and started."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.names = ["home", *(f"jobs-{number}" for number in range(SHARDS))]
        self.ports = {name: free_port() for name in self.names}
        self.running: dict[str, LocalDaemon] = {}
        for name in self.names:
            self.start(name)

    def start(self, name: str, port: int = 0) -> None:
        settings = {
            "listen": [f"127.0.0.1:{port or self.ports[name]}"], "default_journal": name,
            "workq": [], "http": "",
        }  # fmt: skip
        self.running[name] = LocalDaemon(self.place / name, settings=settings).start()

    def stop(self, name: str) -> None:
        self.running.pop(name).stop()

    def address(self, name: str) -> str:
        return f"fj://127.0.0.1:{self.ports[name]}/{name}"

    @property
    def shards(self) -> list[str]:
        return [self.address(name) for name in self.names[1:]]

    @property
    def url(self) -> str:
        return f"{self.address('home')}?group={SHARDS}&timeout=20"


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capfd, monkeypatch)


@pytest.fixture
def daemons(tmp_path: Path, command: Command) -> Iterator[Daemons]:
    started = Daemons(tmp_path)
    try:
        code, out, err = command("group", "create", started.address("home"), *started.shards)
        assert (code, err) == (0, "")
        assert out.strip() == f"{started.address('home')}?group={SHARDS}"
        yield started
    finally:
        for name in list(started.running):
            started.stop(name)


@pytest.fixture
def group(daemons: Daemons) -> Iterator[Group]:
    with Group(daemons.url) as opened:
        yield opened


def test_a_key_meets_itself_whoever_puts_it(group: Group, daemons: Daemons) -> None:
    """SNAP-IDX-3: merging holds over a group."""
    first = {f"key {n}": group.put(b"one", key=f"key {n}", queue="q") for n in range(40)}
    assert {one.outcome for one in first.values()} == {Outcome.NEW}
    with fastjournal.connect(daemons.url) as other:
        again = other.put_many(
            [{"payload": b"two", "key": f"key {n}", "queue": "q"} for n in range(40)]
        )
    assert [one.outcome for one in again] == [Outcome.MERGED] * 40
    assert [one.id for one in again] == [one.id for one in first.values()]
    for number, shard in enumerate(group.shards):
        keys = [job.key for job in shard.jobs("q")]
        assert keys
        assert all(shard_of(b"q", key.encode(), SHARDS) == number for key in keys)
    assert group.job(key="key 7", queue="q").payload == b"two"
    assert group.job(first["key 8"].id).key == "key 8"
    assert group.queue("q").ready == group.status().ready == 40
    assert [queue.ready for queue in group.queues()] == [40]
    found = group.jobs("q", limit=1000)
    assert {job.key for job in found} == set(first)
    assert group.jobs("q", offset=10, limit=5) == found[10:15]


def test_what_has_no_key_goes_to_each_in_turn(group: Group) -> None:
    """Unless its producer chose an id: that meets itself."""
    group.put_many([{"payload": b"%d" % n, "queue": "q"} for n in range(20)])
    group.put_many([NewJob(b"q", b"%d" % n) for n in range(20)])
    assert [shard.queue("q").ready for shard in group.shards] == [10] * SHARDS
    receipt = group.put(b"x", queue="q", id=b"0123456789abcdef")
    assert group.put(b"x", queue="q", id=b"0123456789abcdef").id == receipt.id
    assert group.queue("q").ready == 41
    assert group.put(b"x", queue="q").id != receipt.id
    with pytest.raises(BadRequest):
        group.put(b"x")


def test_one_job_of_a_key_is_worked_on_at_a_time(group: Group) -> None:
    """SNAP-IDX-3: one per key holds over a group."""
    keys = [f"key {number}" for number in range(8)]
    group.put_many([{"payload": b"one", "key": key, "queue": "q"} for key in keys])
    first = group.lease_many(8, "q")
    assert {job.key for job in first} == set(keys)
    again = [group.put(b"two", key=key, queue="q").outcome for key in keys]
    assert again == [Outcome.TWIN] * 8
    assert group.lease("q") is None
    for job in first:
        job.done()
    assert [job.payload for job in group.lease_many(9, "q")] == [b"two"] * 8


def test_leases_are_settled_where_they_were_given(group: Group) -> None:
    ids = [group.put(b"x", key=f"key {n}", queue="q").id for n in range(12)]
    held = group.lease_many(12, "q", lease=60)
    assert {job.id for job in held} == set(ids)
    assert group.touch(held[0].id, held[0].token, 90) > 0
    assert group.touch_many([(job.id, job.token) for job in held], 60) == [True] * 12
    group.complete(held[0].id, held[0].token, b"result")
    assert group.result(held[0].id) == (True, b"result")
    assert group.fail(held[1].id, held[1].token, b"why", delay=60) is State.WAITING
    group.release(held[2].id, held[2].token)
    rest = [(job.id, job.token, None) for job in held[3:]]
    assert group.complete_many(rest) == [True] * 9
    assert group.complete_many([(held[1].id, held[1].token, None)]) == [False]
    with pytest.raises((LeaseLost, NotFound)):
        group.complete(held[4].id, held[4].token)
    assert (group.status().ready, group.status().leased) == (1, 0)


def test_an_id_that_was_leased_elsewhere_is_looked_for(group: Group, daemons: Daemons) -> None:
    group.put(b"x", key="k", queue="q", id=b"0123456789abcdef")
    with Group(daemons.url) as other:
        job = other.lease("q", lease=60)
        assert job is not None
        assert shard_of(b"q", b"k", SHARDS) != shard_of_id(job.id, SHARDS)
        group.touch(job.id, job.token)
        group.complete(job.id, job.token, b"done")
        assert other.result(job.id, 5) == (True, b"done")
    with pytest.raises(NotFound):
        group.result(b"fedcba9876543210")
    dead = group.put(b"x", key="k", queue="q", max_attempts=1).id
    leased = group.lease("q")
    assert leased is not None
    assert leased.fail("no") is State.FAILED
    assert group.redrive(dead) == 1
    assert group.delete(dead)
    assert not group.delete(dead)


def test_queues_are_steered_in_every_journal(group: Group) -> None:
    group.put_many([{"queue": "q", "key": f"{n}"} for n in range(8)])
    group.pause("q")
    assert group.lease_many(8, "q") == []
    group.resume("q")
    assert len(group.lease_many(8, "q")) == 8
    assert group.configure("q", max_attempts=7).max_attempts == 7
    assert {shard.queue("q").settings.max_attempts for shard in group.shards} == {7}
    assert group.delete(key="3", queue="q")
    assert group.delete(key="4")
    assert group.status().jobs == 6


def test_entries_are_those_of_the_home(group: Group) -> None:
    group.entries["colour"] = "red"
    assert group.entries["colour"] == "red"
    assert group.home.entries.get("colour") == "red"
    with group.entries.lock("colour") as held:
        held.set("blue")
    assert [entry.value for entry in group.entries.range("c", "d")] == ["blue"]


def test_what_goes_to_one_journal_alone_is_refused(group: Group, daemons: Daemons) -> None:
    with pytest.raises(BadRequest, match="one journal"):
        group.subscribe("q")
    with pytest.raises(BadRequest, match="one journal"):
        group.pipeline()
    with pytest.raises(SettingError, match="opened by connect"):
        Client(daemons.url)
    with pytest.raises(SettingError, match="one journal"):
        DaemonDestination(daemons.url)


def test_a_worker_drains_all_and_loses_nothing_while_one_is_away(
    group: Group, daemons: Daemons, caplog: pytest.LogCaptureFixture
) -> None:
    """F58: one journal of four is stopped and started again; its jobs wait, the others go on."""
    keys = [f"key {n}" for n in range(80)]
    group.put_many([{"payload": b"x", "key": key, "queue": "q"} for key in keys])
    away = [key for key in keys if shard_of(b"q", key.encode(), SHARDS) == 2]
    assert away
    daemons.stop("jobs-2")
    done: Counter[str] = Counter()

    def work(job: LeasedJob) -> bytes:
        done[job.key] += 1
        return job.key.encode()

    worker = Worker(group, work, queues=["q"], concurrency=3, wait=0.05, grace=10)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: len(done) == len(keys) - len(away), what="the others are drained")
        assert not set(away) & set(done)
        assert "is away" in caplog.text
        daemons.start("jobs-2")
        wait_until(lambda: worker.counts.completed == len(keys), what="all are drained")
    finally:
        worker.stop()
        thread.join(20)
    assert done == Counter(keys)
    assert group.status().ready == group.status().leased == 0
    assert "answers again" in caplog.text


def test_nothing_acknowledged_is_lost_with_one_that_is_killed(
    group: Group, daemons: Daemons
) -> None:
    """F11, F58: kill -9 of one journal of four while jobs are put and worked off."""
    daemons.stop("jobs-2")
    process = DaemonProcess(
        daemons.place / "jobs-2", "--sync", "always", port=daemons.ports["jobs-2"],
        env={"FASTJOURNAL_DEFAULT_JOURNAL": "jobs-2"},
    )  # fmt: skip
    process.start()
    done: Counter[str] = Counter()
    put: list[str] = []

    def work(job: LeasedJob) -> None:
        done[job.key] += 1

    def produce() -> None:
        for number in range(200):
            group.put(b"x", key=f"key {number}", queue="q")
            put.append(f"key {number}")

    worker = Worker(group, work, queues=["q"], concurrency=2, wait=0.05, grace=10, lease=2)
    threads = [threading.Thread(target=worker.run), threading.Thread(target=produce)]
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: len(put) > 50, what="puts")
        assert process.process is not None
        process.process.kill()
        process.process.wait()
        process.start()
        threads[1].join(60)
        wait_until(lambda: set(done) == set(put), seconds=30, what="all are worked off")
        wait_until(lambda: group.status().leased == 0, seconds=30, what="all are settled")
    finally:
        worker.stop()
        threads[0].join(20)
        assert process.process is not None
        process.process.kill()
        process.process.wait()
    assert len(put) == 200


def test_a_put_waits_for_the_journal_of_its_key(group: Group, daemons: Daemons) -> None:
    key = next(f"{n}" for n in range(100) if shard_of(b"q", b"%d" % n, SHARDS) == 1)
    daemons.stop("jobs-1")
    put = threading.Thread(target=lambda: group.put(b"x", key=key, queue="q"))
    put.start()
    daemons.start("jobs-1")
    put.join(20)
    assert group.job(key=key, queue="q").payload == b"x"


def test_tasks_run_over_a_group(daemons: Daemons) -> None:
    app = fastjournal.Tasks(daemons.url)

    @app.task(queue="sums", merge="{a}")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(queue="sums")
    def one() -> int:
        return 1

    worker = app.worker(concurrency=2, wait=0.05, grace=10)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        handles = [add.put(n, 10) for n in range(12)]
        assert [handle.result(20) for handle in handles] == [n + 10 for n in range(12)]
        assert [one.put().result(20) for _ in range(5)] == [1] * 5
    finally:
        worker.stop()
        thread.join(20)
        app.close()


async def test_the_twin_for_asyncio(daemons: Daemons) -> None:
    async with await AsyncGroup.open(daemons.url) as group:
        ids = [(await group.put(b"x", key=f"{n}", queue="q")).id for n in range(8)]
        jobs = await group.lease_many(8, "q", lease=60)
        assert {job.id for job in jobs} == set(ids)
        await jobs[0].done(b"result")
        assert await group.result(jobs[0].id, 1) == (True, b"result")
        assert (
            await group.complete_many([(job.id, job.token, None) for job in jobs[1:]]) == [True] * 7
        )
        assert (await group.status()).ready == 0
        assert await group.lease("q", wait=0.05) is None
        await group.entries.set("a", 1)
        assert await group.entries.get("a") == 1
    opened = await fastjournal.aconnect(daemons.url)
    assert opened.about["group"] == SHARDS
    await opened.close()


def test_a_group_is_shown_and_one_of_it_moves(
    group: Group, daemons: Daemons, command: Command
) -> None:
    """Whole journals move, keys never do."""
    group.put_many([{"key": f"{n}", "queue": "q"} for n in range(20)])
    home = daemons.address("home") + "?connect_timeout=0.3"
    code, out, _ = command("group", "show", home)
    assert code == 0
    assert all(address in out for address in daemons.shards)
    code, out, _ = command("list", "--url", daemons.url, "--json")
    assert (code, len(out.splitlines())) == (0, 20)
    code, _, err = command("status", "--url", daemons.url)
    assert code and "group show" in err
    new = free_port()
    address = f"fj://127.0.0.1:{new}/jobs-3"
    code, _, err = command("group", "move", home, "3", daemons.address("jobs-2"))
    assert code and "is not journal 3" in err
    daemons.stop("jobs-3")
    daemons.start("jobs-3", new)
    code, _, err = command("group", "move", home, "2", address)
    assert code and "is not journal 2" in err
    code, out, err = command("group", "move", home, "3", address)
    assert (code, err) == (0, "")
    assert address in command("group", "show", home, "--json")[1]
    with fastjournal.connect(f"{daemons.url}&timeout=0.3") as fresh:
        assert fresh.queue("q").ready == 20


def test_a_journal_that_moves_while_a_client_is_open_is_found_again(
    daemons: Daemons, command: Command
) -> None:
    home = daemons.address("home") + "?connect_timeout=0.3"
    with Group(f"{home}&group={SHARDS}&timeout=0.5") as group:
        group.put_many([{"key": f"{n}", "queue": "q"} for n in range(20)])
        new = free_port()
        daemons.stop("jobs-0")
        daemons.start("jobs-0", new)
        assert command("group", "move", home, "0", f"fj://127.0.0.1:{new}/jobs-0")[0] == 0
        assert group.queue("q").ready == 20


def test_a_journal_is_moved_only_when_the_old_one_has_gone(
    group: Group, daemons: Daemons, command: Command
) -> None:
    with LocalDaemon(daemons.place / "copy", settings={"default_journal": "jobs-1"}) as copy:
        with copy.connect() as client:
            client.entries.set(STAMP, group.shards[1].entries.get(STAMP))
        address = f"{copy.url}/jobs-1"
        code, _, err = command("group", "move", daemons.address("home"), "1", address)
        assert code and "still serves it" in err


def test_a_table_that_does_not_fit_is_refused(
    group: Group, daemons: Daemons, command: Command
) -> None:
    home = daemons.address("home")
    with pytest.raises(SettingError, match="4 journals, not 3"):
        fastjournal.connect(f"{home}?group=3")
    with pytest.raises(SettingError, match="no group has its home here"):
        fastjournal.connect(f"{daemons.address('jobs-1')}?group=4")
    group.shards[1].entries.set(STAMP, "{}")
    with Group(daemons.url) as other, pytest.raises(SettingError, match="is not journal 1"):
        other.status()
    code, _, err = command("group", "create", home, *daemons.shards[:2])
    assert code and "another group" in err


def test_making_a_group_is_brought_to_its_end(tmp_path: Path, command: Command) -> None:
    """A command that was cut off is given again."""
    daemons = Daemons(tmp_path)
    try:
        daemons.stop("jobs-3")
        home = daemons.address("home") + "?connect_timeout=0.3"
        words = ("group", "create", home, *daemons.shards)
        code, _, err = command(*words)
        assert code and str(daemons.ports["jobs-3"]) in err
        with pytest.raises(SettingError, match="not made to its end"):
            fastjournal.connect(daemons.url)
        daemons.start("jobs-3")
        assert command(*words)[0] == 0
        with fastjournal.connect(daemons.url) as group:
            assert group.put(b"x", key="k", queue="q").id
        code, _, err = command("group", "create", daemons.address("jobs-0"), daemons.shards[0])
        assert code
    finally:
        for name in list(daemons.running):
            daemons.stop(name)


def test_a_group_may_begin_in_one_daemon(tmp_path: Path, command: Command) -> None:
    names = [f"jobs-{number}" for number in range(3)]
    with LocalDaemon(tmp_path / "data", settings={"journals": names}) as daemon:
        shards = [f"{daemon.url}/{name}" for name in names]
        assert command("group", "create", f"{daemon.url}/default", *shards)[0] == 0
        with fastjournal.connect(f"{daemon.url}?group=3") as group:
            group.put_many([{"key": f"{n}", "queue": "q"} for n in range(30)])
            assert len(group.lease_many(30, "q")) == 30
        with fastjournal.connect(shards[1]) as one:
            assert 0 < one.status().leased < 30


def test_a_group_begins_with_empty_journals(tmp_path: Path, command: Command) -> None:
    daemons = Daemons(tmp_path)
    try:
        with fastjournal.connect(daemons.shards[1]) as journal:
            journal.put(b"x", queue="q")
        code, _, err = command("group", "create", daemons.address("home"), *daemons.shards)
        assert code and "has jobs" in err
    finally:
        for name in list(daemons.running):
            daemons.stop(name)


def test_a_unique_key_is_refused_wherever_it_waits(group: Group) -> None:
    group.put(b"x", key="k", queue="q", mode="unique")
    with pytest.raises(AlreadyExists):
        group.put(b"x", key="k", queue="q", mode="unique")
