"""An arbiter in memory, for tests and the simulation."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastjournal.replica.arbiter import ChangeSet, Look, Question, Raise, Resign, Take, View
from fastjournal.replica.rules import MemberSet

__all__ = ["MemoryArbiter"]


@dataclass(slots=True)
class _Keys:
    members: MemberSet
    epoch: int = 0
    leader: str = ""
    leads: int = 0
    lease: int = 0

    def free(self) -> None:
        """Nobody leads."""
        self.leader, self.leads, self.lease = "", 0, 0


@dataclass(slots=True)
class MemoryArbiter:
    """An arbiter in this process; time is told to it."""

    ttl: int
    now: int = 0
    _journals: dict[str, _Keys] = field(default_factory=dict)
    _leases: dict[int, int] = field(default_factory=dict)
    _given: int = 0

    def create(self, journal: str, members: MemberSet) -> None:
        """Make the keys of a journal."""
        self._journals.setdefault(journal, _Keys(members))

    def grant(self) -> int:
        """A new lease."""
        self._given += 1
        self._leases[self._given] = self.now + self.ttl
        return self._given

    def keep_alive(self, lease: int) -> bool:
        """Renew a lease; False: it has ended."""
        if self._leases.get(lease, 0) <= self.now:
            return False
        self._leases[lease] = self.now + self.ttl
        return True

    def ask(self, journal: str, node: str, question: Question) -> View | bool:
        """Answer one question, in one step."""
        keys = self._journals[journal]
        if keys.leader and self._leases.get(keys.lease, 0) <= self.now:
            keys.free()
        match question:
            case Look():
                return View(keys.members, keys.epoch, keys.leader, keys.leads)
            case Take(epoch, version, lease):
                if keys.leader or (keys.epoch, keys.members.version) != (epoch, version):
                    return False
                if self._leases.get(lease, 0) <= self.now:
                    return False
                keys.epoch = keys.leads = epoch + 1
                keys.leader, keys.lease = node, lease
                return True
            case Raise(epoch):
                keys.epoch = max(keys.epoch, epoch)
                return True
            case Resign(epoch):
                if (keys.leader, keys.leads) != (node, epoch):
                    return False
                keys.free()
                return True
            case ChangeSet(epoch, members):
                if keys.members == members:
                    return True
                right = (node, epoch, members.version - 1)
                if (keys.leader, keys.leads, keys.members.version) != right:
                    return False
                keys.members = members
                return True

    def restore_epoch(self, journal: str, epoch: int) -> None:
        """Forget the epochs since: what a restore from an old backup does."""
        self._journals[journal].free()
        self._journals[journal].epoch = epoch
