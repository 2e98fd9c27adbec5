"""How the directories beside this file were made: by the code of fastjournal 0.1.0.

    PYTHONPATH=CHECKOUT_OF_0.1.0/src python tests/golden/v0_1_0/generate.py OUT

Kept as the record of what they hold; no test runs it, for a later version may write other bytes.

Rules:

1. Only what 0.1.0 documents is used: `Journal`, its entries, `Spool`, a daemon, the command line.
2. Time stands still unless it is moved, so a reader that stands at `now` sees the same rows.
3. What a directory means is asked of whoever wrote it, while it is still open, and compared with
   what 0.1.0 says of a copy of the files. Records and rows are those of `log dump` and of the
   Spark source.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastjournal
from fastjournal import Journal, NewJob, Spool
from fastjournal.testing import ManualClock, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from golden_means import journal_means, log_means, row_means, spool_means, write_means

SECOND = 10**9
T0 = 1_700_000_000 * SECOND
WORKQ_IDS = [f"6ba7b810-9dad-41d1-80b4-00c04fd430{n:02x}" for n in range(16)]


def small(path: Path, clock: ManualClock, **options: Any) -> Journal:
    given: dict[str, Any] = {
        "sync": "os", "segment_size": 4096, "background": False, "snapshot_bytes": 0,
        "chance": random.Random(14), "clock": clock,
    }  # fmt: skip
    return Journal(path, **(given | options))


def jobs(path: Path, clock: ManualClock) -> Iterator[Journal]:
    """Every state a job of ours can be in, and every way into it; closed in order."""
    with small(path, clock) as j:
        work_on_jobs(j, clock)
        yield j


def work_on_jobs(j: Journal, clock: ManualClock) -> None:
    j.configure("strict", max_fails=1, max_timeouts=1, max_attempts=2, lease=5)
    j.configure("slow", lease=30, backoff_base=2, backoff_factor=1.5, backoff_cap=60,
                backoff_jitter=0, backoff_timeouts=True, max_wait=20, slow_from=150,
                dead_keep=3600, result_ttl=7200, concurrency=3)  # fmt: skip
    j.configure("versions", keep_versions=True, priority_order="larger")
    j.configure("hourly", period="hour", file_management="truncate", secure=True)
    j.configure("gone back to the defaults", lease=7)
    j.configure("gone back to the defaults", lease=60)
    j.pause("paused")
    j.put(b"waits behind a pause", queue="paused")
    j.put(b"taken before draining", queue="drained")
    j.drain("drained")
    clock.advance(0.001)

    j.put(b"plain", queue="mail")
    j.put(b"", queue="mail")
    j.put(bytes(range(256)) * 3, queue="mail", priority=0)
    j.put("späte Post".encode(), queue=b"m\xc3\xa4il", key="größe", priority=255)
    j.put(b"by its domain", key="shop:order:7")
    j.put(b"later", queue="mail", delay=3600)
    j.put(b"at an instant", queue="mail", due=T0 / SECOND + 7200)
    j.put(b"short life", queue="mail", ttl=86_400)
    j.put(b"ends at an instant", queue="mail", expires=T0 / SECOND + 90_000)
    j.put(b"own limits", queue="mail", lease=11, max_attempts=4, max_timeouts=5, max_fails=6)
    j.put(b"own id", queue="mail", id=bytes(range(16)))
    j.put(b"an old stamp", key="mail:old", timestamp=T0 / SECOND - 500)
    j.put(b"first", key="mail:merged", priority=90)
    clock.advance(0.5)
    j.put(b"second", key="mail:merged", priority=80)
    j.put(b"ignored", key="mail:merged", timestamp=T0 / SECOND - 1)
    j.put(b"alone", key="mail:unique", mode="unique")
    for n in range(3):
        j.put(b"version %d" % n, queue="versions", key="versioned")
    j.put_many([{"payload": b"many %d" % n, "queue": "bulk", "priority": n} for n in range(12)])

    j.put(b"worked on", key="twins:a")
    clock.advance(0.001)  # a job put at the same instant as another counts as put a moment later
    leased = j.lease("twins", worker="w-1")
    assert leased is not None
    clock.advance(1)
    j.put(b"its twin", key="twins:a")
    leased.touch(120)

    def lease(queue: str, payload: bytes = b"x", **more: Any) -> fastjournal.LeasedJob:
        j.put(payload, queue=queue, **more)
        clock.advance(0.001)
        job = j.lease(queue, worker=f"worker of {queue}")
        assert job is not None
        return job

    lease("ends", b"done without a result").done()
    lease("ends", b"done with a result").done(b"the result")
    lease("ends", b"a result and a life", ttl=5000).done(b"\x00\xff")
    lease("tried", b"failed once").fail(b"Traceback\nValueError: once", delay=600)
    lease("given", b"given back").release(delay=900)
    lease("strict", b"failed for good").fail(b"ValueError: for good")
    lease("held", b"leased, its life moves on", ttl=100)
    lease("held", b"leased by somebody with a name", lease=3000)
    j.put_many([NewJob(b"life", b"a string", kind=2, expires=T0 + 500 * SECOND, ttl=900 * SECOND)])
    clock.advance(0.001)
    assert j.lease("life", lease=800) is not None
    j.put(b"taken at once", queue="taken")
    clock.advance(0.001)
    assert j.lease("taken", take=True) is not None
    j.delete(j.put(b"deleted by id", queue="mail").id)
    j.put(b"deleted by key", key="mail:deleted")
    j.delete(key="mail:deleted")
    lease("slow", b"lost its lease")
    lease("strict", b"lost its only lease")
    j.put(b"expires soon", queue="mail", ttl=3)
    again = lease("again", b"dead, then tried again", max_fails=1)
    again.fail(b"boom")
    j.redrive(again.id)
    lease("attempts", b"handed out too often", max_attempts=1, lease=10)
    clock.advance(40)
    j.tick()
    many = j.lease_many(4, "bulk", worker="bulk worker", lease=500)
    j.complete_many([(job.id, job.token, None) for job in many[:2]])
    j.tick()


def entries(path: Path, clock: ManualClock) -> Iterator[Journal]:
    """Every type of value, aliases, renamings, sums, deletions, leases; closed in order."""
    with small(path, clock) as j:
        e = j.entries
        e.set("type:void", None)
        e.set("type:buffer", b"\x00\x01\xfe\xff")
        e.set("type:string", "größer")
        e.set("type:integer", -(2**40))
        e.set("type:float", 0.1)
        e.set("type:true", True)
        e.set("type:false", False)
        e.set(b"type:\xff\xfe not text", b"")
        e.set("long", b"L" * 3000)
        e.set("life:ttl", "ends", ttl=86_400)
        e.set("life:expires", "ends", expires=T0 / SECOND + 100_000)
        e.set("life:touch", "moves on", ttl=1000, touch=5000)
        e.set("life:over", "short", ttl=2)
        e.set("stamp:old", "x", timestamp=T0 / SECOND - 1000)
        e.set("stamp:old", "older, ignored", timestamp=T0 / SECOND - 2000)
        e.set("stamp:old", "newer", timestamp=T0 / SECOND - 500)
        clock.advance(0.25)
        e.set("name:first", "found under three keys")
        e.alias("name:first", "name:second")
        e.alias("name:first", "name:third")
        e.set("renamed:from", "moved")
        e.rename("renamed:from", "renamed:to")
        for n in range(5):
            e.add("sum:plain", n)
        e.add("sum:float", 1.5)
        for _ in range(3):  # one addition, sent three times
            e.add("sum:once", 7, sender="adder", timestamp=T0 / SECOND + 0.25)
        e.set("flag", False)
        e.flip("flag")
        e.set("cut", b"0123456789")
        e.truncate("cut", 4)
        e.set("gone:tombstone", "x")
        e.delete("gone:tombstone")
        e.set("gone:purged", "x")
        e.delete("gone:purged", purge=True)
        e.set("gone:popped", "x")
        assert e.pop("gone:popped") == "x"
        e.set("worked on", "by somebody")
        e.entry("worked on", lease=7200, worker="w-9")
        e.set("in memory only", "x", persist=False)
        e.delete("in memory only", purge=True)
        for n in range(60):
            e.set(f"fill:{n:03d}", "v" * (n % 40))
            clock.advance(ns=1000)
        e.entry("life:touch")
        clock.advance(10)
        j.tick()
        j.put(b"a job beside them", queue="mail", key="type:string")
        yield j


def killed(path: Path, clock: ManualClock) -> Iterator[Journal]:
    """What `jobs` holds, its writer killed by SIGKILL."""
    j = small(path, clock)
    work_on_jobs(j, clock)
    j.entries.set("beside", "the jobs")
    yield j
    os.kill(os.getpid(), signal.SIGKILL)


def snapshot(path: Path, clock: ManualClock) -> Iterator[Journal]:
    """A snapshot with its checkpoint, and a log that goes on behind it; killed."""
    j = small(path, clock)
    work_on_jobs(j, clock)
    j.entries.set("imaged", 1)
    j.entries.set("imaged and changed", 1)
    j.entries.set("imaged and gone", 1)
    j.entries.set("imaged and deleted with a tombstone", 1)
    early = j.put(b"imaged, then done", queue="after")
    j.put(b"imaged, then leased", queue="after")
    clock.advance(1)
    j.snapshot()
    done = j.lease("after")
    assert done is not None
    assert done.id == early.id
    done.done()
    j.lease("after", worker="late", lease=4000)
    j.entries.set("imaged and changed", 2)
    j.entries.delete("imaged and gone", purge=True)
    j.entries.delete("imaged and deleted with a tombstone")
    for n in range(40):
        j.put(b"behind the snapshot" * 8, queue="behind", key=f"k{n % 30}")
        clock.advance(0.01)
    j.configure("strict", max_fails=9)
    yield j
    os.kill(os.getpid(), signal.SIGKILL)


def archive(path: Path, clock: ManualClock) -> Iterator[Journal]:
    """Sealed segments are copied before they are cleaned; closed in order."""
    with small(path, clock, history="archive") as j:
        for n in range(120):
            j.put(b"%03d" % n * 20, queue="q", key=f"k{n}" if n % 3 else None)
            clock.advance(0.01)
        while (job := j.lease("q")) is not None and job.payload[:1] == b"0":
            job.done()
        clock.advance(90_000)
        j.tick()
        assert j.clean()
        clock.advance(90_000)
        j.clean()
        for n in range(30):
            j.put(b"behind the cleaning", queue="r", priority=n)
        yield j


def memory(path: Path, clock: ManualClock) -> Iterator[Journal]:
    """More values than may be in memory, read from the log when asked for; closed in order."""
    with small(path, clock, memory_limit=64 * 1024, evict_from=256) as j:
        chance = random.Random(3)
        for n in range(90):
            value = chance.randbytes(100 + n * 25)
            if n % 3:
                j.put(value, queue="large", key=f"k{n}", priority=n)
            else:
                j.entries.set(f"large:{n:02d}", value)
            clock.advance(0.01)
        for _ in range(20):
            job = j.lease("large")
            assert job is not None
            job.done(job.payload[:600] if job.priority % 2 else None)
        j.snapshot()
        j.clean()
        for n in range(20):
            j.put(chance.randbytes(500), queue="large", key=f"again{n}")
        yield j


def torn(path: Path, clock: ManualClock) -> Iterator[Journal]:
    """The last record was half written when the machine stopped."""
    j = small(path, clock)
    work_on_jobs(j, clock)
    yield j
    j.put(b"its record will be torn", queue="mail")
    os.kill(os.getpid(), signal.SIGKILL)


def tear(path: Path) -> None:
    newest = max(p for p in path.glob("*.log") if p.stat().st_size > 8)
    os.truncate(newest, newest.stat().st_size - 30)


EMBEDDED: dict[str, Callable[[Path, ManualClock], Iterator[Journal]]] = {
    "jobs": jobs, "entries": entries, "killed": killed, "snapshot": snapshot, "archive": archive,
    "memory": memory, "torn": torn,
}  # fmt: skip


def child(name: str, path: Path, out: Path) -> None:
    """Write one directory; ends by itself or by its own SIGKILL."""
    clock = ManualClock(T0)
    for journal in EMBEDDED[name](path, clock):
        out.write_text(json.dumps({"now": clock.now()} | journal_means(journal)))


@contextmanager
def serving(path: Path, clock: ManualClock) -> Iterator[Any]:
    from fastjournal.testing.daemon import LocalDaemon

    with LocalDaemon(path, clock=clock, settings={
        "journal": {"sync": "os", "segment_size": 4096, "snapshot_bytes": 0, "clean_interval": 0}
    }) as daemon:  # fmt: skip
        yield daemon


class Workq:
    """A client of the text protocol."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 20)

    def say(self, line: str, payload: bytes | None = None) -> bytes:
        data = line.encode() + b"\r\n" + (b"" if payload is None else payload + b"\r\n")
        self.sock.sendall(data)
        return self.sock.recv(65536)

    def ok(self, line: str, payload: bytes | None = None) -> bytes:
        answer = self.say(line, payload)
        assert answer.startswith(b"+OK"), (line, answer)
        return answer


def workq(path: Path, clock: ManualClock) -> dict[str, Any]:
    """Every Workq command through the daemon's port, jobs of ours beside them."""
    a = WORKQ_IDS
    with serving(path, clock) as daemon, daemon.connect() as client:
        peer = Workq(daemon.workq_port)
        peer.ok(f"add {a[0]} ping 1000 60000 4", b"ping")
        peer.ok(f"add {a[1]} ping 5000 6000000 5 -priority=-7 -max-attempts=3", b"\x00\r\n\xff\x01")
        peer.ok(f"add {a[2]} ping 5000 6000000 0 -priority=9 -max-fails=2", b"")
        peer.ok(f"schedule {a[3]} pong 5000 6000000 2023-11-15T00:00:00Z 5", b"later")
        peer.ok(f"schedule {a[4]} pong 5000 6000000 2023-11-14T22:13:21Z 5", b"sooon")
        for n in range(5, 10):
            peer.ok(f"add {a[n]} work 60000 6000000 2", b"%02d" % n)
        for n in (5, 6, 7):
            assert a[n].encode() in peer.ok("lease work 0")
        peer.ok(f"complete {a[5]} 6", b"result")
        peer.ok(f"fail {a[6]} 4", b"oops")
        peer.ok(f"delete {a[8]}")
        peer.ok(f"add {a[10]} lost 1000 6000000 1 -max-attempts=1", b"x")
        peer.ok(f"add {a[11]} lost 1000 6000000 1", b"y")
        peer.ok("lease lost 0")
        peer.ok("lease lost 0")
        peer.ok(f"add {a[12]} short 1000 1500 1", b"z")
        client.put(b"ours among theirs", queue="work", key="ours")
        clock.advance(2)
        client.put(b"wakes the timers", queue="tick")
        wait_until(lambda: client.queue("lost").dead == 1, what="the timers")
        means = {"now": clock.now()} | journal_means(client)
        peer.sock.close()
    return means


def forwarded(path: Path, clock: ManualClock, spool: Path) -> dict[str, Any]:
    """A journal that took jobs from a spool, and that spool before it heard of the last of them."""
    first = path.parent / "first-spool"
    with serving(path, clock) as daemon:
        writer = Spool(first, clock=clock)  # its lock keeps the forwarder from removing the file
        for n in range(3):
            writer.put(b"done %d" % n, queue="spooled", priority=n)
        forward(first, daemon.url)
        writer.put(b"taken, not marked", queue="spooled", key="marked:no")
        writer.put_many([{"payload": b"taken too", "queue": "spooled", "delay": 3600, "ttl": 7200,
                          "lease": 9, "max_fails": 2, "id": bytes(range(100, 116))}])  # fmt: skip
        shutil.copytree(first, spool)
        forward(first, daemon.url)
        writer.close()
        clock.advance(1)
        late = Spool(spool, clock=clock)
        late.put(b"not yet taken", queue="spooled", key="late")
        late.put(b"nor this", key="spooled:later", mode="unique", timestamp=T0 / SECOND - 3)
        late.close()
        with daemon.connect() as client:
            means = {"now": clock.now()} | journal_means(client)
    shutil.rmtree(first)
    return means


def forward(spool: Path, url: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "fastjournal.cli.app", "forward", "--spool", str(spool), "--to", url,
         "--once"], check=True,
    )  # fmt: skip


def finish(case: Path, means: dict[str, Any], *, stopped: str) -> None:
    """Compare with what the files say, and write it down."""
    reserve = case / "journal" / "reserve"
    means["reserve"] = reserve.stat().st_size
    assert not any(reserve.read_bytes())
    trial = case.parent / f"{case.name}.trial"
    shutil.copytree(case / "journal", trial)
    with Journal(trial, background=False, clock=ManualClock(means["now"])) as again:
        assert means == means | json.loads(json.dumps(journal_means(again))), case
    shutil.rmtree(trial)
    reserve.unlink()
    means["stopped"] = stopped
    means |= log_means(case / "journal")
    means["rows"] = row_means(case / "journal")
    if (case / "journal" / "archive").is_dir():
        means["archive"] = log_means(case / "journal" / "archive")
        means["archive"]["rows"] = row_means(case / "journal" / "archive")
    if (case / "spool").is_dir():
        means["spool"] = spool_means(case / "spool")
    write_means(case / "means.json", means)


def main(out: Path) -> None:
    assert fastjournal.__version__ == "0.1.0"
    for name in EMBEDDED:
        case = out / name
        case.mkdir(parents=True)
        told = out / f"{name}.told"
        done = subprocess.run(
            [sys.executable, __file__, "--child", name, str(case / "journal"), str(told)]
        )
        assert done.returncode in (0, -9), name
        if name == "torn":
            tear(case / "journal")
        means = json.loads(told.read_text())
        told.unlink()
        finish(case, means, stopped="cleanly" if done.returncode == 0 else "killed")
    for name in ("workq", "forwarded"):
        case = out / name
        case.mkdir()
        clock = ManualClock(T0)
        data = out / "daemon"
        means = (
            workq(data, clock) if name == "workq" else forwarded(data, clock, case / "spool")
        )  # fmt: skip
        (data / "default").rename(case / "journal")
        shutil.rmtree(data)
        finish(case, json.loads(json.dumps(means)), stopped="cleanly")


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        main(Path(sys.argv[1]))
