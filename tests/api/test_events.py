"""``QueueEvents``: what it tells, from where, through what trouble, and for how many queues at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from echomq import BrokenKey, Connection, Event, InvalidOption, Job, Queue, QueueEvents, ServerUnavailable, Worker
from echomq.events import (
    Active,
    Added,
    Completed,
    Custom,
    Delayed,
    Drained,
    Failed,
    Gap,
    Paused,
    RetriesExhausted,
    Unreadable,
    Waiting,
)
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.wait import wait_until

EVENTS = "emq:{q}:events"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("q", connection=url) as queue:
        yield queue


async def process(job: Job[Any]) -> Any:
    if job.name == "fail":
        raise ValueError("no seat left")
    return job.data


async def take(events: QueueEvents, number: int) -> list[Event]:
    """The next events, so many."""
    async with asyncio.timeout(10):
        return [await anext(events) for _ in range(number)]


async def nothing_more(events: QueueEvents) -> None:
    """Fails if there is another event. Only a task of its own waits, so that nothing is lost."""
    waiting = asyncio.ensure_future(anext(events))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    waiting.cancel()
    assert not done, waiting.result()


def write(server: Server, *numbers: int, key: str = EVENTS) -> None:
    with server.client() as client, client.pipeline(transaction=False) as pipeline:
        for number in numbers:
            pipeline.execute_command("XADD", key, "*", "event", "noticed", "number", str(number))
        pipeline.execute()


def numbers(found: Iterable[Event]) -> list[int]:
    return [int(event.fields["number"]) for event in found if isinstance(event, Custom)]


# -- what it tells -----------------------------------------------------------------------------------------------------------


async def test_the_life_of_two_jobs(queue: Queue) -> None:
    async with QueueEvents(queue) as events:
        await queue.add("echo", {"seat": 17})
        await queue.add("fail", delay=60)
        assert [type(event) for event in await take(events, 4)] == [Added, Waiting, Added, Delayed]
        await Worker(queue, process).run_until_drained()
        active, completed = await take(events, 2)
        assert isinstance(active, Active)
        assert isinstance(completed, Completed)
        assert (completed.job_id, completed.return_value, completed.queue) == ("1", {"seat": 17}, "q")
        assert completed.previous == "active"
        assert active.at <= completed.at
        await (await queue.get_job("2")).promote()  # type: ignore[union-attr]
        await Worker(queue, process).run_until_drained()
        promoted, _, failed, exhausted, drained = await take(events, 5)
        assert isinstance(drained, Drained)
        assert isinstance(promoted, Waiting)
        assert promoted.previous == "delayed"
        assert isinstance(failed, Failed)
        assert "no seat left" in failed.reason
        assert isinstance(exhausted, RetriesExhausted)
        assert exhausted.attempts_made == 1


async def test_events_of_ones_own(queue: Queue) -> None:
    async with QueueEvents(queue) as events:
        await queue.publish("course-closed", course="redis", learners=30, full=True)
        [event] = await take(events, 1)
        assert isinstance(event, Custom)
        assert (event.name, event.fields) == ("course-closed", {"course": "redis", "learners": "30", "full": "true"})


async def test_what_others_write_ends_nothing(queue: Queue, server: Server) -> None:
    async with QueueEvents(queue) as events:
        for fields in (
            ("x", "y"),
            ("event", "completed", "jobId", "7", "returnvalue", "notjson"),
            ("event", b"\xff", "a", "b"),
        ):
            server.cli("XADD", EVENTS, "*", *fields)
        await queue.pause()
        assert [type(event) for event in await take(events, 4)] == [Unreadable, Unreadable, Custom, Paused]


# -- from where --------------------------------------------------------------------------------------------------------------


async def test_nothing_is_lost_once_it_is_ready(queue: Queue, server: Server) -> None:
    write(server, 0)
    for number in range(1, 20):
        async with QueueEvents(queue) as events:
            write(server, number)
            assert numbers(await take(events, 1)) == [number]


async def test_from_the_start(queue: Queue, server: Server) -> None:
    write(server, *range(2_500))
    async with QueueEvents(queue, since="start") as events:
        assert numbers(await take(events, 2_500)) == [*range(2_500)]
        write(server, 2_500)
        assert numbers(await take(events, 1)) == [2_500]


async def test_a_log_that_begins_late_has_no_gap_before_its_start(queue: Queue, server: Server) -> None:
    write(server, *range(10))
    server.cli("XTRIM", EVENTS, "MAXLEN", "5")
    async with QueueEvents(queue, since="start") as events:
        assert numbers(await take(events, 5)) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("read", [1, 300, 1_200])
async def test_it_goes_on_where_it_was_left(queue: Queue, server: Server, read: int) -> None:
    write(server, *range(1_500))
    async with QueueEvents(queue, since="start") as events:
        await take(events, read)
        positions = events.positions
    async with QueueEvents(queue, since=positions) as events:
        assert events.positions == positions
        assert numbers(await take(events, 1_500 - read)) == [*range(read, 1_500)]
        last = events.positions["q"]
    write(server, 1_500)
    async with QueueEvents(queue, since=last) as events:
        assert numbers(await take(events, 1)) == [1_500]


async def test_positions_are_known_before_the_first_event(queue: Queue, server: Server) -> None:
    write(server, 1)
    async with QueueEvents(queue) as events:
        positions = events.positions
    write(server, 2)
    async with QueueEvents(queue, since=positions) as events:
        assert numbers(await take(events, 1)) == [2]


async def test_many_queues_each_in_its_order(url: str, server: Server) -> None:
    names = [f"q{number}" for number in range(50)]
    async with QueueEvents(*names, connection=url) as events:
        for number in range(20):
            for name in names:
                write(server, number, key=f"emq:{{{name}}}:events")
        found = await take(events, 1_000)
        for name in names:
            assert numbers(event for event in found if event.queue == name) == [*range(20)]


# -- gaps --------------------------------------------------------------------------------------------------------------------


async def test_what_was_cut_off_before_it_was_read_is_a_gap(queue: Queue, server: Server) -> None:
    write(server, *range(10))
    async with QueueEvents(queue, since="start") as events:
        await take(events, 3)
        position = events.positions["q"]
    server.cli("XTRIM", EVENTS, "MAXLEN", "4")
    for _ in range(2):
        async with QueueEvents(queue, since=position) as events:
            gap, *rest = await take(events, 5)
            assert isinstance(gap, Gap)
            assert gap.id == position  # so that who goes on behind it is told again
            assert gap.until == rest[0].id
            assert numbers(rest) == [6, 7, 8, 9]
    server.cli("XTRIM", EVENTS, "MAXLEN", "0")
    async with QueueEvents(queue, since=position) as events:
        [gap] = await take(events, 1)
        assert isinstance(gap, Gap)
        assert gap.until is None
        write(server, 10)
        assert numbers(await take(events, 1)) == [10]


async def test_a_log_that_was_read_to_its_end_has_no_gap(queue: Queue, server: Server) -> None:
    write(server, *range(10))
    async with QueueEvents(queue, since="start") as events:
        await take(events, 10)
        position = events.positions["q"]
    server.cli("XTRIM", EVENTS, "MAXLEN", "0")
    async with QueueEvents(queue, since=position) as events:
        await nothing_more(events)


async def test_a_log_that_was_cut_off_while_the_connection_was_lost(server: Server, proxy: Proxy) -> None:
    async with QueueEvents("q", connection=proxy.url) as events:
        write(server, 0)
        await take(events, 1)
        await proxy.stop_listening()
        write(server, *range(1, 10))
        server.cli("XTRIM", EVENTS, "MAXLEN", "3")
        await proxy.listen()
        found = await take(events, 4)
        assert isinstance(found[0], Gap)
        assert numbers(found) == [7, 8, 9]


async def test_a_log_that_was_empty_and_cut_off_while_the_connection_was_lost(server: Server, proxy: Proxy) -> None:
    async with QueueEvents("q", connection=proxy.url) as events:
        await proxy.stop_listening()
        write(server, *range(10))
        server.cli("XTRIM", EVENTS, "MAXLEN", "3")
        await proxy.listen()
        found = await take(events, 4)
        assert isinstance(found[0], Gap)
        assert numbers(found) == [7, 8, 9]


@pytest.mark.parametrize("connected", [True, False])
async def test_a_log_that_was_deleted_is_read_on(server: Server, proxy: Proxy, connected: bool) -> None:
    async with QueueEvents("q", connection=proxy.url) as events:
        write(server, 0)
        await take(events, 1)
        [feed] = events._source._feeds  # type: ignore[union-attr]
        await wait_until(
            lambda: feed.stream is not None and feed.stream.position == feed.position
        )  # the reader, too, was there
        if not connected:
            await proxy.stop_listening()
        await asyncio.sleep(0.005)  # within a millisecond the ids would begin anew
        server.cli("DEL", EVENTS)
        write(server, 1, 2)
        if not connected:
            await proxy.listen()
        found = await take(events, 3)
        assert isinstance(found[0], Gap)
        assert numbers(found) == [1, 2]


async def test_a_place_in_another_server_is_a_gap(queue: Queue, server: Server) -> None:
    write(server, 1)
    async with QueueEvents(queue, since="9999999999999-0") as events:
        [gap] = await take(events, 1)
        assert isinstance(gap, Gap)
        write(server, 2)
        assert numbers(await take(events, 1)) == [2]


# -- who is slow -------------------------------------------------------------------------------------------------------------


async def test_a_slow_listener_loses_nothing_and_holds_nobody_up(queue: Queue, server: Server) -> None:
    async with QueueEvents(queue) as slow, QueueEvents(queue) as quick:
        for start in range(0, 5_000, 250):
            write(server, *range(start, start + 250))
            assert numbers(await take(quick, 250)) == [*range(start, start + 250)]
        assert len(slow._source._kept) <= 1_000  # type: ignore[union-attr]
        assert numbers(await take(slow, 5_000)) == [*range(5_000)]
        write(server, 5_000)
        assert numbers(await take(slow, 1)) == [5_000]
        assert slow._source._feeds[0].live  # type: ignore[union-attr]


async def test_large_events_are_kept_within_bounds(queue: Queue, server: Server) -> None:
    async with QueueEvents(queue) as slow, QueueEvents(queue) as quick:
        for number in range(30):
            server.cli("XADD", EVENTS, "*", "event", "noticed", "number", str(number), "text", "x" * 1_000_000)
            await take(quick, 1)
        assert slow._source._bytes <= 8 * 1024 * 1024  # type: ignore[union-attr]
        assert numbers(await take(slow, 30)) == [*range(30)]


async def test_who_falls_behind_what_the_log_holds_is_told(queue: Queue, server: Server) -> None:
    async with QueueEvents(queue) as slow, QueueEvents(queue) as quick:
        for start in range(0, 3_000, 250):
            write(server, *range(start, start + 250))
            await take(quick, 250)
        server.cli("XTRIM", EVENTS, "MAXLEN", "100")
        found: list[Event] = []
        while not numbers(found[-1:]) == [2_999]:
            found += await take(slow, 1)
        [gap] = [event for event in found if isinstance(event, Gap)]
        at = found.index(gap)
        assert numbers(found[:at]) == [*range(at)]
        assert numbers(found[at:]) == [*range(2_900, 3_000)]
        assert (gap.id, gap.until) == (found[at - 1].id, found[at + 1].id)


# -- one read for all --------------------------------------------------------------------------------------------------------


async def test_five_hundred_queues_with_events_and_results_over_a_few_connections(server: Server) -> None:
    async with Connection(server.url) as connection:
        queues = [Queue(f"q{number}", connection=connection) for number in range(500)]
        all_events = [QueueEvents(queue) for queue in queues]
        for events in all_events:  # one after another: each wakes the read that the others are in
            await events.ready()
        jobs = [await queue.add("echo", number) for number, queue in enumerate(queues)]
        results = [asyncio.create_task(job.result()) for job in jobs]
        await wait_until(lambda: len([client for client in server.clients() if "cmd=xread" in client]) == 1)
        assert len(server.clients()) < 20
        [reader] = [client for client in server.clients() if "cmd=xread" in client]
        assert f"name={queues[0]._home.keys.client_name(':qe')} " in reader
        first = int(reader.split("id=")[1].split()[0])
        for queue in queues[::100]:
            await Worker(queue, process).run_until_drained()
        assert await asyncio.gather(*results[::100]) == [0, 100, 200, 300, 400]
        for events in all_events:
            assert [event.kind for event in await take(events, 2)] == ["added", "waiting"]
        assert [event.kind for event in await take(all_events[100], 3)] == ["active", "completed", "drained"]
        assert len(server.clients()) < 20
        assert any(f"id={first} " in client for client in server.clients())  # it never had to be made anew
        for task in results:
            task.cancel()
        for events in all_events:
            await events.close()


async def test_where_one_may_not_wake_a_read_it_is_made_anew(server: Server) -> None:
    server.cli("ACL", "SETUSER", "guest", "on", ">secret", "~*", "&*", "+@all", "-client|unblock")
    async with Connection(server.unix_url_for(user="guest", password="secret")) as connection:
        for number in range(5):
            events = QueueEvents(f"q{number}", connection=connection)
            await events.ready()
            write(server, number, key=f"emq:{{q{number}}}:events")
            assert numbers(await take(events, 1)) == [number]
    server.cli("ACL", "DELUSER", "guest")


async def test_nobody_polls(queue: Queue, server: Server) -> None:
    def calls() -> int:
        lines = server.cli("INFO", "commandstats").decode().splitlines()
        return sum(
            int(line.split("calls=")[1].split(",")[0])
            for line in lines
            if line.startswith(("cmdstat_x", "cmdstat_eval"))
        )

    async with QueueEvents(queue) as events, QueueEvents(queue, group="g") as members:
        waiting = [asyncio.ensure_future(anext(one)) for one in (events, members)]
        await asyncio.wait(waiting, timeout=0.2)
        before = calls()
        await asyncio.sleep(1)
        assert calls() == before
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


# -- trouble -----------------------------------------------------------------------------------------------------------------


async def test_without_a_server_one_does_not_wait_for_ever(make_server: Callable[..., Server]) -> None:
    server = make_server()
    server.stop()
    with pytest.raises(ServerUnavailable):
        async with QueueEvents("q", connection=Connection(server.url, wait=0.1)):
            pass


async def test_without_ready_the_first_look_does_not_wait_for_ever_either(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with Queue("q", connection=Connection(server.url, wait=0.1)) as queue:
        server.stop()
        events = QueueEvents(queue)
        with pytest.raises(ServerUnavailable):
            await anext(events)
        server.start()
        asking = asyncio.create_task(anext(events))
        await wait_until(lambda: bool(events.positions))
        await queue.publish("x")
        assert isinstance(await asking, Custom)
        await events.close()


async def test_a_key_that_is_no_stream_is_named_and_can_be_mended(queue: Queue, server: Server) -> None:
    server.cli("SET", EVENTS, "no stream")
    with pytest.raises(BrokenKey, match=r"emq:\{q\}:events must be a stream"):
        async with QueueEvents(queue):
            pass
    server.cli("DEL", EVENTS)
    async with QueueEvents(queue) as events:
        write(server, 1)
        await take(events, 1)
        server.cli("DEL", EVENTS)
        server.cli("SET", EVENTS, "no stream")
        with server.client() as client:  # what blocks on it does not wake by itself
            client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(BrokenKey, match=r"emq:\{q\}:events must be a stream"):
            await take(events, 1)
        server.cli("DEL", EVENTS)
        write(server, 2)
        found = await take(events, 2)
        assert isinstance(found[0], Gap)
        assert numbers(found) == [2]


async def test_closing_ends_the_loop(queue: Queue) -> None:
    async with QueueEvents(queue) as events:

        async def listen() -> int:
            count = 0
            async for _ in events:
                count += 1
            return count

        listening = asyncio.create_task(listen())
        await queue.publish("x")
        await wait_until(lambda: events.positions != {})
        await events.close()
        assert await asyncio.wait_for(listening, 5) <= 1
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    with pytest.raises(RuntimeError, match="is closed"):
        await events.ready()


async def test_a_cancelled_wait_loses_nothing(queue: Queue, server: Server) -> None:
    async with QueueEvents(queue, since="start") as events:
        found: list[Event] = []
        for number in range(300):
            write(server, number)
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.wait([waiting], timeout=number % 5 * 0.0003)
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                found.append(waiting.result())
        found += await take(events, 300 - len(found))
        assert numbers(found) == [*range(300)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queues": ()}, "no queue was named"),
        ({"queues": ("a", "a")}, "queue 'a' is named twice"),
        ({"queues": ("a:b",)}, "a:b"),
        ({"since": "yesterday"}, "since='yesterday'"),
        ({"since": "1-99999999999999999999"}, "since="),
        ({"since": {"b": "1-0"}}, "since has a queue 'b'"),
        ({"since": 5}, "since=5"),
        ({"group": ""}, "group=''"),
        ({"consumer": "me"}, "names a member of a group"),
        ({"group": "g", "claim_after": 0}, "claim_after"),
    ],
)
def test_what_breaks_a_rule_is_named(given: dict[str, Any], message: str) -> None:
    queues = given.pop("queues", ("a",))
    with pytest.raises(InvalidOption, match=message):
        QueueEvents(*queues, connection="redis://127.0.0.1:1", **given)


async def test_queues_of_several_connections_need_one_for_the_events(url: str) -> None:
    async with Queue("a", connection=url) as one, Queue("b", connection=url) as other:
        with pytest.raises(InvalidOption, match="the same Connection"):
            QueueEvents(one, other)
        async with QueueEvents(one, other, connection=url) as events:
            await one.publish("x")
            assert [event.queue for event in await take(events, 1)] == ["a"]
