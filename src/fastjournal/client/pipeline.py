"""Requests that go out together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastjournal.client import leases, puts
from fastjournal.client.protocol import Call

if TYPE_CHECKING:
    from fastjournal.client.sync import Client

__all__ = ["Pipeline"]

_PLAIN = frozenset(("key", "queue", "priority"))


class Pipeline:
    """Requests that go out together; `execute` sends them and gives their answers in order.

    Not sent again by itself: after `Unavailable` some may have happened. Puts may be repeated with
    the same ids.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._calls: list[Call] = []

    def put(self, payload: bytes = b"", **fields: Any) -> None:
        """Add a put; arguments as `Client.put`."""
        if fields.keys() <= _PLAIN:
            call = puts.plain_put(
                payload, fields.get("key"), fields.get("queue"), fields.get("priority", 100)
            )
            if call is not None:
                self._calls.append(call)
                return
        self._calls.append(puts.put(puts.job_put(payload, **fields)))

    def complete(self, job_id: bytes, token: int | None, result: bytes | None = None) -> None:
        """Add a completion."""
        self._calls.append(leases.complete(job_id, token, result))

    def execute(self) -> list[Any]:
        """Send all; an error stands in the place of its answer."""
        calls, self._calls = self._calls, []
        if not calls:
            return []
        link = self._client.take_link()
        answers: list[Any] = []
        try:
            for start in range(0, len(calls), 1000):
                answers += link.exchange(calls[start : start + 1000])
        finally:
            self._client.give_back(link)
        return answers

    def __len__(self) -> int:
        return len(self._calls)
