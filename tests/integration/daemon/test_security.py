"""Tokens, roles, TLS, limits of strangers; a token is never told to anybody."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trustme

import fastjournal
from fastjournal.client.urls import Target, parse_url
from fastjournal.config import load
from fastjournal.daemon.auth import (
    Tokens,
    add_token,
    check_exposure,
    is_local,
    read_tokens,
    remove_token,
    server_context,
)
from fastjournal.errors import BadRequest, NotFound, SettingError, Unauthorized, Unavailable
from fastjournal.model import Mode
from fastjournal.put_request import PutRequest
from fastjournal.spool.daemon_destination import DaemonDestination
from fastjournal.testing.daemon import LocalDaemon
from fastjournal.wire.fj.bulk import decode_forwarded, encode_forget, encode_forward
from fastjournal.wire.fj.functions import FUNCTIONS, Function, Type
from fastjournal.wire.fj.job_codec import encode_job
from fastjournal.wire.fj.replies import Reply
from fastjournal.wire.fj.requests import encode_request
from fjpeer import FjPeer, put_bytes


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "tokens"
    return {
        name: add_token(file, name, roles, journals)
        for name, roles, journals in (
            ("producer", ["produce"], []),
            ("other-producer", ["produce"], []),
            ("consumer", ["consume"], []),
            ("admin", ["admin"], []),
            ("only-b", ["produce", "consume"], ["b"]),
        )
    }


@pytest.fixture(params=["asyncio", "uvloop"])
def daemon(
    tmp_path: Path, tokens: dict[str, str], request: pytest.FixtureRequest
) -> Iterator[LocalDaemon]:
    settings = {"tokens": str(tmp_path / "tokens"), "journals": ["b"]}
    uvloop = request.param == "uvloop"
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=uvloop) as running:
        yield running


def test_the_file_of_tokens_holds_no_token(tmp_path: Path, tokens: dict[str, str]) -> None:
    text = (tmp_path / "tokens").read_text()
    assert all(token not in text for token in tokens.values())
    assert stat.S_IMODE((tmp_path / "tokens").stat().st_mode) == 0o600


def test_tokens_are_found_and_shown_without_themselves(
    tmp_path: Path, tokens: dict[str, str]
) -> None:
    found = read_tokens(tmp_path / "tokens")
    grant = found.find(tokens["only-b"])
    assert grant is not None
    assert (grant.name, grant.opens("b"), grant.opens("default")) == ("only-b", True, False)
    assert found.find("fj_wrong") is None
    assert found.find("") is None
    assert tokens["only-b"] not in repr(found) + repr(grant)
    assert grant.hash not in repr(grant)


def test_tokens_are_added_once_and_removed(tmp_path: Path, tokens: dict[str, str]) -> None:
    file = tmp_path / "tokens"
    with pytest.raises(SettingError, match="already"):
        add_token(file, "admin", ["admin"], [])
    remove_token(file, "admin")
    assert read_tokens(file).find(tokens["admin"]) is None
    with pytest.raises(SettingError, match="no token"):
        remove_token(file, "admin")
    with pytest.raises(SettingError, match="roles"):
        add_token(file, "x", ["root"], [])


@pytest.mark.parametrize(
    "line", ["x", "x y produce", f"x {'0' * 64} root", f"a/b {'0' * 64} admin"]
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# fine\n\n{line}\n")
    file.chmod(0o600)
    with pytest.raises(SettingError, match="line 3"):
        read_tokens(file)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("")
    file.chmod(0o622)
    with pytest.raises(SettingError, match="written by others"):
        read_tokens(file)


@pytest.mark.parametrize("function", [f for f in Function if f not in (0, 1, 14, 18)])
def test_a_stranger_gets_nothing_but_a_denial(daemon: LocalDaemon, function: Function) -> None:
    with FjPeer(daemon.port) as peer:
        fields: dict[str, Any] = {}
        spec = FUNCTIONS[function]
        if spec.key.value != "none":
            fields["key"] = bytes(16)
        if spec.value_needed:
            kind = min(spec.types) if spec.types else Type.JOB
            fields |= {"value_type": kind, "value": b"\0"}
        reply = peer.ask(function, **fields)
        assert reply.error.startswith("DENIED")
        assert peer.is_closed()


def test_a_stranger_may_ping_and_quit(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        assert peer.ask(Function.PING).error == ""
        assert peer.ask(Function.NOP).error == ""
        assert peer.ask(Function.QUIT).error == ""
        assert peer.is_closed()


@pytest.mark.parametrize("token", ["", "fj_wrong", "x" * 2000])
def test_a_wrong_token_is_denied_and_the_connection_ends(daemon: LocalDaemon, token: str) -> None:
    with FjPeer(daemon.port) as peer:
        assert peer.hello(token).error.startswith("DENIED")
        assert peer.is_closed()
    with pytest.raises(Unauthorized):
        daemon.connect(token=token)


def test_nothing_behind_a_wrong_token_is_carried_out(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        from fastjournal.wire.fj.hello import Hello, encode_hello

        hello = encode_request(
            Function.HELLO, 1, value_type=Type.BUFFER, value=encode_hello(Hello("fj_no"))
        )
        peer.send(hello + put_bytes(2))
        reply = peer.read()
        assert reply is not None
        assert reply.error.startswith("DENIED")
        assert peer.is_closed()
    assert daemon.call(lambda: len(daemon.server.default.state.rows)) == 0


def test_requests_behind_a_good_hello_are_carried_out(
    daemon: LocalDaemon, tokens: dict[str, str]
) -> None:
    from fastjournal.wire.fj.hello import Hello, encode_hello

    with FjPeer(daemon.port) as peer:
        value = encode_hello(Hello(tokens["producer"]))
        hello = encode_request(Function.HELLO, 1, value_type=Type.BUFFER, value=value)
        peer.send(hello + put_bytes(2) + put_bytes(3))
        assert [peer.read().error for _ in range(3)] == ["", "", ""]  # type: ignore[union-attr]


def test_roles_are_held(daemon: LocalDaemon, tokens: dict[str, str]) -> None:
    with (
        daemon.connect(token=tokens["producer"]) as producer,
        daemon.connect(token=tokens["consumer"]) as consumer,
        daemon.connect(token=tokens["admin"]) as admin,
    ):
        receipt = producer.put(b"x", queue="q")
        for refused in (
            lambda: producer.lease("q"),
            lambda: producer.complete(receipt.id, 1),
            lambda: producer.pause("q"),
            lambda: consumer.put(queue="q"),
            lambda: consumer.configure("q", lease=1),
            lambda: consumer.redrive(queue="q"),
            lambda: consumer.snapshot(),
        ):
            with pytest.raises(Unauthorized):
                refused()
        assert producer.job(receipt.id).value == b"x"  # either may look
        job = consumer.lease("q")
        assert job is not None
        job.done()
        admin.put(queue="q")
        admin.pause("q")
        assert consumer.lease("q") is None
        assert producer.about["roles"] == ["produce"]


def test_whoever_only_produces_deletes_entries_and_no_jobs(
    daemon: LocalDaemon, tokens: dict[str, str]
) -> None:
    with (
        daemon.connect(token=tokens["producer"]) as producer,
        daemon.connect(token=tokens["consumer"]) as consumer,
        FjPeer(daemon.port) as peer,
    ):
        assert peer.hello(tokens["producer"]).error == ""
        ids = [producer.put(b"x", queue="q", key=key).id for key in ("a", "b", "both")]
        for key in ("entry", "both"):
            producer.entries.set(key, b"value")
        for refused in (
            lambda: producer.delete(ids[0]),
            lambda: producer.delete(key="b", queue="q"),
        ):
            with pytest.raises(Unauthorized):
                refused()
        for key in (b"a", b"both"):  # without a queue: the entry and the jobs of every queue
            assert peer.ask(Function.DELETE, key=key).error.startswith("DENIED")
        assert peer.ask(Function.DELETE, key=b"entry").error == ""
        assert producer.entries.get("entry") is None
        assert producer.entries.get("both") == b"value"
        assert len(producer.jobs("q")) == 3
        assert producer.entries.delete("both")
        assert consumer.delete(ids[0])
        assert consumer.delete(key="b", queue="q")


def test_a_deleted_job_does_not_keep_producers_from_its_keys_entry(
    daemon: LocalDaemon, tokens: dict[str, str]
) -> None:
    with (
        daemon.connect(token=tokens["producer"]) as producer,
        daemon.connect(token=tokens["consumer"]) as consumer,
        FjPeer(daemon.port) as peer,
    ):
        assert peer.hello(tokens["producer"]).error == ""
        producer.put(b"x", queue="q", key="a")
        producer.entries.set("a", b"value")
        assert consumer.delete(key="a", queue="q")  # its tombstone stays
        assert peer.ask(Function.DELETE, key=b"a").error == ""
        assert producer.entries.get("a") is None


SENDER = bytes(range(0x10, 0x16)) + b"\x85\x17\x80\0\0\x09"


def forward(peer: FjPeer, sender: bytes, *marks: int) -> Reply:
    jobs = [encode_job(PutRequest(b"q", b"spooled", mode=Mode.PLAIN)) for _ in marks]
    value = encode_forward(marks, jobs)
    return peer.ask(Function.FORWARD, key=sender, value_type=Type.BUFFER, value=value)


def forget(peer: FjPeer, sender: bytes) -> Reply:
    value = encode_forget()
    return peer.ask(Function.FORWARD, key=sender, value_type=Type.BUFFER, value=value)


def new_jobs(reply: Reply) -> int:
    assert reply.error == ""
    return decode_forwarded(reply.value or b"").new


@pytest.mark.parametrize("sender", [SENDER, b"any name"])
def test_a_sender_belongs_to_the_token_that_first_used_it(
    tmp_path: Path, daemon: LocalDaemon, tokens: dict[str, str], sender: bytes
) -> None:
    def as_(running: LocalDaemon, name: str) -> FjPeer:
        peer = FjPeer(running.port)
        assert peer.hello(tokens[name]).error == ""
        return peer

    victim, thief, admin = (as_(daemon, n) for n in ("producer", "other-producer", "admin"))
    assert new_jobs(forward(victim, sender, 8)) == 1
    assert forward(thief, sender, 2**32 - 1).error.startswith("DENIED")
    assert forget(thief, sender).error.startswith("DENIED")
    assert forward(thief, b"\0owned by\0" + sender, 2**32 - 1).error.startswith("CLIENT-ERROR")
    assert new_jobs(forward(thief, b"its own", 2**32 - 1)) == 1
    assert new_jobs(forward(victim, sender, 20)) == 1
    assert new_jobs(forward(admin, sender, 21)) == 1  # whoever may do everything owns nothing
    for peer in (victim, thief, admin):
        peer.close()
    daemon.stop()
    settings = {"tokens": str(tmp_path / "tokens"), "journals": ["b"]}
    for _ in range(2):  # by the log, then by a snapshot
        with LocalDaemon(tmp_path / "d", settings=settings) as again:
            with as_(again, "other-producer") as thief:
                assert forward(thief, sender, 2**32 - 1).error.startswith("DENIED")
            with as_(again, "producer") as victim:
                assert decode_forwarded(forward(victim, sender, 21).value or b"").repeated == 1
            with again.connect(token=tokens["admin"]) as client:
                client.snapshot()
                client.clean()
    # The name of the token is what counts: a new one of the same name goes on.
    remove_token(tmp_path / "tokens", "producer")
    tokens["producer"] = add_token(tmp_path / "tokens", "producer", ["produce"], [])
    with LocalDaemon(tmp_path / "d", settings=settings) as again:
        with as_(again, "producer") as victim:
            assert new_jobs(forward(victim, sender, 30)) == 1
            assert forget(victim, sender).error == ""
        with as_(again, "other-producer") as heir:  # forgotten: anybody's again
            assert new_jobs(forward(heir, sender, 31)) == 1


def test_a_sender_of_old_goes_to_its_first_user(tmp_path: Path, tokens: dict[str, str]) -> None:
    with LocalDaemon(tmp_path / "d") as daemon, FjPeer(daemon.port) as peer:
        assert new_jobs(forward(peer, SENDER, 8)) == 1
    settings = {"tokens": str(tmp_path / "tokens")}
    with (
        LocalDaemon(tmp_path / "d", settings=settings) as daemon,
        FjPeer(daemon.port) as victim,
        FjPeer(daemon.port) as thief,
    ):
        victim.hello(tokens["producer"])
        thief.hello(tokens["other-producer"])
        assert decode_forwarded(forward(victim, SENDER, 8).value or b"").repeated == 1
        assert forward(thief, SENDER, 9).error.startswith("DENIED")


def test_no_chosen_id_says_how_far_a_sender_has_come(
    daemon: LocalDaemon, tokens: dict[str, str]
) -> None:
    forged = SENDER + b"\xff\xff\xff\xff"
    with FjPeer(daemon.port) as victim, daemon.connect(token=tokens["other-producer"]) as thief:
        victim.hello(tokens["producer"])
        assert new_jobs(forward(victim, SENDER, 8)) == 1
        for put in (
            lambda: thief.put(b"x", queue="q", id=forged),
            lambda: thief.put(b"x", queue="q", key="k", id=forged),
            lambda: thief.put_many([{"payload": b"x", "queue": "q", "id": forged}] * 2),
        ):
            with pytest.raises(BadRequest):
                put()
        with FjPeer(daemon.port) as peer:
            peer.hello(tokens["other-producer"])
            value = encode_job(PutRequest(b"q", b"x", mode=Mode.PLAIN, job_id=forged))
            peer.send(encode_request(Function.SET, 7, value_type=Type.JOB, value=value) * 3)
            for _ in range(3):
                reply = peer.read()
                assert reply is not None
                assert reply.error.startswith("CLIENT-ERROR")
        assert new_jobs(forward(victim, SENDER, 20)) == 1


def test_a_token_is_for_its_journals_only(daemon: LocalDaemon, tokens: dict[str, str]) -> None:
    with daemon.connect(token=tokens["only-b"], journal="b") as client:
        client.put(b"in b", queue="q")
    with pytest.raises(Unauthorized):
        daemon.connect(token=tokens["only-b"])
    with pytest.raises(NotFound):
        daemon.connect(token=tokens["admin"], journal="nix")
    with daemon.connect(token=tokens["admin"]) as client:
        assert client.queues() == []


def test_the_journal_is_chosen_once(daemon: LocalDaemon, tokens: dict[str, str]) -> None:
    with FjPeer(daemon.port) as peer:
        assert peer.hello(tokens["admin"]).error == ""
        assert peer.hello(tokens["admin"], "b").error.startswith("CLIENT-ERROR")
        assert peer.hello(tokens["admin"]).error == ""


def test_strangers_are_read_under_small_limits(daemon: LocalDaemon) -> None:
    with FjPeer(daemon.port) as peer:
        peer.send(
            b"FJ\0\1" + (18).to_bytes(2, "big") + b"\0\1\0\6" + bytes(8) + b"\0\xff\xff\xff\xff"
        )
        reply = peer.read()
        assert reply is not None
        assert reply.error.startswith("TOO-LARGE")
        assert peer.is_closed()


def test_strangers_that_say_nothing_are_cut(tmp_path: Path, tokens: dict[str, str]) -> None:
    settings = {"tokens": str(tmp_path / "tokens"), "limits": {"hello_timeout": 0.2}}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        peers = [FjPeer(daemon.port) for _ in range(20)]
        peers[0].send(b"F")  # half a message does not help
        for peer in peers:
            assert peer.is_closed()
            peer.close()
        assert daemon.call(lambda: daemon.server.cuts["stranger"]) == 20


def test_no_log_line_holds_a_token(
    tmp_path: Path, tokens: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    lines = io.StringIO()
    log = structlog.wrap_logger(
        structlog.PrintLogger(lines),
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(0),
    )
    wrong = "fj_" + "w" * 43
    settings = {"tokens": str(tmp_path / "tokens")}
    with LocalDaemon(tmp_path / "d", settings=settings, log=log) as daemon:
        with daemon.connect(token=tokens["admin"]) as client:
            client.put(queue="q")
            text = repr(client) + repr(client.target) + repr(client.about)
        with pytest.raises(Unauthorized) as caught:
            daemon.connect(token=wrong)
        with FjPeer(daemon.port) as peer:
            peer.hello(wrong)
    out, err = capfd.readouterr()
    said = lines.getvalue() + out + err + text + str(caught.value) + repr(caught.value)
    assert "denied" in lines.getvalue()
    assert tokens["admin"] not in said
    assert wrong not in said


def test_a_reload_takes_over_new_tokens(
    tmp_path: Path, daemon: LocalDaemon, tokens: dict[str, str]
) -> None:
    file = tmp_path / "tokens"
    new = add_token(file, "new", ["admin"], [])
    remove_token(file, "producer")
    with pytest.raises(Unauthorized):
        daemon.connect(token=new)
    daemon.call(lambda: daemon.server.reload(daemon.settings))
    daemon.connect(token=new).close()
    with pytest.raises(Unauthorized):
        daemon.connect(token=tokens["producer"])


def test_a_connection_ends_with_its_token(
    tmp_path: Path, daemon: LocalDaemon, tokens: dict[str, str]
) -> None:
    file = tmp_path / "tokens"
    peers = {name: FjPeer(daemon.port) for name in ("producer", "consumer", "admin")}
    for name, peer in peers.items():
        assert peer.hello(tokens[name]).error == ""
    remove_token(file, "producer")
    file.write_text(file.read_text().replace(" consume ", " read "))
    daemon.call(lambda: daemon.server.reload(daemon.settings))
    assert peers["producer"].is_closed()
    assert peers["consumer"].is_closed()
    assert peers["admin"].ask(Function.STATUS).error == ""
    assert daemon.call(lambda: daemon.server.cuts["token"]) == 2
    for peer in peers.values():
        peer.close()


def test_a_reload_that_cannot_be_used_changes_nothing(
    tmp_path: Path, daemon: LocalDaemon, tokens: dict[str, str]
) -> None:
    (tmp_path / "tokens").write_text("nonsense\n")
    daemon.call(lambda: daemon.server.reload(daemon.settings))
    daemon.connect(token=tokens["admin"]).close()
    off = load(environment={}, overrides={"data": daemon.settings.data})
    daemon.call(lambda: daemon.server.reload(off))
    with pytest.raises(Unauthorized):
        daemon.connect()


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:1", True), ("127.9.9.9:1", True), ("[::1]:1", True), ("localhost:1", True),
        ("unix:/x", True), ("0.0.0.0:1", False), ("[::]:1", False), ("10.0.0.1:1", False),
        ("example.com:1", False),
    ],
)  # fmt: skip
def test_addresses_of_this_machine_are_known(address: str, local: bool) -> None:
    assert is_local(address) is local


def test_the_daemon_does_not_listen_beyond_loopback_unless_it_is_safe(tmp_path: Path) -> None:
    def settings(**more: Any) -> Any:
        return load(environment={}, overrides={"listen": ["0.0.0.0:0"], **more})

    tls = {"certificate": "c", "key": "k"}
    for unsafe in (
        settings(),
        settings(tokens="t"),
        settings(tls=tls),
        load(environment={}, overrides={"workq": ["0.0.0.0:0"], "tokens": "t", "tls": tls}),
        load(environment={}, overrides={"http": "0.0.0.0:0"}),
    ):
        with pytest.raises(SettingError, match="insecure"):
            check_exposure(unsafe)
    check_exposure(settings(tokens="t", tls=tls))
    check_exposure(settings(insecure=True))
    with pytest.raises(SettingError, match="insecure"):
        LocalDaemon(tmp_path / "d", settings={"listen": ["0.0.0.0:0"]}).start()


def test_a_unix_socket_has_the_permissions_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "fj.sock"
    settings = {"listen": [f"unix:{path}"], "socket_mode": "600"}
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with fastjournal.connect(f"unix:{path}") as client:
            assert client.put(queue="q").id
        with pytest.raises(SettingError, match="somebody listens"):
            LocalDaemon(tmp_path / "e", settings=settings).start()
        assert daemon.url == f"unix:{path}"
    assert not path.exists()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with LocalDaemon(tmp_path / "d", settings=settings):
        fastjournal.connect(f"unix:{path}").close()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def certificates(tmp_path: Path, authority: trustme.CA) -> dict[str, str]:
    paths = {}
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    paths["ca"] = str(tmp_path / "ca.pem")
    for name, host in (("server", "localhost"), ("client", "client@example.com")):
        made = (
            authority.issue_cert(host, "127.0.0.1")
            if name == "server"
            else authority.issue_cert(host)
        )
        made.private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
        paths[name] = str(tmp_path / f"{name}.pem")
    stranger = trustme.CA()
    stranger.issue_cert("client@example.com").private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "stranger.pem"
    )
    stranger.cert_pem.write_to_path(tmp_path / "stranger-ca.pem")
    return paths | {
        "stranger": str(tmp_path / "stranger.pem"),
        "stranger_ca": str(tmp_path / "stranger-ca.pem"),
    }


def _tls_url(daemon: LocalDaemon, **options: str) -> str:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"fjs://localhost:{daemon.port}?connect_timeout=2&timeout=2&{query}"


@pytest.mark.parametrize("uvloop", [False, True])
def test_tls_protects_and_proves_the_server(
    tmp_path: Path, certificates: dict[str, str], tokens: dict[str, str], uvloop: bool
) -> None:
    settings = {
        "tokens": str(tmp_path / "tokens"),
        "tls": {"certificate": certificates["server"]},
    }
    with LocalDaemon(tmp_path / "d", settings=settings, uvloop=uvloop) as daemon:
        url = _tls_url(daemon, ca=certificates["ca"], token=tokens["admin"])
        with fastjournal.connect(url) as client:
            receipt = client.put(b"x" * 100_000, queue="q")
            assert client.job(receipt.id).value == b"x" * 100_000

        async def from_asyncio() -> bytes:
            async with await fastjournal.aconnect(url) as client:
                job = await client.lease("q")
                assert job is not None
                return job.payload

        assert asyncio.run(from_asyncio()) == b"x" * 100_000
        with pytest.raises(Unavailable):  # a client that does not know the authority
            fastjournal.connect(_tls_url(daemon, ca=certificates["stranger_ca"]))
        with pytest.raises(Unavailable):  # no TLS, no answer
            fastjournal.connect(f"fj://127.0.0.1:{daemon.port}?connect_timeout=0.5&timeout=0.5")
        daemon.call(lambda: daemon.server.reload(daemon.settings))
        fastjournal.connect(url).close()


def test_mutual_tls_demands_a_certificate_of_the_client(
    tmp_path: Path, certificates: dict[str, str], tokens: dict[str, str]
) -> None:
    settings = {
        "tokens": str(tmp_path / "tokens"),
        "tls": {"certificate": certificates["server"], "client_ca": certificates["ca"]},
    }
    with LocalDaemon(tmp_path / "d", settings=settings) as daemon:
        known = {"ca": certificates["ca"], "token": tokens["admin"]}
        with fastjournal.connect(_tls_url(daemon, cert=certificates["client"], **known)) as client:
            client.put(queue="q")
        for wrong in ({}, {"cert": certificates["stranger"]}):
            with pytest.raises((Unavailable, ssl.SSLError)):
                fastjournal.connect(_tls_url(daemon, **known, **wrong))


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    for wrong in ({"certificate": str(tmp_path / "none")}, {"key": "k"}):
        settings = load(environment={}, overrides={"tls": wrong})
        with pytest.raises(SettingError, match=r"TLS|certificate"):
            server_context(settings.tls)


def test_urls_hide_their_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_text("fj_secret\n")
    for url in (
        "fjs://fj_secret@host/j",
        "fj://localhost/j?token=fj_secret",
        f"fj://127.0.0.9/j?token_file={tmp_path / 't'}",
        "unix:/run/fj.sock?token=fj_secret",
        "fj://fj_secret@host/j?insecure=1",
    ):
        target = parse_url(url)
        assert isinstance(target, Target)
        assert target.token == "fj_secret"
        assert "secret" not in repr(target)
    monkeypatch.setenv("FASTJOURNAL_TOKEN", "fj_secret")
    target = parse_url("fj://[::1]")
    assert isinstance(target, Target)
    assert target.token == "fj_secret"


def test_no_token_goes_to_another_machine_in_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_asyncio(url: str) -> object:
        return asyncio.run(fastjournal.aconnect(url))

    faces: list[Callable[[str], object]] = [
        parse_url, fastjournal.connect, from_asyncio, DaemonDestination,
    ]  # fmt: skip
    urls = ["fj://fj_secret@192.0.2.1", "fj://example.com?token=fj_secret", "fj://[2001:db8::1]"]
    for face in faces:
        for url in urls:
            with monkeypatch.context() as patch:
                patch.setenv("FASTJOURNAL_TOKEN", "fj_secret")
                with pytest.raises(SettingError, match="in clear") as caught:
                    face(url)
            assert "secret" not in str(caught.value)
    assert isinstance(parse_url("fj://192.0.2.1"), Target)  # without a token there is none to lose
    with pytest.raises(SettingError, match="insecure"):
        parse_url("fj://192.0.2.1?insecure=yes")


def test_the_command_line_sends_no_token_in_clear(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastjournal.cli import app as cli

    for command in (["status"], ["forward", "--spool", "./none", "--once"]):
        option = "--to" if command[0] == "forward" else "--url"
        monkeypatch.setattr(
            "sys.argv", ["fastjournal", *command, option, "fj://fj_secret@192.0.2.1"]
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code
        assert "in clear" in capsys.readouterr().err


def test_payloads_are_opaque(daemon: LocalDaemon, tokens: dict[str, str]) -> None:
    """Nothing is unpickled, evaluated or decoded on its way."""
    import pickle

    bomb = pickle.dumps(pytest.fail)
    hostile = [bomb, b"__import__('os').abort()", b"\xff\xfe\0", json.dumps({"a": 1}).encode()]
    with daemon.connect(token=tokens["admin"]) as client:
        for payload in hostile:
            receipt = client.put(payload, queue="q", key=payload)
            assert client.job(receipt.id).value == payload
            job = client.lease("q")
            assert job is not None
            job.done(payload)
            assert client.result(receipt.id) == (True, payload)


def test_many_wrong_tokens_cost_little(daemon: LocalDaemon) -> None:
    def guess() -> None:
        for n in range(20):
            with FjPeer(daemon.port) as peer:
                assert peer.hello(f"fj_{n}").error.startswith("DENIED")

    threads = [threading.Thread(target=guess) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert daemon.call(lambda: daemon.server.errors["DENIED"]) == 100
    assert isinstance(daemon.call(lambda: daemon.server.tokens), Tokens)
