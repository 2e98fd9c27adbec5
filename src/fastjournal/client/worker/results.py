"""What a worker's function may return, judged by what it says of itself.

Rules:

1. A result is bytes or None. A function whose annotation allows anything else is refused before its
   first run: each job would be worked off in vain.
2. No annotation, or one that cannot be read or says nothing definite (`Any`, `object`), is taken as
   it is.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from fastjournal.errors import BadRequest

__all__ = ["check_result"]

_SILENT = (Any, object, typing.NoReturn, typing.Never, inspect.Signature.empty)


def check_result(function: Callable[..., Any]) -> None:
    """Refuse a function that says that it returns neither bytes nor None."""
    wrong = [kind for kind in _members(_returned(function)) if not _is_result(kind)]
    if wrong:
        names = ", ".join(getattr(kind, "__name__", str(kind)) for kind in wrong)
        name = getattr(function, "__qualname__", repr(function))
        raise BadRequest(f"a result is bytes or None; {name} says that it returns {names}")


def _returned(function: Callable[..., Any]) -> Any:
    """The annotation of what it returns, or what a coroutine of it gives."""
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - an object to call
    try:
        return inspect.signature(function, eval_str=True).return_annotation
    except Exception:  # an annotation is code: whatever it raises, nothing is known of it
        return inspect.Signature.empty


def _members(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _is_result(kind: Any) -> bool:
    if kind is None or kind is types.NoneType or any(kind is silent for silent in _SILENT):
        return True
    kind = typing.get_origin(kind) or kind
    return not isinstance(kind, type) or issubclass(kind, bytes)
