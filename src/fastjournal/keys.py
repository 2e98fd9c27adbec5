"""Where a key belongs: to a queue, where its producer names none, and to a journal of a group.

Rules:

1. A key is `[function NUL] resource`; its queue is the domain of the resource.
2. A program may have another rule (`use_domain`); it holds for all of the process. Whoever names
   jobs by their keys alone needs the same rule: producers, consumers and the daemon.
3. A group is a fixed number of journals. Queue and key always meet the same one, so merging and one
   at a time for each key hold. It is found by MurmurHash3, which every language has; it is not for
   secrets: whoever chooses a key can choose the journal. Some 4 µs for a short key.
"""

from __future__ import annotations

from fastjournal.errors import BadRequest, SettingError, TooLarge

TYPE_CHECKING = False  # a producer's import must cost next to nothing
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_KEY", "MAX_QUEUE", "digest", "domain", "murmur128", "shard_of", "use_domain"]

MAX_KEY = 65_535
MAX_QUEUE = 255
_own: list[Callable[[bytes], bytes]] = []
_ALL = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F


def use_domain(extractor: Callable[[bytes], bytes] | None) -> None:
    """Let this function say to which queue a key belongs; None: the usual rule again."""
    _own[:] = [] if extractor is None else [extractor]


def domain(resource: bytes) -> bytes:
    """The queue a resource belongs to when its producer names none.

    It is the authority of a URI (host and port, lower case, without user), else the text before
    the first `:` or `/`, else the whole. A resource that begins with `/` or `:` has none.
    """
    name = bytes(_own[0](resource)) if _own else _usual(resource)
    if not name:
        raise BadRequest("the key has no domain: name a queue")
    if len(name) > MAX_QUEUE:
        raise TooLarge(f"the domain of the key has {len(name)} bytes, at most {MAX_QUEUE} allowed")
    return name


def _usual(resource: bytes) -> bytes:
    resource = resource.rpartition(b"\0")[2]
    scheme, slashes, rest = resource.partition(b"://")
    if slashes and scheme.replace(b"+", b"").replace(b"-", b"").replace(b".", b"").isalnum():
        authority = rest
        for end in (b"/", b"?", b"#"):
            authority = authority.partition(end)[0]
        return authority.rpartition(b"@")[2].lower()
    return resource.partition(b"/")[0].partition(b":")[0]


def shard_of(queue: bytes, key: bytes, shards: int) -> int:
    """Which journal of a group keeps the jobs of this key."""
    if shards < 1:
        raise SettingError(f"a group has at least one journal, not {shards}", name="group")
    digest = murmur128(len(queue).to_bytes(2, "big") + queue + key)
    return int.from_bytes(digest, "big") % shards


def murmur128(data: bytes, seed: int = 0) -> bytes:
    """The 16 bytes of `MurmurHash3_x64_128`, both halves big endian."""
    h1 = h2 = seed
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        h1 ^= _first(int.from_bytes(data[at : at + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _ALL
        h2 ^= _second(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _ALL
    rest = data[whole:]
    h1 ^= _first(int.from_bytes(rest[:8], "little"))
    h2 ^= _second(int.from_bytes(rest[8:], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = h1 + h2 & _ALL
    h2 = h2 + h1 & _ALL
    h1, h2 = _mixed(h1), _mixed(h2)
    h1 = h1 + h2 & _ALL
    return (h1 << 64 | h2 + h1 & _ALL).to_bytes(16, "big")


def digest(key: bytes, seed: int = 0) -> bytes:
    """`murmur128` with both halves little endian, as 0.1.0 gave it; deprecated."""
    import warnings

    warnings.warn("keys.digest: use keys.murmur128", DeprecationWarning, stacklevel=2)
    number = murmur128(key, seed)
    return number[7::-1] + number[:7:-1]


def _first(k: int) -> int:
    return _rotated(k * _C1 & _ALL, 31) * _C2 & _ALL


def _second(k: int) -> int:
    return _rotated(k * _C2 & _ALL, 33) * _C1 & _ALL


def _rotated(x: int, by: int) -> int:
    return (x << by | x >> 64 - by) & _ALL


def _mixed(k: int) -> int:
    k ^= k >> 33
    k = k * 0xFF51AFD7ED558CCD & _ALL
    k ^= k >> 33
    k = k * 0xC4CEB9FE1A85EC53 & _ALL
    return k ^ k >> 33
