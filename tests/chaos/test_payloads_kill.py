"""A worker is killed while a payload is on its way to or from the store: its job runs again, and is whole. Or it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from echomq.errors import ResultUnavailable
from echomq.payloads import Compressed, Encrypted, FileStore, Offloaded, collect
from echomq.queue import Queue
from tests.support.server import Server

PROGRAM = Path(__file__).with_name("payload_worker.py")
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(Encrypted.generate_key())
    (tmp_path / "starts").touch()
    return tmp_path


@pytest.fixture
def start(server: Server, folder: Path) -> Iterator[Start]:
    """Starts a worker process that stays at this place; all are ended with the test."""
    with ExitStack() as stack:

        def started(stay_at: str) -> subprocess.Popen[str]:
            command = [sys.executable, str(PROGRAM), server.url, str(folder), stay_at]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            return process

        yield started


def reaches(process: subprocess.Popen[str], where: str) -> None:
    assert process.stdout is not None
    assert f"{where}\n" in iter(process.stdout.readline, ""), f"it has ended before it came to {where}"


@pytest.mark.parametrize(
    ("where", "starts", "how"),
    [
        ("get", 1, signal.SIGKILL),
        ("put", 2, signal.SIGKILL),
        ("written", 2, signal.SIGKILL),
        ("get", 1, signal.SIGTERM),
    ],
)
async def test_a_worker_ends_while_it_reads_or_writes_a_payload(
    url: str, folder: Path, start: Start, where: str, starts: int, how: signal.Signals
) -> None:
    data: dict[str, Any] = {"large": os.urandom(500).hex()}
    store = FileStore(folder / "payloads")
    codec = [Compressed(above=10), Encrypted((folder / "key").read_text()), Offloaded(store, above=100)]
    async with Queue("q", connection=url, codec=codec) as queue:
        job = await queue.add("job", data)
        first = start(where)
        reaches(first, where)
        first.send_signal(how)
        assert first.wait(20) == (0 if how is signal.SIGTERM else -signal.SIGKILL)
        second = start("nowhere")
        assert await job.result(timeout=20) == {"was": data}
        assert (folder / "starts").read_text().count("\n") == starts
        now = await job.refresh()
        assert now is not None
        assert now.attempts_made == 1
        second.terminate()
        second.wait(20)
        orphans = 1 if where == "written" else 0
        assert await collect(store, url, older_than=0) == orphans, "what nobody means is found"
        assert (await now.load()).data == data


async def test_what_a_stopped_worker_has_done_is_not_done_again_for_its_result(
    url: str, folder: Path, start: Start
) -> None:
    store = FileStore(folder / "payloads")
    codec = [Compressed(above=10), Encrypted((folder / "key").read_text()), Offloaded(store, above=100)]
    async with Queue("q", connection=url, codec=codec) as queue:
        job = await queue.add("job", {"large": os.urandom(500).hex()}, attempts=3)
        worker = start("put")
        reaches(worker, "put")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
        with pytest.raises(ResultUnavailable, match="could not be stored: its run was stopped first"):
            await job.result(timeout=20)
        assert (folder / "starts").read_text().count("\n") == 1
        assert (await queue.counts())["completed"] == 1
