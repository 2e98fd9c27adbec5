"""Which nodes keep which journal. Pure.

Rules:

1. Every journal ranks all nodes by a hash of both names (rendezvous hashing) and takes the highest,
   so a node that comes or goes moves next to nothing.
2. No node is given more than its share, ceil(journals x copies / nodes); who is full is passed
   over, and the next in the ranking is taken.
3. One node of each zone first; only when every zone has one does a second come from the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastjournal.errors import SettingError
from fastjournal.keys import murmur128

__all__ = ["place_journals"]


def place_journals(
    journals: Sequence[str],
    nodes: Mapping[str, str],
    copies: int = 3,
    *,
    fixed: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, tuple[str, ...]]:
    """For each journal its nodes. `nodes`: name and zone of each; `fixed`: journals that stay."""
    if not 1 <= copies <= len(nodes):
        raise SettingError(f"{copies} copies need as many nodes, not {len(nodes)}", name="copies")
    kept = dict(fixed or {})
    total = len({*journals, *kept}) * copies
    cap = -(-total // len(nodes))
    load = dict.fromkeys(nodes, 0)
    for homes in kept.values():
        for name in homes:
            load[name] = load.get(name, 0) + 1
    placed: dict[str, tuple[str, ...]] = {}
    for journal in journals:
        if journal in kept:
            placed[journal] = tuple(kept[journal])
            continue
        ranked = sorted(nodes, key=lambda name: (_weight(journal, name), name), reverse=True)
        chosen = _choose(ranked, nodes, load, cap, copies)
        for name in chosen:
            load[name] += 1
        placed[journal] = tuple(chosen)
    return placed


def _choose(
    ranked: list[str], nodes: Mapping[str, str], load: dict[str, int], cap: int, copies: int
) -> list[str]:
    chosen: list[str] = []
    for full_too in (False, True):  # the last journals may find only full nodes left
        for zone_again in (False, True):
            for name in ranked:
                if len(chosen) == copies:
                    return chosen
                zones = {nodes[one] for one in chosen}
                if name in chosen or (load[name] >= cap and not full_too):
                    continue
                if zone_again or nodes[name] not in zones:
                    chosen.append(name)
    return chosen


def _weight(journal: str, node: str) -> bytes:
    return murmur128(f"{journal}\0{node}".encode())
