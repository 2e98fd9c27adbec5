"""`fastjournal log`: what it prints, what it changes, how it ends."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from command_line import Command
from fastjournal import Journal
from fastjournal.errors import SegmentError
from fastjournal.log.segment import Header
from fastjournal.log.stream import Stream

WORKQ = Path(__file__).parents[2] / "golden" / "workq"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> Stream:
    """Three segments, ten records each."""
    stream = Stream(tmp_path / "log")
    stream.create()
    with stream.open_appender() as appender:
        for number in range(30):
            if number and number % 10 == 0:
                appender.rotate()
            appender.append(b"record %02d" % number)
    return stream


def flip(stream: Stream, segment: int, offset: int) -> None:
    path = stream.segment_path(segment)
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def tear(stream: Stream) -> None:
    with stream.segment_path(stream.segments()[-1]).open("ab") as file:
        file.write(b"\x01\x00\x00")


def content(stream: Stream) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(stream.path.iterdir())}


def test_dump_prints_every_record_in_order(run: Command, log: Stream) -> None:
    outcome = run("log", "dump", log.path, "--json")
    assert outcome.code == 0
    assert [bytes.fromhex(line["payload_hex"]) for line in outcome.lines] == [
        b"record %02d" % number for number in range(30)
    ]
    assert [line["segment"] for line in outcome.lines] == [1] * 10 + [2] * 10 + [3] * 10
    assert all(
        a["time"] < b["time"] for a, b in zip(outcome.lines, outcome.lines[1:], strict=False)
    )


def test_dump_for_people_shows_payloads_as_text(run: Command, log: Stream) -> None:
    outcome = run("log", "dump", log.path, "--limit", "2")
    head, *rows = outcome.out.splitlines()
    assert head.split() == ["TIME", "SEGMENT", "OFFSET", "SIZE", "COMMAND"]
    assert [row.split(maxsplit=4)[1:] for row in rows] == [
        ["1", "8", "9", "record 00"],
        ["1", "37", "9", "record 01"],
    ]


def test_dump_takes_since_inclusive_and_until_exclusive(run: Command, log: Stream) -> None:
    times = [record.time for record in log.open_cursor()]
    since, until = str(times[5]), str(times[8])
    outcome = run("log", "dump", log.path, "--json", "--since", since, "--until", until)
    assert [line["time"] for line in outcome.lines] == times[5:8]


def test_dump_stops_at_damage_with_file_and_offset(run: Command, log: Stream) -> None:
    flip(log, 2, 40)
    outcome = run("log", "dump", log.path, "--json")
    assert outcome.code == 3
    assert len(outcome.lines) == 11
    assert outcome.err.startswith(f"error: {log.segment_path(2)}: offset 37: ")
    assert outcome.err.count("\n") == 1


def test_stat_counts_segments_records_and_the_dead_tail(run: Command, log: Stream) -> None:
    tear(log)
    outcome = run("log", "stat", log.path, "--json")
    assert outcome.code == 0
    *segments, total = outcome.lines
    assert [line["records"] for line in segments] == [10, 10, 10]
    assert [line["dead_tail"] for line in segments] == [0, 0, 3]
    assert [line["size"] for line in segments] == [
        log.segment_path(number).stat().st_size for number in (1, 2, 3)
    ]
    assert total["records"] == 30
    assert total["magic"] == "cptn"
    assert total["dead_tail"] == 3


def test_stat_for_people_is_a_table_with_a_sum(run: Command, log: Stream) -> None:
    outcome = run("log", "stat", log.path)
    assert "000000002.log" in outcome.out
    assert "3 segments" in outcome.out
    assert "30 records" in outcome.out


@pytest.mark.parametrize("case", sorted(path.name for path in WORKQ.iterdir() if path.is_dir()))
def test_directories_of_workq_are_read_without_being_told_the_magic(
    run: Command, case: str
) -> None:
    outcome = run("log", "stat", WORKQ / case, "--json")
    facts = json.loads((WORKQ / case / "expected.json").read_text())
    *segments, total = outcome.lines
    assert total["magic"] == "wqwq"
    assert {Path(line["file"]).name: line["records"] for line in segments} == {
        segment["name"]: segment["records"] for segment in facts["segments"]
    }
    assert run("log", "verify", WORKQ / case).code == 0


def test_verify_ends_with_0_for_a_clean_log(run: Command, log: Stream) -> None:
    outcome = run("log", "verify", log.path, "--json")
    assert outcome.code == 0
    assert outcome.lines[-1]["verdict"] == "clean"
    assert outcome.lines[-1]["records"] == 30


def test_verify_ends_with_1_for_a_torn_tail_and_changes_nothing(run: Command, log: Stream) -> None:
    whole = log.segment_path(3).stat().st_size
    tear(log)
    before = content(log)
    outcome = run("log", "verify", log.path, "--json")
    assert outcome.code == 1
    fault, verdict = outcome.lines
    assert fault["file"] == str(log.segment_path(3))
    assert (fault["offset"], fault["length"], fault["torn"]) == (whole, 3, True)
    assert verdict["verdict"] == "torn"
    assert content(log) == before


def test_verify_ends_with_3_for_damage_and_names_each_fault(run: Command, log: Stream) -> None:
    flip(log, 1, 100)
    flip(log, 2, 40)
    tear(log)
    outcome = run("log", "verify", log.path)
    assert outcome.code == 3
    assert f"{log.segment_path(1)}: offset 95: DAMAGE: " in outcome.out
    assert f"{log.segment_path(2)}: offset 37: DAMAGE: " in outcome.out
    assert f"{log.segment_path(3)}: offset " in outcome.out
    assert "2 faults" in outcome.out


@pytest.mark.parametrize(
    "gone", [["*.checkpoint"], ["*.snapshot"], ["*.checkpoint", "*.snapshot"], ["000000002.log"]]
)
def test_verify_and_repair_judge_the_whole_directory_of_a_journal(
    run: Command, tmp_path: Path, gone: list[str]
) -> None:
    """F24: what keeps a journal from starting is named, and what is left can be had."""
    home = tmp_path / "jobs"
    with Journal(home, background=False) as journal:
        journal.put_many([{"payload": b"%d" % n, "queue": "below"} for n in range(100)])
        journal.snapshot()
        journal.put_many([{"payload": b"%d" % n, "queue": "above"} for n in range(30)])
        journal.rotate()
        journal.put(b"last", queue="above")
    assert run("log", "verify", home).code == 0
    paths = [path for pattern in gone for path in home.glob(pattern)]
    for path in paths:
        path.unlink()
    told = run("log", "verify", home)
    assert told.code == 3
    assert f"{paths[0].stem}." in told.out
    with pytest.raises(SegmentError, match="missing"):
        Journal(home, background=False)
    mended = run("log", "repair", home, "--salvage", "--yes")
    assert mended.code == 0
    assert "nothing to drop" not in mended.out
    assert run("log", "verify", home).code == 0
    with Journal(home, background=False) as journal:
        depths = {queue.name_bytes: queue.ready for queue in journal.queues()}
    assert depths.get(b"below", 0) == (0 if "*.snapshot" in gone else 100)
    assert depths[b"above"] == (1 if gone == ["000000002.log"] else 31)


def test_verify_of_what_is_no_log_is_one_line_and_2(run: Command, tmp_path: Path) -> None:
    outcome = run("log", "verify", tmp_path / "nowhere")
    assert outcome.code == 2
    assert outcome.err == f"error: {tmp_path / 'nowhere'}: no such directory\n"


def test_another_magic_is_refused(run: Command, log: Stream) -> None:
    outcome = run("log", "verify", log.path, "--magic", "wqwq", "--version", "1", "--json")
    assert outcome.code == 3
    assert "magic b'cptn', expected b'wqwq'" in outcome.lines[0]["reason"]


def test_a_magic_may_be_given_in_hex(run: Command, tmp_path: Path) -> None:
    stream = Stream(tmp_path / "log", Header(b"\xff\x00ab", 7))
    stream.create()
    with stream.open_appender() as appender:
        appender.append(b"x")
    told = run("log", "verify", stream.path, "--magic", "0xff006162", "--version", "7")
    assert told.code == 0
    assert run("log", "stat", stream.path, "--json").lines[-1]["magic"] == "0xff006162"


def test_repair_does_nothing_until_told_what(run: Command, log: Stream) -> None:
    flip(log, 2, 40)
    before = content(log)
    outcome = run("log", "repair", log.path, "--yes")
    assert outcome.code == 2
    assert content(log) == before


def test_repair_asks_first_and_stops_at_no(
    run: Command, log: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(log, 2, 40)
    before = content(log)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    outcome = run("log", "repair", log.path, "--salvage")
    assert outcome.code == 1
    assert content(log) == before


def test_salvage_keeps_every_whole_record_and_a_copy(run: Command, log: Stream) -> None:
    flip(log, 2, 40)
    damaged = log.segment_path(2).read_bytes()
    outcome = run("log", "repair", log.path, "--salvage", "--yes", "--json")
    assert outcome.code == 0
    (item,) = outcome.lines
    assert (item["file"], item["offset"]) == (str(log.segment_path(2)), 37)
    assert Path(item["copy"]).read_bytes() == damaged
    assert [record.payload for record in log.open_cursor()] == [
        b"record %02d" % number for number in range(30) if number != 11
    ]
    assert run("log", "verify", log.path).code == 0
    assert run("log", "stat", log.path, "--json").lines[-1]["salvaged"] is True


def test_cut_drops_what_lies_behind_and_lists_it(run: Command, log: Stream) -> None:
    outcome = run("log", "repair", log.path, "--cut", "2:37", "--yes", "--json")
    assert outcome.code == 0
    assert [(Path(item["file"]).name, item["records"]) for item in outcome.lines] == [
        ("000000002.log", 9),
        ("000000003.log", 10),
    ]
    assert sum(1 for _ in log.open_cursor()) == 11


def test_cut_inside_a_record_is_refused(run: Command, log: Stream) -> None:
    before = content(log)
    outcome = run("log", "repair", log.path, "--cut", "2:38", "--yes")
    assert outcome.code == 2
    assert "inside a record" in outcome.err
    assert content(log).items() >= before.items()


@pytest.mark.parametrize("place", ["2", "2:", ":8", "a:b", "2:-1"])
def test_a_malformed_place_is_refused(run: Command, log: Stream, place: str) -> None:
    outcome = run("log", "repair", log.path, "--cut", place, "--yes")
    assert outcome.code == 2
    assert "SEGMENT:OFFSET" in outcome.err


def test_repair_leaves_a_log_in_use_alone(run: Command, log: Stream) -> None:
    with log.open_appender():
        outcome = run("log", "repair", log.path, "--salvage", "--yes")
    assert outcome.code == 2
    assert "is locked" in outcome.err


@pytest.mark.parametrize(
    "command", [[], ["log"], ["log", "dump"], ["log", "stat"], ["log", "verify"], ["log", "repair"]]
)
def test_every_command_explains_itself(run: Command, command: list[str]) -> None:
    outcome = run(*command, "--help")
    assert outcome.code == 0
    assert "Usage: fastjournal" in outcome.out
    assert len(command) < 2 or "Examples" in outcome.out
