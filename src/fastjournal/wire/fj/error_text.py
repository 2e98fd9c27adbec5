"""Errors as the words that travel: `CODE text` out, the same class back in.

Rules:

1. The code is the `code` of the class in `fastjournal.errors`; classes that share a code come
   back as the one that a caller can treat: CLIENT-ERROR as `BadRequest`, SERVER-ERROR as
   `JournalFault`, NO-SPACE as `NoSpace`, READ-ONLY as `ReadOnly`, LOCKED as `Locked`.
2. An unknown code comes back as `JournalFault` that keeps the code: a newer server may have more.
3. The text is for people. Nothing reads it, but that of NOT-PRIMARY: where the primary is.
"""

from __future__ import annotations

from fastjournal import errors
from fastjournal.errors import JournalError, JournalFault

__all__ = ["CODES", "error_from", "error_text"]

CODES: dict[str, type[JournalError]] = {
    kind.code: kind
    for kind in (
        errors.BadRequest,
        errors.JournalFault,
        errors.AlreadyExists,
        errors.BadCursor,
        errors.BadFlags,
        errors.BadFunction,
        errors.BadPattern,
        errors.ClockSkew,
        errors.Closed,
        errors.LeaseLost,
        errors.Loading,
        errors.Locked,
        errors.NoSpace,
        errors.NotFound,
        errors.NotPrimary,
        errors.OutOfRange,
        errors.OutcomeUnknown,
        errors.QueueFull,
        errors.QueuePaused,
        errors.ReadOnly,
        errors.TimedOut,
        errors.TooLarge,
        errors.Unauthorized,
        errors.Unavailable,
        errors.VersionMismatch,
        errors.WrongType,
    )
}


def error_text(error: BaseException) -> str:
    """The words for an exception; a foreign one tells its class only, never its text."""
    if isinstance(error, JournalError):
        return f"{error.code} {error}".strip()
    return f"SERVER-ERROR {type(error).__name__}"


def error_from(text: str) -> JournalError:
    """The exception for the words of a reply."""
    code, _, message = text.partition(" ")
    kind = CODES.get(code)
    if kind is not None:
        return kind(message)
    fault = JournalFault(message or code)
    fault.code = code
    return fault
