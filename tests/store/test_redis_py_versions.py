"""redis-py 6, 7 and 8: a job there and back with each, through URL and through a client's settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import Server

PROGRAM = """
import asyncio, sys
import redis, redis.asyncio
from echomq import Connection, Queue, Worker

async def main(url):
    assert redis.__version__ == sys.argv[2], redis.__version__
    async def double(job):
        return 2 * job.data["number"]
    clients = [redis.Redis.from_url(url), redis.asyncio.Redis.from_url(url, decode_responses=True)]
    for connection in (Connection(url), *map(Connection.from_client, clients)):
        async with connection, Queue("versions", connection=connection) as queue:
            async with Worker(queue, double, lock_duration=1) as worker:
                jobs = [await queue.add("double", {"number": number}) for number in range(20)]
                assert [await job.result(timeout=10) for job in jobs] == [2 * number for number in range(20)]
                slow = await queue.add("double", {"number": 4}, delay=0.2)
                assert await slow.result(timeout=10) == 8
    clients[0].close()
    await clients[1].aclose()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("version", ["6.0.0", "7.4.1", "8.0.0"])
def test_a_job_there_and_back(server: Server, tmp_path: Path, version: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(tmp_path), f"redis=={version}"], check=True)
    source = Path(__file__).parents[2] / "src"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"}
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM, server.url, version], env=env, check=True, timeout=40)
