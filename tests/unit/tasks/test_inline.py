"""Tasks as a program sees them, run inline: calls, keys, retries, limits, middlewares."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any

import pytest

from fastjournal import Discard, Middleware, Retries, Retry, SettingError, TaskFailed, Tasks
from fastjournal.errors import BadRequest, TimedOut
from fastjournal.model import State
from fastjournal.tasks import BadArguments, current_run
from fastjournal.testing.tasks import InlineTasks


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Person:
    name: str
    born: dt.date
    friends: list[Person] = dataclasses.field(default_factory=list)


def test_a_call_gives_its_result() -> None:
    app = Tasks()

    @app.task
    def add(x: int, y: int = 2) -> int:
        return x + y

    with InlineTasks(app) as inline:
        assert add.put(1).result() == 3
        assert add.put(1, y=5).result() == 6
        assert inline.ran == [add.name] * 2
    assert add(3, 4) == 7  # a call is a call


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dt.datetime, dt.datetime(2026, 11, 18, 1, 2, 3, 4, tzinfo=dt.UTC)),
        (dt.timedelta, dt.timedelta(days=2, microseconds=7)),
        (uuid.UUID, uuid.UUID(int=2**127 + 5)),
        (bytes, bytes(range(256))),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Person, Person("ada", dt.date(1815, 12, 10), [Person("b", dt.date(1900, 1, 1))])),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "x")),
        (dict[str, list[float]], {"a": [1.5]}),
        (int | None, None),
        (str, "ünïcödé \x00 \u2028"),
    ],
    ids=str,
)  # fmt: skip
def test_typed_arguments_and_results_arrive_as_they_were_given(kind: Any, value: Any) -> None:
    app = Tasks()
    seen = []

    def echo(given):  # type: ignore[no-untyped-def]
        seen.append(given)
        return given

    echo.__annotations__ = {"given": kind, "return": kind}
    task = app.task(echo)
    with InlineTasks(app):
        assert task.put(value).result() == value
    assert seen == [value]
    assert type(seen[0]) is type(value)


@pytest.mark.parametrize(
    ("given", "named", "words"),
    [
        (("one",), {}, "Expected `int`"),
        ((), {}, "Missing required argument 'x'"),
        ((1, 2, 3, 4), {}, "positional"),
        ((1,), {"colour": 1}, "Unexpected keyword argument"),
        ((1, (1, 2)), {}, "anything is a tuple and would arrive as \\[1, 2\\]"),
        ((1, b"raw"), {}, "anything is a bytes"),
        ((1, float("nan")), {}, "anything is a float"),
        ((1, object()), {}, "unsupported"),
        ((1, "\ud800"), {}, "surrogate"),
    ],
)
def test_what_would_not_arrive_is_refused_at_the_call(given: Any, named: Any, words: str) -> None:
    app = Tasks()

    @app.task
    def work(x: int, anything=None) -> None:  # type: ignore[no-untyped-def]
        raise AssertionError

    with InlineTasks(app) as inline:
        with pytest.raises(BadArguments, match=words):
            work.put(*given, **named)
        with pytest.raises(TypeError):
            work.put(*given, **named)
        assert inline.journal.status().rows == 0


def test_a_function_whose_arguments_have_no_names_is_no_task() -> None:
    app = Tasks()
    for function in (lambda *many: None, lambda **named: None, lambda x, /: None):
        with pytest.raises(SettingError, match="named parameters only"):
            app.task(function)


def test_an_annotation_that_cannot_be_read_is_told_where_the_task_is_defined() -> None:
    def work(x: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(SettingError, match="'Missing' is not defined"):
        Tasks().task(work)


def test_a_task_defined_before_what_it_uses_is_a_task() -> None:
    app = Tasks()

    @app.task
    def work() -> int:
        return later

    later = 5
    with InlineTasks(app):
        assert work.put().result() == 5


def test_two_tasks_of_one_name_are_refused() -> None:
    app = Tasks()
    app.task(name="x")(lambda: None)
    with pytest.raises(SettingError, match="already"):
        app.task(name="x")(lambda: None)


def test_defaults_are_those_of_the_function_that_runs() -> None:
    app = Tasks()

    @app.task
    def work(x: int = 1) -> int:
        return x

    with InlineTasks(app, inline=False) as inline:
        handle = work.put()
        assert b'"args":{}' in inline.journal.jobs()[0].value
        inline.run()
        assert handle.result() == 1


def test_an_error_is_tried_again_and_then_kept_with_its_traceback() -> None:
    app = Tasks()
    runs = []

    @app.task(retry=Retries(times=2, delay=60))
    def work() -> None:
        runs.append(current_run().attempt)  # type: ignore[union-attr]
        raise ValueError("no luck")

    with InlineTasks(app) as inline:
        handle = work.put()
        assert runs == [1]
        assert handle.state == "waiting"
        inline.advance(50)
        assert runs == [1]
        inline.advance(20)
        assert runs == [1, 2]
        inline.advance(200)
        assert runs == [1, 2, 3]
        assert handle.state == "failed"
        with pytest.raises(TaskFailed, match=r"^ValueError: no luck$") as caught:
            handle.result()
        assert caught.value.traceback.startswith("Traceback")
        assert "in work" in caught.value.traceback
        assert "execution.py" not in caught.value.traceback
        inline.advance(10_000)
        assert len(runs) == 3


def test_retries_are_chosen_by_the_class_of_the_error() -> None:
    app = Tasks()
    runs: list[type[Exception]] = []

    @app.task(retry=Retries(times=5, delay=1, only=(OSError,), never=(FileNotFoundError,)))
    def work(kind: str) -> None:
        error: type[Exception] = {"os": OSError, "file": FileNotFoundError, "value": ValueError}[
            kind
        ]
        runs.append(error)
        raise error(kind)

    with InlineTasks(app) as inline:
        for kind in ("os", "file", "value"):
            work.put(kind)
        inline.advance(600)
        assert runs.count(OSError) == 6
        assert runs.count(FileNotFoundError) == 1
        assert runs.count(ValueError) == 1
        assert inline.journal.queue("tasks").dead == 3


def test_discard_ends_a_call_and_retry_gives_it_back_without_a_failure() -> None:
    app = Tasks()
    runs = []

    @app.task
    def give_up() -> None:
        raise Discard("the user is gone")

    @app.task(retry=0)
    def busy() -> str:
        runs.append(1)
        if len(runs) < 4:
            raise Retry(after=30)
        return "at last"

    with InlineTasks(app) as inline:
        handle = give_up.put()
        with pytest.raises(TaskFailed, match="the user is gone"):
            handle.result()
        late = busy.put()
        inline.advance(80)
        assert len(runs) == 3
        with pytest.raises(TimedOut):  # nothing will come while the clock stands still
            late.result()
        inline.advance(11)
        assert late.result() == "at last"


def test_a_result_that_cannot_be_kept_is_told_and_the_work_not_done_again() -> None:
    app = Tasks()
    runs = []

    @app.task
    def work():  # type: ignore[no-untyped-def]
        runs.append(1)
        return object()

    with InlineTasks(app) as inline:
        handle = work.put()
        inline.advance(1000)
        with pytest.raises(TaskFailed, match="its result cannot be kept"):
            handle.result()
    assert runs == [1]


def test_a_call_that_nobody_knows_fails_and_names_those_that_are_known() -> None:
    app = Tasks()
    app.task(name="known")(lambda: None)
    with InlineTasks(app) as inline:
        job_id = inline.journal.put(b'{"task":"strange","args":{}}', queue="tasks").id
        inline.run()
        assert b"no task 'strange' here; there are: known" in inline.journal.job(job_id).note
        assert inline.journal.job(job_id).state is State.WAITING


@pytest.mark.parametrize(
    "payload", [b"", b"\xff\x00", b"[]", b'{"task":5}', b'{"task":"add","args":{"x":"y"}}']
)
def test_a_payload_that_is_no_call_is_dead_at_once(payload: bytes) -> None:
    app = Tasks()

    @app.task(name="add")
    def add(x: int) -> int:
        return x

    with InlineTasks(app) as inline:
        job_id = inline.journal.put(payload, queue="tasks").id
        inline.run()
        assert inline.journal.job(job_id).state is State.FAILED


def test_repeats_of_a_merge_key_are_one_call_with_the_newest_arguments() -> None:
    app = Tasks()
    seen = []

    @app.task(merge="{user}", debounce=10, max_wait=25, queue="index")
    def index(user: int, version: int = 0) -> None:
        seen.append((user, version))

    with InlineTasks(app) as inline:
        handles = [index.put(1, version) for version in range(3)]
        assert len({handle.id for handle in handles}) == 1
        assert [handle.is_new for handle in handles] == [True, False, False]
        index.put(2)
        inline.advance(9)
        index.put(1, 3)
        inline.advance(9)
        assert seen == [(2, 0)]
        index.put(1, 4)
        inline.advance(8)  # 26 s after the first one: no wait is longer than 25
        assert seen == [(2, 0), (1, 4)]
        assert inline.journal.queue("index").settings.max_wait == 25 * 10**9


def test_a_repeat_of_a_unique_key_is_dropped_and_its_handle_is_that_of_the_first() -> None:
    app = Tasks()
    seen = []

    @app.task(unique=lambda user, **_: f"user {user}")
    def sync(user: int, version: int = 0) -> int:
        seen.append(version)
        return version

    with InlineTasks(app, inline=False) as inline:
        first, second, other = sync.put(1, 1), sync.put(1, 2), sync.put(2, 3)
        assert first.id == second.id != other.id
        assert not second.is_new
        inline.run()
        assert seen == [1, 3]
        assert second.result() == 1


def test_two_tasks_never_meet_in_one_key() -> None:
    app = Tasks()
    seen = []
    for name in ("a", "b"):
        app.task(name=name, merge="{x}")(lambda x, name=name: seen.append(name))
    with InlineTasks(app, inline=False) as inline:
        app.tasks["a"].put(1)
        app.tasks["b"].put(1)
        inline.run()
    assert sorted(seen) == ["a", "b"]


@pytest.mark.parametrize(
    "options",
    [
        {"merge": "{x}", "unique": "{x}"},
        {"debounce": 5},
        {"merge": "{y}"},
        {"timeout": 0},
        {"rate": "often"},
        {"rate": "0/s"},
        {"retry": "5"},
        {"priority": 256},
        {"priority": -1},
    ],
)
def test_options_that_make_no_sense_are_refused_where_the_task_is_defined(options: Any) -> None:
    app = Tasks()
    with pytest.raises(SettingError):
        app.task(**options)(lambda x: None)


def test_two_tasks_that_say_different_things_of_a_queue_are_refused() -> None:
    app = Tasks()
    app.task(name="a", merge="{x}", max_wait=5, queue="q")(lambda x: None)
    with pytest.raises(SettingError, match="max_wait=5 already"):
        app.task(name="b", merge="{x}", max_wait=6, queue="q")(lambda x: None)


@pytest.mark.parametrize("wrong", ["zz", "8e0419bbdd82", b"short", 7, None])
def test_a_handle_is_made_of_a_whole_id(wrong: Any) -> None:
    with pytest.raises(BadRequest, match="32 hexadecimal digits"):
        Tasks().handle(wrong)


def test_later_waits_and_a_cancelled_call_never_runs() -> None:
    app = Tasks()
    seen = []

    @app.task
    def work(x: int) -> None:
        seen.append(x)

    with InlineTasks(app) as inline:
        work.later(delay=60).put(1)
        doomed = work.later(delay=60).put(2)
        at = dt.datetime.fromtimestamp(inline.clock.now() / 1e9 + 30, dt.UTC)
        work.later(due=at).put(3)
        with pytest.raises(TimedOut):
            doomed.result(wait=0)
        assert doomed.cancel()
        assert doomed.state == "gone"
        inline.advance(61)
        assert seen == [3, 1]
        assert not doomed.cancel()


def test_a_call_that_expires_never_runs() -> None:
    app = Tasks()
    seen = []

    @app.task(expires=60)
    def work() -> None:
        seen.append(1)

    with InlineTasks(app) as inline:
        work.later(delay=59).put()
        work.later(delay=61).put()
        inline.advance(120)
    assert seen == [1]


def test_coroutine_functions_run_too_and_end_at_their_time_limit() -> None:
    import asyncio

    app = Tasks()

    @app.task
    async def double(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    @app.task(timeout=0.01, retry=0)
    async def hang() -> None:
        await asyncio.Event().wait()

    with InlineTasks(app):
        assert double.put(4).result() == 8
        with pytest.raises(TaskFailed, match=r"TimeoutError: time limit of 0\.01 s"):
            hang.put().result()


def test_middlewares_see_every_call_in_order_and_headers_travel() -> None:
    seen: list[str] = []

    class Teller(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        def before_put(self, task: Any, headers: dict[str, str]) -> None:
            headers[self.name] = task.name

        def before(self, run: Any) -> None:
            seen.append(f"{self.name} before {run.headers[self.name]}")

        def after(self, run: Any, result: Any) -> None:
            seen.append(f"{self.name} after {result}")
            raise RuntimeError("a middleware that fails harms nobody")

        def error(self, run: Any, error: BaseException) -> None:
            seen.append(f"{self.name} error {error} {run.is_last}")

    app = Tasks(middlewares=[Teller("a"), Teller("b")])
    app.task(name="good")(lambda: 5)

    @app.task(name="bad", retry=Retries(times=1, delay=1))
    def bad() -> None:
        raise ValueError("x")

    with InlineTasks(app) as inline:
        assert app.tasks["good"].put().result() == 5
        bad.put()
        inline.advance(5)
    assert seen == [
        "a before good", "b before good", "b after 5", "a after 5",
        "a before bad", "b before bad", "b error x False", "a error x False",
        "a before bad", "b before bad", "b error x True", "a error x True",
    ]  # fmt: skip


def test_the_app_is_what_it_was_after_an_inline_block(tmp_path: Any) -> None:
    app = Tasks(tmp_path / "jobs")
    task = app.task(lambda: 1)
    with InlineTasks(app):
        task.put()
    assert not (tmp_path / "jobs").exists()
    assert app.journal.path == tmp_path / "jobs"
    app.close()
