"""Which nodes keep which journal, and how a node is set up.

Rules:

1. The nodes of a journal stand in its `set` at the arbiter. Where that is not there yet, whoever
   comes first makes it, as `place_journals` says for the journals of the settings: a daemon that
   starts, or an operator who names others (`fastjournal replica place`). From then on it is what
   stands there, and changes one node at a time.
2. All nodes have the same settings as to journals, nodes, zones and copies: so it does not matter
   who comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fastjournal.clock import SECOND
from fastjournal.config import ReplicaSettings, Settings, parse_address
from fastjournal.daemon.server import find_journals, is_journal
from fastjournal.errors import SettingError
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.replica.disk import ReplicaLog
from fastjournal.replica.host import NodeOptions
from fastjournal.replica.lease import Timing
from fastjournal.replica.placement import place_journals
from fastjournal.replica.rules import MemberSet
from fastjournal.tables import Tables

__all__ = [
    "Sets",
    "check_homes",
    "check_settings",
    "find_home",
    "make_sets",
    "node_options",
    "open_replica",
]


class Sets(Protocol):
    """Where the sets stand; each call may block, and raise."""

    def find_all(self) -> dict[str, MemberSet]:
        """The nodes of each journal that has any."""

    def create(self, journal: str, members: MemberSet) -> None:
        """Make the keys of a journal, unless they are there."""


def check_settings(settings: Settings) -> None:
    """Refuse what a replicated daemon cannot do."""
    if settings.tables:
        raise SettingError("a replicated daemon declares no tables", name="tables")
    if settings.journal.history == "archive":
        raise SettingError(
            "a replicated journal is archived at one place for all nodes: say archive",
            name="history",
        )


def check_homes(settings: Settings, sets: Mapping[str, MemberSet]) -> None:
    """Refuse a directory in which something else lies than journals that have been placed."""
    others = sorted(set(find_journals(settings, Tables({}, {}))) - set(sets))
    if others:
        raise SettingError(
            f"all nodes are to name the same journals, and here are others: {', '.join(others)}",
            name="journals",
        )


def find_home(settings: Settings, journal: str) -> Path:
    """The directory of a journal on this node."""
    data = Path(settings.data)
    if not is_journal(data):
        return data / journal
    if journal != settings.default_journal:
        raise SettingError(f"{data} is one journal: {journal} has no place", name="journals")
    return data


def make_sets(sets: Sets, settings: Settings) -> dict[str, MemberSet]:
    """The nodes of every journal; those of the settings that nobody has placed are (rule 1)."""
    replica, known = settings.replica, sets.find_all()
    names = dict.fromkeys((settings.default_journal, *settings.journals))
    missing = [name for name in names if name not in known]
    if not missing:
        return known
    zones = zones_of(replica)
    fixed = {name: found.nodes for name, found in known.items()}
    placed = place_journals(missing, zones, replica.copies or len(zones), fixed=fixed)
    for name, nodes in placed.items():
        sets.create(name, MemberSet(tuple(sorted(nodes))))
    return sets.find_all()


def zones_of(settings: ReplicaSettings) -> dict[str, str]:
    """All nodes, and the zone of each."""
    zones = {settings.name: ""}
    for peer in settings.peers:
        name, address = _split(peer)
        zones[name] = address.partition("@")[2]
    return zones


def _split(peer: str) -> tuple[str, str]:
    name, equals, address = peer.partition("=")
    if not equals or not name:
        raise SettingError(f"a peer is a node, name=host:port, not {peer!r}", name="peers")
    return name, address


def open_replica(path: Path, settings: Settings) -> ReplicaLog:
    """The log of a node."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = Stream(path, WORKQ, zone_bytes=settings.journal.zone_bytes)
    sync = settings.journal.sync
    return ReplicaLog(stream, sync=sync, segment_size=settings.journal.segment_size)


def node_options(settings: ReplicaSettings, listen: Sequence[str] = ()) -> NodeOptions:
    """The settings of a node, checked."""
    peers: dict[str, tuple[str, int]] = {}
    for peer in settings.peers:
        name, address = _split(peer)
        if name != settings.name:  # so that the same list is good for all of them
            peers[name] = parse_address(address.partition("@")[0], 17996)
    host, port = parse_address(settings.listen, 17996)
    secret = ""
    if settings.secret_file:
        try:
            secret = Path(settings.secret_file).read_text("utf-8").strip()
        except OSError as error:
            raise SettingError(f"secret_file: {error.strerror}", name="secret_file") from None
    elif not all(where.startswith("127.") for where, _ in [(host, 0), *peers.values()]):
        raise SettingError("nodes on several machines need a secret_file", name="secret_file")
    ttl = round(settings.ttl * SECOND)
    timing = Timing(ttl=ttl, margin=ttl // 5, renew=ttl * 3 // 10, candidacy=ttl // 2)
    found = [one for one in (settings.clients, *listen) if one and not one.startswith("unix:")]
    clients = ""
    if found:
        where, number = parse_address(found[0])
        clients = f"[{where}]:{number}" if ":" in where else f"{where}:{number}"
    return NodeOptions(settings.name, host, port, peers, secret, timing, settings.catch_up, clients)
