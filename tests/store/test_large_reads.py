"""Reads of very many jobs take a few milliseconds of the server each, wherever in them they look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.store.scripts import Queue, T, text
from tests.support.server import Server

LONGEST = 5_000
"""Microseconds that one call may take the server."""

FILL = """
local base, first, count, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
for n = first, first + count - 1 do
  local id = tostring(n)
  for _, kind in ipairs({ "w", "p", "c" }) do
    redis.call("HSET", base .. kind .. id, "name", "print", "data", '{"pages":8,"paper":"A4"}', "opts", '{"attempts":3}',
      "timestamp", ARGV[4], "delay", "0", "priority", "0", "ats", "1", "processedOn", ARGV[4], "pb", "host-1")
  end
  redis.call("LPUSH", base .. "wait", "w" .. id)
  redis.call("ZADD", base .. "prioritized", (n % 50 + 1) * 4294967296 + n, "p" .. id)
  redis.call("ZADD", base .. "completed", now + math.floor(n / 7), "c" .. id)
end
"""


def fill(queue: Queue, many: int) -> None:
    for first in range(0, many, 5_000):
        queue.client.execute_command("EVAL", FILL, 0, queue.base, first, min(5_000, many - first), T)
    queue.client.execute_command(
        "RPUSH", f"{queue.base}w1:logs", *(f"line {number} of a log" for number in range(min(many, 100_000)))
    )


class Clocked:
    """Runs scripts and says how long the server took for them, at the best of some tries."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.took: dict[str, int] = {}
        queue.client.execute_command("CONFIG", "SET", "slowlog-log-slower-than", 0)

    def __call__(self, what: str, script: str, *args: Any) -> list[Any]:
        best = 10**9
        for _ in range(5):
            self.queue.client.execute_command("SLOWLOG", "RESET")
            reply = self.queue.run(script, *args)
            for entry in self.queue.client.execute_command("SLOWLOG", "GET", 10):
                if entry[3][0].upper() == b"EVAL":
                    best = min(best, entry[2])
        self.took[what] = max(self.took.get(what, 0), best)
        return list(text(reply)) if isinstance(reply, list) else [reply]


def read_everything(queue: Queue, many: int) -> dict[str, int]:
    """Every read, at the ends and in the midst."""
    run = Clocked(queue)
    for number in (0, many // 2, many - 1):
        for kind in "wpc":
            run("getJob", "getJob-8", f"{kind}{number}")
            run("explainJob", "explainJob-15", f"{kind}{number}")
    run("getJob", "getJob-8", "nope")
    run("explainJob", "explainJob-15", "nope")
    for place, kind in (("wait", "w"), ("prioritized", "p"), ("completed", "c")):
        for newest in ("", "1"):
            for size in (100, 250):
                page = run(f"getPage of {size}", "getPage-8", place, size, newest, -1, 0, "")
                assert page[0] == size
                for number in (many // 2, many - 2_000):
                    ids = queue.command("LRANGE" if kind == "w" else "ZRANGE", f"~{place}", number, number)
                    score = "" if kind == "w" else queue.command("ZSCORE", f"~{place}", ids[0])
                    passed = number + 1 if newest or kind != "w" else many - number
                    page = run(
                        f"getPage of {size}", "getPage-8", place, size, newest, passed, many - passed, score, ids[0]
                    )
                    assert page[0] > 0
                    lost = run(
                        f"getPage of {size}, lost", "getPage-8", place, size, newest, passed, 7, "1", "gone", "too"
                    )
                    assert lost[0] >= 0
    run("getCounts", "getCounts-8", "waiting", "prioritized", "completed", "failed")
    run("getCountsPerPriority", "getCountsPerPriority-3")
    run("getLogs", "getLogs-1", "w1", 0, 1000, "")
    run("getLogs", "getLogs-1", "w1", min(many, 100_000) // 2, 1000, "1")
    return run.took


@pytest.fixture
def large(server: Server, make_server: Callable[..., Server]) -> Iterator[Queue]:
    with make_server(server.kind).client() as client:
        yield Queue(client, prefix="emq")


@pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)
def test_reads_of_many_jobs(large: Queue) -> None:
    fill(large, 5_000)
    read_everything(large, 5_000)  # with a million, their times are looked at


@pytest.mark.torture
@pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)
def test_reads_of_a_million_jobs_in_each_of_three_states(large: Queue) -> None:
    fill(large, 1_000_000)
    took = read_everything(large, 1_000_000)
    print(took)  # noqa: T201 - for who measures
    assert {what: longest for what, longest in took.items() if longest > LONGEST} == {}


def test_a_job_deep_inside_a_long_list(client: redis.Redis) -> None:
    """200,000 ids are looked at; what stands nowhere else is then taken to be there."""
    queue = Queue(client)
    for first in range(0, 250_000, 10_000):
        queue.command("LPUSH", "~wait", *range(first, first + 10_000))
    for job_id in ("7", "125000", "249990"):
        queue.command("HSET", f"~{job_id}", "name", "x", "data", "{}", "opts", "{}", "timestamp", T)
        assert queue.run("getJob-8", job_id)[0] == b"waiting"

    def before(job_id: str) -> str | None:
        facts = text(queue.run("explainJob-15", job_id))
        found = dict(zip(facts[::2], facts[1::2], strict=True))
        assert found["state"] == "waiting"
        return found.get("before")

    assert before("7") == "7"
    assert before("125000") is None
    assert before("249990") == "249990"

    # Who refuses a change and says where the job is looks no further either.
    queue.command("HSET", "~nowhere", "name", "x")
    for script, args in (("promote-9", ()), ("changeDelay-5", ("5", "")), ("reprocessJob-10", ("",))):
        for job_id in ("7", "125000", "nowhere"):
            assert text(queue.run(script, job_id, *args))[1:] == [-3, "waiting"], script
