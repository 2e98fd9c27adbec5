"""Figures for Prometheus, collected when they are asked for. Names are listed in docs/metrics.md.

Rules:

1. A registry of its own for each server; nothing global.
2. Nothing is counted twice: the journal and its log count, this module only shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

_JOBS = {
    "puts": "Jobs taken in, merged and repeated ones included",
    "merges": "Puts that were merged into a waiting job",
    "stale": "Puts that changed nothing, repeated ones included",
    "leases": "Jobs handed out",
    "touches": "Leases prolonged",
    "completions": "Jobs completed",
    "failures": "Attempts that failed",
    "releases": "Jobs given back unworked",
    "timeouts": "Leases that ran out",
    "dead": "Jobs given up",
    "expired": "Jobs whose life ended",
    "lease_lost": "Requests refused because their lease was lost",
}
_LOG = {
    "writes": "Records written",
    "bytes": "Bytes written to the log",
    "syncs": "Syncs of the log",
    "rotations": "Segments begun",
    "errors": "Failed writes, syncs and rotations",
}

_REPLICA = {
    "serving": ("1 on the primary that answers", "serving", 1),
    "epoch": ("The epoch it leads or has promised", "epoch", 1),
    "quorum": ("1 on a primary that a majority answers", "quorum", 1),
    "lease": ("1 while it holds the leader's lease", "lease", 1),
    "votes": ("1 if it may vote: it lacks nothing", "eligible", 1),
    "damaged": ("1 if its log was set aside since it was started", "damage", 1),
    "last_time_seconds": ("Its newest record", "last_time", SECOND),
    "commit_time_seconds": ("The newest on a majority", "commit_time", SECOND),
    "snapshot_time_seconds": ("What its snapshot stands for", "snapshot_time", SECOND),
}
"""By metric: what it is, the word of a node's status, and what that is divided by."""


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
        yield from _of_jobs(hosts)
        yield from _of_logs(hosts)
        yield from _of_memory(hosts)
        yield from _of_archives(hosts)
        if self._context.replicas:
            yield from _of_replicas([report() for report in self._context.replicas.values()])

    def _of_server(self) -> Iterator[Metric]:
        context = self._context
        info = GaugeFamily(
            "fastjournal_info", "Always 1; see its labels", labels=["version", "sync"]
        )
        info.add_metric([__version__, context.settings.journal.sync], 1)
        yield info
        yield GaugeFamily(
            "fastjournal_start_time_seconds", "When the daemon started", context.started / SECOND
        )
        yield GaugeFamily("fastjournal_ready", "1 while it serves", int(context.ready))
        open_now = GaugeFamily("fastjournal_connections", "Open now", labels=["protocol"])
        for protocol in ("fj", "workq"):
            count = sum(c.protocol == protocol for c in context.connections)
            open_now.add_metric([protocol], count)
        yield open_now
        yield GaugeFamily(
            "fastjournal_waiting_requests",
            "Requests that wait for a job or a result",
            sum(len(c.waiters) for c in context.connections),
        )
        accepted = CounterFamily(
            "fastjournal_connections_accepted", "Since the start", labels=["protocol"]
        )
        for protocol, count in context.accepted.items():
            accepted.add_metric([protocol], count)
        yield accepted
        yield CounterFamily(
            "fastjournal_connections_refused", "Turned away: too many", context.turned_away
        )
        cuts = CounterFamily("fastjournal_connections_cut", "By reason", labels=["reason"])
        for reason, count in context.cuts.items():
            cuts.add_metric([reason], count)
        yield cuts
        errors = CounterFamily("fastjournal_errors", "Error answers, by code", labels=["code"])
        for code, count in context.errors.items():
            errors.add_metric([code], count)
        yield errors


def _of_queues(hosts: list[JournalLoop]) -> Iterator[Metric]:
    labels = ["journal", "queue"]
    depth = GaugeFamily("fastjournal_queue_jobs", "Jobs by state", labels=[*labels, "state"])
    age = GaugeFamily(
        "fastjournal_queue_oldest_due_seconds",
        "How long the first job to be handed out has been due; 0 if none is",
        labels=labels,
    )
    for host in hosts:
        with host.engine.lock:
            now = host.state.promote(host.engine.clock.now())
            for lane in host.state.queues.values():
                if not lane.shown:
                    continue
                names = [host.name, lane.name.decode("utf-8", "backslashreplace")]
                for number, place in enumerate(PLACES):
                    depth.add_metric([*names, place], lane.counts[number])
                first = lane.head(now) if lane.counts[READY] else None
                age.add_metric(names, 0 if first is None else max(0, now - first.due) / SECOND)
    yield depth
    yield age


def _of_jobs(hosts: list[JournalLoop]) -> Iterator[Metric]:
    for name, text in _JOBS.items():
        family = CounterFamily(f"fastjournal_{name}", text, labels=["journal"])
        for host in hosts:
            family.add_metric([host.name], getattr(host.engine.counts, name))
        yield family
    ratio = GaugeFamily(
        "fastjournal_merge_ratio", "Share of puts that were merged", labels=["journal"]
    )
    for host in hosts:
        counts = host.engine.counts
        ratio.add_metric([host.name], int(counts.merges) / int(counts.puts) if counts.puts else 0)
    yield ratio


def _of_logs(hosts: list[JournalLoop]) -> Iterator[Metric]:
    labels = ["journal"]
    statuses = [(host, host.engine.log.status()) for host in hosts]
    for name, text in _LOG.items():
        family = CounterFamily(f"fastjournal_log_{name}", text, labels=labels)
        for host, status in statuses:
            family.add_metric([host.name], getattr(status.counters, name))
        yield family
    faults = CounterFamily(
        "fastjournal_log_faults", "Faults of the log, by what failed", labels=["journal", "what"]
    )
    last = GaugeFamily(
        "fastjournal_log_last_sync_seconds", "When the newest sync ended", labels=labels
    )
    for host, status in statuses:
        counts = status.counters.faults | {"read": host.engine.fetching.faults}
        for what, count in counts.items():
            faults.add_metric([host.name, what], count)
        last.add_metric([host.name], status.counters.last_sync / 1e9)
    yield faults
    yield last
    rotations = HistogramFamily(
        "fastjournal_log_rotation_seconds", "Time to begin a segment", labels=labels
    )
    for host, status in statuses:
        _observe(rotations, host.name, status.counters.rotation_seconds)
    yield rotations
    syncs = HistogramFamily("fastjournal_log_sync_seconds", "Time of a sync", labels=labels)
    for host, status in statuses:
        _observe(syncs, host.name, status.counters.sync_seconds)
    yield syncs
    groups = HistogramFamily(
        "fastjournal_group_requests", "Requests decided together", labels=labels
    )
    stopped = GaugeFamily("fastjournal_log_stopped", "1 after a fault of the log", labels=labels)
    replay = GaugeFamily("fastjournal_replay_seconds", "Time of the replay", labels=labels)
    records = GaugeFamily("fastjournal_replay_records", "Records replayed", labels=labels)
    full = GaugeFamily("fastjournal_disk_full", "1 while only the reserve is left", labels=labels)
    for host, status in statuses:
        _observe(groups, host.name, host.turn_histogram())
        stopped.add_metric([host.name], int(bool(status.failure)))
        replay.add_metric([host.name], host.journal.replay_seconds)
        records.add_metric([host.name], host.journal.replayed.records)
        full.add_metric([host.name], int(not host.engine.reserve.is_kept))
    scrubbed = GaugeFamily(
        "fastjournal_scrub_last_pass_seconds", "When all segments were read again", labels=labels
    )
    damaged = GaugeFamily("fastjournal_scrub_faults", "Segments found damaged", labels=labels)
    for host, _ in statuses:
        upkeep = host.journal.upkeep_status
        scrubbed.add_metric([host.name], upkeep.scrubbed_at / 1e9)
        damaged.add_metric([host.name], upkeep.scrub_faults)
    yield scrubbed
    yield damaged
    yield groups
    yield stopped
    yield replay
    yield records
    yield full


def _of_memory(hosts: list[JournalLoop]) -> Iterator[Metric]:
    """Which values are in memory."""
    labels = ["journal"]
    limit = GaugeFamily("fastjournal_memory_limit_bytes", "Values it may hold", labels=labels)
    used = GaugeFamily("fastjournal_memory_value_bytes", "Values it holds", labels=labels)
    only = GaugeFamily("fastjournal_memory_unlogged_bytes", "Entries in memory only", labels=labels)
    loads = CounterFamily("fastjournal_memory_loads", "Values read back", labels=labels)
    gone = CounterFamily("fastjournal_memory_evictions", "Values let go", labels=labels)
    for host in hosts:
        values = host.engine.values
        limit.add_metric([host.name], int(values.limit))
        used.add_metric([host.name], int(values.bytes))
        only.add_metric([host.name], int(values.unlogged))
        loads.add_metric([host.name], int(values.loads))
        gone.add_metric([host.name], int(values.evictions))
    yield limit
    yield used
    yield only
    yield loads
    yield gone


def _of_archives(hosts: list[JournalLoop]) -> Iterator[Metric]:
    """How far the archives are; no figure where there is none."""
    statuses = [(host.name, host.journal.archive_status()) for host in hosts]
    known = [(name, status) for name, status in statuses if status is not None]
    labels = ["journal"]
    lag = GaugeFamily(
        "fastjournal_archive_lag_seconds", "How long something waits to be shipped", labels=labels
    )
    size = GaugeFamily("fastjournal_archive_lag_bytes", "Bytes not shipped yet", labels=labels)
    well = GaugeFamily("fastjournal_archive_ok", "1 while the archive takes it", labels=labels)
    end = GaugeFamily(
        "fastjournal_archive_time_seconds", "The last instant that can be restored", labels=labels
    )
    uploads = CounterFamily("fastjournal_archive_uploads", "Objects shipped", labels=labels)
    sent = CounterFamily("fastjournal_archive_uploaded_bytes", "Bytes shipped", labels=labels)
    errors = CounterFamily("fastjournal_archive_errors", "Rounds that failed", labels=labels)
    for name, status in known:
        lag.add_metric([name], status.lag_seconds)
        size.add_metric([name], status.lag_bytes)
        well.add_metric([name], int(status.state in ("starting", "shipping")))
        end.add_metric([name], status.archived_to / SECOND)
        uploads.add_metric([name], status.uploads)
        sent.add_metric([name], status.uploaded_bytes)
        errors.add_metric([name], status.errors)
    yield from (lag, size, well, end, uploads, sent, errors)


def _of_replicas(nodes: list[dict[str, Any]]) -> Iterator[Metric]:
    """What this node is to each journal, and how far the others are, as a primary knows."""
    labels = ["journal"]
    role = GaugeFamily("fastjournal_replica_role", "1 for what it is", labels=["journal", "role"])
    for report in nodes:
        for word in ("follower", "candidate", "primary"):
            role.add_metric([report["journal"], word], int(report["role"] == word))
    yield role
    for name, (text, word, unit) in _REPLICA.items():
        family = GaugeFamily(f"fastjournal_replica_{name}", text, labels=labels)
        for report in nodes:
            family.add_metric([report["journal"]], _figure(report[word]) / unit)
        yield family
    for name in ("records", "bytes", "seconds"):
        lag = GaugeFamily(
            f"fastjournal_replica_lag_{name}", "How far a node is behind", labels=[*labels, "node"]
        )
        for report in nodes:
            for node, behind in report["lag"].items():
                lag.add_metric([report["journal"], node], behind[name])
        yield lag


def _figure(value: object) -> int:
    """A number as it is; of anything else, whether there is any."""
    return value if isinstance(value, int) else int(bool(value))


def _observe(family: HistogramFamily, journal: str, histogram: Histogram) -> None:
    total = 0
    buckets = []
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((str(bound), float(total)))
    family.add_metric([journal], buckets, histogram.total)
