"""A group of journals as its clients know it: where they are, and which of them a job is for.

    entry of the home      fastjournal.group         JSON: id, made, version, shards (addresses)
    entry of each journal  fastjournal.group.shard   JSON: group (its id), number, of (how many)

Pure: who reads and writes these entries is `_async.group`, and the command `fastjournal group`.

Rules:

1. The number of journals is fixed when the group is made; where they are may change.
2. A job with a key goes where its queue and key belong (`keys.shard_of`). One without a key goes
   where its id belongs, if its producer chose one: sent again it meets itself. Any other goes to
   the next in turn.
3. An id that is drawn here ends with the number of its journal, so that whoever has nothing but the
   id asks the right one first.
4. A journal that does not say that it is this one of this group is not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fastjournal.arguments import key_bytes, queue_bytes
from fastjournal.client.urls import MAX_GROUP, Target, target_of
from fastjournal.errors import BadRequest, SettingError
from fastjournal.keys import domain, shard_of
from fastjournal.model import NewJob, QueueStatus

__all__ = [
    "STAMP",
    "TABLE",
    "GroupTable",
    "is_stamped",
    "merged_queues",
    "read_table",
    "shard_addresses",
    "shard_names",
    "shard_of_id",
    "shard_of_job",
    "shard_target",
    "stamp",
    "stamped_id",
    "summed_figures",
]

TABLE = "fastjournal.group"
STAMP = "fastjournal.group.shard"
_COUNTS = (
    "rows", "queues", "ready", "future", "held", "leased", "completed", "dead", "jobs", "entries",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupTable:
    """The journals of a group."""

    id: str
    shards: tuple[str, ...]
    """The address of each."""
    version: int = 1
    """Rises with each change."""
    made: bool = False
    """Every journal knows that it is one of them."""

    def encode(self) -> str:
        """The value of its entry."""
        return json.dumps(asdict(self))

    def moved(self, number: int, address: str) -> GroupTable:
        """The same with another address of one journal."""
        if not 0 <= number < len(self.shards):
            raise BadRequest(f"the group has journals 0 to {len(self.shards) - 1}, not {number}")
        shards = (*self.shards[:number], address, *self.shards[number + 1 :])
        return replace(self, shards=shards, version=self.version + 1)


def read_table(value: object, expected: int = 0) -> GroupTable:
    """A table from the value of its entry; `expected`: how many journals the URL speaks of."""
    if value is None:
        raise SettingError("no group has its home here: fastjournal group create", name="group")
    try:
        fields = json.loads(str(value))
        shards = tuple(map(str, fields["shards"]))
        table = GroupTable(str(fields["id"]), shards, int(fields["version"]), bool(fields["made"]))
    except (ValueError, KeyError, TypeError) as error:
        raise SettingError(f"the entry {TABLE} is no table: {error}", name="group") from None
    if expected and len(shards) != expected:
        raise SettingError(f"the group has {len(shards)} journals, not {expected}", name="group")
    if not 1 <= len(shards) <= MAX_GROUP:
        raise SettingError(f"a group has 1 to {MAX_GROUP} journals", name="group")
    return table


def stamp(table: GroupTable, number: int) -> str:
    """What a journal of the group says of itself."""
    return json.dumps({"group": table.id, "number": number, "of": len(table.shards)})


def is_stamped(value: object, table: GroupTable, number: int) -> bool:
    """Whether a journal says that it is this one (rule 4)."""
    try:
        return bool(json.loads(str(value)) == json.loads(stamp(table, number)))
    except ValueError:
        return False


def shard_names(home: str, count: int) -> list[str]:
    """What the journals of a group are called, unless somebody calls them otherwise."""
    if not 1 <= count <= MAX_GROUP:
        raise SettingError(f"a group has 1 to {MAX_GROUP} journals", name="shards")
    return [f"{home}-{number}" for number in range(count)]


def shard_addresses(home: str, count: int) -> list[str]:
    """Where they are, if the nodes of the home keep them too."""
    scheme, mark, rest = home.partition("?")[0].partition("://")
    if not mark or not target_of(home).journal:
        raise SettingError("name the journal of the home: fj://host:port/journal", name="home")
    return shard_names(f"{scheme}://{rest.rpartition('@')[2]}", count)


def shard_target(home: Target, address: str) -> Target:
    """Where a journal of the group is; who asks, and how, is as in the URL of the home."""
    node = target_of(address)
    return replace(
        home, host=node.host, port=node.port, path=node.path, journal=node.journal,
        tls=node.tls, others=node.others, group=0,
    )  # fmt: skip


def shard_of_job(job: NewJob | Mapping[str, Any], shards: int, turn: int) -> int:
    """Which journal a job is for (rule 2); `turn`: whose turn it is."""
    if isinstance(job, NewJob):
        key, queue, chosen = job.key, job.queue, job.id
    else:
        given = job.get("key")
        key = b"" if given is None else key_bytes(given)
        named = job.get("queue")
        if named is None and not key:
            raise BadRequest("name a queue, or give a key that has a domain")
        queue = domain(key) if named is None else queue_bytes(named)
        chosen = job.get("id") or b""
    if key or chosen:
        return shard_of(queue, key or bytes(chosen), shards)
    return turn % shards


def stamped_id(drawn: bytes, number: int) -> bytes:
    """An id that tells its journal (rule 3)."""
    return drawn[:14] + number.to_bytes(2, "big")


def shard_of_id(job_id: bytes, shards: int) -> int:
    """Which journal is asked first for an id."""
    number = int.from_bytes(job_id[-2:], "big")
    return number if number < shards else 0


def summed_figures(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of the whole group; those of each journal are `shards`."""
    total: dict[str, Any] = {name: sum(int(one[name]) for one in each) for name in _COUNTS}
    return total | {"disk_full": any(one["disk_full"] for one in each), "shards": list(each)}


def merged_queues(each: Iterable[list[QueueStatus]]) -> list[QueueStatus]:
    """The queues of all journals, by name, each with all its rows."""
    found: dict[bytes, QueueStatus] = {}
    for queues in each:
        for queue in queues:
            other = found.get(queue.name_bytes)
            found[queue.name_bytes] = queue if other is None else _together(other, queue)
    return [found[name] for name in sorted(found)]


def _together(one: QueueStatus, other: QueueStatus) -> QueueStatus:
    dues = [due for due in (one.next_due, other.next_due) if due]
    return QueueStatus(
        one.name_bytes,
        one.ready + other.ready,
        one.future + other.future,
        one.held + other.held,
        one.leased + other.leased,
        one.completed + other.completed,
        one.dead + other.dead,
        min(dues, default=0),
        one.settings,
    )
