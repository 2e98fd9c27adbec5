"""What is done around every call: before it is put, before and after it runs, when it fails.

Rules:

1. Middlewares are asked in the order in which they were given, and the other way round afterwards.
2. One that raises before a run fails that run. What it raises afterwards is logged: the work is
   done, and its end is told all the same.
3. Headers are text and travel with the call.
"""

from __future__ import annotations

from typing import Any

from fastjournal.tasks.execution import Run
from fastjournal.tasks.task import Task

__all__ = ["Middleware", "OpenTelemetry", "Sentry"]


class Middleware:
    """Does nothing; overwrite what you need. One object serves all threads."""

    def before_put(self, task: Task[Any, Any], headers: dict[str, str]) -> None:
        """A call is about to be put; `headers` may be added to."""

    def before(self, run: Run) -> None:
        """A call is about to run, in the thread or task in which it will."""

    def after(self, run: Run, result: Any) -> None:
        """A call has returned."""

    def error(self, run: Run, error: BaseException) -> None:
        """A call has raised."""


class OpenTelemetry(Middleware):
    """A span for each run, linked to the one in which the call was put.

    Linked and not its child, for it may run much later, and more than once.
    """

    def __init__(self, provider: Any = None) -> None:
        """`provider`: of tracers; the global one unless told."""
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise ImportError("traces need: pip install 'fastjournal[otel]'") from None
        self._trace = trace
        self._carrier = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("fastjournal.tasks", tracer_provider=provider)

    def before_put(self, task: Task[Any, Any], headers: dict[str, str]) -> None:
        """Let the trace under way travel as `traceparent`."""
        self._carrier.inject(headers)

    def before(self, run: Run) -> None:
        """Begin a span."""
        given = self._trace.get_current_span(self._carrier.extract(run.headers)).get_span_context()
        links = [self._trace.Link(given)] if given.is_valid else []
        span = self._tracer.start_span(
            run.task,
            kind=self._trace.SpanKind.CONSUMER,
            links=links,
            attributes={
                "messaging.system": "fastjournal",
                "messaging.destination.name": run.queue,
                "messaging.message.id": run.id.hex(),
                "fastjournal.attempt": run.attempt,
            },
        )
        scope = self._trace.use_span(span, end_on_exit=False)
        scope.__enter__()
        run.state["otel"] = span, scope

    def after(self, run: Run, result: Any) -> None:
        """End the span."""
        self._end(run)

    def error(self, run: Run, error: BaseException) -> None:
        """End the span with the error."""
        span = run.state["otel"][0] if "otel" in run.state else None
        if span is not None:
            span.record_exception(error)
            span.set_status(self._trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self._end(run)

    def _end(self, run: Run) -> None:
        span, scope = run.state.pop("otel", (None, None))
        if scope is not None:
            scope.__exit__(None, None, None)
            span.end()


class Sentry(Middleware):
    """Tells Sentry of errors, with the task, its queue and its attempt."""

    def __init__(self, *, retries: bool = False) -> None:
        """`retries`: also of errors after which the call is tried again."""
        try:
            import sentry_sdk
        except ImportError:
            raise ImportError("this needs: pip install 'fastjournal[sentry]'") from None
        self._sdk = sentry_sdk
        self._retries = retries

    def error(self, run: Run, error: BaseException) -> None:
        """Report it."""
        if not (run.is_last or self._retries):
            return
        with self._sdk.new_scope() as scope:
            scope.set_tag("task", run.task)
            scope.set_tag("queue", run.queue)
            scope.set_context(
                "fastjournal", {"job": run.id.hex(), "attempt": run.attempt, "key": run.key}
            )
            self._sdk.capture_exception(error, scope=scope)
