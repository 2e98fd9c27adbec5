"""Figures for Prometheus, collected when they are asked for. Names are listed in docs/metrics.md.

Rules:

1. A registry of its own for each server; nothing global.
2. Nothing is counted twice: the journal and its log count, this module only shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily as CounterFamily
from prometheus_client.core import GaugeMetricFamily as GaugeFamily
from prometheus_client.core import HistogramMetricFamily as HistogramFamily
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fastjournal.clock import SECOND
from fastjournal.daemon.context import Context
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.journal.state.row import READY
from fastjournal.log.write.counters import Histogram
from fastjournal.model import PLACES
from fastjournal.package import __version__

__all__ = ["ServerCollector", "render"]

_GAUGE, _COUNTER, _HISTOGRAM = GaugeFamily, CounterFamily, HistogramFamily
_Kind = type[GaugeFamily] | type[CounterFamily] | type[HistogramFamily]
_Figure = tuple[_Kind, str, str, str | Callable[[Any], Any]]
"""A figure of each journal: its kind, its name, what it is, and the attribute that holds it."""

_JOBS: tuple[_Figure, ...] = (
    (_COUNTER, "puts", "Jobs taken in, merged and repeated ones included", "puts"),
    (_COUNTER, "merges", "Puts that were merged into a waiting job", "merges"),
    (_COUNTER, "stale", "Puts that changed nothing, repeated ones included", "stale"),
    (_COUNTER, "leases", "Jobs handed out", "leases"),
    (_COUNTER, "touches", "Leases prolonged", "touches"),
    (_COUNTER, "completions", "Jobs completed", "completions"),
    (_COUNTER, "failures", "Attempts that failed", "failures"),
    (_COUNTER, "releases", "Jobs given back unworked", "releases"),
    (_COUNTER, "timeouts", "Leases that ran out", "timeouts"),
    (_COUNTER, "dead", "Jobs given up", "dead"),
    (_COUNTER, "expired", "Jobs whose life ended", "expired"),
    (_COUNTER, "lease_lost", "Requests refused because their lease was lost", "lease_lost"),
    (_GAUGE, "merge_ratio", "Share of puts that were merged",
     lambda counts: int(counts.merges) / int(counts.puts) if counts.puts else 0),
)  # fmt: skip
_LOG: tuple[_Figure, ...] = (
    (_COUNTER, "log_writes", "Records written", "writes"),
    (_COUNTER, "log_bytes", "Bytes written to the log", "bytes"),
    (_COUNTER, "log_syncs", "Syncs of the log", "syncs"),
    (_COUNTER, "log_rotations", "Segments begun", "rotations"),
    (_COUNTER, "log_errors", "Failed writes, syncs and rotations", "errors"),
)
_LOG_TIMES: tuple[_Figure, ...] = (
    (_GAUGE, "log_last_sync_seconds", "When the newest sync ended",
     lambda counters: counters.last_sync / SECOND),
    (_HISTOGRAM, "log_rotation_seconds", "Time to begin a segment", "rotation_seconds"),
    (_HISTOGRAM, "log_sync_seconds", "Time of a sync", "sync_seconds"),
)  # fmt: skip
_UPKEEP: tuple[_Figure, ...] = (
    (_GAUGE, "scrub_last_pass_seconds", "When all segments were read again",
     lambda upkeep: upkeep.scrubbed_at / SECOND),
    (_GAUGE, "scrub_faults", "Segments found damaged", "scrub_faults"),
)  # fmt: skip
_ENGINE: tuple[_Figure, ...] = (
    (_HISTOGRAM, "group_requests", "Requests decided together", lambda host: host.turn_histogram()),
    (_GAUGE, "log_stopped", "1 after a fault of the log",
     lambda host: bool(host.engine.log.status().failure)),
    (_GAUGE, "replay_seconds", "Time of the replay", "journal.replay_seconds"),
    (_GAUGE, "replay_records", "Records replayed", "journal.replayed.records"),
    (_GAUGE, "disk_full", "1 while only the reserve is left",
     lambda host: not host.engine.reserve.is_kept),
    (_GAUGE, "memory_limit_bytes", "Values it may hold", "engine.values.limit"),
    (_GAUGE, "memory_value_bytes", "Values it holds", "engine.values.bytes"),
    (_GAUGE, "memory_unlogged_bytes", "Entries in memory only", "engine.values.unlogged"),
    (_COUNTER, "memory_loads", "Values read back", "engine.values.loads"),
    (_COUNTER, "memory_evictions", "Values let go", "engine.values.evictions"),
)  # fmt: skip
_ARCHIVE: tuple[_Figure, ...] = (
    (_GAUGE, "archive_lag_seconds", "How long something waits to be shipped", "lag_seconds"),
    (_GAUGE, "archive_lag_bytes", "Bytes not shipped yet", "lag_bytes"),
    (_GAUGE, "archive_ok", "1 while the archive takes it",
     lambda status: status.state in ("starting", "shipping")),
    (_GAUGE, "archive_time_seconds", "The last instant that can be restored",
     lambda status: status.archived_to / SECOND),
    (_COUNTER, "archive_uploads", "Objects shipped", "uploads"),
    (_COUNTER, "archive_uploaded_bytes", "Bytes shipped", "uploaded_bytes"),
    (_COUNTER, "archive_errors", "Rounds that failed", "errors"),
)  # fmt: skip
_REPLICA: tuple[_Figure, ...] = (
    (_GAUGE, "replica_serving", "1 on the primary that answers", itemgetter("serving")),
    (_GAUGE, "replica_epoch", "The epoch it leads or has promised", itemgetter("epoch")),
    (_GAUGE, "replica_quorum", "1 on a primary that a majority answers", itemgetter("quorum")),
    (_GAUGE, "replica_lease", "1 while it holds the leader's lease", itemgetter("lease")),
    (_GAUGE, "replica_votes", "1 if it may vote: it lacks nothing", itemgetter("eligible")),
    (_GAUGE, "replica_damaged", "1 if its log was set aside since it was started",
     lambda node: bool(node["damage"])),
    (_GAUGE, "replica_last_time_seconds", "Its newest record",
     lambda node: node["last_time"] / SECOND),
    (_GAUGE, "replica_commit_time_seconds", "The newest on a majority",
     lambda node: node["commit_time"] / SECOND),
    (_GAUGE, "replica_snapshot_time_seconds", "What its snapshot stands for",
     lambda node: node["snapshot_time"] / SECOND),
)  # fmt: skip


def render(context: Context) -> bytes:
    """The page of /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(context))
    return generate_latest(registry)


class ServerCollector(Collector):
    """All figures of a context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before it is asked for."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The figures of this moment."""
        yield from self._of_server()
        hosts = list(self._context.journals.values())
        yield from _of_queues(hosts)
        yield from _by_journal(_JOBS, [(host.name, host.engine.counts) for host in hosts])
        yield from _of_logs(hosts)
        yield from _of_archives(hosts)
        if self._context.replicas:
            yield from _of_replicas([report() for report in self._context.replicas.values()])

    def _of_server(self) -> Iterator[Metric]:
        context = self._context
        open_now = {
            protocol: sum(c.protocol == protocol for c in context.connections)
            for protocol in ("fj", "workq")
        }
        waiting = sum(len(c.waiters) for c in context.connections)
        labels = {"version": __version__, "sync": context.settings.journal.sync}
        yield _family(
            _GAUGE, "info", "Always 1; see its labels", list(labels), [(list(labels.values()), 1)]
        )
        yield _single(
            _GAUGE, "start_time_seconds", "When the daemon started", context.started / SECOND
        )
        yield _single(_GAUGE, "ready", "1 while it serves", int(context.ready))
        yield _counted(_GAUGE, "connections", "Open now", "protocol", open_now)
        yield _single(
            _GAUGE, "waiting_requests", "Requests that wait for a job or a result", waiting
        )
        yield _counted(
            _COUNTER, "connections_accepted", "Since the start", "protocol", context.accepted
        )
        yield _single(_COUNTER, "connections_refused", "Turned away: too many", context.turned_away)
        yield _counted(_COUNTER, "connections_cut", "By reason", "reason", context.cuts)
        yield _counted(_COUNTER, "errors", "Error answers, by code", "code", context.errors)


def _of_queues(hosts: list[JournalLoop]) -> Iterator[Metric]:
    depths, ages = [], []
    for host in hosts:
        with host.engine.lock:
            now = host.state.promote(host.engine.clock.now())
            for lane in host.state.queues.values():
                if not lane.shown:
                    continue
                names = [host.name, lane.name.decode("utf-8", "backslashreplace")]
                for number, place in enumerate(PLACES):
                    depths.append(([*names, place], lane.counts[number]))
                first = lane.head(now) if lane.counts[READY] else None
                ages.append((names, 0 if first is None else max(0, now - first.due) / SECOND))
    labels = ["journal", "queue"]
    yield _family(_GAUGE, "queue_jobs", "Jobs by state", [*labels, "state"], depths)
    text = "How long the first job to be handed out has been due; 0 if none is"
    yield _family(_GAUGE, "queue_oldest_due_seconds", text, labels, ages)


def _of_logs(hosts: list[JournalLoop]) -> Iterator[Metric]:
    counters = [(host.name, host.engine.log.status().counters) for host in hosts]
    yield from _by_journal(_LOG, counters)
    faults = [
        ([host.name, what], count)
        for host, (_, counted) in zip(hosts, counters, strict=True)
        for what, count in (counted.faults | {"read": host.engine.fetching.faults}).items()
    ]
    labels = ["journal", "what"]
    yield _family(_COUNTER, "log_faults", "Faults of the log, by what failed", labels, faults)
    yield from _by_journal(_LOG_TIMES, counters)
    yield from _by_journal(_UPKEEP, [(host.name, host.journal.upkeep_status) for host in hosts])
    yield from _by_journal(_ENGINE, [(host.name, host) for host in hosts])


def _of_archives(hosts: list[JournalLoop]) -> Iterator[Metric]:
    """How far the archives are; no figure where there is none."""
    statuses = [(host.name, host.journal.archive_status()) for host in hosts]
    known = [(name, status) for name, status in statuses if status is not None]
    yield from _by_journal(_ARCHIVE, known)


def _of_replicas(nodes: list[dict[str, Any]]) -> Iterator[Metric]:
    """What this node is to each journal, and how far the others are, as a primary knows."""
    roles = [
        ([report["journal"], word], int(report["role"] == word))
        for report in nodes
        for word in ("follower", "candidate", "primary")
    ]
    yield _family(_GAUGE, "replica_role", "1 for what it is", ["journal", "role"], roles)
    yield from _by_journal(_REPLICA, [(report["journal"], report) for report in nodes])
    for name in ("records", "bytes", "seconds"):
        lags = [
            ([report["journal"], node], behind[name])
            for report in nodes
            for node, behind in report["lag"].items()
        ]
        labels = ["journal", "node"]
        yield _family(_GAUGE, f"replica_lag_{name}", "How far a node is behind", labels, lags)


def _by_journal(figures: Iterable[_Figure], sources: Sequence[tuple[str, Any]]) -> Iterator[Metric]:
    """These figures of each journal, taken from what stands beside its name."""
    for kind, name, text, held in figures:
        figure = attrgetter(held) if isinstance(held, str) else held
        samples = [([journal], figure(source)) for journal, source in sources]
        yield _family(kind, name, text, ["journal"], samples)


def _family(
    kind: _Kind,
    name: str,
    text: str,
    labels: Sequence[str],
    samples: Iterable[tuple[list[str], Any]],
) -> Metric:
    family = kind(f"fastjournal_{name}", text, labels=labels)
    for values, figure in samples:
        if isinstance(family, HistogramFamily):
            family.add_metric(values, _buckets(figure), figure.total)
        else:
            family.add_metric(values, float(figure))
    return family


def _counted(kind: _Kind, name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    return _family(kind, name, text, [label], [([one], count) for one, count in counts.items()])


def _single(kind: _Kind, name: str, text: str, figure: float) -> Metric:
    return _family(kind, name, text, [], [([], figure)])


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = (*map(str, histogram.bounds), "+Inf")
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
