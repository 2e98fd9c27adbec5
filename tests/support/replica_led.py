"""A world in which only happens what is told: for faults that chance brings too rarely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fastjournal.clock import SECOND
from fastjournal.replica.member import Role
from fastjournal.replica.rules import Rules
from replica_world import TIMING, Node, Plan, World

QUIET = Plan(loss=0, twice=0, late=0, faults=())
DEAF = replace(QUIET, timing=replace(TIMING, look=3600 * SECOND, suspicion=3600 * SECOND))
"""Nobody looks at the arbiter again unless something happens."""


class Led(World):
    """A world in which only happens what is told."""

    def __init__(self, plan: Plan, rules: Rules) -> None:
        super().__init__(1, plan, rules)
        self.noise = self.revive = False

    def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        give_up = self.now + round(seconds * SECOND)
        while not condition():
            assert self.now < give_up, self.describe()
            self.run_for(0.005)

    def leader(self, epoch: int = 0, *, serving: bool = True) -> Node:
        """Who leads that epoch, or the first one."""

        def found() -> list[Node]:
            return [
                node
                for node in self.nodes.values()
                if node.up
                and (member := node.replicas["j0"].member).role is Role.PRIMARY
                and member.epoch >= epoch
                and (member.is_serving or not serving)
            ]

        self.until(lambda: bool(found()))
        return found()[0]

    def isolate(self, node: Node, *friends: Node) -> None:
        """From all but its friends, and from the arbiter."""
        self.arbiter_down.add(node.name)
        for name in self.nodes:
            if name not in {friend.name for friend in friends}:
                self.blocked |= {(node.name, name), (name, node.name)}

    def others(self, *without: Node) -> list[Node]:
        return [node for node in self.nodes.values() if node not in without]

    def put(self, node: Node, kind: str = "put") -> None:
        self.request(node, kind)
        self.run_for(0.5)

    def finish(self) -> None:
        """All is healed, and every promise is looked at."""
        self.heal()
        self.until(lambda: self.is_settled("j0"))
        self._compare()


def settled(plan: Plan, rules: Rules) -> tuple[Led, Node]:
    world = Led(plan, rules)
    primary = world.leader()
    world.put(primary)
    world.until(lambda: world.is_settled("j0"))
    return world, primary
