"""What a commit log counts, in the shape that a metrics page wants."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from pathlib import Path

__all__ = ["FAULTS", "SECONDS", "SIZES", "Counters", "Histogram", "LogStatus"]

FAULTS = ("open", "write", "sync", "close", "read", "other")
"""What may fail: making a segment, writing, syncing, closing, reading back, all else."""
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0)


@dataclass
class Histogram:
    """Counts of observations up to each bound; the last one counts those above all."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = list(self.counts) or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Add one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)


@dataclass
class Counters:
    """Running totals of one commit log; written by its writer thread and its callers."""

    queued: int = 0
    """Writes taken into the queue."""
    refused: int = 0
    """Writes refused because the queue was full."""
    writes: int = 0
    """Records handed to the system, through both doors."""
    bytes: int = 0
    syncs: int = 0
    rotations: int = 0
    errors: int = 0
    """Failed writes, syncs, rotations and preparations of a standby segment."""
    faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    """The same by what failed."""
    skipped: int = 0
    """Entries of batches that could not be written and were left out, as their caller asked."""
    lost: int = 0
    """Writes released early (strategy `behind`) that then found no space."""
    group_size: Histogram = field(default_factory=lambda: Histogram(SIZES))
    """Records handed to the system at once."""
    sync_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    rotation_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    last_sync: int = 0
    """When the newest sync ended, ns since 1970; 0: there was none yet."""

    def failed(self, what: str) -> None:
        """Count a fault, one of `FAULTS`."""
        self.errors += 1
        self.faults[what] += 1

    def copy(self) -> "Counters":
        """The totals of this moment."""
        return replace(
            self,
            faults=dict(self.faults),
            group_size=replace(self.group_size),
            sync_seconds=replace(self.sync_seconds),
            rotation_seconds=replace(self.rotation_seconds),
        )


@dataclass(frozen=True, slots=True)
class LogStatus:
    """A commit log at one moment."""

    queue_length: int
    queue_capacity: int
    written_time: int
    synced_time: int
    active: Path
    standby: Path
    closed: bool
    failure: str
    """Why nothing is acknowledged any more; empty while all is well."""
    counters: Counters
