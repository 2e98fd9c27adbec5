"""A tally as plain figures: the JSON form of a report, and all that its page shows. No Spark.

Rules:

1. Times are ISO 8601 in UTC, lengths seconds, sizes bytes, rates per second. What is not known is
   null, never zero.
2. `asked` counts what producers put and the log took in (new, merged, put again after a deletion);
   a repeat that changed nothing leaves no record, so it is not counted.
3. `backlog` at the end of a bucket counts rows by state. Completed rows are those kept for their
   result.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from fastjournal.spark.lifecycle.walk import EFFECTS, STATES
from fastjournal.spark.report.tally import BINS, QueueTally, Tally, percentile

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["VERSION", "figures"]

T = TypeVar("T", str, tuple[str, str, str])

VERSION = 1
_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PERCENTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
_TOP = 20


def iso(nanos: int) -> str:
    """An instant as text."""
    moment = _EPOCH + timedelta(microseconds=nanos // 1000)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _effect(table: Array, *names: str) -> Any:
    return sum(table[..., EFFECTS.index(name)] for name in names)


def _lengths(counts: Array) -> dict[str, float | None]:
    return {name: percentile(counts, share) for name, share in _PERCENTILES}


def _dense(counter: Any) -> Array:
    import numpy as np

    counts = np.zeros(BINS, dtype=np.int64)
    for place, count in counter.items():
        counts[place] = count
    return counts


def _often(counter: Counter[T], most: int) -> list[tuple[T, int]]:
    """What was counted most often; of what was counted as often, the first by name."""
    return sorted(counter.items(), key=lambda one: (-one[1], one[0]))[:most]


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


def _queue(name: str, one: QueueTally, target: int, end: int, seconds: float) -> dict[str, Any]:
    import numpy as np

    effects, endings = one.effects, one.endings
    states = np.zeros(len(STATES), np.int64) if one.states is None else one.states
    attempts = int(endings.sum())
    asked = int(_effect(effects, "new", "merged", "revived"))
    done = int(endings[EFFECTS.index("done")])
    return {
        "queue": name,
        "asked": asked,
        "merged": int(_effect(effects, "merged")),
        "attempts": attempts,
        "done": done,
        "done_per_s": round(done / seconds, 4),
        "failed": int(endings[EFFECTS.index("retried")]),
        "timed_out": int(endings[EFFECTS.index("timed_out")]),
        "released": int(endings[EFFECTS.index("released")]),
        "dead": int(_effect(effects, "dead")),
        "expired": int(_effect(effects, "expired")),
        "wait_s": _lengths(_dense(one.waits)),
        "run_s": _lengths(_dense(one.runs)),
        "target_s": target / _SECOND,
        "within_target": _share(one.within, attempts),
        "waiting_now": int(states[0]),
        "processing_now": int(states[1]),
        "dead_now": int(states[3]),
        "oldest_ready_s": round(max(end - one.oldest, 0) / _SECOND, 3) if one.oldest else None,
    }


def _series(tally: Tally) -> dict[str, Any]:
    import numpy as np

    window, effects = tally.window, tally.effects
    backlog = tally.base + np.cumsum(tally.deltas, axis=0)
    series: dict[str, Any] = {
        "time": [iso(window.start + n * window.step) for n in range(window.count)],
        "asked": _effect(effects, "new", "merged", "revived").tolist(),
        "merged": _effect(effects, "merged").tolist(),
        "leased": _effect(effects, "leased").tolist(),
        "done": _effect(effects, "done").tolist(),
        "retried": _effect(effects, "retried").tolist(),
        "timed_out": _effect(effects, "timed_out").tolist(),
        "dead": _effect(effects, "dead").tolist(),
        "waiting": backlog[:, 0].tolist(),
        "processing": backlog[:, 1].tolist(),
        "completed": backlog[:, 2].tolist(),
        "failed": backlog[:, 3].tolist(),
        "log_bytes": tally.bytes.tolist(),
        "records": tally.records.tolist(),
    }
    for word, table in (("wait", tally.waits), ("run", tally.runs)):
        for name, share in _PERCENTILES:
            series[f"{word}_{name}_s"] = [percentile(row, share) for row in table]
    return series


def _totals(tally: Tally, seconds: float) -> dict[str, Any]:
    effects = tally.effects.sum(axis=0)
    asked = int(_effect(effects, "new", "merged", "revived"))
    rows = int(_effect(effects, "new", "revived"))
    leased = int(_effect(effects, "leased"))
    endings = sum((one.endings for one in tally.queues.values()), 0 * effects[:16])
    attempts = int(endings.sum())
    end_of = {name: int(endings[EFFECTS.index(name)]) for name in EFFECTS[:16]}
    done = end_of["done"]
    states = tally.base + tally.deltas.sum(axis=0)
    tries = tally.tries
    finished = sum(tries.values())
    return {
        "asked": asked,
        "rows": rows,
        "merged": int(_effect(effects, "merged")),
        "merge_ratio": _share(asked, rows),
        "leases": leased,
        "attempts": attempts,
        "done": done,
        "done_per_s": round(done / seconds, 4),
        "asked_per_s": round(asked / seconds, 4),
        "failed_attempts": end_of["retried"],
        "timed_out": end_of["timed_out"],
        "released": end_of["released"],
        "dead": int(_effect(effects, "dead")),
        "redriven": int(_effect(effects, "redriven")),
        "expired": int(_effect(effects, "expired")),
        "superseded": int(_effect(effects, "superseded")),
        "renewals": int(_effect(effects, "renewed")),
        "retried_jobs": _share(sum(n for tried, n in tries.items() if tried > 1), finished),
        "wait_s": _lengths(tally.waits.sum(axis=0)),
        "run_s": _lengths(tally.runs.sum(axis=0)),
        **{f"{state.lower()}_now": int(states[n]) for n, state in enumerate(STATES[:4])},
    }


def figures(
    tally: Tally, *, journal: str, last: int, targets: dict[str, int], target: int, log: Any
) -> dict[str, Any]:
    """All figures of a report."""
    window = tally.window
    end = max(last, window.start)
    seconds = max((end - window.start) / _SECOND, 1.0)
    totals = _totals(tally, seconds)
    queues = [
        _queue(name, one, targets.get(name, target), end, seconds)
        for name, one in tally.queues.items()
        if name and (one.effects.any() or one.states is not None)
    ]
    queues.sort(key=lambda one: (-one["asked"], one["queue"]))
    workers = sorted(tally.workers.items(), key=lambda one: (-one[1][1], -one[1][0], one[0]))
    tries = sorted(tally.tries.items())
    return {
        "version": VERSION,
        "journal": journal,
        "from": iso(window.start),
        "to": iso(end),
        "seconds": seconds,
        "step_s": window.step // _SECOND,
        "totals": totals,
        "series": _series(tally),
        "queues": queues,
        "dead": [
            {"queue": queue, "reason": reason, "text": text, "count": count}
            for (queue, reason, text), count in _often(tally.dead, 50)
        ],
        "last_dead": [
            {"time": iso(time), "queue": queue, "key": key, "text": text}
            for time, queue, key, text in reversed(tally.last_dead)
        ],
        "hot_keys": [
            {"queue": queue, "key": key, "asked": count}
            for queue, key, count in tally.hot_keys(_TOP)
        ],
        "hot_keys_exact": tally.exact_keys,
        "hot_domains": [
            {"domain": name, "asked": count} for name, count in _often(tally.domains, _TOP)
        ],
        "workers": [
            {"worker": name, "attempts": ended, "lost": lost, "failed": failed}
            for name, (ended, lost, failed) in workers[:50]
        ],
        "tries": [{"attempts": tried, "jobs": count} for tried, count in tries],
        "log": log,
    }
