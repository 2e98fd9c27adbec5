"""A manifest that is looked at again and again says what one says that is read anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.errors import SegmentError
from fastjournal.log.files import DISK
from fastjournal.log.manifest import MANIFEST, Digest, FollowedManifest, ManifestFile, read
from fastjournal.log.record import encode
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream

T0 = 1_700_000_000_000_000_000


def put_segment(directory: Path, number: int) -> None:
    record = encode(T0 + number, b"\x05" + bytes(16))
    (directory / segment_name(number)).write_bytes(WORKQ.encode() + record)


def test_it_follows_lines_that_are_added_and_files_that_are_made_anew(tmp_path: Path) -> None:
    followed = FollowedManifest(DISK, tmp_path)
    assert followed.read() is None
    for turn in range(3):  # each time another writer, who makes a new file
        manifest = ManifestFile(Stream(tmp_path, WORKQ))
        for n in range(1, 200):
            number = 200 * turn + n
            put_segment(tmp_path, number)
            manifest.seal(number, T0 + number)
            if n % 50 == 0:
                manifest.change(number - 1, Digest(8, 0, 1), dropped_to=T0 + number - 1)
                (tmp_path / segment_name(number - 1)).write_bytes(WORKQ.encode())
                assert followed.read() == read(DISK, tmp_path)
                manifest.settle()
            assert followed.read() == read(DISK, tmp_path)
        manifest.cover(200 * turn + 50)
        assert followed.read() == read(DISK, tmp_path)


def test_half_a_line_waits_for_its_other_half_and_damage_is_told(tmp_path: Path) -> None:
    manifest = ManifestFile(Stream(tmp_path, WORKQ))
    for number in (1, 2):
        put_segment(tmp_path, number)
        manifest.seal(number, T0 + number)
    whole = (tmp_path / MANIFEST).read_bytes()
    (tmp_path / MANIFEST).write_bytes(whole[:-5])
    followed = FollowedManifest(DISK, tmp_path)
    found = followed.read()
    assert found is not None and list(found.sealed) == [1]
    (tmp_path / MANIFEST).write_bytes(whole)
    found = followed.read()
    assert found is not None and list(found.sealed) == [1, 2]
    (tmp_path / MANIFEST).write_bytes(whole + b"nonsense\n" + whole.splitlines(keepends=True)[-1])
    with pytest.raises(SegmentError, match="damaged"):
        followed.read()
    (tmp_path / MANIFEST).unlink()
    assert followed.read() is None
