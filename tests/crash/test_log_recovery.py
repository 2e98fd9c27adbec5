"""A crash inside recovery and inside repair: running them again gives what one run gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fastjournal.errors import JournalError
from fastjournal.log import Position, Record, Stream
from fastjournal.log.care.check import verify
from fastjournal.log.care.recovery import recover
from fastjournal.log.care.repair import SALVAGED, cut, salvage
from fastjournal.log.segment import segment_name
from fastjournal.testing import Crash, ManualClock, MemoryFiles

HERE = Path("/journal")
RECORD = 15 + 2 + 900 + 4
SAMPLES = 25


def stream_on(files: MemoryFiles) -> Stream:
    return Stream(HERE, files=files, clock=ManualClock())


def written(*, close: bool = False) -> MemoryFiles:
    """Three segments; the last three records of the third one were not synced."""
    files = MemoryFiles()
    stream = stream_on(files)
    stream.create()
    appender = stream.open_appender(segment_size=4096)
    appender.lock()
    for number in range(12):
        appender.append(b"%02d" % number * 450)
        if number == 10:
            appender.sync()
    appender.append_many([b"%02d" % number * 450 for number in (12, 13)])
    if close:
        appender.unlock()
    return files


def disk(files: MemoryFiles) -> dict[str, bytes]:
    """Everything that counts: names and bytes, but not the side files and kept copies."""
    return {
        name: files.content(HERE / name)
        for name in files.names(HERE)
        if re.fullmatch(r"\d{9}\.log(\.rw|\.new)?", name)
    }


def open_and_close(files: MemoryFiles) -> None:
    with stream_on(files).open_appender(segment_size=4096):
        pass


def copy_of(files: MemoryFiles) -> MemoryFiles:
    return files.killed()


def torn_disks() -> list[tuple[str, MemoryFiles]]:
    """Disks that recovery has to mend: of a killed process and of machines that lost power."""
    disks = []
    path = HERE / segment_name(3)
    whole = written().killed()
    content = whole.content(path)
    for name, tail in {
        "cut inside a record": content[: -RECORD - 7],
        "zeros behind the records": content + bytes(700),
        "garbage behind the records": content + b"\x01\x02garbage" * 60,
        "all of the tail is gone but a byte": content[: 8 + 3 * RECORD + 1],
    }.items():
        files = written().killed()
        files.put(path, tail)
        files.put(HERE / (segment_name(2) + ".rw"), b"left over")
        files.put(HERE / (segment_name(4) + ".new"), b"left over")
        disks.append((name, files))
    for number, image in enumerate(written().images(samples=16, seed=5)):
        disks.append((f"power loss {number}", image))
    return disks


DISKS = torn_disks()


@pytest.mark.parametrize("files", [files for _, files in DISKS], ids=[name for name, _ in DISKS])
def test_recovery_that_is_cut_short_and_run_again_equals_one_run(files: MemoryFiles) -> None:
    """F17, design law 5; both for a process that was killed and for a machine that lost power."""
    reference = copy_of(files)
    open_and_close(reference)
    expected = disk(reference)
    open_and_close(reference)
    assert disk(reference) == expected, "twice equals once"
    number, finished = 0, False
    while not finished:
        number += 1
        crashing = copy_of(files)
        crashing.crash_at = number
        try:
            open_and_close(crashing)
            finished = True
        except Crash:
            pass
        for image in [*crashing.images(samples=SAMPLES, seed=number), crashing.killed()]:
            open_and_close(image)
            assert disk(image) == expected, (number, crashing.operations[-1])
            assert not [name for name in image.names(HERE) if name.endswith((".rw", ".new"))]
    assert number > 3


def test_what_recovery_cuts_is_kept_beside_the_segment() -> None:
    """Trust 4.2: the copy is durable before the tail is cut, at every crash point."""
    path = HERE / segment_name(3)
    files = written().killed()
    content = files.content(path)
    torn = content[: -RECORD - 7]
    good = 8 + (len(torn) - 8) // RECORD * RECORD
    number, finished = 0, False
    while not finished:
        number += 1
        crashing = copy_of(files)
        crashing.put(path, torn)
        crashing.crash_at = number
        try:
            open_and_close(crashing)
            finished = True
        except Crash:
            pass
        for image in crashing.images(samples=SAMPLES, seed=number):
            copies = [image.content(HERE / name) for name in image.names(HERE) if ".torn-" in name]
            assert image.content(path) == torn or torn[good:] in copies


def test_recovery_that_cannot_keep_a_copy_changes_nothing() -> None:
    path = HERE / segment_name(3)
    files = written().killed()
    files.put(path, files.content(path)[:-5])
    before = disk(files)
    files.capacity = sum(len(files.content(HERE / name)) for name in files.names(HERE)) + 10
    with pytest.raises(JournalError):
        open_and_close(files)
    assert disk(files) == before
    assert not [name for name in files.names(HERE) if ".torn-" in name]
    files.capacity = None
    open_and_close(files)
    assert len(list(stream_on(files).open_cursor())) == 13


def damaged() -> MemoryFiles:
    """A flipped byte in the first and the second segment, the third one cut inside a record."""
    files = written(close=True).killed()
    for number, at in ((1, 8 + RECORD + 40), (2, 8 + 2 * RECORD + 40)):
        content = bytearray(files.content(HERE / segment_name(number)))
        content[at] ^= 0x10
        files.put(HERE / segment_name(number), bytes(content))
    path = HERE / segment_name(3)
    files.put(path, files.content(path)[: -RECORD - 3])
    return files


def missing() -> MemoryFiles:
    """The newest segment is gone."""
    files = written(close=True).killed()
    files.remove(HERE / segment_name(3))
    files.sync_directory(HERE)
    return files


def payloads(files: MemoryFiles) -> list[bytes]:
    return [record.payload for record in stream_on(files).open_cursor()]


ALL = [b"%02d" % number * 450 for number in range(14)]
# Five records fill a segment of 4096: the second of segment 1 and the third of segment 2 are hit.
LEFT_BY_SALVAGE = [p for i, p in enumerate(ALL) if i not in (1, 7, 12, 13)]


@pytest.mark.parametrize(
    ("make", "tool", "expected"),
    [
        (damaged, salvage, LEFT_BY_SALVAGE),
        (missing, salvage, ALL[:10]),
        (
            lambda: written(close=True).killed(),
            lambda s: cut(s, Position(1, 8 + 3 * RECORD)),
            ALL[:3],
        ),
        (lambda: written(close=True).killed(), lambda s: cut(s, Position(2, 8)), ALL[:5]),
        (missing, lambda s: cut(s, Position(2, 8 + 5 * RECORD)), ALL[:10]),
    ],
    ids=[
        "salvage",
        "salvage of a missing segment",
        "cut",
        "cut at a header",
        "cut of a missing one",
    ],
)
def test_a_repair_that_is_cut_short_can_be_run_again(
    make: Callable[[], MemoryFiles], tool: Callable[[Stream], object], expected: list[bytes]
) -> None:
    """F29: at no crash point is a record lost that the repair would keep."""
    number, finished = 0, False
    while not finished:
        number += 1
        files = make()
        files.crash_at = number
        try:
            tool(stream_on(files))
            finished = True
        except Crash:
            pass
        for image in [*files.images(samples=SAMPLES, seed=number), files.killed()]:
            assert_nothing_kept_is_lost(copy_of(image), expected)
            tool(stream_on(image))
            open_and_close(image)
            assert payloads(image) == expected, (number, files.operations[-1])
            assert not [fault for check in verify(stream_on(image)) for fault in check.faults]
            assert image.exists(HERE / SALVAGED)


def assert_nothing_kept_is_lost(files: MemoryFiles, expected: list[bytes]) -> None:
    """Refused, or a log that holds all of the expected records and no hole among the others."""
    try:
        recover(stream_on(files))
        found = payloads(files)
    except JournalError:
        found = [
            payload
            for check in verify(stream_on(files))
            if files.exists(check.path)
            for payload in ranges(files, check.path, check.good)
        ]
    assert [payload for payload in found if payload in expected] == expected
    if expected == ALL[: len(expected)]:
        assert found == ALL[: len(found)], "a cut leaves no hole"


def ranges(files: MemoryFiles, path: Path, good: list[tuple[int, int]]) -> list[bytes]:
    content = files.content(path)
    return [content[at + 17 : at + 917] for start, end in good for at in range(start, end, RECORD)]


def test_repair_keeps_a_whole_copy_of_each_file_it_changes() -> None:
    files = damaged()
    before = disk(files)
    dropped = salvage(stream_on(files))
    assert [(item.path.name, item.offset, item.length) for item in dropped] == [
        (segment_name(1), 8 + RECORD, RECORD),
        (segment_name(2), 8 + 2 * RECORD, RECORD),
        (segment_name(3), 8 + 2 * RECORD, RECORD - 3),
    ]
    for item in dropped:
        assert item.copy is not None
        assert files.content(item.copy) == before[item.path.name]
    lines = files.content(HERE / SALVAGED).decode().splitlines()
    assert [line.split()[1] for line in lines] == [item.path.name for item in dropped]


def test_a_record_type_is_what_a_cursor_returns() -> None:
    """The size of a record used above is that of the codec."""
    records: list[Record] = list(stream_on(written()).open_cursor())
    assert records[1].offset - records[0].offset == RECORD
