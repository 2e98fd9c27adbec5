"""A connection that speaks the Workq text protocol, over the same journal as FJ.

Rules:

1. One request at a time: what follows a request that waits is carried out when that one is
   answered. Answers come in the order of the requests.
2. Behaviour is the documented one where the Workq server has a defect: `max-fails` really retries,
   several names of a `lease` are served fairly, every waiter of a result is woken, no wake-up is
   lost, a `lease` that need not wait gets what is ready, there is no 256th-lease limit, and CR LF
   may be split over reads.
3. `run` makes a job that lives in memory only: its start, end and time-outs are logged as Workq
   does, its birth is not; when the command ends the job is gone. If the client leaves, so does it.
4. The protocol knows no tokens: whoever reaches the port may do everything it offers.
5. What stands behind a request that waits is bounded in number and bytes; beyond, nothing is read.
6. `inspect jobs` gives as many blocks as fit into a message, and at least one: its first line says
   how many.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mypy_extensions import i64

from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.daemon.context import Context
from fastjournal.daemon.session import Waiter
from fastjournal.daemon.transport import QUEUED, TURN, Connection
from fastjournal.daemon.workq.views import living, order, view
from fastjournal.errors import AlreadyExists, JournalError, NotFound
from fastjournal.journal.decide.ground import gone
from fastjournal.journal.engine.engine import leases_of
from fastjournal.journal.language import commands as k
from fastjournal.journal.state.row import FUTURE, READY, Row
from fastjournal.model import State, Where
from fastjournal.wire.workq import replies as answer
from fastjournal.wire.workq import requests as w
from fastjournal.wire.workq.requests import Refused, WorkqParser

__all__ = ["QueueNames", "WorkqConnection"]

_BLOCK = 1000  # bytes of a job in an answer besides its payload, at most
_MAX_NAMES = 10_000
_RUN_FLAGS = k.FROM_WORKQ  # without PERSIST: never part of a snapshot


class QueueNames:
    """Names of queues that the Workq connections of a server have used.

    Workq shows a queue from its first mention on, also when it is empty.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def mention(self, *names: str) -> None:
        """Remember names of queues."""
        for name in names:
            if name not in self.names and len(self.names) < _MAX_NAMES:
                self.names[name] = None


class WorkqConnection(Connection):
    """One Workq connection."""

    def __init__(self, context: Context, mentioned: QueueNames) -> None:
        super().__init__("workq", context)
        self.mentioned = mentioned
        self.parser = WorkqParser()
        self._queue: list[Any] = []
        self._queued = 0
        """Bytes that were read since the queue was empty: at least what it holds."""
        self._busy = False
        """A request waits."""

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer."""
        self.last_read = self._time()
        self.journal_loop.hear(self)
        if self.leaving:
            return
        items = self.parser.feed(data)
        self._ask(items, len(data))
        if not self.parser.unfinished:
            self.partial_since = 0.0
        elif items or not self.partial_since:
            self.partial_since = self.last_read
        if self.parser.closed:
            self.end()

    def eof_received(self) -> bool:
        """A payload cut short is refused; what waits is given up."""
        self._ask(self.parser.finish(), 0)
        open_still = super().eof_received()
        self.go_on()
        return open_still

    def _ask(self, items: Sequence[Any], size: int) -> None:
        """So many bytes were read, and these requests in them."""
        self._queue += items
        if self._queue:
            self.more = True
            self._queued += size
            self.go_on()
            self.steer()

    def is_overfull(self) -> bool:
        """Whether enough requests wait."""
        return self._queued > QUEUED

    def is_busy(self) -> bool:
        """Requests are still to be carried out."""
        return self._busy or super().is_busy()

    def may_go_on(self) -> bool:
        """Nothing is carried out while a request waits."""
        return not self._busy and super().may_go_on()

    def abandon(self, waiter: Waiter) -> None:
        """The peer left while it waited; a job it ran goes with it."""
        super().abandon(waiter)
        self._busy = False
        if isinstance(waiter.request, w.Run):
            with self.engine.lock:
                if waiter.request.id in self.state.rows and not self.journal_loop.closed:
                    self.engine.commit(k.Expire(waiter.request.id))

    def serve(self, now: i64, refusal: JournalError | None) -> None:
        """Carry out requests until one waits."""
        items, self._queue = self._queue, []
        done = 0
        for item in items:
            done += 1
            reply = self._answer(item, now) if refusal is None else answer.error(refusal)
            self._busy = not reply
            if reply:
                self.out.write(reply)
                self.answered.append(0)
            if self._busy:
                break
            if len(self.out) > TURN:
                self.stop_at_limit()
                break
        self._queue = items[done:]
        self.more = bool(self._queue)
        if not self.more:
            self._queued = 0
        self.steer()

    def serve_waiter(self, waiter: Waiter, now: i64) -> None:
        """Ask once more about the request that waits, and go on behind it."""
        before = len(self.out)
        try:
            self.journal_loop.ask_again(waiter, now)
        except JournalError as error:
            self.context.count_error(error.code)
            self.out.write(answer.error(error))
        if len(self.out) > before:
            self._busy = False
            self.answered.append(0)

    def refusals(self, answered: Sequence[int], error: JournalError, now: i64) -> bytes:
        """The answers to requests that came to nothing."""
        self.context.count_error(error.code)
        return answer.error(error) * len(answered)

    def _answer(self, command: Any, now: int) -> bytes:
        try:
            return _HANDLERS[type(command)](self, command, now)
        except JournalError as error:
            self.context.count_error(error.code)
            return answer.error(error)
        except Exception as error:  # a bug must not take the other connections down
            self.context.report(error)
            return answer.error(error)

    def _wait(
        self,
        command: Any,
        ask: Callable[[Any, Waiter, int], bytes],
        now: int,
        where: Where | None = None,
        row_id: bytes | None = None,
    ) -> bytes:
        """Ask once; then answer, or wait."""

        def retry(waiter: Waiter, now: int) -> bool:
            reply = ask(command, waiter, now)
            self.out.write(reply)
            return bool(reply)

        waiter = Waiter(self, 0, retry, where, row_id, command)
        waiter.expired = not command.wait_ms or self.leaving
        waiter.last = isinstance(command, w.Run)
        reply = ask(command, waiter, now)
        if not reply:
            self.wait(waiter, command.wait_ms / 1000)
        return reply

    def _refused(self, command: Refused, now: int) -> bytes:
        self.context.count_error("CLIENT-ERROR")
        return command.reply

    def _add(self, c: w.Add, now: int) -> bytes:
        self.operations.add(
            k.Add(c.id, c.name.encode(), c.ttr_ms, c.ttl_ms, c.priority, c.max_attempts,
                  c.max_fails, c.payload, 0, 0)
        )  # fmt: skip
        self.mentioned.mention(c.name)
        return answer.OK

    def _schedule(self, c: w.Schedule, now: int) -> bytes:
        if c.is_past(now):
            return answer.client_error("Invalid Time")
        self.operations.add(
            k.Schedule(c.id, c.name.encode(), c.ttr_ms, c.ttl_ms, c.priority, c.max_attempts,
                       c.max_fails, c.payload, c.time, 0)
        )  # fmt: skip
        self.mentioned.mention(c.name)
        return answer.OK

    def _lease(self, c: w.Lease, now: int) -> bytes:
        self.mentioned.mention(*c.names)
        where = Where(tuple([name.encode() for name in c.names]))
        return self._wait(c, self._ask_lease, now, where=where)

    def _ask_lease(self, c: w.Lease, waiter: Waiter, now: int) -> bytes:
        assert waiter.where is not None
        operations = self.operations
        rows = operations.lease(waiter.where)
        if not rows and 0 < operations.next_due <= now:
            rows = operations.lease(waiter.where)  # only slow ones are left: this gives them
        leases = leases_of(self.engine, rows)
        if not leases:
            last = waiter.expired and not self.engine.holds_back()
            return answer.TIMEOUT if last else b""
        job = leases[0].job
        ttr = job.lease or (leases[0].until - job.lease_start)
        name = job.queue_bytes.decode("utf-8", "replace")
        return answer.leased(job.id, name, ttr // MILLISECOND, job.payload)

    def _complete(self, c: w.Complete, now: int) -> bytes:
        try:
            self.operations.complete(c.id, None, c.result)
        except AlreadyExists:
            return answer.client_error("Duplicate result")
        return answer.OK

    def _fail(self, c: w.Fail, now: int) -> bytes:
        try:
            self.operations.fail(c.id, None, c.result, 0)
        except AlreadyExists:
            return answer.client_error("Duplicate result")
        return answer.OK

    def _delete(self, c: w.Delete, now: int) -> bytes:
        if not c.is_possible:
            return answer.OK
        if c.id not in self.state.rows:
            return answer.NOT_FOUND  # and no tombstone: a Workq server could not read it
        return answer.OK if self.operations.delete(c.id) else answer.NOT_FOUND

    def _result(self, c: w.Result, now: int) -> bytes:
        living(self.state, c.id, now)
        return self._wait(c, self._ask_result, now, row_id=c.id)

    def _ask_result(self, c: w.Result, waiter: Waiter, now: int) -> bytes:
        row = living(self.state, c.id, now)
        if row.state in (State.COMPLETED, State.FAILED):
            return answer.result(c.id, row.state is State.COMPLETED, row.rare.result)
        return answer.TIMEOUT if waiter.expired else b""

    def _run(self, c: w.Run, now: int) -> bytes:
        state = self.state
        row = state.rows.get(c.id)
        if row is not None:  # as for an add: what is deleted or has expired is not there
            if row.state is State.DELETED:
                self.engine.commit(gone(row))
            elif 0 < row.expires < now:
                self.engine.commit(k.Expire(c.id))
            else:
                raise AlreadyExists("Duplicate job")
        self.mentioned.mention(c.name)
        policy = k.policy_of(_RUN_FLAGS, 0, c.ttr_ms, 0, 0, 0)
        stamp = max(now, state.last_inserted + 1)
        self.engine.remember(
            k.Put(c.id, c.name.encode(), b"", c.rank, stamp, stamp, stamp, 0, 1, c.payload, policy)
        )
        return self._wait(c, self._ask_run, now, row_id=c.id)

    def _ask_run(self, c: w.Run, waiter: Waiter, now: int) -> bytes:
        row = self.state.rows.get(c.id)
        if row is None:  # deleted by somebody else
            return answer.NOT_FOUND
        if row.state in (State.COMPLETED, State.FAILED):
            reply = answer.result(c.id, row.state is State.COMPLETED, row.rare.result)
        elif not waiter.expired:
            return b""
        elif row.state is State.PROCESSING and row.lease_until > now:
            # An attempt is running: it may use its time.
            waiter.expired = False
            self.journal_loop.limit_wait(waiter, (row.lease_until - now) / SECOND)
            return b""
        else:
            reply = answer.TIMEOUT
        self.engine.commit(k.Expire(c.id))
        return reply

    def _inspect_job(self, c: w.InspectJob, now: int) -> bytes:
        return answer.inspect_jobs([self._view(living(self.state, c.id, now))])

    def _inspect_jobs(self, c: w.InspectJobs, now: int) -> bytes:
        self.state.promote(now)
        lane = self.state.queues.get(c.name.encode())
        if lane is None:
            if c.name not in self.mentioned.names:
                raise NotFound("no such queue")
            return answer.inspect_jobs([])
        rows: Iterable[Row]
        rows = lane.future if c.scheduled else lane.ready
        first = heapq.nsmallest(c.offset + c.limit, rows, key=order)[c.offset :]
        room = self.context.settings.limits.max_message
        shown: list[answer.JobView] = []
        for row in first:
            block = self._view(row)
            room -= len(block.payload) + _BLOCK
            if room < 0 and shown:
                break
            shown.append(block)
        return answer.inspect_jobs(shown)

    def _inspect_queue(self, c: w.InspectQueue, now: int) -> bytes:
        self.state.promote(now)
        if c.name.encode() not in self.state.queues and c.name not in self.mentioned.names:
            raise NotFound("no such queue")
        return answer.inspect_queues([self._queue_view(c.name)])

    def _inspect_queues(self, c: w.InspectQueues, now: int) -> bytes:
        self.state.promote(now)
        known = {name.decode("utf-8", "replace") for name in self.state.queues if name}
        names = sorted(known | set(self.mentioned.names))[c.offset : c.offset + c.limit]
        return answer.inspect_queues([self._queue_view(name) for name in names])

    def _view(self, row: Row) -> answer.JobView:
        self.engine.load(row)
        return view(row)

    def _queue_view(self, name: str) -> answer.QueueView:
        lane = self.state.queues.get(name.encode())
        if lane is None:
            return answer.QueueView(name, 0, 0)
        return answer.QueueView(name, lane.counts[READY], lane.counts[FUTURE])

    def _inspect_server(self, c: w.InspectServer, now: int) -> bytes:
        expired = self.engine.counts.expired
        clients = sum(peer.protocol == "workq" for peer in self.context.connections)
        return answer.inspect_server(clients, expired, self.context.started)


_HANDLERS: dict[type, Callable[[WorkqConnection, Any, int], bytes]] = {
    Refused: WorkqConnection._refused,
    w.Add: WorkqConnection._add,
    w.Schedule: WorkqConnection._schedule,
    w.Run: WorkqConnection._run,
    w.Lease: WorkqConnection._lease,
    w.Complete: WorkqConnection._complete,
    w.Fail: WorkqConnection._fail,
    w.Result: WorkqConnection._result,
    w.Delete: WorkqConnection._delete,
    w.InspectJob: WorkqConnection._inspect_job,
    w.InspectJobs: WorkqConnection._inspect_jobs,
    w.InspectQueue: WorkqConnection._inspect_queue,
    w.InspectQueues: WorkqConnection._inspect_queues,
    w.InspectServer: WorkqConnection._inspect_server,
}
