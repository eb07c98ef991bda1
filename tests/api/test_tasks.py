"""Groups of tasks, many jobs at once, and what a task knows of where it runs."""

from __future__ import annotations

import asyncio
import functools
import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from echomq import (
    Backoff,
    BulkAddError,
    Deduplication,
    EchoMQ,
    EncodingError,
    InvalidOption,
    Job,
    JobFailed,
    JobSpec,
    Keep,
    Limiter,
    PayloadTooLarge,
    StoreUnavailable,
    Tasks,
    current_job,
    job_logger,
)
from echomq.payloads import Codec
from echomq.sync import SyncJob
from echomq.task import NextJobs
from echomq.tasks import TaskOptions


@pytest.fixture
async def app(url: str) -> AsyncIterator[EchoMQ]:
    async with EchoMQ(url) as made:
        yield made


async def test_a_group_gives_its_tasks_a_queue_and_options_and_an_app_includes_it(app: EchoMQ) -> None:
    tasks = Tasks(queue="mail", attempts=5)

    @tasks.task
    async def welcome(learner: int) -> str:
        return f"welcome {learner}"

    @tasks.task(attempts=1, queue="post")
    def letter(learner: int) -> str:
        return f"dear {learner}"

    app.include(tasks)
    assert sorted(app.tasks) == ["letter", "welcome"]
    assert (welcome.queue, welcome.spec(7).attempts) == ("mail", 5)
    assert (letter.queue, letter.spec(7).attempts) == ("post", 1)
    assert welcome.app is app
    async with app.worker("mail"):
        assert await (await welcome.enqueue(7)).result(timeout=10) == "welcome 7"


async def test_a_group_has_its_names_under_a_prefix_and_what_is_added_later_too(app: EchoMQ) -> None:
    tasks = Tasks(queue="mail")

    @tasks.task
    async def send(learner: int) -> int:
        return learner

    urgent = send.options(priority=1)
    app.include(tasks, name_prefix="mail.")

    @tasks.task(name="later")
    async def another() -> None: ...

    assert sorted(app.tasks) == ["mail.later", "mail.send"]
    assert (send.name, urgent.name, urgent.spec(7).name) == ("mail.send",) * 3
    async with app.worker("mail"):
        assert await (await urgent.enqueue(7)).result(timeout=10) == 7


async def test_a_task_that_no_app_includes_says_so_when_it_is_enqueued_and_is_a_function_all_the_same() -> None:
    tasks = Tasks()

    @tasks.task
    async def send(learner: int) -> int:
        return learner

    assert await send(7) == 7
    for call in (send.enqueue(7), send.map([7])):
        with pytest.raises(
            InvalidOption, match=r"task 'send' of module '.*test_tasks' is of a group .* write app\.include"
        ):
            await call
    with pytest.raises(TypeError, match="argument learner='seven'"):
        send.spec("seven")  # type: ignore[arg-type]


async def test_names_and_groups_are_taken_once_and_nothing_is_half_included(app: EchoMQ, url: str) -> None:
    tasks, more = Tasks(), Tasks()

    @tasks.task
    async def send() -> None: ...

    more.task(name="first")(send.function)
    more.task(send)
    with pytest.raises(InvalidOption, match="task name 'send' is taken"):
        tasks.task(name="send")(lambda: None)
    app.include(tasks)
    with pytest.raises(
        InvalidOption, match=r"task name 'send' is taken, by .* or include the group with a name_prefix"
    ):
        app.include(more)
    assert sorted(app.tasks) == ["send"]
    app.include(more, name_prefix="more.")
    assert sorted(app.tasks) == ["more.first", "more.send", "send"]
    with pytest.raises(InvalidOption, match="is included already"):
        EchoMQ(url).include(tasks)
    last = Tasks(queue="last")
    last.task(name="ok")(send.function)
    last.task(name="wrong", results_queue="last")(send.function)
    for _ in range(2):
        with pytest.raises(InvalidOption, match="is the queue that the task's own jobs go to"):
            app.include(last)
        assert sorted(app.tasks) == ["more.first", "more.send", "send"]
    with pytest.raises(InvalidOption, match="must be a group of tasks"):
        app.include(send)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Tasks\(…\) has no option 'name'; it has: queue, "):
        Tasks(name="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"@app\.task\(…\) has no option 'tries'"):
        app.task(tries=3)  # type: ignore[call-overload]


async def test_one_function_may_be_a_task_of_two_apps(url: str) -> None:
    async with EchoMQ(url, prefix="one") as one, EchoMQ(url, prefix="two") as two:

        @one.task(queue="sums")
        async def double(number: int) -> int:
            return 2 * number

        other = two.task(queue="sums", name="twice")(double)
        assert (double.name, other.name, other.function) == ("double", "twice", double.function)
        async with one.worker("sums"), two.worker("sums"):
            jobs = [await double.enqueue(2), await other.enqueue(3)]
            assert [await job.result(timeout=10) for job in jobs] == [4, 6]
        assert [job.name for job in jobs] == ["double", "twice"]


async def test_map_adds_a_job_for_each_row(app: EchoMQ) -> None:
    @app.task(queue="seats", attempts=2)
    async def enroll(learner: int, course: str = "lua") -> str:
        return f"{learner} {course}"

    async with app.worker("seats", concurrency=10):
        jobs = await enroll.map(range(3), ["redis", "lua", "c"])
        jobs += await enroll.options(priority=1).map(iter([7]), course="go")
        jobs += await enroll.map([8])
        assert await enroll.map([]) == []
        assert [await job.result(timeout=10) for job in jobs] == ["0 redis", "1 lua", "2 c", "7 go", "8 lua"]
    assert [(job.opts.attempts, job.priority) for job in jobs[2:4]] == [(2, 0), (2, 1)]


async def test_map_checks_every_row_before_it_adds_one(app: EchoMQ) -> None:
    @app.task(queue="seats")
    async def enroll(learner: int, course: str) -> None: ...

    with pytest.raises(InvalidOption, match=r"number 2 has only 1 value; give what is the same for all"):
        await enroll.map([1, 2], ["redis"])
    with pytest.raises(
        InvalidOption, match=r"task 'enroll': map takes iterables .* number 1 is 3; .* enroll\.enqueue\("
    ):
        await enroll.map(3, course="redis")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"task 'enroll': map takes iterables"):
        enroll.sync.map(3, course="redis")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="map needs an iterable"):
        await enroll.map(course="redis")
    with pytest.raises(TypeError, match="argument learner='seven'"):
        await enroll.map([1, "seven"], course="redis")
    with pytest.raises(TypeError, match="missing a required argument: 'course'"):
        await enroll.map([1])
    assert await app.queue("seats").counts("waiting") == {"waiting": 0}


async def test_enqueue_all_adds_each_to_the_queue_of_its_task(app: EchoMQ) -> None:
    @app.task(queue="seats")
    async def enroll(learner: int) -> int:
        return learner

    @app.task(queue="mail")
    async def welcome(learner: int) -> str:
        return f"welcome {learner}"

    jobs = await app.enqueue_all(make(learner) for learner in range(3) for make in (enroll.spec, welcome.spec))
    assert [job.queue_name for job in jobs] == ["seats", "mail"] * 3
    jobs += await app.enqueue_all([welcome.options(priority=1).spec(7)])
    async with app.worker("seats"), app.worker("mail"):
        results = [await job.result(timeout=10) for job in jobs]
    assert results == [0, "welcome 0", 1, "welcome 1", 2, "welcome 2", "welcome 7"]
    assert await app.enqueue_all([]) == []


async def test_enqueue_all_adds_nothing_if_one_of_them_is_wrong(app: EchoMQ) -> None:
    @app.task(queue="seats")
    async def enroll(learner: int) -> None: ...

    @app.task(queue="mail")
    async def welcome(grade: object) -> None: ...

    with pytest.raises(InvalidOption, match=r"job 1: the app has no task 'unknown'.* the app has: enroll, welcome"):
        await app.enqueue_all([enroll.spec(1), JobSpec("unknown")])
    with pytest.raises(InvalidOption, match="job 0: 7 must be a JobSpec"):
        await app.enqueue_all([7])  # type: ignore[list-item]
    with pytest.raises(EncodingError, match=r"jobs\[1\]: data\.grade is nan"):
        await app.enqueue_all([enroll.spec(1), welcome.spec(float("nan"))])
    assert await app.queue("seats").counts("waiting") == {"waiting": 0}


async def test_enqueue_all_says_what_became_of_each_job_when_it_stops_half_way(app: EchoMQ) -> None:
    @app.task(queue="seats")
    async def enroll(learner: int) -> None: ...

    @app.task(queue="mail")
    async def welcome(learner: int) -> None: ...

    app.queue("mail", max_size=1)
    specs = [welcome.spec(0), enroll.spec(0), welcome.spec(1), enroll.spec(1)]
    with pytest.raises(BulkAddError, match="1 of 4 jobs were added, then: queue 'mail'") as stopped:
        await app.enqueue_all(specs)
    assert (len(stopped.value.added), stopped.value.unknown, stopped.value.not_added) == (1, [], [1, 2, 3])
    with pytest.raises(BulkAddError, match="2 of 4 jobs were added") as stopped:
        await app.enqueue_all([specs[1], specs[3], specs[0], specs[2]])
    assert (len(stopped.value.added), stopped.value.not_added) == (2, [2, 3])


async def test_enqueue_all_adds_nothing_if_the_store_of_one_queue_is_away(url: str) -> None:
    class Away(Codec):
        name = "away"

        def encode(self, body: bytes) -> tuple[bytes, dict[str, Any]] | None:
            if b"7" in body:
                raise StoreUnavailable("the store is away")
            return body + b" " * body.count(b"8") * 100, {}

        def decode(self, body: bytes, step: Mapping[str, Any]) -> bytes:
            return body

    async with EchoMQ(url, codec=Away(), max_bytes=150) as app:

        @app.task(queue="seats")
        async def enroll(learner: int) -> None: ...

        @app.task(queue="mail")
        async def welcome(learner: int) -> None: ...

        with pytest.raises(StoreUnavailable, match="the store is away"):
            await app.enqueue_all([enroll.spec(1), enroll.spec(2), welcome.spec(7)])
        with pytest.raises(PayloadTooLarge, match=r"jobs\[2\]: data"):
            await app.enqueue_all([enroll.spec(1), enroll.spec(2), welcome.spec(8)])
        assert await app.queue("seats").counts("waiting") == {"waiting": 0}
        assert len(await app.enqueue_all([enroll.spec(1), welcome.spec(2)])) == 2


@pytest.mark.parametrize("where", ["decorator", "group", "options"])
async def test_every_option_of_jobs_may_be_said_of_a_task_a_group_or_the_next_jobs(app: EchoMQ, where: str) -> None:
    options: TaskOptions = {
        "attempts": 5,
        "backoff": Backoff.exponential(1),
        "priority": 3,
        "delay": 60,
        "expire_in": 120,
        "deduplication": Deduplication.throttle(None, 5),
        "unique_by": ["learner"],
        "remove_on_complete": Keep(count=10),
        "remove_on_fail": Keep(age=60),
        "stack_trace_limit": 2,
        "keep_logs": 7,
        "omit_context": True,
        "max_bytes": 1000,
    }

    async def enroll(learner: int) -> None: ...

    if where == "decorator":
        task = app.task(**options)(enroll)
    elif where == "group":
        group = Tasks(**options)  # type: ignore[misc]  # options might hold a name
        task = group.task(enroll)
        app.include(group)
    else:
        task = app.task(enroll).options(**options)  # type: ignore[misc]
    spec = task.spec(7)
    assert {name: getattr(spec, name) for name in options} == options
    job = await task.enqueue(7)
    assert (job.opts.attempts, job.priority, job.delay, job.deduplication_id is None) == (5, 3, 60, False)


async def test_the_next_jobs_may_go_to_another_queue(app: EchoMQ) -> None:
    @app.task(queue="mail")
    async def send(learner: int) -> int:
        return learner

    urgent = send.options(queue="urgent", priority=1)
    jobs = [await urgent.enqueue(7), *await urgent.options(delay=None).map([8])]
    assert [job.queue_name for job in jobs] == ["urgent", "urgent"]
    assert send.queue == "mail"
    async with app.worker("urgent"):
        assert [await job.result(timeout=10) for job in jobs] == [7, 8]
    with pytest.raises(InvalidOption, match="must not contain ':'"):
        send.options(queue="a:b")


async def test_tasks_may_say_how_many_jobs_of_their_queue_start_in_a_time(app: EchoMQ) -> None:
    limiter = Limiter(max=2, duration=60)

    @app.task(queue="calls", limiter=limiter)
    async def call() -> None: ...

    @app.task(queue="calls", limiter=Limiter(max=2, duration=60))
    async def call_again() -> None: ...

    jobs = [await call.enqueue(), await call_again.enqueue(), await call.enqueue()]
    async with app.worker("calls", concurrency=3):
        for job in jobs[:2]:
            await job.result(timeout=10)
        assert await app.queue("calls").counts("waiting", "completed") == {"waiting": 1, "completed": 2}
    async with app.worker("calls", limiter=None):
        await jobs[2].result(timeout=10)

    app.task(name="free", queue="calls")(lambda: None)
    with pytest.raises(InvalidOption, match=r"task 'call' has limiter=Limiter\(.* and task 'free' has limiter=None"):
        app.worker("calls")
    with pytest.raises(InvalidOption, match="limiter=7: must be a Limiter"):
        app.task(name="wrong", limiter=7)(lambda: None)  # type: ignore[call-overload]


async def test_records_of_the_job_logger_carry_the_job(app: EchoMQ, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "echomq.job")

    @app.task(queue="here")
    def enroll() -> None:
        job_logger.info("half of it", extra={"course": "redis"})

    async with app.worker("here"):
        job = await enroll.enqueue()
        await job.result(timeout=10)
    job_logger.info("outside")
    inside, outside = (vars(record) for record in caplog.records if record.name == "echomq.job")
    about = {"queue": "here", "job_id": job.id, "job_name": "enroll", "course": "redis"}
    assert {name: inside[name] for name in about} == about
    assert "job_id" not in outside


async def test_current_job_is_the_job_whose_handler_runs(app: EchoMQ) -> None:
    seen: list[tuple[str, Job[Any] | None]] = []

    def here(where: str) -> str:
        job = current_job()
        seen.append((where, job))
        return "" if job is None else job.id

    @app.task(queue="here")
    async def looped() -> str:
        return await asyncio.to_thread(here, "its thread")

    @app.task(queue="here")
    def threaded() -> str:
        assert threading.current_thread() is not threading.main_thread()
        return here("thread")

    async with app.worker("here"):
        for job in (await looped.enqueue(), await threaded.enqueue()):
            assert await job.result(timeout=10) == job.id
    assert here("outside") == ""
    assert [where for where, _ in seen] == ["its thread", "thread", "outside"]


def test_modules_of_tasks_may_need_each_other(tmp_path: Path) -> None:
    """The app includes two modules whose tasks enqueue each other's; any of the three may be imported first."""
    modules = {
        "shop/__init__.py": "",
        "shop/queue_app.py": """
            from echomq import EchoMQ
            from shop import mail, orders

            app = EchoMQ("redis://127.0.0.1:1")
            app.include(mail.tasks, name_prefix="mail.")
            app.include(orders.tasks)
        """,
        "shop/mail.py": """
            from echomq import Tasks
            from shop import orders

            tasks = Tasks(queue="mail")

            @tasks.task
            async def remind(order: int) -> None:
                await orders.pay.enqueue(order)
        """,
        "shop/orders.py": """
            from echomq import Tasks
            from shop import mail

            tasks = Tasks(queue="orders")

            @tasks.task
            async def pay(order: int) -> None:
                await mail.remind.options(delay=60).enqueue(order)
        """,
    }
    for name, text in modules.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text), "utf-8")
    for first in ("queue_app", "mail", "orders"):
        program = (
            f"import shop.{first}; from shop.queue_app import app; from shop import mail, orders;"
            "assert sorted(app.tasks) == ['mail.remind', 'pay'];"
            "assert mail.remind.app is app; assert orders.pay.app is app"
        )
        subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, check=True)


def test_a_task_takes_all_options_that_a_spec_has() -> None:
    assert set(NextJobs.__annotations__) == {*JobSpec.__struct_fields__} - {"name", "data", "timestamp"} | {"queue"}


async def test_names_of_other_libraries_are_answered_with_ours(app: EchoMQ) -> None:
    @app.task
    async def enroll(learner: int) -> None: ...

    job = await enroll.enqueue(7)
    for found, name, said in [
        *((one, name, r"a task has no '{}'; write \.enqueue\(…\)") for one in (enroll, enroll.sync) for name in
          ("delay", "apply_async", "send")),
        (enroll, "s", r"a task has no 's'; write \.spec\(…\)"),
        *((one, "get", r"a job has no 'get'; write \.result\(timeout=…\)") for one in (job, SyncJob(job))),
        (job, "revoke", r"a job has no 'revoke'; write \.cancel\(…\)"),
        (job, "ready", r"a job has no 'ready'; write \.refresh\(\)"),
        (app, "shared_task", r"an app has no 'shared_task'; write tasks = Tasks\(\)"),
        (app, "send_task", r"an app has no 'send_task'; write app\.queue\(…\)\.add\("),
        (app, "conf", "an app has no 'conf'; give options where"),
    ]:  # fmt: skip
        assert not hasattr(found, name)
        with pytest.raises(AttributeError, match=said.format(name)):
            getattr(found, name)
    assert not hasattr(enroll, "seats")
    for option, said in [
        ("autoretry_for", "retry_policy=…"),
        ("retry_backoff", r"write backoff=Backoff\.exponential\(…\)"),
        ("retry_jitter", "jitter=…"),
        ("acks_late", "leave it out: a job is done when its run has ended"),
        ("ignore_result", "remove_on_complete=…"),
        ("serializer", "codec=…"),
        ("time_limit", "with process=True"),
    ]:
        with pytest.raises(TypeError, match=rf"@app\.task\(…\) has no option '{option}': .*{said}"):
            app.task(**{option: True})  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"@app\.task\(…\) has no option 'bind': write pass_job=True"):
        app.task(bind=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="max_retries=3 is attempts=4"):
        app.task(max_retries=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"has no option 'tries'; it has: .*, pass_job$"):
        app.task(tries=3)  # type: ignore[call-overload]
    for options in (enroll.options, enroll.sync.options):
        with pytest.raises(TypeError, match=r"\.options\(…\) has no option 'countdown': write delay=…"):
            options(countdown=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"\.options\(…\) has no option 'tries'; it has: job_id, .*, queue$"):
            options(tries=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"EchoMQ\(…\) has no option 'broker': give the URL of the server first"):
        EchoMQ("till", broker="redis://localhost", backend="redis://localhost")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"EchoMQ\(…\) has no option 'url'; it has: connection, prefix, .*middleware$"):
        EchoMQ(url="redis://localhost")  # type: ignore[arg-type]


def test_what_stands_in_a_function_changes_nothing_in_its_task(app: EchoMQ) -> None:
    def welcome(learner: int) -> int:
        return learner

    vars(welcome).update(queue="elsewhere", timeout=0.5, enqueue=lambda: None, _place=None)
    task = app.task(queue="mail", timeout=60)(welcome)
    assert (task.queue, task.timeout, task.app, task.enqueue.__name__) == ("mail", 60, app, "enqueue")


def test_a_function_without_a_name_needs_one(app: EchoMQ) -> None:
    def welcome(learner: int) -> int:
        return learner

    with pytest.raises(InvalidOption, match=r"functools\.partial\(.*has no name of its own; give name=…"):
        app.task(functools.partial(welcome, 1))
    assert app.task(name="welcome")(functools.partial(welcome, 1))() == 1


async def test_the_job_itself_is_no_argument(app: EchoMQ) -> None:
    @app.task(pass_job=True, queue="any", attempts=3)
    async def takes_any(job: Job[Any], /, **more: int) -> dict[str, int]:
        return more

    @app.task(pass_job=True, queue="any", attempts=3)  # type: ignore[arg-type]  # which says so, too
    async def has_name(job: Job[Any], **more: int) -> dict[str, int]:
        return more

    with pytest.raises(TypeError, match="task 'has_name': job is the job itself when a job runs; leave it out"):
        has_name.spec(job=1)
    async with app.worker("any"):
        assert await (await takes_any.enqueue(job=1)).result(timeout=10) == {"job": 1}
        assert await (await has_name.enqueue(more=1)).result(timeout=10) == {"more": 1}
        job = await app.queue("any").add("has_name", {"job": 1}, attempts=3)
        with pytest.raises(JobFailed, match="does not fit task 'has_name': job is the job itself, and no argument"):
            await job.result(timeout=10)


def test_a_method_is_no_task(app: EchoMQ) -> None:
    class Mailer:
        def send(self, learner: int) -> int:
            return learner

    with pytest.raises(InvalidOption, match=r"takes self, as a method does.* app\.task\(mailer\.send\)"):
        app.task(Mailer.send)
    assert app.task(Mailer().send)(7) == 7
