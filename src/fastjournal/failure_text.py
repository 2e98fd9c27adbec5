"""The text that is kept of an exception: its traceback, cut where it tells least.

Rules:

1. It is bytes of UTF-8, never longer than the limit.
2. The last line, which names the exception, stays, however long the rest is; of a last line that is
   itself too long its beginning.
3. What is left out is left out of the middle, and its size is told in its place.
"""

from __future__ import annotations

import traceback

__all__ = ["failure_text"]

_NOTE = 48  # bytes kept free for what is said of the gap


def failure_text(error: BaseException, limit: int = 8192) -> bytes:
    """The traceback of an exception in at most `limit` bytes."""
    text = "".join(traceback.format_exception(error)).encode("utf-8", "replace")
    if len(text) <= limit:
        return text
    last = traceback.format_exception_only(error)[-1].encode("utf-8", "replace")[: limit // 2]
    before = text[: text.rfind(last)]
    tail = before[len(before) - (limit // 2 - len(last)) :]
    head = before[: limit - _NOTE - len(tail) - len(last)]
    gap = f"\n... {len(text) - len(head) - len(tail) - len(last)} bytes left out ...\n"
    return (head + gap.encode() + tail + last).decode("utf-8", "ignore").encode()
