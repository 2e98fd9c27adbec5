"""The servers that `bench/daemon.py` measures, each behind the calls of a client of its own.

Rules:

1. A system says how it is started on a port and a folder under a sync policy, how one connects, and
   what one call of each kind does; a kind that it does not have is left out.
2. Equal durability: `os` = written, never synced; `interval` = synced every second; `always` =
   synced before the answer.
3. `Echo` stores nothing: a server in Python that only answers, as a bound for what one can cost.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

__all__ = ["BULK", "CYCLE_BULK", "Beanstalkd", "Echo", "Ours", "Redis", "systems"]

PAYLOAD = b"x" * 100
BULK, PIPE, CYCLE_BULK = 500, 500, 100


class Ours:
    """fastjournal."""

    name = "ours"

    def command(self, port: int, folder: Path, sync: str) -> list[str]:
        return [
            sys.executable, "-m", "fastjournal.cli.app", "serve", str(folder / "data"), "--sync",
            sync, "--listen", f"127.0.0.1:{port}", "--log-level", "error",
        ]  # fmt: skip

    def connect(self, port: int) -> Any:
        import fastjournal

        return fastjournal.connect(f"fj://127.0.0.1:{port}")

    def put(self, c: Any) -> None:
        c.put(PAYLOAD, queue="q")

    def pipelined(self, c: Any) -> int:
        pipe = c.pipeline()
        for _ in range(PIPE):
            pipe.put(PAYLOAD, queue="q")
        pipe.execute()
        return PIPE

    def bulk(self, c: Any, count: int = BULK) -> int:
        c.put_many([{"payload": PAYLOAD, "queue": "q"}] * count)
        return count

    def put_bulk(self, c: Any) -> int:
        return self.bulk(c, CYCLE_BULK)

    def take(self, c: Any) -> int:
        job = c.lease("q", wait=1)
        if job is None:
            return 0
        job.done()
        return 1

    def take_bulk(self, c: Any) -> int:
        jobs = c.lease_many(CYCLE_BULK, "q", wait=1)
        return sum(c.complete_many([(job.id, job.token, None) for job in jobs])) if jobs else 0


class Beanstalkd:
    """beanstalkd with its binlog, through greenstalk."""

    name = "beanstalkd"

    def command(self, port: int, folder: Path, sync: str) -> list[str]:
        flag = {"os": ["-F"], "interval": ["-f", "1000"], "always": ["-f", "0"]}[sync]
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), *flag]

    def connect(self, port: int) -> Any:
        import greenstalk

        return greenstalk.Client(("127.0.0.1", port), encoding=None)

    def put(self, c: Any) -> None:
        c.put(PAYLOAD)

    def take(self, c: Any) -> int:
        import greenstalk

        try:
            job = c.reserve(timeout=1)
        except greenstalk.TimedOutError:
            return 0
        c.delete(job)
        return 1


class Redis:
    """Redis Streams with the append-only file, through redis-py."""

    name = "Redis Streams"

    def command(self, port: int, folder: Path, sync: str) -> list[str]:
        policy = {"os": "no", "interval": "everysec", "always": "always"}[sync]
        return [
            "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
            "--appendonly", "yes", "--appendfsync", policy, "--save", "", "--loglevel", "warning",
        ]  # fmt: skip

    def connect(self, port: int) -> Any:
        import redis

        client = redis.Redis(port=port)
        with contextlib.suppress(redis.ResponseError):
            client.xgroup_create("q", "g", mkstream=True)
        return client

    def put(self, c: Any) -> None:
        c.xadd("q", {"d": PAYLOAD})

    def pipelined(self, c: Any) -> int:
        pipe = c.pipeline(transaction=False)
        for _ in range(PIPE):
            pipe.xadd("q", {"d": PAYLOAD})
        pipe.execute()
        return PIPE

    def bulk(self, c: Any, count: int = BULK) -> int:
        pipe = c.pipeline(transaction=False)
        for _ in range(count):
            pipe.xadd("q", {"d": PAYLOAD})
        pipe.execute()
        return count

    def put_bulk(self, c: Any) -> int:
        return self.bulk(c, CYCLE_BULK)

    def _take(self, c: Any, count: int) -> int:
        got = c.xreadgroup("g", f"c{os.getpid()}", {"q": ">"}, count=count, block=1000)
        if not got:
            return 0
        ids = [entry for entry, _ in got[0][1]]
        pipe = c.pipeline(transaction=False)
        pipe.xack("q", "g", *ids)
        pipe.xdel("q", *ids)
        pipe.execute()
        return len(ids)

    def take(self, c: Any) -> int:
        return self._take(c, 1)

    def take_bulk(self, c: Any) -> int:
        return self._take(c, CYCLE_BULK)


_ECHO = """
import asyncio, sys, uvloop
class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.write = transport.write
    def data_received(self, data):
        self.write(data[:41])
async def main():
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()
uvloop.run(main())
"""


class Echo:
    """A uvloop server that answers each message and does nothing else."""

    name = "bare uvloop echo"

    def command(self, port: int, folder: Path, sync: str) -> list[str]:
        return [sys.executable, "-c", _ECHO, str(port)]

    def connect(self, port: int) -> Any:
        import socket

        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def put(self, c: Any) -> None:
        c.sendall(PAYLOAD + PAYLOAD)
        c.recv(4096)


def systems() -> list[Any]:
    """Those that are installed; the others are named on standard error."""
    found: list[Any] = [Ours()]
    for system, program, module in (
        (Beanstalkd(), "beanstalkd", "greenstalk"),
        (Redis(), "redis-server", "redis"),
        (Echo(), sys.executable, "uvloop"),
    ):
        lacks = [program] if shutil.which(program) is None else []
        if importlib.util.find_spec(module) is None:
            lacks.append(f"Python package {module}")
        if lacks:
            print(f"left out: {system.name} (no {', '.join(lacks)})", file=sys.stderr)
        else:
            found.append(system)
    return found
