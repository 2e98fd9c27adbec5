"""What a journal has done since it was opened, counted where it happens."""

from __future__ import annotations

from dataclasses import dataclass

from fastjournal.journal.language import commands as k

__all__ = ["JobCounts"]


@dataclass(slots=True)
class JobCounts:
    """Running totals of one open journal."""

    puts: int = 0
    """Jobs that were asked to be taken in and were not refused."""
    merges: int = 0
    """Of them, those merged into a waiting row."""
    stale: int = 0
    """Of them, those that changed nothing."""
    leases: int = 0
    touches: int = 0
    completions: int = 0
    failures: int = 0
    """Attempts that failed, whether tried again or not."""
    releases: int = 0
    timeouts: int = 0
    """Leases that ran out."""
    dead: int = 0
    """Rows given up."""
    expired: int = 0
    lease_lost: int = 0
    """Requests refused because their lease was no longer the newest."""

    def passed(self, command: k.Command) -> None:
        """Count what the clock did."""
        members = command.members if isinstance(command, k.Group) else (command,)
        for member in members:
            if isinstance(member, k.Expire):
                self.expired += 1
            elif isinstance(member, k.Dead):
                self.dead += 1
            elif isinstance(member, k.Timeout) or (
                isinstance(member, k.Retry) and member.reason == k.TIMED_OUT
            ):
                self.timeouts += 1
