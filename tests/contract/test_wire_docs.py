"""The page of the FJ protocol says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from fastjournal.wire.fj import bulk, job_codec
from fastjournal.wire.fj.replies import ReplyParser
from fastjournal.wire.fj.requests import Request, RequestParser
from fastjournal.wire.workq import requests
from fastjournal.wire.workq.requests import MAX_REQUEST, MAX_TTL, MAX_TTR

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "fj-protocol.md").read_text()


def test_the_examples_of_the_page_are_read() -> None:
    block = PAGE.partition("## Worked examples")[2]
    lines = re.findall(r"^((?:[0-9A-F]{2} ){10,}[0-9A-F]{2})$", block, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        data = bytes.fromhex(line)
        if data[:2] == b"FJ":
            (request,) = RequestParser().feed(data)
            assert isinstance(request, Request)
        else:
            assert len(ReplyParser().feed(data)) == 1


def test_the_last_offsets_of_the_page_are_the_sizes_of_the_layouts() -> None:
    for size, what in (
        (job_codec.PUT_SIZE, "queue, key, user data"),
        (job_codec.LEASED_SIZE, "queue, worker, note"),
        (bulk.LEASE_SIZE, "for each name"),
        (bulk.SETTLE_SIZE, "key, result"),
    ):
        assert re.search(rf"^\| {size} \| \| {what}", PAGE, re.MULTILINE), (size, what)


def test_the_workq_page_states_the_limits() -> None:
    page = (ROOT / "docs" / "workq-protocol.md").read_text()
    for limit in (MAX_REQUEST, MAX_TTR, MAX_TTL):
        assert str(limit) in page


def test_the_workq_page_has_every_command_with_its_arguments() -> None:
    page = (ROOT / "docs" / "workq-protocol.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)[^`]*`[^|]*\| ([^|]*) \|", page, re.MULTILINE))
    for word, count in requests.COUNTS.items():
        told = rows[word.decode()].partition(",")[0].split()
        assert count is None or len(told) == count, word
