"""Figures of a share of the rows, counted batch by batch; tallies of all shares add up. No Spark.

Rules:

1. Memory does not grow with the log: times fall into at most `MOST_BUCKETS` buckets, lengths into
   bins two per cent wide, keys and domains are counted exactly up to `MOST_KEYS` different ones;
   beyond, rare ones are let go and `exact_keys` says so. On the driver it is no other.
2. A record belongs to the bucket of its TIME. Records before the window are applied, not counted.
3. A percentile is the smallest length that so many are not above: right to one per cent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING, Any

from fastjournal.arguments import last_words
from fastjournal.spark.lifecycle.walk import EFFECTS, STATES, Fold, Lives

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

__all__ = ["BINS", "Tally", "Window", "bins_of", "percentile"]

SECOND = 1_000_000_000
MOST_BUCKETS = 120
MOST_KEYS = 200_000
_KEPT_KEYS = 100_000
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_WIDTH = log(1.02)
BINS = 1600
"""Lengths from 1 µs to a year and more."""
_ENDINGS = 16
_SHOWN = 100
_MAX_TEXTS = 2_000
# As `keys.domain`: authority of a URI without user, else the text before the first `:` or `/`.
_DOMAIN = r"(?s)^(?:.*\x00)?(?:[A-Za-z0-9+.\-]+://(?:[^/?#]*@)?(?P<host>[^/?#]*)|(?P<plain>[^/:]*))"


@dataclass(frozen=True, slots=True)
class Window:
    """The time that is looked at, cut into buckets."""

    start: int
    step: int
    count: int

    @classmethod
    def over(cls, first: int, last: int) -> Window:
        """From `first` to `last`, both ns since 1970, in round steps."""
        span = max(last - first, 1) // SECOND + 1
        days = -(-span // (MOST_BUCKETS * 86_400))
        step = next((one for one in _STEPS if span / one <= MOST_BUCKETS - 2), 86_400 * days)
        start = first // (step * SECOND) * step * SECOND
        return cls(start, step * SECOND, (last - start) // (step * SECOND) + 1)

    def buckets(self, times: Array) -> Array:
        """The bucket of each instant; negative before the window."""
        found: Array = (times - self.start) // self.step
        return found


def bins_of(nanos: Array) -> Array:
    """The bin of each length."""
    import numpy as np

    micros = np.maximum(nanos // 1000, 1)
    found: Array = np.minimum((np.log(micros) / _WIDTH).astype(np.int64), BINS - 1)
    return found


def percentile(counts: Array, share: float) -> float | None:
    """Seconds that `share` of the lengths are not above; None when there are none."""
    import numpy as np

    total = int(counts.sum())
    if not total:
        return None
    rank = max(1, -int(-(share * total) // 1))
    place = int(np.searchsorted(np.cumsum(counts), rank))
    return 0.0 if place == 0 else float(1.02 ** (place + 0.5)) / 1e6


@dataclass
class QueueTally:
    """One queue."""

    effects: Array
    endings: Array
    """Attempts by the effect that ended them."""
    waits: Counter[int] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)
    within: int = 0
    """Attempts that waited no longer than the target."""
    states: Array | None = None
    oldest: int = 0
    """Since when the row that waits longest could have been handed out."""


class Tally:
    """Everything that is counted."""

    def __init__(self, window: Window, targets: dict[str, int], target: int) -> None:
        import numpy as np
        import pyarrow as pa

        self.window = window
        self._targets = targets
        self._target = target
        shape = (window.count, len(EFFECTS))
        self.effects = np.zeros(shape, dtype=np.int64)
        self.deltas = np.zeros((window.count, len(STATES)), dtype=np.int64)
        self.base = np.zeros(len(STATES), dtype=np.int64)
        self.bytes = np.zeros(window.count, dtype=np.int64)
        self.records = np.zeros(window.count, dtype=np.int64)
        self.waits = np.zeros((window.count, BINS), dtype=np.int32)
        self.runs = np.zeros((window.count, BINS), dtype=np.int32)
        self.queues: dict[str, QueueTally] = {}
        self.workers: dict[str, list[int]] = {}
        self.tries: Counter[int] = Counter()
        self.keys = pa.table(
            {"queue": pa.array([], pa.string()), "key": pa.array([], pa.binary()),
             "n": pa.array([], pa.int64())}
        )  # fmt: skip
        self.domains: Counter[str] = Counter()
        self.exact_keys = True
        self.dead: Counter[tuple[str, str, str]] = Counter()
        self.last_dead: list[tuple[int, str, str, str]] = []

    def _queue(self, name: str) -> QueueTally:
        import numpy as np

        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = QueueTally(
                np.zeros(len(EFFECTS), np.int64), np.zeros(_ENDINGS, np.int64)
            )
        return found

    def add(self, rows: Fold, lives: Lives) -> None:
        """Count one batch."""
        import numpy as np

        window = self.window
        names = [one.decode("utf-8", "backslashreplace") for one in rows.queues]
        buckets = window.buckets(lives.times())
        inside = (buckets >= 0) & (buckets < window.count)
        self._states(lives, buckets, inside)
        effects = lives.effects.astype(np.int64)
        np.add.at(self.effects, (buckets[inside], effects[inside]), 1)
        for queue, counts in _by_number(lives.queues[inside], effects[inside], len(EFFECTS)):
            self._queue(names[queue] if queue >= 0 else "").effects += counts
        sizes = np.concatenate([part.log_bytes() for part in lives.parts])
        whole = inside & (np.concatenate([part.members for part in lives.parts]) <= 0)
        np.add.at(self.bytes, buckets[whole], sizes[whole])
        np.add.at(self.records, buckets[whole], 1)
        self._attempts(rows, lives, names)
        self._keys(lives, inside, names)
        self._dead(lives, inside, names)

    def finish(self, rows: Fold) -> None:
        """Count the rows that are there at the end."""
        import numpy as np

        self._settle_keys()
        names = [one.decode("utf-8", "backslashreplace") for one in rows.queues]
        table = rows.table()
        states = rows.states()
        queues = rows.queue_numbers()
        ready = np.maximum(table["due"].to_numpy(), table["since"].to_numpy())
        waiting = states == 0
        found, places = np.unique(queues[waiting], return_inverse=True)
        oldest = np.full(len(found), np.iinfo(np.int64).max)
        np.minimum.at(oldest, places, ready[waiting])
        since = dict(zip(found.tolist(), oldest.tolist(), strict=True))
        for queue, counts in _by_number(queues, states, len(STATES)):
            mine = self._queue(names[queue] if queue >= 0 else "")
            mine.states = counts if mine.states is None else mine.states + counts
            mine.oldest = since.get(queue, 0)

    def _states(self, lives: Lives, buckets: Array, inside: Array) -> None:
        import numpy as np

        for column, sign in ((lives.after, 1), (lives.before, -1)):
            there = column >= 0
            early = there & (buckets < 0)
            self.base += sign * np.bincount(column[early], minlength=len(STATES))
            chosen = there & inside
            np.add.at(self.deltas, (buckets[chosen], column[chosen]), sign)

    def _attempts(self, rows: Fold, lives: Lives, names: list[str]) -> None:
        import numpy as np

        buckets = self.window.buckets(lives.ended("ended"))
        chosen = (buckets >= 0) & (buckets < self.window.count)
        if not chosen.any():
            return
        buckets = buckets[chosen]
        get = {name: lives.ended(name)[chosen] for name in _WANTED}
        waits = np.maximum(get["leased"] - get["ready"], 0)
        runs = np.maximum(get["ended"] - get["leased"], 0)
        wait_bins, run_bins = bins_of(waits), bins_of(runs)
        np.add.at(self.waits, (buckets, wait_bins), 1)
        np.add.at(self.runs, (buckets, run_bins), 1)
        self.tries.update(get["attempt"][get["outcome"] == _DONE].tolist())
        for queue, counts in _by_number(get["queue"], get["outcome"], _ENDINGS):
            self._queue(names[queue] if queue >= 0 else "").endings += counts
        self._lengths(get["queue"], names, waits, wait_bins, run_bins)
        workers = [one.decode("utf-8", "backslashreplace") for one in rows.workers]
        for worker, counts in _by_number(get["worker"], get["outcome"], _ENDINGS):
            mine_too = self.workers.setdefault(workers[worker] if worker >= 0 else "", [0, 0, 0])
            mine_too[0] += int(counts.sum())
            mine_too[1] += int(counts[_TIMED_OUT])
            mine_too[2] += int(counts[_FAILED])

    def _lengths(
        self, queues: Array, names: list[str], waits: Array, wait_bins: Array, run_bins: Array
    ) -> None:
        """Lengths and kept targets by queue; there may be as many queues as domains."""
        import numpy as np

        targets = np.array([self._targets.get(name, self._target) for name in (*names, "")])
        within, counts = np.unique(queues[waits <= targets[queues]], return_counts=True)
        for queue, count in zip(within.tolist(), counts.tolist(), strict=True):
            self._queue(names[queue] if queue >= 0 else "").within += count
        for bins, which in ((wait_bins, "waits"), (run_bins, "runs")):
            pairs, counts = np.unique((queues + 1) * BINS + bins, return_counts=True)
            for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
                queue, one = divmod(pair, BINS)
                getattr(self._queue(names[queue - 1] if queue else ""), which)[one] += count

    def _keys(self, lives: Lives, inside: Array, names: list[str]) -> None:
        import numpy as np
        import pyarrow as pa

        put = np.flatnonzero(inside & np.isin(lives.effects, _ASKED) & (lives.queues >= 0))
        if not len(put):
            return
        keys = lives.keys(lives.sources(put))
        queues = pa.array(names or [""]).take(pa.array(lives.queues[put]))
        table = pa.table({"queue": queues, "key": keys}).filter(keys.is_valid())
        counted = table.group_by(["queue", "key"]).aggregate([([], "count_all")])
        counted = counted.rename_columns(["queue", "key", "n"])
        self._domains(counted)
        self.keys = pa.concat_tables([self.keys, counted.cast(self.keys.schema)])
        if self.keys.num_rows > 2 * MOST_KEYS:
            self._settle_keys()

    def _settle_keys(self) -> None:
        """One line for each key, at most `MOST_KEYS`."""
        summed = self.keys.group_by(["queue", "key"]).aggregate([("n", "sum")])
        self.keys = summed.rename_columns(["queue", "key", "n"])
        if self.keys.num_rows > MOST_KEYS:
            self.keys = self.keys.sort_by([("n", "descending")]).slice(0, _KEPT_KEYS)
            self.exact_keys = False

    def hot_keys(self, count: int) -> list[tuple[str, str, int]]:
        """The keys asked for most often: queue, key, how often."""
        from fastjournal.spark.decode.record_columns import readable

        self._settle_keys()
        order = [("n", "descending"), ("queue", "ascending"), ("key", "ascending")]
        top = self.keys.sort_by(order).slice(0, count).combine_chunks()
        if not top.num_rows:
            return []
        texts = readable(top["key"].chunk(0)).to_pylist()
        return list(zip(top["queue"].to_pylist(), texts, top["n"].to_pylist(), strict=True))

    def _domains(self, counted: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        from fastjournal.spark.decode.record_columns import readable

        texts = readable(counted["key"].combine_chunks())
        parts = pc.extract_regex(texts, _DOMAIN)
        host = pc.utf8_lower(pc.struct_field(parts, "host"))
        plain = pc.struct_field(parts, "plain")
        domain = pc.if_else(pc.equal(host, ""), plain, host)
        found = pa.table({"domain": domain, "n": counted["n"]})
        summed = found.group_by("domain").aggregate([("n", "sum")])
        for name, count in zip(*(summed[c].to_pylist() for c in ("domain", "n_sum")), strict=True):
            if name:
                self.domains[name] += count
        self._settle_domains()

    def _settle_domains(self) -> None:
        """At most `MOST_KEYS` of them: rare ones are let go."""
        if len(self.domains) > MOST_KEYS:
            self.domains = Counter(dict(self.domains.most_common(_KEPT_KEYS)))
            self.exact_keys = False

    def _dead(self, lives: Lives, inside: Array, names: list[str]) -> None:
        import numpy as np

        # Deaths are few: one at a time.
        places = np.flatnonzero(inside & (lives.effects == _DEAD))
        if not len(places):
            return
        starts = np.cumsum([0, *(len(part.chunk) for part in lives.parts)])
        keys = lives.keys(lives.sources(places)).to_pylist()
        for place, key in zip(places.tolist(), keys, strict=True):
            which = int(np.searchsorted(starts, place, side="right")) - 1
            part, at = lives.parts[which], place - int(starts[which])
            queue = int(lives.queues[place])
            name = names[queue] if queue >= 0 else ""
            reason, text = part.death(at)
            shown = last_words(text, _SHOWN)
            if len(self.dead) < _MAX_TEXTS or (name, reason, shown) in self.dead:
                self.dead[name, reason, shown] += 1
            else:
                self.dead[name, reason, "(other reasons)"] += 1
            text_key = "" if key is None else key.decode("utf-8", "backslashreplace")
            self.last_dead.append(
                (int(part.chunk.times[at]), name, text_key[:200], shown or reason)
            )
        self.last_dead = sorted(self.last_dead)[-20:]

    def merge(self, other: Tally) -> Tally:
        """Add another share to this one."""
        for name in ("effects", "deltas", "base", "bytes", "records", "waits", "runs"):
            mine = getattr(self, name)
            mine += getattr(other, name)
        for queue, theirs in other.queues.items():
            own = self._queue(queue)
            own.effects += theirs.effects
            own.endings += theirs.endings
            own.waits.update(theirs.waits)
            own.runs.update(theirs.runs)
            own.within += theirs.within
            if theirs.states is not None:
                own.states = theirs.states + (0 if own.states is None else own.states)
            oldest = [one for one in (own.oldest, theirs.oldest) if one]
            own.oldest = min(oldest, default=0)
        for worker, counts in other.workers.items():
            own_counts = self.workers.setdefault(worker, [0, 0, 0])
            own_counts[:] = [a + b for a, b in zip(own_counts, counts, strict=True)]
        for name in ("tries", "domains", "dead"):
            getattr(self, name).update(getattr(other, name))
        import pyarrow as pa

        self.keys = pa.concat_tables([self.keys, other.keys])
        self.exact_keys = self.exact_keys and other.exact_keys
        self._settle_keys()
        self._settle_domains()
        self.last_dead = sorted([*self.last_dead, *other.last_dead])[-20:]
        return self


_WANTED = ("ready", "leased", "ended", "attempt", "outcome", "queue", "worker")
_ASKED = tuple(EFFECTS.index(name) for name in ("new", "merged", "revived"))
_DONE, _FAILED, _TIMED_OUT = (EFFECTS.index(name) for name in ("done", "retried", "timed_out"))
_DEAD = EFFECTS.index("dead")


def _by_number(numbers: Array, values: Array, width: int) -> list[tuple[int, Array]]:
    """For each different number, how often each value stands beside it."""
    import numpy as np

    found, places = np.unique(numbers, return_inverse=True)
    table = np.zeros((len(found), width), dtype=np.int64)
    np.add.at(table, (places, values), 1)
    return [(int(number), table[n]) for n, number in enumerate(found)]
