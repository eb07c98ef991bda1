"""Pages while jobs come and go, in any way: what stays in its state is read, and what does not move is read once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echomq import Job, Queue
from tests.store import scripts
from tests.store.scripts import completed, job_args
from tests.support.server import Server

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["page", "page", "page", "add", "lifo", "fetch", "finish", "remove", "last"]),
        st.integers(1, 12),
    ),
    max_size=40,
)
STATES = st.sampled_from(["waiting", "prioritized", "active", "completed"])


class World:
    """A queue that moves on by our scripts, and a reader of its pages."""

    def __init__(self, driven: scripts.Queue) -> None:
        self.driven = driven
        self.held: list[tuple[str, str]] = []
        driven.client.flushdb()

    def add(self, count: int) -> None:
        self.driven.add_many([job_args()] * count)
        self.driven.add_many([job_args(priority=1 + n % 3) for n in range(count)])

    def fetch(self, count: int) -> None:
        taken = self.driven.fetch(count)
        self.held += [(job_id, self.driven.token) for job_id in taken.ids]

    def finish(self, count: int) -> None:
        some, self.held = self.held[:count], self.held[count:]
        assert self.driven.clock is not None
        self.driven.clock += count % 2  # some of many that end in the same millisecond
        if some:
            self.driven.finish(*(completed(job_id, token) for job_id, token in some))

    def move(self, what: str, count: int) -> None:
        if what == "lifo":
            self.driven.add_many([job_args(lifo=True)] * count)
        else:
            {"add": self.add, "fetch": self.fetch, "finish": self.finish}[what](count)

    def remove(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self.driven.remove(job_id)

    def there(self, state: str) -> list[str]:
        """The ids of a state, in the order in which the oldest comes first."""
        if state in ("waiting", "active"):
            return list(self.driven.command("LRANGE", "~wait" if state == "waiting" else "~active", 0, -1)[::-1])
        return list(self.driven.command("ZRANGE", f"~{state}", 0, -1))


@given(steps=STEPS, state=STATES, newest=st.booleans(), size=st.sampled_from([1, 3, 7]))
@SETTINGS
def test_what_stays_is_read(server: Server, steps: list[tuple[str, int]], state: str, newest: bool, size: int) -> None:
    with server.client() as client:
        world = World(scripts.Queue(client, prefix="emq"))
        for _ in range(4):
            world.add(12)
            world.fetch(10)
            world.finish(6)
        asyncio.run(read_while(server.url, world, steps, state, newest, size))


async def read_while(url: str, world: World, steps: list[tuple[str, int]], state: Any, newest: bool, size: int) -> None:
    stayed, first = set(world.there(state)), world.there(state)[:: -1 if newest else 1]
    read: list[str] = []
    cursor: str | None = None
    began = ended = met_gap = False
    async with Queue("q", connection=url) as queue:

        async def page() -> None:
            nonlocal cursor, began, ended, met_gap
            before = read[-4:]
            met_gap = met_gap or (began and not set(before) & set(world.there(state)))
            found = await queue.page(state, cursor=cursor, limit=size, newest_first=newest)
            assert len(found.jobs) <= size
            read.extend(job.id for job in found.jobs)
            cursor, began, ended = found.cursor, True, found.cursor is None

        for what, count in steps:
            if ended:
                break
            if what == "page":
                await page()
            elif state == "active" and what in ("remove", "last"):
                continue
            elif what == "remove":
                ids = world.there(state)
                world.remove(ids[count % len(ids) :][:1] if ids else [])
            elif what == "last":  # just those by which the reader knows where it is
                world.remove(read[-4:])
            else:
                world.move(what, count)
            stayed &= set(world.there(state))
        while not ended:
            await page()
            stayed &= set(world.there(state))
    assert stayed <= set(read)
    if state in ("prioritized", "completed") or not met_gap:
        assert len(read) == len(set(read))
        unmoved = [job_id for job_id in first if job_id in stayed]
        assert [job_id for job_id in read if job_id in stayed] == unmoved


async def test_jobs_comes_to_an_end_and_gives_none_twice(url: str, server: Server) -> None:
    with server.client() as client:
        world = World(scripts.Queue(client, prefix="emq"))
        world.add(300)
        async with Queue("q", connection=url) as queue:
            seen: list[Job[Any]] = []
            async for job in queue.jobs("waiting"):
                seen.append(job)
                if len(seen) % 50 == 0:
                    world.fetch(40)
                    world.add(10)
        ids = [job.id for job in seen]
        assert len(ids) == len(set(ids))
        assert {job_id for job_id in world.there("waiting") if int(job_id) <= 600} <= set(ids)
