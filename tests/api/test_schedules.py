"""What a ``JobScheduler`` does, one idea a test. With a clock that stands still: tests/store/test_vectors_schedules.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from echomq import (
    Backoff,
    BrokenKey,
    Connection,
    Cron,
    EchoMQ,
    Every,
    InvalidOption,
    Job,
    JobOptions,
    JobScheduler,
    JobSpec,
    Queue,
    QueueFull,
    StateError,
    Worker,
)
from echomq.payloads import Compressed
from tests.support.audit import audit
from tests.support.server import Server
from tests.support.wait import wait_until

BASE = "emq:{reports}:"
YEARLY = Cron("0 0 1 1 *")
REPORT = JobSpec("report", {"of": "yesterday"})


@pytest.fixture
async def scheduler(url: str) -> AsyncIterator[JobScheduler]:
    async with JobScheduler("reports", connection=url) as scheduler:
        yield scheduler


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("reports", connection=url) as queue:
        yield queue


def sound(server: Server) -> None:
    with server.client() as client:
        assert audit(client, "emq", "reports") == []


class Runs:
    """A handler that says what it saw."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.jobs: list[Job[Any]] = []
        self.error = error

    async def __call__(self, job: Job[Any]) -> None:
        self.jobs.append(job)
        if self.error is not None:
            raise self.error

    @property
    def slots(self) -> list[int]:
        return [int(job.id.rpartition(":")[2]) for job in self.jobs]


# -- upsert, get, list, remove -----------------------------------------------------------------------------------------


async def test_a_schedule_is_there_and_says_when_it_runs(scheduler: JobScheduler, queue: Queue) -> None:
    job = JobSpec("report", {"of": "yesterday"}, attempts=3, backoff=Backoff.fixed(2), priority=4)
    made = await scheduler.upsert("daily", Cron("30 9 * * *", tz="Europe/Vienna"), job, limit=1000, spread=60)
    assert made == await scheduler.get("daily")
    assert (made.id, made.name, made.data, made.tz) == ("daily", "report", {"of": "yesterday"}, "Europe/Vienna")
    assert made.options == JobOptions(attempts=3, backoff=Backoff.fixed(2), priority=4)
    assert (made.limit, made.spread, made.missed, made.paused, made.iteration_count) == (1000, 60.0, "once", False, 1)
    assert made.next_run is not None
    assert datetime.now(UTC) < made.next_run < datetime.now(UTC) + timedelta(days=1)
    assert await queue.counts("delayed") == {"delayed": 1}


async def test_an_interval_starts_at_once_and_keeps_in_step(scheduler: JobScheduler, url: str) -> None:
    await scheduler.upsert("tick", Every(0.2), REPORT)
    runs = Runs()
    async with Worker("reports", runs, connection=url):
        await wait_until(lambda: len(runs.jobs) >= 4)
    assert {later - sooner for sooner, later in pairwise(runs.slots[:4])} == {200}
    assert runs.jobs[0].data == {"of": "yesterday"}


async def test_the_same_upsert_again_changes_nothing(scheduler: JobScheduler, queue: Queue) -> None:
    made = await scheduler.upsert("daily", YEARLY, REPORT)
    for _ in range(3):
        assert await scheduler.upsert("daily", YEARLY, REPORT) == made
    assert await queue.counts("delayed") == {"delayed": 1}


async def test_the_run_that_waits_gets_the_new_template(scheduler: JobScheduler, queue: Queue) -> None:
    made = await scheduler.upsert("daily", YEARLY, REPORT)
    changed = await scheduler.upsert("daily", YEARLY, JobSpec("report", {"of": "today"}, priority=2))
    assert (changed.next_run, changed.data) == (made.next_run, {"of": "today"})
    assert changed.next_run is not None
    job = await queue.get_job(f"repeat:daily:{round(changed.next_run.timestamp() * 1000)}")
    assert job is not None
    assert (job.data, job.priority) == ({"of": "today"}, 2)


async def test_twenty_processes_that_start_at_once_make_one_schedule(url: str, server: Server) -> None:
    schedulers = [JobScheduler("reports", connection=Connection(url)) for _ in range(20)]
    for _ in range(5):
        await asyncio.gather(*(one.upsert("tick", Every(3600), REPORT) for one in schedulers))
        await asyncio.gather(*(one.upsert("daily", YEARLY, REPORT) for one in schedulers))
    assert [info.iteration_count for info in await schedulers[0].list()] == [1, 1]
    with server.client() as client:
        assert client.zcard(BASE + "delayed") == 1
        assert client.llen(BASE + "wait") == 1
    sound(server)
    for one in schedulers:
        await one.close()
    await asyncio.gather(*(one._home.connection.close() for one in schedulers))


async def test_listed_by_their_next_run(scheduler: JobScheduler) -> None:
    now = datetime.now(UTC)
    for name, days in (("c", 3), ("a", 1), ("b", 2)):
        await scheduler.upsert(name, Every(3600), REPORT, start=now + timedelta(days=days))
    await scheduler.pause("a")
    assert [info.id for info in await scheduler.list()] == ["b", "c", "a"]


async def test_removed(scheduler: JobScheduler, queue: Queue) -> None:
    await scheduler.upsert("daily", YEARLY, REPORT)
    assert await scheduler.remove("daily")
    assert not await scheduler.remove("daily")
    assert await scheduler.get("daily") is None
    assert await scheduler.list() == []
    assert await queue.counts("delayed") == {"delayed": 0}


@pytest.mark.parametrize(
    ("paused", "command"),
    [
        (True, ["HSET", "emqx:{reports}:paused-schedulers", "daily", "rubbish"]),
        (True, ["HSET", "emqx:{reports}:paused-schedulers", "daily", '{"fields":{"ic":5}}']),
        (False, ["SET", BASE + "repeat:daily", "x"]),
        (False, ["ZADD", BASE + "repeat", "inf", "daily"]),
    ],
    ids=["record", "field", "hash", "time"],
)
async def test_a_broken_schedule_hides_no_other_and_can_be_removed(
    scheduler: JobScheduler, server: Server, caplog: pytest.LogCaptureFixture, paused: bool, command: list[str]
) -> None:
    await scheduler.upsert("hourly", Cron("@hourly"), REPORT)
    await scheduler.upsert("daily", YEARLY, REPORT)
    if paused:
        await scheduler.pause("daily")
    if command[0] == "SET":
        server.cli("DEL", command[1])
    server.cli(*command)
    assert [info.id for info in await scheduler.list()] == ["hourly"]
    assert [record.levelname for record in caplog.records if "'daily' is not listed" in record.message] == ["WARNING"]
    for call in (scheduler.get, scheduler.run_now, scheduler.resume):
        with pytest.raises(BrokenKey):
            await call("daily")
    assert await scheduler.remove("daily")
    assert not await scheduler.remove("daily")
    caplog.clear()
    assert [info.id for info in await scheduler.list()] == ["hourly"]
    assert caplog.records == []


@pytest.mark.parametrize("opts", ["[]", "rubbish"])
async def test_a_template_that_cannot_be_read_makes_no_job(
    scheduler: JobScheduler, queue: Queue, server: Server, opts: str
) -> None:
    await scheduler.upsert("daily", YEARLY, REPORT)
    server.cli("HSET", BASE + "repeat:daily", "opts", opts)
    with pytest.raises(BrokenKey, match="the opts of the schedule 'daily' cannot be read"):
        await scheduler.run_now("daily")
    await scheduler.pause("daily")
    with pytest.raises(BrokenKey, match="the opts of the schedule 'daily' cannot be read"):
        await scheduler.resume("daily")
    assert [(info.id, info.paused) for info in await scheduler.list()] == [("daily", True)]


async def test_from_a_queue_whose_connection_it_uses(queue: Queue) -> None:
    scheduler = JobScheduler(queue)
    await scheduler.upsert("daily", YEARLY, REPORT)
    await scheduler.close()
    assert await queue.counts("delayed") == {"delayed": 1}


async def test_a_tasks_call_as_template(url: str) -> None:
    app = EchoMQ(url)
    done: list[str] = []

    @app.task(queue="reports", attempts=2)
    async def report(of: str) -> None:
        done.append(of)

    async with app, JobScheduler(app.queue("reports")) as scheduler:
        info = await scheduler.upsert("once", Every(3600), report.spec(of="yesterday"))
        assert info.options.attempts == 2
        working = asyncio.create_task(app.work("reports"))
        await wait_until(lambda: done == ["yesterday"])
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


# -- runs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rhythm", [Every(0.1), Cron("* * * * * *")], ids=["every", "pattern"])
async def test_a_failing_handler_does_not_end_a_schedule(
    scheduler: JobScheduler, url: str, rhythm: Every | Cron
) -> None:
    await scheduler.upsert("tick", rhythm, JobSpec("report", attempts=1))
    runs = Runs(RuntimeError("as planned"))
    async with Worker("reports", runs, connection=url):
        await wait_until(lambda: len(runs.jobs) >= 3)
    assert len(set(runs.slots)) == len(runs.slots)


async def test_a_retry_makes_no_twin(scheduler: JobScheduler, url: str, server: Server) -> None:
    await scheduler.upsert("tick", Every(3600), JobSpec("report", attempts=3))
    runs = Runs(RuntimeError("as planned"))
    async with Worker("reports", runs, connection=url):
        await wait_until(lambda: server.cli("ZCARD", BASE + "failed") == 1)
    assert len(runs.jobs) == 3
    assert len(set(runs.slots)) == 1
    assert server.cli("ZCARD", BASE + "delayed") == 1
    sound(server)


@pytest.mark.parametrize("rhythm", [Every(3600), Cron("* * * * * *")], ids=["every", "pattern"])
async def test_a_run_knows_the_time_that_it_is_of(
    scheduler: JobScheduler, queue: Queue, url: str, rhythm: Every | Cron
) -> None:
    info = await scheduler.upsert("tick", rhythm, JobSpec("report", attempts=2, backoff=0.05))
    runs = Runs(RuntimeError("as planned"))
    async with Worker("reports", runs, connection=url):
        await wait_until(lambda: len(runs.jobs) >= 2)
    assert {job.scheduled_for for job in runs.jobs if job.id == runs.jobs[0].id} == {info.next_run}
    assert (await scheduler.run_now("tick")).scheduled_for is None
    assert (await queue.add("report")).scheduled_for is None


@pytest.mark.parametrize("slot", ["x", "", "9" * 30])
async def test_a_run_whose_id_names_no_time(queue: Queue, server: Server, slot: str) -> None:
    server.cli("HSET", BASE + f"repeat:tick:{slot}", "name", "report", "rjk", "tick")
    job = await queue.get_job(f"repeat:tick:{slot}")
    assert job is not None
    assert job.scheduled_for is None


async def test_one_run_a_tick_with_many_workers(scheduler: JobScheduler, url: str) -> None:
    await scheduler.upsert("tick", Every(0.1), REPORT, limit=15)
    runs = Runs()
    workers = [Worker("reports", runs, connection=url, concurrency=3) for _ in range(5)]
    for worker in workers:
        await worker.__aenter__()
    await wait_until(lambda: len(runs.jobs) == 15)
    await asyncio.gather(*(worker.close() for worker in workers))
    assert len(set(runs.slots)) == 15
    info = await scheduler.get("tick")
    assert info is not None
    assert (info.iteration_count, info.next_run) == (15, None)


async def test_a_late_run_is_skipped(scheduler: JobScheduler, queue: Queue, url: str, server: Server) -> None:
    await queue.pause()
    info = await scheduler.upsert("tick", Every(3600), REPORT, missed="skip", grace=0.05)
    assert info.next_run is not None
    await asyncio.sleep(0.1)
    await queue.resume()
    runs = Runs()
    async with Worker("reports", runs, connection=url):
        await wait_until(lambda: server.cli("ZCARD", BASE + "completed") == 1)
    assert runs.jobs == []
    job = await queue.get_job(f"repeat:tick:{round(info.next_run.timestamp() * 1000)}")
    assert job is not None
    assert (job.state, await job.result()) == ("completed", None)
    assert job.skipped is not None
    assert job.skipped.startswith("not run: ")
    with server.client() as client:
        said: list[Any] = client.xrange(BASE + "events")  # type: ignore[assignment]
    [skipped, ended] = [fields for _, fields in said if fields[b"event"] in (b"skipped", b"completed")]
    assert (skipped[b"event"], ended[b"event"]) == (b"skipped", b"completed")
    assert int(skipped[b"late"]) > 50
    assert server.cli("ZCARD", BASE + "delayed") == 1


@pytest.mark.parametrize("how", ["expired", "deferred"])
async def test_a_run_that_fails_without_being_run_does_not_end_its_schedule(
    scheduler: JobScheduler, queue: Queue, url: str, server: Server, how: str
) -> None:
    await queue.pause()
    template = JobSpec("report", expire_in=0.05) if how == "expired" else REPORT
    info = await scheduler.upsert("tick", Every(3600), template)
    assert info.next_run is not None
    if how == "deferred":
        job_id = f"repeat:tick:{round(info.next_run.timestamp() * 1000)}"
        server.cli("HSET", BASE + job_id, "defa", "job stalled more than allowable limit")
    await asyncio.sleep(0.1)
    await queue.resume()
    runs = Runs()
    async with Worker("reports", runs, connection=url):
        await wait_until(lambda: server.cli("ZCARD", BASE + "failed") == 1)
    assert runs.jobs == []
    assert server.cli("ZCARD", BASE + "delayed") == 1
    found = await scheduler.get("tick")
    assert found is not None
    assert found.next_run == info.next_run + timedelta(hours=1)


async def test_missed_runs_are_caught_up_with(scheduler: JobScheduler, queue: Queue, url: str) -> None:
    await queue.pause()
    await scheduler.upsert("tick", Every(0.1), REPORT, missed="catch_up", limit=10)
    await asyncio.sleep(0.5)
    await queue.resume()
    runs = Runs()
    async with Worker("reports", runs, connection=url):
        await wait_until(lambda: len(runs.jobs) == 10)
    assert {later - sooner for sooner, later in pairwise(runs.slots)} == {100}


async def test_a_pattern_that_cannot_be_read_fails_its_run_and_stays_to_be_seen(
    scheduler: JobScheduler, queue: Queue, url: str, server: Server
) -> None:
    info = await scheduler.upsert("daily", YEARLY, REPORT, immediately=True)
    assert info.next_run is not None
    job_id = f"repeat:daily:{round(info.next_run.timestamp() * 1000)}"
    opts = server.cli("HGET", BASE + job_id, "opts").replace(b"0 0 1 1 *", b"0 0 1 1 rubbish")
    server.cli("HSET", BASE + job_id, "opts", opts)
    runs = Runs()
    async with Worker("reports", runs, connection=url):
        await wait_until(lambda: server.cli("ZCARD", BASE + "failed") == 1)
    job = await queue.get_job(job_id)
    assert job is not None
    assert job.failed_reason is not None
    assert "schedule 'daily' has no next run: cron pattern '0 0 1 1 rubbish'" in job.failed_reason
    assert (len(runs.jobs), job.attempts_started) == (0, 1)
    found = await scheduler.get("daily")
    assert found is not None
    assert found.next_run is None
    # Upserted again, it goes on.
    assert (await scheduler.upsert("daily", YEARLY, REPORT)).next_run is not None


async def test_a_run_without_a_readable_rhythm_fails_and_says_so(
    scheduler: JobScheduler, queue: Queue, url: str, server: Server
) -> None:
    info = await scheduler.upsert("daily", YEARLY, REPORT, immediately=True)
    assert info.next_run is not None
    job_id = f"repeat:daily:{round(info.next_run.timestamp() * 1000)}"
    server.cli("HSET", BASE + job_id, "opts", '{"attempts":0,"repeat":{"pattern":7}}')
    server.cli("HDEL", BASE + "repeat:daily", "pattern")
    runs = Runs()
    async with Worker("reports", runs, connection=url):
        await wait_until(lambda: server.cli("ZCARD", BASE + "failed") == 1)
    job = await queue.get_job(job_id)
    assert job is not None
    assert "schedule 'daily' has no next run: neither the job's opts.repeat nor the schedule" in str(job.failed_reason)
    assert runs.jobs == []
    assert (await scheduler.upsert("daily", YEARLY, REPORT)).next_run is not None


# -- pause, resume, run now ----------------------------------------------------------------------------------------------


async def test_a_paused_schedule_does_not_run(scheduler: JobScheduler, url: str) -> None:
    await scheduler.upsert("tick", Every(0.1), REPORT)
    runs = Runs()
    async with Worker("reports", runs, connection=url):
        await wait_until(lambda: len(runs.jobs) >= 2)
        await scheduler.pause("tick")
        await scheduler.pause("tick")
        info = await scheduler.get("tick")
        assert info is not None
        assert (info.paused, info.next_run, info.every) == (True, None, 0.1)
        seen = len(runs.jobs)
        await asyncio.sleep(0.3)
        assert len(runs.jobs) <= seen + 1  # one that had just been fetched
        await scheduler.resume("tick")
        await scheduler.resume("tick")
        await wait_until(lambda: len(runs.jobs) >= seen + 3)
    assert {slot % 100 for slot in runs.slots} == {runs.slots[0] % 100}
    assert len(set(runs.slots)) == len(runs.slots)


async def test_run_now_leaves_the_schedule_as_it_is(scheduler: JobScheduler, queue: Queue) -> None:
    before = await scheduler.upsert("daily", YEARLY, JobSpec("report", {"of": "x"}, attempts=4, priority=3))
    for paused in (False, True):
        if paused:
            await scheduler.pause("daily")
        job = await scheduler.run_now("daily")
        assert (job.name, job.data, job.state, job.opts.attempts, job.priority) == (
            "report", {"of": "x"}, "prioritized", 4, 3,
        )  # fmt: skip
        assert job.id.isdecimal()
        assert (await job.refresh()) is not None
    await scheduler.resume("daily")
    assert await scheduler.get("daily") == before


async def test_run_now_adds_nothing_to_a_full_queue(url: str) -> None:
    async with Queue("reports", connection=url, max_size=2) as queue:
        scheduler = JobScheduler(queue)
        await scheduler.upsert("yearly", YEARLY, REPORT)
        await scheduler.run_now("yearly")
        with pytest.raises(QueueFull, match="queue 'reports' is full: 2 jobs wait in it") as full:
            await scheduler.run_now("yearly")
        assert (full.value.size, full.value.max_size) == (2, 2)
        assert await queue.counts("waiting", "delayed") == {"waiting": 1, "delayed": 1}


async def test_resume_gives_the_data_as_they_were_given(url: str) -> None:
    async with JobScheduler("reports", connection=url, codec=Compressed(above=10)) as scheduler:
        await scheduler.upsert("yearly", YEARLY, JobSpec("report", {"of": "x" * 500}))
        for _ in range(2):
            await scheduler.pause("yearly")
            assert (await scheduler.resume("yearly")).data == {"of": "x" * 500}


@pytest.mark.parametrize("verb", ["pause", "resume", "run_now"])
async def test_a_schedule_that_is_not_there(scheduler: JobScheduler, verb: str) -> None:
    with pytest.raises(StateError, match="queue 'reports' has no schedule 'nobody'"):
        await getattr(scheduler, verb)("nobody")


@pytest.mark.parametrize("verb", ["get", "pause", "resume", "run_now", "remove"])
async def test_an_id_that_no_schedule_can_have(scheduler: JobScheduler, verb: str) -> None:
    with pytest.raises(InvalidOption, match=r"id '\\ud800': holds a lone surrogate"):
        await getattr(scheduler, verb)("\ud800")


# -- bad input -----------------------------------------------------------------------------------------------------------

SOON = datetime.now(UTC) + timedelta(hours=1)

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("schedule_id='a:b': must not contain ':'", {"id": "a:b"}),
    ("schedule_id='': must be a text", {"id": ""}),
    ("schedule_id=7: must be a text", {"id": 7}),
    ("at most 500", {"id": "x" * 501}),
    ("lone surrogate", {"id": "\ud800"}),
    ("rhythm=60: must be an Every or a Cron", {"rhythm": 60}),
    ("job='report': must be a JobSpec", {"job": "report"}),
    ("delay=5: not for a scheduled job: the schedule says when it runs", {"job": JobSpec("r", delay=5)}),
    ("not for a scheduled job: the schedule says when it runs", {"job": JobSpec("r", at=SOON)}),
    ("job_id='x': not for a scheduled job: each run has an id of its own", {"job": JobSpec("r", job_id="x")}),
    ("deduplication=.*: not for a scheduled job", {"job": JobSpec("r", deduplication="x")}),
    ("unique_by=.*: not for a scheduled job", {"job": JobSpec("r", {"a": 1}, unique_by=["a"])}),
    ("start=.*: must be a datetime with a time zone", {"start": datetime(2027, 1, 1)}),  # noqa: DTZ001
    ("must be after start", {"start": SOON, "end": SOON - timedelta(minutes=1)}),
    ("is in the past", {"end": datetime(2020, 1, 1, tzinfo=UTC)}),
    ("names no time between now", {"rhythm": Cron("0 0 29 2 *"), "end": SOON}),
    ("limit=0: must be a whole number", {"limit": 0}),
    ("immediately=True: a first run now and a start", {"start": SOON, "immediately": True}),
    ("immediately='x': must be True or False", {"immediately": "x"}),
    (
        "offset=5.0 and start=.*: an interval's first run is at its start",
        {"rhythm": Every(60, offset=5), "start": SOON},
    ),
    ("missed='never': must be 'once', 'skip' or 'catch_up'", {"missed": "never"}),
    ("grace=5: means something with", {"grace": 5}),
    ("spread=3600: must be shorter than the time between two runs, 3600 s", {"rhythm": Every(3600), "spread": 3600}),
    ("spread=90: must be shorter", {"rhythm": Cron("0,1 9 * * *"), "spread": 90}),
]


@pytest.mark.parametrize(("message", "given"), REFUSED, ids=[message[:30] for message, _ in REFUSED])
async def test_bad_input_is_refused_and_changes_nothing(
    scheduler: JobScheduler, server: Server, message: str, given: dict[str, Any]
) -> None:
    options = {"id": "daily", "rhythm": YEARLY, "job": REPORT, **given}
    with pytest.raises(InvalidOption, match=message):
        await scheduler.upsert(options.pop("id"), options.pop("rhythm"), options.pop("job"), **options)
    assert server.cli("KEYS", BASE + "*") == []


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("interval=0: ", lambda: Every(0)),
        ("interval=0.0001: ", lambda: Every(0.0001)),
        ("interval=0.3333333333333333: must be whole milliseconds; round it, such as 0.333", lambda: Every(1 / 3)),
        ("interval='1': must be seconds", lambda: Every("1")),  # type: ignore[arg-type]
        ("offset=60: must be less than the interval", lambda: Every(60, offset=60)),
        ("offset=-1: ", lambda: Every(60, offset=-1)),
        ("cron pattern '61 \\* \\* \\* \\*' cannot be used", lambda: Cron("61 * * * *")),
        ("pattern='': must be a text", lambda: Cron("")),
        ("time zone 'Mars' is not known here", lambda: Cron("@daily", tz="Mars")),
        ("tz=None: must be a text", lambda: Cron("@daily", tz=None)),  # type: ignore[arg-type]
    ],
)
def test_rhythms_that_mean_nothing(message: str, make: Any) -> None:
    with pytest.raises(InvalidOption, match=message):
        make()
