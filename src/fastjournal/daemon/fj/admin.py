"""Functions of operators: looking at queues and jobs, steering queues, upkeep.

Rules: those of `dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fastjournal.daemon.fj.jobs import named_row
from fastjournal.daemon.session import Session
from fastjournal.errors import (
    BadRequest,
    NotFound,
    OutOfRange,
    TooLarge,
    quoted,
)
from fastjournal.journal.look.listing import Listing
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row, job_of
from fastjournal.model import State
from fastjournal.wire.fj.fields import encode_integer
from fastjournal.wire.fj.functions import (
    DATA,
    Query,
    Type,
)
from fastjournal.wire.fj.json_values import dump, job_to_json, load, queue_to_json
from fastjournal.wire.fj.replies import Pair, encode_ok, encode_reply
from fastjournal.wire.fj.requests import Request

__all__ = [
    "Looked",
    "inspect",
    "list_jobs",
    "maintain",
    "pause",
    "queue",
    "redrive",
    "resume",
    "status",
]


_LIST_NAMES = frozenset(("state", "prefix", "limit", "offset", "values"))
_MAX_PAGE = 1000
_PAGE_BYTES = 4 << 20
_MAX_PREFIX = 16_384  # bytes


class Looked(Protocol):
    """What is looked at: the journal of a session, or what a node that does not lead has of it."""

    @property
    def journal(self) -> Any:
        """It has the looks of a `Journal`."""

    @property
    def state(self) -> JournalState:
        """The rows."""

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes."""

    def count_entries(self) -> int:
        """How many entries there are."""

    def status(self) -> dict[str, Any]:
        """Figures of the journal and of the server."""

    def max_message(self) -> int:
        """Most bytes of a message."""


def _json(request: Request, value: object, now: int, flags: int = 0) -> bytes:
    pair = Pair(b"", Type.STRING, dump(value))  # type: ignore[arg-type]
    return encode_reply(request.identifier, now, flags=flags | DATA, pairs=(pair,))


def status(session: Looked, request: Request, now: int) -> bytes:
    """Figures of the journal and the server."""
    return _json(request, session.status(), now)


def queue(session: Session, request: Request, now: int) -> bytes:
    """Change and tell the settings of a queue."""
    changes = load(request.value) if request.value else {}
    if not isinstance(changes, dict):
        raise BadRequest("settings are a JSON object")
    session.operations.configure(request.key, changes)
    return _json(request, _queue_picture(session, request.key), now, session.stable)


def _queue_picture(session: Looked, name: bytes) -> object:
    if name not in session.state.queues:
        raise NotFound(f"no queue {quoted(name)}")
    return queue_to_json(session.journal.queue(name))


def pause(session: Session, request: Request, now: int) -> bytes:
    """Stop handing out, taking in, or both."""
    changes = _PAUSES.get(request.value or b"pause")
    if changes is None:
        raise BadRequest('PAUSE takes "pause", "drain" or "both"')
    session.operations.configure(request.key, changes)
    return encode_ok(request.identifier, now, session.stable)


_PAUSES = {
    b"pause": {"paused": True},
    b"drain": {"draining": True},
    b"both": {"paused": True, "draining": True},
}


def resume(session: Session, request: Request, now: int) -> bytes:
    """End a pause and a draining."""
    session.operations.configure(request.key, {"paused": False, "draining": False})
    return encode_ok(request.identifier, now, session.stable)


def redrive(session: Session, request: Request, now: int) -> bytes:
    """Let dead jobs wait again."""
    operations = session.operations
    if request.by_id:
        operations.redrive(request.key)
        count = 1
    else:
        lanes = session.state.queues
        names = [request.key] if request.key else [n for n in lanes if lanes[n].dead]
        count = sum(operations.redrive_queue(name) for name in names)
    pair = Pair(b"", Type.INTEGER, encode_integer(count))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def inspect(session: Looked, request: Request, now: int) -> bytes:
    """Tell all about one thing."""
    what = request.value
    if what[:4] in (b"job", b"job "):
        job_id = request.key if request.by_id else b""
        row = named_row(session.state, job_id, request.key, leased=False, queue=what[4:])
        if 0 < row.expires < now:
            raise NotFound("the job has expired")
        session.load(row)
        return _json(request, job_to_json(job_of(row)), now)
    if what == b"queue":
        return _json(request, _queue_picture(session, request.key), now)
    if what == b"queues":
        return _json(request, [queue_to_json(q) for q in session.journal.queues()], now)
    if what == b"entries":
        return _json(request, {"count": session.count_entries()}, now)
    if what in (b"journal", b"server"):
        return _json(request, session.status(), now)
    raise BadRequest(f"INSPECT does not know {what[:40]!r}")


def list_jobs(session: Looked, request: Request, now: int) -> bytes:
    """List jobs, a page at a time; whoever goes on does so with the cursor of the reply."""
    asked = load(request.value) if request.value else {}
    if not isinstance(asked, dict) or not asked.keys() <= _LIST_NAMES:
        raise BadRequest(f"LIST takes a JSON object of {', '.join(sorted(_LIST_NAMES))}")
    limit = asked.pop("limit", 100)
    if type(limit) is not int or not 1 <= limit <= _MAX_PAGE:
        raise OutOfRange(f"limit must be 1..{_MAX_PAGE}")
    if request.query is Query.CURSOR:
        if asked:
            raise BadRequest("with a cursor LIST takes no more than a limit: the rest stands in it")
        listing = Listing.resume(request.key)
    else:
        listing = _listing(request.key, **asked)
    room = session.max_message() // 4  # base64 and quotes make it longer
    page = session.journal.lister.page(listing, limit, min(room, _PAGE_BYTES))
    shown = [
        job_to_json(job, values=listing.values, size=size)
        for job, size in zip(page.jobs, page.sizes, strict=True)
    ]
    cursor = None if page.more is None else page.more.cursor()
    pair = Pair(b"", Type.STRING, dump(shown))
    return encode_reply(request.identifier, now, flags=DATA, pairs=(pair,), cursor=cursor)


def _listing(
    queue: bytes,
    state: object = "",
    prefix: object = "",
    offset: object = 0,
    values: object = False,
) -> Listing:
    """What a request wants to have listed."""
    if not isinstance(state, str) or (state and state.upper() not in State.__members__):
        raise BadRequest(f"state is one of {', '.join(s.name.lower() for s in State)}")
    if not isinstance(prefix, str) or type(values) is not bool:
        raise BadRequest("prefix is text, values is true or false")
    if type(offset) is not int or not 0 <= offset < 1 << 63:
        raise OutOfRange("offset must not be negative")
    begins = prefix.encode("utf-8", "surrogateescape")
    if len(begins) > _MAX_PREFIX:  # it has to fit into a cursor
        raise TooLarge(f"a prefix has at most {_MAX_PREFIX} bytes")
    wanted = State[state.upper()] if state else None
    return Listing(queue, wanted, begins, values, offset)


def maintain(session: Session, request: Request, now: int) -> bytes:
    """Run upkeep beside the loop."""
    journal = session.journal
    work: dict[bytes, Callable[[], object]] = {
        b"sync": journal.sync,
        b"rotate": journal.rotate,
        b"snapshot": journal.snapshot,
        b"clean": journal.clean,
    }
    task = work.get(request.value)
    if task is None:
        raise BadRequest('MAINTAIN takes "sync", "rotate", "snapshot" or "clean"')
    identifier = request.identifier
    session.do_later(identifier, task, lambda _, at: encode_ok(identifier, at))
    return b""
