"""An audit that looks closely only where there is doubt finds what one of every record finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, encode
from fastjournal.log.record import encode as record
from fastjournal.log.scan.scan import Chunk, Scan
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.model import DEFAULT_SETTINGS
from fastjournal.spark.audit import prefilter as module
from fastjournal.spark.audit.prefilter import Sift
from fastjournal.spark.audit.rules import SeenLog, ShareLog, share_findings
from fastjournal.spark.replay.fold import Share

T0 = 1_700_000_000_000_000_000
ROWS = [bytes([n]) * 16 for n in range(1, 6)]


def image(row: bytes, attempts: int = 0, due: int = T0) -> k.Put:
    return k.Put(row, b"q", row[:3], 5, due, T0, T0, 0, 1, b"v", attempts=attempts)


def commands(row: bytes, token: int) -> list[k.Command]:
    """One command of each kind that names a row."""
    return [
        k.Add(row, b"q", 1000, 0, 1, token, 0, b"x" * 200, 0, T0),
        k.Schedule(row, b"q", 1000, 5, -1, 0, 0, b"", T0, T0),
        k.Complete(row, b"done"),
        k.Fail(row, b""),
        k.Delete(row),
        k.Expire(row),
        k.Start(row),
        k.Timeout(row),
        image(row, token),
        k.Put(
            row,
            b"q",
            row[:3],
            -900,
            T0 + 10**18,
            T0,
            T0,
            0,
            1,
            b"v",
            attempts=token,
            aliases=(b"a", b"b"),
        ),
        k.Lease(row, T0, T0 + 9, token, b"w"),
        k.Renew(row, T0 + 99, token),
        k.Touch(row, T0 + 5),
        k.Tomb(row, b"q", b"key", T0),
        k.Purge(row, b"q", b"key", T0),
        k.Dead(row, 1 + token % 3, T0),
        k.Keys(row, b"other", (b"alias",), T0),
        k.Value(row, 1, b"w", T0, b""),
        k.Retry(row, 1 + token % 3, T0, 1, 300, b"note"),
        k.Redrive(row, T0, 3),
        k.Group((k.Timeout(row), k.Purge(row, b"q", b"key", T0))),
        k.Mark(T0, 1, 8, b""),
        k.Queue(b"q", replace(DEFAULT_SETTINGS, max_wait=10**9 * token)),
    ]


def written(directory: Path, payloads: list[bytes]) -> str:
    """A journal of two segments."""
    half = len(payloads) // 2
    for number, some in ((1, payloads[:half]), (2, payloads[half:])):
        data = b"".join(record(T0 + number * 10**6 + n, payload) for n, payload in enumerate(some))
        (directory / segment_name(number)).write_bytes(WORKQ.encode() + data)
    return str(directory)


def agree(directory: str, shares: int = 2) -> int:
    """Both audits of every share say the same; returns how much they found."""
    found = 0
    for n in range(shares):
        log = ShareLog(SeenLog.look(directory), Share(n, shares))
        closely = share_findings(log, sift=False)
        assert share_findings(log) == closely
        found += len(closely)
    return found


def sound_life(random: Random, row: bytes, token: int = 0) -> list[k.Command]:
    life: list[k.Command] = [image(row, token)]
    for _ in range(random.randrange(3)):
        token += 1
        life.append(k.Lease(row, T0, T0 + 9, token, b"w"))
        life += [k.Renew(row, T0 + 20, token)] * random.randrange(2)
        life.append(random.choice([k.Retry(row, 1, T0, 0, 1, b""), k.Timeout(row)]))
    return [*life, k.Lease(row, T0, T0 + 9, token + 1, b""), k.Purge(row, b"q", row[:3], T0)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 22), st.integers(0, 3)), max_size=40))
def test_any_history_gives_the_same_findings_with_and_without_the_sift(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("j")
    agree(written(path, [encode(commands(ROWS[row], t)[which]) for row, which, t in steps]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.data())
def test_a_sound_history_with_one_thing_wrong_gives_the_same_findings(
    tmp_path_factory: pytest.TempPathFactory, seed: int, draw: st.DataObject
) -> None:
    random = Random(seed)
    payloads = [encode(c) for row in ROWS for _ in range(3) for c in sound_life(random, row)]
    at = draw.draw(st.integers(0, len(payloads) - 1))
    match draw.draw(st.sampled_from(["drop", "twice", "flip", "cut", "swap", "more"])):
        case "drop":
            del payloads[at]
        case "twice":
            payloads.insert(at, payloads[at])
        case "flip":
            place = draw.draw(st.integers(0, len(payloads[at]) - 1))
            value = draw.draw(st.integers(0, 255))
            payloads[at] = payloads[at][:place] + bytes([value]) + payloads[at][place + 1 :]
        case "cut":
            payloads[at] = payloads[at][: draw.draw(st.integers(0, len(payloads[at])))]
        case "swap":
            payloads[at - 1], payloads[at] = payloads[at], payloads[at - 1]
        case _:
            payloads[at] += draw.draw(st.binary(max_size=3))
    agree(written(tmp_path_factory.mktemp("j"), payloads))


def test_of_a_sound_history_nothing_is_looked_at_closely(tmp_path: Path) -> None:
    random = Random(5)
    lives = [
        sound_life(random, n.to_bytes(16, "little") if n % 2 else ROWS[n % 5]) for n in range(3000)
    ]
    payloads = [encode(c) for life in lives for c in life if not isinstance(c, k.Timeout)]
    path = written(tmp_path, payloads)
    sift = Sift()
    held = []
    for number in (1, 2):
        data = (tmp_path / segment_name(number)).read_bytes()
        for chunk in Scan(data, rows=100):
            assert isinstance(chunk, Chunk)
            sift.feed(chunk)
            held.append(chunk)
    assert sum(len(sift.closely(chunk)) for chunk in held) == 0
    assert sift.room == module.ROOM  # what is gone is forgotten
    assert agree(path) == 0


def test_what_passes_the_sift_is_what_decode_takes() -> None:
    """Every byte of every kind, changed: no payload that `decode` refuses counts as sound."""
    random = Random(11)
    row = ROWS[0]
    for command in commands(row, 2):
        whole = encode(command)
        for at in range(17, len(whole)):
            for value in {0, 0x80, random.randrange(256)}:
                payload = whole[:at] + bytes([value]) + whole[at + 1 :]
                data = WORKQ.encode() + record(T0, encode(image(row))) + record(T0 + 1, payload)
                sift = Sift()
                (chunk,) = Scan(data)
                assert isinstance(chunk, Chunk)
                sift.feed(chunk)
                if len(sift.closely(chunk)) == 0:
                    decode(payload)
