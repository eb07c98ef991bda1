"""The front door: tasks are functions that can be enqueued."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from echomq import (
    Backoff,
    Deduplication,
    EchoMQ,
    EncodingError,
    InvalidOption,
    Job,
    JobFailed,
    JobSpec,
    Queue,
    ResultTimeout,
    ResultUnavailable,
    Unrecoverable,
)
from tests.support.server import Server
from tests.support.wait import wait_until


@dataclass
class Seat:
    row: int
    taken_at: datetime


@pytest.fixture
async def app(url: str) -> AsyncIterator[EchoMQ]:
    async with EchoMQ(url) as made:
        yield made


async def test_a_task_is_still_a_function(app: EchoMQ) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    def double(a: int) -> int:
        return 2 * a

    assert await add(2, 3) == 5
    assert double(4) == 8
    assert add.name == "add"
    assert add.queue == "default"


async def test_enqueue_runs_it_somewhere_else_and_result_brings_it_back(app: EchoMQ) -> None:
    @app.task(queue="sums")
    async def add(a: int, b: int) -> int:
        return a + b

    async with app.worker("sums"):
        job = await add.enqueue(2, b=3)
        assert await job.result(timeout=10) == 5


async def test_a_plain_function_runs_in_a_thread(app: EchoMQ) -> None:
    @app.task(queue="threads")
    def where() -> str:
        return threading.current_thread().name

    async with app.worker("threads"):
        assert await (await where.enqueue()).result(timeout=10) != threading.current_thread().name


async def test_arguments_and_results_have_the_types_that_are_written(app: EchoMQ) -> None:
    @app.task(queue="seats")
    async def sit(seat: Seat, pause: timedelta = timedelta(0)) -> Seat:
        assert isinstance(seat, Seat)
        assert isinstance(seat.taken_at, datetime)
        return Seat(seat.row + 1, seat.taken_at)

    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    async with app.worker("seats"):
        job = await sit.enqueue(Seat(6, now))
        assert await job.result(timeout=10) == Seat(7, now)


async def test_data_is_an_object_of_named_arguments_so_that_any_program_can_add_it(app: EchoMQ) -> None:
    @app.task(queue="named")
    async def enroll(learner: int, course: str = "redis") -> str:
        return f"{learner} {course}"

    job = await enroll.enqueue(7)
    assert (job.name, job.data) == ("enroll", {"learner": 7})
    foreign = await app.queue("named").add("enroll", {"learner": 8, "course": "lua"})
    async with app.worker("named"):
        assert await job.result(timeout=10) == "7 redis"
        assert await foreign.result(timeout=10) == "8 lua"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"learner": "seven"}, "argument learner='seven' of task 'enroll': Expected `int`, got `str`"),
        ({}, "missing a required argument: 'learner'"),
        ({"learner": 7, "room": 3}, "unexpected keyword argument 'room'"),
        ([7], "takes an object of named arguments"),
    ],
)
async def test_data_that_does_not_fit_fails_the_job_at_once_and_says_why(app: EchoMQ, data: object, said: str) -> None:
    ran = []

    @app.task(queue="strict", attempts=5, extra="forbid")
    async def enroll(learner: int) -> None:
        ran.append(learner)

    job = await app.queue("strict").add("enroll", data, attempts=5)
    async with app.worker("strict"):
        with pytest.raises(JobFailed) as failure:
            await job.result(timeout=10)
    assert said in failure.value.reason
    assert ran == []


async def test_wrong_calls_are_refused_where_they_are_made(app: EchoMQ) -> None:
    @app.task
    async def enroll(learner: int, grade: float = 1.0) -> None: ...

    with pytest.raises(TypeError, match="task 'enroll': missing a required argument: 'learner'"):
        await enroll.enqueue()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="task 'enroll': argument learner='seven': Expected `int`, got `str`"):
        await enroll.enqueue("seven")  # type: ignore[arg-type]
    with pytest.raises(EncodingError, match=r"data\.grade is nan"):
        await enroll.enqueue(7, float("nan"))
    assert await app.queue("default").counts("waiting") == {"waiting": 0}


async def test_options_of_one_job_leave_the_task_as_it_is(app: EchoMQ) -> None:
    @app.task(queue="options", attempts=3, backoff=Backoff.fixed(2))
    async def enroll(learner: int) -> None: ...

    later = await enroll.options(delay=60, priority=2, attempts=9).enqueue(1)
    plain = await enroll.enqueue(2)
    assert (later.delay, later.priority, later.opts.attempts, later.opts.backoff) == (60, 2, 9, Backoff.fixed(2))
    assert (plain.delay, plain.priority, plain.opts.attempts) == (0, 0, 3)
    with pytest.raises(InvalidOption, match="priority=-1"):
        enroll.options(priority=-1)


async def test_options_of_a_task_can_be_undone_and_replaced(app: EchoMQ) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)

    @app.task(queue="undone", delay=5, attempts=3, unique_by=["learner"])
    async def enroll(learner: int) -> None: ...

    @app.task(queue="undone", unique_by=["page"], deduplication=Deduplication.latest())
    async def index(page: int) -> None: ...

    @app.task(queue="undone", deduplication=Deduplication.throttle("tidy", 5))
    async def tidy(room: int) -> None: ...

    assert enroll.options(delay=None, unique_by=None).spec(7) == JobSpec("enroll", {"learner": 7}, attempts=3)
    assert enroll.options(attempts=None, delay=None, unique_by=None, priority=None, lifo=None).spec(7).is_plain
    later = enroll.options(at=moment).spec(7)
    assert (later.at, later.delay, later.unique_by) == (moment, None, ["learner"])
    assert enroll.options(at=moment).options(delay=9).spec(7).at is None
    named = enroll.options(deduplication="k").spec(7)
    assert (named.deduplication, named.unique_by) == ("k", None)

    assert index.options(unique_by=None).spec(1) == JobSpec("index", {"page": 1})
    assert index.options(deduplication=None).spec(1).unique_by == ["page"]
    assert index.options(deduplication="k").spec(1).deduplication == "k"
    by_room = tidy.options(unique_by=["room"]).spec(1)
    assert (by_room.deduplication, by_room.unique_by) == (Deduplication.throttle(None, 5), ["room"])
    with pytest.raises(InvalidOption, match="give one of them"):
        enroll.options(at=moment, delay=5)
    with pytest.raises(InvalidOption, match="give one of them"):
        enroll.options(deduplication="k", unique_by=["learner"])


async def test_options_among_the_arguments_are_told_where_they_go(app: EchoMQ) -> None:
    @app.task
    async def enroll(learner: int) -> None: ...

    with pytest.raises(
        TypeError, match=r"for an option of the job write enroll\.options\(delay=5, priority=2\)\.enqueue"
    ):
        enroll.spec(1, delay=5, priority=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'grade'$"):
        await enroll.enqueue(1, grade=5)  # type: ignore[call-arg]


async def test_specs_are_for_bulk(app: EchoMQ) -> None:
    @app.task(queue="bulk", attempts=2)
    async def double(number: int) -> int:
        return 2 * number

    assert double.spec(1) == JobSpec("double", {"number": 1}, attempts=2)
    jobs = await app.queue("bulk").add_bulk([double.spec(number) for number in range(20)])
    async with app.worker("bulk", concurrency=5):
        assert [await job.result(timeout=10) for job in jobs] == [2 * number for number in range(20)]


async def test_pass_job_gives_the_job_first(app: EchoMQ) -> None:
    @app.task(queue="pass", pass_job=True)
    async def who(job: Job[object], suffix: str) -> str:
        return job.id + suffix

    async with app.worker("pass"):
        job = await who.enqueue("!")
        assert await job.result(timeout=10) == f"{job.id}!"


async def test_a_timeout_ends_the_run_and_uses_an_attempt(app: EchoMQ) -> None:
    ended = asyncio.Event()

    @app.task(queue="slow", timeout=0.05)
    async def sleep() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with app.worker("slow"):
        with pytest.raises(JobFailed, match=r"longer than its timeout of 0\.05 s"):
            await (await sleep.enqueue()).result(timeout=10)
    assert ended.is_set()


async def test_an_annotation_that_cannot_be_resolved_is_named_and_the_others_count(
    app: EchoMQ, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(queue="hints", pass_job=True)
    async def meet(job: Running, day: Day, seats: int, when: datetime) -> Nope:  # type: ignore[name-defined]  # noqa: F821
        assert isinstance(when, datetime)
        return f"{day} {seats}"

    assert caplog.records == []  # what it names may be defined later
    with pytest.raises(TypeError, match="argument seats='seven': Expected `int`, got `str`"):
        await meet.enqueue("monday", "seven", datetime.now(UTC))  # type: ignore[arg-type]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(", which")[0] for line in lines] == [
        "task 'meet': argument day is annotated with Day",
        "task 'meet': its result is annotated with Nope",
    ]
    assert all("cannot be resolved (name '" in line and "if TYPE_CHECKING" in line for line in lines)
    async with app.worker("hints"):
        job = await meet.options(priority=1).enqueue("monday", 7, datetime.now(UTC))
        assert await job.result(timeout=10) == "monday 7"
    assert len([record for record in caplog.records if "cannot be resolved" in record.getMessage()]) == 2  # once each


async def test_annotations_count_behind_partial_and_of_an_object_that_can_be_called(app: EchoMQ) -> None:
    class Greeter:
        def __call__(self, learner: int) -> str:
            return f"hello {learner}"

    def greet(word: str, learner: int) -> str:
        return f"{word} {learner}"

    functions: list[Callable[..., str]] = [Greeter(), functools.partial(greet, "hello"), functools.partial(Greeter())]
    for number, function in enumerate(functions):
        task = app.task(name=f"greet-{number}")(function)
        assert task.arguments({"learner": 7}) == {"learner": 7}
        with pytest.raises(TypeError, match="argument learner='seven'"):
            task.spec(learner="seven")


async def test_an_annotation_may_name_what_is_defined_later(app: EchoMQ, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def later(seat: DefinedLater) -> int:
        return seat.row

    with pytest.raises(TypeError, match="Expected `int`, got `str`"):
        await later.enqueue({"row": "x"})  # type: ignore[arg-type]
    assert caplog.records == []


@pytest.mark.parametrize(("row", "why"), [("seven", "Expected `int`, got `str`"), (7, None)])
async def test_a_result_that_does_not_fit_its_annotation_is_logged(
    app: EchoMQ, caplog: pytest.LogCaptureFixture, row: object, why: str | None
) -> None:
    @app.task(queue="rows")
    async def rows() -> list[int]:
        return [row]  # type: ignore[list-item]

    async with app.worker("rows"):
        job = await rows.enqueue()
        if why is None:
            assert await job.result(timeout=10) == [7]
        else:
            with pytest.raises(ResultUnavailable, match=r'Expected `int`, got `str` .*; it is \["seven"\]$'):
                await job.result(timeout=10)
    found = await job.refresh()
    assert found is not None
    assert (found.state, found.return_value) == ("completed", [row])
    lines = [record.getMessage() for record in caplog.records]
    if why is None:
        assert lines == []
    else:
        [line] = lines
        assert line.startswith(f"job {job.id} (rows) of queue rows returned what does not fit its task: {why}")
        assert "list[int]" in line


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (Seat(1, datetime.now(UTC)), True),
        ({"row": 1, "taken_at": "2026-01-02T03:04:05Z"}, True),
        (None, False),
        (7, False),
    ],
)
def test_what_fits_a_result(app: EchoMQ, value: object, fits: bool) -> None:
    @app.task
    def seat() -> Seat:
        raise NotImplementedError

    @app.task
    def nothing() -> None: ...

    @app.task
    def anything():  # type: ignore[no-untyped-def]
        ...

    assert (seat.misfit(value) is None) is fits
    assert (nothing.misfit(value) is None) is (value is None)
    assert nothing.misfit(7) == "Expected `None`, got `int`; it is annotated with None"
    assert anything.misfit(value) is None
    assert fits or str(seat.misfit(value)).endswith("; it is annotated with Seat")


async def test_unrecoverable_uses_no_further_attempt(app: EchoMQ) -> None:
    @app.task(queue="sick", attempts=5)
    async def pay() -> None:
        raise Unrecoverable("the card was reported stolen")

    async with app.worker("sick"):
        job = await pay.enqueue()
        with pytest.raises(JobFailed, match="the card was reported stolen"):
            await job.result(timeout=10)
    found = await job.refresh()
    assert found is not None
    assert found.attempts_made == 1


async def test_an_unknown_task_waits_for_a_worker_that_knows_it(app: EchoMQ, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(queue="rolling")
    async def known() -> None: ...

    queue = app.queue("rolling")
    caplog.set_level(logging.WARNING, "echomq")
    first = await queue.add("new", {})
    second = await queue.add("new", {})
    async with app.worker("rolling") as worker:
        await (await known.enqueue()).result(timeout=10)
        await worker.run_until_drained()
    for job in (first, second):
        found = await job.refresh()
        assert found is not None
        assert (found.state, found.attempts_made, found.delay) == ("delayed", 0, 30)
    assert caplog.text.count("(new) of queue rolling: it asks for task 'new', which this worker does not know") == 1


@pytest.mark.parametrize("coded", [False, True])
async def test_an_unknown_task_fails_when_it_was_put_off_for_a_day(app: EchoMQ, server: Server, coded: bool) -> None:
    @app.task(queue="rolling")
    async def known(learner: int) -> None: ...

    day = 24 * 3600 // 30
    name, data = ("known", {"$echomq": {"steps": [{"name": "zlib"}], "body": ""}}) if coded else ("new", {})
    why = "written with a codec" if coded else "no worker has known a task named 'new' for 24 hours"
    old, new = datetime.now(UTC) - timedelta(hours=25), datetime.now(UTC)
    late, put_off, often = [await app.queue("rolling").add(name, data, timestamp=made) for made in (old, old, new)]
    with server.client() as client:
        client.hset(f"emq:{{rolling}}:{late.id}", mapping={"ats": day - 1})
        for job in (put_off, often):
            client.hset(f"emq:{{rolling}}:{job.id}", mapping={"ats": day + 3, "atm": 3})
    async with app.worker("rolling"):
        with pytest.raises(JobFailed, match=why):
            await put_off.result(timeout=10)
        for job in (late, often):
            await wait_until(functools.partial(is_delayed, job))


async def is_delayed(job: Job[object]) -> bool:
    found = await job.refresh()
    return found is not None and found.state == "delayed"


async def test_names_are_taken_once_and_arguments_need_names(app: EchoMQ) -> None:
    @app.task
    async def enroll(learner: int) -> None: ...

    with pytest.raises(InvalidOption, match="task name 'enroll' is taken"):
        app.task(name="enroll")(lambda: None)
    with pytest.raises(InvalidOption, match="has no name that a job's data could carry"):
        app.task(name="positional")(lambda *numbers: None)
    with pytest.raises(InvalidOption, match="write queue='shop'"):
        app.task("shop")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="must not contain ':'"):
        app.task(name="elsewhere", queue="a:b")(lambda: None)
    with pytest.raises(InvalidOption, match="not a class or a generator"):
        app.task(name="class")(Seat)
    with pytest.raises(InvalidOption, match="must take the job as first argument"):
        app.task(name="jobless", pass_job=True)(lambda: None)  # type: ignore[arg-type, misc]


async def test_nothing_connects_before_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    app = EchoMQ("redis://127.0.0.1:1")

    @app.task
    async def enroll(learner: int) -> None: ...

    assert app.worker().queue == "default"
    monkeypatch.delenv("ECHOMQ_URL", raising=False)
    with pytest.raises(InvalidOption, match="ECHOMQ_URL"):
        EchoMQ()


async def test_an_app_may_be_closed_and_used_again(url: str) -> None:
    app = EchoMQ(url)

    @app.task
    async def one() -> int:
        return 1

    for _ in range(2):
        async with app, app.worker():
            assert await (await one.enqueue()).result(timeout=10) == 1


async def test_a_queue_of_an_app_that_was_closed_is_made_anew(app: EchoMQ) -> None:
    @app.task(queue="mail", results_queue="told")
    async def welcome() -> str:
        return "welcome"

    async with app.queue("mail", max_size=5) as queue:
        assert await queue.counts("waiting") == {"waiting": 0}
    async with app.worker("mail"):
        assert await (await welcome.enqueue()).result(timeout=10) == "welcome"
    assert app.queue("mail") is not queue
    assert app.queue("mail") is app.queue("mail")
    assert app.queue("mail")._home.max_size == 5
    await app.queue("mail").close()
    await app.enqueue_all([welcome.spec()])
    await app.queue("mail").close()
    await welcome.map([])


async def test_an_id_that_is_taken_gives_the_job_that_has_it(app: EchoMQ) -> None:
    @app.task
    async def pack(order: int) -> None: ...

    first = await pack.options(job_id="order-17").enqueue(17)
    second = await pack.options(job_id="order-17").enqueue(18)
    assert (first.duplicate, second.duplicate) == (False, True)
    assert (second.id, second.data, second.state) == ("order-17", {"order": 17}, "waiting")


async def test_a_result_that_does_not_fit_says_so(app: EchoMQ) -> None:
    @app.task
    async def count() -> int:
        return "seven"  # type: ignore[return-value]

    async with app.worker():
        with pytest.raises(ResultUnavailable, match="does not fit the type that the task says it returns"):
            await (await count.enqueue()).result(timeout=10)


async def test_a_timeout_of_result_names_a_paused_queue_and_a_delay(app: EchoMQ) -> None:
    @app.task(queue="held-up")
    async def nobody() -> None: ...

    queue = app.queue("held-up")
    unknown = await queue.add("unknown")
    async with app.worker("held-up"):
        await wait_until_delayed(unknown)
        with pytest.raises(
            ResultTimeout, match=r"it is delayed, by 30 s, and .*; a worker has put it off, and its log"
        ):
            await unknown.result(timeout=0.05)
    await queue.pause()
    with pytest.raises(ResultTimeout, match="it is still waiting: the queue is paused"):
        await (await nobody.enqueue()).result(timeout=0.05)
    with pytest.raises(ResultTimeout, match=r"it is delayed, by 60 s, and runs when that is over$"):
        await (await nobody.options(delay=60).enqueue()).result(timeout=0.05)


async def wait_until_delayed(job: Job[object]) -> None:
    async def is_delayed() -> bool:
        now = await job.refresh()
        return now is not None and now.state == "delayed"

    await wait_until(is_delayed)


async def test_a_timeout_of_result_says_where_the_job_is(app: EchoMQ) -> None:
    @app.task
    async def nobody() -> None: ...

    with pytest.raises(ResultTimeout, match="it is still waiting: is a worker of this queue running"):
        await (await nobody.enqueue()).result(timeout=0.05)


async def test_work_runs_every_queue_that_a_task_names(app: EchoMQ) -> None:
    @app.task(queue="one")
    async def first() -> int:
        return 1

    @app.task(queue="two")
    async def second() -> int:
        return 2

    working = asyncio.create_task(app.work())
    assert await (await first.enqueue()).result(timeout=10) == 1
    assert await (await second.enqueue()).result(timeout=10) == 2
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_a_queue_with_bullmq_layout_has_its_keys(url: str) -> None:
    async with EchoMQ(url, prefix="bull") as app, Queue("paint", connection=url, prefix="bull") as same:

        @app.task(queue="paint")
        async def paint() -> None: ...

        await paint.enqueue()
        assert await same.counts("waiting") == {"waiting": 1}


@dataclass
class DefinedLater:
    row: int
