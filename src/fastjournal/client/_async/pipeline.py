"""Requests that go out together."""

from __future__ import annotations

from typing import Any, Final

from fastjournal.arguments import Instant, JobId, Text
from fastjournal.client import entry_calls, leases, puts
from fastjournal.client._async.caller import AsyncCaller
from fastjournal.client.calls import SMALL, Call, check_size
from fastjournal.client.change_numbers import ChangeNumbers
from fastjournal.entry_value import EntryValue
from fastjournal.errors import NotFound, TooLarge
from fastjournal.model import Unchecked

__all__ = ["AsyncPipeline", "AsyncPipelinedEntries"]

_TOGETHER: Final = 1000


class AsyncPipeline:
    """Requests that go out together; `execute` sends them and gives their answers in order.

    Not sent again by itself: after `Unavailable` some may have happened. Puts may be repeated with
    the same ids.
    """

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller
        self._calls: list[Call] = []
        self._defaults: dict[int, Any] = {}
        self.entries = AsyncPipelinedEntries(self, caller)
        """Requests about entries."""

    def put(self, payload: bytes | Unchecked = b"", **fields: Any) -> None:
        """Add a put; arguments as `Client.put`."""
        self._calls.append(puts.put(payload, **fields))

    def complete(
        self, job_id: JobId, token: int | Unchecked | None, result: bytes | Unchecked | None = None
    ) -> None:
        """Add a completion."""
        self._calls.append(leases.complete(job_id, token, result))

    async def execute(self) -> list[Any]:
        """Send all; an error stands in the place of its answer."""
        calls, self._calls = self._calls, []
        defaults, self._defaults = self._defaults, {}
        refused = self._too_large(calls)
        sent = [call for number, call in enumerate(calls) if number not in refused]
        answers = await self._caller.call_many(sent, again=False, together=_TOGETHER)
        for number, error in refused.items():  # in order, so each finds its place
            answers.insert(number, error)
        for number, default in defaults.items():
            if isinstance(answers[number], NotFound):
                answers[number] = default
        return answers

    def _too_large(self, calls: list[Call]) -> dict[int, TooLarge]:
        """What the daemon would not take, by its number."""
        refused = {}
        for number, call in enumerate(calls):
            if len(call.data) > SMALL:
                try:
                    check_size(call, self._caller.pool.about)
                except TooLarge as error:
                    refused[number] = error
        return refused

    def __len__(self) -> int:
        return len(self._calls)


class AsyncPipelinedEntries:
    """Requests about entries, added to a pipeline; arguments as those of `client.entries`."""

    def __init__(self, pipeline: AsyncPipeline, caller: AsyncCaller) -> None:
        self._pipeline = pipeline
        self._caller = caller
        self._numbers = ChangeNumbers()

    def get(self, key: Text, default: Any = None) -> None:
        """Add a reading; its answer is the value, or `default`."""
        pipeline = self._pipeline
        pipeline._defaults[len(pipeline)] = default
        pipeline._calls.append(entry_calls.get_value(key))

    def set(self, key: Text, value: EntryValue | Unchecked, **how: Any) -> None:
        """Add a write; its answer is False if an equal or newer one is there."""
        now, lasting = self._caller.base() if how else None, self._caller.lasting()
        self._pipeline._calls.append(entry_calls.set_entry(now, key, value, lasting=lasting, **how))

    def delete(self, key: Text, **how: Any) -> None:
        """Add a deletion; its answer says whether there was an entry."""
        self._pipeline._calls.append(entry_calls.delete(key, **how))

    def add(
        self,
        key: Text,
        number: float | Unchecked = 1,
        *,
        sender: Text = b"",
        timestamp: Instant | None = None,
        persist: bool = True,
        fence: int = 0,
    ) -> None:
        """Add an addition; its answer is the sum."""
        caller = self._caller
        name, at = self._numbers.of(caller.number_now(), sender, timestamp)
        call = entry_calls.add(key, number, name, at, persist, fence, caller.lasting())
        self._pipeline._calls.append(call)
