"""Digest of a key, and the domain of a resource.

Rules:

1. The digest is MurmurHash3 x64 with 128 bits and the seed of the store; the seed is drawn once
   and never changes, since digests are compared across machines and years.
2. A key is `[function NUL] resource`; the domain is that of the resource.
"""

from __future__ import annotations

import mmh3

from fastjournal.errors import BadRequest, TooLarge

__all__ = ["MAX_KEY", "MAX_QUEUE", "digest", "domain"]

MAX_KEY = 65_535
MAX_QUEUE = 255


def digest(key: bytes, seed: int = 0) -> bytes:
    """The 16 bytes that stand for a key."""
    return mmh3.mmh3_x64_128_digest(key, seed)


def domain(resource: bytes) -> bytes:
    """The queue a resource belongs to when its producer names none.

    It is the authority of a URI (host and port, lower case, without user), else the text before
    the first `:` or `/`, else the whole. A resource that begins with `/` or `:` has none.
    """
    resource = resource.rpartition(b"\0")[2]
    scheme, mark, rest = resource.partition(b"://")
    if mark and scheme.replace(b"+", b"").replace(b"-", b"").replace(b".", b"").isalnum():
        authority = rest
        for end in (b"/", b"?", b"#"):
            authority = authority.partition(end)[0]
        name = authority.rpartition(b"@")[2].lower()
    else:
        name = resource.partition(b"/")[0].partition(b":")[0]
    if not name:
        raise BadRequest("the key has no domain: name a queue")
    if len(name) > MAX_QUEUE:
        raise TooLarge(f"the domain of the key has {len(name)} bytes, at most {MAX_QUEUE} allowed")
    return name
