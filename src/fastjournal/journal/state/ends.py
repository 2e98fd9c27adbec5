"""How leases ended: what a journal remembers, so that a question asked twice has one answer.

Whoever settled a lease and did not hear of it asks again; by then the job may be gone, or may have
been handed to another. Rows know nothing of that, so it is kept beside them.

Rules:

1. Remembered are, of a job that went, its last token and why it went; and of the lease that was
   settled last while the job stayed, its token and how it ended: one of each for a job.
2. The newest 65,536 are remembered at least, twice as many at most.
3. It follows from the records alone. Where records go, by cleaning or below a snapshot, an ENDS
   record says what they told.
"""

from typing import Final, final

from mypy_extensions import i64

from fastjournal.journal.language.commands import End, Ends

__all__ = ["Endings"]

_KEPT: Final = 65_536
_BITS: Final = 3  # of an `End`, below the token
_MASK: Final = 7
_STAYED: Final = b"+"
_STILL: Final = 8
"""Flag beside an `End` in an ENDS record: the job was still there."""


@final
class Endings:
    """The ends of leases and jobs, newest last."""

    def __init__(self) -> None:
        self._newest: dict[bytes, int] = {}  # token and end, by id; with `_STAYED`: of a lease
        self._before: dict[bytes, int] = {}
        self.logged = True
        """An ENDS record says all of it."""

    def went(self, row_id: bytes, token: i64, end: i64) -> None:
        """A job is gone; `token`: of its last lease, 0 if it had none."""
        self._keep(row_id, token << _BITS | end)

    def settled(self, row_id: bytes, token: i64, end: i64) -> None:
        """A lease has ended, the job is still there."""
        self._keep(row_id + _STAYED, token << _BITS | end)

    def of_job(self, row_id: bytes) -> End | None:
        """Why a job went; None: it did not, or long ago."""
        found = self._find(row_id)
        return None if found is None else End(found & _MASK)

    def of_lease(self, row_id: bytes, token: int) -> End | None:
        """How the lease of this token ended; None: it did not, or that is not known."""
        for key in (row_id, row_id + _STAYED):
            found = self._find(key)
            if found is not None and found >> _BITS == token:
                return End(found & _MASK)
        return None

    def command(self) -> Ends | None:
        """All of it as a command; None: there is nothing to tell."""
        both = self._before | self._newest
        if not both:
            return None
        return Ends(
            tuple(
                [
                    (key[:16], found & _MASK | (_STILL if key[16:] else 0), found >> _BITS)
                    for key, found in both.items()
                ]
            )
        )

    def add(self, command: Ends) -> None:
        """Take in what a command tells."""
        for row_id, end, token in command.ends:
            if end & _STILL:
                self.settled(row_id, token, end & _MASK)
            else:
                self.went(row_id, token, end)
        self.logged = True

    def __len__(self) -> int:
        return len(self._newest) + len(self._before)

    def _keep(self, key: bytes, value: int) -> None:
        newest = self._newest
        newest[key] = value
        self.logged = False
        if len(newest) >= _KEPT:
            self._before = newest
            self._newest = {}

    def _find(self, key: bytes) -> int | None:
        found = self._newest.get(key)
        return self._before.get(key) if found is None else found
