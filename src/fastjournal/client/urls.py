"""Where a journal is: one string.

    ./jobs  embedded:./jobs         a directory, opened in this process
    fj://host:port/journal          a daemon
    fjs://host:port/journal         a daemon behind TLS
    fj://a:port,b:port,c/journal    several nodes of which one serves; the others name it
    unix:/run/fastjournal.sock      a daemon on this machine; `?journal=name`

Options stand behind `?`, joined by `&`: `token`, `token_file`, `journal`, `name`, `ca`, `cert`,
`key`, `timeout`, `connect_timeout`, `insecure`, `read`, `max_lag`, `group`. A token may also stand
in the user part (`fjs://token@host`) or in the environment, `FASTJOURNAL_TOKEN`.

Rules:

1. A token is never part of `repr` or of an error.
2. Options that are not known are refused by name.
3. A host and port without a scheme is an error that names the form meant, not a directory.
4. A token is not sent in clear beyond this machine: `fj://` with a token is for loopback addresses,
   unless `insecure=1` says that the network may see it.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from fastjournal.arguments import is_host_name, seconds_of
from fastjournal.errors import ProtocolError, SettingError

if TYPE_CHECKING:
    import ssl

__all__ = ["DEFAULT_PORT", "MAX_GROUP", "Target", "parse_url", "target_of", "tls_context"]

DEFAULT_PORT = 17994
MAX_GROUP = 4096
"""Journals of a group."""
_OPTIONS = frozenset(
    (
        "token", "token_file", "journal", "name", "ca", "cert", "key", "timeout",
        "connect_timeout", "insecure", "read", "max_lag", "group",
    )
)  # fmt: skip


_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}(/\w*)?")
_YES_OR_NO = {"0": False, "1": True}


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect and as whom."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    path: str = ""
    """Of a Unix socket; else empty."""
    journal: str = ""
    tls: bool = False
    token: str = field(default="", repr=False)
    name: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    timeout: float = 30.0
    """Seconds an answer may take, beyond what was asked to wait."""
    connect_timeout: float = 5.0
    insecure: bool = False
    """A token may be sent in clear to another machine."""
    others: tuple[tuple[str, int], ...] = ()
    """Where else it may be: other nodes that keep the same journal."""
    follower: bool = False
    """Looking is served by a node that does not lead, if what it has is not too old."""
    max_lag: float = 5.0
    """Seconds by which that may be old."""
    group: int = 0
    """How many journals the group has whose home this is; 0: it is no group."""

    def __post_init__(self) -> None:
        hosts = [self.host, *(host for host, _ in self.others)]
        clear = [host for host in hosts if not _is_local(host)] if self.token else []
        if clear and not (self.tls or self.path or self.insecure):
            raise SettingError(
                f"a token would go to {clear[0]} in clear: use fjs://, or say insecure=1",
                name="url",
            )

    def nodes(self) -> list[Target]:
        """Each node by itself, in any order: nobody knows which of them serves."""
        found = [(self.host, self.port), *self.others]
        return [
            replace(self, host=host, port=port, others=())
            for host, port in random.sample(found, len(found))
        ]

    def moved(self, address: str) -> Target:
        """The same journal at `host:port`; the rule about tokens holds there too."""
        try:
            parts = urlsplit(f"//{address}")
            host, port = parts.hostname or "", parts.port or DEFAULT_PORT
        except ValueError as error:
            raise ProtocolError(f"{address!r} is no address of a node: {error}") from None
        if not is_host_name(host):
            raise ProtocolError(f"{address!r} is no address of a node")
        return replace(self, host=host, port=port, path="", others=())

    @property
    def address(self) -> str:
        """For people."""
        if self.path:
            return f"unix:{self.path}"
        nodes = [(self.host, self.port), *self.others]
        return ",".join(f"{host}:{port}" for host, port in nodes)


def target_of(where: Target | str) -> Target:
    """Where a daemon is, of what names one; a directory is a `SettingError`."""
    if isinstance(where, Target):
        return where
    found = parse_url(where)
    if not isinstance(found, Target):
        raise SettingError(f"{where} is a directory; a daemon is fj://host:port", name="url")
    return found


def parse_url(url: str) -> Target | Path:
    """What a string means: a daemon, or the directory of an embedded journal."""
    scheme = url.partition(":")[0]
    if scheme == "spool":
        raise SettingError("spool: is for producers; use fastjournal.spool", name="url")
    if scheme == "embedded":
        return Path(url.removeprefix("embedded:"))
    if scheme not in ("fj", "fjs", "unix"):
        if "://" in url:
            raise SettingError(f"unknown scheme {scheme!r}: use fj, fjs, unix", name="url")
        if _HOST_AND_PORT.fullmatch(url) and not Path(url).exists():
            raise SettingError(
                f"{url} looks like a daemon: write fj://{url}; or ./{url} for a directory",
                name="url",
            )
        return Path(url)
    others: tuple[tuple[str, int], ...] = ()
    try:
        if scheme != "unix":
            url, others = _split_nodes(url)
        parts = urlsplit(url)
    except ValueError as error:
        raise SettingError(f"{url} is no address: {error}", name="url") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise SettingError(f"unknown option {unknown[0]!r} in the URL", name=unknown[0])
    try:
        port = parts.port
        token = _token(options, parts.username)
        target = Target(
            journal=options.get("journal", ""),
            name=options.get("name", ""),
            ca=options.get("ca", ""),
            cert=options.get("cert", ""),
            key=options.get("key", ""),
            timeout=_seconds(options.get("timeout", "30")),
            connect_timeout=_seconds(options.get("connect_timeout", "5")),
            insecure=_YES_OR_NO[options.get("insecure", "0")],
            follower=_follows(options.get("read", "primary")),
            max_lag=_seconds(options.get("max_lag", "5")),
            group=_group(options.get("group", "0")),
        )
    except KeyError:
        raise SettingError("insecure is 0 or 1", name="insecure") from None
    except ValueError as error:
        raise SettingError(f"{parts.hostname}: {error}", name="url") from None
    if scheme == "unix":
        if not parts.path:
            raise SettingError("unix: needs the path of a socket", name="url")
        return replace(target, path=unquote(parts.path), token=token)
    for host in (parts.hostname or "", *(host for host, _ in others)):
        if host and not is_host_name(host):
            raise SettingError(f"{host!r} is no name of a host", name="url")
    journal = unquote(parts.path.strip("/")) or target.journal
    return replace(
        target,
        host=parts.hostname or "127.0.0.1",
        port=port or DEFAULT_PORT,
        journal=journal,
        tls=scheme == "fjs",
        token=token,
        others=others,
    )


def _seconds(text: str) -> float:
    """A length of time: seconds, or with a unit (250ms, 5s, 10m)."""
    seconds = seconds_of(text)
    if seconds is None:
        raise ValueError(f"{text!r} is no length (seconds, or 250ms 5s 10m)")
    return seconds


def _follows(text: str) -> bool:
    if text not in ("primary", "follower"):
        raise ValueError(f"read is primary or follower, not {text!r}")
    return text == "follower"


def _group(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_GROUP:
        raise ValueError(f"group is how many journals it has, up to {MAX_GROUP}, not {text!r}")
    return int(text)


def _split_nodes(url: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """The URL of the first node, and where the others are."""
    # By hand: `urlsplit` takes an address of IPv6 at the beginning alone.
    netloc = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]
    first, *more = netloc.split(",")
    if not more:
        return url, ()
    found = []
    for node in more:
        try:
            parts = urlsplit(f"//{node}")
            found.append((parts.hostname or "", parts.port or DEFAULT_PORT))
        except ValueError as error:
            raise SettingError(f"{node}: {error}", name="url") from None
        if not found[-1][0]:
            raise SettingError(f"{netloc}: a host is missing between the commas", name="url")
    return url.replace(netloc, first, 1), tuple(found)


def _is_local(host: str) -> bool:
    import ipaddress  # whoever has no token does not pay for it

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_context(target: Target) -> ssl.SSLContext | None:
    """The TLS side of a client; None if the URL asks for none."""
    if not target.tls:
        return None
    import ssl  # a client without TLS does not pay for it

    try:
        context = ssl.create_default_context(cafile=target.ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if target.cert:
            context.load_cert_chain(target.cert, target.key or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"TLS files cannot be used: {error}", name="ca") from error
    return context


def _token(options: dict[str, str], user: str | None) -> str:
    if user:
        return unquote(user)
    if "token" in options:
        return options["token"]
    if "token_file" in options:
        try:
            return Path(options["token_file"]).read_text("utf-8").strip()
        except OSError as error:
            raise SettingError(f"token_file: {error.strerror}", name="token_file") from None
    return os.environ.get("FASTJOURNAL_TOKEN", "")
