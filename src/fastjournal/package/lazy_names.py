"""Names of a package that are found when first used: importing it loads nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["names_from"]


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package; `homes`: the module of each name, as seen from there."""

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
