"""The log dealt out to shares of its rows: every byte of it is read once, however many shares.

Rules:

1. Tasks read the log, each some segments, and lay what concerns a share together, whole records
   with TIME and CRC: a block a share, not a row a record. Blocks travel by Spark's own shuffle,
   which holds little in memory and makes again what an executor took with it.
2. A record goes to the share of its row, a GROUP to those of its members, the settings of a queue
   to every share; what else names no row, or is no command, goes to the first.
3. Who works on a share finds its blocks as segments under their own numbers, in order, in a file
   that is mapped: in memory are its rows and not its log. The file goes with the work.
4. Where only the state is asked for, what a later record of the same task outweighs stays behind.
5. Where few tasks work at a time on a log on a disk there is no shuffle: it costs more than that
   each walks the log (`walkers`).
6. A task that walks deals its part of the rows out to itself: what concerns it is laid into a file
   a share, and share by share is worked on. For one share alone the log is there as it is.
7. A snapshot before the log is dealt out with it: an image to the share of its row, what names no
   row to all.
8. What a share finds damaged is told by its place in the log.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

from fastjournal.errors import CorruptRecord, SegmentError, Unavailable, VersionMismatch
from fastjournal.journal.language.commands import QUEUE
from fastjournal.log.record import TIME_SIZE, decode_time
from fastjournal.log.scan.scan import DROPMALFORMED, FAILFAST, Buffer, Chunk, Scan
from fastjournal.log.segment import WORKQ
from fastjournal.spark.decode.groups import commands_of
from fastjournal.spark.errors import coded_errors
from fastjournal.spark.kinds import SINGLE, among
from fastjournal.spark.locations import is_remote
from fastjournal.spark.replay.fold import SegmentReader, Settled, Share, route, scan_mode
from fastjournal.spark.replay.snapshots import scan_snapshot
from fastjournal.spark.storage.segments import Piece, load, pack, tear_rule
from fastjournal.spark.tasks import Carrier, carrier_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Array = np.ndarray[Any, Any]

__all__ = [
    "Deal",
    "ShareWork",
    "blocks_of",
    "deal_here",
    "dealt",
    "held_shares",
    "places_of",
    "run_shares",
    "walkers",
]

ShareWork: TypeAlias = Callable[[Share, list[Piece]], Iterable[Any]]
"""What is done with a share, given its part of the log; picklable."""

COLUMNS = "share int, _segment bigint, _offset bigint, records binary"
_WALKS = 8  # tasks that read the same log, each all of it
_PACK = 256 << 20
_SPAN = 64 << 20
_ROWS = 1 << 18
_CRC = 4


@dataclass(frozen=True, slots=True)
class Deal:
    """How a log is dealt out."""

    shares: int
    after: int | None = None
    upto: int | None = None
    mode: str = FAILFAST
    state_only: bool = False
    """Whether what a later record outweighs may stay behind; not together with `after`."""
    tasks: int = 0
    """How many work at a time; 0: one a share."""
    task: Share = Share()  # noqa: RUF009 - frozen
    """Which of the tasks that walk is asked: it deals out every `count`th share."""

    @property
    def mine(self) -> range:
        """The shares that are dealt out."""
        return range(self.task.index, self.shares, self.task.count)

    @property
    def reader(self) -> Share:
        """The rows among which those of its shares are: all, where shares do not go up in tasks."""
        return self.task if self.shares % self.task.count == 0 else Share()


def walkers(shares: int, pieces: Sequence[Piece], tasks: int) -> int:
    """How many tasks walk the log for these shares (rule 5); 0: it goes through a shuffle.

    `tasks`: how many work at a time; 0: one a share.
    """
    if shares > 1 and any(is_remote(piece.path) for piece in pieces):
        return 0  # each would fetch all of it
    count = min(tasks or shares, shares)
    return count if count <= _WALKS else 0


def run_shares(
    spark: SparkSession | Carrier, pieces: Sequence[Piece], deal: Deal, work: ShareWork
) -> list[Any]:
    """The work on every share; all answers, in the order of the shares.

    Each is to be bounded by `after` and `upto` by itself: who walks the log may see all of it.
    """
    if callable(spark):
        shares = [Share(n, deal.shares) for n in range(deal.shares)]
        return spark([partial(work, share, list(pieces)) for share in shares])

    def answered(share: Share, mine: list[Piece]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        answer = pickle.dumps(list(work(share, mine)))
        yield pa.RecordBatch.from_arrays(
            [pa.array([share.index], pa.int64()), pa.array([answer])], names=["n", "answer"]
        )

    frame = dealt(spark, pieces, deal, answered, "n bigint, answer binary")
    rows = sorted(frame.collect(), key=lambda row: row["n"])
    if [row["n"] for row in rows] != list(range(deal.shares)):
        raise Unavailable(f"{deal.shares} shares were dealt out, {len(rows)} came back")
    # Our own tasks made these bytes a moment ago.
    return [one for row in rows for one in pickle.loads(bytes(row["answer"]))]  # noqa: S301


def dealt(
    spark: SparkSession, pieces: Sequence[Piece], deal: Deal, work: ShareWork, columns: str
) -> DataFrame:
    """The batches that the work makes of every share, also of one without a record.

    Each is to be bounded as those of `run_shares`.
    """
    tasks = walkers(deal.shares, pieces, deal.tasks)
    if not tasks:
        return _shuffled(spark, pieces, deal, work, columns)

    def walked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers_in(batches):
            with coded_errors():
                for share, mine in deal_here(pieces, replace(deal, task=Share(number, tasks))):
                    with _damage_by_place(mine, pieces):
                        yield from work(share, mine)

    found: DataFrame = spark.range(0, tasks, 1, tasks).mapInArrow(walked, columns)
    return found


def _shuffled(
    spark: SparkSession, pieces: Sequence[Piece], deal: Deal, work: ShareWork, columns: str
) -> DataFrame:
    packs = pack(pieces, _PACK, carrier_of(spark)[1])

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers_in(batches):
            with coded_errors():
                yield from blocks_of(packs[number], deal)

    blocks = spark.range(0, len(packs), 1, max(len(packs), 1)).mapInArrow(read, COLUMNS)
    every = spark.range(deal.shares).selectExpr(
        "cast(id as int) share", "0L _segment", "0L _offset", "x'' records"
    )
    both = blocks.union(every)
    # Before 4.1 two shares may come to one task, one behind the other.
    parted = getattr(both, "repartitionById", both.repartition)(deal.shares, both["share"])
    blocks = parted.sortWithinPartitions("share", "_segment", "_offset")

    def worked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for share, mine in held_shares(batches, deal.shares, pieces):
            with coded_errors(), _damage_by_place(mine, pieces):
                yield from work(share, mine)

    found: DataFrame = blocks.mapInArrow(worked, columns)
    return found


def _numbers_in(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def deal_here(pieces: Sequence[Piece], deal: Deal) -> Iterator[tuple[Share, list[Piece]]]:
    """The shares of one task and their parts of the log, laid together by itself (rule 6).

    What is said of one is there until the next one is asked for.
    """
    if len(deal.mine) == 1 and not any(is_remote(piece.path) for piece in pieces):
        yield Share(deal.mine[0], deal.shares), list(pieces)
        return
    with _work_folder() as folder:
        held = {n: _Held(folder / str(n), n) for n in deal.mine}
        for share, number, block in _blocks(blocks_of(pieces, deal)):
            held[share].add(number, block)
        log = {piece.number: replace(piece, data=None) for piece in pieces}
        for share, one in held.items():
            yield Share(share, deal.shares), one.pieces(log)
            one.remove()


def blocks_of(pieces: Sequence[Piece], deal: Deal) -> Iterator[pa.RecordBatch]:
    """The records of consecutive segments, those of each share laid together."""
    settled = Settled(removals=True) if deal.state_only else None
    for piece in pieces if settled is None else reversed(pieces):
        if piece.number < 0:
            found = _images(piece, deal)
        elif not (data := _opened(piece, deal)):
            continue
        elif settled is None:
            found = _all_of(piece, data, deal)
        else:
            found = _mattering(piece, data, deal, settled)
        for one in found:
            yield _laid_together(piece.number, one, deal)


def _opened(piece: Piece, deal: Deal) -> Buffer:
    """The bytes of a segment; none where damage is left out and it cannot be opened."""
    try:
        return load(piece)
    except (SegmentError, VersionMismatch):
        if deal.mode == FAILFAST:
            raise
        return b""


@dataclass(slots=True)
class _Found:
    """Records to be dealt out, and pairs: the place of one among them, and its share."""

    data: Buffer
    base: int
    """Where its offsets count from."""
    offsets: Array
    ends: Array
    records: Array
    """Ascending: one of several commands is there as often."""
    shares: Array

    @classmethod
    def of(
        cls, data: Buffer, base: int, bounds: tuple[Array, Array], pairs: tuple[Array, Array],
        task: Share,
    ) -> _Found:  # fmt: skip
        """The pairs that are of the rows of a task, in order."""
        import numpy as np

        records, shares = pairs
        if task.count > 1:
            wanted = np.flatnonzero(shares % task.count == task.index)
            records, shares = records[wanted], shares[wanted]
        order = np.argsort(records, kind="stable")  # hardly anything to do: nearly all are
        return cls(data, base, *bounds, records[order], shares[order])


def _images(piece: Piece, deal: Deal) -> Iterator[_Found]:
    import numpy as np

    for chunk, base in scan_snapshot(piece):
        ids = chunk.ids().view("u8")
        shares = route(ids[:, 0], ids[:, 1], deal.shares).astype(np.int64)
        pairs = _to_all(np.arange(len(chunk)), shares, ~among(SINGLE)[chunk.kinds], deal.shares)
        bounds = chunk.offsets, chunk.starts + chunk.sizes + _CRC
        yield _Found.of(chunk.data, base, bounds, pairs, deal.task)


def _all_of(piece: Piece, data: Buffer, deal: Deal) -> Iterator[_Found]:
    import numpy as np

    scan = Scan(
        data, path=piece.path, torn=tear_rule(piece), mode=scan_mode(deal.mode),
        after=deal.after, upto=deal.upto, rows=_ROWS,
    )  # fmt: skip
    for chunk in scan:
        assert isinstance(chunk, Chunk)
        commands = commands_of(chunk, piece.path, strict=deal.mode == FAILFAST)
        ids = commands.chunk.ids().view("u8")
        which, shares = _pairs(
            commands.record, commands.chunk.kinds, ids[:, 0], ids[:, 1], deal.shares
        )
        none = np.ones(len(chunk), dtype=bool)
        none[commands.record] = False
        others = np.flatnonzero(none)
        pairs = np.append(which, others), np.append(shares, 0 * others)
        bounds = chunk.offsets, chunk.starts + chunk.sizes + _CRC
        yield _Found.of(data, 0, bounds, pairs, deal.task)


def _mattering(piece: Piece, data: Buffer, deal: Deal, settled: Settled) -> Iterator[_Found]:
    import numpy as np

    found = SegmentReader(deal.reader, deal.mode).matter(piece, data, deal.upto, settled)
    # A member of a group is an entry of its own: its record is there as often.
    fresh = np.diff(found.offsets, prepend=-1) > 0
    offsets, ends = found.offsets[fresh], found.ends[fresh] + _CRC
    pairs = _pairs(np.cumsum(fresh) - 1, found.kinds, found.lows, found.highs, deal.shares)
    whole = _Found.of(data, 0, (offsets, ends), pairs, deal.task)
    bounds = np.searchsorted(offsets, np.arange(0, len(data) + _SPAN, _SPAN))
    for begin, end in pairwise(bounds.tolist()):
        if begin < end:
            some = slice(*np.searchsorted(whole.records, (begin, end)))
            yield _Found(
                data, 0, offsets[begin:end], ends[begin:end],
                whole.records[some] - begin, whole.shares[some],
            )  # fmt: skip


def _pairs(
    record: Array, kinds: Array, lows: Array, highs: Array, shares: int
) -> tuple[Array, Array]:
    """Which record goes to which share, from the commands in them: rule 2."""
    import numpy as np

    share = np.where(among(SINGLE)[kinds], route(lows, highs, shares), 0).astype(np.int64)
    return _to_all(record, share, kinds == QUEUE, shares)


def _to_all(record: Array, share: Array, chosen: Array, shares: int) -> tuple[Array, Array]:
    """The same pairs, with those chosen once for every share."""
    import numpy as np

    all_of_them = np.unique(record[chosen])
    record = np.concatenate([record[~chosen], np.repeat(all_of_them, shares)])
    share = np.concatenate([share[~chosen], np.tile(np.arange(shares), len(all_of_them))])
    return record, share


def _laid_together(number: int, found: _Found, deal: Deal) -> pa.RecordBatch:
    """The block of each share that has a record."""
    import numpy as np
    import pyarrow as pa

    from fastjournal.spark.replay.deal_kernel import lay, measure

    columns = (found.offsets, found.ends, found.records, found.shares)
    sizes, firsts = np.zeros(deal.shares, np.int64), np.full(deal.shares, -1)
    fresh = np.empty(len(found.records), dtype=bool)
    measure(*columns, sizes, firsts, fresh)
    places = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    laid = np.empty(places[-1], dtype=np.uint8)
    view = np.frombuffer(found.data, dtype=np.uint8)
    lay(view, *columns, fresh, places[:-1].copy(), laid)
    some = np.flatnonzero(sizes)
    offsets = np.append(places[some], places[-1]).astype(np.int32)
    blocks = pa.Array.from_buffers(
        pa.binary(), len(some), [None, pa.py_buffer(offsets), pa.py_buffer(laid)]
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.array(some.astype(np.int32)),
            pa.array(np.full(len(some), number)),
            pa.array(firsts[some] + found.base),
            blocks,
        ],
        names=["share", "_segment", "_offset", "records"],
    )


@contextmanager
def _work_folder() -> Iterator[Path]:
    # Where Spark spills too: it may be larger than the memory in which some systems keep /tmp.
    place = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    with TemporaryDirectory(prefix="fastjournal-", dir=place or None) as folder:
        yield Path(folder)


def held_shares(
    batches: Iterable[pa.RecordBatch], count: int, pieces: Sequence[Piece]
) -> Iterator[tuple[Share, list[Piece]]]:
    """Each share of a task with its part of the log, which is there until the next one is asked."""
    by_number = {piece.number: piece for piece in pieces}
    with _work_folder() as folder:
        held: _Held | None = None
        for share, number, block in _blocks(batches):
            if held is not None and held.share != share:
                yield Share(held.share, count), held.pieces(by_number)
                held.remove()
                held = None
            held = held or _Held(folder / str(share), share)
            held.add(number, block)
        if held is not None:
            yield Share(held.share, count), held.pieces(by_number)


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, memoryview]]:
    for batch in batches:
        shares, numbers = (batch.column(n).to_pylist() for n in (0, 1))
        blocks = batch.column(3)
        for n, (share, number) in enumerate(zip(shares, numbers, strict=True)):
            yield share, number, memoryview(blocks[n].as_buffer())


class _Held:
    """The blocks of one share as segments, one behind the other in a file.

    The file is open only while it is written to: a task may keep more of them than it may open.
    """

    def __init__(self, path: Path, share: int) -> None:
        self.share = share
        self._path = path
        self._path.touch()
        self._begins: dict[int, int] = {}

    def add(self, number: int, block: memoryview) -> None:
        """Take a block; those of one segment come one behind the other."""
        if not len(block):
            return
        with self._path.open("ab") as file:
            if number not in self._begins:
                self._begins[number] = file.tell()
                file.write(WORKQ.encode())
            file.write(block)

    def pieces(self, log: dict[int, Piece]) -> list[Piece]:
        """What there is, in the order of the log."""
        bounds = pairwise([*self._begins.values(), self._path.stat().st_size])
        found = [
            replace(log[number], size=end - at, newest=False, held=(str(self._path), at, end))
            for number, (at, end) in zip(self._begins, bounds, strict=True)
        ]
        return sorted(found, key=lambda piece: piece.number)

    def remove(self) -> None:
        """Let it go."""
        self._path.unlink()


@contextmanager
def _damage_by_place(mine: Sequence[Piece], log: Sequence[Piece]) -> Iterator[None]:
    """Rule 8: the place in the log of a record that was found damaged in a share."""
    try:
        yield
    except CorruptRecord as fault:
        for piece in mine:
            if Path(piece.path) == fault.path:
                (at,) = places_of([(piece.number, fault.offset)], mine, log).values()
                raise CorruptRecord(fault.path, at, fault.fault) from fault
        raise


def places_of(
    found: Iterable[tuple[int, int]], mine: Sequence[Piece], log: Sequence[Piece]
) -> dict[tuple[int, int], int]:
    """Where records of a share stand in the log: segment and offset there to the offset here.

    Where the log is there as it is, they stand where they are. Records of the same bytes have the
    same share, and are told apart by their order; a TIME alone may stand there twice.
    """
    held, whole = ({piece.number: piece for piece in some} for some in (mine, log))
    offsets: dict[int, list[int]] = {}
    for number, offset in found:
        offsets.setdefault(number, []).append(offset)
    places: dict[tuple[int, int], int] = {}
    for number, some in offsets.items():
        here, there = held[number], whole[number]
        if here == there:
            places |= {(number, at): at for at in some}
            continue
        data = load(here)
        times = [decode_time(bytes(data[at : at + TIME_SIZE])) for at in some]
        stand = _places_by_bytes(there, times)
        for record, copies in _places_by_bytes(here, times).items():
            places |= zip([(number, at) for at in copies], stand[record], strict=True)
    return places


def _places_by_bytes(piece: Piece, times: Sequence[int]) -> dict[bytes, list[int]]:
    """The records of these TIMEs, and where each of them stands, in order."""
    import numpy as np

    data = load(piece)
    found: dict[bytes, list[int]] = {}
    # The records are whole: whatever is damaged beside them does not matter here.
    for chunk in Scan(data, torn=tear_rule(piece), mode=DROPMALFORMED):
        assert isinstance(chunk, Chunk)
        ends = chunk.starts + chunk.sizes + _CRC
        for n in np.flatnonzero(np.isin(chunk.times, times)).tolist():
            at = int(chunk.offsets[n])
            found.setdefault(bytes(data[at : ends[n]]), []).append(at)
    return found
