"""Pages of jobs while jobs come and go: what stays is on exactly one page. And other bounded reads."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.store.scripts import Queue, T, completed, job_args, text

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

FIRST: tuple[Any, ...] = (-1, 0, "")


class Reader:
    """Reads a place page by page, as ``_store/read.py`` does."""

    def __init__(self, queue: Queue, place: str, size: int, *, newest: bool = False) -> None:
        self.queue = queue
        self.place = place
        self.size = size
        self.newest = "1" if newest else ""
        self.after: tuple[Any, ...] = FIRST
        self.ids: list[str] = []

    def page(self) -> bool:
        """Reads one; whether more follow."""
        reply = text(self.queue.run("getPage-8", self.place, self.size, self.newest, *self.after))
        seen, passed, left, *entries = reply
        ids = entries[::3]
        self.ids += ids
        self.after = (
            passed,
            left,
            entries[-1] if entries else "",
            *ids[:-5:-1],
            *([ids[len(ids) // 2], ids[0]] if ids else []),
        )
        assert seen == len(ids)
        return bool(left)


def fill(queue: Queue, count: int, **options: Any) -> None:
    for first in range(0, count, 250):
        queue.add_many([job_args(**options)] * min(250, count - first))


def in_order(queue: Queue, place: str, *, newest: bool) -> list[str]:
    if place in ("wait", "active"):
        ids = queue.command("LRANGE", f"~{place}", 0, -1)
        return list(ids if newest else ids[::-1])
    return list(queue.command("ZREVRANGE" if newest else "ZRANGE", f"~{place}", 0, -1))


# -- lists


@pytest.mark.parametrize("newest", [False, True], ids=["oldest", "newest"])
def test_a_list_from_which_workers_fetch_and_to_which_jobs_are_added(queue: Queue, newest: bool) -> None:
    fill(queue, 3000)
    reader = Reader(queue, "wait", 100, newest=newest)
    fetched: set[str] = set()
    while reader.page():
        fill(queue, 60)
        fetched |= set(queue.fetch(37).ids)
    twice = len(reader.ids) - len(set(reader.ids))
    # Where the workers meet the reader they take the last jobs of its page, and by those it knows where it was.
    assert twice == 0 or (newest and twice <= 100)
    stayed = {str(number) for number in range(1, 3001)} - fetched
    assert stayed <= set(reader.ids), "none is missed"


@pytest.mark.parametrize("newest", [False, True], ids=["oldest", "newest"])
@pytest.mark.parametrize(("added", "fetched"), [(800, 0), (0, 800), (800, 800)])
def test_a_list_that_moves_on_by_many_between_two_pages(queue: Queue, newest: bool, added: int, fetched: int) -> None:
    fill(queue, 12_000)
    reader = Reader(queue, "wait", 500, newest=newest)
    for _ in range(3):
        reader.page()
    fill(queue, added)
    gone = set()
    for _ in range(0, fetched, 50):
        gone |= set(queue.fetch(50).ids)
    while reader.page():
        pass
    assert len(reader.ids) == len(set(reader.ids))
    assert {str(number) for number in range(1, 12_001)} - gone <= set(reader.ids)


def test_all_that_was_read_has_been_fetched(queue: Queue) -> None:
    fill(queue, 200)
    reader = Reader(queue, "wait", 20)
    assert reader.page()
    queue.fetch(30)
    while reader.page():
        pass
    assert reader.ids == [str(number) for number in (*range(1, 21), *range(31, 201))]


def test_jobs_that_are_put_back_to_the_front_are_behind_the_reader(queue: Queue) -> None:
    fill(queue, 200)
    reader = Reader(queue, "wait", 20)
    assert reader.page()
    queue.add_many([job_args(lifo=True)] * 30)
    while reader.page():
        pass
    assert reader.ids == [str(number) for number in range(1, 201)]


@pytest.mark.parametrize("newest", [False, True], ids=["oldest", "newest"])
def test_single_jobs_are_taken_out_of_a_list(queue: Queue, newest: bool) -> None:
    fill(queue, 300)
    chance = random.Random(7)
    reader = Reader(queue, "wait", 20, newest=newest)
    gone: set[str] = set()
    while reader.page():
        for job_id in [reader.ids[-1], reader.ids[-2], *map(str, chance.sample(range(1, 301), 3))]:
            queue.remove(job_id)
            gone.add(job_id)
    assert len(reader.ids) == len(set(reader.ids))
    assert {str(number) for number in range(1, 301)} - gone <= set(reader.ids)


def test_a_list_moves_on_by_more_than_can_be_found_again(queue: Queue) -> None:
    """Nothing is promised then but that it ends, and that what lies before the reader is read."""
    fill(queue, 30_000)
    reader = Reader(queue, "wait", 1000, newest=True)
    for _ in range(12):
        reader.page()
    queue.command("LTRIM", "~wait", 0, 20_000)
    for first in range(0, 15_000, 1000):
        queue.command("LPUSH", "~wait", *(f"n{first + number}" for number in range(1000)))
    while reader.page():
        pass
    assert len(reader.ids) > 12_000
    assert {str(number) for number in range(10_000, 18_001)} <= set(reader.ids)


# -- sets


@pytest.mark.parametrize("newest", [False, True], ids=["oldest", "newest"])
def test_a_set_in_which_many_have_the_same_score(queue: Queue, newest: bool) -> None:
    chance = random.Random(3)
    members = [f"{'x' * chance.randrange(3)}{number}" for number in range(600)]
    for member in members:
        queue.command("ZADD", "~completed", T + chance.randrange(4), member)
    wanted = in_order(queue, "completed", newest=newest)
    reader = Reader(queue, "completed", 7, newest=newest)
    gone: set[str] = set()
    while reader.page():
        if chance.random() < 0.5:
            gone.add(reader.ids[-1])
            queue.command("ZREM", "~completed", reader.ids[-1])
        other = chance.choice(members)
        gone.add(other)
        queue.command("ZREM", "~completed", other)
        queue.command("ZADD", "~completed", T + chance.randrange(4), f"new{chance.random()}")
    read = [member for member in reader.ids if not member.startswith("new")]
    assert len(reader.ids) == len(set(reader.ids))
    assert [member for member in wanted if member in set(read)] == read, "in order"
    assert set(wanted) - gone <= set(read)


@pytest.mark.parametrize("newest", [False, True], ids=["oldest", "newest"])
def test_ids_of_any_bytes_in_a_set(queue: Queue, newest: bool) -> None:
    members = ["é", "z", "Z", "\udcff", "a:b:c", "", "日本", "a", "aa", "a\x00b"]
    for member in members:
        queue.client.execute_command("ZADD", "bull:q:failed", T, member.encode("utf-8", "surrogateescape"))
    reader = Reader(queue, "failed", 1, newest=newest)
    while reader.page():
        reader.after = tuple(
            part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part for part in reader.after
        )
    assert reader.ids == in_order(queue, "failed", newest=newest)


# -- counts and metrics


def test_counts_per_priority(queue: Queue) -> None:
    queue.add_many([job_args(priority=number) for number in (0, 0, 1, 3, 3, 3, 2_097_151)])
    assert queue.run("getCountsPerPriority-3", 0, 1, 2, 3, 2_097_151) == [0, 2, 1, 1, 2, 0, 3, 3, 2_097_151, 1]
    assert queue.run("getCountsPerPriority-3") == [0, 2, 1, 1, 3, 3, 2_097_151, 1]
    queue.fetch(3)
    queue.sweep(confirm=0)
    queue.clock = T + 60_000
    queue.command("DEL", "~1:lock", "~2:lock", "~3:lock", "~stalled-check")
    queue.sweep(confirm=0)
    assert queue.run("getCountsPerPriority-3") == [0, 2, 1, 1, 3, 3, 2_097_151, 1], (
        "what is put back counts where it was"
    )


def test_counts_per_priority_are_bounded(queue: Queue) -> None:
    queue.command("ZADD", "~prioritized", *(part for n in range(1, 1501) for part in (n * 4294967296 + 1, f"j{n}")))
    reply = queue.run("getCountsPerPriority-3")
    assert reply[::2] == list(range(1000))


def test_metrics_by_the_minute(queue: Queue) -> None:
    assert queue.run("getMetrics-2", "completed", 0, 10) == [b"0", None, None, []]
    for minute in (0, 0, 1, 1, 1, 2, 4):
        queue.clock = T + minute * 60_000
        job_id = queue.add()
        queue.fetch()
        queue.finish(completed(job_id, queue.token), points=60)
    assert text(queue.run("getMetrics-2", "completed", 0, 10)) == ["7", str(T + 240_000), "6", ["0", "1", "3", "2"]]
    assert text(queue.run("getMetrics-2", "completed", 1, 2))[3] == ["1", "3"]
    assert text(queue.run("getMetrics-2", "failed", 0, 10)) == ["0", None, None, []]
