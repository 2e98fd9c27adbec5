"""Fuzz both protocols: any bytes give messages or our error, the same in every cut.

    python fuzz/fuzz_wire.py                        every target, 10 s each
    python fuzz/fuzz_wire.py requests --seconds 60
    python fuzz/fuzz_wire.py workq --seed 7         the same inputs again

With atheris installed the inputs are guided by coverage, else they come from the plain mutator of
`fuzz_record`. A finding is written to `crash-<target>-<digest>` and ends the run with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from fuzz_record import LARGEST, mutate

from fastjournal.buffers import BytesWriter
from fastjournal.errors import ProtocolError, RequestError, VersionMismatch
from fastjournal.put_request import PutRequest
from fastjournal.wire.fj import bulk, hello, job_codec
from fastjournal.wire.fj.replies import Pair, ReplyParser
from fastjournal.wire.fj.requests import Limits, Refusal, Request, RequestParser, encode_request
from fastjournal.wire.workq.requests import Refused, WorkqParser

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from workq_bytes import encode

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "wire"
LIMITS = Limits(max_key=1000, max_value=5000, max_message=20_000)


def pieces(data: bytes) -> list[bytes]:
    """A cut that follows from the data, so that a finding can be run again."""
    source = random.Random(data)
    at = sorted(source.randint(0, len(data)) for _ in range(source.randint(0, 20)))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


def requests(data: bytes) -> None:
    """Requests: cut or whole, the same; what is sound is written to the bytes it came from."""
    whole, cut = RequestParser(LIMITS), RequestParser(LIMITS)
    found = whole.feed(data)
    again: list[Request | Refusal] = []
    for piece in pieces(data):
        again += cut.feed(piece)
        assert cut.pending <= LIMITS.max_message + 32
    assert (found, whole.closed, whole.pending) == (again, cut.closed, cut.pending)
    for message in found:
        if isinstance(message, Refusal):
            assert message.encode(0).startswith(b"JR")
            continue
        assert repr(message)
        written = encode_request(
            message.function,
            message.identifier,
            flags=message.flags,
            timestamp=message.timestamp,
            timeout=message.timeout,
            query=message.query,
            limit=message.limit or 0,
            ttl=message.ttl,
            key=message.key,
            upper=message.upper or b"",
            value_type=message.value_type,
            value=message.value,
        )
        (same,) = RequestParser().feed(written)
        assert isinstance(same, Request)
        assert same._replace(flags=0) == message._replace(flags=0)
        values(message.value)


def replies(data: bytes) -> None:
    """Replies: cut or whole, the same; a broken server is told once."""
    results = []
    for cut in ([data], pieces(data)):
        parser = ReplyParser(20_000)
        got = []
        for piece in cut:
            if parser.fault is None:
                got += parser.feed(piece)
        assert isinstance(parser.fault, ProtocolError | VersionMismatch | None)
        results.append((got, type(parser.fault), parser.pending))
    assert results[0][:2] == results[1][:2]


def values(data: bytes) -> None:
    """The values inside messages: a value or a refusal; a value is written as it was read."""
    for decode, write in VALUES:
        try:
            found = decode(data)
        except RequestError:
            continue
        assert write is None or write(found) == data


def read_layout_2(data: bytes) -> bytes:
    """The jobs from the first byte on, written again as they were read."""
    reader = job_codec.JobReader(data, 0, len(data))
    out = BytesWriter()
    while reader.at < len(data):
        at = reader.at
        job = reader.next()
        if isinstance(job, PutRequest) and data[at + 80 : at + 82] != bytes(2):
            job_codec.write_job(out, job, reader.flags)
        else:  # refused by itself, or without a queue of its own
            out.write(data[at : reader.at])
    return out.getvalue()


def read_settle(data: bytes) -> list[bulk.Settle]:
    """The leases of a SETTLE."""
    reader = bulk.SettleReader(data, 0, len(data))
    items = []
    while reader.next():
        argument = int(reader.argument) if reader.argument >= 0 else None
        items.append(
            bulk.Settle(
                int(reader.action), reader.id, int(reader.token), argument, reader.key,
                reader.result,
            )
        )  # fmt: skip
    return items


def read_put_outcomes(data: bytes) -> None:
    """All outcomes of a PUTS."""
    reader = bulk.PutOutcomeReader(data)
    while reader.next():
        pass


VALUES: list[tuple[Callable[[bytes], object], Callable[..., bytes] | None]] = [
    (lambda data: job_codec.read_job(data, 0, len(data)), None),
    (lambda data: job_codec.read_jobs(data, 0, len(data)), None),
    (read_layout_2, bytes),
    (lambda data: bulk.read_forward(data, 0, len(data), 1), None),
    (read_settle, bulk.encode_settle),
    (bulk.decode_lease_request, bulk.encode_lease_request),
    (read_put_outcomes, None),
    (bulk.decode_settle_outcomes, None),
    (hello.decode_hello, None),
    (lambda data: job_codec.decode_leased(Pair(b"k", 6, data)), None),
]


def workq(data: bytes) -> None:
    """Workq: cut or whole, the same; a command is written to one that reads the same."""
    whole, cut = WorkqParser(20_000), WorkqParser(20_000)
    found = whole.feed(data)
    again = []
    for piece in pieces(data):
        again += cut.feed(piece)
        assert cut.pending <= 20_000 + len(piece)
    assert (found, whole.closed, whole.finish()) == (again, cut.closed, cut.finish())
    for command in found:
        if isinstance(command, Refused):
            assert command.reply.endswith(b"\r\n")
        else:
            assert WorkqParser().feed(encode(command)) == [command]


TARGETS = {"requests": requests, "replies": replies, "values": values, "workq": workq}


def seeds() -> list[bytes]:
    """The golden messages, their values, and one Workq command of each kind."""
    found = []
    for name in ("fj-worked-examples.json", "fj-extensions.json"):
        for example in json.loads((GOLDEN / name).read_text()):
            found.append(bytes.fromhex(example["bytes"]))
            means = example["means"]
            found += [bytes.fromhex(means["value"])] if means.get("value") else []
            found += [bytes.fromhex(pair[2]) for pair in means.get("pairs", ())]
    one = b"c0ffee12-3456-4abc-9def-0123456789ab"
    lines = (
        b"add %b mail.out 2500 90000 3 -priority=7 -max-attempts=2\r\nabc\r\n",
        b"schedule %b mail.out 2500 90000 2026-06-13T14:08:18.5Z 1 -max-fails=1\r\na\r\n",
        b"run %b mail.out 2500 90000 1\r\na\r\n",
        b"complete %b 1\r\na\r\n",
        b"fail %b 0\r\n\r\n",
        b"result %b 100\r\n",
        b"delete {%b}\r\n",
        b"inspect job urn:uuid:%b\r\n",
    )
    found += [line % one for line in lines]
    return [
        *found,
        b"lease a b 5\r\ninspect queues 0 10\r\ninspect jobs a 0 5\r\ninspect server\r\n",
    ]


def main() -> int:
    """Run the targets named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--engine", choices=["atheris", "plain"], default=None)
    given = parser.parse_args()
    unknown = set(given.targets) - set(TARGETS)
    if unknown:
        parser.error(f"unknown target {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    names = given.targets or list(TARGETS)
    if given.engine == "plain" or not _has_atheris():
        return max([plain(name, given.seconds, seed) for name in names], default=0)
    if len(names) == 1:
        guided(names[0], given.seconds, seed)
    # libFuzzer ends the process that it ran in: one process a target.
    worst = 0
    for name in names:
        again = [sys.executable, __file__, name, f"--seconds={given.seconds}", f"--seed={seed}"]
        worst = max(worst, subprocess.run(again, check=False).returncode)
    return worst


def _has_atheris() -> bool:
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


def guided(name: str, seconds: float, seed: int) -> None:
    """Run one target under libFuzzer; does not return."""
    import atheris

    atheris.instrument_all()
    options = [f"-max_total_time={int(seconds)}", f"-seed={seed}", f"-max_len={LARGEST}"]
    atheris.Setup([sys.argv[0], *options], TARGETS[name])
    atheris.Fuzz()


def plain(name: str, seconds: float, seed: int) -> int:
    """Run one target with the plain mutator."""
    source, pool = random.Random(f"{name}{seed}"), seeds()
    runs, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        data = mutate(source, pool)
        try:
            TARGETS[name](data)
        except Exception:
            traceback.print_exc()
            place = Path(f"crash-{name}-{hashlib.sha256(data).hexdigest()[:12]}")
            place.write_bytes(data)
            print(f"{name}: FOUND after {runs} inputs (seed {seed}); input kept in {place}")
            return 1
        runs += 1
    print(f"{name}: {runs} inputs in {seconds:g} s, nothing found (plain mutator, seed {seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
