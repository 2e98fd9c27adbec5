"""What a power loss may leave of changes that were not synced.

Each unsynced write ends absent, whole, as zeros, as garbage, as its first or its second half, or
cut at a border of sectors; each unsynced change of a name happened or not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

__all__ = [
    "Inode",
    "NameChange",
    "Truncate",
    "Write",
    "apply_name",
    "apply_write",
    "choices",
    "outcomes",
    "overlay",
]

_SECTOR = 512


@dataclass(slots=True)
class Write:
    """Bytes laid over a content at an offset."""

    offset: int
    data: bytes


@dataclass(slots=True)
class Truncate:
    """A content cut or grown to a size."""

    size: int


class Named(Protocol):
    """An open file that knows its name."""

    path: Path


@dataclass(slots=True, eq=False)
class Inode:
    """A file: what a reader sees, what is durable, and the changes in between."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[Write | Truncate] = field(default_factory=list)
    handles: list[Named] = field(default_factory=list)
    """Open handles: they follow a rename."""


@dataclass(slots=True)
class NameChange:
    """A creation; `target` None: a removal; `source` set: a rename."""

    path: Path
    target: Inode | None
    source: Path | None = None


def apply_name(names: dict[Path, Inode], change: NameChange) -> None:
    """Let a change of a name happen."""
    if change.target is None:
        names.pop(change.path, None)
        return
    if change.source is not None:
        names.pop(change.source, None)
    names[change.path] = change.target


def overlay(content: bytearray, offset: int, data: bytes) -> None:
    """Lay bytes over a content, growing it with zeros where needed."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def outcomes(op: Write) -> int:
    """Absent, whole, zeros, garbage, either half, and a cut at each sector border inside."""
    first = op.offset // _SECTOR
    last = (op.offset + len(op.data) - 1) // _SECTOR if op.data else first
    return 6 + (last - first)


def apply_write(content: bytearray, op: Write | Truncate, outcome: int, seed: int) -> None:
    """Let a write end in one of its outcomes."""
    if outcome == 0:
        return
    if isinstance(op, Truncate):
        if op.size < len(content):
            del content[op.size :]
        else:
            content.extend(bytes(op.size - len(content)))
    elif outcome == 1:
        overlay(content, op.offset, op.data)
    elif outcome == 2:
        overlay(content, op.offset, bytes(len(op.data)))
    elif outcome == 3:
        noise = random.Random(seed + op.offset).randbytes(len(op.data))
        overlay(content, op.offset, noise)
    elif outcome == 4:
        overlay(content, op.offset, op.data[: len(op.data) // 2])
    elif outcome == 5:
        half = len(op.data) // 2
        overlay(content, op.offset + half, op.data[half:])
    else:
        border = (op.offset // _SECTOR + outcome - 5) * _SECTOR
        overlay(content, op.offset, op.data[: border - op.offset])


def choices(options: Sequence[Sequence[int]], samples: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Every combination of outcomes if they are few, else seeded samples of them."""
    total = 1
    for option in options:
        total *= len(option)
        if total > samples:
            break
    if total <= samples:
        yield from itertools.product(*options)
        return
    yield tuple(0 for _ in options)
    yield tuple(1 for _ in options)
    draw = random.Random(seed)
    for _ in range(samples - 2):
        yield tuple(draw.choice(option) for option in options)
