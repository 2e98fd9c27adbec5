"""Calls about key/value entries, from the arguments of `journal.entries`.

Rules: those of `calls`, and

1. `now` is what lengths count from, see `Caller.base`: None, and they are sent as they are.
2. What may be sent again: plain writes (the last one wins), additions and flips (they carry a
   number, so each is made once), reading, locking. Not: storing without overwriting, renaming.
3. An entry persists unless told otherwise, and is answered as the daemon's sync policy promises.
4. What callers hand in may be of any type: `arguments` and `to_value` check it, so that both builds
   of the core refuse it in the same words.
"""

from typing import Any, Final

from fastjournal.arguments import instant, key_bytes, length, worker_bytes
from fastjournal.client.calls import Call, make_call, nothing, value_of
from fastjournal.clock import SECOND
from fastjournal.entry_model import Entry, EntryChange, EntryPage
from fastjournal.entry_value import EntryValue, from_value, to_value
from fastjournal.errors import BadRequest, NotFound, ProtocolError
from fastjournal.model import MAX_INSTANT
from fastjournal.wire.fj.entry_codec import ALL, decode_entry, encode_who
from fastjournal.wire.fj.fields import decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    DATA,
    EXACT,
    KEPT,
    LENGTH,
    OVERWRITE,
    PERSIST,
    WORKED_ON,
    Function,
    Query,
    Type,
)
from fastjournal.wire.fj.json_values import load
from fastjournal.wire.fj.replies import Reply
from fastjournal.wire.fj.requests import encode_request

__all__ = [
    "add",
    "alias",
    "change",
    "count",
    "delete",
    "entry",
    "flip",
    "get",
    "get_value",
    "listen",
    "lock",
    "page",
    "rename",
    "set_entry",
    "truncate",
    "unlock",
]

_JOB: Final = 6
_SET: Final = int(Function.SET)
_GET: Final = int(Function.GET)
_ADD: Final = int(Function.ADD)
_KEY: Final = Query.KEY
_RANGE: Final = Query.RANGE


def _who(fence: int = 0, name: bytes = b"") -> dict[str, Any]:
    if not fence and not name:
        return {}
    return {"query": Query.RANGE, "upper": encode_who(fence, name)}


def _stamp(timestamp: Any) -> int:
    return 0 if timestamp is None else instant(timestamp, "timestamp")


def _until(now: int | None, lasts: int) -> dict[str, int]:
    """The timeout of a call that is to hold for so long."""
    if now is None:
        return {"timeout": min(lasts, MAX_INSTANT), "flags": LENGTH}
    return {"timeout": min(now + lasts, MAX_INSTANT), "flags": 0}


def set_entry(
    now: int | None,
    key: Any,
    value: Any,
    ttl: Any = None,
    expires: Any = None,
    touch: Any = None,
    overwrite: bool = True,
    persist: bool = True,
    timestamp: Any = None,
    fence: int = 0,
    lasting: int = KEPT,
) -> Call:
    """Store a value; the answer is False if an equal or newer one is there.

    `lasting`: the bit that makes it persist.
    """
    name = key_bytes(key)
    kind, data = to_value(value)
    if ttl is not None and expires is not None:
        raise BadRequest("give ttl or expires, not both")
    kept = 0 if touch is None else length(touch, "touch")
    flags = 0
    if overwrite:
        flags = OVERWRITE
    if persist:
        flags |= lasting
    timeout: int | None = None
    if expires is not None:
        timeout = instant(expires, "expires")
        flags |= EXACT
    elif ttl is not None or touch is not None:
        timeout = kept if ttl is None else length(ttl, "ttl")
        flags |= EXACT
        if now is None:
            flags |= LENGTH
        else:
            timeout = min(now + timeout, MAX_INSTANT)
    message = encode_request(
        _SET, 1, flags=flags, timestamp=_stamp(timestamp), timeout=timeout,
        query=_RANGE if fence else _KEY, ttl=-(-kept // SECOND) if kept else None,
        key=name, upper=encode_who(fence) if fence else b"", value_type=kind, value=data,
    )  # fmt: skip
    return Call(message, _not_stale, 0.0, overwrite)


def _not_stale(reply: Reply) -> bool:
    return not reply.stale


def get(key: Any) -> Call:
    """Type and bytes of a value."""
    return Call(encode_request(_GET, 1, flags=DATA, key=key_bytes(key)), _read_value)


def get_value(key: Any) -> Call:
    """As `get`, but the answer is the value itself."""
    return get(key).read_by(_read_python)


def _read_python(reply: Reply) -> EntryValue:
    return from_value(*_read_value(reply))


def _read_value(reply: Reply) -> tuple[int, bytes]:
    if not reply.pairs or reply.pairs[0].type == _JOB:
        raise NotFound("there is no such entry")
    return reply.pairs[0].type, reply.pairs[0].value


def entry(
    now: int | None,
    key: Any,
    data: bool = True,
    lease: Any = None,
    worker: Any = b"",
    skip_worked_on: bool = False,
    expires: Any = None,
    detail: int = ALL,
) -> Call:
    """An entry with all that is known of it; `detail`: as much as the daemon can tell."""
    if lease is not None and expires is not None:
        raise BadRequest("over a daemon give lease or expires, not both")
    name = key_bytes(key)
    fields: dict[str, Any] = {
        "flags": (DATA if data else 0) | (WORKED_ON if skip_worked_on else 0),
        "key": name, "ttl": detail,
    }  # fmt: skip
    if worker:
        fields |= {"value_type": Type.STRING, "value": worker_bytes(worker)}
    if lease is not None:
        until = _until(now, length(lease, "lease"))
        fields["timeout"] = until["timeout"]
        fields["flags"] |= until["flags"]
    elif expires is not None:
        fields["timeout"] = instant(expires, "expires")
        fields["flags"] |= EXACT

    def read(reply: Reply) -> Entry:
        return decode_entry(name, reply.pairs[0].type, value_of(reply))

    return make_call(Function.GET, read, fields)


def page(
    lower: Any = b"",
    upper: Any = b"",
    match: Any = b"",
    cursor: bytes = b"",
    limit: int = 0,
    data: bool = True,
    detail: int = ALL,
) -> Call:
    """Some entries of a range, of a pattern, or the rest of either."""
    fields: dict[str, Any] = {"flags": DATA if data else 0, "ttl": detail}
    if cursor:
        fields |= {"query": Query.CURSOR, "key": cursor}
    elif match:
        raw = match.encode() if isinstance(match, str) else bytes(match)
        fields |= {"query": Query.PATTERN, "key": raw}
    else:
        low = key_bytes(lower) if lower else b""
        high = key_bytes(upper) if upper else b""
        if not 0 <= limit <= 65_535:
            raise BadRequest(f"limit must be 0..65535, not {limit}")
        fields |= {"query": Query.RANGE, "key": low, "upper": high, "limit": limit}
    return make_call(Function.GET, _read_page, fields)


def _read_page(reply: Reply) -> EntryPage:
    return EntryPage(
        [decode_entry(pair.key, pair.type, pair.value) for pair in reply.pairs], reply.cursor or b""
    )


def delete(key: Any, purge: bool = False, timestamp: Any = None, fence: int = 0) -> Call:
    """Delete an entry; the answer says whether there was one."""
    # An empty queue: the entry alone, no jobs of this key. Only a tombstone of an unknown key needs
    # to be told that it is to last.
    fields: dict[str, Any] = {
        "flags": (OVERWRITE if purge else 0) | (0 if timestamp is None else PERSIST),
        "timestamp": _stamp(timestamp), "key": key_bytes(key), "value_type": Type.STRING,
    }  # fmt: skip
    return make_call(Function.DELETE, _is_counted, fields | _who(fence))


def _is_counted(reply: Reply) -> bool:
    return decode_integer(value_of(reply)) > 0


def add(
    key: Any,
    number: Any,
    sender: bytes,
    timestamp: int,
    persist: bool = True,
    fence: int = 0,
    lasting: int = KEPT,
) -> Call:
    """Add to a number; `sender` and `timestamp` (ns) number the addition."""
    kind, data = to_value(number)
    who = fence != 0 or len(sender) > 0
    message = encode_request(
        _ADD, 1, flags=lasting if persist else 0, timestamp=timestamp,
        query=_RANGE if who else _KEY, key=key_bytes(key),
        upper=encode_who(fence, sender) if who else b"", value_type=kind, value=data,
    )  # fmt: skip
    return Call(message, change)


def change(reply: Reply) -> EntryValue:
    """The value after a change."""
    return from_value(reply.pairs[0].type, value_of(reply))


def flip(key: Any, sender: bytes, timestamp: int, fence: int = 0) -> Call:
    """Turn a boolean over; `sender` and `timestamp` (ns) number the change."""
    fields: dict[str, Any] = {"timestamp": timestamp, "key": key_bytes(key)}
    return make_call(Function.NOT, change, fields | _who(fence, sender))


def truncate(key: Any, size: Any, fence: int = 0) -> Call:
    """Cut or fill up a value."""
    if type(size) is not int or size < 0:
        raise BadRequest("a size is a number, not negative")
    fields: dict[str, Any] = {
        "key": key_bytes(key), "value_type": Type.INTEGER, "value": encode_integer(size),
    }  # fmt: skip
    return make_call(Function.TRUNCATE, nothing, fields | _who(fence))


def rename(
    key: Any, new: Any, overwrite: bool = False, timestamp: Any = None, fence: int = 0
) -> Call:
    """Give an entry another key; the answer is False if a newer write forbids it."""
    fields: dict[str, Any] = {
        "flags": OVERWRITE if overwrite else 0, "timestamp": _stamp(timestamp),
        "key": key_bytes(key), "value_type": Type.BUFFER, "value": key_bytes(new),
    }  # fmt: skip
    return make_call(Function.RENAME, _not_stale, fields | _who(fence), again=False)


def alias(key: Any, further: Any, fence: int = 0) -> Call:
    """Give an entry a further key."""
    fields: dict[str, Any] = {
        "key": key_bytes(key), "value_type": Type.BUFFER, "value": key_bytes(further),
    }  # fmt: skip
    return make_call(Function.ALIAS, nothing, fields | _who(fence))


def lock(now: int | None, key: bytes, owner: bytes, lasts: int) -> Call:
    """Fencing number and deadline of a lock, taken or kept."""
    fields: dict[str, Any] = {"key": key} | _until(now, lasts)
    return make_call(Function.LOCK, _read_lock, fields | _who(0, owner))


def _read_lock(reply: Reply) -> tuple[int, int]:
    return decode_integer(value_of(reply)), reply.timeout or 0


def unlock(key: bytes, fence: int) -> Call:
    """Free a lock."""
    return make_call(Function.UNLOCK, nothing, {"key": key} | _who(fence))


def count() -> Call:
    """How many entries there are."""
    fields = {"value_type": Type.STRING, "value": b"entries"}

    def read(reply: Reply) -> int:
        found = load(value_of(reply))
        if not isinstance(found, dict):
            raise ProtocolError("the server does not count entries")
        return int(found["count"])

    return make_call(Function.INSPECT, read, fields)


def listen(lower: bytes, upper: bytes | None) -> Call:
    """Be told of the changes of a key, or of a range."""
    fields: dict[str, Any] = {"key": lower}
    if upper is not None:
        fields |= {"query": Query.RANGE, "upper": upper}
    return make_call(Function.LISTEN, nothing, fields)


def read_change(reply: Reply) -> EntryChange:
    """What a push tells."""
    pair = reply.pairs[0] if reply.pairs else None
    if pair is None or not pair.key:
        return EntryChange(b"", at=reply.timestamp)
    return EntryChange(pair.key, pair.type, reply.gone, reply.timestamp)
