"""At load for long, while connections are killed: nothing is lost, no key grows without a bound, no process grows."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest
import redis

from echomq import Queue
from tests.chaos.soak_program import KEPT, OUTCOMES, QUEUE
from tests.support.audit import audit
from tests.support.server import Server
from tests.support.wait import wait_until

PROGRAM = Path(__file__).with_name("soak_program.py")
ROLES = {"producer": 1, "worker": 2, "outcomes": 1}


class Role:
    """One process of the soak."""

    def __init__(self, role: str, number: int, url: str, folder: Path, rate: float) -> None:
        self.name = f"{role} {number}"
        self._out = folder / f"{role}{number}.json"
        self.log = folder / f"{role}{number}.log"
        told = {"role": role, "url": url, "out": str(self._out), "rate": rate}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, str(PROGRAM), json.dumps(told)], stdout=log, stderr=log)

    async def stop(self) -> dict[str, int]:
        """Ends it in order; what it counted."""
        self.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: self.process.poll() is not None, 60, f"{self.name} ends")
        assert self.process.returncode == 0, self.log.read_text()[-3000:]
        found: dict[str, int] = json.loads(self._out.read_text())
        return found

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Sizes:
    """Megabytes of the server and of each process, and the number of keys, as they were over time."""

    def __init__(self, server: Server, roles: list[Role]) -> None:
        self._server = server
        self._roles = roles
        self.taken: list[dict[str, float]] = []

    def take(self, client: redis.Redis) -> None:
        info: Any = client.info("memory")
        sizes = {"server": info["used_memory"] / 2**20, "keys": float(client.dbsize())}
        for role in self._roles:
            sizes[role.name] = psutil.Process(role.process.pid).memory_info().rss / 2**20
        self.taken.append(sizes)

    def growth(self) -> dict[str, tuple[float, float]]:
        """The medians of the second quarter and of the last one: the first is for warming up."""
        quarter = len(self.taken) // 4
        early, late = self.taken[quarter : 2 * quarter], self.taken[-quarter:]
        return {
            name: (median(size[name] for size in early), median(size[name] for size in late)) for name in self.taken[0]
        }


def kill_a_connection(client: redis.Redis, chance: random.Random) -> bool:
    """Whichever it is, but not our own."""
    own = client.client_id()
    others = [one for one in client.client_list() if int(one["id"]) != own]
    if not others:
        return False
    with suppress(redis.ResponseError):  # it has gone by itself
        client.client_kill_filter(_id=chance.choice(others)["id"])
    return True


@pytest.mark.parametrize(
    ("seconds", "rate"),
    [
        pytest.param(12, 200, id="short"),
        pytest.param(3600, 400, id="an hour", marks=[pytest.mark.torture, pytest.mark.timeout(4200)]),
    ],
)
async def test_at_load_while_connections_are_killed(
    seconds: float, rate: float, make_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, chance, killed = make_server(appendonly=True), random.Random(11), 0
    with ExitStack() as stack, server.client() as client:
        roles = [Role(role, n, server.url, tmp_path, rate) for role, count in ROLES.items() for n in range(count)]
        for role in roles:
            stack.callback(role.kill)
        sizes = Sizes(server, roles)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(min(2.0, seconds / 12))
            killed += kill_a_connection(client, chance)
            for role in roles:
                assert role.process.poll() is None, f"{role.name} has ended:\n{role.log.read_text()[-3000:]}"
            sizes.take(client)
        made = await roles[0].stop()
        async with Queue(QUEUE, connection=server.url) as queue, Queue(OUTCOMES, connection=server.url) as outcomes:
            open_states = ("waiting", "prioritized", "delayed", "active")
            for one in (queue, outcomes):
                await wait_until(lambda q=one: _none(q, open_states), 60, f"{one.name} is done")
            ended = {state: (await queue.metrics(state)).count for state in ("completed", "failed")}
            await queue.counts()
        taken = [await role.stop() for role in roles[1:]][-1]
        print(f"{killed} connections killed; producer {made}; ended {ended}; outcomes {taken}; {sizes.growth()}")  # noqa: T201

        runs_of_schedule = ended["completed"] + ended["failed"] - made["acknowledged"]
        assert made["acknowledged"] > seconds * rate / 3
        # Each acknowledged job ended once; what is more is the schedule's runs and what an unknown add did.
        assert 0 <= runs_of_schedule <= made.get("unknown", 0) + 2 * seconds + 60
        assert taken.get("completed", 0) >= ended["completed"]
        assert taken.get("failed", 0) >= ended["failed"]
        assert made.get("ResultTimeout", 0) == 0, made
        assert audit(client, "emq", QUEUE) + audit(client, "emq", OUTCOMES) == []
        assert client.dbsize() < 2 * (2 * (KEPT.count or 0)) + 200
        if seconds > 600:
            for name, (early, late) in sizes.growth().items():
                assert late <= early * 1.1 + 2, f"{name} grew from {early:.1f} to {late:.1f}"


async def _none(queue: Queue, states: tuple[Any, ...]) -> bool:
    return not any((await queue.counts(*states)).values())
