"""Java is found, or made of a wheel; nothing heavy is imported before it is needed."""

from __future__ import annotations

import importlib
import os
import runpy
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal.errors import SettingError, Unavailable
from fastjournal.spark import session


def fake_java(directory: Path, version: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return directory


def test_a_java_home_that_spark_runs_on_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "jdk", "21.0.4")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert session.ensure_java(tmp_path) == str(home)


def test_an_old_java_home_gives_way_to_a_fitting_java_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_402")))
    fitting = fake_java(tmp_path / "new", "17.0.1")
    monkeypatch.setenv("PATH", f"{fitting / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert session.ensure_java(tmp_path) == str(fitting)
    assert os.environ["JAVA_HOME"] == str(fitting)


def test_without_any_java_the_wheel_gives_one_behind_a_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    home = Path(session.ensure_java(tmp_path))
    shim = home / "bin" / "java"
    assert home.is_relative_to(tmp_path) and shim.stat().st_mode & stat.S_IXUSR
    run = ["/bin/sh", str(shim), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    assert 'version "21' in done.stderr
    assert [p.name for p in shim.parent.iterdir()] == ["java"]


def test_a_setting_that_is_not_sparks_is_refused() -> None:
    with pytest.raises(SettingError, match="master_memory"):
        session.local_session(master_memory="1g")


def test_importing_the_package_loads_neither_spark_nor_arrow() -> None:
    code = (
        "import sys, fastjournal.spark;"
        "print([m for m in ('pyspark', 'pyarrow', 'numpy', 'numba') if m in sys.modules])"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_spark_finds_the_source_by_the_name_of_its_package() -> None:
    import pyspark_fastjournal

    assert pyspark_fastjournal.DefaultSource.name() == "fastjournal"


@pytest.mark.parametrize(
    ("module", "name", "feature"),
    [
        ("pyspark.sql.streaming.datasource", "ReadMaxBytes", "stream.reader"),
        ("pyspark.sql.datasource", "DataSourceStreamArrowWriter", "sink.writer"),
    ],
)
def test_a_pyspark_that_lacks_something_is_told_by_one_error(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, feature: str
) -> None:
    own = importlib.import_module(f"fastjournal.spark.{feature}")
    monkeypatch.delattr(importlib.import_module(module), name)
    with pytest.raises(Unavailable, match=rf"pyspark 4.* is too old, 4.3 will do: .*{name}"):
        runpy.run_path(str(own.__file__))
