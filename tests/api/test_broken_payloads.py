"""Payloads that somebody's hand has written, codecs that misbehave: they fail their job at once, and cost nothing else much."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from echomq import (
    BrokenKey,
    EchoMQ,
    Job,
    JobCancelled,
    JobFailed,
    PayloadUnreadable,
    ProcessPool,
    Queue,
    ResultUnavailable,
    Worker,
)
from echomq._payloads import Payloads
from echomq.payloads import Codec, Compressed, FileStore, Offloaded
from tests.api import payload_tasks
from tests.support.server import Server
from tests.support.wait import wait_until

MIB = 1024 * 1024
DEEP = '{"letters":' + "[" * 10_000 + "]" * 10_000 + "}"


def wrapped(body: bytes | str, *steps: dict[str, Any]) -> str:
    text = base64.b64encode(body).decode() if isinstance(body, bytes) else body
    return json.dumps({"$echomq": {"steps": steps, "body": text}}, separators=(",", ":"), ensure_ascii=False)


BROKEN = {
    "a body that is not ASCII": (wrapped("é"), "its body is no base64"),
    "a step that is nested deep": (
        '{"$echomq":{"steps":[{"name":"zlib","z":' + "[" * 10_000 + "]" * 10_000 + '}],"body":""}}',
        "goes on otherwise",
    ),
    "one codec twice": (
        wrapped(zlib.compress(zlib.compress(b"{}")), {"name": "zlib"}, {"name": "zlib"}),
        "its steps name the codec 'zlib' more than once",
    ),
    "JSON too deep": (wrapped(DEEP.encode()), "it is nested too deep"),
    "no JSON": (wrapped(b"hello"), "cannot be read"),
    "no UTF-8": (wrapped(b"\xff\xfe"), "cannot be read"),
    "nothing": (wrapped(b""), "cannot be read"),
    "wrapped twice": (
        wrapped(wrapped(b'{"letters":{"a":1}}').encode()),
        "are as a codec writes them even after this worker's codec has read them",
    ),
    "plain JSON too deep": (DEEP, "it is nested too deep"),
    "plain and empty": ("", "cannot be read"),
}


async def add_raw(server: Server, queue: Queue, name: str, data: str) -> Job[Any]:
    """A job whose data somebody's hand has written."""
    job = await queue.add(name, {}, delay=3600, attempts=3)
    with server.client() as client:
        client.hset(f"emq:{{{queue.name}}}:{job.id}", "data", data)
    await job.promote()
    return job


@pytest.mark.parametrize("process", [False, True])
async def test_broken_data_fail_a_task_at_once(url: str, server: Server, process: bool) -> None:
    async with EchoMQ(url, codec=Compressed(above=100)) as app:
        app.task(queue="q", process=process)(payload_tasks.count)
        queue = app.queue("q")
        jobs = {what: await add_raw(server, queue, "count", data) for what, (data, _) in BROKEN.items()}
        body = base64.b64encode(zlib.compress(b'{"letters": {"a": 7}}')).decode()
        spaced = f'\n{{ "$echomq" : {{"steps": [{{"name": "zlib"}}], "body": "{body}"}} }}'
        well = await add_raw(server, queue, "count", spaced)
        async with app.worker("q", processes=ProcessPool(size=1) if process else None):
            assert await well.result(timeout=30) == 7
            for what, job in jobs.items():
                with pytest.raises(JobFailed) as failure:
                    await job.result(timeout=30)
                assert BROKEN[what][1] in failure.value.reason, what
                found = await job.refresh()
                assert found is not None
                assert (found.attempts_made, found.failure_kind) == (1, "unrecoverable"), what
                if what != "wrapped twice":
                    with pytest.raises((PayloadUnreadable, BrokenKey)):
                        _ = found.data


@pytest.mark.parametrize("codec", [None, Compressed(above=100)])
async def test_broken_data_fail_a_plain_handler_at_once(url: str, server: Server, codec: Codec | None) -> None:
    async def process(job: Job[Any]) -> Any:
        return job.data

    async with Queue("q", connection=url, codec=codec) as queue, Worker(queue, process):
        for data in ("", DEEP, "{"):
            job = await add_raw(server, queue, "echo", data)
            with pytest.raises(JobFailed, match=r"failed: field 'data' of job '.' of queue 'q' cannot be read"):
                await job.result(timeout=10)
            found = await job.refresh()
            assert found is not None
            assert (found.attempts_made, found.failure_kind) == (1, "unrecoverable")


# -- compression


async def test_little_that_grows_large_is_inflated_elsewhere() -> None:
    payloads = Payloads([Compressed()])
    text = b'"' + b"a" * (12 * MIB) + b'"'
    stored = wrapped(zlib.compress(text, 9), {"name": "zlib"}).encode()
    assert len(stored) < 16 * 1024
    around = 0

    async def look() -> None:
        nonlocal around
        while True:
            await asyncio.sleep(0)
            around += 1

    looking = asyncio.create_task(look())
    assert await payloads.decode(stored) == text
    looking.cancel()
    assert around, "the event loop did not stand still meanwhile"
    small = wrapped(zlib.compress(b'"' + b"a" * MIB + b'"'), {"name": "zlib"}).encode()
    assert len(await payloads.decode(small)) == MIB + 2


async def test_how_much_is_inflated_has_a_bound(url: str, server: Server) -> None:
    with pytest.raises(PayloadUnreadable, match=r"it grows beyond 268,435,456 bytes, which is most= of Compressed"):
        Payloads([Compressed()]).decode_now(wrapped(_bomb(300), {"name": "zlib"}).encode())
    codec = Compressed(above=100, most=5000)

    async def echo(job: Job[Any]) -> Any:
        return job.data

    async with Queue("q", connection=url, codec=codec, max_bytes=8000) as queue, Worker(queue, echo):
        for size in (4998, 4999, 7000):  # with its quotes: the last that is compressed, and the first that are not
            job = await queue.add("echo", "x" * size)
            assert await job.result(timeout=10) == "x" * size
            with server.client() as client:
                data: Any = client.hget(f"emq:{{q}}:{job.id}", "data")
            assert data.startswith(b'{"$echomq":') == (size == 4998)
        job = await add_raw(server, queue, "echo", wrapped(_bomb(1), {"name": "zlib"}))
        with pytest.raises(JobFailed, match="grows beyond 5,000 bytes"):
            await job.result(timeout=10)


def _bomb(mebibytes: int) -> bytes:
    press = zlib.compressobj(9)
    return b"".join([*(press.compress(b"a" * MIB) for _ in range(mebibytes)), press.flush()])


# -- codecs that misbehave


class Moody(Codec):
    """Raises what it is told to, or gives what no codec gives."""

    name = "moody"

    def __init__(self) -> None:
        self.raises: BaseException | None = None
        self.gives: Any = None
        self.notes: dict[str, Any] = {}

    def encode(self, body: bytes) -> tuple[bytes, dict[str, Any]]:
        if self.raises is not None:
            raise self.raises
        return body, self.notes

    def decode(self, body: bytes, step: Mapping[str, Any]) -> bytes:
        if self.raises is not None:
            raise self.raises
        return self.gives if self.gives is not None else body


class OwnEnd(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing can be said about it")


ENDS = [
    SystemExit(5),
    asyncio.CancelledError(),
    GeneratorExit(),
    StopIteration(),
    OwnEnd("x"),
    Unspeakable(),
    ValueError("no"),
]


@pytest.mark.parametrize("size", [10, 100_000])  # where it stands, and in a thread
@pytest.mark.parametrize("error", ENDS, ids=[type(one).__name__ for one in ENDS])
async def test_work_is_not_done_again_because_its_result_cannot_be_encoded(
    url: str, error: BaseException, size: int
) -> None:
    codec, runs = Moody(), []

    async def process(job: Job[Any]) -> str:
        runs.append(job.id)
        codec.raises = error
        return "x" * size

    async with Queue("q", connection=url, codec=codec) as queue:
        job = await queue.add("work", 1, attempts=3)
        async with Worker(queue, process) as worker:
            with pytest.raises(ResultUnavailable, match=f"the result could not be stored: .*{type(error).__name__}"):
                await job.result(timeout=10)
            assert worker.is_running
    assert runs == [job.id]


class Hanging(FileStore):
    """A store that is slow to take anything, until it is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked, self.told = threading.Event(), threading.Event()

    def put(self, key: str, body: bytes) -> None:
        self.asked.set()
        self.told.wait(60)
        super().put(key, body)


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_a_run_that_ends_while_its_result_is_on_its_way_to_the_store(
    url: str, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, runs = Hanging(tmp_path), []

    async def process(job: Job[Any]) -> str:
        runs.append(job.id)
        return "x" * 1_000

    try:
        async with Queue("q", connection=url, codec=Offloaded(store, above=100)) as queue:
            job = await queue.add("work", 1)
            async with Worker(queue, process) as worker:
                await wait_until(store.asked.is_set)
                if how == "stopped":
                    await worker.close(force=True)
                    with pytest.raises(ResultUnavailable, match="its run was stopped first"):
                        await job.result(timeout=10)
                    assert f"job {job.id} (work) of queue q completes without its result" in caplog.text
                else:
                    await job.cancel("enough")
                    with pytest.raises(JobCancelled, match="enough"):
                        await job.result(timeout=10)
            counts = await queue.counts()
            assert (counts["completed"], counts["failed"]) == ((1, 0) if how == "stopped" else (0, 1))
        assert runs == [job.id]
    finally:
        store.told.set()


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("error", ENDS, ids=[type(one).__name__ for one in ENDS])
async def test_who_adds_hears_what_a_codec_raised(url: str, error: BaseException, size: int) -> None:
    codec = Moody()
    async with Queue("q", connection=url, codec=codec) as queue:
        codec.raises = error
        with pytest.raises(type(error) if isinstance(error, (OwnEnd, Unspeakable, ValueError)) else RuntimeError):
            async with asyncio.timeout(10):
                await queue.add("work", "x" * size)
        assert await queue.count() == 0


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("error", ENDS, ids=[type(one).__name__ for one in ENDS])
async def test_data_that_a_codec_cannot_decode_fail_at_once(url: str, error: BaseException, size: int) -> None:
    codec, runs = Moody(), []

    async def process(job: Job[Any]) -> None:
        runs.append(job.id)

    async with Queue("q", connection=url, codec=codec) as queue:
        job = await queue.add("work", "x" * size, attempts=3)
        codec.raises = error
        async with Worker(queue, process) as worker:
            with pytest.raises(JobFailed, match=f"the job's data cannot be read: .*{type(error).__name__}"):
                await job.result(timeout=10)
            assert worker.is_running
        found = await job.refresh()
        assert found is not None
        assert (found.attempts_made, runs) == (1, [])


class MoodyWriter(Moody):
    def decode(self, body: bytes, step: Mapping[str, Any]) -> bytes:
        return body


@pytest.mark.parametrize("process", [False, True])
async def test_a_codec_that_fails_when_a_handler_updates_data_ends_no_worker(url: str, process: bool) -> None:
    codec = MoodyWriter()
    async with EchoMQ(url, codec=codec) as app:
        shout = app.task(queue="q", pass_job=True, process=process)(payload_tasks.shout)
        job = await shout.enqueue("Wien")
        async with app.worker("q", processes=ProcessPool(size=1) if process else None) as worker:
            codec.raises = SystemExit(5)
            with pytest.raises(JobFailed, match="RuntimeError: a codec raised SystemExit: 5"):
                await job.result(timeout=30)
            codec.raises = None
            assert worker.is_running


async def test_handlers_that_fill_the_executor_of_the_loop_wait_for_no_codec_in_it(url: str) -> None:
    """The only thread waits for the data that it updates, and these take long to be encoded."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with Queue("q", connection=url, codec=Compressed()) as queue:
        job = await queue.add("work", "")

        async def process(job: Job[Any]) -> None:
            await asyncio.to_thread(lambda: job.update_data("x" * 20_000))

        async with Worker(queue, process):
            await job.result(timeout=10)
        found = await queue.get_job(job.id)
        assert found is not None
        assert len(found.data) == 20_000


async def test_what_is_no_bytes_is_refused_and_the_name_of_a_codec_stays() -> None:
    codec = Moody()
    payloads = Payloads([codec])
    codec.notes = {"name": "another", "more": 1}
    stored = payloads.encode_now(b'{"n":1}')
    assert json.loads(stored)["$echomq"]["steps"] == [{"name": "moody", "more": 1}]
    assert payloads.decode_now(stored) == b'{"n":1}'
    codec.gives = "{}"
    with pytest.raises(PayloadUnreadable, match="codec 'moody' has made str of it, and not bytes"):
        payloads.decode_now(stored)
