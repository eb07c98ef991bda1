"""A bucket of S3 as the store of large payloads: over real HTTP, there and away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from echomq import Job, JobFailed, Queue, StoreUnavailable, Worker
from echomq.payloads import Compressed, Encrypted, Offloaded, S3Store, collect
from tests.support.wait import wait_until

DATA = {"text": "Stephansplatz " * 100}


class Bucket:
    """A server of S3 that can be stopped and started again, with one bucket."""

    def __init__(self) -> None:
        self._server: ThreadedMotoServer | None = None
        self._port = 0
        self.start()
        config = Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 1})
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self._port}",
            region_name="us-east-1",
            aws_access_key_id="nobody",
            aws_secret_access_key="none",
            config=config,
        )
        self.client.create_bucket(Bucket="jobs")

    def start(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()
        _, self._port = self._server.get_host_and_port()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def keys(self) -> list[str]:
        return [found["Key"] for found in self.client.list_objects_v2(Bucket="jobs").get("Contents", ())]


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    one = Bucket()
    yield one
    for key in one.keys():
        one.client.delete_object(Bucket="jobs", Key=key)
    one.client.close()
    one.stop()


async def echo(job: Job[Any]) -> Any:
    return job.data


async def test_payloads_in_a_bucket(url: str, bucket: Bucket) -> None:
    store = S3Store(bucket.client, "jobs", prefix="large/")
    codec = [Compressed(above=100), Encrypted(Encrypted.generate_key()), Offloaded(store, above=100)]
    async with Queue("q", connection=url, codec=codec) as queue, Worker(queue, echo):
        job = await queue.add("echo", DATA)
        assert await job.result(timeout=20) == DATA
        assert [key.startswith("large/20") for key in bucket.keys()] == [True, True]
        body = bucket.client.get_object(Bucket="jobs", Key=bucket.keys()[0])["Body"].read()
        assert b"Stephansplatz" not in body
        found = await queue.get_job(job.id)
        assert found is not None
        assert (await found.load()).data == DATA

        gone = await queue.add("echo", DATA, delay=3600)
        known = repr(found._stored.fields)
        [key] = [key for key in bucket.keys() if key.removeprefix("large/") not in known]
        bucket.client.delete_object(Bucket="jobs", Key=key)
        await gone.promote()
        with pytest.raises(JobFailed, match="it was removed, or this is another store"):
            await gone.result(timeout=20)

        assert await collect(store, url, older_than=0) == 0
        await found.remove()
        assert await collect(store, url, older_than=0) == 2
        assert bucket.keys() == []
    lost = S3Store(bucket.client, "no-such-bucket")
    async with Queue("q", connection=url, codec=Offloaded(lost, above=10)) as queue:
        with pytest.raises(StoreUnavailable, match="NoSuchBucket"):
            await queue.add("echo", DATA)


async def test_a_bucket_that_is_away_for_a_moment(url: str, bucket: Bucket) -> None:
    store = S3Store(bucket.client, "jobs")
    async with Queue("q", connection=url, codec=Offloaded(store, above=100)) as queue:
        job = await queue.add("echo", DATA)
        bucket.stop()
        with pytest.raises(StoreUnavailable):
            await queue.add("echo", DATA)
        async with Worker(queue, echo):

            async def waits() -> bool:
                now = await job.refresh()
                return now is not None and now.state == "delayed"

            await wait_until(waits)
            bucket.start()
            assert await job.result(timeout=30) == DATA
        now = await job.refresh()
        assert now is not None
        assert now.attempts_made == 1
