"""Payloads that are more than plain JSON on the server: compressed, encrypted, in a store; and how many bytes they may take."""

from __future__ import annotations

import asyncio
import copy
import json
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from echomq import (
    Connection,
    Deduplication,
    EchoMQ,
    Every,
    InvalidOption,
    Job,
    JobFailed,
    JobScheduler,
    JobSpec,
    PayloadTooLarge,
    PayloadUnreadable,
    ProcessPool,
    Queue,
    ResultUnavailable,
    StoreUnavailable,
    Worker,
    _payloads,
)
from echomq._payloads import Payloads
from echomq._worker import payloads
from echomq.payloads import Codec, Compressed, Encrypted, FileStore, Offloaded, PayloadStore, collect
from tests.api import payload_tasks
from tests.support.server import Server
from tests.support.wait import wait_until

KEY, OLD_KEY = Encrypted.generate_key(), Encrypted.generate_key()
SECRET = "Wien, Stephansplatz " * 20
DATA = {"where": SECRET, "n": 2**70}


class Memory(PayloadStore):
    """A store that can be away."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.away = False

    def put(self, key: str, body: bytes) -> None:
        self._check()
        self.kept[key] = body

    def get(self, key: str) -> bytes:
        self._check()
        return self.kept[key]

    def delete(self, key: str) -> None:
        self._check()
        self.kept.pop(key, None)

    def entries(self) -> Iterator[tuple[str, datetime]]:
        self._check()
        return iter([(key, datetime(2026, 1, 1, tzinfo=UTC)) for key in self.kept])

    def _check(self) -> None:
        if self.away:
            raise TimeoutError("no answer in 1 s")


CODECS: dict[str, Callable[[Path], Any]] = {
    "compressed": lambda folder: Compressed(above=100),
    "encrypted": lambda folder: Encrypted(KEY),
    "offloaded": lambda folder: Offloaded(FileStore(folder), above=100),
    "all": lambda folder: [Compressed(above=100), Encrypted([KEY, OLD_KEY]), Offloaded(FileStore(folder), above=100)],
}


@pytest.fixture(params=list(CODECS))
def codec(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return CODECS[request.param](tmp_path / "payloads")


def stored(server: Server, job_id: str, field: str, queue: str = "q") -> bytes:
    with server.client() as client:
        return bytes(client.hget(f"emq:{{{queue}}}:{job_id}", field))  # type: ignore[arg-type]


def is_wrapped(text: bytes) -> bool:
    read = json.loads(text)
    return list(read) == ["$echomq"] and set(read["$echomq"]) == {"steps", "body"} and b"Wien" not in text


async def echo(job: Job[Any]) -> Any:
    return job.data


async def test_data_and_results_go_there_and_back(url: str, server: Server, codec: Any) -> None:
    async with Queue("q", connection=url, codec=codec) as queue, Worker(queue, echo):
        job = await queue.add("echo", DATA)
        assert job.data == DATA
        assert await job.result(timeout=10) == DATA
        assert is_wrapped(stored(server, job.id, "data"))
        assert is_wrapped(stored(server, job.id, "returnvalue"))
        found = await queue.get_job(job.id)
        assert found is not None
        loaded = await found.load()
        assert (loaded.data, loaded.return_value, loaded.id, loaded.state) == (DATA, DATA, job.id, "completed")
        if codec is not None and "Offloaded" in repr(codec):
            with pytest.raises(
                PayloadUnreadable, match=r"is kept in a store: read it with `job = await job\.load\(\)`"
            ):
                _ = found.data
        else:
            assert (found.data, found.return_value) == (DATA, DATA)
        [small, *many] = await queue.add_bulk(JobSpec("echo", {"n": n, "where": SECRET * (n % 2)}) for n in range(40))
        assert small.data == {"n": 0, "where": ""}
        assert [(await job.result(timeout=10))["n"] for job in many] == list(range(1, 40))


async def test_a_plain_function_and_a_task_get_it_too(url: str, codec: Any) -> None:
    async with EchoMQ(url, codec=codec) as app:

        @app.task(queue="q", pass_job=True)
        def shout(job: Job[Any], where: str) -> list[str]:
            job.update_progress({"at": where})
            return [where.upper(), job.data["where"]]

        async with app.worker("q"):
            job = await shout.enqueue(SECRET)
            assert await job.result(timeout=10) == [SECRET.upper(), SECRET]


async def test_a_function_in_a_process_of_its_own_gets_it_too(url: str, server: Server, codec: Any) -> None:
    async with EchoMQ(url, codec=codec) as app:
        shout = app.task(queue="q", pass_job=True, process=True, attempts=2)(payload_tasks.shout)
        count = app.task(queue="q", process=True)(payload_tasks.count)
        async with app.worker("q", processes=ProcessPool(size=1)):
            job = await shout.enqueue(SECRET)
            assert await job.result(timeout=30) == [SECRET.upper(), {"where": SECRET, "times": 2}]
            assert is_wrapped(stored(server, job.id, "data"))
            assert is_wrapped(stored(server, job.id, "returnvalue"))
            wrong = await app.queue("q").add("count", {"letters": {"Wien": SECRET}})
            with pytest.raises(JobFailed, match=r"argument letters\.Wien of task 'count': Expected `int`, got `str`"):
                await wrong.result(timeout=30)
            more = await app.queue("q").add("count", {"letters": {"W": 4}, "more": SECRET})
            assert await count._returning(more).result(timeout=30) == 4


async def test_retries_see_data_that_the_handler_has_updated(url: str, server: Server, codec: Any) -> None:
    seen = []

    async def process(job: Job[Any]) -> None:
        seen.append(job.data)
        await job.update_data({**job.data, "page": len(seen)})
        if len(seen) < 3:
            raise ValueError("again")

    async with Queue("q", connection=url, codec=codec) as queue, Worker(queue, process):
        job = await queue.add("pages", {"where": SECRET}, attempts=3)
        await job.result(timeout=10)
    assert seen == [{"where": SECRET}, {"where": SECRET, "page": 1}, {"where": SECRET, "page": 2}]
    assert is_wrapped(stored(server, job.id, "data"))


async def test_dead_letters_and_requeued_jobs(url: str, codec: Any) -> None:
    fail = True

    async def process(job: Job[Any]) -> Any:
        if fail:
            raise ValueError("no")
        return job.data

    async with Queue("q", connection=url, codec=codec) as queue, Worker(queue, process, dead_letter=True):
        job = await queue.add("letter", DATA)
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
        [letter] = [await letter.load() async for letter in queue.dead_letter.jobs("waiting")]
        assert letter.data == DATA
        fail = False
        [back] = await queue.dead_letter.requeue()
        again = await queue.get_job(back)
        assert again is not None
        assert await again.result(timeout=10) == DATA


async def test_schedules(url: str, codec: Any) -> None:
    async with Queue("q", connection=url, codec=codec) as queue, Worker(queue, echo):
        scheduler = JobScheduler(queue)
        info = await scheduler.upsert("hourly", Every(3600), JobSpec("echo", DATA))
        assert info.data == DATA
        [listed] = await scheduler.list()
        assert listed.data == DATA
        assert await (await scheduler.run_now("hourly")).result(timeout=10) == DATA
        first = next(iter([job async for job in queue.jobs("completed", "active", "waiting")]))
        assert await first.result(timeout=10) == DATA


async def test_outcomes_in_a_results_queue(url: str, codec: Any) -> None:
    told: asyncio.Queue[Any] = asyncio.Queue()

    async def process(job: Job[Any]) -> None:
        told.put_nowait(job.data)

    async with Queue("q", connection=url, codec=codec) as queue, Worker(queue, echo, results_queue="told"):
        job = await queue.add("echo", DATA)
        await job.result(timeout=10)
        async with Queue("told", connection=url, codec=codec) as results:
            [waiting] = [await one.load() async for one in results.jobs()]
            assert waiting.data["result"] == DATA
        async with Worker("told", process, connection=url, codec=codec):
            outcome = await asyncio.wait_for(told.get(), 10)
    assert (outcome["job_id"], outcome["status"], outcome["result"]) == (job.id, "completed", DATA)


async def test_what_is_small_or_looks_like_ours(url: str, server: Server) -> None:
    lookalikes: list[Any] = [
        {"$echomq": {"steps": [], "body": "e30="}},
        {"$echomq": 1},
        {"$echomq": {"steps": [{"name": "zlib"}], "body": "!"}},
        "x",
        None,
    ]
    async with Queue("q", connection=url, codec=Compressed()) as queue, Worker(queue, echo):
        jobs = [await queue.add("echo", one) for one in lookalikes]
        assert [await job.result(timeout=10) for job in jobs] == lookalikes
        assert [(await job.refresh()).data for job in jobs] == lookalikes  # type: ignore[union-attr]
        assert stored(server, jobs[3].id, "data") == b'"x"'
        async with Queue("q", connection=url) as plain:
            foreign = await plain.add("echo", {"from": "Node"})
            assert await foreign.result(timeout=10) == {"from": "Node"}


async def test_keys_are_rotated(url: str) -> None:
    old, both, new = Encrypted(OLD_KEY), Encrypted([KEY, OLD_KEY]), Encrypted([KEY])
    async with Queue("q", connection=url, codec=old) as queue:
        before = await queue.add("echo", DATA)
    async with Queue("q", connection=url, codec=both) as queue, Worker(queue, echo):
        found = await queue.get_job(before.id)
        assert found is not None
        assert await found.result(timeout=10) == DATA
        assert await (await queue.add("echo", DATA)).result(timeout=10) == DATA
    async with (
        Queue("q", connection=url, codec=new) as queue,
        Worker(queue, echo),
        Queue("q", connection=url, codec=old) as late,
    ):
        job = await late.add("echo", DATA)
        with pytest.raises(JobFailed, match=r"was encrypted with key [0-9a-f]{12}, and the keys here are [0-9a-f]{12}"):
            await job.result(timeout=10)


async def broken_key(server: Server, job: Job[Any], folder: Path) -> None:
    change(server, job, lambda wrapped: wrapped["steps"][1].update(key="0" * 12))


async def changed_body(server: Server, job: Job[Any], folder: Path) -> None:
    [file] = files(folder)
    file.write_bytes(file.read_bytes()[:-1] + b"?")


async def missing_file(server: Server, job: Job[Any], folder: Path) -> None:
    [file] = files(folder)
    file.unlink()


async def another_path(server: Server, job: Job[Any], folder: Path) -> None:
    change(server, job, lambda wrapped: wrapped["steps"][2].update(key="../../etc/passwd"))


async def unknown_codec(server: Server, job: Job[Any], folder: Path) -> None:
    change(server, job, lambda wrapped: wrapped["steps"][0].update(name="lz99"))


async def no_base64(server: Server, job: Job[Any], folder: Path) -> None:
    change(server, job, lambda wrapped: wrapped.update(body="*", steps=[]))


async def no_envelope(server: Server, job: Job[Any], folder: Path) -> None:
    with server.client() as client:
        client.hset(f"emq:{{q}}:{job.id}", "data", '{"$echomq":[1,2]}')


async def no_zlib(server: Server, job: Job[Any], folder: Path) -> None:
    change(server, job, lambda wrapped: wrapped.update(body="e30=", steps=[{"name": "zlib"}]))


async def cut_zlib(server: Server, job: Job[Any], folder: Path) -> None:
    change(server, job, lambda wrapped: wrapped.update(body="eJxLTEpOSQ==", steps=[{"name": "zlib"}]))


def change(server: Server, job: Job[Any], how: Callable[[Any], object]) -> None:
    read = json.loads(stored(server, job.id, "data"))
    how(read["$echomq"])
    with server.client() as client:
        client.hset(f"emq:{{q}}:{job.id}", "data", json.dumps(read, separators=(",", ":")))


def files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*/*") if path.is_file()]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (broken_key, "was encrypted with key 000000000000"),
        (changed_body, "is not what was put there"),
        (missing_file, "it was removed, or this is another store"),
        (another_path, "has no ../../etc/passwd"),
        (unknown_codec, "was written with the codec 'lz99', and this program has: zlib, fernet, store"),
        (no_base64, "its body is no base64"),
        (no_envelope, "it begins as a codec writes, and goes on otherwise"),
        (no_zlib, "codec 'zlib': error"),
        (cut_zlib, "it cannot be inflated: its end is missing"),
    ],
)
async def test_what_cannot_be_read_fails_its_job_and_nothing_else(
    url: str, server: Server, tmp_path: Path, harm: Any, said: str
) -> None:
    codec = CODECS["all"](tmp_path)
    ran = []

    async def process(job: Job[Any]) -> Any:
        ran.append(job.id)
        return job.data

    async with Queue("q", connection=url, codec=codec) as queue:
        job = await queue.add("echo", {"where": os.urandom(200).hex()}, attempts=5)
        await harm(server, job, tmp_path)
        after = await queue.add("echo", 1)
        async with Worker(queue, process) as worker:
            with pytest.raises(JobFailed) as failure:
                await job.result(timeout=10)
            assert f"the job's data cannot be read: {said}" in failure.value.reason or said in failure.value.reason
            assert await after.result(timeout=10) == 1
            assert worker.is_running
        assert ran == [after.id]
        found = await job.refresh()
        assert found is not None
        assert (found.attempts_made, found.failure_kind) == (1, "unrecoverable")
        with pytest.raises(PayloadUnreadable):
            await found.load()


async def test_a_store_that_is_away_for_a_moment_costs_no_attempt(url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Memory()
    async with Queue("q", connection=url, codec=Offloaded(store, above=10)) as queue:
        job = await queue.add("echo", DATA)
        store.away = True
        with pytest.raises(StoreUnavailable, match=r"does not take .*: no answer in 1 s"):
            await queue.add("echo", DATA)
        with pytest.raises(StoreUnavailable, match="no answer"):
            await queue.add_bulk([JobSpec("echo", 1), JobSpec("echo", DATA)])
        assert await queue.count() == 1
        async with Worker(queue, echo):

            async def waits() -> bool:
                now = await job.refresh()
                return now is not None and now.state == "delayed"

            await wait_until(waits)
            assert "waits 1 s for its data" in caplog.text
            with pytest.raises(StoreUnavailable):
                await (await job.refresh()).load()  # type: ignore[union-attr]
            store.away = False
            assert await job.result(timeout=20) == DATA
        now = await job.refresh()
        assert now is not None
        assert (now.attempts_made, now.attempts_started >= 2) == (1, True)


async def test_work_is_never_done_again_because_its_result_cannot_be_stored(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "_PAUSES", (0.01, 0.01))
    store, runs = Memory(), []

    async def process(job: Job[Any]) -> str:
        runs.append(job.id)
        store.away = True
        return SECRET

    async with Queue("q", connection=url, codec=Offloaded(store, above=10)) as queue, Worker(queue, process):
        job = await queue.add("work", DATA, attempts=5)
        with pytest.raises(ResultUnavailable, match=r"the result could not be stored: .* no answer in 1 s"):
            await job.result(timeout=10)
        assert runs == [job.id]


async def test_a_worker_without_the_codec_leaves_the_job_to_one_that_has_it(url: str) -> None:
    async with EchoMQ(url, codec=Compressed(above=10)) as writes, EchoMQ(url) as reads:
        for app in (writes, reads):

            @app.task(queue="q")
            async def take(where: str = "", n: int = 0) -> str:
                return where

        job = await writes.queue("q").add("take", {"where": SECRET})
        async with reads.worker("q"):

            async def waits() -> bool:
                now = await job.refresh()
                return now is not None and now.state == "delayed"

            await wait_until(waits)
        await job.promote()
        async with writes.worker("q"):
            assert await job.result(timeout=10) == SECRET

        reads.task(queue="q", process=True)(payload_tasks.count)
        job = await writes.queue("q").add("count", {"letters": {SECRET: 1}})
        async with reads.worker("q"):
            await wait_until(waits)


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize("whose", ["app", "worker"])
async def test_an_encrypted_argument_does_not_come_out_in_the_reason(
    url: str, whose: str, process: bool, caplog: pytest.LogCaptureFixture
) -> None:
    codec = Encrypted(KEY)
    async with (
        EchoMQ(url, codec=codec if whose == "app" else None) as app,
        Queue("q", connection=url, codec=codec) as queue,
    ):
        app.task(queue="q", process=process)(payload_tasks.count)
        app.task(queue="q", process=process)(payload_tasks.rate)
        async with app.worker("q", codec=codec, processes=ProcessPool(size=1) if process else None):
            for name, data, said in (
                ("count", {"letters": {"number": SECRET}}, r"argument letters\.number of task 'count': Expected `int`"),
                ("count", SECRET, "takes an object of named arguments; the job's data is a str"),
                ("rate", {"stars": SECRET}, "argument stars of task 'rate': Invalid enum value$"),
            ):
                with pytest.raises(JobFailed, match=said) as failure:
                    await (await queue.add(name, data)).result(timeout=20)
                assert "Wien" not in failure.value.reason
    assert "Wien" not in caplog.text


async def test_an_encrypted_result_does_not_come_out_either(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with EchoMQ(url, codec=Encrypted(KEY)) as app:

        @app.task(queue="q")
        async def count() -> int:
            return SECRET  # type: ignore[return-value]

        @app.task(queue="q")
        async def rate() -> Literal["good", "bad"]:
            return SECRET  # type: ignore[return-value]

        async with app.worker("q"):
            for task, said in ((count, "Expected `int`, got `str`$"), (rate, "Invalid enum value$")):
                with pytest.raises(ResultUnavailable, match=said):
                    await (await task.enqueue()).result(timeout=10)
    assert "Wien" not in caplog.text
    assert "Invalid enum value; it is annotated with typing.Literal['good', 'bad']" in caplog.text


async def test_a_codec_of_ones_own(url: str) -> None:
    class Reversed(Codec):
        name = "reversed"

        def encode(self, body: bytes) -> tuple[bytes, dict[str, Any]] | None:
            return body[::-1], {"of": len(body)}

        def decode(self, body: bytes, step: Mapping[str, Any]) -> bytes:
            assert step["of"] == len(body)
            return body[::-1]

    async with Queue("q", connection=url, codec=Reversed()) as queue, Worker(queue, echo):
        assert await (await queue.add("echo", DATA)).result(timeout=10) == DATA


def test_wrong_codecs_are_refused(tmp_path: Path) -> None:
    store = Offloaded(FileStore(tmp_path))
    for given, said in (
        ("zlib", "must be a Codec, such as Compressed"),
        ([Compressed(), Compressed()], "each must have a name of its own"),
        ([store, Compressed()], "Offloaded must be the last"),
    ):
        with pytest.raises(InvalidOption, match=said):
            Queue("q", connection="redis://127.0.0.1:1", codec=given)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"keys\[1\]: must be 32 bytes in URL-safe base64") as refused:
        Encrypted([KEY, "secret"])
    assert "secret" not in str(refused.value)
    assert KEY not in repr(Encrypted(KEY))
    with pytest.raises(InvalidOption, match="keys="):
        Encrypted([])
    with pytest.raises(InvalidOption, match="must be a FileStore"):
        Offloaded("/tmp")  # type: ignore[arg-type]


# -- bounds


async def test_what_is_too_large_is_refused(url: str) -> None:
    big = {"text": "x" * 2000}
    async with Queue("q", connection=url, max_bytes=1000) as queue:
        with pytest.raises(PayloadTooLarge, match="data takes 2,011 bytes, and max_bytes is 1,000") as refused:
            await queue.add("big", big)
        assert (refused.value.size, refused.value.max_bytes) == (2011, 1000)
        with pytest.raises(PayloadTooLarge, match=r"jobs\[1\]: data takes 2,011"):
            await queue.add_bulk([JobSpec("small"), JobSpec("big", big)])
        with pytest.raises(PayloadTooLarge):
            await JobScheduler(queue).upsert("s", Every(60), JobSpec("big", big))
        assert (await queue.add(JobSpec("big", big, max_bytes=5000))).data == big
        small = await queue.add("small")
        with pytest.raises(PayloadTooLarge):
            await small.update_data(big)
        assert await queue.count() == 2
    async with Queue("q", connection=url, max_bytes=1000, codec=Compressed()) as queue:
        await queue.add("big", big)  # what counts is what the server gets
    with pytest.raises(InvalidOption, match="max_bytes=0"):
        Queue("q", connection=url, max_bytes=0)


async def test_jobs_for_several_queues_are_all_looked_at_before_the_first_is_added(url: str) -> None:
    async with EchoMQ(url, max_bytes=1000) as app:

        @app.task(queue="q")
        async def short(text: str) -> None: ...

        @app.task(queue="r")
        async def long(text: str) -> None: ...

        with pytest.raises(PayloadTooLarge):
            await app.enqueue_all([short.spec("x"), long.spec("x" * 2000)])
        with pytest.raises(PayloadTooLarge, match=r"jobs\[1\]: data"):
            await long.map(["x", "x" * 2000])
        assert (await app.queue("q").count(), await app.queue("r").count()) == (0, 0)


async def test_sixteen_mebibytes_are_enough_if_nobody_says_otherwise(url: str) -> None:
    text = "x" * (16 * 1024 * 1024)
    async with Queue("q", connection=url) as queue, Queue("r", connection=url, max_bytes=None) as unbounded:
        with pytest.raises(PayloadTooLarge):
            await queue.add("big", text)
        assert (await unbounded.add("big", text)).id == "1"


async def test_a_result_that_is_too_large_ends_its_job_well(url: str) -> None:
    runs = []
    async with EchoMQ(url, max_bytes=1000) as app:

        @app.task(queue="q", attempts=3)
        async def report(size: int) -> str:
            runs.append(size)
            return "x" * size

        @app.task(queue="q", max_bytes=5000)
        async def long_report(size: int) -> str:
            return "x" * size

        @app.task(queue="q")
        async def take(text: str) -> None: ...

        async with app.worker("q"):
            with pytest.raises(ResultUnavailable, match="the result takes 2,002 bytes, and max_bytes is 1,000"):
                await (await report.enqueue(2000)).result(timeout=10)
            assert len(await (await long_report.enqueue(2000)).result(timeout=10)) == 2000
        with pytest.raises(PayloadTooLarge):
            await take.enqueue("x" * 2000)
        await take.options(max_bytes=5000).enqueue("x" * 2000)
    assert runs == [2000]


# -- what nobody means any more


async def test_what_no_job_means_any_more_is_collected(url: str, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    codec = Offloaded(store, above=100)

    async def process(job: Job[Any]) -> Any:
        if job.name == "fail":
            raise ValueError("no")
        return job.data

    def puts() -> int:
        return len(files(tmp_path))

    async with Queue("q", connection=url, codec=codec) as queue, Worker(queue, process, dead_letter=True) as worker:
        await collect(store, url, older_than=0)  # an empty store, whose folder is not there yet
        done = await queue.add("echo", DATA)
        failed = await queue.add("fail", DATA)
        await done.result(timeout=10)
        with pytest.raises(JobFailed):
            await failed.result(timeout=10)
        await worker.pause()
        scheduler = JobScheduler(queue)
        await scheduler.upsert("later", Every(3600, offset=1), JobSpec("echo", DATA))
        await scheduler.upsert("paused", Every(3600, offset=1), JobSpec("echo", DATA))
        await scheduler.pause("paused")
        delayed = await queue.add("echo", DATA, delay=3600)
        store.put(f"2026-01-01/{'0' * 32}", b"of an add that came to nothing")
        assert puts() == 7
        assert await collect(store, url) == 0, "nothing is as old as a day"
        told: list[int] = []
        assert await collect(store, [url], older_than=0, on_progress=told.append) == 1
        assert (puts(), told) == (6, [1])
        await failed.remove()
        assert await collect(store, url, older_than=0) == 0, "its dead letter means the same file"
        [letter] = [letter async for letter in queue.dead_letter.jobs()]
        await letter.remove()
        await done.remove()
        assert await collect(store, url, older_than=0) == 3
        for schedule in ("paused", "later"):
            info = await scheduler.get(schedule)
            assert info is not None
            assert info.data == DATA
        assert (await (await delayed.refresh()).load()).data == DATA  # type: ignore[union-attr]
    with pytest.raises(InvalidOption, match="must be a FileStore"):
        await collect("/tmp", url)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="name all servers"):
        await collect(store, [])


async def test_very_many_jobs_are_looked_at_together(url: str, server: Server, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    keys = [f"2026-01-01/{number:032x}" for number in range(5)]
    for key in keys:
        store.put(key, b"x")
    async with Queue("q", connection=url) as queue:
        await queue.add_bulk(JobSpec("small", {"n": number}) for number in range(2000))
        for key in keys[1:]:
            await queue.add("large", {"at": key, "more": "x" * 600_000})
    with server.client() as client:

        def reads() -> int:
            found: Any = client.info("stats")
            return int(found["total_reads_processed"])

        before = reads()
        assert await collect(store, url, older_than=0) == 1
        assert reads() - before < 400  # twice
    assert [key for key, _ in sorted(store.entries())] == keys[1:]


async def test_a_job_that_is_kept_for_later_is_not_forgotten(url: str, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    begun, go = asyncio.Event(), asyncio.Event()

    async def process(job: Job[Any]) -> Any:
        begun.set()
        await go.wait()
        return job.data

    async with Queue("q", connection=url, codec=Offloaded(store, above=100)) as queue, Worker(queue, process):
        latest = Deduplication.latest("d")
        first = await queue.add("echo", DATA, deduplication=latest)
        await begun.wait()
        await queue.add("echo", {**DATA, "again": True}, deduplication=latest)
        assert await collect(store, url, older_than=0) == 0
        go.set()
        await first.result(timeout=10)

        async def again() -> bool:
            return any(["again" in (await job.load()).data async for job in queue.jobs("completed")])

        await wait_until(again)


def test_a_folder_that_is_not_mounted_has_lost_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "mnt")
    key = f"2026-01-01/{'0' * 32}"
    store.put(key, b"x")
    assert store.get(key) == b"x"
    store.delete(key)
    store.delete(key)
    with pytest.raises(KeyError):
        store.get(key)
    store.put(key, b"y")
    left, under_way = (tmp_path / "mnt" / "2026-01-01" / f".half-written-{name}" for name in ("old", "new"))
    left.touch()
    under_way.touch()
    os.utime(left, (0, 0))
    assert [found for found, _ in store.entries()] == [key]
    assert (left.exists(), under_way.exists()) == (False, True)
    store.delete(key)
    (tmp_path / "mnt").rename(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="its disk is not mounted"):
        store.get(key)
    for wrong in ("../../etc/passwd", "/etc/passwd", "2026-01-01/x"):
        with pytest.raises(KeyError):
            store.get(wrong)


async def test_one_large_job_among_many_small_ones_does_not_hold_them_up(url: str) -> None:
    text, small = "x" * 50_000_000, 1000
    done: list[int] = []
    all_done = asyncio.Event()

    async def process(job: Job[Any]) -> int:
        if job.name == "large":
            await all_done.wait()  # which would never be, if the others waited for this one
            return len(job.data)
        done.append(job.data)
        if len(done) == small:
            all_done.set()
        return 0

    async with Queue("q", connection=url) as queue:
        with pytest.raises(PayloadTooLarge, match=r"jobs\[1\]: data takes 50,000,002 bytes"):
            await queue.add_bulk([JobSpec("small", 0), JobSpec("large", text)])
    async with Queue("q", connection=url, max_bytes=None) as queue:
        specs = [JobSpec("small", number) for number in range(small)]
        specs.insert(small // 2, JobSpec("large", text))
        jobs = await queue.add_bulk(specs)
        async with Worker(queue, process, concurrency=20):
            assert await jobs[small // 2].result(timeout=40) == len(text)
    assert sorted(done) == list(range(small))


async def test_a_store_that_hangs_holds_up_nothing_else(url: str) -> None:
    hang = threading.Event()

    class Hanging(Memory):
        def get(self, key: str) -> bytes:
            hang.wait(20)
            return super().get(key)

    async with Queue("q", connection=url, codec=Offloaded(Hanging(), above=100)) as queue:
        held_up = await queue.add_bulk([JobSpec("echo", DATA)] * 40)  # more than there are threads
        async with Worker(queue, echo, concurrency=50):
            small = await queue.add("echo", 7)
            assert await small.result(timeout=10) == 7
            await asyncio.to_thread(lambda: None)  # the threads of everybody else
            hang.set()
            assert [await job.result(timeout=20) for job in held_up] == [DATA] * 40


class Stuck(Memory):
    """A store whose calls do not come back, also when it is well again: as over a connection that is silently dead."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck = False
        self.hangs_in = ""
        self.calls = 0
        self.over = threading.Event()

    def put(self, key: str, body: bytes) -> None:
        self._hang()
        super().put(key, body)

    def get(self, key: str) -> bytes:
        self._hang()
        return super().get(key)

    def entries(self) -> Iterator[tuple[str, datetime]]:
        if self.hangs_in == "entries":
            self.over.wait()
        yield from list(super().entries())

    def delete(self, key: str) -> None:
        if self.hangs_in == "delete" and len(self.kept) == 2:
            self.over.wait()
        super().delete(key)

    def _hang(self) -> None:
        if self.stuck:
            self.calls += 1
            self.over.wait()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    store = Stuck()
    yield store
    store.over.set()


async def test_a_store_that_never_comes_back_is_one_that_does_not_answer(url: str, stuck: Stuck) -> None:
    async with Queue("q", connection=url, codec=Offloaded(stuck, above=100, timeout=0.5)) as queue:
        jobs = await queue.add_bulk([JobSpec("echo", DATA)] * 40)  # more than there are threads
        stuck.stuck = True
        with pytest.raises(StoreUnavailable, match=r"Stuck object .* has not answered within 0\.5 s"):
            await queue.add("echo", DATA)
        async with Worker(queue, echo, concurrency=50):

            async def all_wait() -> bool:
                return (await queue.counts())["delayed"] == len(jobs)

            await wait_until(all_wait)
            stuck.stuck = False
            assert [await job.result(timeout=30) for job in jobs] == [DATA] * 40
        assert {(await job.refresh()).attempts_made for job in jobs} == {1}  # type: ignore[union-attr]


async def test_a_result_does_not_wait_again_and_again_for_a_store_that_hangs(url: str, stuck: Stuck) -> None:
    async with Queue("q", connection=url, codec=Offloaded(stuck, above=100, timeout=0.5)) as queue:

        async def process(job: Job[Any]) -> Any:
            stuck.stuck = True
            return DATA

        job = await queue.add("echo", 1)
        async with Worker(queue, process):
            with pytest.raises(ResultUnavailable, match=r"could not be stored: .* has not answered within 0\.5 s"):
                await job.result(timeout=20)
        assert stuck.calls == 1


async def test_collect_does_not_wait_for_a_store_that_hangs(url: str, stuck: Stuck) -> None:
    for number in range(3):
        stuck.put(f"2026-01-0{number + 1}/{'0' * 32}", b"of an add that came to nothing")
    for hangs, removed in (("entries", 0), ("delete", 1)):
        stuck.hangs_in = hangs
        with pytest.raises(StoreUnavailable, match=r"Stuck object .* has not answered within 0\.5 s"):
            await collect(stuck, url, older_than=0, timeout=0.5)
        assert len(stuck.kept) == 3 - removed
    stuck.hangs_in = ""
    assert await collect(stuck, url, older_than=0, timeout=0.5) == 2


@pytest.mark.parametrize("where", ["entries", "delete"])
async def test_collect_raises_what_the_store_raises(url: str, where: str) -> None:
    class Wrong(Memory):
        def entries(self) -> Iterator[tuple[str, datetime]]:
            if where == "entries":
                raise StopIteration
            return super().entries()

        def delete(self, key: str) -> None:
            raise StopIteration

    store = Wrong()
    store.put(f"2026-01-01/{'0' * 32}", b"x")
    with pytest.raises(RuntimeError, match="StopIteration"):
        async with asyncio.timeout(10):
            await collect(store, url, older_than=0)


async def test_threads_are_those_of_the_store_and_end_when_there_is_nothing_to_do(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())

    def threads() -> int:
        return sum(one.name == "echomq-payloads" for one in threading.enumerate() if one not in before)

    codec = [Compressed(), Offloaded(Memory(), above=100)]
    monkeypatch.setattr(_payloads, "_IDLE", 0.5)
    async with Connection(url) as connection:
        for _ in range(2):
            for _ in range(10):
                async with Queue("q", connection=connection, codec=codec) as queue:
                    await queue.add("echo", {"text": os.urandom(500).hex()})
                    # The one that gave the last answer may not have come to wait again yet.
                    assert threads() <= 3
            await wait_until(lambda: threads() == 0, timeout=20)


async def test_a_copy_of_a_codec_and_a_fork_have_threads_of_their_own(tmp_path: Path) -> None:
    codec = Offloaded(FileStore(tmp_path), above=1)
    payloads = Payloads([codec])
    stored = await payloads.encode(b"[1]")
    for other in (copy.deepcopy(codec), pickle.loads(pickle.dumps(codec))):
        assert repr(other) == repr(codec)
        assert await Payloads([other]).decode(stored) == b"[1]"

    def in_fork() -> None:
        assert asyncio.run(payloads.decode(stored)) == b"[1]"

    with codec._threads._lock:  # as another thread may hold it in that moment
        process = multiprocessing.get_context("fork").Process(target=in_fork)
        process.start()
    await asyncio.to_thread(process.join, 20)
    assert process.exitcode == 0


async def test_threads_of_those_who_wait_no_longer_are_given_up_too(stuck: Stuck) -> None:
    payloads = Payloads([Offloaded(stuck, above=1, timeout=0.2)])
    stored = [await payloads.encode(b"[%d]" % number) for number in range(40)]
    stuck.stuck = True
    reading = [asyncio.create_task(payloads.decode(one)) for one in stored]

    async def all_threads_are_stuck() -> bool:
        return stuck.calls == 32

    await wait_until(all_threads_are_stuck)
    for task in reading:
        task.cancel()
    await asyncio.wait(reading)
    for calls in (33, 34, 35):  # one thread at a time finds out
        with pytest.raises(StoreUnavailable):
            await payloads.decode(stored[0])
        assert stuck.calls <= calls
    stuck.stuck = False

    async def is_well() -> bool:
        try:
            return await payloads.decode(stored[0]) == b"[0]"
        except StoreUnavailable:
            return False

    await wait_until(is_well)
    assert await asyncio.gather(*map(payloads.decode, stored)) == [b"[%d]" % number for number in range(40)]


async def test_who_waits_for_a_turn_has_time_as_long_as_the_store_answers() -> None:
    class Slow(Memory):
        def get(self, key: str) -> bytes:
            time.sleep(0.3)
            return super().get(key)

    payloads = Payloads([Offloaded(Slow(), above=1, timeout=1)])
    stored = [await payloads.encode(b"[%d]" % number) for number in range(150)]
    assert len(await asyncio.gather(*map(payloads.decode, stored))) == 150
