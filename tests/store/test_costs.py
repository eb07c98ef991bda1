"""What a job costs the server and the wire, counted, not timed: commands (those inside scripts included), calls, bytes.

These bounds are what the figures in ``bench/`` rest on. Who makes a script or the pump ask for more has to say so here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from echomq import Job, JobSpec, Queue, Worker
from echomq._redis.client import Link
from echomq._redis.connect import Settings
from echomq._store.call import Lane, Patience
from echomq._store.fetch import Turn, Want, take
from echomq._store.finish import Completed, finish_and_take
from echomq._store.keep import sweep
from echomq._store.keys import QueueKeys
from echomq._store.line import MOST_JOBS
from echomq._store.presence import NOBODY, Present, Record
from tests.support.server import Server
from tests.support.wait import wait_until

both_servers = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

KEYS = QueueKeys.of("costs")
PAYLOAD = {"n": 7, "user": "u123"}
WANT = Want(30.0, "host:1").args
KEEP_ALL = "-1;;"

# Once a connection, or once a server; or the test's own.
_NOT_COUNTED = {
    "hello",
    "select",
    "client|setname",
    "client|setinfo",
    "script|load",
    "info",
    "config|resetstat",
    "monitor",
}


def spent(server: Server) -> dict[str, int]:
    """How often each command ran since the last reset."""
    counts = {}
    for line in server.cli("INFO", "commandstats").decode().splitlines():
        if line.startswith("cmdstat_"):
            command, _, figures = line.removeprefix("cmdstat_").partition(":calls=")
            counts[command] = int(figures.partition(",")[0])
    return {command: count for command, count in counts.items() if command not in _NOT_COUNTED}


def traffic(server: Server) -> tuple[int, int]:
    """Bytes that the server has read and written."""
    found: dict[str, Any] = {}
    with server.client() as client:
        found = client.info("stats")
    return found["total_net_input_bytes"], found["total_net_output_bytes"]


class Calls:
    """What clients send through TCP, as the queue and the worker here do, without the commands that scripts run."""

    def __init__(self, server: Server, monitor: Any) -> None:
        self._server = server
        self._monitor = monitor
        self._looks = 0

    def so_far(self) -> list[str]:
        """The names of the commands since the last look."""
        self._looks += 1
        mark = f"ECHO look-{self._looks}"
        self._server.cli(*mark.split())
        names = []
        while (seen := self._monitor.next_command())["command"] != mark:
            if seen["client_type"] not in ("lua", "unix"):
                names.append(seen["command"].split()[0].lower())
        return names


@pytest.fixture
def calls(server: Server) -> Iterator[Calls]:
    with server.client() as client, client.monitor() as monitor:
        yield Calls(server, monitor)


@pytest.fixture
async def queue(server: Server) -> AsyncIterator[Queue]:
    async with Queue(KEYS.queue, connection=server.tcp_url) as queue:
        await queue.add_bulk([JobSpec("first", PAYLOAD)])  # connects, and loads the script
        yield queue


@pytest.fixture
async def lane(server: Server) -> AsyncIterator[Lane]:
    link = Link(Settings.from_url(server.url))
    yield Lane(link, KEYS)
    await link.close()


async def turn(lane: Lane, last: Turn, count: int) -> Turn:
    """Finishes what the last turn brought and takes the next."""
    done = [Completed(job.id, last.token, b"null", KEEP_ALL) for job in last.jobs]
    return await finish_and_take(lane, WANT, count, done, 0, Patience(3))


@both_servers
async def test_commands_of_a_bulk_add(server: Server, queue: Queue) -> None:
    """Six a job (id, a look for a namesake, hash, list, two events), and few for the call."""
    whole: dict[int, int] = {}
    for count in (20, MOST_JOBS):
        server.cli("CONFIG", "RESETSTAT")
        await queue.add_bulk([JobSpec("work", PAYLOAD)] * count)
        commands = spent(server)
        assert commands.pop("evalsha") == 1  # one call for up to so many
        whole[count] = sum(commands.values())
    assert whole[MOST_JOBS] - whole[20] <= 6 * (MOST_JOBS - 20)
    assert whole[20] - 6 * 20 <= 11


@both_servers
async def test_commands_of_a_drain(server: Server, queue: Queue, lane: Lane) -> None:
    """Eight a job (four to finish it, four to fetch the next), and few for the call; the same for one job as for fifty."""
    await queue.add_bulk([JobSpec("work", PAYLOAD)] * 200)
    whole: dict[int, int] = {}
    taken = await turn(lane, await take(lane, WANT, 50, Patience(3)), 50)
    for count in (50, 1, 1):
        if len(taken.jobs) != count:
            taken = await turn(lane, taken, count)
        server.cli("CONFIG", "RESETSTAT")
        taken = await turn(lane, taken, count)
        commands = spent(server)
        assert commands.pop("evalsha") == 1
        assert len(taken.jobs) == count
        whole[count] = sum(commands.values())
    assert whole[50] - whole[1] <= 8 * 49 + 1
    assert whole[1] - 8 <= 18


@both_servers
async def test_bytes_on_the_wire(server: Server, queue: Queue, lane: Lane) -> None:
    """What a small job weighs: when it is added, and when it is finished and another one fetched."""
    jobs = 3 * MOST_JOBS
    await queue.add("first")  # the connection is made, the script is there
    read, written = traffic(server)
    await queue.add_bulk([JobSpec("work", PAYLOAD)] * jobs)
    read, written = (after - before for before, after in zip((read, written), traffic(server), strict=True))
    assert read / jobs <= 105  # of which 40 are name, data and options
    assert written / jobs <= 25

    taken = await turn(lane, await take(lane, WANT, 50, Patience(3)), 50)
    read, written = traffic(server)
    taken = await turn(lane, taken, 50)
    read, written = (after - before for before, after in zip((read, written), traffic(server), strict=True))
    assert len(taken.jobs) == 50
    assert read / 50 <= 100
    assert written / 50 <= 300  # the whole record of the next job; and once the reply to INFO


@both_servers
@pytest.mark.parametrize("concurrency", [1, 2, 100])
async def test_calls_for_jobs_that_come_one_by_one(
    server: Server, queue: Queue, calls: Calls, concurrency: int
) -> None:
    """Fewer than six a job, the add among them, however many slots look on (faults 77)."""
    jobs = 40
    ran = asyncio.Event()

    async def process(job: Job[Any]) -> None:
        ran.set()

    async with Worker(queue, process, concurrency=concurrency) as worker:
        await worker.ready()
        await asyncio.wait_for(ran.wait(), 10)  # the fixture's own
        calls.so_far()
        for _ in range(jobs):
            ran.clear()
            await queue.add("work", PAYLOAD)
            await asyncio.wait_for(ran.wait(), 10)
        await wait_until(lambda: server.cli("ZCARD", KEYS.key("completed")) == jobs + 1)
        names = [name for name in calls.so_far() if name != "script"]  # loaded once
    assert len(names) < 6 * jobs, sorted((name, names.count(name)) for name in set(names))


@both_servers
async def test_calls_of_a_full_queue(server: Server, queue: Queue, calls: Calls) -> None:
    """Many slots and many jobs: calls are shared, so there are far fewer of them than jobs."""
    jobs = 1000
    await queue.add_bulk([JobSpec("work", PAYLOAD)] * jobs)

    async def process(job: Job[Any]) -> None:
        pass

    calls.so_far()
    await Worker(queue, process, concurrency=100).run_until_drained()
    names = calls.so_far()
    assert server.cli("ZCARD", KEYS.key("completed")) == jobs + 1
    assert len(names) <= jobs * 0.08, sorted((name, names.count(name)) for name in set(names))


@both_servers
async def test_commands_of_an_idle_look_and_of_a_sweep(server: Server, queue: Queue, lane: Lane) -> None:
    """Every five seconds a look, every fifteen, in the whole fleet, a sweep: that is all that an idle worker asks for."""
    await turn(lane, await take(lane, WANT, 1, Patience(3)), 1)
    assert (await sweep(lane, 15.0, 1, 1.5, Patience(3))).next_in > 0
    server.cli("DEL", KEYS.resolve("check_at"))
    server.cli("CONFIG", "RESETSTAT")
    assert not (await take(lane, WANT, 1, Patience(3))).jobs
    assert spent(server) == {"evalsha": 1, "exists": 1}
    server.cli("CONFIG", "RESETSTAT")
    await sweep(lane, 15.0, 1, 1.5, Patience(3))
    commands = spent(server)
    assert commands.pop("evalsha") == 1
    assert sum(commands.values()) <= 22, commands


@both_servers
async def test_commands_of_saying_that_a_worker_is_there(server: Server, lane: Lane) -> None:
    """Two, in the call that each worker makes every fifteen seconds anyway, and another to look at the key.

    One more is the look at the outbox.
    """
    record = Record("desk", "host", 7, "0.1.0", "3.11.7", slots=3, paused=False, up=5_000, lag=12)
    present = Present("a worker", record, 45.0)
    whole: dict[tuple[bool, bool], int] = {}
    await sweep(lane, 15.0, 1, 1.5, Patience(3))  # loads the script
    for sweeps in (True, False):
        for who in (NOBODY, present, present):
            if sweeps:
                server.cli("DEL", KEYS.resolve("check_at"))
            server.cli("CONFIG", "RESETSTAT")
            await sweep(lane, 15.0, 1, 1.5, Patience(3), present=who)
            commands = spent(server)
            assert commands.pop("evalsha") == 1
            whole[sweeps, who is present] = sum(commands.values())
    assert whole[False, True] <= 8, whole
    assert whole[False, True] - whole[False, False] <= 2, whole
    assert whole[True, True] - whole[True, False] <= 2, whole


async def test_an_idle_worker_asks_seldom(server: Server, queue: Queue, calls: Calls) -> None:
    """At most 1.6 commands and 0.6 calls a second, counted over two blocks on the marker, whatever its slots.

    One call in ten seconds is the blocked read of requests to cancel, which all workers of a process share.

    The first sweep comes before that and the second after it; what one costs is counted in the test above.
    """

    async def process(job: Job[Any]) -> None:
        pass

    async with Worker(queue, process, concurrency=100) as worker:
        await worker.ready()
        await wait_until(lambda: server.cli("ZCARD", KEYS.key("completed")) == 1)
        await wait_until(lambda: any("cmd=bzpopmin" in client for client in server.clients()))
        calls.so_far()
        server.cli("CONFIG", "RESETSTAT")
        await asyncio.sleep(12)  # the span itself is what is measured
        commands, names = spent(server), calls.so_far()
    assert 2 <= len(names) <= 0.6 * 12, names
    assert sum(commands.values()) <= 1.6 * 12, commands
