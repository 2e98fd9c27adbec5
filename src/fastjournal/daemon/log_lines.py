"""Log lines with named fields, as text or JSON, one write each.

Rules:

1. A line is one event and its fields, never a sentence to be taken apart. Text is for people:
   `TIME [level] event  name=value ...`; JSON has the same names and `event`, `level`, `timestamp`.
2. Nothing here knows what is secret: whoever logs a token has a bug. Bytes are shown as `repr`.
3. A line that cannot be written is dropped: a full pipe or disk must not stop the daemon.
"""

from __future__ import annotations

import contextlib
import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from fastjournal.clock import SECOND, SYSTEM_CLOCK, Clock

__all__ = ["LEVELS", "LibraryLines", "Lines", "Log"]

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Log(Protocol):
    """What the daemon writes its log with; a logger of structlog is one too."""

    def debug(self, event: str, **fields: Any) -> Any:
        """For whoever looks for a fault."""

    def info(self, event: str, **fields: Any) -> Any:
        """Something happened, as it should."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Somebody should have a look."""

    def error(self, event: str, **fields: Any) -> Any:
        """Something is broken; `exc_info` is an exception to be values in full."""


class Lines:
    """Writes lines of `level` and above to a stream."""

    def __init__(
        self, out: TextIO, *, level: str = "info", form: str = "text", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`form`: text or json."""
        self._out = out
        self._clock = clock
        self.level = LEVELS[level]
        self.form = form

    def debug(self, event: str, **fields: Any) -> None:
        """For whoever looks for a fault."""
        self._say("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Something happened, as it should."""
        self._say("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Somebody should have a look."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something is broken; `exc_info` is an exception to be values in full."""
        self._say("error", event, fields)

    def _say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if LEVELS[level] < self.level:
            return
        error = fields.pop("exc_info", None)
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        seconds, rest = divmod(self._clock.now(), SECOND)
        at = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"
        if self.form == "json":
            values = fields | ({"exception": trace.rstrip()} if trace else {})
            line = json.dumps(
                values | {"event": event, "level": level, "timestamp": at}, default=repr
            )
        else:
            words = "".join([f" {name}={_shown(value)}" for name, value in fields.items()])
            line = f"{at} [{level:<7}] {event:<24}{words}".rstrip()
            if trace:
                line += "\n" + trace.rstrip()
        with contextlib.suppress(OSError, ValueError):
            self._out.write(line + "\n")
            self._out.flush()


class LibraryLines(logging.Handler):
    """Puts what the library logs among the lines of the daemon."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """One line; `from` names the module."""
        names = [name for name, level in LEVELS.items() if level <= record.levelno]
        fields: dict[str, Any] = {"from": record.name}
        if record.exc_info:
            fields["exc_info"] = record.exc_info[1]
        self._lines._say(names[-1] if names else "debug", record.getMessage(), fields)


def _shown(value: Any) -> str:
    """A value that stays one word where it is one."""
    text = value if isinstance(value, str) else repr(value)
    return repr(text) if not text or any(c.isspace() or not c.isprintable() for c in text) else text
