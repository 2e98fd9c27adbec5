"""Which modules make up the compiled core, and which build of them this process runs.

The modules named in `CORE` are ordinary Python that mypyc also compiles. Rules:

1. Both builds behave alike; the compiled one is faster. `FASTJOURNAL_PURE=1` forces the
   interpreted one.
2. A wheel holds the compiled modules beside their sources. A checkout holds them in
   `build/compiled`, so an editable install never hides an edited source behind an old binary.
3. A checkout's build is used whole or not at all: if one source has changed since, the interpreted
   core runs and a warning says so.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import spec_from_file_location  # `importlib.util` is heavy
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec

__all__ = ["CORE", "MARKER", "choose_core", "describe_core", "source_of", "source_state"]

CORE = (
    "fastjournal.arguments",
    "fastjournal.client._async.caller",
    "fastjournal.client._async.client",
    "fastjournal.client._async.handles",
    "fastjournal.client._async.pipeline",
    "fastjournal.client._sync.caller",
    "fastjournal.client._sync.client",
    "fastjournal.client._sync.pipeline",
    "fastjournal.client.asyncio_transport",
    "fastjournal.client.blocking_transport",
    "fastjournal.client.calls",
    "fastjournal.client.change_numbers",
    "fastjournal.client.entry_calls",
    "fastjournal.client.leases",
    "fastjournal.client.puts",
    "fastjournal.client.retry",
    "fastjournal.clock",
    "fastjournal.daemon.fj.connection",
    "fastjournal.daemon.fj.dispatch",
    "fastjournal.daemon.fj.entries",
    "fastjournal.daemon.fj.jobs",
    "fastjournal.daemon.journal_loop",
    "fastjournal.daemon.session",
    "fastjournal.daemon.transport",
    "fastjournal.daemon.workq.connection",
    "fastjournal.entry_value",
    "fastjournal.handles",
    "fastjournal.journal.decide.ground",
    "fastjournal.journal.decide.lease",
    "fastjournal.journal.decide.merge",
    "fastjournal.journal.decide.operator",
    "fastjournal.journal.decide.put",
    "fastjournal.journal.decide.timers",
    "fastjournal.journal.disk.playback",
    "fastjournal.journal.engine.counting",
    "fastjournal.journal.engine.engine",
    "fastjournal.journal.engine.entry_operations",
    "fastjournal.journal.engine.forwarding",
    "fastjournal.journal.engine.job_keys",
    "fastjournal.journal.engine.operations",
    "fastjournal.journal.engine.reserve",
    "fastjournal.journal.engine.wakeups",
    "fastjournal.journal.entries.key_query",
    "fastjournal.journal.entries.ground",
    "fastjournal.journal.entries.locks",
    "fastjournal.journal.entries.once",
    "fastjournal.journal.entries.reads",
    "fastjournal.journal.entries.writes",
    "fastjournal.journal.journal",
    "fastjournal.journal.language.codec",
    "fastjournal.journal.language.commands",
    "fastjournal.journal.language.varint",
    "fastjournal.journal.spill.fetching",
    "fastjournal.journal.spill.records",
    "fastjournal.journal.state.apply",
    "fastjournal.journal.state.ends",
    "fastjournal.journal.state.entry_keys",
    "fastjournal.journal.state.keys",
    "fastjournal.journal.state.numbered",
    "fastjournal.journal.state.orders",
    "fastjournal.journal.state.placement",
    "fastjournal.journal.state.queue_rows",
    "fastjournal.journal.state.row",
    "fastjournal.journal.state.rows",
    "fastjournal.journal.state.selection",
    "fastjournal.journal.state.values",
    "fastjournal.log.files",
    "fastjournal.log.record",
    "fastjournal.log.write.active_standby",
    "fastjournal.log.write.commit_log",
    "fastjournal.log.write.commit_queue",
    "fastjournal.log.write.counters",
    "fastjournal.log.write.log_writer",
    "fastjournal.log.write.segment_writer",
    "fastjournal.log.synced_mark",
    "fastjournal.put_request",
    "fastjournal.spool.sound_frames",
    "fastjournal.wire.fj.bulk",
    "fastjournal.wire.fj.client",
    "fastjournal.wire.fj.entry_codec",
    "fastjournal.wire.fj.requests",
    "fastjournal.wire.fj.fields",
    "fastjournal.wire.fj.job_codec",
    "fastjournal.wire.fj.replies",
)
"""The modules that are compiled, in no order."""

MARKER = "sources"
"""Beside the compiled modules of a checkout: what they were made from."""

_SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def source_of(module: str) -> str:
    """The source file of a module of this package."""
    return os.path.join(_SOURCE, *module.split(".")) + ".py"


def source_state() -> str:
    """What a build depends on: the interpreter, and size and age of each source."""
    lines = [f"python {sys.implementation.cache_tag}"]
    for module in CORE:
        status = os.stat(source_of(module))
        lines.append(f"{module} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(lines)


def choose_core(build: str | None) -> None:
    """Decide once, before the first module of the core is imported; `build`: that of a checkout."""
    if os.environ.get("FASTJOURNAL_PURE", "0") not in ("", "0"):
        sys.meta_path.insert(0, _Finder({name: source_of(name) for name in CORE}))
        return
    if build is None:
        return
    with open(os.path.join(build, MARKER)) as marker:
        made_from = marker.read()
    if made_from != source_state():
        print(
            "fastjournal: the compiled core is older than its sources, the interpreted one runs;"
            " `make setup` compiles it anew",
            file=sys.stderr,
        )
        return
    suffix = EXTENSION_SUFFIXES[0]
    found = {name: os.path.join(build, *name.split(".")) + suffix for name in CORE}
    for name in os.listdir(build):
        if name.endswith(suffix):
            found[name.removesuffix(suffix)] = os.path.join(build, name)
    sys.meta_path.insert(0, _Finder(found))


def describe_core() -> str:
    """`compiled` or `pure`: the build of the core that runs in this process."""
    from importlib import import_module

    file = import_module("fastjournal.put_request").__file__ or ""  # a small one
    return "compiled" if file.endswith(tuple(EXTENSION_SUFFIXES)) else "pure"


class _Finder:
    """Finds modules of the core in files chosen ahead."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        file = self._files.get(name)
        return None if file is None else spec_from_file_location(name, file)
