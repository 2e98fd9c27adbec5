"""The tables of metrics in docs/metrics.md (daemon) and docs/spool.md (forwarder)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from page_tables import fill, said, table
from prometheus_client.core import Metric

from fastjournal.daemon.metrics import ServerCollector
from fastjournal.spool.service import SpoolCollector
from fastjournal.testing.daemon import LocalDaemon

__all__ = ["made", "shown_name"]

_HEAD = ("name", "type", "labels", "meaning")


def shown_name(family: Metric) -> str:
    """The name under which the figure is found."""
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")


_REPLICA = {
    "journal": "", "role": "", "serving": False, "epoch": 0, "quorum": False, "lease": False,
    "eligible": False, "damage": "", "last_time": 0, "commit_time": 0, "snapshot_time": 0,
    "lag": {},
}  # fmt: skip
"""A node, for the names of its figures."""


def rows(families: Iterable[Metric]) -> list[tuple[str, ...]]:
    """A row for each family."""
    return [
        (
            f"`{shown_name(family)}`", family.type,
            ", ".join(getattr(family, "_labelnames", ())) or "-",
            said(family.documentation, family.name).rstrip("."),
        )
        for family in families
    ]  # fmt: skip


def made(docs: Path) -> dict[str, str]:
    """Both pages with their tables."""
    with tempfile.TemporaryDirectory() as directory, LocalDaemon(directory) as daemon:
        daemon.server.replicas = {"default": lambda: _REPLICA}
        of_daemon = rows(ServerCollector(daemon.server).collect())
    of_spool = rows(SpoolCollector([]).collect())
    return {
        "metrics.md": fill((docs / "metrics.md").read_text(), {"metrics": table(_HEAD, of_daemon)}),
        "spool.md": fill((docs / "spool.md").read_text(), {"metrics": table(_HEAD, of_spool)}),
    }
