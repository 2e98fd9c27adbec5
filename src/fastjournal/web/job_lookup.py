"""Looking jobs up in a journal that is at work, and the phases of their lives.

Rules:

1. An id and a whole key are found by the journal's indexes; a state by the index of that state
   where there is one, as far as `MAX_INDEX` jobs. Only parts of keys, and held and completed jobs,
   are looked for row by row: among the newest `MAX_LOOK` rows. The page says where it ended.
2. The journal's lock is held for some hundred rows at a time, never for all of them. So it is meant
   to run beside the loop, in a thread.
3. A list shows no values, so none is read from the log for it.
4. A phase lasts from one change of state to the next; the last one until now, if the job is there.
   Widths are shares of the whole in thousandths; a phase that is over at once stays visible.
5. What is done to all jobs that match is done to those found here, `MAX_ALL` at most, and to none
   that came, or died, after its `until`: what was counted for somebody is what they agree to.
6. Errors are told apart by the last line of their reason: of a traceback the exception. Those of
   dead jobs and of jobs that wait to be tried again are looked at, `MAX_INDEX` of each place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from fastjournal.arguments import last_words
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.journal.look.history import Step
from fastjournal.journal.state.queue_rows import QueueRows
from fastjournal.journal.state.row import DEAD, DONE, Row
from fastjournal.model import PLACES, State

__all__ = [
    "MAX_ALL",
    "MAX_LOOK",
    "Asked",
    "FailureReason",
    "Listed",
    "Matching",
    "Page",
    "Phase",
    "count_reasons",
    "find_all",
    "look",
    "phases_of",
]

MAX_LOOK = 200_000
MAX_INDEX = 10_000
MAX_ALL = 100_000
_SHORTEST = 8  # digits of an id
LINE = 500
"""Characters of the last line of a reason."""
_AT_ONCE = 500
_REASON = 1000  # bytes of its end, which tells most
_PHASES = {
    State.WAITING: "waiting",
    State.PROCESSING: "leased",
    State.COMPLETED: "completed",
    State.FAILED: "dead",
}
_LEAST = 4  # thousandths


class Asked(NamedTuple):
    """What somebody looks for."""

    words: bytes = b""
    """An id in hexadecimal or its beginning, a key, the beginning of one, or `*` and a part."""
    queue: bytes = b""
    place: str = ""
    offset: int = 0
    limit: int = 50
    error: str = ""
    """The last line of the reason."""
    until: int = 0
    """Leave out what came or died after this instant; 0: nothing is left out."""


class Listed(NamedTuple):
    """A job in a list."""

    id: str
    """In hexadecimal."""
    queue: bytes
    key: bytes
    place: str
    due: int
    inserted: int
    attempts: int
    timeouts: int
    fails: int
    priority: int
    size: int
    """Bytes of its value."""
    lease_until: int
    worker: bytes
    reason: bytes
    """What it failed with, or was given back with."""
    died: int
    """When it was given up; 0: it was not."""


class Page(NamedTuple):
    """Some of what was found."""

    jobs: list[Listed]
    more: bool
    """There are others behind them."""
    looked: int
    """How many rows were looked at."""
    cut: bool
    """There may be others that were not looked at."""


def look(host: JournalLoop, asked: Asked) -> Page:
    """A page of the jobs that were asked for."""
    jobs: list[Listed] = []
    passed = 0

    def list_row(row: Row) -> bool:
        nonlocal passed
        passed += 1
        if passed <= asked.offset:
            return True
        if len(jobs) == asked.limit:
            return False
        jobs.append(_listed(row))
        return True

    search = _Search(host, asked, MAX_INDEX)
    whole = search.show_each(list_row)
    return Page(jobs, not whole, search.looked, search.cut)


class Matching(NamedTuple):
    """All jobs that match, by where they stand."""

    places: dict[str, list[bytes]]
    """Ids."""
    cut: bool
    """There may be others that were not looked at."""

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(len(ids) for ids in self.places.values())


def find_all(host: JournalLoop, asked: Asked) -> Matching:
    """The ids of all jobs that were asked for, `MAX_ALL` at most."""
    places: dict[str, list[bytes]] = {word: [] for word in PLACES}
    count = 0

    def keep_id(row: Row) -> bool:
        nonlocal count
        if count == MAX_ALL:
            return False
        count += 1
        places[PLACES[row.place]].append(row.id)
        return True

    search = _Search(host, asked, MAX_ALL)
    whole = search.show_each(keep_id)
    return Matching(places, search.cut or not whole)


class FailureReason(NamedTuple):
    """Jobs that failed with the same words."""

    line: str
    dead: int
    retried: int
    """Jobs that wait to be tried again."""
    queues: list[bytes]
    newest: int
    """When the newest of the dead died; 0: none of them has."""


def count_reasons(host: JournalLoop) -> tuple[list[FailureReason], bool]:
    """Why jobs failed, the most frequent first, and whether some were not looked at."""
    counts: dict[str, list[int]] = {}
    queues: dict[str, set[bytes]] = {}

    def count_row(row: Row) -> bool:
        line = _last_line(row)
        if line:
            tally = counts.setdefault(line, [0, 0, 0])
            tally[0 if row.place == DEAD else 1] += 1
            if row.place == DEAD:
                tally[2] = max(tally[2], row.rare.when)
            queues.setdefault(line, set()).add(row.queue.name)
        return True

    cut = False
    for place in ("dead", "future", "ready"):
        search = _Search(host, Asked(place=place), MAX_INDEX)
        search.show_each(count_row)
        cut = cut or search.cut
    reasons = [
        FailureReason(line, dead, retried, sorted(queues[line]), newest)
        for line, (dead, retried, newest) in counts.items()
    ]
    reasons.sort(key=lambda one: (-one.dead - one.retried, one.line))
    return reasons, cut


class _Search:
    """The rows that were asked for."""

    def __init__(self, host: JournalLoop, asked: Asked, most: int) -> None:
        self._host = host
        exact = _exact(host, asked.words)
        self._parts: Iterable[list[bytes]]
        self.cut = False
        """There may be others that are not looked at."""
        self.looked = 0
        if exact:
            self._parts = [[row.id for row in exact]]
        elif asked.place in _INDEXED:
            found, self.cut = _indexed(host, asked, most)
            self._parts = _parts(found)
        else:
            self._parts, self.cut = _newest(host)
        self._wanted = _wanted(asked, bool(exact))

    def show_each(self, visit: Callable[[Row], bool]) -> bool:
        """Show each row under the lock, until `visit` has seen enough: then False."""
        host = self._host
        for part in self._parts:
            with host.engine.lock:
                now = host.state.promote(host.engine.clock.now())
                for row_id in part:
                    self.looked += 1
                    row = host.state.rows.get(row_id)
                    if row is None or not _is_there(row, now) or not self._wanted(row):
                        continue
                    if not visit(row):
                        return False
        return True


def _last_line(row: Row) -> str:
    more = row.rare
    reason = b"" if row.place == DONE else more.result or more.note
    return last_words(reason, LINE) if reason else ""


def _listed(row: Row) -> Listed:
    more = row.rare
    return Listed(
        row.id.hex(),
        row.queue.name,
        row.key,
        PLACES[row.place] if row.place < len(PLACES) else "deleted",
        row.due,
        row.inserted,
        row.attempts,
        more.timeouts,
        more.fails,
        -row.rank if row.workq or row.queue.settings.priority_order == "larger" else row.rank,
        row.size,
        row.lease_until,
        more.worker if row.lease_until else b"",
        more.result[-_REASON:] or more.note[-_REASON:],
        more.when if row.place == DEAD else 0,
    )


def _exact(host: JournalLoop, words: bytes) -> list[Row]:
    if not words:
        return []
    with host.engine.lock:
        try:
            row_id = bytes.fromhex(words.decode().replace("-", ""))
        except (ValueError, UnicodeDecodeError):
            row_id = b""
        row = host.state.rows.get(row_id) if len(row_id) == 16 else None
        if row is not None:
            return [row]
        return list(host.state.keys.everywhere(words))


def _newest(host: JournalLoop) -> tuple[Iterator[list[bytes]], bool]:
    """Ids of the newest rows, the newest first, and whether others were left out."""
    with host.engine.lock:
        arrivals = host.journal.lister.arrivals()
        end = len(arrivals)

    def parts() -> Iterator[list[bytes]]:
        for at in range(end, max(0, end - MAX_LOOK), -_AT_ONCE):
            yield arrivals.ids_before(at, _AT_ONCE)

    return parts(), end > MAX_LOOK


def _indexed(host: JournalLoop, asked: Asked, most: int) -> tuple[list[bytes], bool]:
    """Ids of rows that stand in an index, and whether others were left out."""
    with host.engine.lock:
        lanes, rows = host.state.queues, host.state.rows
        if asked.queue:
            lane = lanes.get(asked.queue)
            some: list[QueueRows] = [] if lane is None else [lane]
        else:
            some = list(lanes.values())
        if asked.place == "dead":  # each queue is in order, all together are not
            ids: Iterable[bytes] = heapq.merge(
                *[reversed(lane.dead) for lane in some if lane.dead],
                key=lambda row_id: rows[row_id].rare.when,
                reverse=True,
            )
        else:
            order = _INDEXED[asked.place]
            ids = (row.id for lane in some for row in order(lane))
        found = list(islice(ids, most + 1))
    return list(dict.fromkeys(found[:most])), len(found) > most


_INDEXED: dict[str, Callable[[QueueRows], Iterable[Row]]] = {
    "ready": lambda lane: lane.ready,
    "future": lambda lane: lane.future,
    "leased": lambda lane: lane.leases,
    "dead": lambda lane: (),
}


def _wanted(asked: Asked, exact: bool) -> Callable[[Row], bool]:
    place = PLACES.index(asked.place) if asked.place in PLACES else None
    words = b"" if exact else asked.words
    inside = words.strip(b"*") if words.startswith(b"*") else b""
    prefix = b"" if inside else words.rstrip(b"*")
    digits = _beginning_of_id(words)
    until = asked.until

    def wanted(row: Row) -> bool:
        return (
            (place is None or row.place == place)
            and (not asked.queue or row.queue.name == asked.queue)
            and (
                not prefix
                or row.key.startswith(prefix)
                or (digits != "" and row.id.hex().startswith(digits))
            )
            and (not inside or inside in row.key)
            and (not until or (row.inserted <= until and not _died_after(row, until)))
            and (not asked.error or _last_line(row) == asked.error)
        )

    return wanted


def _beginning_of_id(words: bytes) -> str:
    """The words as the first digits of an id, as lists show them; empty: they cannot be."""
    digits = words.decode("utf-8", "replace").rstrip("….").replace("-", "").lower()
    fine = _SHORTEST <= len(digits) <= 32 and not set(digits) - set("0123456789abcdef")
    return digits if fine else ""


def _died_after(row: Row, until: int) -> bool:
    return row.place == DEAD and row.rare.when > until


def _is_there(row: Row, now: int) -> bool:
    return bool(row.queue.name) and row.state is not State.DELETED and not 0 < row.expires < now


def _parts(ids: list[bytes]) -> Iterator[list[bytes]]:
    for at in range(0, len(ids), _AT_ONCE):
        yield ids[at : at + _AT_ONCE]


class Phase(NamedTuple):
    """One stretch of a life."""

    word: str
    start: int
    length: int
    left: float
    """Where it begins, in thousandths of the whole."""
    width: float


def phases_of(steps: Sequence[Step], now: int) -> list[Phase]:
    """The phases of a life; `now` is 0 if it is over."""
    spans: list[tuple[str, int, int]] = []
    for number, step in enumerate(steps):
        word = _PHASES.get(step.after) if step.after is not None else None
        if word is None:
            continue
        last = number == len(steps) - 1
        end = max(step.time, now) if last and now else step.time if last else steps[number + 1].time
        if spans and spans[-1][0] == word:
            spans[-1] = (word, spans[-1][1], end)
        else:
            spans.append((word, step.time, end))
    whole = sum(end - start for _, start, end in spans)
    if not spans or whole <= 0:
        return []
    widths = [max(_LEAST, 1000 * (end - start) / whole) for _, start, end in spans]
    scale = 1000 / sum(widths)
    out, left = [], 0.0
    for (word, start, end), width in zip(spans, widths, strict=True):
        out.append(Phase(word, start, end - start, round(left, 2), round(width * scale, 2)))
        left += width * scale
    return out
