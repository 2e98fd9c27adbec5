"""A small HTTP listener: /metrics, /healthz, /readyz. One request a connection, GET only.

Rules:

1. It is open before the journals are replayed, so that `/readyz` can say "loading".
2. Where journals are kept by several nodes it is open on every node; `/readyz` is true where one
   of them is served, `/readyz?journal=NAME` where that one is.
3. A request line and head of more than 8 KiB, or one that takes longer than 5 seconds, is cut.
"""

from __future__ import annotations

import asyncio

from fastjournal.daemon.context import Context
from fastjournal.daemon.metrics import render

__all__ = ["HttpConnection"]

_MAX_HEAD = 8192
_PATIENCE = 5.0  # seconds
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class HttpConnection(asyncio.Protocol):
    """One request."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._head = b""
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody asks."""
        self._transport = transport  # type: ignore[assignment]
        self._context.probes += 1
        self._timer = self._context.loop.call_later(_PATIENCE, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._context.probes -= 1
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Wait for the whole head, then answer."""
        self._head += data
        if b"\r\n\r\n" not in self._head and b"\n\n" not in self._head:
            if len(self._head) > _MAX_HEAD:
                self._transport.abort()
            return
        words = self._head.split(b"\n", 1)[0].split()
        if len(words) < 2:
            self._answer(400, "not HTTP\n")
        elif words[0] not in (b"GET", b"HEAD"):
            self._answer(405, "GET only\n")
        else:
            path, _, query = words[1].partition(b"?")
            self._route(path, query.decode("ascii", "replace"), words[0] == b"HEAD")

    def _route(self, path: bytes, query: str, head: bool) -> None:
        context = self._context
        if path == b"/healthz":
            failures = {
                host.name: str(host.engine.log.failure)
                for host in context.journals.values()
                if host.engine.log.failure is not None
            }
            if failures:
                self._answer(503, f"stopped: {failures}\n", head=head)
            else:
                self._answer(200, "ok\n", head=head)
        elif path == b"/readyz":
            name = query.partition("journal=")[2].partition("&")[0]
            if context.ready and (not name or name in context.journals):
                self._answer(200, "ready\n", head=head)
            else:
                self._answer(503, f"{_why_not(context, name)}\n", head=head)
        elif path == b"/metrics":
            self._answer(200, render(context), "text/plain; version=0.0.4; charset=utf-8", head)
        else:
            self._answer(404, "try /metrics, /healthz or /readyz\n", head=head)

    def _answer(
        self,
        status: int,
        body: str | bytes,
        kind: str = "text/plain; charset=utf-8",
        head: bool = False,
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        lines = (
            f"HTTP/1.1 {status} {_REASONS[status]}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(data)}",
            "Connection: close",
            "\r\n",
        )
        self._transport.write("\r\n".join(lines).encode() + (b"" if head else data))
        self._transport.close()


def _why_not(context: Context, name: str) -> str:
    """What keeps it from serving: a journal, or any."""
    if context.draining:
        return "draining"
    if name and name not in context.replicas:
        return "not kept here" if context.ready or context.replicas else "loading"
    names = [name] if name else sorted(context.replicas)
    roles = [str(report["role"]) for one in names if (report := context.report_replica(one))]
    words = ["loading" if role == "primary" else role for role in roles]
    if len(words) < 2:
        return words[0] if words else "loading"
    return ", ".join(f"{one} {word}" for one, word in zip(names, words, strict=True))
