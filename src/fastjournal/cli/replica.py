"""`fastjournal replica`: who leads a replicated journal, and what an operator may do about it."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fastjournal.cli.output import json_line, show_list, show_outcome, table
from fastjournal.errors import BadRequest, NotFound, SettingError, Unavailable

__all__ = ["app"]

app = typer.Typer(
    help="Look after a replicated journal: who leads, who follows, what was left behind.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Nodes = Annotated[
    list[str],
    typer.Argument(help="`replica.listen` of each node: host:port.", metavar="NODE..."),
]
Node = Annotated[str, typer.Argument(help="`replica.listen` of the node.", metavar="NODE")]
JournalName = Annotated[str, typer.Option("--journal", help="Which journal.")]
SecretFile = Annotated[
    Path | None, typer.Option("--secret-file", help="What the nodes show each other.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON lines instead of text.")]
_SECONDS = 5.0
_LOOK = 0.3  # seconds between two looks at a move


def _ask(
    node: str,
    command: str,
    journal: str,
    secret_file: Path | None,
    member: str = "",
    leaves: str = "",
) -> dict[str, Any]:
    from fastjournal.config import parse_address

    secret = ""
    if secret_file is not None:
        try:
            secret = secret_file.read_text("utf-8").strip()
        except OSError as error:
            raise SettingError(f"{secret_file}: {error.strerror}", name="secret-file") from error
    line = {"command": command, "journal": journal, "secret": secret}
    line |= {"member": member, "leaves": leaves}
    try:
        with socket.create_connection(parse_address(node, 17996), _SECONDS) as sock:
            sock.settimeout(_SECONDS)
            sock.sendall(json.dumps(line).encode() + b"\n")
            answered = sock.makefile().readline()
    except OSError as error:
        raise Unavailable(f"{node}: {error}") from error
    if not answered:
        raise Unavailable(f"{node} does not answer: is the secret right, and the journal's name?")
    answer: dict[str, Any] = json.loads(answered)
    if "error" in answer:
        refused = BadRequest if answer.get("final") else Unavailable
        raise refused(f"{node}: {answer['error']}")
    return answer


@app.command()
def status(
    nodes: Nodes,
    journal: JournalName = "default",
    secret_file: SecretFile = None,
    as_json: Json = False,
) -> None:
    """Tell of each node what it is, how far it is, and whether it may vote.

    Examples:

        fastjournal replica status 10.0.0.1:17996 10.0.0.2:17996 10.0.0.3:17996
    """
    reports = []
    for node in nodes:
        try:
            reports.append(_ask(node, "status", journal, secret_file))
        except (Unavailable, BadRequest) as error:  # away, or it does not keep the journal
            if len(nodes) == 1:
                raise
            role = "away" if isinstance(error, Unavailable) else "none"
            reports.append({"node": node, "role": role, "damage": str(error)})
    if as_json:
        for one in reports:
            json_line(one)
        return
    newest = max((one.get("last_time", 0) for one in reports), default=0)
    rows = [
        [
            one["node"],
            "primary, serving" if one.get("serving") else one["role"],
            str(one.get("epoch", "")),
            f"{(newest - one['last_time']) / 1e9:.3f} s" if one.get("last_time") else "",
            {True: "yes", False: "no", None: ""}[one.get("eligible")],
            one.get("damage", ""),
        ]
        for one in reports
    ]
    table(["node", "role", "epoch", "behind", "votes", "damage"], rows)
    leaving = {name for one in reports if one.get("serving") for name in one["leaving"]}
    for name in sorted(leaving):
        typer.echo(f"{name} leaves once most of those who stay answer and have everything")


@app.command()
def switchover(
    node: Node,
    journal: JournalName = "default",
    secret_file: SecretFile = None,
    as_json: Json = False,
) -> None:
    """Let the primary resign, for somebody else to lead.

    Examples:

        fastjournal replica switchover 10.0.0.1:17996
    """
    _ask(node, "switchover", journal, secret_file)
    show_outcome(as_json, {"node": node, "outcome": "resigned"}, f"{node} has resigned")


MemberName = Annotated[str, typer.Argument(help="`replica.name` of a node.", metavar="NAME")]


@app.command()
def add(
    node: Node,
    member: MemberName,
    journal: JournalName = "default",
    secret_file: SecretFile = None,
    as_json: Json = False,
) -> None:
    """Let another node keep the journal too; NODE is the primary.

    It is one of the peers that all nodes know. First it fetches everything, then it counts.

    Examples:

        fastjournal replica add 10.0.0.1:17996 d
    """
    _ask(node, "add", journal, secret_file, member)
    show_outcome(as_json, {"node": member, "outcome": "joins"}, f"{member} is being caught up")


@app.command()
def remove(
    node: Node,
    member: MemberName,
    journal: JournalName = "default",
    secret_file: SecretFile = None,
    as_json: Json = False,
) -> None:
    """Let a node keep the journal no longer; NODE is the primary.

    One that is still being caught up is given up. Its files stay.

    Examples:

        fastjournal replica remove 10.0.0.1:17996 c
    """
    _ask(node, "remove", journal, secret_file, member)
    show_outcome(as_json, {"node": member, "outcome": "leaves"}, f"{member} leaves")


@app.command()
def move(
    node: Node,
    old: Annotated[str, typer.Argument(help="`replica.name` of who leaves.", metavar="OLD")],
    new: Annotated[str, typer.Argument(help="`replica.name` of who comes.", metavar="NEW")],
    journal: JournalName = "default",
    secret_file: SecretFile = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for it.")] = 3600.0,
    as_json: Json = False,
) -> None:
    """Let another node take the place of one that keeps the journal; NODE is any that does.

    It fetches everything, then it counts, then the old one leaves. Cut off, it goes on by itself
    while the primary lives; the same command again sees it to its end.

    Examples:

        fastjournal replica move 10.0.0.1:17996 c d
    """
    _ask(node, "status", journal, secret_file)  # whoever cannot be asked at all is told at once
    deadline, shown = time.monotonic() + timeout, ""
    while time.monotonic() < deadline:
        try:
            at = _primary_of(node, journal, secret_file)
            one = _ask(at, "report", journal, secret_file)
            voters, joining = one["voters"], one["joining"]
            if not joining and new in voters and old not in voters:
                show_outcome(
                    as_json, {"node": new, "outcome": "moved"}, f"{new} has taken {old}'s place"
                )
                return
            if not joining:
                _ask(at, "swap", journal, secret_file, new, old)
            step = _step(one, new)
        except Unavailable as error:  # between two primaries; what was refused is told at the end
            step = str(error)
        if step != shown:
            show_outcome(as_json, {"node": new, "outcome": "moving", "step": step}, step)
            shown = step
        time.sleep(_LOOK)
    raise Unavailable(f"{new} has not taken {old}'s place in {timeout:g} s: {shown}")


def _primary_of(node: str, journal: str, secret_file: Path | None) -> str:
    """Where the primary listens, as a node knows."""
    one = _ask(node, "status", journal, secret_file)
    if one["serving"]:
        return node
    if not one["listens"] or one["primary"] == one["node"]:
        raise Unavailable(f"{node}: nobody leads yet")
    return str(one["listens"])


def _step(one: dict[str, Any], new: str) -> str:
    """How far a node is that comes."""
    lag = one["lag"].get(new)
    if new in one["voters"] or lag is None:
        return f"{new}: both sets are asked" if one["joining"] else f"{new}: begins"
    return f"{new}: {lag['records']} records, {lag['bytes']} bytes to fetch"


@app.command()
def place(
    config: Annotated[
        Path, typer.Option("--config", help="Settings of a node, TOML: they name all nodes.")
    ],
    journals: Annotated[
        list[str] | None, typer.Argument(help="Names of the journals.", metavar="JOURNAL")
    ] = None,
    shards: Annotated[
        int, typer.Option("--shards", help="Also JOURNAL-0, JOURNAL-1, ... for a group of so many.")
    ] = 0,
    copies: Annotated[
        int | None, typer.Option("--copies", help="How many nodes keep each; 0: all of them.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which nodes keep which journal, once for each; those that run take it up within seconds.

    Nodes, zones and copies are those of the settings: one node of each zone first, none with more
    than its share. A journal that has its nodes keeps them: `replica move` changes them. Without
    names: tell where all journals are.

    Examples:

        fastjournal replica place --config a.toml orders mail
        fastjournal replica place --config a.toml jobs --shards 64
    """
    from fastjournal.client.group_table import shard_names
    from fastjournal.config import load
    from fastjournal.daemon.replicated.sets import make_sets
    from fastjournal.replica.etcd import EtcdArbiter

    names = list(journals or ())
    if shards and len(names) != 1:
        raise SettingError("a group has one home: name that journal", name="shards")
    if shards:
        names += shard_names(names[0], shards)
    given: dict[str, Any] = {"journals": names} if names else {}
    if copies is not None:
        given["replica"] = {"copies": copies}
    settings = load(config, overrides=given)
    arbiter = EtcdArbiter(settings.replica.arbiter)
    sets = make_sets(arbiter, settings) if names else arbiter.find_all()
    show_list(
        as_json,
        names or sorted(sets),
        lambda name: {"journal": name, "nodes": list(sets[name].nodes)},
        ["journal", "nodes"],
        lambda name: [name, " ".join(sets[name].nodes)],
    )


@app.command()
def promote(
    node: Node,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="What only the lost nodes had is given up.")
    ] = False,
    journal: JournalName = "default",
    secret_file: SecretFile = None,
    as_json: Json = False,
) -> None:
    """Let a node vote that may lack what it once acknowledged.

    For a cluster whose majority lost its data, and only then: what this node lacks is gone.

    Examples:

        fastjournal replica promote 10.0.0.2:17996 --accept-loss
    """
    if not accept_loss:
        raise SettingError("this may lose acknowledged jobs: say --accept-loss", name="accept-loss")
    _ask(node, "promote", journal, secret_file)
    show_outcome(as_json, {"node": node, "outcome": "votes"}, f"{node} votes")


@app.command()
def leave(
    directory: Annotated[Path, typer.Argument(help="Of the journal.", metavar="DIRECTORY")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="What only other nodes have is given up.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Let the copy of one node go on as a journal of its own, once every node has ended.

    Nothing is cut: records that no majority had are part of it.

    Examples:

        fastjournal replica leave /var/lib/fastjournal/default
    """
    from fastjournal.log.segment import WORKQ
    from fastjournal.log.stream import Stream
    from fastjournal.replica.leaving import leave_replication

    leave_replication(Stream(directory, WORKQ), accept_loss=accept_loss)
    said = {"directory": str(directory), "outcome": "left"}
    show_outcome(as_json, said, f"{directory} is a journal of its own")


@app.command()
def lost(
    directory: Annotated[Path, typer.Argument(help="Of the journal.", metavar="DIRECTORY")],
    put: Annotated[
        str | None,
        typer.Option("--put", help="Put its jobs again, into fj://host:port.", metavar="URL"),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the records that were cut off because a newer primary did not have them.

    `--put` puts those jobs again that the journal does not have, under their own ids, and tells of
    these records no more.

    Examples:

        fastjournal replica lost /var/lib/fastjournal/default
        fastjournal replica lost /var/lib/fastjournal/default --put fj://10.0.0.1,10.0.0.2
    """
    from fastjournal.journal.look.left_behind import files_left, left_behind

    try:
        if put is not None:
            _put_again(directory, put, as_json)
            return
        for one in left_behind(files_left(directory)):
            row = {
                "file": one.path.name,
                "time": one.time,
                "command": type(one.command).__name__,
                "id": one.command.id.hex(),
            }
            show_outcome(as_json, row, "  ".join(map(str, row.values())))
    except OSError as error:
        raise NotFound(f"{directory}: {error.strerror}") from error


def _put_again(directory: Path, url: str, as_json: bool) -> None:
    from fastjournal.cli.journal.open_journal import open_journal
    from fastjournal.journal.look.left_behind import (
        files_left,
        left_behind,
        lost_jobs,
        mark_put,
        put_again,
    )

    paths = files_left(directory)  # others may come while these are put
    jobs = lost_jobs(left_behind(paths), time.time_ns())
    with open_journal(directory, url) as journal:
        count = put_again(journal, jobs)
    mark_put(paths)
    files = len(paths)
    said = {"outcome": "put", "jobs": count, "known": len(jobs) - count, "files": files}
    known = len(jobs) - count
    show_outcome(
        as_json, said, f"{count} jobs put again; {known} were there already; {files} files done"
    )
