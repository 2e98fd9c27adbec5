"""Errors on their way through the JVM: only text survives, so the text carries the stable code.

Rules:

1. `coded_errors` turns an error of ours into one whose text is `fastjournal [CODE] message`.
2. `explain` finds that text again in whatever Spark raises, and gives the code and the message.
3. What is damage here is damage there: the text says it, and `tells_damage` finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fastjournal.errors import JournalError, Unavailable, is_damage

__all__ = ["CodedError", "coded_errors", "explain", "from_pyspark", "tells_damage"]

_TEXT = re.compile(r"fastjournal \[([A-Z-]+)( damage)?\] ([^\n]*)")


class CodedError(Exception):
    """An error of the journal with its code in its text."""


@contextmanager
def coded_errors() -> Iterator[None]:
    """Put the stable code into the text of any error of ours raised inside."""
    try:
        yield
    except JournalError as error:
        damage = " damage" if is_damage(error) else ""
        raise CodedError(f"fastjournal [{error.code}{damage}] {error}") from error


@contextmanager
def from_pyspark(feature: str) -> Iterator[None]:
    """Names that older versions of pyspark lack are imported inside; say what needs them."""
    try:
        yield
    except ImportError as error:
        from pyspark import __version__

        raise Unavailable(
            f"{feature}: pyspark {__version__} is too old, 4.3 will do: {error}"
        ) from error


def explain(error: BaseException) -> tuple[str, str] | None:
    """Code and message of one of our errors inside an error of Spark; None when it is not ours."""
    if isinstance(error, JournalError):
        return error.code, str(error)
    found = _TEXT.search(str(error))
    return (found.group(1), found.group(3).strip()) if found else None


def tells_damage(error: BaseException) -> bool:
    """Whether one of our errors inside an error of Spark says that bytes are wrong or missing."""
    if isinstance(error, JournalError):
        return is_damage(error)
    found = _TEXT.search(str(error))
    return found is not None and found.group(2) is not None
