"""Bytes shown in docs/log-format.md: encoded by the real encoder, cut by hand.

A cut that does not fit the bytes stops the program, so no example can drift from the code.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from page_tables import fill, table

from fastjournal.journal.language import codec
from fastjournal.journal.language.commands import Lease, Purge, Put
from fastjournal.journal.language.settings_codec import SETTING_NUMBERS
from fastjournal.log.record import encode
from fastjournal.log.segment import CAPTAIN, WORKQ
from fastjournal.model import DEFAULT_SETTINGS, SETTING_CHOICES
from fastjournal.package.compiled import source_of

__all__ = ["made"]

TIME = 1_700_000_000_123_456_789
ROW = bytes.fromhex("0f8fad5bd9cb469fa16570867728950e")
SECOND = 1_000_000_000

Cuts = Sequence[tuple[int, str]]
_TIME: Cuts = (
    (1, "TIME: version 1"),
    (8, "TIME: 63 835 596 800 s since the year 1 (1 700 000 000 s since 1970)"),
    (4, "TIME: 123 456 789 ns"),
    (2, "TIME: zone"),
)


def dump(data: bytes) -> str:
    """Sixteen bytes a line, with their offset."""
    lines = [
        f"{at:04x}  {data[at : at + 16].hex(' '):<47}  {_letters(data[at : at + 16])}".rstrip()
        for at in range(0, len(data), 16)
    ]
    return "\n".join(["```text", *lines, "```"])


def _letters(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


def cut(data: bytes, cuts: Cuts) -> str:
    """The bytes field by field."""
    rows, at = [], 0
    for size, meaning in cuts:
        shown = data[at : at + size]
        if len(shown) != size:
            raise SystemExit(f"the example ends before {meaning!r}")
        rows.append((at, f"`{shown.hex(' ')}`", meaning))
        at += size
    if at != len(data):
        raise SystemExit(f"the example has {len(data) - at} bytes more than its description")
    return table(("offset", "bytes", "meaning"), rows)


def plain() -> str:
    """A log that knows nothing of jobs."""
    data = CAPTAIN.encode() + encode(TIME, b"hello") + encode(TIME + 1, b"")
    header: Cuts = ((4, "magic `cptn`"), (4, "version 1"))
    first: Cuts = (
        *_TIME, (1, "SIZE 5"), (5, "PAYLOAD `hello`"), (4, "CRC-32C of bytes 8 to 28"),
    )  # fmt: skip
    second: Cuts = ((15, "TIME: one nanosecond later"), (1, "SIZE 0"), (4, "CRC-32C"))
    return f"{dump(data)}\n\n{cut(data, (*header, *first, *second))}"


def put() -> str:
    """A job taken in."""
    command = Put(
        row_id=ROW, queue=b"mail", key=b"user:42", rank=10, due=TIME, inserted=TIME, modified=TIME,
        expires=0, kind=1, value=b"a letter",
    )  # fmt: skip
    payload = codec.encode(command)
    cuts: Cuts = (
        (1, "type 32: PUT"),
        (16, "id of the row"),
        (1, "version of the image"),
        (5, "queue: 4 bytes, `mail`"),
        (8, "key: 7 bytes, `user:42`"),
        (1, "no further keys"),
        (1, "rank 10, signed: zig-zag"),
        (8, "due, ns since 1970"),
        (8, "inserted"),
        (8, "modified: the sender's timestamp"),
        (8, "expires: never"),
        (1, "ttl: none"),
        (1, "kind of the value: buffer"),
        (9, "value: 8 bytes, `a letter`"),
        (1, "flags: bit 0, persist"),
        (1, "lease length: the queue's"),
        (3, "attempts, timeouts, fails"),
        (3, "max-attempts, max-timeouts, max-fails: the queue's"),
    )
    return f"{dump(payload)}\n\n{cut(payload, cuts)}"


def lease() -> str:
    """The same job handed out, and done."""
    handed = codec.encode(Lease(ROW, TIME, TIME + 60 * SECOND, 1, b"w1"))
    cuts: Cuts = (
        (1, "type 34: LEASE"), (16, "id of the row"), (8, "start"), (8, "until: 60 s later"),
        (1, "attempt 1, which is the token"), (3, "worker: 2 bytes, `w1`"),
    )  # fmt: skip
    gone = codec.encode(Purge(ROW, b"mail", b"user:42", TIME))
    ending: Cuts = (
        (1, "type 38: PURGE"), (16, "id of the row"), (5, "queue `mail`"), (8, "key `user:42`"),
        (8, "modified"),
    )  # fmt: skip
    return f"{cut(handed, cuts)}\n\n{cut(gone, ending)}"


def segment() -> str:
    """The three records as they stand in a segment."""
    payloads = (
        codec.encode(
            Put(ROW, b"mail", b"user:42", 10, TIME, TIME, TIME, 0, 1, b"a letter"),
        ),
        codec.encode(Lease(ROW, TIME, TIME + 60 * SECOND, 1, b"w1")),
        codec.encode(Purge(ROW, b"mail", b"user:42", TIME)),
    )
    data = WORKQ.encode()
    for number, payload in enumerate(payloads):
        data += encode(TIME + number, payload)
    return dump(data)


def types() -> str:
    """The layouts, from the head of the module that codes them."""
    source = Path(source_of(codec.__name__)).read_text()  # a compiled module has no head
    text = ast.get_docstring(ast.parse(source), clean=False) or ""
    lines = text[text.index("    type  name") : text.index("Rules:")].rstrip().splitlines()
    body = "\n".join(line.removeprefix("    ") for line in lines)
    return f"```text\n{body}\n```"


def settings() -> str:
    """The numbers of the settings, and how their values are written."""
    rows = []
    for name, number in SETTING_NUMBERS.items():
        default = getattr(DEFAULT_SETTINGS, name)
        words = ", ".join(SETTING_CHOICES.get(name, ()))
        if isinstance(default, bool):
            words = "0 or 1"
        elif isinstance(default, float):
            words = "thousandths"
        rows.append((number, f"`{name}`", words or "as it is"))
    return table(("number", "setting", "written"), rows)


def made(docs: Path) -> dict[str, str]:
    """The page with its examples."""
    tables = {
        "plain": plain(), "types": types(), "put": put(), "lease": lease(), "segment": segment(),
        "settings": settings(),
    }  # fmt: skip
    return {"log-format.md": fill((docs / "log-format.md").read_text(), tables)}
