"""Watching entries and caching them: what is told, what a slow or broken listener gets."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

import fastjournal
from fastjournal.client import AsyncCachedEntries, CachedEntries, Client
from fastjournal.entry_value import INTEGER
from fastjournal.errors import BadRequest, NotFound
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.functions import OVERWRITE, Function, Query, Type
from fastjournal.wire.fj.replies import ReplyParser
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer
from journal_forms import FORMS, client_entries, entries_of

QUICK = {"journal": {"sync": "os"}}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "d", settings=QUICK) as running:
        yield running


@pytest.fixture
def client(daemon: LocalDaemon) -> Iterator[Client]:
    with daemon.connect() as connected:
        yield connected


@pytest.fixture(params=FORMS)
def entries(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with entries_of(request.param, tmp_path / "j") as made:
        yield made


def told(watch: Any) -> tuple[bytes, bool]:
    change = watch.next(10)
    assert change is not None
    return change.key, change.gone


def test_a_key_a_prefix_a_range_and_everything_are_watched(entries: Any) -> None:
    """FJ-SET-3, 4.7: LISTEN on keys and ranges."""
    with (
        entries.watch("b") as key, entries.watch(prefix="b") as prefix,
        entries.watch(lower="a", upper="b") as bounded, entries.watch() as everything,
    ):  # fmt: skip
        for name in ("a", "b", "ba", "c"):
            entries[name] = 1
        assert told(key) == (b"b", False)
        assert [told(prefix) for _ in "12"] == [(b"b", False), (b"ba", False)]
        assert [told(bounded) for _ in "12"] == [(b"a", False), (b"b", False)]
        assert [told(everything)[0] for _ in "1234"] == [b"a", b"b", b"ba", b"c"]
        change = key.next(0.01)
        assert change is None
        entries.add("b", 4)
        change = key.next(10)
        assert (change.key, change.kind, change.gone, change.lost) == (b"b", INTEGER, False, False)
        entries.rename("b", "x")
        assert told(key) == (b"b", True)
        entries["b"] = 2
        assert told(key) == (b"b", False)
        entries.delete("b")
        assert told(key) == (b"b", True)


def test_an_entry_with_several_keys_is_told_under_each_also_when_it_is_purged(entries: Any) -> None:
    """FJ-KV-6."""
    entries["a"] = 1
    entries.alias("a", "b")
    with entries.watch("b") as watch:
        entries["a"] = 2
        assert told(watch) == (b"b", False)
        entries.delete("a", purge=True)
        assert told(watch) == (b"b", True)


def test_an_expired_entry_is_told_as_gone(entries: Any) -> None:
    with entries.watch("k") as watch:
        entries.set("k", 1, ttl=0.05)
        assert told(watch) == (b"k", False)
        assert told(watch) == (b"k", True)


def test_only_one_thing_is_watched(entries: Any) -> None:
    with pytest.raises(BadRequest):
        entries.watch("k", prefix="k")
    with pytest.raises(BadRequest):
        entries.watch(prefix="k", upper="z")


def test_a_prefix_of_the_last_bytes_has_no_end(entries: Any) -> None:
    with entries.watch(prefix=b"\xff\xff") as watch:
        entries[b"\xff\xfe"] = 1
        entries[b"\xff\xff\xff"] = 1
        assert told(watch) == (b"\xff\xff\xff", False)


@pytest.mark.parametrize("form", ["blocking", "asyncio"])
def test_a_watch_goes_on_after_the_connection_broke_and_says_what_it_may_have_missed(
    form: str, daemon: LocalDaemon, client: Client
) -> None:
    with client_entries(form, daemon.url) as entries, entries.watch(prefix="k") as watch:
        client.entries["k1"] = 1
        assert told(watch)[0] == b"k1"
        cut_listeners(daemon)
        change = watch.next(10)
        assert change is not None and change.lost
        client.entries["k2"] = 1
        assert told(watch)[0] == b"k2"


def cut_listeners(daemon: LocalDaemon) -> None:
    def cut() -> None:
        for connection in list(daemon.server.connections):
            if getattr(connection, "listening", None):
                connection.cut("test", "cut by the test")

    daemon.call(cut)


def test_a_watch_that_is_closed_wakes_whoever_waits_on_it(client: Client) -> None:
    watch = client.entries.watch("k")
    out: list[object] = []
    thread = threading.Thread(target=lambda: out.append(watch.next()))
    thread.start()
    watch.close()
    thread.join(10)
    assert out == [None]


def test_subscriptions_end_and_are_bounded(daemon: LocalDaemon) -> None:
    """Law 9: every size has a limit, and the limit is an error to the caller."""
    with FjPeer(daemon.port) as peer, FjPeer(daemon.port) as other:
        ranged = {"key": b"a", "upper": b"c", "query": Query.RANGE}
        assert peer.ask(Function.LISTEN, 7, **ranged).error == ""
        other.ask(Function.SET, key=b"b", value_type=0, flags=OVERWRITE)
        push = peer.read()
        assert push is not None and (push.identifier, push.pairs[0].key) == (7, b"b")
        assert peer.ask(Function.UNLISTEN, 8, **ranged).error == ""
        other.ask(Function.SET, key=b"b", value_type=0, flags=OVERWRITE)
        assert peer.ask(Function.NOP, 9).identifier == 9
        for number in range(100):
            fields = {"key": b"%d" % number, "upper": b"", "query": Query.RANGE}
            assert peer.ask(Function.LISTEN, 7, **fields).error == ""
        assert peer.ask(Function.LISTEN, 7, **ranged).error.startswith("FULL")
        assert peer.ask(Function.LISTEN, 7).error.startswith("CLIENT-ERROR")


def test_a_connection_may_listen_to_thousands_of_keys(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer, FjPeer(daemon.port) as other:
        for start in range(0, 10_000, 500):
            keys = range(start, start + 500)
            peer.send(b"".join(encode_request(Function.LISTEN, 3, key=b"%d" % n) for n in keys))
            assert all(reply is not None and not reply.error for reply in map(read, [peer] * 500))
        assert peer.ask(Function.LISTEN, 3, key=b"one more").error.startswith("FULL")
        other.ask(Function.SET, key=b"9999", value_type=0, flags=OVERWRITE)
        push = peer.read()
        assert push is not None and push.pairs[0].key == b"9999"
    wait_until(lambda: not daemon.call(lambda: daemon.server.default.engine.subscriptions),
               what="nothing is asked of the journal any more")  # fmt: skip


def read(peer: FjPeer) -> Any:
    return peer.read()


def test_a_slow_listener_is_collapsed_not_disconnected(tmp_path: Path) -> None:
    """4.7: one push with an empty key, then pushes go on; it is never cut for not reading."""
    limits = {"push_backlog": 10, "high_water": 4096, "write_timeout": 0.1}
    with LocalDaemon(tmp_path / "d", settings=QUICK | {"limits": limits}) as daemon:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", daemon.port))
        slow.sendall(encode_request(Function.LISTEN, 3, query=Query.RANGE))

        def listener() -> Any:
            found = [c for c in daemon.server.connections if getattr(c, "listening", None)]
            return found[0] if found else None

        wait_until(lambda: daemon.call(listener) is not None, what="it listens")
        session = daemon.call(listener)
        with FjPeer(daemon.port) as peer:
            name, number = b"k" * 200, 0
            while not daemon.call(lambda: bool(session.stuck_since)):
                for _ in range(200):
                    number += 1
                    key = b"%s%d" % (name, number)
                    peer.ask(Function.SET, key=key, value_type=0, flags=OVERWRITE)
            for _ in range(50):
                peer.ask(Function.SET, key=b"missed", value_type=0, flags=OVERWRITE)
            stuck = daemon.call(lambda: session.stuck_since)
            now = daemon.server.loop.time
            wait_until(lambda: daemon.call(now) - stuck > 0.2, what="time")
            daemon.call(lambda: session.check(now()))
            assert not session.gone
            parser, keys = ReplyParser(), []
            slow.settimeout(10)
            while b"" not in keys:
                keys += [r.pairs[0].key for r in parser.feed(slow.recv(65_536)) if r.is_push]
            peer.ask(Function.SET, key=b"after", value_type=0, flags=OVERWRITE)
            while b"after" not in keys:
                keys += [r.pairs[0].key for r in parser.feed(slow.recv(65_536)) if r.is_push]
        assert daemon.server.cuts["slow"] == 0
        slow.close()


def test_a_cached_value_is_served_without_asking_until_it_changes(
    daemon: LocalDaemon, client: Client
) -> None:
    """FJ-KV-1."""
    with CachedEntries(client) as cache, daemon.connect() as other:
        other.entries["k"] = 1
        assert [cache["k"] for _ in range(5)] == [1] * 5
        assert "nothing" not in cache and cache.get("nothing", 7) == 7
        assert (cache.counts.misses, len(cache)) == (2, 2)
        other.entries["k"] = 2
        other.entries["nothing"] = 3
        wait_until(lambda: cache["k"] == 2 and cache.get("nothing") == 3, what="it is told")
        cache["k"] = 4
        assert cache["k"] == 4 and cache.add("k", 1) == 5 and cache["k"] == 5
        assert cache.delete("k")
        with pytest.raises(KeyError):
            cache["k"]
        with pytest.raises(NotFound):
            cache.entry("k")
        assert cache.counts.hits >= 5


def test_what_must_not_be_cached_is_not(daemon: LocalDaemon, client: Client) -> None:
    with CachedEntries(client, prefix="c:", max_bytes=4000, max_entries=3) as cache:
        entries = client.entries
        entries.set("c:touched", 1, touch=60)
        entries["other"] = 1
        entries["c:large"] = bytes(2000)
        for key in ("c:touched", "other", "c:large"):
            assert key in cache and key in cache
        assert len(cache) == 0
        entries.update({f"c:{n}": n for n in range(10)})
        assert [cache[f"c:{n}"] for n in range(10)] == list(range(10))
        assert len(cache) == 3
        entries.set("c:short", 1, ttl=0.05)
        assert cache["c:short"] == 1
        wait_until(lambda: cache.get("c:short") is None, what="it expires")
        cache.clear()
        assert len(cache) == 0


def test_a_cache_is_right_after_a_broken_connection_and_after_a_restart(tmp_path: Path) -> None:
    daemon = LocalDaemon(tmp_path / "d", settings=QUICK).start()
    port = daemon.port
    with daemon.connect() as client, CachedEntries(client, max_silence=60) as cache:
        client.entries["k"] = 1
        assert cache["k"] == 1 and cache["k"] == 1
        cut_listeners(daemon)
        client.entries["k"] = 2
        wait_until(lambda: cache["k"] == 2, what="the loss is noticed")
        daemon.stop()
        settings = QUICK | {"listen": [f"127.0.0.1:{port}"]}
        daemon = LocalDaemon(tmp_path / "d", settings=settings).start()
        with daemon.connect() as other:
            other.entries["k"] = 3
        wait_until(lambda: cache.get("k") == 3, what="it listens again")
        assert cache.counts.cleared >= 2
    daemon.stop()


def test_a_silent_connection_is_asked_before_anything_is_served(
    daemon: LocalDaemon, client: Client
) -> None:
    with CachedEntries(client, max_silence=0) as cache:
        client.entries["k"] = 1
        assert cache["k"] == 1
        client.entries["k"] = 2
        assert cache["k"] == 2  # the question brings the push along


def test_a_value_fetched_while_its_push_is_seen_is_fetched_again(client: Client) -> None:
    """Never a value older than the last push seen."""
    asked = 0

    def slow(name: bytes) -> Any:
        nonlocal asked
        asked += 1
        entry = client.entries.current.entry(name)
        if asked == 1:
            client.entries["k"] = "new"
            assert cache.get("other") is None  # somebody else takes the push in
        return entry

    entries = SimpleNamespace(current=SimpleNamespace(entry=slow))
    looking: Any = SimpleNamespace(caller=client.caller, entries=entries)
    with CachedEntries(looking, max_silence=0) as cache:
        client.entries["k"] = "old"
        assert cache.get("k") == "new"
        assert asked == 3


def test_a_value_whose_push_was_not_seen_yet_is_dropped_when_it_is(client: Client) -> None:
    with CachedEntries(client, max_silence=0) as cache:
        client.entries["k"] = "old"
        assert cache.get("k") == "old"
        client.entries["k"] = "new"
        assert len(cache) == 1
        assert cache.get("k") == "new"


def test_many_readers_never_see_a_value_go_back(daemon: LocalDaemon, client: Client) -> None:
    """Values only grow; a cache must not show a smaller one after a larger one."""
    stop = threading.Event()
    faults: list[tuple[object, object]] = []

    def read(cache: CachedEntries) -> None:
        last = 0
        while not stop.is_set():
            value = cache.get("k", 0)
            if value < last:
                faults.append((last, value))
                return
            last = value

    with CachedEntries(client) as cache:
        threads = [threading.Thread(target=read, args=(cache,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        with daemon.connect() as writer:
            chance = random.Random(1)
            for number in range(1, 400):
                writer.entries["k"] = number
                if chance.random() < 0.02:
                    cut_listeners(daemon)
        wait_until(lambda: cache.get("k") == 399, what="the last one")
        wait_until(lambda: cache.counts.hits > 100, what="it is remembered, many readers or not")
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults


@pytest.mark.parametrize("uvloop", [False, True])
def test_watches_and_caches_work_behind_tls(tmp_path: Path, uvloop: bool) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    made = authority.issue_cert("localhost", "127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    settings = QUICK | {"tls": {"certificate": str(tmp_path / "server.pem")}}
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=uvloop) as daemon:
        url = f"fjs://localhost:{daemon.port}?ca={tmp_path / 'ca.pem'}"
        with (
            fastjournal.connect(url) as client,
            CachedEntries(client, max_silence=60) as cache,
            client.entries.watch("k") as watch,
        ):
            client.entries["k"] = b"x" * 100_000
            assert told(watch) == (b"k", False) and watch.next(0.01) is None
            assert [cache["k"] for _ in range(3)] == [b"x" * 100_000] * 3
            assert cache.counts.hits == 2
            client.entries["k"] = 2
            wait_until(lambda: cache["k"] == 2, what="the push arrives")
            cut_listeners(daemon)
            client.entries["k"] = 3
            wait_until(lambda: cache["k"] == 3, what="the loss is noticed")


def test_the_cache_for_asyncio_keeps_the_same_promises(daemon: LocalDaemon, client: Client) -> None:
    async def run() -> None:
        async with (
            await fastjournal.aconnect(daemon.url) as connected,
            AsyncCachedEntries(connected, prefix="k") as cache,
        ):
            entries = client.entries
            entries["k"], entries["other"] = 1, 1
            assert [await cache.get("k") for _ in range(5)] == [1] * 5
            assert await cache.get("other") == 1 and await cache.has("k")
            assert (len(cache), cache.counts.misses) == (1, 1)
            await asyncio.to_thread(entries.set, "k", 2)
            await until(cache, "k", 2)
            await asyncio.to_thread(cut_listeners, daemon)
            await asyncio.to_thread(entries.set, "k", 3)
            await until(cache, "k", 3)
            assert await cache.set("k", 4) and await cache.get("k") == 4
            assert await cache.add("k", 1) == 5 and await cache.get("k") == 5
            assert await cache.delete("k") and await cache.get("k") is None
            with pytest.raises(NotFound):
                await cache.entry("k")
            cache.clear()
            assert cache.counts.cleared >= 2

    async def until(cache: AsyncCachedEntries, key: str, value: object) -> None:
        give_up = time.monotonic() + 10
        while await cache.get(key) != value:
            assert time.monotonic() < give_up
            await asyncio.sleep(0)

    asyncio.run(run())


def test_the_push_of_a_set_with_listen_says_the_type(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as one, FjPeer(daemon.port) as two:
        fields = {"key": b"k", "value_type": Type.STRING, "value": b"1"}
        assert one.ask(Function.SET, 5, flags=OVERWRITE | 1 << 11, **fields).error == ""
        two.ask(Function.ADD, key=b"n", value_type=Type.INTEGER, value=b"\1")
        two.ask(Function.SET, flags=OVERWRITE, **fields)
        push = one.read()
        assert push is not None
        assert (push.identifier, push.pairs[0].key, push.pairs[0].type) == (5, b"k", Type.STRING)
