"""The domain of a resource: its queue, where its producer names none.

Rules:

1. A key is `[function NUL] resource`; the domain is that of the resource.
2. A program may have another rule (`use_domain`); it holds for all of the process. Whoever names
   jobs by their keys alone needs the same rule: producers, consumers and the daemon.
"""

from __future__ import annotations

from fastjournal.errors import BadRequest, TooLarge

TYPE_CHECKING = False  # a producer's import must cost next to nothing
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_KEY", "MAX_QUEUE", "domain", "use_domain"]

MAX_KEY = 65_535
MAX_QUEUE = 255
_own: list[Callable[[bytes], bytes]] = []


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
    scheme, mark, rest = resource.partition(b"://")
    if mark and scheme.replace(b"+", b"").replace(b"-", b"").replace(b".", b"").isalnum():
        authority = rest
        for end in (b"/", b"?", b"#"):
            authority = authority.partition(end)[0]
        return authority.rpartition(b"@")[2].lower()
    return resource.partition(b"/")[0].partition(b":")[0]
