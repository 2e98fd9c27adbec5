"""Calls of operators: looking, steering, upkeep, subscriptions. Rules: those of `calls`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastjournal.arguments import (
    Instant,
    JobId,
    Text,
    id_bytes,
    instant,
    key_bytes,
    length,
    queue_bytes,
)
from fastjournal.client.calls import Call, make_call, nothing, value_of
from fastjournal.client.urls import Target
from fastjournal.errors import BadRequest, NotPrimary, ProtocolError
from fastjournal.keys import domain
from fastjournal.model import (
    SETTING_LENGTHS,
    Event,
    Job,
    QueueSettings,
    QueueStatus,
    State,
)
from fastjournal.wire.fj.fields import decode_integer
from fastjournal.wire.fj.functions import BY_ID, JOBS, WORKED_ON, Function, Query, Type
from fastjournal.wire.fj.hello import DESCRIBE, FOLLOWER, Hello, encode_hello
from fastjournal.wire.fj.json_values import dump, job_from_json, load, queue_from_json
from fastjournal.wire.fj.replies import Reply

__all__ = [
    "Figures",
    "JobPages",
    "configure",
    "delete",
    "event",
    "hello",
    "job",
    "listen",
    "maintain",
    "ping",
    "queue",
    "queues",
    "redrive",
    "status",
]

_PAGE = 1000


class Figures:
    """Figures of a daemon, to be read like the status of an embedded journal: by attribute."""

    rows: int
    """All of them: jobs, entries, tombstones."""
    queues: int
    ready: int
    future: int
    held: int
    leased: int
    completed: int
    dead: int
    jobs: int
    """Rows in queues."""
    entries: int
    sync: str
    clean_start: bool
    disk_full: bool
    replayed_records: int
    replay_seconds: float
    log: Figures
    upkeep: Figures
    server: Figures

    def __init__(self, data: Mapping[str, Any]) -> None:
        for name, value in data.items():
            setattr(self, name, Figures(value) if isinstance(value, dict) else value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def _asdict(self) -> dict[str, Any]:
        return {
            name: value._asdict() if isinstance(value, Figures) else value
            for name, value in vars(self).items()
        }

    def __repr__(self) -> str:
        return f"Figures({vars(self)})"


def delete(
    job_id: JobId | None, key: Text | None, queue: Text | None, timestamp: Instant | None = None
) -> Call:
    """Remove a job."""
    if (job_id is None) == (key is None):
        raise BadRequest("give an id or a key")
    if job_id is not None:
        fields: dict[str, Any] = {"flags": BY_ID, "key": id_bytes(job_id), "ttl": 0}
    else:
        fields = {"key": key_bytes(key or b"")}
        if queue is None:
            fields["flags"] = JOBS
        else:
            fields |= {"value_type": Type.STRING, "value": queue_bytes(queue)}
    fields["timestamp"] = 0 if timestamp is None else instant(timestamp, "timestamp")
    return make_call(Function.DELETE, lambda reply: decode_integer(value_of(reply)) > 0, fields)


def redrive(job_id: JobId | None, queue: Text | None) -> Call:
    """Let dead jobs wait again."""
    if (job_id is None) == (queue is None):
        raise BadRequest("give an id or a queue")
    if job_id is not None:
        fields: dict[str, Any] = {"flags": BY_ID, "key": id_bytes(job_id), "ttl": 0}
    else:
        fields = {"key": queue_bytes(queue or b"")}
    return make_call(
        Function.REDRIVE, lambda reply: decode_integer(value_of(reply)), fields, again=False
    )


def configure(queue: Text, settings: Mapping[str, Any]) -> Call:
    """Change settings of a queue."""
    changes = {
        name: length(value, name) if name in SETTING_LENGTHS else value
        for name, value in settings.items()
    }
    fields = {"key": queue_bytes(queue), "value_type": Type.STRING, "value": dump(changes)}
    return make_call(Function.QUEUE, _read_settings, fields)


def _read_settings(reply: Reply) -> QueueSettings:
    return queue_from_json(load(value_of(reply))).settings


def job(job_id: JobId | None, key: Text | None, queue: Text | None) -> Call:
    """Look at a job."""
    fields: dict[str, Any] = {"value_type": Type.STRING, "value": b"job"}
    if job_id is not None:
        fields |= {"flags": BY_ID, "key": id_bytes(job_id), "ttl": 0}
    else:
        name = key_bytes(key if key is not None else b"")
        where = domain(name) if queue is None else queue_bytes(queue)
        fields |= {"key": name, "value": b"job " + where}
    return make_call(Function.INSPECT, lambda reply: job_from_json(load(value_of(reply))), fields)


class JobPages:
    """The pages of a listing of jobs, one call after another: ask while `call` gives one."""

    def __init__(
        self,
        queue: Text | None,
        state: State | None,
        prefix: Text | None,
        offset: int,
        limit: int,
        values: bool,
    ) -> None:
        if offset < 0 or limit < 0:
            raise BadRequest("offset and limit must not be negative")
        given: Any = prefix or b""
        begins = given.encode() if isinstance(given, str) else bytes(given)
        self._asked: dict[str, Any] = {"offset": offset, "values": values}
        if state is not None:
            self._asked["state"] = state.name
        if begins:
            self._asked["prefix"] = begins.decode("utf-8", "surrogateescape")
        self._fields: dict[str, Any] = {
            "key": b"" if queue is None else queue_bytes(queue), "value_type": Type.STRING,
        }  # fmt: skip
        self._left = limit
        self.jobs: list[Job] = []
        """What was found so far, in order of arrival."""

    def call(self) -> Call | None:
        """What to ask next; None: that was all."""
        if self._left <= 0:
            return None
        asked = self._asked | {"limit": min(self._left, _PAGE)}
        return make_call(Function.LIST, self._read, self._fields | {"value": dump(asked)})

    def _read(self, reply: Reply) -> None:
        found = [job_from_json(job) for job in load(value_of(reply))]
        self.jobs += found
        self._left = self._left - len(found) if reply.cursor else 0
        self._asked = {}
        self._fields |= {"key": reply.cursor, "query": Query.CURSOR}


def queues() -> Call:
    """All queues."""
    fields = {"value_type": Type.STRING, "value": b"queues"}

    def read(reply: Reply) -> list[QueueStatus]:
        return [queue_from_json(queue) for queue in load(value_of(reply))]

    return make_call(Function.INSPECT, read, fields)


def queue(name: Text) -> Call:
    """One queue."""
    fields = {"key": queue_bytes(name), "value_type": Type.STRING, "value": b"queue"}
    return make_call(Function.INSPECT, lambda reply: queue_from_json(load(value_of(reply))), fields)


def status() -> Call:
    """Figures of the journal and the server."""
    return make_call(Function.STATUS, lambda reply: Figures(load(value_of(reply))), {})


def maintain(what: str) -> Call:
    """Run upkeep."""
    fields = {"value_type": Type.STRING, "value": what.encode()}
    return make_call(Function.MAINTAIN, nothing, fields, wait=600)


def ping() -> Call:
    """The server's time, ns since 1970."""
    return make_call(Function.PING, lambda reply: reply.timestamp, {})


def hello(target: Target, now: int = 0) -> Call:
    """Say who we are and what our clock says; the answer is what the server says of itself, and its
    time. Who wants to look at a follower is refused by anybody else (`NotPrimary`)."""
    options = DESCRIBE | FOLLOWER if target.follower else DESCRIBE
    value = encode_hello(
        Hello(target.token, target.journal, options, now, round(target.max_lag * 1000))
    )
    name = target.name
    fields = {"key": name.encode(), "value_type": Type.BUFFER, "value": value}

    def read(reply: Reply) -> tuple[dict[str, Any], int]:
        about = load(value_of(reply))
        if not isinstance(about, dict):
            raise ProtocolError("the server does not say who it is")
        if target.follower and about.get("replica", {}).get("role") != "follower":
            raise NotPrimary
        return about, reply.timestamp

    return make_call(Function.HELLO, read, fields)


def listen(queue: Text | None) -> Call:
    """Be told when a queue, or any, has something to give."""
    fields = {"flags": WORKED_ON, "key": b"" if queue is None else queue_bytes(queue)}
    return make_call(Function.LISTEN, nothing, fields)


def event(reply: Reply) -> Event:
    """What a push tells."""
    key = reply.pairs[0].key if reply.pairs else b""
    if not key:
        return Event("lost", at=reply.timestamp)
    return Event("dead" if reply.gone else "due", key, at=reply.timeout or reply.timestamp)
