"""What a journal should do, written as plainly as possible: a list of dicts and loops over it.

It knows nothing of commands, indexes or logs. Ids and instants of records are told to it; all
else it works out by itself.
"""

from __future__ import annotations

from typing import Any

MS = 1_000_000
S = 1_000_000_000
SETTINGS: dict[str, Any] = {
    "lease": 60 * S,
    "max_timeouts": 10,
    "max_attempts": 0,
    "max_fails": 3,
    "max_wait": 0,
    "backoff_base": S,
    "backoff_factor": 2.0,
    "backoff_cap": 3600 * S,
    "backoff_timeouts": False,
    "slow_from": 200,
    "keep_versions": False,
    "dead_keep": 7 * 86400 * S,
    "result_ttl": 86400 * S,
    "concurrency": 0,
    "paused": False,
    "draining": False,
}
SKEW = 5 * S
GRACE = 3600 * S

Row = dict[str, Any]


def compare_row(job: Any, row: Row) -> None:
    """A job is pictured as the oracle has its row, as far as that tells of it."""
    ours = job._asdict() | {"state": job.state.letter, "queue": job.queue_bytes}
    ours |= {"key": job.key_bytes, "value": job.payload}
    for name, value in row.items():
        if name in ours:
            assert ours[name] == value, (name, ours, row)


class Refused(Exception):
    """The request is refused; the argument says why."""


class Oracle:
    """Jobs in a list."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.settings: dict[bytes, dict[str, Any]] = {}
        self.known = 0
        self.stamp = 0
        self.busy: set[bytes] = set()

    def of(self, queue: bytes) -> dict[str, Any]:
        return {**SETTINGS, **self.settings.get(queue, {})}

    def row(self, row_id: bytes) -> Row | None:
        return next((row for row in self.rows if row["id"] == row_id), None)

    def now(self, now: int) -> int:
        return max(now, self.known)

    def expired(self, row: Row, now: int) -> bool:
        return bool(row["expires"]) and now > row["expires"]

    def draw(self, now: int) -> int:
        self.stamp = max(now, self.stamp + 1)
        return self.stamp

    def put(self, job: Any, now: int) -> tuple[str, Row | None]:
        """Outcome, and the row it concerns; a new row has no id yet."""
        now = self.now(now)
        rules = self.of(job.queue)
        if rules["draining"]:
            raise Refused("draining")
        if job.timestamp > now + SKEW:
            raise Refused("clock")
        if job.expires and now > job.expires:
            raise Refused("expired")
        before = self.stamp
        stamp = self.draw(now)
        timestamp = job.timestamp or stamp
        waiting = working = tomb = None
        named = [r for r in self.rows if (r["queue"], r["key"]) == (job.queue, job.key)]
        if job.key and rules["keep_versions"]:
            for row in named:
                if row["state"] == "D" and 0 < job.timestamp <= row["modified"]:
                    return "STALE", row
        if job.key and not rules["keep_versions"]:
            reach = [r["modified"] + 1 for r in named if r["state"] in "WPD"]
            timestamp = job.timestamp or max([stamp, *reach])
            tomb = next((r for r in named if r["state"] == "D"), None)
            same = [r for r in self.rows if (r["queue"], r["key"]) == (job.queue, job.key)]
            live = [r for r in same if r["state"] == "W" and not self.expired(r, now)]
            waiting = max(live, key=lambda r: r["inserted"], default=None)
            busy = [r for r in same if r["state"] == "P"]
            working = max(busy, key=lambda r: r["inserted"], default=None)
            if job.mode == 1 and (waiting or working):
                holder = waiting or working
                assert holder is not None
                if job.timestamp and holder["modified"] == job.timestamp:
                    return "STALE", holder
                self.stamp = before  # what is refused changes nothing
                raise Refused("taken")
            if waiting:
                return self.merge(waiting, job, timestamp, now, rules), waiting
            if working and timestamp <= working["modified"]:
                return "STALE", working
            if tomb and timestamp <= tomb["modified"]:
                return "STALE", tomb
            for row in [r for r in same if r["state"] == "W"]:
                self.rows.remove(row)  # expired
            if tomb:
                self.rows.remove(tomb)
        due = max(stamp, job.due)
        if rules["max_wait"]:
            due = min(due, stamp + rules["max_wait"])
        row = {
            "id": None,
            "queue": job.queue,
            "key": job.key,
            "value": job.value,
            "rank": job.priority,
            "due": due,
            "inserted": stamp,
            "modified": timestamp,
            "expires": job.expires,
            "state": "W",
            "attempts": tomb["attempts"] if tomb else 0,
            "timeouts": 0,
            "fails": 0,
            "lease_until": 0,
            "result": b"",
            "workq": False,
            "versions": rules["keep_versions"],
            "lease": job.lease,
            "max_attempts": job.max_attempts,
            "max_timeouts": job.max_timeouts,
            "max_fails": job.max_fails,
            "died": 0,
        }
        if row["max_attempts"]:
            row["max_attempts"] += row["attempts"]
        self.rows.append(row)
        return ("TWIN" if working else "NEW"), row

    def merge(self, row: Row, job: Any, timestamp: int, now: int, rules: dict[str, Any]) -> str:
        if timestamp <= row["modified"]:
            return "STALE"
        row["value"] = job.value
        row["modified"] = timestamp
        for name in ("lease", "max_attempts", "max_timeouts", "max_fails"):
            row[name] = getattr(job, name) or row[name]
        row["rank"] = min(row["rank"], job.priority)
        row["expires"] = max(row["expires"], job.expires) if row["expires"] and job.expires else 0
        due = max(row["due"], job.due or now)
        if rules["max_wait"]:
            due = min(due, row["inserted"] + rules["max_wait"])
        row["due"] = max(due, row["inserted"])
        row["timeouts"] = 0
        return "MERGED"

    def add(self, job: Any, now: int) -> None:
        now = self.now(now)
        if self.of(job.name)["draining"]:
            raise Refused("draining")
        created = self.draw(now)
        expires = (job.time or created) + job.ttl * MS
        if expires < now:
            raise Refused("expired")
        old = self.row(job.id)
        if old is not None:
            if not self.expired(old, now):
                raise Refused("taken")
            self.rows.remove(old)
        self.rows.append(
            {
                "id": job.id,
                "queue": job.name,
                "key": b"",
                "value": job.payload,
                "rank": -job.priority,
                "due": job.time or created,
                "inserted": created,
                "modified": created,
                "expires": expires,
                "state": "W",
                "attempts": 0,
                "timeouts": 0,
                "fails": 0,
                "lease_until": 0,
                "result": b"",
                "workq": True,
                "versions": False,
                "lease": job.ttr * MS,
                "max_attempts": job.max_attempts,
                "max_timeouts": 0,
                "max_fails": job.max_fails,
                "died": 0,
            }
        )

    def twins(self, row: Row) -> list[Row]:
        if not row["key"]:
            return []
        same = (row["queue"], row["key"])
        return [r for r in self.rows if (r["queue"], r["key"]) == same and r is not row]

    def held(self, row: Row) -> bool:
        return not row["versions"] and any(r["state"] == "P" for r in self.twins(row))

    def ready(self, queue: bytes, now: int) -> list[Row]:
        """What may be handed out from a queue, in order."""
        rules = self.of(queue)
        mine = [row for row in self.rows if row["queue"] == queue]
        leased = sum(row["state"] == "P" for row in mine)
        if rules["paused"] or 0 < rules["concurrency"] <= leased:
            return []
        found = [
            row
            for row in mine
            if row["state"] == "W"
            and row["due"] <= now
            and not self.expired(row, now)
            and not self.held(row)
        ]
        return sorted(found, key=order)

    def slow(self, row: Row) -> bool:
        return not row["workq"] and row["rank"] >= self.of(row["queue"])["slow_from"]

    def choices(self, queues: list[bytes], now: int, consumer: bytes) -> tuple[str, list[Row]]:
        """What a consumer may get: ("rows", one head for each queue) or ("nothing"|"later", [])."""
        now = self.known = self.now(now)
        heads = [rows[0] for rows in (self.ready(queue, now) for queue in queues) if rows]
        if not heads:
            self.busy.discard(consumer)
            return "nothing", []
        quick = [row for row in heads if not self.slow(row)]
        if quick:
            self.busy.add(consumer)
            return "rows", quick
        if consumer in self.busy:
            self.busy.discard(consumer)
            return "later", []
        return "rows", heads

    def lease(self, row: Row, now: int, time: int, length: int) -> None:
        now = self.now(now)
        row["state"] = "P"
        row["attempts"] += 1
        rules = self.of(row["queue"])
        if row["workq"]:
            row["lease_until"] = time + row["lease"]
        else:
            row["lease_until"] = now + (length or row["lease"] or rules["lease"])

    def holder(self, row_id: bytes, token: int | None, now: int) -> Row:
        row = self.row(row_id)
        if row is None or row["state"] == "D" or self.expired(row, now):
            raise Refused("unknown")
        if token is None:
            if row["state"] not in "WP":
                raise Refused("taken")
        elif row["state"] != "P" or row["attempts"] != token:
            raise Refused("lost")
        return row

    def touch(self, row_id: bytes, token: int, now: int, length: int) -> None:
        now = self.now(now)
        row = self.holder(row_id, token, now)
        row["lease_until"] = now + (length or row["lease"] or self.of(row["queue"])["lease"])

    def complete(self, row_id: bytes, token: int | None, now: int, result: bytes | None) -> None:
        now = self.now(now)
        row = self.holder(row_id, token, now)
        row["lease_until"] = 0
        if result is None and not row["workq"]:
            self.rows.remove(row)
            return
        row["state"] = "C"
        row["result"] = result or b""
        row["expires"] = row["expires"] or now + self.of(row["queue"])["result_ttl"]

    def fail(self, row_id: bytes, token: int | None, now: int, time: int, result: bytes) -> None:
        now = self.now(now)
        row = self.holder(row_id, token, now)
        rules = self.of(row["queue"])
        max_fails, max_attempts = row["max_fails"], row["max_attempts"]
        if row["workq"]:
            max_fails = max_fails or 1
        else:
            max_fails = max_fails or rules["max_fails"]
            max_attempts = max_attempts or rules["max_attempts"]
        row["lease_until"] = 0
        if 0 < max_fails <= row["fails"] + 1 or 0 < max_attempts <= row["attempts"]:
            row.update(state="F", result=result, died=time, fails=row["fails"] + 1)
        elif self.waiting_twin(row, now):
            self.rows.remove(row)
        else:
            self.drop_expired(row, now)
            row.update(state="W", due=now + self.wait(rules, row["fails"]), fails=row["fails"] + 1)

    def wait(self, rules: dict[str, Any], before: int) -> int:
        return int(
            min(rules["backoff_base"] * rules["backoff_factor"] ** before, rules["backoff_cap"])
        )

    def waiting_twin(self, row: Row, now: int) -> bool:
        if row["versions"]:
            return False
        return any(r["state"] == "W" and not self.expired(r, now) for r in self.twins(row))

    def drop_expired(self, row: Row, now: int) -> None:
        """A row that waits again finds no expired one of its key."""
        if not row["versions"]:
            for twin in self.twins(row):
                if twin["state"] == "W" and self.expired(twin, now):
                    self.rows.remove(twin)

    def release(self, row_id: bytes, token: int, now: int, delay: int) -> None:
        now = self.now(now)
        row = self.holder(row_id, token, now)
        row["lease_until"] = 0
        if self.waiting_twin(row, now):
            self.rows.remove(row)
            return
        self.drop_expired(row, now)
        row["state"] = "W"
        if delay:
            row["due"] = now + delay

    def delete(self, row_id: bytes, now: int) -> int:
        now = self.now(now)
        row = self.row(row_id)
        assert row is not None
        there = not self.expired(row, now)
        if row["workq"] or row["state"] not in "WP":
            self.rows.remove(row)
            return there
        for twin in self.twins(row):
            if twin["state"] == "D":
                self.rows.remove(twin)
        self.bury(row, max(now, row["modified"] + 1))
        return there

    def delete_key(self, queue: bytes, key: bytes, now: int, tomb: bytes) -> int:
        """How many there were; `tomb`: the id of the tombstone."""
        now = self.now(now)
        same = [r for r in self.rows if (r["queue"], r["key"]) == (queue, key)]
        named = [r for r in same if r["state"] in "WPD"]
        count = sum(bool(r["state"] != "D" and not self.expired(r, now)) for r in named)
        when = max([now, *(r["modified"] + 1 for r in named)])
        for row in [r for r in named if r["id"] != tomb]:
            self.rows.remove(row)
        buried = self.row(tomb)
        if buried is None:
            buried = dict.fromkeys(
                ("rank", "attempts", "lease", "max_attempts", "max_timeouts", "max_fails"), 0
            ) | {"id": tomb, "queue": queue, "key": key, "due": when, "inserted": when}
            buried |= {"workq": False, "versions": False}
            self.rows.append(buried)
        else:
            assert buried["state"] == min((r["state"] for r in named), key="WPD".index)
        self.bury(buried, when)
        return count

    def bury(self, row: Row, when: int) -> None:
        row |= {"state": "D", "value": b"", "expires": 0, "modified": when, "lease_until": 0}
        row |= {"timeouts": 0, "fails": 0, "result": b"", "died": 0}

    def redrive(self, row_id: bytes, now: int) -> None:
        now = self.now(now)
        row = self.row(row_id)
        if row is None or row["state"] == "D" or self.expired(row, now):
            raise Refused("unknown")
        if row["state"] != "F":
            raise Refused("not dead")
        if self.waiting_twin(row, now):
            raise Refused("taken")
        self.drop_expired(row, now)
        limit = row["max_attempts"]
        if not row["workq"]:
            limit = limit or self.of(row["queue"])["max_attempts"]
        if 0 < limit <= row["attempts"]:
            row["max_attempts"] = limit + row["attempts"]
        row.update(state="W", due=now, timeouts=0, fails=0, result=b"", died=0)

    def passed(self, now: int) -> list[tuple[int, int, int, bytes]]:
        """What has happened by now: instant, kind, inserted, id."""
        found = []
        for row in self.rows:
            rules = self.of(row["queue"])
            if row["state"] == "P" and row["lease_until"] <= now:
                found.append((row["lease_until"], 0, row["inserted"], row["id"]))
            if self.expired(row, now):
                found.append((row["expires"], 1, row["inserted"], row["id"]))
            forget = row["died"] + rules["dead_keep"]
            if row["state"] == "F" and not row["expires"] and rules["dead_keep"] and forget <= now:
                found.append((forget, 2, row["inserted"], row["id"]))
            if row["state"] == "D" and row["modified"] + GRACE <= now:
                found.append((row["modified"] + GRACE, 3, row["inserted"], row["id"]))
        return sorted(found)

    def happen(self, event: tuple[int, int, int, bytes], now: int, time: int) -> None:
        """Let the first thing of `passed` happen."""
        row = self.row(event[3])
        assert row is not None
        if event[1]:
            self.rows.remove(row)
            return
        rules = self.of(row["queue"])
        row["lease_until"] = 0
        if self.waiting_twin(row, now):
            self.rows.remove(row)
            return
        row["timeouts"] += 1
        max_attempts, max_timeouts = row["max_attempts"], row["max_timeouts"]
        if not row["workq"]:
            max_attempts = max_attempts or rules["max_attempts"]
            max_timeouts = max_timeouts or rules["max_timeouts"]
        if 0 < max_attempts <= row["attempts"] or 0 < max_timeouts <= row["timeouts"]:
            row.update(state="F", died=time if row["workq"] else now)
            return
        self.drop_expired(row, now)
        row["state"] = "W"
        if rules["backoff_timeouts"] and not row["workq"]:
            row["due"] = now + self.wait(rules, row["timeouts"] - 1)

    def next_due(self, queues: list[bytes]) -> int:
        """When one of these queues may have work again."""
        instants = []
        for row in self.rows:
            if row["queue"] in queues:
                if row["state"] == "W" and row["due"] > self.known:
                    instants.append(row["due"])
                if row["state"] == "P":
                    instants.append(row["lease_until"])
        return min(instants, default=0)


def order(row: Row) -> tuple[int, int, int, bytes]:
    """The order inside a queue."""
    return (row["rank"], row["due"], row["inserted"], row["id"])
