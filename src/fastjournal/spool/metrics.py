"""The figures of forwarders for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from fastjournal.clock import SYSTEM_CLOCK
from fastjournal.spool.service import Runner

__all__ = ["SpoolCollector"]

_COUNTERS = (
    ("forwarded", "jobs", "Jobs acknowledged by the journal for the first time."),
    ("repeated", "jobs_repeated", "Jobs sent again that the journal had already."),
    ("merged", "jobs_merged", "Jobs merged into a waiting job of their key."),
    ("refused", "jobs_refused", "Jobs the journal refused, or frames that hold none."),
    ("damaged", "damaged", "Damaged places in spool files."),
    ("batches", "batches", "Batches acknowledged."),
    ("bytes", "bytes", "Bytes of spool files acknowledged."),
    ("failures", "failures", "Times a forwarder had to begin again."),
)


class SpoolCollector(Collector):
    """Asks the forwarders when it is asked."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._runners = runners

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily]:
        """All metrics, one sample for each spool."""
        figures = [(runner.path, runner.figures()) for runner in self._runners]
        for field, name, about in _COUNTERS:
            counter = CounterMetricFamily(f"fastjournal_spool_{name}", about, labels=["spool"])
            for path, found in figures:
                counter.add_metric([path], getattr(found, field))
            yield counter
        backlog = GaugeMetricFamily(
            "fastjournal_spool_backlog_bytes", "Bytes not yet acknowledged.", labels=["spool"]
        )
        age = GaugeMetricFamily(
            "fastjournal_spool_oldest_age_seconds", "Age of the oldest job that waits.",
            labels=["spool"],
        )  # fmt: skip
        files = GaugeMetricFamily("fastjournal_spool_files", "Spool files.", labels=["spool"])
        foreign = GaugeMetricFamily(
            "fastjournal_spool_foreign_files", "Names of spool files that lead to no file of the "
            "spool, and are not opened.", labels=["spool"],
        )  # fmt: skip
        denied = GaugeMetricFamily(
            "fastjournal_spool_denied", "1 while the daemon refuses the forwarder, as for its "
            "token: nothing is forwarded.", labels=["spool"],
        )  # fmt: skip
        error = InfoMetricFamily(
            "fastjournal_spool_last_error", "Why it last had to begin again.", labels=["spool"]
        )
        now = SYSTEM_CLOCK.now()
        for path, found in figures:
            backlog.add_metric([path], found.backlog_bytes)
            age.add_metric([path], (now - found.oldest) / 1e9 if found.oldest else 0)
            files.add_metric([path], found.files)
            foreign.add_metric([path], found.foreign)
            denied.add_metric([path], int(bool(found.denied)))
            error.add_metric([path], {"error": found.last_error})
        yield from (backlog, age, files, foreign, denied, error)
