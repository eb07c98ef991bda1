"""What the event log holds: no very large values, where they stand elsewhere too, and not more than so many bytes."""

from __future__ import annotations

import json

import pytest
import redis

from tests.store.scripts import KEEP_ALL, Queue, completed, failed
from tests.store.test_vectors_telling import tell, told
from tests.support.server import Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

KEEP_NONE = "0;;"
LARGEST = 65_536


def result(size: int) -> str:
    """A result of so many bytes as JSON."""
    return json.dumps("x" * (size - 2))


def run(queue: Queue, value: str, rule: str = KEEP_ALL) -> str:
    """Adds a job, fetches it and completes it. Gives its id."""
    job_id = queue.add()
    queue.fetch()
    token = queue.token
    queue.new_events()
    assert queue.finish(completed(job_id, token, value, rule)).codes == [0]
    return job_id


def log_size(queue: Queue) -> int:
    return int(queue.command("MEMORY", "USAGE", "~events", "SAMPLES", 0))


def looks(client: redis.Redis) -> int:
    """How often the size of a key was asked."""
    stats = client.execute_command("INFO", "commandstats")
    for line in stats.decode().splitlines():
        if line.startswith("cmdstat_memory|usage:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


def test_a_result_that_is_too_large_stays_in_the_job(queue: Queue) -> None:
    job_id = run(queue, result(LARGEST))
    assert queue.new_events()[0] == ["completed", "jobId", job_id, "returnvalue", result(LARGEST), "prev", "active"]
    job_id = run(queue, result(LARGEST + 1))
    told_of = ["completed", "jobId", job_id, "returnvalue", "null", "prev", "active", "resultBytes", str(LARGEST + 1)]
    assert queue.new_events()[0] == told_of
    assert queue.get(job_id)["returnvalue"] == result(LARGEST + 1)
    assert queue.is_finished(job_id)[0][:2] == [1, result(LARGEST + 1)]


def test_a_result_that_stands_nowhere_else_stands_in_the_log(queue: Queue) -> None:
    job_id = run(queue, result(200_000), KEEP_NONE)
    assert queue.get(job_id) is None
    assert queue.new_events()[0] == ["completed", "jobId", job_id, "returnvalue", result(200_000), "prev", "active"]


def test_a_reason_stands_in_the_log(queue: Queue) -> None:
    job_id = queue.add()
    queue.fetch()
    token = queue.token
    queue.new_events()
    queue.finish(failed(job_id, token, "x" * 100_000))
    assert queue.new_events()[0][:5] == ["failed", "jobId", job_id, "failedReason", "x" * 100_000]


def test_progress_that_is_too_large_stays_in_the_job(queue: Queue) -> None:
    queue.add()
    queue.new_events()
    assert tell(queue, told("progress", "1", result(LARGEST + 1))) == [0]
    assert queue.new_events() == [["progress", "jobId", "1", "data", "null", "dataBytes", str(LARGEST + 1)]]
    assert queue.get("1")["progress"] == result(LARGEST + 1)


@pytest.fixture
def bounded(queue: Queue) -> Queue:
    """A queue whose log may take a MiB."""
    queue.command("HSET", "~meta", "maxEventBytes", 1_048_576)
    return queue


def test_finishes_with_large_values_keep_the_log_within_its_bytes(bounded: Queue) -> None:
    for number in range(300):
        bounded.clock = None
        job_id = bounded.add()
        bounded.fetch()
        bounded.finish(completed(job_id, bounded.token, result(30_000)))
        if number > 100:
            assert log_size(bounded) < 4 * 1_048_576
    assert len(bounded.events()) > 10


def test_large_events_of_others_are_cut_off_by_the_sweep(bounded: Queue) -> None:
    bounded.add()
    bounded.fetch()
    for _ in range(40):
        bounded.command("XADD", "~events", "*", "event", "noticed", "text", "x" * 100_000)
    assert log_size(bounded) > 3 * 1_048_576
    bounded.sweep()
    assert log_size(bounded) <= 1_048_576
    assert len(bounded.events()) > 5


def test_published_events_keep_to_it(bounded: Queue) -> None:
    bounded.clock = None
    for _ in range(200):
        bounded.run("publishEvent-3", "noticed", "text", "x" * 50_000)
    assert log_size(bounded) < 3 * 1_048_576


@pytest.mark.parametrize("text", ["0", "-5", "many", "1e9", ""])
def test_a_limit_that_is_none_means_the_default(queue: Queue, text: str) -> None:
    queue.command("HSET", "~meta", "maxEventBytes", text)
    queue.add()
    queue.fetch()
    for _ in range(40):
        queue.command("XADD", "~events", "*", "event", "noticed", "text", "x" * 100_000)
    queue.sweep()
    assert len(queue.events()) >= 40


def test_plain_jobs_pay_nothing(queue: Queue, server: Server) -> None:
    queue.clock = None
    before = looks(queue.client)
    for _ in range(50):
        run(queue, '{"seat":17}')
    assert looks(queue.client) == before
