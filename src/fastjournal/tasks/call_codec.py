"""A call of a task as bytes, and back: JSON by msgspec, typed by the function's annotations.

    {"task":"shop.send","args":{"to":"ada","at":"2026-11-18T01:00:00Z"},"headers":{...}}

Rules:

1. What a function would not get as it was given is refused at the call, by name: a value that is
   not of its annotated type, and one without annotation that JSON would turn into something else.
2. Only arguments that were given travel; defaults are those of the function that runs.
3. Nothing is pickled: whoever may put jobs can call tasks, and nothing else.
4. A task has named parameters; `*args`, `**kwargs` and positional-only ones are refused where the
   task is defined.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

try:
    import msgspec
except ImportError:
    raise ImportError("tasks need: pip install 'fastjournal[tasks]'") from None

from fastjournal.errors import BadRequest, SettingError

__all__ = ["BadArguments", "CallCodec", "Envelope", "open_envelope"]

_UNSET = msgspec.UNSET
_NOT_FITTING = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_encode = msgspec.json.Encoder().encode
_UNTYPED = (Any, object, inspect.Parameter.empty)


class BadArguments(BadRequest, TypeError):
    """The arguments of a task do not fit its parameters, or cannot travel."""


class Envelope(msgspec.Struct):
    """A call whose arguments nobody has looked at yet."""

    task: str
    args: msgspec.Raw = msgspec.Raw(b"{}")
    headers: dict[str, str] = {}


_envelopes = msgspec.json.Decoder(Envelope)


def open_envelope(payload: bytes) -> Envelope:
    """What a job's payload says; `BadArguments` if it is no call."""
    try:
        return _envelopes.decode(payload)
    except _NOT_FITTING as error:
        raise BadArguments(f"the payload is no call of a task: {error}") from None


class CallCodec:
    """How calls of one function are written and read."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        hints = _hints(function)
        fields: list[Any] = []
        self._untyped: list[str] = []
        self.defaults: dict[str, Any] = {}
        """What parameters are that are not given."""
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
            ):
                raise SettingError(
                    f"{name}: parameter {parameter} has no name to travel under: "
                    "a task has named parameters only",
                    name=parameter.name,
                )
            kind = hints.get(parameter.name, Any)
            if any(kind is untyped for untyped in _UNTYPED):
                kind = Any
                self._untyped.append(parameter.name)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, kind))
            else:
                self.defaults[parameter.name] = parameter.default
                fields.append((parameter.name, kind | msgspec.UnsetType, _UNSET))
        self.names = tuple(field[0] for field in fields)
        keyword_only = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind is p.KEYWORD_ONLY
        ]
        returns = hints.get("return", Any)
        try:
            # The structure binds the arguments too, in C: one for those by position, and one that
            # adds those by keyword alone.
            positional = [field for field in fields if field[0] not in keyword_only]
            base = msgspec.defstruct("Arguments", positional, forbid_unknown_fields=True)
            self._structure: Any = base
            if keyword_only:
                self._structure = msgspec.defstruct(
                    "Arguments",
                    [field for field in fields if field[0] in keyword_only],
                    bases=(base,),
                    kw_only=True,
                    forbid_unknown_fields=True,
                )
            self._arguments: Any = msgspec.json.Decoder(self._structure)
            self._result: Any = msgspec.json.Decoder(
                Any if any(returns is untyped for untyped in _UNTYPED) else returns
            )
        except (*_NOT_FITTING, NameError) as error:
            raise SettingError(f"{name} cannot be a task: {error}", name=name) from None
        self._head = b'{"task":' + _encode(name) + b',"args":'

    def encode(
        self, given: tuple[Any, ...], named: Mapping[str, Any], headers: Mapping[str, str]
    ) -> tuple[bytes, Any]:
        """The payload of a call, and its arguments as the function will get them."""
        try:
            call = self._structure(*given, **named)
            data = _encode(call)
            arrives = self._arguments.decode(data)
        except _NOT_FITTING as error:
            raise BadArguments(f"{self.name}: {error}") from None
        for name in self._untyped:
            value, there = getattr(call, name), getattr(arrives, name)
            if value != there:
                raise BadArguments(
                    f"{self.name}: {name} is a {type(value).__name__} and would arrive as "
                    f"{there!r}: annotate the parameter with its type"
                )
        if not headers:
            return self._head + data + b"}", arrives
        return self._head + data + b',"headers":' + _encode(headers) + b"}", arrives

    def arguments(self, raw: msgspec.Raw) -> dict[str, Any]:
        """The arguments of a call by name, those only that were given."""
        try:
            return self.given(self._arguments.decode(raw))
        except _NOT_FITTING as error:
            raise BadArguments(f"{self.name}: {error}") from None

    def given(self, call: Any) -> dict[str, Any]:
        """The arguments of a call by name, those only that were given."""
        named = ((name, getattr(call, name)) for name in self.names)
        return {name: value for name, value in named if value is not _UNSET}

    def encode_result(self, result: Any) -> bytes | None:
        """What is kept of what the function returned; None of None."""
        if result is None:
            return None
        try:
            data = _encode(result)
        except _NOT_FITTING as error:
            raise BadArguments(f"{self.name}: its result cannot be kept: {error}") from None
        return data

    def decode_result(self, data: bytes) -> Any:
        """What the function returned."""
        if not data or data == b"null":
            return None
        try:
            return self._result.decode(data)
        except _NOT_FITTING as error:
            raise BadArguments(f"{self.name}: its result is not what it says: {error}") from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, evaluated."""
    inner = inspect.unwrap(function)
    try:
        return typing.get_type_hints(inner, localns=_closure(inner), include_extras=True)
    except NameError as error:
        raise SettingError(
            f"an annotation of {getattr(inner, '__qualname__', inner)} cannot be read: {error}",
            name="annotation",
        ) from None


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function sees of the one it is defined in: types that its annotations name."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    found: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=False):
        with contextlib.suppress(ValueError):  # not set yet
            found[name] = cell.cell_contents
    return found
