"""Node's flows pass through our workers: parents are released, failed or let go as each failure policy says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.conftest import Pair
from tests.support.node_peer import NodeError
from tests.support.wait import wait_until


def child(pair: Pair, name: str, data: Any, **opts: Any) -> dict[str, Any]:
    """A node of a flow tree in the pair's queue."""
    return {"name": name, "queueName": pair.theirs.name, "prefix": pair.place.prefix, "data": data, "opts": opts}


def parent(pair: Pair, *children: dict[str, Any], **opts: Any) -> dict[str, Any]:
    """A parent of them, which echoes its data."""
    return {**child(pair, "echo", {"role": "parent"}, **opts), "children": list(children)}


async def test_parent_runs_after_its_children_and_has_their_results(pair: Pair) -> None:
    node = pair.theirs
    ids = await node.flow(parent(pair, *(child(pair, "value", {"value": {"n": n, "😀": None}}) for n in range(3))))
    assert await node.state(ids["id"]) == "waiting-children"
    async with pair.worker(concurrency=3):
        assert await node.wait(ids["id"]) == {"role": "parent"}
    assert [run.id for run in pair.runs.seen][-1] == ids["id"]
    dependencies = await node.dependencies(ids["id"])
    expected = {pair.key(made["id"]): {"n": n, "😀": None} for n, made in enumerate(ids["children"])}
    assert dependencies["processed"] == expected
    assert not dependencies.get("unprocessed")
    assert await node.counts() == {"completed": 4}


async def test_children_of_ours_and_a_parent_of_nodes_in_another_queue(make_pair: Callable[..., Pair]) -> None:
    rooms, courses = make_pair(), make_pair()
    values = [1, None, "a\ud800😀"]
    tree = {**child(courses, "children", {}), "children": [child(rooms, "value", {"value": v}) for v in values]}
    ids = await courses.theirs.flow(tree)
    await courses.theirs.work()
    async with rooms.worker():
        results = await courses.theirs.wait(ids["id"])
    assert results == {rooms.key(made["id"]): value for made, value in zip(ids["children"], values, strict=True)}


async def test_parent_in_another_queue_is_woken_for_a_worker_of_ours(make_pair: Callable[..., Pair]) -> None:
    rooms, courses = make_pair(), make_pair()
    async with courses.worker():
        await rooms.theirs.work()
        ids = await courses.theirs.flow(parent(courses, child(rooms, "value", {"value": 1})))
        assert await courses.theirs.wait(ids["id"]) == {"role": "parent"}


async def test_child_without_a_policy_leaves_its_parent_waiting_until_it_is_retried(pair: Pair) -> None:
    node = pair.theirs
    ids = await node.flow(parent(pair, child(pair, "fail", {"times": 1}), child(pair, "nothing", {})))
    failing = ids["children"][0]["id"]
    async with pair.worker():
        with pytest.raises(NodeError):
            await node.wait(failing)
        await node.wait(ids["children"][1]["id"])
        assert await node.state(ids["id"]) == "waiting-children"
        assert await node.counts() == {"waiting-children": 1, "completed": 1, "failed": 1}
        await node.retry(failing)
        assert await node.wait(ids["id"]) == {"role": "parent"}


async def test_child_that_fails_its_parent(pair: Pair) -> None:
    node = pair.theirs
    tree = parent(
        pair, child(pair, "fail", {"reason": "no"}, failParentOnFailure=True), child(pair, "nothing", {}, delay=60_000)
    )
    ids = await node.flow(tree)
    async with pair.worker():
        with pytest.raises(NodeError, match=f"child {pair.key(ids['children'][0]['id'])} failed"):
            await node.wait(ids["id"])
    assert not pair.runs.of(ids["id"])  # its handler was never called
    assert await node.counts() == {"failed": 2, "delayed": 1}


async def test_failure_climbs_three_levels(pair: Pair) -> None:
    node = pair.theirs
    middle = {**parent(pair, child(pair, "fail", {}, failParentOnFailure=True)), "opts": {"failParentOnFailure": True}}
    ids = await node.flow(parent(pair, middle))
    async with pair.worker():
        with pytest.raises(NodeError, match=f"child {pair.key(ids['children'][0]['id'])} failed"):
            await node.wait(ids["id"])
    assert len(pair.runs.seen) == 1
    assert await node.counts() == {"failed": 3}


async def test_child_that_lets_its_parent_continue(pair: Pair) -> None:
    """The parent is released at once, while another child is pending; and cannot complete before that is settled."""
    node = pair.theirs
    tree = parent(
        pair,
        child(pair, "fail", {"reason": "no"}, continueParentOnFailure=True),
        child(pair, "hang", {}),
    )
    tree["name"] = "hang"
    ids = await node.flow(tree)
    failing, later = (made["id"] for made in ids["children"])
    async with pair.worker(concurrency=3):
        await wait_until(lambda: pair.runs.of(ids["id"]) and pair.runs.of(later))
        dependencies = await node.dependencies(ids["id"])
        assert dependencies["unprocessed"] == [pair.key(later)]
        assert "no" in dependencies["ignored"][pair.key(failing)]
        pair.runs.gates[later].set()
        await node.wait(later)
        pair.runs.gates[ids["id"]].set()
        assert await node.wait(ids["id"]) == "let go"


@pytest.mark.parametrize("policy", ["ignoreDependencyOnFailure", "removeDependencyOnFailure"])
async def test_child_whose_failure_does_not_count(pair: Pair, policy: str) -> None:
    node = pair.theirs
    ids = await node.flow(
        parent(pair, child(pair, "fail", {"reason": "no"}, **{policy: True}), child(pair, "hang", {}))
    )
    failing, good = (made["id"] for made in ids["children"])
    async with pair.worker(concurrency=2):
        with pytest.raises(NodeError):
            await node.wait(failing)
        assert await node.state(ids["id"]) == "waiting-children"
        pair.runs.gates[good].set()
        assert await node.wait(ids["id"]) == {"role": "parent"}
    dependencies = await node.dependencies(ids["id"])
    assert dependencies["processed"] == {pair.key(good): "let go"}
    ignored = dependencies.get("ignored") or {}
    assert list(ignored) == ([pair.key(failing)] if policy.startswith("ignore") else [])


async def test_children_that_are_removed_when_they_end_release_their_parent(pair: Pair) -> None:
    node = pair.theirs
    tree = parent(
        pair,
        child(pair, "value", {"value": 7}, removeOnComplete=True),
        child(pair, "fail", {}, removeOnFail=True, ignoreDependencyOnFailure=True),
    )
    ids = await node.flow(tree)
    async with pair.worker():
        assert await node.wait(ids["id"]) == {"role": "parent"}
    assert await node.counts() == {"completed": 1}
    assert (await node.dependencies(ids["id"]))["processed"] == {pair.key(ids["children"][0]["id"]): 7}


async def test_child_that_is_retried_does_not_release_its_parent_early(pair: Pair) -> None:
    node = pair.theirs
    ids = await node.flow(parent(pair, child(pair, "fail", {"times": 2}, attempts=3, failParentOnFailure=True)))
    async with pair.worker():
        assert await node.wait(ids["id"]) == {"role": "parent"}
    assert len(pair.runs.seen) == 4


async def test_parents_with_delay_and_priority(pair: Pair) -> None:
    node = pair.theirs
    delayed = await node.flow(parent(pair, child(pair, "nothing", {}), delay=200))
    urgent = await node.flow(parent(pair, child(pair, "nothing", {}), priority=3))
    async with pair.worker():
        await node.wait(delayed["children"][0]["id"])
        assert await node.wait(urgent["id"]) == {"role": "parent"}
        assert await node.wait(delayed["id"]) == {"role": "parent"}
    job, its_child = await node.job(delayed["id"]), await node.job(delayed["children"][0]["id"])
    assert job["processedOn"] >= its_child["finishedOn"] + 200
