"""Who looks at the dashboard, and what they may do.

Rules:

1. The daemon's tokens are the only accounts. A token is shown once, at the login, and not kept: the
   browser gets an opaque number, valid for twelve hours at most, in a cookie that scripts cannot
   read and that other sites cannot make it send.
2. Every token lets its bearer look at its journals; only `admin` lets it change anything.
3. A session ends with its token: it is looked for at every request, so that SIGHUP takes a removed
   one away at once.
4. Without a file of tokens everybody who gets there is an administrator, as on the FJ port. Then
   the name in the request must be one of this machine, lest a foreign page reach us by a name of
   its own that leads here.
5. Whatever changes something is a POST that carries the session's secret and comes from our own
   pages.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from fastjournal.daemon.auth import Grant

if TYPE_CHECKING:
    from fastjournal.daemon.server import Server

__all__ = ["Doors", "Viewer"]

_LIFE = 12 * 3600  # seconds
_MAX_SESSIONS = 1000


class Viewer(NamedTuple):
    """Somebody who was let in."""

    name: str
    """Empty: nobody in particular, there are no tokens."""
    admin: bool
    journals: frozenset[str]
    secret: str
    """What its forms must carry."""
    session: str = ""

    def opens(self, journal: str) -> bool:
        """Whether it may look at this journal."""
        return journal in self.journals or "*" in self.journals


class _Session(NamedTuple):
    hash: str
    """Of the token."""
    ends: float


class Doors:
    """Sessions of a server's dashboard."""

    def __init__(self, server: Server, *, secure: bool) -> None:
        self._server = server
        self._sessions: dict[str, _Session] = {}
        self._key = secrets.token_bytes(32)
        self._secure = secure
        self.cookie = "__Host-fastjournal" if secure else "fastjournal"

    @property
    def open(self) -> bool:
        """Nobody has to show a token."""
        return self._server.tokens is None

    def viewer(self, request: Request) -> Viewer | None:
        """Who asks; None: somebody who has to show a token first."""
        if self._server.tokens is None:
            return Viewer("", True, frozenset("*"), self._secret("open"))
        session = request.cookies.get(self.cookie, "")
        grant = self._grant(session)
        if grant is None:
            return None
        return Viewer(
            grant.name, "admin" in grant.roles, grant.journals, self._secret(session), session
        )

    def enter(self, token: str, response: Response) -> bool:
        """Let in whoever shows a token; False if it is none of ours."""
        tokens = self._server.tokens
        grant = tokens.find(token) if tokens is not None and token.isascii() else None
        if grant is None:
            return False
        now = time.monotonic()
        self._sessions = {n: s for n, s in self._sessions.items() if s.ends > now}
        while len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session)] = _Session(grant.hash, now + _LIFE)
        response.set_cookie(
            self.cookie, session, max_age=_LIFE, httponly=True, samesite="strict",
            secure=self._secure, path="/",
        )  # fmt: skip
        return True

    def leave(self, viewer: Viewer, response: Response) -> None:
        """End a session."""
        self._sessions.pop(_digest(viewer.session), None)
        response.delete_cookie(
            self.cookie, httponly=True, samesite="strict", secure=self._secure, path="/"
        )

    def still_open(self, viewer: Viewer) -> bool:
        """Whether somebody who was let in may still be here."""
        return self.open or self._grant(viewer.session) is not None

    def is_ours(self, request: Request, secret: str, wanted: str) -> bool:
        """Whether a form was sent from one of our pages; `wanted` is the secret it must carry."""
        site = request.headers.get("sec-fetch-site", "same-origin")
        origin = request.headers.get("origin")
        if site not in ("same-origin", "none"):
            return False
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            return False
        return secret.isascii() and hmac.compare_digest(secret, wanted)

    def login_secret(self) -> str:
        """What the login form must carry."""
        return self._secret("login")

    def is_known_host(self, host: str) -> bool:
        """Whether the name in a request may be meant for us; see rule 4."""
        if not self.open or self._server.settings.insecure:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost"
        return True

    def _grant(self, session: str) -> Grant | None:
        found = self._sessions.get(_digest(session)) if session else None
        tokens = self._server.tokens
        if found is None or tokens is None or found.ends < time.monotonic():
            return None
        return next((grant for grant in tokens.grants if grant.hash == found.hash), None)

    def _secret(self, of: str) -> str:
        return hmac.new(self._key, of.encode(), hashlib.sha256).hexdigest()


def _digest(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()
