"""Probes of a worker process over HTTP, and ``echomq health``."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echomq import Queue
from echomq.cli.worker.state import ProcessState, not_alive, not_ready
from tests.support.server import Server
from tests.support.wait import wait_until

PROGRAM = """\
import os, time
from echomq import Worker

async def process(job):
    if job.name == "fork":
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        return pid
    time.sleep(job.data["seconds"])

worker = Worker("probed", process, lock_duration=1, stalled_interval=1)
"""


class Probed:
    """One running ``echomq worker --health-port 0``."""

    def __init__(self, folder: Path, url: str, words: Sequence[str], port: str) -> None:
        self.log = folder / "log"
        (folder / "program.py").write_text(PROGRAM)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "echomq.cli", "worker", "program:worker", f"--health-port={port}", *words],
                cwd=folder,
                env={**os.environ, "ECHOMQ_URL": url},
                stderr=log,
            )

    @property
    def address(self) -> str:
        found = re.search(r"answers probes at http://(\S+)/live", self.log.read_text())
        return "" if found is None else found[1]

    def ask(self, path: str) -> tuple[int, dict[str, Any]]:
        if not self.address:
            return 0, {}
        connection = http.client.HTTPConnection(self.address, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    async def answers(self, path: str, code: int, said: str = "") -> dict[str, Any]:
        told: dict[str, Any] = {}

        def it_does() -> bool:
            nonlocal told
            assert self.process.poll() is None, self.log.read_text()
            status, told = self.ask(path)
            return status == code and said in " ".join(told["reasons"])

        await wait_until(it_does, 20, f"{path} answers {code} {said}")
        return told


Start = Callable[..., Probed]


@pytest.fixture
def start(tmp_path: Path, server: Server) -> Iterator[Start]:
    started: list[Probed] = []

    def start(*words: str, url: str = server.url, port: str = "0") -> Probed:
        started.append(Probed(tmp_path, url, words, port))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        print(one.log.read_text())  # noqa: T201 - pytest shows it with a failure


def health(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "echomq.cli", "health", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("words", [[], ["--processes", "2"]])
async def test_it_answers_while_an_event_loop_is_held_up(start: Start, url: str, words: list[str]) -> None:
    probed = start(*words)
    told = await probed.answers("/ready", 200)
    assert len(told["processes"]) == (2 if words else 1)
    for process in told["processes"]:
        [worker] = process["workers"]
        assert (worker["queue"], worker["slots"], worker["ready"]) == ("probed", 1, True)
        assert worker["since_fetch"] < 20
    async with Queue("probed", connection=url) as queue:
        job = await queue.add("block", {"seconds": 3})
        for path in ("/live", "/ready"):
            await probed.answers(path, 503, "has not answered for longer than a lock lasts")
        await job.result(timeout=20)
    await probed.answers("/live", 200)
    await probed.answers("/ready", 200)
    assert probed.ask("/other")[0] == 404
    probed.process.send_signal(signal.SIGTERM)
    assert probed.process.wait(20) == 0


async def test_a_server_that_is_away_is_no_reason_to_start_anew(
    start: Start, make_server: Callable[..., Server]
) -> None:
    server = make_server()
    probed = start(url=server.url)
    await probed.answers("/ready", 200)
    server.stop()
    await probed.answers("/ready", 503, "has been away for")
    assert probed.ask("/live")[0] == 200
    server.start()
    await probed.answers("/ready", 200)


async def test_before_it_is_ready_it_says_so(start: Start) -> None:
    probed = start(url="redis://127.0.0.1:1")
    await probed.answers("/ready", 503, "is starting")
    assert probed.ask("/live")[0] == 200


async def test_what_a_handler_has_forked_does_not_keep_the_port(start: Start, url: str) -> None:
    first = start()
    await first.answers("/ready", 200)
    async with Queue("probed", connection=url) as queue:
        fork = await (await queue.add("fork", {})).result(timeout=20)
    try:
        first.process.kill()
        first.process.wait()
        await start(port=first.address.partition(":")[2]).answers("/live", 200)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_what_has_told_nothing_for_long_is_not_alive() -> None:
    process = ProcessState(7, False, [])
    assert not_alive([process]) == not_ready([process], 1) == []
    assert not_alive([msgspec.structs.replace(process, heard=11.0)]) == ["process 7 has told nothing for 11 s"]
    assert not_ready([process], 3) == ["2 of 3 processes are starting"]
    assert not_ready([msgspec.structs.replace(process, stopping=True)], 1) == ["process 7 stops"]


@pytest.mark.torture
async def test_a_frozen_process_is_not_alive(start: Start) -> None:
    probed = start("--processes", "2")
    told = await probed.answers("/ready", 200)
    frozen = told["processes"][0]["pid"]
    os.kill(frozen, signal.SIGSTOP)
    try:
        await probed.answers("/live", 503, f"process {frozen} has told nothing for")
    finally:
        os.kill(frozen, signal.SIGCONT)
    await probed.answers("/live", 200)


async def test_the_command(start: Start) -> None:
    probed = start()
    await probed.answers("/ready", 200)
    host, _, port = probed.address.partition(":")
    shown = health("--port", port)
    assert shown.returncode == 0
    assert shown.stdout.startswith("ok\nPID ")
    shown = health("--port", port, http_proxy="http://127.0.0.1:1", no_proxy="", NO_PROXY="")
    assert shown.returncode == 0, shown.stderr
    shown = health(f"http://{host}:{port}/", "--live", "--json")
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["status"] == "ok"
    probed.process.kill()
    probed.process.wait()
    shown = health("--port", port)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "does not answer" in shown.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the worker by its URL, or by --port"),
        (["http://127.0.0.1:1", "--port", "1"], "name the worker by its URL, or by --port"),
        (["127.0.0.1:1"], "must be a URL such as"),
    ],
)
def test_wrong_words(words: list[str], said: str) -> None:
    shown = health(*words)
    assert shown.returncode == 2
    assert said in shown.stderr


@pytest.mark.parametrize("body", [b"{}", b"[" * 100_000], ids=["other", "too deep"])
def test_another_program_is_no_worker(body: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    other = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=other.serve_forever, daemon=True)
    thread.start()
    try:
        shown = health("--port", str(other.server_port))
    finally:
        other.shutdown()
        other.server_close()
        thread.join()
    assert shown.returncode == 1
    assert "is no worker of EchoMQ" in shown.stderr


def test_a_port_that_is_taken_is_refused(tmp_path: Path, url: str) -> None:
    taken = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    try:
        (tmp_path / "program.py").write_text(PROGRAM)
        shown = subprocess.run(
            [sys.executable, "-m", "echomq.cli", "worker", "program:worker", f"--health-port={taken.server_port}"],
            cwd=tmp_path,
            env={**os.environ, "ECHOMQ_URL": url},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        taken.server_close()
    assert shown.returncode == 2
    assert "choose another --health-port" in shown.stderr
