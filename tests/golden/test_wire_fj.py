"""FJ messages whose bytes are fixed: the worked examples of the protocol, and our extensions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastjournal.wire.fj.functions import DATA, GONE, PUSH, STABLE, Function, Query
from fastjournal.wire.fj.replies import Pair, Reply, ReplyParser, encode_error, encode_reply
from fastjournal.wire.fj.requests import Request, RequestParser, encode_request

HERE = Path(__file__).parent / "wire"
EXAMPLES = [
    example
    for name in ("fj-worked-examples.json", "fj-extensions.json")
    for example in json.loads((HERE / name).read_text())
]
REQUESTS = [example for example in EXAMPLES if example["kind"] == "request"]
REPLIES = [example for example in EXAMPLES if example["kind"] == "reply"]


def name(example: dict[str, Any]) -> str:
    return str(example["name"])


def expected_request(means: dict[str, Any]) -> Request:
    fields = dict(means, function=int(Function[means["function"]]))
    for field in ("key", "upper", "value"):
        if field in fields:
            fields[field] = bytes.fromhex(fields[field])
    return Request(**fields)


def expected_reply(means: dict[str, Any]) -> Reply:
    fields = dict(means)
    if "cursor" in fields:
        fields["cursor"] = bytes.fromhex(fields["cursor"])
    fields["pairs"] = tuple(
        Pair(bytes.fromhex(key), kind, bytes.fromhex(value), expires)
        for key, kind, value, expires in fields.get("pairs", ())
    )
    return Reply(**fields)


@pytest.mark.parametrize("example", REQUESTS, ids=name)
def test_a_request_reads_as_it_is_described(example: dict[str, Any]) -> None:
    """FJ-MSG-2, FJ-FLG-0..12."""
    data = bytes.fromhex(example["bytes"])
    assert RequestParser().feed(data) == [expected_request(example["means"])]


@pytest.mark.parametrize("example", REQUESTS, ids=name)
def test_a_request_is_written_to_the_same_bytes(example: dict[str, Any]) -> None:
    """FJ-MSG-2: the structure bits follow from the fields."""
    request = expected_request(example["means"])
    assert encode_request(
        request.function,
        request.identifier,
        flags=request.flags,
        timestamp=request.timestamp,
        timeout=request.timeout,
        query=Query(request.query),
        limit=request.limit or 0,
        ttl=request.ttl,
        key=request.key,
        upper=request.upper or b"",
        value_type=request.value_type,
        value=request.value,
    ) == bytes.fromhex(example["bytes"])


@pytest.mark.parametrize("example", REPLIES, ids=name)
def test_a_reply_reads_as_it_is_described(example: dict[str, Any]) -> None:
    """FJ-RPL-1, FJ-RPL-2."""
    data = bytes.fromhex(example["bytes"])
    assert ReplyParser().feed(data) == [expected_reply(example["means"])]


@pytest.mark.parametrize("example", REPLIES, ids=name)
def test_a_reply_is_written_to_the_same_bytes(example: dict[str, Any]) -> None:
    """FJ-RPL-1, FJ-RPL-2."""
    reply = expected_reply(example["means"])
    if reply.error:
        written = encode_error(reply.identifier, reply.error, reply.timestamp)
    else:
        written = encode_reply(
            reply.identifier,
            reply.timestamp,
            flags=reply.flags & (DATA | STABLE | PUSH | GONE),
            timeout=reply.timeout,
            pairs=reply.pairs,
            several=bool(reply.flags & 0x180),
            cursor=reply.cursor,
        )
    assert written == bytes.fromhex(example["bytes"])


def test_every_function_from_32_has_a_golden_message_or_takes_plain_text() -> None:
    shown = {example["means"]["function"] for example in REQUESTS}
    plain = {"PAUSE", "RESUME", "REDRIVE", "LIST", "MAINTAIN"}
    assert {f.name for f in Function if f >= 32} - plain <= shown
