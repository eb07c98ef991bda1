"""``echomq metrics``: a real scrape over HTTP, through an outage, and how it ends; and the log of ``echomq worker`` as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from echomq import JobFailed, JobSpec, Queue
from tests.support.server import Server
from tests.support.wait import wait_until


class Command:
    """One running ``echomq metrics``."""

    def __init__(self, url: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "echomq.cli", "metrics", *words],
            env={**os.environ, "ECHOMQ_URL": url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = ""

    async def ready(self) -> Command:
        assert self.process.stdout is not None
        self.address = (await asyncio.to_thread(self.process.stdout.readline)).strip()
        return self

    async def scrape(self) -> dict[tuple[str, ...], float]:
        def get() -> str:
            with urllib.request.urlopen(self.address, timeout=20) as answer:
                assert answer.status == 200
                text: str = answer.read().decode()
                return text

        text = await asyncio.to_thread(get)
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def is_up(self) -> bool:
        return (await self.scrape())["echomq_up",] == 1

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=20)
        return self.process.returncode, log


@pytest.fixture
def serve() -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def serve(url: str, *words: str) -> Command:
        started.append(Command(url, "--port", "0", *words))
        return started[-1]

    yield serve
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_scrape_of_all_queues(url: str, serve: Callable[..., Command], number: int) -> None:
    async with Queue("q", connection=url) as queue:
        await queue.add_bulk([JobSpec("w"), JobSpec("w", delay=60)])
    command = await serve(url).ready()
    assert command.address.startswith("http://127.0.0.1:")
    found = await command.scrape()
    assert found["bullmq_job_count", "{q}", "waiting"] == 1
    assert found["bullmq_job_count", "{q}", "delayed"] == 1
    assert found["echomq_up",] == 1
    assert command.end(number) == (0, "")


async def test_named_queues_of_another_prefix(url: str, serve: Callable[..., Command]) -> None:
    command = await serve(url, "one", "two", "--prefix", "bull", "--host", "localhost").ready()
    found = await command.scrape()
    assert {name[1] for name in found if name[0] == "echomq_queue_paused"} == {"one", "two"}
    assert command.end()[0] == 0


async def test_it_survives_an_outage(make_server: Callable[..., Server], serve: Callable[..., Command]) -> None:
    server = make_server()
    command = await serve(server.url, "q").ready()
    assert await command.is_up()
    server.kill()
    assert not await command.is_up()
    server.start()
    await wait_until(command.is_up, 20)
    assert command.end()[0] == 0


async def test_it_starts_before_its_server(make_server: Callable[..., Server], serve: Callable[..., Command]) -> None:
    server = make_server()
    server.kill()
    command = await serve(server.url).ready()
    assert not await command.is_up()
    server.start()
    await wait_until(command.is_up, 20)
    assert command.end()[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["a:b"], 2, "a:b"),
        (["--max-queues", "0"], 2, "--max-queues"),
        (["--url", "nonsense"], 2, "nonsense"),
        (["--host", "256.0.0.1"], 1, "cannot listen at 256.0.0.1"),
    ],
)
def test_what_is_wrong_is_said(url: str, words: list[str], code: int, said: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "echomq.cli", "metrics", "--port", "0", *words],
        env={**os.environ, "ECHOMQ_URL": url}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ran.returncode == code
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_port_that_is_taken_is_said(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = subprocess.run(
            [sys.executable, "-m", "echomq.cli", "metrics", "--port", port],
            env={**os.environ, "ECHOMQ_URL": url}, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"port {port}" in ran.stderr


APP = """\
import logging
from echomq import EchoMQ

app = EchoMQ()

@app.task(queue="cli")
def plain(learner: int) -> None:
    logging.getLogger("mine").warning("learner %d", learner, extra={"course": "redis"})

@app.task(queue="cli")
async def broken() -> None:
    raise ValueError("as \\n planned")
"""


@pytest.mark.parametrize("processes", [1, 2])
async def test_the_log_of_a_worker_as_json(url: str, tmp_path: Path, processes: int) -> None:
    (tmp_path / "program.py").write_text(APP)
    log = tmp_path / "log"
    words = ["program:app", "--log-format", "json", "--metrics-points", "10", "--processes", str(processes)]
    with log.open("w") as file:
        command = subprocess.Popen(
            [sys.executable, "-m", "echomq.cli", "worker", *words],
            cwd=tmp_path, env={**os.environ, "ECHOMQ_URL": url}, stderr=file,
        )  # fmt: skip
    try:
        async with Queue("cli", connection=url) as queue:
            plain, broken = await queue.add("plain", {"learner": 7}), await queue.add("broken")
            await plain.result(timeout=20)
            with pytest.raises(JobFailed):
                await broken.result(timeout=20)
            await wait_until(lambda: '"ready' in log.read_text(), 20)
            line = queue._home.line
            assert await line.ask("HGET", "emq:{cli}:metrics:failed", "count") == b"1"
    finally:
        command.send_signal(signal.SIGTERM)
        assert command.wait(20) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    about = {"queue": "cli", "job_id": plain.id, "job_name": "plain"}
    [mine] = [line for line in lines if line["logger"] == "mine"]
    assert mine.pop("time").endswith("+00:00")
    assert mine.pop("pid") > 0
    assert mine == {"level": "WARNING", "logger": "mine", "message": "learner 7", "course": "redis", **about}
    [failed] = [line for line in lines if line["level"] == "ERROR"]
    assert failed["exception"].endswith("ValueError: as \n planned")
    assert (failed["job_id"], failed["job_name"], failed["queue"]) == (broken.id, "broken", "cli")
    started = [line for line in lines if "works on" in line["message"]]
    assert "job_id" not in started[0]
    assert [
        line["message"].partition(":")[0] for line in lines if line["message"].startswith(("ready", "stopping"))
    ] == [
        "ready",
        "stopping",
    ]
