"""The bundle for nodes without the package is the package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent


def test_the_bundle_for_nodes_without_the_package_holds_every_file_of_it(tmp_path: Path) -> None:
    bundle = tmp_path / "fastjournal.zip"
    subprocess.run([str(ROOT / "tools" / "spark-zip"), str(bundle)], check=True)
    with zipfile.ZipFile(bundle) as opened:
        packed = set(opened.namelist())
    source = ROOT / "src"
    whole = {
        path.relative_to(source).as_posix()
        for root in ("fastjournal", "pyspark_fastjournal")
        for path in (source / root).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == whole and "fastjournal/spark/report/page.html" in packed


def test_the_page_of_the_report_is_read_from_the_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "fastjournal.zip"
    subprocess.run([str(ROOT / "tools" / "spark-zip"), str(bundle)], check=True)
    code = (
        "import fastjournal.spark.report.page as page; from importlib.resources import files\n"
        "text = files('fastjournal.spark.report').joinpath('page.html').read_text()\n"
        "print(page.__file__, len(text))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(bundle)},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(bundle))
