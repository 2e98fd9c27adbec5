"""A journal stopped at every file operation of its life: open, put, lease, end, rotate, clean,
snapshot, close. Whatever the disk then holds, what was answered is kept.
"""

from __future__ import annotations

import pytest

from fastjournal import Journal
from fastjournal.journal.disk.snapshot import write_snapshot
from fastjournal.log.segment import parse_name
from fastjournal.testing import ManualClock, MemoryFiles, check_replay
from lives import HOME, WHOLE, Life, check


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_crash_at_any_file_operation_keeps_the_promises(sync: str, part: int) -> None:
    """M3F-SNAP-1, WQ-CLN-9, F30, F31: every operation, killed and after power loss."""
    crashes = 0
    for number in range(1 + part, len(WHOLE[sync].files.operations), 8):
        life = Life(sync, crash_at=number)
        assert not life.finished
        assert life.digests == WHOLE[sync].digests[: len(life.digests)]
        crashes += 1
        check(life, life.files.killed(), len(life.digests))
        for image in life.files.images(samples=3, seed=number):
            check(life, image, life.safe, go_on=number % 4 == 0)
    assert crashes > 10


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_crash_while_the_next_segment_is_missing_keeps_the_promises(sync: str, part: int) -> None:
    """Between checkpoint and MARK the newest segment is empty and is no standby: nothing is
    appended below it, where the next opening would not look.
    """
    operations = Life(sync, standby=False).files.operations
    for number in range(1 + part, len(operations), 4):
        life = Life(sync, crash_at=number, standby=False)
        assert life.digests == WHOLE[sync].digests[: len(life.digests)]
        check(life, life.files.killed(), len(life.digests))
        for image in life.files.images(samples=3, seed=number):
            check(life, image, life.safe)


SHORT_LIVED = {
    "secure": {"period": "hour", "secure": True},
    "truncate": {"period": "hour", "file_management": "truncate"},
}


@pytest.mark.parametrize("kind", SHORT_LIVED)
def test_a_crash_while_old_generations_go_keeps_the_promises(kind: str) -> None:
    """SNAP-SLT-4, SNAP-SLT-5: overwriting or cutting a file never makes it look damaged."""
    whole = Life("always", settings=SHORT_LIVED[kind])
    assert whole.finished
    names = [operation.split()[-1] for operation in whole.files.operations]
    assert any(name.endswith(".gone") for name in names) is (kind == "secure")
    for number in range(2, len(names), 3):
        life = Life("always", crash_at=number, settings=SHORT_LIVED[kind])
        check(life, life.files.killed(), len(life.digests), go_on=number % 2 == 0, whole=whole)
        for image in life.files.images(samples=2, seed=number):
            check(life, image, life.safe, go_on=False, whole=whole)
            assert not any(p.suffix == ".gone" for p in image.snapshot() if p.parent == HOME)


@pytest.mark.parametrize("seed", range(6))
def test_no_snapshot_holds_more_than_the_log_that_a_power_loss_leaves(seed: int) -> None:
    """Without syncs: work goes on between the parts, then the power goes. What is there is a state
    that was, and what is written afterwards stays.
    """
    files, clock = MemoryFiles(), ManualClock()
    files.make_directory(HOME.parent)

    def opened(disk: MemoryFiles) -> Journal:
        return Journal(HOME, files=disk, clock=clock, background=False, sync="os")

    j = opened(files)
    ids = [j.put(b"%d" % number, queue="q").id for number in range(8)]
    j.sync()
    digests = [j.digest()]
    j.upkeep.part = 1 + seed % 3
    first = parse_name(j.engine.log.rotate().name)
    assert first is not None

    def parts():  # type: ignore[no-untyped-def]
        for number, part in enumerate(j.upkeep.parts([])):
            yield part
            j.delete(ids[(number * 5 + seed) % 8])
            digests.append(j.digest())
            j.put(b"new", queue="q")
            digests.append(j.digest())

    write_snapshot(j.engine.log.stream, first, parts())
    images = list(files.images(samples=25, seed=seed))
    j.close()
    for image in images:
        with opened(image) as again:
            assert again.replayed.snapshot is not None
            assert again.digest() in digests
            written = again.put(b"after the power loss", queue="q")
        with opened(image) as again:
            assert again.job(written.id).value == b"after the power loss"
            check_replay(again)
