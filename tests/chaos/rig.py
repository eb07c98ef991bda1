"""What the fault tests are made of: workers that may be killed, a record of what their jobs did, and the audit at the end."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import redis

from echomq import Job, Queue
from tests.support.audit import audit
from tests.support.server import Server
from tests.support.wait import wait_until

PROGRAM = Path(__file__).with_name("worker_program.py")
QUEUE = "rig"
BASE = f"emq:{{{QUEUE}}}:"
CALLS = f"emqx:{{{QUEUE}}}:calls"

LOCK, INTERVAL = 1.5, 0.75
CONFIRM = INTERVAL / 2
RECOVERED = LOCK + 2 * INTERVAL + CONFIRM
"""Seconds after which a job of a dead worker is back in the queue, whatever the moment of its death."""

SLACK = 2.0
"""Seconds that a slow test machine may add."""

FAST: dict[str, Any] = {"lock_duration": LOCK, "stalled_interval": INTERVAL}

# The parent-death signal comes when the *thread* that started the process ends.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="program-starter")


class Program:
    """A worker in a process of its own (worker_program.py). It ends with the test process, also when it is frozen.

    Args:
        clock: by how many seconds its clock is ahead of ours.
    """

    def __init__(self, url: str, report: Path, log: Path, *, clock: float = 0, **options: Any) -> None:
        told = {"url": url, "queue": QUEUE, "report": str(report), "options": {**FAST, **options}, "clock": clock}
        guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        command = [*guard, sys.executable, "-X", "faulthandler", str(PROGRAM), json.dumps(told)]
        with log.open("ab") as output:
            self._process: subprocess.Popen[bytes] = _starter.submit(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            ).result()
        self.pid = self._process.pid
        self._report = report

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ready(self) -> None:
        await wait_until(self._is_ready, what=f"worker {self.pid} is ready")

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, f"worker {self.pid} has ended with {self._process.returncode}"
        return any(line["what"] == "ready" and line["pid"] == self.pid for line in lines(self._report))

    async def ended(self, timeout: float = 10) -> int:
        """Its exit code."""
        await wait_until(lambda: self._process.poll() is not None, timeout, f"worker {self.pid} ends")
        return self._process.returncode

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def lines(report: Path) -> list[dict[str, Any]]:
    """What the programs have reported so far."""
    if not report.exists():
        return []
    return [json.loads(line) for line in report.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


class Runs:
    """What handlers of workers in this process did.

    Attributes:
        started: for each start its job's id, its ``attempts_started`` and when (monotonic).
        ended: ids of the jobs whose handler came to its end.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.started: list[tuple[str, int, float]] = []
        self.ended: list[str] = []

    async def __call__(self, job: Job[Any]) -> str:
        self.started.append((job.id, job.attempts_started, time.monotonic()))
        seconds = job.data.get("seconds", self.seconds)
        if seconds:
            await asyncio.sleep(seconds)
        self.ended.append(job.id)
        return job.id

    def starts(self, job_id: str) -> list[float]:
        return [at for started, _, at in self.started if started == job_id]


async def completed(queue: Queue, count: int, timeout: float = 20) -> None:
    """Waits until so many jobs have completed and none is left."""

    async def all_done() -> bool:
        counts = await queue.counts()
        return counts["completed"] == count and not any(
            number for state, number in counts.items() if state != "completed"
        )

    try:
        await wait_until(all_done, timeout, f"{count} jobs have completed")
    except AssertionError as error:
        raise AssertionError(f"{error}; {await queue.counts()}") from None


def events(client: redis.Redis) -> Counter[tuple[str, str]]:
    """How often each event was said of each job."""
    said: list[Any] = client.xrange(BASE + "events")  # type: ignore[assignment]
    return Counter((fields[b"event"].decode(), fields.get(b"jobId", b"").decode()) for _, fields in said)


def assert_sound(
    server: Server, *, jobs: int | None = None, ended: Sequence[str] = (), starts: int = 1, stalls: int = 0
) -> None:
    """Every key of the queue is as it must be when nothing runs; each job has one place, and its attempts are bounded.

    Args:
        jobs: how many there must be.
        ended: ids that must have exactly one ``completed`` or ``failed`` event.
        starts, stalls: the most that any job may have (``ats`` and ``stc``).
    """
    with server.client() as client:
        found = audit(client, "emq", QUEUE)
        assert not found, "\n".join(found)
        assert client.llen(BASE + "active") == 0
        ids: list[Any] = [*client.lrange(BASE + "wait", 0, -1)]
        for name in ("prioritized", "delayed", "completed", "failed"):
            ids += client.zrange(BASE + name, 0, -1)
        hashes: dict[str, Any] = {job_id.decode(): client.hgetall(BASE + job_id.decode()) for job_id in ids}
        if jobs is not None:
            assert len(hashes) == jobs, f"{len(hashes)} jobs are left of {jobs}: {sorted(hashes)[:20]}"
        for job_id, fields in hashes.items():
            assert int(fields.get(b"ats", 0)) <= starts, f"job {job_id}: {fields}"
            assert int(fields.get(b"stc", 0)) <= stalls, f"job {job_id}: {fields}"
        said = events(client)
        for job_id in ended:
            times = said["completed", job_id] + said["failed", job_id]
            assert times == 1, f"job {job_id} has ended {times} times"


StartProgram = Callable[..., Program]
