"""How the journal is doing: throughput, backlog, waits, trouble, hot keys, from its log alone.

    from fastjournal.spark.report.write import report

    found = report(spark, "./jobs")
    Path("report.html").write_text(found.html())

Rules:

1. One pass over the log, dealt out by rows to tasks; only tallies come back to the driver.
2. Figures and page are made from the same numbers: `json()` holds everything `html()` shows.
3. What cleaning would free is asked of the cleaner itself, where its files may be written.
4. The log is pinned meanwhile: no lock is held, and none is taken alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastjournal.errors import LockTimeout, NotFound
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.lake.history import History
from fastjournal.spark.lifecycle.seed import rows_before
from fastjournal.spark.lifecycle.walk import Fold, parts_of
from fastjournal.spark.locations import is_remote, place
from fastjournal.spark.maintain.clean import clean_journal
from fastjournal.spark.replay.dealt import Deal, run_shares
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.replay.snapshots import lives_base, log_of
from fastjournal.spark.report.figures import figures
from fastjournal.spark.report.page import page
from fastjournal.spark.report.tally import Tally, Window
from fastjournal.spark.storage.segments import SHARE_BYTES, Piece, load, share_count, while_pinned
from fastjournal.spark.tasks import Carrier, carrier_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Report", "report"]

_SECOND = 1_000_000_000
_LOCK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a journal; see `report_figures` for what they mean."""

    figures: dict[str, Any]

    def json(self) -> str:
        """Everything, as JSON."""
        return json.dumps(self.figures, indent=1, ensure_ascii=False) + "\n"

    def html(self) -> str:
        """One page that opens offline."""
        return page(self.figures)


def report(
    spark: SparkSession | Carrier,
    path: str | Path,
    *,
    archive: str | Path | None = None,
    since: int | None = None,
    until: int | None = None,
    target: float = 60.0,
    targets: Mapping[str, float] | None = None,
    shares: int = 0,
    cleaning: bool = True,
) -> Report:
    """Look at a journal, or at a copy of sealed segments by its URI.

    `since` and `until` in ns since 1970. `target`: seconds a job may wait once it could be handed
    out; `targets` by queue. `cleaning=False` does not ask what cleaning would free. `spark`: a
    session, or a function that carries tasks out.
    """
    run, cores = carrier_of(spark)
    journal = place(path)
    goal = round(target * _SECOND)
    goals = {name: round(seconds * _SECOND) for name, seconds in (targets or {}).items()}

    def look() -> tuple[History, int, Tally]:
        history = History(journal, archive)
        first, last = history.first(), history.last()
        if first is None or last is None:
            raise NotFound(f"{journal}: no record to report on")
        last = last if until is None else min(last, until - 1)
        window = Window.over(first if since is None else max(since, first), last)
        count = share_count(history.size, cores, shares, most=SHARE_BYTES)
        deal = Deal(count, upto=last, tasks=shares or cores)
        base = lives_base(journal, history.pieces)
        pieces = history.pieces if base is None else [base, *history.pieces]
        work = partial(_tally, window, last, goals, goal)
        return history, last, reduce(Tally.merge, run_shares(spark, pieces, deal, work))

    # No cleaner comes in between: what the driver plans, all tasks see.
    history, last, tally = while_pinned(journal, look)
    log = _log(run, history, last, tally, cleaning, cores)
    return Report(figures(tally, journal=journal, last=last, targets=goals, target=goal, log=log))


def _log(
    run: Carrier, history: History, now: int, tally: Tally, cleaning: bool, cores: int
) -> dict[str, Any]:
    live = [piece for piece in history.pieces if str(piece.path).startswith(history.path)]
    size = sum(piece.size for piece in live)
    written = int(tally.bytes.sum())
    after: int | None = None
    if cleaning and not is_remote(history.path):
        try:
            stream = Stream(history.path, WORKQ)
            done = clean_journal(
                run, stream, now=now, lock_seconds=_LOCK_SECONDS, dry_run=True, cores=cores
            )
            after = size - (done.bytes_before - done.bytes_after)
        except (LockTimeout, OSError):  # a cleaner is at work, or nothing may be written there
            after = None
    return {
        "bytes": size,
        "segments": len(live),
        "records": int(tally.records.sum()),
        "written_bytes": written,
        "bytes_before": max(sum(piece.size for piece in history.pieces) - written, 0)
        if tally.base.any()
        else 0,
        "after_cleaning": after,
    }


def _tally(
    window: Window,
    upto: int,
    targets: dict[str, int],
    target: int,
    share: Share,
    pieces: list[Piece],
) -> list[Tally]:
    """What a share of the rows has to tell."""
    tally = Tally(window, targets, target)
    rows = Fold(share, rows_before(pieces, share))
    found = (parts_of(piece, load(piece), share, None, upto) for piece in log_of(pieces))
    for lives in rows.batches(chain.from_iterable(found)):
        tally.add(rows, lives)
    tally.finish(rows)
    return [tally]
