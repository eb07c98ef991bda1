"""The line of calls: every caller gets its own answer, and nothing is done twice, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from echomq import Deduplication, Job, Queue, Worker
from echomq._redis.wire import Argument, Reply
from echomq._store import call as calling
from echomq._store import control, read
from echomq._store.call import Lane, Patience
from echomq._store.codec import NewJob, encode_spec
from echomq._store.codes import ADDED, DEDUPLICATED
from echomq._store.keys import QueueKeys
from echomq._store.line import MOST_BYTES, MOST_JOBS, Line
from echomq.connection import Connection
from echomq.errors import BrokenKey, ConnectionLost, ServerError, ServerUnavailable, StaleCall
from echomq.options import JobSpec
from tests.support.proxy import Loss, Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

KEYS = QueueKeys.of("q")
ADD = needle("addJobs-11")


def job(name: str = "paint", **options: Any) -> NewJob:
    return encode_spec(JobSpec(name, **options))


@asynccontextmanager
async def line_to(url: str, *, wait: float = 3.0, call_timeout: float = 0.3) -> AsyncIterator[Line]:
    line = Line(Connection(url, wait=wait, call_timeout=call_timeout).acquire(), KEYS)
    try:
        yield line
    finally:
        await line.close()


def names(server: Server) -> list[str]:
    """The names of all waiting jobs, the first to be run first."""
    ids = server.cli("LRANGE", KEYS.key("wait"), 0, -1)
    return [server.cli("HGET", KEYS.key(one.decode()), "name").decode() for one in reversed(ids)]


def events(server: Server) -> list[str]:
    return [fields[1].decode() for _, fields in server.cli("XRANGE", KEYS.key("events"), "-", "+")]


def call_number(server: Server) -> int:
    """The number of the lane's last call, by the server's own record."""
    [record] = server.cli("HVALS", KEYS.resolve("calls"))
    return int(record.split(b":")[0])


# -- together ------------------------------------------------------------------------------------------------------------


async def test_adds_of_one_moment_travel_in_one_call(server: Server) -> None:
    async with line_to(server.url) as line:
        results = await asyncio.gather(*(line.add((job(f"j{number}"),)) for number in range(100)))
    assert [added.job_id for [added] in results] == [str(number) for number in range(1, 101)]
    assert names(server) == [f"j{number}" for number in range(100)]
    assert call_number(server) == 1


async def test_a_call_takes_no_more_than_it_may(server: Server) -> None:
    large = job(data="x" * (MOST_BYTES // 3))
    async with line_to(server.url) as line:
        await asyncio.gather(*(line.add((job(),)) for _ in range(MOST_JOBS + 1)))
        assert call_number(server) == 2
        await asyncio.gather(*(line.add((large,)) for _ in range(4)))
        assert call_number(server) == 4


async def test_a_lone_add_leaves_while_another_kind_of_call_waits(server: Server) -> None:
    async with line_to(server.url) as line:
        first, paused, second = line.add((job("a"),)), line.call("pause-6", ()), line.add((job("b"),))
        await asyncio.gather(first, paused, second)
    assert events(server) == ["added", "waiting", "paused", "added", "waiting"]


# -- callers that go away --------------------------------------------------------------------------------------------------


async def test_every_answer_belongs_to_its_caller_whoever_is_cancelled(server: Server, proxy: Proxy) -> None:
    choose = random.Random(7)
    proxy.delay = 0.002

    async def add(line: Line, name: str) -> tuple[str, str]:
        await asyncio.sleep(choose.random() / 10)
        [added] = await line.add((job(name, job_id=f"id-{name}"),))
        return name, added.job_id

    async with line_to(proxy.url) as line:
        callers = [asyncio.create_task(add(line, f"j{number}")) for number in range(100)]
        while pending := [caller for caller in callers if not caller.done()]:
            if choose.random() < 0.3:
                choose.choice(pending).cancel()
            await asyncio.sleep(0.002)
        answered = [caller.result() for caller in callers if not caller.cancelled()]
    assert 0 < len(answered) < 100
    assert all(job_id == f"id-{name}" for name, job_id in answered)
    waiting = names(server)
    assert len(waiting) == len(set(waiting))  # a cancelled one may be in the queue, but once
    assert {name for name, _ in answered} <= set(waiting)


@pytest.mark.parametrize("before", ["connected", "never"])
@pytest.mark.parametrize("together", [True, False])
async def test_what_nobody_waits_for_any_more_is_not_sent(
    server: Server, proxy: Proxy, before: str, together: bool
) -> None:
    async with line_to(proxy.url, wait=30) as line:
        if before == "connected":
            await line.add((job("first"),))
        await proxy.stop_listening()
        await wait_until(lambda: line._lane is None or not line._lane._link.connected)
        asked: list[asyncio.Future[Any]] = []
        for number in range(3):
            asked += [line.add((job(f"j{number}"),)), line.call("pause-6", ()), line.tell((f"{number}", "log", "x"))]
            if together:
                continue
            await asyncio.sleep(0.05)
            for one in asked:
                one.cancel()
        await asyncio.sleep(0.05)
        for one in asked:
            one.cancel()
        stays = line.add((job("last"),))
        await proxy.listen()
        await stays
    assert names(server) == [*(["first"] if before == "connected" else []), "last"]
    assert not server.cli("HEXISTS", KEYS.key("meta"), "paused")


async def test_a_line_whose_loop_ends_lets_its_callers_go(server: Server, proxy: Proxy) -> None:
    proxy.black_hole = True
    async with line_to(proxy.url) as line:
        asked = [line.add((job(),)), line.call("pause-6", ()), line.add((job(),))]
        await wait_until(lambda: proxy.connections)
        assert line._walk is not None
        line._walk.cancel()
        await asyncio.wait(asked)
        assert all(future.cancelled() for future in asked)
    proxy.black_hole = False


# -- answers of any content ------------------------------------------------------------------------------------------------


async def test_an_id_that_is_no_text_spoils_nobody_elses_answer(server: Server) -> None:
    server.cli("HSET", KEYS.key("").encode() + b"\xff", "name", "foreign", "data", "{}", "opts", "{}", "timestamp", "1",
               "delay", "0", "priority", "0")  # fmt: skip
    server.cli("LPUSH", KEYS.key("wait"), b"\xff")
    server.cli("SET", KEYS.key("de:d"), b"\xff")
    async with line_to(server.url) as line:
        [held], [plain] = await asyncio.gather(
            line.add((job(deduplication=Deduplication("d")),)), line.add((job("plain"),))
        )
    assert (held.job_id, held.code) == ("\udcff", DEDUPLICATED)
    assert plain.code == ADDED
    async with Queue("q", connection=server.url) as queue:
        found = await queue.add("x", deduplication=Deduplication("d"))
    assert (found.id, found.name, found.deduplicated) == ("\udcff", "foreign", True)


async def test_an_answer_that_nobody_understands_is_an_error_to_those_who_asked(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with line_to(server.url) as line:
        await line.add((job(),))
        call = Lane.call

        async def nonsense(self: Lane, name: str, args: Sequence[Argument], patience: Patience) -> Reply:
            await call(self, name, args, patience)
            return [b"now"] if name == "addJobs-11" else []

        with monkeypatch.context() as patched:
            patched.setattr(Lane, "call", nonsense)
            asked: list[asyncio.Future[Any]] = [line.add((job("a"),)), line.add((job("b"),)), line.call("pause-6", ())]
            errors = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in errors] == [ValueError, ValueError, list]
        await line.call("resume-8", ())
        await line.add((job("c"),))
    assert names(server) == ["paint", "a", "b", "c"]


# -- what is lost on the way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["request", "reply", "hold"])
async def test_an_add_is_repeated_and_adds_once(server: Server, proxy: Proxy, loss: Loss) -> None:
    async with line_to(proxy.url) as line:
        await line.add((job("first"),))
        proxy.lose(loss, ADD)
        [added] = await line.add((job("second"),))
        assert added.code == ADDED
        assert proxy.seen == 2
        proxy.release()
        await line.add((job("third"),))
    assert names(server) == ["first", "second", "third"]
    assert events(server) == ["added", "waiting"] * 3


@pytest.mark.parametrize("loss", ["request", "reply"])
async def test_an_add_survives_many_losses(server: Server, proxy: Proxy, loss: Loss) -> None:
    async with line_to(proxy.url) as line:
        proxy.lose(loss, ADD, times=5)
        results = await asyncio.gather(*(line.add((job(f"j{number}"),)) for number in range(20)))
    assert [added.job_id for [added] in results] == [str(number) for number in range(1, 21)]
    assert len(names(server)) == 20


@pytest.mark.parametrize("loss", ["request", "reply"])
async def test_controls_are_repeated_and_act_once(server: Server, proxy: Proxy, loss: Loss) -> None:
    async with line_to(proxy.url) as line:
        [added] = await line.add((job(),))
        proxy.lose(loss, needle("pause-6"))
        await control.pause(line)
        assert await read.is_paused(line)
        proxy.lose(loss, needle("resume-8"))
        await control.resume(line)
        proxy.lose(loss, needle("remove-5"))
        await control.remove(line, added.job_id, children=True)
    assert events(server) == ["added", "waiting", "paused", "resumed", "removed"]


async def test_reads_are_repeated(server: Server, proxy: Proxy) -> None:
    async with line_to(proxy.url) as line:
        [added] = await line.add((job(),))
        proxy.lose("reply", needle("getJob-8"))
        found = await read.job(line, added.job_id)
        assert found is not None
        assert found[1] == "waiting"
        proxy.lose("reply", b"HEXISTS")
        assert not await read.is_paused(line)


async def test_duplicates_that_cannot_be_read_were_added_all_the_same(server: Server, proxy: Proxy) -> None:
    connection = Connection(proxy.url, wait=0.3)
    async with connection, Queue("q", connection=connection) as queue:
        await queue.add("first", 0, job_id="mine")
        proxy.lose("request", needle("getJob-8"), times=10**6)
        jobs = await queue.add_bulk([JobSpec("x", 1), JobSpec("x", 2, job_id="mine"), JobSpec("x", 3)])
        assert [(one.id, one.data, one.duplicate) for one in jobs] == [
            ("2", 1, False),
            ("mine", 2, True),
            ("4", 3, False),
        ]
        again = await queue.add("x", 4, job_id="mine")
        assert (again.id, again.data, again.duplicate) == ("mine", 4, True)
        proxy.lose("request", needle("getJob-8"), times=0)
        found = await again.refresh()
        assert found is not None
        assert found.data == 0
    assert names(server) == ["first", "x", "x"]


STRANGE_RECORDS = [b"garbage", b"99999999:1:\x90", b""]


def write_records(server: Server, record: bytes) -> int:
    """Writes this in place of what all lanes have on record."""
    with server.client() as client:
        lanes = client.hkeys(KEYS.resolve("calls"))
        client.hset(KEYS.resolve("calls"), mapping=dict.fromkeys(lanes, record))
        return len(lanes)


@pytest.mark.parametrize("record", STRANGE_RECORDS)
async def test_whoever_writes_into_the_records_costs_one_call(server: Server, record: bytes) -> None:
    async with line_to(server.url) as line:
        await line.add((job("before"),))
        assert write_records(server, record) == 1
        with pytest.raises(StaleCall, match="not added"):
            await line.add((job("refused"),))
        await line.add((job("after"),))
        await control.pause(line)
    assert names(server) == ["before", "after"]


@pytest.mark.parametrize("record", STRANGE_RECORDS)
async def test_a_call_whose_record_is_spoilt_before_it_is_asked_for_may_have_acted(
    server: Server, proxy: Proxy, record: bytes
) -> None:
    async with line_to(proxy.url) as line:
        await line.add((job("before"),))
        proxy.lose("silence", ADD)
        adding = line.add((job("lost"),))
        await wait_until(lambda: len(names(server)) == 2)
        assert write_records(server, record) == 1
        proxy.lose("request", times=0)
        with pytest.raises(ConnectionLost, match="outcome unknown"):
            await adding
        await line.add((job("after"),))
        proxy.release()
    assert names(server) == ["before", "lost", "after"]


@pytest.mark.parametrize("record", STRANGE_RECORDS)
async def test_a_worker_goes_on_when_somebody_writes_into_the_records(server: Server, record: bytes) -> None:
    async def handler(job: Job[Any]) -> int:
        return 1

    async with (
        Queue("q", connection=server.url) as queue,
        Worker("q", handler, connection=server.url, concurrency=4, lock_duration=1, stalled_interval=0.2),
    ):
        assert await (await queue.add("before")).result(timeout=5) == 1
        await wait_until(lambda: write_records(server, record) >= 3)
        async with Queue("q", connection=server.url) as other:
            jobs = [await other.add("after") for _ in range(8)]
            assert [await job.result(timeout=10) for job in jobs] == [1] * 8
        # The sweep too goes on: a job that lost its worker comes back.
        server.cli("HSET", KEYS.job("j"), "name", "n", "data", "{}", "opts", "{}")
        server.cli("LPUSH", KEYS.key("active"), "j")
        await wait_until(lambda: server.cli("ZSCORE", KEYS.key("completed"), "j"), timeout=10)


async def test_a_late_copy_of_an_answered_call_changes_nothing(server: Server, proxy: Proxy) -> None:
    async with line_to(proxy.url) as line:
        proxy.lose("hold", ADD)
        await line.add((job("first"),))
        assert proxy.holds == 1
        await line.add((job("second"),))
        before = server.cli("XINFO", "STREAM", KEYS.key("events"))
        proxy.release()  # long after: the lane is at its second call
        await wait_until(lambda: proxy.connections == 1, what="the server has answered the old call and is left alone")
        assert server.cli("XINFO", "STREAM", KEYS.key("events")) == before
    assert names(server) == ["first", "second"]


async def test_a_late_copy_of_the_last_call_is_answered_from_the_record(server: Server, proxy: Proxy) -> None:
    async with line_to(proxy.url) as line:
        proxy.lose("hold", ADD)
        await line.add((job(),))
        proxy.release()
        await wait_until(lambda: proxy.connections == 1)
        [added] = await line.add((job("next"),))
    assert added.job_id == "2"
    assert names(server) == ["paint", "next"]


async def test_scripts_that_the_server_forgot_are_loaded_again(server: Server) -> None:
    async with line_to(server.url) as line:
        await line.add((job(),))
        server.cli("SCRIPT", "FLUSH")
        await line.add((job(),))
    assert len(names(server)) == 2


# -- a server that is away -------------------------------------------------------------------------------------------------


async def test_a_call_fails_when_its_patience_ends_and_says_that_nothing_was_added(proxy: Proxy) -> None:
    await proxy.stop_listening()
    async with line_to(proxy.url, wait=0.2) as line:
        started = time.monotonic()
        with pytest.raises(ServerUnavailable, match=r"queue 'q': not added: .*cannot connect"):
            await line.add((job(),))
        assert time.monotonic() - started < 2
        with pytest.raises(ServerUnavailable, match="queue 'q': not carried out"):
            await line.call("pause-6", ())
        with pytest.raises(ServerUnavailable, match="queue 'q': could not be read"):
            await read.counts(line, ["waiting"])


async def test_those_that_wait_in_the_line_do_not_wait_one_after_the_other(proxy: Proxy) -> None:
    await proxy.stop_listening()
    full = [job()] * MOST_JOBS
    async with line_to(proxy.url, wait=0.3) as line:
        started = time.monotonic()
        asked = [line.add(full) for _ in range(30)]
        await asyncio.wait(asked)
        assert time.monotonic() - started < 3
        assert all(isinstance(future.exception(), ServerUnavailable) for future in asked)


async def test_without_patience_there_is_one_try(server: Server, proxy: Proxy) -> None:
    async with line_to(proxy.url, wait=0) as line:
        await line.add((job(),))
        proxy.lose("request", ADD)
        with pytest.raises(ConnectionLost, match="outcome unknown"):
            await line.add((job(),))
        assert proxy.seen == 1
        await line.add((job(),))
    assert len(names(server)) == 2


async def test_a_call_whose_fate_stays_unknown_says_so(server: Server, proxy: Proxy) -> None:
    async with line_to(proxy.url, wait=0.2) as line:
        await line.add((job("first"),))
        proxy.lose("reply", ADD)
        asked = line.add((job("second"),))
        await wait_until(lambda: len(names(server)) == 2)
        await proxy.stop_listening()
        with pytest.raises(ConnectionLost, match="queue 'q': outcome unknown"):
            await asked
        await proxy.listen()
        await line.add((job("third"),))
    assert names(server) == ["first", "second", "third"]


@pytest.fixture
async def guarded(make_server: Callable[..., Server]) -> AsyncIterator[tuple[Server, Proxy, str]]:
    """A server that wants a password, a proxy before it, and the URL to that."""
    server = make_server(acl=["user ada on >secret ~* &* +@all"])
    async with Proxy(server) as proxy:
        yield server, proxy, proxy.url.replace("//", "//ada:secret@")


def set_password(server: Server, password: str) -> None:
    """For new connections; those that are open stay so."""
    server.cli("ACL", "SETUSER", "ada", "resetpass", f">{password}")


async def test_a_call_whose_reply_is_lost_and_whose_reconnect_is_refused_may_have_acted(
    guarded: tuple[Server, Proxy, str],
) -> None:
    server, proxy, url = guarded
    async with line_to(url, wait=0.2) as line:
        await line.add((job("first"),))
        set_password(server, "another")
        proxy.lose("reply", ADD)
        with pytest.raises(ConnectionLost, match=r"queue 'q': outcome unknown: .*WRONGPASS"):
            await line.add((job("second"),))
        with pytest.raises(ServerError, match="queue 'q': not added: WRONGPASS"):
            await line.add((job("third"),))
        set_password(server, "secret")
        await line.add((job("fourth"),))
    assert names(server) == ["first", "second", "fourth"]


@pytest.mark.parametrize("what", ["add", "read"])
async def test_a_password_that_differs_for_a_moment_costs_no_call_that_is_under_way(
    guarded: tuple[Server, Proxy, str], what: str
) -> None:
    server, proxy, url = guarded
    async with line_to(url, wait=20) as line:
        [first] = await line.add((job("first"),))
        set_password(server, "another")
        proxy.lose("reply", ADD if what == "add" else needle("getJob-8"))
        asked: asyncio.Future[Any] = asyncio.ensure_future(
            line.add((job("second"),)) if what == "add" else read.job(line, first.job_id)
        )
        await asyncio.wait([asked], timeout=0.3)
        assert not asked.done()
        set_password(server, "secret")
        assert await asked is not None
    assert names(server) == ["first", "second"][: 2 if what == "add" else 1]


async def test_a_refusal_that_lasts_is_told_also_to_endless_patience(
    guarded: tuple[Server, Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "REFUSED_FOR", 0.2)
    server, proxy, url = guarded
    async with line_to(url, wait=math.inf) as line:
        await line.add((job("first"),))
        set_password(server, "another")
        proxy.lose("reply", ADD)
        with pytest.raises(ConnectionLost, match=r"outcome unknown: .*WRONGPASS"):
            await line.add((job("second"),))
        await proxy.stop_listening()
        asked = line.add((job("third"),))
        await asyncio.wait([asked], timeout=0.1)
        await proxy.listen()
        with pytest.raises(ServerError, match="not added: WRONGPASS"):
            await asked
    assert names(server) == ["first", "second"]


async def test_a_call_whose_connection_is_closed_meanwhile_may_have_acted(server: Server, proxy: Proxy) -> None:
    connection = Connection(proxy.url)
    line = Line(connection.acquire(), KEYS)
    await line.add((job("first"),))
    proxy.lose("silence", ADD)
    asked = line.add((job("second"),))
    await wait_until(lambda: len(names(server)) == 2)
    await connection.close()
    with pytest.raises(ConnectionLost, match=r"queue 'q': outcome unknown: .*closed") as caught:
        await asked
    assert isinstance(caught.value.__cause__, ConnectionLost)
    await line.close()


async def test_patience_without_end_outlasts_an_outage(server: Server, proxy: Proxy) -> None:
    await proxy.stop_listening()
    async with line_to(proxy.url, wait=math.inf) as line:
        asked = line.add((job(),))
        await asyncio.wait([asked], timeout=0.5)
        assert not asked.done()
        await proxy.listen()
        await asked
    assert names(server) == ["paint"]


async def test_a_silent_server_costs_a_time_out_and_no_job(server: Server, proxy: Proxy) -> None:
    async with line_to(proxy.url) as line:
        await line.add((job("first"),))
        proxy.black_hole = True
        asked = line.add((job("second"),))
        await wait_until(lambda: not line.hub._link.connected, what="the silent connection is given up")  # type: ignore[union-attr]
        proxy.black_hole = False
        await asked
    assert names(server) == ["first", "second"]


async def test_a_frozen_server_adds_once_when_it_wakes(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with line_to(server.url) as line:
        await line.add((job("first"),))
        server.pause()
        asked = line.add((job("second"),))
        await asyncio.wait([asked], timeout=1)
        server.resume()
        await asked
    assert names(server) == ["first", "second"]


@pytest.mark.parametrize("kill", [False, True])
async def test_restarts_under_load_lose_and_double_nothing(make_server: Callable[..., Server], kill: bool) -> None:
    server = make_server(appendonly=True)
    added: list[str] = []
    stop = asyncio.Event()

    async def produce(line: Line, producer: int) -> None:
        number = 0
        while not stop.is_set():
            await line.add((job(f"{producer}.{number}"),))
            added.append(f"{producer}.{number}")
            number += 1

    async with line_to(server.url, wait=30) as line:
        producers = [asyncio.create_task(produce(line, producer)) for producer in range(5)]
        for _ in range(3):
            before = len(added)
            await wait_until(lambda: len(added) > before + 50)  # noqa: B023
            await asyncio.to_thread(server.restart, kill=kill)
        stop.set()
        await asyncio.gather(*producers)
    assert sorted(names(server)) == sorted(added)


async def test_a_server_that_becomes_a_replica_is_waited_for(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with line_to(server.url, wait=20) as line:
        await line.add((job("first"),))
        server.cli("REPLICAOF", "127.0.0.1", "1")
        asked = line.add((job("second"),))
        await asyncio.wait([asked], timeout=0.3)
        assert not asked.done()
        server.cli("REPLICAOF", "NO", "ONE")
        await asked
    assert names(server) == ["first", "second"]


async def test_whatever_is_cut_at_random_every_job_is_added_once(server: Server, proxy: Proxy) -> None:
    choose = random.Random(11)
    losses: list[Loss] = ["request", "reply", "hold"]
    added: list[str] = []

    async def lose() -> None:
        while proxy.lost < 30:
            proxy.lose(choose.choice(losses), choose.choice([ADD, b"", needle("getCounts-8")]))
            await asyncio.sleep(choose.random() / 50)
            if choose.random() < 0.3:
                proxy.release()

    async def produce(line: Line, producer: int) -> None:
        number = 0
        while not losing.done():
            name = f"{producer}.{number}"
            [result] = await line.add((job(name),))
            assert result.code == ADDED
            added.append(name)
            await read.counts(line, ["waiting"])
            number += 1

    async with line_to(proxy.url, wait=30, call_timeout=0.1) as line:
        losing = asyncio.create_task(lose())
        await asyncio.gather(*(produce(line, producer) for producer in range(10)))
        proxy.release()
    assert sorted(names(server)) == sorted(added)


# -- what the server refuses -------------------------------------------------------------------------------------------------


async def test_a_broken_key_is_named_and_the_line_goes_on(server: Server) -> None:
    server.cli("SET", KEYS.key("wait"), "no list")
    async with line_to(server.url) as line:
        with pytest.raises(BrokenKey, match=r"queue 'q': not added: .*wait") as caught:
            await line.add((job(),))
        assert caught.value.code == "BROKEN"
        server.cli("DEL", KEYS.key("wait"))
        await line.add((job(),))


async def test_an_error_that_is_told_as_it_is_is_not_its_own_cause(server: Server) -> None:
    connection = Connection(server.url)
    line = Line(connection.acquire(), KEYS)
    await line.add((job(),))
    await connection.close()
    with pytest.raises(RuntimeError, match="closed") as caught:
        await line.add((job(),))
    await line.close()
    assert caught.value.__cause__ is not caught.value


async def test_a_full_memory_refuses_the_whole_call(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with line_to(server.url) as line:
        await line.add((job(),))
        server.cli("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(ServerError, match="queue 'q': not added: ") as caught:
            await line.add((job("a"), job("b")))
        assert caught.value.code == "OOM"
    assert names(server) == ["paint"]


# -- the end -----------------------------------------------------------------------------------------------------------------


async def test_close_waits_for_what_was_asked_and_takes_nothing_more(server: Server) -> None:
    async with line_to(server.url) as line:
        asked = [line.add((job(),)) for _ in range(3)]
        await line.close()
        assert all(future.done() for future in asked)
        with pytest.raises(RuntimeError, match="queue 'q' is closed"):
            line.add((job(),))
    assert len(names(server)) == 3
