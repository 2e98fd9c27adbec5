"""Settings of the daemon: defaults, file, environment, refusals that name the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.client.urls import Target, parse_url, tls_context
from fastjournal.config import DEFAULT_PORT, Settings, load, parse_address
from fastjournal.errors import SettingError


def test_everything_has_a_default() -> None:
    settings = load(environment={})
    assert settings == Settings()
    assert settings.listen == (f"127.0.0.1:{DEFAULT_PORT}",)
    assert (settings.journal.sync, settings.journal.sync_interval) == ("interval", 1000)


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "fj.toml"
    file.write_text(
        'data = "file"\nhttp = "file:1"\n[limits]\nidle_timeout = 1\nmax_message = 5000\n'
    )
    environment = {
        "FASTJOURNAL_HTTP": "environment:1",
        "FASTJOURNAL_LIMITS_IDLE_TIMEOUT": "2.5",
        "FASTJOURNAL_LISTEN": "127.0.0.1:1, unix:/x",
        "FASTJOURNAL_INSECURE": "true",
        "FASTJOURNAL_TOKEN": "not a setting",
        "HTTP": "no",
    }
    settings = load(file, environment, {"limits": {"max_message": 6000}})
    assert (settings.data, settings.http) == ("file", "environment:1")
    assert (settings.limits.idle_timeout, settings.limits.max_message) == (2.5, 6000)
    assert settings.listen == ("127.0.0.1:1", "unix:/x")
    assert settings.insecure is True


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"nonsense": 1}, ""),
        ({"limits": {"max_connections": 0}}, "limits.max_connections"),
        ({"limits": {"max_connections": 1_000_001}}, "limits.max_connections"),
        ({"limits": {"max_message": 1023}}, "limits.max_message"),
        ({"limits": {"idle_timeout": -1}}, "limits.idle_timeout"),
        ({"limits": {"write_timeout": 0}}, "limits.write_timeout"),
        ({"limits": {"max_payload": (8 << 20) + 1}}, "limits.max_payload"),
        ({"journal": {"sync": "never"}}, "journal.sync"),
        ({"journal": {"sync_interval": 0}}, "journal.sync_interval"),
        ({"journal": {"segment_size": 4095}}, "journal.segment_size"),
        ({"log": {"level": "loud"}}, "log.level"),
        ({"socket_mode": "999"}, "socket_mode"),
        ({"journals": ["../x"]}, "journals"),
        ({"default_journal": ""}, "default_journal"),
        ({"limits": "text"}, "limits"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_name(wrong: dict[str, object], name: str) -> None:
    """F42: every option below and above its limits."""
    with pytest.raises(SettingError) as caught:
        load(environment={}, overrides=wrong)
    assert caught.value.name.startswith(name)


@pytest.mark.parametrize(
    "right",
    [
        {"limits": {"max_connections": 1}},
        {"limits": {"max_message": 1024}},
        {"limits": {"idle_timeout": 0}},
        {"limits": {"max_payload": 8 << 20}},
        {"journal": {"sync_interval": 1}},
        {"journal": {"segment_size": 4096}},
        {"socket_mode": "0600"},
    ],
)
def test_values_at_their_limits_are_taken(right: dict[str, object]) -> None:
    load(environment={}, overrides=right)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none\.toml"):
        load(tmp_path / "none.toml", {})
    (tmp_path / "bad.toml").write_text("= nonsense")
    with pytest.raises(SettingError, match=r"bad\.toml"):
        load(tmp_path / "bad.toml", {})
    (tmp_path / "flat.toml").write_text("limits = 3")
    with pytest.raises(SettingError, match="limits"):
        load(tmp_path / "flat.toml", {"FASTJOURNAL_LIMITS_DRAIN": "1"})


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("host:1", ("host", 1)), (":1", ("127.0.0.1", 1)), ("host", ("host", DEFAULT_PORT)),
        ("[::1]:2", ("::1", 2)), ("[::1]", ("::1", DEFAULT_PORT)),
    ],
)  # fmt: skip
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert parse_address(address) == expected


@pytest.mark.parametrize("address", ["host:x", "host:70000", "host:-1"])
def test_wrong_addresses(address: str) -> None:
    with pytest.raises(SettingError):
        parse_address(address)


def test_urls() -> None:
    assert parse_url("./jobs") == Path("./jobs")
    assert parse_url("embedded:/x/y") == Path("/x/y")
    target = parse_url("fj://host/mail?timeout=3&name=me")
    assert isinstance(target, Target)
    assert (target.host, target.port, target.journal) == ("host", DEFAULT_PORT, "mail")
    assert (target.timeout, target.name, target.tls) == (3.0, "me", False)
    target = parse_url("fjs://[::1]:99")
    assert isinstance(target, Target)
    assert (target.host, target.port, target.tls, target.journal) == ("::1", 99, True, "")
    target = parse_url("unix:/run/x.sock?journal=a%20b")
    assert isinstance(target, Target)
    assert (target.path, target.journal, target.address) == (
        "/run/x.sock",
        "a b",
        "unix:/run/x.sock",
    )
    assert tls_context(target) is None


@pytest.mark.parametrize(
    "url",
    ["http://x", "fj://host?nonsense=1", "fj://host:x", "fj://host?timeout=x", "unix:",
     "fj://h?token_file=/none"],
)  # fmt: skip
def test_wrong_urls_are_refused(url: str) -> None:
    with pytest.raises(SettingError):
        parse_url(url)


def test_tls_files_that_cannot_be_used_are_refused() -> None:
    target = parse_url("fjs://host?ca=/none")
    assert isinstance(target, Target)
    with pytest.raises(SettingError):
        tls_context(target)
