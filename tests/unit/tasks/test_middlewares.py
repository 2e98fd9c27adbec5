"""The ready middlewares, with the real OpenTelemetry and the real Sentry."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal import Retries, Tasks
from fastjournal.tasks.middleware import OpenTelemetry, Sentry
from fastjournal.testing.tasks import InlineTasks


def test_a_run_is_a_span_linked_to_the_one_in_which_it_was_put() -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry.trace import StatusCode, get_current_span

    spans = memory.InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    app = Tasks(middlewares=[OpenTelemetry(provider)])
    seen: list[Any] = []

    @app.task(name="work", retry=0)
    def work(good: bool) -> None:
        seen.append(get_current_span().get_span_context().span_id)
        if not good:
            raise ValueError("no luck")

    with InlineTasks(app, inline=False) as inline:
        with provider.get_tracer("test").start_as_current_span("request") as request:
            work.put(True)
            work.put(False)
        assert b"traceparent" in inline.journal.jobs()[0].value
        inline.run()
    _, good, bad = spans.get_finished_spans()
    assert [span.context.span_id for span in (good, bad)] == seen
    for span in (good, bad):
        assert span.name == "work"
        assert span.parent is None
        assert span.links[0].context.span_id == request.get_span_context().span_id
        assert span.attributes["messaging.destination.name"] == "tasks"
    assert good.status.status_code is not StatusCode.ERROR
    assert bad.status.description == "ValueError: no luck"
    assert get_current_span().get_span_context().span_id == 0


def test_sentry_is_told_of_errors_that_are_not_tried_again() -> None:
    sentry = pytest.importorskip("sentry_sdk")
    events: list[Any] = []

    def keep(event: Any, hint: Any) -> None:
        events.append(event)

    sentry.init(dsn="https://key@sentry.invalid/1", before_send=keep, default_integrations=False)
    try:
        app = Tasks(middlewares=[Sentry()])

        @app.task(name="work", retry=Retries(times=2, delay=1))
        def work() -> None:
            raise ValueError("no luck")

        with InlineTasks(app) as inline:
            work.put()
            assert events == []
            inline.advance(60)
        (event,) = events
        assert event["tags"] == {"task": "work", "queue": "tasks"}
        assert event["exception"]["values"][0]["value"] == "no luck"
        assert event["contexts"]["fastjournal"]["attempt"] == 3
    finally:
        sentry.init()
