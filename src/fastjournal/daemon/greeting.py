"""Who a connection is and what it may do: HELLO, roles, strangers.

Rules:

1. A stranger gets nothing but HELLO, NOP, PING and QUIT; anything else ends the connection.
2. What a role may call is the table of `wire.functions`; `admin` may call everything, `read` looks.
3. The journal is chosen by the first message, once. Why a token is refused is not told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.daemon.requests import HANDLERS, Handler
from fastjournal.daemon.tokens import Grant
from fastjournal.errors import BadRequest, JournalError, NotFound, Unauthorized
from fastjournal.wire.errortext import error_text
from fastjournal.wire.fj import Pair, Refusal, Request, encode_error, encode_ok, encode_reply
from fastjournal.wire.functions import FUNCTIONS, Function, Role, Type
from fastjournal.wire.hello import DESCRIBE, decode_hello
from fastjournal.wire.pictures import dump

if TYPE_CHECKING:
    from fastjournal.daemon.fj import FjConnection

__all__ = ["ALL", "allowed", "greet", "hello"]

_NEEDS = {number: row.role for number, row in FUNCTIONS.items()}
_ROLES = {
    Role.PRODUCE: frozenset({"produce"}),
    Role.CONSUME: frozenset({"consume"}),
    Role.EITHER: frozenset({"produce", "consume"}),
    Role.ADMIN: frozenset({"admin"}),
}
_LOOKS = frozenset((Function.STATUS, Function.INSPECT, Function.LIST, Function.RESULT))
"""What the role `read` may call."""


def allowed(roles: frozenset[str]) -> dict[int, Handler]:
    """The functions that these roles may call."""
    return {
        number: handler
        for number, handler in HANDLERS.items()
        if _NEEDS[number] is Role.ANYONE
        or "admin" in roles
        or _ROLES[_NEEDS[number]] & roles
        or ("read" in roles and number in _LOOKS)
    }


ALL = allowed(frozenset({"admin"}))
"""What may be called where no tokens are demanded."""


def greet(session: FjConnection, item: Request | Refusal) -> None:
    """A message of a stranger."""
    now = session.server.clock.now()
    if isinstance(item, Refusal):
        session.server.count_error(item.code)
        session.leaving = True
        session.send(item.encode(now))
    elif item.function == Function.HELLO:
        try:
            reply = hello(session, item, now)
        except JournalError as error:
            session.server.count_error(error.code)
            session.leaving = True
            reply = encode_error(item.identifier, error_text(error), now)
        session.send(reply)
    elif item.function in (Function.NOP, Function.PING):
        session.send(encode_ok(item.identifier, now))
    elif item.function == Function.QUIT:
        session.leaving = True
        session.send(encode_ok(item.identifier, now))
    else:
        session.leaving = True
        session.server.denied(session, "no HELLO")
        session.server.count_error("DENIED")
        session.send(encode_error(item.identifier, "DENIED say HELLO with a token first", now))


def hello(session: FjConnection, request: Request, now: int) -> bytes:
    """Learn who the client is, and choose its journal."""
    said = decode_hello(request.value)
    name = said.journal or session.server.settings.default_journal
    tokens = session.server.tokens
    found: Grant | None = None
    if tokens is None:
        roles = frozenset({"admin"})
    else:
        found = tokens.find(said.token)
        if found is None or not found.opens(name):
            session.server.denied(session, "wrong token" if found is None else "wrong journal")
            raise Unauthorized("the token is missing, wrong, or not for this journal")
        roles = found.roles
    host = session.server.journals.get(name)
    if host is None:
        raise NotFound(f"no journal {name!r}")
    if host is not session.host and not session.parser.guarded:
        raise BadRequest("the journal is chosen by the first message of a connection")
    session.host = host
    session.grant = found
    now = host.engine.clock.now()  # the journal's, which may be ahead of the machine's
    ahead = now - said.time if said.time else 0
    session.ahead = ahead if abs(ahead) > host.engine.jobs.ground.limits.max_skew else 0
    session.name = request.key
    session.handlers = allowed(roles)
    session.is_admin = "admin" in roles
    session.may_put = int(Function.SET) in session.handlers
    session.may_take = int(Function.LEASE) in session.handlers
    session.guarded = False
    if not said.options & DESCRIBE:
        return encode_ok(request.identifier, now)
    pair = Pair(b"", Type.STRING, dump(session.server.describe(host, sorted(roles))))
    return encode_reply(request.identifier, now, pairs=(pair,))
