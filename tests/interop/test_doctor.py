"""The doctor beside Node and us at work in one queue, and over what Node leaves behind."""

from __future__ import annotations

import asyncio
import itertools

from echomq.doctor import Doctor, Finding, Report
from tests.interop.conftest import Pair
from tests.interop.test_flows import child, parent
from tests.support.server import Server
from tests.support.wait import wait_until


def of_queues(report: Report) -> list[Finding]:
    assert report.not_looked_at == []
    return [found for found in report.findings if found.queue]


def doctor_of(pair: Pair) -> Doctor:
    return Doctor(pair.connection, prefix=pair.place.prefix)


async def test_node_and_we_at_work_give_no_finding(pair: Pair) -> None:
    node = pair.theirs

    async def produce() -> None:
        for number in itertools.count():
            await node.add("nothing", deduplication={"id": f"d{number % 3}"})
            await node.add("fail", {"times": 1}, attempts=2, backoff=5)
            await node.add("nothing", delay=10, priority=number % 3)
            await node.flow(parent(pair, *(child(pair, "value", {"value": n}) for n in range(3))))
            await pair.ours.add("nothing", delay=0.01)

    await node.schedule("often", {"every": 60}, {"name": "nothing"})
    await node.work(concurrency=5, stalledInterval=500)
    async with pair.worker(concurrency=5):
        producing = asyncio.create_task(produce())
        try:
            for _ in range(6):
                runs = len(pair.runs.seen)
                await wait_until(lambda runs=runs: len(pair.runs.seen) > runs + 30)
                assert of_queues(await doctor_of(pair).examine(pair.name)) == []
            assert not producing.done()
        finally:
            producing.cancel()
            await asyncio.wait([producing])
    assert of_queues(await doctor_of(pair).examine()) == []


async def test_a_paused_queue_of_node_is_in_order(pair: Pair) -> None:
    node = pair.theirs
    await node.add("nothing")
    await node.pause()
    await node.add("nothing")
    assert of_queues(await doctor_of(pair).examine(pair.name)) == []
    await node.resume()
    assert of_queues(await doctor_of(pair).examine(pair.name)) == []


async def test_a_damage_in_nodes_queue_is_repaired_so_that_node_goes_on(pair: Pair, server: Server) -> None:
    node = pair.theirs
    ids = await node.flow(parent(pair, child(pair, "value", {"value": 1})))
    [waiting] = ids["children"]
    server.cli("LREM", pair.key("wait"), "0", waiting["id"])
    server.cli("LPUSH", pair.key("wait"), "nobody")
    server.cli("SADD", pair.key(f"{ids['id']}:dependencies"), pair.key("vanished"))
    doctor = doctor_of(pair)
    found = of_queues(await doctor.examine(pair.name))
    assert [one.kind for one in found] == ["job-in-no-state", "missing-child", "ghost-id"]
    for one in found:
        assert await doctor.fix(one) == 1
    assert of_queues(await doctor.examine(pair.name)) == []
    await node.work()
    assert await node.wait(ids["id"]) == {"role": "parent"}
    assert of_queues(await doctor.examine(pair.name)) == []
