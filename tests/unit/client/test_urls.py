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
