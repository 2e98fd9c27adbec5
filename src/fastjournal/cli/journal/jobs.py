"""The commands of producers and consumers: put, lease, and what ends a lease.

Rules:

1. Each command opens the journal, works, closes it: nothing is kept between two of them but what
   stands in the journal. A lease is its id and token, so another process may end it.
2. `lease` that finds nothing ends with exit code 1 and prints nothing.
3. A command says what it did only after it is on stable storage.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from fastjournal.cli.arguments import (
    Directory,
    JobId,
    Json,
    Payload,
    Schema,
    Token,
    Url,
    as_bytes,
    moment,
    payload_given,
    seconds,
)
from fastjournal.cli.journal.open_journal import open_journal, whole_id
from fastjournal.cli.output import json_line, lease_values, preview, show_outcome, table, text
from fastjournal.errors import BadRequest

__all__ = ["app"]

NOTHING = 1
_BATCH = 1000  # jobs taken in with one sync
_HERE = Path("jobs")
_TEXTS = ("payload", "key", "queue", "mode")
_NUMBERS = ("priority", "max_attempts", "max_timeouts", "max_fails")
_LENGTHS = ("delay", "ttl", "lease")
_INSTANTS = ("due", "expires", "timestamp")

app = typer.Typer(rich_markup_mode="markdown")


@app.command()
def put(
    payload: Payload = "",
    key: Annotated[str | None, typer.Option(help="Repeats of a waiting key are merged.")] = None,
    queue: Annotated[
        str | None, typer.Option(help="Where to; the domain of the key if not given.")
    ] = None,
    priority: Annotated[int, typer.Option(help="0 to 255, smaller first.")] = 100,
    delay: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="LENGTH", help="Not before so long from now."),
    ] = None,
    due: Annotated[
        Any, typer.Option(parser=moment, metavar="INSTANT", help="Not before this instant.")
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="LENGTH", help="Gone so long after it was due."),
    ] = None,
    expires: Annotated[
        Any, typer.Option(parser=moment, metavar="INSTANT", help="Gone after this instant.")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="LENGTH", help="How long a worker may keep it."),
    ] = None,
    max_attempts: Annotated[int, typer.Option(help="Dead after so many leases.")] = 0,
    max_timeouts: Annotated[int, typer.Option(help="Dead after so many lost leases.")] = 0,
    max_fails: Annotated[int, typer.Option(help="Dead after so many failures.")] = 0,
    mode: Annotated[
        str | None, typer.Option(help="merge (usual with a key), unique or plain.")
    ] = None,
    lines: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A job for each line: a JSON object of payload, key, queue, ...; - is standard "
            "input.",
        ),
    ] = None,
    directory: Directory = _HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Take a job in; the journal is made if it is missing.

    Prints the job's id and what became of it: **new**, **merged** into the waiting job of its key,
    a **twin** that waits for the job being worked on, or **stale** because a newer one is there.

    Examples:

        fastjournal put 'crawl this' --key https://example.com/a --delay 5

        fastjournal put - --queue mail --priority 10 < letter.eml

        fastjournal put --lines jobs.jsonl --json
    """
    if lines is None:
        job = {
            "payload": payload_given(payload), "key": as_bytes(key), "queue": as_bytes(queue),
            "priority": priority, "delay": delay, "due": due, "ttl": ttl, "expires": expires,
            "lease": lease, "max_attempts": max_attempts, "max_timeouts": max_timeouts,
            "max_fails": max_fails, "mode": mode,
        }  # fmt: skip
        jobs: Iterator[dict[str, Any]] = iter([job])
    else:
        if payload or key is not None:
            raise typer.BadParameter("--lines brings payloads and keys with it")
        common = {} if queue is None else {"queue": as_bytes(queue)}
        jobs = _jobs_of(lines, common)
    with open_journal(directory, url, create=True) as journal:
        while batch := list(islice(jobs, _BATCH)):
            for receipt in journal.put_many(batch):
                _print_end(receipt.id, receipt.outcome.name.lower(), as_json)


@app.command()
def lease(
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", help="Only from these queues.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Only from queues whose names begin so.")
    ] = None,
    wait: Annotated[
        float, typer.Option(parser=seconds, metavar="LENGTH", help="Wait so long for a job.")
    ] = 0,
    length: Annotated[
        float | None,
        typer.Option("--lease", parser=seconds, metavar="LENGTH", help="Keep it for so long."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Up to so many jobs.")] = 1,
    strict: Annotated[
        bool, typer.Option("--strict", help="The most urgent of all, instead of queues by turns.")
    ] = False,
    take: Annotated[
        bool, typer.Option("--take", help="The job goes at once; there is nothing to end.")
    ] = False,
    schema: Schema = None,
    worker: Annotated[str, typer.Option(help="Who asks; shown beside the job.")] = "",
    directory: Directory = _HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Get the next job. End it by its id and token, from any process.

    Exit code **1** if there is none. While it waits, the journal is taken: no other process can put
    a job into an embedded one.

    Examples:

        fastjournal lease

        fastjournal lease mail news --wait 10 --lease 5m --json

        fastjournal lease --take --json | jq -r .payload

        fastjournal lease mail --schema 2
    """
    with open_journal(directory, url) as journal:
        leased = journal.lease_many(
            count,
            queues=[name for name in map(as_bytes, queues or []) if name is not None] or None,
            prefix=as_bytes(prefix),
            wait=wait,
            lease=length,
            fair=not strict,
            worker=as_bytes(worker) or b"",
            take=take,
            schema=schema,
        )
    if as_json:
        for job in leased:
            json_line(lease_values(job.lease))
    elif leased:
        rows = [
            [
                job.id.hex(), str(job.token), text(job.lease.job.queue_bytes),
                text(job.lease.job.key_bytes), str(job.attempt),
                "-" if take else f"{job.until:%H:%M:%SZ}",
                preview(job.payload, 60),
            ]
            for job in leased
        ]  # fmt: skip
        heads = ["id", "token", "queue", "key", "attempt", "until", "payload"]
        table(heads, rows, right=["token", "attempt"])
    if not leased:
        raise typer.Exit(NOTHING)


@app.command()
def done(
    job: JobId,
    token: Token,
    result: Annotated[
        str | None, typer.Option(help="Kept for whoever asks; - reads it from standard input.")
    ] = None,
    directory: Directory = _HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """The work is done: the job goes, or stays as completed if it has a result.

    Examples:

        fastjournal done 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5 1

        fastjournal done 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5 1 --result '42 pages'
    """
    with open_journal(directory, url) as journal:
        row_id = whole_id(journal, job)
        journal.complete(row_id, token, None if result is None else payload_given(result))
    _print_end(row_id, "done", as_json)


@app.command()
def fail(
    job: JobId,
    token: Token,
    reason: Annotated[str, typer.Option(help="Why; - reads it from standard input.")] = "",
    delay: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="LENGTH",
            help="Try again so long from now, not as the queue says.",
        ),
    ] = None,
    directory: Directory = _HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """The work failed: the job is tried again later, or is dead if it failed too often.

    Examples:

        fastjournal fail 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5 1 --reason 'no route to host' --delay 10m
    """
    from fastjournal.model import State

    with open_journal(directory, url) as journal:
        row_id = whole_id(journal, job)
        state = journal.fail(row_id, token, payload_given(reason), delay)
    words = {State.WAITING: "will be tried again", State.FAILED: "dead"}
    word = words.get(state, "gone: a newer job of its key waits")
    short = {State.WAITING: "waiting", State.FAILED: "dead"}.get(state, "gone")
    show_outcome(as_json, {"id": row_id.hex(), "outcome": short}, f"{row_id.hex()} {word}")


@app.command()
def touch(
    job: JobId,
    token: Token,
    extend: Annotated[
        float | None,
        typer.Option(
            parser=seconds, metavar="LENGTH", help="So long from now; as usual if not given."
        ),
    ] = None,
    directory: Directory = _HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Keep a lease for longer; prints when it ends.

    Examples:

        fastjournal touch 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5 1 --extend 10m
    """
    from fastjournal.clock import instant_text

    with open_journal(directory, url) as journal:
        row_id = whole_id(journal, job)
        until = journal.touch(row_id, token, extend)
    show_outcome(
        as_json, {"id": row_id.hex(), "until": until}, f"{row_id.hex()} until {instant_text(until)}"
    )


@app.command()
def release(
    job: JobId,
    token: Token,
    delay: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="LENGTH", help="Not before so long from now."),
    ] = None,
    directory: Directory = _HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Give a job back unworked; it counts as no failure.

    Examples:

        fastjournal release 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5 1 --delay 30
    """
    with open_journal(directory, url) as journal:
        row_id = whole_id(journal, job)
        journal.release(row_id, token, delay)
    _print_end(row_id, "released", as_json)


def _print_end(job_id: bytes, outcome: str, as_json: bool) -> None:
    """Say what became of a job."""
    show_outcome(as_json, {"id": job_id.hex(), "outcome": outcome}, f"{job_id.hex()} {outcome}")


def _jobs_of(file: str, common: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The jobs of a file of JSON lines; the line is named that holds none."""
    try:
        source = sys.stdin.buffer if file == "-" else Path(file).open("rb")  # noqa: SIM115
        with source:
            for number, line in enumerate(source, 1):
                if line.strip():
                    yield {**common, **_job_of(line, f"{file}:{number}")}
    except OSError as error:
        raise BadRequest(f"{file} cannot be read: {error.strerror}") from error


def _job_of(line: bytes, where: str) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise BadRequest(f"{where}: not JSON: {error}") from None
    if not isinstance(given, dict):
        raise BadRequest(f"{where}: not a JSON object")
    job: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        try:
            job[name] = _field(name, value)
        except (KeyError, typer.BadParameter):
            raise BadRequest(f"{where}: {name} cannot be {json.dumps(value)}") from None
    return job


def _field(name: str, value: Any) -> Any:
    """One argument of `put` from JSON; a KeyError if it is none."""
    if name in _TEXTS and isinstance(value, str):
        return value.encode() if name == "payload" else value
    if name in _NUMBERS and type(value) is int:
        return value
    if name in _LENGTHS and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return seconds(value) if isinstance(value, str) else value
    if name in _INSTANTS and isinstance(value, str):
        return moment(value)
    raise KeyError(name)
