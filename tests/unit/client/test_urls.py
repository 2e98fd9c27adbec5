"""Where a journal is: one string, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal import SettingError, connect
from fastjournal.client.urls import Target, parse_url


@pytest.mark.parametrize(
    "url",
    ["host:17994", "127.0.0.1:17994", "queue.example.com:1", "localhost:17994/mail", "[::1]:5"],
)
def test_a_host_and_port_is_an_error_that_names_the_form_meant(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="write fj://") as caught:
        connect(url)
    assert f"fj://{url}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_such_a_name_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("./host:17994") == Path("host:17994")
    assert parse_url("embedded:host:17994") == Path("host:17994")
    Path("host:17994").mkdir()
    assert parse_url("host:17994") == Path("host:17994")
    assert parse_url("C:jobs") == Path("C:jobs")
    assert isinstance(parse_url("fj://host:17994"), Target)


def test_several_nodes_stand_in_one_string() -> None:
    target = parse_url("fj://a:1,b,[::1]:3/jobs?timeout=5")
    assert isinstance(target, Target)
    assert (target.host, target.port) == ("a", 1)
    assert target.others == (("b", 17994), ("::1", 3))
    assert target.journal == "jobs"
    assert target.timeout == 5
    nodes = {(one.host, one.port) for one in target.nodes()}
    assert nodes == {("a", 1), ("b", 17994), ("::1", 3)}
    assert all(one.others == () and one.journal == "jobs" for one in target.nodes())
    assert target.address == "a:1,b:17994,::1:3"


@pytest.mark.parametrize("url", ["fj://a,,b/jobs", "fj://a,b:x/jobs", "fj://a,/jobs"])
def test_a_node_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(SettingError):
        parse_url(url)


def test_a_token_goes_in_clear_to_no_node_of_another_machine() -> None:
    with pytest.raises(SettingError, match=r"10\.0\.0\.2"):
        parse_url("fj://secret@127.0.0.1,10.0.0.2/jobs")


def test_looks_and_groups_stand_in_the_options() -> None:
    target = parse_url("fj://a,b/jobs?read=follower&max_lag=250ms&group=64")
    assert isinstance(target, Target)
    assert (target.follower, target.max_lag, target.group) == (True, 0.25, 64)
    plain = parse_url("fj://a/jobs?read=primary")
    assert isinstance(plain, Target)
    assert (plain.follower, plain.group) == (False, 0)


@pytest.mark.parametrize(
    "option", ["read=anybody", "max_lag=soon", "group=many", "group=-1", "group=5000"]
)
def test_what_cannot_be_meant_of_them_is_refused(option: str) -> None:
    with pytest.raises(SettingError):
        parse_url(f"fj://a/jobs?{option}")
