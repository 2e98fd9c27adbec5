"""The journal's core and the plain oracle side by side: every request, clock jumps, restarts.

After every step: the rows are the oracle's rows; replaying the log gives the same state by hash,
whole and split by row; the indexes agree with the rows.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastjournal.errors import RequestError
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import TYPE_OF, decode, encode, row_ids
from fastjournal.journal.language.transitions import STEPS
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import (
    DEAD,
    DONE,
    FUTURE,
    HELD,
    IDLE,
    LEASED,
    PLACES,
    READY,
    TOMB,
    image,
    job_of,
)
from fastjournal.model import Mode, NewJob, State, Where
from oracle import MS, SETTINGS, Oracle, Refused, S, compare_row, order
from stepped_core import Decisions, Granted, Nothing

QUEUES = [b"a", b"ab", b"b", b"w"]
KEYS = [b"", b"k1", b"k2"]
START = 1_700_000_000 * S


class Even:
    """Chance that never moves a wait."""

    def random(self) -> float:
        return 0.5

    def getrandbits(self, bits: int) -> int:
        raise AssertionError("ids come from elsewhere")


queues = st.sampled_from(QUEUES[:3])
keys = st.sampled_from(KEYS)
spans = st.sampled_from([0, 1, S, 5 * S, 61 * S, 3600 * S])
picks = st.integers(0, 1000)
tokens = st.sampled_from(["right", "right", "right", "wrong", "none"])
changes = st.sampled_from(
    [
        {"paused": True},
        {"paused": False},
        {"draining": True},
        {"draining": False},
        {"concurrency": 1},
        {"concurrency": 0},
        {"max_wait": 10 * S},
        {"max_wait": 0},
        {"keep_versions": True},
        {"keep_versions": False},
        {"max_fails": 1},
        {"max_timeouts": 2},
        {"max_attempts": 2},
        {"max_attempts": 0},
        {"backoff_timeouts": True},
        {"slow_from": 256},
        {"dead_keep": 100 * S},
        {"dead_keep": 0},
        {"lease": 5 * S},
    ]
)


class JournalMachine(RuleBasedStateMachine):
    """The journal's core beside the oracle."""

    @initialize()
    def open(self) -> None:
        self.log: list[tuple[int, bytes]] = []
        self.time = START - 1
        self.clock = START
        self.counter = 0
        self.oracle = Oracle()
        self.state = JournalState()
        self.passed_over: dict[bytes, int] = {}
        self.reopen()

    def reopen(self) -> None:
        self.jobs = Decisions(self.state, ids=self.new_id, chance=Even())

    def new_id(self) -> bytes:
        self.counter += 1
        # Not in the order of arrival, as random ids are not.
        return (self.counter * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") * 2

    def commit(self, command: k.Command) -> int:
        """Log and apply; the TIME of the record."""
        payload = encode(command)
        assert decode(payload) == command
        self.time = max(self.time + 1, self.clock)
        self.log.append((self.time, payload))
        members = command.members if isinstance(command, k.Group) else (command,)
        for member in members:
            self.apply_one(member)
        self.state.applied = self.time
        self.oracle.known = max(self.oracle.known, self.time)
        return self.time

    def apply_one(self, command: k.Command) -> None:
        before = self.state.rows.get(command.id)
        was = before.state if before else None
        self.state.apply(command, self.time)
        if isinstance(command, (k.Queue, k.Mark, k.Sender)):
            return
        after = self.state.rows.get(command.id)
        step = (was, after.state if after else None)
        assert step in STEPS[TYPE_OF[type(command)]], command

    def both(self, ours: Any, theirs: Any) -> Any:
        """Run a decision and the oracle's; both refuse or both go on."""
        try:
            decided = ours()
        except RequestError as refusal:
            try:
                theirs()
            except Refused:
                return None
            raise AssertionError(f"refused: {refusal!r}") from refusal
        return decided

    def some_row(self, pick: int, states: str) -> Any:
        rows = [row for row in self.oracle.rows if row["state"] in states]
        return sorted(rows, key=order)[pick % len(rows)] if rows else None

    def token(self, row: Any, kind: str) -> int | None:
        if kind == "none":
            return None
        attempts: int = row["attempts"]
        return attempts if kind == "right" else attempts + 1

    @rule(
        queue=queues,
        key=keys,
        mode=st.sampled_from([Mode.MERGE, Mode.MERGE, Mode.UNIQUE]),
        priority=st.sampled_from([0, 100, 100, 200, 230]),
        due=spans,
        life=st.sampled_from([0, 0, 0, -1, 1, 30 * S, 3600 * S]),
        age=st.sampled_from([None, None, None, 0, -1, -10 * S, 4 * S, 6 * S]),
        lease=st.sampled_from([0, 0, 3 * S]),
        limit=st.sampled_from([(0, 0, 0), (0, 0, 0), (1, 0, 0), (2, 2, 2)]),
    )
    def put(
        self,
        queue: bytes,
        key: bytes,
        mode: Mode,
        priority: int,
        due: int,
        life: int,
        age: int | None,
        lease: int,
        limit: tuple[int, int, int],
    ) -> None:
        if not key:
            mode = Mode.PLAIN
        job = NewJob(
            queue,
            b"value %d" % len(self.log),
            key,
            mode,
            priority,
            self.clock + due if due else 0,
            self.clock + life if life else 0,
            0 if age is None else self.clock + age,
            lease,
            *limit,
        )
        placed = self.both(
            lambda: self.jobs.put(job, self.clock),
            lambda: self.oracle.put(job, self.clock),
        )
        if placed is None:
            return
        outcome = self.oracle.put(job, self.clock)
        assert placed.outcome.name == outcome[0]
        assert (placed.command is None) == (outcome[0] == "STALE")
        assert outcome[1] is not None
        if outcome[1]["id"] is None:
            outcome[1]["id"] = placed.id
        assert outcome[1]["id"] == placed.id
        if placed.command is not None:
            self.commit(placed.command)

    @rule(
        number=st.integers(0, 3),
        later=st.sampled_from([0, 0, -5 * S, 5 * S, 100 * S]),
        ttl=st.sampled_from([1000, 60_000, 2_592_000_000]),
        priority=st.sampled_from([0, 5, -300]),
        limits=st.sampled_from([(0, 0), (1, 0), (2, 3)]),
    )
    def add(
        self, number: int, later: int, ttl: int, priority: int, limits: tuple[int, int]
    ) -> None:
        row_id = bytes((number,)) * 6 + b"\x40\x00\x80" + bytes(7)
        kind = k.Schedule if later else k.Add
        when = self.clock + later if later else 0
        job = kind(row_id, b"w", 2000, ttl, priority, *limits, b"payload", when, 0)
        command = self.both(
            lambda: self.jobs.add(job, self.clock), lambda: self.oracle.add(job, self.clock)
        )
        if command is not None:
            self.oracle.add(job, self.clock)
            self.commit(command)

    @rule(
        where=st.sampled_from(
            [
                Where(),
                Where(),
                Where(prefix=b"a"),
                Where(prefix=b"ab"),
                Where(prefix=b"zz"),
                Where((b"a",)),
                Where((b"b", b"w", b"none")),
            ]
        ),
        fair=st.booleans(),
        take=st.sampled_from([False, False, False, True]),
        consumer=st.sampled_from([b"c1", b"c2"]),
        length=st.sampled_from([0, 0, 2 * S]),
        count=st.sampled_from([1, 1, 3]),
    )
    def lease(
        self, where: Where, fair: bool, take: bool, consumer: bytes, length: int, count: int
    ) -> None:
        names = where.names or tuple(q for q in QUEUES if q.startswith(where.prefix))
        for _ in range(count):
            granted = self.jobs.lease(
                where, self.clock, consumer=consumer, length=length, fair=fair, take=take
            )
            kind, rows = self.oracle.choices(list(names), self.clock, consumer)
            if isinstance(granted, Nothing):
                assert kind != "rows"
                expected = self.oracle.next_due(list(names)) if kind == "nothing" else None
                assert granted.next_due == (expected if kind == "nothing" else self.oracle.known)
                return
            assert isinstance(granted, Granted)
            row = self.oracle.row(granted.row.id)
            assert row in rows
            assert row is not None
            if not fair:
                assert row == min(rows, key=order)
            else:
                self.check_turn(row, rows)
            now = self.oracle.now(self.clock)
            time = self.commit(granted.command)
            if take:
                self.oracle.rows.remove(row)
            else:
                self.oracle.known = now  # the oracle reckons with the instant of the request
                self.oracle.lease(row, self.clock, time, length)
                self.oracle.known = max(now, time)

    def check_turn(self, row: Any, rows: list[Any]) -> None:
        """No queue that has something to give is passed over more often than there are queues."""
        for other in rows:
            if other["queue"] != row["queue"]:
                count = self.passed_over.get(other["queue"], 0) + 1
                self.passed_over[other["queue"]] = count
                assert count <= 3 * len(QUEUES)
        self.passed_over[row["queue"]] = 0

    @rule(pick=picks, kind=tokens, length=st.sampled_from([0, S]))
    def touch(self, pick: int, kind: str, length: int) -> None:
        row = self.some_row(pick, "PPPWCF")
        if row is None:
            return
        token = self.token(row, "right" if kind == "none" else kind)
        assert token is not None
        command = self.both(
            lambda: self.jobs.touch(row["id"], token, self.clock, length),
            lambda: self.oracle.touch(row["id"], token, self.clock, length),
        )
        if command is not None:
            self.oracle.touch(row["id"], token, self.clock, length)
            self.commit(command)

    @rule(pick=picks, kind=tokens, result=st.sampled_from([None, b"", b"done"]))
    def complete(self, pick: int, kind: str, result: bytes | None) -> None:
        row = self.some_row(pick, "PPPWCF")
        if row is None:
            return
        token = self.token(row, kind)
        command = self.both(
            lambda: self.jobs.complete(row["id"], token, self.clock, result),
            lambda: self.oracle.complete(row["id"], token, self.clock, result),
        )
        if command is not None:
            self.oracle.complete(row["id"], token, self.clock, result)
            self.commit(command)

    @rule(pick=picks, kind=tokens, result=st.sampled_from([b"", b"broken"]))
    def fail(self, pick: int, kind: str, result: bytes) -> None:
        row = self.some_row(pick, "PPPWCF")
        if row is None:
            return
        token = self.token(row, kind)
        soon = max(self.time + 1, self.clock)
        command = self.both(
            lambda: self.jobs.fail(row["id"], token, self.clock, result),
            lambda: self.oracle.fail(row["id"], token, self.clock, soon, result),
        )
        if command is not None:
            self.oracle.fail(row["id"], token, self.clock, soon, result)
            assert self.commit(command) == soon

    @rule(pick=picks, kind=tokens, delay=st.sampled_from([0, S, 100 * S]))
    def release(self, pick: int, kind: str, delay: int) -> None:
        row = self.some_row(pick, "PPPW")
        if row is None:
            return
        token = self.token(row, "right" if kind == "none" else kind)
        assert token is not None
        command = self.both(
            lambda: self.jobs.release(row["id"], token, self.clock, delay),
            lambda: self.oracle.release(row["id"], token, self.clock, delay),
        )
        if command is not None:
            self.oracle.release(row["id"], token, self.clock, delay)
            self.commit(command)

    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        row = self.some_row(pick, "WPCF")
        if row is None:
            return
        deleted = self.jobs.delete(row["id"], self.clock)
        assert deleted.found == self.oracle.delete(row["id"], self.clock)
        assert deleted.command is not None
        self.commit(deleted.command)

    @rule(queue=queues, key=keys)
    def delete_key(self, queue: bytes, key: bytes) -> None:
        if not key:
            return
        deleted = self.jobs.delete_key(queue, key, self.clock)
        command = deleted.command
        assert command is not None
        tomb = command.members[-1] if isinstance(command, k.Group) else command
        assert isinstance(tomb, k.Tomb)
        assert deleted.found == self.oracle.delete_key(queue, key, self.clock, tomb.id)
        self.commit(command)

    @rule(pick=picks)
    def redrive(self, pick: int) -> None:
        row = self.some_row(pick, "FFW")
        if row is None:
            return
        command = self.both(
            lambda: self.jobs.redrive(row["id"], self.clock),
            lambda: self.oracle.redrive(row["id"], self.clock),
        )
        if command is not None:
            self.oracle.redrive(row["id"], self.clock)
            self.commit(command)

    @rule(queue=st.sampled_from(QUEUES), change=changes)
    def set_queue(self, queue: bytes, change: dict[str, Any]) -> None:
        old = self.oracle.of(queue)
        command = self.jobs.set_queue(queue, change)
        assert (command is None) == (old == {**old, **change})
        if command is not None:
            merged = {**self.oracle.settings.get(queue, {}), **change}
            self.oracle.settings[queue] = {n: v for n, v in merged.items() if v != SETTINGS[n]}
            self.commit(command)

    @rule(limit=st.sampled_from([1000, 1000, 1]))
    def timers(self, limit: int) -> None:
        now = self.oracle.known = self.oracle.now(self.clock)
        for command in self.jobs.timers(self.clock, limit):
            event = self.oracle.passed(now)[0]
            time = self.commit(command)
            self.oracle.known = now
            self.oracle.happen(event, now, time)
            self.oracle.known = max(now, time)
        if limit > 1:
            assert not self.oracle.passed(now)
            deadline = self.jobs.next_deadline()
            assert deadline == 0 or deadline > now

    @rule(step=st.sampled_from([1, MS, S, 2 * S, 10 * S, 61 * S, 3700 * S, 8 * 86400 * S]))
    def wait(self, step: int) -> None:
        self.clock += step

    @rule(step=st.sampled_from([S, 3600 * S]))
    def clock_steps_back(self, step: int) -> None:
        self.clock -= step

    @rule()
    def restart(self) -> None:
        self.replace_state(self.replay(self.log))

    @rule()
    def restart_from_an_image(self) -> None:
        """What a snapshot does."""
        state = JournalState()
        for command in self.state.commands():
            state.apply(decode(encode(command)), self.state.applied)
        assert state.digest() == self.state.digest()
        # The log goes on from the image: what is replayed later starts with it.
        self.log = [(self.state.applied, line) for line in self.state.lines()]
        self.replace_state(state)

    def replace_state(self, state: JournalState) -> None:
        self.state = state
        self.reopen()
        self.oracle.busy.clear()
        self.passed_over.clear()
        self.oracle.known = state.now
        self.oracle.stamp = max(state.now, state.last_inserted)

    def replay(self, log: list[tuple[int, bytes]]) -> JournalState:
        state = JournalState()
        for time, payload in log:
            state.apply(decode(payload), time)
        return state

    @invariant()
    def rows_are_those_of_the_oracle(self) -> None:
        assert len(self.state.rows) == len(self.oracle.rows)
        for theirs in self.oracle.rows:
            compare_row(job_of(self.state.rows[theirs["id"]]), theirs)

    @invariant()
    def at_most_one_waits_and_one_is_worked_on_for_each_key(self) -> None:
        seen = set()
        for row in self.oracle.rows:
            if row["key"] and not row["versions"] and row["state"] in "WP":
                mark = (row["queue"], row["key"], row["state"])
                if not any(r["versions"] for r in self.oracle.twins(row)):
                    assert mark not in seen
                seen.add(mark)

    @invariant()
    def replay_gives_the_state(self) -> None:
        assert self.replay(self.log).digest() == self.state.digest()

    @invariant()
    def replay_gives_the_places_too(self) -> None:
        replayed = self.replay(self.log)
        replayed.promote(self.state.now)
        self.check_indexes(replayed)
        for row_id, row in replayed.rows.items():
            place = self.state.rows[row_id].place
            assert row.place == place or IDLE in (row.place, place) or place == FUTURE

    @invariant()
    def replay_split_by_row_gives_the_same_rows(self) -> None:
        shards = [JournalState() for _ in range(3)]
        for time, payload in self.log:
            command = decode(payload)
            members = command.members if isinstance(command, k.Group) else (command,)
            for member in members:
                named = row_ids(encode(member))
                if not named:
                    for shard in shards:
                        shard.apply(member, time)
                else:
                    shards[named[0][0] % 3].apply(member, time)
        images = [encode(c) for shard in shards for row in shard.rows.values() for c in image(row)]
        whole = [encode(c) for row in self.state.rows.values() for c in image(row)]
        assert sorted(images) == sorted(whole)

    @invariant()
    def indexes_agree_with_the_rows(self) -> None:
        self.check_indexes(self.state)

    def check_indexes(self, state: JournalState) -> None:
        counts = {name: [0] * PLACES for name in state.queues}
        for row in state.rows.values():
            counts[row.queue.name][row.place] += 1
            places = {
                State.WAITING: (READY, FUTURE, HELD, IDLE),
                State.PROCESSING: (LEASED,),
                State.COMPLETED: (DONE,),
                State.FAILED: (DEAD,),
                State.DELETED: (TOMB,),
            }[row.state]
            assert row.place in places
            assert (row.lease_until > 0) == (row.state is State.PROCESSING)
            kept = (State.WAITING, State.PROCESSING, State.DELETED)
            keyed = bool(row.key) and row.state in kept
            assert keyed == (row in list(state.keys.find(row.queue.name, row.key)))
        for name, lane in state.queues.items():
            assert lane.counts == counts[name]
            assert lane.total == sum(counts[name])
            assert set(lane.dead) == {
                row_id
                for row_id, row in state.rows.items()
                if row.place == DEAD and row.queue is lane.rules
            }
            if lane.listed:
                assert lane.open

    @invariant()
    @precondition(lambda self: hasattr(self, "log"))
    def arrival_numbers_differ(self) -> None:
        rows = self.state.rows.values()
        ours = [row.inserted for row in rows if row.state is not State.DELETED]
        assert len(set(ours)) == len(ours)


WEIGHTS = {
    "put": 30,
    "add": 6,
    "lease": 30,
    "touch": 4,
    "complete": 8,
    "fail": 10,
    "release": 4,
    "delete": 1,
    "delete_key": 2,
    "redrive": 4,
    "set_queue": 2,
    "timers": 8,
    "wait": 10,
    "clock_steps_back": 1,
    "restart": 1,
    "restart_from_an_image": 1,
}
CHECK_EVERY = 10


def one_of(chance: Random, *choices: Any) -> Any:
    return chance.choice(choices)


def arguments(name: str, chance: Random) -> dict[str, Any]:
    """Arguments that lead to long lives: the state machine above sees to the odd ones."""
    pick = chance.randrange(1000)
    token = one_of(chance, "right", "right", "right", "right", "wrong", "none")
    queue = one_of(chance, *QUEUES[:3])
    match name:
        case "put":
            return {
                "queue": queue,
                "key": one_of(chance, *KEYS, b"k3"),
                "mode": one_of(chance, Mode.MERGE, Mode.MERGE, Mode.MERGE, Mode.UNIQUE),
                "priority": one_of(chance, 0, 100, 100, 100, 200, 230),
                "due": one_of(chance, 0, 0, 0, S, 61 * S),
                "life": one_of(chance, 0, 0, 0, 0, 30 * S, 3600 * S),
                "age": one_of(chance, None, None, None, None, 0, -10 * S, 4 * S),
                "lease": one_of(chance, 0, 0, 3 * S),
                "limit": one_of(chance, (0, 0, 0), (0, 0, 0), (3, 0, 0), (0, 2, 2)),
            }
        case "add":
            return {
                "number": pick % 4,
                "later": one_of(chance, 0, 0, -5 * S, 5 * S),
                "ttl": one_of(chance, 60_000, 2_592_000_000),
                "priority": one_of(chance, 0, 5, -300),
                "limits": one_of(chance, (0, 0), (1, 0), (2, 3)),
            }
        case "lease":
            return {
                "where": one_of(
                    chance, Where(), Where(), Where(), Where(prefix=b"a"), Where((b"b", b"w"))
                ),
                "fair": one_of(chance, True, True, False),
                "take": pick % 20 == 0,
                "consumer": one_of(chance, b"c1", b"c2"),
                "length": one_of(chance, 0, 2 * S),
                "count": one_of(chance, 1, 1, 3),
            }
        case "touch":
            return {"pick": pick, "kind": token, "length": one_of(chance, 0, S)}
        case "complete":
            return {"pick": pick, "kind": token, "result": one_of(chance, None, b"", b"done")}
        case "fail":
            return {"pick": pick, "kind": token, "result": one_of(chance, b"", b"broken")}
        case "release":
            return {"pick": pick, "kind": token, "delay": one_of(chance, 0, S)}
        case "delete" | "redrive":
            return {"pick": pick}
        case "delete_key":
            return {"queue": queue, "key": one_of(chance, *KEYS)}
        case "set_queue":
            change = one_of(
                chance,
                {"concurrency": 2},
                {"concurrency": 0},
                {"max_wait": 10 * S},
                {"keep_versions": True},
                {"keep_versions": False},
                {"keep_versions": False},
                {"max_timeouts": 3},
                {"backoff_timeouts": True},
                {"backoff_timeouts": False},
                {"paused": True},
                {"paused": False},
                {"paused": False},
                {"lease": 5 * S},
                {"dead_keep": 100 * S},
            )
            return {"queue": one_of(chance, *QUEUES), "change": change}
        case "timers":
            return {"limit": one_of(chance, 1000, 1000, 1)}
        case "wait":
            return {"step": one_of(chance, 1, MS, S, S, 3 * S, 61 * S)}
        case "clock_steps_back":
            return {"step": one_of(chance, S, 60 * S)}
    return {}
