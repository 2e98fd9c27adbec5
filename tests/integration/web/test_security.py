"""Who may see and do what on the dashboard, and what other sites can make a browser do: nothing."""

from __future__ import annotations

import io
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import trustme

from dashboard import Visitor
from fastjournal.config import load
from fastjournal.daemon.auth import add_token, check_exposure, remove_token
from fastjournal.errors import SettingError, Unauthorized
from fastjournal.testing.daemon import LocalDaemon


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    return {
        name: add_token(tmp_path / "tokens", name, roles, journals)
        for name, roles, journals in (
            ("looker", ["read"], []),
            ("maker", ["produce"], []),
            ("boss", ["admin"], []),
            ("only-b", ["admin"], ["b"]),
        )
    }


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def daemon(tmp_path: Path, tokens: dict[str, str], said: io.StringIO) -> Iterator[LocalDaemon]:
    settings = {
        "tokens": str(tmp_path / "tokens"),
        "journals": ["b"],
        "web": "127.0.0.1:0",
    }
    log = structlog.wrap_logger(
        structlog.PrintLogger(said), processors=[structlog.processors.JSONRenderer()]
    )
    with LocalDaemon(tmp_path / "d", settings=settings, log=log) as running:
        yield running


@pytest.fixture
def open_daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    with LocalDaemon(tmp_path / "o", settings={"web": "127.0.0.1:0"}) as running:
        running.server.default.journal.put(b"x", queue="mail")
        yield running


PAGES = (
    "/j/default/", "/j/default/jobs", "/j/default/dead", "/j/default/health", "/j/default/errors",
    "/j/default/workers", "/j/default/schedules",
)  # fmt: skip


def test_without_a_session_there_is_nothing_but_the_login(daemon: LocalDaemon) -> None:
    visitor = Visitor(daemon)
    for path in (*PAGES, "/j/default/history.json", "/j/default/hours.json", "/j/default/put"):
        answer = visitor.get(path)
        assert answer.status == 303
        assert answer.leads_to.startswith("/login?next=/j/default/")
    assert visitor.get("/").leads_to == "/login"
    assert visitor.get("/j/default/live").status == 401
    assert visitor.post("/j/default/act", do="sync").status == 401


def test_a_token_opens_a_session_that_scripts_and_other_sites_cannot_use(
    daemon: LocalDaemon, tokens: dict[str, str]
) -> None:
    visitor = Visitor(daemon)
    answer = visitor.log_in(tokens["boss"], next="/j/default/dead")
    assert (answer.status, answer.leads_to) == (303, "/j/default/dead")
    cookie = answer.headers["set-cookie"].lower()
    for words in ("httponly", "samesite=strict", "path=/", "max-age=43200"):
        assert words in cookie
    assert tokens["boss"] not in answer.headers["set-cookie"]
    for path in PAGES:
        assert visitor.get(path).status == 200
    assert "boss" in visitor.get("/j/default/").text
    assert visitor.get("/login").leads_to == "/"


def test_a_wrong_token_is_refused_counted_and_never_logged(
    daemon: LocalDaemon, tokens: dict[str, str], said: io.StringIO
) -> None:
    visitor = Visitor(daemon)
    for wrong in ("fj_wrong", "", tokens["boss"] + "x", "\udcff", "ü"):
        answer = visitor.log_in(wrong.encode("utf-8", "surrogateescape"))  # type: ignore[arg-type]
        assert answer.status == 403
        assert "not known here" in answer.text
    assert not visitor.cookies
    assert daemon.server.errors["DENIED"] == 5
    visitor.log_in(tokens["boss"])
    visitor.act("sync")
    assert '"did": "sync"' in said.getvalue()
    assert '"by": "boss"' in said.getvalue()
    assert "fj_" not in said.getvalue()


@pytest.mark.parametrize("where", ["https://evil.example/", "//evil.example/", "/\\evil", "/login"])
def test_a_login_leads_nowhere_else(
    daemon: LocalDaemon, tokens: dict[str, str], where: str
) -> None:
    assert Visitor(daemon).log_in(tokens["boss"], next=where).leads_to == "/"


def test_a_session_ends_with_a_logout(daemon: LocalDaemon, tokens: dict[str, str]) -> None:
    visitor = Visitor(daemon)
    visitor.log_in(tokens["boss"])
    kept = dict(visitor.cookies)
    assert visitor.post("/logout", secret="0" * 64).status == 303
    visitor.cookies = dict(kept)
    assert visitor.get("/j/default/").status == 200
    visitor.post("/logout", secret=visitor.secret("/j/default/"))
    visitor.cookies = kept
    assert visitor.get("/j/default/").status == 303


def test_a_session_ends_when_its_token_is_removed(
    daemon: LocalDaemon, tokens: dict[str, str], tmp_path: Path
) -> None:
    visitor = Visitor(daemon)
    visitor.log_in(tokens["boss"])
    assert visitor.get("/j/default/").status == 200
    remove_token(tmp_path / "tokens", "boss")
    daemon.call(lambda: daemon.server.reload(daemon.settings))
    assert visitor.get("/j/default/").status == 303


DEEDS = (
    "pause", "drain", "resume", "redrive", "redrive-all", "delete", "delete-all", "put", "edit",
    "bulk", "settings", "forget-schedule", "sync", "snapshot", "clean",
)  # fmt: skip


def test_every_deed_is_tried_here() -> None:
    from fastjournal.web import actions

    assert set(DEEDS) == set(actions.DEEDS)


def _form(row_id: bytes) -> dict[str, str]:
    """Fields with which each of the deeds would change something."""
    return {
        "id": row_id.hex(), "queue": "mail", "to": "mail", "payload": "x", "due": "5m",
        "priority": "1", "what": "delete", "until": str(2**62), "query": "queue=mail",
        "set.lease": "5m", "schedule": "tidy",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["looker", "maker"])
def test_only_administrators_change_anything(
    daemon: LocalDaemon, tokens: dict[str, str], name: str
) -> None:
    journal = daemon.server.default.journal
    row_id = journal.put(b"x", queue="mail").id
    visitor = Visitor(daemon)
    visitor.log_in(tokens[name])
    for path in (*PAGES, "/j/default/queue?name=mail", f"/j/default/job/{row_id.hex()}"):
        page = visitor.get(path)
        assert page.status == 200
        assert "/act" not in page.text or path == "/j/default/dead"
        assert "read only" in page.text
    secret = visitor.secret("/j/default/")
    for do in DEEDS:
        answer = visitor.post("/j/default/act", secret=secret, **(_form(row_id) | {"do": do}))
        assert answer.status == 403
        assert "only the role admin" in answer.text
    for path in ("/j/default/bulk?queue=mail", "/j/default/put"):
        assert visitor.get(path).status == 403
    assert journal.job(row_id)
    assert not journal.queue("mail").settings.paused


def test_the_role_read_looks_over_the_wire_too_and_changes_nothing(
    daemon: LocalDaemon, tokens: dict[str, str]
) -> None:
    journal = daemon.server.default.journal
    row_id = journal.put(b"x", queue="mail").id
    with daemon.connect(token=tokens["looker"]) as client:
        assert client.job(row_id).queue == "mail"
        assert [queue.name for queue in client.queues()] == ["mail"]
        for forbidden in (
            lambda: client.put(b"x", queue="mail"),
            lambda: client.lease("mail"),
            lambda: client.delete(row_id),
            lambda: client.pause("mail"),
        ):
            with pytest.raises(Unauthorized):
                forbidden()


def test_a_token_of_one_journal_sees_no_other(daemon: LocalDaemon, tokens: dict[str, str]) -> None:
    visitor = Visitor(daemon)
    visitor.log_in(tokens["only-b"])
    assert visitor.get("/").leads_to == "/j/b/"
    assert "default" not in visitor.get("/j/b/").text
    for path in (*PAGES, "/j/default/live", "/j/default/history.json"):
        assert visitor.get(path).status == 404
    secret = visitor.secret("/j/b/")
    assert visitor.post("/j/default/act", secret=secret, do="sync").status == 404


def test_a_form_without_the_secret_of_the_session_changes_nothing(
    daemon: LocalDaemon, tokens: dict[str, str]
) -> None:
    daemon.server.default.journal.put(b"x", queue="mail")
    mine, other = Visitor(daemon), Visitor(daemon)
    mine.log_in(tokens["boss"])
    other.log_in(tokens["boss"])
    journal = daemon.server.default.journal
    before = journal.digest()
    (job,) = journal.jobs("mail")
    for secret in ("", "0" * 64, other.secret("/j/default/"), "ü"):
        for do in DEEDS:
            form = _form(job.id) | {"do": do, "secret": secret}
            answer = mine.post("/j/default/act", **form)
            assert answer.status == 403
            assert "did not come from here" in answer.text
    assert journal.digest() == before
    assert mine.post("/login", secret="0" * 64, token=tokens["boss"]).status == 403
    assert not daemon.server.default.journal.queue("mail").settings.paused


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_from_another_site_changes_nothing(
    open_daemon: LocalDaemon, headers: dict[str, str]
) -> None:
    visitor = Visitor(open_daemon)
    secret = visitor.secret("/j/default/")
    form = {"secret": secret, "do": "pause", "queue": "mail"}
    assert visitor.post("/j/default/act", headers, **form).status == 403
    assert not open_daemon.server.default.journal.queue("mail").settings.paused
    ours = {"Origin": f"http://{visitor.address}", "Sec-Fetch-Site": "same-origin"}
    assert visitor.post("/j/default/act", ours, **form).status == 303
    assert open_daemon.server.default.journal.queue("mail").settings.paused


def test_without_tokens_a_foreign_name_does_not_lead_here(open_daemon: LocalDaemon) -> None:
    visitor = Visitor(open_daemon)
    port = visitor.address.rpartition(":")[2]
    for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "["):
        assert visitor.get("/j/default/", Host=name).status in (400, 421)
    for name in ("localhost", f"localhost:{port}", visitor.address, f"[::1]:{port}"):
        assert visitor.get("/j/default/", Host=name).status == 200


def test_a_mad_name_is_no_fault_of_ours(daemon: LocalDaemon, tokens: dict[str, str]) -> None:
    visitor = Visitor(daemon)
    assert visitor.get("/j/default/", Host="[").status == 303
    visitor.log_in(tokens["boss"])
    assert visitor.get("/j/default/", Host="[").status == 200


def test_every_answer_carries_the_headers(daemon: LocalDaemon, open_daemon: LocalDaemon) -> None:
    for answer in (
        Visitor(daemon).get("/login"),
        Visitor(daemon).get("/j/default/"),
        Visitor(open_daemon).get("/j/default/"),
        Visitor(open_daemon).get("/nothing"),
        Visitor(open_daemon).get("/j/default/", Host="evil.example"),
        Visitor(open_daemon).get("/static/app.js?v=1"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "server" not in answer.headers
    assert answer.headers["cache-control"] == "max-age=86400, immutable"
    assert Visitor(open_daemon).get("/j/default/").headers["cache-control"] == "no-store"


def test_no_page_has_anything_inline_or_from_elsewhere(open_daemon: LocalDaemon) -> None:
    visitor = Visitor(open_daemon)
    for path in (*PAGES, "/j/default/queue?name=mail", "/nothing"):
        page = visitor.get(path).text
        assert "style=" not in page
        assert "<style" not in page
        assert " on" not in [part[:3] for part in page.split("<script")[1:]]
        assert "http://" not in page.replace("fj://", "")
        assert "https://" not in page


def test_a_form_that_is_too_large_is_refused(open_daemon: LocalDaemon) -> None:
    visitor = Visitor(open_daemon)
    answer = visitor.post("/j/default/act", do="x" * 300_000)
    assert answer.status == 400
    assert "too large" in answer.text
    assert visitor.ask("POST", "/j/default/act", b"\xff\xfe").status == 400
    assert visitor.ask("POST", "/j/default/act", b"a=&" * 5000).status == 400


def test_a_bug_is_told_in_the_log_and_not_on_the_page(
    daemon: LocalDaemon, tokens: dict[str, str], said: io.StringIO
) -> None:
    visitor = Visitor(daemon)
    visitor.log_in(tokens["boss"])
    dashboard = daemon.server.dashboard
    assert dashboard is not None
    kept = dashboard.backstage.pulses.pop("default")
    try:
        answer = visitor.get("/j/default/")
    finally:
        dashboard.backstage.pulses["default"] = kept
    assert answer.status == 500
    assert "KeyError" not in answer.text
    assert "internal error" in said.getvalue()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:80", "[::]:80", "example.org:80"])
def test_beyond_this_machine_tokens_and_tls_are_needed(address: str) -> None:
    def settings(**more: object) -> object:
        return check_exposure(load(environment={}, overrides={"web": address, **more}))

    with pytest.raises(SettingError, match="not loopback") as refused:
        settings()
    assert refused.value.name == "web"
    with pytest.raises(SettingError):
        settings(tokens="t")
    with pytest.raises(SettingError):
        settings(tls={"certificate": "c"})
    settings(tokens="t", tls={"certificate": "c"})
    settings(insecure=True)


def test_over_tls_the_cookie_is_for_this_host_and_tls_only(
    tmp_path: Path, tokens: dict[str, str]
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    settings = {
        "web": "127.0.0.1:0",
        "tokens": str(tmp_path / "tokens"),
        "tls": {"certificate": str(tmp_path / "cert.pem")},
    }
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with LocalDaemon(tmp_path / "t", settings=settings) as daemon:
        visitor = Visitor(daemon, context)
        answer = visitor.log_in(tokens["boss"])
        assert answer.headers["set-cookie"].startswith("__Host-fastjournal=")
        assert "; Secure" in answer.headers["set-cookie"]
        assert visitor.get("/j/default/").status == 200


def test_an_address_that_cannot_be_had_is_a_setting_error(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "a", settings={"web": "127.0.0.1:0"}) as daemon:
        taken = daemon.server.addresses["web"][0]
        with pytest.raises(SettingError, match="cannot listen"):
            LocalDaemon(tmp_path / "b", settings={"web": taken}).start()
    with pytest.raises(SettingError, match="host:port"):
        LocalDaemon(tmp_path / "c", settings={"web": "unix:/x"}).start()


def test_without_the_extra_it_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['uvicorn'] = None\n"
        "from fastjournal.errors import SettingError\n"
        "try:\n"
        "    import fastjournal.web.dashboard_server\n"
        "except SettingError as error:\n"
        "    print(error, error.name, sep='|')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    words, name = done.stdout.strip().split("|")
    assert "pip install 'fastjournal[web]'" in words
    assert "uvicorn" in words
    assert name == "web"


def test_the_daemon_without_a_dashboard_loads_nothing_of_it() -> None:
    program = "import fastjournal.daemon.main, sys, json; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert not {"starlette", "uvicorn", "jinja2", "fastjournal.web"} & set(json.loads(done.stdout))
