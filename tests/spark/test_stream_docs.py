"""What docs/spark-stream.md says of options and columns is what the code has."""

from __future__ import annotations

from pathlib import Path

from fastjournal.spark.schema import WRITTEN
from fastjournal.spark.sink.batch import MAX_VERSION
from fastjournal.spark.sink.writer import SINK_OPTIONS
from fastjournal.spark.stream.reader import STREAM_OPTIONS

PAGE = (Path(__file__).parent.parent.parent / "docs" / "spark-stream.md").read_text()


def test_every_option_and_column_of_streams_and_sinks_is_documented() -> None:
    for name in (*STREAM_OPTIONS, *SINK_OPTIONS):
        assert name == "path" or f"`{name}`" in PAGE, name
    for name in WRITTEN:
        assert f"| `{name}` |" in PAGE, name
    assert f"0 to {MAX_VERSION}" in PAGE
