"""Entries as a mapping: what Python's own notation needs, on top of the methods of both clients.

    entries["k"] = 5          await entries.set("k", 5)
    "k" in entries            await entries.has("k")
    len(entries)              await entries.count()
    for key in entries        async for key in entries.keys()

Rules:

1. What can be awaited has a name; what cannot, `[]`, `in`, `len`, is notation for one of the names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, MutableMapping
from typing import Any

from fastjournal.arguments import Text
from fastjournal.entry_model import Entry
from fastjournal.entry_value import EntryValue

__all__ = ["AsyncLookup", "AsyncMapping", "BlockingLookup", "BlockingMapping"]

_MISSING: Any = object()


class BlockingLookup(ABC):
    """The notation of single keys."""

    @abstractmethod
    def get(self, key: Text, default: Any = None) -> Any:
        """The value of a key, or `default`."""

    @abstractmethod
    def set(self, key: Text, value: EntryValue) -> bool:
        """Store a value."""

    @abstractmethod
    def has(self, key: Text) -> bool:
        """Whether there is an entry of this key."""

    def __getitem__(self, key: Text) -> EntryValue:
        value: EntryValue = self.get(key, _MISSING)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Text, value: EntryValue) -> None:
        self.set(key, value)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (str, bytes)) and self.has(key)


class AsyncLookup:
    """No notation can be awaited."""


class BlockingMapping(BlockingLookup, MutableMapping[bytes, EntryValue]):
    """The notation of a mapping."""

    @abstractmethod
    def delete(self, key: Text) -> bool:
        """Delete an entry."""

    @abstractmethod
    def count(self) -> int:
        """How many entries there are."""

    @abstractmethod
    def range(self, lower: Text = b"", upper: Text = b"", *, data: bool = True) -> Iterator[Entry]:
        """The entries in order."""

    @abstractmethod
    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of a key, stored first if there was none."""

    @abstractmethod
    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Delete an entry and return its value."""

    @abstractmethod
    def update(self, other: Any = (), /, **named: EntryValue) -> None:
        """Store many."""

    def __delitem__(self, key: Text) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __iter__(self) -> Iterator[bytes]:
        return (entry.key for entry in self.range(data=False))

    def __len__(self) -> int:
        return self.count()


class AsyncMapping:
    """What a mapping has besides, to be awaited or iterated over with `async for`."""

    @abstractmethod
    def range(
        self, lower: Text = b"", upper: Text = b"", *, data: bool = True
    ) -> AsyncIterator[Entry]:
        """The entries in order."""

    @abstractmethod
    async def pop(self, key: Text, default: Any = _MISSING) -> Any:
        """Delete an entry and return its value."""

    async def keys(self) -> AsyncIterator[bytes]:
        """All keys in order."""
        async for entry in self.range(data=False):
            yield entry.key

    async def values(self) -> AsyncIterator[EntryValue]:
        """All values, in the order of their keys."""
        async for entry in self.range():
            yield entry.value

    async def items(self) -> AsyncIterator[tuple[bytes, EntryValue]]:
        """All keys with their values, in order."""
        async for entry in self.range():
            yield entry.key, entry.value

    async def popitem(self) -> tuple[bytes, EntryValue]:
        """Delete some entry and return its key and value; `KeyError` if there is none."""
        async for key in self.keys():
            value = await self.pop(key, _MISSING)
            if value is not _MISSING:
                return key, value
        raise KeyError("there are no entries")

    async def clear(self) -> None:
        """Delete all entries."""
        async for key in self.keys():
            await self.pop(key, None)
