"""Regular expressions over keys: those of RE2.

No back references, and time linear in the key (D-25).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fastjournal.errors import BadPattern

__all__ = ["MAX_PATTERN", "compiled_pattern"]

MAX_PATTERN = 1024


@lru_cache(maxsize=64)
def compiled_pattern(pattern: bytes) -> Any:
    """A pattern over bytes, ready to search."""
    if len(pattern) > MAX_PATTERN:
        raise BadPattern(f"a pattern has at most {MAX_PATTERN} bytes")
    try:
        import re2
    except ImportError:
        raise BadPattern("patterns need: pip install 'fastjournal[daemon]'") from None
    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        what = error.args[0] if error.args else ""
        text = what.decode("utf-8", "replace") if isinstance(what, bytes) else str(what)
        raise BadPattern(f"not a pattern: {text}") from None
