"""Node sees our payloads as JSON objects, adds plain data to queues with a codec, and whole numbers keep their digits."""

from __future__ import annotations

import asyncio
import json

import pytest

from echomq import EchoMQ
from echomq.payloads import Codec, Compressed, Encrypted
from tests.support.node_peer import FOLDER, VERSIONS, Version
from tests.support.server import Server

BIG = 2**63 + 1
TEXT = "Guten Morgen, Wien! " * 200


async def node(version: Version, server: Server, queue: str) -> dict[str, object]:
    """What ``payloads.mjs`` says."""
    process = await asyncio.create_subprocess_exec(
        "node",
        "--harmony-json-parse-with-source",
        str(FOLDER / "payloads.mjs"),
        version,
        str(server.socket_path),
        "bull",
        queue,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 40)
    assert process.returncode == 0, err.decode()
    told: dict[str, object] = json.loads(out)
    return told


@pytest.mark.parametrize("version", VERSIONS)
async def test_node_reads_and_adds_beside_us(version: Version, server: Server) -> None:
    codecs: dict[str, Codec] = {"compressed": Compressed(), "encrypted": Encrypted(Encrypted.generate_key())}
    for name, codec in codecs.items():
        async with EchoMQ(server.url, prefix="bull", codec=codec) as app:
            await app.queue("payloads").add("keep", {"text": TEXT}, job_id=name, delay=3600)

    async with EchoMQ(server.url, prefix="bull", codec=list(codecs.values())) as app:

        @app.task(queue="payloads")
        async def double(number: int) -> int:
            return 2 * number

        @app.task(queue="payloads")
        async def greet(name: str) -> str:
            return f"Hello {name}"

        async with EchoMQ(server.url, prefix="bull") as plain:
            await plain.queue("payloads").add("double", {"number": BIG}, job_id="big")
        told = await node(version, server, "payloads")
        assert told["keys"] == [["$echomq"], ["$echomq"]]
        assert told["inflated"] == {"text": TEXT}
        assert told["steps"] == ["fernet"]
        assert told["exact"] == str(BIG)
        assert told["rounded"] == 9223372036854776000

        async with app.worker("payloads", concurrency=4):
            for job_id, result in (("big", 2 * BIG), ("raw", 2 * BIG), ("text", 2 * BIG), ("plain", "Hello Ada")):
                job = await app.queue("payloads").get_job(job_id)
                assert job is not None
                assert await job.result(timeout=20) == result
