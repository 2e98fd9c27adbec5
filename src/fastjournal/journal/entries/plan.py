"""What a decision about an entry comes to.

What is not to persist is applied without being logged, so a decision has two parts. What is logged
goes first: a refused write leaves no half of it.
"""

from typing import final

from mypy_extensions import mypyc_attr

from fastjournal.journal.language.commands import Command, Group

__all__ = ["Decided", "Plan"]


@final
@mypyc_attr(acyclic=True)
class Decided:
    """What is to be done: log and apply one command, then apply the other without a record."""

    def __init__(
        self,
        logged: Command | None = None,
        remembered: Command | None = None,
        stale: bool = False,
        found: int = 0,
        kind: int = 0,
        data: bytes = b"",
    ) -> None:
        self.logged = logged
        self.remembered = remembered
        self.stale = stale
        """An equal or newer write is there already."""
        self.found = found
        """Entries that were there to be changed."""
        self.kind = kind
        self.data = data
        """The value as it is now."""


@final
@mypyc_attr(acyclic=True)
class Plan:
    """Commands in the order of their effects, sorted by whether they are to be logged."""

    def __init__(self) -> None:
        self._logged: list[Command] = []
        self._remembered: list[Command] = []

    def add(self, command: Command, persist: bool) -> None:
        """This next; a group is taken apart."""
        commands = self._logged if persist else self._remembered
        if isinstance(command, Group):
            commands.extend(command.members)
        else:
            commands.append(command)

    def decided(self, found: int = 0, kind: int = 0, data: bytes = b"") -> Decided:
        """The plan is made."""
        return Decided(_one(self._logged), _one(self._remembered), False, found, kind, data)


def _one(commands: list[Command]) -> Command | None:
    if len(commands) < 2:
        return commands[0] if commands else None
    return Group(tuple(commands))
