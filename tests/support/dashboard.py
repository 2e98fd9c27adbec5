"""A browser without a screen, for tests of the dashboard: cookies, forms, and nothing else."""

from __future__ import annotations

import asyncio
import http.client
import re
import ssl
from http.cookies import SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from fastjournal.testing.daemon import LocalDaemon
from fastjournal.web.dashboard_server import Dashboard


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def leads_to(self) -> str:
        return self.headers.get("location", "")


class Visitor:
    """Asks one dashboard, keeping its cookies as a browser does."""

    def __init__(self, daemon: LocalDaemon, context: ssl.SSLContext | None = None) -> None:
        self.address = daemon.server.addresses["web"][0]
        self.cookies: dict[str, str] = {}
        self._context = context

    def connect(self) -> http.client.HTTPConnection:
        host, _, port = self.address.rpartition(":")
        if self._context is not None:
            return http.client.HTTPSConnection(host, int(port), timeout=20, context=self._context)
        return http.client.HTTPConnection(host, int(port), timeout=20)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = self.connect()
        sent = dict(headers or {})
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            got = {name.lower(): value for name, value in answer.getheaders()}
            for cookie in SimpleCookie(got.get("set-cookie", "")).values():
                if cookie["max-age"] == "0":
                    self.cookies.pop(cookie.key, None)
                else:
                    self.cookies[cookie.key] = cookie.value
            return Answer(answer.status, got, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, headers: dict[str, str] | None = None, **form: Any) -> Answer:
        given = {"Content-Type": "application/x-www-form-urlencoded"} | (headers or {})
        return self.ask("POST", path, urlencode(form, doseq=True).encode(), given)

    def secret(self, path: str) -> str:
        """What the forms of a page carry."""
        found = re.search(r'name="secret" value="([0-9a-f]{64})"', self.get(path).text)
        assert found, f"{path} has no form"
        return found[1]

    def act(self, do: str, *, journal: str = "default", queue: bytes = b"", **form: Any) -> Answer:
        """Press a button."""
        secret = self.secret(f"/j/{journal}/health")
        return self.post(f"/j/{journal}/act", secret=secret, do=do, queue=quote(queue), **form)

    def log_in(self, token: str, **form: Any) -> Answer:
        return self.post("/login", secret=self.secret("/login"), token=token, **form)

    def follow(self, answer: Answer) -> Answer:
        assert answer.status == 303, answer.text
        parts = urlsplit(answer.leads_to)
        assert not parts.netloc
        return self.get(parts.path + (f"?{parts.query}" if parts.query else ""))


def beat(daemon: LocalDaemon, journal: str = "default") -> None:
    """Let the dashboard look at its figures now."""
    dashboard = daemon.server.dashboard
    assert isinstance(dashboard, Dashboard)
    asyncio.run_coroutine_threadsafe(
        dashboard.backstage.pulses[journal].look(), daemon.server.loop
    ).result(20)
