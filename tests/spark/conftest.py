"""One Spark session for all tests, and journals made of a few bytes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastjournal.log.record import encode
from fastjournal.log.segment import WORKQ, segment_name
from s3_server import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent.parent / "golden" / "workq"
T0 = 1_700_000_000_000_000_000


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """Where S3 is served by the tests that want it: the session's tasks inherit its environment."""
    with socket.socket() as probe, pytest.MonkeyPatch.context() as patch:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        for name, value in environment(f"http://127.0.0.1:{port}").items():
            patch.setenv(name, value)
        probe.close()
        yield port


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, s3_port: int) -> Iterator[SparkSession]:
    """A session set up for short queries: no UI, two shuffle partitions, a quick-starting JVM.

    Speculation is on, as it may be in any session that writes. Spark starts no second attempt where
    all runs in one process, so here it only shows that nothing minds the setting: real second
    attempts are in `test_attempts.py`, tasks called twice in `tests/unit/spark/test_absence.py`.
    """
    from fastjournal.spark.session import local_session

    session = local_session(
        "local[2]",
        **{
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "ERROR",
            "spark.speculation": "true",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield session
    session.stop()


WriteJournal = Callable[..., Path]


@pytest.fixture
def write_journal(tmp_path: Path) -> WriteJournal:
    """Write payloads as segments: `write_journal([[...], [...]], name="j")` is two segments."""

    def write(
        segments: Sequence[Sequence[bytes]], name: str = "journal", first: int = T0, number: int = 1
    ) -> Path:
        directory = tmp_path / name
        directory.mkdir(parents=True, exist_ok=True)
        time = first
        for n, payloads in enumerate(segments):
            parts = [WORKQ.encode()]
            for payload in payloads:
                parts.append(encode(time, payload))
                time += 1000
            (directory / segment_name(number + n)).write_bytes(b"".join(parts))
        return directory

    return write


@pytest.fixture(params=sorted(p.name for p in GOLDEN.iterdir() if p.is_dir()))
def golden(request: pytest.FixtureRequest) -> Path:
    """The logs that a real Workq server wrote, one at a time."""
    return GOLDEN / str(request.param)
