"""Modules of an earlier version that have moved: they can still be imported, with a warning.

Rules:

1. A moved module has the names that the modules standing in its place make public.
2. It costs nothing until somebody imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["MovedModules"]


class MovedModules:
    """Finds moved modules; to be put into `sys.meta_path`."""

    def __init__(self, places: Mapping[str, Sequence[str]]) -> None:
        """`places`: by the name of each moved module those that stand in its place."""
        self._places = places

    def install(self) -> None:
        """Let them be imported."""
        sys.meta_path.append(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Found, if it has moved."""
        return ModuleSpec(name, self) if name in self._places else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """A module like any other."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        import warnings

        places = self._places[module.__name__]
        warnings.warn(
            f"{module.__name__} has moved to {' and '.join(places)}",
            DeprecationWarning,
            stacklevel=2,
        )
        for place in places:
            found = import_module(place)
            for name in found.__all__:
                setattr(module, name, getattr(found, name))
