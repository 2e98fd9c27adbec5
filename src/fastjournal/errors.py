"""Every exception of fastjournal.

Rules:

1. One root, `JournalError`. Two families a caller treats differently: `RequestError`
   (the caller asked for something that cannot be had; nothing changed) and
   `JournalFault` (the journal, its disk or its peer is in trouble).
2. Each class has a stable `code`, the word that travels on the wire, and a one-line
   docstring that is the message when none is given.
3. Facts are fields, never text to parse.
4. What a failed write means is decided here, once. Full is: no space (ENOSPC), no quota (EDQUOT), a
   file at its limit (EFBIG), or a write that was cut short, which is how Linux says that only so
   much still fits. It is `NoSpace`, and passes. Everything else is `WriteFailed`: nobody knows
   whether it passes.
"""

from __future__ import annotations

import errno

TYPE_CHECKING = False  # `typing` would be half of what a producer's import costs
if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "AlreadyExists",
    "AppenderPoisoned",
    "ArchiveError",
    "BadCursor",
    "BadFlags",
    "BadFunction",
    "BadPattern",
    "BadRequest",
    "ClockSkew",
    "Closed",
    "CorruptCommand",
    "CorruptRecord",
    "GarbledAnswer",
    "JournalError",
    "JournalFault",
    "LeaseLost",
    "Loading",
    "LockTimeout",
    "Locked",
    "MemoryFull",
    "NoSpace",
    "NotFound",
    "NotLocked",
    "OutOfRange",
    "OutcomeUnknown",
    "ProtocolError",
    "QueueFull",
    "QueuePaused",
    "ReadOnly",
    "RequestError",
    "RotationFailed",
    "SegmentError",
    "SettingError",
    "SkipSegment",
    "SpoolFull",
    "Stopped",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "VersionMismatch",
    "WriteFailed",
    "WrongType",
]


class JournalError(Exception):
    """Something went wrong in fastjournal."""

    code = "SERVER-ERROR"

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])


def because(error: JournalError, cause: BaseException) -> JournalError:
    """The error, with its cause: compiled code forgets the `from` of a `raise`."""
    error.__cause__ = cause
    return error


class RequestError(JournalError):
    """The request cannot be served; nothing was changed."""

    code = "CLIENT-ERROR"


class JournalFault(JournalError):
    """The journal itself is in trouble."""

    code = "SERVER-ERROR"


class BadRequest(RequestError):
    """The request is malformed."""


class SettingError(RequestError):
    """A setting is unknown or out of range."""

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class NotFound(RequestError):
    """No such job, key or queue."""

    code = "NOT-FOUND"


class AlreadyExists(RequestError):
    """The id or key is taken."""

    code = "EXISTS"


class Locked(RequestError):
    """Somebody else holds the lock on this key."""

    code = "LOCKED"


class LeaseLost(RequestError):
    """The lease is no longer yours: its token is stale."""

    code = "LEASE-LOST"


class QueuePaused(RequestError):
    """The queue does not take jobs now."""

    code = "PAUSED"


class WrongType(RequestError):
    """The stored value has another type."""

    code = "TYPE"


class OutOfRange(RequestError):
    """The number does not fit."""

    code = "RANGE"


class ClockSkew(RequestError):
    """The sender's clock is too far ahead."""

    code = "CLOCK"


class QueueFull(RequestError):
    """The write queue is full; try again later."""

    code = "FULL"


class MemoryFull(QueueFull):
    """There is no room in memory for one more entry that lives there only."""


class TooLarge(RequestError):
    """The payload, key or message is larger than the limit."""

    code = "TOO-LARGE"


class TimedOut(RequestError):
    """Nothing happened within the time given."""

    code = "TIMEOUT"


class BadCursor(RequestError):
    """The cursor is damaged or foreign."""

    code = "CURSOR"


class BadPattern(RequestError):
    """The regular expression is not accepted."""

    code = "REGEX"


class BadFlags(RequestError):
    """The flag bits are not defined for this function."""

    code = "BAD-FLAGS"


class BadFunction(RequestError):
    """The function is unknown."""

    code = "BAD-FUNCTION"


class Unauthorized(RequestError):
    """The token is missing, wrong, or does not allow this."""

    code = "DENIED"


class NotLocked(RequestError):
    """Take the lock before using this object."""


class Closed(RequestError):
    """The object is closed."""

    code = "CLOSED"


class ProtocolError(JournalError):
    """The peer broke the protocol; the connection must end."""

    code = "CLIENT-ERROR"


class VersionMismatch(JournalFault):
    """The data or the peer speaks another version."""

    code = "VERSION"


class NoSpace(JournalFault):
    """The disk is full."""

    code = "NO-SPACE"


class WriteFailed(JournalFault):
    """A write failed and was undone; nothing of it is in the log."""


class RotationFailed(WriteFailed):
    """The next segment cannot be made; nothing is lost, and the next write tries again."""


class SpoolFull(JournalFault):
    """The spool has reached its size limit."""

    code = "NO-SPACE"


class ReadOnly(JournalFault):
    """Writing has stopped after a fault; reads go on."""

    code = "READ-ONLY"


class Stopped(ReadOnly):
    """The log stopped acknowledging after a failed write or sync; reopen it."""


class OutcomeUnknown(Stopped):
    """The log stopped before this was safe: it may be there after a restart, or not."""

    code = "UNKNOWN"


class AppenderPoisoned(ReadOnly):
    """A write could not be undone or a sync failed; this appender writes no more."""


class ArchiveError(JournalFault):
    """The archive cannot be reached, or is not what it should be."""


class Loading(JournalFault):
    """The journal is still replaying its log."""

    code = "LOADING"


class Unavailable(JournalFault):
    """The daemon cannot be reached."""

    code = "UNAVAILABLE"


class NotPrimary(Unavailable):
    """The node does not lead its journal; the text is the address of the one that does, if any."""

    code = "NOT-PRIMARY"

    def __init__(self, address: str = "") -> None:
        super().__init__(address or "nobody is known to lead")

    @property
    def address(self) -> str:
        """Where the primary is, `host:port`; empty: not known."""
        return "" if " " in str(self) else str(self)


class GarbledAnswer(Unavailable, ProtocolError):
    """The peer broke the protocol while an answer was due: nobody knows the outcome."""


class LockTimeout(JournalFault):
    """Another process holds the lock."""

    code = "LOCKED"

    def __init__(self, message: str = "", *, path: Path | None = None, holder: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.holder = holder


class SegmentError(JournalFault):
    """A segment file cannot be used as it is."""

    def __init__(self, path: Path | str, reason: str) -> None:
        from pathlib import Path  # a producer, who never sees this error, does not pay for it

        super().__init__(f"{path}: {reason}")
        self.path = Path(path)
        self.reason = reason


class CorruptRecord(SegmentError):
    """Bytes in a segment are not what was written."""

    def __init__(
        self, path: Path | str, offset: int, reason: str, next_valid: int | None = None
    ) -> None:
        after = "" if next_valid is None else f"; next valid record at offset {next_valid}"
        super().__init__(path, f"offset {offset}: {reason}{after}")
        self.offset = offset
        self.fault = reason
        self.next_valid = next_valid


class CorruptCommand(JournalFault):
    """A record holds no command; whoever read it adds file and offset."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def is_damage(error: BaseException) -> bool:
    """Whether bytes are wrong or missing; a file that cannot be opened is another matter."""
    return isinstance(error, (SegmentError, CorruptCommand)) and not isinstance(
        error.__cause__, OSError
    )


class SkipSegment(Exception):
    """Raised by a clean function: leave this segment as it is."""


_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def is_full(error: OSError) -> bool:
    """Whether the disk is full."""
    return error.errno in _FULL


def write_failure(error: OSError, path: Path | str) -> JournalFault:
    """The error a caller sees for a failed and undone write."""
    kind = NoSpace if is_full(error) else WriteFailed
    failure = kind(f"{path}: {error.strerror or error}")
    failure.__cause__ = error
    return failure


def short_write(written: int, size: int) -> OSError:
    """The error of the system that a short write stands for."""
    return OSError(errno.ENOSPC, f"short write, {written} of {size} bytes")


_NOTE = 48  # bytes kept free for what is said of the gap


def quoted(name: bytes) -> str:
    """A key or the name of a queue, for people; what is no text in it is escaped."""
    return repr(name[:80].decode("utf-8", "backslashreplace"))


def failure_text(error: BaseException, limit: int = 8192) -> bytes:
    """The traceback of an exception as UTF-8 in at most `limit` bytes, cut where it tells least.

    The last line, which names the exception, stays; of one that is itself too long its beginning.
    What is left out is left out of the middle, and its size is told in its place.
    """
    import traceback  # heavy, and seldom needed

    text = "".join(traceback.format_exception(error)).encode("utf-8", "replace")
    if len(text) <= limit:
        return text
    last = traceback.format_exception_only(error)[-1].encode("utf-8", "replace")[: limit // 2]
    before = text[: text.rfind(last)]
    tail = before[len(before) - (limit // 2 - len(last)) :]
    head = before[: limit - _NOTE - len(tail) - len(last)]
    gap = f"\n... {len(text) - len(head) - len(tail) - len(last)} bytes left out ...\n"
    return (head + gap.encode() + tail + last).decode("utf-8", "ignore").encode()
