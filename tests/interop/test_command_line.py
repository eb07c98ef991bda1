"""The command line on queues of BullMQ: ``--prefix bull`` shows what Node filled, and Node heeds what it is told."""

from __future__ import annotations

import functools
import json

from tests.interop.conftest import Pair
from tests.support.command import echomq


async def test_it_shows_and_controls_a_queue_that_node_filled(bull: Pair, url: str) -> None:
    node, name = bull.theirs, bull.name
    run = functools.partial(echomq, url=url)
    words = ("--prefix", "bull", "--json")
    failed = await node.add("fail", {"kind": "failed"})
    worker = await node.work(concurrency=2)
    assert (await run("job", "wait", name, failed, *words, "--timeout", "15")).code == 1
    [works] = (await run("workers", name, *words)).json["workers"]
    assert (works["queue"], works["is_connected"], works["slots"]) == (name, True, None)
    await node.stop(worker)
    await node.pause()
    waits = await node.add("echo", {"kind": "waiting"})
    later = await node.add("echo", {"kind": "delayed"}, delay=60_000, priority=3)

    [listed] = (await run("queue", "list", *words)).json["queues"]
    counts = {state: count for state, count in listed["counts"].items() if count}
    assert (listed["queue"], listed["paused"], counts) == (name, True, {"waiting": 1, "delayed": 1, "failed": 1})
    shown = (await run("queue", "show", name, *words)).json
    assert (shown["next"]["id"], shown["paused"]) == (waits, True)
    [seen] = (await run("top", "--interval", "0.1", *words)).json["queues"]
    assert (seen["queue"], seen["counts"]["waiting"], seen["paused"]) == (name, 1, True)
    job = (await run("job", "show", name, failed, *words)).json
    assert (job["data"], job["state"], job["attempts_made"]) == ({"kind": "failed"}, "failed", 1)
    assert job["failed_reason"]
    assert len(job["stacktrace"]) == 1

    assert (await run("job", "promote", name, later, *words)).code == 0
    assert await node.counts() == {"waiting": 1, "prioritized": 1, "failed": 1}
    assert (await run("job", "remove", name, later, "--yes", *words)).code == 0
    assert (await run("queue", "retry", name, *words)).json["retried"] == 1
    assert (await run("job", "remove", name, failed, "--yes", *words)).code == 0
    added = (await run("job", "add", name, "echo", "--data", '{"kind": "ours"}', *words)).json
    assert (await run("queue", "resume", name, *words)).code == 0
    assert not await node.is_paused()
    await node.work()
    waited = await run("job", "wait", name, added["id"], "--prefix", "bull", "--timeout", "15")
    assert json.loads(waited.out) == {"kind": "ours"}
    assert await node.wait(waits) == {"kind": "waiting"}
    assert (await run("queue", "clean", name, "completed", "--older-than", "0", "--yes", *words)).json["removed"] == 2
    assert await node.counts() == {}
