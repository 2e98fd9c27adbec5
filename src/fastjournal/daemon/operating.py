"""Functions of operators: looking at queues and jobs, steering queues, upkeep.

Rules: those of `requests`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastjournal.errors import (
    BadRequest,
    NotFound,
    OutOfRange,
)
from fastjournal.journal.rows import job_of
from fastjournal.model import State
from fastjournal.wire.fj import (
    Pair,
    Request,
    encode_integer,
    encode_ok,
    encode_reply,
)
from fastjournal.wire.functions import (
    DATA,
    Type,
)
from fastjournal.wire.pictures import dump, job_to_json, load, queue_to_json

if TYPE_CHECKING:
    from fastjournal.daemon.fj import FjConnection

from fastjournal.daemon.asking import named_row

__all__ = [
    "inspect",
    "list_jobs",
    "maintain",
    "pause",
    "queue",
    "redrive",
    "resume",
    "status",
]


def _json(request: Request, value: object, now: int, flags: int = 0) -> bytes:
    pair = Pair(b"", Type.STRING, dump(value))  # type: ignore[arg-type]
    return encode_reply(request.identifier, now, flags=flags | DATA, pairs=(pair,))


def status(session: FjConnection, request: Request, now: int) -> bytes:
    """Figures of the journal and the server."""
    return _json(request, session.server.status(session.host), now)


def queue(session: FjConnection, request: Request, now: int) -> bytes:
    """Change and tell the settings of a queue."""
    changes = load(request.value) if request.value else {}
    if not isinstance(changes, dict):
        raise BadRequest("settings are a JSON object")
    session.host.operations.configure(request.key, changes)
    return _json(request, _queue_picture(session, request.key), now, session.stable)


def _queue_picture(session: FjConnection, name: bytes) -> object:
    if name not in session.host.state.lanes:
        raise NotFound(f"no queue {name!r}")
    return queue_to_json(session.host.journal.queue(name))


def pause(session: FjConnection, request: Request, now: int) -> bytes:
    """Stop handing out, taking in, or both."""
    changes = _PAUSES.get(request.value or b"pause")
    if changes is None:
        raise BadRequest('PAUSE takes "pause", "drain" or "both"')
    session.host.operations.configure(request.key, changes)
    return encode_ok(request.identifier, now, session.stable)


_PAUSES = {
    b"pause": {"paused": True},
    b"drain": {"draining": True},
    b"both": {"paused": True, "draining": True},
}


def resume(session: FjConnection, request: Request, now: int) -> bytes:
    """End a pause and a draining."""
    session.host.operations.configure(request.key, {"paused": False, "draining": False})
    return encode_ok(request.identifier, now, session.stable)


def redrive(session: FjConnection, request: Request, now: int) -> bytes:
    """Let dead jobs wait again."""
    operations = session.host.operations
    if request.by_id:
        operations.redrive(request.key)
        count = 1
    else:
        lanes = session.host.state.lanes
        names = [request.key] if request.key else [n for n in lanes if lanes[n].dead]
        count = sum(operations.redrive_queue(name) for name in names)
    pair = Pair(b"", Type.INTEGER, encode_integer(count))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def inspect(session: FjConnection, request: Request, now: int) -> bytes:
    """Tell all about one thing."""
    what, host = request.value, session.host
    if what[:4] in (b"job", b"job "):
        job_id = request.key if request.by_id else b""
        row = named_row(session, job_id, request.key, leased=False, queue=what[4:])
        if 0 < row.expires < now:
            raise NotFound("the job has expired")
        host.engine.load(row)
        return _json(request, job_to_json(job_of(row)), now)
    if what == b"queue":
        return _json(request, _queue_picture(session, request.key), now)
    if what == b"queues":
        return _json(request, [queue_to_json(q) for q in host.journal.queues()], now)
    if what == b"entries":
        return _json(request, {"count": host.journal.entries.operations.count()}, now)
    if what in (b"journal", b"server"):
        return _json(request, session.server.status(host), now)
    raise BadRequest(f"INSPECT does not know {what[:40]!r}")


def list_jobs(session: FjConnection, request: Request, now: int) -> bytes:
    """List jobs, a page at a time."""
    asked = load(request.value) if request.value else {}
    if not isinstance(asked, dict):
        raise BadRequest("LIST takes a JSON object")
    try:
        state = State[asked["state"].upper()] if asked.get("state") else None
        limit, offset = int(asked.get("limit", 100)), int(asked.get("offset", 0))
        prefix = str(asked.get("prefix", "")).encode("utf-8", "surrogateescape")
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BadRequest("LIST takes state, prefix, limit, offset and values") from None
    if not 1 <= limit <= 1000 or offset < 0:
        raise OutOfRange("limit must be 1..1000, offset not negative")
    jobs = session.host.journal.jobs(request.key or None, state=state, offset=offset, limit=limit)
    values = bool(asked.get("values", True))
    shown = [job_to_json(job, values=values) for job in jobs if job.key.startswith(prefix)]
    return _json(request, shown, now)


def maintain(session: FjConnection, request: Request, now: int) -> bytes:
    """Run upkeep beside the loop."""
    journal = session.host.journal
    work: dict[bytes, Callable[[], object]] = {
        b"sync": journal.sync,
        b"rotate": journal.rotate,
        b"snapshot": journal.snapshot,
        b"clean": journal.clean,
    }
    task = work.get(request.value)
    if task is None:
        raise BadRequest('MAINTAIN takes "sync", "rotate", "snapshot" or "clean"')
    return session.later(request, task, lambda _, at: encode_ok(request.identifier, at))
