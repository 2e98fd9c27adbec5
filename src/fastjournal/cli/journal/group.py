"""`fastjournal group`: several journals behind one face.

Rules:

1. Nothing counts before every journal knows that it is one of the group: a command that was cut off
   is given again, with the same words.
2. A journal is moved by whoever runs it; here is only said where it is now, and only of a journal
   that says itself that it is the one.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from fastjournal.cli.arguments import Json
from fastjournal.cli.output import json_line, show_outcome, table
from fastjournal.errors import AlreadyExists, JournalError, SettingError, Unavailable

if TYPE_CHECKING:
    from fastjournal.client import Client
    from fastjournal.client.group_table import GroupTable

__all__ = ["app"]

app = typer.Typer(
    help="Several journals behind one face: make a group, look at it, say where one has moved.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Home = Annotated[
    str,
    typer.Argument(
        help="The journal that keeps the table: fj://host:port/journal.", metavar="HOME"
    ),
]
_LOCK = 30  # seconds


def _open(url: str) -> Client:
    from fastjournal.client import Client
    from fastjournal.client.urls import target_of

    return Client(replace(target_of(url), group=0))


def _open_shard(home: Client, address: str) -> Client:
    from fastjournal.client import Client
    from fastjournal.client.group_table import shard_target

    return Client(shard_target(home.target, address))


def _table_of(home: Client) -> GroupTable:
    from fastjournal.client.group_table import TABLE, read_table

    return read_table(home.entries.current.get(TABLE))


@app.command()
def create(
    home: Home,
    shards: Annotated[
        list[str] | None,
        typer.Argument(help="Where each journal is: fj://host:port/journal.", metavar="JOURNAL"),
    ] = None,
    count: Annotated[
        int, typer.Option("--shards", help="So many, beside the home: HOME-0, HOME-1, ...")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Make a group of these journals; how many they are can never change.

    They are empty, and each is served already, or will be in a moment. Clients then name the home:
    `HOME?group=4`.

    Examples:

        fastjournal group create fj://a/jobs fj://a/jobs-0 fj://b/jobs-1 fj://c/jobs-2 fj://d/jobs-3
        fastjournal group create fj://a,b,c/jobs --shards 64
    """
    from fastjournal.client.group_table import TABLE, GroupTable, shard_addresses

    if bool(shards) == bool(count):
        raise SettingError("name the journals of the group, or say --shards", name="shards")
    shards = shards or shard_addresses(home, count)
    if len(set(shards)) != len(shards):
        raise SettingError("a journal is in a group once", name="shards")
    with _open(home) as journal:
        asked = GroupTable(secrets.token_hex(8), tuple(shards))
        try:
            journal.entries.set(TABLE, asked.encode(), overwrite=False)
        except AlreadyExists:
            found = _table_of(journal)
            if found.made or found.shards != asked.shards:
                raise AlreadyExists(f"{home} is the home of another group") from None
            asked = found  # what was begun is brought to its end
        for number, address in enumerate(shards):
            with _open_shard(journal, address) as shard:
                _stamp(shard, asked, number, address)
        journal.entries.set(TABLE, replace(asked, made=True).encode())
    said = {"home": home, "shards": len(shards), "outcome": "made"}
    show_outcome(as_json, said, f"{home}?group={len(shards)}")


def _stamp(shard: Client, table: GroupTable, number: int, address: str) -> None:
    from fastjournal.client.group_table import STAMP, is_stamped, stamp

    if shard.status().jobs:
        raise SettingError(f"{address} has jobs: a group begins with empty journals", name="shards")
    try:
        shard.entries.set(STAMP, stamp(table, number), overwrite=False)
    except AlreadyExists:
        if not is_stamped(shard.entries.current.get(STAMP), table, number):
            raise AlreadyExists(f"{address} is a journal of another group") from None


@app.command()
def show(home: Home, as_json: Json = False) -> None:
    """Tell where each journal of a group is, and what waits there.

    Examples:

        fastjournal group show fj://a/jobs
    """
    rows = []
    with _open(home) as journal:
        found = _table_of(journal)
        for number, address in enumerate(found.shards):
            row: dict[str, object] = {"shard": number, "address": address}
            try:
                with _open_shard(journal, address) as shard:
                    figures = shard.status()
                row |= {"ready": figures.ready, "leased": figures.leased, "dead": figures.dead}
                row["state"] = "serves" if found.made else "not made yet"
            except JournalError as error:
                row |= {"ready": "", "leased": "", "dead": "", "state": str(error)}
            rows.append(row)
    if as_json:
        for row in rows:
            json_line(row)
        return
    table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])


@app.command()
def move(
    home: Home,
    number: Annotated[int, typer.Argument(help="Which journal, from 0 on.", metavar="SHARD")],
    address: Annotated[
        str, typer.Argument(help="Where it is now: fj://host:port/journal.", metavar="JOURNAL")
    ],
    as_json: Json = False,
) -> None:
    """Say where a journal of a group is now.

    First move it: a replicated one with `replica add` and `remove`; of any other stop the daemon,
    take its directory along, and start one there. Keys never move, whole journals do.

    Examples:

        fastjournal group move fj://a/jobs 2 fj://e/jobs-2
    """
    from fastjournal.client.group_table import STAMP, TABLE, is_stamped

    with _open(home) as journal, journal.entries.lock(TABLE, _LOCK) as lock:
        found = _table_of(journal)
        moved = found.moved(number, address)
        with _open_shard(journal, address) as shard:
            if not is_stamped(shard.entries.current.get(STAMP), found, number):
                raise SettingError(
                    f"{address} is not journal {number} of this group", name="address"
                )
            _check_left(journal, found.shards[number], shard)
        lock.set(moved.encode())
    show_outcome(
        as_json, {"shard": number, "address": address, "outcome": "moved"}, f"{number} {address}"
    )


def _check_left(home: Client, address: str, moved: Client) -> None:
    """Two that serve the same journal would each take jobs: the old one must have gone."""
    try:
        old = _open_shard(home, address)
    except Unavailable:
        return
    with old:
        theirs, ours = old.about.get("replica"), moved.about.get("replica")
    if theirs is None or ours is None or theirs["address"] != ours["address"]:
        raise SettingError(f"{address} still serves it: stop that daemon first", name="address")
