"""Who may come in, and what they may do: tokens and their roles, addresses, certificates.

The file of tokens has one line per token, `#` begins a remark:

    name  hash  roles  journals

where `hash` is 64 hex digits of SHA-256, `roles` some of `read,produce,consume,admin`, and
`journals` a list separated by commas, or `*`.

Rules:

1. A token is 256 random bits, so a plain SHA-256 cannot be searched; the file is useless to whoever
   steals it.
2. Every line is compared, in constant time each: how long it takes tells nothing about a token.
3. A token is never logged, shown or kept; `repr` shows names and roles only.
4. A file that others may write is refused, and so is a malformed line, with its number.
5. What a role may call is the table of `wire.fj.functions`; `admin` may call everything, `read`
   looks.
6. Loopback addresses and Unix sockets need neither tokens nor TLS: only this machine gets there.
7. Any other address needs both, unless the operator says `insecure`. The Workq protocol knows
   neither, so beyond loopback it is always insecure.
8. TLS is 1.2 or newer; with `client_ca` every peer must show a certificate of it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fastjournal.config import Settings, TlsSettings, parse_address
from fastjournal.errors import SettingError
from fastjournal.wire.fj.functions import FUNCTIONS, Function, Role

__all__ = [
    "EVERYTHING",
    "ROLES",
    "Grant",
    "Tokens",
    "add_token",
    "allowed_functions",
    "check_exposure",
    "function_bits",
    "is_local",
    "make_token",
    "read_tokens",
    "remove_token",
    "server_context",
]

ROLES = ("read", "produce", "consume", "admin")
_HASH = re.compile(r"[0-9a-f]{64}").fullmatch
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,100}").fullmatch
_MAY_CALL = {
    Role.PRODUCE: frozenset({"produce"}),
    Role.CONSUME: frozenset({"consume"}),
    Role.EITHER: frozenset({"produce", "consume"}),
    Role.ADMIN: frozenset({"admin"}),
}
_LOOKS = frozenset((Function.STATUS, Function.INSPECT, Function.LIST, Function.RESULT))
"""What the role `read` may call."""


def function_bits(functions: Iterable[int]) -> int:
    """Functions as bits: that of number n is bit n."""
    return sum(1 << number for number in set(functions))


def allowed_functions(roles: frozenset[str]) -> int:
    """The functions that these roles may call, as bits."""
    return function_bits(
        number
        for number, row in FUNCTIONS.items()
        if row.role is Role.ANYONE
        or "admin" in roles
        or _MAY_CALL[row.role] & roles
        or ("read" in roles and number in _LOOKS)
    )


EVERYTHING = allowed_functions(frozenset({"admin"}))
"""What may be called where no tokens are demanded."""


class Grant(NamedTuple):
    """What one token allows."""

    name: str
    hash: str
    roles: frozenset[str]
    journals: frozenset[str]

    def opens(self, journal: str) -> bool:
        """Whether it is for this journal."""
        return journal in self.journals or "*" in self.journals

    def __repr__(self) -> str:
        return f"Grant({self.name!r}, {sorted(self.roles)}, {sorted(self.journals)})"


class Tokens:
    """The grants of a file."""

    def __init__(self, grants: list[Grant]) -> None:
        self.grants = grants

    def find(self, token: str) -> Grant | None:
        """The grant of a token; None if there is none."""
        digest = _hash(token)
        found = None
        for grant in self.grants:
            if hmac.compare_digest(grant.hash, digest):
                found = grant
        return found

    def __repr__(self) -> str:
        return f"Tokens({len(self.grants)} grants)"


def read_tokens(path: str | Path) -> Tokens:
    """Read a file of tokens."""
    path = Path(path)
    try:
        if path.stat().st_mode & 0o022:
            raise SettingError(f"{path} may be written by others", name="tokens")
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}", name="tokens") from error
    grants = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            grants.append(_grant(words, f"{path}, line {number}"))
    return Tokens(grants)


def make_token() -> str:
    """A new token, to be shown once."""
    return "fj_" + secrets.token_urlsafe(32)


def add_token(path: str | Path, name: str, roles: list[str], journals: list[str]) -> str:
    """Add a new token to a file, made if it is missing; returns the token."""
    path = Path(path)
    token = make_token()
    line = f"{name} {_hash(token)} {','.join(roles)} {','.join(journals) or '*'}"
    _grant(line.split(), "the new token")
    if path.exists() and any(grant.name == name for grant in read_tokens(path).grants):
        raise SettingError(f"{path} has a token named {name!r} already", name="name")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}", name="tokens") from error
    with open(handle, "a", encoding="utf-8") as file:
        file.write(line + "\n")
    return token


def remove_token(path: str | Path, name: str) -> None:
    """Take a token out of a file."""
    path = Path(path)
    lines = _text(path).splitlines(keepends=True)
    kept = [line for line in lines if line.partition("#")[0].split()[:1] != [name]]
    if len(kept) == len(lines):
        raise SettingError(f"{path} has no token named {name!r}", name="name")
    # A name that nobody can have placed there before, and that is made, not found.
    work = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    handle = os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        file.writelines(kept)
    work.replace(path)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}", name="tokens") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is no file of tokens", name="tokens") from error


def _grant(words: list[str], where: str) -> Grant:
    if len(words) not in (3, 4):
        raise SettingError(f"{where}: name, hash, roles, journals", name="tokens")
    name, digest, roles = words[:3]
    given = frozenset(roles.split(","))
    if not _NAME(name):
        raise SettingError(f"{where}: a name is letters, digits and _.@-", name="tokens")
    if not _HASH(digest):
        raise SettingError(f"{where}: a hash is 64 hex digits", name="tokens")
    if not given <= set(ROLES):
        raise SettingError(f"{where}: roles are {', '.join(ROLES)}", name="tokens")
    return Grant(name, digest, given, frozenset((words[3] if len(words) > 3 else "*").split(",")))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def is_local(address: str) -> bool:
    """Whether only this machine can reach the address."""
    if address.startswith("unix:"):
        return True
    host = parse_address(address)[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(settings: Settings) -> None:
    """Refuse settings that would let strangers in."""
    if settings.insecure:
        return
    guarded = settings.tokens and settings.tls.certificate
    for name, address in (*(("listen", one) for one in settings.listen), ("web", settings.web)):
        if address and not is_local(address) and not guarded:
            raise SettingError(
                f"{address} is not loopback: give tokens and a TLS certificate, or say insecure",
                name=name,
            )
    for address in settings.workq:
        if not is_local(address):
            raise SettingError(
                f"{address} is not loopback and the Workq protocol knows no tokens: say insecure",
                name="workq",
            )
    if settings.http and not is_local(settings.http):
        raise SettingError(f"{settings.http} is not loopback: say insecure", name="http")


def server_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """The TLS side of a listener; None without a certificate."""
    if not tls.certificate:
        if tls.key or tls.client_ca:
            raise SettingError("TLS needs a certificate", name="tls.certificate")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key or None)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"TLS files cannot be used: {error}", name="tls") from error
    return context
