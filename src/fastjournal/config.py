"""Settings of the daemon: a TOML file, then the environment, then what the command line says.

Rules:

1. Everything has a default: no file is needed.
2. An unknown name, a wrong type and a value out of range are refused with the name of the field.
3. `FASTJOURNAL_LISTEN` stands for `listen`, `FASTJOURNAL_LIMITS_IDLE_TIMEOUT` for
   `limits.idle_timeout`; lists are separated by commas.
4. Settings are frozen. Those of `RELOADABLE` are taken over while the daemon runs (SIGHUP).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from fastjournal.arguments import is_host_name
from fastjournal.errors import SettingError

__all__ = [
    "DEFAULT_PORT",
    "RELOADABLE",
    "WEB_CONNECTIONS",
    "WEB_PORT",
    "JournalSettings",
    "LimitSettings",
    "LogSettings",
    "ReplicaSettings",
    "Settings",
    "TlsSettings",
    "journal_settings",
    "load",
    "parse_address",
]

DEFAULT_PORT = 17994
"""0x464A: the letters FJ."""
WORKQ_PORT = 9922
WEB_PORT = DEFAULT_PORT + 1
WEB_CONNECTIONS = 200
"""Connections of the dashboard at a time, live streams included."""
RELOADABLE = ("limits", "log", "tokens", "tls")

_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Bytes = Annotated[int, Meta(ge=1024, le=1 << 32)]
_Seconds = Annotated[float, Meta(gt=0, le=86_400)]
_Off = Annotated[float, Meta(ge=0, le=86_400)]
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How much a connection may cost; sizes in bytes, times in seconds."""

    max_connections: _Count = 10_000
    """Peers beyond this number are turned away; the limit of open files may allow fewer."""
    max_message: _Bytes = 16 << 20
    """Largest request or reply."""
    max_payload: Annotated[int, Meta(ge=1, le=8 << 20)] = 1 << 20
    """Largest payload, value or result."""
    high_water: _Bytes = 1 << 20
    """Unsent bytes above which a connection is not read any more."""
    max_output: _Bytes = 64 << 20
    """Unsent bytes above which a connection is cut."""
    write_timeout: _Seconds = 30.0
    """A peer that does not read for so long is cut."""
    message_timeout: _Seconds = 30.0
    """A message that stays incomplete for so long ends its connection."""
    hello_timeout: _Seconds = 5.0
    """How long a stranger may take to show its token."""
    idle_timeout: _Off = 900.0
    """A peer that says and awaits nothing for so long is cut; 0: never."""
    push_backlog: _Count = 1000
    """Pushes a slow listener may leave unread; then it is told that some were lost."""
    drain: _Off = 10.0
    """How long a stop waits for requests under way."""


class JournalSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How each journal is kept; see `Journal`."""

    sync: Literal["always", "interval", "os"] = "interval"
    """When an answer is sent: after a sync, or after the write."""
    sync_interval: Annotated[int, Meta(ge=1, le=3_600_000)] = 1000
    """Milliseconds between two syncs under `interval`."""
    segment_size: Annotated[int, Meta(ge=4096)] = 64 << 20
    """Bytes after which the log goes on in the next segment."""
    clean_interval: _Off = 300.0
    """Seconds between two cleanings; 0: never by itself."""
    snapshot_bytes: Annotated[int, Meta(ge=0)] = 256 << 20
    """Growth of the log, in bytes, after which a snapshot is taken; 0: never by itself."""
    memory_limit: Annotated[int, Meta(ge=0)] = 0
    """Bytes of values that a journal holds in memory, the others stay on disk; 0: 8 MiB."""
    history: Literal["delete", "archive"] = "delete"
    """Deprecated; `archive` ships to the directory `archive` inside each journal."""
    archive: str = ""
    """Where all history is shipped to, below the name of each journal: `s3://bucket/jobs`,
    `gs://`, `az://`, `file:///backup` or a path; empty: nowhere."""
    archive_interval: _Seconds = 5.0
    """Seconds after which what is new is shipped, if 4 MiB have not come before."""
    archive_max_lag: Annotated[float, Meta(gt=0)] = 86_400.0
    """Seconds that cleaning waits for what is not shipped yet."""
    archive_behind: Literal["clean", "stop"] = "clean"
    """Then: clean, and begin the archive anew later; or stop taking writes."""
    archive_keep_days: Annotated[float, Meta(ge=0)] = 0.0
    """Instants older than this need not be restorable; 0: all are kept."""
    archive_keep_versions: Annotated[int, Meta(ge=2)] = 100
    """Manifests that are kept in the archive."""
    archive_compress: bool = False
    """Pack sealed segments with zstd."""
    on_failure: Literal["stop", "die"] = "stop"
    """After a failed sync: refuse every write, or end the process with exit code 4."""
    accept: bool = False
    """Take jobs out of a Workq server's log whose fields cannot be; else they are damage."""
    zone_bytes: Literal["0000", "ffff"] = "0000"
    """Zone bytes of record times; `ffff` is what the Workq server writes."""


class TlsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Files of certificates, PEM."""

    certificate: str = ""
    """Certificate of the daemon; with `key` it turns TLS on."""
    key: str = ""
    """Private key of the certificate."""
    client_ca: str = ""
    """Peers must show a certificate of these authorities (mutual TLS)."""


class LogSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What the daemon says on standard error."""

    format: Literal["text", "json"] = "text"
    """Lines for people, or JSON lines."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines still written."""


class ReplicaSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The default journal on several nodes; see docs/replication.md."""

    name: str = ""
    """This node; with it replication is on."""
    listen: str = "127.0.0.1:17996"
    """Address for the other nodes and for `fastjournal replica`."""
    peers: tuple[str, ...] = ()
    """The other nodes, `b=host:port`; this one may be among them."""
    clients: str = ""
    """Where clients find this node, as others tell them: `host:port`; else the first `listen`."""
    arbiter: tuple[str, ...] = ()
    """Addresses of one etcd: `http://host:2379`."""
    ack: Literal["one", "quorum", "all"] = "quorum"
    """How many nodes have done what `journal.sync` says before an answer is sent."""
    secret_file: str = ""
    """File whose content the nodes show each other; empty: for loopback addresses only."""
    ttl: Annotated[float, Meta(ge=2, le=600)] = 10.0
    """Seconds after which a primary that is not heard of any more is replaced."""
    catch_up: Annotated[int, Meta(ge=65_536)] = 64 << 20
    """Bytes a second that nodes which are behind are sent, so that the others are not slowed."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a daemon."""

    data: str = "fastjournal-data"
    """Directory of the journals, or of one embedded journal."""
    listen: tuple[str, ...] = (f"127.0.0.1:{DEFAULT_PORT}",)
    """Addresses of the FJ protocol: host:port, or unix:/path."""
    workq: tuple[str, ...] = ()
    """Addresses of the Workq protocol, which knows no tokens and no TLS."""
    http: str = ""
    """Address of /metrics, /healthz and /readyz."""
    web: str = ""
    """Address of the dashboard; its port is 17995 unless given."""
    journals: tuple[_Name, ...] = ()
    """Journals to make if they are missing; those in `data` are served anyway."""
    default_journal: _Name = "default"
    """The journal of clients that name none, and of the Workq protocol."""
    domain: str = ""
    """`module:function` that says which is [the queue of a key](queues.md#the-queue-of-a-key)."""
    tables: str = ""
    """File of [declared queues](queues.md#declared-queues) and journals, made true at the start."""
    tokens: str = ""
    """File of token hashes; with it every client must show one."""
    socket_mode: Annotated[str, Meta(pattern="^0?[0-7]{3}$")] = "660"
    """Permissions of Unix sockets."""
    insecure: bool = False
    """Listen beyond this machine without tokens and TLS."""
    limits: LimitSettings = LimitSettings()
    """Table `[limits]`."""
    journal: JournalSettings = JournalSettings()
    """Table `[journal]`."""
    tls: TlsSettings = TlsSettings()
    """Table `[tls]`."""
    log: LogSettings = LogSettings()
    """Table `[log]`."""
    replica: ReplicaSettings = ReplicaSettings()
    """Table `[replica]`."""


def load(
    path: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read settings; `overrides` are nested like the file, and win."""
    data: dict[str, Any] = {}
    if path is not None:
        try:
            with open(path, "rb") as file:
                data = tomllib.load(file)
        except OSError as error:
            raise SettingError(f"{path}: {error.strerror}", name="config") from error
        except tomllib.TOMLDecodeError as error:
            raise SettingError(f"{path}: {error}", name="config") from error
    _merge(data, _from_environment(os.environ if environment is None else environment))
    _merge(data, overrides or {})
    try:
        settings = msgspec.convert(data, Settings, strict=False)
        _check_interval(data.get("journal", {}), settings.journal)
        return settings
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        raise SettingError(f"{name or 'settings'}: {text}", name=name) from None


def journal_settings(settings: Settings, name: str, given: Mapping[str, Any]) -> Settings:
    """The settings as they hold for one journal, of which something else is told."""
    both = {"journals": [name], "journal": msgspec.structs.asdict(settings.journal) | dict(given)}
    try:
        own = msgspec.convert(both, Settings, strict=False).journal
        _check_interval(given, own)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$.")
        raise SettingError(f"journals.{name}: {text}", name=where.rstrip("`")) from None
    return msgspec.structs.replace(settings, journal=own)


def _check_interval(given: Mapping[str, Any], journal: JournalSettings) -> None:
    """Refuse an interval that nothing would follow."""
    if "sync_interval" in given and journal.sync != "interval":
        raise SettingError(
            f"journal.sync_interval means nothing with sync {journal.sync}",
            name="journal.sync_interval",
        )


def parse_address(address: str, port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Split `host:port`, `[v6]:port` or `host`; an empty host is loopback."""
    host, colon, number = address.rpartition(":")
    if not colon or "]" in number:
        host, number = address, str(port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not number.isdigit() or int(number) > 65_535:
        raise SettingError(f"{address!r} is not host:port", name="listen")
    if not is_host_name(host):
        raise SettingError(f"{address!r} is not host:port: there is no such host", name="listen")
    return host or "127.0.0.1", int(number)


_FIELDS: dict[str, tuple[str, ...]] = {}
for _field in msgspec.structs.fields(Settings):
    if isinstance(_field.default, Struct):
        for _inner in msgspec.structs.fields(type(_field.default)):
            _FIELDS[f"{_field.name}_{_inner.name}".upper()] = (_field.name, _inner.name)
    else:
        _FIELDS[_field.name.upper()] = (_field.name,)
_LISTS = frozenset({"listen", "workq", "journals", "peers", "arbiter"})


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in environment.items():
        path = _FIELDS.get(name.removeprefix("FASTJOURNAL_")) if "FASTJOURNAL_" in name else None
        if path is None:
            continue
        at = found
        for part in path[:-1]:
            at = at.setdefault(part, {})
        if path[-1] in _LISTS and path != ("replica", "listen"):
            at[path[-1]] = [part.strip() for part in value.split(",") if part.strip()]
        else:
            at[path[-1]] = value
    return found


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, Mapping):
            inner = into.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SettingError(f"{name} is a table", name=name)
            _merge(inner, value)
        else:
            into[name] = value
