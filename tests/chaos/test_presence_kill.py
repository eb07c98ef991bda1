"""A worker that is killed is no longer listed: its connection at once, its record when it was not renewed (faults 106)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from echomq import Queue, Worker, WorkerInfo
from echomq._store import explain
from tests.chaos.rig import BASE, QUEUE, Runs, StartProgram, lines
from tests.support.command import echomq
from tests.support.server import Server
from tests.support.wait import wait_until

WORKERS = "emqx:{" + QUEUE + "}:workers"
FEW: dict[str, Any] = {"lock_duration": 2.0, "stalled_interval": 1.0}


async def test_killed_workers_leave_no_entry(server: Server, start_program: StartProgram, report: Path) -> None:
    async with Queue(QUEUE, connection=server.url) as queue:
        programs = [start_program(server.url, name=f"doomed {number}", **FEW) for number in range(3)]
        for program in programs:
            await program.ready()
        job = await queue.add("work", {"seconds": 600})
        await wait_until(lambda: any(line["what"] == "start" for line in lines(report)))

        async def all_known() -> bool:
            found = await queue.workers()
            return len([one for one in found if one.is_connected and one.pid]) == 3

        await wait_until(all_known)
        assert [one.id for found in await queue.workers() for one in found.jobs] == [job.id]
        for program in programs:
            program.send(signal.SIGKILL)

        async def none_connected() -> list[WorkerInfo] | bool:
            return not any(one.is_connected for one in await queue.workers())

        await wait_until(none_connected)

        async def none_listed() -> bool:
            return await queue.workers() == []

        await wait_until(none_listed, 15)  # though nobody has swept: what is not renewed does not count
        async with Worker(QUEUE, Runs(), connection=server.url, name="survivor", concurrency=2, **FEW):

            async def only_the_survivor() -> bool:
                return [one.name for one in await queue.workers()] == ["survivor"]

            await wait_until(only_the_survivor)
            await wait_until(lambda: server.cli("HLEN", WORKERS) == 2, what="only the survivor's record, and `seen`")
            await wait_until(
                lambda: server.cli("LLEN", BASE + "active") == 1 and server.cli("LLEN", BASE + "wait") == 0
            )
    assert server.cli("HLEN", WORKERS) == 1
    assert server.cli("PTTL", WORKERS) > 0


async def test_a_killed_worker_is_missed_at_once(
    server: Server, start_program: StartProgram, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its record and the lock of its job hold on."""
    monkeypatch.setattr(explain, "_COMING", 0.0)
    async with Queue(QUEUE, connection=server.url) as queue:
        program = start_program(server.url, name="doomed", concurrency=1)
        await program.ready()
        runs = await queue.add("work", {"seconds": 600})
        await wait_until(lambda: any(line["what"] == "start" for line in lines(report)))
        waits = await queue.add("work", {"seconds": 0})
        assert "is renewed while the worker lives" in str(await runs.explain())
        assert "no worker" not in str(await waits.explain())
        program.send(signal.SIGKILL)

        async def not_connected() -> bool:
            return [one.is_connected for one in await queue.workers()] == [False]

        await wait_until(not_connected)
        running, waiting = await runs.explain(), await waits.explain()
        assert [reason.kind for reason in waiting.reasons] == ["no_worker", "next"]
        assert [reason.kind for reason in running.reasons] == ["running"]
        said = running.reasons[0].text
        assert said.startswith("worker 'doomed' has started it for ")
        assert " and is not connected now: if it has died, its lock expires in " in said
        assert ", and then only a worker puts it back into the line, and no worker of this queue is connected" in said
        assert "none is known (1 not connected)" in (await echomq("queue", "show", QUEUE, url=server.url)).out
        async with Worker(QUEUE, Runs(), connection=server.url, name="survivor"):
            await wait_until(lambda: server.cli("LLEN", BASE + "wait") == 0)

            async def seen() -> bool:
                return "a sweep of the workers puts it back into the line" in str(await runs.explain())

            await wait_until(seen)


async def test_a_worker_whose_connections_are_cut_is_the_same_worker(server: Server) -> None:
    async with (
        Queue(QUEUE, connection=server.url) as queue,
        Worker(QUEUE, Runs(), connection=server.url, name="phoenix", **FEW) as worker,
    ):
        await worker.ready()

        async def known() -> bool:
            return [(one.name, one.is_connected) for one in await queue.workers()] == [("phoenix", True)]

        await wait_until(known)
        [before] = await queue.workers()
        server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await wait_until(known)
        [after] = await queue.workers()
        assert (after.pid, after.slots) == (before.pid, before.slots)
        assert after.address != before.address or server.url.startswith("unix")
