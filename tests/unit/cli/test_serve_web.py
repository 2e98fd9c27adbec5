"""`fastjournal serve --web` with and without an address."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from fastjournal.cli.app import app


@pytest.mark.parametrize(
    ("args", "web", "data"),
    [
        ([], None, None),
        (["--web"], "127.0.0.1:17995", None),
        (["--web", "0.0.0.0:8080"], "0.0.0.0:8080", None),
        (["--web", ":8080"], ":8080", None),
        (["--web", "[::1]:80"], "[::1]:80", None),
        (["--web=localhost"], "localhost", None),
        (["--web", "dir"], "127.0.0.1:17995", "dir"),
        (["dir", "--web"], "127.0.0.1:17995", "dir"),
        (["--web", "--sync", "os"], "127.0.0.1:17995", None),
        (["dir", "--web", "127.0.0.1:1", "--sync", "os"], "127.0.0.1:1", "dir"),
    ],
)
def test_an_address_may_follow(args: list[str], web: str | None, data: str | None) -> None:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    given = command.make_context("serve", args).params
    assert given["web"] == web
    assert given["data"] == (None if data is None else Path(data))
