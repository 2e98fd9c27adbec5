"""The Workq text protocol, client side: commands to bytes, answers to values.

Answers do not say what they answer, so `AnswerReader` is told what was asked, in order.

Rules:

1. `encode` writes what `WorkqParser` reads back as an equal command.
2. The answers depend on the bytes only, never on how they were cut into reads.
3. A negative answer is a value too: `Answer.error` holds its first line without the sign.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

from fastjournal.errors import ProtocolError
from fastjournal.wire.workq.commands import (
    Add,
    Command,
    Complete,
    Delete,
    Fail,
    InspectJob,
    InspectJobs,
    InspectQueue,
    InspectQueues,
    Lease,
    Result,
    Run,
    Schedule,
)
from fastjournal.wire.workq.replies import text_id

__all__ = ["Answer", "AnswerReader", "Block", "Kind", "encode", "kind_of"]

_MAX_LINE = 10_000


class Kind(Enum):
    """The shape of a positive answer."""

    PLAIN = "OK"
    SIZED = "a line that ends in a size, and so many bytes"
    BLOCKS = "blocks of keys"
    SERVER = "the one block of `inspect server`, whose number of keys is not to be trusted"


class Block(NamedTuple):
    """One thing of an answer: its first line as words, its keys, its bytes."""

    words: tuple[bytes, ...]
    keys: dict[bytes, bytes]
    data: bytes = b""


class Answer(NamedTuple):
    """One answer."""

    error: str = ""
    blocks: tuple[Block, ...] = ()


def encode(command: Command) -> bytes:
    """The bytes of a command."""
    match command:
        case Add() | Schedule() | Run():
            return _encode_job(command)
        case Lease(names, wait):
            return b"lease %b %d\r\n" % (" ".join(names).encode(), wait)
        case Complete(job_id, result):
            return b"complete %b %d\r\n%b\r\n" % (text_id(job_id), len(result), result)
        case Fail(job_id, result):
            return b"fail %b %d\r\n%b\r\n" % (text_id(job_id), len(result), result)
        case Result(job_id, wait):
            return b"result %b %d\r\n" % (text_id(job_id), wait)
        case Delete(job_id):
            return b"delete %b\r\n" % text_id(job_id)
        case InspectJob(job_id):
            return b"inspect job %b\r\n" % text_id(job_id)
        case InspectJobs(name, offset, limit, scheduled):
            kind = b"scheduled-jobs" if scheduled else b"jobs"
            return b"inspect %b %b %d %d\r\n" % (kind, name.encode(), offset, limit)
        case InspectQueue(name):
            return b"inspect queue %b\r\n" % name.encode()
        case InspectQueues(offset, limit):
            return b"inspect queues %d %d\r\n" % (offset, limit)
        case _:
            return b"inspect server\r\n"


def _encode_job(job: Add | Schedule | Run) -> bytes:
    flags = b" -priority=%d" % job.priority if job.priority else b""
    if isinstance(job, Run):
        head = b"run %b %b %d %d" % (text_id(job.id), job.name.encode(), job.ttr_ms, job.wait_ms)
    else:
        flags += b" -max-attempts=%d" % job.max_attempts if job.max_attempts else b""
        flags += b" -max-fails=%d" % job.max_fails if job.max_fails else b""
        verb, when = b"add", b""
        if isinstance(job, Schedule):
            verb, when = b"schedule", b" " + _time(job.time)
        head = b"%b %b %b %d %d%b" % (
            verb, text_id(job.id), job.name.encode(), job.ttr_ms, job.ttl_ms, when,
        )  # fmt: skip
    return b"%b %d%b\r\n%b\r\n" % (head, len(job.payload), flags, job.payload)


def _time(instant: int) -> bytes:
    seconds, rest = divmod(instant, 1_000_000_000)
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    fraction = f".{rest:09}" if rest else ""
    return when.strftime(f"%Y-%m-%dT%H:%M:%S{fraction}Z").encode()


def kind_of(command: Command) -> Kind:
    """The shape of the positive answer to a command."""
    match command:
        case Lease() | Run() | Result():
            return Kind.SIZED
        case Add() | Schedule() | Complete() | Fail() | Delete():
            return Kind.PLAIN
        case InspectJob() | InspectJobs() | InspectQueue() | InspectQueues():
            return Kind.BLOCKS
        case _:
            return Kind.SERVER


class _MoreError(Exception):
    """The bytes are not all here yet."""


class AnswerReader:
    """Feed bytes, get answers in the order of `expect`."""

    def __init__(self) -> None:
        self._expected: deque[Kind] = deque()
        self._buffer = b""
        self._at = 0

    def expect(self, kind: Kind) -> None:
        """Another command was sent, whose answer has this shape."""
        self._expected.append(kind)

    def feed(self, data: bytes) -> list[Answer]:
        """Take the next bytes; give what is complete."""
        self._buffer += data
        answers = []
        while self._buffer:
            if not self._expected:
                raise ProtocolError("an answer to nothing")
            self._at = 0
            try:
                answer = self._answer(self._expected[0])
            except _MoreError:
                break
            self._expected.popleft()
            self._buffer = self._buffer[self._at :]
            answers.append(answer)
        return answers

    def _answer(self, kind: Kind) -> Answer:
        first = self._line()
        if first[:1] == b"-":
            return Answer(first[1:].decode("utf-8", "replace"))
        if kind is Kind.PLAIN and first == b"+OK":
            return Answer()
        if first[:4] != b"+OK " or not first[4:].isdigit():
            raise ProtocolError(f"not an answer: {first[:80]!r}")
        blocks = [self._block(kind) for _ in range(int(first[4:]))]
        return Answer("", tuple(blocks))

    def _block(self, kind: Kind) -> Block:
        words = tuple(self._line().split(b" "))
        if not words[-1].isdigit():
            raise ProtocolError(f"no size in {words!r}")
        count = int(words[-1])
        if kind is Kind.SIZED:
            return Block(words, {}, self._sized(count))
        keys: dict[bytes, bytes] = {}
        for _ in range(3 if kind is Kind.SERVER else count):
            if b"payload-size" in keys and b"payload" not in keys:
                if self._take(8) != b"payload ":
                    raise ProtocolError("no payload where its size stands")
                keys[b"payload"] = self._sized(int(keys[b"payload-size"]))
                continue
            key, _, value = self._line().partition(b" ")
            keys[key] = value
        return Block(words, keys)

    def _line(self) -> bytes:
        end = self._buffer.find(b"\r\n", self._at)
        if end < 0:
            if len(self._buffer) - self._at > _MAX_LINE:
                raise ProtocolError("a line without end")
            raise _MoreError
        line = self._buffer[self._at : end]
        self._at = end + 2
        return line

    def _take(self, size: int) -> bytes:
        if len(self._buffer) < self._at + size:
            raise _MoreError
        taken = self._buffer[self._at : self._at + size]
        self._at += size
        return taken

    def _sized(self, size: int) -> bytes:
        data = self._take(size + 2)
        if data[-2:] != b"\r\n":
            raise ProtocolError("bytes of a wrong size")
        return data[:-2]
