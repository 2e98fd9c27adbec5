"""The command line, run in the test's own process."""

from __future__ import annotations

import io

import pytest

from fastjournal.cli import app as cli


class Command:
    """Runs the command line in this process on one directory."""

    def __init__(self, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.capfd, self.patch = capfd, patch

    def __call__(self, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        self.patch.setattr("sys.argv", ["fastjournal", *arguments])
        self.patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        out, err = self.capfd.readouterr()
        return code, out, err
