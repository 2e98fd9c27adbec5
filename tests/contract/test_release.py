"""What is released: the metadata hang together; sdist and wheel install and work by themselves.

The slow tests build in fresh environments and fetch from the registry. With `FASTJOURNAL_PURE=1`
the wheel is built without the compiled core, which is quicker and is then what is expected.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from docblocks import PAGES, ROOT
from fastjournal import __version__

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PURE = os.environ.get("FASTJOURNAL_PURE", "0") not in ("", "0")
EXTRAS = re.compile(r"fastjournal\[([\w,]+)\]")
WORK = """
from fastjournal import Journal

with Journal("jobs") as journal:
    journal.put(b"hello", queue="mail")
    job = journal.lease("mail")
    assert job.payload == b"hello"
    job.done()
    assert journal.lease("mail") is None
"""


def test_the_changelog_begins_with_this_version() -> None:
    found = re.search(
        r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert found is not None
    assert found[1] == __version__


def test_the_oldest_python_that_is_named_is_the_oldest_that_is_taken() -> None:
    words = [one.split(" :: ") for one in PROJECT["classifiers"]]
    named = {one[2] for one in words if one[:2] == ["Programming Language", "Python"]}
    versions = sorted((one for one in named if "." in one), key=lambda one: int(one[2:]))
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_types_a_licence_and_the_command_are_where_the_metadata_say() -> None:
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert (ROOT / "src" / "fastjournal" / "py.typed").exists()
    assert all((ROOT / name).exists() for name in [PROJECT["readme"], *PROJECT["license-files"]])
    for target in PROJECT["scripts"].values():
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name))


def test_every_extra_that_the_pages_name_exists() -> None:
    pages = "\n".join(page.read_text() for page in PAGES)
    named = {one for extras in EXTRAS.findall(pages) for one in extras.split(",")}
    assert {"daemon", "spark", "tasks", "web"} <= named
    assert named <= set(PROJECT["optional-dependencies"])


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by what `pyproject.toml` asks for, and nothing else."""
    home = tmp_path_factory.mktemp("sdist")
    builder = Environment(home / "venv")
    builder.pip("install", "hatchling")
    builder.run("-m", "hatchling", "build", "-t", "sdist", "-d", str(home), cwd=ROOT)
    (made,) = home.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as pip does it."""
    home = tmp_path_factory.mktemp("wheel")
    builder = Environment(home / "venv", FASTJOURNAL_PURE="1" if PURE else "0")
    builder.pip("wheel", "--no-deps", "-w", str(home), str(sdist))
    (made,) = home.glob("*.whl")
    return made


class Environment:
    """A fresh virtual environment, in which nothing of this checkout is found."""

    def __init__(self, path: Path, **variables: str) -> None:
        venv.create(path, with_pip=True)
        self.bin = path / "bin"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FASTJOURNAL_", "PYTHON"))
        }
        self._environ = kept | variables

    def pip(self, *words: str) -> None:
        """Run pip."""
        self.run("-m", "pip", "--disable-pip-version-check", "-q", *words)

    def run(self, *words: str, program: str = "python", cwd: Path | None = None) -> str:
        """Run Python, or another program of the environment; what it printed."""
        done = subprocess.run(
            [self.bin / program, *words], cwd=cwd or self.bin.parent, env=self._environ,
            capture_output=True, text=True, check=False, timeout=1200,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def works(self, core: str) -> None:
        """The command line and the library do their work, with this build of the core."""
        told = f"{__version__} ({core} core)\n"
        assert self.run("--version", program="fastjournal") == told
        assert self.run("-m", "fastjournal", "--version") == told
        self.run("-c", WORK)
        self.run("put", "hello", "--queue", "mail", program="fastjournal")
        job = json.loads(self.run("lease", "mail", "--json", program="fastjournal"))
        assert job["payload"] == "hello"
        self.run("done", job["id"], str(job["token"]), program="fastjournal")
        self.pip("check")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_sdist_installs_and_works_where_there_is_no_compiler(
    sdist: Path, tmp_path: Path
) -> None:
    there = Environment(tmp_path / "venv", CC="false", CXX="false")
    there.pip("install", f"{sdist}[daemon]")
    there.works("pure")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_wheel_installs_and_works(wheel: Path, tmp_path: Path) -> None:
    there = Environment(tmp_path / "venv")
    there.pip("install", str(wheel))
    there.run("-c", WORK)
    told = subprocess.run([there.bin / "fastjournal"], capture_output=True, text=True, check=False)
    assert (told.returncode, "fastjournal[daemon]" in told.stderr) == (1, True)
    there.pip("install", f"{wheel}[daemon]")
    there.works("pure" if PURE else "compiled")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_sdist_and_wheel_hold_what_they_should(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as packed:
        names = [name.partition("/")[2] for name in packed.getnames()]
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    assert {"LICENSE", "README.md", "PKG-INFO", "hatch_build.py"} <= set(names)
    if tracked:
        assert not [name for name in names if name not in {*tracked, "PKG-INFO"}]
    with zipfile.ZipFile(wheel) as packed_wheel:
        held = packed_wheel.namelist()
    wanted = [
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    ]
    assert not [name for name in wanted if name not in held]
    assert not [name for name in held if name.startswith(("tests/", "bench/"))]
    assert any(name.endswith(".so") for name in held) is not PURE
    assert f"-cp{sys.version_info[0]}{sys.version_info[1]}-" in wheel.name or PURE
