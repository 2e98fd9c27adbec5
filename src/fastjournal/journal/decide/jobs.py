"""All decisions about jobs, on one ground."""

from typing import final

from fastjournal.journal.decide.ground import Ground
from fastjournal.journal.decide.lease import Leases
from fastjournal.journal.decide.operator import Operator
from fastjournal.journal.decide.put import Puts
from fastjournal.journal.decide.timers import Timers

__all__ = ["Jobs"]


@final
class Jobs:
    """Those who decide; `state.apply` does."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.puts = Puts(ground)
        self.leases = Leases(ground)
        self.timers = Timers(ground)
        self.operator = Operator(ground)
