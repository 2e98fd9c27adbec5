"""A machine without Java: the wheel brings it, and the whole set-up is one pip install."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent.parent / "golden" / "workq"

SCRIPT = """
import os, shutil, sys
assert shutil.which("java") is None and "JAVA_HOME" not in os.environ
from fastjournal.spark import local_session, read
spark = local_session("local[1]", **{"spark.ui.enabled": "false", "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
print("rows", read(spark, sys.argv[1], view="jobs").count())
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    """An empty environment but for the few programs that Spark's own start script calls."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("env", "bash", "sh", "dirname", "basename", "uname", "cat", "sed", "grep", "ps"):
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(GOLDEN / "all-types")],
        env={"HOME": str(tmp_path), "PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows 11" in done.stdout
    assert (tmp_path / ".cache" / "fastjournal" / "jre" / "bin" / "java").exists()
