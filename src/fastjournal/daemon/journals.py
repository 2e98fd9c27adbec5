"""Which journals a daemon serves, and where they are.

Rules:

1. A data directory that is itself a journal (it was used embedded) is the default journal.
2. Otherwise every subdirectory that holds a journal is one, by its name, and those named in the
   settings are made.
"""

from __future__ import annotations

from pathlib import Path

from fastjournal.clock import SYSTEM_CLOCK, Clock
from fastjournal.config import Settings
from fastjournal.journal.journal import Journal
from fastjournal.log.files import DISK, Files

__all__ = ["find_journals", "open_journal"]


def find_journals(settings: Settings) -> dict[str, Path]:
    """Names and directories of the journals to serve."""
    data = Path(settings.data)
    if _is_journal(data):
        return {settings.default_journal: data}
    found = {settings.default_journal: data / settings.default_journal}
    if data.is_dir():
        for path in sorted(data.iterdir()):
            if path.is_dir() and _is_journal(path):
                found[path.name] = path
    for name in settings.journals:
        found[name] = data / name
    return found


def open_journal(
    path: Path, settings: Settings, files: Files = DISK, clock: Clock = SYSTEM_CLOCK
) -> Journal:
    """Open one journal: recover and replay it."""
    if files is DISK:
        path.parent.mkdir(parents=True, exist_ok=True)
    else:
        files.make_directory(path.parent)
    options = settings.journal
    return Journal(
        path,
        sync=options.sync,
        sync_interval=options.sync_interval if options.sync == "interval" else None,
        segment_size=options.segment_size,
        clean_interval=options.clean_interval,
        snapshot_bytes=options.snapshot_bytes,
        memory_limit=options.memory_limit or None,
        history=options.history,
        max_payload=settings.limits.max_payload,
        on_failure=options.on_failure,
        zone_bytes=options.zone_bytes,
        files=files,
        clock=clock,
    )


def _is_journal(path: Path) -> bool:
    return (path / "append.lock").exists()
