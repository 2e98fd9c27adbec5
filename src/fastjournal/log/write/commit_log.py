"""The commit log: many callers, one disk.

Rules:

1. `write` and `submit` queue, and whoever leads takes all that waits: one encoding, one write, one
   sync, then it tells its waiters (see `commit_queue`). `append` is the door of a `LogWriter`, for
   a caller that keeps its own order. Both share the file, the order of TIME, rotation and sync.
2. Released means: on stable storage under `always`, handed to the system under `interval` and `os`.
   With the strategy `behind` a queued write is released at once.
3. The queue is bounded, counted in writes; a full one refuses at once (`QueueFull`).
4. Rotation happens only through the pair of segments (see `active_standby`), on request or, with
   `auto_rotate`, before the first write to a segment that has reached its size.
5. Faults are judged by `log_writer`. Who was queued when the log stopped is told `Stopped`, whose
   record was written, or was being written, `OutcomeUnknown`.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastjournal.errors import (
    JournalError,
    NoSpace,
    RequestError,
    RotationFailed,
    SettingError,
    Stopped,
)
from fastjournal.log.segment_directory import DEFAULT_SEGMENT_SIZE, SegmentDirectory
from fastjournal.log.write.appender import Ticker
from fastjournal.log.write.commit_queue import (
    CommitQueue,
    Done,
    Queued,
    Waiter,
    answer_batch,
    frozen,
    unknown,
)
from fastjournal.log.write.counters import LogStatus
from fastjournal.log.write.log_writer import EXIT_DIE, LogWriter, always

__all__ = ["DEFAULT_QUEUE_SIZE", "EXIT_DIE", "CommitLog"]

DEFAULT_QUEUE_SIZE = 65_536  # writes


class CommitLog(LogWriter):
    """Group commit over one stream; close it, or use it as a context manager."""

    def __init__(
        self,
        stream: SegmentDirectory,
        *,
        strategy: str = "wait",
        queue_size: int = DEFAULT_QUEUE_SIZE,
        segment_size: int = DEFAULT_SEGMENT_SIZE,
        sync: str = "interval",
        sync_interval: int | None = None,
        auto_rotate: bool = True,
        preallocate: Callable[[], bool] = always,
        on_failure: str = "stop",
        lock_timeout: float | None = 1.0,
        trust_mark: bool = False,
        ticker: Ticker | None = None,
        die: Callable[[int], object] = os._exit,
    ) -> None:
        """The first two are its own, the others those of a `LogWriter`."""
        if strategy not in ("wait", "behind"):
            raise SettingError(f"strategy must be wait or behind, not {strategy}", name="strategy")
        if queue_size < 1:
            raise SettingError(f"queue_size must be 1 or more, not {queue_size}", name="queue_size")
        super().__init__(
            stream,
            segment_size=segment_size,
            sync=sync,
            sync_interval=sync_interval,
            auto_rotate=auto_rotate,
            preallocate=preallocate,
            on_failure=on_failure,
            lock_timeout=lock_timeout,
            trust_mark=trust_mark,
            ticker=ticker,
            die=die,
        )
        self.strategy = strategy
        self._queue = CommitQueue(queue_size, self.counters)
        self._writer: threading.Thread | None = None  # leads for those who do not wait
        self._begun = threading.Lock()
        self._lost: JournalError | None = None  # what nobody waited to hear; `close` says it

    def write(self, payload: Any) -> int | None:
        """Write one payload; returns its TIME, or None at once under the strategy `behind`.

        It is bytes; whatever else it is, the check below refuses it in words.
        """
        return self.write_batch((payload,))

    def write_batch(
        self,
        payloads: Sequence[bytes],
        refused: list[tuple[int, RequestError]] | None = None,
    ) -> int | None:
        """Write payloads that stand together in the log; returns the TIME of the last one.

        One that cannot be written refuses all of them; with a list `refused` it is left out and
        told there, with its index, and the others are written.
        """
        if refused is not None:
            payloads = self._sound(payloads, refused)
        if not payloads:
            self._queue.check()
            return None
        if self.strategy == "behind":
            self.submit(payloads, None)
            return None
        return self._lead_or_wait(frozen(payloads, self.stream.max_payload))

    def _sound(
        self, payloads: Sequence[bytes], refused: list[tuple[int, RequestError]]
    ) -> list[bytes]:
        """Those that can be written; the others are told."""
        sound: list[bytes] = []
        given: Any = payloads  # one that is no bytes is refused in words
        for index, payload in enumerate(given):
            try:
                sound += frozen((payload,), self.stream.max_payload)
            except RequestError as error:
                refused.append((index, error))
        self.counters.skipped += len(payloads) - len(sound)
        return sound

    def submit(self, payloads: Sequence[bytes], done: Done | None) -> None:
        """Queue payloads and return; `done` is called on another thread, also with an error.

        Without a `done`, writes that find no space are counted as lost and reported by `close`.
        """
        payloads = frozen(payloads, self.stream.max_payload)
        if self._writer is None:
            self._begin_writer()
        self._queue.put(Queued(payloads, None, done))

    def rotate(self) -> Path:
        """Go on in the standby segment, behind the writes that wait already; returns its path."""
        return self.stream.segment_path(self._lead_or_wait(()))

    def active_logs(self) -> tuple[Path, Path]:
        """The segment being written and the one that comes next; always two."""
        self._check_not_closed()
        return self._pair.paths

    def queue_length(self) -> int:
        """Writes that wait in the queue."""
        self._check_not_closed()
        return self._queue.length

    def status(self) -> LogStatus:
        """Everything countable, for metrics and people; also after close or a failure."""
        return replace(
            super().status(), queue_length=self._queue.length, queue_capacity=self._queue.size
        )

    def close(self) -> None:
        """Write and sync what is queued, then close; raises the failure if there was one."""
        if not self._queue.close():
            return
        if self._writer is not None:
            self._writer.join()
        self._queue.drain()
        super().close()
        if self._lost is not None:
            raise self._lost

    def _lead_or_wait(self, payloads: Sequence[bytes]) -> int:
        """Write at once if nobody does, else queue, and then lead or be told the outcome."""
        queue, waiter = self._queue, None
        try:
            try:
                if payloads and len(payloads) <= queue.size and queue.try_lead():
                    return self._write(payloads)
                waiter = Waiter()
                queue.put(Queued(payloads, waiter))
                if not waiter.wait():
                    queue.take_lead()
                    self._write_batch()
                return waiter.outcome()
            finally:
                queue.end_lead()
        except JournalError:
            raise
        except BaseException as error:  # an interrupt: nobody may wait for who is gone
            if queue.interrupt(waiter):
                self.stop(error)
            raise

    def _write(self, payloads: Sequence[bytes]) -> int:
        time = self.append(payloads)
        if len(payloads) == 1:
            self.counters.group_size.observe(1)
        if self._always:
            self.wait_synced(time)
        return time

    def _write_batch(self) -> None:
        """As the leader: do what comes next in the queue, if a failure has left anything there."""
        batch = self._queue.take()
        if not batch:
            return
        payloads = batch[0].payloads
        if len(batch) > 1:
            payloads = [payload for queued in batch for payload in queued.payloads]
        try:
            if payloads:
                value = self._write(payloads)
            else:
                super().rotate()
                value = self.position.segment
        except (NoSpace, RotationFailed) as error:
            lost = sum(len(queued.payloads) for queued in batch if queued.done is None)
            self.counters.lost += lost
            self._lost = error if lost else self._lost
            answer_batch(batch, 0, error)
        except JournalError as error:
            answer_batch(batch, 0, error)
        except BaseException as error:
            answer_batch(batch, 0, unknown(self.stop(error)))
            raise
        else:
            answer_batch(batch, value)

    def _begin_writer(self) -> None:
        with self._begun:
            if self._writer is None:
                self._queue.check()
                writer = threading.Thread(target=self._run, name="fastjournal-writer", daemon=True)
                writer.start()
                self._writer = writer

    def _run(self) -> None:
        """The writer thread."""
        while self._queue.wait_to_lead():
            try:
                self._write_batch()
            except BaseException:  # which has stopped the log, and is told to everybody
                return
            finally:
                self._queue.end_lead()

    def _check_not_closed(self) -> None:
        if self._queue.closing:
            self._queue.check()

    def _tell_stopped(self, failure: Stopped) -> None:
        super()._tell_stopped(failure)
        if hasattr(self, "_queue"):  # else it is being opened
            self._queue.fail(failure)
