"""`fastjournal spark` on the shared session: output, exit codes, one-line errors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fastjournal.cli.spark.commands import app
from fastjournal.errors import JournalError
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import encode
from fastjournal.log.segment import segment_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent.parent / "golden" / "workq"
T0 = 1_700_000_000_000_000_000
Write = Callable[..., Path]
QUERY = "select queue, state, count(*) as n from jobs group by all order by all"


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_sql_prints_a_table_and_json_lines(spark: SparkSession) -> None:
    text = run("sql", QUERY, GOLDEN / "all-types")
    assert "PROCESSING" in text and "mail.send_v2-eu" in text
    found = lines(run("sql", QUERY, GOLDEN / "all-types", "--json"))
    assert {"queue": "leased", "state": "PROCESSING", "n": 1} in found


def test_replay_takes_an_instant_and_writes_parquet(spark: SparkSession, tmp_path: Path) -> None:
    path = GOLDEN / "multi-segment"
    run("replay", path, "--parquet", tmp_path / "out", "--columns", "id,state")
    now = spark.read.parquet(str(tmp_path / "out")).count()
    early = lines(run("replay", path, "--as-of", "1794708289819439615", "--json"))
    assert (now > 20, len(early)) == (True, 1)
    assert early[0]["state"] == "WAITING" and len(early[0]["id"]) == 32


def test_a_log_on_a_store_is_asked_as_a_directory_is(spark: SparkSession) -> None:
    place = f"fsspec+file://{GOLDEN / 'all-types'}"
    assert run("sql", QUERY, place, "--json") == run("sql", QUERY, GOLDEN / "all-types", "--json")
    with pytest.raises(JournalError, match="no such journal: fsspec"):
        run("sql", QUERY, f"{place}/nowhere")


def test_the_shell_runs_what_is_typed_and_leaves_nothing_behind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    typed = (
        "print(sql('select count(*) from jobs').first()[0], journal.records().count())\nexit()\n"
    )
    path = GOLDEN / "multi-segment"
    done = CliRunner().invoke(app, ["shell", str(path)], input=typed, catch_exceptions=False)
    assert done.exit_code == 0
    assert "37 63" in done.output
    assert "views: records, jobs, segments" in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_long_table_is_cut_and_says_so(spark: SparkSession) -> None:
    done = CliRunner().invoke(
        app, ["replay", str(GOLDEN / "multi-segment"), "--limit", "3", "--columns", "queue"]
    )
    assert done.exit_code == 0
    assert "only the first 3 rows" in done.stderr


def test_audit_ends_with_a_code_for_ci(spark: SparkSession, write_journal: Write) -> None:
    put = encode(k.Put(b"r" * 16, b"q", b"k", 5, T0, T0, T0, 0, 1, b"v"))
    sound = write_journal([[put]], name="sound")
    assert run("audit", sound, "--no-second-opinion") == "sound: no finding\n"
    orphan = write_journal([[encode(k.Start(b"o" * 16))]], name="orphan")
    (found,) = lines(run("audit", orphan, "--json", "--no-second-opinion", code=1))
    assert (found["rule"], found["row_id"]) == ("orphan", (b"o" * 16).hex())
    bad = write_journal([[b"\xc8" + bytes(20)]], name="bad")
    assert "command" in run("audit", bad, "--no-second-opinion", code=3)


def test_clean_tells_what_went(spark: SparkSession, write_journal: Write) -> None:
    row = b"r" * 16
    put = encode(k.Put(row, b"q", b"k", 5, T0, T0, T0, 0, 1, b"v" * 500))
    path = write_journal([[put, encode(k.Purge(row, b"q", b"k", T0))], [encode(k.Mark(T0, 1, 1))]])
    assert "2 records would go" in run("clean", path, "--dry-run")
    (report,) = lines(run("clean", path, "--json"))
    assert report["records_dropped"] == 2 and report["bytes_after"] < report["bytes_before"]
    assert not (path / segment_name(1)).exists()


def test_trim_drops_old_history_from_an_archive_and_refuses_a_journal(
    spark: SparkSession, write_journal: Write
) -> None:
    path = write_journal([[b"\x05" + bytes(16)] * 3, [b"\x05" + bytes(16)]])
    before = str(T0 + 2000)
    (report,) = lines(run("trim", path, "--before", before, "--json"))
    assert report["records_dropped"] == 2
    (path / "append.lock").touch()
    with pytest.raises(JournalError, match="a journal lives here"):
        run("trim", path, "--before", before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sql", "select * from jobs", "/nowhere"], "no such journal"),
        (["sql", "selekt 1", GOLDEN / "all-types"], "PARSE_SYNTAX_ERROR"),
        (["sql", "select colour from jobs", GOLDEN / "all-types"], "UNRESOLVED_COLUMN"),
        (["replay", GOLDEN / "all-types", "--columns", "colour"], "[CLIENT-ERROR]"),
        (["replay", GOLDEN / "all-types", "--as-of", "yesterday"], "not an instant"),
    ],
)
def test_an_error_is_one_line_of_ours(
    spark: SparkSession, arguments: list[object], words: str
) -> None:
    with pytest.raises(JournalError) as caught:
        run(*arguments)
    text = str(caught.value)
    assert words in text
    assert "\n" not in text and "at org.apache" not in text


def test_damage_is_told_with_file_and_offset(spark: SparkSession, write_journal: Write) -> None:
    path = write_journal([[b"\x05" + bytes(16), b"\x05" + bytes(16)], [b"\x05" + bytes(16)]])
    data = bytearray((path / segment_name(1)).read_bytes())
    data[30] ^= 1
    (path / segment_name(1)).write_bytes(bytes(data))
    with pytest.raises(JournalError, match=r"offset 8: crc mismatch.*\[SERVER-ERROR\]"):
        run("sql", "select count(*) from records", path)
