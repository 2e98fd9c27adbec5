"""Modules of an earlier version that have moved: they can still be imported, with a warning.

Rules:

1. A moved module has the names that the modules standing in its place make public.
2. It costs nothing until somebody imports it.
3. The package asks `find_moved` for a module that is nowhere else. Rooms in which much has moved
   install a finder of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["MovedModules", "find_moved"]


class MovedModules:
    """Finds moved modules; to be put into `sys.meta_path`."""

    def __init__(self, successors: Mapping[str, Sequence[str]]) -> None:
        """`successors`: by the name of each moved module those that stand in its place."""
        self._successors = successors

    def install(self) -> None:
        """Let them be imported."""
        sys.meta_path.append(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Found, if it has moved."""
        return ModuleSpec(name, self) if name in self._successors else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """A module like any other."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        import warnings

        successors = self._successors[module.__name__]
        warnings.warn(
            f"{module.__name__} has moved to {' and '.join(successors)}",
            DeprecationWarning,
            stacklevel=2,
        )
        for name_there in successors:
            found = import_module(name_there)
            for name in found.__all__:
                setattr(module, name, getattr(found, name))


_MOVED = MovedModules(
    {
        "fastjournal.compiled": ["fastjournal.package.compiled"],
        "fastjournal.connecting": ["fastjournal.connect_url"],
        "fastjournal.delivering": ["fastjournal.spool.daemon_destination"],
        "fastjournal.entry": ["fastjournal.entry_model", "fastjournal.entry_value"],
        "fastjournal.held": ["fastjournal.handles"],
        "fastjournal.journal.mapping": ["fastjournal.journal.entry_map"],
        "fastjournal.journal.view": ["fastjournal.journal.look.read_only"],
        "fastjournal.leased": ["fastjournal.handles"],
        "fastjournal.log.aio": ["fastjournal.log.write.async_commit_log"],
        "fastjournal.log.commitlog": ["fastjournal.log.write.commit_log"],
    }
)


def find_moved(name: str) -> ModuleSpec | None:
    """The module of this name, if it has moved and no room knows of it."""
    return _MOVED.find_spec(name)
