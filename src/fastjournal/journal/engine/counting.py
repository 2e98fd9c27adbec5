"""What a journal has done since it was opened, counted where it happens."""

from typing import final

from mypy_extensions import i64

from fastjournal.journal.language.commands import (
    TIMED_OUT,
    Command,
    Dead,
    Expire,
    Group,
    Retry,
    Timeout,
)

__all__ = ["JobCounts"]


@final
class JobCounts:
    """Running totals of one open journal."""

    def __init__(self) -> None:
        self.puts: i64 = 0
        """Jobs that were asked to be taken in and were not refused."""
        self.merges: i64 = 0
        """Of them, those merged into a waiting row."""
        self.stale: i64 = 0
        """Of them, those that changed nothing."""
        self.leases: i64 = 0
        self.touches: i64 = 0
        self.completions: i64 = 0
        self.failures: i64 = 0
        """Attempts that failed, whether tried again or not."""
        self.releases: i64 = 0
        self.timeouts: i64 = 0
        """Leases that ran out."""
        self.dead: i64 = 0
        """Rows given up."""
        self.expired: i64 = 0
        self.lease_lost: i64 = 0
        """Requests refused because their lease was no longer the newest."""

    def passed(self, command: Command) -> None:
        """Count what the clock did."""
        if isinstance(command, Group):
            for member in command.members:
                self.passed(member)
        elif isinstance(command, Expire):
            self.expired += 1
        elif isinstance(command, Dead):
            self.dead += 1
        elif isinstance(command, Timeout) or (
            isinstance(command, Retry) and command.reason == TIMED_OUT
        ):
            self.timeouts += 1
