"""The functions of the FJ protocol, carried out on a journal: a request in, the reply out.

Rules:

1. Every handler runs under the journal's lock inside a batch and waits for nothing. Empty bytes
   mean: answered later.
2. A `JournalError` becomes the reply; the handler has then changed nothing.
3. A bulk request has one outcome per item; a refused item does not stop the others.
4. Bit 9 of a reply is set by the connection's `stable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastjournal.daemon import consuming, entries, operating, producing, pushes
from fastjournal.errors import (
    BadFunction,
)
from fastjournal.wire.fj.functions import (
    Function,
)
from fastjournal.wire.fj.replies import encode_ok
from fastjournal.wire.fj.requests import Request

if TYPE_CHECKING:
    from fastjournal.daemon.fj import FjConnection


__all__ = ["HANDLERS", "Handler", "reserved"]

Handler = Callable[["FjConnection", Request, int], bytes]


def _nop(session: FjConnection, request: Request, now: int) -> bytes:
    return encode_ok(request[1], now)


def _quit(session: FjConnection, request: Request, now: int) -> bytes:
    session.quit()
    return encode_ok(request[1], now)


def _hello(session: FjConnection, request: Request, now: int) -> bytes:
    from fastjournal.daemon.greeting import hello  # which needs the table below

    return hello(session, request, now)


def reserved(session: FjConnection, request: Request, now: int) -> bytes:
    """Answers for functions that are not served yet."""
    raise BadFunction(f"{Function(request.function).name} is not served yet")


HANDLERS: dict[int, Handler] = {
    Function.NOP: _nop,
    Function.QUIT: _quit,
    Function.SET: entries.set_any,
    Function.GET: entries.get_any,
    Function.DELETE: entries.delete_any,
    Function.ADD: entries.add,
    Function.NOT: entries.flip,
    Function.TRUNCATE: entries.truncate,
    Function.LOCK: entries.lock,
    Function.UNLOCK: entries.unlock,
    Function.RENAME: entries.rename,
    Function.ALIAS: entries.alias,
    Function.NEXT: consuming.next_job,
    Function.DONE: consuming.done,
    Function.FAIL: consuming.fail,
    Function.PING: _nop,
    Function.LISTEN: pushes.listen,
    Function.UNLISTEN: pushes.listen,
    Function.HELLO: _hello,
    Function.STATUS: operating.status,
    Function.PUTS: producing.puts,
    Function.LEASE: consuming.lease_many,
    Function.SETTLE: consuming.settle,
    Function.TOUCH: consuming.touch,
    Function.RELEASE: consuming.release,
    Function.RESULT: consuming.result,
    Function.FORWARD: producing.forward,
    Function.QUEUE: operating.queue,
    Function.PAUSE: operating.pause,
    Function.RESUME: operating.resume,
    Function.REDRIVE: operating.redrive,
    Function.INSPECT: operating.inspect,
    Function.LIST: operating.list_jobs,
    Function.MAINTAIN: operating.maintain,
}
"""By number."""
