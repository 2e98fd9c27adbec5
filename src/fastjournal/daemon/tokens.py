"""Tokens: who may do what on which journal.

The file has one line per token, `#` begins a remark:

    name  hash  roles  journals

where `hash` is 64 hex digits of SHA-256, `roles` some of `read,produce,consume,admin`, and
`journals` a list separated by commas, or `*`.

Rules:

1. A token is 256 random bits, so a plain SHA-256 cannot be searched; the file is useless to whoever
   steals it.
2. Every line is compared, in constant time each: how long it takes tells nothing about a token.
3. A token is never logged, shown or kept; `repr` shows names and roles only.
4. A file that others may write is refused, and so is a malformed line, with its number.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path
from typing import NamedTuple

from fastjournal.errors import SettingError

__all__ = ["ROLES", "Grant", "Tokens", "add_token", "make_token", "read_tokens", "remove_token"]

ROLES = ("read", "produce", "consume", "admin")
_HASH = re.compile(r"[0-9a-f]{64}").fullmatch
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,100}").fullmatch


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
